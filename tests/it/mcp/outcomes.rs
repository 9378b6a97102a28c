//! What belongs to the end of a call beyond its class (`ways.rs` has the table of those).

use std::time::Duration;

use countersign::mcp::McpTarget;
use countersign::run::outcome::{Answer, Outcome};
use countersign::run::spec::Timeouts;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{acme, call, charge, class, pool, settings, target};
use crate::support::fake_mcp::{FakeMcp, Reply, Step};

/// One call against `reply`: its class, and how often the server saw it.
#[track_caller]
fn check(reply: Reply, want: &'static str, seen: usize) -> impl Future<Output = Outcome> {
    check_with(reply, want, seen, |_| {})
}

#[track_caller]
fn check_with(
    reply: Reply,
    want: &'static str,
    seen: usize,
    change: fn(&mut McpTarget),
) -> impl Future<Output = Outcome> {
    let place = std::panic::Location::caller();
    async move {
        let fake = FakeMcp::start().await;
        fake.on_call(move |_| reply.clone());
        let mut target = target(&fake.url());
        change(&mut target);
        let outcome = call(&pool(), &target).await;
        assert_eq!(class(&outcome), want, "{place}: {outcome:?}");
        assert_eq!(fake.count("tools/call"), seen, "{place}: times seen");
        outcome
    }
}

fn rpc_error() -> Value {
    json!({ "jsonrpc": "2.0", "id": 1, "error": { "code": -32603, "message": "upstream" } })
}

#[tokio::test]
async fn a_stream_that_is_resumed_for_nothing_ends_in_an_unknown_outcome_and_not_in_a_loop() {
    let fake = FakeMcp::start().await;
    fake.on_call(|_| Reply::Sse(vec![Step::Raw("id: e1\nretry: 1\ndata: \n\n".to_owned())]));
    fake.on_get(|seen| {
        let is_resume = seen.headers.contains_key("last-event-id");
        if is_resume { Reply::Sse(vec![]) } else { Reply::status(405, json!({})) }
    });
    assert_eq!(class(&call(&pool(), &target(&fake.url())).await), "unknown lost-response");
    assert_eq!(fake.count("tools/call"), 1);
    assert!(fake.count_http("GET") <= 7, "{}", fake.count_http("GET"));
}

fn limits(call_ms: u64, call_total_ms: u64) -> Timeouts {
    Timeouts { connect_ms: 5_000, call_ms, call_total_ms }
}

#[tokio::test]
async fn a_timed_out_call_is_cancelled_at_the_server() {
    let fake = FakeMcp::start().await;
    fake.on_call(|_| Reply::Silence);
    let mut target = target(&fake.url());
    target.timeouts = limits(200, 10_000);
    assert_eq!(class(&call(&pool(), &target).await), "unknown time-out");
    fake.wait_until(|fake| fake.count("notifications/cancelled") == 1).await;
    let call = &fake.seen_rpc("tools/call")[0];
    assert_eq!(fake.seen_rpc("notifications/cancelled")[0].body["params"]["requestId"], call.body["id"]);
}

#[tokio::test]
async fn an_answer_above_the_limit_says_that_the_call_was_executed() {
    let big = "x".repeat(settings().max_result_bytes);
    for reply in [
        Reply::text(&big),
        Reply::Sse(vec![Step::Result(json!({ "content": [{ "type": "text", "text": big }] })), Step::Hang]),
    ] {
        let outcome = check(reply, "failed result-too-large", 1).await;
        let Outcome::Answered(Answer::Failed { error, .. }) = outcome else { unreachable!() };
        assert!(error.message.contains("was executed"), "{error:?}");
    }
    let below = "x".repeat(settings().max_result_bytes - 1_000);
    check(Reply::text(&below), "done", 1).await;
    check(Reply::Sse(vec![Step::Result(json!({ "content": [{ "type": "text", "text": below }] }))]), "done", 1).await;
}

#[tokio::test]
async fn b211_a_handshake_that_fails_means_that_the_call_was_not_executed() {
    for (reply, words) in [
        (Reply::status(401, json!({})), "HTTP 401"),
        (Reply::status(403, rpc_error()), "HTTP 403"),
        (Reply::status(503, json!({})), "HTTP 503"),
        (Reply::Reset, "the connection broke"),
        (Reply::HalfBody, "in the middle of the answer"),
        (Reply::Http(202, vec![], String::new()), "without answering"),
        (Reply::Http(200, vec![("content-type", "text/html".to_owned())], "<p>".to_owned()), "neither JSON"),
    ] {
        let fake = FakeMcp::start().await;
        fake.refuse_handshakes(reply);
        let outcome = call(&pool(), &target(&fake.url())).await;
        assert_eq!(class(&outcome), "not sent mcp-unreachable", "{words}");
        assert!(format!("{outcome:?}").contains(words), "{words}: {outcome:?}");
        assert_eq!(fake.count("tools/call"), 0);
    }
}

#[tokio::test]
async fn b211_a_server_that_answers_no_handshake_costs_the_connect_time_once() {
    let fake = FakeMcp::start().await;
    fake.refuse_handshakes(Reply::Silence);
    let mut target = target(&fake.url());
    target.timeouts.connect_ms = 1_500;
    let started = tokio::time::Instant::now();
    let outcome = call(&pool(), &target).await;
    assert_eq!(class(&outcome), "not sent mcp-unreachable");
    assert!(format!("{outcome:?}").contains("no handshake within 1500 ms"), "{outcome:?}");
    assert!(started.elapsed() < Duration::from_millis(2_900), "{:?}", started.elapsed());
}

#[tokio::test]
async fn b211_a_lost_session_is_opened_again_once_and_the_call_sent_again() {
    let words = |status, text: &str| {
        Reply::status(status, json!({ "jsonrpc": "2.0", "error": { "code": -32000, "message": text } }))
    };
    for lost in [
        words(404, "Session not found"),
        words(400, "Bad Request: No valid session ID provided"),
        words(401, "Unauthorized: Session not found"),
        Reply::Http(404, vec![], String::new()),
    ] {
        let fake = FakeMcp::start().await;
        let (pool, target) = (pool(), target(&fake.url()));
        assert_eq!(class(&call(&pool, &target).await), "done");
        fake.lose_sessions(lost);
        assert_eq!(class(&call(&pool, &target).await), "done");
        assert_eq!((fake.count("initialize"), fake.count("tools/call")), (2, 3));
    }
}

#[tokio::test]
async fn b211_an_answer_that_only_speaks_of_sessions_does_not_bring_the_call_back() {
    for (status, body) in [
        (400, json!({ "error": { "message": "checkout session cs_1 already completed" } })),
        (400, json!({ "error": { "code": "bad_meta", "message": "_meta is missing in the order" } })),
        (401, json!({ "error": "your session has expired" })),
        (410, json!({ "error": { "message": "session gone" } })),
        (400, json!({ "jsonrpc": "2.0", "id": 2, "error": { "code": -32000, "message": "session cs_1 is closed" } })),
    ] {
        let fake = FakeMcp::start().await;
        fake.on_call(move |seen| {
            let mut body = body.clone();
            if body.get("id").is_some() {
                body["id"] = seen.body["id"].clone();
            }
            Reply::status(status, body)
        });
        let outcome = class(&call(&pool(), &target(&fake.url())).await);
        assert!(outcome.starts_with("not sent"), "{status} {outcome}");
        assert_eq!(fake.count("tools/call"), 1, "{status}");
    }
}

#[tokio::test]
async fn a_result_that_is_no_object_is_no_result() {
    for result in [Value::Null, json!("ok"), json!([1])] {
        check(Reply::Result(result), "failed invalid-result", 1).await;
    }
}

#[tokio::test]
async fn b105_the_result_is_kept_as_the_server_wrote_it_with_its_digits() {
    let text = r#"{"content":[{"type":"text","text":"a"},{"type":"odd","x":1e2}],"structuredContent":{"big":18446744073709551617,"f":117.63331139400017},"isError":false,"_meta":{"k":0.10},"unknown":[null]}"#;
    let result: Value = serde_json::from_str(text).unwrap();
    for reply in [Reply::Result(result.clone()), Reply::Sse(vec![Step::Result(result.clone())])] {
        let outcome = check(reply, "done", 1).await;
        assert_eq!(outcome, Outcome::Answered(Answer::Done { output: result.clone() }));
        let Outcome::Answered(Answer::Done { output }) = outcome else { unreachable!() };
        assert_eq!(output.to_string(), result.to_string());
    }
}

#[tokio::test]
async fn b103_a_result_that_breaks_its_output_schema_is_a_failed_call_with_the_raw_answer() {
    let fake = FakeMcp::start().await;
    fake.on_call(|_| Reply::Result(json!({ "content": [], "structuredContent": { "n": "1" } })));
    let mut request = charge(5);
    request.output_schema = Some(json!({ "type": "object", "properties": { "n": { "type": "integer" } } }));
    let outcome = pool().call(&acme(), &target(&fake.url()), request, CancellationToken::default()).await;
    let Outcome::Answered(Answer::Failed { error, output }) = outcome else { panic!("{outcome:?}") };
    assert_eq!(error.code, "invalid-output");
    assert!(error.message.contains("/n"), "{error:?}");
    assert_eq!(output.unwrap()["structuredContent"]["n"], "1");
}

#[tokio::test]
async fn b213_b204_a_call_carries_its_key_its_meta_and_the_servers_credentials() {
    let fake = FakeMcp::start().await;
    assert_eq!(class(&call(&pool(), &target(&fake.url())).await), "done");
    let seen = fake.seen_rpc("tools/call").remove(0);
    assert_eq!(seen.headers["idempotency-key"], "key-1");
    assert_eq!(seen.body["params"]["arguments"], json!({ "amount": 5 }));
    let meta = &seen.body["params"]["_meta"];
    assert_eq!(meta["countersign/idempotency-key"], "key-1");
    assert_eq!((&meta["countersign/run"], &meta["countersign/turn"]), (&json!("r"), &json!(1)));
    for seen in fake.seen() {
        assert_eq!(seen.headers["authorization"], "Bearer hunter2", "{seen:?}");
        assert_eq!(seen.headers["x-team"], "a", "{seen:?}");
        assert_eq!(seen.headers.contains_key("idempotency-key"), seen.rpc() == "tools/call", "{seen:?}");
    }
}

#[tokio::test]
async fn b211_a_forbidden_address_is_never_dialled() {
    let outcome = call(&pool(), &target("https://169.254.169.254/mcp")).await;
    assert_eq!(class(&outcome), "not sent mcp-unreachable");
    assert!(format!("{outcome:?}").contains("link-local"), "{outcome:?}");
}
