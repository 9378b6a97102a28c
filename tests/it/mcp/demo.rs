//! The demo server, reached as any other: over its socket, in the newer era of the protocol.

use std::time::Duration;

use countersign::mcp::ToolRequest;
use countersign::mcp::demo::{self, DemoLedger};
use countersign::run::outcome::{Answer, Outcome};
use countersign::run::tool_result::told;
use serde_json::json;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{acme, call, charge, class, object, pool, target};

async fn start(ledger: &DemoLedger) -> (String, JoinSet<()>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    let router = demo::router(ledger.clone(), CancellationToken::new());
    let mut tasks = JoinSet::new();
    tasks.spawn(async move { axum::serve(listener, router).await.unwrap() });
    (url, tasks)
}

fn request(tool: &str, arguments: serde_json::Value) -> ToolRequest {
    ToolRequest { server_tool: tool.to_owned(), arguments: object(arguments), ..charge(0) }
}

#[tokio::test]
async fn the_demo_tools_do_what_they_say_and_the_ledger_counts_them() {
    let ledger = DemoLedger::default();
    let (url, _server) = start(&ledger).await;
    let (pool, target) = (pool(), target(&url));
    let catalog = pool.catalog(&acme(), &target, Duration::from_mins(1)).await.unwrap();
    let names: Vec<&str> = catalog.tools.iter().map(|tool| tool.name.as_str()).collect();
    assert_eq!(names, ["charge", "lookup_order", "slow", "fail"]);
    assert_eq!(catalog.tools[0].description.as_deref(), Some("Charge the card on file."));

    let Outcome::Answered(Answer::Done { output }) = call(&pool, &target).await else { panic!("not done") };
    assert_eq!(told(&output).output, "charged 5");
    assert_eq!(ledger.entries()[0].idempotency_key.as_deref(), Some("key-1"));
    assert_eq!(ledger.entries()[0].arguments, object(json!({ "amount": 5 })));

    for (tool, arguments, want) in [
        ("lookup_order", json!({}), "done"),
        ("slow", json!({ "ms": 1 }), "done"),
        ("fail", json!({}), "failed tool-error"),
        ("charge", json!({ "amount": "5" }), "failed mcp-error"),
        ("nope", json!({}), "failed mcp-error"),
    ] {
        let outcome = pool.call(&acme(), &target, request(tool, arguments), CancellationToken::new()).await;
        assert_eq!(class(&outcome), want, "{tool}: {outcome:?}");
    }
    assert_eq!((ledger.count("charge"), ledger.count("slow"), ledger.count("fail")), (1, 1, 0));
}

#[tokio::test]
async fn b216_in_the_newer_era_too_a_cancelled_call_is_cancelled_at_the_server() {
    let ledger = DemoLedger::default();
    let (url, _server) = start(&ledger).await;
    let (pool, target) = (pool(), target(&url));
    assert_eq!(class(&call(&pool, &target).await), "done");
    let cancel = CancellationToken::new();
    let tenant = acme();
    let calling = pool.call(&tenant, &target, request("slow", json!({ "ms": 2_000 })), cancel.clone());
    let cancelling = async {
        let arriving = async {
            while ledger.received() < 2 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), arriving).await.unwrap();
        cancel.cancel();
    };
    assert_eq!(class(&tokio::join!(calling, cancelling).0), "unknown cancelled");
    let quick = pool.call(&tenant, &target, request("slow", json!({ "ms": 2_000 })), CancellationToken::new()).await;
    assert_eq!(class(&quick), "done");
    assert_eq!(ledger.count("slow"), 1, "the cancelled one never finished");
}
