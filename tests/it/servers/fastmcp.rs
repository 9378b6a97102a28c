//! FastMCP and the official Python SDK, which serve both protocol eras.

use std::path::Path;

use serde_json::{Value, json};

use super::{Played, play, play_with, product};
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
    assert_eq!(played.tools().len(), 11, "{:?}", played.tools());
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
async fn fastmcp_carries_each_kind_of_call_in_both_eras_in_plain_json_and_on_streams() {
    for arguments in [&[] as &[&str], &["--stateless", "--json"], &["--sessions"], &["--sessions", "--event-store"]] {
        let folder = tempfile::tempdir().unwrap();
        let ledger = folder.path().join("ledger.jsonl");
        let Some(server) = bench_server(&ledger, arguments).await else { return };
        carries_calls(server, &ledger).await;
    }
}

/// What became of a run during which the server got another tool.
async fn grown(arguments: &[&str], on_catalog_change: &str) -> Option<Played> {
    let folder = tempfile::tempdir().unwrap();
    let server = bench_server(&folder.path().join("ledger.jsonl"), arguments).await?;
    let (_database, product) = product().await;
    let calls = [
        ("tool_add", json!({"name": "extra"})),
        // With sessions the change is told on another stream than the answer: it has the time of this call to arrive.
        ("slow", json!({"seconds": 0.5})),
        ("extra", json!({"x": "1"})),
    ];
    let body = json!({"mcp": [{"url": server.url("/mcp")}], "on_catalog_change": on_catalog_change});
    Some(play_with(&product, body, &calls).await)
}

#[tokio::test]
async fn a_tool_that_fastmcp_adds_during_a_run_is_offered_where_changes_are_accepted_in_both_eras() {
    for arguments in [&[] as &[&str], &["--sessions"]] {
        let Some(played) = grown(arguments, "accept").await else { return };
        let played = played.completed();
        assert_eq!(played.run["binding"]["revision"], 2, "{}", played.run);
        assert!(played.tools().contains(&"extra"), "{:?}", played.tools());
        assert_eq!(played.text(3), "extra:1");
    }
}

#[tokio::test]
async fn a_tool_that_fastmcp_adds_during_a_run_stops_it_where_changes_are_not_accepted_in_both_eras() {
    for arguments in [&[] as &[&str], &["--sessions"]] {
        let Some(played) = grown(arguments, "stop").await else { return };
        let end = (&played.run["status"], &played.run["reason"], &played.run["binding"]["revision"]);
        assert_eq!(end, (&json!("stopped"), &json!("mcp-catalog-changed"), &json!(1)), "{}", played.run);
        assert_eq!(played.text(1), "added extra");
        assert!(!played.receipts.iter().any(|receipt| receipt["tool"] == "extra"), "{:?}", played.receipts);
    }
}

#[tokio::test]
async fn the_official_python_server_reads_and_stops_at_the_gate() {
    let Some(server) = listening_server().await else { return };
    let (_database, product) = product().await;
    let calls = [("echo", json!({"text": "vé😀"})), ("grow", json!({"name": "more"})), ("echo", json!({"text": 7}))];
    let body = json!({"mcp": [{"url": server.url("/mcp")}], "on_catalog_change": "accept"});
    let played = play_with(&product, body, &calls).await.completed();
    assert_eq!(played.text(1), "vé😀");
    assert_eq!(played.text(2), "added more");
    played.stopped_at_the_gate(3);
}
