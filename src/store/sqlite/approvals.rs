//! Approvals across runs, as people look for them, and votes that are left for the owner of a run.

use sqlx::SqliteExecutor;
use uuid::Uuid;

use super::{SqliteStore, admin, now_ms};
use crate::run::approval::Approval;
use crate::run::fact::LeftVote;
use crate::run::ids::{RunUid, TenantId};
use crate::run::time::Timestamp;
use crate::store::codec;
use crate::store::page::{Filling, Page};
use crate::store::{AuditRow, DueApproval, KeptApproval, Left, PlaceInTime, StoreError};

pub(super) async fn approval_list(
    store: &SqliteStore,
    tenant: &TenantId,
    (status, run): (Option<&str>, Option<RunUid>),
    after: Option<PlaceInTime>,
    limit: u32,
) -> Result<Page<Approval>, StoreError> {
    let rows: Vec<String> = sqlx::query_scalar(
        "SELECT body FROM approvals WHERE tenant_id = ?1 \
           AND (?2 IS NULL OR status = ?2) AND (?3 IS NULL OR run_uid = ?3) \
           AND (?4 IS NULL OR (created_at, id) < (?4, ?5)) \
         ORDER BY created_at DESC, id DESC LIMIT ?6 + 1",
    )
    .bind(tenant.as_str())
    .bind(status)
    .bind(run.map(|run| run.0))
    .bind(after.map(|place| place.at.as_millis()))
    .bind(after.map(|place| place.id))
    .bind(limit)
    .fetch_all(&store.reader)
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
    store: &SqliteStore,
    tenant: &TenantId,
    id: Uuid,
) -> Result<Option<KeptApproval>, StoreError> {
    const SQL: &str = concat!(
        "SELECT run_uid, body, COALESCE(status = 'pending' AND expires_at <= ",
        now_ms!(),
        ", false) FROM approvals WHERE tenant_id = ?1 AND id = ?2"
    );
    let row: Option<(Uuid, String, bool)> =
        sqlx::query_as(SQL).bind(tenant.as_str()).bind(id).fetch_optional(&store.reader).await?;
    row.map(|(uid, body, is_due)| {
        Ok(KeptApproval { uid: RunUid(uid), approval: codec::decode("approval", &body)?, is_due })
    })
    .transpose()
}

pub(super) async fn approval_due_list(
    store: &SqliteStore,
    after: Option<(Timestamp, Uuid)>,
    limit: u32,
) -> Result<Vec<DueApproval>, StoreError> {
    const SQL: &str = concat!(
        "SELECT tenant_id, id, expires_at FROM approvals WHERE status = 'pending' AND expires_at <= ",
        now_ms!(),
        " AND (?1 IS NULL OR (expires_at, id) > (?1, ?2)) ORDER BY expires_at, id LIMIT ?3"
    );
    let rows: Vec<(String, Uuid, i64)> = sqlx::query_as(SQL)
        .bind(after.map(|(at, _)| at.as_millis()))
        .bind(after.map(|(_, id)| id))
        .bind(limit)
        .fetch_all(&store.reader)
        .await?;
    rows.into_iter()
        .map(|(tenant, id, expires_at)| {
            let tenant = codec::named("tenant", TenantId::parse(tenant))?;
            Ok(DueApproval { tenant, id, expires_at: Timestamp::from_millis(expires_at) })
        })
        .collect()
}

pub(super) async fn vote_leave(
    store: &SqliteStore,
    tenant: &TenantId,
    uid: RunUid,
    vote: &LeftVote,
    audit: &AuditRow,
) -> Result<Left, StoreError> {
    let mut tx = store.write().await?;
    let owned = sqlx::query("UPDATE runs SET attention = true WHERE tenant_id = ?1 AND uid = ?2 AND owner IS NOT NULL")
        .bind(tenant.as_str())
        .bind(uid.0)
        .execute(&mut *tx)
        .await?;
    if owned.rows_affected() == 0 {
        return Ok(Left::NotOwned);
    }
    let kept = sqlx::query(
        "INSERT INTO votes (tenant_id, run_uid, approval_id, round, actor, body) VALUES (?1, ?2, ?3, ?4, ?5, ?6) \
         ON CONFLICT DO NOTHING",
    )
    .bind(tenant.as_str())
    .bind(uid.0)
    .bind(vote.approval())
    .bind(i64::from(vote.round()))
    .bind(vote.actor())
    .bind(codec::encode("vote", vote)?)
    .execute(&mut *tx)
    .await?;
    if kept.rows_affected() == 1 {
        admin::audit_insert(&mut tx, tenant, std::slice::from_ref(audit)).await?;
    } else if !votes_in(&mut *tx, tenant, uid).await?.contains(vote) {
        // The same one again is its caller asking again.
        return Ok(Left::Decided);
    }
    tx.commit().await?;
    Ok(Left::Kept)
}

/// Every vote that was left about a run, those on earlier arguments first.
pub(super) async fn votes_in(
    executor: impl SqliteExecutor<'_>,
    tenant: &TenantId,
    uid: RunUid,
) -> Result<Vec<LeftVote>, StoreError> {
    let rows: Vec<String> = sqlx::query_scalar(
        "SELECT body FROM votes WHERE tenant_id = ?1 AND run_uid = ?2 ORDER BY approval_id, round, actor",
    )
    .bind(tenant.as_str())
    .bind(uid.0)
    .fetch_all(executor)
    .await?;
    rows.iter().map(|body| codec::decode("vote", body)).collect()
}
