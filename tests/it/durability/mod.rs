//! A real process is killed and started again: nothing twice, nothing lost.

mod approvals;
mod catalogs;
mod counterparts;
mod dice;
mod failpoints;
mod judge;
mod leaving;
mod lookups;
mod nodes;
mod pauses;
mod questions;
mod rooms;
mod ruled;
mod silence;
mod site;
mod soak;
mod takeover;
mod tasks;
mod workers;
mod writes;

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::support::database::{Database, both_stores};
use crate::support::fake_mcp::{FakeMcp, Reply, tool};
use crate::support::product::Product;
use crate::support::world::run_on;

both_stores! {
    b007_b009_b013_a_call_that_was_out_when_the_process_died_is_held_and_never_repeated,
    b014_b021_b218_after_a_crash_what_may_be_repeated_is_sent_again_with_the_same_key,
    b020_b217_a_run_goes_on_by_itself_after_a_crash_and_no_paid_turn_is_asked_again,
    a_stopped_server_lets_go_of_its_runs_and_the_next_goes_on,
    the_result_is_there_after_a_crash,
    a_run_whose_servers_keep_its_next_leg_waiting_is_cancelled_at_once,
    a_run_that_its_node_owns_and_does_not_drive_is_given_back_and_goes_on,
}

fn charge(fake: &FakeMcp) -> Value {
    run_on("r", &[("charge", json!({"amount": 5}))], json!([{"url": fake.url()}]))
}

async fn b007_b009_b013_a_call_that_was_out_when_the_process_died_is_held_and_never_repeated(database: Database) {
    let fake = FakeMcp::start().await;
    fake.on_call(|_| Reply::Silence);
    let product = Product::start(&database).await;
    product.post("/v1/runs", &charge(&fake), 201).await;
    fake.wait_until(|fake| fake.count("tools/call") == 1).await;
    product.kill();
    let killed = Instant::now();
    let product = Product::start(&database).await;
    let run = product.rested("r").await;
    assert_eq!((&run["status"], &run["reason"]), (&json!("suspended"), &json!("tool-reconciliation-required")));
    assert!(killed.elapsed() < Duration::from_secs(15), "{:?}", killed.elapsed());
    assert_eq!(run["pending"]["reconciliations"][0]["cause"], "crash");
    for _ in 0..3 {
        let again = product.post("/v1/runs/r/resume", &json!({}), 200).await;
        assert_eq!((&again["status"], &again["revision"]), (&run["status"], &run["revision"]));
    }
    assert_eq!(fake.count("tools/call"), 1);
    fake.on_call(|_| Reply::text("charged"));
    product.post("/v1/runs/r/resume", &json!({"retry_tool_call_ids": ["call_1"]}), 202).await;
    let run = product.rested("r").await;
    assert_eq!((&run["status"], &run["usage"]["model_requests"]), (&json!("completed"), &json!(2)));
    let calls = fake.seen_rpc("tools/call");
    assert_eq!(calls.len(), 2);
    assert_eq!(calls[0].headers["idempotency-key"], calls[1].headers["idempotency-key"]);
}

async fn b014_b021_b218_after_a_crash_what_may_be_repeated_is_sent_again_with_the_same_key(database: Database) {
    let fake = FakeMcp::start().await;
    fake.on_list(|_| Reply::Result(json!({"tools": [tool("look"), tool("charge")]})));
    fake.on_call(|seen| if seen.body["params"]["name"] == "look" { Reply::Silence } else { Reply::text("charged") });
    let product = Product::start(&database).await;
    let entry = json!([{"url": fake.url(), "side_effect_class": {"look": "read_only"}}]);
    let body = run_on("r", &[("charge", json!({"amount": 5})), ("look", json!({}))], entry);
    product.post("/v1/runs", &body, 201).await;
    let settled = || async { product.get("/v1/runs/r/receipts").await["data"][0]["stage"] == "completed" };
    let deadline = Instant::now() + Duration::from_secs(20);
    while !settled().await {
        assert!(Instant::now() < deadline, "the charge does not settle");
    }
    fake.wait_until(|fake| fake.count("tools/call") == 2).await;
    product.kill();
    fake.on_call(|_| Reply::text("seen"));
    let product = Product::start(&database).await;
    assert_eq!(product.rested("r").await["status"], "completed");
    let mut looks = Vec::new();
    let mut charges = 0;
    for seen in fake.seen_rpc("tools/call") {
        match seen.body["params"]["name"].as_str() {
            Some("look") => looks.push(seen.headers["idempotency-key"].clone()),
            _ => charges += 1,
        }
    }
    assert_eq!((charges, looks.len()), (1, 2));
    assert_eq!(looks[0], looks[1]);
}

async fn b020_b217_a_run_goes_on_by_itself_after_a_crash_and_no_paid_turn_is_asked_again(database: Database) {
    let fake = FakeMcp::start().await;
    let product = Product::start(&database).await;
    let mut body = charge(&fake);
    // The second turn takes so long that the process dies while it is asked for.
    body["model"]["script"][1]["delay_ms"] = json!(1500);
    product.post("/v1/runs", &body, 201).await;
    let asked_again =
        || async { product.event_kinds("r").await.iter().filter(|kind| *kind == "turn-started").count() == 2 };
    let deadline = Instant::now() + Duration::from_secs(20);
    while !asked_again().await {
        assert!(Instant::now() < deadline, "the second turn does not start");
    }
    product.kill();
    let product = Product::start(&database).await;
    let run = product.rested("r").await;
    assert_eq!((&run["status"], &run["turns"]), (&json!("completed"), &json!(2)));
    assert_eq!((&run["usage"]["model_requests"], &run["usage"]["total_tokens"]), (&json!(2), &json!(30)));
    assert_eq!(fake.count("tools/call"), 1);
}

async fn a_stopped_server_lets_go_of_its_runs_and_the_next_goes_on(database: Database) {
    let fake = FakeMcp::start().await;
    let answer = Arc::new(Notify::new());
    let gate = Arc::clone(&answer);
    fake.on_call(move |_| Reply::When(Arc::clone(&gate), Box::new(Reply::text("charged"))));
    let product = Product::start(&database).await;
    product.post("/v1/runs", &charge(&fake), 201).await;
    fake.wait_until(|fake| fake.count("tools/call") == 1).await;
    // The call that is out settles within the drain time; then the run is let go, unfinished.
    product.signal("TERM");
    let deadline = Instant::now() + Duration::from_secs(20);
    while !product.log().contains("draining") {
        assert!(Instant::now() < deadline, "the server does not drain");
        tokio::task::yield_now().await;
    }
    answer.notify_one();
    let ended = product.ended().await;
    assert!(ended.success(), "{ended:?}");
    let product = Product::start(&database).await;
    assert_eq!(product.rested("r").await["status"], "completed");
    assert_eq!(fake.count("tools/call"), 1);
}

async fn the_result_is_there_after_a_crash(database: Database) {
    let fake = FakeMcp::start().await;
    let product = Product::start(&database).await;
    product.post("/v1/runs", &charge(&fake), 201).await;
    let before = product.rested("r").await;
    let events = product.get("/v1/runs/r/events?limit=200").await;
    product.kill();
    let product = Product::start(&database).await;
    assert_eq!(product.get("/v1/runs/r").await, before);
    assert_eq!(product.get("/v1/runs/r/events?limit=200").await, events);
}

async fn a_run_that_its_node_owns_and_does_not_drive_is_given_back_and_goes_on(database: Database) {
    let product = Product::start(&database).await;
    let mut body = run_on("r", &[], json!([]));
    body["model"]["script"] = json!([{"text": "late", "delay_ms": 1500}]);
    product.post("/v1/runs", &body, 201).await;
    // As if the node had claimed the run once more and the answer of the database had been lost: the drive of the
    // first claim finds its fence closed, and nobody knows of the second.
    database.execute("UPDATE runs SET fence = fence + 1 WHERE owner IS NOT NULL").await;
    let run = product.rested("r").await;
    assert_eq!((&run["status"], &run["turns"]), (&json!("completed"), &json!(1)), "{}", product.log());
    assert!(product.log().contains("a run that nobody drove was given back"), "{}", product.log());
}

#[tokio::test]
async fn an_answer_that_comes_while_the_database_is_away_longer_than_the_lease_is_kept() {
    let database = Database::postgres().await;
    let fake = FakeMcp::start().await;
    let answer = Arc::new(Notify::new());
    let gate = Arc::clone(&answer);
    fake.on_call(move |_| Reply::When(Arc::clone(&gate), Box::new(Reply::text("charged"))));
    let product = Product::start(&database).await;
    product.post("/v1/runs", &charge(&fake), 201).await;
    fake.wait_until(|fake| fake.count("tools/call") == 1).await;
    database.let_in(false).await;
    answer.notify_one();
    // Tried again five times a second: more than the lease of two seconds.
    let deadline = Instant::now() + Duration::from_secs(30);
    while product.log().matches("a commit is tried again").count() < 15 {
        assert!(Instant::now() < deadline, "{}", product.log());
        tokio::task::yield_now().await;
    }
    database.let_in(true).await;
    let run = product.rested("r").await;
    assert_eq!((&run["status"], &run["turns"]), (&json!("completed"), &json!(2)), "{}", product.log());
    assert_eq!(fake.count("tools/call"), 1);
}

async fn a_run_whose_servers_keep_its_next_leg_waiting_is_cancelled_at_once(database: Database) {
    let fake = FakeMcp::start().await;
    let product = Product::start(&database).await;
    let entry = json!([{"url": fake.url(), "timeouts": {"connect_ms": 60_000}}]);
    let mut body = run_on("r", &[("charge", json!({"amount": 5}))], entry);
    body["model"]["script"][1]["delay_ms"] = json!(60_000);
    product.post("/v1/runs", &body, 201).await;
    let deadline = Instant::now() + Duration::from_secs(20);
    while product.event_kinds("r").await.iter().filter(|kind| *kind == "turn-started").count() < 2 {
        assert!(Instant::now() < deadline, "the second turn does not start");
    }
    product.kill();
    fake.on_list(|_| Reply::Silence);
    let read = fake.count("tools/list");
    let product = Product::start(&database).await;
    fake.wait_until(|fake| fake.count("tools/list") > read).await;
    product.post("/v1/runs/r/cancel", &json!({}), 202).await;
    assert_eq!(product.rested("r").await["status"], "cancelled");
}
