//! What readers see: views, lists, pages.

use futures::TryStreamExt as _;
use sqlx::postgres::PgRow;
use sqlx::{PgExecutor, Row};

use super::PostgresStore;
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
    executor: impl PgExecutor<'_>,
    tenant: &TenantId,
    wanted: &Wanted,
) -> Result<Bodies, StoreError> {
    let mut bodies = Bodies::default();
    if wanted.is_empty() {
        return Ok(bodies);
    }
    let (uids, digests): (Vec<uuid::Uuid>, Vec<&str>) = wanted.iter().map(|(uid, digest)| (uid.0, digest)).unzip();
    let rows: Vec<(uuid::Uuid, String, String)> = sqlx::query_as(
        "SELECT b.run_uid, b.digest, b.body FROM unnest($2::uuid[], $3::text[]) AS w (uid, digest) \
         CROSS JOIN LATERAL (SELECT run_uid, digest, body FROM blobs \
           WHERE tenant_id = $1 AND run_uid = w.uid AND digest = w.digest) AS b",
    )
    .bind(tenant.as_str())
    .bind(uids)
    .bind(digests)
    .fetch_all(executor)
    .await?;
    for (uid, digest, body) in rows {
        bodies.insert(RunUid(uid), digest, body);
    }
    Ok(bodies)
}

/// The columns of a view; the calls that wait for a person come along as arrays.
macro_rules! select_view {
    () => {
        "SELECT r.uid, r.id, r.spec::text AS spec, r.owner IS NOT NULL AS owned, r.binding_revision, r.status, \
           r.reason, r.revision, r.last_seq, r.attempt, r.crashes, r.state::text AS state, r.created_at, \
           r.updated_at, r.finished_at, b.body::text AS binding, u.bodies, u.inputs, u.blobs \
         FROM runs r \
         LEFT JOIN bindings b \
           ON b.tenant_id = r.tenant_id AND b.run_uid = r.uid AND b.revision = r.binding_revision \
         CROSS JOIN LATERAL ( \
           SELECT COALESCE(array_agg(c.body::text ORDER BY c.turn, c.pos), '{}') AS bodies, \
             COALESCE(array_agg(c.input::text ORDER BY c.turn, c.pos), '{}') AS inputs, \
             COALESCE(array_agg(c.blobs::text ORDER BY c.turn, c.pos), '{}') AS blobs \
           FROM calls c WHERE c.tenant_id = r.tenant_id AND c.run_uid = r.uid \
             AND (c.undecided_since IS NOT NULL OR c.worker_tool = '') \
         ) AS u WHERE r.tenant_id = $1 "
    };
}

pub(super) async fn run_fetch(
    store: &PostgresStore,
    tenant: &TenantId,
    id: &RunId,
) -> Result<Option<RunView>, StoreError> {
    once_more(|| async move {
        let row = sqlx::query(concat!(select_view!(), "AND r.id = $2"))
            .bind(tenant.as_str())
            .bind(id.as_str())
            .fetch_optional(&store.pool)
            .await?;
        let Some(text) = row.as_ref().map(view_text).transpose()? else { return Ok(None) };
        let mut wanted = Wanted::default();
        text.want(&mut wanted);
        let bodies = blob_list(&store.pool, tenant, &wanted).await?;
        text.decode(&bodies).map(Some)
    })
    .await
}

pub(super) async fn run_list(
    store: &PostgresStore,
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
            "AND ($2::text IS NULL OR r.status = $2) AND ($3::text IS NULL OR r.reason = $3) \
         AND ($4::bigint IS NULL OR r.created_at >= $4) AND ($5::bigint IS NULL OR r.created_at < $5) \
         AND NOT EXISTS (SELECT 1 FROM json_array_elements($6::json) AS wanted(pair) \
           WHERE r.metadata ->> (wanted.pair ->> 0) IS DISTINCT FROM wanted.pair ->> 1) \
         AND ($7::bigint IS NULL OR (r.created_at, r.uid) < ($7, $8)) \
         ",
            $condition,
            "ORDER BY r.created_at DESC, r.uid DESC LIMIT $9 + 1"
        )
    };
}

async fn run_page(
    store: &PostgresStore,
    tenant: &TenantId,
    filter: &RunFilter,
    after: Option<RunCursor>,
    limit: u32,
) -> Result<Page<RunView>, StoreError> {
    let agent = filter.agent_versions();
    let rows = sqlx::query(match agent {
        Some(_) => list_runs!("AND r.agent >= $10 AND r.agent <= $11 "),
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
    .bind(i64::from(limit));
    let rows = match agent {
        Some((first, last)) => rows.bind(first).bind(last),
        None => rows,
    };
    let mut rows = rows.fetch(&store.pool);
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
    let bodies = blob_list(&store.pool, tenant, &wanted).await?;
    page.try_map(|text| text.decode(&bodies))
}

fn view_text(row: &PgRow) -> Result<ViewText, StoreError> {
    let (id, spec, state): (String, String, String) = (row.try_get("id")?, row.try_get("spec")?, row.try_get("state")?);
    let (bodies, inputs): (Vec<String>, Vec<String>) = (row.try_get("bodies")?, row.try_get("inputs")?);
    let blobs: Vec<Option<String>> = row.try_get("blobs")?;
    let binding = codec::named("binding", row.try_get::<Option<String>, _>("binding")?)?;
    let bytes = spec.len() + state.len() + binding.len();
    let binding: Binding = codec::decode("binding", &binding)?;
    let calls = bodies.into_iter().zip(inputs).zip(&blobs);
    let calls = calls.map(|((body, input), blobs)| CallText::read(body, input, None, blobs.as_deref()));
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
pub(super) async fn run_bytes(store: &PostgresStore, tenant: &TenantId, uid: RunUid) -> Result<u64, StoreError> {
    let bytes: i64 = sqlx::query_scalar(
        "SELECT COALESCE(sum(octet_length(t.body) + COALESCE(octet_length(t.input), 0) \
             + COALESCE(octet_length(t.output), 0) \
             + (SELECT COALESCE(sum((b.value ->> 'bytes')::bigint), 0) FROM json_each(t.blobs) AS b)), 0)::bigint \
         FROM (SELECT body::text, NULL AS input, NULL AS output, blobs FROM messages \
             WHERE tenant_id = $1 AND run_uid = $2 \
           UNION ALL SELECT body::text, input::text, output::text, blobs FROM calls \
             WHERE tenant_id = $1 AND run_uid = $2 AND (undecided_since IS NOT NULL \
               OR turn = (SELECT max(turn) FROM calls WHERE tenant_id = $1 AND run_uid = $2))) AS t",
    )
    .bind(tenant.as_str())
    .bind(uid.0)
    .fetch_one(&store.pool)
    .await?;
    u64::try_from(bytes).map_err(|fault| codec::corrupt("bytes", fault))
}

pub(super) async fn message_list(
    store: &PostgresStore,
    tenant: &TenantId,
    uid: RunUid,
    from: u32,
    limit: u32,
) -> Result<Page<Message>, StoreError> {
    once_more(|| async move {
        let mut rows = sqlx::query_as::<_, (String, Option<String>)>(
            "SELECT body::text, blobs::text FROM messages \
             WHERE tenant_id = $1 AND run_uid = $2 AND pos >= $3 ORDER BY pos LIMIT $4 + 1",
        )
        .bind(tenant.as_str())
        .bind(uid.0)
        .bind(i64::from(from))
        .bind(i64::from(limit))
        .fetch(&store.pool);
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
        let bodies = blob_list(&store.pool, tenant, &wanted).await?;
        page.try_map(|text| codec::message(uid, text, &bodies))
    })
    .await
}

pub(super) async fn receipt_list(
    store: &PostgresStore,
    tenant: &TenantId,
    uid: RunUid,
    after: Option<(u32, u32)>,
    limit: u32,
) -> Result<Page<Call>, StoreError> {
    once_more(|| async move {
        let mut rows = sqlx::query_as::<_, (String, String, Option<String>, Option<String>)>(
            "SELECT body::text, input::text, output::text, blobs::text FROM calls \
             WHERE tenant_id = $1 AND run_uid = $2 AND stage NOT IN ('rejected', 'proposed') AND (turn, pos) > ($3, $4) \
             ORDER BY turn, pos LIMIT $5 + 1",
        )
        .bind(tenant.as_str())
        .bind(uid.0)
        .bind(after.map_or(-1, |(turn, _)| i64::from(turn)))
        .bind(after.map_or(-1, |(_, position)| i64::from(position)))
        .bind(i64::from(limit))
        .fetch(&store.pool);
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
        let bodies = blob_list(&store.pool, tenant, &wanted).await?;
        page.try_map(|text| text.decode(uid, &bodies))
    })
    .await
}

/// Labels are kept inside the document, so those of one turn are read; a turn has few.
pub(super) async fn receipt_fetch(
    store: &PostgresStore,
    tenant: &TenantId,
    uid: RunUid,
    turn: u32,
    call_id: &CallId,
) -> Result<Option<Call>, StoreError> {
    once_more(|| async move {
        let rows: Vec<(String, String, Option<String>, Option<String>)> = sqlx::query_as(
            "SELECT body::text, input::text, output::text, blobs::text FROM calls \
             WHERE tenant_id = $1 AND run_uid = $2 AND turn = $3 AND stage NOT IN ('rejected', 'proposed') ORDER BY pos",
        )
        .bind(tenant.as_str())
        .bind(uid.0)
        .bind(i64::from(turn))
        .fetch_all(&store.pool)
        .await?;
        for (body, input, output, blobs) in rows {
            let text = CallText::read(body, input, output, blobs.as_deref())?;
            if text.is_named(call_id)? {
                let mut wanted = Wanted::default();
                text.want(uid, &mut wanted);
                let bodies = blob_list(&store.pool, tenant, &wanted).await?;
                return text.decode(uid, &bodies).map(Some);
            }
        }
        Ok(None)
    })
    .await
}

pub(super) async fn client_call_find(
    store: &PostgresStore,
    tenant: &TenantId,
    uid: RunUid,
    call_id: &CallId,
    before: u32,
) -> Result<Option<CallKey>, StoreError> {
    let found: Option<(i64, i64)> = sqlx::query_as(
        "SELECT turn, pos FROM calls WHERE tenant_id = $1 AND run_uid = $2 AND client_label = $3 AND turn < $4 \
         ORDER BY turn DESC, pos LIMIT 1",
    )
    .bind(tenant.as_str())
    .bind(uid.0)
    .bind(label_column(call_id))
    .bind(i64::from(before))
    .fetch_optional(&store.pool)
    .await?;
    found.map(|(turn, pos)| codec::call_key(turn, pos)).transpose()
}

pub(super) async fn event_list(
    store: &PostgresStore,
    tenant: &TenantId,
    uid: RunUid,
    after: i64,
    limit: u32,
) -> Result<Page<StoredEvent>, StoreError> {
    once_more(|| async move {
        let mut rows = sqlx::query_as::<_, (i64, String, String, Option<String>)>(
            "SELECT seq, kind, body::text, blobs::text FROM events \
             WHERE tenant_id = $1 AND run_uid = $2 AND seq > $3 ORDER BY seq LIMIT $4 + 1",
        )
        .bind(tenant.as_str())
        .bind(uid.0)
        .bind(after)
        .bind(i64::from(limit))
        .fetch(&store.pool);
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
        let bodies = blob_list(&store.pool, tenant, &wanted).await?;
        page.try_map(|(seq, kind, text)| Ok(StoredEvent { seq, kind, body: text.whole(uid, &bodies)? }))
    })
    .await
}

pub(super) async fn binding_list(
    store: &PostgresStore,
    tenant: &TenantId,
    uid: RunUid,
    after: u32,
    limit: u32,
) -> Result<Page<Binding>, StoreError> {
    let mut rows = sqlx::query_scalar::<_, String>(
        "SELECT body::text FROM bindings \
         WHERE tenant_id = $1 AND run_uid = $2 AND revision > $3 ORDER BY revision LIMIT $4 + 1",
    )
    .bind(tenant.as_str())
    .bind(uid.0)
    .bind(i64::from(after))
    .bind(i64::from(limit))
    .fetch(&store.pool);
    let mut filling = Filling::new(limit);
    while let Some(body) = rows.try_next().await? {
        if !filling.take(body.len(), body) {
            break;
        }
    }
    filling.page().try_map(|body| codec::decode("binding", &body))
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
