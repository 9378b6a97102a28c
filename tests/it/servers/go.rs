//! Servers written in Go: another family of implementations, and catalogs that are long or come from a file.

use std::process::Command;

use serde_json::json;

use super::{play, product};
use crate::support::process::{Process, testworld};

#[tokio::test]
async fn grafana_s_long_catalog_is_read_whole_and_its_failures_are_failures() {
    let Some(program) = testworld("py-grafana/bin/mcp-grafana") else { return };
    // No Grafana listens there: each call fails, after the server has taken it.
    let server = Process::start(|port| {
        let mut command = Command::new(&program);
        command.env("GRAFANA_URL", "http://127.0.0.1:1");
        command.args(["-t", "streamable-http", "-address", &format!("127.0.0.1:{port}")]);
        command
    })
    .await;
    let (_database, product) = product().await;
    let calls = [
        ("list_datasources", json!({})),
        ("get_dashboard_by_uid", json!({"uid": 7})),
        ("search_dashboards", json!({"query": "a"})),
    ];
    let played = play(&product, json!({"url": server.url("/mcp")}), &calls).await.completed();
    assert_eq!(played.tools().len(), 79);
    assert!(played.failure(1).contains("refused"), "{}", played.failure(1));
    played.stopped_at_the_gate(2);
    assert!(played.failure(3).contains("refused"), "{}", played.failure(3));
}
