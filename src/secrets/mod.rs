//! Keeps secrets: sealed at rest, opened only where they are sent. No value is ever printed.
//!
//! A sealed secret is AES-256-GCM under a master key of the operator's, with a random nonce. Its associated data names
//! tenant, run, name and version, so a row that is moved to another place does not open there.

mod decimal;
mod fault;
mod flow;
mod held;
pub mod hosts;
mod pattern;
mod place;
mod redact;
pub mod rotate;
mod token;

use std::fmt;

use aws_lc_rs::aead::{AES_256_GCM, Aad, Nonce, RandomizedNonceKey};
use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use secrecy::{ExposeSecret, SecretString};
use zeroize::Zeroizing;

pub use fault::{KeyRingFault, SecretError};
pub use flow::Flow;
pub use held::{Found, RunSecrets};
pub use redact::Redactor;

use crate::run::ids::{RunUid, TenantId};
use crate::store::SealedSecret;
use crate::store::registry::{SealedPlace, SealedRow, StoredSecret};
use place::{place, stored_place};

/// Bytes of a master key.
const KEY_LEN: usize = 32;

/// Bytes of the nonce in front of the ciphertext.
const NONCE_LEN: usize = 12;

/// Longest key id.
const KEY_ID_MAX: usize = 64;

/// A master key only ever derives: the sealing key and the signing keys are each its digest of their purpose.
struct MasterKey {
    id: String,
    aead: RandomizedNonceKey,
    root: hmac::Key,
}

/// The operator's master keys: the first seals, all of them open.
pub struct KeyRing {
    first: MasterKey,
    rest: Vec<MasterKey>,
}

impl fmt::Debug for KeyRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.keys().map(|key| &key.id)).finish()
    }
}

impl KeyRing {
    /// Reads `keyid:base64,…`, each key 32 bytes.
    ///
    /// # Errors
    /// The first entry that does not read, by place or id.
    pub fn parse(text: &str) -> Result<Self, KeyRingFault> {
        let mut keys: Vec<MasterKey> = Vec::new();
        for (index, entry) in text.split(',').map(str::trim).enumerate().filter(|(_, entry)| !entry.is_empty()) {
            let (id, encoded) = entry.split_once(':').ok_or(KeyRingFault::Form(index + 1))?;
            let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
            if id.is_empty() || id.len() > KEY_ID_MAX || !id.chars().all(fits) {
                return Err(KeyRingFault::Form(index + 1));
            }
            if keys.iter().any(|key| key.id == id) {
                return Err(KeyRingFault::Twice(id.to_owned()));
            }
            keys.push(MasterKey::read(id, encoded).ok_or_else(|| KeyRingFault::Length(id.to_owned()))?);
        }
        let mut keys = keys.into_iter();
        let first = keys.next().ok_or(KeyRingFault::Empty)?;
        Ok(Self { first, rest: keys.collect() })
    }

    /// Seals a run-scoped secret under the first key.
    ///
    /// # Errors
    /// `NotSealed`.
    pub fn seal(
        &self,
        tenant: &TenantId,
        run: RunUid,
        name: &str,
        value: &SecretString,
    ) -> Result<SealedSecret, SecretError> {
        let sealed = self.seal_at(place(tenant, run, name), name, value)?;
        Ok(SealedSecret { name: name.to_owned(), key_id: self.first.id.clone(), sealed })
    }

    /// Seals a version of a stored secret under the first key.
    ///
    /// # Errors
    /// `NotSealed`.
    pub fn seal_stored(
        &self,
        tenant: &TenantId,
        name: &str,
        version: u32,
        value: &SecretString,
    ) -> Result<SealedSecret, SecretError> {
        let sealed = self.seal_at(stored_place(tenant, name, version), name, value)?;
        Ok(SealedSecret { name: name.to_owned(), key_id: self.first.id.clone(), sealed })
    }

    fn seal_at(&self, place: Vec<u8>, name: &str, value: &SecretString) -> Result<Vec<u8>, SecretError> {
        let refused = || SecretError::NotSealed { name: name.to_owned() };
        let mut text = Zeroizing::new(value.expose_secret().as_bytes().to_vec());
        let aad = Aad::from(place);
        // The tag grows the buffer; a value that fits its buffer exactly would leave a copy behind.
        let mut buffer = Zeroizing::new(Vec::with_capacity(text.len() + AES_256_GCM.tag_len()));
        buffer.append(&mut text);
        let nonce = match self.first.aead.seal_in_place_append_tag(aad, &mut *buffer) {
            Ok(nonce) => nonce,
            Err(aws_lc_rs::error::Unspecified) => return Err(refused()),
        };
        Ok([nonce.as_ref().as_slice(), buffer.as_slice()].concat())
    }

    /// Opens a run-scoped secret at the place that it was sealed for.
    ///
    /// # Errors
    /// `UnknownKey`, `NotAuthentic`.
    pub fn open(&self, tenant: &TenantId, run: RunUid, secret: &SealedSecret) -> Result<SecretString, SecretError> {
        let SealedSecret { name, key_id, sealed } = secret;
        self.open_at(place(tenant, run, name), (name, key_id), sealed)
    }

    /// Opens a stored secret as the tenant's, under its name and version.
    ///
    /// # Errors
    /// `UnknownKey`, `NotAuthentic`.
    pub fn open_stored(&self, tenant: &TenantId, secret: &StoredSecret) -> Result<SecretString, SecretError> {
        let StoredSecret { info, sealed } = secret;
        self.open_at(stored_place(tenant, &info.name, info.version), (&info.name, &info.key_id), sealed)
    }

    /// The same value at the same place, sealed under the first key.
    ///
    /// # Errors
    /// `UnknownKey`, `NotAuthentic`, `NotSealed`.
    pub fn reseal(&self, row: &SealedRow) -> Result<SealedSecret, SecretError> {
        let (place, name) = match &row.place {
            SealedPlace::Run { tenant, uid, name } => (place(tenant, *uid, name), name),
            SealedPlace::Stored { tenant, name, version } => (stored_place(tenant, name, *version), name),
        };
        let value = self.open_at(place.clone(), (name, &row.key_id), &row.sealed)?;
        let sealed = self.seal_at(place, name, &value)?;
        Ok(SealedSecret { name: name.clone(), key_id: self.first.id.clone(), sealed })
    }

    /// The id of the key that seals.
    pub fn first_id(&self) -> &str {
        &self.first.id
    }

    fn open_at(&self, place: Vec<u8>, named: (&str, &str), sealed: &[u8]) -> Result<SecretString, SecretError> {
        let (name, key_id) = (named.0.to_owned(), named.1.to_owned());
        match self.keys().find(|key| key.id == key_id) {
            None => Err(SecretError::UnknownKey { name, key_id }),
            Some(key) => key.open(place, sealed).ok_or(SecretError::NotAuthentic { name, key_id }),
        }
    }

    /// Keyed digest of a request body that came with an `Idempotency-Key`: bodies hold secrets, so a plain digest
    /// would let a reader of the database try guesses. The last key digests, so a new key in front changes no digest
    /// that is still kept.
    pub fn body_digest(&self, body: &[u8]) -> String {
        let key = self.rest.last().unwrap_or(&self.first);
        hex::encode(hmac::sign(&key.derived("idempotency-body"), body))
    }

    /// Keys for one purpose, one for every master key, in order: the first signs, all of them verify.
    pub fn signing_keys(&self, purpose: &str) -> Vec<hmac::Key> {
        self.keys().map(|key| key.derived(purpose)).collect()
    }

    /// The same, each with the id of its master key.
    pub fn named_signing_keys(&self, purpose: &str) -> Vec<(String, hmac::Key)> {
        self.keys().map(|key| (key.id.clone(), key.derived(purpose))).collect()
    }

    fn keys(&self) -> impl Iterator<Item = &MasterKey> {
        std::iter::once(&self.first).chain(&self.rest)
    }
}

impl MasterKey {
    fn read(id: &str, encoded: &str) -> Option<Self> {
        let bytes = STANDARD.decode(encoded).or_else(|_| STANDARD_NO_PAD.decode(encoded));
        let bytes = Zeroizing::new(bytes.ok()?);
        if bytes.len() != KEY_LEN {
            return None;
        }
        let root = hmac::Key::new(hmac::HMAC_SHA256, &bytes);
        let aead = RandomizedNonceKey::new(&AES_256_GCM, derive(&root, "seal").as_ref()).ok()?;
        Some(Self { id: id.to_owned(), aead, root })
    }

    fn open(&self, place: Vec<u8>, sealed: &[u8]) -> Option<SecretString> {
        let (nonce, text) = sealed.split_at_checked(NONCE_LEN)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let mut buffer = Zeroizing::new(text.to_vec());
        let opened = self.aead.open_in_place(nonce, Aad::from(place), &mut buffer).ok()?;
        Some(SecretString::from(std::str::from_utf8(opened).ok()?))
    }

    fn derived(&self, purpose: &str) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, derive(&self.root, purpose).as_ref())
    }
}

/// 32 bytes that serve one purpose only, so that no two uses ever share a key.
fn derive(root: &hmac::Key, purpose: &str) -> hmac::Tag {
    hmac::sign(root, format!("countersign/{purpose}").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::time::Timestamp;
    use crate::store::registry::SecretInfo;
    use uuid::Uuid;

    fn key(id: &str, byte: u8) -> String {
        format!("{id}:{}", STANDARD.encode([byte; 32]))
    }

    fn ring(keys: &[String]) -> KeyRing {
        KeyRing::parse(&keys.join(",")).unwrap()
    }

    fn tenant(name: &str) -> TenantId {
        TenantId::parse(name).unwrap()
    }

    const RUN: RunUid = RunUid(Uuid::from_u128(7));

    fn sealed() -> (KeyRing, SealedSecret) {
        let ring = ring(&[key("k1", 1)]);
        let secret = ring.seal(&tenant("acme"), RUN, "orders", &SecretString::from("s3cret-value")).unwrap();
        (ring, secret)
    }

    #[test]
    fn a_secret_opens_where_it_was_sealed() {
        let (ring, secret) = sealed();
        assert_eq!(ring.open(&tenant("acme"), RUN, &secret).unwrap().expose_secret(), "s3cret-value");
        let sealed_text = String::from_utf8_lossy(&secret.sealed).into_owned();
        assert!(!sealed_text.contains("s3cret"));
        let again = ring.seal(&tenant("acme"), RUN, "orders", &SecretString::from("s3cret-value")).unwrap();
        assert_ne!(again.sealed, secret.sealed, "every sealing has its own nonce");
    }

    #[test]
    fn b249_a_secret_opens_nowhere_else() {
        let (ring, secret) = sealed();
        let moved = SealedSecret { name: "other".to_owned(), ..secret.clone() };
        let mut cases = vec![
            (tenant("umbrella"), RUN, secret.clone()),
            (tenant("acme"), RunUid(Uuid::from_u128(8)), secret.clone()),
            (tenant("acme"), RUN, moved),
            (tenant("acme"), RUN, SealedSecret { sealed: Vec::new(), ..secret.clone() }),
            (tenant("acme"), RUN, SealedSecret { sealed: secret.sealed[..15].to_vec(), ..secret.clone() }),
        ];
        for at in 0..secret.sealed.len() {
            let mut tampered = secret.clone();
            tampered.sealed[at] ^= 1;
            cases.push((tenant("acme"), RUN, tampered));
        }
        for (tenant, run, secret) in cases {
            let refused = ring.open(&tenant, run, &secret).unwrap_err();
            assert!(matches!(refused, SecretError::NotAuthentic { .. }), "{refused}");
            assert!(!refused.to_string().contains("s3cret"));
        }
    }

    #[test]
    fn b249_a_stored_secret_opens_for_its_tenant_name_and_version_only() {
        let ring = ring(&[key("k1", 1)]);
        let sealed = ring.seal_stored(&tenant("acme"), "orders", 2, &SecretString::from("s3cret-value")).unwrap();
        let at = Timestamp::from_millis(0);
        let stored = |name: &str, version: u32, key_id: &str, sealed: &[u8]| {
            let (name, key_id) = (name.to_owned(), key_id.to_owned());
            let info = SecretInfo { name, version, key_id, hosts: Vec::new(), created_at: at, updated_at: at };
            StoredSecret { info, sealed: sealed.to_vec() }
        };
        let good = stored("orders", 2, "k1", &sealed.sealed);
        assert_eq!(ring.open_stored(&tenant("acme"), &good).unwrap().expose_secret(), "s3cret-value");
        let mut tampered = sealed.sealed.clone();
        tampered[20] ^= 1;
        let as_a_runs =
            SealedSecret { name: "orders".to_owned(), key_id: "k1".to_owned(), sealed: sealed.sealed.clone() };
        for refused in [
            ring.open_stored(&tenant("umbrella"), &good),
            ring.open_stored(&tenant("acme"), &stored("other", 2, "k1", &sealed.sealed)),
            ring.open_stored(&tenant("acme"), &stored("orders", 1, "k1", &sealed.sealed)),
            ring.open_stored(&tenant("acme"), &stored("orders", 2, "k1", &tampered)),
            ring.open_stored(&tenant("acme"), &stored("orders", 2, "k0", &sealed.sealed)),
            ring.open(&tenant("acme"), RUN, &as_a_runs),
        ] {
            let said = refused.unwrap_err().to_string();
            assert!(said.contains("secret \"") && !said.contains("s3cret"), "{said}");
        }
    }

    #[test]
    fn a_value_sealed_anew_opens_at_its_place_under_the_first_key() {
        let (_, secret) = sealed();
        let both = ring(&[key("k2", 2), key("k1", 1)]);
        let place = SealedPlace::Run { tenant: tenant("acme"), uid: RUN, name: "orders".to_owned() };
        let row = SealedRow { place, key_id: secret.key_id, sealed: secret.sealed };
        let anew = both.reseal(&row).unwrap();
        assert_eq!(anew.key_id, "k2");
        let alone = ring(&[key("k2", 2)]);
        assert_eq!(alone.open(&tenant("acme"), RUN, &anew).unwrap().expose_secret(), "s3cret-value");
        let moved = SealedRow {
            place: SealedPlace::Run { tenant: tenant("umbrella"), uid: RUN, name: "orders".to_owned() },
            ..row
        };
        assert!(matches!(both.reseal(&moved), Err(SecretError::NotAuthentic { .. })));
    }

    #[test]
    fn a_new_key_in_front_seals_and_the_old_ones_still_open() {
        let (old, secret) = sealed();
        let both = ring(&[key("k2", 2), key("k1", 1)]);
        assert!(both.open(&tenant("acme"), RUN, &secret).is_ok());
        let newer = both.seal(&tenant("acme"), RUN, "orders", &SecretString::from("x")).unwrap();
        assert_eq!(newer.key_id, "k2");
        let refused = old.open(&tenant("acme"), RUN, &newer).unwrap_err();
        assert!(matches!(refused, SecretError::UnknownKey { key_id, .. } if key_id == "k2"));
        assert_eq!(old.body_digest(b"{}"), both.body_digest(b"{}"), "a kept digest survives a new key");
        let renamed = ring(&[key("k1", 3)]);
        assert!(matches!(renamed.open(&tenant("acme"), RUN, &secret), Err(SecretError::NotAuthentic { .. })));
    }

    #[test]
    fn derived_keys_differ_by_purpose_and_by_master_key() {
        let both = ring(&[key("k2", 2), key("k1", 1)]);
        let tags: Vec<String> = ["a", "b"]
            .iter()
            .flat_map(|purpose| both.signing_keys(purpose))
            .map(|key| hex::encode(hmac::sign(&key, b"x")))
            .collect();
        let distinct: std::collections::HashSet<&String> = tags.iter().collect();
        assert_eq!((tags.len(), distinct.len()), (4, 4));
        assert_ne!(both.body_digest(b"a"), both.body_digest(b"b"));
    }

    #[test]
    fn master_keys_that_do_not_read_are_named_without_their_material() {
        let short = format!("k1:{}", STANDARD.encode([9; 31]));
        let twice = format!("{},{}", key("k1", 1), key("k1", 2));
        for (text, fault) in [
            ("", KeyRingFault::Empty),
            (" , ", KeyRingFault::Empty),
            ("nocolon", KeyRingFault::Form(1)),
            (":AAAA", KeyRingFault::Form(1)),
            ("k 1:AAAA", KeyRingFault::Form(1)),
            ("k1:not base64!", KeyRingFault::Length("k1".to_owned())),
            (short.as_str(), KeyRingFault::Length("k1".to_owned())),
            (twice.as_str(), KeyRingFault::Twice("k1".to_owned())),
        ] {
            assert_eq!(KeyRing::parse(text).err(), Some(fault), "{text}");
        }
        let ring = ring(&[key("k2", 2), key("k1", 1)]);
        assert_eq!(format!("{ring:?}"), "[\"k2\", \"k1\"]");
    }
}
