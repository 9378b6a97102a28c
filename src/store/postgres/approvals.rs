//! Approvals across runs, as people look for them.

use uuid::Uuid;

use super::PostgresStore;
use crate::run::approval::Approval;
use crate::run::ids::{RunUid, TenantId};
use crate::store::codec;
use crate::store::page::{Filling, Page};
use crate::store::{PlaceInTime, StoreError};

pub(super) async fn approval_list(
    store: &PostgresStore,
    tenant: &TenantId,
    (status, run): (Option<&str>, Option<RunUid>),
    after: Option<PlaceInTime>,
    limit: u32,
) -> Result<Page<Approval>, StoreError> {
    let rows: Vec<String> = sqlx::query_scalar(
        "SELECT body::text FROM approvals WHERE tenant_id = $1 \
           AND ($2::text IS NULL OR status = $2) AND ($3::uuid IS NULL OR run_uid = $3) \
           AND ($4::bigint IS NULL OR (created_at, id) < ($4, $5)) \
         ORDER BY created_at DESC, id DESC LIMIT $6 + 1",
    )
    .bind(tenant.as_str())
    .bind(status)
    .bind(run.map(|run| run.0))
    .bind(after.map(|place| place.at.as_millis()))
    .bind(after.map(|place| place.id))
    .bind(i64::from(limit))
    .fetch_all(&store.pool)
    .await?;
    let mut filling = Filling::new(limit);
    for body in rows {
        if !filling.take(body.len(), body) {
            break;
        }
    }
    filling.page().try_map(|body| codec::decode("approval", &body))
}

pub(super) async fn approval_fetch(
    store: &PostgresStore,
    tenant: &TenantId,
    id: Uuid,
) -> Result<Option<Approval>, StoreError> {
    let body: Option<String> = sqlx::query_scalar("SELECT body::text FROM approvals WHERE tenant_id = $1 AND id = $2")
        .bind(tenant.as_str())
        .bind(id)
        .fetch_optional(&store.pool)
        .await?;
    body.map(|body| codec::decode("approval", &body)).transpose()
}
