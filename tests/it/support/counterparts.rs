//! The counterparts that nobody here wrote, as `scripts/testworld` installs them. Each is `None`, with a visible note,
//! where its registry could not be reached.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::process::{Process, testworld};

/// The reference MCP server, over Streamable HTTP.
pub(crate) async fn everything() -> Option<Process> {
    let program = testworld("npm/node_modules/.bin/mcp-server-everything")?;
    let command = |port: u16| {
        let mut command = Command::new(&program);
        command.arg("streamableHttp").env("PORT", port.to_string());
        command
    };
    Some(Process::start(command).await)
}

/// A FastMCP server whose tools leave a line in a file: what stands there really happened.
pub(crate) async fn ledger_server(ledger: &Path) -> Option<Process> {
    let python = testworld("py/bin/python")?;
    let script = world("ledger_server.py");
    let command = |port: u16| {
        let mut command = Command::new(&python);
        command.arg(&script).args(["--port", &port.to_string(), "--ledger"]).arg(ledger);
        command
    };
    Some(Process::start(command).await)
}

/// An `OpenID` provider with the client `svc`, and a FastMCP server that takes its tokens only.
pub(crate) async fn token_world() -> Option<(Process, Process)> {
    let python = testworld("py/bin/python")?;
    let issuer = issuer("oidc-provider", "oidc_provider.mjs").await?;
    let server = |port: u16| {
        let mut command = Command::new(&python);
        command.arg(world("token_server.py")).args(["--port", &port.to_string(), "--issuer", &issuer.url("")]);
        command
    };
    let server = Process::start(server).await;
    Some((issuer, server))
}

/// A token issuer whose keys can be changed, and that makes hostile tokens. `tests/world/jwt_issuer.mjs` says how.
pub(crate) async fn jwt_issuer() -> Option<Process> {
    issuer("oauth2-mock-server", "jwt_issuer.mjs").await
}

async fn issuer(package: &str, script: &str) -> Option<Process> {
    let package = testworld(&format!("oidc/node_modules/{package}/package.json"))?;
    let folder = package.ancestors().nth(3)?;
    // Where the machine's node is too old, there is another beside the package.
    let own = folder.join("node_modules/.bin/node");
    let node = if own.exists() { own } else { "node".into() };
    let command = |port: u16| {
        let mut command = Command::new(&node);
        command.arg(world(script)).arg(folder).arg(port.to_string());
        command
    };
    Some(Process::start(command).await)
}

/// A FastMCP server whose streams can be resumed, and that writes the same ledger.
pub(crate) async fn resumable_server(ledger: &Path) -> Option<Process> {
    Some(bench(testworld("py/bin/python")?, ledger, &["--event-store"]).await)
}

/// A FastMCP server that goes on with `slow_charge` by itself.
pub(crate) async fn task_server(ledger: &Path) -> Option<Process> {
    bench_server(ledger, &["--tasks"]).await
}

/// A FastMCP server with a tool for each kind of trouble. `tests/world/bench_server.py` names its arguments.
pub(crate) async fn bench_server(ledger: &Path, arguments: &[&str]) -> Option<Process> {
    Some(bench(testworld("py-tasks/bin/python")?, ledger, arguments).await)
}

async fn bench(python: PathBuf, ledger: &Path, arguments: &[&str]) -> Process {
    let script = world("bench_server.py");
    let command = |port: u16| {
        let mut command = Command::new(&python);
        command.arg(&script).args(["--port", &port.to_string(), "--ledger"]).arg(ledger).args(arguments);
        command
    };
    Process::start(command).await
}

/// A server of the official Python SDK that tells listeners of its list's changes.
pub(crate) async fn listening_server() -> Option<Process> {
    let python = testworld("py-servers/bin/python")?;
    let script = world("listening_server.py");
    let command = |port: u16| {
        let mut command = Command::new(&python);
        command.arg(&script).args(["--port", &port.to_string()]);
        command
    };
    Some(Process::start(command).await)
}

/// A server by FastMCP 1 that asks people to choose, with a form that refers to definitions.
pub(crate) async fn choosing_server() -> Option<Process> {
    let python = testworld("py-sqlite/bin/python")?;
    let script = world("choosing_server.py");
    let command = |port: u16| {
        let mut command = Command::new(&python);
        command.arg(&script).args(["--port", &port.to_string()]);
        command
    };
    Some(Process::start(command).await)
}

/// What the ledger server really did.
pub(crate) fn ledger_lines(ledger: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(ledger).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A fake model server with the answers of a file in `tests/world/aimock`.
pub(crate) async fn aimock(fixtures: &str) -> Option<Process> {
    let program = testworld("npm/node_modules/.bin/llmock")?;
    let fixtures = world("aimock").join(fixtures);
    let command = |port: u16| {
        let mut command = Command::new(&program);
        command.args(["-p", &port.to_string(), "--log-level", "warn", "-f"]).arg(&fixtures);
        command
    };
    Some(Process::start(command).await)
}

/// Another fake model server, which also judges its clients.
pub(crate) async fn llmock() -> Option<Process> {
    let program = testworld("py/bin/llmock")?;
    let command = |port: u16| {
        let mut command = Command::new(&program);
        command.args(["serve", "-h", "127.0.0.1", "-p", &port.to_string(), "--log-level", "warning"]);
        // Slow enough that it sees who stops reading.
        command.args(["--stream-chunk-delay-ms", "30"]);
        command
    };
    Some(Process::start(command).await)
}

/// Gives llmock the answers to come.
pub(crate) async fn llmock_script(server: &Process, behaviors: Value) {
    let body = serde_json::json!({ "behaviors": behaviors }).to_string();
    let sent = reqwest::Client::new().post(server.url("/_llmock/scenario")).body(body).send().await;
    let answer = sent.expect("an answer");
    let (status, text) = (answer.status(), answer.text().await.unwrap_or_default());
    assert!(status.is_success(), "{status} {text}");
}

fn world(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/world").join(name)
}
