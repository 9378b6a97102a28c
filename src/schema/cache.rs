//! Compiled schemas by the digest of their text, in two generations: when the younger one is full it becomes the older
//! one, and what was not asked for since is forgotten. So a flood of schemas costs others a compilation at most, and
//! what is kept is bounded by what it takes compiled, not by the length of its text.

use std::collections::HashMap;
use std::sync::Arc;

use super::compiled::Schema;

/// Estimated bytes of one generation.
const GENERATION_BYTES: u64 = 32 * 1024 * 1024;
/// Estimated bytes of a compiled schema for each step that it took.
const BYTES_A_STEP: u64 = 50;

/// The digest of a schema's text.
pub(super) type Digest = [u8; 32];
/// A compiled schema, or why it is none.
pub(super) type Compiled = Result<Arc<Schema>, Arc<str>>;

/// The compiled schemas that are kept.
#[derive(Default)]
pub(super) struct Kept {
    young: HashMap<Digest, Compiled>,
    old: HashMap<Digest, Compiled>,
    young_bytes: u64,
}

impl Kept {
    pub(super) fn find(&mut self, key: &Digest) -> Option<Compiled> {
        if let Some(known) = self.young.get(key) {
            return Some(known.clone());
        }
        let known = self.old.remove(key)?;
        self.keep(*key, known.clone());
        Some(known)
    }

    pub(super) fn keep(&mut self, key: Digest, compiled: Compiled) {
        let bytes = compiled.as_ref().map_or(1_000, |schema| schema.steps().saturating_mul(BYTES_A_STEP));
        if self.young_bytes.saturating_add(bytes) > GENERATION_BYTES {
            self.old = std::mem::take(&mut self.young);
            self.young_bytes = 0;
        }
        if self.young.insert(key, compiled).is_none() {
            self.young_bytes = self.young_bytes.saturating_add(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn key(n: u64) -> Digest {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&n.to_be_bytes());
        key
    }

    #[test]
    fn what_is_kept_is_bounded_and_what_is_used_stays() {
        let compiled = Arc::new(Schema::compile(&json!({ "pattern": "a{900}" })).unwrap());
        let room = GENERATION_BYTES / (compiled.steps() * BYTES_A_STEP);
        let mut kept = Kept::default();
        for n in 0..room * 5 {
            kept.keep(key(n), Ok(Arc::clone(&compiled)));
            assert!(kept.find(&key(0)).is_some(), "asked for each time, it stays");
        }
        let count = u64::try_from(kept.young.len() + kept.old.len()).unwrap();
        assert!(count <= 2 * room && count > room / 2, "{count} of {room}");
        assert!(kept.find(&key(room)).is_none() && kept.find(&key(room * 5 - 1)).is_some());
        kept.keep(key(u64::MAX), Err("no schema".into()));
        assert!(kept.find(&key(u64::MAX)).unwrap().is_err());
    }
}
