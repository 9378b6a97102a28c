//! Signs the assertion that a client with a private key shows (RFC 7523).

use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::json;
use uuid::Uuid;

use super::OauthFault;
use super::grant::Grant;
use crate::run::credential::SigningAlgorithm;
use crate::run::time::Timestamp;

/// How long an assertion is good, in seconds.
const TTL_S: i64 = 60;

/// Whether a secret's value is a private key: such a value is never sent itself.
pub(super) fn is_private_key(value: &SecretString) -> bool {
    value.expose_secret().trim_start().starts_with("-----BEGIN ")
}

/// A new assertion for that audience; no two are alike.
pub(super) fn sign(
    grant: &Grant,
    key: &SecretString,
    audience: &str,
    now: Timestamp,
    id: Uuid,
) -> Result<SecretString, OauthFault> {
    let (key, own) = read(key.expose_secret().as_bytes())?;
    let mut header = Header::new(grant.algorithm.map_or(own, algorithm));
    header.kid.clone_from(&grant.key_id);
    let seconds = now.as_millis().div_euclid(1000);
    let claims = json!({
        "iss": grant.client_id,
        "sub": grant.client_id,
        "aud": audience,
        "jti": id.hyphenated().to_string(),
        "iat": seconds,
        "exp": seconds.saturating_add(TTL_S),
    });
    let signed = encode(&header, &claims, &key);
    signed.map(SecretString::from).map_err(|_fault| OauthFault::Key("it does not fit the algorithm"))
}

/// The key, and the algorithm that keys of its kind sign with.
fn read(pem: &[u8]) -> Result<(EncodingKey, Algorithm), OauthFault> {
    let rsa = || EncodingKey::from_rsa_pem(pem).map(|key| (key, Algorithm::RS256));
    let ec = || EncodingKey::from_ec_pem(pem).map(|key| (key, Algorithm::ES256));
    let ed = || EncodingKey::from_ed_pem(pem).map(|key| (key, Algorithm::EdDSA));
    let read = rsa().or_else(|_| ec()).or_else(|_| ed());
    read.map_err(|_fault| OauthFault::Key("it is no private key in PEM form (PKCS#8)"))
}

const fn algorithm(algorithm: SigningAlgorithm) -> Algorithm {
    match algorithm {
        SigningAlgorithm::RS256 => Algorithm::RS256,
        SigningAlgorithm::RS384 => Algorithm::RS384,
        SigningAlgorithm::RS512 => Algorithm::RS512,
        SigningAlgorithm::PS256 => Algorithm::PS256,
        SigningAlgorithm::PS384 => Algorithm::PS384,
        SigningAlgorithm::PS512 => Algorithm::PS512,
        SigningAlgorithm::ES256 => Algorithm::ES256,
        SigningAlgorithm::ES384 => Algorithm::ES384,
        SigningAlgorithm::EdDSA => Algorithm::EdDSA,
    }
}
