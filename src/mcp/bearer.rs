//! A credential that changes with time: a bearer token that somebody else gets and renews.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use rmcp::transport::streamable_http_client::AuthRequiredError;
use secrecy::{ExposeSecret as _, SecretString};

use super::McpFault;
use crate::net::Challenge;

/// A token, and which of its source's tokens it is.
#[derive(Clone, Debug)]
pub struct BearerToken {
    /// Rises with each token.
    pub version: i64,
    /// Its value.
    pub value: SecretString,
}

impl BearerToken {
    /// The value of the header `Authorization`.
    pub(super) fn header(&self) -> Result<HeaderValue, McpFault> {
        let mut value = HeaderValue::try_from(format!("Bearer {}", self.value.expose_secret()))
            .map_err(|_invalid| McpFault::new("The access token cannot be sent in a header."))?;
        value.set_sensitive(true);
        Ok(value)
    }
}

/// Where a server's tokens come from.
#[async_trait]
pub trait BearerSource: Send + Sync + fmt::Debug {
    /// The digest of everything that the tokens depend on: what has the same is the same.
    fn identity(&self) -> [u8; 32];

    /// The last few tokens: what a server that repeats its credential would say.
    fn spoken(&self) -> Vec<SecretString>;

    /// A token that is good now.
    ///
    /// # Errors
    /// Why there is none, in words without secrets.
    async fn token(&self) -> Result<BearerToken, McpFault>;

    /// A token in the place of one that the server refused. `metadata` is where the server said, as it refused, that it
    /// describes itself.
    ///
    /// # Errors
    /// Why there is none, in words without secrets.
    async fn renew(&self, refused: &BearerToken, metadata: Option<&str>) -> Result<BearerToken, McpFault>;
}

/// The source of a target's tokens, as connections share it.
pub type Bearer = Arc<dyn BearerSource>;

/// The token of one request, and the right to renew it once.
pub(super) struct Pass<'a> {
    source: Option<&'a Bearer>,
    token: Option<BearerToken>,
    is_renewed: bool,
}

impl<'a> Pass<'a> {
    /// Puts a token that is good now into the headers, where one is needed.
    pub(super) async fn of(source: Option<&'a Bearer>, headers: &mut HeaderMap) -> Result<Self, String> {
        let token = match source {
            Some(source) => Some(source.token().await.map_err(|fault| fault.message)?),
            None => None,
        };
        let mut pass = Self { source, token: None, is_renewed: false };
        pass.put(token, headers)?;
        Ok(pass)
    }

    /// Whether a request needs a token at all.
    pub(super) fn is_needed(&self) -> bool {
        self.source.is_some()
    }

    /// Whether a token that is refused may be replaced.
    pub(super) fn may_renew(&self) -> bool {
        self.source.is_some() && !self.is_renewed
    }

    /// Replaces the token, which the server refused.
    pub(super) async fn renew(&mut self, refusal: &AuthRequiredError, headers: &mut HeaderMap) -> Result<(), String> {
        self.is_renewed = true;
        let (Some(source), Some(refused)) = (self.source, &self.token) else { return Ok(()) };
        let metadata = Some(refusal.www_authenticate_header.as_str()).filter(|metadata| !metadata.is_empty());
        let token = source.renew(refused, metadata).await.map_err(|fault| fault.message)?;
        self.put(Some(token), headers)
    }

    fn put(&mut self, token: Option<BearerToken>, headers: &mut HeaderMap) -> Result<(), String> {
        if let Some(token) = &token {
            headers.insert(header::AUTHORIZATION, token.header().map_err(|fault| fault.message)?);
        }
        self.token = token;
        Ok(())
    }
}

/// A refusal that another token may help with: it carries where the server describes itself, or nothing.
pub(super) fn required(challenge: Option<Challenge>) -> AuthRequiredError {
    AuthRequiredError::new(challenge.and_then(|challenge| challenge.resource_metadata).unwrap_or_default())
}

/// What is told of a token that lacks a scope: no other token would do, the entry's `scopes` must.
pub(super) fn missing_scope(status: StatusCode, challenge: Option<&Challenge>) -> Option<String> {
    let challenge = challenge.filter(|challenge| {
        status == StatusCode::FORBIDDEN && challenge.error.as_deref() == Some("insufficient_scope")
    })?;
    let wanted = challenge.scope.as_deref().unwrap_or_default();
    let wanted: String = wanted.chars().filter(|c| c.is_ascii_graphic() || *c == ' ').collect();
    let wanted = if wanted.is_empty() { String::new() } else { format!(" (it asks for \"{wanted}\")") };
    Some(format!("the credential lacks a scope{wanted}"))
}
