//! Questions of servers across nodes and deaths: an answer may land anywhere, and what a node knew of a question dies
//! with it unless the question is kept.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::support::database::Database;
use crate::support::fake_mcp::{FakeMcp, Reply, Step};
use crate::support::product::Product;
use crate::support::world::run_on;

fn form() -> Value {
    json!({ "message": "Who?", "requestedSchema": { "type": "object", "properties": { "name": { "type": "string" } } } })
}

fn asks(fake: &FakeMcp) -> Value {
    let entry = json!({ "url": fake.url(), "elicitation": "ask" });
    run_on("r", &[("charge", json!({ "amount": 5 }))], json!([entry]))
}

async fn asked(node: &Product) -> String {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let run = node.get("/v1/runs/r").await;
        if let Some(input) = run["pending"]["inputs"][0]["input_id"].as_str() {
            return format!("/v1/runs/r/inputs/{input}");
        }
        assert!(Instant::now() < deadline, "{run}");
        sleep(Duration::from_millis(10)).await;
    }
}

fn accept() -> Value {
    json!({ "action": "accept", "content": { "name": "Ann" } })
}

#[tokio::test]
async fn an_answer_reaches_the_server_whichever_node_takes_it() {
    let (database, fake) = (Database::postgres().await, FakeMcp::start().await);
    fake.on_call(|_| Reply::Sse(vec![Step::Ask(71, "elicitation/create", form()), Step::Told(vec![71])]));
    let (owner, other) = (Product::start(&database).await, Product::start(&database).await);
    owner.post("/v1/runs", &asks(&fake), 201).await;
    let at = asked(&other).await;
    let run = other.post(&at, &accept(), 200).await;
    assert_eq!(run["pending"]["inputs"], json!([]), "answered once it is applied");
    other.post(&at, &accept(), 409).await;
    let run = other.rested("r").await;
    assert_eq!((&run["status"], &run["attempt"]), (&json!("completed"), &json!(1)), "{run}");
    assert_eq!(fake.count("tools/call"), 1);
}

#[tokio::test]
async fn field_a005_a_question_of_a_node_that_was_killed_is_closed_and_its_call_is_held() {
    let (database, fake) = (Database::postgres().await, FakeMcp::start().await);
    fake.on_call(|_| Reply::Sse(vec![Step::Ask(71, "elicitation/create", form()), Step::Told(vec![71])]));
    let (owner, other) = (Product::start(&database).await, Product::start(&database).await);
    owner.post("/v1/runs", &asks(&fake), 201).await;
    let at = asked(&other).await;
    owner.kill();
    let run = other.rested("r").await;
    assert_eq!(run["reason"], "tool-reconciliation-required", "{run}");
    assert_eq!(
        (&run["pending"]["inputs"], &run["pending"]["reconciliations"][0]["cause"]),
        (&json!([]), &json!("crash"))
    );
    other.post(&at, &accept(), 409).await;
    assert_eq!(fake.count("tools/call"), 1);
}

#[tokio::test]
async fn a_call_that_waits_for_input_goes_on_from_another_node_with_the_same_key() {
    let (database, fake) = (Database::postgres().await, FakeMcp::start().await);
    fake.be_modern(true);
    fake.on_list(|_| {
        let tool = json!({ "name": "charge", "inputSchema": { "type": "object" } });
        Reply::Result(json!({ "resultType": "complete", "tools": [tool], "ttlMs": 0, "cacheScope": "private" }))
    });
    fake.on_call(|seen| {
        if seen.body["params"]["inputResponses"].is_null() {
            let requests = json!({ "who": { "method": "elicitation/create", "params": form() } });
            return Reply::Result(
                json!({ "resultType": "input_required", "inputRequests": requests, "requestState": "kept" }),
            );
        }
        Reply::Result(json!({ "resultType": "complete", "content": [{ "type": "text", "text": "charged" }] }))
    });
    let (owner, other) = (Product::start(&database).await, Product::start(&database).await);
    owner.post("/v1/runs", &asks(&fake), 201).await;
    assert_eq!(owner.rested("r").await["reason"], "input-required");
    let at = asked(&other).await;
    owner.kill();
    other.post(&at, &accept(), 200).await;
    let run = other.rested("r").await;
    assert_eq!(run["status"], "completed", "{run}");
    let calls = fake.seen_rpc("tools/call");
    assert_eq!(calls.len(), 2);
    assert_eq!(calls[0].headers["idempotency-key"], calls[1].headers["idempotency-key"]);
    assert_ne!(calls[0].body["id"], Value::Null);
    assert_eq!(calls[1].body["params"]["requestState"], "kept");
    let content = json!({ "action": "accept", "content": { "name": "Ann" } });
    assert_eq!(calls[1].body["params"]["inputResponses"], json!({ "who": content }));
}
