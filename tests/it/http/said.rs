//! What a model says: its secrets are taken out, and a provider's refusal is told in words that help.

use serde_json::{Value, json};

use super::harness::Server;
use crate::support::database::{Database, both_stores};
use crate::support::fake_mcp::{FakeMcp, tool};
use crate::support::fake_model::FakeModel;
use crate::support::world::run_on;

both_stores! {
    b250_a_model_that_says_a_secret_in_pieces_is_neither_stored_nor_shown_with_it,
    field_a033_a_tool_that_the_provider_refuses_is_set_aside_visibly_and_the_others_stay,
    field_a033_a_provider_that_refuses_every_tool_fails_the_run_in_words_that_name_one,
}

const CANARY: &str = "canary secret of the run 5f1c";

/// A run whose model says its server's secret in its text, its thoughts and its arguments.
fn telling(fake: &FakeMcp) -> Value {
    let mut body = run_on("r", &[], json!([{ "url": fake.url() }]));
    body["mcp"][0]["auth"] = json!({ "scheme": "bearer", "secret": "token" });
    body["secrets"] = json!({ "token": CANARY });
    body["model"]["script"] = json!([
        { "text": format!("It is {CANARY}, I think"), "reasoning": format!("Say {CANARY} aloud"),
          "tool_calls": [
              { "name": "charge", "arguments": { "note": format!("use {CANARY}") } },
              { "name": "charge", "arguments": format!("{{\"note\": \"{}\"}}", CANARY.replacen('c', "\\u0063", 1)) },
              { "name": CANARY, "arguments": {} } ] },
        { "text": format!("{CANARY} and out") },
    ]);
    body
}

async fn b250_a_model_that_says_a_secret_in_pieces_is_neither_stored_nor_shown_with_it(database: Database) {
    let (server, fake) = (Server::start_on(database).await, FakeMcp::start().await);
    let run = server.settled(&telling(&fake)).await;
    assert_eq!(run["output"]["text"], "[redacted] and out", "{run}");
    let alice = server.alice();
    let mut shown = run["output"].to_string();
    for path in ["messages", "receipts", "events?limit=200"] {
        shown.push_str(&String::from_utf8_lossy(&server.get(&format!("/v1/runs/r/{path}"), &alice).await.body));
    }
    assert!(!shown.contains("5f1c"), "{shown}");
    let page = server.get("/v1/runs/r/events?limit=200", &alice).await.json();
    let deltas = |kind: &str| -> String {
        let events = page["data"].as_array().unwrap().iter().filter(|event| event["turn"] == 1);
        events
            .filter(|event| event["part"]["type"] == kind)
            .map(|event| event["part"]["text"].as_str().unwrap())
            .collect()
    };
    assert_eq!(deltas("text-delta"), "It is [redacted], I think");
    assert_eq!(deltas("reasoning-delta"), "Say [redacted] aloud");
    assert_eq!(fake.seen_rpc("tools/call")[0].body["params"]["arguments"], json!({ "note": "use [redacted]" }));
    // The script itself is the caller's, and stored as it was given.
    let dump = server.dump().await;
    let kept: Vec<&str> = dump.lines().filter(|line| line.contains("5f1c") && !line.contains("script")).collect();
    assert!(kept.is_empty(), "{kept:?}");
}

/// A run on a server with so many tools, whose model is that one.
fn offering(fake: &FakeMcp, count: usize, model: &FakeModel) -> Value {
    fake.serve((0..count).map(|nth| tool(&format!("tool_{nth}"))).collect());
    let mut body = run_on("r", &[], json!([{ "url": fake.url() }]));
    body["model"] = model.spec();
    body
}

async fn field_a033_a_tool_that_the_provider_refuses_is_set_aside_visibly_and_the_others_stay(database: Database) {
    let (server, fake) = (Server::start_on(database).await, FakeMcp::start().await);
    let model = FakeModel::start_refusing(&[&["tool_7"], &["tool_13"]], &["tool_13"]).await;
    let run = server.settled(&offering(&fake, 27, &model)).await;
    assert_eq!(run["status"], "completed", "{run}");
    let offered: Vec<(usize, bool)> =
        model.offered().iter().map(|tools| (tools.len(), tools.iter().any(|tool| tool == "tool_13"))).collect();
    assert_eq!(offered, [(27, true), (26, false), (26, false), (26, false)]);
    let called: Vec<Value> =
        fake.seen_rpc("tools/call").iter().map(|seen| seen.body["params"]["name"].clone()).collect();
    assert_eq!(called, ["tool_7"], "a tool that is not on offer is not called");

    // The operator sees it, and the record of what is served is what it was.
    let warnings = run["warnings"].as_array().unwrap();
    assert_eq!(warnings.len(), 1, "{run}");
    assert_eq!((&warnings[0]["code"], &warnings[0]["type"]), (&json!("mcp-tool-unusable"), &json!("unsupported-tool")));
    let message = warnings[0]["message"].as_str().unwrap();
    assert!(message.starts_with("MCP tool 'tool_13' is not offered: the model's provider refuses"), "{message}");
    assert_eq!(run["binding"]["revision"], 2);
    assert_eq!(run["binding"]["mcp"]["tools"].as_object().unwrap().len(), 27);
    assert_eq!((&run["turns"], &run["usage"]["model_requests"]), (&json!(3), &json!(4)), "{run}");
    let events = server.get("/v1/runs/r/events?limit=200", &server.alice()).await.json();
    let events = events["data"].as_array().unwrap();
    let said = events.iter().find(|event| event["part"]["type"] == "error").unwrap();
    assert_eq!(said["part"]["error"]["code"], "model-tool-refused", "{said}");
    assert!(said["part"]["error"]["message"].as_str().unwrap().contains("None is not valid."), "{said}");
    let warned = events.iter().filter(|event| event["part"]["type"] == "warning").count();
    let revised: Vec<&Value> = events.iter().filter(|event| event["type"] == "binding-revised").collect();
    assert_eq!((warned, revised.len(), &revised[0]["removed"]), (1, 1, &json!([])), "{events:?}");
}

async fn field_a033_a_provider_that_refuses_every_tool_fails_the_run_in_words_that_name_one(database: Database) {
    let (server, fake) = (Server::start_on(database).await, FakeMcp::start().await);
    let names: Vec<String> = (0..20).map(|nth| format!("tool_{nth}")).collect();
    let refused: Vec<&str> = names.iter().map(String::as_str).collect();
    let model = FakeModel::start_refusing(&[], &refused).await;
    let run = server.settled(&offering(&fake, 20, &model)).await;
    assert_eq!((&run["status"], &run["error"]["code"]), (&json!("failed"), &json!("model-tool-refused")), "{run}");
    let message = run["error"]["message"].as_str().unwrap();
    assert!(message.starts_with("The provider refuses the tool 'tool_8' as it is offered"), "{message}");
    assert!(message.contains("Leave it out with the `tools`") && message.contains("None is not valid."), "{message}");
    assert_eq!((model.requests().len(), run["warnings"].as_array().unwrap().len()), (9, 8), "so many, and no more");
}
