//! What a caller can ask for: checks in their order, one transaction each. Knows neither HTTP nor SQL.

mod agents;
mod approval_tokens;
mod approvals;
mod cancel;
mod carried;
mod create;
mod deadlines;
mod delete;
mod entries;
mod entry;
mod faults;
mod handed;
mod input;
mod inputs;
mod limits;
mod manifest;
mod permits;
mod policies;
mod reconcile;
mod registration;
mod request;
mod results;
mod resume;
mod servers;
mod stored;
mod tool_request;
mod tools;
mod workers;

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

pub use agents::{Manifest, Publication, Validated};
pub use create::Created;
pub use faults::Given;
pub use handed::{Claimed, HandedCall};
pub use manifest::AgentManifest;
pub use permits::{Permit, Permits, Workload};
pub use reconcile::ReconcileCall;
pub use registration::{PutSecret, PutServer};
pub use request::{
    AnswerInput, CreateRun, DecideApproval, DecideCall, DeployVersion, InputMessage, ResumeRun, RetryCall,
    RollBackVersion, RunInput,
};
pub use resume::Resumed;
pub use servers::{Probe, without_query};
pub use tool_request::{CallResult, ClaimCalls, GiveResults, HeldCall};
pub use workers::WorkerSettings;

use serde_json::Value;
use tokio_util::task::TaskTracker;

use crate::clock::Clock;
use crate::dispatch::{Dispatch, Unreachable, Watched};
use crate::policy::Expressions;
use crate::run::approval::Approval;
use crate::run::commit::Commit;
use crate::run::envelope::Envelope;
use crate::run::ids::{Actor, NodeId, RunId, RunUid, TenantId};
use crate::run::money::Prices;
use crate::run::refusal::Refusal;
use crate::secrets::KeyRing;
use crate::store::hub::{Announced, Hub};
use crate::store::{AuditRow, Claim, Store, StoreError};

/// Who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asker {
    /// Whose runs they may touch.
    pub tenant: TenantId,
    /// Who they are.
    pub actor: Actor,
    /// All scopes of their token, also those that mean nothing here.
    pub scopes: Vec<String>,
}

/// The caller's `Idempotency-Key`, with the keyed digest of the body that came with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestKey {
    /// 1 to 255 visible ASCII characters.
    pub key: String,
    /// Keyed digest of the body, since bodies hold secrets.
    pub body_digest: String,
}

/// One fault of a request body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// JSON Pointer into the body.
    pub pointer: String,
    /// What is wrong there.
    pub detail: String,
}

impl Fault {
    /// A fault at a place.
    pub fn at(pointer: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { pointer: pointer.into(), detail: detail.into() }
    }
}

/// Why a command was not carried out; nothing is stored then, unless a variant says else.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// The body cannot mean anything here.
    #[error("the request is not valid")]
    Invalid(Vec<Fault>),
    /// There is no such run in the tenant.
    #[error("there is no such run")]
    NotFound,
    /// The run has no such call with a receipt.
    #[error("the run has no such call")]
    CallNotFound,
    /// The tenant has nothing else of that name; says what.
    #[error("{0}")]
    Missing(&'static str),
    /// A secret that registered servers are told.
    #[error("the secret is in use")]
    SecretInUse(Vec<String>),
    /// A name that the operator declared for everybody.
    #[error("the operator declares a server of this name")]
    NameDeclared,
    /// A server or a secret could not be looked up; asking later may succeed.
    #[error("{0}")]
    NotLookedUp(String),
    /// Conditions of rules could not be looked at in time; asking later may succeed.
    #[error("{0}")]
    NotEvaluated(String),
    /// The version was published with another content.
    #[error("the version is published with other content")]
    VersionExists,
    /// No new runs are made of the version.
    #[error("version {0} is deprecated")]
    VersionDeprecated(String),
    /// No version was active before the one that is.
    #[error("there is no version to go back to")]
    NothingBefore,
    /// The run has had no such question of a server.
    #[error("the run has no such input")]
    InputNotFound,
    /// The id is taken in the tenant.
    #[error("a run of this id exists")]
    RunExists,
    /// The key was used with another body.
    #[error("the Idempotency-Key was used with another body")]
    KeyReused,
    /// The approval is decided; says how.
    #[error("the approval is decided")]
    ApprovalDecided(Box<Approval>),
    /// The token that came with a vote is not the approval's; says why.
    #[error("{0}")]
    TokenRefused(&'static str),
    /// Another of these, about one place of the body.
    #[error("{pointer}: {why}")]
    At {
        /// JSON Pointer into the body.
        pointer: String,
        /// What is wrong there.
        why: Box<Self>,
    },
    /// The run's state does not admit it.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// A required server could not be read.
    #[error(transparent)]
    Unreachable(#[from] Unreachable),
    /// The store could not do it.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Somebody else changed the run again and again; asking later may succeed.
    #[error("the run changes faster than it can be decided")]
    Contended,
    /// The task that stored it panicked; whether it is stored is not known.
    #[error("the command was interrupted")]
    Interrupted,
}

impl CommandError {
    /// The same, with its place in the body.
    fn at(self, pointer: impl Into<String>) -> Self {
        Self::At { pointer: pointer.into(), why: Box::new(self) }
    }
}

/// A free slot on this node, held while a run is admitted.
pub struct Seat {
    /// This node.
    pub node: NodeId,
    /// The executor's own slot, given back when the run lets go.
    pub slot: Box<dyn Any + Send + Sync>,
}

/// This node's executor, as far as commands need it.
pub trait LocalExecutor: Send + Sync {
    /// A free slot for a run of this tenant, if there is one and the node is not draining.
    fn seat(&self, tenant: &TenantId) -> Option<Seat>;
    /// Drives a run that was admitted as this node's own, on the servers as they were read for it.
    fn begin(&self, seat: Seat, claim: Claim, envelope: Envelope, watched: Watched);
    /// Some run is due.
    fn wake(&self);
    /// Somebody left the wish to cancel with a run that a node owns.
    fn cancel(&self, uid: RunUid);
    /// Somebody left a decision with a run that a node owns.
    fn attend(&self, tenant: &TenantId, uid: RunUid);
}

/// What the operator allows.
#[derive(Clone, Debug)]
pub struct Allowances {
    /// Whether runs may bring scripted models.
    pub scripted_models: bool,
    /// What models cost.
    pub prices: Prices,
    /// How old a catalog may be at an admission or a resume, in milliseconds.
    pub catalog_max_age_ms: u64,
    /// How long the node that owns a run may take to read a decision about it: it does so at its heartbeat at the latest.
    pub owner_time: Duration,
    /// Whether a vote that approves must bring the approval's token.
    pub approvals_require_token: bool,
}

/// The commands.
pub struct Commands {
    /// Keeps runs.
    pub store: Arc<dyn Store>,
    /// Tells readers.
    pub hub: Arc<Hub>,
    /// Reaches servers.
    pub dispatch: Arc<Dispatch>,
    /// Seals run-scoped secrets.
    pub keys: Arc<KeyRing>,
    /// Compiles and evaluates the conditions of rules.
    pub expressions: Expressions,
    /// Now, and fresh ids.
    pub clock: Arc<dyn Clock>,
    /// This node's executor.
    pub executor: Arc<dyn LocalExecutor>,
    /// What must come to its end although its caller has gone.
    pub tasks: TaskTracker,
    /// What the operator allows.
    pub allow: Allowances,
    /// How calls are handed to workers.
    pub workers: WorkerSettings,
}

impl Commands {
    /// A row of the audit: what the asker does now to something that is not a run.
    fn tenant_row(&self, asker: &Asker, action: &str, subject: &str, detail: Value) -> AuditRow {
        AuditRow {
            id: self.clock.run_uid().0,
            at: self.clock.now(),
            actor: asker.actor.clone(),
            action: action.to_owned(),
            subject: subject.to_owned(),
            run_id: None,
            detail,
        }
    }

    /// A row of the audit: what the asker does now to a run.
    fn audit_row(&self, asker: &Asker, action: &str, subject: String, run: &RunId, detail: Value) -> AuditRow {
        AuditRow {
            id: self.clock.run_uid().0,
            at: self.clock.now(),
            actor: asker.actor.clone(),
            action: action.to_owned(),
            subject,
            run_id: Some(run.clone()),
            detail,
        }
    }
}

/// Tells this node's readers what a stored commit told. They lose nothing should it fail: they read the store.
fn tell(announced: Announced<'_>, commit: &Commit) {
    let run = announced.uid();
    if let Err(fault) = announced.tell(&commit.events) {
        tracing::warn!(run = %run.0, %fault, "readers were not told at once");
    }
}
