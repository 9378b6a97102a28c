//! The soak: two nodes on a Postgres of their own, a stream of runs of three tenants on servers that misbehave, and faults
//! at random: kills, pauses longer than the lease, restarts of the database, cut connections. What is decided at random
//! depends on the seed alone. When the faults end, every acknowledged run comes to its end and nothing was repeated.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::join_all;
use futures::{StreamExt as _, stream};
use parking_lot::Mutex;
use reqwest::Method;
use serde_json::{Value, json};
use sqlx::{Connection as _, Executor as _, PgConnection};
use tokio::time::{Instant, sleep};

use super::dice::{Dice, Fault, body_of, is_cancelled, pause_before, plan, reply_of};
use super::judge::{Evidence, SeenKeys, seen_keys};
use super::site::{LEASE, named};
use crate::support::cluster::Cluster;
use crate::support::fake_mcp::{FakeMcp, Reply, tool};
use crate::support::product::{Ask, Options, Product};

/// How long the faults last when nobody says.
const DEFAULT_S: u64 = 30;
/// Clients that make runs, each one after the other.
const CLIENTS: u64 = 4;
const TENANTS: [&str; 3] = ["acme", "globex", "initech"];
/// How long an answer is waited for: a node may be paused.
const PATIENCE: Duration = Duration::from_secs(3);
/// Runs that are judged at once.
const AT_ONCE: usize = 16;
/// How long everything may take to come to rest once the faults have ended.
const CALM_WITHIN: Duration = Duration::from_mins(1);

/// A number from the environment of the tests.
#[expect(clippy::disallowed_methods, reason = "the settings of the product do not know those of the tests")]
fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is no number: {text}")))
}

/// A run whose creation was acknowledged.
#[derive(Clone)]
struct Acknowledged {
    tenant: &'static str,
    id: String,
}

/// How often what happened.
#[derive(Debug, Default)]
struct Counts {
    kills: u32,
    pauses: u32,
    restarts: u32,
    cuts: u32,
    unknown: u32,
}

struct Soak {
    seed: u64,
    url: String,
    nodes: [Mutex<Arc<Product>>; 2],
    servers: Vec<FakeMcp>,
    /// The faults have ended: every server answers.
    calm: Arc<AtomicBool>,
    acknowledged: Mutex<Vec<Acknowledged>>,
    counts: Mutex<Counts>,
    /// Requests so far: they go to both nodes in turn.
    asked: AtomicUsize,
}

impl Soak {
    async fn start(seed: u64, url: String) -> Self {
        let calm = Arc::new(AtomicBool::new(false));
        let mut servers = Vec::new();
        for _ in TENANTS {
            servers.push(server(seed, &calm).await);
        }
        let nodes = [node(&url).await, node(&url).await].map(|product| Mutex::new(Arc::new(product)));
        Self {
            seed,
            url,
            nodes,
            servers,
            calm,
            acknowledged: Mutex::default(),
            counts: Mutex::default(),
            asked: AtomicUsize::new(0),
        }
    }

    /// The answer of one of the nodes, whichever gives one.
    async fn ask(
        &self,
        tenant: &str,
        method: Method,
        path: &str,
        body: Option<&Value>,
        key: Option<&str>,
    ) -> (u16, Value) {
        let deadline = Instant::now() + CALM_WITHIN;
        for nth in self.asked.fetch_add(1, Ordering::Relaxed).. {
            let node = Arc::clone(&self.nodes[nth % 2].lock());
            let ask = Ask { tenant, method: method.clone(), path, body, key, patience: PATIENCE };
            match node.try_send(&ask).await {
                // What the server says of itself or of what it needs passes by; the request is repeated.
                Ok((status, _)) if status >= 500 => {}
                Ok(answer) => return answer,
                Err(_nobody) => {}
            }
            assert!(Instant::now() < deadline, "nobody answers {path}: {}", node.log());
            sleep(Duration::from_millis(50)).await;
        }
        unreachable!("the loop ends by its deadline")
    }

    /// One client: a run, a little pause, the next run, until the faults end.
    async fn create(&self, client: u64, until: Instant) {
        let mut nth = client;
        while Instant::now() < until {
            sleep(pause_before(self.seed, nth)).await;
            let at = usize::try_from(nth).unwrap() % TENANTS.len();
            let tenant = TENANTS[at];
            let (body, key) = (body_of(self.seed, nth, &self.servers[at].url()), format!("soak-{nth}"));
            let (status, run) = self.ask(tenant, Method::POST, "/v1/runs", Some(&body), Some(&key)).await;
            assert_eq!(status, 201, "{run}");
            let id = run["id"].as_str().unwrap().to_owned();
            if is_cancelled(self.seed, nth) {
                let path = format!("/v1/runs/{id}/cancel");
                let (status, answer) = self.ask(tenant, Method::POST, &path, Some(&json!({})), None).await;
                assert!(matches!(status, 200 | 202), "{status} {answer}");
            }
            self.acknowledged.lock().push(Acknowledged { tenant, id });
            nth += CLIENTS;
        }
    }

    /// Does what the plan says until the time is over; then both nodes are up.
    async fn disturb(&self, cluster: &mut Cluster, until: Instant) {
        for (wait, fault) in plan(self.seed) {
            sleep(wait).await;
            if Instant::now() >= until {
                return;
            }
            match fault {
                Fault::Kill { node, down } => self.kill(&[node], down).await,
                Fault::KillBoth { down } => self.kill(&[0, 1], down).await,
                Fault::Pause { node, past_lease } => {
                    let node = Arc::clone(&self.nodes[node].lock());
                    node.signal("STOP");
                    sleep(LEASE + past_lease).await;
                    node.signal("CONT");
                    self.counts.lock().pauses += 1;
                }
                Fault::RestartDatabase => {
                    cluster.restart_immediately().await;
                    self.counts.lock().restarts += 1;
                }
                Fault::CutConnections => self.cut_connections().await,
            }
        }
    }

    async fn kill(&self, nodes: &[usize], down: Duration) {
        for node in nodes {
            self.nodes[*node].lock().signal("KILL");
            self.counts.lock().kills += 1;
        }
        sleep(down).await;
        for at in nodes {
            *self.nodes[*at].lock() = Arc::new(node(&self.url).await);
        }
    }

    async fn cut_connections(&self) {
        let mut connection = PgConnection::connect(&self.url).await.expect("the database answers");
        let sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'countersign'";
        connection.execute(sql).await.expect("the connections end");
        self.counts.lock().cuts += 1;
    }

    /// Brings a run to its end: first to rest, then, as often as a call is undecided, by the word of a person.
    async fn settle(&self, run: &Acknowledged) -> Value {
        let deadline = Instant::now() + CALM_WITHIN;
        loop {
            let (status, view) = self.ask(run.tenant, Method::GET, &format!("/v1/runs/{}", run.id), None, None).await;
            assert_eq!(status, 200, "an acknowledged run is lost: {view}");
            assert!(Instant::now() < deadline, "{} does not come to its end: {view}", run.id);
            match view["status"].as_str() {
                Some("queued" | "running") => sleep(Duration::from_millis(50)).await,
                Some("suspended") => {
                    let undecided = view["pending"]["reconciliations"].as_array().unwrap();
                    self.counts.lock().unknown += u32::try_from(undecided.len()).unwrap();
                    let calls: Vec<Value> = undecided.iter().map(named).collect();
                    let body = json!({"retry_tool_call_ids": calls});
                    let path = format!("/v1/runs/{}/resume", run.id);
                    let (status, answer) = self.ask(run.tenant, Method::POST, &path, Some(&body), None).await;
                    assert!(matches!(status, 200 | 202 | 409), "{status} {answer}");
                }
                _ => return view,
            }
        }
    }

    async fn evidence(&self, run: &Acknowledged, view: Value) -> Evidence {
        let (mut events, mut path) = (Vec::new(), format!("/v1/runs/{}/events?limit=200", run.id));
        loop {
            let page = self.ask(run.tenant, Method::GET, &path, None, None).await.1;
            events.extend(page["data"].as_array().unwrap().iter().cloned());
            let Some(cursor) = page["next_cursor"].as_str() else { break };
            path = format!("/v1/runs/{}/events?limit=200&cursor={cursor}", run.id);
        }
        let path = format!("/v1/runs/{}/receipts?limit=200", run.id);
        let receipts = self.ask(run.tenant, Method::GET, &path, None, None).await.1;
        Evidence { run: view, events, receipts: receipts["data"].as_array().unwrap().clone() }
    }

    /// What is wrong with a run, and the keys that its receipts know.
    async fn judge(&self, run: &Acknowledged, seen: &SeenKeys) -> (Vec<String>, Vec<String>) {
        let view = self.settle(run).await;
        let evidence = self.evidence(run, view).await;
        let mut faults = evidence.faults(seen, |tool| tool == "look");
        let (status, reason) = (&evidence.run["status"], &evidence.run["reason"]);
        let is_due = match status.as_str() {
            Some("completed" | "cancelled") => true,
            // The servers err at random, now and then three times in a row.
            Some("stopped") => reason == "runaway-tool-errors" && evidence.runs_away(),
            _ => false,
        };
        if !is_due {
            faults.push(format!("it is {status} ({reason}): {}", evidence.run["error"]));
        }
        if !faults.is_empty() {
            let (id, events) = (&run.id, &evidence.events);
            eprintln!("{id}: {:#}\n{id}: {:#}", json!(events), json!(evidence.receipts));
        }
        let faults = faults.into_iter().map(|fault| format!("{}: {fault}", run.id)).collect();
        let keys = evidence.receipts.iter().map(|receipt| receipt["idempotency_key"].as_str().unwrap().to_owned());
        (faults, keys.collect())
    }

    /// How many runs there are in all.
    async fn stored(&self) -> usize {
        let mut stored = 0;
        for tenant in TENANTS {
            let mut path = "/v1/runs?limit=200".to_owned();
            loop {
                let page = self.ask(tenant, Method::GET, &path, None, None).await.1;
                stored += page["data"].as_array().unwrap().len();
                let Some(cursor) = page["next_cursor"].as_str() else { break };
                path = format!("/v1/runs?limit=200&cursor={cursor}");
            }
        }
        stored
    }
}

async fn node(url: &str) -> Product {
    Product::start_as(url, &Options::default().with("COUNTERSIGN_CATALOG_MAX_AGE_MS", "0")).await
}

/// A server that answers as the dice say, until all is calm.
async fn server(seed: u64, calm: &Arc<AtomicBool>) -> FakeMcp {
    let fake = FakeMcp::start().await;
    let tools = json!({"tools": [tool("charge"), tool("look")]});
    fake.on_list(move |_| Reply::Result(tools.clone()));
    let (calm, asked) = (Arc::clone(calm), Mutex::new(SeenKeys::new()));
    fake.on_call(move |seen| {
        let mut asked = asked.lock();
        let nth = asked.entry(seen.headers["idempotency-key"].clone()).or_default();
        *nth += 1;
        if calm.load(Ordering::SeqCst) { Reply::text("done") } else { reply_of(seed, seen, *nth) }
    });
    fake
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_or_repeated_under_random_faults() {
    let seed = number("COUNTERSIGN_SOAK_SEED").unwrap_or_else(|| Dice::of_now().roll(1_000_000));
    let lasts = Duration::from_secs(number("COUNTERSIGN_SOAK_S").unwrap_or(DEFAULT_S));
    eprintln!("soak: seed {seed}, faults for {} s", lasts.as_secs());
    let Some(mut cluster) = Cluster::start().await else { return };
    let soak = Soak::start(seed, cluster.url()).await;
    let until = Instant::now() + lasts;
    let clients = join_all((0..CLIENTS).map(|client| soak.create(client, until)));
    tokio::join!(clients, soak.disturb(&mut cluster, until));
    soak.calm.store(true, Ordering::SeqCst);
    let runs = soak.acknowledged.lock().clone();
    // First everything ends, then it is judged: what a server sees last counts too.
    stream::iter(&runs).for_each_concurrent(AT_ONCE, |run| async { drop(soak.settle(run).await) }).await;
    let mut seen = SeenKeys::new();
    for (key, count) in soak.servers.iter().flat_map(seen_keys) {
        *seen.entry(key).or_default() += count;
    }
    let judged: Vec<_> =
        stream::iter(&runs).map(|run| soak.judge(run, &seen)).buffer_unordered(AT_ONCE).collect().await;
    let known: std::collections::HashSet<&String> = judged.iter().flat_map(|(_, keys)| keys).collect();
    let strange: Vec<&String> = seen.keys().filter(|key| !known.contains(key)).collect();
    let faults: Vec<&String> = judged.iter().flat_map(|(faults, _)| faults).collect();
    let Counts { kills, pauses, restarts, cuts, unknown } = *soak.counts.lock();
    let repeats = faults.iter().filter(|fault| fault.contains("repeated in silence")).count();
    eprintln!(
        "soak: seed {seed}: {} runs, {} calls, {kills} kills, {pauses} pauses, {restarts} database restarts, \
         {cuts} times all connections cut, {unknown} unknown outcomes, repeats = {repeats}",
        runs.len(),
        seen.len(),
    );
    assert!(faults.is_empty() && strange.is_empty(), "seed {seed}: {faults:#?}\ncalls of no receipt: {strange:?}");
    assert_eq!(soak.stored().await, runs.len(), "seed {seed}: as many runs as were acknowledged");
    assert!(unknown > 0 && kills > 0, "seed {seed}: the faults did nothing");
}
