//! Every MCP server that the test world installs, each called through the whole product: the real binary, a scripted
//! model, the REST interface. A server that could not be installed skips its test with a line that says so.

mod conformance;
mod everything;
mod fastmcp;
mod go;
mod stdio;

use serde_json::{Value, json};

use crate::support::database::Database;
use crate::support::product::Product;

/// How long a call may take on a machine that starts many servers at once.
fn patient(mut entry: Value) -> Value {
    entry["timeouts"] = json!({"connect_ms": 30_000, "call_ms": 30_000, "call_total_ms": 60_000});
    entry
}

/// A run that made these calls, one a turn.
struct Played {
    run: Value,
    receipts: Vec<Value>,
    events: Vec<Value>,
}

/// Lets a run of the scripted model make these calls in this order, and waits until it rests.
async fn play(product: &Product, entry: Value, calls: &[(&str, Value)]) -> Played {
    play_with(product, json!({"mcp": [patient(entry)]}), calls).await
}

/// The same with other fields of the run beside its model.
async fn play_with(product: &Product, mut body: Value, calls: &[(&str, Value)]) -> Played {
    let mut script: Vec<Value> =
        calls.iter().map(|(tool, arguments)| json!({"tool_calls": [{"name": tool, "arguments": arguments}]})).collect();
    script.push(json!({"text": "Done."}));
    body["model"] = json!({"provider": "scripted", "name": "a-model", "script": script});
    body["input"] = json!("Call what there is.");
    let run = product.post("/v1/runs", &body, 201).await;
    let id = run["id"].as_str().unwrap();
    let run = product.rested(id).await;
    let list = async |what: &str| {
        let page = product.get(&format!("/v1/runs/{id}/{what}?limit=200")).await;
        page["data"].as_array().unwrap().clone()
    };
    Played { receipts: list("receipts").await, events: list("events").await, run }
}

impl Played {
    /// The run, which must have come to its end as its script says.
    #[track_caller]
    fn completed(self) -> Self {
        let end = (&self.run["status"], &self.run["output"]["text"]);
        assert_eq!(end, (&json!("completed"), &json!("Done.")), "{}\n{:?}", self.run, self.receipts);
        self
    }

    /// The names that the model was offered, sorted.
    fn tools(&self) -> Vec<&str> {
        self.run["binding"]["mcp"]["tools"].as_object().unwrap().keys().map(String::as_str).collect()
    }

    /// The receipt of the n-th call, from 1.
    #[track_caller]
    fn receipt(&self, number: usize, stage: &str) -> &Value {
        let label = format!("call_{number}");
        let receipt = self.receipts.iter().find(|receipt| receipt["call_id"] == *label);
        let receipt = receipt.unwrap_or_else(|| panic!("no {label}: {:?}", self.receipts));
        assert_eq!(receipt["stage"], stage, "{receipt}");
        assert_eq!(receipt["attempt"], 1, "{receipt}");
        receipt
    }

    /// The text that the n-th call, which must have been done, came back with.
    #[track_caller]
    fn text(&self, number: usize) -> &str {
        let receipt = self.receipt(number, "completed");
        receipt["output"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("no text: {receipt}"))
    }

    /// The structured answer of the n-th call, which must have been done.
    #[track_caller]
    fn structured(&self, number: usize) -> &Value {
        let receipt = self.receipt(number, "completed");
        assert!(receipt["output"]["structuredContent"].is_object(), "{receipt}");
        &receipt["output"]["structuredContent"]
    }

    /// Why the n-th call failed at its server.
    #[track_caller]
    fn failure(&self, number: usize) -> &str {
        let receipt = self.receipt(number, "failed");
        assert_eq!(receipt["error"]["code"], "tool-error", "{receipt}");
        receipt["error"]["message"].as_str().unwrap()
    }

    /// That the n-th call was stopped before it left: no receipt, and an event that says why.
    #[track_caller]
    fn stopped_at_the_gate(&self, number: usize) {
        let label = format!("call_{number}");
        assert!(self.receipts.iter().all(|receipt| receipt["call_id"] != *label), "{:?}", self.receipts);
        let told = self.events.iter().find(|event| event["type"] == "tool-output" && event["call_id"] == *label);
        let told = told.unwrap_or_else(|| panic!("nothing told of {label}: {:?}", self.events));
        assert_eq!((&told["stage"], &told["rule"]), (&json!("rejected"), &json!("invalid-arguments")), "{told}");
    }
}

async fn product() -> (Database, Product) {
    let database = Database::sqlite().await;
    let product = Product::start(&database).await;
    (database, product)
}
