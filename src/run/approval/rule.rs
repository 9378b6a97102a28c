//! What an approval requires: how many votes, of whom, until when, and what else may become of it.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::run::ids::Actor;

/// Which tools of a server wait for an approval.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum RequireApproval {
    /// All of them, or none.
    All(bool),
    /// These, named as the server names them.
    Tools(Vec<String>),
}

impl RequireApproval {
    /// The name of the rule in approvals and denials.
    pub const RULE: &'static str = "require_approval";

    /// Whether calls of this tool wait.
    pub fn covers(&self, server_tool: &str) -> bool {
        match self {
            Self::All(all) => *all,
            Self::Tools(tools) => tools.iter().any(|tool| tool == server_tool),
        }
    }

    /// Whether every tool that waits by `other` waits by this one.
    pub fn includes(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::All(true), _) | (_, Self::All(false)) => true,
            (Self::All(false) | Self::Tools(_), Self::All(true)) => false,
            (_, Self::Tools(tools)) => tools.iter().all(|tool| self.covers(tool)),
        }
    }

    /// What both say together: each can only add.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::All(true), _) | (_, Self::All(true)) => Self::All(true),
            (Self::All(false), other) => other,
            (own, Self::All(false)) => own,
            (Self::Tools(mut tools), Self::Tools(more)) => {
                tools.extend(more);
                tools.sort();
                tools.dedup();
                Self::Tools(tools)
            }
        }
    }
}

/// Who may vote: whoever has one of the scopes or is one of the subjects. Both empty: whoever may decide approvals,
/// which everybody who votes must anyway.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Approvers {
    /// Scopes of the voter's token, any one of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 100)]
    pub scopes: Vec<String>,
    /// Actors.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 100)]
    pub subjects: Vec<String>,
}

impl Approvers {
    /// Whether this voter is one of them.
    pub fn admit(&self, voter: &Voter) -> bool {
        let anybody = self.scopes.is_empty() && self.subjects.is_empty();
        anybody
            || self.subjects.iter().any(|subject| subject == voter.actor.as_str())
            || self.scopes.iter().any(|scope| voter.scopes.contains(scope))
    }
}

/// Who votes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Voter {
    /// Who.
    pub actor: Actor,
    /// All scopes of their token, also those that mean nothing here.
    #[serde(default)]
    pub scopes: Vec<String>,
}

/// What a denial does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnReject {
    /// The model reads it and goes on.
    #[default]
    #[serde(alias = "return-to-model")]
    ReturnToModel,
    /// The run fails.
    Fail,
}

/// What a vote with changed arguments does. They must fit the tool's schema and the rules that deny, whatever this says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnModify {
    /// They are taken.
    Accept,
    /// All rules look at them again; those that ask for an approval add to what this one requires.
    #[default]
    Revalidate,
    /// It is refused.
    Forbid,
}

/// What becomes of an approval that nobody decides in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnTimeout {
    /// It is approved.
    Approve,
    /// Others are asked, by a new approval.
    Escalate,
    /// It is denied.
    #[default]
    Deny,
}

/// Who is asked next. When they do not decide in time either, it is denied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Escalation {
    /// Who may vote.
    #[serde(default)]
    pub approvers: Approvers,
    /// How long, in seconds; left out: as long as it takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 315_360_000)]
    pub timeout_s: Option<u64>,
}

/// How an approval is decided, as a policy says it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ApprovalRule {
    /// Votes of different actors that approve it.
    #[schema(minimum = 1, maximum = 100)]
    pub required: u32,
    /// Whether whoever created the run may not vote.
    pub exclude_starter: bool,
    /// Who may vote.
    pub approvers: Approvers,
    /// How long, in seconds; left out: as long as it takes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 315_360_000)]
    pub timeout_s: Option<u64>,
    /// What happens then.
    pub on_timeout: OnTimeout,
    /// With `escalate`: who is asked next. Without it, it is denied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub escalate_to: Option<Escalation>,
    /// What a denial does.
    pub on_reject: OnReject,
    /// What a vote with changed arguments does.
    pub on_modify: OnModify,
}

impl Default for ApprovalRule {
    /// One vote of anybody who may decide, without a deadline.
    fn default() -> Self {
        Self {
            required: 1,
            exclude_starter: false,
            approvers: Approvers::default(),
            timeout_s: None,
            on_timeout: OnTimeout::default(),
            escalate_to: None,
            on_reject: OnReject::default(),
            on_modify: OnModify::default(),
        }
    }
}

/// What an approval requires: the rules that ask for it, as one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requirement {
    /// The strictest of all of them.
    pub rule: ApprovalRule,
    /// Approvers of further rules: a voter must be among each of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub also: Vec<Approvers>,
    /// Names of the rules.
    pub rules: Vec<String>,
    /// Why, for people.
    pub reason: String,
}

impl Requirement {
    /// What one rule requires.
    pub fn new(rule: ApprovalRule, name: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { rule, also: Vec::new(), rules: vec![name.into()], reason: reason.into() }
    }

    /// What `require_approval` of a tool requires: one vote of anybody who may decide.
    pub fn of_declaration(tool: &str) -> Self {
        let reason = format!("Calls of {tool} need an approval.");
        Self::new(ApprovalRule::default(), RequireApproval::RULE, reason)
    }

    /// What both require: the highest quorum, the shortest time, the strictest modes, and voters that each admits. Two
    /// that escalate to different people deny instead, and so does one that escalates beside one that asks certain people:
    /// whoever is asked next would decide in their place. Where silence approves, the longest time is the strictest.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        let escalates_past = |one: &ApprovalRule, beside: &ApprovalRule, also: &[Approvers]| {
            let certain = beside.approvers != Approvers::default() || !also.is_empty();
            one.on_timeout == OnTimeout::Escalate && beside.on_timeout != OnTimeout::Escalate && certain
        };
        let denies =
            escalates_past(&self.rule, &other.rule, &other.also) || escalates_past(&other.rule, &self.rule, &self.also);
        let (own, more) = (&mut self.rule, other.rule);
        own.required = own.required.max(more.required);
        own.exclude_starter |= more.exclude_starter;
        let silence_approves = own.on_timeout == OnTimeout::Approve && more.on_timeout == OnTimeout::Approve;
        own.timeout_s = match (own.timeout_s, more.timeout_s) {
            (Some(own), Some(more)) if silence_approves => Some(own.max(more)),
            (Some(own), Some(more)) => Some(own.min(more)),
            (_, None) | (None, _) if silence_approves => None,
            (own, more) => own.or(more),
        };
        (own.on_timeout, own.escalate_to) = match (own.on_timeout, more.on_timeout) {
            _ if denies => (OnTimeout::Deny, None),
            (OnTimeout::Escalate, OnTimeout::Escalate) if own.escalate_to != more.escalate_to => {
                (OnTimeout::Deny, None)
            }
            (mine, theirs) if theirs > mine => (theirs, more.escalate_to),
            (mine, _) => (mine, own.escalate_to.take()),
        };
        own.on_reject = own.on_reject.max(more.on_reject);
        own.on_modify = own.on_modify.max(more.on_modify);
        let approvers = other.also.into_iter().chain([more.approvers]);
        for approvers in approvers.filter(|one| *one != Approvers::default()) {
            if self.rule.approvers == Approvers::default() {
                self.rule.approvers = approvers;
            } else if self.rule.approvers != approvers && !self.also.contains(&approvers) {
                self.also.push(approvers);
            }
        }
        for name in other.rules {
            if !self.rules.contains(&name) {
                self.rules.push(name);
            }
        }
        if !self.reason.contains(&other.reason) {
            self.reason = format!("{} {}", self.reason, other.reason);
        }
        self
    }

    /// What is required of the next approvers when the time is over; `None`: nobody is asked next.
    pub fn escalated(&self) -> Option<Self> {
        let next = match self.rule.on_timeout {
            OnTimeout::Escalate => self.rule.escalate_to.clone()?,
            OnTimeout::Approve | OnTimeout::Deny => return None,
        };
        let rule = ApprovalRule {
            approvers: next.approvers,
            timeout_s: next.timeout_s,
            on_timeout: OnTimeout::Deny,
            escalate_to: None,
            ..self.rule.clone()
        };
        Some(Self { rule, also: Vec::new(), rules: self.rules.clone(), reason: self.reason.clone() })
    }

    /// Whether this voter may vote on a run of `starter`.
    pub fn admits(&self, voter: &Voter, starter: &Actor) -> bool {
        let named = std::iter::once(&self.rule.approvers).chain(&self.also).all(|approvers| approvers.admit(voter));
        named && !(self.rule.exclude_starter && voter.actor == *starter)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn requirement(name: &str, rule: Value) -> Requirement {
        Requirement::new(serde_json::from_value(rule).unwrap(), name, format!("{name} asks."))
    }

    fn voter(actor: &str, scopes: &[&str]) -> Voter {
        let scopes = scopes.iter().map(|scope| (*scope).to_owned()).collect();
        Voter { actor: Actor::parse(actor).unwrap(), scopes }
    }

    #[track_caller]
    fn check_merge(one: Value, other: Value, expected: Value) {
        for (first, second) in [(&one, &other), (&other, &one)] {
            let merged = requirement("one", first.clone()).and(requirement("other", second.clone()));
            let expected: ApprovalRule = serde_json::from_value(expected.clone()).unwrap();
            assert_eq!(merged.rule, expected);
        }
    }

    #[test]
    fn b233_rules_that_ask_merge_into_the_strictest_whichever_comes_first() {
        check_merge(json!({}), json!({}), json!({}));
        check_merge(json!({"required": 3}), json!({"required": 2}), json!({"required": 3}));
        check_merge(json!({"timeout_s": 60}), json!({"timeout_s": 30}), json!({"timeout_s": 30}));
        check_merge(json!({"timeout_s": 60}), json!({}), json!({"timeout_s": 60}));
        check_merge(json!({"exclude_starter": true}), json!({}), json!({"exclude_starter": true}));
        check_merge(json!({"on_timeout": "approve"}), json!({"on_timeout": "deny"}), json!({"on_timeout": "deny"}));
        let ops = json!({"approvers": {"scopes": ["ops"]}});
        check_merge(
            json!({"on_timeout": "approve"}),
            json!({"on_timeout": "escalate", "escalate_to": ops}),
            json!({"on_timeout": "escalate", "escalate_to": ops}),
        );
        check_merge(
            json!({"on_timeout": "escalate", "escalate_to": {}}),
            json!({"on_timeout": "escalate", "escalate_to": ops}),
            json!({"on_timeout": "deny"}),
        );
        // Nobody becomes an approver in the place of those whom another rule asks.
        let cfo = |more: Value| {
            let mut rule = json!({"approvers": {"subjects": ["cfo"]}});
            rule.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            rule
        };
        check_merge(
            cfo(json!({"timeout_s": 60, "on_timeout": "approve"})),
            json!({"timeout_s": 1, "on_timeout": "escalate", "escalate_to": ops}),
            cfo(json!({"timeout_s": 1, "on_timeout": "deny"})),
        );
        // Where silence approves, waiting longer is stricter, and for ever is the strictest.
        let silent = |more: Value| {
            let mut rule = json!({"on_timeout": "approve"});
            rule.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            rule
        };
        check_merge(
            silent(json!({"timeout_s": 60})),
            silent(json!({"timeout_s": 1})),
            silent(json!({"timeout_s": 60})),
        );
        check_merge(silent(json!({"timeout_s": 60})), silent(json!({})), silent(json!({})));
        check_merge(json!({"on_reject": "fail"}), json!({}), json!({"on_reject": "fail"}));
        check_merge(json!({"on_modify": "accept"}), json!({}), json!({"on_modify": "revalidate"}));
        check_merge(json!({"on_modify": "accept"}), json!({"on_modify": "forbid"}), json!({"on_modify": "forbid"}));
    }

    #[test]
    fn a_voter_must_be_among_the_approvers_of_every_rule_that_asks() {
        let starter = Actor::parse("alice").unwrap();
        let ops = requirement("ops", json!({"approvers": {"scopes": ["ops"], "subjects": ["dave"]}}));
        let named = requirement("named", json!({"approvers": {"subjects": ["bob", "dave"]}}));
        let both = ops.clone().and(named);
        assert!(ops.admits(&voter("bob", &["ops"]), &starter));
        assert!(ops.admits(&voter("dave", &[]), &starter));
        assert!(!ops.admits(&voter("bob", &["runs:read"]), &starter));
        assert!(both.admits(&voter("bob", &["ops"]), &starter));
        assert!(both.admits(&voter("dave", &[]), &starter));
        assert!(!both.admits(&voter("carol", &["ops"]), &starter));
        assert!(!both.admits(&voter("bob", &[]), &starter));
        let others = requirement("others", json!({"exclude_starter": true}));
        assert!(!others.admits(&voter("alice", &["ops"]), &starter));
        assert!(others.admits(&voter("bob", &[]), &starter));
    }

    #[test]
    fn require_approval_of_a_registration_and_of_a_run_add_up() {
        let tools = |names: &[&str]| RequireApproval::Tools(names.iter().map(|name| (*name).to_owned()).collect());
        assert_eq!(tools(&["a"]).and(tools(&["b", "a"])), tools(&["a", "b"]));
        assert_eq!(RequireApproval::All(true).and(tools(&["b"])), RequireApproval::All(true));
        assert_eq!(RequireApproval::All(false).and(tools(&["b"])), tools(&["b"]));
        assert!(!RequireApproval::All(false).covers("a") && tools(&["a"]).covers("a") && !tools(&["a"]).covers("b"));
    }
}
