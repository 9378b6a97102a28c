//! The reference server.

use serde_json::{Value, json};

use super::stdio::Declared;
use super::{patient, play, play_with, product};
use crate::support::counterparts::everything;
use crate::support::product::Product;

#[tokio::test]
async fn everything_is_read_called_and_stopped_at_the_gate() {
    let Some(server) = everything().await else { return };
    let (_database, product) = product().await;
    let calls = [
        ("echo", json!({"message": "vé😀"})),
        ("get-structured-content", json!({"location": "Chicago"})),
        ("toggle-simulated-logging", json!({})),
        ("get-resource-reference", json!({"resourceType": "Text", "resourceId": -1})),
        ("get-sum", json!({"a": "two", "b": 3})),
        ("get-tiny-image", json!({})),
    ];
    let played = play(&product, json!({"url": server.url("/mcp")}), &calls).await.completed();
    assert!(played.tools().len() >= 13 && played.tools().contains(&"get-tiny-image"), "{:?}", played.tools());
    assert_eq!(played.text(1), "Echo: vé😀");
    assert!(played.structured(2)["temperature"].is_number());
    assert!(played.text(3).contains("logging"), "{}", played.text(3));
    assert!(played.failure(4).contains("Must be a finite positive integer"), "{}", played.failure(4));
    played.stopped_at_the_gate(5);
    let image = &played.receipt(6, "completed")["output"]["content"];
    assert!(image.as_array().unwrap().iter().any(|part| part["type"] == "image"), "{image}");
}

/// A client that can be asked gets further tools, which the server adds and announces only after the handshake.
async fn offers_what_it_added(product: &Product, mut entry: Value) {
    entry["elicitation"] = json!("ask");
    let calls = [("echo", json!({"message": "one"})), ("echo", json!({"message": "two"}))];
    let body = json!({"mcp": [entry], "on_catalog_change": "accept"});
    let played = play_with(product, body, &calls).await.completed();
    assert_eq!((played.text(1), played.text(2)), ("Echo: one", "Echo: two"));
    assert!(played.tools().contains(&"trigger-elicitation-request"), "{:?}", played.tools());
}

#[tokio::test]
async fn what_everything_adds_once_it_knows_who_asks_is_offered_over_both_transports() {
    let Some(server) = everything().await else { return };
    let (_database, product) = product().await;
    offers_what_it_added(&product, patient(json!({"url": server.url("/mcp")}))).await;

    let folder = tempfile::tempdir().unwrap();
    let program = "npm/node_modules/.bin/mcp-server-everything";
    let Some(declared) = Declared::asking(program, &["stdio"], folder.path()).await else { return };
    offers_what_it_added(&declared.product, json!({"server": "local"})).await;
}
