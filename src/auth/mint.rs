//! Makes tokens with the shared secret, for `countersign token` and for `dev`.

use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use secrecy::ExposeSecret;
use serde_json::{Map, Value};

use super::AuthSettings;
use crate::run::ids::{Actor, TenantId};
use crate::run::time::Timestamp;

/// What a token says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Whose things its holder may touch.
    pub tenant: TenantId,
    /// Who holds it.
    pub actor: Actor,
    /// What it allows, separated by spaces.
    pub scope: String,
    /// How long it is good, in seconds.
    pub ttl_s: i64,
    /// Of a worker: its identity.
    pub workload_identity: Option<String>,
    /// Of a worker: the digest of its image.
    pub image_digest: Option<String>,
}

/// Why a token cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum MintError {
    /// There is no shared secret: tokens come from the issuer of the key set.
    #[error("tokens are made with COUNTERSIGN_JWT_HS256_SECRET, which is not set")]
    NoSecret,
    /// The library refused.
    #[error("the token could not be signed: {0}")]
    NotSigned(#[from] jsonwebtoken::errors::Error),
}

/// A token with the configured issuer and audience.
///
/// # Errors
/// `NoSecret`, `NotSigned`.
pub fn mint(settings: &AuthSettings, grant: &Grant, now: Timestamp) -> Result<String, MintError> {
    let secret = settings.hs256.as_ref().ok_or(MintError::NoSecret)?;
    let seconds = now.as_millis().div_euclid(1000);
    let mut claims = Map::new();
    claims.insert("sub".to_owned(), grant.actor.as_str().into());
    claims.insert(settings.tenant_claim.clone(), grant.tenant.as_str().into());
    claims.insert("scope".to_owned(), grant.scope.as_str().into());
    claims.insert("iat".to_owned(), seconds.into());
    claims.insert("exp".to_owned(), seconds.saturating_add(grant.ttl_s).into());
    let named = [
        ("iss", &settings.issuer),
        ("aud", &settings.audience),
        ("workload_identity", &grant.workload_identity),
        ("image_digest", &grant.image_digest),
    ];
    claims.extend(
        named
            .into_iter()
            .filter_map(|(name, value)| value.as_ref().map(|value| (name.to_owned(), Value::from(value.as_str())))),
    );
    let key = EncodingKey::from_secret(secret.expose_secret().as_bytes())?;
    Ok(encode(&Header::new(Algorithm::HS256), &claims, &key)?)
}

/// Reads a duration like `90s`, `15m`, `1h`, `7d`, `1h30m`, in seconds; at least one.
pub fn parse_ttl(text: &str) -> Option<i64> {
    let mut total: i64 = 0;
    let mut digits = String::new();
    for c in text.trim().chars() {
        if c.is_ascii_digit() {
            digits.push(c);
            continue;
        }
        let unit = match c {
            's' => 1,
            'm' => 60,
            'h' => 3600,
            'd' => 86_400,
            _ => return None,
        };
        let count: i64 = digits.parse().ok()?;
        total = total.checked_add(count.checked_mul(unit)?)?;
        digits.clear();
    }
    (digits.is_empty() && total > 0).then_some(total)
}
