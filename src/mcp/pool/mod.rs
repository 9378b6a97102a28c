//! The connections of all runs. Equal configurations of one tenant share one; nobody else does.
//!
//! `key` says which are equal, a `slot` holds the connection of one key, `places` bounds how many are open, `breaker`
//! leaves a server alone that is down, `dial` opens, and `calls` uses them. A connection in use is never closed: one
//! that is idle, old, or of an earlier configuration is taken out of the pool, and ends with its last call.

mod breaker;
mod calls;
mod dial;
mod key;
mod places;
mod slot;

use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use dashmap::DashMap;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::breaker::Breakers;
use self::dial::Dialer;
use self::key::{Key, key_of};
use self::places::{Place, Places, Shortage};
pub(super) use self::slot::Lease;
use self::slot::{Failure, Held, Pooled, Slot};
use super::catalog::Subscription;
use super::stdio::Children;
use super::{FaultKind, McpFault, McpTarget, PoolSettings};
use crate::bulk::Bulk;
use crate::net::EgressClient;
use crate::run::binding::ServedCatalog;
use crate::run::ids::{Fence, RunUid, TenantId};
use crate::schema::Schemas;

/// How often unused connections are looked for.
const SWEEP_EVERY: Duration = Duration::from_secs(5);

/// The connections of all runs.
pub struct McpPool {
    dialer: Dialer,
    pub(super) settings: PoolSettings,
    slots: DashMap<Key, Arc<Slot>>,
    places: Places,
    breakers: Breakers,
    closing: CancellationToken,
    /// Compiled schemas of tools, for whoever checks their arguments and results.
    schemas: Arc<Schemas>,
    bulk: Bulk,
}

impl McpPool {
    /// A pool without connections. `http` must not have a read time-out of its own.
    pub fn new(http: EgressClient, settings: PoolSettings) -> Arc<Self> {
        Self::with_children(http, settings, Children::default())
    }

    /// A pool whose servers' processes are ended by that program when this process is killed; see `stand_guard`.
    pub fn guarded(http: EgressClient, settings: PoolSettings, program: PathBuf) -> Arc<Self> {
        Self::with_children(http, settings, Children::guarded(program))
    }

    fn with_children(http: EgressClient, settings: PoolSettings, children: Children) -> Arc<Self> {
        Arc::new(Self {
            dialer: Dialer::new(http, settings, children),
            settings,
            slots: DashMap::new(),
            places: Places::new(settings),
            breakers: Breakers::new(settings.breaker),
            closing: CancellationToken::new(),
            schemas: Arc::default(),
            bulk: Bulk::new(settings.bulk_bytes),
        })
    }

    /// The compiled schemas of tools.
    pub fn schemas(&self) -> Arc<Schemas> {
        Arc::clone(&self.schemas)
    }

    /// What of large answers is in hand.
    pub const fn bulk(&self) -> &Bulk {
        &self.bulk
    }

    /// The tools of a server, at most `max_age` old and read over a connection that still lives. Connects if needed.
    ///
    /// # Errors
    /// What went wrong, without what the server was told.
    pub async fn catalog(
        &self,
        tenant: &TenantId,
        target: &McpTarget,
        max_age: Duration,
    ) -> Result<Arc<ServedCatalog>, McpFault> {
        self.read(tenant, target, max_age).await.map(|(catalog, _)| catalog)
    }

    /// The same, with what it takes to hear whether the reading still holds.
    ///
    /// # Errors
    /// What went wrong, without what the server was told.
    pub async fn read(
        &self,
        tenant: &TenantId,
        target: &McpTarget,
        max_age: Duration,
    ) -> Result<(Arc<ServedCatalog>, Subscription), McpFault> {
        let patience = Duration::from_millis(target.timeouts.connect_ms);
        let mut lease = self.lease(tenant, target).await?;
        let mut read = lease.connection().tools((&self.schemas, tenant, &target.told), max_age, patience).await;
        if read.is_err() && !lease.is_new {
            // A kept connection may be dead without knowing it; a listing changes nothing and may be repeated.
            lease.drop_connection().await;
            drop(lease);
            lease = self.lease(tenant, target).await?;
            read = lease.connection().tools((&self.schemas, tenant, &target.told), max_age, patience).await;
        }
        let reading = read.map_err(|fault| target.clean(fault))?;
        let subscription = Subscription::new(lease, &reading);
        // What is kept is shared: each reader knows of other secrets.
        let clean = target.told.now().catalog(&reading.catalog);
        Ok((clean.map_or(reading.catalog, Arc::new), subscription))
    }

    /// Closes the connections that belong to one drive of a run alone; those of the run's next owner, who may be on
    /// this node too, stay.
    pub async fn release_run(&self, uid: RunUid, fence: Fence) {
        self.close_where(|slot| slot.private_to == Some((uid, fence))).await;
    }

    /// Takes the connections out of use that were looked up by this and lead elsewhere now. Calls that are out on them
    /// go on; whoever comes next connects anew, and whoever watches them hears that they are lost.
    pub fn retire(&self, tenant: &TenantId, origin: &str) {
        self.slots.retain(|_, slot| {
            let is_meant = slot.tenant == *tenant && slot.origin.as_deref() == Some(origin);
            if is_meant {
                slot.retire();
            }
            !is_meant
        });
    }

    /// Closes everything; connections are refused from then on.
    pub async fn close(&self) {
        self.closing.cancel();
        self.close_where(|_| true).await;
        self.dialer.children.ended().await;
    }

    /// Closes connections that nobody uses any more, until `stop` is cancelled.
    pub async fn keep_tidy(&self, stop: CancellationToken) {
        let every = self.settings.idle_close.clamp(SWEEP_EVERY / 50, SWEEP_EVERY);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(every) => self.sweep(),
            }
        }
    }

    /// Closes the shared connections that are idle or old, never one in use.
    pub fn sweep(&self) {
        for slot in &self.slots {
            // A slot that is locked is in use.
            if let Ok(mut held) = slot.held.try_lock() {
                held.drop_unused(self.settings);
            }
        }
        // Under the map's lock nobody can take the slot from the map, and whoever has it counts.
        self.slots.retain(|_, slot| {
            Arc::strong_count(slot) > 1 || slot.held.try_lock().map_or(true, |held| held.connection.is_some())
        });
        self.breakers.tidy();
        self.places.tidy();
    }

    /// How many connections are open, those among them that only end their last calls.
    pub fn open_connections(&self) -> usize {
        self.places.open()
    }

    /// How many calls are out on connections of the pool that nobody is just opening.
    pub fn calls_out(&self) -> usize {
        let out = |slot: &Arc<Slot>| {
            slot.held.try_lock().ok()?.connection.as_ref().map(|pooled| pooled.connection.calls_out())
        };
        self.slots.iter().filter_map(|slot| out(slot.value())).sum()
    }

    /// How many processes of servers are there.
    pub fn processes(&self) -> usize {
        self.dialer.children.count()
    }

    async fn close_where(&self, wanted: impl Fn(&Slot) -> bool) {
        let keys: Vec<Key> = self.slots.iter().filter(|slot| wanted(slot)).map(|slot| *slot.key()).collect();
        let slots: Vec<Arc<Slot>> =
            keys.iter().filter_map(|key| self.slots.remove(key)).map(|(_, slot)| slot).collect();
        let closing = slots.iter().map(|slot| async {
            let pooled = slot.held.lock().await.connection.take();
            if let Some(pooled) = pooled {
                pooled.connection.close().await;
            }
        });
        futures::future::join_all(closing).await;
    }

    pub(super) async fn lease(&self, tenant: &TenantId, target: &McpTarget) -> Result<Lease, McpFault> {
        self.leased(tenant, target).await.map_err(|fault| target.clean(fault))
    }

    async fn leased(&self, tenant: &TenantId, target: &McpTarget) -> Result<Lease, McpFault> {
        if self.closing.is_cancelled() {
            return Err(McpFault::of(FaultKind::Closing, "The server is shutting down."));
        }
        let patience = Duration::from_millis(target.timeouts.connect_ms);
        let asked = Instant::now();
        let slot = self.slot(tenant, target);
        let Ok(mut held) = tokio::time::timeout(patience, slot.held.lock()).await else {
            let text = format!("The MCP server could not be reached: no handshake within {} ms.", patience.as_millis());
            return Err(McpFault::of(FaultKind::TimeOut, text));
        };
        held.drop_unused(self.settings);
        held.last_used = Some(Instant::now());
        if let Some(pooled) = held.connection.as_ref().filter(|pooled| pooled.connection.is_alive()) {
            return Ok(Lease::new(pooled, &slot, false));
        }
        // Whoever waited while another, as patient, failed to connect shares its failure, instead of failing in turn.
        if let Some(failure) = &held.failed
            && failure.at >= asked
            && failure.patience >= patience
        {
            return Err(failure.fault.clone());
        }
        match self.open(tenant, target, &slot.server).await {
            Ok(pooled) => {
                let pooled = Arc::new(pooled);
                let lease = Lease::new(&pooled, &slot, true);
                *held = Held { connection: Some(pooled), last_used: Some(Instant::now()), failed: None };
                slot.retire_connection(&held);
                Ok(lease)
            }
            Err(fault) => {
                let failed = Some(Failure { at: Instant::now(), patience, fault: fault.clone() });
                *held = Held { connection: None, last_used: held.last_used, failed };
                Err(fault)
            }
        }
    }

    fn slot(&self, tenant: &TenantId, target: &McpTarget) -> Arc<Slot> {
        let entry = self.slots.entry(key_of(tenant, target)).or_insert_with(|| Slot::new(tenant, target));
        Arc::clone(entry.value())
    }

    async fn open(&self, tenant: &TenantId, target: &McpTarget, server: &str) -> Result<Pooled, McpFault> {
        let pass = self.breakers.admit(tenant, server)?;
        let place = self.place(tenant, server).await?;
        let opened = Box::pin(self.dialer.open(target, &self.bulk.of(tenant))).await;
        pass.ended(&opened);
        Ok(Pooled::new(opened?, target.endpoint.transport(), place))
    }

    /// A place for one more connection; when there is none an idle connection makes room, else the caller waits.
    async fn place(&self, tenant: &TenantId, server: &str) -> Result<Place, McpFault> {
        let until = Instant::now() + self.settings.place_wait;
        let places = self.places.of(tenant);
        let mut waiting = None;
        loop {
            let mut freed = pin!(places.freed.notified());
            // From here on nothing that is freed is missed.
            freed.as_mut().enable();
            let shortage = match places.take(server) {
                Ok(place) => return Ok(place),
                Err(shortage) => shortage,
            };
            if self.close_longest_idle(tenant, (shortage == Shortage::Server).then_some(server)) {
                continue;
            }
            waiting.get_or_insert_with(Waiting::new);
            if tokio::time::timeout_at(until, freed).await.is_err() {
                return Err(full(shortage, self.settings));
            }
        }
    }

    /// Closes the connection of a tenant that was idle for longest, of all or of those to one server. `false`: all are
    /// in use.
    fn close_longest_idle(&self, tenant: &TenantId, server: Option<&str>) -> bool {
        let is_meant = |slot: &Slot| slot.tenant == *tenant && server.is_none_or(|server| slot.server == server);
        let mut idle: Vec<(Option<Instant>, Arc<Slot>)> = Vec::new();
        for slot in self.slots.iter().filter(|slot| is_meant(slot)) {
            if let Ok(held) = slot.held.try_lock()
                && held.connection.is_some()
            {
                idle.push((held.last_used, Arc::clone(&slot)));
            }
        }
        idle.sort_by_key(|(last_used, _)| *last_used);
        idle.into_iter().any(|(_, slot)| slot.held.try_lock().is_ok_and(|mut held| held.take_unused().is_some()))
    }
}

/// Counts one caller as waiting for a place.
struct Waiting;

impl Waiting {
    fn new() -> Self {
        metrics::gauge!("countersign_mcp_waiting").increment(1.0);
        Self
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        metrics::gauge!("countersign_mcp_waiting").decrement(1.0);
    }
}

fn full(shortage: Shortage, settings: PoolSettings) -> McpFault {
    let (max, to) = match shortage {
        Shortage::Tenant => (settings.tenant_connections, "MCP servers"),
        Shortage::Server => (settings.server_connections, "this MCP server"),
    };
    McpFault::of(
        FaultKind::Full,
        format!("All {max} connections that the tenant may have to {to} on this node are in use."),
    )
}
