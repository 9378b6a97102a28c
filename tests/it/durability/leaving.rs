//! Several nodes on one database: what a leaving node lets go of goes on elsewhere at once, and a run that kills every
//! node that takes it is given up.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

use crate::support::database::{Database, both_stores};
use crate::support::fake_mcp::{FakeMcp, Reply};
use crate::support::product::Product;
use crate::support::world::run_on;

both_stores! {
    b224_a_run_whose_node_dies_each_time_is_failed_after_five_and_the_next_node_lives_on =>
        b224_a_run_whose_node_dies_each_time_is_failed_after_five_and_the_next_node_lives_on,
}

/// Sooner than any takeover: the lease is two seconds, and looked at each second.
const AT_ONCE: Duration = Duration::from_millis(1_900);

async fn kinds(product: &Product, id: &str, kind: &str) -> usize {
    product.event_kinds(id).await.iter().filter(|found| *found == kind).count()
}

async fn until(product: &Product, id: &str, kind: &str, times: usize) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while kinds(product, id, kind).await < times {
        assert!(Instant::now() < deadline, "{id} has no {times} {kind}: {}", product.log());
        sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn what_a_leaving_node_has_at_a_safe_point_goes_on_elsewhere_within_a_second() {
    let database = Database::postgres().await;
    let (fake, answer) = (FakeMcp::start().await, Arc::new(Notify::new()));
    let gate = Arc::clone(&answer);
    // The first call waits for the test, the others are answered.
    fake.on_call(move |seen| match seen.body["params"]["_meta"]["countersign/run"].as_str() {
        Some("r-out") => Reply::When(Arc::clone(&gate), Box::new(Reply::text("charged"))),
        _ => Reply::text("charged"),
    });
    let leaving = Product::start_with(&database.url, &[("COUNTERSIGN_TENANT_MAX_CALLS", "1")]).await;
    let charge = |id: &str| run_on(id, &[("charge", json!({"amount": 5}))], json!([{"url": fake.url()}]));
    leaving.post("/v1/runs", &charge("r-out"), 201).await;
    fake.wait_until(|fake| fake.count("tools/call") == 1).await;
    leaving.post("/v1/runs", &charge("r-room"), 201).await;
    let mut busy = run_on("r-busy", &[], json!([]));
    busy["model"]["script"] = json!([{"error": {"status": 503, "retry_after_s": 60}}, {"text": "back"}]);
    leaving.post("/v1/runs", &busy, 201).await;
    let mut asking = charge("r-asking");
    asking["model"]["script"][0]["delay_ms"] = json!(2_500);
    leaving.post("/v1/runs", &asking, 201).await;
    until(&leaving, "r-room", "part", 2).await;
    until(&leaving, "r-busy", "part", 1).await;
    let staying = Product::start(&database).await;

    leaving.signal("TERM");
    let asked = Instant::now();
    let at_once = async {
        assert_eq!(staying.rested("r-busy").await["status"], "completed");
        assert_eq!(staying.rested("r-room").await["status"], "completed");
    };
    timeout(AT_ONCE, at_once).await.unwrap();
    // What is in a call, or in a turn that will have to be paid for, finishes where it is; the next step is another's.
    assert_eq!(staying.rested("r-asking").await["status"], "completed", "{:?}", asked.elapsed());
    assert!(asked.elapsed() < Duration::from_secs(5), "before the drain time is over: {:?}", asked.elapsed());
    answer.notify_one();
    let out = staying.rested("r-out").await;
    assert_eq!((&out["status"], &out["usage"]["model_requests"]), (&json!("completed"), &json!(2)));
    let asking = staying.get("/v1/runs/r-asking").await;
    assert_eq!(asking["usage"]["model_requests"], 2, "no turn was paid for twice");
    assert!(leaving.ended().await.success());
    assert_eq!(fake.count("tools/call"), 3);
    for (id, attempt) in [("r-out", 1), ("r-room", 1), ("r-asking", 1), ("r-busy", 2)] {
        let run = staying.get(&format!("/v1/runs/{id}")).await;
        assert_eq!(run["attempt"], attempt, "{id}: a leg begun without progress since the one before");
    }
}

async fn b224_a_run_whose_node_dies_each_time_is_failed_after_five_and_the_next_node_lives_on(database: Database) {
    let mut product = Product::start(&database).await;
    let mut body = run_on("r", &[], json!([]));
    body["model"]["script"] = json!([{"text": "never", "delay_ms": 60_000}]);
    product.post("/v1/runs", &body, 201).await;
    for attempt in 1..=5 {
        until(&product, "r", "turn-started", attempt).await;
        assert_eq!(product.get("/v1/runs/r").await["attempt"], attempt);
        product.kill();
        product = Product::start(&database).await;
    }
    let run = product.rested("r").await;
    assert_eq!((&run["status"], &run["error"]["code"]), (&json!("failed"), &json!("poisoned")));
    assert_eq!(kinds(&product, "r", "turn-started").await, 5, "the sixth node did not drive it");
    let mut other = run_on("other", &[], json!([]));
    other["model"]["script"] = json!([{"text": "alive"}]);
    product.post("/v1/runs", &other, 201).await;
    assert_eq!(product.rested("other").await["status"], "completed");
}
