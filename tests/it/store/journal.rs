//! The journal: kept, told, answered; many runs a batch, each alone in its fate.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use countersign::run::ids::NodeId;
use countersign::run::message::Content;
use countersign::store::hub::{Heard, Hub};
use countersign::store::journal::{Journal, JournalError};
use countersign::store::{Beat, Claim, ExecutorStore, OwnedCommit, Store, StoreError, Wishes};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::draft::{Draft, node};
use super::hub::heard;
use crate::support::database::{Database, both_stores, eventually};

both_stores! {
    events_of_many_runs_that_commit_at_once_stay_in_order => many_runs,
    a_lone_commit_goes_at_once_and_what_waits_behind_it_goes_together => batches,
    of_two_journals_on_one_run_one_wins_each_revision => two_journals,
    a_commit_is_told_before_it_is_answered_and_stored_before_it_is_told => order,
    one_bad_commit_does_not_spoil_the_batch => bad_item,
    what_waits_at_shutdown_is_stored_and_what_comes_later_is_refused => shutdown,
    a_waiter_that_goes_away_does_not_take_its_commit_back => gone_waiter,
    a_database_that_goes_away_is_said_to_be_unavailable => unavailable,
}

/// Counts the batches, and can hold them back.
struct Watched {
    store: Arc<dyn Store>,
    sizes: Mutex<Vec<usize>>,
    gate: tokio::sync::Semaphore,
}

impl Watched {
    fn new(store: &Arc<dyn Store>, open: bool) -> Arc<Self> {
        let permits = if open { tokio::sync::Semaphore::MAX_PERMITS } else { 0 };
        let gate = tokio::sync::Semaphore::new(permits);
        Arc::new(Self { store: Arc::clone(store), sizes: Mutex::new(Vec::new()), gate })
    }
}

#[async_trait]
impl ExecutorStore for Watched {
    async fn node_register(&self, node: NodeId) -> Result<(), StoreError> {
        self.store.node_register(node).await
    }
    async fn node_beat(&self, node: NodeId) -> Result<Beat, StoreError> {
        self.store.node_beat(node).await
    }
    async fn wish_list(&self, node: NodeId) -> Result<Vec<Claim>, StoreError> {
        self.store.wish_list(node).await
    }
    async fn node_retire(&self, node: NodeId) -> Result<(), StoreError> {
        self.store.node_retire(node).await
    }
    async fn node_reap(&self, lease_ms: i64) -> Result<u64, StoreError> {
        self.store.node_reap(lease_ms).await
    }
    async fn run_claim(&self, node: NodeId, slots: u32, per_tenant: u32) -> Result<Vec<Claim>, StoreError> {
        self.store.run_claim(node, slots, per_tenant).await
    }
    async fn run_release(&self, claim: &Claim, crashed: bool) -> Result<bool, StoreError> {
        self.store.run_release(claim, crashed).await
    }
    async fn wishes_take(&self, claim: &Claim) -> Result<Wishes, StoreError> {
        self.store.wishes_take(claim).await
    }
    async fn run_revision(&self, claim: &Claim) -> Result<Option<i64>, StoreError> {
        self.store.run_revision(claim).await
    }
    async fn run_due_in(&self) -> Result<Option<i64>, StoreError> {
        self.store.run_due_in().await
    }
    async fn commit_apply(&self, commits: &[OwnedCommit]) -> Result<Vec<bool>, StoreError> {
        self.sizes.lock().push(commits.len());
        self.gate.acquire().await.expect("never closed").forget();
        self.store.commit_apply(commits).await
    }
}

struct Running {
    journal: Journal,
    hub: Arc<Hub>,
    cancel: CancellationToken,
    writer: tokio::task::JoinHandle<()>,
}

#[expect(clippy::disallowed_methods, reason = "a test is its own app")]
fn spawn<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> tokio::task::JoinHandle<T> {
    tokio::spawn(future)
}

fn start(store: Arc<dyn ExecutorStore>) -> Running {
    let (hub, cancel) = (Arc::new(Hub::new()), CancellationToken::new());
    let (journal, writer) = Journal::new(store, Arc::clone(&hub));
    let writer = spawn(writer.run(cancel.clone()));
    Running { journal, hub, cancel, writer }
}

async fn many_runs(database: Database) {
    let store = database.open().await;
    let node = node(&*store).await;
    let running = start(Watched::new(&store, true));
    let mut tasks = Vec::new();
    for i in 0..40 {
        let mut run = Draft::new(["acme", "globex"][i % 2], &format!("r-{i}"));
        let claim = run.admit_owned(&*store, node).await;
        let (journal, mut reader) = (running.journal.clone(), running.hub.subscribe(&run.tenant, run.uid));
        tasks.push(spawn(async move {
            for _ in 0..10 {
                journal.commit(&claim, &run.next()).await.unwrap();
            }
            for wanted in 2..=11 {
                let Heard::Event(event) = heard(&mut reader).await else { panic!("lagged") };
                assert_eq!(event.seq, wanted);
            }
            run
        }));
    }
    for task in tasks {
        let run = task.await.unwrap();
        let events = store.event_list(&run.tenant, run.uid, 0, 100).await.unwrap();
        assert_eq!(events.iter().map(|event| event.seq).collect::<Vec<_>>(), (1..=11).collect::<Vec<_>>());
        assert_eq!(store.run_load(&run.tenant, run.uid).await.unwrap().unwrap().envelope.head, run.head);
    }
    assert_eq!(running.hub.followed(), (0, 0));
}

/// The sizes of the batches in which these commits go, when all but the first wait behind it.
async fn batch_sizes(store: &Arc<dyn Store>, node: NodeId, prefix: &str, texts: &[usize]) -> Vec<usize> {
    let watched = Watched::new(store, false);
    let running = start(Arc::<Watched>::clone(&watched));
    let mut waiting = Vec::new();
    for (i, bytes) in texts.iter().enumerate() {
        let mut run = Draft::new("acme", &format!("{prefix}-{i}"));
        let claim = run.admit_owned(&**store, node).await;
        let mut commit = run.next();
        commit.messages[0].content = vec![Content::Text { text: "x".repeat(*bytes) }];
        let journal = running.journal.clone();
        waiting.push(spawn(async move { journal.commit(&claim, &commit).await }));
        if i == 0 {
            eventually("a batch is out", || async { watched.sizes.lock().len() == 1 }).await;
        } else {
            eventually("the others wait", || async { running.journal.waiting() == i }).await;
        }
    }
    watched.gate.add_permits(1_000);
    for waiting in waiting {
        waiting.await.unwrap().unwrap();
    }
    watched.sizes.lock().clone()
}

async fn batches(database: Database) {
    let store = database.open().await;
    let node = node(&*store).await;
    assert_eq!(batch_sizes(&store, node, "small", &[1; 31]).await, [1, 30]);
    // Three rows a commit: the cap of 400 rows is met by 133 of them.
    assert_eq!(batch_sizes(&store, node, "many", &[1; 141]).await, [1, 133, 7]);
    let large = [1, 400 << 10, 400 << 10, 400 << 10, 3 << 20, 1, 1];
    assert_eq!(batch_sizes(&store, node, "large", &large).await, [1, 2, 1, 1, 2]);
}

async fn two_journals(database: Database) {
    let store = database.open().await;
    let node = node(&*store).await;
    let (one, two) = (start(Watched::new(&store, true)), start(Watched::new(&store, true)));
    let mut run = Draft::new("acme", "r-1");
    let claim = run.admit_owned(&*store, node).await;
    for _ in 0..20 {
        let commit = run.next();
        let (first, second) = tokio::join!(one.journal.commit(&claim, &commit), two.journal.commit(&claim, &commit));
        let lost = |result: &Result<(), JournalError>| matches!(result, Err(JournalError::LeaseLost));
        assert!(first.is_ok() ^ second.is_ok(), "{first:?} {second:?}");
        assert!(lost(&first) ^ lost(&second), "{first:?} {second:?}");
    }
    assert_eq!(store.event_list(&run.tenant, run.uid, 0, 100).await.unwrap().len(), 21);
}

async fn order(database: Database) {
    let store = database.open().await;
    let node = node(&*store).await;
    let running = start(Watched::new(&store, true));
    let mut run = Draft::new("acme", "r-1");
    let claim = run.admit_owned(&*store, node).await;
    let (mut reader, mut lost_reader) =
        (running.hub.subscribe(&run.tenant, run.uid), running.hub.subscribe(&run.tenant, run.uid));
    let commit = run.next();
    let answered = spawn({
        let (journal, claim, commit) = (running.journal.clone(), claim.clone(), commit.clone());
        async move { journal.commit(&claim, &commit).await }
    });
    let Heard::Event(event) = heard(&mut reader).await else { panic!("lagged") };
    let stored = store.event_list(&run.tenant, run.uid, 1, 10).await.unwrap();
    assert_eq!(stored.rows, [(*event).clone()], "what was told is stored");
    answered.await.unwrap().unwrap();

    assert_eq!(heard(&mut lost_reader).await, Heard::Event(event));
    assert!(matches!(running.journal.commit(&claim, &commit).await, Err(JournalError::LeaseLost)));
    running.journal.commit(&claim, &run.next()).await.unwrap();
    let Heard::Event(event) = heard(&mut lost_reader).await else { panic!("lagged") };
    assert_eq!(event.seq, 3, "what was not stored is not told");
}

async fn bad_item(database: Database) {
    let store = database.open().await;
    let node = node(&*store).await;
    let watched = Watched::new(&store, false);
    let running = start(Arc::<Watched>::clone(&watched));
    let mut waiting = Vec::new();
    let mut runs = Vec::new();
    for i in 0..6 {
        let mut run = Draft::new("acme", &format!("r-{i}"));
        let claim = run.admit_owned(&*store, node).await;
        let mut commit = run.next();
        if i == 3 {
            // Its place is taken: the row cannot be stored.
            commit.messages[0].position = 0;
        }
        let journal = running.journal.clone();
        waiting.push(spawn(async move { journal.commit(&claim, &commit).await }));
        runs.push(run);
        if i == 0 {
            // The first batch is one commit; the others gather behind it.
            eventually("a batch is out", || async { watched.sizes.lock().len() == 1 }).await;
        }
    }
    eventually("the others wait", || async { running.journal.waiting() == 5 }).await;
    watched.gate.add_permits(100);
    for (i, waiting) in waiting.into_iter().enumerate() {
        let result = waiting.await.unwrap();
        assert_eq!(matches!(result, Err(JournalError::Rejected(_))), i == 3, "{i}: {result:?}");
        assert_eq!(result.is_ok(), i != 3, "{i}: {result:?}");
        let revision = store.run_load(&runs[i].tenant, runs[i].uid).await.unwrap().unwrap().envelope.head.revision;
        assert_eq!(revision, if i == 3 { 1 } else { 2 });
    }
}

async fn shutdown(database: Database) {
    let store = database.open().await;
    let node = node(&*store).await;
    let watched = Watched::new(&store, false);
    let running = start(Arc::<Watched>::clone(&watched));
    let mut waiting = Vec::new();
    let mut run = Draft::new("acme", "r-1");
    let claim = run.admit_owned(&*store, node).await;
    // Three commits of one run: each builds on the one before, so they are three batches.
    for wanted in 0..3 {
        let (journal, claim, commit) = (running.journal.clone(), claim.clone(), run.next());
        waiting.push(spawn(async move { journal.commit(&claim, &commit).await }));
        let watched = &watched;
        eventually("it waits", || async { watched.sizes.lock().len() == 1 && running.journal.waiting() == wanted })
            .await;
    }
    running.cancel.cancel();
    watched.gate.add_permits(100);
    tokio::time::timeout(Duration::from_secs(10), running.writer).await.expect("the writer ends").unwrap();
    for waiting in waiting {
        waiting.await.unwrap().unwrap();
    }
    assert_eq!(watched.sizes.lock().len(), 3);
    assert_eq!(store.event_list(&run.tenant, run.uid, 0, 10).await.unwrap().len(), 4);
    assert!(matches!(running.journal.commit(&claim, &run.next()).await, Err(JournalError::Closed)));
}

async fn gone_waiter(database: Database) {
    let store = database.open().await;
    let node = node(&*store).await;
    let watched = Watched::new(&store, false);
    let running = start(Arc::<Watched>::clone(&watched));
    let mut run = Draft::new("acme", "r-1");
    let claim = run.admit_owned(&*store, node).await;
    let commit = run.next();
    let (journal, of) = (running.journal.clone(), claim.clone());
    let waiting = spawn(async move { journal.commit(&of, &commit).await });
    eventually("a batch is out", || async { watched.sizes.lock().len() == 1 }).await;
    waiting.abort();
    assert!(waiting.await.unwrap_err().is_cancelled());
    watched.gate.add_permits(100);
    running.journal.commit(&claim, &run.next()).await.unwrap();
    assert_eq!(store.event_list(&run.tenant, run.uid, 0, 10).await.unwrap().len(), 3);
}

async fn unavailable(database: Database) {
    let store = database.open().await;
    let node = node(&*store).await;
    let running = start(Watched::new(&store, true));
    let mut run = Draft::new("acme", "r-1");
    let claim = run.admit_owned(&*store, node).await;
    store.close().await;
    let result = running.journal.commit(&claim, &run.next()).await;
    assert!(matches!(result, Err(JournalError::Unavailable(_))), "{result:?}");
}

#[tokio::test]
async fn connections_that_die_are_replaced() {
    let database = Database::postgres().await;
    let store = database.open().await;
    let node = node(&*store).await;
    let running = start(Watched::new(&store, true));
    let mut run = Draft::new("acme", "r-1");
    let claim = run.admit_owned(&*store, node).await;
    running.journal.commit(&claim, &run.next()).await.unwrap();
    database
        .execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
             WHERE datname = current_database() AND pid <> pg_backend_pid()",
        )
        .await;
    let commit = run.next();
    let (journal, claim, commit) = (&running.journal, &claim, &commit);
    // A dead connection is either found before it is used, or the commit on it is not acknowledged; never a lost lease.
    eventually("the journal writes again", || async move {
        match journal.commit(claim, commit).await {
            Ok(()) => true,
            Err(JournalError::Unavailable(_)) => false,
            Err(other) => panic!("{other:?}"),
        }
    })
    .await;
    eventually("the store answers", || async { store.ping().await.is_ok() }).await;
}
