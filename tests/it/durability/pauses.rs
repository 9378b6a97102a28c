//! A node stands still at every point of a run for longer than its lease: another one goes on meanwhile, and what the
//! first does when it wakes counts for nothing.

use std::path::Path;
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::failpoints::{Passed, charge, points, sweep_points};
use super::judge::{Evidence, seen_keys};
use super::site::named;
use crate::support::database::Database;
use crate::support::fake_mcp::FakeMcp;
use crate::support::product::{Ask, Options, Product};

/// How long anything may take: far more than it needs.
const PATIENCE: Duration = Duration::from_mins(1);

/// The answer of a node, when it gives one soon.
async fn ask(node: &Product, method: Method, path: &str, body: Option<&Value>) -> Option<(u16, Value)> {
    let key = (method == Method::POST && path == "/v1/runs").then_some("the-key");
    let ask = Ask { tenant: "acme", method, path, body, key, patience: Duration::from_millis(700) };
    node.try_send(&ask).await.ok()
}

async fn get(node: &Product, path: &str) -> Value {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match ask(node, Method::GET, path, None).await {
            Some((200, body)) => return body,
            Some((status, body)) => panic!("{path}: {status} {body}"),
            None => assert!(Instant::now() < deadline, "{path} is not answered: {}", node.log()),
        }
    }
}

/// Creates the run at the first node that answers.
async fn create(nodes: [&Product; 2], body: &Value) -> String {
    let deadline = Instant::now() + PATIENCE;
    for nth in 0.. {
        if let Some((status, run)) = ask(nodes[nth % 2], Method::POST, "/v1/runs", Some(body)).await {
            assert_eq!(status, 201, "{run}");
            return run["id"].as_str().unwrap().to_owned();
        }
        assert!(Instant::now() < deadline, "nobody creates the run");
    }
    unreachable!("the loop ends by its deadline")
}

/// Follows the run at the node that does not stop until it has ended; allows whatever is undecided.
async fn settle(node: &Product, id: &str) -> Value {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let run = get(node, &format!("/v1/runs/{id}")).await;
        match run["status"].as_str() {
            Some("queued" | "running") => sleep(Duration::from_millis(20)).await,
            Some("suspended") => {
                let calls: Vec<Value> =
                    run["pending"]["reconciliations"].as_array().unwrap().iter().map(named).collect();
                let body = json!({"retry_tool_call_ids": calls});
                ask(node, Method::POST, &format!("/v1/runs/{id}/resume"), Some(&body)).await;
            }
            _ => return run,
        }
        assert!(Instant::now() < deadline, "{id} does not come to its end: {run}\n{}", node.log());
    }
}

/// Whether the node passed that point, and so stands still.
fn has_stopped(log: &Path, point: Option<&str>) -> bool {
    let passed = std::fs::read_to_string(log).unwrap_or_default();
    point.is_some_and(|point| passed.lines().any(|line| line == point))
}

/// Waits until the node stands still, or the run has ended without that.
async fn until_stopped(log: &Path, point: Option<&str>, other: &Product, id: &str) -> bool {
    let path = format!("/v1/runs/{id}");
    loop {
        if has_stopped(log, point) {
            return true;
        }
        if get(other, &path).await["status"] == "completed" {
            return has_stopped(log, point);
        }
    }
}

/// The node that stopped goes on once it is taken for dead; it ends when all that it had begun is over.
async fn wake(node: Product, database: &Database) {
    let deadline = Instant::now() + PATIENCE;
    while database.count("SELECT count(*) FROM nodes WHERE dead_at IS NOT NULL").await == 0 {
        assert!(Instant::now() < deadline, "it is not taken for dead");
        sleep(Duration::from_millis(20)).await;
    }
    node.signal("CONT");
    while !node.log().contains("taken for dead") {
        assert!(Instant::now() < deadline, "it does not learn of it: {}", node.log());
        sleep(Duration::from_millis(20)).await;
    }
    node.signal("TERM");
    assert!(node.ended().await.success());
}

/// `at_once`: the node wakes while the other one is still at work, else when all is done.
async fn pass_through(log: &Path, stop: Option<&str>, at_once: bool) -> Passed {
    let (database, fake) = (Database::postgres().await, FakeMcp::start().await);
    let mut options = Options::default().with("COUNTERSIGN_FAILPOINT_LOG", log.display().to_string());
    if let Some(point) = stop {
        options = options.with("COUNTERSIGN_FAILPOINT_STOP", point);
    }
    let (other, node) = (Product::start(&database).await, Product::start_as(&database.url, &options).await);
    let mut body = charge(&fake);
    for turn in body["model"]["script"].as_array_mut().unwrap() {
        turn["delay_ms"] = json!(300);
    }
    let id = create([&node, &other], &body).await;
    let mut stopped = false;
    if at_once {
        stopped = until_stopped(log, stop, &other, &id).await;
    }
    if stopped {
        tokio::join!(settle(&other, &id), wake(node, &database));
    } else {
        settle(&other, &id).await;
        stopped = has_stopped(log, stop);
        if stopped {
            wake(node, &database).await;
        }
    }
    let run = get(&other, &format!("/v1/runs/{id}")).await;
    let events = get(&other, &format!("/v1/runs/{id}/events?limit=200")).await["data"].as_array().unwrap().clone();
    let receipts = get(&other, &format!("/v1/runs/{id}/receipts")).await["data"].as_array().unwrap().clone();
    assert_eq!(run["status"], "completed", "{run}");
    let evidence = Evidence { run, events, receipts };
    let faults = evidence.faults(&seen_keys(&fake), |_| false);
    assert!(faults.is_empty(), "{faults:#?}\n{:#?}\n{}", evidence.events, other.log());
    assert_eq!(get(&other, "/v1/runs").await["data"].as_array().unwrap().len(), 1, "the key found its run");
    Passed { died: stopped, word_after: None }
}

#[tokio::test]
async fn b221_a_node_that_stands_still_past_its_lease_at_any_point_changes_nothing_when_it_wakes() {
    let folder = tempfile::tempdir().unwrap();
    let unarmed = folder.path().join("unarmed");
    pass_through(&unarmed, None, false).await;
    // A node that stops while it starts is not ready, and drives nothing yet.
    let points = points(&unarmed).into_iter().filter(|point| !point.starts_with("node.")).collect();
    let log = |at: usize| folder.path().join(at.to_string());
    sweep_points("a pause past the lease", points, |at, point| {
        let log = log(at);
        async move { pass_through(&log, Some(&point), at % 2 == 1).await }
    })
    .await;
}
