//! Keeps what a run is bound to and what its servers serve together: compares them when a leg begins, and reads them
//! again before the model is asked when a server announced other tools. Decides nothing: what was read becomes a fact.

use std::time::Duration;

use super::drive::Drive;
use super::stopped::Stopped;
use crate::dispatch::{News, Unreachable, Watched};
use crate::run::binding::merge;
use crate::run::fact::Fact;

/// Waits before a server that cannot be read is tried again by a leg without a caller.
const CATALOG_WAITS_MS: [u64; 4] = [200, 1_000, 3_000, 8_000];

/// Readings before one step. Some servers announce a change with every listing: the model is asked nevertheless, and
/// what was announced last counts before the step after it.
const READINGS_A_STEP: u32 = 3;

/// The servers' tools as they were read last.
pub(super) struct Catalogs {
    watched: Watched,
    /// The turns before the step that servers were read for last.
    turns: u32,
    /// How often they were read for it since the leg began.
    readings: u32,
}

impl Catalogs {
    /// What was read for the step after so many turns.
    pub(super) const fn new(watched: Watched, turns: u32) -> Self {
        Self { watched, turns, readings: 0 }
    }

    /// Notes a reading before the step that follows so many turns. One that left a server unread is the step's last:
    /// the server is tried again before the step after it.
    fn note(&mut self, turns: u32, left_unread: bool) {
        let before = if self.turns == turns { self.readings } else { 0 };
        self.turns = turns;
        self.readings = if left_unread { READINGS_A_STEP } else { before.saturating_add(1) };
    }

    /// Whether servers are to be read before the step after so many turns. A server may say that its list holds for no
    /// time at all: what only ran out is read once a step.
    fn has_news(&self, turns: u32) -> bool {
        match self.watched.news() {
            News::None => false,
            News::Expired => self.turns != turns,
            News::Lost | News::Announced => self.turns != turns || self.readings < READINGS_A_STEP,
        }
    }
}

impl Drive<'_> {
    /// Announcements count before the next step. Several of them are one.
    pub(super) fn heed_news(&mut self) {
        self.envelope.announced |= self.catalogs.has_news(self.envelope.head.state.turns);
    }

    /// A leg without a caller compares catalogs before it sends anything.
    pub(super) async fn check_catalog(&mut self) -> Result<(), Stopped> {
        let entries = self.envelope.binding.entries.clone();
        let mut waits = CATALOG_WAITS_MS.iter();
        loop {
            let max_age = self.shared.settings.catalog_max_age;
            let reading = self.shared.parts.dispatch.read(self.claim, &entries, &self.secrets, max_age);
            let Some(read) = self.signals.unless_called_off(reading, &self.shared.draining).await? else {
                return Ok(());
            };
            match (read, waits.next()) {
                (Ok(read), _) => {
                    self.catalogs = Catalogs::new(read.watched, self.envelope.head.state.turns);
                    let served = Box::new(merge(entries, &read.catalogs).0);
                    return self.decide(Fact::CatalogRead { served }).await;
                }
                (Err(unreachable), None) => {
                    let message = unreachable.to_string();
                    return self.decide(Fact::CatalogUnreadable { message }).await;
                }
                (Err(_), Some(wait)) => {
                    if self.pause(Duration::from_millis(*wait)).await? {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Reads the servers again before the model is asked.
    pub(super) async fn refresh_catalog(&mut self) -> Result<(), Stopped> {
        let entries = self.envelope.binding.entries.clone();
        let reading = self.shared.parts.dispatch.read_news(self.claim, &entries, &self.secrets, &self.catalogs.watched);
        let Some(read) = self.signals.unless_called_off(reading, &self.shared.draining).await? else {
            return Ok(());
        };
        match read {
            Ok(read) => {
                self.catalogs.watched = read.watched;
                self.catalogs.note(self.envelope.head.state.turns, read.has_kept);
                let (served, mut warnings) = merge(entries, &read.catalogs);
                warnings.extend(read.warnings);
                self.decide(Fact::CatalogReread { served: Box::new(served), warnings }).await
            }
            Err(Unreachable { server, message }) => {
                self.catalogs.note(self.envelope.head.state.turns, true);
                self.decide(Fact::CatalogNotReread { message: format!("{server}: {message}") }).await
            }
        }
    }
}
