//! Keeps runs. Knows the core's types and SQL, nothing of HTTP, models or servers.
//!
//! **Fencing.** A run is owned through `(node, fence)`. Every write of an owned run carries the fence and the revision
//! that its owner last saw; a write whose fence or revision is old changes nothing and its owner learns that the lease
//! is lost. Whoever is not the owner writes only to a run that nobody owns, under the same revision check, or leaves a
//! wish (`cancel_request`, `decision_leave`) that the owner reads.

use async_trait::async_trait;
use tokio_util::sync::CancellationToken;

mod admin;
pub mod agents;
mod blobs;
mod calls;
mod codec;
mod cut;
mod fault;
mod feed;
pub mod follow;
pub mod hub;
pub mod journal;
mod open;
mod owned;
mod page;
mod postgres;
pub mod registry;
pub mod retention;
mod rows;
mod sqlite;
pub mod tokens;
pub mod wake;
mod workers;

pub use admin::{
    AdminStore, AuditFilter, AuditRow, DueApproval, FoundCall, KeptApproval, Left, PlaceInTime, ReceiptFilter,
    ReceiptPlace,
};
pub use agents::AgentStore;
pub use feed::FeedEvent;
use open::migrate;
pub use open::{open, open_for};
use owned::FORGET_NODE_MS;
pub use owned::{Beat, Claim, ExecutorStore, OwnedCommit, Wishes};
pub use page::{PAGE_BYTES, Page};
pub use registry::RegistryStore;
pub use retention::RetentionStore;
pub use rows::CommitRows;
pub use tokens::TokenStore;
pub use workers::{Asked, Behind, Extended, LeftFact, Reserved, WorkerStore};

use crate::run::binding::{Binding, CatalogRecord};
use crate::run::call::Call;
use crate::run::commit::Commit;
use crate::run::envelope::{Envelope, Head};
use crate::run::event::{ClientCall, UndecidedCall};
use crate::run::ids::{Actor, CallId, Fence, NodeId, RunId, RunUid, TenantId};
use crate::run::message::Message;
use crate::run::spec::RunSpec;
use crate::run::time::Timestamp;
use wake::Hints;

/// Why the store could not do it; by remedy.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The database did not answer; the same request may succeed later.
    #[error("the database is not available: {0}")]
    Unavailable(#[source] sqlx::Error),
    /// A stored row does not read as what this version writes.
    #[error("stored {what} does not read: {detail}")]
    Corrupt {
        /// Which kind of row.
        what: &'static str,
        /// The reader's words; no payload.
        detail: String,
    },
    /// A row that a later version wrote: one of its nodes can go on with the run.
    #[error("stored {what} is of version {version}, later than this program's")]
    Newer {
        /// Which kind of row.
        what: &'static str,
        /// Its version.
        version: u32,
    },
    /// These very rows can not be stored, now or later; others can.
    #[error("the rows are refused: {0}")]
    Rejected(String),
    /// The schema or the settings do not fit this version.
    #[error("{0}")]
    Misconfigured(String),
}

/// A new run, stored whole or not at all.
#[derive(Clone, Debug)]
pub struct Admission {
    /// Whose run it is.
    pub tenant: TenantId,
    /// Its internal identity.
    pub uid: RunUid,
    /// The caller's name of it.
    pub id: RunId,
    /// What was asked for.
    pub spec: RunSpec,
    /// Head, messages, binding and events (`expected` is 0).
    pub commit: Commit,
    /// The node that takes it at once (fence 1), while that node is alive; else it is due as `commit.next` says, where
    /// `Owner` means now.
    pub owner: Option<NodeId>,
    /// The caller's key for this request, kept with the run.
    pub idempotency: Option<KeptRequest>,
    /// Run-scoped secrets, sealed.
    pub secrets: Vec<SealedSecret>,
}

/// A sealed run-scoped secret; purged when the run is terminal.
#[derive(Clone, Debug)]
pub struct SealedSecret {
    /// The caller's name of it.
    pub name: String,
    /// Which master key sealed it.
    pub key_id: String,
    /// Nonce and ciphertext.
    pub sealed: Vec<u8>,
}

/// A creating request that carries an `Idempotency-Key`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptRequest {
    /// Who asked.
    pub actor: Actor,
    /// Which route, e.g. `run_create`.
    pub route: &'static str,
    /// The caller's key.
    pub key: String,
    /// Keyed digest of the body.
    pub body_digest: String,
    /// Forgotten after that time.
    pub expires_at: Timestamp,
}

/// What was kept under an `Idempotency-Key`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptAnswer {
    /// Keyed digest of the body that was kept.
    pub body_digest: String,
    /// The run that it created.
    pub run_id: RunId,
}

/// What became of an admission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admitted {
    /// Stored; the node that was to take it has it.
    Created,
    /// Stored; the node that was to take it is taken for dead, so the run is due for any other.
    NotTaken,
    /// The id is taken in the tenant; nothing was stored.
    RunExists,
    /// The key was used before; nothing was stored.
    KeyUsed(KeptAnswer),
}

/// A run as readers see it: the head and what stands beside it, without the conversation.
#[derive(Clone, Debug)]
pub struct RunView {
    /// The internal identity.
    pub uid: RunUid,
    /// The caller's name.
    pub id: RunId,
    /// What was asked for.
    pub spec: RunSpec,
    /// The head.
    pub head: Head,
    /// The binding's revision.
    pub binding_revision: u32,
    /// The binding's record.
    pub mcp: Option<CatalogRecord>,
    /// Calls that wait for a person.
    pub undecided: Vec<UndecidedCall>,
    /// Calls that the run's client is to carry out.
    pub client_calls: Vec<ClientCall>,
    /// Whether a node drives it now.
    pub owned: bool,
}

/// A run as its next owner, or a decision, needs it.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// Everything that is true of it.
    pub envelope: Envelope,
    /// The fence of its current or last owner.
    pub fence: Fence,
    /// Whether a node drives it now.
    pub owned: bool,
    /// Who wished it cancelled, when somebody did.
    pub cancel_requested_by: Option<Actor>,
}

/// Which runs a list shows.
#[derive(Clone, Debug, Default)]
pub struct RunFilter {
    /// Only this status.
    pub status: Option<String>,
    /// Only this reason.
    pub reason: Option<String>,
    /// Only runs of this agent, or of this version of it (`NAMESPACE/NAME`, `NAMESPACE/NAME@SEMVER`).
    pub agent: Option<String>,
    /// Only runs with all of these labels.
    pub metadata: Vec<(String, String)>,
    /// Only runs created at or after.
    pub created_after: Option<Timestamp>,
    /// Only runs created before.
    pub created_before: Option<Timestamp>,
}

impl RunFilter {
    /// The first and the last text that names a wanted version of an agent, in the order of their bytes.
    pub fn agent_versions(&self) -> Option<(String, String)> {
        // A tilde stands behind every sign of a version.
        let versions = |agent: &String| match agent.split_once('@') {
            Some(_) => (agent.clone(), agent.clone()),
            None => (format!("{agent}@"), format!("{agent}@~")),
        };
        self.agent.as_ref().map(versions)
    }
}

/// Where a newest-first list of runs goes on: strictly after this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunCursor {
    /// When the last run of the page before was created.
    pub created_at: Timestamp,
    /// Its internal identity, which breaks ties.
    pub uid: RunUid,
}

/// One stored event: its number and its JSON text as readers get it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredEvent {
    /// Number in the run, from 1.
    pub seq: i64,
    /// The event's type.
    pub kind: String,
    /// The whole event as JSON.
    pub body: String,
}

/// What requests need of the store. The tenant comes first everywhere. What is read is whole: big values stand in their
/// places.
#[async_trait]
pub trait RunStore: Send + Sync {
    /// Stores a new run with its key, in one transaction.
    async fn run_admit(&self, admission: Admission) -> Result<Admitted, StoreError>;
    /// The answer kept under a key, unless it expired.
    async fn kept_fetch(
        &self,
        tenant: &TenantId,
        request: &KeptRequest,
        now: Timestamp,
    ) -> Result<Option<KeptAnswer>, StoreError>;
    /// One run as readers see it.
    async fn run_fetch(&self, tenant: &TenantId, id: &RunId) -> Result<Option<RunView>, StoreError>;
    /// Runs, newest first. Every list ends at `limit` rows or about `PAGE_BYTES`, and says whether it goes on.
    async fn run_list(
        &self,
        tenant: &TenantId,
        filter: &RunFilter,
        after: Option<RunCursor>,
        limit: u32,
    ) -> Result<Page<RunView>, StoreError>;
    /// How many bytes of messages and calls `run_load` would bring, whole; 0 for a run that is not there.
    async fn run_bytes(&self, tenant: &TenantId, uid: RunUid) -> Result<u64, StoreError>;
    /// One run whole.
    async fn run_load(&self, tenant: &TenantId, uid: RunUid) -> Result<Option<Loaded>, StoreError>;
    /// A decision on a run that nobody owns, with its rows of the audit: applied only while fence and revision are the
    /// ones seen and there is no owner; raises the fence. `Next::Owner` makes it due now. `false`: somebody was faster,
    /// load again.
    async fn run_decide(
        &self,
        tenant: &TenantId,
        uid: RunUid,
        seen: Fence,
        commit: &Commit,
        audit: &[AuditRow],
    ) -> Result<bool, StoreError>;
    /// Leaves the wish to cancel with a run that a node owns, or that workers have calls of, which is then due; the first
    /// wish stays. `false`: it is neither, decide instead. An owner that lets go without having read it leaves the run due now, so that the next one does.
    async fn cancel_request(&self, tenant: &TenantId, uid: RunUid, actor: &Actor) -> Result<bool, StoreError>;
    /// Messages in order, from `position` on.
    async fn message_list(
        &self,
        tenant: &TenantId,
        uid: RunUid,
        from: u32,
        limit: u32,
    ) -> Result<Page<Message>, StoreError>;
    /// Calls that have a receipt, in order of (turn, position), strictly after `after`.
    async fn receipt_list(
        &self,
        tenant: &TenantId,
        uid: RunUid,
        after: Option<(u32, u32)>,
        limit: u32,
    ) -> Result<Page<Call>, StoreError>;
    /// One call that has a receipt.
    async fn receipt_fetch(
        &self,
        tenant: &TenantId,
        uid: RunUid,
        turn: u32,
        call_id: &CallId,
    ) -> Result<Option<Call>, StoreError>;
    /// Events with a number greater than `after`, in order.
    async fn event_list(
        &self,
        tenant: &TenantId,
        uid: RunUid,
        after: i64,
        limit: u32,
    ) -> Result<Page<StoredEvent>, StoreError>;
    /// What a run was bound to, in order of revision, strictly after `after`.
    async fn binding_list(
        &self,
        tenant: &TenantId,
        uid: RunUid,
        after: u32,
        limit: u32,
    ) -> Result<Page<Binding>, StoreError>;
    /// The sealed secrets of a run.
    async fn secret_list(&self, tenant: &TenantId, uid: RunUid) -> Result<Vec<SealedSecret>, StoreError>;
    /// One stored secret for each master key that sealed any: what a start-up check must be able to open.
    async fn secret_samples(&self) -> Result<Vec<(TenantId, RunUid, SealedSecret)>, StoreError>;
    /// Whether the database answers.
    async fn ping(&self) -> Result<(), StoreError>;
    /// Closes every connection; what comes later is `Unavailable`.
    async fn close(&self) {}
}

/// What it takes to hear of what other nodes stored.
#[async_trait]
pub trait FollowStore: Send + Sync {
    /// What this node says to the others, and hears of them.
    fn hints(&self) -> &Hints;
    /// Carries hints between this node and the others until the token is cancelled; whatever is wrong is tried again.
    /// `node` tells this process's own hints apart. Ends at once where there can be no other node.
    async fn hint_carry(&self, node: NodeId, stop: CancellationToken);
    /// The number of the last event of each of these runs, as far as they exist.
    async fn seq_list(&self, runs: &[(TenantId, RunUid)]) -> Result<Vec<(RunUid, i64)>, StoreError>;
    /// Status and result events of these tenants that happened at `since` or later, of each tenant the newest `limit`.
    async fn feed_list(&self, tenants: &[TenantId], since: Timestamp, limit: u32)
    -> Result<Vec<FeedEvent>, StoreError>;
}

/// One database that does all.
pub trait Store:
    RunStore
    + ExecutorStore
    + FollowStore
    + AdminStore
    + RetentionStore
    + RegistryStore
    + AgentStore
    + TokenStore
    + WorkerStore
{
}

impl<T> Store for T where
    T: RunStore
        + ExecutorStore
        + FollowStore
        + AdminStore
        + RetentionStore
        + RegistryStore
        + AgentStore
        + TokenStore
        + WorkerStore
{
}
