//! Runs as they come in, and as their next owner or a decision needs them.

use sqlx::sqlite::SqliteRow;
use sqlx::{Row, Sqlite, Transaction};

use super::commits::rows_insert;
use super::reads::blob_list;
use super::{SqliteStore, now_ms};
use crate::failpoint;
use crate::run::envelope::Envelope;
use crate::run::ids::{Actor, Fence, RunId, RunUid, TenantId};
use crate::run::message::Message;
use crate::run::spec::RunSpec;
use crate::run::time::Timestamp;
use crate::run::view::ViewLimits;
use crate::store::blobs::{Kept, Wanted};
use crate::store::calls::{CallText, last_calls};
use crate::store::codec::{self, HeadColumns};
use crate::store::rows::CommitRows;
use crate::store::{Admission, Admitted, KeptAnswer, KeptRequest, Loaded, SealedSecret, StoreError};

pub(super) async fn run_admit(store: &SqliteStore, admission: &Admission) -> Result<Admitted, StoreError> {
    let rows = CommitRows::of_admission(admission)?;
    let mut tx = store.write().await?;
    // The key comes first: a request sent twice at once must find its own answer, not that its run exists.
    if let Some(request) = &admission.idempotency
        && !kept_insert(&mut tx, admission, request, rows.created_at).await?
    {
        let now = Timestamp::from_millis(rows.created_at);
        let kept = kept_select(&mut tx, &admission.tenant, request, now).await?;
        return kept
            .map(Admitted::KeyUsed)
            .ok_or(StoreError::Corrupt { what: "idempotency key", detail: "in the way, and not there".to_owned() });
    }
    let Some(taken) = run_insert(&mut tx, admission, &rows).await? else {
        return Ok(Admitted::RunExists);
    };
    let run = (&admission.tenant, admission.uid);
    rows_insert(&mut tx, run, &rows).await?;
    if !rows.terminal {
        for secret in &admission.secrets {
            secret_insert(&mut tx, run, secret).await?;
        }
    }
    failpoint::pass("store.admit.uncommitted");
    tx.commit().await?;
    Ok(if taken || rows.lets_go || admission.owner.is_none() { Admitted::Created } else { Admitted::NotTaken })
}

/// Whether a node took it. `None`: the id is taken.
async fn run_insert(
    tx: &mut Transaction<'static, Sqlite>,
    admission: &Admission,
    rows: &CommitRows,
) -> Result<Option<bool>, StoreError> {
    // A node that was taken for dead gets no run: nobody would free it.
    let taken = sqlx::query_scalar(concat!(
        "INSERT INTO runs (tenant_id, uid, id, status, reason, revision, fence, last_seq, owner, due_at, attempt, \
           crashes, priority, spec, state, metadata, binding_revision, created_at, updated_at, finished_at, agent) \
         SELECT ?1, ?2, ?3, ?4, ?5, 1, owner IS NOT NULL, ?6, owner, \
           CASE WHEN owner IS NULL THEN ?18 + ",
        now_ms!(),
        " END, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?19 \
         FROM (SELECT (SELECT node_id FROM nodes WHERE node_id = ?17 AND dead_at IS NULL) AS owner) AS taker \
         WHERE true ON CONFLICT (tenant_id, id) DO NOTHING RETURNING owner IS NOT NULL"
    ))
    .bind(admission.tenant.as_str())
    .bind(admission.uid.0)
    .bind(admission.id.as_str())
    .bind(rows.status)
    .bind(rows.reason)
    .bind(rows.last_seq)
    .bind(rows.attempt)
    .bind(rows.crashes)
    .bind(admission.spec.priority)
    .bind(codec::encode("spec", &admission.spec)?)
    .bind(&rows.state)
    .bind(codec::labels(&admission.spec.metadata)?)
    .bind(rows.binding.as_ref().map_or(0, |(revision, _)| *revision))
    .bind(rows.created_at)
    .bind(rows.updated_at)
    .bind(rows.finished_at)
    .bind(if rows.lets_go { None } else { admission.owner.map(|node| node.0) })
    .bind(if rows.lets_go { rows.due_in } else { Some(0) })
    .bind(admission.spec.agent.as_ref().map(ToString::to_string))
    .fetch_optional(&mut **tx)
    .await?;
    Ok(taken)
}

async fn secret_insert(
    tx: &mut Transaction<'static, Sqlite>,
    run: (&TenantId, RunUid),
    secret: &SealedSecret,
) -> Result<(), StoreError> {
    sqlx::query("INSERT INTO run_secrets (tenant_id, run_uid, name, key_id, sealed) VALUES (?1, ?2, ?3, ?4, ?5)")
        .bind(run.0.as_str())
        .bind(run.1.0)
        .bind(&secret.name)
        .bind(&secret.key_id)
        .bind(&secret.sealed)
        .execute(&mut **tx)
        .await?;
    Ok(())
}

/// Keeps the key, after a few keys of the tenant that expired. `false`: it is kept already.
async fn kept_insert(
    tx: &mut Transaction<'static, Sqlite>,
    admission: &Admission,
    request: &KeptRequest,
    now: i64,
) -> Result<bool, StoreError> {
    sqlx::query(
        "DELETE FROM idempotency_keys WHERE tenant_id = ?1 AND (actor, route, key) IN \
         (SELECT actor, route, key FROM idempotency_keys WHERE tenant_id = ?1 AND expires_at <= ?2 \
          ORDER BY expires_at LIMIT 10)",
    )
    .bind(admission.tenant.as_str())
    .bind(now)
    .execute(&mut **tx)
    .await?;
    let kept = sqlx::query(
        "INSERT INTO idempotency_keys (tenant_id, actor, route, key, body_digest, run_id, expires_at) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT (tenant_id, actor, route, key) DO UPDATE SET \
         body_digest = excluded.body_digest, run_id = excluded.run_id, expires_at = excluded.expires_at \
         WHERE idempotency_keys.expires_at <= ?8",
    )
    .bind(admission.tenant.as_str())
    .bind(request.actor.as_str())
    .bind(request.route)
    .bind(&request.key)
    .bind(&request.body_digest)
    .bind(admission.id.as_str())
    .bind(request.expires_at.as_millis())
    .bind(now)
    .execute(&mut **tx)
    .await?;
    Ok(kept.rows_affected() == 1)
}

pub(super) async fn kept_fetch(
    store: &SqliteStore,
    tenant: &TenantId,
    request: &KeptRequest,
    now: Timestamp,
) -> Result<Option<KeptAnswer>, StoreError> {
    let mut tx = store.reader.begin().await?;
    kept_select(&mut tx, tenant, request, now).await
}

async fn kept_select(
    tx: &mut Transaction<'static, Sqlite>,
    tenant: &TenantId,
    request: &KeptRequest,
    now: Timestamp,
) -> Result<Option<KeptAnswer>, StoreError> {
    let row: Option<(String, String)> = sqlx::query_as(
        "SELECT body_digest, run_id FROM idempotency_keys \
         WHERE tenant_id = ?1 AND actor = ?2 AND route = ?3 AND key = ?4 AND expires_at > ?5",
    )
    .bind(tenant.as_str())
    .bind(request.actor.as_str())
    .bind(request.route)
    .bind(&request.key)
    .bind(now.as_millis())
    .fetch_optional(&mut **tx)
    .await?;
    row.map(|(body_digest, run_id)| {
        Ok(KeptAnswer { body_digest, run_id: codec::named("run id", RunId::parse(run_id))? })
    })
    .transpose()
}

/// One read transaction, so one state: a commit between the reads would tear head and messages apart.
pub(super) async fn run_load(
    store: &SqliteStore,
    tenant: &TenantId,
    uid: RunUid,
) -> Result<Option<Loaded>, StoreError> {
    let mut tx = store.reader.begin().await?;
    let head = sqlx::query(
        "SELECT r.id, r.fence, r.owner IS NOT NULL AS owned, r.cancel_requested_by, r.spec, r.status, r.reason, \
           r.revision, r.last_seq, r.attempt, r.crashes, r.state, r.created_at, r.updated_at, r.finished_at, \
           b.body AS binding \
         FROM runs r LEFT JOIN bindings b \
           ON b.tenant_id = r.tenant_id AND b.run_uid = r.uid AND b.revision = r.binding_revision \
         WHERE r.tenant_id = ?1 AND r.uid = ?2",
    )
    .bind(tenant.as_str())
    .bind(uid.0)
    .fetch_optional(&mut *tx)
    .await?;
    let Some(head) = head else { return Ok(None) };
    let messages: Vec<(String, Option<String>)> =
        sqlx::query_as("SELECT body, blobs FROM messages WHERE tenant_id = ?1 AND run_uid = ?2 ORDER BY pos")
            .bind(tenant.as_str())
            .bind(uid.0)
            .fetch_all(&mut *tx)
            .await?;
    let calls: Vec<(String, String, Option<String>, Option<String>)> = sqlx::query_as(
        "SELECT body, input, output, blobs FROM calls WHERE tenant_id = ?1 AND run_uid = ?2 \
           AND (undecided_since IS NOT NULL \
             OR turn = (SELECT max(turn) FROM calls WHERE tenant_id = ?1 AND run_uid = ?2)) \
         ORDER BY turn, pos",
    )
    .bind(tenant.as_str())
    .bind(uid.0)
    .fetch_all(&mut *tx)
    .await?;
    let (mut wanted, mut message_texts, mut call_texts) = (Wanted::default(), Vec::new(), Vec::new());
    for (body, blobs) in messages {
        let text = Kept::alone(body, blobs.as_deref())?;
        wanted.add(uid, &text);
        message_texts.push(text);
    }
    for (body, input, output, blobs) in calls {
        let text = CallText::read(body, input, output, blobs.as_deref())?;
        text.want(uid, &mut wanted);
        call_texts.push(text);
    }
    let bodies = blob_list(&mut *tx, tenant, &wanted).await?;
    tx.commit().await?;
    let mut loaded = loaded(tenant, uid, &head)?;
    let envelope = &mut loaded.envelope;
    let messages = message_texts.into_iter().map(|message| codec::message(uid, message, &bodies));
    envelope.messages = messages.collect::<Result<_, _>>()?;
    envelope.calls = last_calls(envelope.head.state.turns, uid, call_texts, &bodies)?;
    Ok(Some(loaded))
}

fn loaded(tenant: &TenantId, uid: RunUid, row: &SqliteRow) -> Result<Loaded, StoreError> {
    let (id, spec): (String, String) = (row.try_get("id")?, row.try_get("spec")?);
    let binding: Option<String> = row.try_get("binding")?;
    let cancel_requested_by: Option<String> = row.try_get("cancel_requested_by")?;
    let spec: RunSpec = codec::decode("spec", &spec)?;
    let messages: Vec<Message> = Vec::new();
    let envelope = Envelope {
        tenant: tenant.clone(),
        uid,
        id: codec::named("run id", RunId::parse(id))?,
        spec,
        binding: codec::decode("binding", &codec::named("binding", binding)?)?,
        head: head_columns(row)?.decode()?,
        messages,
        calls: Vec::new(),
        leg: crate::run::envelope::Leg::Outside,
        room: usize::MAX,
        announced: false,
        turn_told: false,
        view: ViewLimits::default(),
    };
    Ok(Loaded {
        envelope,
        fence: Fence(row.try_get("fence")?),
        owned: row.try_get("owned")?,
        cancel_requested_by: cancel_requested_by.map(|by| codec::named("actor", Actor::parse(by))).transpose()?,
    })
}

/// The head's columns of a row of `runs`.
pub(super) fn head_columns(row: &SqliteRow) -> Result<HeadColumns, StoreError> {
    Ok(HeadColumns {
        status: row.try_get("status")?,
        reason: row.try_get("reason")?,
        revision: row.try_get("revision")?,
        last_seq: row.try_get("last_seq")?,
        attempt: row.try_get("attempt")?,
        crashes: row.try_get("crashes")?,
        state: row.try_get("state")?,
        created_at: row.try_get("created_at")?,
        updated_at: row.try_get("updated_at")?,
        finished_at: row.try_get("finished_at")?,
    })
}

pub(super) async fn cancel_request(
    store: &SqliteStore,
    tenant: &TenantId,
    uid: RunUid,
    actor: &Actor,
) -> Result<bool, StoreError> {
    let asked = sqlx::query(
        concat!(
            "UPDATE runs SET cancel_requested_by = COALESCE(cancel_requested_by, ?3), attention = true, \
               due_at = CASE WHEN owner IS NULL THEN ",
            now_ms!(),
            " ELSE due_at END WHERE tenant_id = ?1 AND uid = ?2 AND (owner IS NOT NULL OR (finished_at IS NULL AND EXISTS ( \
           SELECT 1 FROM calls c WHERE c.tenant_id = ?1 AND c.run_uid = ?2 AND c.lease IS NOT NULL \
             AND c.queued_at IS NULL)))"
        ),
    )
    .bind(tenant.as_str())
    .bind(uid.0)
    .bind(actor.as_str())
    .execute(&store.writer)
    .await?;
    Ok(asked.rows_affected() == 1)
}
