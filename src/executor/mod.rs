//! Moves runs forward. Each owned run is one task that asks `next` and does it: decide, keep, tell, in this order.
//! Knows no HTTP; never holds a database connection across a network call.

mod asks;
mod catalog;
mod clean;
mod decided;
mod drive;
mod keep;
mod lease;
mod model_turn;
mod out;
mod pool;
mod queue;
mod room;
mod stopped;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dashmap::DashMap;
use parking_lot::{Mutex, RwLock};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::clock::Clock;
use crate::dispatch::{Dispatch, Watched};
use crate::model::Models;
use crate::policy::Expressions;
use crate::run::envelope::Envelope;
use crate::run::fact::{InputAnswer, LeftVote, Reconciliation};
use crate::run::ids::{Fence, NodeId, RunUid, TenantId};
use crate::run::time::Timestamp;
use crate::run::view::ViewLimits;
use crate::store::journal::Journal;
use crate::store::{Claim, LeftFact, Store};
use lease::Lease;
use room::Rooms;
use stopped::Stopped;

/// How this node executes.
#[derive(Clone, Copy, Debug)]
pub struct ExecutorSettings {
    /// A node whose beat is older than this is taken for dead.
    pub lease: Duration,
    /// Runs that this node drives at once.
    pub max_running: usize,
    /// Runs of one tenant that are driven at once.
    pub tenant_max_running: usize,
    /// Calls of one tenant that this node has out at once.
    pub tenant_max_calls: usize,
    /// How long workers may still answer when their run is cancelled.
    pub worker_grace: Duration,
    /// How old a catalog may be when a leg begins.
    pub catalog_max_age: Duration,
    /// How much of results models are told.
    pub view: ViewLimits,
}

/// What the executor works with.
pub struct Parts {
    /// Keeps runs.
    pub store: Arc<dyn Store>,
    /// Commits of owned runs.
    pub journal: Arc<Journal>,
    /// Reaches servers.
    pub dispatch: Arc<Dispatch>,
    /// Asks models.
    pub models: Arc<Models>,
    /// Evaluates the conditions of rules.
    pub expressions: Expressions,
    /// Now, and fresh ids.
    pub clock: Arc<dyn Clock>,
    /// Every task of the server.
    pub tracker: TaskTracker,
}

/// This node's executor; cheap to clone.
#[derive(Clone)]
pub struct Executor {
    shared: Arc<Shared>,
}

/// What all drives of a node share.
struct Shared {
    parts: Parts,
    settings: ExecutorSettings,
    node: RwLock<NodeId>,
    lease: Lease,
    slots: Arc<Semaphore>,
    rooms: Rooms,
    tenants: Arc<DashMap<TenantId, usize>>,
    owned: DashMap<RunUid, (Fence, Signals)>,
    /// What the last beat found owned and not driven.
    astray: Mutex<Vec<Claim>>,
    /// Runs with wishes that the last beat found, or that could not be read yet.
    unread: Mutex<Vec<Claim>>,
    wished: Notify,
    due: Notify,
    /// The last claim took all it could: more may be due, and a slot that becomes free is worth a look.
    backlog: AtomicBool,
    draining: CancellationToken,
}

/// How a drive is reached from outside.
#[derive(Clone, Default)]
struct Signals {
    /// Somebody wished the run cancelled.
    cancel: CancellationToken,
    /// The node lost the run: nothing of it may be sent or written any more.
    lost: CancellationToken,
    /// What people decided about its undecided calls, not yet applied.
    decisions: Arc<Mutex<Vec<(Timestamp, Reconciliation)>>>,
    /// What people answered to its servers' questions, not yet applied.
    answers: Arc<Mutex<Vec<InputAnswer>>>,
    /// What became of calls that others fetch, not yet applied.
    fetched: Arc<Mutex<Vec<LeftFact>>>,
    /// Votes, not yet applied.
    votes: Arc<Mutex<Vec<LeftVote>>>,
    /// There are some of any.
    decided: Arc<Notify>,
}

impl Signals {
    /// What comes of it; `None` when a wish to cancel the run came first.
    async fn unless_called_off<T>(
        &self,
        work: impl Future<Output = T>,
        draining: &CancellationToken,
    ) -> Result<Option<T>, Stopped> {
        tokio::select! {
            came = work => Ok(Some(came)),
            () = self.cancel.cancelled() => Ok(None),
            () = self.lost.cancelled() => Err(Stopped::LeaseLost),
            () = draining.cancelled() => Err(Stopped::Draining),
        }
    }
}

/// A slot on this node, with its place in the tenant's share; given back when dropped.
#[derive(Debug)]
pub struct Slot {
    node: NodeId,
    tenant: TenantId,
    tenants: Arc<DashMap<TenantId, usize>>,
    _permit: OwnedSemaphorePermit,
}

impl Slot {
    /// The node that the slot belongs to.
    pub const fn node(&self) -> NodeId {
        self.node
    }

    fn tenant_is_full(&self, limit: usize) -> bool {
        self.tenants.get(&self.tenant).is_some_and(|running| *running >= limit)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some(mut running) = self.tenants.get_mut(&self.tenant) {
            *running = running.saturating_sub(1);
        }
        self.tenants.remove_if(&self.tenant, |_, running| *running == 0);
    }
}

impl Executor {
    /// Makes an executor that does nothing yet; `run` starts it.
    pub fn new(parts: Parts, settings: ExecutorSettings) -> Self {
        let node = parts.clock.node_id();
        let shared = Shared {
            parts,
            settings,
            node: RwLock::new(node),
            lease: Lease::new(settings.lease),
            slots: Arc::new(Semaphore::new(settings.max_running)),
            rooms: Rooms::new(settings.tenant_max_calls),
            tenants: Arc::new(DashMap::new()),
            owned: DashMap::new(),
            astray: Mutex::default(),
            unread: Mutex::default(),
            wished: Notify::new(),
            due: Notify::new(),
            backlog: AtomicBool::new(false),
            draining: CancellationToken::new(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// A free slot for a run of this tenant, unless the node drains, is full, or its lease is not certain.
    pub fn slot(&self, tenant: &TenantId) -> Option<Slot> {
        // The name first: while the lease holds it is one that the database knows.
        let node = *self.shared.node.read();
        if self.shared.draining.is_cancelled() || !self.shared.lease.holds() {
            return None;
        }
        let permit = Arc::clone(&self.shared.slots).try_acquire_owned().ok()?;
        self.shared.take_place(node, tenant, permit)
    }

    /// Drives a run that was admitted as this node's own, on the servers as they were read for it.
    pub fn begin(&self, slot: Slot, claim: Claim, envelope: Envelope, watched: Watched) {
        self.shared.spawn(slot, claim, Some((envelope, watched)));
    }

    /// Some run is due.
    pub fn wake(&self) {
        self.shared.due.notify_one();
    }

    /// Somebody wished a run cancelled and left that with it: this node's own need not be read again.
    pub fn cancel(&self, uid: RunUid) {
        if let Some(owned) = self.shared.owned.get(&uid) {
            owned.1.cancel.cancel();
        }
    }

    /// Somebody left a wish with a run. Another node learns it by a hint, or by its heartbeat.
    pub fn attend(&self, tenant: &TenantId, uid: RunUid) {
        let Some(fence) = self.shared.owned.get(&uid).map(|owned| owned.0) else { return };
        let (shared, claim) = (Arc::clone(&self.shared), Claim { tenant: tenant.clone(), uid, fence });
        self.shared.parts.tracker.spawn(async move { shared.attend(&claim).await });
    }

    /// This node, under the name that it began with, or the one that it took when it was taken for dead.
    pub fn node(&self) -> NodeId {
        *self.shared.node.read()
    }

    /// Runs driven by this node now.
    pub fn running(&self) -> usize {
        self.shared.owned.len()
    }
}

impl Shared {
    /// A place in the tenant's share of this node, for a run that is owned under that name.
    fn take_place(&self, node: NodeId, tenant: &TenantId, permit: OwnedSemaphorePermit) -> Option<Slot> {
        let mut running = self.tenants.entry(tenant.clone()).or_insert(0);
        if *running >= self.settings.tenant_max_running {
            return None;
        }
        *running = running.saturating_add(1);
        drop(running);
        let tenants = Arc::clone(&self.tenants);
        Some(Slot { node, tenant: tenant.clone(), tenants, _permit: permit })
    }

    fn spawn(self: &Arc<Self>, slot: Slot, claim: Claim, begun: Option<drive::Begun>) {
        let signals = Signals::default();
        self.owned.insert(claim.uid, (claim.fence, signals.clone()));
        // A node that was taken for dead meanwhile goes on under another name, and its new lease says nothing of what
        // it owned under the old one. The new name stands before the owned runs are called off, and this looks at it
        // after the run is listed: one of the two sees the other.
        if *self.node.read() != slot.node {
            signals.lost.cancel();
        }
        let shared = Arc::clone(self);
        self.parts.tracker.spawn(async move {
            drive::drive(&shared, &claim, signals, begun).await;
            // This node may own the run again, under a later fence.
            shared.owned.remove_if(&claim.uid, |_, (fence, _)| *fence == claim.fence);
            let tenant_was_full = slot.tenant_is_full(shared.settings.tenant_max_running);
            shared.rooms.tidy(&claim.tenant);
            drop(slot);
            if tenant_was_full || shared.backlog.load(Ordering::Relaxed) || shared.draining.is_cancelled() {
                shared.due.notify_one();
            }
        });
    }
}
