//! What administrators decide and look through: wishes for owners, calls across runs, the audit.

use futures::TryStreamExt as _;
use futures::stream::BoxStream;
use sqlx::sqlite::SqliteRow;
use sqlx::{Row, Sqlite, SqliteExecutor, Transaction};

use super::SqliteStore;
use super::reads::blob_list;
use super::{approvals, inputs, workers};
use crate::run::fact::Reconciliation;
use crate::run::ids::{RunId, RunUid, TenantId};
use crate::run::time::Timestamp;
use crate::store::blobs::Wanted;
use crate::store::calls::{CallText, FoundText};
use crate::store::codec::{self, AuditColumns};
use crate::store::page::{Filling, Page};
use crate::store::{
    AuditFilter, AuditRow, Claim, FoundCall, Left, PlaceInTime, ReceiptFilter, ReceiptPlace, StoreError, Wishes,
};

pub(super) async fn decision_leave(
    store: &SqliteStore,
    tenant: &TenantId,
    uid: RunUid,
    decided: &Reconciliation,
    since: Timestamp,
    audit: &AuditRow,
) -> Result<Left, StoreError> {
    let mut tx = store.write().await?;
    let owned = sqlx::query("UPDATE runs SET attention = true WHERE tenant_id = ?1 AND uid = ?2 AND owner IS NOT NULL")
        .bind(tenant.as_str())
        .bind(uid.0)
        .execute(&mut *tx)
        .await?;
    if owned.rows_affected() == 0 {
        return Ok(Left::NotOwned);
    }
    let kept = sqlx::query(
        "INSERT INTO decisions (tenant_id, run_uid, turn, pos, undecided_since, body) \
         SELECT tenant_id, run_uid, turn, pos, undecided_since, ?6 FROM calls \
         WHERE tenant_id = ?1 AND run_uid = ?2 AND turn = ?3 AND pos = ?4 AND undecided_since = ?5 \
         ON CONFLICT DO NOTHING",
    )
    .bind(tenant.as_str())
    .bind(uid.0)
    .bind(i64::from(decided.key.turn))
    .bind(i64::from(decided.key.position))
    .bind(since.as_millis())
    .bind(codec::encode("decision", decided)?)
    .execute(&mut *tx)
    .await?;
    if kept.rows_affected() == 1 {
        audit_insert(&mut tx, tenant, std::slice::from_ref(audit)).await?;
    } else if !left_in(&mut *tx, tenant, uid).await?.contains(&(since, decided.clone())) {
        // Another one was left before, or the call is not undecided. The same one again is its caller asking again.
        return Ok(Left::Decided);
    }
    tx.commit().await?;
    Ok(Left::Kept)
}

/// What was left and still answers the question that it was made about: each with since when the call is undecided.
async fn left_in(
    executor: impl SqliteExecutor<'_>,
    tenant: &TenantId,
    uid: RunUid,
) -> Result<Vec<(Timestamp, Reconciliation)>, StoreError> {
    let rows: Vec<(i64, String)> = sqlx::query_as(
        "SELECT d.undecided_since, d.body FROM decisions d JOIN calls c \
           ON c.tenant_id = d.tenant_id AND c.run_uid = d.run_uid AND c.turn = d.turn AND c.pos = d.pos \
           AND c.undecided_since = d.undecided_since \
         WHERE d.tenant_id = ?1 AND d.run_uid = ?2 ORDER BY d.turn, d.pos",
    )
    .bind(tenant.as_str())
    .bind(uid.0)
    .fetch_all(executor)
    .await?;
    let left = |(since, body): &(i64, String)| Ok((Timestamp::from_millis(*since), codec::decode("decision", body)?));
    rows.iter().map(left).collect()
}

pub(super) async fn left_list(
    store: &SqliteStore,
    tenant: &TenantId,
    uid: RunUid,
) -> Result<Vec<(Timestamp, Reconciliation)>, StoreError> {
    left_in(&store.reader, tenant, uid).await
}

pub(super) async fn wishes_take(store: &SqliteStore, claim: &Claim) -> Result<Wishes, StoreError> {
    let mut tx = store.write().await?;
    let cancel: Option<Option<String>> = sqlx::query_scalar(
        "UPDATE runs SET attention = false WHERE tenant_id = ?1 AND uid = ?2 AND fence = ?3 AND owner IS NOT NULL \
         RETURNING cancel_requested_by",
    )
    .bind(claim.tenant.as_str())
    .bind(claim.uid.0)
    .bind(claim.fence.0)
    .fetch_optional(&mut *tx)
    .await?;
    let Some(cancel) = cancel else { return Ok(Wishes::default()) };
    let decisions = left_in(&mut *tx, &claim.tenant, claim.uid).await?;
    let answers = inputs::answers_in(&mut *tx, &claim.tenant, claim.uid).await?;
    let fetched = workers::fetched_take(&mut tx, claim).await?;
    let votes = approvals::votes_in(&mut *tx, &claim.tenant, claim.uid).await?;
    tx.commit().await?;
    codec::wishes(cancel, decisions, answers, fetched, votes)
}

pub(super) async fn audit_insert(
    tx: &mut Transaction<'static, Sqlite>,
    tenant: &TenantId,
    rows: &[AuditRow],
) -> Result<(), StoreError> {
    for row in rows {
        sqlx::query(
            "INSERT INTO audit (tenant_id, at, id, actor, action, subject, run_id, detail) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
        )
        .bind(tenant.as_str())
        .bind(row.at.as_millis())
        .bind(row.id)
        .bind(row.actor.as_str())
        .bind(&row.action)
        .bind(&row.subject)
        .bind(row.run_id.as_ref().map(RunId::as_str))
        .bind(codec::encode("audit", &row.detail)?)
        .execute(&mut **tx)
        .await?;
    }
    Ok(())
}

/// The columns of a call with its run's name, which a receipt that outlived its run says itself.
macro_rules! select_found {
    () => {
        "SELECT COALESCE(c.run_id, r.id) AS id, c.run_uid, c.body, c.input, \
           c.output, c.blobs, r.uid IS NULL OR r.finished_at IS NOT NULL AS ended \
         FROM calls c LEFT JOIN runs r ON r.tenant_id = c.tenant_id AND r.uid = c.run_uid WHERE c.tenant_id = ?1 "
    };
}

/// The rows of a page, and then the blobs that they need.
async fn found_page(
    store: &SqliteStore,
    tenant: &TenantId,
    mut rows: BoxStream<'_, Result<SqliteRow, sqlx::Error>>,
    limit: u32,
) -> Result<Page<FoundCall>, StoreError> {
    let (mut filling, mut wanted) = (Filling::new(limit), Wanted::default());
    while let Some(row) = rows.try_next().await? {
        let text = found(&row)?;
        if !filling.take(text.call.bytes(), text) {
            break;
        }
    }
    drop(rows);
    let page = filling.page();
    page.iter().for_each(|text| text.call.want(text.uid, &mut wanted));
    let bodies = blob_list(&store.reader, tenant, &wanted).await?;
    page.try_map(|text| text.decode(&bodies))
}

pub(super) async fn undecided_list(
    store: &SqliteStore,
    tenant: &TenantId,
    after: Option<ReceiptPlace>,
    limit: u32,
) -> Result<Page<FoundCall>, StoreError> {
    let rows = sqlx::query(concat!(
        select_found!(),
        "AND c.undecided_since IS NOT NULL \
         AND (?2 IS NULL OR (c.undecided_since, c.run_uid, c.turn, c.pos) > (?2, ?3, ?4, ?5)) \
         ORDER BY c.undecided_since, c.run_uid, c.turn, c.pos LIMIT ?6 + 1"
    ))
    .bind(tenant.as_str())
    .bind(after.map(|place| place.at.as_millis()))
    .bind(after.map(|place| place.uid.0))
    .bind(after.map(|place| i64::from(place.key.turn)))
    .bind(after.map(|place| i64::from(place.key.position)))
    .bind(limit)
    .fetch(&store.reader);
    found_page(store, tenant, rows, limit).await
}

/// Unknown outcomes are few among many receipts: they have an index of their own, which only a condition that names
/// it can use.
macro_rules! search_receipts {
    ($condition:literal) => {
        concat!(
            select_found!(),
            $condition,
            "AND c.stage NOT IN ('rejected', 'proposed') AND (?2 IS NULL OR c.stage = ?2) \
             AND (?3 IS NULL OR r.status = ?3) AND (?4 IS NULL OR r.reason = ?4) \
             AND (?5 IS NULL OR c.created_at >= ?5) AND (?6 IS NULL OR c.created_at < ?6) \
             AND NOT EXISTS (SELECT 1 FROM json_each(?7) AS wanted WHERE NOT EXISTS ( \
               SELECT 1 FROM json_each(r.metadata) AS label \
               WHERE label.key = wanted.value ->> 0 AND label.value = wanted.value ->> 1)) \
             AND (?8 IS NULL OR (c.created_at, c.run_uid, c.turn, c.pos) < (?8, ?9, ?10, ?11)) \
             AND (?13 IS NULL OR (r.agent >= ?13 AND r.agent <= ?14)) \
             ORDER BY c.created_at DESC, c.run_uid DESC, c.turn DESC, c.pos DESC LIMIT ?12 + 1"
        )
    };
}

pub(super) async fn receipt_search(
    store: &SqliteStore,
    tenant: &TenantId,
    filter: &ReceiptFilter,
    after: Option<ReceiptPlace>,
    limit: u32,
) -> Result<Page<FoundCall>, StoreError> {
    let (first, last) = filter.run.agent_versions().unzip();
    let unknown = filter.stage.as_deref() == Some("indeterminate");
    let rows = sqlx::query(if unknown {
        search_receipts!("AND c.undecided_since IS NOT NULL ")
    } else {
        search_receipts!("")
    })
    .bind(tenant.as_str())
    .bind(filter.stage.as_deref())
    .bind(filter.run.status.as_deref())
    .bind(filter.run.reason.as_deref())
    .bind(filter.run.created_after.map(Timestamp::as_millis))
    .bind(filter.run.created_before.map(Timestamp::as_millis))
    .bind(codec::wanted_labels(&filter.run.metadata)?)
    .bind(after.map(|place| place.at.as_millis()))
    .bind(after.map(|place| place.uid.0))
    .bind(after.map(|place| i64::from(place.key.turn)))
    .bind(after.map(|place| i64::from(place.key.position)))
    .bind(limit)
    .bind(first)
    .bind(last)
    .fetch(&store.reader);
    found_page(store, tenant, rows, limit).await
}

fn found(row: &SqliteRow) -> Result<FoundText, StoreError> {
    let blobs: Option<String> = row.try_get("blobs")?;
    let call = CallText::read(row.try_get("body")?, row.try_get("input")?, row.try_get("output")?, blobs.as_deref())?;
    let id = row.try_get::<Option<String>, _>("id")?.and_then(RunId::parse);
    let (run_id, uid) = (codec::named("run id", id)?, RunUid(row.try_get("run_uid")?));
    Ok(FoundText { run_id, uid, ended: row.try_get("ended")?, call })
}

pub(super) async fn audit_list(
    store: &SqliteStore,
    tenant: &TenantId,
    filter: &AuditFilter,
    after: Option<PlaceInTime>,
    limit: u32,
) -> Result<Page<AuditRow>, StoreError> {
    let rows: Vec<AuditColumns> = sqlx::query_as(
        "SELECT at, id, actor, action, subject, run_id, detail FROM audit WHERE tenant_id = ?1 \
           AND (?2 IS NULL OR actor = ?2) AND (?3 IS NULL OR action = ?3) \
           AND (?4 IS NULL OR run_id = ?4) AND (?5 IS NULL OR (at, id) < (?5, ?6)) \
         ORDER BY at DESC, id DESC LIMIT ?7 + 1",
    )
    .bind(tenant.as_str())
    .bind(filter.actor.as_deref())
    .bind(filter.action.as_deref())
    .bind(filter.run_id.as_deref())
    .bind(after.map(|place| place.at.as_millis()))
    .bind(after.map(|place| place.id))
    .bind(limit)
    .fetch_all(&store.reader)
    .await?;
    let mut filling = Filling::new(limit);
    for row in rows {
        if !filling.take(row.6.len(), codec::audit_row(row)?) {
            break;
        }
    }
    Ok(filling.page())
}
