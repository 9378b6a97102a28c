//! Secrets and registered servers of a tenant.

use async_trait::async_trait;
use futures::TryStreamExt as _;
use sqlx::Row as _;
use sqlx::sqlite::SqliteRow;

use super::SqliteStore;
use super::admin::audit_insert;
use super::sealed::{sealed_list, sealed_replace, stored_secret_samples};
use super::tokens::tokens_of_secret_forget;
use crate::run::ids::TenantId;
use crate::store::page::{Filling, Page};
use crate::store::registry::{
    RegisteredServer, Registration, RegistryStore, SealedPlace, SealedRow, SecretColumns, SecretDeletion, SecretInfo,
    ServerColumns, ServerPut, StoredSecret, registered_server, secret_of, stored_secret,
};
use crate::store::{AuditRow, StoreError, codec};

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
    tokens_of_secret_forget(&mut tx, tenant, &info.name).await?;
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
    tokens_of_secret_forget(&mut tx, tenant, name).await?;
    audit_insert(&mut tx, tenant, std::slice::from_ref(audit)).await?;
    tx.commit().await?;
    Ok(SecretDeletion::Deleted)
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
