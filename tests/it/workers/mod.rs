//! Tools that workers and the run's client carry out, against the real binary.

mod calls;
mod client;
mod clients;
mod ends;
mod nodes;
mod rules;
mod votes;

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::support::database::Database;
use crate::support::product::{Options, Product};

/// Short times, so that a test sees their ends.
fn options() -> Options {
    Options::default()
        .with("COUNTERSIGN_WORKER_LEASE_S", "2")
        .with("COUNTERSIGN_WORKER_QUEUE_WAIT_S", "20")
        .with("COUNTERSIGN_CATALOG_MAX_AGE_MS", "0")
}

async fn server(database: &Database) -> Product {
    Product::start_as(&database.url, &options()).await
}

/// `process_payment`, as workers know it.
fn payment(more: Value) -> Value {
    let mut tool = json!({
        "name": "process_payment", "description": "Pays somebody.",
        "input_schema": { "type": "object", "required": ["amount"], "properties": { "amount": { "type": "number" } } },
        "executor": { "type": "worker", "tool": "payments.process", "version": "1.0.0" },
    });
    for (name, value) in more.as_object().unwrap() {
        tool[name] = value.clone();
    }
    tool
}

/// A run whose model makes these calls in one turn, and then closes.
fn run(id: &str, calls: &[(&str, Value)], tools: Value) -> Value {
    let calls: Vec<Value> =
        calls.iter().map(|(name, arguments)| json!({ "name": name, "arguments": arguments })).collect();
    json!({
        "id": id, "input": "Pay.", "tools": tools,
        "model": { "provider": "scripted", "name": "demo", "script": [{ "tool_calls": calls }, { "text": "Done." }] },
    })
}

/// A number that a float cannot hold.
const EXACT: &str = r#"{"amount":117.63331139400017}"#;

fn pays(id: &str, more: Value) -> Value {
    run(id, &[("process_payment", serde_json::from_str(EXACT).unwrap())], json!([payment(more)]))
}

fn asking(wait_ms: u64) -> Value {
    json!({ "tools": [{ "tool": "payments.process", "version": "1.0.0" }], "wait_ms": wait_ms })
}

async fn claim(server: &Product, worker: &str, body: &Value) -> Value {
    server.post(&format!("/v1/workers/{worker}/claims"), body, 200).await
}

/// The one call that this worker gets.
async fn one_call(server: &Product, worker: &str) -> Value {
    let claimed = claim(server, worker, &asking(20_000)).await;
    assert_eq!(claimed["calls"].as_array().map(Vec::len), Some(1), "{claimed}\n{}", server.log());
    claimed["calls"][0].clone()
}

fn path(call: &Value, what: &str) -> String {
    format!("/v1/worker-calls/{}/{what}", call["id"].as_str().unwrap())
}

fn with_lease(call: &Value, more: Value) -> Value {
    let mut body = more;
    body["lease"] = call["lease"].clone();
    body
}

async fn answer(server: &Product, call: &Value, more: Value) -> (u16, Value) {
    let answer = server.send(Method::POST, &path(call, "result"), Some(&with_lease(call, more))).await;
    (answer.status().as_u16(), serde_json::from_str(&answer.text().await.unwrap()).unwrap())
}

async fn receipt(server: &Product, id: &str, call_id: &str) -> Value {
    server.get(&format!("/v1/runs/{id}/receipts/1/{call_id}")).await
}

async fn results(server: &Product, id: &str) -> Vec<Value> {
    let page = server.get(&format!("/v1/runs/{id}/messages")).await;
    let messages = page["data"].as_array().unwrap().iter();
    let tool = messages.filter(|message| message["role"] == "tool");
    tool.flat_map(|message| message["content"].as_array().unwrap().clone()).collect()
}

/// The run once `holds` does.
async fn until(server: &Product, id: &str, holds: impl Fn(&Value) -> bool) -> Value {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let run = server.get(&format!("/v1/runs/{id}")).await;
        if holds(&run) {
            return run;
        }
        assert!(Instant::now() < deadline, "{run:#}\n{}", server.log());
        sleep(Duration::from_millis(10)).await;
    }
}

/// The receipt once it is in this stage.
async fn staged(server: &Product, id: &str, call_id: &str, stage: &str) -> Value {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let answer = server.send(Method::GET, &format!("/v1/runs/{id}/receipts/1/{call_id}"), None).await;
        let receipt: Value = serde_json::from_str(&answer.text().await.unwrap()).unwrap();
        if receipt["stage"] == stage {
            return receipt;
        }
        assert!(Instant::now() < deadline, "{receipt:#}\n{}", server.log());
        sleep(Duration::from_millis(10)).await;
    }
}

async fn problem(server: &Product, path: &str, body: &Value, status: u16, code: &str) {
    let said = server.post(path, body, status).await;
    assert_eq!(said["code"], code, "{said}");
}
