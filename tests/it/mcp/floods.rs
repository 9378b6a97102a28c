//! Servers that ask and ask: what is taken in of it, and what becomes of the calls that are out.

use serde_json::{Value, json};

use super::{acme, call, charge, class, object, pool, target};
use crate::support::bad_stdio::BadStdio;
use crate::support::fake_mcp::{FakeMcp, Reply, Step};
use countersign::mcp::ToolRequest;
use tokio_util::sync::CancellationToken;

/// So many pings as events.
pub(crate) fn pings(count: u32) -> String {
    let ping = |id| format!("data: {}\n\n", json!({ "jsonrpc": "2.0", "id": format!("p{id}"), "method": "ping" }));
    (0..count).map(ping).collect()
}

#[tokio::test]
async fn as_many_pings_as_a_server_may_need_are_all_answered() {
    let (pool, fake) = (pool(), FakeMcp::start().await);
    let result = json!({ "content": [{ "type": "text", "text": "charged" }] });
    fake.on_call(move |_| Reply::Sse(vec![Step::Raw(pings(900)), Step::Result(result.clone())]));
    assert_eq!(class(&call(&pool, &target(&fake.url())).await), "done");
    let answers = |fake: &FakeMcp| {
        let answered = fake.seen().into_iter().filter(|seen| seen.body["result"] == json!({}));
        answered.map(|seen| seen.body["id"].clone()).collect::<Vec<Value>>()
    };
    fake.wait_until(|fake| answers(fake).len() == 900).await;
    let mut ids: Vec<String> = answers(&fake).iter().map(ToString::to_string).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 900, "each once");
}

#[tokio::test]
async fn b212_a_server_that_asks_without_an_end_loses_its_connection_and_its_call_is_unknown() {
    let (pool, fake) = (pool(), FakeMcp::start().await);
    let flood = std::sync::atomic::AtomicBool::new(true);
    fake.on_call(move |_| {
        if flood.swap(false, std::sync::atomic::Ordering::AcqRel) {
            Reply::Sse(vec![Step::Raw(format!("id: 1\n{}", pings(50_000))), Step::Hang])
        } else {
            Reply::text("charged")
        }
    });
    assert_eq!(class(&call(&pool, &target(&fake.url())).await), "unknown lost-response");
    let answers = fake.seen().iter().filter(|seen| seen.rpc().is_empty() && seen.http_method == "POST").count();
    assert!(answers <= 1_200, "{answers} answers");
    // The next call finds another connection, and nothing of the flood is asked for again.
    assert_eq!(class(&call(&pool, &target(&fake.url())).await), "done");
    assert_eq!((fake.count("initialize"), fake.count("tools/call")), (2, 2));
}

#[tokio::test]
async fn b212_a_process_that_asks_without_an_end_is_ended_and_its_call_is_unknown() {
    let bad = BadStdio::new("");
    let (pool, target) = (pool(), bad.target());
    let request = |times: u32| {
        let arguments = object(json!({ "times": times }));
        ToolRequest { server_tool: "pings".to_owned(), arguments, ..charge(1) }
    };
    let outcome = pool.call(&acme(), &target, request(500), CancellationToken::new()).await;
    assert_eq!(class(&outcome), "done");
    let outcome = pool.call(&acme(), &target, request(1_000_000), CancellationToken::new()).await;
    assert_eq!(class(&outcome), "unknown lost-response");
    assert_eq!(class(&pool.call(&acme(), &target, request(1), CancellationToken::new()).await), "done");
    pool.close().await;
    bad.wait_until_gone().await;
}
