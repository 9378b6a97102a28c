//! Tells readers in this process what was committed, after it was committed. Knows nothing of the database: who hears
//! that it lags, or comes late, reads the store.

use std::hash::Hash;
use std::sync::Arc;

use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

use super::{StoreError, StoredEvent, codec};
use crate::run::event::Event;
use crate::run::ids::{RunUid, TenantId};

/// How many events a reader may be behind before it is sent back to the store.
const BACKLOG: usize = 256;

type Channels<K> = DashMap<K, broadcast::Sender<Arc<StoredEvent>>>;

/// The readers of this process. What nobody reads takes no memory.
#[derive(Debug, Default)]
pub struct Hub {
    runs: Arc<Channels<RunUid>>,
    tenants: Arc<Channels<TenantId>>,
    /// What was committed after commits that are still to be told, by run.
    held: DashMap<RunUid, Held>,
}

/// What waits until the commits before it are told.
#[derive(Debug, Default)]
struct Held {
    /// How many are still to be told, or turn out not to be stored.
    announced: usize,
    events: Vec<Arc<StoredEvent>>,
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
            self.hub.tell(&self.tenant, self.uid, stored(events)?.iter());
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
            self.hub.tell(&self.tenant, self.uid, held.get().events.iter());
            held.remove();
        }
    }
}

fn stored(events: &[Event]) -> Result<Vec<Arc<StoredEvent>>, StoreError> {
    events.iter().map(|event| codec::stored_event(event).map(Arc::new)).collect()
}

/// What a reader hears.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    /// The next event.
    Event(Arc<StoredEvent>),
    /// Events were dropped because the reader was slow: read the store from the last number on.
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

    /// Tells what one commit told. Call it after the commit, in the order of the commits of a run.
    ///
    /// # Errors
    /// `Rejected` when an event does not print; nothing was told then.
    pub fn publish(&self, tenant: &TenantId, uid: RunUid, events: &[Event]) -> Result<(), StoreError> {
        if events.is_empty() || !(self.runs.contains_key(&uid) || self.tenants.contains_key(tenant)) {
            return Ok(());
        }
        self.publish_stored(tenant, uid, stored(events)?.iter());
        Ok(())
    }

    /// The same with events that are already text.
    pub(super) fn publish_stored<'a>(
        &self,
        tenant: &TenantId,
        uid: RunUid,
        events: impl Iterator<Item = &'a Arc<StoredEvent>> + Clone,
    ) {
        match self.held.get_mut(&uid) {
            Some(mut held) => held.events.extend(events.cloned()),
            None => self.tell(tenant, uid, events),
        }
    }

    fn tell<'a>(&self, tenant: &TenantId, uid: RunUid, events: impl Iterator<Item = &'a Arc<StoredEvent>> + Clone) {
        tell(&self.runs, &uid, events.clone());
        tell(&self.tenants, tenant, events.filter(|event| matches!(event.kind.as_str(), "run-status" | "result")));
    }

    /// Follows one run, from now on.
    pub fn subscribe(&self, uid: RunUid) -> Subscription<RunUid> {
        Subscription::new(&self.runs, uid)
    }

    /// Follows the status and result events of a tenant's runs, from now on.
    pub fn subscribe_tenant(&self, tenant: &TenantId) -> Subscription<TenantId> {
        Subscription::new(&self.tenants, tenant.clone())
    }

    /// How many runs and tenants somebody follows.
    pub fn followed(&self) -> (usize, usize) {
        (self.runs.len(), self.tenants.len())
    }
}

fn tell<'a, K: Eq + Hash>(channels: &Channels<K>, key: &K, events: impl Iterator<Item = &'a Arc<StoredEvent>>) {
    let Some(sender) = channels.get(key).map(|entry| entry.clone()) else { return };
    for event in events {
        if sender.send(Arc::clone(event)).is_err() {
            // The last reader just went; its entry goes with it.
            return;
        }
    }
}

/// One reader's place. Its channel vanishes with the last reader.
#[derive(Debug)]
pub struct Subscription<K: Eq + Hash> {
    channels: Arc<Channels<K>>,
    key: K,
    /// Always there, until `drop` takes it to be gone before it counts the others.
    receiver: Option<broadcast::Receiver<Arc<StoredEvent>>>,
}

impl<K: Eq + Hash + Clone> Subscription<K> {
    fn new(channels: &Arc<Channels<K>>, key: K) -> Self {
        // The entry is locked while the reader is added: a leaving reader cannot remove the channel in between.
        let receiver = match channels.entry(key.clone()) {
            Entry::Occupied(entry) => entry.get().subscribe(),
            Entry::Vacant(entry) => {
                let (sender, receiver) = broadcast::channel(BACKLOG);
                entry.insert(sender);
                receiver
            }
        };
        Self { channels: Arc::clone(channels), key, receiver: Some(receiver) }
    }

    /// The next event; waits for it. May be dropped while it waits without losing one.
    pub async fn next(&mut self) -> Heard {
        match &mut self.receiver {
            Some(receiver) => match receiver.recv().await {
                Ok(event) => Heard::Event(event),
                // The sender lives as long as its readers, so it is never closed.
                Err(RecvError::Lagged(_) | RecvError::Closed) => Heard::Lagged,
            },
            None => Heard::Lagged,
        }
    }
}

impl<K: Eq + Hash> Drop for Subscription<K> {
    fn drop(&mut self) {
        self.receiver = None;
        self.channels.remove_if(&self.key, |_, sender| sender.receiver_count() == 0);
    }
}
