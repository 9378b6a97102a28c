//! The era of sessions: what each request carries, and how a stream that ended is resumed.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{acme, call, class, pool, target};
use crate::support::fake_mcp::{FakeMcp, Reply, Step, tool};

const FRESH: Duration = Duration::from_mins(1);

/// Answers a call with the beginning of a stream, and whoever resumes it with the end; says when each was.
async fn resumed(beginning: Vec<Step>) -> Duration {
    let fake = FakeMcp::start().await;
    let (asked, times) = (Arc::new(Mutex::new(Value::Null)), Arc::new(Mutex::new(Vec::new())));
    let (id, began) = (Arc::clone(&asked), Arc::clone(&times));
    fake.on_call(move |seen| {
        *id.lock() = seen.body["id"].clone();
        began.lock().push(Instant::now());
        Reply::Sse(beginning.clone())
    });
    let ended = Arc::clone(&times);
    fake.on_get(move |seen| match seen.headers.get("last-event-id").map(String::as_str) {
        Some("e1") => {
            ended.lock().push(Instant::now());
            let answer = json!({ "jsonrpc": "2.0", "id": *asked.lock(), "result": { "content": [] } });
            Reply::Sse(vec![Step::Raw(format!("id: e2\r\ndata: {answer}\r\n\r\n"))])
        }
        _ => Reply::status(405, json!({})),
    });
    let (pool, target) = (pool(), target(&fake.url()));
    assert_eq!(class(&call(&pool, &target).await), "done");
    assert_eq!(fake.count("tools/call"), 1);
    pool.close().await;
    let times = times.lock();
    times[1] - times[0]
}

/// An event without data that only gives an id and a time, as Python servers write it.
fn primed() -> Step {
    Step::Raw("id: e1\r\ndata: \r\nretry: 500\r\n\r\n".to_owned())
}

#[tokio::test]
async fn a_stream_that_ended_on_purpose_is_resumed_after_the_told_time() {
    let pause = resumed(vec![primed()]).await;
    assert!((450..1_500).contains(&pause.as_millis()), "{pause:?}");
}

#[tokio::test]
async fn a_stream_that_broke_is_resumed_after_the_told_time_too() {
    let pause = resumed(vec![primed(), Step::Cut]).await;
    assert!((450..1_500).contains(&pause.as_millis()), "{pause:?}");
}

#[tokio::test]
async fn every_request_after_the_handshake_names_the_agreed_revision_and_the_session() {
    let fake = FakeMcp::start().await;
    let pool = pool();
    for version in ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"] {
        fake.speak(version);
        let mut target = target(&fake.url());
        target.headers.push(("x-version".to_owned(), version.to_owned()));
        pool.catalog(&acme(), &target, FRESH).await.unwrap();
        assert_eq!(class(&call(&pool, &target).await), "done");
        fake.wait_until(|fake| {
            fake.seen().iter().any(|seen| seen.http_method == "GET" && seen.headers["x-version"] == version)
        })
        .await;
        let ours: Vec<_> = fake.seen().into_iter().filter(|seen| seen.headers["x-version"] == version).collect();
        let shaken = ours.iter().position(|seen| seen.rpc() == "initialize").unwrap();
        assert_eq!(ours[shaken].body["params"]["protocolVersion"], "2025-11-25", "the newest that has a handshake");
        for seen in &ours[shaken + 1..] {
            assert_eq!(seen.headers["mcp-protocol-version"], version, "{seen:?}");
            assert!(seen.headers.contains_key("mcp-session-id"), "{seen:?}");
            assert!(!seen.headers.contains_key("mcp-method"), "{seen:?}");
        }
    }
    pool.close().await;
}

#[tokio::test]
async fn what_was_announced_before_anybody_listened_is_looked_for_once_somebody_does() {
    let fake = FakeMcp::start().await;
    fake.on_get(|_| Reply::Sse(vec![Step::Raw(": here\n\n".to_owned()), Step::Hang]));
    fake.on_list(|_| Reply::Result(json!({ "tools": [tool("charge")] })));
    let (pool, target) = (pool(), target(&fake.url()));
    pool.catalog(&acme(), &target, FRESH).await.unwrap();
    fake.wait_until(|fake| fake.count_http("GET") == 1).await;
    let deadline = Instant::now() + Duration::from_secs(10);
    for _ in 0..3 {
        pool.catalog(&acme(), &target, FRESH).await.unwrap();
        assert!(Instant::now() < deadline);
    }
    assert!(fake.count("tools/list") <= 2, "once, however often it is looked at");
    pool.close().await;
}
