//! The secrets of one run while it is driven.

use std::collections::HashMap;

use secrecy::SecretString;

/// The opened secrets of one run, by the caller's names. One that does not open keeps its name: nothing else that has
/// the same name is ever taken in its place.
#[derive(Debug, Default)]
pub struct RunSecrets(HashMap<String, Option<SecretString>>);

/// What a run has under a name.
#[derive(Clone, Copy, Debug)]
pub enum Found<'a> {
    /// A secret.
    Value(&'a SecretString),
    /// One that does not open.
    Unreadable,
    /// Nothing.
    Nothing,
}

impl RunSecrets {
    /// Of a run without secrets.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an opened secret, or the name of one that does not open.
    pub fn insert(&mut self, name: String, value: Option<SecretString>) {
        self.0.insert(name, value);
    }

    /// What stands under a name.
    pub fn find(&self, name: &str) -> Found<'_> {
        match self.0.get(name) {
            Some(Some(value)) => Found::Value(value),
            Some(None) => Found::Unreadable,
            None => Found::Nothing,
        }
    }

    /// Whether the run has this name, readable or not.
    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// How many names there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Every name with its value, those that opened.
    pub fn opened(&self) -> impl Iterator<Item = (&String, &SecretString)> {
        self.0.iter().filter_map(|(name, value)| value.as_ref().map(|value| (name, value)))
    }
}

impl FromIterator<(String, SecretString)> for RunSecrets {
    fn from_iter<I: IntoIterator<Item = (String, SecretString)>>(secrets: I) -> Self {
        Self(secrets.into_iter().map(|(name, value)| (name, Some(value))).collect())
    }
}
