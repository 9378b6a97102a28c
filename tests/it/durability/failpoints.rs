//! The sweep: a scenario is run once to see which points it passes, then once for each of them with a process that kills
//! itself there. Somebody goes on, and what is left must be what a run without a crash leaves, or say what is not known.

use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::judge::seen_keys;
use super::site::{LEASE, Site, named};

use crate::support::database::Database;
use crate::support::fake_mcp::{FakeMcp, Reply, Step, tool};

/// Points that are swept at once.
const AT_ONCE: usize = 6;

/// What happens, told by a client.
#[derive(Clone, Copy)]
pub(super) struct Scenario {
    pub(super) name: &'static str,
    /// How the run ends.
    pub(super) status: &'static str,
    /// How many calls get a receipt.
    pub(super) receipts: usize,
    pub(super) body: fn(&FakeMcp) -> Value,
    pub(super) act: for<'a> fn(&'a mut Site, &'a FakeMcp, &'a Value) -> BoxFuture<'a, String>,
    /// Which tools may be sent again without a person's word.
    pub(super) repeats: fn(&str) -> bool,
}

pub(super) fn only_look(tool: &str) -> bool {
    tool == "look"
}

const CHARGE: Scenario = Scenario {
    name: "a charge, then text",
    status: "completed",
    receipts: 1,
    body: charge,
    act: settle,
    repeats: only_look,
};
const TURNS: Scenario = Scenario {
    name: "two turns of several calls",
    status: "completed",
    receipts: 3,
    body: turns,
    act: settle,
    repeats: only_look,
};
const CANCEL: Scenario = Scenario {
    name: "a cancel during a call",
    status: "cancelled",
    receipts: 1,
    body: silence,
    act: cancel,
    repeats: only_look,
};
const RETRY: Scenario = Scenario {
    name: "a retry of a lost answer",
    status: "completed",
    receipts: 1,
    body: reset,
    act: settle,
    repeats: only_look,
};
const DRAIN: Scenario =
    Scenario { name: "a graceful stop", status: "completed", receipts: 5, body: long, act: stop, repeats: only_look };

const REFRESH: Scenario = Scenario {
    name: "a catalog that changes",
    status: "completed",
    receipts: 2,
    body: changing,
    act: accept,
    repeats: only_look,
};
const TASK: Scenario = Scenario {
    name: "a charge that its server goes on with",
    status: "completed",
    receipts: 1,
    body: task,
    act: settle,
    repeats: only_look,
};

fn run(script: Value, fake: &FakeMcp) -> Value {
    fake.on_list(|_| Reply::Result(json!({"tools": [tool("charge"), tool("look")]})));
    json!({
        "model": {"provider": "scripted", "name": "demo", "script": script},
        "input": "Go.",
        "limits": {"max_parallel_tool_calls": 1},
        "mcp": [{"url": fake.url(), "side_effect_class": {"look": "read_only"}}],
    })
}

fn call(name: &str, amount: u32) -> Value {
    json!({"name": name, "arguments": {"amount": amount}})
}

pub(super) fn charge(fake: &FakeMcp) -> Value {
    run(json!([{"tool_calls": [call("charge", 5)]}, {"text": "Charged 5."}]), fake)
}

pub(super) fn turns(fake: &FakeMcp) -> Value {
    let first = json!({"text": "At once.", "tool_calls": [call("charge", 5), call("look", 0), call("refund", 5)]});
    run(json!([first, {"tool_calls": [call("charge", 7)]}, {"text": "Done."}]), fake)
}

pub(super) fn silence(fake: &FakeMcp) -> Value {
    fake.on_call(|_| Reply::Silence);
    charge(fake)
}

/// The first call ever is executed and its answer lost.
pub(super) fn reset(fake: &FakeMcp) -> Value {
    let lost = std::sync::atomic::AtomicBool::new(false);
    fake.on_call(move |_| {
        if lost.swap(true, std::sync::atomic::Ordering::SeqCst) { Reply::text("charged") } else { Reply::Reset }
    });
    charge(fake)
}

/// Each call becomes a task, which has ended when it is asked for the second time.
fn task(fake: &FakeMcp) -> Value {
    fake.be_modern(true);
    let begun = std::sync::atomic::AtomicU64::new(0);
    fake.on_call(move |_| {
        let id = format!("t-{}", begun.fetch_add(1, std::sync::atomic::Ordering::SeqCst));
        Reply::Result(json!({"resultType": "task", "taskId": id, "status": "working", "pollIntervalMs": 100}))
    });
    let asked = parking_lot::Mutex::new(std::collections::HashSet::new());
    fake.on("tasks/get", move |seen| {
        let id = seen.body["params"]["taskId"].as_str().unwrap().to_owned();
        let mut state = json!({"resultType": "complete", "taskId": id, "status": "working", "pollIntervalMs": 100});
        if !asked.lock().insert(id) {
            state["status"] = json!("completed");
            state["result"] = json!({"content": [{"type": "text", "text": "charged"}]});
        }
        Reply::Result(state)
    });
    charge(fake)
}

/// Turns enough that the stop comes in the midst of them.
fn long(fake: &FakeMcp) -> Value {
    let mut script = vec![json!({"tool_calls": [call("charge", 1)], "delay_ms": 20}); 5];
    script.push(json!({"text": "Done."}));
    run(json!(script), fake)
}

/// Each charge brings the tool `refund`, which the next turn calls.
fn changing(fake: &FakeMcp) -> Value {
    let (charge, refund) = (json!({"tool_calls": [call("charge", 5)]}), json!({"tool_calls": [call("refund", 5)]}));
    let mut body = run(json!([charge, refund, {"text": "Done."}]), fake);
    body["on_catalog_change"] = json!("accept");
    let lists = fake.lists();
    fake.on_call(move |seen| {
        if seen.body["params"]["name"] == "refund" {
            return Reply::text("refunded");
        }
        lists.serve(vec![tool("charge"), tool("look"), tool("refund")]);
        Reply::Sse(vec![Step::ListChanged, Step::Result(json!({"content": []}))])
    });
    body
}

/// Brings such a run to its end: a change that it missed is accepted; while a call is undecided the recorded catalog
/// is served again, since that call was made against it.
fn accept<'a>(site: &'a mut Site, fake: &'a FakeMcp, body: &'a Value) -> BoxFuture<'a, String> {
    async move {
        let id = site.create(body).await;
        let deadline = Instant::now() + Duration::from_secs(40);
        loop {
            let run = site.rested(&id).await;
            if run["status"] != "suspended" {
                assert!(run["binding"]["mcp"]["tools"]["refund"].is_string(), "{run}");
                return id;
            }
            let body = match run["reason"].as_str() {
                Some("mcp-catalog-changed") => json!({"on_catalog_change": "accept"}),
                Some("tool-reconciliation-required") => {
                    site.clock_the_word(&run);
                    if run["binding"]["revision"] == 1 {
                        fake.serve(vec![tool("charge"), tool("look")]);
                    }
                    let calls = run["pending"]["reconciliations"].as_array().unwrap().iter().map(named);
                    json!({"retry_tool_call_ids": calls.collect::<Vec<_>>()})
                }
                _ => panic!("{run}"),
            };
            let (status, answer) = site.resume(&id, &body).await;
            // A resume that was stored before the node died finds its run on the way.
            assert!(matches!(status, 200 | 202 | 409), "{status} {answer}");
            if answer["code"] == "mcp-catalog-changed-in-flight" {
                fake.serve(vec![tool("charge"), tool("look")]);
            }
            assert!(Instant::now() < deadline, "{id} does not settle: {run}");
        }
    }
    .boxed()
}

pub(super) fn settle<'a>(site: &'a mut Site, _fake: &'a FakeMcp, body: &'a Value) -> BoxFuture<'a, String> {
    async move {
        let id = site.create(body).await;
        site.settle(&id).await;
        id
    }
    .boxed()
}

/// Cancels once the server has the call; or, after a crash before that, once the run has come to rest.
fn cancel<'a>(site: &'a mut Site, fake: &'a FakeMcp, body: &'a Value) -> BoxFuture<'a, String> {
    async move {
        let id = site.create(body).await;
        let deadline = Instant::now() + Duration::from_secs(20);
        while fake.count("tools/call") == 0 {
            if site.look().await && site.get(&format!("/v1/runs/{id}")).await["status"] == "suspended" {
                break;
            }
            assert!(Instant::now() < deadline, "the call does not come: {}", site.log());
            sleep(Duration::from_millis(10)).await;
        }
        site.cancel(&id).await;
        let deadline = Instant::now() + Duration::from_secs(20);
        while site.get(&format!("/v1/runs/{id}")).await["status"] != "cancelled" {
            assert!(Instant::now() < deadline, "the wish to cancel is lost: {}", site.log());
            sleep(Duration::from_millis(15)).await;
        }
        id
    }
    .boxed()
}

fn stop<'a>(site: &'a mut Site, fake: &'a FakeMcp, body: &'a Value) -> BoxFuture<'a, String> {
    async move {
        let id = site.create(body).await;
        let deadline = Instant::now() + Duration::from_secs(20);
        while fake.count("tools/call") < 2 && !site.look().await {
            assert!(Instant::now() < deadline, "the second call does not come: {}", site.log());
            sleep(Duration::from_millis(5)).await;
        }
        site.signal("TERM");
        site.settle(&id).await;
        id
    }
    .boxed()
}

/// What one pass through a scenario came to.
pub(super) struct Passed {
    pub(super) died: bool,
    pub(super) word_after: Option<Duration>,
}

/// Runs the scenario on a database of its own; the node dies at that point.
async fn pass_through(scenario: Scenario, kind: Kind, log: &Path, kill: Option<&str>, with_standby: bool) -> Passed {
    let (database, fake) = (kind.database().await, FakeMcp::start().await);
    let body = (scenario.body)(&fake);
    let mut site = Site::start(Arc::new(database), log, kill, with_standby).await;
    let id = (scenario.act)(&mut site, &fake, &body).await;
    // A timer's point may come when all is done.
    let deadline = Instant::now() + LEASE * 2;
    while kill.is_some_and(is_timed) && !site.look().await && Instant::now() < deadline {
        sleep(Duration::from_millis(10)).await;
    }
    let evidence = site.evidence(&id).await;
    let faults = evidence.faults(&seen_keys(&fake), scenario.repeats);
    assert!(faults.is_empty(), "{faults:#?}\n{:#?}\n{}", evidence.events, site.log());
    assert_eq!(evidence.run["status"], scenario.status, "{}", evidence.run);
    // A run that is cancelled early has not made its call.
    let calls = evidence.receipts.len();
    assert!(calls == scenario.receipts || (scenario.status == "cancelled" && calls == 0), "{calls} receipts");
    let runs = site.get("/v1/runs").await;
    assert_eq!(runs["data"].as_array().unwrap().len(), 1, "the key found its run: {runs}");
    Passed { died: site.has_died(), word_after: site.word_after }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Sqlite,
    Postgres,
}

impl Kind {
    async fn database(self) -> Database {
        match self {
            Self::Sqlite => Database::sqlite().await,
            Self::Postgres => Database::postgres().await,
        }
    }
}

/// The points of one scenario, and a death at each of them.
pub(super) async fn sweep_points<F>(what: &str, points: Vec<String>, pass_through: impl Fn(usize, String) -> F)
where
    F: Future<Output = Passed>,
{
    let began = Instant::now();
    assert!(points.len() > 15, "{points:?}");
    let passes = points.iter().enumerate().map(|(at, point)| {
        let passed = AssertUnwindSafe(pass_through(at, point.clone()));
        async move { (point, passed.catch_unwind().await) }
    });
    let mut swept = Swept::default();
    let mut passes = futures::stream::iter(passes).buffer_unordered(AT_ONCE);
    while let Some((point, passed)) = passes.next().await {
        match passed {
            Err(_panic) => swept.failed.push(point.clone()),
            Ok(Passed { died: false, .. }) => swept.missed.push(point.clone()),
            Ok(Passed { word_after, .. }) => {
                swept.killed += 1;
                swept.slowest_word = swept.slowest_word.max(word_after.unwrap_or_default());
            }
        }
    }
    eprintln!(
        "{what}: struck at {} of {} points in {:.1} s; the slowest word of an undecided call came after {:.2} s; \
         not passed again: {:?}",
        swept.killed,
        points.len(),
        began.elapsed().as_secs_f64(),
        swept.slowest_word.as_secs_f64(),
        swept.missed,
    );
    assert!(swept.failed.is_empty(), "broken at {:#?}", swept.failed);
    // How a stream is cut into commits is a matter of time, and another node may take a run that waits.
    assert!(swept.killed * 10 >= points.len() * 8, "too few of the points were passed again: {:?}", swept.missed);
    assert!(swept.slowest_word < LEASE + Duration::from_secs(2), "{:?}", swept.slowest_word);
}

/// Points that time alone brings, so a scenario passes them or not.
fn is_timed(point: &str) -> bool {
    point.starts_with("node.beat.")
}

/// The points of a log, each with the number of its pass; of those that time brings, only the first few.
pub(super) fn points(log: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(log).unwrap();
    let late =
        |point: &&str| is_timed(point) && point.rsplit('#').next().is_some_and(|count| count.len() > 1 || count > "2");
    text.lines().filter(|point| !late(point)).map(str::to_owned).collect()
}

/// What a sweep came to.
#[derive(Default)]
struct Swept {
    killed: usize,
    missed: Vec<String>,
    failed: Vec<String>,
    slowest_word: Duration,
}

pub(super) async fn sweep(scenario: Scenario, kind: Kind) {
    let folder = tempfile::tempdir().unwrap();
    let unarmed = folder.path().join("unarmed");
    pass_through(scenario, kind, &unarmed, None, false).await;
    let log = |at: usize| folder.path().join(at.to_string());
    sweep_points(&format!("{} on {kind:?}", scenario.name), points(&unarmed), |at, point| {
        // Only Postgres has nodes beside each other: half of the deaths there are another node's to find.
        let (log, with_standby) = (log(at), kind == Kind::Postgres && at % 2 == 1);
        async move { pass_through(scenario, kind, &log, Some(&point), with_standby).await }
    })
    .await;
}

#[tokio::test]
async fn b008_b009_b020_b217_a_run_survives_a_death_at_every_point_on_sqlite() {
    sweep(CHARGE, Kind::Sqlite).await;
}

#[tokio::test]
async fn b008_b009_b020_b217_a_run_survives_a_death_at_every_point_on_postgres() {
    sweep(CHARGE, Kind::Postgres).await;
}

#[tokio::test]
async fn several_turns_survive_a_death_at_every_point_on_sqlite() {
    sweep(TURNS, Kind::Sqlite).await;
}

#[tokio::test]
async fn several_turns_survive_a_death_at_every_point_on_postgres() {
    sweep(TURNS, Kind::Postgres).await;
}

#[tokio::test]
async fn a_cancel_survives_a_death_at_every_point_on_sqlite() {
    sweep(CANCEL, Kind::Sqlite).await;
}

#[tokio::test]
async fn a_retry_survives_a_death_at_every_point_on_sqlite() {
    sweep(RETRY, Kind::Sqlite).await;
}

#[tokio::test]
async fn b076_a_catalog_that_changes_survives_a_death_at_every_point_on_sqlite() {
    sweep(REFRESH, Kind::Sqlite).await;
}

#[tokio::test]
async fn b076_a_catalog_that_changes_survives_a_death_at_every_point_on_postgres() {
    sweep(REFRESH, Kind::Postgres).await;
}

#[tokio::test]
async fn a_graceful_stop_survives_a_death_at_every_point_on_sqlite() {
    sweep(DRAIN, Kind::Sqlite).await;
}

#[tokio::test]
async fn b218_a_task_survives_a_death_at_every_point_on_sqlite() {
    sweep(TASK, Kind::Sqlite).await;
}

#[tokio::test]
async fn b218_a_task_survives_a_death_at_every_point_on_postgres() {
    sweep(TASK, Kind::Postgres).await;
}
