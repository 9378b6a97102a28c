//! Servers that nobody here wrote: the reference server (older era, sessions) and FastMCP (both eras).

use std::process::Command;
use std::time::Duration;

use countersign::mcp::{Endpoint, McpPool, McpTarget, ToolRequest};
use countersign::run::outcome::{Answer, Outcome};
use countersign::run::tool_result::told;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{acme, call_as, charge, class, object, pool, target};
use crate::support::counterparts::{everything, ledger_lines, ledger_server, listening_server, resumable_server};
use crate::support::process::{Process, testworld};

const FRESH: Duration = Duration::from_mins(1);

async fn call(pool: &McpPool, target: &McpTarget, tool: &str, arguments: Value) -> Outcome {
    let request = ToolRequest { server_tool: tool.to_owned(), arguments: object(arguments), ..charge(0) };
    call_as(pool, &acme(), target, request).await
}

fn output(outcome: Outcome) -> Value {
    match outcome {
        Outcome::Answered(Answer::Done { output }) => output,
        other => panic!("{other:?}"),
    }
}

/// A target whose limits suit a server that starts on a busy machine.
fn patient(url: &str) -> McpTarget {
    let mut target = target(url);
    target.timeouts.connect_ms = 30_000;
    target.timeouts.call_ms = 20_000;
    target.timeouts.call_total_ms = 60_000;
    target
}

#[tokio::test]
async fn the_reference_server_lists_and_calls() {
    let Some(server) = everything().await else { return };
    let (pool, target) = (pool(), patient(&server.url("/mcp")));
    let catalog = pool.catalog(&acme(), &target, FRESH).await.unwrap();
    let structured = catalog.tools.iter().find(|tool| tool.name == "get-structured-content").unwrap();
    assert!(catalog.tools.len() >= 10 && structured.output_schema.is_some());

    let echoed = output(call(&pool, &target, "echo", json!({ "message": "hi" })).await);
    assert_eq!(told(&echoed).output, "Echo: hi");
    let sum = output(call(&pool, &target, "get-sum", json!({ "a": 2, "b": 3 })).await);
    assert_eq!(told(&sum).output, "The sum of 2 and 3 is 5.");

    let mut request = ToolRequest { server_tool: structured.name.clone(), ..charge(0) };
    request.arguments = object(json!({ "location": "Chicago" }));
    request.output_schema.clone_from(&structured.output_schema);
    let weather = output(pool.call(&acme(), &target, request.clone(), CancellationToken::new()).await);
    assert!(told(&weather).output["temperature"].is_number(), "{weather}");
    request.output_schema = Some(json!({ "type": "object", "required": ["never"] }));
    let broken = pool.call(&acme(), &target, request, CancellationToken::new()).await;
    assert_eq!(class(&broken), "failed invalid-output");

    let unknown = call(&pool, &target, "nope", json!({})).await;
    assert_eq!(class(&unknown), "failed tool-error", "{unknown:?}");
    let mut hasty = target.clone();
    hasty.timeouts.call_ms = 400;
    let slow = json!({ "duration": 30, "steps": 1 });
    let slow = call(&pool, &hasty, "trigger-long-running-operation", slow).await;
    assert_eq!(class(&slow), "unknown time-out", "{slow:?}");
    pool.close().await;
}

#[tokio::test]
async fn b211_the_reference_server_restarted_on_its_port_gets_a_new_session_and_the_call_once() {
    let Some(server) = everything().await else { return };
    let (pool, target) = (pool(), patient(&server.url("/mcp")));
    let echo = || call(&pool, &target, "echo", json!({ "message": "hi" }));
    output(echo().await);
    let Endpoint::Http(url) = &target.endpoint else { unreachable!("it is reached over HTTP") };
    let port = url.port().unwrap();
    drop(server);
    let program = testworld("npm/node_modules/.bin/mcp-server-everything").unwrap();
    let _server = Process::start_on(port, |port| {
        let mut command = Command::new(&program);
        command.arg("streamableHttp").env("PORT", port.to_string());
        command
    })
    .await;
    assert_eq!(told(&output(echo().await)).output, "Echo: hi");
}

#[tokio::test]
async fn fastmcp_executes_each_call_once_and_sees_its_key() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = folder.path().join("ledger.jsonl");
    let Some(server) = ledger_server(&ledger).await else { return };
    let (pool, target) = (pool(), patient(&server.url("/mcp")));
    let catalog = pool.catalog(&acme(), &target, FRESH).await.unwrap();
    let names: Vec<&str> = catalog.tools.iter().map(|tool| tool.name.as_str()).collect();
    assert_eq!(names, ["charge", "lookup_order", "slow", "ask", "fail"]);
    assert_eq!(catalog.tools[0].description.as_deref(), Some("Charge the card on file."));

    let charged = output(call(&pool, &target, "charge", json!({ "amount": 5 })).await);
    assert_eq!(charged["content"][0]["text"], "charged 5");
    let order = output(call(&pool, &target, "lookup_order", json!({ "order_id": "A-1" })).await);
    assert_eq!(told(&order).output["state"], "paid");
    let failed = call(&pool, &target, "fail", json!({})).await;
    let Outcome::Answered(Answer::Failed { error, .. }) = &failed else { panic!("{failed:?}") };
    assert!(error.message.contains("declined"), "{error:?}");
    let tools: Vec<Value> = ledger_lines(&ledger).iter().map(|line| line["tool"].clone()).collect();
    assert_eq!(tools, ["charge", "lookup_order", "fail"]);
    assert!(ledger_lines(&ledger).iter().all(|line| line["idempotency_key"] == "key-1"), "{:?}", ledger_lines(&ledger));
}

#[tokio::test]
async fn b212_a_fastmcp_server_killed_in_a_call_leaves_an_unknown_outcome_and_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = folder.path().join("ledger.jsonl");
    let Some(server) = ledger_server(&ledger).await else { return };
    let (pool, target) = (pool(), patient(&server.url("/mcp")));
    output(call(&pool, &target, "charge", json!({ "amount": 1 })).await);
    let calling = call(&pool, &target, "slow", json!({ "ms": 30_000 }));
    let killing = async {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
        while ledger_lines(&ledger).len() < 2 {
            assert!(tokio::time::Instant::now() < deadline, "the call never arrived");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        drop(server);
    };
    let (outcome, ()) = tokio::join!(calling, killing);
    assert_eq!(class(&outcome), "unknown lost-response", "{outcome:?}");
    assert_eq!(ledger_lines(&ledger).len(), 2);
    let refused = call(&pool, &target, "charge", json!({ "amount": 1 })).await;
    assert_eq!(class(&refused), "not sent mcp-unreachable", "{refused:?}");
}

#[tokio::test]
async fn progress_of_a_fastmcp_tool_keeps_a_call_alive_past_its_idle_limit() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = folder.path().join("ledger.jsonl");
    let Some(server) = ledger_server(&ledger).await else { return };
    let (pool, mut target) = (pool(), patient(&server.url("/mcp")));
    output(call(&pool, &target, "charge", json!({ "amount": 1 })).await);
    target.timeouts.call_ms = 2_000;
    output(call(&pool, &target, "slow", json!({ "ms": 3_500 })).await);
    target.timeouts.call_total_ms = 1_000;
    let cut = call(&pool, &target, "slow", json!({ "ms": 3_500 })).await;
    assert_eq!(class(&cut), "unknown time-out");
}

#[tokio::test]
async fn a_change_that_a_server_of_the_newer_era_announces_is_heard_of() {
    let Some(server) = listening_server().await else { return };
    let (pool, target) = (pool(), patient(&server.url("/mcp")));
    let names = || async {
        let catalog = pool.catalog(&acme(), &target, Duration::from_hours(1)).await.unwrap();
        catalog.tools.iter().map(|tool| tool.name.clone()).collect::<Vec<_>>()
    };
    assert_eq!(names().await, ["echo", "grow"]);
    let grown = output(call(&pool, &target, "grow", json!({ "name": "more" })).await);
    assert_eq!(told(&grown).output["result"], "added more");
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    while names().await != ["echo", "grow", "more"] {
        assert!(tokio::time::Instant::now() < deadline, "the change is not heard of");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    pool.close().await;
}

#[tokio::test]
async fn a_fastmcp_call_whose_stream_is_closed_half_way_is_answered_and_executed_once() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = folder.path().join("ledger.jsonl");
    let Some(server) = resumable_server(&ledger).await else { return };
    let (pool, target) = (pool(), patient(&server.url("/mcp")));
    let answer = output(call(&pool, &target, "slow_drop", json!({ "seconds": 0.8 })).await);
    assert_eq!(told(&answer).output["result"], "survived the drop");
    assert_eq!(ledger_lines(&ledger).len(), 1);
    pool.close().await;
}
