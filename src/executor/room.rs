//! Room for calls: of one tenant at most so many are out on this node at once, whatever its runs would like.
//!
//! A run first looks for places and then commits the calls that have one as `executing`; what has none stays `pending`,
//! so a crash finds it certainly not sent. Who finds no place queues, and places are given in the order of the queue: a
//! flood of one run or tenant starves nobody.

use std::sync::Arc;

use dashmap::DashMap;
use futures::FutureExt;
use futures::future::{BoxFuture, pending};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::drive::Drive;
use super::stopped::Stopped;
use crate::run::fact::Fact;
use crate::run::ids::TenantId;

/// The right to have one call out; given back when dropped.
pub(super) type Place = OwnedSemaphorePermit;

/// The places of all tenants on this node. A tenant without runs takes no memory.
pub(super) struct Rooms {
    limit: usize,
    tenants: DashMap<TenantId, Arc<Semaphore>>,
}

impl Rooms {
    pub(super) fn new(limit: usize) -> Self {
        Self { limit: limit.min(Semaphore::MAX_PERMITS), tenants: DashMap::new() }
    }

    /// One run's way to the places of its tenant.
    pub(super) fn of(&self, tenant: &TenantId) -> Room {
        // Cloned under the lock of its entry: `tidy` cannot take it away in between.
        let entry = self.tenants.entry(tenant.clone()).or_insert_with(|| Arc::new(Semaphore::new(self.limit)));
        Room { places: Arc::clone(entry.value()), queued: None, came: None }
    }

    /// Forgets the tenant, unless a run or a call of it has its hand on the places.
    pub(super) fn tidy(&self, tenant: &TenantId) {
        self.tenants.remove_if(tenant, |_, places| Arc::strong_count(places) == 1);
    }
}

/// One run's way to the places of its tenant.
pub(super) struct Room {
    places: Arc<Semaphore>,
    /// The run's turn in the queue.
    queued: Option<(Instant, BoxFuture<'static, Place>)>,
    /// The place that the queue gave and no call has yet.
    came: Option<Place>,
}

impl Room {
    /// The places that are free now, at most so many. Nobody who queues is passed by: as long as there is a queue,
    /// what becomes free is its.
    fn take(&mut self, most: usize) -> Vec<Place> {
        let mut taken = Vec::new();
        if most > 0 {
            taken.extend(self.came.take());
        }
        while taken.len() < most
            && let Ok(place) = Arc::clone(&self.places).try_acquire_owned()
        {
            taken.push(place);
        }
        taken
    }

    /// Waits for a place, which `take` then gives. May be dropped while it waits without losing its turn.
    pub(super) async fn came(&mut self) {
        if self.came.is_none() {
            let places = Arc::clone(&self.places);
            let (since, queued) = self.queued.get_or_insert_with(|| (Instant::now(), queue(places).boxed()));
            self.came = Some(queued.await);
            metrics::histogram!("countersign_room_wait_seconds").record(since.elapsed().as_secs_f64());
            self.queued = None;
        }
    }

    /// No call of the run needs a place any more.
    pub(super) fn leave_queue(&mut self) {
        self.queued = None;
        self.came = None;
    }
}

async fn queue(places: Arc<Semaphore>) -> Place {
    match places.acquire_owned().await {
        Ok(place) => place,
        // Nobody closes it; and whoever waits here also waits for a wish, the drain and the lease.
        Err(_closed) => pending().await,
    }
}

impl Drive<'_> {
    /// Places for the calls that may leave by this fact. A node that drains begins nothing: what is not out yet leaves
    /// from the next node, at once.
    pub(super) fn places(&mut self, fact: &Fact) -> Vec<Place> {
        if self.shared.draining.is_cancelled() && *fact != Fact::RoomCame {
            return Vec::new();
        }
        let open = match fact {
            Fact::TurnEnded { turn, .. } => turn.calls.len(),
            _ => self.envelope.calls.iter().filter(|call| !call.stage.is_settled()).count(),
        };
        self.room.take(open.min(self.envelope.max_parallel()))
    }

    pub(super) async fn await_room(&mut self) -> Result<(), Stopped> {
        tokio::select! {
            () = self.room.came() => self.decide(Fact::RoomCame).await,
            () = self.signals.cancel.cancelled() => Ok(()),
            () = self.signals.decided.notified() => self.heed_decisions().await,
            () = self.signals.lost.cancelled() => Err(Stopped::LeaseLost),
            () = self.shared.draining.cancelled() => Err(Stopped::Draining),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::poll;

    use super::*;

    fn acme() -> TenantId {
        TenantId::parse("acme").unwrap()
    }

    #[tokio::test]
    async fn places_are_given_in_the_order_of_the_queue_and_nobody_passes_it() {
        let rooms = Rooms::new(1);
        let (mut out, mut first, mut second) = (rooms.of(&acme()), rooms.of(&acme()), rooms.of(&acme()));
        let place = out.take(5);
        assert_eq!(place.len(), 1);
        assert!(poll!(std::pin::pin!(first.came())).is_pending());
        assert!(poll!(std::pin::pin!(second.came())).is_pending());
        drop(place);
        assert!(out.take(1).is_empty(), "whoever comes later finds nothing");
        assert!(poll!(std::pin::pin!(second.came())).is_pending());
        first.came().await;
        let place = first.take(3);
        assert_eq!(place.len(), 1);
        second.leave_queue();
        drop(place);
        assert_eq!(out.take(1).len(), 1, "who left the queue keeps no place");
    }

    #[tokio::test]
    async fn tenants_do_not_share_and_are_forgotten_with_their_last_call() {
        let rooms = Rooms::new(1);
        let globex = TenantId::parse("globex").unwrap();
        let mut room = rooms.of(&acme());
        let place = room.take(1);
        assert_eq!(rooms.of(&globex).take(1).len(), 1);
        drop(room);
        rooms.tidy(&acme());
        assert!(rooms.of(&acme()).take(1).is_empty(), "a call is still out");
        drop(place);
        rooms.tidy(&acme());
        rooms.tidy(&globex);
        assert!(rooms.tenants.is_empty());
    }
}
