//! Calls that workers fetch, their leases, and facts left for owners.

use async_trait::async_trait;
use sqlx::{Row, Sqlite, SqliteConnection, Transaction};
use uuid::Uuid;

use super::reads::{blob_list, client_call_find};
use super::{SqliteStore, now_ms};
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
impl WorkerStore for SqliteStore {
    async fn tools_seen(&self, tenant: &TenantId, asked: &[Asked], pause_ms: i64) -> Result<(), StoreError> {
        tools_seen(self, tenant, asked, pause_ms).await
    }

    async fn call_reserve(
        &self,
        tenant: &TenantId,
        by: (&str, &str),
        asked: &[Asked],
        most: u32,
        lease_ms: i64,
    ) -> Result<Vec<Reserved>, StoreError> {
        call_reserve(self, tenant, by, asked, most, lease_ms).await
    }

    async fn reservation_drop(
        &self,
        tenant: &TenantId,
        call: (RunUid, CallKey),
        lease: &str,
    ) -> Result<(), StoreError> {
        reservation_drop(self, tenant, call, lease).await?;
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
        lease_extend(self, tenant, call, lease, lease_ms).await
    }

    async fn call_fetch(&self, tenant: &TenantId, call: (RunUid, CallKey)) -> Result<Option<Call>, StoreError> {
        call_fetch(self, tenant, call).await
    }

    async fn client_call_find(
        &self,
        tenant: &TenantId,
        uid: RunUid,
        call_id: &CallId,
        before: u32,
    ) -> Result<Option<CallKey>, StoreError> {
        client_call_find(self, tenant, uid, call_id, before).await
    }

    async fn fact_leave(&self, tenant: &TenantId, uid: RunUid, fact: &LeftFact) -> Result<Left, StoreError> {
        fact_leave(self, tenant, uid, fact).await
    }

    async fn fact_withdraw(&self, tenant: &TenantId, uid: RunUid, fact: &LeftFact) -> Result<(), StoreError> {
        fact_withdraw(self, tenant, uid, fact).await
    }

    async fn behind_list(&self, behind: Behind) -> Result<Vec<(TenantId, RunUid, Fetched)>, StoreError> {
        behind_list(self, behind).await
    }
}

async fn tools_seen(store: &SqliteStore, tenant: &TenantId, asked: &[Asked], pause_ms: i64) -> Result<(), StoreError> {
    let mut is_new = false;
    for asked in asked {
        let known: Option<i64> = sqlx::query_scalar(concat!(
            "SELECT 1 FROM worker_tools WHERE tenant_id = ?1 AND worker_tool = ?2 AND seen_at > ",
            now_ms!(),
            " - ?3"
        ))
        .bind(tenant.as_str())
        .bind(&asked.tool)
        .bind(SEEN_EVERY_MS)
        .fetch_optional(&store.reader)
        .await?;
        if known.is_some() {
            continue;
        }
        sqlx::query(concat!(
            "INSERT INTO worker_tools (tenant_id, worker_tool, seen_at, served_since) SELECT ?1, ?2, now, now FROM (SELECT ",
            now_ms!(),
            " AS now) WHERE true ON CONFLICT (tenant_id, worker_tool) DO UPDATE SET seen_at = excluded.seen_at, \
               served_since = CASE WHEN seen_at < excluded.seen_at - ?3 THEN excluded.served_since ELSE served_since END"
        ))
        .bind(tenant.as_str())
        .bind(&asked.tool)
        .bind(pause_ms)
        .execute(&store.writer)
        .await?;
        is_new = true;
    }
    if is_new {
        sqlx::query(concat!(
            "DELETE FROM worker_tools WHERE tenant_id = ?1 AND (seen_at < ",
            now_ms!(),
            " - ?2 OR worker_tool IN (SELECT worker_tool FROM worker_tools WHERE tenant_id = ?1 ORDER BY seen_at DESC \
             LIMIT -1 OFFSET ?3))"
        ))
        .bind(tenant.as_str())
        .bind(SEEN_KEPT_MS)
        .bind(SEEN_KEPT)
        .execute(&store.writer)
        .await?;
    }
    Ok(())
}

/// Looks first without the writer: a worker that waits costs those who write nothing.
async fn call_reserve(
    store: &SqliteStore,
    tenant: &TenantId,
    by: (&str, &str),
    asked: &[Asked],
    most: u32,
    lease_ms: i64,
) -> Result<Vec<Reserved>, StoreError> {
    let tools = asked.iter().map(|asked| asked.tool.as_str()).collect::<Vec<_>>();
    let waiting: Option<i64> = sqlx::query_scalar(concat!(
        "SELECT 1 FROM calls WHERE tenant_id = ?1 AND worker_tool IN (SELECT value FROM json_each(?2)) \
           AND queued_at IS NOT NULL AND (lease_until IS NULL OR lease_until < ",
        now_ms!(),
        ") LIMIT 1"
    ))
    .bind(tenant.as_str())
    .bind(codec::json_text("tools", &tools)?)
    .fetch_optional(&store.reader)
    .await?;
    if waiting.is_none() {
        return Ok(Vec::new());
    }
    let mut tx = store.write().await?;
    let mut reserved = Vec::new();
    for asked in asked {
        let left = i64::from(most).saturating_sub(i64::try_from(reserved.len()).unwrap_or(i64::MAX));
        reserved.extend(reserve_of(&mut tx, tenant, by, asked, left, lease_ms).await?);
    }
    tx.commit().await?;
    Ok(reserved)
}

async fn reserve_of(
    tx: &mut Transaction<'static, Sqlite>,
    tenant: &TenantId,
    (worker, lease): (&str, &str),
    asked: &Asked,
    left: i64,
    lease_ms: i64,
) -> Result<Vec<Reserved>, StoreError> {
    let rows = sqlx::query(concat!(
        "UPDATE calls SET lease = ?4, lease_until = ?6 + ",
        now_ms!(),
        ", worker_id = ?3 WHERE rowid IN (SELECT rowid FROM calls \
           WHERE tenant_id = ?1 AND worker_tool = ?2 AND queued_at IS NOT NULL AND (lease_until IS NULL OR lease_until < ",
        now_ms!(),
        ") ORDER BY queued_at LIMIT max(0, min(?7, ?5 - (SELECT count(*) FROM calls WHERE tenant_id = ?1 \
             AND worker_tool = ?2 AND lease IS NOT NULL AND queued_at IS NULL AND worker_id = ?3)))) \
         RETURNING run_uid, turn, pos, lease_until"
    ))
    .bind(tenant.as_str())
    .bind(&asked.tool)
    .bind(worker)
    .bind(lease)
    .bind(i64::from(asked.most))
    .bind(lease_ms)
    .bind(left)
    .fetch_all(&mut **tx)
    .await?;
    let reserved = rows.iter().map(|row| {
        let key = codec::call_key(row.try_get("turn")?, row.try_get("pos")?)?;
        let until = Timestamp::from_millis(row.try_get("lease_until")?);
        Ok(Reserved { uid: RunUid(row.try_get("run_uid")?), key, until })
    });
    reserved.collect()
}

async fn reservation_drop(
    store: &SqliteStore,
    tenant: &TenantId,
    (uid, key): (RunUid, CallKey),
    lease: &str,
) -> Result<(), StoreError> {
    sqlx::query(
        "UPDATE calls SET lease = NULL, lease_until = NULL, worker_id = NULL \
         WHERE tenant_id = ?1 AND run_uid = ?2 AND turn = ?3 AND pos = ?4 AND lease = ?5 AND queued_at IS NOT NULL",
    )
    .bind(tenant.as_str())
    .bind(uid.0)
    .bind(i64::from(key.turn))
    .bind(i64::from(key.position))
    .bind(lease)
    .execute(&store.writer)
    .await?;
    Ok(())
}

async fn lease_extend(
    store: &SqliteStore,
    tenant: &TenantId,
    (uid, key): (RunUid, CallKey),
    lease: &str,
    lease_ms: i64,
) -> Result<Option<Extended>, StoreError> {
    let row: Option<(i64, bool)> = sqlx::query_as(concat!(
        "UPDATE calls SET lease_until = ?6 + ",
        now_ms!(),
        " WHERE tenant_id = ?1 AND run_uid = ?2 AND turn = ?3 AND pos = ?4 AND lease = ?5 AND queued_at IS NULL \
           AND lease_until > ",
        now_ms!(),
        " RETURNING lease_until, EXISTS (SELECT 1 FROM runs WHERE tenant_id = ?1 AND uid = ?2 \
           AND cancel_requested_by IS NOT NULL)"
    ))
    .bind(tenant.as_str())
    .bind(uid.0)
    .bind(i64::from(key.turn))
    .bind(i64::from(key.position))
    .bind(lease)
    .bind(lease_ms)
    .fetch_optional(&store.writer)
    .await?;
    Ok(row.map(|(until, cancelled)| Extended { until: Timestamp::from_millis(until), cancelled }))
}

async fn call_fetch(
    store: &SqliteStore,
    tenant: &TenantId,
    (uid, key): (RunUid, CallKey),
) -> Result<Option<Call>, StoreError> {
    once_more(|| async move {
        let row: Option<(String, String, Option<String>, Option<String>)> = sqlx::query_as(
            "SELECT body, input, output, blobs FROM calls \
             WHERE tenant_id = ?1 AND run_uid = ?2 AND turn = ?3 AND pos = ?4 AND stage <> 'rejected'",
        )
        .bind(tenant.as_str())
        .bind(uid.0)
        .bind(i64::from(key.turn))
        .bind(i64::from(key.position))
        .fetch_optional(&store.reader)
        .await?;
        let Some((body, input, output, blobs)) = row else { return Ok(None) };
        let (text, mut wanted) = (CallText::read(body, input, output, blobs.as_deref())?, Wanted::default());
        text.want(uid, &mut wanted);
        let bodies = blob_list(&store.reader, tenant, &wanted).await?;
        text.decode(uid, &bodies).map(Some)
    })
    .await
}

async fn fact_leave(store: &SqliteStore, tenant: &TenantId, uid: RunUid, fact: &LeftFact) -> Result<Left, StoreError> {
    let Some(key) = fact.key() else { return Ok(Left::Decided) };
    let mut tx = store.write().await?;
    let owned = sqlx::query("UPDATE runs SET attention = true WHERE tenant_id = ?1 AND uid = ?2 AND owner IS NOT NULL")
        .bind(tenant.as_str())
        .bind(uid.0)
        .execute(&mut *tx)
        .await?;
    if owned.rows_affected() == 0 {
        return Ok(Left::NotOwned);
    }
    sqlx::query(
        "INSERT INTO fetched (tenant_id, run_uid, turn, pos, kind, body) VALUES (?1, ?2, ?3, ?4, ?5, ?6) \
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

async fn fact_withdraw(store: &SqliteStore, tenant: &TenantId, uid: RunUid, fact: &LeftFact) -> Result<(), StoreError> {
    let Some(key) = fact.key() else { return Ok(()) };
    sqlx::query(
        "DELETE FROM fetched WHERE tenant_id = ?1 AND run_uid = ?2 AND turn = ?3 AND pos = ?4 AND kind = ?5 \
         AND body = ?6",
    )
    .bind(tenant.as_str())
    .bind(uid.0)
    .bind(i64::from(key.turn))
    .bind(i64::from(key.position))
    .bind(fact.kind())
    .bind(codec::encode("fetched call", fact)?)
    .execute(&store.writer)
    .await?;
    Ok(())
}

/// What was left, for the owner that reads its wishes. It is read once: what a call said before it was put back must not
/// come again.
pub(super) async fn fetched_take(tx: &mut SqliteConnection, claim: &Claim) -> Result<Vec<LeftFact>, StoreError> {
    let rows: Vec<String> =
        sqlx::query_scalar("SELECT body FROM fetched WHERE tenant_id = ?1 AND run_uid = ?2 ORDER BY turn, pos, kind")
            .bind(claim.tenant.as_str())
            .bind(claim.uid.0)
            .fetch_all(&mut *tx)
            .await?;
    if !rows.is_empty() {
        sqlx::query("DELETE FROM fetched WHERE tenant_id = ?1 AND run_uid = ?2")
            .bind(claim.tenant.as_str())
            .bind(claim.uid.0)
            .execute(&mut *tx)
            .await?;
    }
    rows.iter().map(|body| codec::decode("fetched call", body)).collect()
}

/// A hand-out without an end is none that anybody keeps: its reservation was gone before it was stored.
async fn behind_list(store: &SqliteStore, behind: Behind) -> Result<Vec<(TenantId, RunUid, Fetched)>, StoreError> {
    let rows = sqlx::query(concat!(
        "WITH clock AS (SELECT ",
        now_ms!(),
        " AS now), behind AS (SELECT c.tenant_id, c.run_uid, c.turn, c.pos, c.lease, false AS is_served, \
             COALESCE(c.lease_until, 0) AS since FROM calls c, clock \
           WHERE c.lease IS NOT NULL AND c.queued_at IS NULL AND COALESCE(c.lease_until, 0) < clock.now \
             AND NOT EXISTS (SELECT 1 FROM fetched f WHERE f.tenant_id = c.tenant_id AND f.run_uid = c.run_uid \
               AND f.turn = c.turn AND f.pos = c.pos AND f.kind = 'answered') \
           UNION ALL \
           SELECT s.tenant_id, s.run_uid, s.turn, s.pos, NULL, s.is_full OR s.is_served, s.queued_at \
           FROM (SELECT q.*, COALESCE(w.served_since, 0) AS served_since, \
               COALESCE(w.seen_at > clock.now - ?1, false) OR EXISTS (SELECT 1 FROM calls o \
                 WHERE o.tenant_id = q.tenant_id AND o.worker_tool = q.worker_tool AND o.lease IS NOT NULL \
                   AND o.queued_at IS NULL AND o.lease_until > clock.now) AS is_served \
             FROM (SELECT c.tenant_id, c.run_uid, c.turn, c.pos, c.worker_tool, c.queued_at, c.lease_until, \
                 COALESCE(c.outwaits, 0) AS outwaits, \
                 row_number() OVER (PARTITION BY c.tenant_id, c.worker_tool ORDER BY c.queued_at) > ?2 AS is_full \
               FROM calls c WHERE c.queued_at IS NOT NULL) AS q, clock \
             LEFT JOIN worker_tools w ON w.tenant_id = q.tenant_id AND w.worker_tool = q.worker_tool \
             WHERE (q.is_full OR q.queued_at < clock.now - ?1) \
               AND (q.lease_until IS NULL OR q.lease_until < clock.now)) AS s, clock \
           WHERE s.outwaits & CASE WHEN s.is_full OR s.is_served THEN 2 ELSE 1 END = 0 \
             AND (s.is_full OR s.outwaits & 1 = 0 OR s.served_since < clock.now - ?1)) \
         SELECT tenant_id, run_uid, turn, pos, lease, is_served FROM (SELECT *, row_number() OVER \
           (PARTITION BY tenant_id ORDER BY lease IS NULL, since, run_uid, turn, pos) AS place FROM behind) AS b \
         ORDER BY place, since LIMIT ?3"
    ))
    .bind(behind.queue_wait_ms)
    .bind(i64::from(behind.queue_max))
    .bind(i64::from(behind.limit))
    .fetch_all(&store.reader)
    .await?;
    let found = rows.iter().map(|row| {
        let (tenant, uid): (String, Uuid) = (row.try_get("tenant_id")?, row.try_get("run_uid")?);
        let key = codec::call_key(row.try_get("turn")?, row.try_get("pos")?)?;
        let what = FetchedWhat::behind(row.try_get("lease")?, row.try_get("is_served")?);
        Ok((codec::named("tenant", TenantId::parse(tenant))?, RunUid(uid), Fetched { key, what }))
    });
    found.collect()
}
