//! Looks up registered servers and stored secrets when they are needed: what a run is bound to names them, and where
//! they are and what they are told is asked for at each use. Nothing of what is changed here cuts a call that is out.

use std::sync::Arc;
use std::time::Duration;

use secrecy::{ExposeSecret, SecretString};
use url::Url;

use super::declared::Declared;
use super::fresh::{Fresh, LookupFault};
use crate::mcp::StdioServer;
use crate::oauth::{ClientSecret, SecretOwner};
use crate::run::ids::TenantId;
use crate::run::spec::McpEntry;
use crate::secrets::{KeyRing, hosts};
use crate::store::registry::StoredSecret;
use crate::store::{Store, StoreError};

/// A stored secret that opens.
pub(super) struct Opened {
    /// When this version of it was put, in milliseconds.
    pub(super) put_at: i64,
    pub(super) hosts: Vec<String>,
    pub(super) value: SecretString,
}

impl Opened {
    /// The secret as a client of an authorization server has it.
    pub(super) fn of_client(&self, name: &str) -> ClientSecret {
        let owner = SecretOwner::Tenant { version: self.put_at, hosts: self.hosts.clone() };
        ClientSecret { name: name.to_owned(), value: self.value.clone(), owner }
    }

    fn is(&self, other: &Self) -> bool {
        // What a secret bought depends on the very put, so the same value again leads elsewhere too.
        self.put_at == other.put_at
            && self.hosts == other.hosts
            && self.value.expose_secret() == other.value.expose_secret()
    }
}

/// A registered or declared server.
pub(super) struct Server {
    /// As it was registered.
    pub(super) entry: McpEntry,
    /// What it is when the operator declared it.
    pub(super) process: Option<Arc<StdioServer>>,
    /// What it is told; `Err`: why that cannot be had.
    pub(super) secret: Result<Option<Opened>, String>,
}

impl Server {
    /// Whether connections to one are connections to the other.
    fn is_reached_as(&self, other: &Self) -> bool {
        let (mine, its) = (&self.entry, &other.entry);
        let same_secret = match (&self.secret, &other.secret) {
            (Ok(Some(mine)), Ok(Some(its))) => mine.is(its),
            (Ok(None), Ok(None)) => true,
            _ => false,
        };
        same_secret && (&mine.url, &mine.headers, &mine.auth) == (&its.url, &its.headers, &its.auth)
    }
}

/// Why a secret cannot be used. Holds no value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct SecretFault {
    /// For people.
    pub message: String,
    /// Whether asking later may succeed.
    pub is_passing: bool,
}

impl SecretFault {
    pub(super) fn lasting(message: impl Into<String>) -> Self {
        Self { message: message.into(), is_passing: false }
    }
}

/// A value that was looked up, and whether what it replaced led elsewhere: then its connections are of no use any more.
pub(super) struct Looked<V> {
    pub(super) value: Option<Arc<V>>,
    pub(super) has_moved: bool,
}

/// What tenants keep beside their runs, as it stands now.
pub(super) struct Registry {
    store: Arc<dyn Store>,
    keys: Arc<KeyRing>,
    pub(super) declared: Declared,
    servers: Fresh<Option<Arc<Server>>>,
    secrets: Fresh<Option<Arc<Result<Opened, String>>>>,
}

impl Registry {
    pub(super) fn new(store: Arc<dyn Store>, keys: Arc<KeyRing>, declared: Declared) -> Self {
        Self { store, keys, declared, servers: Fresh::new(), secrets: Fresh::new() }
    }

    /// Something was changed, here or elsewhere.
    pub(super) fn expire(&self) {
        self.servers.expire();
        self.secrets.expire();
    }

    /// A server by its name: the tenant's own, else the operator's.
    ///
    /// # Errors
    /// The store does not answer, in words.
    pub(super) async fn server(
        &self,
        tenant: &TenantId,
        name: &str,
        max_age: Duration,
    ) -> Result<Looked<Server>, LookupFault> {
        let got = self.servers.get(tenant, name, max_age, self.server_read(tenant, name)).await?;
        let has_moved = match (&got.replaced, &got.value) {
            (None | Some(None), _) => false,
            (Some(Some(before)), Some(now)) => !now.is_reached_as(before),
            (Some(Some(_)), None) => true,
        };
        Ok(Looked { value: got.value, has_moved })
    }

    async fn server_read(&self, tenant: &TenantId, name: &str) -> Result<Option<Arc<Server>>, StoreError> {
        let Some((registered, secret)) = self.store.server_fetch(tenant, name).await? else {
            let declared = self.declared.find(tenant, name);
            let server = |(process, entry)| Server { entry, process: Some(process), secret: Ok(None) };
            return Ok(declared.map(|declared| Arc::new(server(declared))));
        };
        let entry = registered.registration.entry;
        let secret = match (&entry.auth, secret) {
            (None, _) => Ok(None),
            (Some(auth), None) => Err(format!("its secret {:?} is not stored", auth.secret())),
            (Some(_), Some(secret)) => self.opened(tenant, &secret).map(Some),
        };
        Ok(Some(Arc::new(Server { entry, process: None, secret })))
    }

    /// A stored secret by its name; inside, why it does not open.
    ///
    /// # Errors
    /// The store does not answer, in words.
    pub(super) async fn secret(
        &self,
        tenant: &TenantId,
        name: &str,
        max_age: Duration,
    ) -> Result<Looked<Result<Opened, String>>, String> {
        let read = async {
            let stored = self.store.stored_secret_fetch(tenant, name).await?;
            Ok(stored.map(|stored| Arc::new(self.opened(tenant, &stored))))
        };
        let got = self.secrets.get(tenant, name, max_age, read).await?;
        let has_moved = match (&got.replaced, &got.value) {
            (None | Some(None), _) => false,
            (Some(Some(before)), Some(now)) => !matches!((&**before, &**now), (Ok(before), Ok(now)) if now.is(before)),
            (Some(Some(_)), None) => true,
        };
        Ok(Looked { value: got.value, has_moved })
    }

    fn opened(&self, tenant: &TenantId, stored: &StoredSecret) -> Result<Opened, String> {
        let opened = self.keys.open_stored(tenant, stored);
        let value = opened.map_err(|fault| {
            tracing::warn!(secret = %stored.info.name, %fault, "a stored secret cannot be opened");
            format!("its secret {:?} cannot be opened", stored.info.name)
        })?;
        Ok(Opened { put_at: stored.info.updated_at.as_millis(), hosts: stored.info.hosts.clone(), value })
    }
}

/// The value, if it may be sent to that address.
pub(super) fn value_for<'a>(secret: &'a Opened, name: &str, address: &Url) -> Result<&'a SecretString, String> {
    if hosts::include(&secret.hosts, address) {
        return Ok(&secret.value);
    }
    let host = address.host_str().unwrap_or_default();
    Err(format!("its secret {name:?} is not meant for the host '{host}'"))
}
