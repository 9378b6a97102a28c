//! The n-th write of a scenario fails, for every n: nothing was written, or the answer was lost, or the database is away
//! for a while. Nothing dies, so the run must come to its end all the same, and nothing may happen twice.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use countersign::app::App;
use countersign::clock::SystemClock;
use countersign::commands::{CommandError, CreateRun, DecideApproval, RequestKey, ResumeRun};
use countersign::config::Config;
use countersign::run::call::idempotency_key;
use countersign::run::ids::RunId;
use countersign::run::refusal::Refusal;
use countersign::store::{RunFilter, RunView, Store};
use futures::future::BoxFuture;
use futures::{FutureExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::failpoints::{only_look, reset, silence, turns};
use super::judge::{Evidence, seen_keys};
use super::ruled::{any, asked, raised, ruled};
use super::site::named;
use crate::support::database::Database;
use crate::support::fake_mcp::FakeMcp;
use crate::support::flaky_store::{Fails, Fault, FlakyStore};
use crate::support::world::asker;

/// Faults that are tried at once.
const AT_ONCE: usize = 12;
/// How long anything may take: far more than it needs.
const PATIENCE: Duration = Duration::from_secs(40);
/// Writes that time alone brings: only the first few of them are tried.
const TIMED: [(&str, u32); 3] = [("node_beat", 3), ("node_reap", 2), ("run_claim", 3)];

/// A server in this process on a store that fails, and a client that asks again when it does.
struct Bench {
    app: App,
    store: Arc<FlakyStore>,
    _folder: tempfile::TempDir,
}

impl Bench {
    async fn start(database: &Database, fault: Option<Fault>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut config = Config::dev(folder.path(), "127.0.0.1:0".parse().unwrap(), &|_| None).unwrap();
        (config.lease_s, config.drain_s) = (2, 2);
        let store = FlakyStore::new(database.open().await, fault);
        let app = App::start_on(&config, Arc::clone(&store) as Arc<dyn Store>, Arc::new(SystemClock)).await.unwrap();
        Self { app, store, _folder: folder }
    }

    async fn create(&self, body: &Value) -> RunId {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let request: CreateRun = serde_json::from_value(body.clone()).unwrap();
            let key = RequestKey { key: "the-key".to_owned(), body_digest: "digest".to_owned() };
            match self.app.commands.create(&asker(), request, Some(key)).await {
                Ok(created) => return created.id,
                Err(CommandError::Store(_)) => assert!(Instant::now() < deadline, "no run is created"),
                Err(other) => panic!("{other}"),
            }
        }
    }

    async fn view(&self, id: &RunId) -> RunView {
        self.app.store.run_fetch(&asker().tenant, id).await.unwrap().unwrap()
    }

    async fn rested(&self, id: &RunId) -> RunView {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let view = self.view(id).await;
            if !matches!(view.head.status.code(), "queued" | "running") {
                return view;
            }
            assert!(Instant::now() < deadline, "{id} does not come to rest: {:?}", view.head);
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// Brings the run to its end: whatever is undecided is allowed once more.
    async fn settle(&self, id: &RunId) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let view = self.rested(id).await;
            if view.head.status.is_terminal() {
                return;
            }
            assert_eq!(view.head.status.reason(), Some("tool-reconciliation-required"), "{:?}", view.head);
            let calls: Vec<Value> = view.undecided.iter().map(|call| named(&json!(call))).collect();
            let request: ResumeRun = serde_json::from_value(json!({"retry_tool_call_ids": calls})).unwrap();
            match self.app.commands.resume(&asker(), id, request).await {
                // A resume whose answer was lost finds its run on the way.
                Ok(_) | Err(CommandError::Store(_) | CommandError::Refused(Refusal::RunActive)) => {}
                Err(other) => panic!("{other}"),
            }
            assert!(Instant::now() < deadline, "{id} does not settle");
        }
    }

    /// Brings the run to its end: whatever people are asked is approved.
    async fn approve_all(&self, id: &RunId) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let view = self.rested(id).await;
            if view.head.status.is_terminal() {
                return;
            }
            for open in &view.head.state.approvals.open {
                let vote: DecideApproval = serde_json::from_value(json!({"decision": "approve"})).unwrap();
                match self.app.commands.approval_decide(&asker(), open.approval.id, vote).await {
                    // A vote whose answer was lost finds its approval decided.
                    Ok(_) | Err(CommandError::Store(_) | CommandError::ApprovalDecided(_)) => {}
                    Err(other) => panic!("{other}"),
                }
            }
            assert!(Instant::now() < deadline, "{id} does not settle: {:?}", view.head);
        }
    }

    async fn cancel(&self, id: &RunId) {
        let deadline = Instant::now() + PATIENCE;
        while let Err(fault) = self.app.commands.cancel(&asker(), id).await {
            assert!(matches!(fault, CommandError::Store(_)), "{fault}");
            assert!(Instant::now() < deadline, "{id} is not cancelled");
        }
        while self.view(id).await.head.status.code() != "cancelled" {
            assert!(Instant::now() < deadline, "the wish to cancel is lost: {:?}", self.view(id).await.head);
            sleep(Duration::from_millis(5)).await;
        }
    }

    async fn evidence(&self, id: &RunId) -> Evidence {
        let (view, tenant) = (self.view(id).await, asker().tenant);
        let events = self.app.store.event_list(&tenant, view.uid, 0, 1000).await.unwrap();
        let receipts = self.app.store.receipt_list(&tenant, view.uid, None, 1000).await.unwrap();
        let receipts = receipts.into_iter().map(|call| {
            json!({
                "idempotency_key": idempotency_key(view.uid, call.key), "tool": call.tool, "turn": call.key.turn,
                "call_id": call.call_id, "attempt": call.attempt, "stage": call.stage.code(),
            })
        });
        let state = &view.head.state;
        Evidence {
            run: json!({
                "status": view.head.status.code(), "turns": state.turns,
                "usage": {"model_requests": state.usage.model_requests},
            }),
            events: events.into_iter().map(|event| serde_json::from_str(&event.body).unwrap()).collect(),
            receipts: receipts.collect(),
        }
    }
}

#[derive(Clone, Copy)]
struct Scenario {
    name: &'static str,
    status: &'static str,
    receipts: usize,
    body: fn(&FakeMcp) -> Value,
    act: for<'a> fn(&'a Bench, &'a FakeMcp, &'a RunId) -> BoxFuture<'a, ()>,
    /// Which tools may be sent again without a person's word.
    repeats: fn(&str) -> bool,
}

const TURNS: Scenario =
    Scenario { name: "two turns", status: "completed", receipts: 3, body: turns, act: settle, repeats: only_look };
const RETRY: Scenario =
    Scenario { name: "a retry", status: "completed", receipts: 1, body: reset, act: settle, repeats: only_look };
const CANCEL: Scenario =
    Scenario { name: "a cancel", status: "cancelled", receipts: 1, body: silence, act: cancel, repeats: only_look };
const WAIT: Scenario = Scenario {
    name: "a cancel at rest",
    status: "cancelled",
    receipts: 1,
    body: reset,
    act: drop_it,
    repeats: only_look,
};

const ASKED: Scenario = Scenario {
    name: "a lost call that people have sent again",
    status: "completed",
    receipts: 1,
    body: asked,
    act: vote,
    repeats: only_look,
};
const RAISED: Scenario = Scenario {
    name: "a limit that people raise",
    status: "completed",
    receipts: 1,
    body: raised,
    act: vote,
    repeats: only_look,
};
const RULED: Scenario = Scenario {
    name: "a lost call that a rule has sent again",
    status: "completed",
    receipts: 1,
    body: ruled,
    act: settle,
    repeats: any,
};

fn settle<'a>(bench: &'a Bench, _fake: &'a FakeMcp, id: &'a RunId) -> BoxFuture<'a, ()> {
    bench.settle(id).boxed()
}

/// Approves whatever people are asked.
fn vote<'a>(bench: &'a Bench, _fake: &'a FakeMcp, id: &'a RunId) -> BoxFuture<'a, ()> {
    bench.approve_all(id).boxed()
}

fn cancel<'a>(bench: &'a Bench, fake: &'a FakeMcp, id: &'a RunId) -> BoxFuture<'a, ()> {
    async move {
        fake.wait_until(|fake| fake.count("tools/call") > 0).await;
        bench.cancel(id).await;
    }
    .boxed()
}

/// Cancels the run while it waits for a person.
fn drop_it<'a>(bench: &'a Bench, _fake: &'a FakeMcp, id: &'a RunId) -> BoxFuture<'a, ()> {
    async move {
        bench.rested(id).await;
        bench.cancel(id).await;
    }
    .boxed()
}

/// Runs the scenario on a database of its own; answers how often each kind of write was asked for, and whether the fault
/// came.
async fn pass_through(scenario: Scenario, postgres: bool, fault: Option<Fault>) -> (Vec<(&'static str, u32)>, bool) {
    let database = if postgres { Database::postgres().await } else { Database::sqlite().await };
    let fake = FakeMcp::start().await;
    let body = (scenario.body)(&fake);
    let bench = Bench::start(&database, fault).await;
    let id = bench.create(&body).await;
    (scenario.act)(&bench, &fake, &id).await;
    let evidence = bench.evidence(&id).await;
    let faults = evidence.faults(&seen_keys(&fake), scenario.repeats);
    assert!(faults.is_empty(), "{faults:#?}\n{:#?}", evidence.events);
    assert_eq!((evidence.run["status"].as_str(), evidence.receipts.len()), (Some(scenario.status), scenario.receipts));
    let runs = bench.app.store.run_list(&asker().tenant, &RunFilter::default(), None, 10).await.unwrap();
    assert_eq!(runs.len(), 1, "the key found its run");
    let (writes, failed) = (bench.store.writes().into_iter().collect(), bench.store.has_failed());
    bench.app.stop().await;
    (writes, failed)
}

fn faults_of(writes: Vec<(&'static str, u32)>) -> Vec<Fault> {
    let mut faults = Vec::new();
    for (kind, count) in writes {
        let few = TIMED.iter().find(|timed| timed.0 == kind).map_or(count, |timed| timed.1);
        for nth in 1..=count.min(few) {
            faults.extend([Fails::Before, Fails::After, Fails::ForAWhile].map(|fails| (kind, nth, fails)));
        }
    }
    faults
}

async fn check(scenario: Scenario, postgres: bool) {
    let began = Instant::now();
    let (writes, _) = pass_through(scenario, postgres, None).await;
    let faults = faults_of(writes);
    assert!(faults.len() > 20, "{faults:?}");
    let passes = faults.iter().map(|fault| async move {
        (fault, AssertUnwindSafe(pass_through(scenario, postgres, Some(*fault))).catch_unwind().await)
    });
    let mut passes = futures::stream::iter(passes).buffer_unordered(AT_ONCE);
    let (mut came, mut broken) = (0, Vec::new());
    while let Some((fault, passed)) = passes.next().await {
        match passed {
            Err(_panic) => broken.push(fault),
            Ok((_, failed)) => came += usize::from(failed),
        }
    }
    let (tried, took) = (faults.len(), began.elapsed().as_secs_f64());
    eprintln!("{} (Postgres: {postgres}): {came} of {tried} faults came, {took:.1} s", scenario.name);
    assert!(broken.is_empty(), "broken by {broken:#?}");
    assert!(came * 10 >= tried * 7, "too few faults came: {came} of {tried}");
}

macro_rules! writes {
    ($($name:ident: $scenario:ident),+ $(,)?) => {
        mod sqlite { $(#[tokio::test] async fn $name() { super::check(super::$scenario, false).await; })+ }
        mod postgres { $(#[tokio::test] async fn $name() { super::check(super::$scenario, true).await; })+ }
    };
}

writes!(
    two_turns_survive_the_failure_of_every_write: TURNS,
    a_retry_survives_the_failure_of_every_write: RETRY,
    a_cancel_survives_the_failure_of_every_write: CANCEL,
    a_cancel_at_rest_survives_the_failure_of_every_write: WAIT,
    what_people_decide_of_a_lost_call_survives_the_failure_of_every_write: ASKED,
    a_limit_that_people_raise_survives_the_failure_of_every_write: RAISED,
    a_rule_for_a_lost_call_survives_the_failure_of_every_write: RULED,
);
