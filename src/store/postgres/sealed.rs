//! Sealed values of all tenants: what a start-up check must open, and what a rotation seals anew.

use super::PostgresStore;
use crate::run::ids::TenantId;
use crate::store::registry::{SealedPlace, SealedRow, StoredSecret, sealed_of_run, sealed_of_tenant, stored_secret};
use crate::store::{SealedSecret, StoreError, codec};

pub(super) async fn stored_secret_samples(store: &PostgresStore) -> Result<Vec<(TenantId, StoredSecret)>, StoreError> {
    let rows: Vec<(String, String, i64, String, Vec<u8>)> = sqlx::query_as(
        "SELECT DISTINCT ON (key_id) tenant_id, name, version, key_id, sealed FROM secrets ORDER BY key_id",
    )
    .fetch_all(&store.pool)
    .await?;
    let sample = |(tenant, name, version, key_id, sealed): (String, String, i64, String, Vec<u8>)| {
        let tenant = codec::named("tenant", TenantId::parse(tenant))?;
        Ok((tenant, stored_secret((name, version, key_id, sealed, "[]".to_owned(), 0, 0))?))
    };
    rows.into_iter().map(sample).collect()
}

pub(super) async fn sealed_list(
    store: &PostgresStore,
    key_id: &str,
    after: Option<&SealedPlace>,
    limit: u32,
) -> Result<Vec<SealedRow>, StoreError> {
    let mut found = Vec::new();
    if !matches!(after, Some(SealedPlace::Stored { .. })) {
        found = sealed_of_runs(store, key_id, after, limit).await?;
    }
    let left = i64::from(limit).saturating_sub(i64::try_from(found.len()).unwrap_or(i64::MAX));
    if left <= 0 {
        return Ok(found);
    }
    let after = match after {
        Some(SealedPlace::Stored { tenant, name, .. }) => Some((tenant.as_str(), name.as_str())),
        Some(SealedPlace::Run { .. }) | None => None,
    };
    let rows: Vec<(String, String, i64, String, Vec<u8>)> = sqlx::query_as(
        "SELECT tenant_id, name, version, key_id, sealed FROM secrets WHERE key_id <> $1 \
           AND ($2::text IS NULL OR (tenant_id, name) > ($2, $3)) ORDER BY tenant_id, name LIMIT $4",
    )
    .bind(key_id)
    .bind(after.map(|(tenant, _)| tenant))
    .bind(after.map(|(_, name)| name))
    .bind(left)
    .fetch_all(&store.pool)
    .await?;
    for (tenant, name, version, key_id, sealed) in rows {
        found.push(sealed_of_tenant(tenant, version, SealedSecret { name, key_id, sealed })?);
    }
    Ok(found)
}

async fn sealed_of_runs(
    store: &PostgresStore,
    key_id: &str,
    after: Option<&SealedPlace>,
    limit: u32,
) -> Result<Vec<SealedRow>, StoreError> {
    let after = match after {
        Some(SealedPlace::Run { tenant, uid, name }) => Some((tenant.as_str(), uid.0, name.as_str())),
        Some(SealedPlace::Stored { .. }) | None => None,
    };
    let rows: Vec<(String, uuid::Uuid, String, String, Vec<u8>)> = sqlx::query_as(
        "SELECT tenant_id, run_uid, name, key_id, sealed FROM run_secrets WHERE key_id <> $1 \
           AND ($2::text IS NULL OR (tenant_id, run_uid, name) > ($2, $3, $4)) \
         ORDER BY tenant_id, run_uid, name LIMIT $5",
    )
    .bind(key_id)
    .bind(after.map(|(tenant, _, _)| tenant))
    .bind(after.map(|(_, uid, _)| uid))
    .bind(after.map(|(_, _, name)| name))
    .bind(i64::from(limit))
    .fetch_all(&store.pool)
    .await?;
    let sealed = |(tenant, uid, name, key_id, sealed): (String, uuid::Uuid, String, String, Vec<u8>)| {
        sealed_of_run(tenant, uid, SealedSecret { name, key_id, sealed })
    };
    rows.into_iter().map(sealed).collect()
}

/// The old bytes are compared: whatever was put meanwhile, also under the same version, stays.
pub(super) async fn sealed_replace(
    store: &PostgresStore,
    old: &SealedRow,
    key_id: &str,
    sealed: &[u8],
) -> Result<bool, StoreError> {
    let replacing = match &old.place {
        SealedPlace::Run { tenant, uid, name } => sqlx::query(
            "UPDATE run_secrets SET key_id = $4, sealed = $5 \
             WHERE tenant_id = $1 AND run_uid = $2 AND name = $3 AND key_id = $6 AND sealed = $7",
        )
        .bind(tenant.as_str())
        .bind(uid.0)
        .bind(name),
        SealedPlace::Stored { tenant, name, version } => sqlx::query(
            "UPDATE secrets SET key_id = $4, sealed = $5 \
             WHERE tenant_id = $1 AND name = $2 AND version = $3 AND key_id = $6 AND sealed = $7",
        )
        .bind(tenant.as_str())
        .bind(name)
        .bind(i64::from(*version)),
    };
    let replaced = replacing.bind(key_id).bind(sealed).bind(&old.key_id).bind(&old.sealed).execute(&store.pool).await?;
    Ok(replaced.rows_affected() == 1)
}
