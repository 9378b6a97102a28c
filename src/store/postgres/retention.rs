//! Deletes: a run by wish, and by age what is old, run by run. Every statement finds its rows by a key or by an index
//! of its own.

use async_trait::async_trait;
use sqlx::postgres::PgRow;
use sqlx::{Postgres, Row as _, Transaction};
use uuid::Uuid;

use super::PostgresStore;
use super::admin::audit_insert;
use super::steady::SteadyPostgres;
use crate::run::ids::{RunUid, TenantId};
use crate::store::retention::{Deletion, Leftover, OldRun, RetentionStore, STEP_ROWS, Step};
use crate::store::{AuditRow, StoreError, codec};

/// The advisory lock of whoever deletes by age: its number means nothing.
const RETENTION_LOCK: i64 = 0x0c1a_1a1b;

/// With the connections of now.
#[async_trait]
impl RetentionStore for SteadyPostgres {
    async fn run_delete(&self, tenant: &TenantId, uid: RunUid, audit: &AuditRow) -> Result<Deletion, StoreError> {
        let store = self.now();
        self.within(&store, store.run_delete(tenant, uid, audit)).await
    }

    async fn old_list(
        &self,
        what: Leftover,
        older_ms: i64,
        after: Option<&OldRun>,
        limit: u32,
    ) -> Result<Vec<OldRun>, StoreError> {
        let store = self.now();
        self.within(&store, store.old_list(what, older_ms, after, limit)).await
    }

    async fn old_drop(&self, what: Leftover, run: &OldRun, older_ms: i64) -> Result<Step, StoreError> {
        let store = self.now();
        self.within(&store, store.old_drop(what, run, older_ms)).await
    }

    async fn keys_drop(&self) -> Result<bool, StoreError> {
        let store = self.now();
        self.within(&store, store.keys_drop()).await
    }
}

type Run<'a> = (&'a TenantId, RunUid);
type Tx = Transaction<'static, Postgres>;

#[async_trait]
impl RetentionStore for PostgresStore {
    async fn run_delete(&self, tenant: &TenantId, uid: RunUid, audit: &AuditRow) -> Result<Deletion, StoreError> {
        let mut tx = self.pool.begin().await?;
        let run = (tenant, uid);
        // The row is locked: whoever decides about the run waits, and finds it gone.
        let found: Option<(bool, bool)> = sqlx::query_as(
            "SELECT r.finished_at IS NOT NULL AND r.owner IS NULL, EXISTS (SELECT 1 FROM calls c \
               WHERE c.tenant_id = r.tenant_id AND c.run_uid = r.uid AND c.undecided_since IS NOT NULL) \
             FROM runs r WHERE r.tenant_id = $1 AND r.uid = $2 FOR UPDATE OF r",
        )
        .bind(tenant.as_str())
        .bind(uid.0)
        .fetch_optional(&mut *tx)
        .await?;
        match found {
            None => return Ok(Deletion::Missing),
            Some((false, _)) => return Ok(Deletion::Active),
            Some((true, true)) => return Ok(Deletion::Undecided),
            Some((true, false)) => {}
        }
        for sql in [
            "DELETE FROM events WHERE tenant_id = $1 AND run_uid = $2",
            "DELETE FROM messages WHERE tenant_id = $1 AND run_uid = $2",
            "DELETE FROM calls WHERE tenant_id = $1 AND run_uid = $2",
            "DELETE FROM blobs WHERE tenant_id = $1 AND run_uid = $2",
        ] {
            delete(&mut tx, sql, run).await?;
        }
        head_delete(&mut tx, run).await?;
        audit_insert(&mut tx, tenant, std::slice::from_ref(audit)).await?;
        tx.commit().await?;
        Ok(Deletion::Deleted)
    }

    async fn old_list(
        &self,
        what: Leftover,
        older_ms: i64,
        after: Option<&OldRun>,
        limit: u32,
    ) -> Result<Vec<OldRun>, StoreError> {
        macro_rules! of_runs {
            ($which:literal) => {
                concat!(
                    "SELECT r.tenant_id, r.uid, r.finished_at FROM runs r WHERE ",
                    $which,
                    " AND r.finished_at < now_ms() - $1 AND (r.finished_at, r.tenant_id, r.uid) > ($2, $3, $4) \
                       AND NOT EXISTS (SELECT 1 FROM calls c WHERE c.tenant_id = r.tenant_id AND c.run_uid = r.uid \
                         AND c.undecided_since IS NOT NULL) \
                     ORDER BY r.finished_at, r.tenant_id, r.uid LIMIT $5"
                )
            };
        }
        let sql = match what {
            Leftover::Events => of_runs!("r.finished_at IS NOT NULL AND r.pruned_at IS NULL"),
            Leftover::Run => of_runs!("r.pruned_at IS NOT NULL"),
            Leftover::Receipts => {
                "SELECT DISTINCT run_finished_at AS finished_at, tenant_id, run_uid AS uid FROM calls \
                 WHERE run_finished_at IS NOT NULL AND run_finished_at < now_ms() - $1 \
                   AND (run_finished_at, tenant_id, run_uid) > ($2, $3, $4) \
                 ORDER BY run_finished_at, tenant_id, run_uid LIMIT $5"
            }
        };
        let query = sqlx::query(sql)
            .bind(older_ms)
            .bind(after.map_or(i64::MIN, |run| run.finished_at))
            .bind(after.map_or("", |run| run.tenant.as_str()))
            .bind(after.map_or(Uuid::nil(), |run| run.uid.0))
            .bind(i64::from(limit));
        query.fetch_all(&self.pool).await?.iter().map(old_run).collect()
    }

    async fn old_drop(&self, what: Leftover, run: &OldRun, older_ms: i64) -> Result<Step, StoreError> {
        let mut tx = self.pool.begin().await?;
        let alone: bool =
            sqlx::query_scalar("SELECT pg_try_advisory_xact_lock($1)").bind(RETENTION_LOCK).fetch_one(&mut *tx).await?;
        if !alone {
            return Ok(Step::Busy);
        }
        let key = (&run.tenant, run.uid);
        let step = match what {
            Leftover::Events => events_drop(&mut tx, key, older_ms).await?,
            Leftover::Run => run_drop(&mut tx, key, older_ms).await?,
            Leftover::Receipts => receipts_drop(&mut tx, key, older_ms).await?,
        };
        tx.commit().await?;
        Ok(step)
    }

    async fn keys_drop(&self) -> Result<bool, StoreError> {
        let dropped = sqlx::query(
            "DELETE FROM idempotency_keys WHERE ctid = ANY (ARRAY( \
               SELECT ctid FROM idempotency_keys WHERE expires_at < now_ms() \
               ORDER BY expires_at LIMIT $1 FOR UPDATE SKIP LOCKED))",
        )
        .bind(STEP_ROWS)
        .execute(&self.pool)
        .await?;
        Ok(dropped.rows_affected() >= STEP_ROWS.unsigned_abs())
    }
}

fn old_run(row: &PgRow) -> Result<OldRun, StoreError> {
    let tenant: String = row.try_get("tenant_id")?;
    Ok(OldRun {
        tenant: codec::named("tenant", TenantId::parse(tenant))?,
        uid: RunUid(row.try_get("uid")?),
        finished_at: row.try_get("finished_at")?,
    })
}

/// Locks the run for this transaction when it is as old as that, has ended, and nobody has to look at it.
async fn is_old(tx: &mut Tx, run: Run<'_>, older_ms: i64) -> Result<bool, StoreError> {
    let found: Option<i64> = sqlx::query_scalar(
        "SELECT r.finished_at FROM runs r WHERE r.tenant_id = $1 AND r.uid = $2 AND r.owner IS NULL \
           AND r.finished_at < now_ms() - $3 AND NOT EXISTS (SELECT 1 FROM calls c \
             WHERE c.tenant_id = r.tenant_id AND c.run_uid = r.uid AND c.undecided_since IS NOT NULL) \
         FOR UPDATE OF r",
    )
    .bind(run.0.as_str())
    .bind(run.1.0)
    .bind(older_ms)
    .fetch_optional(&mut **tx)
    .await?;
    Ok(found.is_some())
}

async fn events_drop(tx: &mut Tx, run: Run<'_>, older_ms: i64) -> Result<Step, StoreError> {
    if !is_old(tx, run, older_ms).await? {
        return Ok(Step::Kept);
    }
    let events = some(
        tx,
        "DELETE FROM events WHERE tenant_id = $1 AND run_uid = $2 AND kind <> 'result' AND seq <= \
         (SELECT max(seq) FROM (SELECT seq FROM events WHERE tenant_id = $1 AND run_uid = $2 AND kind <> 'result' \
          ORDER BY seq LIMIT $3) AS few)",
        run,
    )
    .await?;
    let messages = some(
        tx,
        "DELETE FROM messages WHERE tenant_id = $1 AND run_uid = $2 AND pos <= \
         (SELECT max(pos) FROM (SELECT pos FROM messages WHERE tenant_id = $1 AND run_uid = $2 \
          ORDER BY pos LIMIT $3) AS few)",
        run,
    )
    .await?;
    if events || messages {
        return Ok(Step::More);
    }
    blobs_drop(tx, run).await?;
    delete(tx, "UPDATE runs SET pruned_at = now_ms() WHERE tenant_id = $1 AND uid = $2", run).await?;
    Ok(Step::Done)
}

async fn run_drop(tx: &mut Tx, run: Run<'_>, older_ms: i64) -> Result<Step, StoreError> {
    if !is_old(tx, run, older_ms).await? {
        return Ok(Step::Kept);
    }
    let rejected = some(
        tx,
        "DELETE FROM calls WHERE tenant_id = $1 AND run_uid = $2 AND stage = 'rejected' AND (turn, pos) <= \
         (SELECT turn, pos FROM (SELECT turn, pos FROM calls WHERE tenant_id = $1 AND run_uid = $2 \
          AND stage = 'rejected' ORDER BY turn, pos LIMIT $3) AS few ORDER BY turn DESC, pos DESC LIMIT 1)",
        run,
    )
    .await?;
    let named = some(
        tx,
        "UPDATE calls c SET run_id = r.id, run_finished_at = r.finished_at FROM runs r \
         WHERE r.tenant_id = $1 AND r.uid = $2 AND c.tenant_id = $1 AND c.run_uid = $2 AND c.run_finished_at IS NULL \
         AND (c.turn, c.pos) <= (SELECT turn, pos FROM (SELECT turn, pos FROM calls \
          WHERE tenant_id = $1 AND run_uid = $2 AND run_finished_at IS NULL ORDER BY turn, pos LIMIT $3) AS few \
          ORDER BY turn DESC, pos DESC LIMIT 1)",
        run,
    )
    .await?;
    if rejected || named {
        return Ok(Step::More);
    }
    keys_delete(tx, run).await?;
    delete(tx, "DELETE FROM events WHERE tenant_id = $1 AND run_uid = $2", run).await?;
    delete(tx, "DELETE FROM messages WHERE tenant_id = $1 AND run_uid = $2", run).await?;
    head_delete(tx, run).await?;
    blobs_drop(tx, run).await?;
    Ok(Step::Done)
}

async fn receipts_drop(tx: &mut Tx, run: Run<'_>, older_ms: i64) -> Result<Step, StoreError> {
    let dropped = sqlx::query(
        "DELETE FROM calls WHERE tenant_id = $1 AND run_uid = $2 AND run_finished_at < now_ms() - $4 \
         AND (turn, pos) <= (SELECT turn, pos FROM (SELECT turn, pos FROM calls \
          WHERE tenant_id = $1 AND run_uid = $2 ORDER BY turn, pos LIMIT $3) AS few \
          ORDER BY turn DESC, pos DESC LIMIT 1) \
         AND NOT EXISTS (SELECT 1 FROM runs WHERE tenant_id = $1 AND uid = $2)",
    )
    .bind(run.0.as_str())
    .bind(run.1.0)
    .bind(STEP_ROWS)
    .bind(older_ms)
    .execute(&mut **tx)
    .await?
    .rows_affected();
    if dropped >= STEP_ROWS.unsigned_abs() {
        return Ok(Step::More);
    }
    if dropped == 0 {
        return Ok(Step::Kept);
    }
    blobs_drop(tx, run).await?;
    Ok(Step::Done)
}

/// Big values that nothing of the run refers to any more.
async fn blobs_drop(tx: &mut Tx, run: Run<'_>) -> Result<(), StoreError> {
    delete(
        tx,
        "DELETE FROM blobs WHERE tenant_id = $1 AND run_uid = $2 AND digest NOT IN ( \
           SELECT place.value ->> 'digest' FROM calls c CROSS JOIN LATERAL json_each(c.blobs) AS place \
           WHERE c.tenant_id = $1 AND c.run_uid = $2 AND c.blobs IS NOT NULL \
           UNION ALL \
           SELECT place.value ->> 'digest' FROM events e CROSS JOIN LATERAL json_each(e.blobs) AS place \
           WHERE e.tenant_id = $1 AND e.run_uid = $2 AND e.blobs IS NOT NULL)",
        run,
    )
    .await
}

/// The row of the run, and what stands beside it.
async fn head_delete(tx: &mut Tx, run: Run<'_>) -> Result<(), StoreError> {
    for sql in [
        "DELETE FROM bindings WHERE tenant_id = $1 AND run_uid = $2",
        "DELETE FROM run_secrets WHERE tenant_id = $1 AND run_uid = $2",
        "DELETE FROM decisions WHERE tenant_id = $1 AND run_uid = $2",
        "DELETE FROM inputs WHERE tenant_id = $1 AND run_uid = $2",
        "DELETE FROM fetched WHERE tenant_id = $1 AND run_uid = $2",
        "DELETE FROM votes WHERE tenant_id = $1 AND run_uid = $2",
        "DELETE FROM approvals WHERE tenant_id = $1 AND run_uid = $2",
        "DELETE FROM runs WHERE tenant_id = $1 AND uid = $2",
    ] {
        delete(tx, sql, run).await?;
    }
    Ok(())
}

/// Keys that answer with this run. While the run is there its id is nobody else's.
async fn keys_delete(tx: &mut Tx, run: Run<'_>) -> Result<(), StoreError> {
    delete(
        tx,
        "DELETE FROM idempotency_keys WHERE tenant_id = $1 \
           AND run_id = (SELECT id FROM runs WHERE tenant_id = $1 AND uid = $2)",
        run,
    )
    .await
}

async fn delete(tx: &mut Tx, sql: &'static str, run: Run<'_>) -> Result<(), StoreError> {
    sqlx::query(sql).bind(run.0.as_str()).bind(run.1.0).execute(&mut **tx).await?;
    Ok(())
}

/// Takes at most `STEP_ROWS`. `true`: there may be more.
async fn some(tx: &mut Tx, sql: &'static str, run: Run<'_>) -> Result<bool, StoreError> {
    let taken = sqlx::query(sql).bind(run.0.as_str()).bind(run.1.0).bind(STEP_ROWS).execute(&mut **tx).await?;
    Ok(taken.rows_affected() >= STEP_ROWS.unsigned_abs())
}
