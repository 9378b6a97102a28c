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

#[tokio::test]
async fn toolbox_s_tools_come_from_a_file_and_read_a_database() {
    let program = "toolbox/node_modules/@toolbox-sdk/server-linux-x64/bin/toolbox";
    let Some(program) = testworld(program) else { return };
    let folder = tempfile::tempdir().unwrap();
    let (tools, rows) = (folder.path().join("tools.yaml"), folder.path().join("rows.db"));
    let file = format!(
        "sources: {{db: {{kind: sqlite, database: {}}}}}\ntools:\n  add_row: {{kind: sqlite-sql, source: db, description: \
         Add a row, parameters: [{{name: a, type: integer, description: The value}}], statement: insert into t values \
         (?)}}\n  make_table: {{kind: sqlite-sql, source: db, description: Make it, statement: create table t (a int)}}\n  \
         list_rows: {{kind: sqlite-sql, source: db, description: List rows, statement: select a from t}}\n",
        rows.display()
    );
    std::fs::write(&tools, file).unwrap();
    let server = Process::start(|port| {
        let mut command = Command::new(&program);
        command.args(["--address", "127.0.0.1", "--port", &port.to_string(), "--tools-file"]).arg(&tools);
        command
    })
    .await;
    let (_database, product) = product().await;
    let calls = [
        ("list_rows", json!({})),
        ("make_table", json!({})),
        ("add_row", json!({"a": 7})),
        ("list_rows", json!({})),
        ("add_row", json!({"a": "seven"})),
    ];
    let played = play(&product, json!({"url": server.url("/mcp")}), &calls).await.completed();
    assert_eq!(played.tools(), ["add_row", "list_rows", "make_table"]);
    assert!(played.failure(1).contains("no such table"), "{}", played.failure(1));
    assert!(played.text(4).contains('7'), "{}", played.text(4));
    played.stopped_at_the_gate(5);
}
