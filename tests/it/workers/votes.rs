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
    b235_a_denial_that_fails_the_run_lets_a_call_that_is_out_come_to_its_end,
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

/// A run of which nobody serves the worker's call, so people are asked about it, by this rule; the server's call is out all
/// the while. Also the approval's id, and what lets the server answer.
async fn asked_beside_a_call(database: &Database, approval: Value) -> (Product, String, Arc<Notify>, FakeMcp) {
    let (fake, gate) = (FakeMcp::start().await, Arc::new(Notify::new()));
    let held = Arc::clone(&gate);
    fake.on_call(move |_| Reply::When(Arc::clone(&held), Box::new(Reply::text("charged"))));
    let options = options().with("COUNTERSIGN_WORKER_QUEUE_WAIT_S", "1");
    let server = Product::start_as(&database.url, &options).await;
    let calls = [("charge", json!({ "amount": 1 })), ("process_payment", json!({ "amount": 5 }))];
    let mut body = run("v", &calls, json!([payment(json!({}))]));
    body["mcp"] = json!([{ "url": fake.url() }]);
    body["policies"] = json!([{
        "name": "r", "trigger": "dispatch:no_handler", "action": "require_approval", "approval": approval,
    }]);
    server.post("/v1/runs", &body, 201).await;
    let asked = until(&server, "v", |run| run["pending"]["approvals"][0]["id"].is_string()).await;
    assert_eq!(asked["status"], "running", "a node drives it");
    let id = asked["pending"]["approvals"][0]["id"].as_str().unwrap().to_owned();
    (server, id, gate, fake)
}

async fn b229_whoever_voted_on_other_arguments_may_vote_again_while_a_node_drives_the_run(database: Database) {
    let (server, id, gate, _fake) = asked_beside_a_call(&database, json!({ "required": 2 })).await;
    let id = id.as_str();
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

async fn b235_a_denial_that_fails_the_run_lets_a_call_that_is_out_come_to_its_end(database: Database) {
    let (server, id, gate, fake) = asked_beside_a_call(&database, json!({ "on_reject": "fail" })).await;
    let (status, denied) = vote(&server, &id, "bob", json!({ "decision": "deny", "comment": "Not today." })).await;
    assert_eq!((status, &denied["status"]), (200, &json!("denied")), "{denied}");
    let open = server.get("/v1/runs/v").await;
    assert_eq!((&open["status"], &open["error"]), (&json!("running"), &Value::Null), "{open}");
    gate.notify_one();
    let ended = server.rested("v").await;
    assert_eq!((&ended["status"], &ended["error"]["code"]), (&json!("failed"), &json!("policy-reject")), "{ended}");
    assert!(ended["error"]["message"].as_str().unwrap().contains("Not today."), "{ended}");
    let charged = server.get("/v1/runs/v/receipts/1/call_1").await;
    assert_eq!((&charged["stage"], fake.count("tools/call")), (&json!("completed"), 1), "{charged}");
}
