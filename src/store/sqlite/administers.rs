//! The administrators' half of the store, function for function.

use async_trait::async_trait;
use uuid::Uuid;

use super::{SqliteStore, admin, approvals, inputs};
use crate::run::approval::Approval;
use crate::run::fact::{InputAnswer, LeftVote, Reconciliation};
use crate::run::ids::{RunUid, TenantId};
use crate::run::time::Timestamp;
use crate::store::{
    AdminStore, AuditFilter, AuditRow, DueApproval, FoundCall, KeptApproval, Left, Page, PlaceInTime, ReceiptFilter,
    ReceiptPlace, StoreError,
};

#[async_trait]
impl AdminStore for SqliteStore {
    async fn decision_leave(
        &self,
        tenant: &TenantId,
        uid: RunUid,
        decided: &Reconciliation,
        since: Timestamp,
        audit: &AuditRow,
    ) -> Result<Left, StoreError> {
        admin::decision_leave(self, tenant, uid, decided, since, audit).await
    }

    async fn answer_leave(&self, tenant: &TenantId, uid: RunUid, answer: &InputAnswer) -> Result<Left, StoreError> {
        inputs::answer_leave(self, tenant, uid, answer).await
    }

    async fn left_list(&self, tenant: &TenantId, uid: RunUid) -> Result<Vec<(Timestamp, Reconciliation)>, StoreError> {
        admin::left_list(self, tenant, uid).await
    }

    async fn undecided_list(
        &self,
        tenant: &TenantId,
        after: Option<ReceiptPlace>,
        limit: u32,
    ) -> Result<Page<FoundCall>, StoreError> {
        admin::undecided_list(self, tenant, after, limit).await
    }

    async fn receipt_search(
        &self,
        tenant: &TenantId,
        filter: &ReceiptFilter,
        after: Option<ReceiptPlace>,
        limit: u32,
    ) -> Result<Page<FoundCall>, StoreError> {
        admin::receipt_search(self, tenant, filter, after, limit).await
    }

    async fn audit_list(
        &self,
        tenant: &TenantId,
        filter: &AuditFilter,
        after: Option<PlaceInTime>,
        limit: u32,
    ) -> Result<Page<AuditRow>, StoreError> {
        admin::audit_list(self, tenant, filter, after, limit).await
    }

    async fn approval_list(
        &self,
        tenant: &TenantId,
        of: (Option<&str>, Option<RunUid>),
        after: Option<PlaceInTime>,
        limit: u32,
    ) -> Result<Page<Approval>, StoreError> {
        approvals::approval_list(self, tenant, of, after, limit).await
    }

    async fn approval_fetch(&self, tenant: &TenantId, id: Uuid) -> Result<Option<KeptApproval>, StoreError> {
        approvals::approval_fetch(self, tenant, id).await
    }

    async fn approval_due_list(
        &self,
        after: Option<(Timestamp, Uuid)>,
        limit: u32,
    ) -> Result<Vec<DueApproval>, StoreError> {
        approvals::approval_due_list(self, after, limit).await
    }

    async fn vote_leave(
        &self,
        tenant: &TenantId,
        uid: RunUid,
        vote: &LeftVote,
        audit: &AuditRow,
    ) -> Result<Left, StoreError> {
        approvals::vote_leave(self, tenant, uid, vote, audit).await
    }
}
