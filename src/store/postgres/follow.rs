//! What other nodes stored, as far as somebody here follows it.

use sqlx::Row;
use uuid::Uuid;

use super::PostgresStore;
use crate::run::ids::{RunUid, TenantId};
use crate::run::time::Timestamp;
use crate::store::{FeedEvent, StoreError, StoredEvent, codec};

pub(super) async fn seq_list(
    store: &PostgresStore,
    runs: &[(TenantId, RunUid)],
) -> Result<Vec<(RunUid, i64)>, StoreError> {
    let tenants: Vec<&str> = runs.iter().map(|(tenant, _)| tenant.as_str()).collect();
    let uids: Vec<Uuid> = runs.iter().map(|(_, uid)| uid.0).collect();
    let rows: Vec<(Uuid, i64)> = sqlx::query_as(
        "SELECT r.uid, r.last_seq FROM unnest($1::text[], $2::uuid[]) AS f (tenant_id, uid) \
         JOIN runs r ON r.tenant_id = f.tenant_id AND r.uid = f.uid",
    )
    .bind(tenants)
    .bind(uids)
    .fetch_all(&store.pool)
    .await?;
    Ok(rows.into_iter().map(|(uid, last_seq)| (RunUid(uid), last_seq)).collect())
}

/// Each tenant's newest by itself: a flood of one hides nothing of another.
pub(super) async fn feed_list(
    store: &PostgresStore,
    tenants: &[TenantId],
    since: Timestamp,
    limit: u32,
) -> Result<Vec<FeedEvent>, StoreError> {
    let tenants: Vec<&str> = tenants.iter().map(TenantId::as_str).collect();
    let rows = sqlx::query(
        "SELECT f.tenant_id, e.run_uid, e.seq, e.at, e.kind, e.body::text AS body FROM unnest($1::text[]) AS f (tenant_id) \
         CROSS JOIN LATERAL (SELECT run_uid, seq, at, kind, body FROM events \
           WHERE tenant_id = f.tenant_id AND at >= $2 AND kind IN ('run-status', 'result') \
           ORDER BY at DESC LIMIT $3) AS e",
    )
    .bind(tenants)
    .bind(since.as_millis())
    .bind(i64::from(limit))
    .fetch_all(&store.pool)
    .await?;
    let event = |row: &sqlx::postgres::PgRow| {
        let tenant: String = row.try_get("tenant_id")?;
        Ok(FeedEvent {
            tenant: codec::named("tenant", TenantId::parse(tenant))?,
            uid: RunUid(row.try_get("run_uid")?),
            at: Timestamp::from_millis(row.try_get("at")?),
            event: StoredEvent { seq: row.try_get("seq")?, kind: row.try_get("kind")?, body: row.try_get("body")? },
        })
    };
    rows.iter().map(event).collect()
}
