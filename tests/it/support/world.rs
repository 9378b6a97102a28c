//! A whole server in this process, with the demo MCP server beside it: what most tests drive.

use std::sync::Arc;
use std::time::Duration;

use countersign::app::App;
use countersign::clock::SystemClock;
use countersign::commands::{Asker, CommandError, CreateRun, Created, ResumeRun, Resumed};
use countersign::config::Config;
use countersign::mcp::demo::{DemoLedger, router};
use countersign::run::call::Call;
use countersign::run::ids::{Actor, RunId, TenantId};
use countersign::secrets::KeyRing;
use countersign::store::RunView;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

/// A demo MCP server on a port of its own.
pub(crate) struct Demo {
    pub(crate) url: String,
    pub(crate) ledger: DemoLedger,
    _stop: DropGuard,
}

impl Demo {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/mcp", listener.local_addr().unwrap());
        let ledger = DemoLedger::default();
        let stop = CancellationToken::new();
        let app = router(ledger.clone(), stop.clone());
        let ended = stop.clone();
        let served = axum::serve(listener, app).with_graceful_shutdown(async move { ended.cancelled().await });
        TaskTracker::new().spawn(async move { served.await.unwrap() });
        Self { url, ledger, _stop: stop.drop_guard() }
    }
}

/// A server on SQLite in a folder of its own.
pub(crate) struct World {
    pub(crate) app: App,
    pub(crate) demo: Demo,
    folder: TempDir,
}

impl World {
    pub(crate) async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let app = start_app(&folder).await;
        Self { app, demo: Demo::start().await, folder }
    }

    /// Stops the server and starts it again on the same data.
    pub(crate) async fn restart(self) -> Self {
        let Self { app, demo, folder } = self;
        app.stop().await;
        Self { app: start_app(&folder).await, demo, folder }
    }

    /// Stops the server and tries to start it on the same data with these master keys.
    pub(crate) async fn restart_with_keys(self, keys: &str) -> anyhow::Result<()> {
        let Self { app, folder, .. } = self;
        app.stop().await;
        let mut config = Config::dev(folder.path(), "127.0.0.1:0".parse()?, &|_| None)?;
        config.keys = Arc::new(KeyRing::parse(keys)?);
        App::start(&config, Arc::new(SystemClock), true).await?.stop().await;
        Ok(())
    }

    pub(crate) async fn create(&self, body: Value) -> Result<Created, CommandError> {
        let request: CreateRun = serde_json::from_value(body).unwrap();
        self.app.commands.create(&asker(), request, None).await
    }

    pub(crate) async fn view(&self, id: &RunId) -> RunView {
        self.app.store.run_fetch(&asker().tenant, id).await.unwrap().unwrap()
    }

    pub(crate) async fn resume(&self, id: &str, body: Value) -> Result<Resumed, CommandError> {
        let request: ResumeRun = serde_json::from_value(body).unwrap();
        self.app.commands.resume(&asker(), &run_id(id), request).await.map(|(resumed, _)| resumed)
    }

    pub(crate) async fn cancel(&self, id: &str) -> Result<(), CommandError> {
        self.app.commands.cancel(&asker(), &run_id(id)).await
    }

    /// The receipts of a run.
    pub(crate) async fn receipts(&self, id: &str) -> Vec<Call> {
        let view = self.view(&run_id(id)).await;
        self.app.store.receipt_list(&asker().tenant, view.uid, None, 1000).await.unwrap().rows
    }

    /// The run once it is terminal or suspended.
    pub(crate) async fn rested(&self, id: &RunId) -> RunView {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let view = self.view(id).await;
            if !matches!(view.head.status.code(), "queued" | "running") {
                return view;
            }
            assert!(Instant::now() < deadline, "{id} did not come to rest: {:?}", view.head);
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// The events of a run, as (type, whole event).
    pub(crate) async fn events(&self, view: &RunView) -> Vec<(String, Value)> {
        let events = self.app.store.event_list(&asker().tenant, view.uid, 0, 1000).await.unwrap();
        events.into_iter().map(|event| (event.kind, serde_json::from_str(&event.body).unwrap())).collect()
    }

    /// The body of the first example, on this world's MCP server.
    pub(crate) fn charge(&self, id: &str) -> Value {
        json!({
            "id": id,
            "model": {"provider": "scripted", "name": "demo", "script": [
                {"tool_calls": [{"name": "charge", "arguments": {"amount": 5}}]},
                {"text": "Charged 5."},
            ]},
            "input": "Charge 5.",
            "mcp": [{"url": self.demo.url}],
        })
    }
}

async fn start_app(folder: &TempDir) -> App {
    let mut config = Config::dev(folder.path(), "127.0.0.1:0".parse().unwrap(), &|_| None).unwrap();
    // Every resume reads the servers anew, so that a change is seen at once.
    config.catalog_max_age_ms = 0;
    App::start(&config, Arc::new(SystemClock), true).await.unwrap()
}

pub(crate) fn asker() -> Asker {
    let (tenant, actor) = (TenantId::parse("acme").unwrap(), Actor::parse("alice").unwrap());
    Asker { tenant, actor, scopes: Vec::new() }
}

pub(crate) fn run_id(id: &str) -> RunId {
    RunId::parse(id).unwrap()
}

/// A run that makes these calls in its first turn and then says "Done.", on these servers.
pub(crate) fn run_on(id: &str, calls: &[(&str, Value)], mcp: Value) -> Value {
    let calls: Vec<Value> =
        calls.iter().map(|(name, arguments)| json!({"name": name, "arguments": arguments})).collect();
    json!({
        "id": id,
        "model": {"provider": "scripted", "name": "demo", "script": [{"tool_calls": calls}, {"text": "Done."}]},
        "input": "Go.",
        "mcp": mcp,
    })
}
