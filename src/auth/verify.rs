//! Verifies tokens: first the signature, with a key of the algorithm's own kind, then every claim.

use std::collections::BTreeSet;

use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode, decode_header, errors::ErrorKind};
use secrecy::ExposeSecret;
use serde_json::{Map, Value};

use super::jwks::{Jwks, JwksFault};
use super::{AuthError, AuthSettings, Caller, LEEWAY_S, Scope, subject};
use crate::net::EgressClient;
use crate::run::ids::TenantId;
use crate::run::time::Timestamp;

/// Longest token that is looked at, in bytes.
const TOKEN_MAX: usize = 16 * 1024;

/// Verifies tokens.
pub struct Verifier {
    hs256: Option<DecodingKey>,
    jwks: Option<Jwks>,
    issuer: Option<String>,
    audience: Option<String>,
    tenant_claim: String,
}

impl Verifier {
    /// A verifier of these settings. A JWKS file is read now; a JWKS address is asked with `client` when the first
    /// token needs it.
    ///
    /// # Errors
    /// A file that does not read, or a secret that is no key.
    pub fn new(settings: &AuthSettings, client: EgressClient) -> Result<Self, JwksFault> {
        let hs256 = match &settings.hs256 {
            Some(secret) => {
                let key = DecodingKey::from_secret(secret.expose_secret().as_bytes());
                Some(key.map_err(|fault| JwksFault::Secret(fault.to_string()))?)
            }
            None => None,
        };
        let jwks = settings.jwks.as_ref().map(|source| Jwks::open(source, client)).transpose()?;
        Ok(Self {
            hs256,
            jwks,
            issuer: settings.issuer.clone(),
            audience: settings.audience.clone(),
            tenant_claim: settings.tenant_claim.clone(),
        })
    }

    /// Who holds this token.
    ///
    /// # Errors
    /// The first thing that is wrong with it.
    pub async fn verify(&self, token: &str, now: Timestamp) -> Result<Caller, AuthError> {
        if token.len() > TOKEN_MAX {
            return Err(AuthError::Malformed);
        }
        let header = decode_header(token).map_err(|fault| match fault.kind() {
            ErrorKind::InvalidAlgorithmName | ErrorKind::InvalidAlgorithm => AuthError::Algorithm,
            _ => AuthError::Malformed,
        })?;
        let claims = match (header.alg, &self.hs256, &self.jwks) {
            (Algorithm::HS256, Some(key), _) => claims(token, key, Algorithm::HS256)?,
            (Algorithm::RS256 | Algorithm::ES256 | Algorithm::EdDSA, _, Some(jwks)) => {
                let key = jwks.key(header.alg, header.kid.as_deref(), now).await?;
                claims(token, &key, header.alg)?
            }
            _ => return Err(AuthError::Algorithm),
        };
        self.caller(&claims, now)
    }

    fn caller(&self, claims: &Map<String, Value>, now: Timestamp) -> Result<Caller, AuthError> {
        let expires_at = check_times(claims, now)?;
        if let Some(issuer) = &self.issuer
            && claims.get("iss").and_then(Value::as_str) != Some(issuer)
        {
            return Err(AuthError::Issuer);
        }
        if let Some(audience) = &self.audience
            && !has_audience(claims.get("aud"), audience)
        {
            return Err(AuthError::Audience);
        }
        let actor = subject(text(claims, "sub")?)?;
        let tenant = TenantId::parse(text(claims, &self.tenant_claim)?);
        let scope_names = scopes(claims)?;
        Ok(Caller {
            tenant: tenant.ok_or_else(|| AuthError::BadClaim(self.tenant_claim.clone()))?,
            actor,
            scopes: scope_names.iter().filter_map(|name| Scope::from_code(name)).collect(),
            scope_names,
            workload_identity: vouched(claims, "workload_identity")?,
            image_digest: vouched(claims, "image_digest")?,
            expires_at,
        })
    }
}

fn claims(token: &str, key: &DecodingKey, algorithm: Algorithm) -> Result<Map<String, Value>, AuthError> {
    // Only the signature is the library's to check: its claim checks ask the machine's clock.
    let mut validation = Validation::new(algorithm);
    validation.required_spec_claims.clear();
    validation.validate_exp = false;
    validation.validate_aud = false;
    let decoded = decode::<Map<String, Value>>(token, key, &validation).map_err(|fault| match fault.kind() {
        ErrorKind::InvalidSignature => AuthError::Signature,
        ErrorKind::InvalidAlgorithm => AuthError::Algorithm,
        _ => AuthError::Malformed,
    })?;
    Ok(decoded.claims)
}

/// Checks `exp` and `nbf`; answers when a stream of this token ends.
fn check_times(claims: &Map<String, Value>, now: Timestamp) -> Result<Timestamp, AuthError> {
    let leeway = LEEWAY_S * 1000;
    let expires = date(claims, "exp")?.ok_or_else(|| AuthError::MissingClaim("exp".to_owned()))?;
    let last = expires.plus_millis(leeway);
    if now >= last {
        return Err(AuthError::Expired);
    }
    if date(claims, "nbf")?.is_some_and(|from| now.plus_millis(leeway) < from) {
        return Err(AuthError::NotYetValid);
    }
    // Inside the leeway the token still counts, so what it opens may last as long as the leeway does.
    Ok(if now < expires { expires } else { last })
}

/// A `NumericDate`: seconds since the epoch, fractions allowed.
fn date(claims: &Map<String, Value>, name: &str) -> Result<Option<Timestamp>, AuthError> {
    let Some(value) = claims.get(name) else { return Ok(None) };
    let bad = || AuthError::BadClaim(name.to_owned());
    let Value::Number(number) = value else { return Err(bad()) };
    if let Some(seconds) = number.as_i64() {
        return Ok(Some(Timestamp::from_millis(seconds.saturating_mul(1000))));
    }
    let seconds = number.as_f64().filter(|seconds| seconds.is_finite()).ok_or_else(bad)?;
    #[expect(clippy::cast_possible_truncation, reason = "a cast of a float stops at the ends of the range")]
    let millis = (seconds * 1000.0) as i64;
    Ok(Some(Timestamp::from_millis(millis)))
}

/// A claim that need not be there, and must read when it is.
fn vouched(claims: &Map<String, Value>, name: &str) -> Result<Option<String>, AuthError> {
    if claims.contains_key(name) { text(claims, name).map(|text| Some(text.to_owned())) } else { Ok(None) }
}

fn has_audience(claim: Option<&Value>, audience: &str) -> bool {
    match claim {
        Some(Value::String(one)) => one == audience,
        Some(Value::Array(several)) => several.iter().any(|one| one.as_str() == Some(audience)),
        _ => false,
    }
}

fn text<'a>(claims: &'a Map<String, Value>, name: &str) -> Result<&'a str, AuthError> {
    let value = claims.get(name).ok_or_else(|| AuthError::MissingClaim(name.to_owned()))?;
    value.as_str().ok_or_else(|| AuthError::BadClaim(name.to_owned()))
}

/// `scope` is text with spaces, `scopes` an array; one of them must be there.
fn scopes(claims: &Map<String, Value>) -> Result<BTreeSet<String>, AuthError> {
    let mut names: Vec<&str> = Vec::new();
    match (claims.get("scope"), claims.get("scopes")) {
        (None, None) => return Err(AuthError::MissingClaim("scope".to_owned())),
        (scope, scopes) => {
            if let Some(scope) = scope {
                let scope = scope.as_str().ok_or_else(|| AuthError::BadClaim("scope".to_owned()))?;
                names.extend(scope.split_ascii_whitespace());
            }
            if let Some(scopes) = scopes {
                let bad = || AuthError::BadClaim("scopes".to_owned());
                for one in scopes.as_array().ok_or_else(bad)? {
                    names.push(one.as_str().ok_or_else(bad)?);
                }
            }
        }
    }
    Ok(names.into_iter().map(str::to_owned).collect())
}
