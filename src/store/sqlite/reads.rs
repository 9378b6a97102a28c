//! What readers see: views, lists, pages.

use sqlx::Row;
use sqlx::sqlite::SqliteRow;

use super::SqliteStore;
use super::runs::head_columns;
use crate::run::binding::Binding;
use crate::run::call::Call;
use crate::run::ids::{CallId, RunId, RunUid, TenantId};
use crate::run::message::Message;
use crate::store::{RunCursor, RunFilter, RunView, SealedSecret, StoreError, StoredEvent, codec};

/// The columns of a view; the calls that wait for a person come along as one JSON array of (body, arguments) texts.
macro_rules! select_view {
    () => {
        "SELECT r.uid, r.id, r.spec, r.owner IS NOT NULL AS owned, r.binding_revision, r.status, r.reason, \
           r.revision, r.last_seq, r.attempt, r.crashes, r.state, r.created_at, r.updated_at, r.finished_at, \
           (SELECT b.body FROM bindings b WHERE b.tenant_id = r.tenant_id AND b.run_uid = r.uid \
              AND b.revision = r.binding_revision) AS binding, \
           (SELECT json_group_array(json_array(c.body, c.input)) FROM (SELECT body, input FROM calls \
              WHERE tenant_id = r.tenant_id AND run_uid = r.uid AND undecided_since IS NOT NULL \
              ORDER BY turn, pos) AS c) AS undecided \
         FROM runs r WHERE r.tenant_id = ?1 "
    };
}

pub(super) async fn run_fetch(
    store: &SqliteStore,
    tenant: &TenantId,
    id: &RunId,
) -> Result<Option<RunView>, StoreError> {
    let row = sqlx::query(concat!(select_view!(), "AND r.id = ?2"))
        .bind(tenant.as_str())
        .bind(id.as_str())
        .fetch_optional(&store.reader)
        .await?;
    row.as_ref().map(run_view).transpose()
}

pub(super) async fn run_list(
    store: &SqliteStore,
    tenant: &TenantId,
    filter: &RunFilter,
    after: Option<RunCursor>,
    limit: u32,
) -> Result<Vec<RunView>, StoreError> {
    let rows = sqlx::query(concat!(
        select_view!(),
        "AND (?2 IS NULL OR r.status = ?2) AND (?3 IS NULL OR r.reason = ?3) \
         AND (?4 IS NULL OR r.created_at >= ?4) AND (?5 IS NULL OR r.created_at < ?5) \
         AND NOT EXISTS (SELECT 1 FROM json_each(?6) AS wanted WHERE NOT EXISTS ( \
           SELECT 1 FROM json_each(r.metadata) AS label \
           WHERE label.key = wanted.value ->> 0 AND label.value = wanted.value ->> 1)) \
         AND (?7 IS NULL OR (r.created_at, r.uid) < (?7, ?8)) \
         ORDER BY r.created_at DESC, r.uid DESC LIMIT ?9"
    ))
    .bind(tenant.as_str())
    .bind(filter.status.as_deref())
    .bind(filter.reason.as_deref())
    .bind(filter.created_after.map(crate::run::time::Timestamp::as_millis))
    .bind(filter.created_before.map(crate::run::time::Timestamp::as_millis))
    .bind(codec::wanted_labels(&filter.metadata)?)
    .bind(after.map(|cursor| cursor.created_at.as_millis()))
    .bind(after.map(|cursor| cursor.uid.0))
    .bind(limit)
    .fetch_all(&store.reader)
    .await?;
    rows.iter().map(run_view).collect()
}

fn run_view(row: &SqliteRow) -> Result<RunView, StoreError> {
    let (id, spec, undecided): (String, String, String) =
        (row.try_get("id")?, row.try_get("spec")?, row.try_get("undecided")?);
    let binding: Option<String> = row.try_get("binding")?;
    let binding: Binding = codec::decode("binding", &codec::named("binding", binding)?)?;
    let undecided: Vec<(String, String)> = codec::texts("undecided calls", &undecided)?;
    Ok(RunView {
        uid: RunUid(row.try_get("uid")?),
        id: codec::named("run id", RunId::parse(id))?,
        spec: codec::decode("spec", &spec)?,
        head: head_columns(row)?.decode()?,
        binding_revision: codec::count("binding revision", row.try_get("binding_revision")?)?,
        mcp: binding.mcp,
        undecided: codec::undecided(undecided.iter().map(|(body, input)| (body.as_str(), input.as_str())))?,
        owned: row.try_get("owned")?,
    })
}

pub(super) async fn message_list(
    store: &SqliteStore,
    tenant: &TenantId,
    uid: RunUid,
    from: u32,
    limit: u32,
) -> Result<Vec<Message>, StoreError> {
    let rows: Vec<String> = sqlx::query_scalar(
        "SELECT body FROM messages WHERE tenant_id = ?1 AND run_uid = ?2 AND pos >= ?3 ORDER BY pos LIMIT ?4",
    )
    .bind(tenant.as_str())
    .bind(uid.0)
    .bind(from)
    .bind(limit)
    .fetch_all(&store.reader)
    .await?;
    rows.iter().map(|body| codec::decode("message", body)).collect()
}

pub(super) async fn receipt_list(
    store: &SqliteStore,
    tenant: &TenantId,
    uid: RunUid,
    after: Option<(u32, u32)>,
    limit: u32,
) -> Result<Vec<Call>, StoreError> {
    let rows: Vec<(String, String, Option<String>)> = sqlx::query_as(
        "SELECT body, input, output FROM calls WHERE tenant_id = ?1 AND run_uid = ?2 AND stage <> 'rejected' \
           AND (turn, pos) > (?3, ?4) ORDER BY turn, pos LIMIT ?5",
    )
    .bind(tenant.as_str())
    .bind(uid.0)
    .bind(after.map_or(-1, |(turn, _)| i64::from(turn)))
    .bind(after.map_or(-1, |(_, position)| i64::from(position)))
    .bind(limit)
    .fetch_all(&store.reader)
    .await?;
    rows.iter().map(|(body, input, output)| codec::call(body, input, output.as_deref())).collect()
}

/// Labels are kept inside the document, so those of one turn are read; a turn has few.
pub(super) async fn receipt_fetch(
    store: &SqliteStore,
    tenant: &TenantId,
    uid: RunUid,
    turn: u32,
    call_id: &CallId,
) -> Result<Option<Call>, StoreError> {
    let rows: Vec<(String, String, Option<String>)> = sqlx::query_as(
        "SELECT body, input, output FROM calls \
         WHERE tenant_id = ?1 AND run_uid = ?2 AND turn = ?3 AND stage <> 'rejected' ORDER BY pos",
    )
    .bind(tenant.as_str())
    .bind(uid.0)
    .bind(i64::from(turn))
    .fetch_all(&store.reader)
    .await?;
    let mut calls = rows.iter().map(|(body, input, output)| codec::call(body, input, output.as_deref()));
    calls.find(|call| call.as_ref().map_or(true, |call| call.call_id == *call_id)).transpose()
}

pub(super) async fn event_list(
    store: &SqliteStore,
    tenant: &TenantId,
    uid: RunUid,
    after: i64,
    limit: u32,
) -> Result<Vec<StoredEvent>, StoreError> {
    let rows: Vec<(i64, String, String)> = sqlx::query_as(
        "SELECT seq, kind, body FROM events WHERE tenant_id = ?1 AND run_uid = ?2 AND seq > ?3 ORDER BY seq LIMIT ?4",
    )
    .bind(tenant.as_str())
    .bind(uid.0)
    .bind(after)
    .bind(limit)
    .fetch_all(&store.reader)
    .await?;
    Ok(rows.into_iter().map(|(seq, kind, body)| StoredEvent { seq, kind, body }).collect())
}

pub(super) async fn secret_list(
    store: &SqliteStore,
    tenant: &TenantId,
    uid: RunUid,
) -> Result<Vec<SealedSecret>, StoreError> {
    let rows: Vec<(String, String, Vec<u8>)> = sqlx::query_as(
        "SELECT name, key_id, sealed FROM run_secrets WHERE tenant_id = ?1 AND run_uid = ?2 ORDER BY name",
    )
    .bind(tenant.as_str())
    .bind(uid.0)
    .fetch_all(&store.reader)
    .await?;
    Ok(rows.into_iter().map(|(name, key_id, sealed)| SealedSecret { name, key_id, sealed }).collect())
}

pub(super) async fn secret_samples(store: &SqliteStore) -> Result<Vec<(TenantId, RunUid, SealedSecret)>, StoreError> {
    let rows: Vec<(String, uuid::Uuid, String, String, Vec<u8>)> =
        sqlx::query_as("SELECT tenant_id, run_uid, name, key_id, sealed FROM run_secrets GROUP BY key_id")
            .fetch_all(&store.reader)
            .await?;
    let sample = |(tenant, uid, name, key_id, sealed): (String, uuid::Uuid, String, String, Vec<u8>)| {
        let tenant = codec::named("tenant", TenantId::parse(tenant))?;
        Ok((tenant, RunUid(uid), SealedSecret { name, key_id, sealed }))
    };
    rows.into_iter().map(sample).collect()
}
