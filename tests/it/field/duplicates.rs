//! Duplicate execution.

use std::time::Duration;

use futures::future::join_all;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::node::Node;
use super::proxy::Proxy;
use crate::mcp::{call, class, pool, target};
use crate::support::database::{Database, both_stores, eventually};
use crate::support::fake_mcp::{FakeMcp, Reply};
use crate::support::world::run_on;

both_stores! {
    field_a001_a_call_whose_answer_is_lost_is_executed_once_and_said_to_be_unknown,
    field_a004_a_resume_that_comes_twice_at_once_allows_one_attempt,
}

async fn field_a001_a_call_whose_answer_is_lost_is_executed_once_and_said_to_be_unknown(database: Database) {
    let fake = FakeMcp::start().await;
    fake.on_call(|_| Reply::Reset);
    let node = Node::start(&database).await;
    let charge = [("charge", json!({ "amount": 5 }))];
    node.post("/v1/runs", &run_on("r", &charge, json!([{ "url": fake.url() }])), 201).await;
    let run = node.rested("r").await;
    assert_eq!(run["reason"], "tool-reconciliation-required", "{run}");
    let held = &run["pending"]["reconciliations"][0];
    assert_eq!(held["cause"], "lost-response");
    assert!(held["message"].as_str().unwrap().contains("may have happened"), "{held}");
    assert_eq!(fake.count("tools/call"), 1);
    // The same call, declared to do no harm when it is repeated, is repeated by itself.
    let entry = json!([{ "url": fake.url(), "side_effect_class": { "charge": "idempotent_write" } }]);
    node.post("/v1/runs", &run_on("declared", &charge, entry), 201).await;
    node.rested("declared").await;
    assert_eq!(fake.count("tools/call"), 1 + 3);
    node.stop().await;
}

#[tokio::test]
async fn field_a002_a_connection_that_was_closed_while_idle_costs_nothing() {
    let fake = FakeMcp::start().await;
    let proxy = Proxy::start(fake.addr(), Duration::from_millis(300)).await;
    let (pool, target) = (pool(), target(&proxy.url()));
    for calls in 1..=5 {
        assert_eq!(class(&call(&pool, &target).await), "done");
        assert_eq!(fake.count("tools/call"), calls);
        let before = proxy.counts().1;
        // Closed by the server, and not known to be closed by anything but that.
        eventually("the idle connection is closed", || async { proxy.counts().1 > before }).await;
        // The news travels over the loopback; a request that crosses it on the way is the other case.
        sleep(Duration::from_millis(100)).await;
    }
    assert!(proxy.counts().0 > 5, "each call found its connection closed: {:?}", proxy.counts());
    assert_eq!(fake.count("initialize"), 1, "the session lives on");
}

#[tokio::test]
async fn field_a002_a_call_that_was_read_whole_and_not_answered_is_never_sent_again() {
    for _ in 0..5 {
        let fake = FakeMcp::start().await;
        let proxy = Proxy::start(fake.addr(), Duration::from_mins(1)).await;
        let (pool, target) = (pool(), target(&proxy.url()));
        for _ in 0..3 {
            assert_eq!(class(&call(&pool, &target).await), "done");
        }
        // On a connection that was used before: the one case that HTTP clients like to repeat by themselves.
        proxy.swallow_answers();
        assert_eq!(class(&call(&pool, &target).await), "unknown lost-response");
        assert_eq!(fake.count("tools/call"), 4);
        sleep(Duration::from_millis(200)).await;
        assert_eq!(fake.count("tools/call"), 4);
    }
}

async fn field_a004_a_resume_that_comes_twice_at_once_allows_one_attempt(database: Database) {
    let fake = FakeMcp::start().await;
    fake.on_call(|_| Reply::Reset);
    let node = Node::start(&database).await;
    let charge = [("charge", json!({ "amount": 5 }))];
    node.post("/v1/runs", &run_on("r", &charge, json!([{ "url": fake.url() }])), 201).await;
    node.rested("r").await;
    fake.on_call(|_| Reply::text("charged"));
    let body = json!({ "retry_tool_call_ids": ["call_1"] });
    let resumed = join_all((0..8).map(|_| {
        let request = node.request(reqwest::Method::POST, "/v1/runs/r/resume");
        request.header("content-type", "application/json").body(body.to_string()).send()
    }));
    let mut admitted = 0;
    for answer in resumed.await {
        let answer = answer.unwrap();
        match answer.status().as_u16() {
            202 => admitted += 1,
            // Active, or at its end: as it stands.
            200 | 409 => {}
            other => panic!("{other}: {}", answer.text().await.unwrap()),
        }
    }
    assert!(admitted >= 1);
    assert_eq!(node.rested("r").await["status"], "completed");
    assert_eq!(fake.count("tools/call"), 2, "one attempt more");
    let outputs: Vec<Value> = node.events("r").await.into_iter().filter(|e| e["type"] == "tool-output").collect();
    assert_eq!(outputs.iter().filter(|event| event["stage"] == "completed").count(), 1, "{outputs:?}");
    assert_eq!(node.get("/v1/runs/r/receipts").await["data"].as_array().unwrap().len(), 1);
    node.stop().await;
}
