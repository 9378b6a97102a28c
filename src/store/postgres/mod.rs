//! The production store: a pool for requests, and one connection for the journal. Same functions as `sqlite/`.

mod admin;
mod commits;
mod nodes;
mod reads;
mod runs;
mod turn;

use std::str::FromStr;
use std::time::Duration;

use async_trait::async_trait;
use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{ConnectOptions, Connection, PgPool, SqlStr};

use super::{
    AdminStore, Admission, Admitted, AuditFilter, AuditRow, Beat, Claim, ExecutorStore, FoundCall, KeptAnswer,
    KeptRequest, Left, Loaded, OwnedCommit, PlaceInTime, ReceiptFilter, ReceiptPlace, RunCursor, RunFilter, RunStore,
    RunView, SealedSecret, StoreError, StoredEvent, Wishes,
};
use crate::run::call::Call;
use crate::run::commit::Commit;
use crate::run::fact::Reconciliation;
use crate::run::ids::{Actor, CallId, Fence, NodeId, RunId, RunUid, TenantId};
use crate::run::message::Message;
use crate::run::time::Timestamp;

/// Connections for everything but the journal.
const CONNECTIONS: u32 = 8;
/// How long a request waits for a connection.
const ACQUIRE: Duration = Duration::from_secs(10);
/// A connection that was idle for longer is tried before it is used.
const TRUSTED_IDLE: Duration = Duration::from_secs(1);

/// The store on Postgres.
pub(super) struct PostgresStore {
    pool: PgPool,
    /// The journal's own connection, planned for its one big statement.
    writer: PgPool,
}

impl PostgresStore {
    pub(super) async fn open(url: &str, migrate: bool) -> Result<Self, StoreError> {
        let options = PgConnectOptions::from_str(url)?.application_name("countersign");
        let mut connection = options.connect().await?;
        if migrate {
            turn::take(&mut connection).await?;
        }
        super::migrate(&migrator(), &mut connection, migrate).await?;
        // The turn ends with the connection, also after a migration that failed: so this one is never pooled.
        connection.close().await?;
        let options = options.options([
            // Acknowledged is durable, whatever the server's default.
            ("synchronous_commit", "on"),
            // No half-done transaction outlives a lease.
            ("idle_in_transaction_session_timeout", "5000"),
            ("statement_timeout", "30000"),
        ]);
        let pool = pool_options(CONNECTIONS).connect_with(options.clone()).await?;
        // Planning the big statement for its arguments costs more than running it. The one plan must be right for any
        // batch and any table, also one without statistics: probe each run by its key, and nothing else.
        let options = options.options([
            ("plan_cache_mode", "force_generic_plan"),
            ("enable_seqscan", "off"),
            ("enable_bitmapscan", "off"),
            ("enable_hashjoin", "off"),
            ("enable_mergejoin", "off"),
            ("enable_material", "off"),
        ]);
        let writer = pool_options(1).connect_with(options).await?;
        Ok(Self { pool, writer })
    }
}

fn pool_options(connections: u32) -> PgPoolOptions {
    PgPoolOptions::new()
        .max_connections(connections)
        .acquire_timeout(ACQUIRE)
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

fn migrator() -> Migrator {
    const FILES: [(i64, &str, &str); 3] = [
        (2_026_113_001, "runs", include_str!("../../../migrations/postgres/2026113001_runs.sql")),
        (2_026_113_002, "requests", include_str!("../../../migrations/postgres/2026113002_requests.sql")),
        (2_026_113_003, "decisions", include_str!("../../../migrations/postgres/2026113003_decisions.sql")),
    ];
    let migration = |(version, name, sql)| {
        let sql = SqlStr::from_static(sql);
        Migration::new(version, std::borrow::Cow::Borrowed(name), MigrationType::Simple, sql, false)
    };
    let mut migrator = Migrator::with_migrations(FILES.into_iter().map(migration).collect());
    // Its own lock is waited for inside the database; `turn` says why that must not be.
    migrator.set_locking(false);
    migrator
}

#[async_trait]
impl RunStore for PostgresStore {
    async fn run_admit(&self, admission: Admission) -> Result<Admitted, StoreError> {
        runs::run_admit(self, &admission).await
    }

    async fn kept_fetch(
        &self,
        tenant: &TenantId,
        request: &KeptRequest,
        now: Timestamp,
    ) -> Result<Option<KeptAnswer>, StoreError> {
        runs::kept_fetch(self, tenant, request, now).await
    }

    async fn run_fetch(&self, tenant: &TenantId, id: &RunId) -> Result<Option<RunView>, StoreError> {
        reads::run_fetch(self, tenant, id).await
    }

    async fn run_list(
        &self,
        tenant: &TenantId,
        filter: &RunFilter,
        after: Option<RunCursor>,
        limit: u32,
    ) -> Result<Vec<RunView>, StoreError> {
        reads::run_list(self, tenant, filter, after, limit).await
    }

    async fn run_load(&self, tenant: &TenantId, uid: RunUid) -> Result<Option<Loaded>, StoreError> {
        runs::run_load(self, tenant, uid).await
    }

    async fn run_decide(
        &self,
        tenant: &TenantId,
        uid: RunUid,
        seen: Fence,
        commit: &Commit,
        audit: &[AuditRow],
    ) -> Result<bool, StoreError> {
        commits::run_decide(self, tenant, uid, seen, commit, audit).await
    }

    async fn cancel_request(&self, tenant: &TenantId, uid: RunUid, actor: &Actor) -> Result<bool, StoreError> {
        runs::cancel_request(self, tenant, uid, actor).await
    }

    async fn message_list(
        &self,
        tenant: &TenantId,
        uid: RunUid,
        from: u32,
        limit: u32,
    ) -> Result<Vec<Message>, StoreError> {
        reads::message_list(self, tenant, uid, from, limit).await
    }

    async fn receipt_list(
        &self,
        tenant: &TenantId,
        uid: RunUid,
        after: Option<(u32, u32)>,
        limit: u32,
    ) -> Result<Vec<Call>, StoreError> {
        reads::receipt_list(self, tenant, uid, after, limit).await
    }

    async fn receipt_fetch(
        &self,
        tenant: &TenantId,
        uid: RunUid,
        turn: u32,
        call_id: &CallId,
    ) -> Result<Option<Call>, StoreError> {
        reads::receipt_fetch(self, tenant, uid, turn, call_id).await
    }

    async fn event_list(
        &self,
        tenant: &TenantId,
        uid: RunUid,
        after: i64,
        limit: u32,
    ) -> Result<Vec<StoredEvent>, StoreError> {
        reads::event_list(self, tenant, uid, after, limit).await
    }

    async fn secret_list(&self, tenant: &TenantId, uid: RunUid) -> Result<Vec<SealedSecret>, StoreError> {
        reads::secret_list(self, tenant, uid).await
    }

    async fn secret_samples(&self) -> Result<Vec<(TenantId, RunUid, SealedSecret)>, StoreError> {
        reads::secret_samples(self).await
    }

    async fn ping(&self) -> Result<(), StoreError> {
        nodes::ping(self).await
    }

    async fn close(&self) {
        self.pool.close().await;
        self.writer.close().await;
    }
}

#[async_trait]
impl ExecutorStore for PostgresStore {
    async fn node_register(&self, node: NodeId) -> Result<(), StoreError> {
        nodes::node_register(self, node).await
    }

    async fn node_beat(&self, node: NodeId) -> Result<Beat, StoreError> {
        nodes::node_beat(self, node).await
    }

    async fn node_retire(&self, node: NodeId) -> Result<(), StoreError> {
        nodes::node_retire(self, node).await
    }

    async fn node_reap(&self, lease_ms: i64) -> Result<u64, StoreError> {
        nodes::node_reap(self, lease_ms).await
    }

    async fn run_claim(&self, node: NodeId, slots: u32, per_tenant: u32) -> Result<Vec<Claim>, StoreError> {
        nodes::run_claim(self, node, slots, per_tenant).await
    }

    async fn run_release(&self, claim: &Claim, crashed: bool) -> Result<bool, StoreError> {
        nodes::run_release(self, claim, crashed).await
    }

    async fn run_due_in(&self) -> Result<Option<i64>, StoreError> {
        nodes::run_due_in(self).await
    }

    async fn commit_apply(&self, commits: &[OwnedCommit]) -> Result<Vec<bool>, StoreError> {
        commits::commit_apply(self, commits).await
    }

    async fn wishes_take(&self, claim: &Claim) -> Result<Wishes, StoreError> {
        admin::wishes_take(self, claim).await
    }
}

#[async_trait]
impl AdminStore for PostgresStore {
    async fn decision_leave(
        &self,
        tenant: &TenantId,
        uid: RunUid,
        decided: &Reconciliation,
        since: Timestamp,
        audit: &AuditRow,
    ) -> Result<Left, StoreError> {
        admin::decision_leave(self, tenant, uid, decided, since, audit).await
    }

    async fn undecided_list(
        &self,
        tenant: &TenantId,
        after: Option<ReceiptPlace>,
        limit: u32,
    ) -> Result<Vec<FoundCall>, StoreError> {
        admin::undecided_list(self, tenant, after, limit).await
    }

    async fn receipt_search(
        &self,
        tenant: &TenantId,
        filter: &ReceiptFilter,
        after: Option<ReceiptPlace>,
        limit: u32,
    ) -> Result<Vec<FoundCall>, StoreError> {
        admin::receipt_search(self, tenant, filter, after, limit).await
    }

    async fn audit_list(
        &self,
        tenant: &TenantId,
        filter: &AuditFilter,
        after: Option<PlaceInTime>,
        limit: u32,
    ) -> Result<Vec<AuditRow>, StoreError> {
        admin::audit_list(self, tenant, filter, after, limit).await
    }
}
