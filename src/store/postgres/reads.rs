//! What readers see: views, lists, pages.

use sqlx::Row;
use sqlx::postgres::PgRow;

use super::PostgresStore;
use super::runs::head_columns;
use crate::run::binding::Binding;
use crate::run::call::Call;
use crate::run::ids::{CallId, RunId, RunUid, TenantId};
use crate::run::message::Message;
use crate::store::{RunCursor, RunFilter, RunView, SealedSecret, StoreError, StoredEvent, codec};

/// The columns of a view; the calls that wait for a person come along as arrays.
macro_rules! select_view {
    () => {
        "SELECT r.uid, r.id, r.spec::text AS spec, r.owner IS NOT NULL AS owned, r.binding_revision, r.status, \
           r.reason, r.revision, r.last_seq, r.attempt, r.crashes, r.state::text AS state, r.created_at, \
           r.updated_at, r.finished_at, b.body::text AS binding, u.bodies, u.inputs \
         FROM runs r \
         LEFT JOIN bindings b \
           ON b.tenant_id = r.tenant_id AND b.run_uid = r.uid AND b.revision = r.binding_revision \
         CROSS JOIN LATERAL ( \
           SELECT COALESCE(array_agg(c.body::text ORDER BY c.turn, c.pos), '{}') AS bodies, \
             COALESCE(array_agg(c.input::text ORDER BY c.turn, c.pos), '{}') AS inputs \
           FROM calls c WHERE c.tenant_id = r.tenant_id AND c.run_uid = r.uid AND c.undecided_since IS NOT NULL \
         ) AS u WHERE r.tenant_id = $1 "
    };
}

pub(super) async fn run_fetch(
    store: &PostgresStore,
    tenant: &TenantId,
    id: &RunId,
) -> Result<Option<RunView>, StoreError> {
    let row = sqlx::query(concat!(select_view!(), "AND r.id = $2"))
        .bind(tenant.as_str())
        .bind(id.as_str())
        .fetch_optional(&store.pool)
        .await?;
    row.as_ref().map(run_view).transpose()
}

pub(super) async fn run_list(
    store: &PostgresStore,
    tenant: &TenantId,
    filter: &RunFilter,
    after: Option<RunCursor>,
    limit: u32,
) -> Result<Vec<RunView>, StoreError> {
    let rows = sqlx::query(concat!(
        select_view!(),
        "AND ($2::text IS NULL OR r.status = $2) AND ($3::text IS NULL OR r.reason = $3) \
         AND ($4::bigint IS NULL OR r.created_at >= $4) AND ($5::bigint IS NULL OR r.created_at < $5) \
         AND NOT EXISTS (SELECT 1 FROM json_array_elements($6::json) AS wanted(pair) \
           WHERE r.metadata ->> (wanted.pair ->> 0) IS DISTINCT FROM wanted.pair ->> 1) \
         AND ($7::bigint IS NULL OR (r.created_at, r.uid) < ($7, $8)) \
         ORDER BY r.created_at DESC, r.uid DESC LIMIT $9"
    ))
    .bind(tenant.as_str())
    .bind(filter.status.as_deref())
    .bind(filter.reason.as_deref())
    .bind(filter.created_after.map(crate::run::time::Timestamp::as_millis))
    .bind(filter.created_before.map(crate::run::time::Timestamp::as_millis))
    .bind(codec::wanted_labels(&filter.metadata)?)
    .bind(after.map(|cursor| cursor.created_at.as_millis()))
    .bind(after.map(|cursor| cursor.uid.0))
    .bind(i64::from(limit))
    .fetch_all(&store.pool)
    .await?;
    rows.iter().map(run_view).collect()
}

fn run_view(row: &PgRow) -> Result<RunView, StoreError> {
    let (id, spec): (String, String) = (row.try_get("id")?, row.try_get("spec")?);
    let (bodies, inputs): (Vec<String>, Vec<String>) = (row.try_get("bodies")?, row.try_get("inputs")?);
    let binding: Option<String> = row.try_get("binding")?;
    let binding: Binding = codec::decode("binding", &codec::named("binding", binding)?)?;
    Ok(RunView {
        uid: RunUid(row.try_get("uid")?),
        id: codec::named("run id", RunId::parse(id))?,
        spec: codec::decode("spec", &spec)?,
        head: head_columns(row)?.decode()?,
        binding_revision: codec::count("binding revision", row.try_get("binding_revision")?)?,
        mcp: binding.mcp,
        undecided: codec::undecided(bodies.iter().map(String::as_str).zip(inputs.iter().map(String::as_str)))?,
        owned: row.try_get("owned")?,
    })
}

pub(super) async fn message_list(
    store: &PostgresStore,
    tenant: &TenantId,
    uid: RunUid,
    from: u32,
    limit: u32,
) -> Result<Vec<Message>, StoreError> {
    let rows: Vec<String> = sqlx::query_scalar(
        "SELECT body::text FROM messages WHERE tenant_id = $1 AND run_uid = $2 AND pos >= $3 ORDER BY pos LIMIT $4",
    )
    .bind(tenant.as_str())
    .bind(uid.0)
    .bind(i64::from(from))
    .bind(i64::from(limit))
    .fetch_all(&store.pool)
    .await?;
    rows.iter().map(|body| codec::decode("message", body)).collect()
}

pub(super) async fn receipt_list(
    store: &PostgresStore,
    tenant: &TenantId,
    uid: RunUid,
    after: Option<(u32, u32)>,
    limit: u32,
) -> Result<Vec<Call>, StoreError> {
    let rows: Vec<(String, String, Option<String>)> = sqlx::query_as(
        "SELECT body::text, input::text, output::text FROM calls WHERE tenant_id = $1 AND run_uid = $2 AND stage <> 'rejected' \
           AND (turn, pos) > ($3, $4) ORDER BY turn, pos LIMIT $5",
    )
    .bind(tenant.as_str())
    .bind(uid.0)
    .bind(after.map_or(-1, |(turn, _)| i64::from(turn)))
    .bind(after.map_or(-1, |(_, position)| i64::from(position)))
    .bind(i64::from(limit))
    .fetch_all(&store.pool)
    .await?;
    rows.iter().map(|(body, input, output)| codec::call(body, input, output.as_deref())).collect()
}

/// Labels are kept inside the document, so those of one turn are read; a turn has few.
pub(super) async fn receipt_fetch(
    store: &PostgresStore,
    tenant: &TenantId,
    uid: RunUid,
    turn: u32,
    call_id: &CallId,
) -> Result<Option<Call>, StoreError> {
    let rows: Vec<(String, String, Option<String>)> = sqlx::query_as(
        "SELECT body::text, input::text, output::text FROM calls \
         WHERE tenant_id = $1 AND run_uid = $2 AND turn = $3 AND stage <> 'rejected' ORDER BY pos",
    )
    .bind(tenant.as_str())
    .bind(uid.0)
    .bind(i64::from(turn))
    .fetch_all(&store.pool)
    .await?;
    let mut calls = rows.iter().map(|(body, input, output)| codec::call(body, input, output.as_deref()));
    calls.find(|call| call.as_ref().map_or(true, |call| call.call_id == *call_id)).transpose()
}

pub(super) async fn event_list(
    store: &PostgresStore,
    tenant: &TenantId,
    uid: RunUid,
    after: i64,
    limit: u32,
) -> Result<Vec<StoredEvent>, StoreError> {
    let rows: Vec<(i64, String, String)> = sqlx::query_as(
        "SELECT seq, kind, body::text FROM events WHERE tenant_id = $1 AND run_uid = $2 AND seq > $3 ORDER BY seq LIMIT $4",
    )
    .bind(tenant.as_str())
    .bind(uid.0)
    .bind(after)
    .bind(i64::from(limit))
    .fetch_all(&store.pool)
    .await?;
    Ok(rows.into_iter().map(|(seq, kind, body)| StoredEvent { seq, kind, body }).collect())
}

pub(super) async fn secret_list(
    store: &PostgresStore,
    tenant: &TenantId,
    uid: RunUid,
) -> Result<Vec<SealedSecret>, StoreError> {
    let rows: Vec<(String, String, Vec<u8>)> = sqlx::query_as(
        "SELECT name, key_id, sealed FROM run_secrets WHERE tenant_id = $1 AND run_uid = $2 ORDER BY name",
    )
    .bind(tenant.as_str())
    .bind(uid.0)
    .fetch_all(&store.pool)
    .await?;
    Ok(rows.into_iter().map(|(name, key_id, sealed)| SealedSecret { name, key_id, sealed }).collect())
}

pub(super) async fn secret_samples(store: &PostgresStore) -> Result<Vec<(TenantId, RunUid, SealedSecret)>, StoreError> {
    let rows: Vec<(String, uuid::Uuid, String, String, Vec<u8>)> = sqlx::query_as(
        "SELECT DISTINCT ON (key_id) tenant_id, run_uid, name, key_id, sealed FROM run_secrets ORDER BY key_id",
    )
    .fetch_all(&store.pool)
    .await?;
    let sample = |(tenant, uid, name, key_id, sealed): (String, uuid::Uuid, String, String, Vec<u8>)| {
        let tenant = codec::named("tenant", TenantId::parse(tenant))?;
        Ok((tenant, RunUid(uid), SealedSecret { name, key_id, sealed }))
    };
    rows.into_iter().map(sample).collect()
}
