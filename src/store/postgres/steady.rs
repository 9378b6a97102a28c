//! Connections that are replaced when they stop answering. A database that vanishes without a word leaves connections
//! on which an answer is waited for until the kernel gives up, many minutes later, or for ever. So every use of the
//! store has a time limit, and what ran into it makes all connections anew: whoever comes next finds a living one.

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use sqlx::PgPool;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{ConnectOptions, Connection};
use tokio::pin;
use tokio::time::timeout;

use super::schema::migrator;
use super::{PostgresStore, turn};
use crate::store::StoreError;
use crate::store::wake::Hints;

/// Connections for everything but the journal and the beats.
const CONNECTIONS: u32 = 8;
/// A connection that was idle for longer is tried before it is used.
const TRUSTED_IDLE: Duration = Duration::from_secs(1);
/// What the time limit of a statement leaves to the server, which answers when it ends one, before the silence counts.
const GRACE: Duration = Duration::from_secs(1);
/// How long closing may take.
const CLOSE: Duration = Duration::from_secs(5);

/// The store on Postgres: what it does is in [`PostgresStore`], which has one set of connections.
pub(in crate::store) struct SteadyPostgres {
    options: PgConnectOptions,
    patience: Patience,
    now: RwLock<Arc<PostgresStore>>,
    /// Said once, until something worked again.
    is_silent: AtomicBool,
    pub(super) hints: Hints,
}

/// How long to wait for the database.
#[derive(Clone, Copy, Debug)]
struct Patience {
    /// For the server to end a statement.
    statement: Duration,
    /// For a beat: a connection that died is replaced while the lease still holds.
    beat: Duration,
}

impl Patience {
    fn of_lease(lease: Duration) -> Self {
        Self {
            statement: lease.clamp(Duration::from_secs(5), Duration::from_secs(15)),
            beat: (lease / 3).clamp(Duration::from_secs(1), Duration::from_secs(15)),
        }
    }
}

impl Patience {
    /// For a connection to be free.
    fn acquire(self) -> Duration {
        self.statement * 2 / 3
    }
}

impl SteadyPostgres {
    pub(in crate::store) async fn open(url: &str, migrate: bool, lease: Duration) -> Result<Self, StoreError> {
        let options = url.parse::<PgConnectOptions>()?.application_name("countersign");
        let mut connection = options.connect().await?;
        if migrate {
            turn::take(&mut connection).await?;
        }
        crate::store::migrate(&migrator(), &mut connection, migrate).await?;
        // The turn ends with the connection, also after a migration that failed: so this one is never pooled.
        connection.close().await?;
        let patience = Patience::of_lease(lease);
        let store = connect(&options, patience);
        drop(store.pool.acquire().await?);
        Ok(Self {
            options,
            patience,
            now: RwLock::new(Arc::new(store)),
            is_silent: AtomicBool::new(false),
            hints: Hints::default(),
        })
    }

    /// The store with the connections of now.
    pub(super) fn now(&self) -> Arc<PostgresStore> {
        Arc::clone(&self.now.read())
    }

    /// How to connect besides.
    pub(super) const fn options(&self) -> &PgConnectOptions {
        &self.options
    }

    /// Does something with these connections, or makes new ones.
    ///
    /// # Errors
    /// `Unavailable` when it took too long; it may be done or not.
    pub(super) async fn within<T>(
        &self,
        store: &Arc<PostgresStore>,
        work: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let most = self.patience.acquire().saturating_add(self.patience.statement).saturating_add(GRACE);
        self.limited(most, store, work).await
    }

    /// The same for a beat.
    pub(super) async fn within_beat<T>(
        &self,
        store: &Arc<PostgresStore>,
        work: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        self.limited(self.patience.beat, store, work).await
    }

    async fn limited<T>(
        &self,
        limit: Duration,
        store: &Arc<PostgresStore>,
        work: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        pin!(work);
        match timeout(limit, &mut work).await {
            Ok(done) => {
                if done.is_ok() && self.is_silent.load(Ordering::Relaxed) {
                    self.is_silent.store(false, Ordering::Relaxed);
                    tracing::info!("the database answers again");
                }
                done
            }
            Err(_elapsed) => {
                // Before the work is dropped: a connection that is given back to a closed pool is not tried first.
                self.renew(store);
                Err(StoreError::Unavailable(sqlx::Error::Io(ErrorKind::TimedOut.into())))
            }
        }
    }

    /// Replaces all connections, unless that was done already. What is under way on the old ones may come to its end,
    /// or to its own limit.
    fn renew(&self, stuck: &Arc<PostgresStore>) {
        let mut now = self.now.write();
        if Arc::ptr_eq(&now, stuck) {
            if !self.is_silent.swap(true, Ordering::Relaxed) {
                tracing::warn!("the database is silent: connections to it are made anew until it answers");
            }
            *now = Arc::new(connect(&self.options, self.patience));
            for pool in stuck.pools() {
                // The first poll would wait for connections that may never come back; the call alone closes the pool.
                drop(pool.close());
            }
        }
    }

    pub(super) async fn close_pools(&self) {
        let store = self.now();
        let closed = async {
            for pool in store.pools() {
                pool.close().await;
            }
        };
        if timeout(CLOSE, closed).await.is_err() {
            tracing::warn!("some connections to the database did not close; they end with the process");
        }
    }
}

impl PostgresStore {
    const fn pools(&self) -> [&PgPool; 3] {
        [&self.pool, &self.writer, &self.beats]
    }
}

/// One set of connections, made when they are needed.
fn connect(options: &PgConnectOptions, patience: Patience) -> PostgresStore {
    let statement_timeout = patience.statement.as_millis().to_string();
    let options = options.clone().options([
        // Acknowledged is durable, whatever the server's default.
        ("synchronous_commit", "on"),
        // No half-done transaction outlives a lease.
        ("idle_in_transaction_session_timeout", "5000"),
        ("statement_timeout", statement_timeout.as_str()),
    ]);
    // Planning the big statement for its arguments costs more than running it. The one plan must be right for any
    // batch and any table, also one without statistics: probe each run by its key, and nothing else.
    let of_writer = options.clone().options([
        ("plan_cache_mode", "force_generic_plan"),
        ("enable_seqscan", "off"),
        ("enable_bitmapscan", "off"),
        ("enable_hashjoin", "off"),
        ("enable_mergejoin", "off"),
        ("enable_material", "off"),
    ]);
    // A request waits for a connection for less time than it has in all: a full house is not a silent database.
    let acquire = patience.acquire();
    PostgresStore {
        writer: pool_options(1, acquire).connect_lazy_with(of_writer),
        turn: Mutex::default(),
        beats: pool_options(1, acquire).connect_lazy_with(options.clone()),
        pool: pool_options(CONNECTIONS, acquire).connect_lazy_with(options),
    }
}

fn pool_options(connections: u32, acquire: Duration) -> PgPoolOptions {
    PgPoolOptions::new()
        .max_connections(connections)
        .acquire_timeout(acquire)
        // A round trip before every statement would double its time: only what idled is tried.
        .test_before_acquire(false)
        .before_acquire(|connection, meta| {
            Box::pin(async move {
                if meta.idle_for > TRUSTED_IDLE {
                    connection.ping().await?;
                }
                Ok(true)
            })
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dead_connection_is_replaced_while_the_lease_holds() {
        for lease_s in [3, 4, 15, 60, 3600] {
            let lease = Duration::from_secs(lease_s);
            let patience = Patience::of_lease(lease);
            // A beat each third of the lease; the one after the last good one waits in vain.
            assert!(lease / 3 + patience.beat < lease * 4 / 5, "{lease_s}: {patience:?}");
            assert!(patience.beat <= patience.statement);
        }
    }
}
