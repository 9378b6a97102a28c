//! What a tenant keeps beside its runs: secrets for certain hosts, and registered MCP servers. Knows sealed bytes, no
//! key; what an entry may say is the core's.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::{AuditRow, Page, SealedSecret, StoreError, codec};
use crate::run::ids::{RunUid, TenantId};
use crate::run::spec::McpEntry;
use crate::run::time::Timestamp;

/// What may be told of a stored secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretInfo {
    /// Its name in the tenant.
    pub name: String,
    /// Counts from 1; each put is one more.
    pub version: u32,
    /// Which master key sealed it.
    pub key_id: String,
    /// Where it may be sent: `host` or `host:port`.
    pub hosts: Vec<String>,
    /// When the name was first put.
    pub created_at: Timestamp,
    /// When this version was put.
    pub updated_at: Timestamp,
}

/// A stored secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredSecret {
    /// What may be told of it.
    pub info: SecretInfo,
    /// Nonce and ciphertext.
    pub sealed: Vec<u8>,
}

/// A registered server.
#[derive(Clone, Debug, PartialEq)]
pub struct RegisteredServer {
    /// Its name in the tenant.
    pub name: String,
    /// Counts from 1; each put is one more.
    pub version: u32,
    /// What was registered.
    pub registration: Registration,
    /// When the name was first put.
    pub created_at: Timestamp,
    /// When this version was put.
    pub updated_at: Timestamp,
}

/// What is registered of a server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Registration {
    /// Address, credential, declarations and rules; `server` is empty.
    pub entry: McpEntry,
}

/// What became of a registration.
#[derive(Clone, Debug, PartialEq)]
pub enum ServerPut {
    /// It is stored, as it says.
    Stored(Box<RegisteredServer>),
    /// The secret that it names has gone; nothing was stored.
    NoSecret,
}

/// What became of a wish to delete a stored secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretDeletion {
    /// It is gone.
    Deleted,
    /// The tenant has no such secret.
    Missing,
    /// These servers are told it; nothing was deleted.
    UsedBy(Vec<String>),
}

/// Where a sealed value belongs. Ordered as it is listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SealedPlace {
    /// A secret of one run.
    Run {
        /// Whose run.
        tenant: TenantId,
        /// The run.
        uid: RunUid,
        /// The caller's name of it.
        name: String,
    },
    /// A secret of the tenant.
    Stored {
        /// Whose.
        tenant: TenantId,
        /// Its name.
        name: String,
        /// Its version.
        version: u32,
    },
}

/// A sealed value and where it belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealedRow {
    /// Where it belongs.
    pub place: SealedPlace,
    /// Which master key sealed it.
    pub key_id: String,
    /// Nonce and ciphertext.
    pub sealed: Vec<u8>,
}

/// What secrets and servers need of the store. The tenant comes first everywhere but in what the operator does for all.
#[async_trait]
pub trait RegistryStore: Send + Sync {
    /// Stores a version of a secret, beside its row of the audit. `false`: the version before it is not the stored one
    /// (none, for version 1); read again.
    async fn stored_secret_put(
        &self,
        tenant: &TenantId,
        secret: &StoredSecret,
        audit: &AuditRow,
    ) -> Result<bool, StoreError>;
    /// One secret of the tenant.
    async fn stored_secret_fetch(&self, tenant: &TenantId, name: &str) -> Result<Option<StoredSecret>, StoreError>;
    /// The tenant's secrets by name, strictly after `after`.
    async fn stored_secret_list(
        &self,
        tenant: &TenantId,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Page<SecretInfo>, StoreError>;
    /// Deletes a secret that no registered server is told, beside its row of the audit.
    async fn stored_secret_delete(
        &self,
        tenant: &TenantId,
        name: &str,
        audit: &AuditRow,
    ) -> Result<SecretDeletion, StoreError>;
    /// One secret for each master key that sealed any: what a start-up check must be able to open.
    async fn stored_secret_samples(&self) -> Result<Vec<(TenantId, StoredSecret)>, StoreError>;
    /// Registers a server, or replaces its registration, beside its row of the audit, whose time it takes.
    async fn server_put(
        &self,
        tenant: &TenantId,
        name: &str,
        registration: &Registration,
        audit: &AuditRow,
    ) -> Result<ServerPut, StoreError>;
    /// One registered server, with the stored secret that it is told while there is one of that name.
    async fn server_fetch(
        &self,
        tenant: &TenantId,
        name: &str,
    ) -> Result<Option<(RegisteredServer, Option<StoredSecret>)>, StoreError>;
    /// The tenant's servers by name, strictly after `after`.
    async fn server_list(
        &self,
        tenant: &TenantId,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Page<RegisteredServer>, StoreError>;
    /// Deletes a registration, beside its row of the audit. `false`: there is none.
    async fn server_delete(&self, tenant: &TenantId, name: &str, audit: &AuditRow) -> Result<bool, StoreError>;
    /// Sealed values of all tenants that another key than this one sealed, strictly after `after`: first those of runs.
    async fn sealed_list(
        &self,
        key_id: &str,
        after: Option<&SealedPlace>,
        limit: u32,
    ) -> Result<Vec<SealedRow>, StoreError>;
    /// Replaces a sealed value by the same value sealed anew. `false`: it has changed or gone meanwhile.
    async fn sealed_replace(&self, old: &SealedRow, key_id: &str, sealed: &[u8]) -> Result<bool, StoreError>;
}

/// A stored secret as it is read: name, version, key id, sealed, hosts, created, updated.
pub(super) type SecretColumns = (String, i64, String, Vec<u8>, String, i64, i64);

/// The secret that they say.
pub(super) fn stored_secret(columns: SecretColumns) -> Result<StoredSecret, StoreError> {
    let (name, version, key_id, sealed, hosts, created_at, updated_at) = columns;
    let info = SecretInfo {
        name,
        version: codec::count("secret version", version)?,
        key_id,
        hosts: codec::texts("hosts", &hosts)?,
        created_at: Timestamp::from_millis(created_at),
        updated_at: Timestamp::from_millis(updated_at),
    };
    Ok(StoredSecret { info, sealed })
}

/// A registered server as it is read: name, version, body, created, updated.
pub(super) type ServerColumns = (String, i64, String, i64, i64);

/// The server that they say.
pub(super) fn registered_server(columns: ServerColumns) -> Result<RegisteredServer, StoreError> {
    let (name, version, body, created_at, updated_at) = columns;
    Ok(RegisteredServer {
        name,
        version: codec::count("server version", version)?,
        registration: codec::decode("server", &body)?,
        created_at: Timestamp::from_millis(created_at),
        updated_at: Timestamp::from_millis(updated_at),
    })
}

/// A sealed secret of a run, with its run.
pub(super) fn sealed_of_run(tenant: String, uid: uuid::Uuid, secret: SealedSecret) -> Result<SealedRow, StoreError> {
    let tenant = codec::named("tenant", TenantId::parse(tenant))?;
    let SealedSecret { name, key_id, sealed } = secret;
    Ok(SealedRow { place: SealedPlace::Run { tenant, uid: RunUid(uid), name }, key_id, sealed })
}

/// A sealed secret of a tenant.
pub(super) fn sealed_of_tenant(tenant: String, version: i64, secret: SealedSecret) -> Result<SealedRow, StoreError> {
    let tenant = codec::named("tenant", TenantId::parse(tenant))?;
    let SealedSecret { name, key_id, sealed } = secret;
    let version = codec::count("secret version", version)?;
    Ok(SealedRow { place: SealedPlace::Stored { tenant, name, version }, key_id, sealed })
}

/// The name of the secret that a registration says, for the column that keeps it from being deleted.
pub(super) fn secret_of(registration: &Registration) -> Option<&str> {
    registration.entry.auth.as_ref().map(crate::run::spec::McpAuth::secret)
}
