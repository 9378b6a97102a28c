//! Where work on schemas is done: at a few threads of its own, never on those that move the node's tasks. Threads,
//! because such work waits for nothing and cannot be interrupted, and because a deep schema needs a deep stack.
//!
//! Everybody waits for a place in the order of coming, and a tenant waits for one place at a time only: however much
//! work one has, another's is next but one. Each piece of work is bounded by its own limits; who waits for too long is
//! told so. Knows neither schemas nor what they are for.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::places::{Held, Places};
use crate::run::ids::TenantId;

/// Most threads of one node.
const THREADS_MAX: usize = 4;
/// Their stacks. Only what is used of them takes memory.
const STACK_BYTES: usize = 64 * 1024 * 1024;
/// How long anybody waits for a place.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long work that consists of pieces stays at its place.
const SLICE: Duration = Duration::from_millis(50);

/// There was no place in time, or what was done at it came to no end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("could not be looked at: this node was too busy with other JSON Schemas")]
pub struct Busy;

type Work = Box<dyn FnOnce() + Send>;

/// The threads, and who waits for them.
pub(super) struct Desk {
    places: Places,
    sender: Sender<Work>,
    receiver: Arc<Mutex<Receiver<Work>>>,
    threads: Mutex<usize>,
    threads_max: usize,
}

impl Default for Desk {
    fn default() -> Self {
        // Half of the node at most: its tasks go on beside the greatest flood.
        let threads = std::thread::available_parallelism().map_or(1, |count| count.get() / 2);
        Self::with_threads(threads.clamp(1, THREADS_MAX))
    }
}

impl Desk {
    fn with_threads(threads_max: usize) -> Self {
        let (sender, receiver) = channel();
        Self {
            places: Places::new(threads_max, 1),
            sender,
            receiver: Arc::new(Mutex::new(receiver)),
            threads: Mutex::default(),
            threads_max,
        }
    }

    /// A place for one piece of work of a tenant.
    ///
    /// # Errors
    /// There was none in time.
    pub(super) async fn place(&self, tenant: &TenantId) -> Result<Place<'_>, Busy> {
        self.place_within(tenant, PATIENCE).await
    }

    async fn place_within(&self, tenant: &TenantId, patience: Duration) -> Result<Place<'_>, Busy> {
        let held = tokio::time::timeout(patience, self.places.take(tenant)).await.ok().flatten();
        let held = held.ok_or(Busy).inspect_err(|_| {
            metrics::counter!("countersign_schema_busy_total").increment(1);
            tracing::warn!(%tenant, "work on a JSON Schema found no place in time");
        })?;
        self.staff();
        Ok(Place { desk: self, held })
    }

    /// Starts the threads at the first need.
    fn staff(&self) {
        let mut threads = self.threads.lock();
        while *threads < self.threads_max {
            let receiver = Arc::clone(&self.receiver);
            let builder = std::thread::Builder::new().name("schemas".to_owned()).stack_size(STACK_BYTES);
            if let Err(fault) = builder.spawn(move || work_off(&receiver)) {
                tracing::error!(%fault, "a thread for work on JSON Schemas could not be started");
                return;
            }
            *threads += 1;
        }
    }
}

fn work_off(receiver: &Mutex<Receiver<Work>>) {
    loop {
        let next = receiver.lock().recv();
        // The desk is gone.
        let Ok(work) = next else { return };
        work();
    }
}

/// A place: whoever holds it is next.
pub struct Place<'a> {
    desk: &'a Desk,
    held: Held,
}

impl Place<'_> {
    /// Does the work. It comes to its end, and keeps its place, also when nobody waits for it any more.
    ///
    /// # Errors
    /// It panicked, or no thread could be started.
    pub async fn run<T: Send + 'static>(self, work: impl FnOnce(&AtDesk) -> T + Send + 'static) -> Result<T, Busy> {
        let Self { desk, held } = self;
        if *desk.threads.lock() == 0 {
            return Err(Busy);
        }
        let (sender, done) = oneshot::channel();
        let work: Work = Box::new(move || {
            let at_desk = AtDesk { since: Instant::now() };
            let outcome = catch_unwind(AssertUnwindSafe(|| work(&at_desk)));
            drop(held);
            // Whoever wanted it may have gone; a panic was told by its hook.
            drop(outcome.map(|outcome| sender.send(outcome)));
        });
        desk.sender.send(work).map_err(|_gone| Busy)?;
        done.await.map_err(|_panicked| Busy)
    }
}

/// Proof that the code that has it runs at the desk.
pub struct AtDesk {
    since: Instant,
}

impl AtDesk {
    /// For tests, which keep nobody waiting.
    #[cfg(test)]
    pub(crate) fn for_tests() -> Self {
        Self { since: Instant::now() }
    }

    /// Whether work that consists of pieces should let others go first.
    pub fn is_due(&self) -> bool {
        self.since.elapsed() > SLICE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(name: &str) -> TenantId {
        TenantId::parse(name).unwrap()
    }

    #[tokio::test]
    async fn a_tenant_with_much_work_keeps_nobody_waiting_for_more_than_one_piece() {
        let desk = Arc::new(Desk::with_threads(1));
        let order = Arc::new(Mutex::new(Vec::new()));
        let (go, gate) = channel::<()>();
        let note = |who: &'static str| {
            let order = Arc::clone(&order);
            move |_: &AtDesk| order.lock().push(who)
        };
        let first = desk.place(&tenant("greedy")).await.unwrap();
        let greedy = tenant("greedy");
        let many = async {
            let more = (0..20).map(|_| async { desk.place(&greedy).await.unwrap().run(note("greedy")).await.unwrap() });
            futures::future::join_all(more).await
        };
        let other = async {
            // Comes last.
            tokio::task::yield_now().await;
            go.send(()).unwrap();
            desk.place(&tenant("other")).await.unwrap().run(note("other")).await.unwrap();
        };
        let held = first.run(move |_| gate.recv().unwrap());
        let (_, (), held) = tokio::join!(many, other, held);
        held.unwrap();
        let order = order.lock();
        assert_eq!(order.len(), 21);
        let at = order.iter().position(|who| *who == "other").unwrap();
        assert!(at <= 1, "the other tenant's work came after {at} pieces");
    }

    #[tokio::test]
    async fn who_finds_no_place_in_time_is_told_and_a_panic_is_no_end_of_the_desk() {
        let desk = Desk::with_threads(1);
        let held = desk.place(&tenant("a")).await.unwrap();
        let turned_away = desk.place_within(&tenant("b"), Duration::from_millis(20)).await;
        assert_eq!(turned_away.map(drop), Err(Busy));
        assert_eq!(held.run(|_| -> u8 { panic!("on purpose") }).await, Err(Busy));
        assert_eq!(desk.place(&tenant("b")).await.unwrap().run(|_| 7).await, Ok(7));
    }
}
