//! Secrets and registered servers of a tenant, and what re-sealing reads and writes.

use async_trait::async_trait;
use futures::TryStreamExt as _;
use sqlx::Row as _;
use sqlx::sqlite::SqliteRow;

use super::SqliteStore;
use super::admin::audit_insert;
use crate::run::ids::TenantId;
use crate::store::page::{Filling, Page};
use crate::store::registry::{
    RegisteredServer, Registration, RegistryStore, SealedPlace, SealedRow, SecretColumns, SecretDeletion, SecretInfo,
    ServerColumns, ServerPut, StoredSecret, registered_server, sealed_of_run, sealed_of_tenant, secret_of,
    stored_secret,
};
use crate::store::{AuditRow, SealedSecret, StoreError, codec};

#[async_trait]
impl RegistryStore for SqliteStore {
    async fn stored_secret_put(
        &self,
        tenant: &TenantId,
        secret: &StoredSecret,
        audit: &AuditRow,
    ) -> Result<bool, StoreError> {
        stored_secret_put(self, tenant, secret, audit).await
    }

    async fn stored_secret_fetch(&self, tenant: &TenantId, name: &str) -> Result<Option<StoredSecret>, StoreError> {
        stored_secret_fetch(self, tenant, name).await
    }

    async fn stored_secret_list(
        &self,
        tenant: &TenantId,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Page<SecretInfo>, StoreError> {
        stored_secret_list(self, tenant, after, limit).await
    }

    async fn stored_secret_delete(
        &self,
        tenant: &TenantId,
        name: &str,
        audit: &AuditRow,
    ) -> Result<SecretDeletion, StoreError> {
        stored_secret_delete(self, tenant, name, audit).await
    }

    async fn server_put(
        &self,
        tenant: &TenantId,
        name: &str,
        registration: &Registration,
        audit: &AuditRow,
    ) -> Result<ServerPut, StoreError> {
        server_put(self, tenant, name, registration, audit).await
    }

    async fn server_fetch(
        &self,
        tenant: &TenantId,
        name: &str,
    ) -> Result<Option<(RegisteredServer, Option<StoredSecret>)>, StoreError> {
        server_fetch(self, tenant, name).await
    }

    async fn server_list(
        &self,
        tenant: &TenantId,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Page<RegisteredServer>, StoreError> {
        server_list(self, tenant, after, limit).await
    }

    async fn server_delete(&self, tenant: &TenantId, name: &str, audit: &AuditRow) -> Result<bool, StoreError> {
        server_delete(self, tenant, name, audit).await
    }

    async fn stored_secret_samples(&self) -> Result<Vec<(TenantId, StoredSecret)>, StoreError> {
        stored_secret_samples(self).await
    }

    async fn sealed_list(
        &self,
        key_id: &str,
        after: Option<&SealedPlace>,
        limit: u32,
    ) -> Result<Vec<SealedRow>, StoreError> {
        sealed_list(self, key_id, after, limit).await
    }

    async fn sealed_replace(&self, old: &SealedRow, key_id: &str, sealed: &[u8]) -> Result<bool, StoreError> {
        sealed_replace(self, old, key_id, sealed).await
    }
}

async fn stored_secret_put(
    store: &SqliteStore,
    tenant: &TenantId,
    secret: &StoredSecret,
    audit: &AuditRow,
) -> Result<bool, StoreError> {
    let mut tx = store.write().await?;
    let StoredSecret { info, sealed } = secret;
    // A version follows the one before it and no other: of two puts at once one reads again.
    let stored = sqlx::query(
        "INSERT INTO secrets AS s (tenant_id, name, version, key_id, sealed, hosts, created_at, updated_at) \
         SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8 \
         WHERE ?3 = 1 OR EXISTS (SELECT 1 FROM secrets WHERE tenant_id = ?1 AND name = ?2) \
         ON CONFLICT (tenant_id, name) DO UPDATE SET version = excluded.version, key_id = excluded.key_id, \
           sealed = excluded.sealed, hosts = excluded.hosts, updated_at = excluded.updated_at \
         WHERE s.version = excluded.version - 1",
    )
    .bind(tenant.as_str())
    .bind(&info.name)
    .bind(i64::from(info.version))
    .bind(&info.key_id)
    .bind(sealed)
    .bind(codec::json_text("hosts", &info.hosts)?)
    .bind(info.created_at.as_millis())
    .bind(info.updated_at.as_millis())
    .execute(&mut *tx)
    .await?;
    if stored.rows_affected() == 0 {
        return Ok(false);
    }
    audit_insert(&mut tx, tenant, std::slice::from_ref(audit)).await?;
    tx.commit().await?;
    Ok(true)
}

async fn stored_secret_fetch(
    store: &SqliteStore,
    tenant: &TenantId,
    name: &str,
) -> Result<Option<StoredSecret>, StoreError> {
    let row: Option<SecretColumns> = sqlx::query_as(
        "SELECT name, version, key_id, sealed, hosts, created_at, updated_at FROM secrets \
         WHERE tenant_id = ?1 AND name = ?2",
    )
    .bind(tenant.as_str())
    .bind(name)
    .fetch_optional(&store.reader)
    .await?;
    row.map(stored_secret).transpose()
}

async fn stored_secret_list(
    store: &SqliteStore,
    tenant: &TenantId,
    after: Option<&str>,
    limit: u32,
) -> Result<Page<SecretInfo>, StoreError> {
    let rows: Vec<SecretColumns> = sqlx::query_as(
        "SELECT name, version, key_id, x'', hosts, created_at, updated_at FROM secrets \
         WHERE tenant_id = ?1 AND (?2 IS NULL OR name > ?2) ORDER BY name LIMIT ?3 + 1",
    )
    .bind(tenant.as_str())
    .bind(after)
    .bind(i64::from(limit))
    .fetch_all(&store.reader)
    .await?;
    let mut filling = Filling::new(limit);
    for row in rows {
        let bytes = row.4.len();
        if !filling.take(bytes, stored_secret(row)?.info) {
            break;
        }
    }
    Ok(filling.page())
}

async fn stored_secret_delete(
    store: &SqliteStore,
    tenant: &TenantId,
    name: &str,
    audit: &AuditRow,
) -> Result<SecretDeletion, StoreError> {
    let mut tx = store.write().await?;
    let users: Vec<String> =
        sqlx::query_scalar("SELECT name FROM mcp_servers WHERE tenant_id = ?1 AND secret = ?2 ORDER BY name LIMIT 100")
            .bind(tenant.as_str())
            .bind(name)
            .fetch_all(&mut *tx)
            .await?;
    if !users.is_empty() {
        return Ok(SecretDeletion::UsedBy(users));
    }
    let gone = sqlx::query("DELETE FROM secrets WHERE tenant_id = ?1 AND name = ?2")
        .bind(tenant.as_str())
        .bind(name)
        .execute(&mut *tx)
        .await?;
    if gone.rows_affected() == 0 {
        return Ok(SecretDeletion::Missing);
    }
    audit_insert(&mut tx, tenant, std::slice::from_ref(audit)).await?;
    tx.commit().await?;
    Ok(SecretDeletion::Deleted)
}

async fn stored_secret_samples(store: &SqliteStore) -> Result<Vec<(TenantId, StoredSecret)>, StoreError> {
    let rows: Vec<(String, String, i64, String, Vec<u8>)> =
        sqlx::query_as("SELECT tenant_id, name, version, key_id, sealed FROM secrets GROUP BY key_id")
            .fetch_all(&store.reader)
            .await?;
    let sample = |(tenant, name, version, key_id, sealed): (String, String, i64, String, Vec<u8>)| {
        let tenant = codec::named("tenant", TenantId::parse(tenant))?;
        Ok((tenant, stored_secret((name, version, key_id, sealed, "[]".to_owned(), 0, 0))?))
    };
    rows.into_iter().map(sample).collect()
}

async fn server_put(
    store: &SqliteStore,
    tenant: &TenantId,
    name: &str,
    registration: &Registration,
    audit: &AuditRow,
) -> Result<ServerPut, StoreError> {
    let mut tx = store.write().await?;
    let secret = secret_of(registration);
    if let Some(secret) = secret {
        let kept: Option<i64> = sqlx::query_scalar("SELECT version FROM secrets WHERE tenant_id = ?1 AND name = ?2")
            .bind(tenant.as_str())
            .bind(secret)
            .fetch_optional(&mut *tx)
            .await?;
        if kept.is_none() {
            return Ok(ServerPut::NoSecret);
        }
    }
    let row: ServerColumns = sqlx::query_as(
        "INSERT INTO mcp_servers AS m (tenant_id, name, version, secret, body, created_at, updated_at) \
         VALUES (?1, ?2, 1, ?3, ?4, ?5, ?5) \
         ON CONFLICT (tenant_id, name) DO UPDATE SET version = m.version + 1, secret = excluded.secret, \
           body = excluded.body, updated_at = excluded.updated_at \
         RETURNING name, version, body, created_at, updated_at",
    )
    .bind(tenant.as_str())
    .bind(name)
    .bind(secret)
    .bind(codec::encode("server", registration)?)
    .bind(audit.at.as_millis())
    .fetch_one(&mut *tx)
    .await?;
    let server = registered_server(row)?;
    audit_insert(&mut tx, tenant, std::slice::from_ref(audit)).await?;
    tx.commit().await?;
    Ok(ServerPut::Stored(Box::new(server)))
}

type Joined = (ServerColumns, Option<SecretColumns>);

async fn server_fetch(
    store: &SqliteStore,
    tenant: &TenantId,
    name: &str,
) -> Result<Option<(RegisteredServer, Option<StoredSecret>)>, StoreError> {
    let row = sqlx::query(
        "SELECT m.name, m.version, m.body AS body, m.created_at, m.updated_at, s.name AS secret, \
           s.version AS secret_version, s.key_id, s.sealed, s.hosts AS hosts, s.created_at AS secret_created_at, \
           s.updated_at AS secret_updated_at \
         FROM mcp_servers m LEFT JOIN secrets s ON s.tenant_id = m.tenant_id AND s.name = m.secret \
         WHERE m.tenant_id = ?1 AND m.name = ?2",
    )
    .bind(tenant.as_str())
    .bind(name)
    .fetch_optional(&store.reader)
    .await?;
    let Some(row) = row else { return Ok(None) };
    let (server, secret) = joined(&row)?;
    Ok(Some((registered_server(server)?, secret.map(stored_secret).transpose()?)))
}

fn joined(row: &SqliteRow) -> Result<Joined, StoreError> {
    let server = (
        row.try_get("name")?,
        row.try_get("version")?,
        row.try_get("body")?,
        row.try_get("created_at")?,
        row.try_get("updated_at")?,
    );
    let Some(name) = row.try_get::<Option<String>, _>("secret")? else { return Ok((server, None)) };
    let secret = (
        name,
        row.try_get("secret_version")?,
        row.try_get("key_id")?,
        row.try_get("sealed")?,
        row.try_get("hosts")?,
        row.try_get("secret_created_at")?,
        row.try_get("secret_updated_at")?,
    );
    Ok((server, Some(secret)))
}

async fn server_list(
    store: &SqliteStore,
    tenant: &TenantId,
    after: Option<&str>,
    limit: u32,
) -> Result<Page<RegisteredServer>, StoreError> {
    let mut rows = sqlx::query_as::<_, ServerColumns>(
        "SELECT name, version, body, created_at, updated_at FROM mcp_servers \
         WHERE tenant_id = ?1 AND (?2 IS NULL OR name > ?2) ORDER BY name LIMIT ?3 + 1",
    )
    .bind(tenant.as_str())
    .bind(after)
    .bind(i64::from(limit))
    .fetch(&store.reader);
    let mut filling = Filling::new(limit);
    while let Some(row) = rows.try_next().await? {
        let bytes = row.2.len();
        if !filling.take(bytes, registered_server(row)?) {
            break;
        }
    }
    Ok(filling.page())
}

async fn server_delete(
    store: &SqliteStore,
    tenant: &TenantId,
    name: &str,
    audit: &AuditRow,
) -> Result<bool, StoreError> {
    let mut tx = store.write().await?;
    let gone = sqlx::query("DELETE FROM mcp_servers WHERE tenant_id = ?1 AND name = ?2")
        .bind(tenant.as_str())
        .bind(name)
        .execute(&mut *tx)
        .await?;
    if gone.rows_affected() == 0 {
        return Ok(false);
    }
    audit_insert(&mut tx, tenant, std::slice::from_ref(audit)).await?;
    tx.commit().await?;
    Ok(true)
}

async fn sealed_list(
    store: &SqliteStore,
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
        "SELECT tenant_id, name, version, key_id, sealed FROM secrets WHERE key_id <> ?1 \
           AND (?2 IS NULL OR (tenant_id, name) > (?2, ?3)) ORDER BY tenant_id, name LIMIT ?4",
    )
    .bind(key_id)
    .bind(after.map(|(tenant, _)| tenant))
    .bind(after.map(|(_, name)| name))
    .bind(left)
    .fetch_all(&store.reader)
    .await?;
    for (tenant, name, version, key_id, sealed) in rows {
        found.push(sealed_of_tenant(tenant, version, SealedSecret { name, key_id, sealed })?);
    }
    Ok(found)
}

async fn sealed_of_runs(
    store: &SqliteStore,
    key_id: &str,
    after: Option<&SealedPlace>,
    limit: u32,
) -> Result<Vec<SealedRow>, StoreError> {
    let after = match after {
        Some(SealedPlace::Run { tenant, uid, name }) => Some((tenant.as_str(), uid.0, name.as_str())),
        Some(SealedPlace::Stored { .. }) | None => None,
    };
    let rows: Vec<(String, uuid::Uuid, String, String, Vec<u8>)> = sqlx::query_as(
        "SELECT tenant_id, run_uid, name, key_id, sealed FROM run_secrets WHERE key_id <> ?1 \
           AND (?2 IS NULL OR (tenant_id, run_uid, name) > (?2, ?3, ?4)) \
         ORDER BY tenant_id, run_uid, name LIMIT ?5",
    )
    .bind(key_id)
    .bind(after.map(|(tenant, _, _)| tenant))
    .bind(after.map(|(_, uid, _)| uid))
    .bind(after.map(|(_, _, name)| name))
    .bind(i64::from(limit))
    .fetch_all(&store.reader)
    .await?;
    let sealed = |(tenant, uid, name, key_id, sealed): (String, uuid::Uuid, String, String, Vec<u8>)| {
        sealed_of_run(tenant, uid, SealedSecret { name, key_id, sealed })
    };
    rows.into_iter().map(sealed).collect()
}

/// The old bytes are compared: whatever was put meanwhile, also under the same version, stays.
async fn sealed_replace(store: &SqliteStore, old: &SealedRow, key_id: &str, sealed: &[u8]) -> Result<bool, StoreError> {
    let replacing = match &old.place {
        SealedPlace::Run { tenant, uid, name } => sqlx::query(
            "UPDATE run_secrets SET key_id = ?4, sealed = ?5 \
             WHERE tenant_id = ?1 AND run_uid = ?2 AND name = ?3 AND key_id = ?6 AND sealed = ?7",
        )
        .bind(tenant.as_str())
        .bind(uid.0)
        .bind(name),
        SealedPlace::Stored { tenant, name, version } => sqlx::query(
            "UPDATE secrets SET key_id = ?4, sealed = ?5 \
             WHERE tenant_id = ?1 AND name = ?2 AND version = ?3 AND key_id = ?6 AND sealed = ?7",
        )
        .bind(tenant.as_str())
        .bind(name)
        .bind(i64::from(*version)),
    };
    let replaced =
        replacing.bind(key_id).bind(sealed).bind(&old.key_id).bind(&old.sealed).execute(&store.writer).await?;
    Ok(replaced.rows_affected() == 1)
}
