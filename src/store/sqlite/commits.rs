//! What commits write. Every statement on a run carries its fence and its revision.

use sqlx::sqlite::SqliteQueryResult;
use sqlx::{Sqlite, Transaction};

use super::admin::audit_insert;
use super::{SqliteStore, now_ms};
use crate::failpoint;
use crate::run::commit::Commit;
use crate::run::ids::{Fence, RunUid, TenantId};
use crate::store::calls::CallRow;
use crate::store::rows::{ApprovalRow, CommitRows, EventRow, MessageRow};
use crate::store::{AuditRow, OwnedCommit, StoreError};

/// The columns of a run that a commit sets. A wish to cancel that the leaving owner has not read makes the run due at
/// once: the next owner reads it.
macro_rules! set_head {
    () => {
        concat!(
            "revision = revision + 1, status = ?6, reason = ?7, last_seq = ?8, attempt = ?9, crashes = ?10, \
             state = ?11, updated_at = ?12, finished_at = ?13, binding_revision = COALESCE(?14, binding_revision), \
             owner = CASE WHEN ?15 THEN NULL ELSE owner END, \
             due_at = CASE WHEN NOT ?15 OR ?16 THEN NULL WHEN cancel_requested_by IS NOT NULL THEN ",
            now_ms!(),
            " WHEN ?17 IS NOT NULL THEN ?17 + ",
            now_ms!(),
            " END, attention = attention AND NOT ?16, \
             cancel_requested_by = CASE WHEN ?16 THEN NULL ELSE cancel_requested_by END \
             WHERE tenant_id = ?1 AND uid = ?2 AND fence = ?3 AND revision = ?4 AND last_seq = ?5 "
        )
    };
}

pub(super) async fn commit_apply(store: &SqliteStore, commits: &[OwnedCommit]) -> Result<Vec<bool>, StoreError> {
    const HEAD: &str = concat!("UPDATE runs SET ", set_head!(), "AND owner IS NOT NULL");
    let mut tx = store.write().await?;
    let mut applied = Vec::with_capacity(commits.len());
    for commit in commits {
        let run = (&commit.tenant, commit.uid);
        let took = head_update(&mut tx, HEAD, run, commit.fence, &commit.rows).await?.rows_affected() == 1;
        if took {
            rows_insert(&mut tx, run, &commit.rows).await?;
        }
        applied.push(took);
    }
    failpoint::pass("store.commit.uncommitted");
    tx.commit().await?;
    Ok(applied)
}

pub(super) async fn run_decide(
    store: &SqliteStore,
    tenant: &TenantId,
    uid: RunUid,
    seen: Fence,
    commit: &Commit,
    audit: &[AuditRow],
) -> Result<bool, StoreError> {
    const HEAD: &str = concat!("UPDATE runs SET fence = fence + 1, ", set_head!(), "AND owner IS NULL");
    let rows = CommitRows::encode(commit)?.of_nobody();
    let mut tx = store.write().await?;
    let took = head_update(&mut tx, HEAD, (tenant, uid), seen, &rows).await?.rows_affected() == 1;
    if took {
        rows_insert(&mut tx, (tenant, uid), &rows).await?;
        audit_insert(&mut tx, tenant, audit).await?;
        failpoint::pass("store.decide.uncommitted");
        tx.commit().await?;
    }
    Ok(took)
}

async fn head_update(
    tx: &mut Transaction<'static, Sqlite>,
    sql: &'static str,
    run: (&TenantId, RunUid),
    fence: Fence,
    rows: &CommitRows,
) -> Result<SqliteQueryResult, StoreError> {
    let updated = sqlx::query(sql)
        .bind(run.0.as_str())
        .bind(run.1.0)
        .bind(fence.0)
        .bind(rows.expected)
        .bind(rows.base_seq)
        .bind(rows.status)
        .bind(rows.reason)
        .bind(rows.last_seq)
        .bind(rows.attempt)
        .bind(rows.crashes)
        .bind(&rows.state)
        .bind(rows.updated_at)
        .bind(rows.finished_at)
        .bind(rows.binding.as_ref().map(|(revision, _)| *revision))
        .bind(rows.lets_go)
        .bind(rows.terminal)
        .bind(rows.due_in)
        .execute(&mut **tx)
        .await?;
    Ok(updated)
}

/// Everything of a commit but its head.
pub(super) async fn rows_insert(
    tx: &mut Transaction<'static, Sqlite>,
    run: (&TenantId, RunUid),
    rows: &CommitRows,
) -> Result<(), StoreError> {
    if let Some((revision, body)) = &rows.binding {
        binding_insert(tx, run, *revision, body).await?;
    }
    for message in &rows.messages {
        message_insert(tx, run, message).await?;
    }
    for call in &rows.calls {
        call_put(tx, run, call).await?;
    }
    for approval in &rows.approvals {
        approval_put(tx, run, approval).await?;
    }
    for event in &rows.events {
        event_insert(tx, run, event).await?;
    }
    for (digest, body) in rows.blobs.iter() {
        blob_insert(tx, run, digest, body).await?;
    }
    if rows.terminal {
        secrets_purge(tx, run).await?;
    }
    Ok(())
}

async fn binding_insert(
    tx: &mut Transaction<'static, Sqlite>,
    run: (&TenantId, RunUid),
    revision: i64,
    body: &str,
) -> Result<(), StoreError> {
    sqlx::query("INSERT INTO bindings (tenant_id, run_uid, revision, body) VALUES (?1, ?2, ?3, ?4)")
        .bind(run.0.as_str())
        .bind(run.1.0)
        .bind(revision)
        .bind(body)
        .execute(&mut **tx)
        .await?;
    Ok(())
}

async fn message_insert(
    tx: &mut Transaction<'static, Sqlite>,
    run: (&TenantId, RunUid),
    message: &MessageRow,
) -> Result<(), StoreError> {
    sqlx::query("INSERT INTO messages (tenant_id, run_uid, pos, body, blobs) VALUES (?1, ?2, ?3, ?4, ?5)")
        .bind(run.0.as_str())
        .bind(run.1.0)
        .bind(message.pos)
        .bind(&message.body)
        .bind(message.blobs.as_deref())
        .execute(&mut **tx)
        .await?;
    Ok(())
}

/// A new call, or the next stage of a known one; the arguments of a known call are not written again. One that stays on
/// offer stays set aside for whom it is.
async fn call_put(
    tx: &mut Transaction<'static, Sqlite>,
    run: (&TenantId, RunUid),
    call: &CallRow,
) -> Result<(), StoreError> {
    sqlx::query(
        concat!(
            "INSERT INTO calls \
             (tenant_id, run_uid, turn, pos, stage, undecided_since, input, body, output, blobs, created_at, worker_tool, \
              queued_at, lease, outwaits, client_label) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ",
            now_ms!(),
            " - ?13, ?14, ?15, ?16) \
             ON CONFLICT (tenant_id, run_uid, turn, pos) DO UPDATE SET stage = excluded.stage, \
             undecided_since = excluded.undecided_since, body = excluded.body, output = excluded.output, \
             input = CASE WHEN excluded.stage IN ('proposed', 'pending') THEN excluded.input ELSE input END, \
             blobs = excluded.blobs, worker_tool = excluded.worker_tool, queued_at = excluded.queued_at, \
             outwaits = excluded.outwaits, \
             lease = CASE WHEN excluded.queued_at IS NOT NULL AND queued_at IS NOT NULL THEN lease \
               ELSE excluded.lease END, \
             lease_until = CASE WHEN excluded.lease = lease \
               OR (excluded.queued_at IS NOT NULL AND queued_at IS NOT NULL) THEN lease_until END",
        ),
    )
    .bind(run.0.as_str())
    .bind(run.1.0)
    .bind(call.turn)
    .bind(call.pos)
    .bind(call.stage)
    .bind(call.undecided_since)
    .bind(&call.input)
    .bind(&call.body)
    .bind(call.output.as_deref())
    .bind(call.blobs.as_deref())
    .bind(call.created_at)
    .bind(call.place.tool.as_deref())
    .bind(call.place.offered_for)
    .bind(call.place.lease.as_deref())
    .bind(call.place.outwaits)
    .bind(call.place.client_label.as_deref())
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// A new approval, or how a known one stands now.
async fn approval_put(
    tx: &mut Transaction<'static, Sqlite>,
    run: (&TenantId, RunUid),
    row: &ApprovalRow,
) -> Result<(), StoreError> {
    sqlx::query(
        "INSERT INTO approvals (tenant_id, id, run_uid, status, created_at, expires_at, body) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) \
         ON CONFLICT (tenant_id, id) DO UPDATE SET status = excluded.status, expires_at = excluded.expires_at, \
         body = excluded.body",
    )
    .bind(run.0.as_str())
    .bind(row.id)
    .bind(run.1.0)
    .bind(row.status)
    .bind(row.created_at)
    .bind(row.expires_at)
    .bind(&row.body)
    .execute(&mut **tx)
    .await?;
    Ok(())
}

async fn event_insert(
    tx: &mut Transaction<'static, Sqlite>,
    run: (&TenantId, RunUid),
    row: &EventRow,
) -> Result<(), StoreError> {
    sqlx::query(
        "INSERT INTO events (tenant_id, run_uid, seq, at, kind, body, blobs) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
    )
    .bind(run.0.as_str())
    .bind(run.1.0)
    .bind(row.event.seq)
    .bind(row.at)
    .bind(&row.event.kind)
    .bind(row.body())
    .bind(row.blobs.as_deref())
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// A big value that the run has is not written again.
async fn blob_insert(
    tx: &mut Transaction<'static, Sqlite>,
    run: (&TenantId, RunUid),
    digest: &str,
    body: &str,
) -> Result<(), StoreError> {
    sqlx::query(
        "INSERT INTO blobs (tenant_id, run_uid, digest, body) VALUES (?1, ?2, ?3, ?4) \
         ON CONFLICT (tenant_id, run_uid, digest) DO NOTHING",
    )
    .bind(run.0.as_str())
    .bind(run.1.0)
    .bind(digest)
    .bind(body)
    .execute(&mut **tx)
    .await?;
    Ok(())
}

async fn secrets_purge(tx: &mut Transaction<'static, Sqlite>, run: (&TenantId, RunUid)) -> Result<(), StoreError> {
    sqlx::query("DELETE FROM run_secrets WHERE tenant_id = ?1 AND run_uid = ?2")
        .bind(run.0.as_str())
        .bind(run.1.0)
        .execute(&mut **tx)
        .await?;
    Ok(())
}
