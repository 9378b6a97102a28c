//! What a model says: its secrets are taken out, and a provider's refusal is told in words that help.

use serde_json::{Value, json};

use super::harness::Server;
use crate::support::database::{Database, both_stores};
use crate::support::fake_mcp::{FakeMcp, Reply};
use crate::support::world::run_on;

both_stores! {
    b250_a_model_that_says_a_secret_in_pieces_is_neither_stored_nor_shown_with_it,
    field_a033_a_provider_that_refuses_one_tool_fails_the_run_in_words_that_name_it,
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

async fn field_a033_a_provider_that_refuses_one_tool_fails_the_run_in_words_that_name_it(database: Database) {
    let (server, fake, provider) = (Server::start_on(database).await, FakeMcp::start().await, FakeMcp::start().await);
    let error = json!({ "error": { "message": "Invalid schema for function 'charge': None is not valid.",
                                   "type": "invalid_request_error", "param": "tools[0].function.parameters" } });
    provider.refuse_handshakes(Reply::status(400, error));
    let mut body = run_on("r", &[], json!([{ "url": fake.url() }]));
    body["model"] = json!({ "provider": "openai", "name": "m", "base_url": provider.url() });
    let run = server.settled(&body).await;
    assert_eq!((&run["status"], &run["error"]["code"]), (&json!("failed"), &json!("model-tool-refused")), "{run}");
    let message = run["error"]["message"].as_str().unwrap();
    assert!(message.starts_with("The provider refuses the tool 'charge' as it is offered"), "{message}");
    assert!(message.contains("Leave it out with the `tools`") && message.contains("None is not valid."), "{message}");
    assert_eq!(provider.count_http("POST"), 1, "what is certain to fail is not asked again");
}
