//! How long an event takes from one node's commit to a reader on another node: two servers in this process, one Postgres.
//!
//! `COUNTERSIGN_TEST_POSTGRES=… cargo bench --bench wake` (an admin URL). From the moment at which the driving node tells
//! its own readers, right after the commit, to the moment at which the other node's reader has read it from the store.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use countersign::app::App;
use countersign::clock::SystemClock;
use countersign::commands::{Asker, CreateRun};
use countersign::config::{Config, Wake};
use countersign::mcp::demo::{DemoLedger, router};
use countersign::run::ids::{Actor, RunId, TenantId};
use countersign::store::hub::Heard;
use futures::StreamExt;
use secrecy::SecretString;
use serde_json::json;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Runs of one measurement.
const RUNS: usize = 200;
/// Turns of a run, each with one call.
const TURNS: usize = 10;

type Seen = HashMap<i64, Instant>;

fn main() -> anyhow::Result<()> {
    let Some(url) = countersign::config::process_env("COUNTERSIGN_TEST_POSTGRES") else {
        return countersign::cli::print("COUNTERSIGN_TEST_POSTGRES is not set\n");
    };
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(async {
        for (wake, at_once) in [(Wake::Notify, 1), (Wake::Notify, 50), (Wake::Off, 50)] {
            measure(&url, wake, at_once).await?;
        }
        Ok(())
    })
}

async fn measure(database: &str, wake: Wake, at_once: usize) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let mut config = Config::dev(folder.path(), "127.0.0.1:0".parse()?, &|_| None)?;
    (config.tenant_max_running, config.wake) = (1000, wake);
    config.database_url = SecretString::from(database.to_owned());
    let drives = App::start(&config, Arc::new(SystemClock), true).await?;
    // The other one only reads.
    config.max_running = 0;
    let reads = App::start(&config, Arc::new(SystemClock), true).await?;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/mcp", listener.local_addr()?);
    let stop = CancellationToken::new();
    let served = axum::serve(listener, router(DemoLedger::default(), stop.clone()));
    let served = served.with_graceful_shutdown(stop.clone().cancelled_owned());
    TaskTracker::new().spawn(async move { served.await });
    one(&drives, &reads, &url).await?;

    let began = Instant::now();
    let runs = futures::stream::iter(0..RUNS).map(|_| one(&drives, &reads, &url)).buffer_unordered(at_once);
    let delays: Vec<anyhow::Result<Vec<Duration>>> = runs.collect().await;
    let took = began.elapsed();
    let mut delays: Vec<Duration> = delays.into_iter().collect::<anyhow::Result<Vec<_>>>()?.concat();
    delays.sort();
    let at = |percent: usize| delays.get(delays.len() * percent / 100).copied().unwrap_or_default();
    let line = format!(
        "wake {wake:?}, {at_once} at once: {} events in {took:.1?}; to the other node's reader p50 {:?}, p99 {:?}\n",
        delays.len(),
        at(50),
        at(99),
    );
    countersign::cli::print(&line)?;
    drives.stop().await;
    reads.stop().await;
    stop.cancel();
    Ok(())
}

/// One run, and how much later the other node's reader had each of its events.
async fn one(drives: &App, reads: &App, url: &str) -> anyhow::Result<Vec<Duration>> {
    let asker = Asker {
        tenant: TenantId::parse("bench").context("tenant")?,
        actor: Actor::parse("bench").context("actor")?,
        scopes: Vec::new(),
    };
    let mut script = vec![json!({"tool_calls": [{"name": "charge", "arguments": {"amount": 5}}]}); TURNS];
    script.push(json!({"text": "Charged.", "delay_ms": 1}));
    let request: CreateRun = serde_json::from_value(json!({
        "model": {"provider": "scripted", "name": "demo", "script": script}, "input": "Charge.", "mcp": [{"url": url}],
    }))?;
    let created = drives.commands.create(&asker, request, None).await?;
    let (told, read) = futures::future::try_join(
        follow(drives, &asker.tenant, &created.id),
        follow(reads, &asker.tenant, &created.id),
    )
    .await?;
    Ok(told.iter().filter_map(|(seq, at)| Some(read.get(seq)?.saturating_duration_since(*at))).collect())
}

/// When a reader on this node had each event of a run that it heard of live.
async fn follow(app: &App, tenant: &TenantId, id: &RunId) -> anyhow::Result<Seen> {
    let view = app.store.run_fetch(tenant, id).await?.context("the run")?;
    let mut subscription = app.hub.subscribe(tenant, view.uid);
    let (mut seen, mut after) = (Seen::new(), 0);
    let mut is_live = false;
    loop {
        for event in app.store.event_list(tenant, view.uid, after, 500).await? {
            after = event.seq;
            if is_live {
                seen.insert(event.seq, Instant::now());
            }
            if event.kind == "result" {
                return Ok(seen);
            }
        }
        subscription.reached(after);
        is_live = true;
        while let Heard::Event(event) = subscription.next().await {
            if event.seq == after + 1 {
                after = event.seq;
                subscription.reached(after);
                seen.insert(event.seq, Instant::now());
            }
            if event.kind == "result" {
                return Ok(seen);
            }
        }
    }
}
