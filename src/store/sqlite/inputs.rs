//! Answers to servers' questions, left for the owner of the run.

use sqlx::SqliteExecutor;

use super::SqliteStore;
use crate::run::fact::InputAnswer;
use crate::run::ids::{RunUid, TenantId};
use crate::store::codec;
use crate::store::{Left, StoreError};

pub(super) async fn answer_leave(
    store: &SqliteStore,
    tenant: &TenantId,
    uid: RunUid,
    answer: &InputAnswer,
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
        "INSERT INTO inputs (tenant_id, run_uid, input_id, body) VALUES (?1, ?2, ?3, ?4) ON CONFLICT DO NOTHING",
    )
    .bind(tenant.as_str())
    .bind(uid.0)
    .bind(&answer.input_id)
    .bind(codec::encode("input answer", answer)?)
    .execute(&mut *tx)
    .await?;
    // The same one again is its caller asking again.
    if kept.rows_affected() == 0 && !answers_in(&mut *tx, tenant, uid).await?.contains(answer) {
        return Ok(Left::Decided);
    }
    tx.commit().await?;
    Ok(Left::Kept)
}

/// Every answer that was left about a run.
pub(super) async fn answers_in(
    executor: impl SqliteExecutor<'_>,
    tenant: &TenantId,
    uid: RunUid,
) -> Result<Vec<InputAnswer>, StoreError> {
    let rows: Vec<String> =
        sqlx::query_scalar("SELECT body FROM inputs WHERE tenant_id = ?1 AND run_uid = ?2 ORDER BY input_id")
            .bind(tenant.as_str())
            .bind(uid.0)
            .fetch_all(executor)
            .await?;
    rows.iter().map(|body| codec::decode("input answer", body)).collect()
}
