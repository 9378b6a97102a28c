//! The reference server, over Streamable HTTP.

use serde_json::json;

use super::{play, product};
use crate::support::counterparts::everything;

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
