//! Limits and budgets, over the whole product.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::support::database::{Database, both_stores};
use crate::support::fake_mcp::{FakeMcp, Reply};
use crate::support::product::{Options, Product};

both_stores! {
    b244_money_is_counted_to_the_last_digit_and_stops_a_run,
    b244_a_budget_of_money_needs_a_price_and_can_be_given_later_and_never_be_raised,
    b245_a_tool_that_fails_three_times_in_a_row_ends_its_run,
}

const PRICES: &str = r#"
[prices."scripted/demo"]
input_usd_per_million = 1
output_usd_per_million = "2"
"#;

/// A product that knows what one model costs: a turn of it costs 0.00002 dollars.
async fn product(database: &Database) -> (Product, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let file: PathBuf = folder.path().join("countersign.toml");
    std::fs::write(&file, PRICES).unwrap();
    let options = Options::default().with("--config", file.to_str().unwrap());
    (Product::start_as(&database.url, &options).await, folder)
}

/// A run of a model that calls the same tool again and again.
fn charging(id: &str, model: &str, fake: &FakeMcp, limits: Value) -> Value {
    let script = json!([{ "tool_calls": [{ "name": "charge", "arguments": { "amount": 5 } }] }]);
    let model = json!({ "provider": "scripted", "name": model, "script": script });
    json!({ "id": id, "model": model, "input": "Charge.", "mcp": [{ "url": fake.url() }], "limits": limits })
}

fn money(text: &str) -> Value {
    json!({ "max_cost_usd": text.parse::<serde_json::Number>().unwrap() })
}

async fn b244_money_is_counted_to_the_last_digit_and_stops_a_run(database: Database) {
    let ((product, _folder), fake) = (product(&database).await, FakeMcp::start().await);
    product.post("/v1/runs", &charging("r", "demo", &fake, money("0.00006")), 201).await;
    let run = product.rested("r").await;
    assert_eq!((&run["status"], &run["reason"]), (&json!("stopped"), &json!("budget.usd")), "{run}");
    assert_eq!((run["usage"]["cost_usd"].to_string(), fake.count("tools/call")), ("0.00006".to_owned(), 3));
    assert_eq!(run["limits"]["max_cost_usd"].to_string(), "0.00006");
    let events = product.get("/v1/runs/r/events?limit=200").await;
    let result = events["data"].as_array().unwrap().last().unwrap().clone();
    assert_eq!((&result["type"], result["usage"]["cost_usd"].to_string()), (&json!("result"), "0.00006".to_owned()));

    // Nobody knows what another model costs: then nobody says that it costs nothing.
    product.post("/v1/runs", &charging("unknown", "other", &fake, json!({ "max_turns": 1 })), 201).await;
    let run = product.rested("unknown").await;
    assert_eq!((&run["usage"]["cost_usd"], &run["limits"]["max_cost_usd"]), (&Value::Null, &Value::Null), "{run}");
}

async fn b244_a_budget_of_money_needs_a_price_and_can_be_given_later_and_never_be_raised(database: Database) {
    let ((product, _folder), fake) = (product(&database).await, FakeMcp::start().await);
    let refused = async |path: &str, body: Value| {
        let problem = product.post(path, &body, 422).await;
        let fault = &problem["errors"][0];
        assert_eq!(fault["pointer"], "/limits/max_cost_usd", "{problem}");
        fault["detail"].as_str().unwrap().to_owned()
    };
    let why = refused("/v1/runs", charging("r", "other", &fake, money("1"))).await;
    assert!(why.contains("scripted/other"), "{why}");
    for amount in ["0", "-1", "0.0000000000001", "1e30"] {
        refused("/v1/runs", charging("r", "demo", &fake, money(amount))).await;
    }

    fake.on_call(|_| Reply::Reset);
    for (id, model) in [("r", "demo"), ("unknown", "other")] {
        product.post("/v1/runs", &charging(id, model, &fake, json!({})), 201).await;
        assert_eq!(product.rested(id).await["reason"], "tool-reconciliation-required");
    }
    fake.on_call(|_| Reply::text("charged"));
    let again = |amount: &str| json!({ "retry_tool_call_ids": ["call_1"], "limits": money(amount) });
    refused("/v1/runs/unknown/resume", again("1")).await;
    product.post("/v1/runs/r/resume", &json!({ "limits": money("0.00003") }), 200).await;
    let why = refused("/v1/runs/r/resume", again("0.00004")).await;
    assert!(why.contains("tightened"), "{why}");
    product.post("/v1/runs/r/resume", &again("0.00003"), 202).await;
    let run = product.rested("r").await;
    assert_eq!((&run["reason"], &run["turns"]), (&json!("budget.usd"), &json!(2)), "{run}");
}

async fn b245_a_tool_that_fails_three_times_in_a_row_ends_its_run(database: Database) {
    let ((product, _folder), fake) = (product(&database).await, FakeMcp::start().await);
    fake.on_call(|_| Reply::Result(json!({ "isError": true, "content": [{ "type": "text", "text": "no" }] })));
    product.post("/v1/runs", &charging("r", "demo", &fake, json!({})), 201).await;
    let run = product.rested("r").await;
    assert_eq!((&run["status"], &run["reason"]), (&json!("stopped"), &json!("runaway-tool-errors")), "{run}");
    assert_eq!((fake.count("tools/call"), &run["turns"]), (3, &json!(3)));
}
