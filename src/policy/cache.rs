//! A bounded map of what was compiled, by source.

use std::collections::HashMap;

/// Entries after which the older half is forgotten.
const GENERATION: usize = 256;

/// What was asked for lately. Two generations: what is asked for again moves to the young one, and the old one is
/// dropped whole when the young one is full.
pub(super) struct Cache<T> {
    young: HashMap<String, T>,
    old: HashMap<String, T>,
}

impl<T> Default for Cache<T> {
    fn default() -> Self {
        Self { young: HashMap::new(), old: HashMap::new() }
    }
}

impl<T: Clone> Cache<T> {
    pub(super) fn get_or(&mut self, source: &str, make: impl FnOnce() -> T) -> T {
        if let Some(known) = self.young.get(source) {
            return known.clone();
        }
        let value = self.old.remove(source).unwrap_or_else(make);
        if self.young.len() >= GENERATION {
            self.old = std::mem::take(&mut self.young);
        }
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
            cache.get_or("hot", make);
            cache.get_or(&number.to_string(), make);
        }
        assert_eq!(made.get(), 10 * GENERATION + 1, "hot was made once");
        assert!(cache.young.len() + cache.old.len() <= 2 * GENERATION);
    }
}
