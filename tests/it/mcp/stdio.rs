//! Servers that are processes: what is known of a call when one misbehaves, and what it is given of us.

use std::sync::Arc;
use std::time::Duration;

use countersign::mcp::{Endpoint, McpPool, McpTarget, StdioServer, ToolRequest};
use countersign::run::ids::TenantId;
use countersign::run::outcome::{Answer, Outcome};
use countersign::run::tool_result::told;
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{acme, charge, class, object, pool, settings};
use crate::support::bad_stdio::BadStdio;
use crate::support::process::testworld;

const FRESH: Duration = Duration::from_mins(1);

fn request(tool: &str, arguments: Value) -> ToolRequest {
    ToolRequest { server_tool: tool.to_owned(), arguments: object(arguments), ..charge(1) }
}

async fn call(pool: &McpPool, target: &McpTarget, tool: &str, arguments: Value) -> Outcome {
    pool.call(&acme(), target, request(tool, arguments), CancellationToken::new()).await
}

#[track_caller]
fn text(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Answered(Answer::Done { output }) => told(output).output.as_str().unwrap().to_owned(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn b108_b205_a_process_serves_one_tenant_alone_and_all_its_runs() {
    let bad = BadStdio::new("");
    let (pool, target) = (pool(), bad.target());
    let calls = (0..3).map(|_| call(&pool, &target, "charge", json!({})));
    assert!(futures::future::join_all(calls).await.iter().all(|outcome| class(outcome) == "done"));
    assert_eq!((bad.count("initialize"), bad.count("call")), (1, 3));
    let globex = TenantId::parse("globex").unwrap();
    let theirs = pool.call(&globex, &target, request("charge", json!({})), CancellationToken::new()).await;
    assert_eq!(class(&theirs), "done");
    let calls = bad.seen("call");
    assert_ne!(calls[0]["pid"], calls[3]["pid"], "another tenant's process is another");
    assert_eq!((bad.count("initialize"), pool.open_connections(), pool.processes()), (2, 2, 2));
    pool.close().await;
    assert_eq!((pool.open_connections(), pool.processes()), (0, 0));
    bad.wait_until_gone().await;
}

#[tokio::test]
async fn the_newer_era_is_asked_for_once_by_a_process_of_its_own() {
    for mode in ["", "exits-at-discover", "silent-at-discover"] {
        let bad = BadStdio::new(mode);
        let (pool, target) = (pool(), bad.target());
        let catalog = pool.catalog(&acme(), &target, FRESH).await.unwrap();
        assert_eq!(catalog.tools[0].name, "charge", "{mode}");
        let pid = |event: &str| bad.seen(event)[0]["pid"].clone();
        assert_ne!(pid("discover"), pid("initialize"), "{mode}");
        let globex = TenantId::parse("globex").unwrap();
        pool.catalog(&globex, &target, FRESH).await.unwrap();
        assert_eq!((bad.count("start"), bad.count("discover"), bad.count("initialize")), (3, 1, 2), "{mode}");
        pool.close().await;
        bad.wait_until_gone().await;
    }
}

#[tokio::test]
async fn a_process_gets_what_is_declared_and_nothing_of_ours() {
    let bad = BadStdio::new("");
    let target = bad.target();
    let told: Value = serde_json::from_str(&text(&call(&pool(), &target, "env", json!({})).await)).unwrap();
    let mut names: Vec<&String> = told["env"].as_object().unwrap().keys().collect();
    // The interpreter sets this one itself.
    names.retain(|name| *name != "LC_CTYPE");
    assert_eq!(names, ["HOME", "PATH", "TOKEN"]);
    assert_eq!((told["cwd"].as_str(), told["env"]["HOME"].as_str()), (Some("/"), Some("/")));
}

#[tokio::test]
async fn noise_on_the_output_is_passed_over() {
    let bad = BadStdio::new("banner");
    let (pool, target) = (pool(), bad.target());
    assert_eq!(text(&call(&pool, &target, "noise", json!({ "lines": 2_000 })).await), "done");
    assert_eq!(text(&call(&pool, &target, "complain", json!({ "kib": 512 })).await), "done");
    assert_eq!(bad.count("initialize"), 1);
}

/// Calls a tool that misbehaves, and expects this of the call, of the connection, and within some seconds.
async fn check(tool: &str, arguments: Value, expected: &str, stays: bool) {
    let bad = BadStdio::new("");
    let (pool, mut target) = (pool(), bad.target());
    pool.catalog(&acme(), &target, FRESH).await.unwrap();
    target.timeouts.call_ms = 3_000;
    let started = Instant::now();
    let outcome = call(&pool, &target, tool, arguments).await;
    assert_eq!(class(&outcome), expected, "{tool}: {outcome:?}");
    assert!(started.elapsed() < Duration::from_secs(8), "{tool}: {:?}", started.elapsed());
    assert_eq!(bad.seen("call").iter().filter(|call| call["tool"] == tool).count(), 1, "{tool} ran once");
    assert_eq!(class(&call(&pool, &target, "charge", json!({})).await), "done", "{tool}");
    let handshakes = if stays { 1 } else { 2 };
    assert_eq!(bad.count("initialize"), handshakes, "{tool}");
    pool.close().await;
    bad.wait_until_gone().await;
}

#[tokio::test]
async fn what_was_written_and_not_answered_is_unknown() {
    check("exit", json!({}), "unknown lost-response", false).await;
    check("half", json!({}), "unknown lost-response", false).await;
    check("hang", json!({}), "unknown time-out", true).await;
}

#[tokio::test]
async fn a_line_without_a_limit_ends_the_wait_and_never_hangs_a_call() {
    let kib = settings().max_result_bytes / 1024;
    check("giant", json!({ "kib": kib + 1 }), "failed result-too-large", true).await;
    check("giant-noise", json!({ "kib": kib + 1 }), "unknown lost-response", false).await;
    check("flood", json!({}), "unknown lost-response", false).await;
    check("endless-noise", json!({}), "unknown lost-response", false).await;
}

#[tokio::test]
async fn b209_a_call_that_waits_behind_another_and_is_not_written_is_not_sent() {
    let bad = BadStdio::new("");
    let (pool, mut target) = (pool(), bad.target());
    pool.catalog(&acme(), &target, FRESH).await.unwrap();
    target.timeouts.call_ms = 1_000;
    let deaf = call(&pool, &target, "deaf", json!({}));
    let large = async {
        bad.wait_for("call", 1).await;
        call(&pool, &target, "charge", json!({ "text": "x".repeat(1 << 20) })).await
    };
    let behind = async {
        bad.wait_for("call", 1).await;
        // The pipe is full of the large one by then.
        tokio::time::sleep(Duration::from_millis(300)).await;
        call(&pool, &target, "charge", json!({})).await
    };
    let (deaf, large, behind) = tokio::join!(deaf, large, behind);
    let classes = [class(&deaf), class(&large), class(&behind)];
    assert_eq!(classes, ["unknown time-out", "unknown time-out", "not sent mcp-timeout"]);
    assert_eq!(bad.count("call"), 1);
}

#[tokio::test]
async fn a_cancelled_call_is_told_to_the_process_and_its_answer_still_counts() {
    let bad = BadStdio::new("");
    let (pool, target) = (pool(), bad.target());
    pool.catalog(&acme(), &target, FRESH).await.unwrap();
    for (tool, arguments, expected) in
        [("hang", json!({}), "unknown cancelled"), ("slow", json!({ "ms": 150 }), "done")]
    {
        let cancel = CancellationToken::new();
        let before = bad.count("call");
        let tenant = acme();
        let calling = pool.call(&tenant, &target, request(tool, arguments), cancel.clone());
        let cancelling = async {
            bad.wait_for("call", before + 1).await;
            cancel.cancel();
        };
        let (outcome, ()) = tokio::join!(calling, cancelling);
        assert_eq!(class(&outcome), expected, "{outcome:?}");
    }
    bad.wait_for("cancelled", 2).await;
    assert_eq!((bad.count("cancelled"), bad.count("initialize")), (2, 1));
}

#[tokio::test]
async fn a_process_that_ended_between_two_calls_is_started_again() {
    let bad = BadStdio::new("");
    let (pool, target) = (pool(), bad.target());
    assert_eq!(class(&call(&pool, &target, "charge", json!({})).await), "done");
    let pid = bad.seen("initialize")[0]["pid"].as_u64().unwrap();
    let killed = std::process::Command::new("kill").args(["-9", &pid.to_string()]).status();
    assert!(killed.unwrap().success());
    bad.wait_until_gone().await;
    assert_eq!(class(&call(&pool, &target, "charge", json!({})).await), "done");
    assert_eq!((bad.count("initialize"), bad.count("call")), (2, 2));
}

#[tokio::test]
async fn the_reference_server_works_over_stdio() {
    let Some(program) = testworld("npm/node_modules/.bin/mcp-server-everything") else { return };
    let server = StdioServer {
        name: "everything".to_owned(),
        command: program.display().to_string(),
        args: vec!["stdio".to_owned()],
        env: Vec::new(),
        cwd: None,
    };
    let target = McpTarget {
        place: String::new(),
        endpoint: Endpoint::Stdio(Arc::new(server)),
        timeouts: countersign::run::spec::Timeouts { connect_ms: 60_000, ..Default::default() },
        ..BadStdio::new("").target()
    };
    let pool = pool();
    let catalog = pool.catalog(&acme(), &target, FRESH).await.unwrap();
    assert!(catalog.tools.len() >= 13, "{catalog:?}");
    assert_eq!(text(&call(&pool, &target, "echo", json!({ "message": "hi" })).await), "Echo: hi");
    let environment = text(&call(&pool, &target, "get-env", json!({})).await);
    assert!(!environment.contains("CARGO"), "{environment}");
    pool.close().await;
    assert_eq!(pool.processes(), 0);
}
