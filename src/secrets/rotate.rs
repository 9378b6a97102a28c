//! Seals every secret anew under the first master key, and forgets what else the others sealed, so that they can go. Works in small pieces beside running
//! nodes: each value is replaced only while it is the one that was read, and what is put meanwhile stays.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{KeyRing, SecretError};
use crate::store::registry::RegistryStore;
use crate::store::{StoreError, TokenStore};

/// Values that are read at once.
const BATCH: u32 = 100;

/// Between two batches, so that whoever has work to do goes first.
const PAUSE: Duration = Duration::from_millis(10);

/// How often everything is looked through at most: each time finds only what was put under an old key meanwhile.
const PASSES: u32 = 10;

/// What became of a rotation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rotated {
    /// Values that are now under the first key and were not before.
    pub resealed: u64,
    /// Access tokens that were forgotten: whoever needs one gets another.
    pub forgotten: u64,
    /// Values that are not under the first key, because they do not open: how many, by what is wrong. Names no value.
    pub left: BTreeMap<String, u64>,
}

/// Seals everything anew that another key than the first sealed. May be repeated, and run by several at once.
///
/// # Errors
/// The store's; what was done until then stays.
pub async fn rotate(store: &(impl RegistryStore + TokenStore + ?Sized), keys: &KeyRing) -> Result<Rotated, StoreError> {
    let mut rotated = Rotated::default();
    for _ in 0..PASSES {
        let before = rotated.resealed;
        let missed = pass(store, keys, &mut rotated).await?;
        if !missed && rotated.resealed == before {
            break;
        }
    }
    rotated.forgotten = store.token_forget(keys.first_id()).await?;
    Ok(rotated)
}

/// Looks through everything once. `true`: some value changed between reading and replacing.
async fn pass(
    store: &(impl RegistryStore + ?Sized),
    keys: &KeyRing,
    rotated: &mut Rotated,
) -> Result<bool, StoreError> {
    let (mut missed, mut after) = (false, None);
    rotated.left.clear();
    loop {
        let rows = store.sealed_list(keys.first_id(), after.as_ref(), BATCH).await?;
        let Some(last) = rows.last() else { return Ok(missed) };
        after = Some(last.place.clone());
        for row in &rows {
            match keys.reseal(row) {
                Ok(anew) if store.sealed_replace(row, &anew.key_id, &anew.sealed).await? => rotated.resealed += 1,
                Ok(_changed) => missed = true,
                Err(fault) => *rotated.left.entry(why(&fault)).or_insert(0) += 1,
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

fn why(fault: &SecretError) -> String {
    match fault {
        SecretError::UnknownKey { key_id, .. } => {
            format!("sealed under the key {key_id:?}, which is not among the master keys")
        }
        SecretError::NotAuthentic { key_id, .. } => format!("do not open under the key {key_id:?}: changed or moved"),
        SecretError::NotSealed { .. } => "could not be sealed".to_owned(),
    }
}
