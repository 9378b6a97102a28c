//! The network to the database loses everything without a word: the node comes back by itself, and nothing is done twice.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

use crate::support::database::Database;
use crate::support::fake_mcp::{FakeMcp, Reply};
use crate::support::product::Product;
use crate::support::proxy::Proxy;
use crate::support::world::run_on;

/// What coming back may take besides the lease: a statement that was begun last before the network came back has its
/// own limit, and what was tried again waits a little.
const COMES_BACK: Duration = Duration::from_secs(8);

/// A node behind a proxy, with one call out that the test lets go.
struct Cut {
    database: Database,
    proxy: Proxy,
    node: Product,
    fake: FakeMcp,
    answer: Arc<Notify>,
}

impl Cut {
    async fn start(lease_s: &str) -> Self {
        let database = Database::postgres().await;
        let proxy = Proxy::start(&database.url).await;
        let node = Product::start_with(proxy.url(), &[("COUNTERSIGN_LEASE_S", lease_s)]).await;
        let (fake, answer) = (FakeMcp::start().await, Arc::new(Notify::new()));
        let gate = Arc::clone(&answer);
        fake.on_call(move |_| Reply::When(Arc::clone(&gate), Box::new(Reply::text("charged"))));
        let body = run_on("r", &[("charge", json!({"amount": 5}))], json!([{"url": fake.url()}]));
        node.post("/v1/runs", &body, 201).await;
        fake.wait_until(|fake| fake.count("tools/call") == 1).await;
        Self { database, proxy, node, fake, answer }
    }

    /// The run, once the database says that it rests.
    async fn rested(&self, within: Duration) -> Value {
        self.until("SELECT count(*) FROM runs WHERE id = 'r' AND status NOT IN ('queued', 'running')", within).await;
        self.node.get("/v1/runs/r").await
    }

    /// Waits until the query, asked past the proxy, counts one.
    async fn until(&self, sql: &str, within: Duration) {
        let began = Instant::now();
        while self.database.count(sql).await != 1 {
            assert!(began.elapsed() < within, "not within {within:?}: {sql}\n{}", self.node.log());
            sleep(Duration::from_millis(20)).await;
        }
    }

    async fn said(&self, words: &str) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !self.node.log().contains(words) {
            assert!(Instant::now() < deadline, "{words} is not said: {}", self.node.log());
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// The run went on as if nothing had been: one leg, one call, each event once.
    async fn assert_undisturbed(&self, run: &Value) {
        assert_eq!((&run["status"], &run["turns"], &run["attempt"]), (&json!("completed"), &json!(2), &json!(1)));
        assert_eq!(self.fake.count("tools/call"), 1);
        let kinds = self.node.event_kinds("r").await;
        let count = |kind: &str| kinds.iter().filter(|found| *found == kind).count();
        let counts = ["turn-started", "tool-started", "tool-output", "result"].map(count);
        assert_eq!(counts, [2, 1, 1, 1], "{kinds:?}");
    }
}

#[tokio::test]
async fn a_node_whose_database_was_silent_for_longer_than_the_lease_goes_on_over_new_connections() {
    let cut = Cut::start("2").await;
    cut.proxy.freeze();
    cut.answer.notify_one();
    cut.said("the database is silent").await;
    cut.said("a commit is tried again").await;
    cut.proxy.thaw();
    let run = cut.rested(Duration::from_secs(2) + COMES_BACK).await;
    cut.assert_undisturbed(&run).await;
    // Requests and the tenant's stream find living connections too.
    cut.node.post("/v1/runs", &run_on("next", &[], json!([])), 201).await;
    cut.node.rested("next").await;
}

#[tokio::test]
async fn a_commit_whose_answer_was_lost_is_recognised_and_the_run_goes_on() {
    let cut = Cut::start("4").await;
    let mut events = cut.node.stream("/v1/runs/r/events").await;
    events.until("tool-started").await;
    cut.proxy.lose_answers();
    cut.answer.notify_one();
    cut.until("SELECT count(*) FROM calls WHERE stage = 'completed'", Duration::from_secs(5)).await;
    let run = cut.rested(Duration::from_secs(4) + COMES_BACK).await;
    cut.assert_undisturbed(&run).await;
    // The stored commit was never acknowledged, so its events were found by looking.
    let kinds: Vec<Value> = events.until("result").await.into_iter().map(|event| event["type"].clone()).collect();
    assert_eq!(kinds.iter().filter(|kind| *kind == "tool-output").count(), 1, "{kinds:?}");
    assert!(!cut.node.log().contains("taken for dead"), "its beats found new connections in time: {}", cut.node.log());
}

#[tokio::test]
async fn a_node_that_was_replaced_while_its_database_was_silent_repeats_nothing_and_works_again() {
    let cut = Cut::start("2").await;
    cut.proxy.freeze();
    let other = Product::start(&cut.database).await;
    let run = other.rested("r").await;
    assert_eq!((&run["status"], &run["reason"]), (&json!("suspended"), &json!("tool-reconciliation-required")));
    cut.answer.notify_one();
    cut.proxy.thaw();
    cut.said("this node was taken for dead").await;
    assert_eq!(cut.node.rested("r").await, run);
    other.signal("TERM");
    assert!(other.ended().await.success());
    // The node that was away is the only one now, and may decide what it could not.
    cut.answer.notify_one();
    cut.node.post("/v1/runs/r/resume", &json!({"retry_tool_call_ids": ["call_1"]}), 202).await;
    assert_eq!(cut.node.rested("r").await["status"], "completed");
    assert_eq!(cut.fake.count("tools/call"), 2, "the second was allowed by a person");
}
