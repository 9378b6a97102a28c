//! The table of outcome classes: each way a call can end, over a real socket, with how often the server saw it.

use std::sync::atomic::{AtomicUsize, Ordering};
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
async fn b210_answers_settle_a_call() {
    check(Reply::text("charged"), "done", 1).await;
    check(Reply::Sse(vec![Step::Progress(1), Step::Result(json!({ "content": [] }))]), "done", 1).await;
    check(Reply::Result(json!({ "content": [], "isError": true })), "failed tool-error", 1).await;
    check(Reply::Error(json!({ "code": -32602, "message": "no" })), "failed mcp-error", 1).await;
    let nameless = json!({ "jsonrpc": "2.0", "id": null, "error": { "code": -32700, "message": "what?" } });
    check(Reply::status(200, nameless), "failed mcp-error", 1).await;
}

#[tokio::test]
async fn b211_statuses_that_turn_a_request_away_are_not_sent() {
    for (status, want) in [
        (301, "not sent mcp-refused"),
        (307, "not sent mcp-refused"),
        (400, "not sent mcp-refused"),
        (401, "not sent mcp-unauthorized"),
        (403, "not sent mcp-unauthorized"),
        (405, "not sent mcp-refused"),
        (406, "not sent mcp-refused"),
        (413, "not sent mcp-refused"),
        (422, "not sent mcp-refused"),
        (429, "not sent mcp-rate-limited"),
    ] {
        check(Reply::status(status, rpc_error()), want, 1).await;
        check(Reply::Http(status, vec![("location", "http://127.0.0.1:1/".to_owned())], "no".to_owned()), want, 1)
            .await;
    }
}

#[tokio::test]
async fn b212_what_left_and_was_not_answered_is_unknown() {
    let lost = "unknown lost-response";
    check(Reply::Reset, lost, 1).await;
    check(Reply::HalfBody, lost, 1).await;
    for status in [408, 500, 502, 503, 504, 599] {
        check(Reply::Http(status, vec![], "oops".to_owned()), lost, 1).await;
        check(Reply::status(status, rpc_error()), lost, 1).await;
    }
    check(Reply::Http(202, vec![], String::new()), lost, 1).await;
    check(Reply::Http(204, vec![], String::new()), lost, 1).await;
    check(Reply::status(200, json!("no object")), lost, 1).await;
    check(Reply::status(200, json!({ "jsonrpc": "2.0", "id": 1 })), lost, 1).await;
    check(Reply::status(200, json!({ "jsonrpc": "2.0", "id": 999, "result": {} })), lost, 1).await;
    check(Reply::Http(200, vec![("content-type", "application/json".to_owned())], "{\"jso".to_owned()), lost, 1).await;
    check(Reply::Http(200, vec![("content-type", "text/html".to_owned())], "<p>hi".to_owned()), lost, 1).await;
    check(Reply::Http(200, vec![], String::new()), lost, 1).await;
}

#[tokio::test]
async fn b212_event_streams_that_end_without_the_answer_are_unknown() {
    let lost = "unknown lost-response";
    check(Reply::Sse(vec![]), lost, 1).await;
    check(Reply::Sse(vec![Step::Progress(1), Step::Cut]), lost, 1).await;
    check(Reply::Sse(vec![Step::Raw("data: {\"jsonrpc\":\"2.0\",\"id\":1,".to_owned()), Step::Cut]), lost, 1).await;
    check(Reply::Sse(vec![Step::Raw("data: not json\n\n".to_owned())]), lost, 1).await;
    let foreign = json!({ "jsonrpc": "2.0", "id": 999, "result": {} });
    check(Reply::Sse(vec![Step::Raw(format!("data: {foreign}\n\n"))]), lost, 1).await;
}

#[tokio::test]
async fn a_cut_stream_with_an_event_id_is_resumed_without_a_second_call() {
    let fake = FakeMcp::start().await;
    fake.on_call(|_| Reply::Sse(vec![Step::Raw("id: e1\nretry: 10\ndata: \n\n".to_owned()), Step::Cut]));
    let id = std::sync::Arc::new(parking_lot::Mutex::new(Value::Null));
    let script_id = std::sync::Arc::clone(&id);
    fake.on_get(move |seen| match seen.headers.get("last-event-id").map(String::as_str) {
        Some("e1") => {
            let answer = json!({ "jsonrpc": "2.0", "id": *script_id.lock(), "result": { "content": [] } });
            Reply::Sse(vec![Step::Raw(format!("id: e2\ndata: {answer}\n\n"))])
        }
        _ => Reply::status(405, json!({})),
    });
    let script_id = std::sync::Arc::clone(&id);
    fake.on_call(move |seen| {
        *script_id.lock() = seen.body["id"].clone();
        Reply::Sse(vec![Step::Raw("id: e1\nretry: 10\ndata: \n\n".to_owned()), Step::Cut])
    });
    assert_eq!(class(&call(&pool(), &target(&fake.url())).await), "done");
    assert_eq!(fake.count("tools/call"), 1);
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

#[tokio::test]
async fn b212_no_answer_within_the_limits_is_unknown() {
    let idle: fn(&mut McpTarget) = |target| target.timeouts = limits(200, 10_000);
    let total: fn(&mut McpTarget) = |target| target.timeouts = limits(250, 700);
    check_with(Reply::Silence, "unknown time-out", 1, idle).await;
    check_with(Reply::Sse(vec![Step::Hang]), "unknown time-out", 1, idle).await;
    let beat = || [Step::Progress(1), Step::Pause(Duration::from_millis(100))];
    let steps = |count: usize| (0..count).flat_map(|_| beat()).collect::<Vec<_>>();
    check_with(Reply::Sse(steps(60)), "unknown time-out", 1, total).await;
    // Progress starts the idle limit again: 500 ms in all, with an idle limit of 250 ms.
    let mut slow = steps(5);
    slow.push(Step::Result(json!({ "content": [] })));
    check_with(Reply::Sse(slow), "done", 1, |target| target.timeouts = limits(250, 10_000)).await;
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
async fn b211_a_refused_port_is_not_sent() {
    let fake = FakeMcp::start().await;
    fake.close_after_each_answer();
    let target = target(&fake.url());
    let pool = pool();
    assert_eq!(class(&call(&pool, &target).await), "done");
    fake.stop().await;
    let outcome = call(&pool, &target).await;
    assert_eq!(class(&outcome), "not sent mcp-unreachable", "{outcome:?}");
    let outcome = call(&super::pool(), &target).await;
    assert_eq!(class(&outcome), "not sent mcp-unreachable", "{outcome:?}");
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
async fn b211_names_without_an_address_and_failed_tls_are_not_sent() {
    let fake = FakeMcp::start().await;
    for url in [fake.url().replace("http:", "https:"), "https://no-such-host.invalid/mcp".to_owned()] {
        let outcome = call(&pool(), &target(&url)).await;
        assert_eq!(class(&outcome), "not sent mcp-unreachable", "{url}: {outcome:?}");
        assert!(format!("{outcome:?}").contains("no connection"), "{url}: {outcome:?}");
    }
    assert_eq!(fake.seen().len(), 0);
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
async fn b211_a_forbidden_address_is_never_dialled() {
    let outcome = call(&pool(), &target("https://169.254.169.254/mcp")).await;
    assert_eq!(class(&outcome), "not sent mcp-unreachable");
    assert!(format!("{outcome:?}").contains("link-local"), "{outcome:?}");
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
async fn b211_a_session_that_is_lost_again_at_once_is_given_up() {
    let fake = FakeMcp::start().await;
    fake.on_call(|_| Reply::status(404, json!({})));
    assert_eq!(class(&call(&pool(), &target(&fake.url())).await), "not sent mcp-refused");
    assert_eq!((fake.count("initialize"), fake.count("tools/call")), (2, 2));
}

#[tokio::test]
async fn b211_a_rate_limit_is_obeyed_once_when_it_is_short() {
    let limited = |seconds: &str| Reply::Http(429, vec![("retry-after", seconds.to_owned())], String::new());
    let fake = FakeMcp::start().await;
    let count = AtomicUsize::new(0);
    fake.on_call(move |_| if count.fetch_add(1, Ordering::SeqCst) == 0 { limited("1") } else { Reply::text("ok") });
    assert_eq!(class(&call(&pool(), &target(&fake.url())).await), "done");
    assert_eq!(fake.count("tools/call"), 2);
    check(limited("0"), "not sent mcp-rate-limited", 2).await;
    check(limited("11"), "not sent mcp-rate-limited", 1).await;
    check(limited("Wed, 21 Oct 2026 07:28:00 GMT"), "not sent mcp-rate-limited", 1).await;
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
