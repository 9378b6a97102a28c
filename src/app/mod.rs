//! Builds the shells from the settings, starts and stops the tasks: the one place that knows all.

mod settings;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use secrecy::ExposeSecret;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::settings::{declared, executor_settings, issuer_client, keep, pool_settings, worker_settings};
use crate::auth::{Tickets, Verifier};
use crate::clock::Clock;
use crate::commands::{Allowances, Commands, LocalExecutor, Seat};
use crate::config::{Config, Wake};
use crate::dispatch::{Dispatch, Watched};
use crate::executor::{Executor, Parts, Slot};
use crate::http::{self, ConnectionLimits, HttpSettings, Phase};
use crate::mcp::McpPool;
use crate::model::Models;
use crate::net::{Egress, EgressAllow};
use crate::oauth::{TokenParts, Tokens};
use crate::policy::Expressions;
use crate::run::envelope::Envelope;
use crate::run::ids::{RunUid, TenantId};
use crate::secrets::KeyRing;
use crate::store::follow::Follower;
use crate::store::hub::Hub;
use crate::store::journal::{Journal, JournalWriter};
use crate::store::retention::Retention;
use crate::store::wake::Hint;
use crate::store::{Claim, Store};

/// Time to reach a server that a tenant named.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Silence after which a model stream is taken for dead.
const MODEL_READ_TIMEOUT: Duration = Duration::from_mins(2);

/// Silence after which the issuer of tokens is taken for dead.
const ISSUER_READ_TIMEOUT: Duration = Duration::from_secs(10);

/// Time for answers under way when the server stops.
const ANSWER_TIME: Duration = Duration::from_secs(5);

/// Event streams that one actor may have open at once.
const STREAMS_PER_ACTOR: usize = 10_000;

/// Least time between two looks at what other nodes changed of servers and secrets.
const REGISTRY_PAUSE: Duration = Duration::from_millis(100);

/// Why a server does not start whose keys are not those that sealed what is stored.
const KEYS_DO_NOT_OPEN: &str = "COUNTERSIGN_MASTER_KEYS does not open the stored secrets";

/// One server process, built and not yet serving.
pub struct App {
    /// What callers can ask for.
    pub commands: Arc<Commands>,
    /// Keeps runs.
    pub store: Arc<dyn Store>,
    /// Tells readers.
    pub hub: Arc<Hub>,
    /// Tells readers of what other nodes store.
    pub follower: Arc<Follower>,
    /// Moves runs forward.
    pub executor: Executor,
    /// Cancelled when the server stops: streams end.
    pub stopping: CancellationToken,
    egress: Egress,
    pool: Arc<McpPool>,
    tracker: TaskTracker,
    ended: CancellationToken,
    drain: Duration,
}

impl App {
    /// Opens the store, starts the tasks that every server needs, and registers the node.
    ///
    /// # Errors
    /// With the setting or the part that does not work.
    pub async fn start(config: &Config, clock: Arc<dyn Clock>, migrate: bool) -> anyhow::Result<Self> {
        let lease = Duration::from_secs(config.lease_s.into());
        let store = crate::store::open_for(config.database_url.expose_secret(), migrate, lease)
            .await
            .context("COUNTERSIGN_DATABASE_URL")?;
        Self::start_on(config, store, clock).await
    }

    /// The same on a store that is open.
    ///
    /// # Errors
    /// With the setting or the part that does not work.
    pub async fn start_on(config: &Config, store: Arc<dyn Store>, clock: Arc<dyn Clock>) -> anyhow::Result<Self> {
        check_secrets(&*store, &config.keys).await?;
        let allow =
            EgressAllow::parse(config.egress_allow.iter().map(String::as_str)).context("COUNTERSIGN_EGRESS_ALLOW")?;
        let egress = Egress::new(allow);
        let mcp_client = egress.client(CONNECT_TIMEOUT, None).context("HTTP client for MCP servers")?;
        let model_client =
            egress.client(CONNECT_TIMEOUT, Some(MODEL_READ_TIMEOUT)).context("HTTP client for models")?;
        let pool = match &config.stdio_guard {
            Some(guard) => McpPool::guarded(mcp_client, pool_settings(config), guard.clone()),
            None => McpPool::new(mcp_client, pool_settings(config)),
        };
        let tracker = TaskTracker::new();
        let tokens = tokens(config, &egress, &store, &clock, &tracker)?;
        let keys = Arc::clone(&config.keys);
        let dispatch = Dispatch::new(Arc::clone(&pool), egress.clone(), keys, Arc::clone(&store), tokens);
        let dispatch = Arc::new(dispatch.with_declared(declared(config)));
        let hub = Arc::new(Hub::new());
        let (journal, writer) = Journal::new(Arc::clone(&store) as Arc<_>, Arc::clone(&hub));
        let expressions = Expressions::start().context("threads that evaluate expressions")?;
        let parts = Parts {
            store: Arc::clone(&store),
            expressions: expressions.clone(),
            journal: Arc::new(journal),
            dispatch: Arc::clone(&dispatch),
            models: Arc::new(Models::new(model_client)),
            clock: Arc::clone(&clock),
            tracker: tracker.clone(),
        };
        let executor = Executor::new(parts, executor_settings(config));
        let now = Arc::clone(&clock);
        let follower = Arc::new(Follower::new(Arc::clone(&store), Arc::clone(&hub), move || now.now()));
        let commands = Arc::new(Commands {
            store: Arc::clone(&store),
            hub: Arc::clone(&hub),
            dispatch,
            keys: Arc::clone(&config.keys),
            expressions,
            clock,
            tasks: tracker.clone(),
            executor: Arc::new(Local(executor.clone())),
            allow: Allowances {
                scripted_models: config.allow_scripted_models,
                prices: config.prices.clone(),
                catalog_max_age_ms: config.catalog_max_age_ms.into(),
                owner_time: Duration::from_secs(config.lease_s.clamp(20, 60).into()),
                approvals_require_token: config.approvals_require_token,
            },
            workers: worker_settings(config),
        });
        let drain = Duration::from_secs(config.drain_s.into());
        let (stopping, ended) = (CancellationToken::new(), CancellationToken::new());
        let app = Self { commands, store, hub, follower, executor, stopping, egress, pool, tracker, ended, drain };
        app.start_tasks(writer, config.wake).await?;
        let retention = Retention::new(Arc::clone(&app.store) as Arc<_>, keep(config.keep));
        app.tracker.spawn(retention.run(app.ended.clone()));
        let (commands, stopping) = (Arc::clone(&app.commands), app.stopping.clone());
        app.tracker.spawn(async move { commands.keep_deadlines(stopping).await });
        Ok(app)
    }

    async fn start_tasks(&self, writer: JournalWriter, wake: Wake) -> anyhow::Result<()> {
        self.tracker.spawn(writer.run(self.ended.clone()));
        self.executor.register().await.context("registering the node")?;
        let (executor, ended) = (self.executor.clone(), self.ended.clone());
        self.tracker.spawn(async move { executor.beat(ended).await });
        let executor = self.executor.clone();
        self.tracker.spawn(async move { executor.claim().await });
        let (executor, ended) = (self.executor.clone(), self.ended.clone());
        self.tracker.spawn(async move { executor.heed(ended).await });
        let (follower, ended) = (Arc::clone(&self.follower), self.ended.clone());
        self.tracker.spawn(async move { follower.run(ended).await });
        if wake == Wake::Notify {
            let (store, node, ended) = (Arc::clone(&self.store), self.executor.node(), self.ended.clone());
            self.tracker.spawn(async move { store.hint_carry(node, ended).await });
        }
        let (store, dispatch) = (Arc::clone(&self.store), Arc::clone(&self.commands.dispatch));
        let heeding = async move { heed_registry(&*store, &dispatch).await };
        self.tracker.spawn(self.ended.clone().run_until_cancelled_owned(heeding));
        self.tracker.spawn(Arc::clone(&self.commands).keep_calls_moving(self.ended.clone()));
        let (pool, ended) = (Arc::clone(&self.pool), self.ended.clone());
        self.tracker.spawn(async move { pool.keep_tidy(ended).await });
        Ok(())
    }

    /// Does something again and again until the server ends.
    pub fn every(&self, period: Duration, task: impl Fn() + Send + 'static) {
        let ended = self.ended.clone();
        self.tracker.spawn(async move {
            let mut ticks = tokio::time::interval(period);
            loop {
                tokio::select! {
                    () = ended.cancelled() => return,
                    _ = ticks.tick() => task(),
                }
            }
        });
    }

    /// Stops in order: streams end, runs let go at their next safe point, leases are given back, connections close.
    pub async fn stop(self) {
        self.drain().await;
        self.close().await;
    }

    async fn drain(&self) {
        self.stopping.cancel();
        tracing::info!("draining: streams end");
        self.executor.drain(self.drain).await;
    }

    async fn close(self) {
        self.ended.cancel();
        self.pool.close().await;
        self.tracker.close();
        if tokio::time::timeout(Duration::from_secs(5), self.tracker.wait()).await.is_err() {
            tracing::warn!("some tasks did not end; they end with the process");
        }
        self.store.close().await;
        tracing::info!("stopped");
    }
}

/// Access tokens for servers that want them.
fn tokens(
    config: &Config,
    egress: &Egress,
    store: &Arc<dyn Store>,
    clock: &Arc<dyn Clock>,
    tracker: &TaskTracker,
) -> anyhow::Result<Arc<Tokens>> {
    Ok(Tokens::new(TokenParts {
        client: egress.client(CONNECT_TIMEOUT, None).context("HTTP client for authorization servers")?,
        keys: Arc::clone(&config.keys),
        store: Arc::clone(store) as Arc<_>,
        clock: Arc::clone(clock),
        tasks: tracker.clone(),
    }))
}

/// What the HTTP server of one node grants.
#[derive(Clone, Copy, Debug)]
pub struct Grants {
    /// What a connection may cost.
    pub connection: ConnectionLimits,
    /// Event streams that one actor may have open at once.
    pub streams_per_actor: usize,
}

impl Default for Grants {
    fn default() -> Self {
        Self { connection: ConnectionLimits::default(), streams_per_actor: STREAMS_PER_ACTOR }
    }
}

/// A server that listens.
pub struct Server {
    app: App,
    address: SocketAddr,
    phase: watch::Sender<Phase>,
    /// Ends when the last answer is given after `closing`.
    serving: JoinHandle<()>,
    closing: CancellationToken,
}

impl Server {
    /// Serves HTTP for an app that was started.
    ///
    /// # Errors
    /// Keys that do not read, or an API document that does not compile.
    pub fn start(
        config: &Config,
        app: App,
        listener: TcpListener,
        metrics: Arc<dyn Fn() -> String + Send + Sync>,
        grants: Grants,
    ) -> anyhow::Result<Self> {
        let address = listener.local_addr().context("the address that is listened at")?;
        let issuer_client = issuer_client(&app.egress, config).context("HTTP client")?;
        let (phase, seen) = watch::channel(Phase::Ready);
        let router = http::router(http::Parts {
            commands: Arc::clone(&app.commands),
            store: Arc::clone(&app.store),
            hub: Arc::clone(&app.hub),
            follower: Arc::clone(&app.follower),
            verifier: Verifier::new(&config.auth, issuer_client).context("COUNTERSIGN_JWKS_FILE")?,
            tickets: Tickets::new(config.keys.signing_keys("stream-ticket")),
            clock: Arc::clone(&app.commands.clock),
            phase: seen,
            stopping: app.stopping.clone(),
            metrics,
            settings: HttpSettings {
                max_body_bytes: config.max_body_bytes,
                cors_origins: config.cors_origins.clone(),
                streams_per_actor: grants.streams_per_actor,
            },
        })
        .map_err(anyhow::Error::msg)?;
        let closing = CancellationToken::new();
        let serving =
            app.tracker.spawn(http::serve(listener, router, grants.connection, app.tracker.clone(), closing.clone()));
        Ok(Self { app, address, phase, serving, closing })
    }

    /// Where it listens.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// What callers can ask for, the store and the executor.
    pub const fn app(&self) -> &App {
        &self.app
    }

    /// Serves until the signal, then stops in order.
    ///
    /// # Errors
    /// When the listener failed.
    pub async fn run_until(mut self, signal: impl Future<Output = ()> + Send) -> anyhow::Result<()> {
        tokio::select! {
            () = signal => {}
            ended = &mut self.serving => return Ok(ended?),
        }
        self.stop().await
    }

    /// Streams end and runs let go while requests are still answered (`/readyz` says `draining`, new runs are queued for
    /// whoever comes next); then no connection is taken any more, and the rest ends.
    ///
    /// # Errors
    /// When the listener failed.
    pub async fn stop(self) -> anyhow::Result<()> {
        tracing::info!("draining");
        self.phase.send_replace(Phase::Draining);
        self.app.drain().await;
        self.closing.cancel();
        let served = tokio::time::timeout(ANSWER_TIME, self.serving).await;
        self.app.close().await;
        match served {
            Ok(ended) => Ok(ended?),
            Err(_elapsed) => {
                tracing::warn!("some connections did not end in time");
                Ok(())
            }
        }
    }
}

/// Lets go of what was looked up when another node changed a server or a secret.
async fn heed_registry(store: &dyn Store, dispatch: &Dispatch) {
    loop {
        store.hints().heard(Hint::Registry).await;
        dispatch.registry_changed();
        // Changes that come close together make one reading of what is in use.
        tokio::time::sleep(REGISTRY_PAUSE).await;
    }
}

/// Refuses to start when stored secrets cannot be read: a wrong key would only show when a run needs its secret.
async fn check_secrets(store: &dyn Store, keys: &KeyRing) -> anyhow::Result<()> {
    for (tenant, uid, sealed) in store.secret_samples().await.context("COUNTERSIGN_DATABASE_URL")? {
        keys.open(&tenant, uid, &sealed).context(KEYS_DO_NOT_OPEN)?;
    }
    for (tenant, stored) in store.stored_secret_samples().await.context("COUNTERSIGN_DATABASE_URL")? {
        keys.open_stored(&tenant, &stored).context(KEYS_DO_NOT_OPEN)?;
    }
    Ok(())
}

/// The executor as commands see it.
struct Local(Executor);

impl LocalExecutor for Local {
    fn seat(&self, tenant: &TenantId) -> Option<Seat> {
        self.0.slot(tenant).map(|slot| Seat { node: slot.node(), slot: Box::new(slot) })
    }

    fn begin(&self, seat: Seat, claim: Claim, envelope: Envelope, watched: Watched) {
        if let Ok(slot) = seat.slot.downcast::<Slot>() {
            self.0.begin(*slot, claim, envelope, watched);
        } else {
            tracing::error!(run = %claim.uid.0, "a run was admitted without a slot of this node");
        }
    }

    fn wake(&self) {
        self.0.wake();
    }

    fn cancel(&self, uid: RunUid) {
        self.0.cancel(uid);
    }

    fn attend(&self, tenant: &TenantId, uid: RunUid) {
        self.0.attend(tenant, uid);
    }
}
