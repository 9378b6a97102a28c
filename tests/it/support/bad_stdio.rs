//! A server over stdio that misbehaves as it is told, and what it really did (`tests/world/bad_stdio.py`).

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use countersign::mcp::{Endpoint, McpTarget, Offers, StdioServer, Told};
use countersign::run::spec::Timeouts;
use serde_json::Value;
use tokio::time::{Instant, sleep};

const SOON: Duration = Duration::from_secs(20);

/// How to start it, and its ledger.
pub(crate) struct BadStdio {
    folder: tempfile::TempDir,
    modes: String,
}

impl BadStdio {
    /// A server with these modes, separated by commas.
    pub(crate) fn new(modes: &str) -> Self {
        Self { folder: tempfile::tempdir().unwrap(), modes: modes.to_owned() }
    }

    /// The script and its arguments.
    pub(crate) fn args(&self) -> Vec<String> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/world/bad_stdio.py");
        let args = [&script.display().to_string(), "--ledger", &self.ledger().display().to_string(), "--mode"];
        args.into_iter().chain([self.modes.as_str()]).map(str::to_owned).collect()
    }

    /// As the operator would declare it.
    pub(crate) fn server(&self) -> StdioServer {
        StdioServer {
            name: "bad".to_owned(),
            command: "python3".to_owned(),
            args: self.args(),
            env: vec![("TOKEN".to_owned(), "hunter2-hunter2".into())],
            cwd: None,
        }
    }

    /// As a run reaches it.
    pub(crate) fn target(&self) -> McpTarget {
        McpTarget {
            place: String::new(),
            endpoint: Endpoint::Stdio(Arc::new(self.server())),
            headers: Vec::new(),
            secret_header: None,
            bearer: None,
            timeouts: Timeouts { connect_ms: 20_000, call_ms: 10_000, call_total_ms: 20_000 },
            private_to: None,
            offers: Offers::default(),
            told: Told::default(),
            origin: Some("server/bad".to_owned()),
        }
    }

    fn ledger(&self) -> PathBuf {
        self.folder.path().join("ledger.jsonl")
    }

    /// What happened of that kind.
    pub(crate) fn seen(&self, event: &str) -> Vec<Value> {
        let text = std::fs::read_to_string(self.ledger()).unwrap_or_default();
        // The last line may be half written.
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.filter(|line| line["event"] == event).collect()
    }

    /// How often that happened.
    pub(crate) fn count(&self, event: &str) -> usize {
        self.seen(event).len()
    }

    /// The numbers of all processes that it was, its children's among them.
    pub(crate) fn pids(&self) -> Vec<u64> {
        let own = self.seen("start").into_iter().map(|line| line["pid"].as_u64().unwrap());
        own.chain(self.seen("child").into_iter().map(|line| line["child"].as_u64().unwrap())).collect()
    }

    /// Waits until that happened so often.
    pub(crate) async fn wait_for(&self, event: &str, times: usize) {
        self.wait_until(event, |server| server.count(event) >= times).await;
    }

    /// Waits until none of its processes is left, not even as a zombie.
    pub(crate) async fn wait_until_gone(&self) {
        self.wait_until("gone", |server| server.pids().into_iter().all(|pid| !exists(pid))).await;
    }

    async fn wait_until(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + SOON;
        while !is_so(self) {
            let ledger = std::fs::read_to_string(self.ledger()).unwrap_or_default();
            assert!(Instant::now() < deadline, "{what} did not happen: {ledger}");
            sleep(Duration::from_millis(10)).await;
        }
    }
}

/// Whether there is such a process, as a zombie too.
pub(crate) fn exists(pid: u64) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}
