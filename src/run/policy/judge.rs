//! What the rules that are about a call come to together: deny wins, then the strictest approval.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Action, Found, Policy, Trigger};
use crate::run::approval::Requirement;
use crate::run::outcome::Cause;

/// What the rules decided about a call, for whoever wants to know later.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Decision {
    /// Names of the rules whose condition held, and of those that could not be evaluated.
    pub rules: Vec<String>,
    /// Digest of everything that the rules looked at (SHA-256 of its canonical text).
    pub inputs_digest: String,
    /// What came of it.
    pub outcome: DecisionOutcome,
    /// Which rule refused it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// Why, as the model is told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// What came of the rules for a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum DecisionOutcome {
    /// It may be sent.
    Allow,
    /// It may not.
    Deny,
    /// People decide.
    RequireApproval,
}

/// What is done about a call that went wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "action", rename_all = "snake_case")]
pub enum Trouble {
    /// It is sent again, with the same key.
    Retry,
    /// The model is told that it failed, and why.
    ToolError {
        /// The rule.
        rule: String,
        /// Its reason.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// People are asked whether it may be sent again.
    RequireApproval {
        /// What that takes.
        requirement: Box<Requirement>,
    },
    /// An administrator says what became of it.
    Reconcile,
    /// The run fails.
    Fail {
        /// The rule.
        rule: String,
        /// Its reason.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
}

/// What the rules say of a call, frozen with it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Judged {
    /// What was decided before it was sent; `None`: no rule is about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision: Option<Decision>,
    /// What is done when something goes wrong with it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub troubles: BTreeMap<Trigger, Trouble>,
}

impl Judged {
    /// Whether no rule is about the call.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// What the rules say to do about something that goes wrong with the call; `None`: what is done without any rule.
    pub fn on_trouble(&self, trigger: Trigger) -> Option<&Trouble> {
        self.troubles.get(&trigger)
    }

    /// What the rules say to do about an attempt whose outcome nobody knows, and when they were asked: of a worker that fell
    /// silent the rules about that speak first.
    pub fn on_lost(&self, cause: Cause) -> Option<(Trigger, &Trouble)> {
        let triggers: &[Trigger] = match cause {
            Cause::LeaseExpired => &[Trigger::LeaseExpired, Trigger::Indeterminate],
            Cause::Crash | Cause::LostResponse | Cause::TimeOut | Cause::Cancelled => &[Trigger::Indeterminate],
        };
        triggers.iter().find_map(|trigger| Some((*trigger, self.on_trouble(*trigger)?)))
    }
}

/// What the rules say of a call now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Judgement {
    /// What is frozen with the call.
    pub judged: Judged,
    /// What people must agree to before it is sent.
    pub requirement: Option<Requirement>,
}

/// What these rules, each with what its condition says, come to. `tool` is the offered name.
pub fn judge(rules: &[(&Policy, Found)], tool: &str, inputs_digest: String) -> Judgement {
    let of = |trigger: Trigger| -> Vec<&(&Policy, Found)> {
        rules.iter().filter(|(policy, _)| policy.trigger == trigger).collect()
    };
    let troubles = Trigger::DISPATCH.into_iter().filter_map(|trigger| Some((trigger, trouble(&of(trigger), tool)?)));
    let judged = Judged { troubles: troubles.collect(), decision: None };
    let mut judgement = Judgement { judged, requirement: None };
    let rules = of(Trigger::Call);
    if rules.is_empty() {
        return judgement;
    }
    let named = rules.iter().filter(|(_, found)| *found != Found::No).map(|(policy, _)| policy.name.clone()).collect();
    let mut decision =
        Decision { rules: named, inputs_digest, outcome: DecisionOutcome::Allow, rule: None, reason: None };
    if let Some((rule, reason)) = denial(&rules, tool) {
        decision.outcome = DecisionOutcome::Deny;
        (decision.rule, decision.reason) = (Some(rule), Some(reason));
    } else if let Some(requirement) = requirement(&rules, tool) {
        decision.outcome = DecisionOutcome::RequireApproval;
        judgement.requirement = Some(requirement);
    }
    judgement.judged.decision = Some(decision);
    judgement
}

/// What the rules for limits come to; `None`: none of them holds. A rule that cannot be evaluated fails the run.
pub fn judge_limit(rules: &[(&Policy, Found)]) -> Option<Trouble> {
    let rules: Vec<_> = rules.iter().filter(|(policy, _)| policy.trigger == Trigger::LimitReached).collect();
    let broken = rules.iter().find_map(|(policy, found)| match found {
        Found::Failed(why) => Some(Trouble::Fail { rule: policy.name.clone(), reason: Some(unevaluated(policy, why)) }),
        Found::Yes | Found::No => None,
    });
    broken.or_else(|| trouble(&rules, "the run goes on"))
}

fn holds<'a>(rules: &[&'a (&'a Policy, Found)], action: Action) -> Vec<&'a Policy> {
    let holding = rules.iter().filter(|(policy, found)| policy.action == action && *found == Found::Yes);
    holding.map(|(policy, _)| *policy).collect()
}

/// Why the call is not sent: a rule that denies, one that cannot be evaluated, or none of those that allow.
fn denial(rules: &[&(&Policy, Found)], tool: &str) -> Option<(String, String)> {
    if let Some(first) = holds(rules, Action::Deny).first() {
        return Some((first.name.clone(), denied(first)));
    }
    let failed = rules.iter().find_map(|(policy, found)| match found {
        Found::Failed(why) => Some((policy.name.clone(), unevaluated(policy, why))),
        Found::Yes | Found::No => None,
    });
    if failed.is_some() {
        return failed;
    }
    let allowing: Vec<&Policy> =
        rules.iter().map(|(policy, _)| *policy).filter(|policy| policy.action == Action::Allow).collect();
    if allowing.is_empty() || !holds(rules, Action::Allow).is_empty() {
        return None;
    }
    let names: Vec<&str> = allowing.iter().map(|policy| policy.name.as_str()).collect();
    let why: Vec<&str> = allowing.iter().filter_map(|policy| policy.reason.as_deref()).collect();
    let why = if why.is_empty() { String::new() } else { format!(" {}", why.join(" ")) };
    let reason = format!("The call was denied: no policy that allows calls of {tool} allows this one.{why}");
    Some((names.join(", "), reason))
}

fn denied(policy: &Policy) -> String {
    match &policy.reason {
        Some(reason) => format!("The call was denied by the policy '{}': {reason}", policy.name),
        None => format!("The call was denied by the policy '{}'.", policy.name),
    }
}

fn unevaluated(policy: &Policy, why: &str) -> String {
    format!("The policy '{}' could not be evaluated, which denies: {why}.", policy.name)
}

/// What the rules that ask for an approval require together.
fn requirement(rules: &[&(&Policy, Found)], tool: &str) -> Option<Requirement> {
    let each = holds(rules, Action::RequireApproval).into_iter().map(|policy| {
        let reason = policy.reason.clone();
        let reason = reason.unwrap_or_else(|| format!("The policy '{}' asks before {tool}.", policy.name));
        Requirement::new(policy.approval.clone().unwrap_or_default(), policy.name.clone(), reason)
    });
    each.reduce(Requirement::and)
}

/// What the rules say to do about something that went wrong: the strictest of what they say. Where one cannot be
/// evaluated, what is done without any rule is done: that repeats nothing which may not be repeated.
fn trouble(rules: &[&(&Policy, Found)], tool: &str) -> Option<Trouble> {
    let told = |policy: &Policy| (policy.name.clone(), policy.reason.clone());
    if let Some(policy) = holds(rules, Action::Fail).first() {
        let (rule, reason) = told(policy);
        return Some(Trouble::Fail { rule, reason });
    }
    if rules.iter().any(|(_, found)| matches!(found, Found::Failed(_))) {
        return None;
    }
    if !holds(rules, Action::Reconcile).is_empty() {
        return Some(Trouble::Reconcile);
    }
    if let Some(requirement) = requirement(rules, tool) {
        return Some(Trouble::RequireApproval { requirement: Box::new(requirement) });
    }
    if let Some(policy) = holds(rules, Action::ToolError).first() {
        let (rule, reason) = told(policy);
        return Some(Trouble::ToolError { rule, reason });
    }
    (!holds(rules, Action::Retry).is_empty()).then_some(Trouble::Retry)
}
