//! Servers that are processes: how they end, whatever they do against it.

use std::io::Write as _;
use std::time::Duration;

use countersign::mcp::PoolSettings;
use reqwest::Method;
use serde_json::json;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{acme, charge, class, pool, pool_with, settings};
use crate::support::bad_stdio::{BadStdio, exists};
use crate::support::database::Database;
use crate::support::product::{Options, Product};

const FRESH: Duration = Duration::from_mins(1);

#[tokio::test]
async fn a_closed_connection_leaves_no_process_no_child_and_no_zombie() {
    for modes in ["", "child", "launcher", "stubborn,child", "stray", "stray,child", "stubborn,stray"] {
        let bad = BadStdio::new(modes);
        let (pool, target) = (pool(), bad.target());
        assert_eq!(class(&super::call(&pool, &target).await), "done", "{modes}");
        let started = Instant::now();
        pool.close().await;
        assert!(started.elapsed() < Duration::from_secs(5), "{modes}: {:?}", started.elapsed());
        assert_eq!(pool.processes(), 0, "{modes}");
        bad.wait_until_gone().await;
        if modes.contains("stubborn") {
            assert!(bad.count("term") > 0, "it was asked before it was killed");
        }
        assert!(bad.count("input-closed") > 0, "{modes}: its input is closed first");
    }
}

#[tokio::test]
async fn an_idle_process_is_ended_and_the_next_call_starts_another() {
    let bad = BadStdio::new("");
    let pool = pool_with(PoolSettings { idle_close: Duration::ZERO, ..settings() });
    let target = bad.target();
    assert_eq!(class(&super::call(&pool, &target).await), "done");
    pool.sweep();
    bad.wait_until_gone().await;
    assert_eq!((pool.open_connections(), pool.processes()), (0, 0));
    assert_eq!(class(&super::call(&pool, &target).await), "done");
    assert_eq!(bad.count("initialize"), 2);
}

#[tokio::test]
async fn a_handshake_that_takes_too_long_or_is_given_up_leaves_no_process() {
    let bad = BadStdio::new("silent-at-discover,stubborn");
    let (pool, mut target) = (pool(), bad.target());
    target.timeouts.connect_ms = 10;
    let fault = pool.catalog(&acme(), &target, FRESH).await.unwrap_err();
    assert!(fault.message.contains("no handshake within"), "{fault}");
    target.timeouts.connect_ms = 20_000;
    let tenant = acme();
    let given_up = pool.catalog(&tenant, &target, FRESH);
    let waiting = async {
        bad.wait_for("discover", 1).await;
    };
    tokio::select! {
        () = waiting => {}
        read = given_up => panic!("{read:?}"),
    }
    bad.wait_until_gone().await;
    pool.close().await;
    assert_eq!(pool.processes(), 0);
}

#[tokio::test]
async fn a_program_that_cannot_run_is_left_alone_for_a_while_and_named() {
    let bad = BadStdio::new("fails");
    let mut settings = settings();
    settings.breaker.failures = 2;
    settings.breaker.pause = Duration::from_mins(1);
    settings.breaker.pause_max = Duration::from_mins(1);
    let (pool, target) = (pool_with(settings), bad.target());
    for _ in 0..2 {
        let fault = pool.catalog(&acme(), &target, FRESH).await.unwrap_err();
        assert!(fault.message.contains("its process ended (exit status: 7)"), "{fault}");
        assert!(!fault.message.contains("hunter2"), "{fault}");
    }
    let started = bad.count("start");
    for _ in 0..5 {
        let outcome = pool.call(&acme(), &target, charge(1), CancellationToken::new()).await;
        assert_eq!(class(&outcome), "not sent mcp-unreachable");
        assert!(format!("{outcome:?}").contains("paused until"), "{outcome:?}");
    }
    assert_eq!(bad.count("start"), started, "nobody starts it meanwhile");
    bad.wait_until_gone().await;
    let mut missing = bad.server();
    missing.command = "/no/such/program".to_owned();
    let missing = countersign::mcp::Endpoint::Stdio(std::sync::Arc::new(missing));
    let missing = countersign::mcp::McpTarget { endpoint: missing, ..target };
    let fault = super::pool().catalog(&acme(), &missing, FRESH).await.unwrap_err();
    assert!(fault.message.contains("could not be started: No such file"), "{fault}");
}

/// A configuration file that declares the server as `bad`, for the tenant acme.
fn declared(bad: &BadStdio) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let args = serde_json::to_string(&bad.args()).unwrap();
    writeln!(file, "[mcp_servers.bad]\ncommand = \"python3\"\nargs = {args}\ntenants = [\"acme\"]").unwrap();
    writeln!(file, "[mcp_servers.bad.env]\nTOKEN = \"hunter2-hunter2\"").unwrap();
    file
}

#[tokio::test]
async fn a_declared_server_serves_the_runs_of_its_tenants_and_dies_with_a_killed_server() {
    let database = Database::sqlite().await;
    let bad = BadStdio::new("child,stubborn");
    let file = declared(&bad);
    let options = Options::default().with("--config", file.path().display().to_string());
    let product = Product::start_as(&database.url, &options).await;
    let run = |id: &str| {
        json!({
            "id": id, "input": "Charge 5.", "mcp": [{ "server": "bad" }],
            "model": { "provider": "scripted", "name": "demo", "script": [
                { "tool_calls": [{ "name": "charge", "arguments": { "amount": 5 } }] }, { "text": "Charged." },
            ] },
        })
    };
    product.post("/v1/runs", &run("one"), 201).await;
    assert_eq!(product.rested("one").await["status"], "completed");
    product.post("/v1/runs", &run("two"), 201).await;
    assert_eq!(product.rested("two").await["status"], "completed");
    assert_eq!((bad.count("initialize"), bad.count("call")), (1, 2));
    let refused = product.send_as("globex", Method::POST, "/v1/runs", Some(&run("one"))).await;
    assert_eq!(refused.status(), 422, "for another tenant there is no such server");
    let pids = bad.pids();
    assert!(pids.iter().any(|pid| exists(*pid)));
    product.kill();
    bad.wait_until_gone().await;
}
