//! What a node needs of the store for the runs that it owns: to be known, to take, to write, to let go.

use async_trait::async_trait;

use super::{CommitRows, LeftFact, StoreError};
use crate::run::commit::Commit;
use crate::run::fact::{InputAnswer, LeftVote, Reconciliation};
use crate::run::ids::{Actor, Fence, NodeId, RunUid, TenantId};
use crate::run::time::Timestamp;

/// A run that a node took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Whose run it is.
    pub tenant: TenantId,
    /// Which run.
    pub uid: RunUid,
    /// The fence of this ownership.
    pub fence: Fence,
}

/// One commit of an owned run.
#[derive(Clone, Debug)]
pub struct OwnedCommit {
    /// Whose run it is.
    pub tenant: TenantId,
    /// Which run.
    pub uid: RunUid,
    /// The fence of the writer.
    pub fence: Fence,
    /// What is written.
    pub rows: CommitRows,
}

impl OwnedCommit {
    /// # Errors
    /// `Rejected` when the commit contradicts itself.
    pub fn encode(claim: &Claim, commit: &Commit) -> Result<Self, StoreError> {
        let rows = CommitRows::encode(commit)?;
        Ok(Self { tenant: claim.tenant.clone(), uid: claim.uid, fence: claim.fence, rows })
    }
}

/// What a node learns when it beats.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Beat {
    /// Whether the node was still taken for alive; if not it owns nothing any more.
    pub alive: bool,
    /// Every run that the database counts as this node's.
    pub owned: Vec<Claim>,
    /// Those of them that somebody left a wish with.
    pub attention: Vec<Claim>,
}

/// What the executor needs of the store.
#[async_trait]
pub trait ExecutorStore: Send + Sync {
    /// Makes a node known, with its first beat. On SQLite, which one process has for itself, every other node is dead
    /// from then on and its runs are due.
    async fn node_register(&self, node: NodeId) -> Result<(), StoreError>;
    /// Beats, and reads what the node owns and whose attention is wanted.
    async fn node_beat(&self, node: NodeId) -> Result<Beat, StoreError>;
    /// The runs of this node that somebody left a wish with.
    async fn wish_list(&self, node: NodeId) -> Result<Vec<Claim>, StoreError>;
    /// Says good-bye: the node's runs are due at once.
    async fn node_retire(&self, node: NodeId) -> Result<(), StoreError>;
    /// Marks nodes dead whose beat is older than the lease, by the database clock, and makes their runs due
    /// (`crashes` + 1). Answers how many runs were freed.
    async fn node_reap(&self, lease_ms: i64) -> Result<u64, StoreError>;
    /// Takes due runs, fairly across tenants: at most `slots`, and at most `per_tenant` running in one tenant. Nothing,
    /// when another node is claiming at this moment, or this node was taken for dead.
    async fn run_claim(&self, node: NodeId, slots: u32, per_tenant: u32) -> Result<Vec<Claim>, StoreError>;
    /// Gives an owned run back unchanged: due at once. `crashed` counts against the run as a death of its node does, and
    /// makes it due later each time: 250 ms, doubled per crash, at most a minute.
    /// `false`: it was no longer this owner's.
    async fn run_release(&self, claim: &Claim, crashed: bool) -> Result<bool, StoreError>;
    /// The revision at which a run stands under this fence; `None` once there is a later fence.
    async fn run_revision(&self, claim: &Claim) -> Result<Option<i64>, StoreError>;
    /// When the next run falls due that nobody owns, in milliseconds from now by the database clock; `None`: never.
    async fn run_due_in(&self) -> Result<Option<i64>, StoreError>;
    /// Applies commits of owned runs in one transaction; for each, whether its fence and revision still held. No run
    /// may stand in it twice. After `Unavailable` nobody knows whether they are stored.
    async fn commit_apply(&self, commits: &[OwnedCommit]) -> Result<Vec<bool>, StoreError>;
    /// What others wish of an owned run; its attention is then no longer wanted. Decisions stay until the core takes
    /// them, and come again until then. Empty when the run is another owner's.
    async fn wishes_take(&self, claim: &Claim) -> Result<Wishes, StoreError>;
}

/// What others wish of a run that a node owns.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Wishes {
    /// Who wished it cancelled.
    pub cancel_requested_by: Option<Actor>,
    /// What people decided about its undecided calls, each with the time since when nobody knew: a call is another
    /// question each time that it becomes undecided.
    pub decisions: Vec<(Timestamp, Reconciliation)>,
    /// What people answered to its servers' questions, in any order; those that are closed by now among them.
    pub answers: Vec<InputAnswer>,
    /// What became of its calls that others fetch; told once, and whoever left it leaves it again where it must be.
    pub fetched: Vec<LeftFact>,
    /// Votes, those on what is decided by now among them.
    pub votes: Vec<LeftVote>,
}

/// How long a dead node is remembered, in milliseconds; by then it has learned that it is dead, or is gone.
pub(super) const FORGET_NODE_MS: i64 = 24 * 60 * 60 * 1000;
