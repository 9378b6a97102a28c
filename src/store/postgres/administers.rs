//! The administrators' half of the store, function for function.

use async_trait::async_trait;
use uuid::Uuid;

use super::{SteadyPostgres, admin, approvals, inputs};
use crate::run::approval::Approval;
use crate::run::fact::{InputAnswer, LeftVote, Reconciliation};
use crate::run::ids::{RunUid, TenantId};
use crate::run::time::Timestamp;
use crate::store::wake::Hint;
use crate::store::{
    AdminStore, AuditFilter, AuditRow, DueApproval, FoundCall, KeptApproval, Left, Page, PlaceInTime, ReceiptFilter,
    ReceiptPlace, StoreError,
};

#[async_trait]
impl AdminStore for SteadyPostgres {
    async fn decision_leave(
        &self,
        tenant: &TenantId,
        uid: RunUid,
        decided: &Reconciliation,
        since: Timestamp,
        audit: &AuditRow,
    ) -> Result<Left, StoreError> {
        let store = self.now();
        let left = self.within(&store, admin::decision_leave(&store, tenant, uid, decided, since, audit)).await?;
        if left == Left::Kept {
            self.hints.tell(Hint::Wish);
        }
        Ok(left)
    }

    async fn answer_leave(&self, tenant: &TenantId, uid: RunUid, answer: &InputAnswer) -> Result<Left, StoreError> {
        let store = self.now();
        let left = self.within(&store, inputs::answer_leave(&store, tenant, uid, answer)).await?;
        if left == Left::Kept {
            self.hints.tell(Hint::Wish);
        }
        Ok(left)
    }

    async fn left_list(&self, tenant: &TenantId, uid: RunUid) -> Result<Vec<(Timestamp, Reconciliation)>, StoreError> {
        let store = self.now();
        self.within(&store, admin::left_list(&store, tenant, uid)).await
    }

    async fn undecided_list(
        &self,
        tenant: &TenantId,
        after: Option<ReceiptPlace>,
        limit: u32,
    ) -> Result<Page<FoundCall>, StoreError> {
        let store = self.now();
        self.within(&store, admin::undecided_list(&store, tenant, after, limit)).await
    }

    async fn receipt_search(
        &self,
        tenant: &TenantId,
        filter: &ReceiptFilter,
        after: Option<ReceiptPlace>,
        limit: u32,
    ) -> Result<Page<FoundCall>, StoreError> {
        let store = self.now();
        self.within(&store, admin::receipt_search(&store, tenant, filter, after, limit)).await
    }

    async fn audit_list(
        &self,
        tenant: &TenantId,
        filter: &AuditFilter,
        after: Option<PlaceInTime>,
        limit: u32,
    ) -> Result<Page<AuditRow>, StoreError> {
        let store = self.now();
        self.within(&store, admin::audit_list(&store, tenant, filter, after, limit)).await
    }

    async fn approval_list(
        &self,
        tenant: &TenantId,
        of: (Option<&str>, Option<RunUid>),
        after: Option<PlaceInTime>,
        limit: u32,
    ) -> Result<Page<Approval>, StoreError> {
        let store = self.now();
        self.within(&store, approvals::approval_list(&store, tenant, of, after, limit)).await
    }

    async fn approval_fetch(&self, tenant: &TenantId, id: Uuid) -> Result<Option<KeptApproval>, StoreError> {
        let store = self.now();
        self.within(&store, approvals::approval_fetch(&store, tenant, id)).await
    }

    async fn approval_due_list(
        &self,
        after: Option<(Timestamp, Uuid)>,
        limit: u32,
    ) -> Result<Vec<DueApproval>, StoreError> {
        let store = self.now();
        self.within(&store, approvals::approval_due_list(&store, after, limit)).await
    }

    async fn vote_leave(
        &self,
        tenant: &TenantId,
        uid: RunUid,
        vote: &LeftVote,
        audit: &AuditRow,
    ) -> Result<Left, StoreError> {
        let store = self.now();
        let left = self.within(&store, approvals::vote_leave(&store, tenant, uid, vote, audit)).await?;
        if left == Left::Kept {
            self.hints.tell(Hint::Wish);
        }
        Ok(left)
    }
}
