//! Hints between the nodes of one database: what one node changed may matter to the others. A hint carries nothing:
//! were all of them lost, everything would still work, later. Knows neither how hints travel nor what they lead to.
//!
//! Each kind has one listener in a process. Hints that come while it is busy become one.

use std::sync::atomic::{AtomicU8, Ordering};

use tokio::sync::{Notify, watch};

/// What a change may mean to other nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hint {
    /// A run may be due, or a place in a tenant's share has become free.
    Due,
    /// Somebody left a wish with a run that a node owns.
    Wish,
    /// Events were stored.
    Events,
    /// Among them some that whoever watches the whole tenant is told of.
    Feed,
    /// A registered server or a stored secret was changed.
    Registry,
    /// A call is on offer to workers.
    Work,
}

impl Hint {
    const ALL: [Self; 6] = [Self::Due, Self::Wish, Self::Events, Self::Feed, Self::Registry, Self::Work];

    const fn bit(self) -> u8 {
        match self {
            Self::Due => 1,
            Self::Wish => 2,
            Self::Events => 4,
            Self::Feed => 8,
            Self::Registry => 16,
            Self::Work => 32,
        }
    }
}

/// Several kinds at once; prints as two hexadecimal digits. Versions that know four kinds read these too: what they do
/// not know means everything to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HintSet(u8);

impl HintSet {
    pub(super) const ALL: Self = Self(0x3f);

    pub(super) const fn digits(self) -> u8 {
        self.0
    }

    /// Digits that no version wrote mean everything: looking once too often costs little.
    pub(super) fn from_digits(text: &str) -> Self {
        u8::from_str_radix(text, 16).ok().filter(|bits| (1..=Self::ALL.0).contains(bits)).map_or(Self::ALL, Self)
    }

    const fn contains(self, hint: Hint) -> bool {
        self.0 & hint.bit() != 0
    }
}

/// This process's end of the hints.
#[derive(Debug, Default)]
pub struct Hints {
    /// Told here and not passed on yet.
    told: AtomicU8,
    has_told: Notify,
    due: Notify,
    wish: Notify,
    events: Notify,
    feed: Notify,
    registry: Notify,
    /// For all who wait for calls, of this process too.
    work: watch::Sender<()>,
}

impl Hints {
    /// This process changed something **and has committed it**. Costs nothing and never waits.
    pub fn tell(&self, hint: Hint) {
        if hint == Hint::Work {
            self.work.send_replace(());
        }
        if self.told.fetch_or(hint.bit(), Ordering::AcqRel) & hint.bit() == 0 {
            self.has_told.notify_one();
        }
    }

    /// Waits until another node said so; at once when it did since the last time. For one listener a kind. For calls on
    /// offer there is `work` instead, which this process's own are heard by too.
    pub async fn heard(&self, hint: Hint) {
        match self.bell(hint) {
            Some(bell) => bell.notified().await,
            None => std::future::pending().await,
        }
    }

    /// Changes whenever a call is on offer, here or on another node; any number may listen.
    pub fn work(&self) -> watch::Receiver<()> {
        self.work.subscribe()
    }

    /// Waits for something to pass on.
    pub(super) async fn to_pass_on(&self) -> HintSet {
        loop {
            if let Some(set) = self.take() {
                return set;
            }
            self.has_told.notified().await;
        }
    }

    /// What is to be passed on now.
    pub(super) fn take(&self) -> Option<HintSet> {
        let bits = self.told.swap(0, Ordering::AcqRel);
        (bits != 0).then_some(HintSet(bits))
    }

    /// It could not be passed on: it still has to be.
    pub(super) fn put_back(&self, set: HintSet) {
        for hint in Hint::ALL.into_iter().filter(|hint| set.contains(*hint)) {
            self.tell(hint);
        }
    }

    /// Another node said so.
    pub(super) fn hear(&self, set: HintSet) {
        for hint in Hint::ALL.into_iter().filter(|hint| set.contains(*hint)) {
            match self.bell(hint) {
                Some(bell) => bell.notify_one(),
                None => {
                    self.work.send_replace(());
                }
            }
        }
    }

    const fn bell(&self, hint: Hint) -> Option<&Notify> {
        match hint {
            Hint::Due => Some(&self.due),
            Hint::Wish => Some(&self.wish),
            Hint::Events => Some(&self.events),
            Hint::Feed => Some(&self.feed),
            Hint::Registry => Some(&self.registry),
            Hint::Work => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn hints_of_a_kind_become_one_and_kinds_are_kept_apart() {
        let hints = Hints::default();
        assert_eq!(hints.take(), None);
        for _ in 0..3 {
            hints.tell(Hint::Events);
            hints.tell(Hint::Due);
        }
        let set = hints.to_pass_on().await;
        assert_eq!(set.digits(), 5);
        assert_eq!(hints.take(), None);
        hints.put_back(set);
        assert_eq!(hints.to_pass_on().await, set);

        hints.hear(set);
        hints.hear(set);
        assert_eq!(hints.heard(Hint::Due).now_or_never(), Some(()));
        assert_eq!(hints.heard(Hint::Due).now_or_never(), None);
        assert_eq!(hints.heard(Hint::Wish).now_or_never(), None);
        assert_eq!(hints.heard(Hint::Events).now_or_never(), Some(()));
    }

    #[test]
    fn what_cannot_be_read_means_everything() {
        for text in ["", "0", "g", "40", "ff", "-1"] {
            assert_eq!(HintSet::from_digits(text), HintSet::ALL, "{text:?}");
        }
        for text in ["6", "06"] {
            assert_eq!(HintSet::from_digits(text), HintSet(6), "versions before this one write one digit");
        }
        assert_eq!(HintSet::from_digits("10"), HintSet(Hint::Registry.bit()));
    }
}
