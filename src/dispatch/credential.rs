//! What tells a server who asks: the one place that looks up a secret's value for an entry.

use std::sync::Arc;

use async_trait::async_trait;
use secrecy::{ExposeSecret as _, SecretString};
use url::Url;

use crate::mcp::{Bearer, BearerSource, BearerToken, McpFault};
use crate::oauth::{AccessToken, ClientSecret, Grant, OauthFault, SecretOwner, TokenSource, Tokens};
use crate::run::ids::{RunUid, TenantId};
use crate::run::spec::{McpAuth, McpEntry};
use crate::secrets::RunSecrets;

/// What an entry's requests carry.
#[derive(Debug, Default)]
pub(super) struct Credential {
    /// A header that does not change.
    pub(super) header: Option<(String, SecretString)>,
    /// Instead: a token that does.
    pub(super) bearer: Option<Bearer>,
    /// Whether it is the run's own, and with it the connection.
    pub(super) is_private: bool,
}

/// Who asks for a credential.
#[derive(Clone, Copy)]
pub(super) struct Holder<'a> {
    pub(super) tenant: &'a TenantId,
    pub(super) uid: RunUid,
    pub(super) secrets: &'a RunSecrets,
}

/// The credential of an entry, whose server is at this address.
///
/// # Errors
/// Why there is none, in words without secrets.
pub(super) fn credential(
    tokens: &Arc<Tokens>,
    entry: &McpEntry,
    url: &Url,
    holder: Holder<'_>,
) -> Result<Credential, String> {
    let Some(auth) = &entry.auth else { return Ok(Credential::default()) };
    let secret = secret(auth.secret(), holder)?;
    let is_private = matches!(secret.owner, SecretOwner::Run(_));
    let header = match auth {
        McpAuth::Bearer { .. } => {
            ("authorization".to_owned(), SecretString::from(format!("Bearer {}", secret.value.expose_secret())))
        }
        McpAuth::Header { header, .. } => (header.to_ascii_lowercase(), secret.value),
        McpAuth::OauthClientCredentials { .. } => {
            let grant = Grant::of(url, auth).map_err(|fault| fault.to_string())?;
            let source = grant.map(|grant| tokens.source(holder.tenant, grant, secret));
            let bearer = source.map(|source| Arc::new(Renewed(source)) as Bearer);
            return Ok(Credential { header: None, bearer, is_private });
        }
    };
    Ok(Credential { header: Some(header), bearer: None, is_private })
}

/// The value of a secret by its name, and whose it is.
fn secret(name: &str, holder: Holder<'_>) -> Result<ClientSecret, String> {
    let value = holder.secrets.get(name).ok_or_else(|| format!("its secret {name:?} is missing or unreadable"))?;
    Ok(ClientSecret { name: name.to_owned(), value: value.clone(), owner: SecretOwner::Run(holder.uid) })
}

/// Access tokens as connections take them.
#[derive(Debug)]
struct Renewed(TokenSource);

fn taken(got: Result<AccessToken, OauthFault>) -> Result<BearerToken, McpFault> {
    let token = got.map_err(|fault| McpFault { message: fault.to_string() })?;
    Ok(BearerToken { version: token.version, value: token.value })
}

#[async_trait]
impl BearerSource for Renewed {
    fn identity(&self) -> [u8; 32] {
        self.0.identity()
    }

    async fn token(&self) -> Result<BearerToken, McpFault> {
        taken(self.0.token().await)
    }

    async fn renew(&self, refused: &BearerToken, metadata: Option<&str>) -> Result<BearerToken, McpFault> {
        let refused = AccessToken { version: refused.version, value: refused.value.clone() };
        taken(self.0.renew(&refused, metadata).await)
    }
}
