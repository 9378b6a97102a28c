//! Nodes, leases and claims, all by the database's clock.

use std::time::Duration;

use sqlx::Row;
use sqlx::postgres::PgRow;
use tokio::time::sleep;

use super::PostgresStore;
use crate::run::ids::{Fence, NodeId, RunUid, TenantId};
use crate::store::{Beat, Claim, FORGET_NODE_MS, StoreError, codec};

/// The advisory lock of claimers: its number means nothing.
const CLAIM_LOCK: i64 = 0x0c1a_1a1a;

/// Waits between tries to become the claimer.
const TURN_WAITS: [Duration; 3] = [Duration::from_millis(5), Duration::from_millis(20), Duration::from_millis(60)];

pub(super) async fn ping(store: &PostgresStore) -> Result<(), StoreError> {
    sqlx::query("SELECT 1").execute(&store.pool).await?;
    Ok(())
}

pub(super) async fn node_register(store: &PostgresStore, node: NodeId) -> Result<(), StoreError> {
    sqlx::query(
        "INSERT INTO nodes (node_id, started_at, beat_at) VALUES ($1, now_ms(), now_ms()) \
         ON CONFLICT (node_id) DO UPDATE SET beat_at = excluded.beat_at, dead_at = NULL",
    )
    .bind(node.0)
    .execute(&store.pool)
    .await?;
    Ok(())
}

pub(super) async fn node_beat(store: &PostgresStore, node: NodeId) -> Result<Beat, StoreError> {
    let beaten = sqlx::query("UPDATE nodes SET beat_at = now_ms() WHERE node_id = $1 AND dead_at IS NULL")
        .bind(node.0)
        .execute(&store.beats)
        .await?;
    if beaten.rows_affected() == 0 {
        return Ok(Beat::default());
    }
    let rows = sqlx::query("SELECT tenant_id, uid, fence, attention FROM runs WHERE owner = $1")
        .bind(node.0)
        .fetch_all(&store.beats)
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

pub(super) async fn wish_list(store: &PostgresStore, node: NodeId) -> Result<Vec<Claim>, StoreError> {
    let rows = sqlx::query("SELECT tenant_id, uid, fence FROM runs WHERE owner = $1 AND attention")
        .bind(node.0)
        .fetch_all(&store.beats)
        .await?;
    rows.iter().map(claim).collect()
}

pub(super) async fn node_retire(store: &PostgresStore, node: NodeId) -> Result<(), StoreError> {
    let mut tx = store.pool.begin().await?;
    sqlx::query("UPDATE nodes SET dead_at = now_ms() WHERE node_id = $1 AND dead_at IS NULL")
        .bind(node.0)
        .execute(&mut *tx)
        .await?;
    // Locked in the order of the journal's batches, which may be under way.
    sqlx::query(
        "UPDATE runs SET owner = NULL, due_at = now_ms() WHERE (tenant_id, uid) IN ( \
           SELECT tenant_id, uid FROM runs WHERE owner = $1 ORDER BY tenant_id, uid FOR NO KEY UPDATE)",
    )
    .bind(node.0)
    .execute(&mut *tx)
    .await?;
    tx.commit().await?;
    Ok(())
}

pub(super) async fn node_reap(store: &PostgresStore, lease_ms: i64) -> Result<u64, StoreError> {
    let mut tx = store.pool.begin().await?;
    sqlx::query("UPDATE nodes SET dead_at = now_ms() WHERE dead_at IS NULL AND beat_at < now_ms() - $1")
        .bind(lease_ms)
        .execute(&mut *tx)
        .await?;
    // Of every dead node, not only of those that died just now: a claim that was under way when its node died commits
    // after it. Rows that somebody is writing now are left to the next time; waiting for them could make a cycle.
    let freed = sqlx::query(
        "UPDATE runs SET owner = NULL, crashes = crashes + 1, due_at = now_ms() WHERE (tenant_id, uid) IN ( \
           SELECT r.tenant_id, r.uid FROM runs r JOIN nodes n ON n.node_id = r.owner \
           WHERE n.dead_at IS NOT NULL FOR NO KEY UPDATE OF r SKIP LOCKED)",
    )
    .execute(&mut *tx)
    .await?
    .rows_affected();
    sqlx::query(
        "DELETE FROM nodes n WHERE n.dead_at < now_ms() - $1 \
           AND NOT EXISTS (SELECT 1 FROM runs r WHERE r.owner = n.node_id)",
    )
    .bind(FORGET_NODE_MS)
    .execute(&mut *tx)
    .await?;
    tx.commit().await?;
    Ok(freed)
}

pub(super) async fn run_claim(
    store: &PostgresStore,
    node: NodeId,
    slots: u32,
    per_tenant: u32,
) -> Result<Vec<Claim>, StoreError> {
    // All nodes hear at once that something is due, and one of them may claim: the others wait a moment for their turn.
    for wait in TURN_WAITS {
        if let Some(claims) = claim_alone(store, node, slots, per_tenant).await? {
            return Ok(claims);
        }
        sleep(wait).await;
    }
    Ok(claim_alone(store, node, slots, per_tenant).await?.unwrap_or_default())
}

/// One claimer at a time keeps the limit of a tenant exact. The lock is taken by a statement of its own: what the next
/// one reads is then later than what the claimer before has committed. `None`: somebody else has it.
async fn claim_alone(
    store: &PostgresStore,
    node: NodeId,
    slots: u32,
    per_tenant: u32,
) -> Result<Option<Vec<Claim>>, StoreError> {
    let mut tx = store.pool.begin().await?;
    let alone: bool =
        sqlx::query_scalar("SELECT pg_try_advisory_xact_lock($1)").bind(CLAIM_LOCK).fetch_one(&mut *tx).await?;
    if !alone {
        return Ok(None);
    }
    // Tenants with due work are found by skipping along the index of due runs, a step a tenant; its order is asked for
    // in full, so that no other index will do while there are no statistics. The share of a run is
    // how many its tenant would have running with it: the tenant with the least goes first, and among equals the one
    // whose turn it is, so that a backlog that is older than everybody's passes nobody. Only what is picked is locked,
    // run by run by its key; what somebody decides at this moment is left out.
    let turn = store.turn.lock().clone();
    let rows = sqlx::query(
        "WITH RECURSIVE tenants AS ( \
           (SELECT tenant_id FROM runs WHERE owner IS NULL AND due_at IS NOT NULL \
             ORDER BY tenant_id, priority DESC LIMIT 1) \
           UNION ALL \
           SELECT (SELECT r.tenant_id FROM runs r WHERE r.owner IS NULL AND r.due_at IS NOT NULL \
             AND r.tenant_id > t.tenant_id ORDER BY r.tenant_id, r.priority DESC LIMIT 1) \
           FROM tenants t WHERE t.tenant_id IS NOT NULL), \
         due AS (SELECT t.tenant_id, d.uid, busy.n + d.nth AS share FROM tenants t \
           CROSS JOIN LATERAL (SELECT count(*) AS n FROM runs r \
             WHERE r.tenant_id = t.tenant_id AND r.owner IS NOT NULL) AS busy \
           CROSS JOIN LATERAL (SELECT c.uid, row_number() OVER () AS nth FROM ( \
             SELECT r.uid FROM runs r \
             WHERE r.tenant_id = t.tenant_id AND r.owner IS NULL AND r.due_at <= now_ms() \
             ORDER BY r.priority DESC, r.due_at, r.uid LIMIT LEAST($2, GREATEST($3 - busy.n, 0))) AS c) AS d), \
         picked AS (SELECT tenant_id, uid, row_number() OVER (ORDER BY share, tenant_id <= $4, tenant_id) AS place \
           FROM due ORDER BY place LIMIT $2), \
         held AS (SELECT picked.place, l.tenant_id, l.uid FROM picked CROSS JOIN LATERAL ( \
           SELECT r.tenant_id, r.uid FROM runs r WHERE r.tenant_id = picked.tenant_id AND r.uid = picked.uid \
             AND r.owner IS NULL AND r.due_at IS NOT NULL FOR NO KEY UPDATE SKIP LOCKED) AS l) \
         UPDATE runs r SET owner = $1, fence = r.fence + 1, due_at = NULL FROM held \
         WHERE r.tenant_id = held.tenant_id AND r.uid = held.uid \
           AND EXISTS (SELECT 1 FROM nodes WHERE node_id = $1 AND dead_at IS NULL) \
         RETURNING r.tenant_id, r.uid, r.fence, held.place",
    )
    .bind(node.0)
    .bind(i64::from(slots))
    .bind(i64::from(per_tenant))
    .bind(turn)
    .fetch_all(&mut *tx)
    .await?;
    tx.commit().await?;
    let mut claims = Vec::with_capacity(rows.len());
    for row in &rows {
        let place: i64 = row.try_get("place")?;
        claims.push((place, claim(row)?));
    }
    claims.sort_unstable_by_key(|(place, _)| *place);
    if let Some((_, last)) = claims.last() {
        last.tenant.as_str().clone_into(&mut store.turn.lock());
    }
    Ok(Some(claims.into_iter().map(|(_, claim)| claim).collect()))
}

fn claim(row: &PgRow) -> Result<Claim, StoreError> {
    let tenant: String = row.try_get("tenant_id")?;
    Ok(Claim {
        tenant: codec::named("tenant", TenantId::parse(tenant))?,
        uid: RunUid(row.try_get("uid")?),
        fence: Fence(row.try_get("fence")?),
    })
}

pub(super) async fn run_release(store: &PostgresStore, claim: &Claim, crashed: bool) -> Result<bool, StoreError> {
    let released = sqlx::query(
        "UPDATE runs SET owner = NULL, crashes = crashes + $4, \
           due_at = now_ms() + $4 * LEAST(60000, 250 * (1 << LEAST(crashes, 8)::int)) \
         WHERE tenant_id = $1 AND uid = $2 AND fence = $3 AND owner IS NOT NULL",
    )
    .bind(claim.tenant.as_str())
    .bind(claim.uid.0)
    .bind(claim.fence.0)
    .bind(i64::from(crashed))
    .execute(&store.pool)
    .await?;
    Ok(released.rows_affected() == 1)
}

pub(super) async fn run_revision(store: &PostgresStore, claim: &Claim) -> Result<Option<i64>, StoreError> {
    let revision = sqlx::query_scalar("SELECT revision FROM runs WHERE tenant_id = $1 AND uid = $2 AND fence = $3")
        .bind(claim.tenant.as_str())
        .bind(claim.uid.0)
        .bind(claim.fence.0)
        .fetch_optional(&store.pool)
        .await?;
    Ok(revision)
}

pub(super) async fn run_due_in(store: &PostgresStore) -> Result<Option<i64>, StoreError> {
    let due_in =
        sqlx::query_scalar("SELECT min(due_at) - now_ms() FROM runs WHERE owner IS NULL AND due_at IS NOT NULL")
            .fetch_one(&store.pool)
            .await?;
    Ok(due_in)
}
