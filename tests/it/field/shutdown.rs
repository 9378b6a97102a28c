//! HTTP stack and shutdown.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use serde_json::json;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

use super::node::{Stream, slow};
use super::proxy::Proxy;
use crate::mcp::{call, class, pool, target};
use crate::support::database::{Database, both_stores};
use crate::support::fake_mcp::{FakeMcp, Reply};
use crate::support::product::{Product, token};
use crate::support::world::run_on;

both_stores! {
    field_a154_fifty_idle_streams_end_with_a_notice_and_go_on_elsewhere,
    field_a156_streams_end_first_then_runs_let_go_then_leases_are_given_back,
}

async fn open(product: &Product, path: &str, after: i64) -> Stream {
    let request = reqwest::Client::new().get(product.url(path)).bearer_auth(token("acme", "admin"));
    let request = request.header("accept", "text/event-stream").header("last-event-id", after.to_string());
    Stream::new(request.send().await.unwrap())
}

/// Reads to the end: the number of the last event, and the last frame.
async fn to_the_end(mut stream: Stream) -> (i64, String) {
    let (mut last, mut frame) = (0, String::new());
    while let Some(next) = stream.frame().await {
        if let Some((id, _)) = next.split_once('\n') {
            last = id.trim_start_matches("id: ").parse().unwrap();
        }
        frame = next;
    }
    (last, frame)
}

async fn field_a154_fifty_idle_streams_end_with_a_notice_and_go_on_elsewhere(database: Database) {
    let product = Product::start(&database).await;
    product.post("/v1/runs", &slow("r", 4_000), 201).await;
    let mut streams = Vec::new();
    for nth in 0..50 {
        let path = if nth == 0 { "/v1/events" } else { "/v1/runs/r/events" };
        let mut stream = open(&product, path, 0).await;
        assert_eq!(stream.frame().await.as_deref(), Some("retry: 1000"));
        streams.push(stream);
    }
    while product.event_kinds("r").await.last().map(String::as_str) != Some("turn-started") {
        sleep(Duration::from_millis(10)).await;
    }
    product.signal("TERM");
    let signalled = Instant::now();
    let ended = join_all(streams.into_iter().map(to_the_end)).await;
    assert!(signalled.elapsed() < Duration::from_secs(3), "{:?}", signalled.elapsed());
    for (last, frame) in &ended {
        assert_eq!(frame, ": the server stops; reconnect", "after {last}");
    }
    let status = product.ended().await;
    assert!(status.success() && signalled.elapsed() < Duration::from_secs(15), "{status:?}");
    let product = Product::start(&database).await;
    let last = ended[1].0;
    let rest = open(&product, "/v1/runs/r/events", last).await.rest().await;
    assert_eq!(rest.first().unwrap().0, last + 1);
    assert_eq!(rest.last().unwrap().1["status"], "completed");
}

#[tokio::test]
async fn field_a155_connections_are_let_go_before_servers_close_them() {
    let fake = FakeMcp::start().await;
    let proxy = Proxy::start(fake.addr(), Duration::from_secs(5)).await;
    let (pool, target) = (pool(), target(&proxy.url()));
    // At the very moment at which the server closes what is idle.
    for calls in 1..=3 {
        assert_eq!(class(&call(&pool, &target).await), "done");
        assert_eq!(fake.count("tools/call"), calls);
        sleep(Duration::from_secs(5)).await;
    }
    assert_eq!(class(&call(&pool, &target).await), "done");
}

async fn field_a156_streams_end_first_then_runs_let_go_then_leases_are_given_back(database: Database) {
    let fake = FakeMcp::start().await;
    let answer = Arc::new(Notify::new());
    let gate = Arc::clone(&answer);
    fake.on_call(move |_| Reply::When(Arc::clone(&gate), Box::new(Reply::text("charged"))));
    let product = Product::start(&database).await;
    product.post("/v1/runs", &run_on("r", &[("charge", json!({}))], json!([{ "url": fake.url() }])), 201).await;
    let stream = open(&product, "/v1/runs/r/events", 0).await;
    fake.wait_until(|fake| fake.count("tools/call") == 1).await;
    product.signal("TERM");
    // The call is still out, and nothing but the test can end it: the streams do not wait for it.
    let (last, frame) = to_the_end(stream).await;
    assert_eq!(frame, ": the server stops; reconnect");
    assert!(!product.log().contains("the leases are given back"), "{}", product.log());
    answer.notify_one();
    let deadline = Instant::now() + Duration::from_secs(20);
    while !product.log().contains("\"stopped\"") {
        assert!(Instant::now() < deadline, "{}", product.log());
        sleep(Duration::from_millis(20)).await;
    }
    let log = product.log();
    assert!(product.ended().await.success());
    let phases =
        ["draining: streams end", "draining: runs let go", "draining: the leases are given back", "\"stopped\""];
    let places: Vec<usize> = phases.iter().map(|phase| log.find(phase).expect(phase)).collect();
    assert!(places.is_sorted(), "{places:?}\n{log}");
    let product = Product::start(&database).await;
    let rest = open(&product, "/v1/runs/r/events", last).await.rest().await;
    assert_eq!(rest.last().unwrap().1["status"], "completed");
    assert_eq!(fake.count("tools/call"), 1);
}
