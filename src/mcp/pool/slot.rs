//! The place of one connection in the pool, the connection in it, and who uses it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::sync::Mutex;
use tokio::time::{Duration, Instant};

use super::places::Place;
use crate::mcp::connection::Connection;
use crate::mcp::{McpFault, McpTarget, PoolSettings};
use crate::run::ids::{Fence, RunUid, TenantId};

/// The place of one connection.
pub(super) struct Slot {
    pub(super) tenant: TenantId,
    pub(super) server: String,
    /// What it was looked up by.
    pub(super) origin: Option<String>,
    pub(super) private_to: Option<(RunUid, Fence)>,
    /// Set once its configuration is an earlier one.
    retired: AtomicBool,
    /// Held while connecting: that is what makes many first users one handshake.
    pub(super) held: Mutex<Held>,
}

impl Slot {
    pub(super) fn new(tenant: &TenantId, target: &McpTarget) -> Arc<Self> {
        Arc::new(Self {
            tenant: tenant.clone(),
            server: target.endpoint.server(),
            origin: target.origin.clone(),
            private_to: target.private_to,
            retired: AtomicBool::new(false),
            held: Mutex::default(),
        })
    }

    /// Takes its connection out of use, also one that is being opened: whoever watches it looks for another.
    pub(super) fn retire(&self) {
        self.retired.store(true, Ordering::Release);
        if let Ok(held) = self.held.try_lock() {
            self.retire_connection(&held);
        }
    }

    /// The same once it is open, by whoever holds the lock.
    pub(super) fn retire_connection(&self, held: &Held) {
        if let Some(pooled) = &held.connection
            && self.retired.load(Ordering::Acquire)
        {
            pooled.connection.retire();
        }
    }
}

#[derive(Default)]
pub(super) struct Held {
    pub(super) connection: Option<Arc<Pooled>>,
    pub(super) last_used: Option<Instant>,
    pub(super) failed: Option<Failure>,
}

/// An attempt to connect that failed.
#[derive(Clone)]
pub(super) struct Failure {
    pub(super) at: Instant,
    /// How long it was willing to wait.
    pub(super) patience: Duration,
    pub(super) fault: McpFault,
}

/// An open connection and the place that it takes up.
pub(super) struct Pooled {
    pub(super) connection: Connection,
    transport: &'static str,
    users: AtomicUsize,
    place: Place,
}

/// A connection in use: while it is held the pool does not close it. One that was taken out of the pool closes when the
/// last of its leases ends.
pub(in crate::mcp) struct Lease {
    pub(super) pooled: Arc<Pooled>,
    pub(super) slot: Arc<Slot>,
    pub(super) is_new: bool,
}

impl Held {
    /// Lets go of a connection that is idle, old or dead, if nobody uses it. Dropping ends its session.
    pub(super) fn drop_unused(&mut self, settings: PoolSettings) {
        let Some(pooled) = &self.connection else { return };
        let is_idle = self.last_used.is_none_or(|at| at.elapsed() >= settings.idle_close);
        let is_old = pooled.connection.opened.elapsed() >= settings.max_age;
        if !pooled.connection.is_alive() || (pooled.is_unused() && (is_idle || is_old)) {
            self.connection = None;
        }
    }

    /// The connection, when nobody uses it.
    pub(super) fn take_unused(&mut self) -> Option<Arc<Pooled>> {
        self.connection.take_if(|pooled| pooled.is_unused())
    }
}

impl Pooled {
    pub(super) fn new(connection: Connection, transport: &'static str, place: Place) -> Self {
        metrics::gauge!("countersign_mcp_connections", "transport" => transport).increment(1.0);
        Self { connection, transport, users: AtomicUsize::new(0), place }
    }

    fn is_unused(&self) -> bool {
        self.users.load(Ordering::Acquire) == 0
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        metrics::gauge!("countersign_mcp_connections", "transport" => self.transport).decrement(1.0);
    }
}

impl Lease {
    /// Begins to use a connection. Only whoever holds the slot's lock may: it is closed under the same lock.
    pub(super) fn new(pooled: &Arc<Pooled>, slot: &Arc<Slot>, is_new: bool) -> Self {
        pooled.users.fetch_add(1, Ordering::AcqRel);
        Self { pooled: Arc::clone(pooled), slot: Arc::clone(slot), is_new }
    }

    /// The connection that is used.
    pub(in crate::mcp) fn connection(&self) -> &Connection {
        &self.pooled.connection
    }

    /// Takes the connection out of the pool; calls that are out on it go on.
    pub(in crate::mcp) async fn drop_connection(&self) {
        self.pooled.connection.retire();
        let mut held = self.slot.held.lock().await;
        if held.connection.as_ref().is_some_and(|kept| Arc::ptr_eq(kept, &self.pooled)) {
            held.connection = None;
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.pooled.users.fetch_sub(1, Ordering::AcqRel) == 1 {
            // Whoever waits for a place may have this one now.
            self.pooled.place.tenant().freed.notify_waiters();
        }
    }
}
