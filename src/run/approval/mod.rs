//! Approvals: what one asks, who may vote on it, and when it is decided.
//!
//! An approval belongs to one call with its arguments and with its tool's definition, and is used once: what is sent
//! after it is exactly what was voted on. Pending ones stand in the run's head; each is also a row of its own, written
//! by the same commit, so that it outlives its decision.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::ask::SampleRequest;
use super::ids::{Actor, CallId, CallKey, RunId, RunUid};
use super::json::{canonical, sha256_hex};
use super::reached::Reached;
use super::time::Timestamp;

mod rule;

pub use rule::{
    ApprovalRule, Approvers, Escalation, OnModify, OnReject, OnTimeout, RequireApproval, Requirement, Voter,
};

/// The actor of what a deadline decided.
pub const TIMEOUT_ACTOR: &str = "system:timeout";

/// What a vote says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The call may be sent.
    Approve,
    /// It may not.
    Deny,
}

impl Verdict {
    /// The code on the wire and in the audit.
    pub const fn code(self) -> &'static str {
        match self {
            Self::Approve => "approve",
            Self::Deny => "deny",
        }
    }
}

/// How an approval stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ApprovalStatus {
    /// Waits for votes.
    Pending,
    /// What it is about may happen, once.
    Approved,
    /// It does not happen.
    Denied,
    /// Nobody decided in time; a later approval asks the next approvers.
    Escalated,
    /// Its call or its run ended first.
    Cancelled,
}

impl ApprovalStatus {
    /// The code on the wire and in the store.
    pub const fn code(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Approved => "approved",
            Self::Denied => "denied",
            Self::Escalated => "escalated",
            Self::Cancelled => "cancelled",
        }
    }
}

/// What an approval is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ApprovalKind {
    /// A call that is not sent before.
    #[default]
    Call,
    /// A sample of a model, asked for by the server of a call.
    Sampling,
    /// Another attempt of a call whose outcome nobody knows.
    Repeat,
    /// A limit of the run that is reached: `input` is what it is raised to, `call_id` is `limit:` and its name.
    Limit,
}

/// One vote.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Vote {
    /// Who; `system:timeout` for a deadline.
    pub actor: String,
    /// What they say.
    pub decision: Verdict,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
    /// When.
    pub at: Timestamp,
}

/// An approval as everybody reads it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Approval {
    /// Its identity.
    #[schema(value_type = String)]
    pub id: uuid::Uuid,
    /// The run's name.
    pub run_id: RunId,
    /// The model turn that made the call.
    pub turn: u32,
    /// The call's label.
    pub call_id: CallId,
    /// What is asked.
    #[serde(default)]
    pub kind: ApprovalKind,
    /// The tool's offered name.
    pub tool: String,
    /// The arguments that are voted on, and sent; for `sampling` what the model is to be asked.
    #[schema(value_type = Object)]
    pub input: Value,
    /// Digest of these arguments (SHA-256 of their canonical text).
    pub input_digest: String,
    /// Digest of the tool's definition, as in the run's record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_digest: Option<String>,
    /// Which rules ask for it.
    pub rules: Vec<String>,
    /// Why, for people.
    pub reason: String,
    /// How it stands.
    pub status: ApprovalStatus,
    /// Votes that approve it.
    pub required: u32,
    /// The votes so far; changed arguments clear earlier ones.
    pub votes: Vec<Vote>,
    /// What changed arguments do.
    pub on_modify: OnModify,
    /// When it is decided without a vote; left out: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// When it was asked for.
    pub created_at: Timestamp,
    /// When it was decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decided_at: Option<Timestamp>,
}

/// What waits for votes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Subject {
    /// The call: it is not sent before.
    Call,
    /// Another attempt of the call, of which nobody knows whether it had its effect.
    Repeat,
    /// A sample that the call's server wants.
    Sample {
        /// The server's name of the question, where it is kept in the receipt; else it lives as long as the call is out.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        question: Option<String>,
        /// What the model is to be asked.
        request: Box<SampleRequest>,
    },
    /// A limit that the run has reached.
    Limit(Box<Reached>),
}

impl Subject {
    /// Whether the run waits while this does. A sample for a call that is out is awaited by its server alone.
    pub const fn holds_run(&self) -> bool {
        match self {
            Self::Call | Self::Repeat | Self::Limit(_) => true,
            Self::Sample { question, .. } => question.is_some(),
        }
    }
}

/// An approval that waits for votes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OpenApproval {
    /// The call that it is about; for a limit a place that no call has.
    pub call: CallKey,
    /// What of it.
    pub subject: Subject,
    /// How it is decided.
    pub requirement: Requirement,
    /// As everybody reads it.
    pub approval: Approval,
    /// Whether a vote changed the arguments: who approves them from then on must have read these.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_changed: bool,
    /// How often votes changed the arguments: a vote belongs to the round that it was cast in.
    #[serde(default, skip_serializing_if = "is_first")]
    pub round: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the shape that the attribute asks for")]
const fn is_first(round: &u32) -> bool {
    *round == 0
}

impl OpenApproval {
    /// How its votes decide it: one denial does, and as many approvals as are required.
    pub fn outcome(&self) -> Option<Verdict> {
        let votes = &self.approval.votes;
        if votes.iter().any(|vote| vote.decision == Verdict::Deny) {
            return Some(Verdict::Deny);
        }
        let enough = u32::try_from(votes.len()).unwrap_or(u32::MAX) >= self.approval.required;
        enough.then_some(Verdict::Approve)
    }

    /// Whether this actor has voted on it.
    pub fn has_voted(&self, actor: &Actor) -> bool {
        self.approval.votes.iter().any(|vote| vote.actor == actor.as_str())
    }
}

/// The approvals of a run that wait, and how many there were.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Approvals {
    /// Those that wait for votes, in the order in which they were asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub open: Vec<OpenApproval>,
    /// Approvals so far.
    #[serde(default)]
    pub asked: u32,
}

impl Approvals {
    /// Whether nothing was ever asked.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The one of this identity, while it waits.
    pub fn find(&self, id: uuid::Uuid) -> Option<&OpenApproval> {
        self.open.iter().find(|open| open.approval.id == id)
    }

    /// Whether the run waits for one of them.
    pub fn hold_run(&self) -> bool {
        self.open.iter().any(|open| open.subject.holds_run())
    }

    /// Whether people are asked to raise a limit.
    pub fn is_about_limit(&self) -> bool {
        self.open.iter().any(|open| matches!(open.subject, Subject::Limit(_)))
    }

    /// Whether people are asked about this sample.
    pub fn is_about_sample(&self, call: CallKey, wanted: Option<&str>) -> bool {
        self.open.iter().any(|open| match &open.subject {
            Subject::Call | Subject::Repeat | Subject::Limit(_) => false,
            Subject::Sample { question, .. } => open.call == call && question.as_deref() == wanted,
        })
    }

    /// The identity of the run's next approval: of its random identity, so nobody can guess it, and the same whoever
    /// derives it.
    pub(super) fn name_next(&mut self, run: RunUid) -> uuid::Uuid {
        self.asked = self.asked.saturating_add(1);
        let digest = sha256_hex(&format!("countersign:approval:{}:{}", run.0, self.asked));
        let half = digest.get(..32).unwrap_or_default();
        uuid::Builder::from_u128(u128::from_str_radix(half, 16).unwrap_or_default())
            .with_version(uuid::Version::Custom)
            .with_variant(uuid::Variant::RFC4122)
            .into_uuid()
    }
}

/// The digest that binds an approval to arguments.
pub fn input_digest(input: &Value) -> String {
    sha256_hex(&canonical(input))
}
