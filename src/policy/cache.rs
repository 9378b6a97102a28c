//! A bounded map of what was compiled, by source.

use std::collections::HashMap;

/// Entries after which the older half is forgotten.
const GENERATION: usize = 256;

/// What the entries weigh together when it is forgotten too, in bytes.
const GENERATION_BYTES: usize = 2 * 1024 * 1024;

/// What was asked for lately. Two generations: what is asked for again moves to the young one, and the old one is
/// dropped whole when the young one is full.
pub(super) struct Cache<T> {
    young: HashMap<String, T>,
    old: HashMap<String, T>,
    /// What the young ones weigh.
    bytes: usize,
}

impl<T> Default for Cache<T> {
    fn default() -> Self {
        Self { young: HashMap::new(), old: HashMap::new(), bytes: 0 }
    }
}

impl<T: Clone> Cache<T> {
    /// `weigh` says what a value takes, in bytes.
    pub(super) fn get_or(&mut self, source: &str, make: impl FnOnce() -> T, weigh: impl FnOnce(&T) -> usize) -> T {
        if let Some(known) = self.young.get(source) {
            return known.clone();
        }
        let value = self.old.remove(source).unwrap_or_else(make);
        let bytes = weigh(&value);
        if self.young.len() >= GENERATION || self.bytes.saturating_add(bytes) > GENERATION_BYTES {
            self.old = std::mem::take(&mut self.young);
            self.bytes = 0;
        }
        self.bytes = self.bytes.saturating_add(bytes);
        self.young.insert(source.to_owned(), value.clone());
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_used_again_stays_and_the_rest_goes() {
        let mut cache = Cache::default();
        let made = std::cell::Cell::new(0_usize);
        let make = || {
            made.set(made.get() + 1);
            made.get()
        };
        for number in 0..10 * GENERATION {
            cache.get_or("hot", make, |_| 0);
            cache.get_or(&number.to_string(), make, |_| 0);
        }
        assert_eq!(made.get(), 10 * GENERATION + 1, "hot was made once");
        assert!(cache.young.len() + cache.old.len() <= 2 * GENERATION);
    }
    #[test]
    fn what_weighs_much_is_forgotten_sooner() {
        let mut cache = Cache::default();
        for number in 0..100 {
            cache.get_or(&number.to_string(), || number, |_| GENERATION_BYTES / 4);
            assert!(cache.young.len() + cache.old.len() <= 8);
        }
        assert_eq!(cache.get_or("99", || 0, |_| 0), 99);
        cache.get_or("larger than all", || 0, |_| usize::MAX);
        assert_eq!(cache.get_or("larger than all", || 1, |_| usize::MAX), 0);
    }
}
