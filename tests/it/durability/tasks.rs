//! A server goes on with a call by itself, and the process that waits for it dies: whoever drives the run next asks the
//! server, not a person.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::support::counterparts::{ledger_lines, task_server};
use crate::support::database::{Database, both_stores};
use crate::support::fake_mcp::{FakeMcp, Reply, Step};
use crate::support::product::Product;
use crate::support::world::run_on;

both_stores! {
    b218_a_call_that_its_server_goes_on_with_is_finished_by_the_next_owner_and_nobody_is_asked,
    b218_a_task_that_its_server_forgot_is_a_persons_to_decide,
    b216_a_cancelled_run_cancels_its_task_also_after_a_crash,
    b216_a_run_that_nobody_owns_tells_its_server_once_that_the_task_is_not_wanted,
    b216_a_suspended_run_tells_its_server_too_when_it_is_cancelled,
    a_node_that_drains_does_not_wait_for_a_task_and_the_next_goes_on_with_it,
    how_far_calls_have_come_is_told_seldom_and_stored_like_every_event,
    b218_a_real_server_that_goes_on_with_a_charge_is_asked_by_the_next_owner_and_charges_once,
}

/// A server whose tool `charge` takes as long as the test says.
struct Slow {
    fake: FakeMcp,
    is_done: Arc<AtomicBool>,
}

impl Slow {
    async fn start() -> Self {
        let (fake, is_done) = (FakeMcp::start().await, Arc::new(AtomicBool::new(false)));
        fake.be_modern(true);
        fake.on_call(|_| {
            Reply::Result(json!({
                "resultType": "task", "taskId": "t-1", "status": "working", "createdAt": "2026-11-30T00:00:00Z",
                "lastUpdatedAt": "2026-11-30T00:00:00Z", "ttlMs": 60_000, "pollIntervalMs": 100,
            }))
        });
        let done = Arc::clone(&is_done);
        fake.on("tasks/get", move |_| {
            let mut state =
                json!({ "resultType": "complete", "taskId": "t-1", "status": "working", "pollIntervalMs": 100 });
            if done.load(Ordering::SeqCst) {
                state["status"] = json!("completed");
                state["result"] = json!({ "content": [{ "type": "text", "text": "charged" }] });
            }
            Reply::Result(state)
        });
        fake.on("tasks/cancel", |_| Reply::Result(json!({ "resultType": "complete" })));
        Self { fake, is_done }
    }

    fn body(&self) -> Value {
        run_on("r", &[("charge", json!({"amount": 5}))], json!([{"url": self.fake.url()}]))
    }

    /// A run of which the server was asked for its task at least once.
    async fn asked(&self, database: &Database) -> Product {
        let product = Product::start(database).await;
        product.post("/v1/runs", &self.body(), 201).await;
        self.fake.wait_until(|fake| fake.count("tasks/get") >= 1).await;
        let receipt = receipt(&product).await;
        assert_eq!((&receipt["stage"], &receipt["task"]), (&json!("executing"), &json!({"id": "t-1"})));
        product
    }
}

async fn receipt(product: &Product) -> Value {
    product.get("/v1/runs/r/receipts").await["data"][0].clone()
}

async fn b218_a_call_that_its_server_goes_on_with_is_finished_by_the_next_owner_and_nobody_is_asked(
    database: Database,
) {
    let slow = Slow::start().await;
    let product = slow.asked(&database).await;
    product.kill();
    let asked = slow.fake.count("tasks/get");
    let product = Product::start(&database).await;
    slow.fake.wait_until(|fake| fake.count("tasks/get") > asked).await;
    slow.is_done.store(true, Ordering::SeqCst);
    let run = product.rested("r").await;
    assert_eq!(
        (&run["status"], &run["usage"]["model_requests"]),
        (&json!("completed"), &json!(2)),
        "{}",
        product.log()
    );
    assert_eq!(slow.fake.count("tools/call"), 1, "the server was given the work once");
    let receipt = receipt(&product).await;
    assert_eq!((&receipt["stage"], &receipt["attempt"]), (&json!("completed"), &json!(1)));
    assert_eq!((&receipt["task"]["id"], &receipt["output"]["content"][0]["text"]), (&json!("t-1"), &json!("charged")));
    let kinds = product.event_kinds("r").await;
    assert!(!kinds.iter().any(|kind| kind.starts_with("reconciliation")), "{kinds:?}");
    assert_eq!(kinds.iter().filter(|kind| *kind == "tool-output").count(), 1, "{kinds:?}");
}

async fn b218_a_task_that_its_server_forgot_is_a_persons_to_decide(database: Database) {
    let slow = Slow::start().await;
    let product = slow.asked(&database).await;
    product.kill();
    slow.fake.on("tasks/get", |_| Reply::Error(json!({"code": -32602, "message": "Task not found"})));
    let product = Product::start(&database).await;
    let run = product.rested("r").await;
    assert_eq!((&run["status"], &run["reason"]), (&json!("suspended"), &json!("tool-reconciliation-required")));
    assert_eq!(run["pending"]["reconciliations"][0]["cause"], "lost-response");
    assert_eq!((receipt(&product).await["task"]["id"].clone(), slow.fake.count("tools/call")), (json!("t-1"), 1));
}

async fn b216_a_cancelled_run_cancels_its_task_also_after_a_crash(database: Database) {
    let slow = Slow::start().await;
    let product = slow.asked(&database).await;
    product.kill();
    let asked = slow.fake.count("tasks/get");
    let product = Product::start(&database).await;
    slow.fake.wait_until(|fake| fake.count("tasks/get") > asked).await;
    product.post("/v1/runs/r/cancel", &json!({}), 202).await;
    let run = product.rested("r").await;
    assert_eq!(run["status"], "cancelled");
    assert_eq!(slow.fake.seen_rpc("tasks/cancel")[0].body["params"]["taskId"], "t-1");
    let receipt = receipt(&product).await;
    assert_eq!((&receipt["stage"], &receipt["cause"]), (&json!("indeterminate"), &json!("cancelled")));
}

/// The rows of the audit about tasks.
async fn told_of(product: &Product) -> Vec<Value> {
    let audit = product.get("/v1/admin/audit?action=task.cancel").await;
    audit["data"].as_array().unwrap().clone()
}

async fn b216_a_run_that_nobody_owns_tells_its_server_once_that_the_task_is_not_wanted(database: Database) {
    let slow = Slow::start().await;
    let product = Product::start(&database).await;
    let mut body = slow.body();
    body["mcp"][0]["auth"] = json!({ "scheme": "bearer", "secret": "mine" });
    body["secrets"] = json!({ "mine": "the-runs-own" });
    product.post("/v1/runs", &body, 201).await;
    slow.fake.wait_until(|fake| fake.count("tasks/get") >= 1).await;
    product.kill();
    // Its node is gone, and no other takes it.
    database.execute("UPDATE runs SET owner = NULL, due_at = 9000000000000").await;
    let product = Product::start(&database).await;
    let asked = slow.fake.count("tasks/get");
    product.post("/v1/runs/r/cancel", &json!({}), 202).await;
    assert_eq!(product.get("/v1/runs/r").await["status"], "cancelled");
    slow.fake.wait_until(|fake| fake.count("tasks/cancel") >= 1).await;
    let told = slow.fake.seen_rpc("tasks/cancel");
    assert_eq!(told[0].body["params"]["taskId"], "t-1");
    assert_eq!(told[0].headers["authorization"], "Bearer the-runs-own", "although the run's secrets are purged by now");
    let receipt = receipt(&product).await;
    assert_eq!((&receipt["stage"], &receipt["task"]["id"]), (&json!("indeterminate"), &json!("t-1")));
    product.post("/v1/runs/r/cancel", &json!({}), 202).await;
    let audit = told_of(&product).await;
    assert_eq!(audit.len(), 1, "{audit:?}");
    assert_eq!((&audit[0]["subject"], &audit[0]["detail"]), (&json!("r/1/call_1"), &json!({ "task": "t-1" })));
    product.signal("TERM");
    assert!(product.ended().await.success());
    assert_eq!((slow.fake.count("tasks/cancel"), slow.fake.count("tasks/get")), (1, asked), "once, and nothing else");
}

async fn b216_a_suspended_run_tells_its_server_too_when_it_is_cancelled(database: Database) {
    let slow = Slow::start().await;
    let product = slow.asked(&database).await;
    product.kill();
    slow.fake.on("tasks/get", |_| Reply::Error(json!({"code": -32602, "message": "Task not found"})));
    slow.fake.on("tasks/cancel", |_| Reply::status(500, json!({})));
    let product = Product::start(&database).await;
    assert_eq!(product.rested("r").await["reason"], "tool-reconciliation-required");
    product.post("/v1/runs/r/cancel", &json!({}), 202).await;
    assert_eq!(product.get("/v1/runs/r").await["status"], "cancelled", "whatever becomes of the word");
    slow.fake.wait_until(|fake| fake.count("tasks/cancel") >= 1).await;
    assert_eq!(told_of(&product).await.len(), 1);
    product.signal("TERM");
    assert!(product.ended().await.success());
    assert_eq!(slow.fake.count("tasks/cancel"), 1, "once, although it failed");
}

async fn a_node_that_drains_does_not_wait_for_a_task_and_the_next_goes_on_with_it(database: Database) {
    let slow = Slow::start().await;
    let product = slow.asked(&database).await;
    let began = Instant::now();
    product.signal("TERM");
    assert!(product.ended().await.success());
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    slow.is_done.store(true, Ordering::SeqCst);
    let product = Product::start(&database).await;
    let run = product.rested("r").await;
    assert_eq!((&run["status"], slow.fake.count("tools/call")), (&json!("completed"), 1), "{}", product.log());
}

async fn how_far_calls_have_come_is_told_seldom_and_stored_like_every_event(database: Database) {
    let fake = FakeMcp::start().await;
    fake.on_call(|_| {
        let steps = (1..=40).flat_map(|at| [Step::Progress(at), Step::Pause(Duration::from_millis(25))]);
        Reply::Sse(steps.chain([Step::Result(json!({ "content": [] }))]).collect())
    });
    let product = Product::start(&database).await;
    let mut entry = json!([{"url": fake.url()}]);
    // Progress keeps the call alive past its idle limit.
    entry[0]["timeouts"] = json!({"call_ms": 500});
    product.post("/v1/runs", &run_on("r", &[("charge", json!({"amount": 5}))], entry), 201).await;
    assert_eq!(product.rested("r").await["status"], "completed", "{}", product.log());
    let events = product.get("/v1/runs/r/events?limit=200").await;
    let told: Vec<&Value> =
        events["data"].as_array().unwrap().iter().filter(|event| event["type"] == "tool-progress").collect();
    assert!((2..=6).contains(&told.len()), "{told:?}");
    assert!(told.windows(2).all(|pair| pair[0]["progress"].as_u64() < pair[1]["progress"].as_u64()), "{told:?}");
    assert_eq!((&told[0]["turn"], &told[0]["call_id"]), (&json!(1), &json!("call_1")));
}

async fn b218_a_real_server_that_goes_on_with_a_charge_is_asked_by_the_next_owner_and_charges_once(database: Database) {
    let folder = tempfile::tempdir().unwrap();
    let ledger = folder.path().join("ledger.jsonl");
    let Some(server) = task_server(&ledger).await else { return };
    let product = Product::start(&database).await;
    let entry = json!([{"url": server.url("/mcp"), "timeouts": {"connect_ms": 30_000}}]);
    let body = run_on("r", &[("slow_charge", json!({"amount": 5, "ms": 4_000}))], entry);
    product.post("/v1/runs", &body, 201).await;
    let deadline = Instant::now() + Duration::from_secs(30);
    while !receipt(&product).await["task"]["id"].is_string() {
        assert!(Instant::now() < deadline, "no task: {}", product.log());
    }
    product.kill();
    let product = Product::start(&database).await;
    let run = product.rested("r").await;
    assert_eq!(
        (&run["status"], &run["usage"]["model_requests"]),
        (&json!("completed"), &json!(2)),
        "{}",
        product.log()
    );
    assert_eq!(receipt(&product).await["output"]["content"][0]["text"], "charged 5");
    assert_eq!(ledger_lines(&ledger).len(), 1);
    let kinds = product.event_kinds("r").await;
    assert!(!kinds.iter().any(|kind| kind.starts_with("reconciliation")), "{kinds:?}");
}
