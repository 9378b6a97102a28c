//! The embedded store: one file, one process, one writer connection, a few readers. Same functions as `postgres/`.

mod admin;
mod administers;
mod agents;
mod approvals;
mod commits;
mod follow;
mod inputs;
mod nodes;
mod reads;
mod registry;
mod retention;
mod runs;
mod sealed;
mod tokens;
mod workers;

use std::fs::{File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{SqlStr, Sqlite, SqlitePool, Transaction};

use tokio_util::sync::CancellationToken;

use super::wake::{Hint, Hints};
use super::{
    Admission, Admitted, AuditRow, Beat, Claim, ExecutorStore, FeedEvent, FollowStore, KeptAnswer, KeptRequest, Loaded,
    OwnedCommit, Page, RunCursor, RunFilter, RunStore, RunView, SealedSecret, StoreError, StoredEvent, Wishes,
};
use crate::run::binding::Binding;
use crate::run::call::Call;
use crate::run::commit::Commit;
use crate::run::ids::{Actor, CallId, Fence, NodeId, RunId, RunUid, TenantId};
use crate::run::message::Message;
use crate::run::time::Timestamp;

/// How many connections read at once.
const READERS: u32 = 4;
/// How long a statement waits for a lock; there is one writer, so only a checkpoint is in its way.
const BUSY: Duration = Duration::from_secs(10);

/// The database clock, in milliseconds.
macro_rules! now_ms {
    () => {
        "CAST(unixepoch('subsec') * 1000 AS INTEGER)"
    };
}
use now_ms;

/// The store on SQLite.
pub(super) struct SqliteStore {
    writer: SqlitePool,
    reader: SqlitePool,
    /// There is no other node to tell, and none to hear.
    hints: Hints,
    /// The tenant that the last claim ended with: among equals the next one's turn it is.
    turn: Mutex<String>,
    /// Held for as long as the store lives; the system lets go of it when the process dies.
    _lock: File,
}

impl SqliteStore {
    pub(super) async fn open(path: &Path, migrate: bool) -> Result<Self, StoreError> {
        let lock = lock(path)?;
        let options = SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .busy_timeout(BUSY);
        let writer = SqlitePoolOptions::new()
            .max_connections(1)
            .min_connections(1)
            .idle_timeout(None)
            .max_lifetime(None)
            .connect_with(options.clone())
            .await?;
        super::migrate(&migrator(), &mut *writer.acquire().await?, migrate).await?;
        let reader = SqlitePoolOptions::new()
            .max_connections(READERS)
            .idle_timeout(None)
            .max_lifetime(None)
            .connect_with(options.read_only(true))
            .await?;
        Ok(Self { writer, reader, hints: Hints::default(), turn: Mutex::default(), _lock: lock })
    }

    /// The write transaction: it has the write lock from its start, so it never fails half-way for want of it.
    async fn write(&self) -> Result<Transaction<'static, Sqlite>, StoreError> {
        Ok(self.writer.begin_with("BEGIN IMMEDIATE").await?)
    }
}

fn migrator() -> Migrator {
    const FILES: [(i64, &str, &str); 15] = [
        (2_026_113_001, "runs", include_str!("../../../migrations/sqlite/2026113001_runs.sql")),
        (2_026_113_002, "requests", include_str!("../../../migrations/sqlite/2026113002_requests.sql")),
        (2_026_113_003, "decisions", include_str!("../../../migrations/sqlite/2026113003_decisions.sql")),
        (2_026_113_004, "retention", include_str!("../../../migrations/sqlite/2026113004_retention.sql")),
        (2_026_113_005, "feed", include_str!("../../../migrations/sqlite/2026113005_feed.sql")),
        (
            2_026_113_006,
            "servers_and_secrets",
            include_str!("../../../migrations/sqlite/2026113006_servers_and_secrets.sql"),
        ),
        (2_026_113_008, "inputs", include_str!("../../../migrations/sqlite/2026113008_inputs.sql")),
        (2_026_113_009, "oauth_tokens", include_str!("../../../migrations/sqlite/2026113009_oauth_tokens.sql")),
        (2_026_113_010, "approvals", include_str!("../../../migrations/sqlite/2026113010_approvals.sql")),
        (2_026_113_011, "worker_calls", include_str!("../../../migrations/sqlite/2026113011_worker_calls.sql")),
        (2_026_113_012, "agents", include_str!("../../../migrations/sqlite/2026113012_agents.sql")),
        (2_026_113_013, "runs_of_agents", include_str!("../../../migrations/sqlite/2026113013_runs_of_agents.sql")),
        (2_026_113_014, "forgotten_tokens", include_str!("../../../migrations/sqlite/2026113014_forgotten_tokens.sql")),
        (2_026_113_015, "rounds_and_waits", include_str!("../../../migrations/sqlite/2026113015_rounds_and_waits.sql")),
        (
            2_026_113_016,
            "labels_of_client_calls",
            include_str!("../../../migrations/sqlite/2026113016_labels_of_client_calls.sql"),
        ),
    ];
    let migration = |(version, name, sql)| {
        let sql = SqlStr::from_static(sql);
        Migration::new(version, std::borrow::Cow::Borrowed(name), MigrationType::Simple, sql, false)
    };
    Migrator::with_migrations(FILES.into_iter().map(migration).collect())
}

/// Takes the file beside the database that says whose it is.
fn lock(path: &Path) -> Result<File, StoreError> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".lock");
    let beside = PathBuf::from(beside);
    let unusable = |fault: std::io::Error| StoreError::Misconfigured(format!("{}: {fault}", beside.display()));
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(&beside).map_err(unusable)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            Err(StoreError::Misconfigured(format!("another process uses {}", path.display())))
        }
        Err(TryLockError::Error(fault)) => Err(unusable(fault)),
    }
}

#[async_trait]
impl RunStore for SqliteStore {
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
    ) -> Result<Page<RunView>, StoreError> {
        reads::run_list(self, tenant, filter, after, limit).await
    }

    async fn run_bytes(&self, tenant: &TenantId, uid: RunUid) -> Result<u64, StoreError> {
        reads::run_bytes(self, tenant, uid).await
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
        let decided = commits::run_decide(self, tenant, uid, seen, commit, audit).await?;
        if decided && commit.offers() {
            self.hints.tell(Hint::Work);
        }
        Ok(decided)
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
    ) -> Result<Page<Message>, StoreError> {
        reads::message_list(self, tenant, uid, from, limit).await
    }

    async fn receipt_list(
        &self,
        tenant: &TenantId,
        uid: RunUid,
        after: Option<(u32, u32)>,
        limit: u32,
    ) -> Result<Page<Call>, StoreError> {
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
    ) -> Result<Page<StoredEvent>, StoreError> {
        reads::event_list(self, tenant, uid, after, limit).await
    }

    async fn binding_list(
        &self,
        tenant: &TenantId,
        uid: RunUid,
        after: u32,
        limit: u32,
    ) -> Result<Page<Binding>, StoreError> {
        reads::binding_list(self, tenant, uid, after, limit).await
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
        self.reader.close().await;
        self.writer.close().await;
    }
}

#[async_trait]
impl ExecutorStore for SqliteStore {
    async fn node_register(&self, node: NodeId) -> Result<(), StoreError> {
        nodes::node_register(self, node).await
    }

    async fn node_beat(&self, node: NodeId) -> Result<Beat, StoreError> {
        nodes::node_beat(self, node).await
    }

    async fn wish_list(&self, node: NodeId) -> Result<Vec<Claim>, StoreError> {
        nodes::wish_list(self, node).await
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

    async fn run_revision(&self, claim: &Claim) -> Result<Option<i64>, StoreError> {
        nodes::run_revision(self, claim).await
    }

    async fn run_due_in(&self) -> Result<Option<i64>, StoreError> {
        nodes::run_due_in(self).await
    }

    async fn commit_apply(&self, commits: &[OwnedCommit]) -> Result<Vec<bool>, StoreError> {
        let applied = commits::commit_apply(self, commits).await?;
        if commits.iter().any(|commit| commit.rows.offers) {
            self.hints.tell(Hint::Work);
        }
        Ok(applied)
    }

    async fn wishes_take(&self, claim: &Claim) -> Result<Wishes, StoreError> {
        admin::wishes_take(self, claim).await
    }
}

#[async_trait]
impl FollowStore for SqliteStore {
    fn hints(&self) -> &Hints {
        &self.hints
    }

    async fn hint_carry(&self, _node: NodeId, _stop: CancellationToken) {}

    async fn seq_list(&self, runs: &[(TenantId, RunUid)]) -> Result<Vec<(RunUid, i64)>, StoreError> {
        follow::seq_list(self, runs).await
    }

    async fn feed_list(
        &self,
        tenants: &[TenantId],
        since: Timestamp,
        limit: u32,
    ) -> Result<Vec<FeedEvent>, StoreError> {
        follow::feed_list(self, tenants, since, limit).await
    }
}
