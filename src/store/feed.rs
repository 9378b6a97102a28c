//! What the watchers of a whole tenant were told, so that nothing is told twice although it comes on two ways: at once
//! from this node's own commits, and by looking for what other nodes stored. Knows neither readers nor SQL.
//!
//! Events carry the times of several nodes' clocks, so whoever looks must look back a while, and finds what is known.

use std::collections::HashMap;

use super::StoredEvent;
use crate::run::ids::{RunUid, TenantId};
use crate::run::time::Timestamp;

/// Events that are remembered of one tenant. With more in so short a time, the oldest count as told.
const REMEMBERED: usize = 50_000;

/// A status or result event of some run of a tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeedEvent {
    /// Whose run it is.
    pub tenant: TenantId,
    /// Which run.
    pub uid: RunUid,
    /// When it happened, by the clock of the node that wrote it.
    pub at: Timestamp,
    /// The event.
    pub event: StoredEvent,
}

/// Whether those who watch a tenant are told of events of this kind.
pub(super) fn is_fed(kind: &str) -> bool {
    matches!(kind, "run-status" | "result")
}

/// The events that one tenant's watchers were told lately.
#[derive(Debug, Default)]
pub struct Told {
    /// By run and number, with the event's time.
    events: HashMap<(RunUid, i64), Timestamp>,
    /// Whatever is older counts as told; `None` until it is known what was there before the first watcher came.
    since: Option<Timestamp>,
}

impl Told {
    /// The first watcher came: what was stored before is not told. Later watchers change nothing.
    pub(super) fn begin(&mut self, since: Timestamp, known: &[FeedEvent]) {
        if self.since.is_none() {
            self.since = Some(since);
            self.events.extend(known.iter().map(|known| ((known.uid, known.event.seq), known.at)));
        }
    }

    pub(super) const fn has_begun(&self) -> bool {
        self.since.is_some()
    }

    /// Whether this event of this node's own is to be told, and remembers that it was.
    pub(super) fn is_new(&mut self, uid: RunUid, seq: i64, at: Timestamp) -> bool {
        self.events.insert((uid, seq), at).is_none()
    }

    /// The same for an event that was looked up.
    pub(super) fn is_found_new(&mut self, found: &FeedEvent) -> bool {
        self.since.is_some_and(|since| found.at >= since) && self.is_new(found.uid, found.event.seq, found.at)
    }

    /// Nobody looks for anything older any more.
    pub(super) fn forget_before(&mut self, time: Timestamp) {
        let mut since = self.since.map_or(time, |since| since.max(time));
        self.events.retain(|_, at| *at >= since);
        if self.events.len() > REMEMBERED {
            let mut times: Vec<Timestamp> = self.events.values().copied().collect();
            let middle = times.len() / 2;
            since = times.select_nth_unstable(middle).1.plus_millis(1);
            self.events.retain(|_, at| *at >= since);
        }
        self.since = self.since.map(|_| since);
    }
}

/// In the order of time, and of its numbers inside each run.
pub(super) fn in_order(mut events: Vec<FeedEvent>) -> Vec<FeedEvent> {
    events.sort_by_key(|event| event.at);
    let places: Vec<RunUid> = events.iter().map(|event| event.uid).collect();
    let mut runs: HashMap<RunUid, Vec<FeedEvent>> = HashMap::new();
    events.sort_by_key(|event| std::cmp::Reverse(event.event.seq));
    for event in events {
        runs.entry(event.uid).or_default().push(event);
    }
    places.iter().filter_map(|uid| runs.get_mut(uid).and_then(Vec::pop)).collect()
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn event(run: u128, seq: i64, at: i64) -> FeedEvent {
        FeedEvent {
            tenant: TenantId::parse("acme").unwrap(),
            uid: RunUid(Uuid::from_u128(run)),
            at: Timestamp::from_millis(at),
            event: StoredEvent { seq, kind: "run-status".to_owned(), body: "{}".to_owned() },
        }
    }

    #[test]
    fn an_event_is_new_once_whichever_way_it_comes_first() {
        let mut told = Told::default();
        assert!(!told.is_found_new(&event(1, 1, 50)), "not before it is known what was there");
        told.begin(Timestamp::from_millis(10), &[event(1, 1, 20)]);
        told.begin(Timestamp::from_millis(0), &[event(1, 2, 30)]);
        let cases =
            [(event(1, 1, 20), false), (event(1, 2, 30), true), (event(1, 2, 30), false), (event(1, 3, 9), false)];
        for (found, is_new) in cases {
            assert_eq!(told.is_found_new(&found), is_new, "{found:?}");
        }
        let own = event(2, 1, 40);
        assert!(told.is_new(own.uid, 1, own.at));
        assert!(!told.is_found_new(&own));
        told.forget_before(Timestamp::from_millis(35));
        assert!(!told.is_found_new(&event(1, 2, 30)), "forgotten, and too old");
        assert!(!told.is_found_new(&own));
    }

    #[test]
    fn a_flood_takes_bounded_memory_and_nothing_is_told_twice() {
        let mut told = Told::default();
        told.begin(Timestamp::from_millis(0), &[]);
        let flood: Vec<FeedEvent> = (0..i64::try_from(REMEMBERED).unwrap() * 2).map(|seq| event(1, seq, seq)).collect();
        assert!(flood.iter().all(|event| told.is_found_new(event)));
        told.forget_before(Timestamp::from_millis(0));
        assert!(told.events.len() <= REMEMBERED, "{}", told.events.len());
        assert!(!flood.iter().any(|event| told.is_found_new(event)));
    }

    #[test]
    fn events_stand_in_the_order_of_time_and_of_their_numbers_in_a_run() {
        let ordered =
            in_order(vec![event(1, 3, 10), event(2, 1, 20), event(1, 2, 30), event(2, 2, 40), event(1, 1, 5)]);
        let numbers: Vec<(u128, i64)> = ordered.iter().map(|event| (event.uid.0.as_u128(), event.event.seq)).collect();
        assert_eq!(numbers, [(1, 1), (1, 2), (2, 1), (1, 3), (2, 2)]);
    }
}
