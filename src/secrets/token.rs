//! Access tokens at rest: sealed for their tenant, for what they depend on, and for their version.

use secrecy::SecretString;

use super::KeyRing;
use super::place::joined;
use crate::store::tokens::{SealedToken, TokenKey};

impl KeyRing {
    /// Seals an access token under the first key; `None`: the cryptographic library refused.
    pub fn seal_token(
        &self,
        key: &TokenKey,
        version: i64,
        value: &SecretString,
        expires_in_ms: i64,
    ) -> Option<SealedToken> {
        let sealed = self.seal_at(place(key, version), "access token", value).ok()?;
        Some(SealedToken { version, key_id: self.first.id.clone(), sealed, expires_in_ms })
    }

    /// Opens an access token; `None` when it was sealed elsewhere or under a key that is gone: then a new one is got.
    pub fn open_token(&self, key: &TokenKey, token: &SealedToken) -> Option<SecretString> {
        let master = self.keys().find(|master| master.id == token.key_id)?;
        master.open(place(key, token.version), &token.sealed)
    }
}

fn place(key: &TokenKey, version: i64) -> Vec<u8> {
    let version = version.to_string();
    joined(&[b"countersign/access-token", key.tenant.as_str().as_bytes(), &key.identity, version.as_bytes()])
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use secrecy::ExposeSecret as _;

    use super::*;
    use crate::run::ids::TenantId;

    #[test]
    fn a_token_opens_where_it_was_sealed_and_nowhere_else() {
        let ring = KeyRing::parse(&format!("k1:{}", STANDARD.encode([1; 32]))).unwrap();
        let other = KeyRing::parse(&format!("k1:{}", STANDARD.encode([2; 32]))).unwrap();
        let renamed = KeyRing::parse(&format!("k2:{}", STANDARD.encode([1; 32]))).unwrap();
        let key = |tenant: &str, byte| TokenKey {
            tenant: TenantId::parse(tenant).unwrap(),
            secret: "s".to_owned(),
            identity: [byte; 32],
        };
        let token = ring.seal_token(&key("acme", 1), 3, &SecretString::from("t0ken"), 5_000).unwrap();
        assert!(!String::from_utf8_lossy(&token.sealed).contains("t0ken"));
        let opens = |ring: &KeyRing, at: &TokenKey, token: &SealedToken| ring.open_token(at, token).is_some();
        assert_eq!(ring.open_token(&key("acme", 1), &token).unwrap().expose_secret(), "t0ken");
        assert!(!opens(&ring, &key("umbrella", 1), &token) && !opens(&ring, &key("acme", 2), &token));
        assert!(!opens(&ring, &key("acme", 1), &SealedToken { version: 4, ..token.clone() }));
        assert!(!opens(&other, &key("acme", 1), &token) && !opens(&renamed, &key("acme", 1), &token));
    }
}
