//! Votes on a worker's call while a node drives its run: they are left with it, and read again until the run is gone.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::sync::Notify;

use super::{answer, one_call, options, payment, run, until};
use crate::support::database::{Database, both_stores};
use crate::support::fake_mcp::{FakeMcp, Reply};
use crate::support::product::Product;

both_stores! {
    b229_whoever_voted_on_other_arguments_may_vote_again_while_a_node_drives_the_run,
}

async fn vote(server: &Product, id: &str, by: &str, more: Value) -> (u16, Value) {
    let mut body = json!({ "decision": "approve" });
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    server.vote_as(by, &format!("/v1/approvals/{id}/decisions"), &body).await
}

fn actors(approval: &Value) -> Vec<&str> {
    approval["votes"].as_array().unwrap().iter().map(|vote| vote["actor"].as_str().unwrap()).collect()
}

/// Nobody serves the worker's call, so people are asked about it; the server's call is out all the while.
async fn b229_whoever_voted_on_other_arguments_may_vote_again_while_a_node_drives_the_run(database: Database) {
    let (fake, gate) = (FakeMcp::start().await, Arc::new(Notify::new()));
    let held = Arc::clone(&gate);
    fake.on_call(move |_| Reply::When(Arc::clone(&held), Box::new(Reply::text("charged"))));
    let options = options().with("COUNTERSIGN_WORKER_QUEUE_WAIT_S", "1");
    let server = Product::start_as(&database.url, &options).await;
    let calls = [("charge", json!({ "amount": 1 })), ("process_payment", json!({ "amount": 5 }))];
    let mut body = run("v", &calls, json!([payment(json!({}))]));
    body["mcp"] = json!([{ "url": fake.url() }]);
    body["policies"] = json!([{
        "name": "r", "trigger": "dispatch:no_handler", "action": "require_approval", "approval": { "required": 2 },
    }]);
    server.post("/v1/runs", &body, 201).await;
    let asked = until(&server, "v", |run| run["pending"]["approvals"][0]["id"].is_string()).await;
    assert_eq!(asked["status"], "running", "a node drives it");
    let id = asked["pending"]["approvals"][0]["id"].as_str().unwrap();
    let (status, first) = vote(&server, id, "bob", json!({})).await;
    assert_eq!((status, actors(&first)), (200, vec!["bob"]), "{first}");
    let (status, twice) = vote(&server, id, "bob", json!({})).await;
    assert_eq!((status, &twice["code"]), (409, &json!("already-voted")), "{twice}");
    let (status, changed) = vote(&server, id, "carol", json!({ "arguments": { "amount": 7 } })).await;
    assert_eq!((status, actors(&changed)), (200, vec!["carol"]), "{changed}");
    let (status, blind) = vote(&server, id, "bob", json!({})).await;
    assert_eq!((status, &blind["code"]), (409, &json!("approval-changed")), "{blind}");
    let (status, decided) = vote(&server, id, "bob", json!({ "arguments": { "amount": 7 } })).await;
    assert_eq!((status, &decided["status"], actors(&decided)), (200, &json!("approved"), vec!["carol", "bob"]));
    gate.notify_one();
    let call = one_call(&server, "w1").await;
    assert_eq!(call["input"], json!({ "amount": 7 }));
    assert_eq!(answer(&server, &call, json!({ "output": "paid" })).await.0, 200);
    assert_eq!(server.rested("v").await["status"], "completed");
}
