//! The connections of all runs. Equal configurations of one tenant share one; nobody else does.
//!
//! A connection's identity is everything that decides whom it speaks to and as whom: tenant, address, headers, the
//! secret itself, connect time, and the run when it is private. Namespaces, classes and tool lists are no part of it.

use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::digest;
use dashmap::DashMap;
use secrecy::ExposeSecret as _;
use tokio::sync::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::catalog::Subscription;
use super::connection::{CallLimits, Connection};
use super::era::Eras;
use super::outcome::{Remedy, classify};
use super::schemas::Schemas;
use super::{McpFault, McpTarget, PoolSettings, ToolRequest};
use crate::net::Egress;
use crate::run::binding::ServedCatalog;
use crate::run::ids::{Fence, RunUid, TenantId};
use crate::run::outcome::{Outcome, ToolError};

/// How often unused connections are looked for.
const SWEEP_EVERY: Duration = Duration::from_secs(5);
/// Pause before a server that refused a connection is dialled again; it may just be restarting.
const REDIAL_PAUSE: Duration = Duration::from_millis(250);
/// The least range over which retries are spread.
const SPREAD_MIN: Duration = Duration::from_millis(100);
/// A handshake that failed sooner than this is tried again.
const QUICK_FAULT: Duration = Duration::from_secs(1);

type Key = [u8; 32];

/// The connections of all runs.
pub struct McpPool {
    http: reqwest::Client,
    egress: Egress,
    pub(super) settings: PoolSettings,
    slots: DashMap<Key, Arc<Slot>>,
    /// Compiled schemas of tools, for whoever checks their arguments and results.
    schemas: Arc<Schemas>,
    eras: Arc<Eras>,
    closing: CancellationToken,
}

/// The place of one connection.
struct Slot {
    private_to: Option<(RunUid, Fence)>,
    /// Whose it is, and what it was looked up by.
    origin: Option<(TenantId, String)>,
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    connection: Option<Arc<Connection>>,
    last_used: Option<Instant>,
    failed: Option<(Instant, McpFault)>,
}

/// A connection in use: while it is held the pool does not close it.
pub(super) struct Lease {
    pub(super) connection: Arc<Connection>,
    slot: Arc<Slot>,
    is_new: bool,
}

impl McpPool {
    /// A pool without connections. `http` comes from `egress`; it must not have a read time-out of its own.
    pub fn new(http: reqwest::Client, egress: Egress, settings: PoolSettings) -> Arc<Self> {
        Arc::new(Self {
            http,
            egress,
            settings,
            slots: DashMap::new(),
            schemas: Arc::default(),
            eras: Arc::default(),
            closing: CancellationToken::new(),
        })
    }

    /// The compiled schemas of tools.
    pub fn schemas(&self) -> Arc<Schemas> {
        Arc::clone(&self.schemas)
    }

    /// The tools of a server, at most `max_age` old and read over a connection that still lives. Connects if needed.
    ///
    /// # Errors
    /// What went wrong, in words without secrets.
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
    /// What went wrong, in words without secrets.
    pub async fn read(
        &self,
        tenant: &TenantId,
        target: &McpTarget,
        max_age: Duration,
    ) -> Result<(Arc<ServedCatalog>, Subscription), McpFault> {
        let patience = Duration::from_millis(target.timeouts.connect_ms);
        let mut lease = self.lease(tenant, target).await?;
        let mut read = lease.connection.tools(&self.schemas, max_age, patience).await;
        if read.is_err() && !lease.is_new {
            // A kept connection may be dead without knowing it; a listing changes nothing and may be repeated.
            lease.drop_connection().await;
            lease = self.lease(tenant, target).await?;
            read = lease.connection.tools(&self.schemas, max_age, patience).await;
        }
        let reading = read?;
        let subscription = Subscription::new(lease.connection, &reading);
        Ok((reading.catalog, subscription))
    }

    /// Calls a tool and says what is known of it afterwards. What was certainly not executed is tried again where that
    /// can help: once on a fresh connection, once after a short `Retry-After`.
    pub async fn call(
        &self,
        tenant: &TenantId,
        target: &McpTarget,
        request: ToolRequest,
        cancel: CancellationToken,
    ) -> Outcome {
        let started = Instant::now();
        let total = Duration::from_millis(target.timeouts.call_total_ms);
        let (mut may_reconnect, mut may_wait) = (true, true);
        loop {
            let dialled = Instant::now();
            let (outcome, remedy) = tokio::select! {
                biased;
                () = cancel.cancelled() => return cancelled_before(),
                lease = self.lease(tenant, target) => match lease {
                    Ok(lease) => {
                        let left = total.saturating_sub(started.elapsed());
                        self.attempt(&lease, target, &request, left, &cancel).await
                    }
                    // A handshake that failed slowly is not repeated: the caller waited long enough.
                    Err(fault) if dialled.elapsed() > QUICK_FAULT => return unreachable(&fault),
                    Err(fault) => (unreachable(&fault), Remedy::Redial),
                },
            };
            let pause = match remedy {
                Remedy::NewSession | Remedy::Redial if may_reconnect => {
                    may_reconnect = false;
                    if remedy == Remedy::Redial { spread(REDIAL_PAUSE, &request) } else { Duration::ZERO }
                }
                Remedy::After(pause) if may_wait => {
                    may_wait = false;
                    spread(pause, &request)
                }
                Remedy::None | Remedy::NewSession | Remedy::Redial | Remedy::After(_) => return outcome,
            };
            if started.elapsed() + pause >= total {
                return outcome;
            }
            tokio::select! {
                () = cancel.cancelled() => return outcome,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// One attempt on a leased connection. A connection that proved useless is taken out of the pool.
    async fn attempt(
        &self,
        lease: &Lease,
        target: &McpTarget,
        request: &ToolRequest,
        total: Duration,
        cancel: &CancellationToken,
    ) -> (Outcome, Remedy) {
        let idle = Duration::from_millis(target.timeouts.call_ms);
        let limits = CallLimits { idle, total, cancel_grace: self.settings.cancel_grace };
        let (stage, ended) = lease.connection.attempt(request, limits, cancel).await;
        let promised = request.output_schema.as_ref().map(|schema| self.schemas.of(schema));
        let (outcome, remedy) = classify(stage, ended, promised.as_ref());
        // Whoever has the lock uses the slot at this moment: an answer must not wait for another's handshake.
        if let Ok(mut held) = lease.slot.held.try_lock() {
            held.last_used = Some(Instant::now());
        }
        if matches!(remedy, Remedy::NewSession | Remedy::Redial) {
            lease.drop_connection().await;
        }
        (outcome, remedy)
    }

    /// Takes connections out of use that were looked up by this and lead elsewhere now; calls on them go on.
    pub fn retire(&self, tenant: &TenantId, origin: &str) {
        self.slots.retain(|_, slot| {
            let is_meant = slot.origin.as_ref().is_some_and(|(whose, by)| whose == tenant && by == origin);
            if is_meant
                && let Ok(held) = slot.held.try_lock()
                && let Some(connection) = &held.connection
            {
                connection.retire();
            }
            !is_meant
        });
    }

    /// Closes the connections that belong to one drive of a run alone; those of the run's next owner, who may be on
    /// this node too, stay.
    pub async fn release_run(&self, uid: RunUid, fence: Fence) {
        self.close_where(|slot| slot.private_to == Some((uid, fence))).await;
    }

    /// Closes everything; connections are refused from then on.
    pub async fn close(&self) {
        self.closing.cancel();
        self.close_where(|_| true).await;
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
    }

    /// How many connections are open, for the metrics.
    pub fn open_connections(&self) -> usize {
        self.slots.iter().filter(|slot| slot.held.try_lock().map_or(true, |held| held.connection.is_some())).count()
    }

    async fn close_where(&self, wanted: impl Fn(&Slot) -> bool) {
        let keys: Vec<Key> = self.slots.iter().filter(|slot| wanted(slot)).map(|slot| *slot.key()).collect();
        let slots: Vec<Arc<Slot>> =
            keys.iter().filter_map(|key| self.slots.remove(key)).map(|(_, slot)| slot).collect();
        let closing = slots.iter().map(|slot| async {
            let connection = slot.held.lock().await.connection.take();
            if let Some(connection) = connection {
                connection.close().await;
            }
        });
        futures::future::join_all(closing).await;
    }

    pub(super) async fn lease(&self, tenant: &TenantId, target: &McpTarget) -> Result<Lease, McpFault> {
        if self.closing.is_cancelled() {
            return Err(McpFault::new("The server is shutting down."));
        }
        let asked = Instant::now();
        let slot = self.slot(tenant, target);
        // Held while connecting: that is what makes many first users one handshake.
        let mut held = slot.held.lock().await;
        held.drop_unused(self.settings);
        held.last_used = Some(Instant::now());
        if let Some(connection) = held.connection.as_ref().filter(|connection| connection.is_alive()) {
            let connection = Arc::clone(connection);
            drop(held);
            return Ok(Lease { connection, slot, is_new: false });
        }
        // Whoever waited while another failed to connect shares its failure, instead of failing once more in turn.
        if let Some((at, fault)) = &held.failed
            && *at >= asked
        {
            return Err(fault.clone());
        }
        match self.open(target).await {
            Ok(connection) => {
                let connection = Arc::new(connection);
                held.connection = Some(Arc::clone(&connection));
                held.failed = None;
                held.last_used = Some(Instant::now());
                drop(held);
                Ok(Lease { connection, slot, is_new: true })
            }
            Err(fault) => {
                held.connection = None;
                held.failed = Some((Instant::now(), fault.clone()));
                Err(fault)
            }
        }
    }

    fn slot(&self, tenant: &TenantId, target: &McpTarget) -> Arc<Slot> {
        let entry = self.slots.entry(key_of(tenant, target)).or_insert_with(|| {
            let origin = target.origin.clone().map(|origin| (tenant.clone(), origin));
            Arc::new(Slot { private_to: target.private_to, origin, held: Mutex::new(Held::default()) })
        });
        Arc::clone(entry.value())
    }

    async fn open(&self, target: &McpTarget) -> Result<Connection, McpFault> {
        Connection::open(&self.http, &self.egress, target, self.settings, &self.eras).await
    }
}

impl Held {
    /// Lets go of a connection that is idle, old or dead, if nobody uses it. Dropping ends its session.
    fn drop_unused(&mut self, settings: PoolSettings) {
        let Some(connection) = &self.connection else { return };
        let is_unused = Arc::strong_count(connection) == 1;
        let is_idle = self.last_used.is_none_or(|at| at.elapsed() >= settings.idle_close);
        let is_old = connection.opened.elapsed() >= settings.max_age;
        if !connection.is_alive() || (is_unused && (is_idle || is_old)) {
            self.connection = None;
        }
    }
}

impl Lease {
    /// Takes the connection out of the pool; calls that are out on it go on.
    pub(super) async fn drop_connection(&self) {
        self.connection.retire();
        let mut held = self.slot.held.lock().await;
        if held.connection.as_ref().is_some_and(|kept| Arc::ptr_eq(kept, &self.connection)) {
            held.connection = None;
        }
    }
}

/// The identity of a connection. The secret goes in by value, so that a rotated one gets a connection of its own.
fn key_of(tenant: &TenantId, target: &McpTarget) -> Key {
    let mut context = digest::Context::new(&digest::SHA256);
    let mut add = |part: &[u8]| {
        // The length in front keeps two neighbours from running into each other.
        context.update(&part.len().to_be_bytes());
        context.update(part);
    };
    add(tenant.as_str().as_bytes());
    add(target.url.as_str().as_bytes());
    let mut headers: Vec<(String, &str)> =
        target.headers.iter().map(|(name, value)| (name.to_ascii_lowercase(), value.as_str())).collect();
    headers.sort_unstable();
    add(&headers.len().to_be_bytes());
    for (name, value) in headers {
        add(name.as_bytes());
        add(value.as_bytes());
    }
    match &target.secret_header {
        Some((name, secret)) => {
            add(name.to_ascii_lowercase().as_bytes());
            add(secret.expose_secret().as_bytes());
        }
        None => add(b""),
    }
    add(&target.timeouts.connect_ms.to_be_bytes());
    add(&[u8::from(target.offers.elicitation), u8::from(target.offers.sampling)]);
    if let Some((uid, fence)) = target.private_to {
        add(uid.0.as_bytes());
        add(&fence.0.to_be_bytes());
    }
    let mut key = [0; 32];
    key.copy_from_slice(context.finish().as_ref());
    key
}

/// A pause made longer by up to a quarter: calls that were turned away together do not come back together.
fn spread(pause: Duration, request: &ToolRequest) -> Duration {
    let share = request.idempotency_key.bytes().fold(0_u8, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte));
    pause + (pause / 4).max(SPREAD_MIN) * u32::from(share) / u32::from(u8::MAX)
}

fn cancelled_before() -> Outcome {
    Outcome::NotSent(ToolError::new("cancelled", "The run was cancelled before the call was sent."))
}

fn unreachable(fault: &McpFault) -> Outcome {
    Outcome::NotSent(ToolError::new("mcp-unreachable", format!("{} The call was not executed.", fault.message)))
}

#[cfg(test)]
mod tests {
    use secrecy::SecretString;
    use uuid::Uuid;

    use super::*;

    #[test]
    fn every_part_of_the_configuration_is_part_of_the_identity() {
        let acme = TenantId::parse("acme").unwrap();
        let base = || McpTarget {
            url: "https://a.example/mcp".parse().unwrap(),
            headers: vec![("X-A".to_owned(), "1".to_owned()), ("x-b".to_owned(), "2".to_owned())],
            secret_header: Some(("authorization".to_owned(), SecretString::from("s"))),
            timeouts: crate::run::spec::Timeouts::default(),
            private_to: None,
            origin: None,
            offers: super::super::Offers::default(),
        };
        let changes: [fn(&mut McpTarget); 9] = [
            |target| target.offers.sampling = true,
            |target| target.offers.elicitation = true,
            |target| target.url = "https://b.example/mcp".parse().unwrap(),
            |target| target.headers[0].1 = "3".to_owned(),
            |target| target.headers.truncate(1),
            |target| target.secret_header = None,
            |target| target.secret_header = Some(("authorization".to_owned(), SecretString::from("t"))),
            |target| target.timeouts.connect_ms += 1,
            |target| target.private_to = Some((RunUid(Uuid::nil()), Fence(1))),
        ];
        let key = key_of(&acme, &base());
        for (at, change) in changes.into_iter().enumerate() {
            let mut target = base();
            change(&mut target);
            assert_ne!(key_of(&acme, &target), key, "{at}");
        }
        assert_ne!(key_of(&TenantId::parse("acmf").unwrap(), &base()), key);
        let mut reordered = base();
        reordered.headers.reverse();
        reordered.headers[1].0 = "x-a".to_owned();
        reordered.timeouts.call_ms += 1;
        reordered.origin = Some("server/a".to_owned());
        assert_eq!(
            key_of(&acme, &reordered),
            key,
            "order, case, call limits and what it was looked up by are no part of it"
        );
    }
}
