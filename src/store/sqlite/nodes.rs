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
    // The share of a run is how many its tenant would have running with it: the tenant with the least goes first.
    let rows = sqlx::query(concat!(
        "WITH busy AS (SELECT tenant_id, count(*) AS n FROM runs WHERE owner IS NOT NULL GROUP BY tenant_id), \
         due AS (SELECT tenant_id, uid, priority, due_at, \
           row_number() OVER (PARTITION BY tenant_id ORDER BY priority DESC, due_at, uid) AS nth \
           FROM runs WHERE owner IS NULL AND due_at <= ",
        now_ms!(),
        "), \
         picked AS (SELECT due.tenant_id, due.uid FROM due LEFT JOIN busy ON busy.tenant_id = due.tenant_id \
           WHERE COALESCE(busy.n, 0) + due.nth <= ?3 \
           ORDER BY COALESCE(busy.n, 0) + due.nth, due.priority DESC, due.due_at, due.uid LIMIT ?2) \
         UPDATE runs SET owner = ?1, fence = fence + 1, due_at = NULL \
         WHERE (tenant_id, uid) IN (SELECT tenant_id, uid FROM picked) \
           AND EXISTS (SELECT 1 FROM nodes WHERE node_id = ?1 AND dead_at IS NULL) \
         RETURNING tenant_id, uid, fence"
    ))
    .bind(node.0)
    .bind(slots)
    .bind(per_tenant)
    .fetch_all(&store.writer)
    .await?;
    rows.iter().map(claim).collect()
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
