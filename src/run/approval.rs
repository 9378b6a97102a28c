//! Approvals: what one asks, who may vote on it, and when it is decided.
//!
//! An approval belongs to one call with its arguments and with its tool's definition, and is used once: what is sent
//! after it is exactly what was voted on. Pending ones stand in the run's head; each is also a row of its own, written
//! by the same commit, so that it outlives its decision.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::ids::{Actor, CallId, CallKey, RunId, RunUid};
use super::json::{canonical, sha256_hex};
use super::time::Timestamp;

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
    /// Whether calls of this tool wait.
    pub fn covers(&self, server_tool: &str) -> bool {
        match self {
            Self::All(all) => *all,
            Self::Tools(tools) => tools.iter().any(|tool| tool == server_tool),
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

/// Who may vote. What is empty restricts nothing; the scope `approvals:decide` is needed anyway.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Approvers {
    /// One of these actors.
    #[serde(default)]
    pub subjects: Vec<String>,
}

/// What a denial does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnReject {
    /// The model reads it and goes on.
    #[default]
    ReturnToModel,
    /// The run fails.
    Fail,
}

/// What a vote with changed arguments does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnModify {
    /// They are checked as the model's were.
    #[default]
    Revalidate,
    /// They are taken when they fit the tool's schema.
    Accept,
    /// It is refused.
    Forbid,
}

/// How a call is approved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApprovalRule {
    /// Which rules ask for it, e.g. `require_approval`.
    pub rules: Vec<String>,
    /// Why, for people.
    pub reason: String,
    /// Votes that approve it.
    pub required: u32,
    /// Who may vote.
    #[serde(default)]
    pub approvers: Approvers,
    /// Whether whoever created the run may not.
    #[serde(default)]
    pub exclude_starter: bool,
    /// What a denial does.
    #[serde(default)]
    pub on_reject: OnReject,
    /// What changed arguments do.
    #[serde(default)]
    pub on_modify: OnModify,
}

impl ApprovalRule {
    /// The rule of an entry's `require_approval`: one vote of anybody who may decide.
    pub fn of_entry(server: &str) -> Self {
        Self {
            rules: vec!["require_approval".to_owned()],
            reason: format!("Calls of this tool of {server} need an approval."),
            required: 1,
            approvers: Approvers::default(),
            exclude_starter: false,
            on_reject: OnReject::default(),
            on_modify: OnModify::default(),
        }
    }

    /// Whether this actor may vote on a run of `starter`.
    pub fn admits(&self, actor: &Actor, starter: &Actor) -> bool {
        let subjects = &self.approvers.subjects;
        let named = subjects.is_empty() || subjects.iter().any(|subject| subject == actor.as_str());
        named && !(self.exclude_starter && actor == starter)
    }
}

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
    /// Its call may be sent, once.
    Approved,
    /// Its call is not sent.
    Denied,
    /// Its run ended first.
    Cancelled,
}

impl ApprovalStatus {
    /// The code on the wire and in the store.
    pub const fn code(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Approved => "approved",
            Self::Denied => "denied",
            Self::Cancelled => "cancelled",
        }
    }
}

/// One vote.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Vote {
    /// Who.
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
    pub id: uuid::Uuid,
    /// The run's name.
    pub run_id: RunId,
    /// The model turn that made the call.
    pub turn: u32,
    /// The call's label.
    pub call_id: CallId,
    /// The tool's offered name.
    pub tool: String,
    /// The arguments that are voted on, and sent.
    pub input: Value,
    /// Digest of these arguments (SHA-256 of their canonical text).
    pub input_digest: String,
    /// Digest of the tool's definition in the run's record; left out for a tool that no server serves.
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
    /// When it was asked for.
    pub created_at: Timestamp,
    /// When it was decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decided_at: Option<Timestamp>,
}

/// An approval that waits for votes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OpenApproval {
    /// Its call.
    pub call: CallKey,
    /// How it is decided.
    pub rule: ApprovalRule,
    /// As everybody reads it.
    pub approval: Approval,
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
}

/// The digest that binds an approval to arguments.
pub fn input_digest(input: &Value) -> String {
    sha256_hex(&canonical(input))
}

/// The identity of a call's approval: of a random run identity, so nobody can guess it, and the same whoever derives it.
pub fn approval_id(run: RunUid, call: CallKey) -> uuid::Uuid {
    let digest = sha256_hex(&format!("countersign:approval:{}:{}:{}", run.0, call.turn, call.position));
    let half = digest.get(..32).unwrap_or_default();
    uuid::Builder::from_u128(u128::from_str_radix(half, 16).unwrap_or_default())
        .with_version(uuid::Version::Custom)
        .with_variant(uuid::Variant::RFC4122)
        .into_uuid()
}
