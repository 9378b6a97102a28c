//! What readers see: views, lists, pages.

use futures::TryStreamExt as _;
use sqlx::sqlite::SqliteRow;
use sqlx::{Row, SqliteExecutor};

use super::SqliteStore;
use super::runs::head_columns;
use crate::run::binding::Binding;
use crate::run::call::Call;
use crate::run::ids::{CallId, CallKey, RunId, RunUid, TenantId};
use crate::run::message::Message;
use crate::store::blobs::{Bodies, Kept, Wanted, once_more};
use crate::store::calls::{CallText, label_column};
use crate::store::codec::{self, ViewText};
use crate::store::page::{Filling, Page};
use crate::store::{RunCursor, RunFilter, RunView, SealedSecret, StoreError, StoredEvent};

/// The blobs that rows which were read need; no query when they need none.
pub(super) async fn blob_list(
    executor: impl SqliteExecutor<'_>,
    tenant: &TenantId,
    wanted: &Wanted,
) -> Result<Bodies, StoreError> {
    let mut bodies = Bodies::default();
    if wanted.is_empty() {
        return Ok(bodies);
    }
    let pairs: Vec<[String; 2]> =
        wanted.iter().map(|(uid, digest)| [uid.0.simple().to_string(), digest.to_owned()]).collect();
    let rows: Vec<(uuid::Uuid, String, String)> = sqlx::query_as(
        "SELECT b.run_uid, b.digest, b.body FROM json_each(?2) AS w CROSS JOIN blobs AS b \
         WHERE b.tenant_id = ?1 AND b.run_uid = unhex(w.value ->> 0) AND b.digest = w.value ->> 1",
    )
    .bind(tenant.as_str())
    .bind(codec::json_text("wanted blobs", &pairs)?)
    .fetch_all(executor)
    .await?;
    for (uid, digest, body) in rows {
        bodies.insert(RunUid(uid), digest, body);
    }
    Ok(bodies)
}

/// The columns of a view; the calls that wait for a person come along as one JSON array of (body, arguments, blobs).
macro_rules! select_view {
    () => {
        "SELECT r.uid, r.id, r.spec, r.owner IS NOT NULL AS owned, r.binding_revision, r.status, r.reason, \
           r.revision, r.last_seq, r.attempt, r.crashes, r.state, r.created_at, r.updated_at, r.finished_at, \
           (SELECT b.body FROM bindings b WHERE b.tenant_id = r.tenant_id AND b.run_uid = r.uid \
              AND b.revision = r.binding_revision) AS binding, \
           (SELECT json_group_array(json_array(c.body, c.input, c.blobs)) FROM (SELECT body, input, blobs FROM calls \
              WHERE tenant_id = r.tenant_id AND run_uid = r.uid \
              AND (undecided_since IS NOT NULL OR worker_tool = '') \
              ORDER BY turn, pos) AS c) AS undecided \
         FROM runs r WHERE r.tenant_id = ?1 "
    };
}

pub(super) async fn run_fetch(
    store: &SqliteStore,
    tenant: &TenantId,
    id: &RunId,
) -> Result<Option<RunView>, StoreError> {
    once_more(|| async move {
        let row = sqlx::query(concat!(select_view!(), "AND r.id = ?2"))
            .bind(tenant.as_str())
            .bind(id.as_str())
            .fetch_optional(&store.reader)
            .await?;
        let Some(text) = row.as_ref().map(view_text).transpose()? else { return Ok(None) };
        let mut wanted = Wanted::default();
        text.want(&mut wanted);
        let bodies = blob_list(&store.reader, tenant, &wanted).await?;
        text.decode(&bodies).map(Some)
    })
    .await
}

pub(super) async fn run_list(
    store: &SqliteStore,
    tenant: &TenantId,
    filter: &RunFilter,
    after: Option<RunCursor>,
    limit: u32,
) -> Result<Page<RunView>, StoreError> {
    once_more(|| run_page(store, tenant, filter, after, limit)).await
}

/// Runs of one agent are few among many runs: they have an index of their own, which only a condition that names it
/// can use.
macro_rules! list_runs {
    ($condition:literal) => {
        concat!(
            select_view!(),
            "AND (?2 IS NULL OR r.status = ?2) AND (?3 IS NULL OR r.reason = ?3) \
         AND (?4 IS NULL OR r.created_at >= ?4) AND (?5 IS NULL OR r.created_at < ?5) \
         AND NOT EXISTS (SELECT 1 FROM json_each(?6) AS wanted WHERE NOT EXISTS ( \
           SELECT 1 FROM json_each(r.metadata) AS label \
           WHERE label.key = wanted.value ->> 0 AND label.value = wanted.value ->> 1)) \
         AND (?7 IS NULL OR (r.created_at, r.uid) < (?7, ?8)) \
         ",
            $condition,
            "ORDER BY r.created_at DESC, r.uid DESC LIMIT ?9 + 1"
        )
    };
}

async fn run_page(
    store: &SqliteStore,
    tenant: &TenantId,
    filter: &RunFilter,
    after: Option<RunCursor>,
    limit: u32,
) -> Result<Page<RunView>, StoreError> {
    let agent = filter.agent_versions();
    let rows = sqlx::query(match agent {
        Some(_) => list_runs!("AND r.agent >= ?10 AND r.agent <= ?11 "),
        None => list_runs!(""),
    })
    .bind(tenant.as_str())
    .bind(filter.status.as_deref())
    .bind(filter.reason.as_deref())
    .bind(filter.created_after.map(crate::run::time::Timestamp::as_millis))
    .bind(filter.created_before.map(crate::run::time::Timestamp::as_millis))
    .bind(codec::wanted_labels(&filter.metadata)?)
    .bind(after.map(|cursor| cursor.created_at.as_millis()))
    .bind(after.map(|cursor| cursor.uid.0))
    .bind(limit);
    let rows = match agent {
        Some((first, last)) => rows.bind(first).bind(last),
        None => rows,
    };
    let mut rows = rows.fetch(&store.reader);
    let (mut filling, mut wanted) = (Filling::new(limit), Wanted::default());
    while let Some(row) = rows.try_next().await? {
        let text = view_text(&row)?;
        if !filling.take(text.bytes(), text) {
            break;
        }
    }
    drop(rows);
    let page = filling.page();
    page.iter().for_each(|text| text.want(&mut wanted));
    let bodies = blob_list(&store.reader, tenant, &wanted).await?;
    page.try_map(|text| text.decode(&bodies))
}

fn view_text(row: &SqliteRow) -> Result<ViewText, StoreError> {
    let (id, spec, state): (String, String, String) = (row.try_get("id")?, row.try_get("spec")?, row.try_get("state")?);
    let undecided: Vec<(String, String, Option<String>)> =
        codec::texts("undecided calls", &row.try_get::<String, _>("undecided")?)?;
    let binding = codec::named("binding", row.try_get::<Option<String>, _>("binding")?)?;
    let bytes = spec.len() + state.len() + binding.len();
    let binding: Binding = codec::decode("binding", &binding)?;
    let calls = undecided.into_iter();
    let calls = calls.map(|(body, input, blobs)| CallText::read(body, input, None, blobs.as_deref()));
    let view = RunView {
        uid: RunUid(row.try_get("uid")?),
        id: codec::named("run id", RunId::parse(id))?,
        spec: codec::decode("spec", &spec)?,
        head: head_columns(row)?.decode()?,
        binding_revision: codec::count("binding revision", row.try_get("binding_revision")?)?,
        mcp: binding.mcp,
        undecided: Vec::new(),
        client_calls: Vec::new(),
        owned: row.try_get("owned")?,
    };
    Ok(ViewText { view, calls: calls.collect::<Result<_, _>>()?, bytes })
}

/// What stands in the rows, and what stands in their blobs once for each place: so much is in memory when it is whole.
pub(super) async fn run_bytes(store: &SqliteStore, tenant: &TenantId, uid: RunUid) -> Result<u64, StoreError> {
    let bytes: i64 = sqlx::query_scalar(
        "SELECT COALESCE(sum(octet_length(t.body) + COALESCE(octet_length(t.input), 0) \
             + COALESCE(octet_length(t.output), 0) \
             + (SELECT COALESCE(sum(b.value ->> 'bytes'), 0) FROM json_each(t.blobs) AS b)), 0) \
         FROM (SELECT body, NULL AS input, NULL AS output, blobs FROM messages WHERE tenant_id = ?1 AND run_uid = ?2 \
           UNION ALL SELECT body, input, output, blobs FROM calls WHERE tenant_id = ?1 AND run_uid = ?2 \
             AND (undecided_since IS NOT NULL \
               OR turn = (SELECT max(turn) FROM calls WHERE tenant_id = ?1 AND run_uid = ?2))) AS t",
    )
    .bind(tenant.as_str())
    .bind(uid.0)
    .fetch_one(&store.reader)
    .await?;
    u64::try_from(bytes).map_err(|fault| codec::corrupt("bytes", fault))
}

pub(super) async fn message_list(
    store: &SqliteStore,
    tenant: &TenantId,
    uid: RunUid,
    from: u32,
    limit: u32,
) -> Result<Page<Message>, StoreError> {
    once_more(|| async move {
        let mut rows = sqlx::query_as::<_, (String, Option<String>)>(
            "SELECT body, blobs FROM messages \
             WHERE tenant_id = ?1 AND run_uid = ?2 AND pos >= ?3 ORDER BY pos LIMIT ?4 + 1",
        )
        .bind(tenant.as_str())
        .bind(uid.0)
        .bind(from)
        .bind(limit)
        .fetch(&store.reader);
        let mut filling = Filling::new(limit);
        while let Some((body, blobs)) = rows.try_next().await? {
            let text = Kept::alone(body, blobs.as_deref())?;
            if !filling.take(text.bytes(), text) {
                break;
            }
        }
        drop(rows);
        let (page, mut wanted) = (filling.page(), Wanted::default());
        page.iter().for_each(|text| wanted.add(uid, text));
        let bodies = blob_list(&store.reader, tenant, &wanted).await?;
        page.try_map(|text| codec::message(uid, text, &bodies))
    })
    .await
}

pub(super) async fn receipt_list(
    store: &SqliteStore,
    tenant: &TenantId,
    uid: RunUid,
    after: Option<(u32, u32)>,
    limit: u32,
) -> Result<Page<Call>, StoreError> {
    once_more(|| async move {
        let mut rows = sqlx::query_as::<_, (String, String, Option<String>, Option<String>)>(
            "SELECT body, input, output, blobs FROM calls \
             WHERE tenant_id = ?1 AND run_uid = ?2 AND stage NOT IN ('rejected', 'proposed') AND (turn, pos) > (?3, ?4) \
             ORDER BY turn, pos LIMIT ?5 + 1",
        )
        .bind(tenant.as_str())
        .bind(uid.0)
        .bind(after.map_or(-1, |(turn, _)| i64::from(turn)))
        .bind(after.map_or(-1, |(_, position)| i64::from(position)))
        .bind(limit)
        .fetch(&store.reader);
        let mut filling = Filling::new(limit);
        while let Some((body, input, output, blobs)) = rows.try_next().await? {
            let text = CallText::read(body, input, output, blobs.as_deref())?;
            if !filling.take(text.bytes(), text) {
                break;
            }
        }
        drop(rows);
        let (page, mut wanted) = (filling.page(), Wanted::default());
        page.iter().for_each(|text| text.want(uid, &mut wanted));
        let bodies = blob_list(&store.reader, tenant, &wanted).await?;
        page.try_map(|text| text.decode(uid, &bodies))
    })
    .await
}

/// Labels are kept inside the document, so those of one turn are read; a turn has few.
pub(super) async fn receipt_fetch(
    store: &SqliteStore,
    tenant: &TenantId,
    uid: RunUid,
    turn: u32,
    call_id: &CallId,
) -> Result<Option<Call>, StoreError> {
    once_more(|| async move {
        let rows: Vec<(String, String, Option<String>, Option<String>)> = sqlx::query_as(
            "SELECT body, input, output, blobs FROM calls \
             WHERE tenant_id = ?1 AND run_uid = ?2 AND turn = ?3 AND stage NOT IN ('rejected', 'proposed') ORDER BY pos",
        )
        .bind(tenant.as_str())
        .bind(uid.0)
        .bind(i64::from(turn))
        .fetch_all(&store.reader)
        .await?;
        for (body, input, output, blobs) in rows {
            let text = CallText::read(body, input, output, blobs.as_deref())?;
            if text.is_named(call_id)? {
                let mut wanted = Wanted::default();
                text.want(uid, &mut wanted);
                let bodies = blob_list(&store.reader, tenant, &wanted).await?;
                return text.decode(uid, &bodies).map(Some);
            }
        }
        Ok(None)
    })
    .await
}

pub(super) async fn client_call_find(
    store: &SqliteStore,
    tenant: &TenantId,
    uid: RunUid,
    call_id: &CallId,
    before: u32,
) -> Result<Option<CallKey>, StoreError> {
    let found: Option<(i64, i64)> = sqlx::query_as(
        "SELECT turn, pos FROM calls WHERE tenant_id = ?1 AND run_uid = ?2 AND client_label = ?3 AND turn < ?4 \
         ORDER BY turn DESC, pos LIMIT 1",
    )
    .bind(tenant.as_str())
    .bind(uid.0)
    .bind(label_column(call_id))
    .bind(i64::from(before))
    .fetch_optional(&store.reader)
    .await?;
    found.map(|(turn, pos)| codec::call_key(turn, pos)).transpose()
}

pub(super) async fn event_list(
    store: &SqliteStore,
    tenant: &TenantId,
    uid: RunUid,
    after: i64,
    limit: u32,
) -> Result<Page<StoredEvent>, StoreError> {
    once_more(|| async move {
        let mut rows = sqlx::query_as::<_, (i64, String, String, Option<String>)>(
            "SELECT seq, kind, body, blobs FROM events \
             WHERE tenant_id = ?1 AND run_uid = ?2 AND seq > ?3 ORDER BY seq LIMIT ?4 + 1",
        )
        .bind(tenant.as_str())
        .bind(uid.0)
        .bind(after)
        .bind(limit)
        .fetch(&store.reader);
        let mut filling = Filling::new(limit);
        while let Some((seq, kind, body, blobs)) = rows.try_next().await? {
            let text = Kept::alone(body, blobs.as_deref())?;
            if !filling.take(text.bytes(), (seq, kind, text)) {
                break;
            }
        }
        drop(rows);
        let (page, mut wanted) = (filling.page(), Wanted::default());
        page.iter().for_each(|(_, _, text)| wanted.add(uid, text));
        let bodies = blob_list(&store.reader, tenant, &wanted).await?;
        page.try_map(|(seq, kind, text)| Ok(StoredEvent { seq, kind, body: text.whole(uid, &bodies)? }))
    })
    .await
}

pub(super) async fn binding_list(
    store: &SqliteStore,
    tenant: &TenantId,
    uid: RunUid,
    after: u32,
    limit: u32,
) -> Result<Page<Binding>, StoreError> {
    let mut rows = sqlx::query_scalar::<_, String>(
        "SELECT body FROM bindings \
         WHERE tenant_id = ?1 AND run_uid = ?2 AND revision > ?3 ORDER BY revision LIMIT ?4 + 1",
    )
    .bind(tenant.as_str())
    .bind(uid.0)
    .bind(i64::from(after))
    .bind(i64::from(limit))
    .fetch(&store.reader);
    let mut filling = Filling::new(limit);
    while let Some(body) = rows.try_next().await? {
        if !filling.take(body.len(), body) {
            break;
        }
    }
    filling.page().try_map(|body| codec::decode("binding", &body))
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
