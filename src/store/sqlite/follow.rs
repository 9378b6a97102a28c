//! What other nodes stored, as far as somebody here follows it. One process has a SQLite file, so there is little to
//! find: what readers were not told because telling failed.

use sqlx::Row;

use super::SqliteStore;
use crate::run::ids::{RunUid, TenantId};
use crate::run::time::Timestamp;
use crate::store::{FeedEvent, StoreError, StoredEvent, codec};

pub(super) async fn seq_list(
    store: &SqliteStore,
    runs: &[(TenantId, RunUid)],
) -> Result<Vec<(RunUid, i64)>, StoreError> {
    let pairs: Vec<(&str, String)> =
        runs.iter().map(|(tenant, uid)| (tenant.as_str(), uid.0.simple().to_string())).collect();
    let rows: Vec<(uuid::Uuid, i64)> = sqlx::query_as(
        "SELECT r.uid, r.last_seq FROM json_each(?1) AS f \
         CROSS JOIN runs r ON r.tenant_id = f.value ->> 0 AND r.uid = unhex(f.value ->> 1)",
    )
    .bind(codec::json_text("followed runs", &pairs)?)
    .fetch_all(&store.reader)
    .await?;
    Ok(rows.into_iter().map(|(uid, last_seq)| (RunUid(uid), last_seq)).collect())
}

pub(super) async fn feed_list(
    store: &SqliteStore,
    tenants: &[TenantId],
    since: Timestamp,
    limit: u32,
) -> Result<Vec<FeedEvent>, StoreError> {
    let rows = sqlx::query(
        "SELECT tenant_id, run_uid, seq, at, kind, body FROM ( \
           SELECT e.*, row_number() OVER (PARTITION BY e.tenant_id ORDER BY e.at DESC) AS nth FROM json_each(?1) AS f \
           CROSS JOIN events e ON e.tenant_id = f.value AND e.at >= ?2 AND e.kind IN ('run-status', 'result')) \
         WHERE nth <= ?3",
    )
    .bind(codec::json_text("followed tenants", &tenants)?)
    .bind(since.as_millis())
    .bind(limit)
    .fetch_all(&store.reader)
    .await?;
    let event = |row: &sqlx::sqlite::SqliteRow| {
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
