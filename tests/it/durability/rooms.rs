//! The limit of a tenant's calls that are out on one node, seen from the server's side and through a crash.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

use crate::support::database::{Database, both_stores};
use crate::support::fake_mcp::{FakeMcp, Reply};
use crate::support::product::Product;
use crate::support::world::run_on;

both_stores! {
    b209_a_call_without_room_is_pending_delays_no_other_tenant_and_is_sent_freely_after_a_crash =>
        b209_a_call_without_room_is_pending_delays_no_other_tenant_and_is_sent_freely_after_a_crash,
    a_run_that_waits_for_room_is_cancelled_at_once_and_leaves_the_queue => cancelled,
}

const LIMIT: &[(&str, &str)] = &[("COUNTERSIGN_TENANT_MAX_CALLS", "2")];

fn charges(id: &str, calls: usize, fake: &FakeMcp) -> Value {
    run_on(id, &vec![("charge", json!({"amount": 5})); calls], json!([{"url": fake.url()}]))
}

/// Waits until the calls of a run are at these stages.
async fn stages(product: &Product, id: &str, wanted: &[&str]) {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let receipts = product.get(&format!("/v1/runs/{id}/receipts")).await;
        let stages: Vec<&str> =
            receipts["data"].as_array().unwrap().iter().map(|receipt| receipt["stage"].as_str().unwrap()).collect();
        if stages == wanted {
            return;
        }
        assert!(Instant::now() < deadline, "{id} is {stages:?}, not {wanted:?}");
        sleep(Duration::from_millis(10)).await;
    }
}

/// A server whose answers the test lets go one by one, in the order of the calls.
async fn gated() -> (FakeMcp, Arc<Notify>) {
    let (fake, answer) = (FakeMcp::start().await, Arc::new(Notify::new()));
    let gate = Arc::clone(&answer);
    fake.on_call(move |_| Reply::When(Arc::clone(&gate), Box::new(Reply::text("charged"))));
    (fake, answer)
}

async fn b209_a_call_without_room_is_pending_delays_no_other_tenant_and_is_sent_freely_after_a_crash(
    database: Database,
) {
    let (fake, answer) = gated().await;
    let product = Product::start_with(&database.url, LIMIT).await;
    product.post("/v1/runs", &charges("r-0", 3, &fake), 201).await;
    stages(&product, "r-0", &["executing", "executing", "pending"]).await;
    for id in ["r-1", "r-2", "r-3", "r-4"] {
        product.post("/v1/runs", &charges(id, 1, &fake), 201).await;
        stages(&product, id, &["pending"]).await;
    }
    // Another tenant, the same server's neighbour: nothing of the flood is in its way.
    let quick = FakeMcp::start().await;
    let began = Instant::now();
    let created = product.send_as("globex", Method::POST, "/v1/runs", Some(&charges("r-0", 3, &quick))).await;
    assert_eq!(created.status().as_u16(), 201);
    quick.wait_until(|quick| quick.count("tools/call") == 3).await;
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    fake.wait_until(|fake| fake.count("tools/call") == 2).await;

    // Whoever waited longest is next, and as many are out as before.
    for (released, next) in [(1, "r-0"), (2, "r-1")] {
        answer.notify_one();
        fake.wait_until(|fake| fake.count("tools/call") == 2 + released).await;
        let calls = fake.seen_rpc("tools/call");
        assert_eq!(calls.last().unwrap().body["params"]["_meta"]["countersign/run"], next);
    }
    stages(&product, "r-0", &["completed", "completed", "executing"]).await;
    stages(&product, "r-1", &["executing"]).await;
    stages(&product, "r-2", &["pending"]).await;
    assert_eq!(fake.count("tools/call"), 4);
    product.kill();

    fake.on_call(|_| Reply::text("charged"));
    let product = Product::start_with(&database.url, LIMIT).await;
    for id in ["r-2", "r-3", "r-4"] {
        assert_eq!(product.rested(id).await["status"], "completed", "never sent, so sent without asking anyone");
    }
    for id in ["r-0", "r-1"] {
        assert_eq!(product.rested(id).await["reason"], "tool-reconciliation-required");
    }
    let keys: Vec<String> =
        fake.seen_rpc("tools/call").iter().map(|seen| seen.headers["idempotency-key"].clone()).collect();
    assert_eq!((keys.len(), keys.iter().collect::<HashSet<_>>().len()), (7, 7), "each call once");
}

async fn cancelled(database: Database) {
    let (fake, answer) = gated().await;
    let product = Product::start_with(&database.url, LIMIT).await;
    product.post("/v1/runs", &charges("r-0", 2, &fake), 201).await;
    stages(&product, "r-0", &["executing", "executing"]).await;
    for id in ["r-1", "r-2"] {
        product.post("/v1/runs", &charges(id, 1, &fake), 201).await;
        stages(&product, id, &["pending"]).await;
    }
    product.post("/v1/runs/r-1/cancel", &json!({}), 202).await;
    assert_eq!(product.rested("r-1").await["status"], "cancelled");
    stages(&product, "r-1", &["failed"]).await;
    for _ in 0..3 {
        answer.notify_one();
    }
    fake.wait_until(|fake| fake.count("tools/call") == 3).await;
    for id in ["r-0", "r-2"] {
        answer.notify_one();
        assert_eq!(product.rested(id).await["status"], "completed");
    }
}
