//! The era without sessions (2026-07-28): how it is found, what each request says, and what is heard of changes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use countersign::mcp::{McpTarget, ToolRequest};
use countersign::run::outcome::{Answer, Outcome};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{acme, call, charge, class, object, pool, target};
use crate::support::fake_mcp::{FakeMcp, Reply, Seen, Step, tool};

const FRESH: Duration = Duration::from_mins(1);

async fn modern() -> (FakeMcp, McpTarget) {
    let fake = FakeMcp::start().await;
    fake.be_modern(true);
    let target = target(&fake.url());
    (fake, target)
}

/// The stream of a listener that got its word: then these events, and it stays open.
fn listening(seen: &Seen, events: usize) -> Reply {
    let id = &seen.body["id"];
    let frame = |method: &str, more: Value| {
        let mut params = more;
        params["_meta"] = json!({ "io.modelcontextprotocol/subscriptionId": id });
        Step::Raw(format!("data: {}\n\n", json!({ "jsonrpc": "2.0", "method": method, "params": params })))
    };
    let known = json!({ "notifications": { "toolsListChanged": true } });
    let mut steps = vec![frame("notifications/subscriptions/acknowledged", known)];
    steps.extend((0..events).map(|_| frame("notifications/tools/list_changed", json!({}))));
    steps.push(Step::Hang);
    Reply::Sse(steps)
}

#[tokio::test]
async fn every_request_says_who_asks_and_in_which_revision() {
    let (fake, target) = modern().await;
    let pool = pool();
    pool.catalog(&acme(), &target, FRESH).await.unwrap();
    assert_eq!(class(&call(&pool, &target).await), "done");
    for method in ["server/discover", "tools/list", "tools/call"] {
        let seen = &fake.seen_rpc(method)[0];
        let meta = |key: &str| seen.body["params"]["_meta"][format!("io.modelcontextprotocol/{key}")].clone();
        assert_eq!(meta("protocolVersion"), "2026-07-28", "{method}");
        assert_eq!(meta("clientInfo")["name"], "countersign", "{method}");
        assert_eq!(meta("clientCapabilities")["extensions"]["io.modelcontextprotocol/tasks"], json!({}), "{method}");
        assert_eq!(seen.headers["mcp-protocol-version"], "2026-07-28", "{method}");
        assert_eq!(seen.headers["mcp-method"], method);
        assert!(!seen.headers.contains_key("mcp-session-id"), "{method}");
    }
    let call = &fake.seen_rpc("tools/call")[0];
    assert_eq!((call.headers["mcp-name"].as_str(), call.headers["idempotency-key"].as_str()), ("charge", "key-1"));
    assert_eq!((fake.count("initialize"), fake.count_http("GET")), (0, 0));
    pool.close().await;
}

#[tokio::test]
async fn a_server_that_wants_another_revision_first_is_asked_again_in_one_that_it_names() {
    let (fake, target) = modern().await;
    let asked = AtomicUsize::new(0);
    fake.on("server/discover", move |seen| {
        if asked.fetch_add(1, Ordering::SeqCst) == 0 {
            let error = json!({ "code": -32022, "message": "no", "data": { "supported": ["2026-07-28"] } });
            return Reply::status(400, json!({ "jsonrpc": "2.0", "id": seen.body["id"], "error": error }));
        }
        Reply::Result(json!({
            "resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": { "tools": {} },
            "serverInfo": { "name": "fake", "version": "1" }, "ttlMs": 0, "cacheScope": "private",
        }))
    });
    let pool = pool();
    assert_eq!(class(&call(&pool, &target).await), "done");
    assert_eq!((fake.count("server/discover"), fake.count("initialize")), (2, 0));
    pool.close().await;
}

#[tokio::test]
async fn marked_arguments_stand_in_headers_also_over_a_connection_that_never_listed_the_tools() {
    let (fake, target) = modern().await;
    let pool = pool();
    let input_schema = json!({"type": "object", "properties": {
        "amount": {"type": "integer", "x-mcp-header": "Amount"}, "city": {"type": "string", "x-mcp-header": "City"},
    }});
    let arguments = object(json!({ "amount": 5, "city": "Zürich" }));
    let request = ToolRequest { input_schema, arguments, ..charge(5) };
    pool.call(&acme(), &target, request.clone(), CancellationToken::new()).await;
    let seen = fake.seen_rpc("tools/call").remove(0);
    assert_eq!((seen.headers["mcp-param-amount"].as_str(), fake.count("tools/list")), ("5", 0));
    assert_eq!(seen.headers["mcp-param-city"], "=?base64?WsO8cmljaA==?=");
    // The older era knows no such headers.
    let old = FakeMcp::start().await;
    pool.call(&acme(), &super::target(&old.url()), request, CancellationToken::new()).await;
    assert!(!old.seen_rpc("tools/call")[0].headers.keys().any(|name| name.starts_with("mcp-param")));
    pool.close().await;
}

#[tokio::test]
async fn a_tool_whose_headers_cannot_be_sent_is_set_aside_and_the_others_are_offered() {
    let (fake, target) = modern().await;
    fake.on_list(|_| {
        let mut bad = tool("bad");
        bad["inputSchema"]["properties"] = json!({ "a": { "type": "string", "x-mcp-header": "a b" } });
        Reply::Result(
            json!({ "resultType": "complete", "tools": [tool("charge"), bad], "ttlMs": 0, "cacheScope": "private" }),
        )
    });
    let pool = pool();
    let catalog = pool.catalog(&acme(), &target, FRESH).await.unwrap();
    let why = |at: usize| catalog.tools[at].unusable.as_deref();
    assert_eq!((catalog.tools[0].name.as_str(), why(0)), ("charge", None));
    assert!(why(1).is_some_and(|why| why.contains("no header name")), "{:?}", catalog.tools);
    pool.close().await;
}

#[tokio::test]
async fn what_a_server_says_of_how_long_its_list_holds_is_heeded() {
    let (fake, target) = modern().await;
    fake.on_list(|_| {
        Reply::Result(
            json!({ "resultType": "complete", "tools": [tool("charge")], "ttlMs": 0, "cacheScope": "private" }),
        )
    });
    let pool = pool();
    for _ in 0..2 {
        pool.catalog(&acme(), &target, FRESH).await.unwrap();
    }
    assert_eq!(fake.count("tools/list"), 2, "it holds for no time at all");
    fake.on_list(|_| {
        let tools = json!([tool("charge")]);
        Reply::Result(json!({ "resultType": "complete", "tools": tools, "ttlMs": 60_000, "cacheScope": "private" }))
    });
    for _ in 0..3 {
        pool.catalog(&acme(), &target, FRESH).await.unwrap();
    }
    assert_eq!(fake.count("tools/list"), 3);
    pool.close().await;
}

#[tokio::test]
async fn changes_are_heard_of_and_a_stream_that_ends_is_asked_for_again_and_counts_as_a_change() {
    let (fake, target) = modern().await;
    // How often somebody listened when each listing was asked for.
    let (asked, lists) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(Vec::new())));
    let listened = Arc::clone(&asked);
    fake.on("subscriptions/listen", move |seen| match listened.fetch_add(1, Ordering::SeqCst) {
        0 => match listening(seen, 1) {
            Reply::Sse(mut steps) => {
                steps.pop();
                Reply::Sse(steps)
            }
            other => other,
        },
        _ => listening(seen, 0),
    });
    let made = Arc::clone(&lists);
    fake.on_list(move |_| {
        let mut made = made.lock();
        made.push(asked.load(Ordering::SeqCst));
        Reply::Result(json!({ "resultType": "complete", "tools": [tool(&format!("tool-{}", made.len()))] }))
    });
    let pool = pool();
    pool.catalog(&acme(), &target, FRESH).await.unwrap();
    fake.wait_until(|fake| fake.count("subscriptions/listen") == 2).await;
    let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
    // The word that a stream is open again comes a moment after the request for it.
    while !lists.lock().contains(&2) {
        pool.catalog(&acme(), &target, FRESH).await.unwrap();
        assert!(tokio::time::Instant::now() < deadline, "what changed while nobody listened is not looked for");
    }
    let before = lists.lock().len();
    for _ in 0..50 {
        pool.catalog(&acme(), &target, FRESH).await.unwrap();
    }
    let more = lists.lock().len() - before;
    assert!(more <= 1, "while it is open nothing is read again, and {more} readings were made");
    assert_eq!(
        fake.seen_rpc("subscriptions/listen")[0].body["params"]["notifications"],
        json!({"toolsListChanged": true})
    );
    pool.close().await;
}

#[tokio::test]
async fn a_server_that_tells_no_changes_is_asked_once_also_by_other_connections() {
    let (fake, target) = modern().await;
    let pool = pool();
    pool.catalog(&acme(), &target, FRESH).await.unwrap();
    fake.wait_until(|fake| fake.count("subscriptions/listen") == 1).await;
    let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
    for (at, name) in (0..20).map(|at| (at, format!("x-{at}"))) {
        let mut other = target.clone();
        other.headers.push((name, "1".to_owned()));
        pool.catalog(&acme(), &other, FRESH).await.unwrap();
        assert!(tokio::time::Instant::now() < deadline, "{at}");
    }
    assert!(fake.count("subscriptions/listen") < 5, "{} times", fake.count("subscriptions/listen"));
    pool.close().await;
}

#[tokio::test]
async fn a_server_that_moves_on_to_the_other_era_is_found_there_and_no_call_is_repeated() {
    let fake = FakeMcp::start().await;
    let (pool, target) = (pool(), target(&fake.url()));
    for (round, is_modern) in [false, true, false].into_iter().enumerate() {
        fake.be_modern(is_modern);
        if !is_modern {
            fake.lose_sessions(Reply::status(
                400,
                json!({ "error": { "code": -32000, "message": "Bad Request: No valid session ID provided" } }),
            ));
        }
        assert_eq!(class(&call(&pool, &target).await), "done", "round {round}");
    }
    // Each move costs one call that was refused, and its repeat.
    assert_eq!(fake.count("tools/call"), 5);
    assert_eq!(fake.count("initialize"), 3, "of the second era one is the question of who remembered the first");
    pool.close().await;
}

#[tokio::test]
async fn a_server_that_ignores_the_question_for_its_era_is_asked_once() {
    let fake = FakeMcp::start().await;
    fake.on("server/discover", |_| Reply::Silence);
    let (pool, mut target) = (pool(), target(&fake.url()));
    target.timeouts.connect_ms = 1_000;
    let began = tokio::time::Instant::now();
    pool.catalog(&acme(), &target, FRESH).await.unwrap();
    assert!(began.elapsed() < Duration::from_millis(950), "{:?}", began.elapsed());
    let mut other = target.clone();
    other.headers.clear();
    pool.catalog(&acme(), &other, FRESH).await.unwrap();
    assert_eq!((fake.count("server/discover"), fake.count("initialize")), (1, 2));
    pool.close().await;
}

#[tokio::test]
async fn a_server_that_was_too_slow_for_the_question_and_has_no_sessions_is_asked_once_more() {
    let (fake, mut target) = modern().await;
    let asked = AtomicUsize::new(0);
    fake.on("server/discover", move |_| {
        if asked.fetch_add(1, Ordering::SeqCst) == 0 {
            return Reply::Silence;
        }
        Reply::Result(json!({
            "resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": { "tools": {} },
            "serverInfo": { "name": "fake", "version": "1" }, "ttlMs": 0, "cacheScope": "private",
        }))
    });
    target.timeouts.connect_ms = 2_000;
    let pool = pool();
    assert_eq!(class(&call(&pool, &target).await), "done");
    assert_eq!((fake.count("server/discover"), fake.count("initialize")), (2, 1));
    pool.close().await;
    // One that neither answers it nor has sessions is given up.
    let (fake, mut target) = modern().await;
    fake.on("server/discover", |_| Reply::Silence);
    target.timeouts.connect_ms = 2_000;
    let fault = self::pool().catalog(&acme(), &target, FRESH).await.unwrap_err();
    assert_eq!(fake.count("server/discover"), 2, "{fault}");
}

#[tokio::test]
async fn calls_of_two_connections_have_no_id_in_common_whatever_carries_the_answer() {
    let (fake, target) = modern().await;
    for in_a_stream in [false, true] {
        fake.on_call(move |seen| {
            let result = json!({ "resultType": "complete", "content": [{ "type": "text", "text": "charged" }] });
            let answer = json!({ "jsonrpc": "2.0", "id": seen.body["id"], "result": result });
            if in_a_stream {
                return Reply::Sse(vec![Step::Raw(format!("data: {answer}\n\n"))]);
            }
            Reply::status(200, answer)
        });
        let (first, second) = (pool(), pool());
        let began = tokio::time::Instant::now();
        for pool in [&first, &second] {
            assert_eq!(class(&call(pool, &target).await), "done");
        }
        assert!(began.elapsed() < Duration::from_secs(2), "the library knew the answers for its own");
        first.close().await;
        second.close().await;
    }
    let ids: BTreeSet<u64> = fake.seen_rpc("tools/call").iter().map(|seen| seen.body["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), 4, "{ids:?}");
    assert!(ids.iter().all(|id| (1 << 32..1 << 53).contains(id)), "{ids:?}");
}

#[tokio::test]
async fn an_address_of_the_transport_of_2024_is_refused_in_words_that_say_so() {
    let fake = FakeMcp::start().await;
    fake.refuse_handshakes(Reply::status(404, json!({})));
    fake.on("initialize", |_| Reply::status(404, json!({})));
    fake.on("", |_| {
        Reply::Sse(vec![Step::Raw("event: endpoint\r\ndata: /messages?session=1\r\n\r\n".to_owned()), Step::Hang])
    });
    let pool = pool();
    let fault = pool.catalog(&acme(), &target(&fake.url()), FRESH).await.unwrap_err();
    assert!(fault.message.contains("HTTP+SSE transport of 2024-11-05, which is not supported"), "{fault}");
    pool.close().await;
}

#[tokio::test]
async fn b216_a_cancelled_call_is_told_by_closing_its_stream() {
    let (fake, target) = modern().await;
    fake.on_call(|_| Reply::Sse(vec![Step::Progress(1), Step::Hang]));
    let (pool, acme, stop) = (pool(), acme(), CancellationToken::new());
    let request = charge(5);
    let calling = pool.call(&acme, &target, request, stop.clone());
    let cancelling = async {
        fake.wait_until(|fake| fake.count("tools/call") == 1).await;
        stop.cancel();
    };
    let (outcome, ()) = tokio::join!(calling, cancelling);
    assert_eq!(class(&outcome), "unknown cancelled");
    assert_eq!(fake.count("tools/call"), 1);
    pool.close().await;
}

#[tokio::test]
async fn an_answer_with_a_task_defers_the_call_and_one_without_a_name_says_nothing() {
    let (fake, target) = modern().await;
    let pool = pool();
    fake.on_call(|_| {
        Reply::Result(json!({
            "resultType": "task", "taskId": "t-1", "status": "working", "createdAt": "2026-11-30T00:00:00Z",
            "lastUpdatedAt": "2026-11-30T00:00:00Z", "ttlMs": 60_000, "pollIntervalMs": 50,
        }))
    });
    let Outcome::Deferred(task) = call(&pool, &target).await else { panic!("not deferred") };
    assert_eq!((task.id.as_str(), task.poll_ms), ("t-1", Some(50)));
    // As bare as a careless server writes it.
    fake.on_call(|_| Reply::Result(json!({ "resultType": "task", "taskId": "t-2" })));
    assert_eq!(class(&call(&pool, &target).await), "deferred t-2");
    for unnamed in [json!({ "resultType": "task" }), json!({ "resultType": "task", "taskId": "" })] {
        fake.on_call(move |_| Reply::Result(unnamed.clone()));
        assert_eq!(class(&call(&pool, &target).await), "unknown lost-response");
    }
    fake.on_call(|_| Reply::text("charged"));
    assert!(matches!(call(&pool, &target).await, Outcome::Answered(Answer::Done { .. })));
    pool.close().await;
}
