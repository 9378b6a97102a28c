//! Policies: who is asked about which calls, and what their answers come to together.
//!
//! An expression is kept as its source. What it says of a call is a value that comes from outside (`Found`): nothing
//! here evaluates. What follows from these values is decided here, once, when the call is made, and frozen with the call:
//! a repeat of it, or the next owner of its run, asks nobody again.

mod judge;
mod scope;
mod unserved;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::approval::ApprovalRule;
use super::binding::{Binding, BoundTool, ToolSource};
use super::spec::McpEntry;

pub use judge::{Decision, DecisionOutcome, Judged, Judgement, Trouble, judge, judge_limit};
pub use scope::{Place, Scope};
pub use unserved::{unserved, unserved_by_declaration};

/// A rule for calls, for what goes wrong with them, or for a limit that is reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    /// Unique among the rules that stand together; told wherever the rule decided something.
    #[schema(min_length = 1, max_length = 100)]
    pub name: String,
    /// `agent` (every call), `tool:NAME` or `server:NAME`.
    #[serde(default)]
    #[schema(value_type = String, pattern = "^(agent|(tool|server):.{1,200})$", default = "agent")]
    pub scope: Scope,
    /// When it is asked.
    #[serde(default)]
    pub trigger: Trigger,
    /// The condition, in CEL over `args`, `tool`, `run` and `trigger`; left out: always.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 1024)]
    pub when: Option<String>,
    /// What follows where the condition holds.
    pub action: Action,
    /// Why, for people and for the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 1000)]
    pub reason: Option<String>,
    /// With `require_approval`: how it is decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<ApprovalRule>,
}

/// When a rule is asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
pub enum Trigger {
    /// Before a call is sent.
    #[default]
    #[serde(rename = "call")]
    Call,
    /// Nobody knows whether a call had its effect.
    #[serde(rename = "dispatch:indeterminate")]
    Indeterminate,
    /// No worker serves the tool.
    #[serde(rename = "dispatch:no_handler", alias = "dispatch:no-handler")]
    NoHandler,
    /// All workers of the tool are busy, and the queue is full.
    #[serde(rename = "dispatch:capacity_exhausted", alias = "dispatch:capacity-exhausted")]
    CapacityExhausted,
    /// A worker took the call and fell silent.
    #[serde(rename = "dispatch:lease_expired", alias = "dispatch:lease-expired")]
    LeaseExpired,
    /// The run reached one of its limits.
    #[serde(rename = "limit:reached")]
    LimitReached,
}

impl Trigger {
    /// What goes wrong with calls.
    pub const DISPATCH: [Self; 4] = [Self::Indeterminate, Self::NoHandler, Self::CapacityExhausted, Self::LeaseExpired];

    /// The text on the wire, and what expressions read as `trigger`.
    pub const fn code(self) -> &'static str {
        match self {
            Self::Call => "call",
            Self::Indeterminate => "dispatch:indeterminate",
            Self::NoHandler => "dispatch:no_handler",
            Self::CapacityExhausted => "dispatch:capacity_exhausted",
            Self::LeaseExpired => "dispatch:lease_expired",
            Self::LimitReached => "limit:reached",
        }
    }

    /// What a rule with this trigger may do.
    pub const fn actions(self) -> &'static [Action] {
        match self {
            Self::Call => &[Action::Allow, Action::Deny, Action::RequireApproval],
            Self::Indeterminate | Self::NoHandler | Self::CapacityExhausted | Self::LeaseExpired => {
                &[Action::Retry, Action::ToolError, Action::Reconcile, Action::RequireApproval, Action::Fail]
            }
            Self::LimitReached => &[Action::RequireApproval, Action::Fail],
        }
    }
}

/// What follows where a rule's condition holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// The call may be sent; others of its tool that no such rule allows may not.
    Allow,
    /// The call is not sent.
    Deny,
    /// People decide.
    #[serde(alias = "require-approval")]
    RequireApproval,
    /// The call is sent again, with the same key.
    Retry,
    /// The model is told that the call failed.
    #[serde(alias = "tool-error")]
    ToolError,
    /// An administrator says what became of the call.
    Reconcile,
    /// The run fails.
    Fail,
}

impl Action {
    /// The text on the wire.
    pub const fn code(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
            Self::RequireApproval => "require_approval",
            Self::Retry => "retry",
            Self::ToolError => "tool_error",
            Self::Reconcile => "reconcile",
            Self::Fail => "fail",
        }
    }
}

/// What a rule's condition says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// It holds.
    Yes,
    /// It does not.
    No,
    /// It cannot be evaluated; says why.
    Failed(String),
}

impl Policy {
    /// What contradicts itself in the rule: member and words.
    pub fn contradictions(&self) -> Vec<(&'static str, String)> {
        let mut found = Vec::new();
        let allowed = self.trigger.actions();
        if !allowed.contains(&self.action) {
            let codes: Vec<&str> = allowed.iter().map(|action| action.code()).collect();
            found.push(("action", format!("with the trigger {} must be {}", self.trigger.code(), codes.join(" or "))));
        }
        if self.approval.is_some() && self.action != Action::RequireApproval {
            found.push(("approval", "has a meaning with the action require_approval only".to_owned()));
        }
        if self.trigger == Trigger::LimitReached && self.scope != Scope::Agent {
            found.push(("scope", "a limit is the whole run's: must be agent".to_owned()));
        }
        found.extend(self.approval.iter().filter_map(contradictions_of));
        found
    }
}

/// The rules that are about a tool: those of the run, and those of the registration of its server.
pub fn about<'a>(own: &'a [Policy], binding: &'a Binding, tool: &'a BoundTool) -> Vec<&'a Policy> {
    let entry = tool.entry().and_then(|entry| binding.entries.get(entry));
    let server_tool = match &tool.source {
        ToolSource::Mcp { server_tool, .. } => server_tool,
        ToolSource::Local { .. } => &tool.name,
    };
    let server = entry.and_then(|entry| entry.server.as_deref()).unwrap_or_default();
    let servers = [server, entry.map_or("", McpEntry::label)];
    let place = Place { offered: &tool.name, recorded: tool.recorded_name(), server_tool, servers };
    let of_run = own.iter().filter(|policy| policy.scope.covers(place));
    let of_server = entry.into_iter().flat_map(|entry| &entry.policies);
    of_run.chain(of_server.filter(|policy| policy.scope.covers_own(server_tool))).collect()
}

fn contradictions_of(rule: &ApprovalRule) -> Option<(&'static str, String)> {
    use super::approval::OnTimeout;
    let escalates = rule.on_timeout == OnTimeout::Escalate;
    if escalates && rule.escalate_to.is_none() {
        Some(("approval/escalate_to", "is required with on_timeout escalate".to_owned()))
    } else if !escalates && rule.escalate_to.is_some() {
        Some(("approval/escalate_to", "has a meaning with on_timeout escalate only".to_owned()))
    } else if rule.on_timeout != OnTimeout::Deny && rule.timeout_s.is_none() {
        Some(("approval/timeout_s", "is required with this on_timeout".to_owned()))
    } else {
        None
    }
}

#[cfg(test)]
mod tests;
