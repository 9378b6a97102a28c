//! How long an approved call waits: from the moment at which the vote is cast to the moment at which its receipt says
//! `executing` and the request leaves.
//!
//! `COUNTERSIGN_TEST_POSTGRES=… cargo bench --bench approvals` (an admin URL). On one node, and on two where one takes the
//! votes and the other drives all runs. One run a time, each with one call.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use countersign::app::App;
use countersign::clock::SystemClock;
use countersign::commands::{Asker, CreateRun, DecideApproval};
use countersign::config::{Config, Wake};
use countersign::mcp::demo::{DemoLedger, router};
use countersign::run::ids::{Actor, RunId, TenantId};
use countersign::store::PlaceInTime;
use countersign::store::hub::Heard;
use secrecy::SecretString;
use serde_json::json;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Approvals of one measurement.
const RUNS: usize = 300;

fn main() -> anyhow::Result<()> {
    let Some(url) = countersign::config::process_env("COUNTERSIGN_TEST_POSTGRES") else {
        return countersign::cli::print("COUNTERSIGN_TEST_POSTGRES is not set\n");
    };
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(async {
        for nodes in [1, 2] {
            measure(&url, nodes).await?;
        }
        Ok(())
    })
}

async fn measure(database: &str, nodes: usize) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let mut config = Config::dev(folder.path(), "127.0.0.1:0".parse()?, &|_| None)?;
    // Nodes of one Postgres wake each other, as `serve` does unless told otherwise.
    (config.tenant_max_running, config.wake) = (1000, Wake::Notify);
    config.database_url = SecretString::from(database.to_owned());
    let drives = App::start(&config, Arc::new(SystemClock), true).await?;
    // The other one takes votes and drives nothing.
    config.max_running = 0;
    let other = if nodes == 2 { Some(App::start(&config, Arc::new(SystemClock), true).await?) } else { None };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/mcp", listener.local_addr()?);
    let stop = CancellationToken::new();
    let served = axum::serve(listener, router(DemoLedger::default(), stop.clone()));
    let served = served.with_graceful_shutdown(stop.clone().cancelled_owned());
    TaskTracker::new().spawn(async move { served.await });
    let votes = other.as_ref().unwrap_or(&drives);
    one(&drives, votes, &url).await?;
    let mut delays = Vec::with_capacity(RUNS);
    for _ in 0..RUNS {
        delays.push(one(&drives, votes, &url).await?);
    }
    delays.sort();
    let at = |percent: usize| delays.get(delays.len() * percent / 100).copied().unwrap_or_default();
    let line =
        format!("{nodes} node(s), {RUNS} approvals: decision to resumed call p50 {:.1?}, p99 {:.1?}\n", at(50), at(99));
    countersign::cli::print(&line)?;
    drives.stop().await;
    if let Some(other) = other {
        other.stop().await;
    }
    stop.cancel();
    Ok(())
}

fn asker(actor: &str) -> anyhow::Result<Asker> {
    let (tenant, actor) = (TenantId::parse("bench").context("tenant")?, Actor::parse(actor).context("actor")?);
    Ok(Asker { tenant, actor, scopes: Vec::new() })
}

/// One run: the time from its vote to `tool-started`, which is told when the receipt is stored and the request leaves.
async fn one(drives: &App, votes: &App, url: &str) -> anyhow::Result<Duration> {
    let request: CreateRun = serde_json::from_value(json!({
        "model": {"provider": "scripted", "name": "demo", "script": [
            {"tool_calls": [{"name": "charge", "arguments": {"amount": 5}}]}, {"text": "Charged."},
        ]},
        "input": "Charge.", "mcp": [{"url": url, "require_approval": true}],
    }))?;
    let starter = asker("bench")?;
    let created = drives.commands.create(&starter, request, None).await?;
    let approval = asked(drives, &starter, &created.id).await?;
    let view = drives.store.run_fetch(&starter.tenant, &created.id).await?.context("the run")?;
    let mut heard = drives.hub.subscribe(&starter.tenant, view.uid);
    heard.reached(view.head.last_seq);
    let vote: DecideApproval = serde_json::from_value(json!({"decision": "approve"}))?;
    let cast = Instant::now();
    votes.commands.approval_decide(&asker("boss")?, approval, vote).await?;
    let mut after = view.head.last_seq;
    loop {
        for event in drives.store.event_list(&starter.tenant, view.uid, after, 100).await? {
            after = event.seq;
            if event.kind == "tool-started" {
                return Ok(cast.elapsed());
            }
        }
        heard.reached(after);
        if let Heard::Event(event) = heard.next().await
            && event.kind == "tool-started"
        {
            return Ok(cast.elapsed());
        }
    }
}

/// The run's approval, once the run waits for it.
async fn asked(app: &App, asker: &Asker, id: &RunId) -> anyhow::Result<uuid::Uuid> {
    let give_up = Instant::now() + Duration::from_secs(20);
    loop {
        let view = app.store.run_fetch(&asker.tenant, id).await?.context("the run")?;
        if view.head.status.reason() == Some("approval-required") {
            let none: Option<PlaceInTime> = None;
            let page = app.store.approval_list(&asker.tenant, (Some("pending"), Some(view.uid)), none, 1).await?;
            return page.into_iter().next().map(|approval| approval.id).context("the approval");
        }
        anyhow::ensure!(Instant::now() < give_up, "the run does not wait");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
