//! A commit that the database will never take settles what was paid for or has happened; nothing is asked or sent again.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use countersign::clock::SystemClock;
use countersign::commands::{Allowances, Commands, CreateRun, LocalExecutor, Seat};
use countersign::dispatch::{Dispatch, Watched};
use countersign::executor::{Executor, ExecutorSettings, Parts};
use countersign::mcp::McpPool;
use countersign::model::Models;
use countersign::net::{Egress, EgressAllow};
use countersign::policy::Expressions;
use countersign::run::call::Stage;
use countersign::run::envelope::Envelope;
use countersign::run::ids::{NodeId, RunUid, TenantId};
use countersign::run::money::Prices;
use countersign::run::view::ViewLimits;
use countersign::secrets::KeyRing;
use countersign::store::hub::Hub;
use countersign::store::journal::Journal;
use countersign::store::{Beat, Claim, ExecutorStore, OwnedCommit, RunView, Store, StoreError, Wishes};
use serde_json::{Value, json};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::support::database::{Database, both_stores, eventually};
use crate::support::fake_mcp::{FakeMcp, Reply};
use crate::support::world::{asker, run_id, run_on};

both_stores! {
    a_turn_that_cannot_be_stored_fails_its_run_and_is_not_paid_for_twice => turn,
    a_streamed_part_that_cannot_be_stored_fails_its_run_as_well => streamed,
    field_a016_a_result_that_cannot_be_stored_settles_its_call_as_failed_and_the_run_goes_on => field_a016_a_result_that_cannot_be_stored_settles_its_call_as_failed_and_the_run_goes_on,
}

/// What this store never takes.
const POISON: &str = "POISON";

/// Takes no commit with a certain word in it.
struct Picky(Arc<dyn Store>);

#[async_trait]
impl ExecutorStore for Picky {
    async fn node_register(&self, node: NodeId) -> Result<(), StoreError> {
        self.0.node_register(node).await
    }
    async fn node_beat(&self, node: NodeId) -> Result<Beat, StoreError> {
        self.0.node_beat(node).await
    }
    async fn node_retire(&self, node: NodeId) -> Result<(), StoreError> {
        self.0.node_retire(node).await
    }
    async fn node_reap(&self, lease_ms: i64) -> Result<u64, StoreError> {
        self.0.node_reap(lease_ms).await
    }
    async fn run_claim(&self, node: NodeId, slots: u32, per_tenant: u32) -> Result<Vec<Claim>, StoreError> {
        self.0.run_claim(node, slots, per_tenant).await
    }
    async fn run_release(&self, claim: &Claim, crashed: bool) -> Result<bool, StoreError> {
        self.0.run_release(claim, crashed).await
    }
    async fn wish_list(&self, node: NodeId) -> Result<Vec<Claim>, StoreError> {
        self.0.wish_list(node).await
    }
    async fn wishes_take(&self, claim: &Claim) -> Result<Wishes, StoreError> {
        self.0.wishes_take(claim).await
    }
    async fn run_revision(&self, claim: &Claim) -> Result<Option<i64>, StoreError> {
        self.0.run_revision(claim).await
    }
    async fn run_due_in(&self) -> Result<Option<i64>, StoreError> {
        self.0.run_due_in().await
    }
    async fn commit_apply(&self, commits: &[OwnedCommit]) -> Result<Vec<bool>, StoreError> {
        if format!("{commits:?}").contains(POISON) {
            return Err(StoreError::Rejected("22P05 not this word".to_owned()));
        }
        self.0.commit_apply(commits).await
    }
}

/// Every run is queued; the executor claims it.
struct Queue(Executor);

impl LocalExecutor for Queue {
    fn seat(&self, _tenant: &TenantId) -> Option<Seat> {
        None
    }
    fn begin(&self, _seat: Seat, claim: Claim, _envelope: Envelope, _watched: Watched) {
        unreachable!("{claim:?} had no seat");
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

const MASTER_KEY: &str = "k1:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

/// A server whose journal writes to the picky store.
struct Server {
    store: Arc<dyn Store>,
    commands: Commands,
    _ended: DropGuard,
    _database: Database,
}

impl Server {
    async fn start(database: Database) -> Self {
        let store = database.open().await;
        let egress = Egress::new(EgressAllow::parse(["127.0.0.0/8"]).unwrap());
        let client = || egress.client(Duration::from_secs(5), None).unwrap();
        let keys = Arc::new(KeyRing::parse(MASTER_KEY).unwrap());
        let pool = McpPool::new(client(), crate::mcp::settings());
        let tokens = crate::oauth::tokens(&store, MASTER_KEY);
        let dispatch = Arc::new(Dispatch::new(pool, egress.clone(), Arc::clone(&keys), Arc::clone(&store), tokens));
        let hub = Arc::new(Hub::new());
        let (journal, writer) = Journal::new(Arc::new(Picky(Arc::clone(&store))), Arc::clone(&hub));
        let (tracker, ended) = (TaskTracker::new(), CancellationToken::new());
        let expressions = Expressions::start().unwrap();
        let parts = Parts {
            expressions: expressions.clone(),
            store: Arc::clone(&store),
            journal: Arc::new(journal),
            dispatch: Arc::clone(&dispatch),
            models: Arc::new(Models::new(client())),
            clock: Arc::new(SystemClock),
            tracker: tracker.clone(),
        };
        let settings = ExecutorSettings {
            worker_grace: Duration::from_secs(1),
            lease: Duration::from_secs(15),
            max_running: 10,
            tenant_max_running: 10,
            tenant_max_calls: 10,
            catalog_max_age: Duration::ZERO,
            view: ViewLimits::default(),
        };
        let executor = Executor::new(parts, settings);
        executor.register().await.unwrap();
        tracker.spawn(ended.clone().run_until_cancelled_owned(writer.run(ended.clone())));
        let claims = executor.clone();
        tracker.spawn(ended.clone().run_until_cancelled_owned(async move { claims.claim().await }));
        let commands = Commands {
            workers: countersign::commands::WorkerSettings {
                lease: Duration::from_secs(30),
                queue_wait: Duration::from_mins(1),
                queue_max: 100,
                permits: countersign::commands::Permits::default(),
            },
            store: Arc::clone(&store),
            hub,
            dispatch,
            keys,
            expressions,
            clock: Arc::new(SystemClock),
            executor: Arc::new(Queue(executor)),
            tasks: tracker,
            allow: Allowances {
                scripted_models: true,
                prices: Prices::default(),
                catalog_max_age_ms: 0,
                owner_time: Duration::from_secs(20),
                approvals_require_token: false,
            },
        };
        Self { store, commands, _ended: ended.drop_guard(), _database: database }
    }

    /// Creates a run and waits until it has ended.
    async fn ended(&self, body: Value) -> RunView {
        let request: CreateRun = serde_json::from_value(body).unwrap();
        self.commands.create(&asker(), request, None).await.unwrap();
        let view = || async { self.store.run_fetch(&asker().tenant, &run_id("r")).await.unwrap().unwrap() };
        eventually("the run ends", || async { view().await.head.status.is_terminal() }).await;
        view().await
    }

    async fn check_failed(&self, body: Value, total_tokens: u64) {
        let run = self.ended(body).await;
        let error = run.head.state.error.as_ref().unwrap();
        assert_eq!((run.head.status.code(), error.code.as_str()), ("failed", "unstorable"));
        let usage = run.head.state.usage;
        assert_eq!((usage.model_requests, usage.total_tokens), (1, total_tokens), "asked once, and counted");
        assert_eq!((run.head.attempt, run.head.crashes, run.owned), (1, 0, false));
        let events = self.store.event_list(&asker().tenant, run.uid, 0, 100).await.unwrap();
        let started = events.iter().filter(|event| event.kind == "turn-started").count();
        assert_eq!((started, events.last().unwrap().kind.as_str()), (1, "result"));
        assert!(!events.iter().any(|event| event.body.contains(POISON)));
    }
}

async fn turn(database: Database) {
    let server = Server::start(database).await;
    let mut body = run_on("r", &[], json!([]));
    body["model"]["script"] = json!([{ "text": POISON }, { "text": "asked again" }]);
    server.check_failed(body, 15).await;
}

async fn streamed(database: Database) {
    let server = Server::start(database).await;
    let mut body = run_on("r", &[], json!([]));
    // So many pieces that readers get some before the turn has ended.
    let text = format!("{POISON} ").repeat(60_000);
    body["model"]["script"] = json!([{ "text": text }, { "text": "asked again" }]);
    let request: CreateRun = serde_json::from_value(body).unwrap();
    server.commands.create(&asker(), request, None).await.unwrap();
    let view = || async { server.store.run_fetch(&asker().tenant, &run_id("r")).await.unwrap().unwrap() };
    eventually("the run ends", || async { view().await.head.status.is_terminal() }).await;
    let head = view().await.head;
    assert_eq!(head.state.error.unwrap().code, "unstorable");
    assert_eq!((head.state.usage.model_requests, head.attempt, head.crashes), (1, 1, 0));
}

async fn field_a016_a_result_that_cannot_be_stored_settles_its_call_as_failed_and_the_run_goes_on(database: Database) {
    let server = Server::start(database).await;
    let fake = FakeMcp::start().await;
    fake.on_call(|_| Reply::text(POISON));
    let run = server.ended(run_on("r", &[("charge", json!({"amount": 5}))], json!([{"url": fake.url()}]))).await;
    assert_eq!(run.head.status.code(), "completed", "{:?}", run.head);
    assert_eq!((run.head.attempt, run.head.crashes, fake.count("tools/call")), (1, 0, 1));
    let receipts = server.store.receipt_list(&asker().tenant, run.uid, None, 10).await.unwrap();
    let Stage::Failed { error, output: None, .. } = &receipts[0].stage else { panic!("{:?}", receipts[0].stage) };
    assert_eq!(error.code, "result-unstorable");
}
