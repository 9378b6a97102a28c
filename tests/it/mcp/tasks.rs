//! Tasks: a server goes on with a call by itself, and is asked for the end.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use countersign::bulk::Held;
use countersign::mcp::{McpPool, McpTarget, TaskRequest};
use countersign::run::outcome::{Answer, Outcome};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{acme, class, pool, target};
use crate::support::fake_mcp::{FakeMcp, Reply};

fn task() -> TaskRequest {
    TaskRequest {
        id: "t-1".to_owned(),
        first_after: Duration::ZERO,
        total: Duration::from_secs(8),
        output_schema: None,
        held: Held::default(),
    }
}

fn state(status: &str, more: Value) -> Reply {
    let mut state = json!({ "resultType": "complete", "taskId": "t-1", "status": status, "pollIntervalMs": 100 });
    state.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    Reply::Result(state)
}

/// A server that answers the questions for its task in this order; the last answer repeats.
async fn server(states: Vec<Reply>) -> (FakeMcp, McpTarget) {
    let fake = FakeMcp::start().await;
    fake.be_modern(true);
    let states = Mutex::new(VecDeque::from(states));
    fake.on("tasks/get", move |_| {
        let mut states = states.lock();
        if states.len() > 1 { states.pop_front().unwrap() } else { states[0].clone() }
    });
    let target = target(&fake.url());
    (fake, target)
}

async fn follow(pool: &McpPool, target: &McpTarget, task: &TaskRequest) -> Outcome {
    pool.follow(&acme(), target, task, CancellationToken::new()).await
}

#[track_caller]
fn check(states: Vec<Reply>, expected: &'static str, asked: usize) -> impl Future<Output = FakeMcp> {
    let place = std::panic::Location::caller();
    async move {
        let (fake, target) = server(states).await;
        let pool = pool();
        let outcome = follow(&pool, &target, &task()).await;
        assert_eq!(class(&outcome), expected, "{place}: {outcome:?}");
        assert_eq!(fake.count("tasks/get"), asked, "{place}");
        pool.close().await;
        fake
    }
}

fn content() -> Value {
    json!({ "content": [{ "type": "text", "text": "charged" }] })
}

fn failing() -> Value {
    json!({ "isError": true, "content": [{ "type": "text", "text": "no" }] })
}

#[tokio::test]
async fn b210_b218_the_end_of_a_task_is_an_answer_like_any_other() {
    let working = || state("working", json!({}));
    check(vec![working(), working(), state("completed", json!({ "result": content() }))], "done", 3).await;
    check(vec![state("completed", json!({ "result": failing() }))], "failed tool-error", 1).await;
    let error = json!({ "error": { "code": -32603, "message": "out of paper" } });
    check(vec![state("failed", error)], "failed mcp-error", 1).await;
    check(vec![state("cancelled", json!({}))], "failed task-cancelled", 1).await;
}

#[tokio::test]
async fn b212_a_task_that_its_server_does_not_know_says_nothing_of_its_call() {
    for code in [-32602, -32601] {
        let error = json!({ "code": code, "message": "no such task" });
        check(vec![Reply::Error(error.clone())], "unknown lost-response", 1).await;
        let body = json!({ "jsonrpc": "2.0", "id": null, "error": error });
        check(vec![Reply::status(400, body)], "unknown lost-response", 1).await;
    }
}

#[tokio::test]
async fn asking_goes_on_over_lost_connections_busy_gateways_and_nonsense() {
    let troubles =
        vec![Reply::Reset, Reply::status(503, json!({})), state("completed", json!({ "result": content() }))];
    check(troubles, "done", 3).await;
}

#[tokio::test]
async fn the_server_is_left_alone_as_long_as_it_wishes() {
    let asked = state("working", json!({ "pollIntervalMs": 700 }));
    let (fake, target) = server(vec![asked, state("completed", json!({ "result": content() }))]).await;
    let pool = pool();
    let began = Instant::now();
    let task = TaskRequest { first_after: Duration::from_millis(300), ..task() };
    assert_eq!(class(&follow(&pool, &target, &task).await), "done");
    assert!(began.elapsed() >= Duration::from_secs(1), "{:?}", began.elapsed());
    assert_eq!(fake.seen_rpc("tasks/get")[0].headers["mcp-name"], "t-1");
    pool.close().await;
}

#[tokio::test]
async fn b216_a_cancelled_run_cancels_the_task_and_an_end_within_the_grace_time_settles_it() {
    let cases = [
        (state("cancelled", json!({})), "unknown cancelled"),
        (state("completed", json!({ "result": content() })), "done"),
        (state("working", json!({})), "unknown cancelled"),
    ];
    for (after, expected) in cases {
        let fake = FakeMcp::start().await;
        fake.be_modern(true);
        let is_cancelled = Arc::new(Mutex::new(false));
        let told = Arc::clone(&is_cancelled);
        fake.on("tasks/get", move |_| if *told.lock() { after.clone() } else { state("working", json!({})) });
        fake.on("tasks/cancel", move |_| {
            *is_cancelled.lock() = true;
            Reply::Result(json!({ "resultType": "complete" }))
        });
        let (pool, target, stop) = (pool(), target(&fake.url()), CancellationToken::new());
        let (waiting, task, acme) = (stop.clone(), task(), acme());
        let following = pool.follow(&acme, &target, &task, waiting);
        let cancelling = async {
            fake.wait_until(|fake| fake.count("tasks/get") == 1).await;
            stop.cancel();
        };
        let (outcome, ()) = tokio::join!(following, cancelling);
        assert_eq!(class(&outcome), expected);
        assert_eq!(fake.seen_rpc("tasks/cancel")[0].body["params"]["taskId"], "t-1");
        pool.close().await;
    }
}

#[tokio::test]
async fn a_task_without_an_end_is_unknown_after_the_calls_own_limit_and_is_asked_for_once_however_late() {
    let (fake, target) = server(vec![state("working", json!({}))]).await;
    let pool = pool();
    let short = TaskRequest { total: Duration::from_millis(350), ..task() };
    assert_eq!(class(&follow(&pool, &target, &short).await), "unknown time-out");
    assert_eq!(fake.count("tasks/cancel"), 1);
    let (fake, target) = server(vec![state("completed", json!({ "result": content() }))]).await;
    let late = TaskRequest { total: Duration::ZERO, ..task() };
    assert!(matches!(follow(&pool, &target, &late).await, Outcome::Answered(Answer::Done { .. })));
    assert_eq!(fake.count("tasks/get"), 1);
    pool.close().await;
}

#[tokio::test]
async fn input_that_a_task_wants_and_nobody_gives_ends_it() {
    let wants = json!({ "inputRequests": { "q": { "method": "elicitation/create", "params": {} } } });
    let (fake, target) = server(vec![state("input_required", wants)]).await;
    let pool = pool();
    assert_eq!(class(&follow(&pool, &target, &task()).await), "failed input-required");
    assert_eq!(fake.count("tasks/cancel"), 1);
    pool.close().await;
}
