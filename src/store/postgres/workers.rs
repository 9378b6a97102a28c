//! Calls that workers fetch, their leases, and facts left for owners.

use async_trait::async_trait;
use sqlx::{PgConnection, Row};
use uuid::Uuid;

use super::reads::{blob_list, client_call_find};
use super::{PostgresStore, SteadyPostgres};
use crate::run::call::Call;
use crate::run::fetched::{Fetched, FetchedWhat};
use crate::run::ids::{CallId, CallKey, RunUid, TenantId};
use crate::run::time::Timestamp;
use crate::store::blobs::{Wanted, once_more};
use crate::store::calls::CallText;
use crate::store::codec;
use crate::store::wake::Hint;
use crate::store::workers::{Asked, Behind, Extended, LeftFact, Reserved, WorkerStore};
use crate::store::{Claim, Left, StoreError};

/// Least time between two notes that somebody asks for a tool: many workers write one row.
const SEEN_EVERY_MS: i64 = 1000;
/// What nobody asked for in so long is forgotten: longer than any call waits.
const SEEN_KEPT_MS: i64 = 7 * 24 * 3_600_000;
/// And of one tenant so many, the last ones.
const SEEN_KEPT: i64 = 1000;

#[async_trait]
impl WorkerStore for SteadyPostgres {
    async fn tools_seen(&self, tenant: &TenantId, asked: &[Asked], pause_ms: i64) -> Result<(), StoreError> {
        let store = self.now();
        self.within(&store, tools_seen(&store, tenant, asked, pause_ms)).await
    }

    async fn call_reserve(
        &self,
        tenant: &TenantId,
        by: (&str, &str),
        asked: &[Asked],
        most: u32,
        lease_ms: i64,
    ) -> Result<Vec<Reserved>, StoreError> {
        let store = self.now();
        self.within(&store, call_reserve(&store, tenant, by, asked, most, lease_ms)).await
    }

    async fn reservation_drop(
        &self,
        tenant: &TenantId,
        call: (RunUid, CallKey),
        lease: &str,
    ) -> Result<(), StoreError> {
        let store = self.now();
        self.within(&store, reservation_drop(&store, tenant, call, lease)).await?;
        self.hints.tell(Hint::Work);
        Ok(())
    }

    async fn lease_extend(
        &self,
        tenant: &TenantId,
        call: (RunUid, CallKey),
        lease: &str,
        lease_ms: i64,
    ) -> Result<Option<Extended>, StoreError> {
        let store = self.now();
        self.within(&store, lease_extend(&store, tenant, call, lease, lease_ms)).await
    }

    async fn call_fetch(&self, tenant: &TenantId, call: (RunUid, CallKey)) -> Result<Option<Call>, StoreError> {
        let store = self.now();
        self.within(&store, call_fetch(&store, tenant, call)).await
    }

    async fn client_call_find(
        &self,
        tenant: &TenantId,
        uid: RunUid,
        call_id: &CallId,
        before: u32,
    ) -> Result<Option<CallKey>, StoreError> {
        let store = self.now();
        self.within(&store, client_call_find(&store, tenant, uid, call_id, before)).await
    }

    async fn fact_leave(&self, tenant: &TenantId, uid: RunUid, fact: &LeftFact) -> Result<Left, StoreError> {
        let store = self.now();
        let left = self.within(&store, fact_leave(&store, tenant, uid, fact)).await?;
        if left == Left::Kept {
            self.hints.tell(Hint::Wish);
        }
        Ok(left)
    }

    async fn fact_withdraw(&self, tenant: &TenantId, uid: RunUid, fact: &LeftFact) -> Result<(), StoreError> {
        let store = self.now();
        self.within(&store, fact_withdraw(&store, tenant, uid, fact)).await
    }

    async fn behind_list(&self, behind: Behind) -> Result<Vec<(TenantId, RunUid, Fetched)>, StoreError> {
        let store = self.now();
        self.within(&store, behind_list(&store, behind)).await
    }
}

async fn tools_seen(
    store: &PostgresStore,
    tenant: &TenantId,
    asked: &[Asked],
    pause_ms: i64,
) -> Result<(), StoreError> {
    let seen = sqlx::query(
        "INSERT INTO worker_tools (tenant_id, worker_tool, seen_at, served_since) \
         SELECT $1, a.tool, now_ms(), now_ms() FROM (SELECT DISTINCT unnest($2::text[]) AS tool) AS a \
         WHERE NOT EXISTS (SELECT 1 FROM worker_tools w WHERE w.tenant_id = $1 AND w.worker_tool = a.tool \
           AND w.seen_at > now_ms() - $3) ORDER BY a.tool \
         ON CONFLICT (tenant_id, worker_tool) DO UPDATE SET seen_at = excluded.seen_at, \
           served_since = CASE WHEN worker_tools.seen_at < now_ms() - $4 THEN excluded.served_since \
             ELSE worker_tools.served_since END",
    )
    .bind(tenant.as_str())
    .bind(asked.iter().map(|asked| asked.tool.as_str()).collect::<Vec<_>>())
    .bind(SEEN_EVERY_MS)
    .bind(pause_ms)
    .execute(&store.pool)
    .await?;
    if seen.rows_affected() > 0 {
        sqlx::query(
            "DELETE FROM worker_tools WHERE tenant_id = $1 AND (seen_at < now_ms() - $2 OR worker_tool IN \
             (SELECT worker_tool FROM worker_tools WHERE tenant_id = $1 ORDER BY seen_at DESC OFFSET $3))",
        )
        .bind(tenant.as_str())
        .bind(SEEN_KEPT_MS)
        .bind(SEEN_KEPT)
        .execute(&store.pool)
        .await?;
    }
    Ok(())
}

/// One statement. Rows that others are about to take are passed by, so no claim waits for another.
async fn call_reserve(
    store: &PostgresStore,
    tenant: &TenantId,
    (worker, lease): (&str, &str),
    asked: &[Asked],
    most: u32,
    lease_ms: i64,
) -> Result<Vec<Reserved>, StoreError> {
    let rows = sqlx::query(
        "WITH picked AS MATERIALIZED (SELECT p.* FROM unnest($2::text[], $3::bigint[]) AS a (tool, most) \
           CROSS JOIN LATERAL (SELECT count(*) AS has FROM calls c WHERE c.tenant_id = $1 AND c.worker_tool = a.tool \
             AND c.lease IS NOT NULL AND c.queued_at IS NULL AND c.worker_id = $4) AS b \
           CROSS JOIN LATERAL (SELECT c.run_uid, c.turn, c.pos FROM calls c \
             WHERE c.tenant_id = $1 AND c.worker_tool = a.tool AND c.queued_at IS NOT NULL \
               AND (c.lease_until IS NULL OR c.lease_until < now_ms()) \
             ORDER BY c.queued_at LIMIT GREATEST(a.most - b.has, 0) FOR UPDATE SKIP LOCKED) AS p LIMIT $6) \
         UPDATE calls c SET lease = $5, lease_until = now_ms() + $7, worker_id = $4 FROM picked p \
         WHERE c.tenant_id = $1 AND c.run_uid = p.run_uid AND c.turn = p.turn AND c.pos = p.pos \
         RETURNING c.run_uid, c.turn, c.pos, c.lease_until",
    )
    .bind(tenant.as_str())
    .bind(asked.iter().map(|asked| asked.tool.as_str()).collect::<Vec<_>>())
    .bind(asked.iter().map(|asked| i64::from(asked.most)).collect::<Vec<_>>())
    .bind(worker)
    .bind(lease)
    .bind(i64::from(most))
    .bind(lease_ms)
    .fetch_all(&store.pool)
    .await?;
    let reserved = rows.iter().map(|row| {
        let key = codec::call_key(row.try_get("turn")?, row.try_get("pos")?)?;
        let until = Timestamp::from_millis(row.try_get("lease_until")?);
        Ok(Reserved { uid: RunUid(row.try_get("run_uid")?), key, until })
    });
    reserved.collect()
}

async fn reservation_drop(
    store: &PostgresStore,
    tenant: &TenantId,
    (uid, key): (RunUid, CallKey),
    lease: &str,
) -> Result<(), StoreError> {
    sqlx::query(
        "UPDATE calls SET lease = NULL, lease_until = NULL, worker_id = NULL \
         WHERE tenant_id = $1 AND run_uid = $2 AND turn = $3 AND pos = $4 AND lease = $5 AND queued_at IS NOT NULL",
    )
    .bind(tenant.as_str())
    .bind(uid.0)
    .bind(i64::from(key.turn))
    .bind(i64::from(key.position))
    .bind(lease)
    .execute(&store.pool)
    .await?;
    Ok(())
}

async fn lease_extend(
    store: &PostgresStore,
    tenant: &TenantId,
    (uid, key): (RunUid, CallKey),
    lease: &str,
    lease_ms: i64,
) -> Result<Option<Extended>, StoreError> {
    let row: Option<(i64, bool)> = sqlx::query_as(
        "UPDATE calls c SET lease_until = now_ms() + $6 FROM runs r \
         WHERE c.tenant_id = $1 AND c.run_uid = $2 AND c.turn = $3 AND c.pos = $4 AND c.lease = $5 \
           AND c.queued_at IS NULL AND c.lease_until > now_ms() AND r.tenant_id = $1 AND r.uid = $2 \
         RETURNING c.lease_until, r.cancel_requested_by IS NOT NULL",
    )
    .bind(tenant.as_str())
    .bind(uid.0)
    .bind(i64::from(key.turn))
    .bind(i64::from(key.position))
    .bind(lease)
    .bind(lease_ms)
    .fetch_optional(&store.pool)
    .await?;
    Ok(row.map(|(until, cancelled)| Extended { until: Timestamp::from_millis(until), cancelled }))
}

async fn call_fetch(
    store: &PostgresStore,
    tenant: &TenantId,
    (uid, key): (RunUid, CallKey),
) -> Result<Option<Call>, StoreError> {
    once_more(|| async move {
        let row: Option<(String, String, Option<String>, Option<String>)> = sqlx::query_as(
            "SELECT body::text, input::text, output::text, blobs::text FROM calls \
             WHERE tenant_id = $1 AND run_uid = $2 AND turn = $3 AND pos = $4 AND stage <> 'rejected'",
        )
        .bind(tenant.as_str())
        .bind(uid.0)
        .bind(i64::from(key.turn))
        .bind(i64::from(key.position))
        .fetch_optional(&store.pool)
        .await?;
        let Some((body, input, output, blobs)) = row else { return Ok(None) };
        let (text, mut wanted) = (CallText::read(body, input, output, blobs.as_deref())?, Wanted::default());
        text.want(uid, &mut wanted);
        let bodies = blob_list(&store.pool, tenant, &wanted).await?;
        text.decode(uid, &bodies).map(Some)
    })
    .await
}

async fn fact_leave(
    store: &PostgresStore,
    tenant: &TenantId,
    uid: RunUid,
    fact: &LeftFact,
) -> Result<Left, StoreError> {
    let Some(key) = fact.key() else { return Ok(Left::Decided) };
    let mut tx = store.pool.begin().await?;
    // The run's row is locked first, as every commit does: an owner that lets go waits, or has let go.
    let owned = sqlx::query("UPDATE runs SET attention = true WHERE tenant_id = $1 AND uid = $2 AND owner IS NOT NULL")
        .bind(tenant.as_str())
        .bind(uid.0)
        .execute(&mut *tx)
        .await?;
    if owned.rows_affected() == 0 {
        return Ok(Left::NotOwned);
    }
    sqlx::query(
        "INSERT INTO fetched (tenant_id, run_uid, turn, pos, kind, body) VALUES ($1, $2, $3, $4, $5, $6::json) \
         ON CONFLICT (tenant_id, run_uid, turn, pos, kind) DO UPDATE SET body = excluded.body \
         WHERE fetched.kind NOT IN ('answered', 'client')",
    )
    .bind(tenant.as_str())
    .bind(uid.0)
    .bind(i64::from(key.turn))
    .bind(i64::from(key.position))
    .bind(fact.kind())
    .bind(codec::encode("fetched call", fact)?)
    .execute(&mut *tx)
    .await?;
    tx.commit().await?;
    Ok(Left::Kept)
}

async fn fact_withdraw(
    store: &PostgresStore,
    tenant: &TenantId,
    uid: RunUid,
    fact: &LeftFact,
) -> Result<(), StoreError> {
    let Some(key) = fact.key() else { return Ok(()) };
    sqlx::query(
        "DELETE FROM fetched WHERE tenant_id = $1 AND run_uid = $2 AND turn = $3 AND pos = $4 AND kind = $5 \
         AND body::text = $6",
    )
    .bind(tenant.as_str())
    .bind(uid.0)
    .bind(i64::from(key.turn))
    .bind(i64::from(key.position))
    .bind(fact.kind())
    .bind(codec::encode("fetched call", fact)?)
    .execute(&store.pool)
    .await?;
    Ok(())
}

/// What was left, for the owner that reads its wishes. It is read once: what a call said before it was put back must not
/// come again.
pub(super) async fn fetched_take(tx: &mut PgConnection, claim: &Claim) -> Result<Vec<LeftFact>, StoreError> {
    let rows: Vec<String> = sqlx::query_scalar(
        "WITH taken AS (DELETE FROM fetched WHERE tenant_id = $1 AND run_uid = $2 RETURNING turn, pos, kind, body) \
         SELECT body::text FROM taken ORDER BY turn, pos, kind",
    )
    .bind(claim.tenant.as_str())
    .bind(claim.uid.0)
    .fetch_all(tx)
    .await?;
    rows.iter().map(|body| codec::decode("fetched call", body)).collect()
}

/// A hand-out without an end is none that anybody keeps: its reservation was gone before it was stored.
async fn behind_list(store: &PostgresStore, behind: Behind) -> Result<Vec<(TenantId, RunUid, Fetched)>, StoreError> {
    let rows = sqlx::query(
        "WITH behind AS (SELECT c.tenant_id, c.run_uid, c.turn, c.pos, c.lease, false AS is_served, \
             COALESCE(c.lease_until, 0) AS since FROM calls c \
           WHERE c.lease IS NOT NULL AND c.queued_at IS NULL AND COALESCE(c.lease_until, 0) < now_ms() \
             AND NOT EXISTS (SELECT 1 FROM fetched f WHERE f.tenant_id = c.tenant_id AND f.run_uid = c.run_uid \
               AND f.turn = c.turn AND f.pos = c.pos AND f.kind = 'answered') \
           UNION ALL \
           SELECT q.tenant_id, q.run_uid, q.turn, q.pos, NULL, q.is_full OR s.is_served, q.queued_at \
           FROM (SELECT c.tenant_id, c.run_uid, c.turn, c.pos, c.worker_tool, c.queued_at, c.lease_until, c.outwaits, \
               row_number() OVER (PARTITION BY c.tenant_id, c.worker_tool ORDER BY c.queued_at) > $2 AS is_full \
             FROM calls c WHERE c.queued_at IS NOT NULL) AS q \
           LEFT JOIN worker_tools w ON w.tenant_id = q.tenant_id AND w.worker_tool = q.worker_tool \
           CROSS JOIN LATERAL (SELECT COALESCE(w.seen_at > now_ms() - $1, false) OR EXISTS (SELECT 1 FROM calls o \
             WHERE o.tenant_id = q.tenant_id AND o.worker_tool = q.worker_tool AND o.lease IS NOT NULL \
               AND o.queued_at IS NULL AND o.lease_until > now_ms()) AS is_served) AS s \
           WHERE (q.is_full OR q.queued_at < now_ms() - $1) AND (q.lease_until IS NULL OR q.lease_until < now_ms()) \
             AND COALESCE(q.outwaits, 0) & CASE WHEN q.is_full OR s.is_served THEN 2 ELSE 1 END = 0 \
             AND (q.is_full OR COALESCE(q.outwaits, 0) & 1 = 0 OR COALESCE(w.served_since, 0) < now_ms() - $1)) \
         SELECT tenant_id, run_uid, turn, pos, lease, is_served FROM (SELECT *, row_number() OVER \
           (PARTITION BY tenant_id ORDER BY lease IS NULL, since, run_uid, turn, pos) AS place FROM behind) AS b \
         ORDER BY place, since LIMIT $3",
    )
    .bind(behind.queue_wait_ms)
    .bind(i64::from(behind.queue_max))
    .bind(i64::from(behind.limit))
    .fetch_all(&store.pool)
    .await?;
    let found = rows.iter().map(|row| {
        let (tenant, uid): (String, Uuid) = (row.try_get("tenant_id")?, row.try_get("run_uid")?);
        let key = codec::call_key(row.try_get("turn")?, row.try_get("pos")?)?;
        let what = FetchedWhat::behind(row.try_get("lease")?, row.try_get("is_served")?);
        Ok((codec::named("tenant", TenantId::parse(tenant))?, RunUid(uid), Fetched { key, what }))
    });
    found.collect()
}
