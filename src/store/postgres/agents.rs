//! Agents of a tenant.

use async_trait::async_trait;
use futures::TryStreamExt as _;
use sqlx::{PgExecutor, Postgres, Transaction};

use super::admin::audit_insert;
use super::{PostgresStore, SteadyPostgres};
use crate::run::agent::AgentName;
use crate::run::ids::TenantId;
use crate::store::agents::{
    Agent, AgentColumns, AgentStore, AgentVersion, Deployed, Deployment, DeploymentColumns, Published, Target,
    VersionColumns, agent, deployment, next_deployment, version,
};
use crate::store::page::{Filling, Page};
use crate::store::{AuditRow, StoreError, codec};

#[async_trait]
impl AgentStore for SteadyPostgres {
    async fn version_publish(
        &self,
        tenant: &TenantId,
        version: &AgentVersion,
        audit: &AuditRow,
    ) -> Result<Published, StoreError> {
        let store = self.now();
        self.within(&store, version_publish(&store, tenant, version, audit)).await
    }

    async fn version_fetch(
        &self,
        tenant: &TenantId,
        agent: &AgentName,
        version: &str,
    ) -> Result<Option<AgentVersion>, StoreError> {
        let store = self.now();
        self.within(&store, version_fetch(&store, tenant, agent, version)).await
    }

    async fn version_list(
        &self,
        tenant: &TenantId,
        agent: &AgentName,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Page<AgentVersion>, StoreError> {
        let store = self.now();
        self.within(&store, version_list(&store, tenant, agent, after, limit)).await
    }

    async fn version_deprecate(
        &self,
        tenant: &TenantId,
        agent: &AgentName,
        version: &str,
        audit: &AuditRow,
    ) -> Result<Option<AgentVersion>, StoreError> {
        let store = self.now();
        self.within(&store, version_deprecate(&store, tenant, agent, version, audit)).await
    }

    async fn agent_fetch(&self, tenant: &TenantId, agent: &AgentName) -> Result<Option<Agent>, StoreError> {
        let store = self.now();
        self.within(&store, agent_fetch(&store, tenant, agent)).await
    }

    async fn agent_list(
        &self,
        tenant: &TenantId,
        after: Option<&AgentName>,
        limit: u32,
    ) -> Result<Page<Agent>, StoreError> {
        let store = self.now();
        self.within(&store, agent_list(&store, tenant, after, limit)).await
    }

    async fn deployment_add(
        &self,
        tenant: &TenantId,
        agent: &AgentName,
        target: &Target,
        audit: &AuditRow,
    ) -> Result<Deployed, StoreError> {
        let store = self.now();
        self.within(&store, deployment_add(&store, tenant, agent, target, audit)).await
    }

    async fn deployment_list(
        &self,
        tenant: &TenantId,
        agent: &AgentName,
        before: Option<u32>,
        limit: u32,
    ) -> Result<Page<Deployment>, StoreError> {
        let store = self.now();
        self.within(&store, deployment_list(&store, tenant, agent, before, limit)).await
    }
}

async fn version_publish(
    store: &PostgresStore,
    tenant: &TenantId,
    published: &AgentVersion,
    audit: &AuditRow,
) -> Result<Published, StoreError> {
    let name = &published.agent;
    let mut tx = store.pool.begin().await?;
    sqlx::query(
        "INSERT INTO agents (tenant_id, namespace, name, created_at, updated_at) VALUES ($1, $2, $3, $4, $4) \
         ON CONFLICT (tenant_id, namespace, name) DO UPDATE SET updated_at = excluded.updated_at",
    )
    .bind(tenant.as_str())
    .bind(&name.namespace)
    .bind(&name.name)
    .bind(audit.at.as_millis())
    .execute(&mut *tx)
    .await?;
    let stored = sqlx::query(
        "INSERT INTO agent_versions (tenant_id, namespace, name, version, digest, body, published_by, published_at) \
         VALUES ($1, $2, $3, $4, $5, $6::json, $7, $8) ON CONFLICT (tenant_id, namespace, name, version) DO NOTHING",
    )
    .bind(tenant.as_str())
    .bind(&name.namespace)
    .bind(&name.name)
    .bind(&published.version)
    .bind(&published.digest)
    .bind(codec::encode("agent version", &published.manifest)?)
    .bind(published.published_by.as_str())
    .bind(published.published_at.as_millis())
    .execute(&mut *tx)
    .await?;
    if stored.rows_affected() == 0 {
        let known = version_select(&mut *tx, tenant, name, &published.version).await?;
        // Dropped without a commit: nothing has changed.
        return Ok(match known {
            Some(known) if known.digest == published.digest => Published::Same(Box::new(known)),
            Some(_) | None => Published::Other,
        });
    }
    audit_insert(&mut tx, tenant, std::slice::from_ref(audit)).await?;
    tx.commit().await?;
    Ok(Published::New)
}

async fn version_select(
    executor: impl PgExecutor<'_>,
    tenant: &TenantId,
    name: &AgentName,
    wanted: &str,
) -> Result<Option<AgentVersion>, StoreError> {
    let row: Option<VersionColumns> = sqlx::query_as(
        "SELECT version, digest, body::text, published_by, published_at, deprecated_at FROM agent_versions \
         WHERE tenant_id = $1 AND namespace = $2 AND name = $3 AND version = $4",
    )
    .bind(tenant.as_str())
    .bind(&name.namespace)
    .bind(&name.name)
    .bind(wanted)
    .fetch_optional(executor)
    .await?;
    row.map(|row| version(name, row)).transpose()
}

async fn version_fetch(
    store: &PostgresStore,
    tenant: &TenantId,
    name: &AgentName,
    wanted: &str,
) -> Result<Option<AgentVersion>, StoreError> {
    version_select(&store.pool, tenant, name, wanted).await
}

async fn version_list(
    store: &PostgresStore,
    tenant: &TenantId,
    name: &AgentName,
    after: Option<&str>,
    limit: u32,
) -> Result<Page<AgentVersion>, StoreError> {
    let mut rows = sqlx::query_as::<_, VersionColumns>(
        "SELECT version, digest, body::text, published_by, published_at, deprecated_at FROM agent_versions \
         WHERE tenant_id = $1 AND namespace = $2 AND name = $3 AND ($4::text IS NULL OR version > $4) \
         ORDER BY version LIMIT $5 + 1",
    )
    .bind(tenant.as_str())
    .bind(&name.namespace)
    .bind(&name.name)
    .bind(after)
    .bind(i64::from(limit))
    .fetch(&store.pool);
    let mut filling = Filling::new(limit);
    while let Some(row) = rows.try_next().await? {
        let bytes = row.2.len();
        if !filling.take(bytes, version(name, row)?) {
            break;
        }
    }
    Ok(filling.page())
}

async fn version_deprecate(
    store: &PostgresStore,
    tenant: &TenantId,
    name: &AgentName,
    wanted: &str,
    audit: &AuditRow,
) -> Result<Option<AgentVersion>, StoreError> {
    let mut tx = store.pool.begin().await?;
    let changed = sqlx::query(
        "UPDATE agent_versions SET deprecated_at = $5 \
         WHERE tenant_id = $1 AND namespace = $2 AND name = $3 AND version = $4 AND deprecated_at IS NULL",
    )
    .bind(tenant.as_str())
    .bind(&name.namespace)
    .bind(&name.name)
    .bind(wanted)
    .bind(audit.at.as_millis())
    .execute(&mut *tx)
    .await?;
    let known = version_select(&mut *tx, tenant, name, wanted).await?;
    if changed.rows_affected() > 0 {
        audit_insert(&mut tx, tenant, std::slice::from_ref(audit)).await?;
    }
    tx.commit().await?;
    Ok(known)
}

async fn agent_fetch(store: &PostgresStore, tenant: &TenantId, name: &AgentName) -> Result<Option<Agent>, StoreError> {
    let row: Option<AgentColumns> = sqlx::query_as(
        "SELECT namespace, name, active, created_at, updated_at FROM agents \
         WHERE tenant_id = $1 AND namespace = $2 AND name = $3",
    )
    .bind(tenant.as_str())
    .bind(&name.namespace)
    .bind(&name.name)
    .fetch_optional(&store.pool)
    .await?;
    row.map(agent).transpose()
}

async fn agent_list(
    store: &PostgresStore,
    tenant: &TenantId,
    after: Option<&AgentName>,
    limit: u32,
) -> Result<Page<Agent>, StoreError> {
    let rows: Vec<AgentColumns> = sqlx::query_as(
        "SELECT namespace, name, active, created_at, updated_at FROM agents \
         WHERE tenant_id = $1 AND ($2::text IS NULL OR (namespace, name) > ($2, $3)) ORDER BY namespace, name LIMIT $4 + 1",
    )
    .bind(tenant.as_str())
    .bind(after.map(|name| name.namespace.as_str()))
    .bind(after.map(|name| name.name.as_str()))
    .bind(i64::from(limit))
    .fetch_all(&store.pool)
    .await?;
    let mut filling = Filling::new(limit);
    for row in rows {
        if !filling.take(row.0.len() + row.1.len(), agent(row)?) {
            break;
        }
    }
    Ok(filling.page())
}

async fn deployment_add(
    store: &PostgresStore,
    tenant: &TenantId,
    name: &AgentName,
    target: &Target,
    audit: &AuditRow,
) -> Result<Deployed, StoreError> {
    let mut tx = store.pool.begin().await?;
    // Locked: two deployments at once would take the same number.
    let known: Option<i64> = sqlx::query_scalar(
        "SELECT created_at FROM agents WHERE tenant_id = $1 AND namespace = $2 AND name = $3 FOR UPDATE",
    )
    .bind(tenant.as_str())
    .bind(&name.namespace)
    .bind(&name.name)
    .fetch_optional(&mut *tx)
    .await?;
    if known.is_none() {
        return Ok(Deployed::NoAgent);
    }
    let earlier = deployments_that_count(&mut tx, tenant, name, target).await?;
    let next = match next_deployment(&earlier, target, audit) {
        Ok(next) => next,
        Err(instead) => return Ok(instead),
    };
    match version_select(&mut *tx, tenant, name, &next.version).await? {
        None => return Ok(Deployed::NoVersion),
        Some(version) if version.deprecated_at.is_some() => return Ok(Deployed::Deprecated(next.version)),
        Some(_) => {}
    }
    sqlx::query(
        "INSERT INTO agent_deployments (tenant_id, namespace, name, number, version, action, actor, at, back_to) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
    )
    .bind(tenant.as_str())
    .bind(&name.namespace)
    .bind(&name.name)
    .bind(i64::from(next.number))
    .bind(&next.version)
    .bind(&next.action)
    .bind(next.actor.as_str())
    .bind(next.at.as_millis())
    .bind(next.before.map(i64::from))
    .execute(&mut *tx)
    .await?;
    sqlx::query("UPDATE agents SET active = $4, updated_at = $5 WHERE tenant_id = $1 AND namespace = $2 AND name = $3")
        .bind(tenant.as_str())
        .bind(&name.namespace)
        .bind(&name.name)
        .bind(&next.version)
        .bind(next.at.as_millis())
        .execute(&mut *tx)
        .await?;
    audit_insert(&mut tx, tenant, std::slice::from_ref(audit)).await?;
    tx.commit().await?;
    Ok(Deployed::Done(next))
}

/// The newest deployment, and the one that a rollback would go back to.
async fn deployments_that_count(
    tx: &mut Transaction<'static, Postgres>,
    tenant: &TenantId,
    name: &AgentName,
    target: &Target,
) -> Result<Vec<Deployment>, StoreError> {
    let given = match target {
        Target::Deploy(_) | Target::RollBack(None) => None,
        Target::RollBack(Some(version)) => Some(version.as_str()),
    };
    let rows: Vec<DeploymentColumns> = sqlx::query_as(
        "WITH newest AS (SELECT number, back_to FROM agent_deployments \
           WHERE tenant_id = $1 AND namespace = $2 AND name = $3 ORDER BY number DESC LIMIT 1) \
         SELECT number, version, action, actor, at, back_to FROM agent_deployments \
         WHERE tenant_id = $1 AND namespace = $2 AND name = $3 \
           AND number IN (SELECT number FROM newest UNION SELECT back_to FROM newest UNION \
             SELECT max(number) FROM agent_deployments \
               WHERE tenant_id = $1 AND namespace = $2 AND name = $3 AND version = $4::text) \
         ORDER BY number DESC",
    )
    .bind(tenant.as_str())
    .bind(&name.namespace)
    .bind(&name.name)
    .bind(given)
    .fetch_all(&mut **tx)
    .await?;
    rows.into_iter().map(deployment).collect()
}

async fn deployment_list(
    store: &PostgresStore,
    tenant: &TenantId,
    name: &AgentName,
    before: Option<u32>,
    limit: u32,
) -> Result<Page<Deployment>, StoreError> {
    let rows: Vec<DeploymentColumns> = sqlx::query_as(
        "SELECT number, version, action, actor, at, back_to FROM agent_deployments \
         WHERE tenant_id = $1 AND namespace = $2 AND name = $3 AND ($4::bigint IS NULL OR number < $4) \
         ORDER BY number DESC LIMIT $5 + 1",
    )
    .bind(tenant.as_str())
    .bind(&name.namespace)
    .bind(&name.name)
    .bind(before.map(i64::from))
    .bind(i64::from(limit))
    .fetch_all(&store.pool)
    .await?;
    let mut filling = Filling::new(limit);
    for row in rows {
        if !filling.take(row.1.len(), deployment(row)?) {
            break;
        }
    }
    Ok(filling.page())
}
