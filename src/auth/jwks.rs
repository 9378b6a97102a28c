//! The issuer's public keys: read from a file at start, or fetched, and fetched again when a token names an unknown one.

use std::sync::Arc;
use std::time::Duration;

use http::Method;
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey};
use parking_lot::RwLock;
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::Mutex;
use url::Url;

use super::{AuthError, JwksSource};
use crate::net::EgressClient;
use crate::run::time::Timestamp;

/// Least time between two requests to the issuer, in milliseconds.
const REFETCH_MS: i64 = 60_000;

/// Age at which keys are fetched again although they serve, in milliseconds: a withdrawn key must not live for ever.
const MAX_AGE_MS: i64 = 600_000;

/// How long the issuer may take.
const FETCH_TIMEOUT: Duration = Duration::from_secs(5);

/// Largest key set, in bytes.
const SET_MAX: usize = 1024 * 1024;

/// Why keys do not read.
#[derive(Debug, thiserror::Error)]
pub enum JwksFault {
    /// The file could not be read.
    #[error("{path}: {fault}")]
    File {
        /// Which file.
        path: String,
        /// The system's words.
        fault: std::io::Error,
    },
    /// Not a key set.
    #[error("{0} is not a JSON Web Key Set with a key for RS256, ES256 or EdDSA")]
    NotASet(String),
    /// The shared secret is no key.
    #[error("the shared secret is not usable: {0}")]
    Secret(String),
    /// The issuer did not answer.
    #[error("the key set could not be fetched: {0}")]
    Fetch(String),
}

/// One public key, good for one algorithm.
struct PublicKey {
    kid: Option<String>,
    algorithm: Algorithm,
    key: DecodingKey,
}

type KeySet = Arc<Vec<PublicKey>>;

/// The issuer's public keys.
pub(super) struct Jwks {
    keys: RwLock<KeySet>,
    remote: Option<Remote>,
}

struct Remote {
    url: Url,
    client: EgressClient,
    /// When the issuer was last asked, and when it last answered. Held while it is asked: one request at a time.
    asked: Mutex<Option<Timestamp>>,
    answered: RwLock<Option<Timestamp>>,
}

impl Jwks {
    pub(super) fn open(source: &JwksSource, client: EgressClient) -> Result<Self, JwksFault> {
        match source {
            JwksSource::File(path) => {
                let name = path.display().to_string();
                let text = std::fs::read(path).map_err(|fault| JwksFault::File { path: name.clone(), fault })?;
                let keys = read_set(&text).ok_or(JwksFault::NotASet(name))?;
                Ok(Self { keys: RwLock::new(Arc::new(keys)), remote: None })
            }
            JwksSource::Url(url) => {
                let remote = Remote { url: url.clone(), client, asked: Mutex::default(), answered: RwLock::default() };
                Ok(Self { keys: RwLock::default(), remote: Some(remote) })
            }
        }
    }

    /// The key of this algorithm and `kid`. Without a `kid` the key must be the only one of its kind.
    pub(super) async fn key(
        &self,
        algorithm: Algorithm,
        kid: Option<&str>,
        now: Timestamp,
    ) -> Result<DecodingKey, AuthError> {
        let find = || find(&self.keys.read(), algorithm, kid);
        let known = find();
        let Some(remote) = &self.remote else { return known.ok_or(AuthError::UnknownKey) };
        if let Some(known) = known {
            if remote.is_old(now)
                && let Ok(asked) = remote.asked.try_lock()
            {
                // The keys at hand still serve when the issuer does not answer.
                self.refetch(remote, asked, now).await;
                return find().ok_or(AuthError::UnknownKey);
            }
            return Ok(known);
        }
        let asked = remote.asked.lock().await;
        if let Some(known) = find() {
            return Ok(known);
        }
        self.refetch(remote, asked, now).await;
        match find() {
            Some(known) => Ok(known),
            None if remote.answered.read().is_none() => Err(AuthError::KeysUnavailable),
            None => Err(AuthError::UnknownKey),
        }
    }

    async fn refetch(
        &self,
        remote: &Remote,
        mut asked: tokio::sync::MutexGuard<'_, Option<Timestamp>>,
        now: Timestamp,
    ) {
        if asked.is_some_and(|at| now.millis_since(at) < REFETCH_MS) {
            return;
        }
        *asked = Some(now);
        match remote.fetch().await {
            Ok(keys) => {
                *self.keys.write() = Arc::new(keys);
                *remote.answered.write() = Some(now);
            }
            Err(fault) => tracing::warn!(url = %remote.url.origin().ascii_serialization(), %fault, "keys not read"),
        }
    }
}

impl Remote {
    fn is_old(&self, now: Timestamp) -> bool {
        self.answered.read().is_none_or(|at| now.millis_since(at) >= MAX_AGE_MS)
    }

    async fn fetch(&self) -> Result<Vec<PublicKey>, JwksFault> {
        let said = |fault: reqwest::Error| JwksFault::Fetch(fault.without_url().to_string());
        let request = self.client.request(Method::GET, &self.url);
        let request = request.map_err(|refusal| JwksFault::Fetch(refusal.to_string()))?;
        let mut answer =
            request.timeout(FETCH_TIMEOUT).send().await.and_then(reqwest::Response::error_for_status).map_err(said)?;
        let mut text = Vec::new();
        while let Some(chunk) = answer.chunk().await.map_err(said)? {
            text.extend_from_slice(&chunk);
            if text.len() > SET_MAX {
                return Err(JwksFault::Fetch("the answer is too large".to_owned()));
            }
        }
        read_set(&text).ok_or_else(|| JwksFault::NotASet("the answer".to_owned()))
    }
}

fn find(keys: &KeySet, algorithm: Algorithm, kid: Option<&str>) -> Option<DecodingKey> {
    let mut of_kind = keys.iter().filter(|key| key.algorithm == algorithm);
    match kid {
        Some(kid) => of_kind.find(|key| key.kid.as_deref() == Some(kid)).map(|key| key.key.clone()),
        None => match (of_kind.next(), of_kind.next()) {
            (Some(only), None) => Some(only.key.clone()),
            _ => None,
        },
    }
}

/// The usable keys of a set; keys of other kinds are passed over, since issuers publish those too.
fn read_set(text: &[u8]) -> Option<Vec<PublicKey>> {
    let set: Value = serde_json::from_slice(text).ok()?;
    let keys: Vec<PublicKey> = set.get("keys")?.as_array()?.iter().filter_map(read_key).collect();
    (!keys.is_empty()).then_some(keys)
}

fn read_key(value: &Value) -> Option<PublicKey> {
    let jwk = Jwk::deserialize(value).ok()?;
    let algorithm = match &jwk.algorithm {
        AlgorithmParameters::RSA(_) => Algorithm::RS256,
        AlgorithmParameters::EllipticCurve(key) if key.curve == EllipticCurve::P256 => Algorithm::ES256,
        AlgorithmParameters::OctetKeyPair(key) if key.curve == EllipticCurve::Ed25519 => Algorithm::EdDSA,
        _ => return None,
    };
    let says_another = jwk.common.key_algorithm.is_some_and(|named| Algorithm::try_from(named).ok() != Some(algorithm));
    let signs = jwk.common.public_key_use.as_ref().is_none_or(|usage| *usage == PublicKeyUse::Signature);
    if says_another || !signs {
        return None;
    }
    Some(PublicKey { kid: jwk.common.key_id.clone(), algorithm, key: DecodingKey::from_jwk(&jwk).ok()? })
}
