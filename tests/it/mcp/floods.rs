//! Servers that send and send: requests, notices, large answers. What is taken in of it, and what becomes of the calls
//! that are out.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use countersign::bulk::Held;
use countersign::mcp::{McpPool, McpTarget, News, PoolSettings, ProgressSink, ToolRequest};
use countersign::run::ids::TenantId;
use countersign::run::spec::Timeouts;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{acme, call, charge, class, object, pool, pool_with, settings, target};
use crate::support::bad_stdio::BadStdio;
use crate::support::fake_mcp::{FakeMcp, Reply, Step};

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

/// Bytes of a large answer.
const LARGE: usize = 900 * 1024;

/// A pool where a tenant may have one large answer in hand.
fn tight() -> Arc<McpPool> {
    pool_with(PoolSettings { max_result_bytes: 1 << 20, bulk_bytes: 2 << 20, ..settings() })
}

/// Answers a charge of 0 with little, and any other with much.
fn much(is_stream: bool) -> impl Fn(&crate::support::fake_mcp::Seen) -> Reply {
    let large = "x".repeat(LARGE);
    move |seen| {
        let text = if seen.body["params"]["arguments"]["amount"] == 0 { "little" } else { &large };
        let result = json!({ "content": [{ "type": "text", "text": text }] });
        if is_stream { Reply::Sse(vec![Step::Result(result), Step::Hang]) } else { Reply::Result(result) }
    }
}

async fn sent(pool: &McpPool, tenant: &TenantId, target: &McpTarget, request: ToolRequest) -> (String, Held) {
    let held = Held::default();
    let request = ToolRequest { held: held.clone(), ..request };
    (class(&pool.call(tenant, target, request, CancellationToken::new()).await), held)
}

/// The second large answer of a tenant waits for the first, and meanwhile `others` come to their end.
async fn check_turns(pool: &McpPool, target: &McpTarget, request: &ToolRequest, others: impl Future<Output = ()>) {
    let acme = acme();
    let (first, held) = sent(pool, &acme, target, request.clone()).await;
    assert_eq!(first, "done");
    assert!(held.bytes() >= LARGE, "{} bytes are held", held.bytes());
    let mut second = pin!(sent(pool, &acme, target, request.clone()));
    tokio::select! {
        (outcome, _) = &mut second => panic!("it did not wait: {outcome}"),
        () = others => {}
    }
    drop(held);
    assert_eq!(second.await.0, "done");
}

#[tokio::test]
async fn a_large_answer_waits_for_those_before_it_and_a_small_one_or_another_tenants_does_not() {
    let globex = TenantId::parse("globex").unwrap();
    for is_stream in [false, true] {
        let (pool, fake) = (tight(), FakeMcp::start().await);
        fake.on_call(much(is_stream));
        let target = target(&fake.url());
        let others = async {
            fake.wait_until(|fake| fake.count("tools/call") == 2).await;
            let (small, held) = sent(&pool, &acme(), &target, charge(0)).await;
            assert_eq!((small.as_str(), held.bytes()), ("done", 0));
            assert_eq!(sent(&pool, &globex, &target, charge(5)).await.0, "done");
        };
        check_turns(&pool, &target, &charge(5), others).await;
    }
    let (pool, bad) = (tight(), BadStdio::new(""));
    let target = bad.target();
    let arguments = object(json!({ "kib": LARGE / 1024 }));
    let giant = ToolRequest { server_tool: "giant".to_owned(), arguments, ..charge(1) };
    let others = async {
        bad.wait_for("call", 2).await;
        assert_eq!(sent(&pool, &globex, &target, giant.clone()).await.0, "done");
    };
    check_turns(&pool, &target, &giant, others).await;
    pool.close().await;
    bad.wait_until_gone().await;
}

#[tokio::test]
async fn a_call_whose_time_ends_while_its_answer_waits_is_unknown_and_keeps_nothing_from_the_next() {
    let (pool, fake) = (tight(), FakeMcp::start().await);
    fake.on_call(much(false));
    let patient = target(&fake.url());
    let hasty = McpTarget { timeouts: Timeouts { call_ms: 400, ..patient.timeouts }, ..patient.clone() };
    let (first, held) = sent(&pool, &acme(), &patient, charge(5)).await;
    assert_eq!(first, "done");
    assert_eq!(sent(&pool, &acme(), &hasty, charge(5)).await.0, "unknown time-out");
    drop(held);
    for _ in 0..3 {
        assert_eq!(sent(&pool, &acme(), &patient, charge(5)).await.0, "done");
    }
}

/// Hears of a change of tools that is announced behind more notices than a connection may bring.
async fn check_notices(pool: &McpPool, target: &McpTarget, request: ToolRequest) {
    let (_, watched) = pool.read(&acme(), target, Duration::from_mins(1)).await.unwrap();
    assert_eq!(watched.news(), News::None);
    assert_eq!(class(&pool.call(&acme(), target, request, CancellationToken::new()).await), "done");
    assert_eq!(watched.news(), News::Announced, "before the answer that came behind it is handed on");
}

#[tokio::test]
async fn notices_beyond_a_rate_are_passed_over_and_a_change_of_tools_among_them_is_heard() {
    let (pool, fake) = (pool(), FakeMcp::start().await);
    let result = json!({ "content": [{ "type": "text", "text": "charged" }] });
    fake.on_call(move |_| {
        let told = (1..=5_000).map(Step::Progress);
        Reply::Sse(told.chain([Step::ListChanged, Step::Result(result.clone())]).collect())
    });
    let heard = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&heard);
    let progress = ProgressSink::new(move |_| {
        count.fetch_add(1, Ordering::AcqRel);
    });
    check_notices(&pool, &target(&fake.url()), ToolRequest { progress, ..charge(5) }).await;
    let heard = heard.load(Ordering::Acquire);
    assert!((500..2_500).contains(&heard), "{heard} of 5,000 were heard");
    let bad = BadStdio::new("");
    let arguments = object(json!({ "times": 5_000 }));
    check_notices(&pool, &bad.target(), ToolRequest { server_tool: "notices".to_owned(), arguments, ..charge(1) })
        .await;
    pool.close().await;
    bad.wait_until_gone().await;
}
