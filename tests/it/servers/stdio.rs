//! Servers that speak over their standard streams only: the operator declares them in a file, and the product starts them.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::{Played, play_with};
use crate::support::database::Database;
use crate::support::process::testworld;
use crate::support::product::{Options, Product};

/// The product with a server `local` in its file; `None`, with a visible note, where the server is not installed.
pub(super) struct Declared {
    pub(super) product: Product,
    _database: Database,
}

impl Declared {
    pub(super) async fn start(program: &str, arguments: &[&str], folder: &Path) -> Option<Self> {
        Some(Self::of(&testworld(program)?, arguments, folder, "deny").await)
    }

    /// The same for one that may ask people.
    pub(super) async fn asking(program: &str, arguments: &[&str], folder: &Path) -> Option<Self> {
        Some(Self::of(&testworld(program)?, arguments, folder, "ask").await)
    }

    async fn of(program: &Path, arguments: &[&str], folder: &Path, elicitation: &str) -> Self {
        let text = |text: &str| Value::from(text).to_string();
        let path = std::env::var_os("PATH").unwrap_or_default().into_string().unwrap();
        let arguments: Vec<String> = arguments.iter().map(|argument| text(argument)).collect();
        let file = format!(
            "[mcp_servers.local]\ncommand = {}\nargs = [{}]\ncwd = {}\n\
             env = {{ PATH = {}, MEMORY_FILE_PATH = {} }}\n\
             timeouts = {{ connect_ms = 60000, call_ms = 30000, call_total_ms = 60000 }}\nelicitation = {}\n",
            text(program.to_str().unwrap()),
            arguments.join(", "),
            text(folder.to_str().unwrap()),
            text(&path),
            text(folder.join("memory.jsonl").to_str().unwrap()),
            text(elicitation),
        );
        let config = folder.join("countersign.toml");
        std::fs::write(&config, file).unwrap();
        let database = Database::sqlite().await;
        let options = Options::default().with("--config", config.to_str().unwrap());
        Self { product: Product::start_as(&database.url, &options).await, _database: database }
    }

    /// A run that made these calls.
    async fn play(&self, calls: &[(&str, Value)]) -> Played {
        play_with(&self.product, json!({"mcp": [{"server": "local"}]}), calls).await
    }
}

/// Starts a server in a folder of its own and plays these calls on it.
async fn played(program: &str, arguments: &[&str], folder: &Path, calls: &[(&str, Value)]) -> Option<Played> {
    let declared = Declared::start(program, arguments, folder).await?;
    Some(declared.play(calls).await.completed())
}

fn folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    // The servers compare real paths.
    let path = folder.path().canonicalize().unwrap();
    (folder, path)
}

#[tokio::test]
async fn the_filesystem_server_writes_reads_and_refuses() {
    let (_folder, path) = folder();
    let note = path.join("note.txt");
    let calls = [
        ("write_file", json!({"path": note, "content": "vé😀"})),
        ("read_text_file", json!({"path": note})),
        ("read_text_file", json!({"path": "/etc/hostname"})),
        ("read_text_file", json!({"path": 7})),
        ("list_directory", json!({"path": path})),
    ];
    let arguments = [path.to_str().unwrap()];
    let Some(played) = played("npm/node_modules/.bin/mcp-server-filesystem", &arguments, &path, &calls).await else {
        return;
    };
    assert_eq!(played.tools().len(), 14);
    assert!(played.text(1).contains("Successfully wrote"), "{}", played.text(1));
    assert_eq!(std::fs::read_to_string(&note).unwrap(), "vé😀");
    assert_eq!(played.structured(2)["content"], "vé😀");
    assert!(played.failure(3).contains("outside allowed directories"), "{}", played.failure(3));
    played.stopped_at_the_gate(4);
    assert!(played.text(5).contains("note.txt"), "{}", played.text(5));
}

#[tokio::test]
async fn the_memory_server_keeps_what_a_call_wrote() {
    let (_folder, path) = folder();
    let calls = [
        ("create_entities", json!({"entities": [{"name": "Ada", "entityType": "person", "observations": ["wrote"]}]})),
        ("search_nodes", json!({"query": "Ada"})),
        ("add_observations", json!({"observations": [{"entityName": "nobody", "contents": ["x"]}]})),
        ("create_entities", json!({"entities": "Ada"})),
    ];
    let Some(played) = played("npm/node_modules/.bin/mcp-server-memory", &[], &path, &calls).await else { return };
    assert_eq!(played.tools().len(), 9);
    assert_eq!(played.structured(1)["entities"][0]["name"], "Ada");
    assert_eq!(played.structured(2)["entities"][0]["observations"], json!(["wrote"]));
    assert!(played.failure(3).contains("nobody not found"), "{}", played.failure(3));
    played.stopped_at_the_gate(4);
    let kept = std::fs::read_to_string(path.join("memory.jsonl")).unwrap();
    assert_eq!(kept.matches("Ada").count(), 1, "{kept}");
}

#[tokio::test]
async fn the_sequential_thinking_server_takes_a_thought() {
    let (_folder, path) = folder();
    let thought = json!({"thought": "x", "nextThoughtNeeded": false, "thoughtNumber": 1, "totalThoughts": 1});
    let calls = [("sequentialthinking", thought), ("sequentialthinking", json!({"thought": "x"}))];
    let program = "npm/node_modules/.bin/mcp-server-sequential-thinking";
    let Some(played) = played(program, &[], &path, &calls).await else { return };
    assert_eq!(played.tools(), ["sequentialthinking"]);
    assert_eq!(played.structured(1)["thoughtHistoryLength"], 1);
    played.stopped_at_the_gate(2);
}

#[tokio::test]
async fn a_server_that_talks_on_its_output_is_understood() {
    let (_folder, path) = folder();
    let calls = [("add", json!({"a": 1, "b": 2})), ("echo", json!({"message": "hi"})), ("echo", json!({}))];
    let Some(played) = played("npm/node_modules/.bin/mcp-hello-world", &[], &path, &calls).await else { return };
    assert_eq!(played.tools(), ["add", "debug", "echo"]);
    assert_eq!((played.text(1), played.text(2)), ("The sum is: 3", "You said: hi"));
    played.stopped_at_the_gate(3);
}

#[tokio::test]
async fn the_time_server_converts_and_refuses() {
    let (_folder, path) = folder();
    let tokyo = json!({"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"});
    let calls = [
        ("convert_time", tokyo),
        ("get_current_time", json!({"timezone": "Nowhere/X"})),
        ("get_current_time", json!({})),
    ];
    let arguments = ["--local-timezone", "UTC"];
    let Some(played) = played("py-servers/bin/mcp-server-time", &arguments, &path, &calls).await else { return };
    assert_eq!(played.tools(), ["convert_time", "get_current_time"]);
    assert_eq!(played.structured(1)["time_difference"], "+9.0h");
    assert!(played.failure(2).contains("Invalid timezone"), "{}", played.failure(2));
    played.stopped_at_the_gate(3);
}

#[tokio::test]
async fn the_git_server_commits_and_shows() {
    let (_folder, path) = folder();
    let git = |arguments: &[&str]| {
        let made = Command::new("git").args(["-C", path.to_str().unwrap()]).args(arguments).output();
        made.is_ok_and(|made| made.status.success())
    };
    if !git(&["init", "-q"]) {
        eprintln!("skipped: there is no git");
        return;
    }
    assert!(git(&["config", "user.email", "a@example.com"]) && git(&["config", "user.name", "A"]));
    std::fs::write(path.join("a.txt"), "a\n").unwrap();
    let calls = [
        ("git_add", json!({"repo_path": path, "files": ["a.txt"]})),
        ("git_commit", json!({"repo_path": path, "message": "Add a"})),
        ("git_log", json!({"repo_path": path})),
        ("git_show", json!({"repo_path": path, "revision": "nope"})),
        ("git_show", json!({"repo_path": path})),
    ];
    let arguments = ["--repository", path.to_str().unwrap()];
    let Some(played) = played("py-servers/bin/mcp-server-git", &arguments, &path, &calls).await else { return };
    assert_eq!(played.tools().len(), 12);
    assert!(played.text(2).contains("committed"), "{}", played.text(2));
    assert!(played.text(3).contains("Add a"), "{}", played.text(3));
    assert!(played.failure(4).contains("nope"), "{}", played.failure(4));
    played.stopped_at_the_gate(5);
    assert!(git(&["rev-parse", "--verify", "-q", "HEAD"]));
}

#[tokio::test]
async fn the_fetch_server_fetches_and_fails() {
    let (_folder, path) = folder();
    let arguments = ["--ignore-robots-txt", "--allow-private-ips"];
    let Some(declared) = Declared::start("py-servers/bin/mcp-server-fetch", &arguments, &path).await else { return };
    let product = &declared.product;
    let calls = [
        ("fetch", json!({"url": product.url("/openapi.json"), "max_length": 200, "raw": true})),
        ("fetch", json!({"url": product.url("/nowhere")})),
        ("fetch", json!({"url": product.url("/"), "max_length": "long"})),
    ];
    let played = declared.play(&calls).await.completed();
    assert_eq!(played.tools(), ["fetch"]);
    assert!(played.text(1).contains("openapi"), "{}", played.text(1));
    assert!(played.failure(2).contains("404"), "{}", played.failure(2));
    played.stopped_at_the_gate(3);
}

#[tokio::test]
async fn the_sqlite_server_writes_reads_and_hides_its_errors_in_its_text() {
    let (_folder, path) = folder();
    let calls = [
        ("create_table", json!({"query": "CREATE TABLE t (a int)"})),
        ("write_query", json!({"query": "INSERT INTO t VALUES (1)"})),
        ("read_query", json!({"query": "SELECT a FROM t"})),
        ("read_query", json!({"query": "SELECT nope"})),
        ("read_query", json!({})),
    ];
    let database = path.join("t.db");
    let arguments = ["--db-path", database.to_str().unwrap()];
    let Some(played) = played("py-sqlite/bin/mcp-server-sqlite", &arguments, &path, &calls).await else { return };
    assert_eq!(played.tools().len(), 6);
    assert_eq!(played.text(2), "[{'affected_rows': 1}]");
    assert_eq!(played.text(3), "[{'a': 1}]");
    // A failure that the server does not call one: it stays what the server said.
    assert!(played.text(4).contains("no such column"), "{}", played.text(4));
    played.stopped_at_the_gate(5);
}

#[tokio::test]
async fn the_rust_filesystem_server_reads_writes_and_refuses() {
    let (_folder, path) = folder();
    let note = path.join("note.txt");
    let calls = [
        ("write_file", json!({"path": note, "content": "vé😀"})),
        ("read_text_file", json!({"path": note})),
        ("read_text_file", json!({"path": "/etc/hostname"})),
        ("read_text_file", json!({"path": 7})),
    ];
    let arguments = ["--allow-write", path.to_str().unwrap()];
    let program = "rust-filesystem/bin/rust-mcp-filesystem";
    let Some(played) = played(program, &arguments, &path, &calls).await else { return };
    assert_eq!(played.tools().len(), 24, "{:?}", played.tools());
    assert_eq!(std::fs::read_to_string(&note).unwrap(), "vé😀");
    assert!(played.text(2).contains("vé😀"), "{}", played.text(2));
    assert!(played.failure(3).contains("outside allowed"), "{}", played.failure(3));
    played.stopped_at_the_gate(4);
}
