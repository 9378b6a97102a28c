//! A node dies at every point of a run whose calls a worker fetches: of the offer, the claim, the result. The worker asks
//! whoever is up, does what it hears of, and gives its results until somebody has taken them.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::failpoints::{Passed, points, sweep_points};
use super::judge::SeenKeys;
use super::site::{Site, named};
use crate::support::database::Database;
use crate::support::product::Options;

/// How long anything may take: far more than it needs.
const PATIENCE: Duration = Duration::from_mins(1);

/// Two turns: two calls at once, then one.
fn body() -> Value {
    let pay = |amount: u32| json!({ "name": "pay", "arguments": { "amount": amount } });
    json!({
        "input": "Pay.",
        "model": { "provider": "scripted", "name": "demo", "script": [
            { "tool_calls": [pay(1), pay(2)] }, { "tool_calls": [pay(3)] }, { "text": "Done." },
        ] },
        "tools": [{ "name": "pay", "executor": { "type": "worker", "tool": "pay", "version": "1.0.0" } }],
    })
}

/// Does all that is on offer until the run has ended. A person allows once more whatever nobody knows.
async fn carry_out(site: &mut Site, id: &str) -> SeenKeys {
    let asking = json!({ "tools": [{ "tool": "pay", "version": "1.0.0" }], "wait_ms": 100 });
    let (mut done, deadline) = (SeenKeys::new(), Instant::now() + PATIENCE);
    loop {
        let (status, claimed) = site.post("/v1/workers/w1/claims", &asking).await;
        assert_eq!(status, 200, "{claimed}");
        for call in claimed["calls"].as_array().unwrap() {
            *done.entry(call["idempotency_key"].as_str().unwrap().to_owned()).or_default() += 1;
            let result = json!({ "lease": call["lease"], "output": { "paid": call["input"]["amount"] } });
            let path = format!("/v1/worker-calls/{}/result", call["id"].as_str().unwrap());
            // Where the node died, the lease may have ended before the other heard of it.
            let (status, said) = site.post(&path, &result).await;
            assert!(status == 200 || (status == 409 && said["code"] == "lease-lost"), "{status} {said}");
        }
        let run = site.get(&format!("/v1/runs/{id}")).await;
        match run["status"].as_str().unwrap() {
            "queued" | "running" => {}
            "suspended" => {
                assert_eq!(run["reason"], "tool-reconciliation-required", "{run}");
                let calls = run["pending"]["reconciliations"].as_array().unwrap().iter().map(named);
                let (status, said) =
                    site.resume(id, &json!({ "retry_tool_call_ids": calls.collect::<Vec<_>>() })).await;
                assert!(matches!(status, 200 | 202 | 409), "{status} {said}");
            }
            _ => return done,
        }
        assert!(Instant::now() < deadline, "{id} does not come to its end: {run}\n{}", site.log());
    }
}

async fn pass_through(database: Database, log: &Path, kill: Option<&str>, with_standby: bool) -> Passed {
    let options = Options::default().with("COUNTERSIGN_WORKER_LEASE_S", "1");
    let mut site = Site::start_as(Arc::new(database), options, log, kill, with_standby).await;
    let id = site.create(&body()).await;
    let done = carry_out(&mut site, &id).await;
    site.look().await;
    let evidence = site.evidence(&id).await;
    let faults = evidence.faults(&done, |_| false);
    assert!(faults.is_empty(), "{faults:#?}\n{:#?}\n{}", evidence.events, site.log());
    assert_eq!(evidence.run["status"], "completed", "{}", evidence.run);
    let outputs: Vec<&Value> = evidence.receipts.iter().map(|receipt| &receipt["output"]["paid"]).collect();
    assert_eq!(outputs, [1, 2, 3], "each has the result of its own arguments");
    Passed { died: site.has_died(), word_after: None }
}

async fn sweep<F: Future<Output = Database>>(what: &str, standby: bool, database: impl Fn() -> F) {
    let folder = tempfile::tempdir().unwrap();
    let unarmed = folder.path().join("unarmed");
    pass_through(database().await, &unarmed, None, false).await;
    let points: Vec<String> = points(&unarmed).into_iter().filter(|point| !point.starts_with("node.")).collect();
    assert!(points.iter().any(|point| point.starts_with("worker.")), "{points:?}");
    let log = |at: usize| folder.path().join(at.to_string());
    sweep_points(what, points, |at, point| {
        let (log, opening, with_standby) = (log(at), database(), standby && at % 2 == 1);
        async move { pass_through(opening.await, &log, Some(&point), with_standby).await }
    })
    .await;
}

#[tokio::test]
async fn b020_b239_b241_a_workers_calls_survive_a_death_at_every_point_on_sqlite() {
    sweep("calls of a worker on SQLite", false, Database::sqlite).await;
}

#[tokio::test]
async fn b020_b239_b241_a_workers_calls_survive_a_death_at_every_point_on_postgres() {
    sweep("calls of a worker on Postgres", true, Database::postgres).await;
}
