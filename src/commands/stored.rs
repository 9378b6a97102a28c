//! Puts and deletes stored secrets, and says whether one may go where a request wants it.

use secrecy::ExposeSecret;
use serde_json::json;

use super::faults::Faults;
use super::registration::PutSecret;
use super::resume::DECIDE_TRIES;
use super::{Asker, CommandError, Commands, Fault};
use crate::secrets::hosts;
use crate::store::registry::{SecretDeletion, SecretInfo, StoredSecret};

/// Most hosts of a secret.
const HOSTS_MAX: usize = 32;

/// Longest value, in bytes.
const VALUE_MAX: usize = 16 * 1024;

/// What a value must be.
pub(super) const SENDABLE: &str = "values have 1 byte to 16 KiB of visible ASCII and spaces, none at the ends, since they are sent in a header; or are a \
     private key in PEM";

/// Whether a secret can be sent in a header, so that nobody learns at the first call that it cannot. A private key is
/// never sent.
pub(super) fn is_sendable(value: &str) -> bool {
    let is_key = value.starts_with("-----BEGIN ");
    let is_clean = |c: char| c.is_ascii_graphic() || c == ' ' || (is_key && matches!(c, '\n' | '\r'));
    !value.is_empty() && value.len() <= VALUE_MAX && (is_key || value.trim() == value) && value.chars().all(is_clean)
}

/// `[A-Za-z0-9][A-Za-z0-9._-]{0,63}`.
fn is_secret_name(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_alphanumeric())
        && name.len() <= 64
        && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'))
}

impl Commands {
    /// Stores a version of a secret.
    ///
    /// # Errors
    /// `Invalid`, `Store`, `Contended`; nothing is stored then.
    pub async fn secret_put(&self, asker: &Asker, name: &str, request: PutSecret) -> Result<(), CommandError> {
        let hosts = check(name, &request)?;
        for _ in 0..DECIDE_TRIES {
            let before = self.store.stored_secret_fetch(&asker.tenant, name).await?;
            let version = before.as_ref().map_or(1, |before| before.info.version.saturating_add(1));
            let sealed = self.keys.seal_stored(&asker.tenant, name, version, &request.value);
            let sealed = sealed.map_err(|fault| CommandError::Invalid(vec![Fault::at("/value", fault.to_string())]))?;
            let audit = self.tenant_row(asker, "secret.put", name, json!({ "version": version, "hosts": hosts }));
            let info = SecretInfo {
                name: name.to_owned(),
                version,
                key_id: sealed.key_id,
                hosts: hosts.clone(),
                created_at: before.map_or(audit.at, |before| before.info.created_at),
                updated_at: audit.at,
            };
            let secret = StoredSecret { info, sealed: sealed.sealed };
            if self.store.stored_secret_put(&asker.tenant, &secret, &audit).await? {
                self.dispatch.registry_changed();
                return Ok(());
            }
        }
        Err(CommandError::Contended)
    }

    /// Deletes a secret that no registered server is told. Runs that name it fail to reach their servers from then on.
    ///
    /// # Errors
    /// `Missing`, `SecretInUse`, `Store`.
    pub async fn secret_delete(&self, asker: &Asker, name: &str) -> Result<(), CommandError> {
        const MISSING: CommandError = CommandError::Missing("there is no such secret");
        if !is_secret_name(name) {
            return Err(MISSING);
        }
        let audit = self.tenant_row(asker, "secret.delete", name, json!({}));
        match self.store.stored_secret_delete(&asker.tenant, name, &audit).await? {
            SecretDeletion::Deleted => {
                self.dispatch.registry_changed();
                Ok(())
            }
            SecretDeletion::Missing => Err(MISSING),
            SecretDeletion::UsedBy(servers) => Err(CommandError::SecretInUse(servers)),
        }
    }

    /// Says at the pointer why a stored secret cannot go to that address; `None`: it goes nowhere.
    pub(super) async fn check_stored(
        &self,
        asker: &Asker,
        name: &str,
        address: Option<&str>,
        pointer: &str,
        faults: &mut Faults,
    ) -> Result<(), CommandError> {
        let found = if is_secret_name(name) {
            self.dispatch.check_secret(&asker.tenant, name, address).await
        } else {
            Ok(None)
        };
        match found {
            Ok(Some(())) => {}
            Ok(None) => faults.add(pointer, format!("there is no secret named {name:?}")),
            Err(fault) if fault.is_passing => return Err(CommandError::NotLookedUp(fault.message)),
            Err(fault) => faults.add(pointer, fault.message),
        }
        Ok(())
    }
}

fn check(name: &str, request: &PutSecret) -> Result<Vec<String>, CommandError> {
    let mut faults = Faults::default();
    faults.require(is_secret_name(name), "", "the name must match [A-Za-z0-9][A-Za-z0-9._-]{0,63}");
    faults.require(is_sendable(request.value.expose_secret()), "/value", SENDABLE);
    let count = request.hosts.len();
    faults.require((1..=HOSTS_MAX).contains(&count), "/hosts", "must have 1 to 32 hosts");
    let mut hosts = Vec::new();
    for (index, text) in request.hosts.iter().enumerate() {
        match hosts::parse(text) {
            Ok(host) if hosts.contains(&host) => {}
            Ok(host) => hosts.push(host),
            Err(why) => faults.add(format!("/hosts/{index}"), why),
        }
    }
    faults.finish()?;
    Ok(hosts)
}
