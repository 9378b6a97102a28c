//! What a provider does not count is not free.

use serde_json::{Value, json};

use crate::model::fake::{Fake, Then};
use crate::support::database::{Database, both_stores};
use crate::support::fake_mcp::FakeMcp;
use crate::support::product::{Options, Product};

both_stores! {
    field_a149_a_provider_that_counts_nothing_does_not_let_a_run_past_its_budget,
    field_a149_an_answer_that_breaks_off_counts_as_the_longest_that_was_allowed,
    field_a149_a_run_that_is_cancelled_in_the_middle_of_an_answer_has_used_tokens,
}

const PRICES: &str = r#"
[prices."openai/m"]
input_usd_per_million = 1
output_usd_per_million = 2
[prices."anthropic/m"]
input_usd_per_million = 1
output_usd_per_million = 2
"#;

async fn product(database: &Database) -> (Product, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("countersign.toml");
    std::fs::write(&file, PRICES).unwrap();
    let options = Options::default().with("--config", file.to_str().unwrap());
    (Product::start_as(&database.url, &options).await, folder)
}

const PROTOCOLS: [&str; 2] = ["openai", "anthropic"];

/// The beginning of a turn that calls a tool, in the provider's words and without any count.
fn begun(provider: &str) -> String {
    if provider == "openai" {
        let function = json!({ "name": "charge", "arguments": "{}" });
        let call = json!([{ "index": 0, "id": "c", "type": "function", "function": function }]);
        [json!({ "role": "assistant", "content": "I charge." }), json!({ "tool_calls": call })]
            .map(|delta| choice(&delta, &Value::Null))
            .concat()
    } else {
        let message = json!({ "id": "m", "type": "message", "role": "assistant", "model": "m", "content": [] });
        let tool = json!({ "type": "tool_use", "id": "c", "name": "charge", "input": {} });
        let text = json!({ "type": "text_delta", "text": "I charge." });
        let arguments = json!({ "type": "input_json_delta", "partial_json": "{}" });
        [
            json!({ "type": "message_start", "message": message }),
            json!({ "type": "content_block_start", "index": 0, "content_block": { "type": "text", "text": "" } }),
            json!({ "type": "content_block_delta", "index": 0, "delta": text }),
            json!({ "type": "content_block_stop", "index": 0 }),
            json!({ "type": "content_block_start", "index": 1, "content_block": tool }),
            json!({ "type": "content_block_delta", "index": 1, "delta": arguments }),
            json!({ "type": "content_block_stop", "index": 1 }),
        ]
        .map(|event| frame(&event))
        .concat()
    }
}

/// Its end, without any count.
fn end(provider: &str) -> String {
    match provider {
        "openai" => format!("{}data: [DONE]\n\n", choice(&json!({}), &json!("tool_calls"))),
        _ => [
            json!({ "type": "message_delta", "delta": { "stop_reason": "tool_use", "stop_sequence": null } }),
            json!({ "type": "message_stop" }),
        ]
        .map(|event| frame(&event))
        .concat(),
    }
}

fn choice(delta: &Value, finish: &Value) -> String {
    let choices = json!([{ "index": 0, "delta": delta, "finish_reason": finish }]);
    let chunk = json!({ "id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": choices });
    format!("data: {chunk}\n\n")
}

fn frame(event: &Value) -> String {
    format!("event: {}\ndata: {event}\n\n", event["type"].as_str().unwrap())
}

fn model(provider: &str, fake: &Fake, parameters: &Value) -> Value {
    json!({ "provider": provider, "name": "m", "base_url": fake.url(), "parameters": parameters })
}

async fn field_a149_a_provider_that_counts_nothing_does_not_let_a_run_past_its_budget(database: Database) {
    let ((product, _folder), mcp) = (product(&database).await, FakeMcp::start().await);
    for provider in PROTOCOLS {
        let events = format!("{}{}", begun(provider), end(provider));
        let fake = Fake::streaming(&events).await;
        for (limits, reason) in
            [(json!({ "max_tokens": 3000 }), "budget.tokens"), (json!({ "max_cost_usd": 0.003 }), "budget.usd")]
        {
            let id = format!("{provider}-{reason}");
            let body = json!({ "id": id, "model": model(provider, &fake, &json!({})), "input": "Charge.",
                               "mcp": [{ "url": mcp.url() }], "limits": limits });
            product.post("/v1/runs", &body, 201).await;
            let run = product.rested(&id).await;
            assert_eq!((&run["status"], &run["reason"]), (&json!("stopped"), &json!(reason)), "{run:#}");
            let longest = fake.seen().body["max_tokens"].as_u64();
            assert!(
                longest.is_some_and(|longest| longest < 3000),
                "no longer an answer than there is room for: {longest:?}"
            );
            let usage = &run["usage"];
            let tokens = usage["total_tokens"].as_u64().unwrap();
            assert!(tokens > 0 && usage["estimated_tokens"] == tokens, "{usage}");
            assert!(usage["input_tokens"].as_u64() > usage["output_tokens"].as_u64(), "{usage}");
            assert!(run["turns"].as_u64().unwrap() > 1, "an estimate is no wall: {run:#}");
            let events = product.get(&format!("/v1/runs/{id}/events?limit=200")).await;
            let turn = events["data"].as_array().unwrap().iter().find(|event| event["part"]["type"] == "turn-finish");
            let usage = &turn.unwrap()["part"]["usage"];
            let sum = usage["input_tokens"].as_u64().unwrap() + usage["output_tokens"].as_u64().unwrap();
            assert_eq!(usage["estimated_tokens"], sum, "{usage}");
        }
    }
}

async fn field_a149_an_answer_that_breaks_off_counts_as_the_longest_that_was_allowed(database: Database) {
    let (product, _folder) = product(&database).await;
    for provider in PROTOCOLS {
        let fake = Fake::breaking(&begun(provider), Then::Close).await;
        let body = json!({ "id": provider, "model": model(provider, &fake, &json!({ "max_tokens": 5000 })),
                           "input": "Charge.", "limits": { "max_tokens": 5000 } });
        product.post("/v1/runs", &body, 201).await;
        let run = product.rested(provider).await;
        assert_eq!((&run["status"], &run["reason"]), (&json!("stopped"), &json!("budget.tokens")), "{run:#}");
        let usage = &run["usage"];
        assert_eq!((&usage["output_tokens"], &usage["model_requests"]), (&json!(5000), &json!(1)), "{usage}");
        assert_eq!(usage["estimated_tokens"], usage["total_tokens"]);
    }
    // The scripted model's too; and what was refused before anything came has cost nothing.
    let cut = json!([{ "text": "a b c", "cut_after": 2 }, { "error": { "status": 503 } }, { "text": "Done." }]);
    let body =
        json!({ "id": "s", "model": { "provider": "scripted", "name": "demo", "script": cut }, "input": "Charge." });
    product.post("/v1/runs", &body, 201).await;
    let usage = product.rested("s").await["usage"].clone();
    assert_eq!((&usage["model_requests"], &usage["output_tokens"]), (&json!(3), &json!(4 + 5)), "{usage}");
    assert_eq!(usage["estimated_tokens"].as_u64().unwrap() + 15, usage["total_tokens"].as_u64().unwrap(), "{usage}");
}

async fn field_a149_a_run_that_is_cancelled_in_the_middle_of_an_answer_has_used_tokens(database: Database) {
    let (product, _folder) = product(&database).await;
    for provider in PROTOCOLS {
        let fake = Fake::breaking(&begun(provider), Then::Hang).await;
        let body = json!({ "id": provider, "model": model(provider, &fake, &json!({})), "input": "Charge." });
        product.post("/v1/runs", &body, 201).await;
        product.stream(&format!("/v1/runs/{provider}/events")).await.until("part").await;
        product.post(&format!("/v1/runs/{provider}/cancel"), &json!({}), 202).await;
        let run = product.rested(provider).await;
        let usage = &run["usage"];
        assert_eq!((&run["status"], &usage["model_requests"]), (&json!("cancelled"), &json!(0)), "{run:#}");
        assert_eq!((&usage["output_tokens"], &usage["estimated_tokens"]), (&json!(9), &usage["total_tokens"]));
        assert!(usage["cost_usd"].as_f64().unwrap() > 0.0, "{usage}");
    }
}
