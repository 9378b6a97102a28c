//! Cancelling a run wherever it stands: once, at once, and honestly about what was out.

use futures::future::join_all;
use serde_json::{Value, json};
use tokio::time::{Duration, Instant};

use super::harness::{SOON, Server, slow};
use crate::support::database::{Database, both_stores};
use crate::support::fake_mcp::{FakeMcp, Reply};
use crate::support::world::run_on;

both_stores! {b216_a_run_is_cancelled_wherever_it_stands_once_and_says_what_was_out}

/// Asks again until the run is as it should be.
async fn once(server: &Server, id: &str, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
    let deadline = Instant::now() + SOON;
    loop {
        let envelope = server.get(&format!("/v1/runs/{id}/envelope"), &server.alice()).await.json();
        if holds(&envelope) {
            return envelope;
        }
        assert!(Instant::now() < deadline, "{id} is not {what}: {envelope}");
        tokio::task::yield_now().await;
    }
}

fn stages(envelope: &Value) -> Vec<&str> {
    envelope["receipts"].as_array().unwrap().iter().map(|receipt| receipt["stage"].as_str().unwrap()).collect()
}

async fn b216_a_run_is_cancelled_wherever_it_stands_once_and_says_what_was_out(database: Database) {
    let server = Server::start_on(database).await;
    let alice = server.alice();
    let silent = FakeMcp::start().await;
    silent.on_call(|_| Reply::Silence);
    let broken = FakeMcp::start().await;
    broken.on_call(|_| Reply::Reset);
    let named = |id: &str, mut body: Value| {
        body["id"] = json!(id);
        body
    };
    let twice = [("charge", json!({ "amount": 5 })), ("charge", json!({ "amount": 6 }))];
    let mut one_at_once = run_on("in-call", &twice, json!([{ "url": silent.url() }]));
    one_at_once["limits"] = json!({ "max_parallel_tool_calls": 1 });
    for body in [named("asking", slow(60_000)), one_at_once, run_on("held", &twice, json!([{ "url": broken.url() }]))] {
        assert_eq!(server.post("/v1/runs", &alice, &body).await.status.as_u16(), 201);
    }
    once(&server, "in-call", "calling", |run| stages(run) == ["executing", "pending"]).await;
    once(&server, "held", "suspended", |run| run["run"]["status"] == "suspended").await;
    once(&server, "asking", "running", |run| run["run"]["status"] == "running").await;
    for (id, want) in [
        ("asking", vec![]),
        // What was out did not answer in its grace time; what waited behind it was never sent.
        ("in-call", vec!["indeterminate", "failed"]),
        ("held", vec!["indeterminate", "indeterminate"]),
    ] {
        let path = format!("/v1/runs/{id}/cancel");
        let nothing = json!({});
        let asked = (0..8).map(|_| server.post(&path, &alice, &nothing));
        for answer in join_all(asked).await {
            assert_eq!(answer.status.as_u16(), 202, "{:?}", answer.body);
        }
        let ended = once(&server, id, "cancelled", |run| run["run"]["status"] == "cancelled").await;
        assert_eq!(stages(&ended), want, "{id}");
        let events = server.get(&format!("/v1/runs/{id}/events?limit=200"), &alice).await.json();
        let kinds: Vec<_> =
            events["data"].as_array().unwrap().iter().map(|event| event["type"].as_str().unwrap()).collect();
        assert_eq!(kinds.iter().filter(|kind| **kind == "result").count(), 1, "{id}: {kinds:?}");
        assert_eq!(kinds.last(), Some(&"result"));
        let again = server.post(&path, &alice, &nothing).await;
        assert_eq!(
            (again.status.as_u16(), again.json()),
            (202, ended["run"].clone()),
            "{id}: cancelling again changes nothing"
        );
    }
    assert_eq!(silent.count("tools/call"), 1);
    assert_eq!(broken.count("tools/call"), 2);
    let cause = server.get("/v1/runs/in-call/receipts/1/call_1", &alice).await.json()["cause"].clone();
    assert_eq!(cause, "cancelled");
    // A server that drains takes no run any more: this one is queued for whoever comes next.
    server.app.executor.drain(Duration::ZERO).await;
    assert_eq!(server.post("/v1/runs", &alice, &named("queued", slow(0))).await.json()["status"], "queued");
    assert_eq!(server.post("/v1/runs/queued/cancel", &alice, &json!({})).await.json()["status"], "cancelled");
}
