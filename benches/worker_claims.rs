//! Calls per second that 50 workers claim at once, and those that they claim and answer: the whole way to the committed
//! receipt, without HTTP.
//!
//! `cargo bench --bench worker_claims` measures SQLite; with `COUNTERSIGN_TEST_POSTGRES` (an admin URL) Postgres too.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use countersign::app::App;
use countersign::clock::SystemClock;
use countersign::commands::{Asker, CallResult, ClaimCalls, CreateRun, Workload};
use countersign::config::{Config, Wake};
use countersign::run::ids::{Actor, TenantId};
use futures::future::try_join_all;
use secrecy::SecretString;
use serde_json::json;
use tokio_util::sync::CancellationToken;

const WORKERS: usize = 50;
const RUNS: usize = 400;
/// Calls of one run.
const CALLS: usize = 5;

fn main() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        measure("sqlite", None).await?;
        if let Some(url) = countersign::config::process_env("COUNTERSIGN_TEST_POSTGRES") {
            measure("postgres", Some(url)).await?;
        }
        Ok(())
    })
}

async fn measure(name: &str, database: Option<String>) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let mut config = Config::dev(folder.path(), "127.0.0.1:0".parse()?, &|_| None)?;
    (config.tenant_max_running, config.wake) = (1000, Wake::Off);
    if let Some(url) = database {
        config.database_url = SecretString::from(url);
    }
    let app = App::start(&config, Arc::new(SystemClock), true).await?;
    let asker = Asker {
        scopes: Vec::new(),
        tenant: TenantId::parse("bench-workers").context("tenant")?,
        actor: Actor::parse("bench").context("actor")?,
    };
    for answers in [false, true] {
        // A version of its own, so that what is left of one measurement is not claimed by the next.
        let version = format!("{}-{answers}", std::process::id());
        offer(&app, &asker, &version).await?;
        let (took, calls) = claim_all(&app, &asker, &version, answers).await?;
        let what = if answers { "claimed and answered" } else { "claimed" };
        let rate = f64::from(u32::try_from(calls)?) / took.as_secs_f64();
        countersign::cli::print(&format!(
            "{name}: {rate:.0} calls/s {what} by {WORKERS} workers ({calls} in {took:?})\n"
        ))?;
    }
    app.stop().await;
    Ok(())
}

/// Runs whose calls are all on offer.
async fn offer(app: &App, asker: &Asker, version: &str) -> anyhow::Result<()> {
    let call = json!({"name": "work", "arguments": {"n": 1}});
    for _ in 0..RUNS {
        let request: CreateRun = serde_json::from_value(json!({
            "model": {"provider": "scripted", "name": "demo", "script": [
                {"tool_calls": vec![call.clone(); CALLS]}, {"text": "Done."},
            ]},
            "input": "Work.",
            "tools": [{"name": "work", "executor": {"type": "worker", "tool": "bench.work", "version": version}}],
        }))?;
        let created = app.commands.create(asker, request, None).await?;
        let view = app.store.run_fetch(&asker.tenant, &created.id).await?.context("the run")?;
        let mut heard = app.hub.subscribe(&asker.tenant, view.uid);
        while app.store.run_fetch(&asker.tenant, &created.id).await?.context("the run")?.head.state.turns == 0 {
            heard.next().await;
        }
    }
    Ok(())
}

async fn claim_all(app: &App, asker: &Asker, version: &str, answers: bool) -> anyhow::Result<(Duration, usize)> {
    let (got, stop, began) = (AtomicUsize::new(0), CancellationToken::new(), Instant::now());
    let working = (0..WORKERS).map(|n| {
        let (got, stop) = (&got, &stop);
        async move {
            while got.load(Ordering::Relaxed) < RUNS * CALLS {
                let request: ClaimCalls = serde_json::from_value(json!({
                    "tools": [{"tool": "bench.work", "version": version}], "max": 4, "wait_ms": 50,
                }))?;
                let name = format!("w{n}");
                let by = (name.as_str(), Workload::default());
                let claimed = app.commands.calls_claim(asker, by, request, stop).await?;
                got.fetch_add(claimed.calls.len(), Ordering::Relaxed);
                for call in claimed.calls.iter().filter(|_| answers) {
                    let result: CallResult = serde_json::from_value(json!({"lease": call.lease, "output": 1}))?;
                    app.commands.call_settle(asker, &call.id, result).await?;
                }
            }
            anyhow::Ok(())
        }
    });
    try_join_all(working).await?;
    Ok((began.elapsed(), got.load(Ordering::Relaxed)))
}
