//! What the pool costs: a call through it against a bare call of the protocol library to the same server in the same
//! process, the start of a run with a warm pool, and connections and memory of 100 tenants with 3 servers each.
//!
//! `cargo bench --bench mcp_pool`; under two minutes. The demo server of `dev` answers in this process, so its memory is
//! in the figures too.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use axum::serve::ListenerExt as _;
use countersign::app::App;
use countersign::bulk::Held;
use countersign::clock::SystemClock;
use countersign::commands::{Asker, CreateRun};
use countersign::config::Config;
use countersign::mcp::demo::{DemoLedger, router};
use countersign::mcp::{Endpoint, MayLeave, McpPool, McpTarget, Offers, PoolSettings, ProgressSink, Told, ToolRequest};
use countersign::net::{Egress, EgressAllow};
use countersign::run::ids::{Actor, TenantId};
use countersign::run::outcome::{Answer, Outcome};
use countersign::run::spec::Timeouts;
use rmcp::ServiceExt as _;
use rmcp::model::CallToolRequestParams;
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use serde_json::json;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Calls of one measurement, and runs of the other.
const CALLS: usize = 2_000;
const RUNS: usize = 200;
const TENANTS: usize = 100;
const SERVERS: usize = 3;

fn main() -> anyhow::Result<()> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(async {
        let stop = CancellationToken::new();
        let tasks = TaskTracker::new();
        let mut urls = Vec::new();
        for _ in 0..SERVERS {
            urls.push(serve(&tasks, &stop).await?);
        }
        calls(&urls[0]).await?;
        starts(&urls[0]).await?;
        tenants(&urls).await?;
        stop.cancel();
        Ok(())
    })
}

/// A demo server on a port of its own.
async fn serve(tasks: &TaskTracker, stop: &CancellationToken) -> anyhow::Result<String> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/mcp", listener.local_addr()?);
    // Without this the kernel's 40 ms for a late acknowledgement would be most of what is measured.
    let listener = listener.tap_io(|stream| drop(stream.set_nodelay(true)));
    let served = axum::serve(listener, router(DemoLedger::default(), stop.clone()));
    let served = served.with_graceful_shutdown(stop.clone().cancelled_owned());
    tasks.spawn(async move { served.await });
    Ok(url)
}

fn pool() -> anyhow::Result<Arc<McpPool>> {
    let settings = PoolSettings::bounded(1_000, 200, 128 << 20);
    Ok(McpPool::new(egress()?.client(Duration::from_secs(10), None)?, settings))
}

fn target(url: &str) -> anyhow::Result<McpTarget> {
    Ok(McpTarget {
        place: String::new(),
        endpoint: Endpoint::Http(url.parse()?),
        headers: Vec::new(),
        secret_header: None,
        bearer: None,
        told: Told::default(),
        timeouts: Timeouts::default(),
        private_to: None,
        origin: None,
        offers: Offers::default(),
    })
}

fn charge(number: usize) -> ToolRequest {
    ToolRequest {
        server_tool: "charge".to_owned(),
        arguments: json!({ "amount": 5 }).as_object().cloned().unwrap_or_default(),
        meta: serde_json::Map::new(),
        idempotency_key: format!("key-{number}"),
        input_schema: json!({}),
        progress: ProgressSink::none(),
        output_schema: None,
        turned_away: 0,
        may_leave: MayLeave::new(|| true),
        asks: None,
        continuation: None,
        held: Held::default(),
    }
}

async fn pooled(pool: &McpPool, tenant: &TenantId, target: &McpTarget, number: usize) -> anyhow::Result<()> {
    match pool.call(tenant, target, charge(number), CancellationToken::new()).await {
        Outcome::Answered(Answer::Done { .. }) => Ok(()),
        other => bail!("a call failed: {other:?}"),
    }
}

/// One call after the other, each way in turn, so that both meet the same machine.
async fn calls(url: &str) -> anyhow::Result<()> {
    let (pool, target, tenant) = (pool()?, target(url)?, tenant(0)?);
    let config = StreamableHttpClientTransportConfig::with_uri(url);
    let bare = ().serve(StreamableHttpClientTransport::with_client(http_client()?, config)).await?;
    let (mut through_pool, mut without) = (Vec::with_capacity(CALLS), Vec::with_capacity(CALLS));
    for number in 0..CALLS {
        let began = Instant::now();
        pooled(&pool, &tenant, &target, number).await?;
        through_pool.push(began.elapsed());
        let began = Instant::now();
        let params = CallToolRequestParams::new("charge").with_arguments(charge(number).arguments);
        bare.call_tool(params).await?;
        without.push(began.elapsed());
    }
    let (ours, theirs) = (median(through_pool), median(without));
    let ratio = ours.as_secs_f64() / theirs.as_secs_f64();
    print(&format!("a call: {ours:?} through the pool, {theirs:?} without (medians of {CALLS}), ratio {ratio:.2}\n"))?;
    bare.cancel().await?;
    pool.close().await;
    Ok(())
}

/// An HTTP client like the pool's, so that only what is above it is compared.
fn http_client() -> anyhow::Result<reqwest::Client> {
    let builder = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).no_proxy();
    Ok(builder.connect_timeout(Duration::from_secs(10)).pool_idle_timeout(Duration::from_secs(3)).build()?)
}

fn egress() -> anyhow::Result<Egress> {
    Ok(Egress::new(EgressAllow::parse(["127.0.0.0/8"])?))
}

/// From the request to create a run until it is stored, when its tenant has a connection already.
async fn starts(url: &str) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let config = Config::dev(folder.path(), "127.0.0.1:0".parse()?, &|_| None)?;
    let app = App::start(&config, Arc::new(SystemClock), true).await?;
    let asker = Asker { tenant: tenant(0)?, actor: Actor::parse("bench").context("an actor")?, scopes: Vec::new() };
    let mut took = Vec::with_capacity(RUNS);
    for number in 0..=RUNS {
        let request: CreateRun = serde_json::from_value(json!({
            "id": format!("run-{number}"), "input": "Hello.", "mcp": [{ "url": url }],
            "model": { "provider": "scripted", "name": "demo", "script": [{ "text": "Done." }] },
        }))?;
        let began = Instant::now();
        app.commands.create(&asker, request, None).await?;
        took.push(began.elapsed());
    }
    let cold = took.remove(0);
    print(&format!("start of a run: {cold:?} cold, {:?} with a warm pool (median of {RUNS})\n", median(took)))?;
    app.stop().await;
    Ok(())
}

/// Every tenant uses every server once.
async fn tenants(urls: &[String]) -> anyhow::Result<()> {
    let pool = pool()?;
    let before = resident()?;
    let began = Instant::now();
    for number in 0..TENANTS {
        for url in urls {
            pooled(&pool, &tenant(number)?, &target(url)?, number).await?;
        }
    }
    let (open, grown) = (pool.open_connections(), resident()?.saturating_sub(before));
    let each = grown / u64::try_from(open.max(1))?;
    print(&format!(
        "{TENANTS} tenants with {SERVERS} servers: {open} connections in {:?}, {grown} KiB more, {each} KiB each\n",
        began.elapsed()
    ))?;
    pool.close().await;
    Ok(())
}

fn tenant(number: usize) -> anyhow::Result<TenantId> {
    TenantId::parse(format!("tenant-{number}")).context("a tenant")
}

fn median(mut took: Vec<Duration>) -> Duration {
    took.sort_unstable();
    took.get(took.len() / 2).copied().unwrap_or_default()
}

/// Memory of this process, in KiB.
fn resident() -> anyhow::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").trim().parse()?)
}

fn print(text: &str) -> anyhow::Result<()> {
    countersign::cli::print(text)
}
