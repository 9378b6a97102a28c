//! Tells readers in this process what was committed, after it was committed. Knows nothing of the database: who hears
//! that it lags, or comes late, reads the store.

use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

use super::feed::{FeedEvent, Told, in_order, is_fed};
use super::rows::EventRow;
use super::{StoreError, StoredEvent};
use crate::run::event::Event;
use crate::run::ids::{RunUid, TenantId};
use crate::run::time::Timestamp;

/// How many events a reader may be behind before it is sent back to the store.
const BACKLOG: usize = 256;

/// The readers of one run or tenant, and what is known beside them.
#[derive(Debug)]
struct Channel<B> {
    sender: broadcast::Sender<Arc<StoredEvent>>,
    places: Vec<Arc<Place>>,
    beside: B,
}

type Channels<K, B> = DashMap<K, Channel<B>>;

/// How far one reader is.
#[derive(Debug, Default)]
struct Place {
    /// The last number that the reader has, or was sent to the store for.
    known: AtomicI64,
    behind: Notify,
}

/// A reader of one run; the run's tenant stands beside it.
pub type RunSubscription = Subscription<RunUid, TenantId>;

/// A reader of all runs of a tenant; what they were told stands beside them.
pub type TenantSubscription = Subscription<TenantId, Mutex<Told>>;

/// The readers of this process. What nobody reads takes no memory.
#[derive(Debug, Default)]
pub struct Hub {
    runs: Arc<Channels<RunUid, TenantId>>,
    tenants: Arc<Channels<TenantId, Mutex<Told>>>,
    /// What was committed after commits that are still to be told, by run.
    held: DashMap<RunUid, Held>,
}

/// What waits until the commits before it are told.
#[derive(Debug, Default)]
struct Held {
    /// How many are still to be told, or turn out not to be stored.
    announced: usize,
    events: Vec<EventRow>,
}

/// A commit that is about to be stored by somebody who is not the run's owner. As soon as it is, an owner may commit
/// the next one: that one's events wait until this one's are told, or it is dropped.
#[derive(Debug)]
pub struct Announced<'a> {
    hub: &'a Hub,
    tenant: TenantId,
    uid: RunUid,
}

impl Announced<'_> {
    /// Of which run.
    pub const fn uid(&self) -> RunUid {
        self.uid
    }

    /// It is stored: tells its events, before everything that waits for it.
    ///
    /// # Errors
    /// `Rejected` when an event does not print; nothing of it was told then.
    pub fn tell(self, events: &[Event]) -> Result<(), StoreError> {
        let (runs, tenants) = (self.hub.runs.contains_key(&self.uid), self.hub.tenants.contains_key(&self.tenant));
        if runs || tenants {
            self.hub.tell(&self.tenant, self.uid, &rows(events)?);
        }
        Ok(())
    }
}

impl Drop for Announced<'_> {
    fn drop(&mut self) {
        // Told under the lock of the entry, so that nothing that comes later is told before.
        let Entry::Occupied(mut held) = self.hub.held.entry(self.uid) else { return };
        held.get_mut().announced = held.get().announced.saturating_sub(1);
        if held.get().announced == 0 {
            self.hub.tell(&self.tenant, self.uid, &held.get().events);
            held.remove();
        }
    }
}

fn rows(events: &[Event]) -> Result<Vec<EventRow>, StoreError> {
    events.iter().map(EventRow::told).collect()
}

/// What a reader hears.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    /// The next event.
    Event(Arc<StoredEvent>),
    /// There are events that the reader is not told here, because it was slow or another node stored them: read the
    /// store from the last number on.
    Lagged,
}

impl Hub {
    /// A hub without readers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Says that a commit of a run that nobody owns is about to be stored.
    pub fn announce(&self, tenant: &TenantId, uid: RunUid) -> Announced<'_> {
        let mut held = self.held.entry(uid).or_default();
        held.announced = held.announced.saturating_add(1);
        Announced { hub: self, tenant: tenant.clone(), uid }
    }

    /// Tells what an owner committed. Call it after the commit, in the order of the commits of a run.
    pub(super) fn publish_stored(&self, tenant: &TenantId, uid: RunUid, rows: &[EventRow]) {
        match self.held.get_mut(&uid) {
            Some(mut held) => held.events.extend_from_slice(rows),
            None => self.tell(tenant, uid, rows),
        }
    }

    fn tell(&self, tenant: &TenantId, uid: RunUid, rows: &[EventRow]) {
        if let Some(channel) = self.runs.get(&uid) {
            for row in rows {
                channel.send(&row.event);
            }
        }
        let fed = rows.iter().filter(|row| is_fed(&row.event.kind));
        if let Some(channel) = self.tenants.get(tenant) {
            let mut told = channel.beside.lock();
            for row in fed {
                if told.is_new(uid, row.event.seq, Timestamp::from_millis(row.at)) {
                    channel.send(&row.event);
                }
            }
        }
    }

    /// Follows one run, from now on.
    pub fn subscribe(&self, tenant: &TenantId, uid: RunUid) -> RunSubscription {
        Subscription::new(&self.runs, uid, || tenant.clone())
    }

    /// Follows the status and result events of a tenant's runs that this node drives, from now on.
    pub fn subscribe_tenant(&self, tenant: &TenantId) -> TenantSubscription {
        Subscription::new(&self.tenants, tenant.clone(), Mutex::default)
    }

    /// How many runs and tenants somebody follows.
    pub fn followed(&self) -> (usize, usize) {
        (self.runs.len(), self.tenants.len())
    }
}

/// For what other nodes stored.
impl Hub {
    /// Every run that somebody follows.
    pub(super) fn followed_runs(&self) -> Vec<(TenantId, RunUid)> {
        self.runs.iter().map(|channel| (channel.beside.clone(), *channel.key())).collect()
    }

    /// A run has events up to this number: those of its readers that have fewer, and were not told yet, are told.
    pub(super) fn tell_behind(&self, uid: RunUid, last_seq: i64) {
        let Some(channel) = self.runs.get(&uid) else { return };
        for place in &channel.places {
            if place.known.fetch_max(last_seq, Ordering::AcqRel) < last_seq {
                place.behind.notify_one();
            }
        }
    }

    /// Every tenant that somebody watches.
    pub(super) fn watched_tenants(&self) -> Vec<TenantId> {
        let watched = self.tenants.iter().filter(|channel| channel.beside.lock().has_begun());
        watched.map(|channel| channel.key().clone()).collect()
    }

    /// Whether it is known what was there before the tenant's first watcher came.
    pub(super) fn is_watched(&self, tenant: &TenantId) -> bool {
        self.tenants.get(tenant).is_some_and(|channel| channel.beside.lock().has_begun())
    }

    /// What was there, since when, before the tenant's first watcher came.
    pub(super) fn watch(&self, tenant: &TenantId, since: Timestamp, known: &[FeedEvent]) {
        if let Some(channel) = self.tenants.get(tenant) {
            channel.beside.lock().begin(since, known);
        }
    }

    /// Tells what was found, as far as it was not told.
    pub(super) fn feed(&self, found: Vec<FeedEvent>) {
        for found in in_order(found) {
            if let Some(channel) = self.tenants.get(&found.tenant)
                && channel.beside.lock().is_found_new(&found)
            {
                channel.send(&Arc::new(found.event));
            }
        }
    }

    /// Nobody looks for older events of tenants any more.
    pub(super) fn forget_before(&self, time: Timestamp) {
        for channel in self.tenants.iter() {
            channel.beside.lock().forget_before(time);
        }
    }
}

impl<B> Channel<B> {
    fn send(&self, event: &Arc<StoredEvent>) {
        // Fails when the last reader just went; its channel goes with it.
        drop(self.sender.send(Arc::clone(event)));
    }
}

/// One reader's place. Its channel vanishes with the last reader.
#[derive(Debug)]
pub struct Subscription<K: Eq + Hash, B> {
    channels: Arc<Channels<K, B>>,
    key: K,
    place: Arc<Place>,
    receiver: broadcast::Receiver<Arc<StoredEvent>>,
}

impl<K: Eq + Hash + Clone, B> Subscription<K, B> {
    fn new(channels: &Arc<Channels<K, B>>, key: K, beside: impl FnOnce() -> B) -> Self {
        let place = Arc::new(Place::default());
        // The entry is locked while the reader is added: a leaving reader cannot remove the channel in between.
        let receiver = match channels.entry(key.clone()) {
            Entry::Occupied(mut entry) => {
                entry.get_mut().places.push(Arc::clone(&place));
                entry.get().sender.subscribe()
            }
            Entry::Vacant(entry) => {
                let (sender, receiver) = broadcast::channel(BACKLOG);
                entry.insert(Channel { sender, places: vec![Arc::clone(&place)], beside: beside() });
                receiver
            }
        };
        Self { channels: Arc::clone(channels), key, place, receiver }
    }

    /// The next event; waits for it. May be dropped while it waits without losing one.
    pub async fn next(&mut self) -> Heard {
        tokio::select! {
            biased;
            received = self.receiver.recv() => match received {
                Ok(event) => Heard::Event(event),
                // The sender lives as long as its readers, so it is never closed.
                Err(RecvError::Lagged(_) | RecvError::Closed) => Heard::Lagged,
            },
            () = self.place.behind.notified() => Heard::Lagged,
        }
    }
}

impl<K: Eq + Hash, B> Subscription<K, B> {
    /// The reader has every event up to this number, so it need not be told of them.
    pub fn reached(&self, seq: i64) {
        self.place.known.fetch_max(seq, Ordering::AcqRel);
    }
}

impl<K: Eq + Hash, B> Drop for Subscription<K, B> {
    fn drop(&mut self) {
        self.channels.remove_if_mut(&self.key, |_, channel| {
            channel.places.retain(|place| !Arc::ptr_eq(place, &self.place));
            channel.places.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::run::event::EventBody;
    use crate::run::ids::RunId;

    fn event(seq: i64) -> Event {
        let body = EventBody::RunStatus { status: "running".to_owned(), reason: None, attempt: 1 };
        Event { body, run_id: RunId::of_uuid(Uuid::from_u128(1)), seq, at: Timestamp::from_millis(seq) }
    }

    async fn seq<K: Eq + std::hash::Hash + Clone, B>(reader: &mut Subscription<K, B>) -> i64 {
        match reader.next().await {
            Heard::Event(event) => event.seq,
            Heard::Lagged => panic!("the reader lags"),
        }
    }

    #[tokio::test]
    async fn what_an_owner_commits_is_not_told_before_the_decision_that_made_the_run_due() {
        let (hub, tenant) = (Hub::new(), TenantId::parse("acme").unwrap());
        let (run, other) = (RunUid(Uuid::from_u128(1)), RunUid(Uuid::from_u128(2)));
        let (mut reader, mut watcher) = (hub.subscribe(&tenant, run), hub.subscribe_tenant(&tenant));
        let commits = |uid: RunUid, at: i64| hub.publish_stored(&tenant, uid, &rows(&[event(at)]).unwrap());
        let announced = hub.announce(&tenant, run);
        let fails = hub.announce(&tenant, run);
        commits(run, 2);
        commits(other, 7);
        assert_eq!(seq(&mut watcher).await, 7, "other runs go on");
        announced.tell(&[event(1)]).unwrap();
        commits(run, 3);
        drop(fails);
        commits(run, 4);
        for wanted in 1..=4 {
            assert_eq!(seq(&mut reader).await, wanted);
            assert_eq!(seq(&mut watcher).await, wanted);
        }
    }
}
