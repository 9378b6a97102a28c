//! Runs per second and the latency of one run alone: one tool call, two turns, the demo MCP server in this process.
//!
//! `cargo bench --bench runs` measures SQLite; with `COUNTERSIGN_TEST_POSTGRES` (an admin URL) Postgres too.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use countersign::app::App;
use countersign::clock::SystemClock;
use countersign::commands::{Asker, CreateRun};
use countersign::config::{Config, Wake};
use countersign::mcp::demo::{DemoLedger, router};
use countersign::run::ids::{Actor, RunId, TenantId};
use futures::StreamExt;
use secrecy::SecretString;
use serde_json::json;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Runs of one measurement.
const RUNS: usize = 2_000;
/// Runs under way at once.
const AT_ONCE: usize = 100;
/// Runs measured one after the other.
const ALONE: usize = 200;

fn main() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        measure("sqlite", None, Wake::Off).await?;
        if let Some(url) = countersign::config::process_env("COUNTERSIGN_TEST_POSTGRES") {
            measure("postgres, wake-ups off", Some(url.clone()), Wake::Off).await?;
            measure("postgres, wake-ups by notify", Some(url), Wake::Notify).await?;
        }
        Ok(())
    })
}

async fn measure(name: &str, database: Option<String>, wake: Wake) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let mut config = Config::dev(folder.path(), "127.0.0.1:0".parse()?, &|_| None)?;
    (config.tenant_max_running, config.wake) = (1000, wake);
    if let Some(url) = database {
        config.database_url = SecretString::from(url);
    }
    let app = App::start(&config, Arc::new(SystemClock), true).await?;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/mcp", listener.local_addr()?);
    let stop = CancellationToken::new();
    let (ledger, ended) = (DemoLedger::default(), stop.clone());
    let served = axum::serve(listener, router(ledger.clone(), stop.clone()))
        .with_graceful_shutdown(async move { ended.cancelled().await });
    TaskTracker::new().spawn(async move { served.await });
    one(&app, &url).await?;

    let mut alone = Vec::with_capacity(ALONE);
    for _ in 0..ALONE {
        let began = Instant::now();
        one(&app, &url).await?;
        alone.push(began.elapsed());
    }
    alone.sort();
    let began = Instant::now();
    let runs = futures::stream::iter(0..RUNS).map(|_| one(&app, &url)).buffer_unordered(AT_ONCE);
    let done: Vec<anyhow::Result<()>> = runs.collect().await;
    done.into_iter().collect::<anyhow::Result<()>>()?;
    let took = began.elapsed();
    let line = format!(
        "{name}: {:.0} runs/s with {AT_ONCE} at once; one alone p50 {:?}, p99 {:?}; charges {}",
        per_second(RUNS, took),
        alone[ALONE / 2],
        alone[ALONE * 99 / 100],
        ledger.count("charge"),
    );
    countersign::cli::print(&format!("{line}\n"))?;
    app.stop().await;
    stop.cancel();
    Ok(())
}

fn per_second(count: usize, took: Duration) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX)) / took.as_secs_f64()
}

/// One run from its creation to its result.
async fn one(app: &App, url: &str) -> anyhow::Result<()> {
    let asker = Asker {
        tenant: TenantId::parse("bench").context("tenant")?,
        actor: Actor::parse("bench").context("actor")?,
        scopes: Vec::new(),
    };
    let request: CreateRun = serde_json::from_value(json!({
        "model": {"provider": "scripted", "name": "demo", "script": [
            {"tool_calls": [{"name": "charge", "arguments": {"amount": 5}}]},
            {"text": "Charged 5."},
        ]},
        "input": "Charge 5.",
        "mcp": [{"url": url}],
    }))?;
    let created = app.commands.create(&asker, request, None).await?;
    wait(app, &asker, &created.id).await
}

async fn wait(app: &App, asker: &Asker, id: &RunId) -> anyhow::Result<()> {
    let view = app.store.run_fetch(&asker.tenant, id).await?.context("the run")?;
    let mut heard = app.hub.subscribe(&asker.tenant, view.uid);
    loop {
        let view = app.store.run_fetch(&asker.tenant, id).await?.context("the run")?;
        if view.head.status.is_terminal() {
            anyhow::ensure!(view.head.status.code() == "completed", "{:?}", view.head);
            return Ok(());
        }
        let result = async {
            loop {
                if let countersign::store::hub::Heard::Event(event) = heard.next().await
                    && event.kind == "result"
                {
                    return;
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(1), result).await.unwrap_or_default();
    }
}
