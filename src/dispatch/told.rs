//! What each server was ever told by this node in confidence, beside the runs' own secrets: after a secret was replaced, a
//! server may still repeat the earlier one. Kept in memory only.

use std::collections::VecDeque;

use dashmap::DashMap;
use secrecy::{ExposeSecret as _, SecretString};
use tokio::time::Instant;

use crate::run::ids::TenantId;
use crate::secrets::Redactor;

/// Values of one server that are remembered, the last ones.
const VALUES_MAX: usize = 32;

/// Servers that are remembered; beyond that the one that was told nothing for longest is forgotten.
const PLACES_MAX: usize = 10_000;

/// A tenant, and an address or a name of a server or a secret.
pub(super) type Place = (TenantId, String);

/// All of it.
#[derive(Default)]
pub(super) struct EverTold(DashMap<Place, Values>);

struct Values {
    last: VecDeque<SecretString>,
    redactor: Redactor,
    noted: Instant,
}

impl EverTold {
    /// Remembers what is told there.
    pub(super) fn note(&self, places: &[Place], told: &[SecretString]) {
        if told.is_empty() {
            return;
        }
        for place in places {
            if self.0.len() >= PLACES_MAX && !self.0.contains_key(place) {
                self.forget_oldest();
            }
            self.0.entry(place.clone()).or_insert_with(Values::none).note(told);
        }
    }

    /// Takes out what was told there.
    pub(super) fn known(&self, place: &Place) -> Redactor {
        self.0.get(place).map(|values| values.redactor.clone()).unwrap_or_default()
    }

    fn forget_oldest(&self) {
        let oldest = self.0.iter().min_by_key(|values| values.noted).map(|values| values.key().clone());
        if let Some(place) = oldest {
            self.0.remove(&place);
        }
    }
}

impl Values {
    fn none() -> Self {
        Self { last: VecDeque::new(), redactor: Redactor::default(), noted: Instant::now() }
    }

    fn note(&mut self, told: &[SecretString]) {
        self.noted = Instant::now();
        let is_known =
            |value: &SecretString| self.last.iter().any(|known| known.expose_secret() == value.expose_secret());
        let new: Vec<SecretString> = told.iter().filter(|value| !is_known(value)).cloned().collect();
        if new.is_empty() {
            return;
        }
        for value in new {
            self.last.push_front(value);
        }
        self.last.truncate(VALUES_MAX);
        self.redactor = Redactor::of(&self.last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(name: &str) -> Place {
        (TenantId::parse("acme").unwrap(), name.to_owned())
    }

    #[test]
    fn what_was_told_stays_known_and_only_there() {
        let ever = EverTold::default();
        let (here, there) = (place("https://a.example/mcp"), place("server/b"));
        ever.note(std::slice::from_ref(&here), &["canary-old".into()]);
        ever.note(&[here.clone(), there.clone()], &["canary-new".into()]);
        ever.note(std::slice::from_ref(&there), &[]);
        assert_eq!(ever.known(&here).text("canary-old canary-new"), "[redacted] [redacted]");
        assert_eq!(ever.known(&there).text("canary-old canary-new"), "canary-old [redacted]");
        let elsewhere = (TenantId::parse("umbrella").unwrap(), here.1);
        assert!(ever.known(&elsewhere).is_empty());
        for number in 0..VALUES_MAX {
            ever.note(std::slice::from_ref(&there), &[format!("canary-{number:05}").into()]);
        }
        assert_eq!(ever.known(&there).text("canary-new canary-00000"), "canary-new [redacted]", "the last ones stay");
    }
}
