//! A run is cancelled while its call is out.

use std::sync::Arc;

use countersign::mcp::{MayLeave, McpPool, ToolRequest};
use countersign::run::outcome::Outcome;
use serde_json::json;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::{acme, charge, class, pool, target};
use crate::support::fake_mcp::{FakeMcp, Reply, Step};

/// Calls, cancels when the server has the call, runs `then`, and gives the outcome.
async fn cancelled(pool: &McpPool, fake: &FakeMcp, then: impl Future<Output = ()>) -> Outcome {
    let cancel = CancellationToken::new();
    let target = target(&fake.url());
    let tenant = acme();
    let calling = pool.call(&tenant, &target, charge(5), cancel.clone());
    let cancelling = async {
        fake.wait_until(|fake| fake.count("tools/call") == 1).await;
        cancel.cancel();
        fake.wait_until(|fake| fake.count("notifications/cancelled") >= 1).await;
        then.await;
    };
    tokio::join!(calling, cancelling).0
}

#[tokio::test]
async fn b216_a_cancelled_call_without_an_answer_is_unknown_and_the_server_was_told_once() {
    for reply in [Reply::Silence, Reply::Sse(vec![Step::Progress(1), Step::Hang])] {
        let fake = FakeMcp::start().await;
        fake.on_call(move |_| reply.clone());
        let outcome = cancelled(&pool(), &fake, async {}).await;
        assert_eq!(class(&outcome), "unknown cancelled");
        let notices = fake.seen_rpc("notifications/cancelled");
        assert_eq!(notices.len(), 1);
        assert_eq!(notices[0].body["params"]["requestId"], fake.seen_rpc("tools/call")[0].body["id"]);
        assert_eq!(notices[0].headers["authorization"], "Bearer hunter2");
        assert_eq!(notices[0].headers["mcp-session-id"], fake.seen_rpc("tools/call")[0].headers["mcp-session-id"]);
    }
}

#[tokio::test]
async fn b216_an_answer_within_the_grace_time_still_settles_a_cancelled_call() {
    for answer in [Reply::text("charged"), Reply::Sse(vec![Step::Result(json!({ "content": [] }))])] {
        let fake = FakeMcp::start().await;
        let gate = Arc::new(Notify::new());
        let reply = Reply::When(Arc::clone(&gate), Box::new(answer));
        fake.on_call(move |_| reply.clone());
        let outcome = cancelled(&pool(), &fake, async move { gate.notify_one() }).await;
        assert_eq!(class(&outcome), "done");
    }
}

#[tokio::test]
async fn a_call_of_a_run_that_is_already_cancelled_is_never_sent() {
    let fake = FakeMcp::start().await;
    let cancel = CancellationToken::new();
    cancel.cancel();
    let outcome = pool().call(&acme(), &target(&fake.url()), charge(5), cancel).await;
    assert_eq!(class(&outcome), "not sent cancelled");
    assert_eq!(fake.seen().len(), 0);
}

#[tokio::test]
async fn b221_a_call_that_may_not_leave_any_more_once_it_has_a_connection_is_never_sent() {
    let fake = FakeMcp::start().await;
    let request = ToolRequest { may_leave: MayLeave::new(|| false), ..charge(5) };
    let pool = pool();
    let outcome = pool.call(&acme(), &target(&fake.url()), request, CancellationToken::new()).await;
    assert_eq!(class(&outcome), "not sent mcp-unreachable");
    assert_eq!((fake.count("initialize"), fake.count("tools/call")), (1, 0));
    assert_eq!(class(&super::call(&pool, &target(&fake.url())).await), "done");
    assert_eq!(fake.count("initialize"), 1);
}

#[tokio::test]
async fn the_connection_serves_other_calls_after_one_was_cancelled() {
    let fake = FakeMcp::start().await;
    fake.on_call(|_| Reply::Silence);
    let pool = pool();
    assert_eq!(class(&cancelled(&pool, &fake, async {}).await), "unknown cancelled");
    fake.on_call(|_| Reply::text("charged"));
    assert_eq!(class(&super::call(&pool, &target(&fake.url())).await), "done");
    assert_eq!(fake.count("initialize"), 1);
}
