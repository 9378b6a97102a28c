//! What administrators ask of the store: decisions about undecided calls, receipts across runs, the audit.

use async_trait::async_trait;
use serde_json::Value;
use uuid::Uuid;

use super::{Page, RunFilter, StoreError};
use crate::run::approval::Approval;
use crate::run::call::Call;
use crate::run::fact::{InputAnswer, LeftVote, Reconciliation};
use crate::run::ids::{Actor, CallKey, RunId, RunUid, TenantId};
use crate::run::time::Timestamp;

/// A row of the audit: who did what, when.
#[derive(Clone, Debug, PartialEq)]
pub struct AuditRow {
    /// Its identity, which breaks ties of time.
    pub id: Uuid,
    /// When.
    pub at: Timestamp,
    /// Who.
    pub actor: Actor,
    /// What, e.g. `reconciliation.retry`.
    pub action: String,
    /// To what.
    pub subject: String,
    /// To which run, when it was one.
    pub run_id: Option<RunId>,
    /// What else is worth keeping; never a secret.
    pub detail: Value,
}

/// Which rows of the audit a list shows.
#[derive(Clone, Debug, Default)]
pub struct AuditFilter {
    /// Only this actor's.
    pub actor: Option<String>,
    /// Only this action.
    pub action: Option<String>,
    /// Only this run's.
    pub run_id: Option<String>,
}

/// Where a newest-first list of rows goes on: strictly after this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlaceInTime {
    /// The last row's time.
    pub at: Timestamp,
    /// Its identity.
    pub id: Uuid,
}

/// What became of a decision about a run that a node owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// The owner will read it.
    Kept,
    /// Nobody owns the run: decide instead.
    NotOwned,
    /// The call is not undecided, or somebody was faster; nothing was stored.
    Decided,
}

/// A call with the run that it belongs to.
#[derive(Clone, Debug)]
pub struct FoundCall {
    /// The run's name.
    pub run_id: RunId,
    /// The run's internal identity.
    pub uid: RunUid,
    /// Whether the run has ended.
    pub ended: bool,
    /// The call.
    pub call: Call,
}

/// Which receipts of a tenant a list shows.
#[derive(Clone, Debug, Default)]
pub struct ReceiptFilter {
    /// Only this stage.
    pub stage: Option<String>,
    /// Only receipts of such runs; its times are those of the receipts.
    pub run: RunFilter,
}

/// A place in a list of calls across runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiptPlace {
    /// The time that the list is ordered by.
    pub at: Timestamp,
    /// The run.
    pub uid: RunUid,
    /// The call in the run.
    pub key: CallKey,
}

/// An approval as it is kept.
#[derive(Clone, Debug)]
pub struct KeptApproval {
    /// The run's internal identity.
    pub uid: RunUid,
    /// The approval.
    pub approval: Approval,
    /// Whether it is pending and its time is over, by the database clock.
    pub is_due: bool,
}

/// An approval that a deadline decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DueApproval {
    /// Whose.
    pub tenant: TenantId,
    /// Which.
    pub id: Uuid,
    /// When its time was over.
    pub expires_at: Timestamp,
}

/// What administrators need of the store. The tenant comes first everywhere.
#[async_trait]
pub trait AdminStore: Send + Sync {
    /// Leaves a decision about a call with the node that owns its run, beside its row of the audit. `since`: since when
    /// the call is undecided; at another time it is another question.
    async fn decision_leave(
        &self,
        tenant: &TenantId,
        uid: RunUid,
        decided: &Reconciliation,
        since: Timestamp,
        audit: &AuditRow,
    ) -> Result<Left, StoreError>;
    /// Leaves the answer to a server's question with the node that owns the run. The first stays: `Decided` where there is
    /// another one.
    async fn answer_leave(&self, tenant: &TenantId, uid: RunUid, answer: &InputAnswer) -> Result<Left, StoreError>;
    /// The decisions that were left about a run and were not applied yet, each with since when its call is undecided.
    async fn left_list(&self, tenant: &TenantId, uid: RunUid) -> Result<Vec<(Timestamp, Reconciliation)>, StoreError>;
    /// Calls whose outcome is unknown, longest first, by the time since when it is.
    async fn undecided_list(
        &self,
        tenant: &TenantId,
        after: Option<ReceiptPlace>,
        limit: u32,
    ) -> Result<Page<FoundCall>, StoreError>;
    /// Receipts across runs, newest first.
    async fn receipt_search(
        &self,
        tenant: &TenantId,
        filter: &ReceiptFilter,
        after: Option<ReceiptPlace>,
        limit: u32,
    ) -> Result<Page<FoundCall>, StoreError>;
    /// The audit, newest first.
    async fn audit_list(
        &self,
        tenant: &TenantId,
        filter: &AuditFilter,
        after: Option<PlaceInTime>,
        limit: u32,
    ) -> Result<Page<AuditRow>, StoreError>;
    /// Approvals, newest first: of this status, of this run.
    async fn approval_list(
        &self,
        tenant: &TenantId,
        of: (Option<&str>, Option<RunUid>),
        after: Option<PlaceInTime>,
        limit: u32,
    ) -> Result<Page<Approval>, StoreError>;
    /// One approval.
    async fn approval_fetch(&self, tenant: &TenantId, id: Uuid) -> Result<Option<KeptApproval>, StoreError>;
    /// Pending approvals of all tenants whose time is over by the database clock, the longest over first, strictly after
    /// `after`.
    async fn approval_due_list(
        &self,
        after: Option<(Timestamp, Uuid)>,
        limit: u32,
    ) -> Result<Vec<DueApproval>, StoreError>;
    /// Leaves a vote with the node that owns the run, beside its row of the audit. The first of an actor stays: `Decided`
    /// where there is another one.
    async fn vote_leave(
        &self,
        tenant: &TenantId,
        uid: RunUid,
        vote: &LeftVote,
        audit: &AuditRow,
    ) -> Result<Left, StoreError>;
}
