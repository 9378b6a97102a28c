//! Nodes, leases and claims, all by the database's clock.

use sqlx::Row;
use sqlx::sqlite::SqliteRow;

use super::{SqliteStore, now_ms};
use crate::run::ids::{Fence, NodeId, RunUid, TenantId};
use crate::store::{Beat, Claim, FORGET_NODE_MS, StoreError, codec};

pub(super) async fn ping(store: &SqliteStore) -> Result<(), StoreError> {
    sqlx::query("SELECT count(*) FROM nodes").execute(&store.reader).await?;
    Ok(())
}

/// One process has the file, so whoever else is in it has died.
pub(super) async fn node_register(store: &SqliteStore, node: NodeId) -> Result<(), StoreError> {
    let mut tx = store.write().await?;
    sqlx::query(concat!("UPDATE nodes SET dead_at = ", now_ms!(), " WHERE node_id <> ?1 AND dead_at IS NULL"))
        .bind(node.0)
        .execute(&mut *tx)
        .await?;
    sqlx::query(concat!(
        "INSERT INTO nodes (node_id, started_at, beat_at) VALUES (?1, ",
        now_ms!(),
        ", ",
        now_ms!(),
        ") ON CONFLICT (node_id) DO UPDATE SET beat_at = excluded.beat_at, dead_at = NULL"
    ))
    .bind(node.0)
    .execute(&mut *tx)
    .await?;
    sqlx::query(FREE_RUNS).execute(&mut *tx).await?;
    tx.commit().await?;
    Ok(())
}

/// The runs of dead nodes become due.
const FREE_RUNS: &str = concat!(
    "UPDATE runs SET owner = NULL, crashes = crashes + 1, due_at = ",
    now_ms!(),
    " WHERE owner IN (SELECT node_id FROM nodes WHERE dead_at IS NOT NULL)"
);

pub(super) async fn node_beat(store: &SqliteStore, node: NodeId) -> Result<Beat, StoreError> {
    let beaten =
        sqlx::query(concat!("UPDATE nodes SET beat_at = ", now_ms!(), " WHERE node_id = ?1 AND dead_at IS NULL"))
            .bind(node.0)
            .execute(&store.writer)
            .await?;
    if beaten.rows_affected() == 0 {
        return Ok(Beat::default());
    }
    let rows = sqlx::query("SELECT tenant_id, uid, fence, attention FROM runs WHERE owner = ?1")
        .bind(node.0)
        .fetch_all(&store.reader)
        .await?;
    let mut beat = Beat { alive: true, ..Beat::default() };
    for row in &rows {
        let claim = claim(row)?;
        if row.try_get("attention")? {
            beat.attention.push(claim.clone());
        }
        beat.owned.push(claim);
    }
    Ok(beat)
}

pub(super) async fn wish_list(store: &SqliteStore, node: NodeId) -> Result<Vec<Claim>, StoreError> {
    let rows = sqlx::query("SELECT tenant_id, uid, fence FROM runs WHERE owner = ?1 AND attention")
        .bind(node.0)
        .fetch_all(&store.reader)
        .await?;
    rows.iter().map(claim).collect()
}

pub(super) async fn node_retire(store: &SqliteStore, node: NodeId) -> Result<(), StoreError> {
    let mut tx = store.write().await?;
    sqlx::query(concat!("UPDATE nodes SET dead_at = ", now_ms!(), " WHERE node_id = ?1 AND dead_at IS NULL"))
        .bind(node.0)
        .execute(&mut *tx)
        .await?;
    sqlx::query(concat!("UPDATE runs SET owner = NULL, due_at = ", now_ms!(), " WHERE owner = ?1"))
        .bind(node.0)
        .execute(&mut *tx)
        .await?;
    tx.commit().await?;
    Ok(())
}

pub(super) async fn node_reap(store: &SqliteStore, lease_ms: i64) -> Result<u64, StoreError> {
    let mut tx = store.write().await?;
    sqlx::query(concat!(
        "UPDATE nodes SET dead_at = ",
        now_ms!(),
        " WHERE dead_at IS NULL AND beat_at < ",
        now_ms!(),
        " - ?1"
    ))
    .bind(lease_ms)
    .execute(&mut *tx)
    .await?;
    let freed = sqlx::query(FREE_RUNS).execute(&mut *tx).await?.rows_affected();
    sqlx::query(concat!(
        "DELETE FROM nodes WHERE dead_at < ",
        now_ms!(),
        " - ?1 AND NOT EXISTS (SELECT 1 FROM runs WHERE owner = node_id)"
    ))
    .bind(FORGET_NODE_MS)
    .execute(&mut *tx)
    .await?;
    tx.commit().await?;
    Ok(freed)
}

pub(super) async fn run_claim(
    store: &SqliteStore,
    node: NodeId,
    slots: u32,
    per_tenant: u32,
) -> Result<Vec<Claim>, StoreError> {
    // The share of a run is how many its tenant would have running with it: the tenant with the least goes first, and
    // among equals the one whose turn it is.
    let turn = store.turn.lock().clone();
    let mut tx = store.write().await?;
    let rows = sqlx::query(concat!(
        "WITH RECURSIVE tenants (tenant_id) AS ( \
           SELECT * FROM (SELECT tenant_id FROM runs WHERE owner IS NULL AND due_at IS NOT NULL \
             ORDER BY tenant_id, priority DESC LIMIT 1) \
           UNION ALL \
           SELECT (SELECT r.tenant_id FROM runs r WHERE r.owner IS NULL AND r.due_at IS NOT NULL \
             AND r.tenant_id > t.tenant_id ORDER BY r.tenant_id, r.priority DESC LIMIT 1) \
           FROM tenants t WHERE t.tenant_id IS NOT NULL), \
         busy AS MATERIALIZED (SELECT tenant_id, (SELECT count(*) FROM runs r \
             WHERE r.tenant_id = t.tenant_id AND r.owner IS NOT NULL) AS n \
           FROM tenants t WHERE tenant_id IS NOT NULL), \
         due AS (SELECT r.tenant_id, r.uid, busy.n + row_number() OVER \
             (PARTITION BY r.tenant_id ORDER BY r.priority DESC, r.due_at, r.uid) AS share \
           FROM busy CROSS JOIN runs r ON r.tenant_id = busy.tenant_id AND r.uid IN ( \
             SELECT d.uid FROM runs d WHERE d.tenant_id = busy.tenant_id AND d.owner IS NULL AND d.due_at <= ",
        now_ms!(),
        " ORDER BY d.priority DESC, d.due_at, d.uid LIMIT ?1)) \
         SELECT tenant_id, uid FROM due \
           WHERE share <= ?2 AND EXISTS (SELECT 1 FROM nodes WHERE node_id = ?4 AND dead_at IS NULL) \
           ORDER BY share, tenant_id <= ?3, tenant_id LIMIT ?1"
    ))
    .bind(slots)
    .bind(per_tenant)
    .bind(turn)
    .bind(node.0)
    .fetch_all(&mut *tx)
    .await?;
    let mut claims = Vec::with_capacity(rows.len());
    for row in &rows {
        let taken = sqlx::query(
            "UPDATE runs SET owner = ?1, fence = fence + 1, due_at = NULL WHERE tenant_id = ?2 AND uid = ?3 \
             RETURNING tenant_id, uid, fence",
        )
        .bind(node.0)
        .bind(row.try_get::<String, _>("tenant_id")?)
        .bind(row.try_get::<uuid::Uuid, _>("uid")?)
        .fetch_one(&mut *tx)
        .await?;
        claims.push(claim(&taken)?);
    }
    tx.commit().await?;
    if let Some(last) = claims.last() {
        last.tenant.as_str().clone_into(&mut store.turn.lock());
    }
    Ok(claims)
}

fn claim(row: &SqliteRow) -> Result<Claim, StoreError> {
    let tenant: String = row.try_get("tenant_id")?;
    Ok(Claim {
        tenant: codec::named("tenant", TenantId::parse(tenant))?,
        uid: RunUid(row.try_get("uid")?),
        fence: Fence(row.try_get("fence")?),
    })
}

pub(super) async fn run_release(store: &SqliteStore, claim: &Claim, crashed: bool) -> Result<bool, StoreError> {
    let released = sqlx::query(concat!(
        "UPDATE runs SET owner = NULL, crashes = crashes + ?4, due_at = ?4 * min(60000, 250 << min(crashes, 8)) + ",
        now_ms!(),
        " WHERE tenant_id = ?1 AND uid = ?2 AND fence = ?3 AND owner IS NOT NULL"
    ))
    .bind(claim.tenant.as_str())
    .bind(claim.uid.0)
    .bind(claim.fence.0)
    .bind(i64::from(crashed))
    .execute(&store.writer)
    .await?;
    Ok(released.rows_affected() == 1)
}

pub(super) async fn run_revision(store: &SqliteStore, claim: &Claim) -> Result<Option<i64>, StoreError> {
    let revision = sqlx::query_scalar("SELECT revision FROM runs WHERE tenant_id = ?1 AND uid = ?2 AND fence = ?3")
        .bind(claim.tenant.as_str())
        .bind(claim.uid.0)
        .bind(claim.fence.0)
        .fetch_optional(&store.reader)
        .await?;
    Ok(revision)
}

pub(super) async fn run_due_in(store: &SqliteStore) -> Result<Option<i64>, StoreError> {
    let due_in = sqlx::query_scalar(concat!(
        "SELECT min(due_at) - ",
        now_ms!(),
        " FROM runs WHERE owner IS NULL AND due_at IS NOT NULL"
    ))
    .fetch_one(&store.reader)
    .await?;
    Ok(due_in)
}
