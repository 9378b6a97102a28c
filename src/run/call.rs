//! A tool call and its receipt: the durable record that it crossed, or will cross, the effect boundary.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::ask::Asked;
use super::ids::{Actor, CallId, CallKey, RunUid};
use super::json::sha256_hex;
use super::outcome::{Cause, ToolError};
use super::policy::{Judged, Trigger, Trouble};
use super::spec::SideEffectClass;
use super::time::Timestamp;
use super::untaken::{Untaken, trigger_of};

/// How often one call may be sent again by itself, the first time included.
pub const MAX_ATTEMPTS: u32 = 3;
/// How often one call may be sent again by itself after its server turned it away.
pub const MAX_TURNED_AWAY: u32 = 1;

/// Where a call goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Backend {
    /// A tool of an MCP server.
    Mcp,
    /// A tool that a remote worker carries out: it comes and fetches the call.
    Worker,
    /// A tool that the run's client carries out: it is told of the call and gives the result.
    Client,
}

/// Where a call goes and what it may do there; frozen when the model makes the call, so nothing declared later
/// relaxes an undecided call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallTarget {
    /// Which kind of counterpart.
    pub backend: Backend,
    /// Index of the server in the binding's `entries`.
    pub entry: usize,
    /// What the server is called in receipts.
    pub server: String,
    /// The name that the server, or the worker, knows.
    pub server_tool: String,
    /// Which version of the tool a worker must serve.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// A mark of the place to which the server's entry led when the call was judged: it goes nowhere else. `None`: it goes to no server, or an earlier version judged it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<String>,
    /// What the call may do to the world.
    pub class: SideEffectClass,
    /// Whether a repeat was declared harmless.
    pub replay: bool,
}

/// Work that a server goes on with by itself: it is asked for its end, and the call is not repeated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    /// The server's name of it.
    pub id: String,
    /// How long the server wants to be left alone between two questions, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub poll_ms: Option<u64>,
}

/// How a call stands with those who come and fetch it. An MCP server is sent its calls: there it stays empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handing {
    /// Since when workers may take it, while none has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offered_at: Option<Timestamp>,
    /// The hand-out that holds, or the one whose result settled the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<Lease>,
    /// Nobody came for a repeat: the call does not repeat by itself any more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub gave_up: bool,
}

impl Handing {
    /// Whether there is nothing to say.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// One hand-out of a call to a worker. When it ends is the store's to know: leases run by the database's clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// The name of it that only its worker knows.
    pub id: String,
    /// What the worker calls itself.
    pub worker: String,
}

/// What is true of a call now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "stage", rename_all = "kebab-case")]
pub enum Stage {
    /// Never reached the boundary; has no receipt.
    Rejected {
        /// Which rule refused it.
        rule: String,
        /// What the model is told.
        reason: String,
    },
    /// Waits for an approval: certainly not sent, and no receipt before it may be.
    Proposed,
    /// Committed, certainly not sent.
    Pending,
    /// The request may leave, or has left.
    Executing {
        /// When that was committed.
        since: Timestamp,
    },
    /// The server answered with questions, and nothing of the call is out. Once each has its reply the call goes on.
    Waiting {
        /// Since when.
        since: Timestamp,
    },
    /// The backend answered.
    Completed {
        /// When the answer was committed.
        settled_at: Timestamp,
        /// What the backend returned.
        output: Value,
    },
    /// The backend answered that it failed, or was certainly not reached.
    Failed {
        /// When that was committed.
        settled_at: Timestamp,
        /// Why.
        error: ToolError,
        /// What the backend returned, when there was a result object.
        output: Option<Value>,
    },
    /// Nobody knows whether it had its effect.
    Indeterminate {
        /// Why nobody knows.
        cause: Cause,
        /// Since when.
        since: Timestamp,
        /// Whether exactly one more attempt was allowed.
        authorized: bool,
    },
}

impl Stage {
    /// The code on the wire and in the store.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Rejected { .. } => "rejected",
            Self::Proposed => "proposed",
            Self::Pending => "pending",
            Self::Executing { .. } => "executing",
            Self::Waiting { .. } => "waiting",
            Self::Completed { .. } => "completed",
            Self::Failed { .. } => "failed",
            Self::Indeterminate { .. } => "indeterminate",
        }
    }

    /// Whether the call has its result.
    pub const fn is_settled(&self) -> bool {
        match self {
            Self::Rejected { .. } | Self::Completed { .. } | Self::Failed { .. } => true,
            Self::Proposed
            | Self::Pending
            | Self::Executing { .. }
            | Self::Waiting { .. }
            | Self::Indeterminate { .. } => false,
        }
    }
}

/// One tool call. With a target it is a receipt; without one it was rejected before the boundary.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Call {
    /// Our own identity of the call.
    pub key: CallKey,
    /// Its label.
    pub call_id: CallId,
    /// The tool's name as it was offered.
    pub tool: String,
    /// The arguments; text where the model wrote no JSON object.
    pub input: Value,
    /// Where it goes; `None` for a rejected call.
    pub target: Option<CallTarget>,
    /// How often it was sent.
    pub attempt: u32,
    /// How many of these attempts the server turned away before doing anything.
    pub turned_away: u32,
    /// What its server asked in its last round, with the replies: what the next attempt carries.
    pub asked: Option<Box<Asked>>,
    /// The work that the server began for the last attempt, when it named one.
    pub task: Option<Task>,
    /// How it stands with those who come and fetch it.
    pub handing: Handing,
    /// What is true of it now.
    pub stage: Stage,
    /// What the rules said of it; nothing asks them again.
    pub judged: Judged,
    /// Who decided last how it goes on, when somebody did.
    pub decided_by: Option<Actor>,
    /// When the model's turn was committed.
    pub created_at: Timestamp,
}

impl Call {
    /// Whether the call may be sent again without anybody's word.
    pub fn repeats_by_itself(&self) -> bool {
        let harmless = self.target.as_ref().is_some_and(|target| {
            target.replay
                || match target.class {
                    SideEffectClass::ReadOnly | SideEffectClass::IdempotentWrite => true,
                    SideEffectClass::NonIdempotentWrite | SideEffectClass::IrreversibleAction => false,
                }
        });
        harmless && self.taken() < MAX_ATTEMPTS && !self.handing.gave_up
    }

    /// Which kind of counterpart carries it out; `None`: it was rejected.
    pub fn backend(&self) -> Option<Backend> {
        self.target.as_ref().map(|target| target.backend)
    }

    /// Whether a worker has it and its lease says so.
    pub const fn is_with_worker(&self) -> bool {
        matches!(self.stage, Stage::Executing { .. }) && self.handing.lease.is_some()
    }

    /// Whether workers may take it.
    pub const fn is_offered(&self) -> bool {
        self.handing.offered_at.is_some() && matches!(self.stage, Stage::Pending | Stage::Indeterminate { .. })
    }

    /// Whether rules let it wait on where this is why no worker has it.
    pub fn outwaits(&self, untaken: &Untaken) -> bool {
        untaken.trigger().and_then(|trigger| self.judged.on_trouble(trigger)) == Some(&Trouble::Retry)
    }

    /// Whether the run's client was told of it and has not given its result.
    pub fn is_with_client(&self) -> bool {
        matches!(self.stage, Stage::Executing { .. }) && self.backend() == Some(Backend::Client)
    }

    /// Whether it is out on behalf of the process that drives the run, and ends with that process.
    pub fn is_held(&self) -> bool {
        matches!(self.stage, Stage::Executing { .. }) && !self.is_with_worker() && !self.is_with_client()
    }

    /// The attempts that were not turned away: each may have had its effect.
    pub const fn taken(&self) -> u32 {
        self.attempt.saturating_sub(self.turned_away)
    }

    /// Whether its server goes on with it by itself, and can be asked for the end by whoever drives the run.
    pub fn is_deferred(&self) -> bool {
        match &self.stage {
            Stage::Executing { .. } => self.task.is_some(),
            Stage::Rejected { .. }
            | Stage::Proposed
            | Stage::Pending
            | Stage::Waiting { .. }
            | Stage::Completed { .. }
            | Stage::Failed { .. }
            | Stage::Indeterminate { .. } => false,
        }
    }

    /// Whether only a person can say how the call goes on.
    pub fn is_undecided(&self) -> bool {
        match &self.stage {
            Stage::Indeterminate { authorized, .. } => !authorized && !self.repeats_by_itself(),
            Stage::Rejected { .. }
            | Stage::Proposed
            | Stage::Pending
            | Stage::Executing { .. }
            | Stage::Waiting { .. }
            | Stage::Completed { .. }
            | Stage::Failed { .. } => false,
        }
    }

    /// The same where the run may have ended: of such a run nothing is sent again, so nothing goes on by itself.
    pub fn is_undecided_in(&self, ended: bool) -> bool {
        self.is_undecided() || (ended && matches!(self.stage, Stage::Indeterminate { .. }))
    }

    /// The rule by which the run fails for what went wrong with the call: when it was asked, its name and its reason.
    pub fn fails_run(&self) -> Option<(Trigger, &str, Option<&str>)> {
        let said = match &self.stage {
            Stage::Indeterminate { cause, .. } if self.is_undecided() => self.judged.on_lost(*cause),
            Stage::Failed { error, .. } => {
                trigger_of(self, error).and_then(|trigger| Some((trigger, self.judged.on_trouble(trigger)?)))
            }
            Stage::Indeterminate { .. }
            | Stage::Rejected { .. }
            | Stage::Proposed
            | Stage::Pending
            | Stage::Executing { .. }
            | Stage::Waiting { .. }
            | Stage::Completed { .. } => None,
        };
        match said? {
            (trigger, Trouble::Fail { rule, reason }) => Some((trigger, rule, reason.as_deref())),
            _ => None,
        }
    }

    /// Whether the call is to be sent next: never sent, its server's questions answered, or unknown with the right to one
    /// more attempt.
    pub fn is_sendable(&self) -> bool {
        if self.handing.offered_at.is_some() {
            return false;
        }
        match &self.stage {
            Stage::Pending => true,
            Stage::Waiting { .. } => self.asked.as_ref().is_some_and(|asked| asked.is_answered()),
            Stage::Indeterminate { .. } => !self.is_undecided(),
            Stage::Rejected { .. }
            | Stage::Proposed
            | Stage::Executing { .. }
            | Stage::Completed { .. }
            | Stage::Failed { .. } => false,
        }
    }
}

/// The name under which workers wait for calls of a tool: its versions are different things.
pub fn queue_name(tool: &str, version: &str) -> String {
    format!("{tool}@{version}")
}

/// The key that every attempt of one logical call carries, and no other call ever does.
pub fn idempotency_key(run: RunUid, call: CallKey) -> String {
    sha256_hex(&format!("countersign:{}:{}:{}", run.0, call.turn, call.position))
}
