//! The main job with counterparts that nobody here wrote: the real binary, real MCP servers, independent model
//! servers, real sockets.

mod bounds;
mod conversations;
mod questions;
mod schemas;
mod tokens;

use serde_json::{Value, json};

use crate::support::counterparts::{aimock, everything, ledger_lines, ledger_server, llmock, llmock_script};
use crate::support::database::Database;
use crate::support::process::Process;
use crate::support::product::Product;

const EXAMPLE: [&str; 10] = [
    "run-status",
    "run-status",
    "turn-started",
    "part",
    "part",
    "tool-started",
    "tool-output",
    "turn-started",
    "part",
    "result",
];

fn model(server: &Process, provider: &str, path: &str) -> Value {
    json!({"provider": provider, "name": "a-model", "base_url": server.url(path)})
}

/// One run of the first example; what the run and the ledger must say afterwards.
async fn charge_five(product: &Product, id: &str, model: Value, mcp: &Process) -> Value {
    let body = json!({"id": id, "model": model, "input": "Charge 5.", "mcp": [{"url": mcp.url("/mcp")}]});
    product.post("/v1/runs", &body, 201).await;
    let run = product.rested(id).await;
    assert_eq!((&run["status"], &run["output"]["text"]), (&json!("completed"), &json!("Charged 5.")), "{run}");
    assert_eq!((&run["usage"]["model_requests"], &run["turns"]), (&json!(2), &json!(2)));
    let receipts = product.get(&format!("/v1/runs/{id}/receipts")).await;
    assert_eq!(receipts["data"].as_array().unwrap().len(), 1);
    let receipt = receipts["data"][0].clone();
    assert_eq!(
        (&receipt["turn"], &receipt["call_id"], &receipt["stage"]),
        (&json!(1), &json!("call_1"), &json!("completed"))
    );
    assert_eq!(receipt["input"], json!({"amount": 5}));
    receipt
}

/// The kinds of events, with neighbouring parts told once: how a model server cuts its text is its own business.
async fn shape(product: &Product, id: &str) -> Vec<String> {
    let mut kinds = product.event_kinds(id).await;
    let text_parts = kinds.iter().rev().skip(1).take_while(|kind| *kind == "part").count();
    kinds.drain(kinds.len() - text_parts..kinds.len() - 1);
    kinds
}

async fn example_on(database: Database) {
    let folder = tempfile::tempdir().unwrap();
    let ledger = folder.path().join("ledger.jsonl");
    let (Some(mcp), Some(models)) = (ledger_server(&ledger).await, aimock("runs.json").await) else { return };
    let product = Product::start(&database).await;
    let mut keys = Vec::new();
    for (id, provider, path) in [("openai", "openai", "/v1"), ("anthropic", "anthropic", "")] {
        let receipt = charge_five(&product, id, model(&models, provider, path), &mcp).await;
        assert_eq!(shape(&product, id).await, EXAMPLE, "{provider}");
        keys.push(receipt["idempotency_key"].clone());
    }
    let done = ledger_lines(&ledger);
    assert_eq!(done.len(), 2);
    for (line, key) in done.iter().zip(&keys) {
        assert_eq!((&line["tool"], &line["arguments"]["amount"]), (&json!("charge"), &json!(5.0)));
        assert_eq!(&line["idempotency_key"], key);
    }
}

#[tokio::test]
async fn the_first_example_on_sqlite_with_a_real_server_and_two_model_protocols() {
    example_on(Database::sqlite().await).await;
}

#[tokio::test]
async fn the_first_example_on_postgres_with_a_real_server_and_two_model_protocols() {
    example_on(Database::postgres().await).await;
}

#[tokio::test]
async fn b201_calls_of_one_turn_go_to_their_own_servers_and_results_come_back_in_call_order() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = folder.path().join("ledger.jsonl");
    let (Some(mcp), Some(reference)) = (ledger_server(&ledger).await, everything().await) else { return };
    let Some(models) = aimock("runs.json").await else { return };
    let database = Database::sqlite().await;
    let product = Product::start(&database).await;
    for (id, provider, path) in [("openai", "openai", "/v1"), ("anthropic", "anthropic", "")] {
        let body = json!({
            "id": id,
            "model": model(&models, provider, path),
            "input": "Do several things.",
            "mcp": [
                {"url": mcp.url("/mcp"), "namespace": "ledger"},
                {"url": reference.url("/mcp"), "namespace": "everything", "tools": ["echo", "get-sum"]},
            ],
        });
        product.post("/v1/runs", &body, 201).await;
        let run = product.rested(id).await;
        assert_eq!(
            (&run["status"], &run["output"]["text"]),
            (&json!("completed"), &json!("All done but one.")),
            "{run}"
        );
        let receipts = product.get(&format!("/v1/runs/{id}/receipts")).await;
        let stages: Vec<_> = receipts["data"].as_array().unwrap().iter().map(|receipt| &receipt["stage"]).collect();
        assert_eq!(stages, ["completed", "completed", "completed", "failed"]);
        let messages = product.get(&format!("/v1/runs/{id}/messages")).await;
        let results = &messages["data"][2]["content"];
        let order: Vec<_> = results.as_array().unwrap().iter().map(|result| &result["call_id"]).collect();
        assert_eq!(order, ["call_a", "call_b", "call_c", "call_d"]);
        assert_eq!(results[1]["output"], "Echo: vé😀");
        assert_eq!(results[3]["is_error"], true);
    }
    let charges: Vec<_> = ledger_lines(&ledger).into_iter().filter(|line| line["tool"] == "charge").collect();
    assert_eq!(charges.len(), 2);
}

#[tokio::test]
async fn a_model_server_that_judges_its_clients_has_nothing_to_say_of_refused_and_cut_requests() {
    let Some(models) = llmock().await else { return };
    let database = Database::sqlite().await;
    let product = Product::start(&database).await;
    let faults = [
        ("limited", json!({"type": "fail", "status": 429, "retry_after": 1.0})),
        ("overloaded", json!({"type": "fail", "status": 503})),
        ("cut", json!({"type": "stream_fault", "kind": "truncate", "after_chunks": 3})),
        ("dropped", json!({"type": "stream_fault", "kind": "disconnect", "after_chunks": 2})),
    ];
    for (name, fault) in faults {
        let answer = json!({"type": "reply", "text": "one two three four five", "times": null});
        llmock_script(&models, json!([fault, answer])).await;
        for (provider, path, requests) in [("openai", "/v1", 2), ("anthropic", "/anthropic", 1)] {
            let id = format!("{name}-{provider}");
            product
                .post(
                    "/v1/runs",
                    &json!({"id": id, "model": model(&models, provider, path), "input": format!("Say it, {id}.")}),
                    201,
                )
                .await;
            let run = product.rested(&id).await;
            assert_eq!(run["output"]["text"], "one two three four five", "{run}");
            assert_eq!((&run["usage"]["model_requests"], &run["turns"]), (&json!(requests), &json!(1)), "{id}");
        }
    }
    let verdict = reqwest::get(models.url("/_llmock/verdict?format=text")).await.unwrap().text().await.unwrap();
    assert!(verdict.contains("PASS"), "{verdict}");
}

#[tokio::test]
async fn dev_prints_a_token_and_a_line_that_runs_the_first_example() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let process = Process::start(|port| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_countersign"));
        command.args(["dev", "--listen", &format!("127.0.0.1:{port}"), "--data"]).arg(&data).env_clear();
        command
    })
    .await;
    let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(30);
    while !process.output().contains("Stop with") {
        assert!(tokio::time::Instant::now() < deadline, "{}", process.output());
        tokio::task::yield_now().await;
    }
    let said = process.output();
    let token = said.split("export TOKEN=").nth(1).unwrap().lines().next().unwrap();
    let body = said.split("-d '").nth(1).unwrap().split('\'').next().unwrap();
    let request = reqwest::Client::new().post(process.url("/v1/runs")).bearer_auth(token);
    let answer = request.header("content-type", "application/json").header("prefer", "wait=20").body(body.to_owned());
    let answer = answer.send().await.unwrap();
    assert_eq!(answer.status(), 201);
    let run: Value = serde_json::from_str(&answer.text().await.unwrap()).unwrap();
    assert_eq!((&run["id"], &run["status"]), (&json!("charge-demo"), &json!("completed")));
    assert_eq!((&run["usage"]["model_requests"], &run["usage"]["total_tokens"]), (&json!(2), &json!(30)));
    // The demo server's tool is the one of the published vector.
    let charge = "27aef82b0ef14fb7c2b7e312b1c9e9bae1137068854eba4c7c4a526fc46b46ac";
    assert_eq!(run["binding"]["mcp"]["tools"]["charge"], charge);
}
