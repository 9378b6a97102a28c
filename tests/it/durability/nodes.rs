//! Two nodes on one Postgres, as real processes: what one does the other hears of, with wake-ups and without.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::support::database::{Database, eventually};
use crate::support::fake_mcp::{FakeMcp, Reply};
use crate::support::product::Product;
use crate::support::world::run_on;

/// Turns of a run that is followed, each with one call.
const TURNS: usize = 8;

/// How often a connection of a server listens.
const LISTENERS: &str = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
                         AND application_name = 'countersign-listen'";

async fn two_nodes(database: &Database, wake: &str, settings: &[(&str, &str)]) -> (Product, Product) {
    let mut settings = settings.to_vec();
    settings.push(("COUNTERSIGN_WAKE", wake));
    let nodes =
        (Product::start_with(&database.url, &settings).await, Product::start_with(&database.url, &settings).await);
    if wake == "notify" {
        eventually("both listen", || async { database.count(LISTENERS).await == 2 }).await;
    }
    nodes
}

/// A run of so many turns, whose calls the test lets go one by one.
fn stepwise(fake: &FakeMcp) -> (Value, Arc<Notify>) {
    let gate = Arc::new(Notify::new());
    let opens = Arc::clone(&gate);
    fake.on_call(move |_| Reply::When(Arc::clone(&opens), Box::new(Reply::text("charged"))));
    let mut body = run_on("r", &[], json!([{"url": fake.url()}]));
    let mut script = vec![json!({"tool_calls": [{"name": "charge", "arguments": {"amount": 5}}]}); TURNS];
    script.push(json!({"text": "Done."}));
    body["model"]["script"] = script.into();
    (body, gate)
}

fn text(text: &str) -> Value {
    let mut body = run_on(text, &[], json!([]));
    body["model"]["script"] = json!([{"text": text}]);
    body
}

/// A look every second alone would need more than this three times of four: that six of eight are quicker happens by
/// chance once in two hundred times.
#[track_caller]
fn assert_quick(mut times: Vec<Duration>) {
    times.sort();
    assert!(times.len() == TURNS && times[5] < Duration::from_millis(250), "{times:?}");
    eprintln!("from one node's answer to the other's reader: {times:?}");
}

/// Follows a run on the one node that the other drives, and answers how long each answer took to get there.
async fn follow(drives: &Product, reads: &Product, between: impl AsyncFn(usize)) -> Vec<Duration> {
    let fake = FakeMcp::start().await;
    let (body, gate) = stepwise(&fake);
    drives.post("/v1/runs", &body, 201).await;
    let mut events = reads.stream("/v1/runs/r/events").await;
    let (mut seen, mut times) = (Vec::new(), Vec::new());
    for turn in 0..TURNS {
        between(turn).await;
        seen.extend(events.until("tool-started").await);
        let began = Instant::now();
        gate.notify_one();
        seen.extend(events.until("tool-output").await);
        times.push(began.elapsed());
    }
    seen.extend(events.until("result").await);
    assert!(events.next().await.is_none(), "the stream ends after the result");
    let numbers: Vec<i64> = seen.iter().map(|event| event["seq"].as_i64().unwrap()).collect();
    assert_eq!(numbers, (1..=i64::try_from(seen.len()).unwrap()).collect::<Vec<_>>());
    assert_eq!(drives.get("/v1/runs/r/events?limit=200").await["data"], Value::from(seen));
    times
}

#[tokio::test]
async fn a_reader_on_another_node_sees_each_event_once_and_at_once() {
    let database = Database::postgres().await;
    let (drives, reads) = two_nodes(&database, "notify", &[]).await;
    assert_quick(follow(&drives, &reads, async |_| ()).await);
}

#[tokio::test]
async fn a_reader_on_another_node_sees_each_event_once_without_wake_ups_too() {
    let database = Database::postgres().await;
    let (drives, reads) = two_nodes(&database, "off", &[]).await;
    let times = follow(&drives, &reads, async |_| ()).await;
    assert!(times.iter().all(|time| *time < Duration::from_secs(3)), "{times:?}");
}

#[tokio::test]
async fn a_listener_whose_connection_is_ended_comes_back_by_itself() {
    let database = Database::postgres().await;
    let (drives, reads) = two_nodes(&database, "notify", &[]).await;
    let end_listeners = async |turn: usize| {
        if turn > 0 {
            return;
        }
        let ended = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = current_database() \
                     AND application_name IN ('countersign-listen', 'countersign-notify')";
        assert!(database.count(ended).await >= 3, "two listeners, and who has spoken");
        eventually("both listen again", || async { database.count(LISTENERS).await == 2 }).await;
    };
    assert_quick(follow(&drives, &reads, end_listeners).await);
    for node in [drives, reads] {
        let said = node.log().matches("other nodes are not heard").count();
        assert!((1..=2).contains(&said), "said when it was lost, and that it is back: {}", node.log());
    }
}

async fn watch_tenant(wake: &str) {
    let database = Database::postgres().await;
    let (drives, watches) = two_nodes(&database, wake, &[]).await;
    drives.post("/v1/runs", &text("before"), 201).await;
    drives.rested("before").await;
    let mut feed = watches.stream("/v1/events").await;
    let mut fed = Vec::new();
    // The second is the watching node's own; the third is waited for so that a repetition of the others would be seen.
    for (node, id) in [(&drives, "theirs"), (&watches, "own"), (&drives, "last")] {
        node.post("/v1/runs", &text(id), 201).await;
        fed.extend(feed.until("result").await);
        assert_eq!(fed.last().unwrap()["run_id"], id);
    }
    let mut wanted = Vec::new();
    for id in ["theirs", "own", "last"] {
        let page = drives.get(&format!("/v1/runs/{id}/events?limit=200")).await;
        let events = page["data"].as_array().unwrap().iter();
        wanted.extend(events.filter(|event| event["type"] == "run-status" || event["type"] == "result").cloned());
    }
    assert_eq!(fed, wanted);
}

#[tokio::test]
async fn who_watches_the_tenant_sees_the_runs_of_every_node_once() {
    watch_tenant("notify").await;
}

#[tokio::test]
async fn who_watches_the_tenant_sees_the_runs_of_every_node_once_without_wake_ups_too() {
    watch_tenant("off").await;
}

/// How long a wish to cancel takes from one node to a call that the other has out, right after a beat of that one.
async fn cancel_across(wake: &str) -> Duration {
    let database = Database::postgres().await;
    let (drives, asks) = two_nodes(&database, wake, &[("COUNTERSIGN_LEASE_S", "15")]).await;
    let fake = FakeMcp::start().await;
    fake.on_call(|_| Reply::Silence);
    drives.post("/v1/runs", &run_on("r", &[("charge", json!({}))], json!([{"url": fake.url()}])), 201).await;
    fake.wait_until(|fake| fake.count("tools/call") == 1).await;
    let beat = "SELECT beat_at FROM nodes WHERE node_id = (SELECT owner FROM runs WHERE owner IS NOT NULL)";
    let before = database.count(beat).await;
    eventually("it beats", || async { database.count(beat).await != before }).await;
    let began = Instant::now();
    asks.post("/v1/runs/r/cancel", &json!({}), 202).await;
    fake.wait_until(|fake| fake.count("notifications/cancelled") == 1).await;
    let took = began.elapsed();
    let run = asks.rested("r").await;
    assert_eq!(run["status"], "cancelled");
    let receipt = asks.get("/v1/runs/r/receipts").await["data"][0].clone();
    assert_eq!((&receipt["stage"], &receipt["cause"]), (&json!("indeterminate"), &json!("cancelled")));
    took
}

#[tokio::test]
async fn a_run_is_cancelled_through_another_node_long_before_its_own_beats() {
    let took = cancel_across("notify").await;
    assert!(took < Duration::from_secs(2), "{took:?}");
}

#[tokio::test]
async fn a_run_is_cancelled_through_another_node_at_the_next_beat_without_wake_ups() {
    let took = cancel_across("off").await;
    assert!(took < Duration::from_secs(8), "{took:?}");
}

/// How long runs that the one node has no slot for take until the other has driven them to their end.
async fn overflow(wake: &str) -> Vec<Duration> {
    let database = Database::postgres().await;
    let full =
        Product::start_with(&database.url, &[("COUNTERSIGN_WAKE", wake), ("COUNTERSIGN_MAX_RUNNING", "1")]).await;
    let fake = FakeMcp::start().await;
    fake.on_call(|_| Reply::Silence);
    full.post("/v1/runs", &run_on("busy", &[("charge", json!({}))], json!([{"url": fake.url()}])), 201).await;
    fake.wait_until(|fake| fake.count("tools/call") == 1).await;
    let free = Product::start_with(&database.url, &[("COUNTERSIGN_WAKE", wake)]).await;
    let mut times = Vec::new();
    for turn in 0..TURNS {
        let id = format!("r-{turn}");
        let began = Instant::now();
        full.post("/v1/runs", &text(&id), 201).await;
        assert_eq!(free.rested(&id).await["status"], "completed");
        times.push(began.elapsed());
    }
    assert_eq!(fake.count("tools/call"), 1);
    times
}

#[tokio::test]
async fn a_run_that_one_node_has_no_slot_for_is_taken_by_another_at_once() {
    assert_quick(overflow("notify").await);
}

#[tokio::test]
async fn a_run_that_one_node_has_no_slot_for_is_taken_by_another_without_wake_ups_too() {
    let times = overflow("off").await;
    assert!(times.iter().all(|time| *time < Duration::from_secs(4)), "{times:?}");
}

#[tokio::test]
async fn a_node_that_stops_hands_its_runs_to_another_at_once() {
    let database = Database::postgres().await;
    let (stops, stays) = two_nodes(&database, "notify", &[("COUNTERSIGN_LEASE_S", "15")]).await;
    let mut body = text("r");
    body["model"]["script"] = json!([{"text": "late", "delay_ms": 3000}]);
    stops.post("/v1/runs", &body, 201).await;
    let mut events = stays.stream("/v1/runs/r/events").await;
    events.until("turn-started").await;
    stops.signal("TERM");
    assert!(stops.ended().await.success());
    let run = stays.rested("r").await;
    assert_eq!((&run["status"], &run["usage"]["model_requests"]), (&json!("completed"), &json!(1)));
    let numbers: HashSet<i64> =
        events.until("result").await.iter().map(|event| event["seq"].as_i64().unwrap()).collect();
    assert!(!numbers.is_empty());
}
