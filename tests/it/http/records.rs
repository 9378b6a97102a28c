//! Receipts, and what a run that waits says about the way on.

use serde_json::{Value, json};

use super::harness::{Server, demo_mcp};

fn charges(id: &str, url: &str) -> Value {
    json!({
        "id": id,
        "model": { "provider": "scripted", "name": "demo", "script": [
            { "tool_calls": [{ "name": "charge", "arguments": { "amount": 5 } }] }, { "text": "Charged 5." },
        ]},
        "input": "Charge 5.",
        "mcp": [{ "url": url }],
    })
}

/// The fields of a receipt, in the contract's order.
const FIELDS: [&str; 21] = [
    "run_id",
    "turn",
    "position",
    "call_id",
    "tool",
    "server_tool",
    "server",
    "backend",
    "stage",
    "side_effect_class",
    "replay",
    "attempt",
    "idempotency_key",
    "input",
    "output",
    "error",
    "cause",
    "since",
    "decided_by",
    "created_at",
    "settled_at",
];

#[tokio::test]
async fn a_receipt_is_shown_as_the_contract_says() {
    let server = Server::start().await;
    let (url, ledger, _tasks) = demo_mcp().await;
    let run = server.settled(&charges("charge-demo", &url)).await;
    assert_eq!((&run["status"], &run["output"]["text"]), (&"completed".into(), &"Charged 5.".into()), "{run}");
    assert_eq!((&run["usage"]["model_requests"], &run["usage"]["total_tokens"]), (&2.into(), &30.into()));
    assert_eq!(run["binding"]["mcp"]["algorithm"], "sha-256");
    let receipts = server.get("/v1/runs/charge-demo/receipts", &server.alice()).await.json();
    let [receipt] = receipts["data"].as_array().unwrap().as_slice() else { panic!("{receipts}") };
    let names: Vec<&str> = receipt.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(names, FIELDS);
    for (name, value) in [
        ("run_id", json!("charge-demo")),
        ("turn", json!(1)),
        ("position", json!(0)),
        ("call_id", json!("call_1")),
        ("tool", json!("charge")),
        ("server_tool", json!("charge")),
        ("backend", json!("mcp")),
        ("stage", json!("completed")),
        ("side_effect_class", json!("non_idempotent_write")),
        ("replay", Value::Null),
        ("attempt", json!(1)),
        ("input", json!({ "amount": 5 })),
        ("error", Value::Null),
    ] {
        assert_eq!(receipt[name], value, "{name}");
    }
    let sent = ledger.entries();
    assert_eq!(sent.len(), 1);
    assert_eq!(receipt["idempotency_key"].as_str(), sent[0].idempotency_key.as_deref());
    let one = server.get("/v1/runs/charge-demo/receipts/1/call_1", &server.alice()).await.json();
    assert_eq!(one, *receipt);
}

#[tokio::test]
async fn receipts_are_found_by_turn_and_label_and_stand_in_the_envelope() {
    let server = Server::start().await;
    let (url, _ledger, _tasks) = demo_mcp().await;
    server.settled(&charges("charge-demo", &url)).await;
    for missing in ["2/call_1", "1/call_2", "1/call_1%2F"] {
        let path = format!("/v1/runs/charge-demo/receipts/{missing}");
        server.get(&path, &server.alice()).await.problem(404, "not-found");
    }
    let envelope = server.get("/v1/runs/charge-demo/envelope", &server.alice()).await.json();
    let receipts = server.get("/v1/runs/charge-demo/receipts", &server.alice()).await.json();
    assert_eq!(envelope["receipts"], receipts["data"]);
    let kinds: Vec<&str> = envelope["messages"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|message| message["content"].as_array().unwrap())
        .map(|piece| piece["type"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["text", "tool-call", "tool-result", "text"]);
}

#[tokio::test]
async fn a_run_that_waits_for_a_person_links_to_what_resolves_it() {
    let server = Server::start().await;
    let (url, ledger, _tasks) = demo_mcp().await;
    let mut body = charges("lost", &url);
    body["model"]["script"][0]["tool_calls"][0] = json!({ "name": "slow", "arguments": { "ms": 60_000 } });
    body["mcp"][0]["timeouts"] = json!({ "call_ms": 300, "call_total_ms": 300 });
    let run = server.settled(&body).await;
    assert_eq!(
        (&run["status"], &run["reason"]),
        (&"suspended".into(), &"tool-reconciliation-required".into()),
        "{run}"
    );
    assert_eq!(run["pending"]["reconciliations"][0]["call_id"], "call_1");
    let links = run["links"].as_array().unwrap();
    let named: Vec<_> =
        links.iter().map(|link| (link["rel"].as_str().unwrap(), link["scope"].as_str().unwrap())).collect();
    let want = [
        ("retry", "admin"),
        ("retry-call", "admin"),
        ("complete-call", "admin"),
        ("fail-call", "admin"),
        ("cancel", "runs:write"),
    ];
    assert_eq!(named, want);
    // Nobody can say in advance what it returned.
    let root = server.token("acme", "root", "admin");
    let unfinished = server.post(links[2]["href"].as_str().unwrap(), &root, &links[2]["body"]).await;
    unfinished.problem(422, "validation-failed");
    let retry = &links[0];
    let receipt = server.get("/v1/runs/lost/receipts/1/call_1", &server.alice()).await.json();
    assert_eq!((&receipt["stage"], &receipt["cause"]), (&"indeterminate".into(), &"time-out".into()));
    let bare = server.post("/v1/runs/lost/resume", &server.alice(), &json!({})).await;
    assert_eq!((bare.status.as_u16(), &bare.json()["revision"]), (200, &run["revision"]), "nothing is decided");
    let admin = server.token("acme", "root", "admin");
    let path = retry["href"].as_str().unwrap();
    let again = server.post_with(path, &admin, &[("prefer", "wait=20")], &retry["body"]).await;
    assert_eq!(again.status.as_u16(), 202, "{:?}", again.body);
    assert_eq!(ledger.received(), 2, "exactly one more attempt");
}
