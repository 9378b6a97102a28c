//! MCP servers as they are in the field: sessions that they forget, streams that they close, answers that they owe.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use countersign::mcp::{BreakerSettings, PoolSettings};
use countersign::run::ids::TenantId;
use countersign::run::outcome::{Answer, Outcome};
use futures::future::join_all;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::http::harness::Server;
use crate::mcp::{acme, call, charge, class, pool, pool_with, settings, target};
use crate::support::fake_mcp::{FakeMcp, Reply, Seen, Step};
use crate::support::world::run_on;

const FRESH: Duration = Duration::from_mins(1);

#[tokio::test]
async fn field_a041_a_new_session_for_one_call_ends_no_stream_of_another() {
    let fake = FakeMcp::start().await;
    let (pool, target) = (pool(), target(&fake.url()));
    let gate = Arc::new(Notify::new());
    let (held, nth) = (Arc::clone(&gate), AtomicUsize::new(0));
    fake.on_call(move |_| match nth.fetch_add(1, Ordering::SeqCst) {
        0 => Reply::When(Arc::clone(&held), Box::new(Reply::text("slow"))),
        _ => Reply::text("fast"),
    });
    let slow = async { class(&call(&pool, &target).await) };
    let other = async {
        fake.wait_until(|fake| fake.count("tools/call") == 1).await;
        fake.lose_sessions(Reply::status(404, json!({})));
        let outcome = class(&call(&pool, &target).await);
        gate.notify_one();
        outcome
    };
    let (slow, other) = tokio::join!(slow, other);
    assert_eq!((slow.as_str(), other.as_str()), ("done", "done"), "the one that was out has its own answer");
    assert_eq!(fake.count("initialize"), 2);
    let calls = fake.seen_rpc("tools/call");
    assert_eq!(calls.len(), 3, "the slow one once; the other once in vain and once in the new session");
    assert_eq!(calls[0].headers["mcp-session-id"], calls[1].headers["mcp-session-id"]);
    assert_ne!(calls[1].headers["mcp-session-id"], calls[2].headers["mcp-session-id"]);
    pool.close().await;
}

#[tokio::test]
async fn field_a042_a_server_that_answers_503_for_a_session_that_it_forgot_is_reached_by_the_next_call() {
    let fake = FakeMcp::start().await;
    let (pool, target) = (pool(), target(&fake.url()));
    assert_eq!(class(&call(&pool, &target).await), "done");
    fake.lose_sessions(Reply::status(503, json!({ "error": "unavailable" })));
    // Whether it was executed nobody knows, so it is not sent again.
    assert_eq!(class(&call(&pool, &target).await), "unknown lost-response");
    assert_eq!((fake.count("tools/call"), fake.count("initialize")), (2, 1));
    assert_eq!(class(&call(&pool, &target).await), "done", "no operator had to help");
    assert_eq!((fake.count("tools/call"), fake.count("initialize")), (3, 2));
    pool.close().await;
}

#[tokio::test]
async fn field_a046_a_listening_stream_that_is_closed_ends_neither_session_nor_calls() {
    let fake = FakeMcp::start().await;
    // Closed at once, each time somebody listens.
    fake.on_get(|_| Reply::Sse(vec![]));
    let (pool, target) = (pool(), target(&fake.url()));
    pool.catalog(&acme(), &target, FRESH).await.unwrap();
    fake.wait_until(|fake| fake.count_http("GET") >= 1).await;
    for _ in 0..3 {
        assert_eq!(class(&call(&pool, &target).await), "done");
    }
    fake.wait_until(|fake| fake.count_http("GET") >= 2).await;
    assert_eq!((fake.count("initialize"), fake.count("tools/call"), fake.count_http("DELETE")), (1, 3, 0));
    assert!(fake.count_http("GET") < 10, "it is listened to again after a pause: {}", fake.count_http("GET"));
    pool.close().await;
}

#[tokio::test]
async fn field_a052_every_post_takes_both_kinds_of_answers() {
    let fake = FakeMcp::start().await;
    fake.guard(|seen| {
        let accept = seen.headers.get("accept").map_or("", String::as_str);
        let takes_both = accept.contains("application/json") && accept.contains("text/event-stream");
        (seen.http_method == "POST" && !takes_both).then(|| Reply::status(406, json!({ "error": "Not Acceptable" })))
    });
    let (pool, target) = (pool(), target(&fake.url()));
    pool.catalog(&acme(), &target, FRESH).await.unwrap();
    assert_eq!(class(&call(&pool, &target).await), "done");
    assert!(fake.count("notifications/initialized") == 1 && fake.count("tools/call") == 1);
    let packed = |seen: &Seen| seen.headers.contains_key("accept-encoding");
    assert!(!fake.seen().iter().any(packed), "nobody is asked for a body that unpacks to gigabytes");
    fake.guard(|_| Some(Reply::status(406, json!({ "error": "Not Acceptable" }))));
    let outcome = call(&pool, &target).await;
    assert!(class(&outcome).starts_with("not sent"), "{outcome:?}");
    assert!(format!("{outcome:?}").contains("406"), "the fault is named: {outcome:?}");
    pool.close().await;
}

/// The outcome of a call whose stream broke after an event with an id, and how often it was resumed with which answers.
async fn resumed_with(answer: impl Fn(&Value) -> Reply + Send + Sync + 'static) -> (String, usize) {
    let fake = FakeMcp::start().await;
    let id = Arc::new(Mutex::new(Value::Null));
    let asked = Arc::clone(&id);
    fake.on_call(move |seen| {
        *asked.lock() = seen.body["id"].clone();
        Reply::Sse(vec![Step::Raw("id: e1\nretry: 1\ndata: \n\n".to_owned()), Step::Progress(1), Step::Cut])
    });
    fake.on_get(move |seen| match seen.headers.get("last-event-id") {
        Some(_) => answer(&id.lock().clone()),
        None => Reply::status(405, json!({})),
    });
    let (pool, target) = (pool(), target(&fake.url()));
    let began = Instant::now();
    let outcome = class(&call(&pool, &target).await);
    assert!(began.elapsed() < Duration::from_secs(12), "{:?}", began.elapsed());
    assert_eq!(fake.count("tools/call"), 1, "it is never sent again");
    pool.close().await;
    (outcome, fake.seen().iter().filter(|seen| seen.headers.contains_key("last-event-id")).count())
}

fn answer_to(id: &Value, text: &str) -> Step {
    let result = json!({ "content": [{ "type": "text", "text": text }] });
    Step::Raw(format!("id: e9\ndata: {}\n\n", json!({ "jsonrpc": "2.0", "id": id, "result": result })))
}

#[tokio::test]
async fn field_a055_a_place_that_the_server_does_not_have_any_more_ends_the_wait_without_a_second_result() {
    for refusal in [400, 404] {
        let (outcome, resumed) = resumed_with(move |_| Reply::status(refusal, json!({}))).await;
        assert_eq!(outcome, "unknown lost-response", "{refusal}");
        assert!((1..=10).contains(&resumed), "{refusal}: {resumed}");
    }
    let (outcome, resumed) = resumed_with(|_| Reply::Sse(vec![])).await;
    assert_eq!(outcome, "unknown lost-response", "an empty stream");
    assert!((1..=10).contains(&resumed), "{resumed}");
    // All of it again, and the answer twice: it settles once, with the first.
    let (outcome, _) = resumed_with(|id| {
        let again = Step::Raw("id: e1\ndata: \n\n".to_owned());
        Reply::Sse(vec![again, Step::Progress(1), answer_to(id, "first"), answer_to(id, "second")])
    })
    .await;
    assert_eq!(outcome, "done");
}

#[tokio::test]
async fn field_a056_a_stream_that_ends_on_purpose_is_asked_for_until_the_answer_is_there() {
    let (fake, polled) = (FakeMcp::start().await, Arc::new(Mutex::new(Vec::new())));
    let id = Arc::new(Mutex::new(Value::Null));
    let asked = Arc::clone(&id);
    let primed = |event: &str| Step::Raw(format!("id: {event}\ndata: \nretry: 300\n\n"));
    fake.on_call(move |seen| {
        *asked.lock() = seen.body["id"].clone();
        Reply::Sse(vec![primed("p0")])
    });
    let polls = Arc::clone(&polled);
    fake.on_get(move |seen| {
        let Some(last) = seen.headers.get("last-event-id") else { return Reply::status(405, json!({})) };
        let mut polls = polls.lock();
        polls.push((last.clone(), Instant::now()));
        if polls.len() < 3 {
            return Reply::Sse(vec![primed(&format!("p{}", polls.len()))]);
        }
        Reply::Sse(vec![answer_to(&id.lock(), "late")])
    });
    let (pool, target) = (pool(), target(&fake.url()));
    assert_eq!(class(&call(&pool, &target).await), "done");
    let polls = polled.lock().clone();
    let places: Vec<&str> = polls.iter().map(|(place, _)| place.as_str()).collect();
    assert_eq!(places, ["p0", "p1", "p2"], "each goes on where the last ended");
    for pair in polls.windows(2) {
        let pause = pair[1].1 - pair[0].1;
        assert!((250..2_500).contains(&pause.as_millis()), "as long as the server said: {pause:?}");
    }
    assert_eq!(fake.count("tools/call"), 1);
    pool.close().await;
}

#[tokio::test]
async fn field_a062_a_server_that_flaps_costs_each_of_twenty_tenants_a_few_handshakes() {
    let fake = FakeMcp::start().await;
    fake.refuse_handshakes(Reply::status(503, json!({})));
    let breaker = BreakerSettings { failures: 3, pause: Duration::from_mins(1), pause_max: Duration::from_mins(2) };
    let (pool, target) = (pool_with(PoolSettings { breaker, ..settings() }), target(&fake.url()));
    let tenants: Vec<TenantId> = (0..20).map(|nth| TenantId::parse(format!("t-{nth}")).unwrap()).collect();
    // As often as runs with thirty tools would ask.
    for _ in 0..10 {
        let all = tenants.iter().flat_map(|tenant| (0..30).map(|_| pool.catalog(tenant, &target, FRESH)));
        assert!(join_all(all).await.iter().all(Result::is_err));
    }
    // A handshake asks for the newer era, for the older one, and for a transport that is not spoken.
    let asked = fake.seen().len();
    assert!(asked <= 20 * 3 * 3, "{asked} requests for 6,000 wishes");
    pool.close().await;
}

#[tokio::test]
async fn field_a038_a_tool_may_report_its_failure_without_the_structure_that_it_declares() {
    let fake = FakeMcp::start().await;
    let text = json!([{ "type": "text", "text": "The card was declined." }]);
    fake.on_call(move |_| Reply::Result(json!({ "content": text, "isError": true })));
    let mut request = charge(5);
    request.output_schema = Some(json!({ "type": "object", "required": ["n"] }));
    let (pool, target) = (pool(), target(&fake.url()));
    let outcome = pool.call(&acme(), &target, request, CancellationToken::new()).await;
    let Outcome::Answered(Answer::Failed { error, .. }) = outcome else { panic!("{outcome:?}") };
    assert_eq!((error.code.as_str(), error.message.as_str()), ("tool-error", "The card was declined."));
    pool.close().await;
}

/// An address on which nobody listens.
async fn nowhere() -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    format!("http://{}/mcp", listener.local_addr().unwrap())
}

#[tokio::test]
async fn field_a063_a_run_starts_without_an_optional_server_that_is_down_and_says_so() {
    let (server, one, two) = (Server::start().await, FakeMcp::start().await, FakeMcp::start().await);
    let entries = json!([
        { "url": one.url(), "namespace": "one" }, { "url": nowhere().await, "namespace": "down", "required": false },
        { "url": two.url(), "namespace": "two" },
    ]);
    let run = server.settled(&run_on("r", &[("one_charge", json!({})), ("two_charge", json!({}))], entries)).await;
    assert_eq!(run["status"], "completed", "{run}");
    assert_eq!((one.count("tools/call"), two.count("tools/call")), (1, 1));
    let warnings = run["warnings"].as_array().unwrap();
    assert_eq!((warnings.len(), &warnings[0]["code"]), (1, &json!("mcp-unreachable")), "{run}");
    assert!(warnings[0]["message"].as_str().unwrap().contains("'down'"), "{run}");
    let events = server.get("/v1/runs/r/events?limit=200", &server.alice()).await.json();
    let told = |event: &&Value| event["part"]["warning"]["code"] == "mcp-unreachable";
    assert_eq!(events["data"].as_array().unwrap().iter().filter(told).count(), 1, "{events}");
}
