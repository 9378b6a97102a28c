//! Large pieces of data: how many bytes of them this process takes in at once, and where they are worked on.
//!
//! **Bytes.** A small piece costs nothing and waits for nobody. One that grows past [`SMALL`] takes, at once, all the bytes
//! that it may still become, and gives back what it did not need when it is whole; it keeps the rest until what came of it
//! is stored. So whoever has begun to read can always read on, and whoever waits has nothing that another waits for. A
//! tenant may have half of all bytes: it waits for its own half first, and keeps nobody from theirs meanwhile.
//!
//! **Work.** What takes long with a large piece is done beside the threads that move the node's tasks, a few at a time.
//!
//! Knows nothing of what the data is, or says.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Weak};

use futures::FutureExt as _;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};

use crate::run::ids::TenantId;

/// A piece of up to so many bytes is small.
pub const SMALL: usize = 256 * 1024;
/// What bytes are counted in.
const UNIT: usize = 64 * 1024;
/// Most pieces that are worked on at once.
const WORKERS_MAX: usize = 4;
/// Large results that are being stored at once: each is several times in memory then, and the journal takes one after
/// another anyway.
const STORING: usize = 2;
/// From so many tenants on, those that have nothing are forgotten.
const TENANTS_KEPT: usize = 256;

/// The bytes of one process, and its places for work.
#[derive(Clone)]
pub struct Bulk(Arc<Inner>);

struct Inner {
    all: Arc<Semaphore>,
    /// Units that one tenant may have.
    share: u32,
    tenants: Mutex<HashMap<TenantId, Weak<Semaphore>>>,
    workers: Semaphore,
    storing: Semaphore,
}

impl fmt::Debug for Bulk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Bulk").field(&self.0.all.available_permits()).finish()
    }
}

impl Bulk {
    /// So many bytes at once. A piece that may become larger than half of them counts as that half.
    pub fn new(bytes: usize) -> Self {
        let units = units(bytes).max(2);
        // Half of the machine at most: the node's tasks go on beside the greatest flood.
        let workers = std::thread::available_parallelism().map_or(1, |count| count.get() / 2).clamp(1, WORKERS_MAX);
        Self(Arc::new(Inner {
            all: Arc::new(Semaphore::new(usize::try_from(units).unwrap_or(Semaphore::MAX_PERMITS))),
            share: units / 2,
            tenants: Mutex::default(),
            workers: Semaphore::new(workers),
            storing: Semaphore::new(STORING),
        }))
    }

    /// What one tenant may take of it.
    pub fn of(&self, tenant: &TenantId) -> Share {
        let mut tenants = self.0.tenants.lock();
        let known = tenants.get(tenant).and_then(Weak::upgrade);
        let own = known.unwrap_or_else(|| {
            if tenants.len() >= TENANTS_KEPT {
                tenants.retain(|_, own| own.strong_count() > 0);
            }
            let own = Arc::new(Semaphore::new(usize::try_from(self.0.share).unwrap_or(Semaphore::MAX_PERMITS)));
            tenants.insert(tenant.clone(), Arc::downgrade(&own));
            own
        });
        Share { bulk: self.clone(), own }
    }

    /// Does work with so many bytes: at once when they are few, else beside the node's tasks, in the order of coming.
    pub async fn work<T>(&self, bytes: usize, work: impl FnOnce() -> T) -> T {
        let _place = if bytes <= SMALL { None } else { self.0.workers.acquire().await.ok() };
        aside(bytes, work)
    }

    /// The right to store what came of so many bytes; few need none.
    pub async fn storing(&self, bytes: usize) -> Option<SemaphorePermit<'_>> {
        if bytes <= SMALL { None } else { self.0.storing.acquire().await.ok() }
    }
}

/// Does work with so many bytes; if they are many, the other tasks of this thread go on elsewhere meanwhile. For what must
/// not wait: an answer that has come is not lost for want of a place.
pub fn aside<T>(bytes: usize, work: impl FnOnce() -> T) -> T {
    // A runtime of one thread has nowhere else.
    let can_leave = || Handle::try_current().is_ok_and(|now| now.runtime_flavor() == RuntimeFlavor::MultiThread);
    if bytes > SMALL && can_leave() { tokio::task::block_in_place(work) } else { work() }
}

fn units(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX)
}

/// What one tenant may take.
#[derive(Clone, Debug)]
pub struct Share {
    bulk: Bulk,
    own: Arc<Semaphore>,
}

impl Share {
    /// Waits for so many bytes.
    pub async fn hold(self, bytes: usize) -> Hold {
        let units = units(bytes).min(self.bulk.0.share);
        let _waiting = Waiting::new();
        // In this order: who waits for the tenant's own half keeps nobody from the rest. Neither is ever closed.
        let own = self.own.acquire_many_owned(units).await.ok();
        let all = Arc::clone(&self.bulk.0.all).acquire_many_owned(units).await.ok();
        metrics::gauge!("countersign_bulk_bytes").increment(f64::from(units) * BYTES_EACH);
        Hold { permits: [own, all], units }
    }
}

/// A unit, for the gauge.
#[expect(clippy::cast_precision_loss, reason = "a small number")]
const BYTES_EACH: f64 = UNIT as f64;

/// Bytes that are taken; given back when dropped.
#[derive(Debug)]
pub struct Hold {
    permits: [Option<OwnedSemaphorePermit>; 2],
    units: u32,
}

impl Hold {
    /// Gives back what is beyond so many bytes.
    fn shrink(&mut self, bytes: usize) {
        let Some(more) = self.units.checked_sub(units(bytes)) else { return };
        for permit in self.permits.iter_mut().flatten() {
            drop(permit.split(usize::try_from(more).unwrap_or(0)));
        }
        self.units -= more;
        metrics::gauge!("countersign_bulk_bytes").decrement(f64::from(more) * BYTES_EACH);
    }

    /// The same, of so many bytes at most.
    #[must_use]
    pub fn of(mut self, bytes: usize) -> Self {
        self.shrink(bytes);
        self
    }

    fn bytes(&self) -> usize {
        usize::try_from(self.units).unwrap_or(usize::MAX).saturating_mul(UNIT)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        metrics::gauge!("countersign_bulk_bytes").decrement(f64::from(self.units) * BYTES_EACH);
    }
}

/// Counts one piece as waiting.
struct Waiting;

impl Waiting {
    fn new() -> Self {
        metrics::gauge!("countersign_bulk_waiting").increment(1.0);
        Self
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        metrics::gauge!("countersign_bulk_waiting").decrement(1.0);
    }
}

/// Where the bytes of one answer are kept while it is on its way from who read it to who stores it.
#[derive(Clone, Debug, Default)]
pub struct Held(Arc<Mutex<Option<Hold>>>);

impl Held {
    /// Keeps bytes, in place of earlier ones; none change nothing.
    pub fn put(&self, hold: Option<Hold>) {
        if hold.is_some() {
            *self.0.lock() = hold;
        }
    }

    /// Hands them over.
    pub fn take(&self) -> Option<Hold> {
        self.0.lock().take()
    }

    /// How many there are, at least; none of a small answer.
    pub fn bytes(&self) -> usize {
        self.0.lock().as_ref().map_or(0, Hold::bytes)
    }
}

/// A piece that is being read.
pub struct Piece {
    share: Share,
    state: State,
}

enum State {
    Small,
    Waiting(BoxFuture<'static, Hold>),
    Held(Hold),
}

impl Piece {
    /// Nothing is read yet.
    pub const fn new(share: Share) -> Self {
        Self { share, state: State::Small }
    }

    /// Waits until it may go on that has so many bytes and may come to have `most`. May be dropped while it waits, and
    /// keeps its turn.
    pub async fn grow(&mut self, bytes: usize, most: usize) {
        loop {
            match &mut self.state {
                State::Small if bytes <= SMALL => return,
                State::Small => self.state = State::Waiting(self.share.clone().hold(most).boxed()),
                State::Waiting(hold) => self.state = State::Held(hold.await),
                State::Held(_) => return,
            }
        }
    }

    /// It is whole, with so many bytes, and another may begin.
    pub fn whole(&mut self, bytes: usize) -> Option<Hold> {
        match std::mem::replace(&mut self.state, State::Small) {
            State::Held(hold) => Some(hold.of(bytes)),
            State::Small | State::Waiting(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1024 * 1024;

    fn tenant(name: &str) -> TenantId {
        TenantId::parse(name).unwrap()
    }

    fn is_free(bulk: &Bulk, bytes: usize) -> bool {
        bulk.0.all.available_permits() * UNIT == bytes
    }

    #[tokio::test]
    async fn a_small_piece_waits_for_nobody_and_a_large_one_gives_back_what_it_does_not_need() {
        let bulk = Bulk::new(8 * MIB);
        let share = bulk.of(&tenant("a"));
        let all = [share.clone().hold(4 * MIB).await, bulk.of(&tenant("b")).hold(4 * MIB).await];
        let mut piece = Piece::new(share.clone());
        piece.grow(SMALL, 4 * MIB).await;
        assert!(piece.whole(SMALL).is_none(), "it costs nothing");
        assert!(piece.grow(SMALL + 1, 4 * MIB).now_or_never().is_none(), "there are no bytes left");
        drop(all);
        piece.grow(SMALL + 1, 4 * MIB).await;
        assert!(is_free(&bulk, 4 * MIB));
        piece.grow(3 * MIB, 4 * MIB).await;
        let held = Held::default();
        held.put(piece.whole(MIB));
        assert!(is_free(&bulk, 7 * MIB));
        assert_eq!(held.bytes(), MIB);
        drop(held);
        assert!(is_free(&bulk, 8 * MIB));
    }

    #[tokio::test]
    async fn a_tenant_has_half_and_keeps_nobody_from_the_other_half_while_it_waits() {
        let bulk = Bulk::new(8 * MIB);
        let mut greedy: Vec<Piece> = (0..10).map(|_| Piece::new(bulk.of(&tenant("greedy")))).collect();
        let begun = greedy.iter_mut().filter_map(|piece| piece.grow(MIB, 2 * MIB).now_or_never()).count();
        assert_eq!(begun, 2);
        let mut other = Piece::new(bulk.of(&tenant("other")));
        assert!(other.grow(MIB, 4 * MIB).now_or_never().is_some());
        // Those that have begun can end, and the others come in turn.
        greedy.rotate_left(2);
        greedy.truncate(8);
        for piece in &mut greedy {
            piece.grow(MIB, 2 * MIB).await;
            drop(piece.whole(MIB));
        }
    }

    #[tokio::test]
    async fn a_piece_that_is_larger_than_a_share_counts_as_one_and_what_is_dropped_is_given_back() {
        let bulk = Bulk::new(2 * MIB);
        let mut piece = Piece::new(bulk.of(&tenant("a")));
        piece.grow(MIB, 100 * MIB).await;
        let mut waits = Piece::new(bulk.of(&tenant("a")));
        assert!(waits.grow(MIB, MIB).now_or_never().is_none());
        drop((waits, piece));
        assert!(is_free(&bulk, 2 * MIB));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn work_with_many_bytes_keeps_no_task_waiting() {
        let (bulk, (go, gate)) = (Bulk::new(MIB), std::sync::mpsc::channel());
        let (begin, begun) = tokio::sync::oneshot::channel();
        let mut tasks = tokio::task::JoinSet::new();
        let working = bulk.clone();
        tasks.spawn(async move { working.work(MIB, move || begin.send(()).is_ok() && gate.recv().is_ok()).await });
        // The only thread of the runtime is at work by now, and so nobody else's.
        tasks.spawn(async move { begun.await.is_ok() && go.send(()).is_ok() });
        assert_eq!(tasks.join_all().await, [true, true]);
        assert_eq!(bulk.work(10, || 7).await, 7);
    }
}
