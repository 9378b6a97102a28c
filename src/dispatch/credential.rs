//! What a server is told of who asks: a secret as it is, or tokens that it buys.

use std::sync::Arc;

use async_trait::async_trait;
use secrecy::{ExposeSecret as _, SecretString};
use url::Url;

use crate::mcp::{Bearer, BearerSource, BearerToken, FaultKind, McpFault};
use crate::oauth::{AccessToken, ClientSecret, Grant, OauthFault, TokenSource, Tokens};
use crate::run::ids::TenantId;
use crate::run::spec::McpAuth;

/// What the requests to a server carry.
pub(super) struct Credential {
    /// A header that does not change.
    pub(super) header: Option<(String, SecretString)>,
    /// Instead: a token that does.
    pub(super) bearer: Option<Bearer>,
    /// The secret behind it.
    pub(super) secret: SecretString,
}

/// What a server at this address is told, by what its entry says.
///
/// # Errors
/// Why that cannot be, in words without secrets.
pub(super) fn credential(
    tokens: &Arc<Tokens>,
    tenant: &TenantId,
    auth: &McpAuth,
    url: &Url,
    secret: ClientSecret,
) -> Result<Credential, String> {
    let value = secret.value.clone();
    let header = match auth {
        McpAuth::Bearer { .. } => {
            ("authorization".to_owned(), SecretString::from(format!("Bearer {}", value.expose_secret())))
        }
        McpAuth::Header { header, .. } => (header.to_ascii_lowercase(), value.clone()),
        McpAuth::OauthClientCredentials { .. } => {
            let grant = Grant::of(url, auth).map_err(|fault| fault.to_string())?;
            let source = grant.map(|grant| tokens.source(tenant, grant, secret));
            let bearer = source.map(|source| Arc::new(Renewed(source)) as Bearer);
            return Ok(Credential { header: None, bearer, secret: value });
        }
    };
    Ok(Credential { header: Some(header), bearer: None, secret: value })
}

/// Access tokens as connections take them.
#[derive(Debug)]
struct Renewed(TokenSource);

fn taken(got: Result<AccessToken, OauthFault>) -> Result<BearerToken, McpFault> {
    let token = got.map_err(|fault| McpFault::of(FaultKind::Forbidden, fault.to_string()))?;
    Ok(BearerToken { version: token.version, value: token.value })
}

#[async_trait]
impl BearerSource for Renewed {
    fn identity(&self) -> [u8; 32] {
        self.0.identity()
    }

    fn spoken(&self) -> Vec<SecretString> {
        self.0.spoken()
    }

    async fn token(&self) -> Result<BearerToken, McpFault> {
        taken(self.0.token().await)
    }

    async fn renew(&self, refused: &BearerToken, metadata: Option<&str>) -> Result<BearerToken, McpFault> {
        let refused = AccessToken { version: refused.version, value: refused.value.clone() };
        taken(self.0.renew(&refused, metadata).await)
    }
}
