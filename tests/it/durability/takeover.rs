//! How long a run stands still when its node dies, and when it is stopped.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::support::database::Database;
use crate::support::fake_mcp::FakeMcp;
use crate::support::product::{Options, Product};

/// The lease of these nodes.
const LEASE: Duration = Duration::from_secs(5);

async fn node(database: &Database) -> Product {
    let options = Options::default().with("COUNTERSIGN_LEASE_S", LEASE.as_secs().to_string());
    Product::start_as(&database.url, &options).await
}

/// A run that always has something to do.
fn busy(fake: &FakeMcp) -> Value {
    json!({
        "id": "busy",
        "model": {"provider": "scripted", "name": "demo", "script": [
            {"tool_calls": [{"name": "charge", "arguments": {}}], "delay_ms": 10},
        ]},
        "input": "Go on.",
        "limits": {"max_turns": 100_000, "max_tool_calls": 100_000},
        "mcp": [{"url": fake.url(), "replay": "idempotent"}],
    })
}

/// Waits until a query answers more than that; the time it took.
async fn until_more(database: &Database, sql: &str, than: i64, from: Instant) -> Duration {
    let deadline = Instant::now() + Duration::from_secs(30);
    while database.count(sql).await <= than {
        assert!(Instant::now() < deadline, "{sql}: not more than {than}");
        sleep(Duration::from_millis(2)).await;
    }
    from.elapsed()
}

const EVENTS: &str = "SELECT COALESCE(max(seq), 0) FROM events";
/// A leg that begins says so.
const LEGS: &str = "SELECT count(*) FROM events WHERE kind = 'run-status'";

#[tokio::test]
async fn b217_a_run_of_a_node_that_was_killed_goes_on_within_the_lease_and_two_seconds() {
    let (database, fake) = (Database::postgres().await, FakeMcp::start().await);
    let (first, _second) = (node(&database).await, node(&database).await);
    first.post("/v1/runs", &busy(&fake), 201).await;
    until_more(&database, EVENTS, 20, Instant::now()).await;
    let killed = Instant::now();
    first.kill();
    let last = database.count(EVENTS).await;
    let recovered = until_more(&database, EVENTS, last, killed).await;
    eprintln!("recovery: {:.2} s after a kill, with a lease of {} s", recovered.as_secs_f64(), LEASE.as_secs());
    assert!(recovered < LEASE + Duration::from_secs(2), "{recovered:?}");
}

#[tokio::test]
async fn a_run_of_a_node_that_is_stopped_goes_on_within_a_second() {
    let (database, fake) = (Database::postgres().await, FakeMcp::start().await);
    let (mut owner, mut next) = (node(&database).await, node(&database).await);
    owner.post("/v1/runs", &busy(&fake), 201).await;
    let mut times = Vec::new();
    for _ in 0..5 {
        let (events, legs) = (database.count(EVENTS).await, database.count(LEGS).await);
        until_more(&database, EVENTS, events + 10, Instant::now()).await;
        let stopped = Instant::now();
        owner.signal("TERM");
        times.push(until_more(&database, LEGS, legs, stopped).await);
        assert!(owner.ended().await.success());
        owner = next;
        next = node(&database).await;
    }
    times.sort();
    eprintln!("hand-over after SIGTERM: {times:.2?}");
    assert!(times[times.len() / 2] < Duration::from_secs(1), "{times:?}");
}
