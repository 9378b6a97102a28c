//! FastMCP and the official Python SDK, which serve both protocol eras.

use std::path::Path;

use serde_json::{Value, json};

use super::{play, product};
use crate::support::counterparts::{bench_server, ledger_lines, listening_server};
use crate::support::process::Process;

/// The calls that each of its variants must carry alike.
async fn carries_calls(server: Process, ledger: &Path) {
    let (_database, product) = product().await;
    let calls = [
        ("add", json!({"a": 2, "b": 3})),
        ("put", json!({"key": "k", "value": "vé😀"})),
        ("charge", json!({"account": "a", "cents": 5})),
        ("fail", json!({"kind": "tool"})),
        ("fail", json!({"kind": "crash"})),
        ("slow", json!({"seconds": 0.4})),
        ("charge", json!({"account": "a", "cents": 5.5})),
        ("slow", json!({"seconds": 61})),
    ];
    let played = play(&product, json!({"url": server.url("/mcp")}), &calls).await.completed();
    assert_eq!(played.tools().len(), 10, "{:?}", played.tools());
    assert_eq!(played.structured(1), &json!({"total": 5, "parts": [2, 3]}));
    assert_eq!(played.structured(2), &json!({"size": 1}));
    assert_eq!(played.structured(3), &json!({"charged": 5, "account": "a"}));
    assert!(played.failure(4).contains("the tool says no"), "{}", played.failure(4));
    assert!(played.failure(5).contains("broken inside"), "{}", played.failure(5));
    assert_eq!(played.text(6), "slept 0.4");
    played.stopped_at_the_gate(7);
    played.stopped_at_the_gate(8);
    let tools: Vec<Value> = ledger_lines(ledger).iter().map(|line| line["tool"].clone()).collect();
    assert_eq!(tools, ["put", "charge"]);
}

#[tokio::test]
async fn fastmcp_carries_each_kind_of_call_over_sessions_plain_json_and_resumable_streams() {
    for arguments in [&[] as &[&str], &["--stateless", "--json"], &["--event-store"]] {
        let folder = tempfile::tempdir().unwrap();
        let ledger = folder.path().join("ledger.jsonl");
        let Some(server) = bench_server(&ledger, arguments).await else { return };
        carries_calls(server, &ledger).await;
    }
}

#[tokio::test]
async fn the_official_python_server_reads_and_stops_at_the_gate() {
    let Some(server) = listening_server().await else { return };
    let (_database, product) = product().await;
    let calls = [("echo", json!({"text": "vé😀"})), ("grow", json!({"name": "more"})), ("echo", json!({"text": 7}))];
    let body = json!({"mcp": [{"url": server.url("/mcp")}], "on_catalog_change": "accept"});
    let played = super::play_with(&product, body, &calls).await.completed();
    assert_eq!(played.text(1), "vé😀");
    assert_eq!(played.text(2), "added more");
    played.stopped_at_the_gate(3);
}
