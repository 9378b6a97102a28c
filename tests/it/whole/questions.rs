//! Servers that nobody here wrote, asking: the reference server in its sessions, FastMCP in the newer era.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::support::counterparts::{choosing_server, everything, ledger_lines, ledger_server};
use crate::support::database::Database;
use crate::support::product::Product;
use crate::support::world::run_on;

async fn question(node: &Product, id: &str, nth: usize) -> Value {
    let deadline = Instant::now() + Duration::from_secs(40);
    loop {
        let run = node.get(&format!("/v1/runs/{id}")).await;
        if let Some(input) = run["pending"]["inputs"].get(nth) {
            return input.clone();
        }
        let rests = !matches!(run["status"].as_str(), Some("queued" | "running"));
        assert!(!rests && Instant::now() < deadline, "{run:#}");
        sleep(Duration::from_millis(20)).await;
    }
}

async fn answer(node: &Product, id: &str, input: &Value, answer: Value) {
    let at = format!("/v1/runs/{id}/inputs/{}", input["input_id"].as_str().unwrap());
    node.post(&at, &answer, 200).await;
}

async fn outputs(node: &Product, id: &str) -> String {
    node.get(&format!("/v1/runs/{id}/receipts")).await["data"].to_string()
}

#[tokio::test]
async fn the_reference_server_gets_a_sample_and_what_people_answer() {
    let Some(server) = everything().await else { return };
    let database = Database::sqlite().await;
    let node = Product::start(&database).await;
    let model = json!({ "provider": "scripted", "name": "small", "script": [{ "text": "A sampled answer." }] });
    let entry = json!({
        "url": server.url("/mcp"), "elicitation": "ask", "sampling": { "model": model, "max_tokens": 1000 },
        "timeouts": { "connect_ms": 30_000 },
    });
    let sample =
        run_on("s", &[("trigger-sampling-request", json!({ "prompt": "Hi", "maxTokens": 100 }))], json!([entry]));
    node.post("/v1/runs", &sample, 201).await;
    let run = node.rested("s").await;
    assert_eq!(
        (&run["status"], &run["usage"]["sampling"]["model_requests"]),
        (&json!("completed"), &json!(1)),
        "{run:#}"
    );
    assert!(outputs(&node, "s").await.contains("A sampled answer."));

    let url = json!({ "url": "https://sign.example/now", "message": "Sign." });
    let calls = [("trigger-elicitation-request", json!({})), ("trigger-url-elicitation", url)];
    let mut asking = run_on("e", &calls, json!([entry]));
    asking["limits"] = json!({ "max_parallel_tool_calls": 1 });
    node.post("/v1/runs", &asking, 201).await;
    let form = question(&node, "e", 0).await;
    assert_eq!(form["mode"], "form", "{form:#}");
    answer(&node, "e", &form, json!({ "action": "accept", "content": { "name": "Ann Counter" } })).await;
    let page = question(&node, "e", 0).await;
    assert_eq!((&page["mode"], &page["url"]), (&json!("url"), &json!("https://sign.example/now")), "{page:#}");
    answer(&node, "e", &page, json!({ "action": "accept" })).await;
    let run = node.rested("e").await;
    assert_eq!(run["status"], "completed", "{run:#}");
    assert!(outputs(&node, "e").await.contains("Ann Counter"));
}

#[tokio::test]
async fn fastmcp_goes_on_in_the_newer_era_once_it_has_its_answer_back() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = folder.path().join("ledger");
    let Some(server) = ledger_server(&ledger).await else { return };
    let database = Database::sqlite().await;
    let node = Product::start(&database).await;
    let entry = json!({
        "url": server.url("/mcp"), "elicitation": "ask", "timeouts": { "connect_ms": 30_000, "call_ms": 30_000 },
    });
    let run = run_on("f", &[("ask", json!({ "question": "Sure?" }))], json!([entry]));
    node.post("/v1/runs", &run, 201).await;
    let run = node.rested("f").await;
    assert_eq!(run["reason"], "input-required", "{run:#}");
    assert!(ledger_lines(&ledger).is_empty());
    answer(&node, "f", &run["pending"]["inputs"][0], json!({ "action": "accept", "content": { "sure": true } })).await;
    let run = node.rested("f").await;
    assert_eq!(run["status"], "completed", "{run:#}");
    let lines = ledger_lines(&ledger);
    assert_eq!(lines.len(), 1);
    let asked = json!({ "action": "accept", "content": { "sure": true, "name": "nobody" }, "state": "state-1" });
    assert_eq!(lines[0]["arguments"], asked);
}

#[tokio::test]
async fn a_form_that_a_library_made_of_enumerations_is_shown_flat_and_answered() {
    let Some(server) = choosing_server().await else { return };
    let database = Database::sqlite().await;
    let node = Product::start(&database).await;
    let entry = json!({ "url": server.url("/mcp"), "elicitation": "ask", "timeouts": { "connect_ms": 30_000 } });
    node.post("/v1/runs", &run_on("f", &[("choose", json!({}))], json!([entry])), 201).await;
    let input = question(&node, "f", 0).await;
    let form = &input["requested_schema"];
    assert_eq!(form["properties"]["color"]["enum"], json!(["red", "green"]), "{form:#}");
    assert!(!form.to_string().contains('$'), "whoever shows it need not follow references: {form:#}");
    let at = format!("/v1/runs/f/inputs/{}", input["input_id"].as_str().unwrap());
    let wrong = json!({ "action": "accept", "content": { "color": "blue", "others": ["pink"] } });
    let problem = node.post(&at, &wrong, 422).await;
    let mut pointers: Vec<&str> =
        problem["errors"].as_array().unwrap().iter().map(|fault| fault["pointer"].as_str().unwrap()).collect();
    pointers.sort_unstable();
    assert_eq!(pointers, ["/content/color", "/content/others/0"], "{problem:#}");
    let content = json!({ "color": "red", "others": ["green", "red"] });
    answer(&node, "f", &input, json!({ "action": "accept", "content": content })).await;
    let run = node.rested("f").await;
    assert_eq!(run["status"], "completed", "{run:#}");
    let told = node.get("/v1/runs/f/receipts").await["data"][0]["output"]["content"][0]["text"].clone();
    let chosen = r#"accept {"color":"red","second":"green","third":null,"others":["green","red"]}"#;
    assert_eq!(told, chosen, "with the defaults of the definitions' fields");
}
