//! Runs as they come in, and as their next owner or a decision needs them.

use sqlx::postgres::PgRow;
use sqlx::{Postgres, Row, Transaction};

use super::PostgresStore;
use super::commits::{Rows, insert_rows};
use super::reads::blob_list;
use crate::failpoint;
use crate::run::envelope::Envelope;
use crate::run::ids::{Actor, Fence, RunId, RunUid, TenantId};
use crate::run::time::Timestamp;
use crate::run::view::ViewLimits;
use crate::store::blobs::{Kept, Wanted, once_more};
use crate::store::calls::{CallText, last_calls};
use crate::store::codec::{self, HeadColumns};
use crate::store::rows::CommitRows;
use crate::store::{Admission, Admitted, KeptAnswer, KeptRequest, Loaded, StoreError};

pub(super) async fn run_admit(store: &PostgresStore, admission: &Admission) -> Result<Admitted, StoreError> {
    let rows = CommitRows::of_admission(admission)?;
    let mut tx = store.pool.begin().await?;
    // The key comes first: a request sent twice at once must find its own answer, not that its run exists. The second
    // waits here until the first has committed.
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
    failpoint::pass("store.admit.uncommitted");
    tx.commit().await?;
    Ok(if taken || rows.lets_go || admission.owner.is_none() { Admitted::Created } else { Admitted::NotTaken })
}

/// The run with all its rows; whether a node took it. `None`: the id is taken, nothing was written.
async fn run_insert(
    tx: &mut Transaction<'static, Postgres>,
    admission: &Admission,
    rows: &CommitRows,
) -> Result<Option<bool>, StoreError> {
    // A node that was taken for dead gets no run: nobody would free it.
    const SQL: &str = concat!(
        "WITH h AS (INSERT INTO runs (tenant_id, uid, id, status, reason, revision, fence, last_seq, owner, due_at, \
             attempt, crashes, priority, spec, state, metadata, binding_revision, created_at, updated_at, finished_at, \
             agent) \
           SELECT $15, $16, $17, $18, $19, 1, (taker.owner IS NOT NULL)::int, $20, taker.owner, \
             CASE WHEN taker.owner IS NULL THEN $21 + now_ms() END, $22, $23, $24, $25::json, $26::json, $27::json, \
             $28, $29, $30, $31, $43 \
           FROM (SELECT (SELECT node_id FROM nodes WHERE node_id = $32 AND dead_at IS NULL) AS owner) AS taker \
           ON CONFLICT (tenant_id, id) DO NOTHING \
           RETURNING tenant_id, uid, binding_revision, owner, $33::text AS binding, 1 AS m_from, cardinality($1) AS m_to, \
             1 AS k_from, cardinality($3) AS k_to, 1 AS e_from, cardinality($11) AS e_to, \
             1 AS b_from, cardinality($40) AS b_to), ",
        insert_rows!("$37", "$38", "$39", "$40", "$41", "$42"),
        ", sealed AS (INSERT INTO run_secrets (tenant_id, run_uid, name, key_id, sealed) \
           SELECT h.tenant_id, h.uid, s.name, s.key_id, s.sealed \
           FROM unnest($34::text[], $35::text[], $36::bytea[]) AS s (name, key_id, sealed) CROSS JOIN h) \
         SELECT bool_or(h.owner IS NOT NULL) FROM h"
    );
    let mut arrays = Rows::default();
    arrays.push(rows);
    let secrets = if rows.terminal { [].as_slice() } else { admission.secrets.as_slice() };
    let query = arrays
        .bind(sqlx::query(SQL))
        .bind(admission.tenant.as_str())
        .bind(admission.uid.0)
        .bind(admission.id.as_str())
        .bind(rows.status)
        .bind(rows.reason)
        .bind(rows.last_seq)
        .bind(if rows.lets_go { rows.due_in } else { Some(0) })
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
        .bind(rows.binding.as_ref().map(|(_, body)| body.as_str()))
        .bind(secrets.iter().map(|secret| secret.name.as_str()).collect::<Vec<_>>())
        .bind(secrets.iter().map(|secret| secret.key_id.as_str()).collect::<Vec<_>>())
        .bind(secrets.iter().map(|secret| secret.sealed.as_slice()).collect::<Vec<_>>());
    let agent = admission.spec.agent.as_ref().map(ToString::to_string);
    let taken = arrays.bind_blobs(query).bind(agent).fetch_one(&mut **tx).await?.try_get(0)?;
    Ok(taken)
}

/// Keeps the key, after a few keys of the tenant that expired. `false`: it is kept already.
async fn kept_insert(
    tx: &mut Transaction<'static, Postgres>,
    admission: &Admission,
    request: &KeptRequest,
    now: i64,
) -> Result<bool, StoreError> {
    sqlx::query(
        "DELETE FROM idempotency_keys WHERE tenant_id = $1 AND (actor, route, key) IN \
         (SELECT actor, route, key FROM idempotency_keys WHERE tenant_id = $1 AND expires_at <= $2 \
          ORDER BY expires_at LIMIT 10 FOR UPDATE SKIP LOCKED)",
    )
    .bind(admission.tenant.as_str())
    .bind(now)
    .execute(&mut **tx)
    .await?;
    let kept = sqlx::query(
        "INSERT INTO idempotency_keys (tenant_id, actor, route, key, body_digest, run_id, expires_at) \
         VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (tenant_id, actor, route, key) DO UPDATE SET \
         body_digest = excluded.body_digest, run_id = excluded.run_id, expires_at = excluded.expires_at \
         WHERE idempotency_keys.expires_at <= $8",
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
    store: &PostgresStore,
    tenant: &TenantId,
    request: &KeptRequest,
    now: Timestamp,
) -> Result<Option<KeptAnswer>, StoreError> {
    let mut tx = store.pool.begin().await?;
    kept_select(&mut tx, tenant, request, now).await
}

async fn kept_select(
    tx: &mut Transaction<'static, Postgres>,
    tenant: &TenantId,
    request: &KeptRequest,
    now: Timestamp,
) -> Result<Option<KeptAnswer>, StoreError> {
    let row: Option<(String, String)> = sqlx::query_as(
        "SELECT body_digest, run_id FROM idempotency_keys \
         WHERE tenant_id = $1 AND actor = $2 AND route = $3 AND key = $4 AND expires_at > $5",
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

/// One statement, so one state and one round trip: a commit between two reads would tear head and messages apart.
/// Blobs never change, so they may be read after it.
pub(super) async fn run_load(
    store: &PostgresStore,
    tenant: &TenantId,
    uid: RunUid,
) -> Result<Option<Loaded>, StoreError> {
    once_more(|| load(store, tenant, uid)).await
}

async fn load(store: &PostgresStore, tenant: &TenantId, uid: RunUid) -> Result<Option<Loaded>, StoreError> {
    let row = sqlx::query(
        "SELECT r.id, r.fence, r.owner IS NOT NULL AS owned, r.cancel_requested_by, r.spec::text AS spec, r.status, \
           r.reason, r.revision, r.last_seq, r.attempt, r.crashes, r.state::text AS state, r.created_at, \
           r.updated_at, r.finished_at, b.body::text AS binding, s.messages, s.message_blobs, \
           l.bodies, l.inputs, l.outputs, l.blobs \
         FROM runs r \
         LEFT JOIN bindings b \
           ON b.tenant_id = r.tenant_id AND b.run_uid = r.uid AND b.revision = r.binding_revision \
         CROSS JOIN LATERAL ( \
           SELECT COALESCE(array_agg(m.body), '{}') AS messages, COALESCE(array_agg(m.blobs), '{}') AS message_blobs \
           FROM (SELECT body::text, blobs::text FROM messages \
             WHERE tenant_id = r.tenant_id AND run_uid = r.uid ORDER BY pos) AS m \
         ) AS s \
         CROSS JOIN LATERAL ( \
           SELECT COALESCE(array_agg(c.body::text ORDER BY c.turn, c.pos), '{}') AS bodies, \
             COALESCE(array_agg(c.input::text ORDER BY c.turn, c.pos), '{}') AS inputs, \
             COALESCE(array_agg(c.output::text ORDER BY c.turn, c.pos), '{}') AS outputs, \
             COALESCE(array_agg(c.blobs::text ORDER BY c.turn, c.pos), '{}') AS blobs \
           FROM calls c WHERE c.tenant_id = r.tenant_id AND c.run_uid = r.uid AND (c.undecided_since IS NOT NULL \
             OR c.turn = (SELECT max(turn) FROM calls WHERE tenant_id = $1 AND run_uid = $2)) \
         ) AS l WHERE r.tenant_id = $1 AND r.uid = $2",
    )
    .bind(tenant.as_str())
    .bind(uid.0)
    .fetch_optional(&store.pool)
    .await?;
    let Some(row) = row else { return Ok(None) };
    let (messages, calls) = (message_texts(&row)?, call_texts(&row)?);
    let mut wanted = Wanted::default();
    for message in &messages {
        wanted.add(uid, message);
    }
    for call in &calls {
        call.want(uid, &mut wanted);
    }
    let bodies = blob_list(&store.pool, tenant, &wanted).await?;
    let mut loaded = loaded(tenant, uid, &row)?;
    let envelope = &mut loaded.envelope;
    let messages = messages.into_iter().map(|message| codec::message(uid, message, &bodies));
    envelope.messages = messages.collect::<Result<_, _>>()?;
    envelope.calls = last_calls(envelope.head.state.turns, uid, calls, &bodies)?;
    Ok(Some(loaded))
}

fn message_texts(row: &PgRow) -> Result<Vec<Kept>, StoreError> {
    let (bodies, blobs): (Vec<String>, Vec<Option<String>>) = (row.try_get("messages")?, row.try_get("message_blobs")?);
    bodies.into_iter().zip(&blobs).map(|(body, blobs)| Kept::alone(body, blobs.as_deref())).collect()
}

fn call_texts(row: &PgRow) -> Result<Vec<CallText>, StoreError> {
    let (bodies, inputs): (Vec<String>, Vec<String>) = (row.try_get("bodies")?, row.try_get("inputs")?);
    let (outputs, blobs): (Vec<Option<String>>, Vec<Option<String>>) = (row.try_get("outputs")?, row.try_get("blobs")?);
    let rows = bodies.into_iter().zip(inputs).zip(outputs).zip(&blobs);
    rows.map(|(((body, input), output), blobs)| CallText::read(body, input, output, blobs.as_deref())).collect()
}

/// Everything but messages and calls.
fn loaded(tenant: &TenantId, uid: RunUid, row: &PgRow) -> Result<Loaded, StoreError> {
    let (id, spec): (String, String) = (row.try_get("id")?, row.try_get("spec")?);
    let binding: Option<String> = row.try_get("binding")?;
    let cancel_requested_by: Option<String> = row.try_get("cancel_requested_by")?;
    let envelope = Envelope {
        tenant: tenant.clone(),
        uid,
        id: codec::named("run id", RunId::parse(id))?,
        spec: codec::decode("spec", &spec)?,
        binding: codec::decode("binding", &codec::named("binding", binding)?)?,
        messages: Vec::new(),
        calls: Vec::new(),
        head: head_columns(row)?.decode()?,
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
pub(super) fn head_columns(row: &PgRow) -> Result<HeadColumns, StoreError> {
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
    store: &PostgresStore,
    tenant: &TenantId,
    uid: RunUid,
    actor: &Actor,
) -> Result<bool, StoreError> {
    let asked = sqlx::query(
        "UPDATE runs SET cancel_requested_by = COALESCE(cancel_requested_by, $3), attention = true, \
           due_at = CASE WHEN owner IS NULL THEN now_ms() ELSE due_at END \
         WHERE tenant_id = $1 AND uid = $2 AND (owner IS NOT NULL OR (finished_at IS NULL AND EXISTS ( \
           SELECT 1 FROM calls c WHERE c.tenant_id = $1 AND c.run_uid = $2 AND c.lease IS NOT NULL \
             AND c.queued_at IS NULL)))",
    )
    .bind(tenant.as_str())
    .bind(uid.0)
    .bind(actor.as_str())
    .execute(&store.pool)
    .await?;
    Ok(asked.rows_affected() == 1)
}
