//! Streams: framing, reconnects, ends, tickets.

use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use countersign::clock::{Clock as _, SystemClock};
use futures::StreamExt as _;
use http::{Method, Response, StatusCode};
use serde_json::{Value, json};
use tokio::time::timeout;
use tower::ServiceExt as _;

use super::harness::{SOON, Server, request, says, slow};
use crate::support::database::Database;

/// An open stream, read frame by frame as strictly as the strictest reader.
pub(super) struct Reader {
    body: BodyDataStream,
    text: String,
}

impl Reader {
    fn new(response: Response<Body>) -> Self {
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        assert_eq!(response.headers()["cache-control"], "no-cache, no-transform");
        assert_eq!(response.headers()["x-accel-buffering"], "no");
        Self { body: response.into_body().into_data_stream(), text: String::new() }
    }

    /// The next frame, or `None` at the end of the stream.
    pub(super) async fn frame(&mut self) -> Option<String> {
        loop {
            if let Some((frame, rest)) = self.text.split_once("\n\n") {
                let (frame, rest) = (frame.to_owned(), rest.to_owned());
                self.text = rest;
                assert!(!frame.contains('\r') && !frame.is_empty(), "{frame:?}");
                return Some(frame);
            }
            let chunk = tokio::time::timeout(SOON, self.body.next()).await.expect("the stream goes on or ends");
            let Some(chunk) = chunk else {
                assert_eq!(self.text, "", "no half frame at the end");
                return None;
            };
            self.text.push_str(std::str::from_utf8(&chunk.unwrap()).unwrap());
        }
    }

    /// The next event with its number; comments and `retry` are passed over.
    async fn event(&mut self) -> Option<(i64, Value)> {
        loop {
            let frame = self.frame().await?;
            if frame.starts_with("retry: ") || frame.starts_with(": ") {
                continue;
            }
            let (id, data) = frame.split_once('\n').expect("two lines");
            let id: i64 = id.strip_prefix("id: ").expect("id first").parse().unwrap();
            let event: Value = serde_json::from_str(data.strip_prefix("data: ").expect("then data")).unwrap();
            assert_eq!(event["seq"], id);
            return Some((id, event));
        }
    }

    async fn rest(mut self) -> Vec<(i64, Value)> {
        let mut events = Vec::new();
        while let Some(event) = self.event().await {
            events.push(event);
        }
        events
    }
}

impl Server {
    async fn open(&self, path: &str, token: &str, headers: &[(&str, &str)]) -> Response<Body> {
        let mut headers = headers.to_vec();
        headers.push(("accept", "text/event-stream"));
        self.router.clone().oneshot(request(Method::GET, path, token, &headers, Body::empty())).await.unwrap()
    }

    pub(super) async fn read(&self, path: &str, token: &str, headers: &[(&str, &str)]) -> Reader {
        let response = self.open(path, token, headers).await;
        assert_eq!(response.status(), StatusCode::OK, "{path}");
        Reader::new(response)
    }
}

fn kinds(events: &[(i64, Value)]) -> Vec<&str> {
    events.iter().map(|(_, event)| event["type"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn a_created_stream_starts_with_the_first_event_and_ends_after_the_result() {
    let server = Server::start().await;
    let headers = [("accept", "text/event-stream")];
    let body = Body::from(says("Hello.").to_string());
    let created = request(Method::POST, "/v1/runs", &server.alice(), &headers, body);
    let response = server.router.clone().oneshot(created).await.unwrap();
    assert_eq!(response.status(), StatusCode::CREATED);
    let path = response.headers()["location"].to_str().unwrap().to_owned();
    let mut reader = Reader::new(response);
    assert_eq!(reader.frame().await.as_deref(), Some("retry: 1000"));
    let events = reader.rest().await;
    let numbers: Vec<i64> = events.iter().map(|(seq, _)| *seq).collect();
    assert_eq!(numbers, (1..=i64::try_from(events.len()).unwrap()).collect::<Vec<_>>());
    assert_eq!(kinds(&events).last(), Some(&"result"));
    assert!(kinds(&events).contains(&"part"));
    for (_, event) in &events {
        assert!(!event.as_object().unwrap().values().any(Value::is_null), "{event}");
    }
    let page = server.get(&format!("{path}/events?limit=200"), &server.alice()).await.json();
    let stored: Vec<Value> = events.into_iter().map(|(_, event)| event).collect();
    assert_eq!(page["data"], Value::from(stored), "the page holds the same events");
    assert_eq!(page["next_cursor"], Value::Null);
}

#[tokio::test]
async fn a_reader_that_reconnects_at_every_event_sees_each_exactly_once_on_sqlite() {
    reconnect_at_every_event(Server::start().await).await;
}

#[tokio::test]
async fn a_reader_that_reconnects_at_every_event_sees_each_exactly_once_on_postgres() {
    reconnect_at_every_event(Server::start_on(Database::postgres().await).await).await;
}

async fn reconnect_at_every_event(server: Server) {
    let alice = server.alice();
    let mut body = says("Hello.");
    body["id"] = "mine".into();
    body["model"]["script"] = json!([{ "text": "one two three", "reasoning": "hm", "delay_ms": 300 }]);
    server.post("/v1/runs", &alice, &body).await;
    let (mut seen, mut last) = (Vec::new(), 0);
    loop {
        let number = last.to_string();
        let headers = [("last-event-id", number.as_str())];
        let response = server.open("/v1/runs/mine/events", &alice, &headers).await;
        if response.status() == StatusCode::NO_CONTENT {
            break;
        }
        let (seq, event) = Reader::new(response).event().await.expect("one more event");
        last = seq;
        seen.push((seq, event));
    }
    let whole = server.read("/v1/runs/mine/events", &alice, &[]).await.rest().await;
    assert_eq!(seen, whole);
    assert_eq!(kinds(&seen).last(), Some(&"result"));
    // The header wins over the query, which a browser repeats unchanged at every reconnect.
    let headers = [("last-event-id", "2")];
    let (seq, _) = server.read("/v1/runs/mine/events?after=1", &alice, &headers).await.event().await.unwrap();
    assert_eq!(seq, 3);
    let (seq, _) = server.read("/v1/runs/mine/events?after=1", &alice, &[]).await.event().await.unwrap();
    assert_eq!(seq, 2);
}

#[tokio::test]
async fn readers_of_a_live_run_all_see_the_same_and_closing_touches_nothing() {
    let server = Server::start().await;
    let alice = server.alice();
    let mut body = slow(400);
    body["id"] = "mine".into();
    server.post("/v1/runs", &alice, &body).await;
    let mut leaves = server.read("/v1/runs/mine/events", &alice, &[]).await;
    leaves.event().await.unwrap();
    drop(leaves);
    let readers = futures::future::join_all((0..5).map(|_| server.read("/v1/runs/mine/events", &alice, &[]))).await;
    let read = futures::future::join_all(readers.into_iter().map(Reader::rest)).await;
    assert!(read.iter().all(|events| *events == read[0]));
    assert_eq!(kinds(&read[0]).last(), Some(&"result"));
    assert_eq!(read[0].last().unwrap().1["status"], "completed");
    assert_eq!(server.app.hub.followed(), (0, 0), "no reader is left behind");
}

#[tokio::test]
async fn a_stream_ends_when_its_token_ends_and_when_the_server_stops() {
    let server = Server::start().await;
    let mut body = slow(60_000);
    body["id"] = "long".into();
    server.post("/v1/runs", &server.alice(), &body).await;
    let short = server.token_for("acme", "alice", "runs:read", 2);
    let began = SystemClock.now();
    let brief = server.read("/v1/runs/long/events", &short, &[]).await.rest().await;
    assert!(!kinds(&brief).contains(&"result"));
    assert!(SystemClock.now().millis_since(began) <= 5_000);
    let long = server.read("/v1/runs/long/events", &server.alice(), &[]).await;
    let tenant = server.read("/v1/events", &server.alice(), &[]).await;
    server.app.stopping.cancel();
    assert!(!kinds(&long.rest().await).contains(&"result"));
    let mut tenant = tenant;
    while tenant.frame().await.is_some() {}
}

#[tokio::test]
async fn a_ticket_opens_the_events_of_its_run_and_nothing_else() {
    let server = Server::start().await;
    let alice = server.alice();
    for id in ["mine", "other"] {
        let mut body = says("hi");
        body["id"] = id.into();
        server.settled(&body).await;
    }
    let made =
        server.post("/v1/runs/mine/stream-tickets", &server.token("acme", "alice", "runs:read"), &json!({})).await;
    assert_eq!(made.status, StatusCode::CREATED);
    let ticket = made.json()["ticket"].as_str().unwrap().to_owned();
    assert!(made.json()["expires_at"].is_string());
    let events = server.read(&format!("/v1/runs/mine/events?ticket={ticket}"), "", &[]).await.rest().await;
    assert_eq!(kinds(&events).last(), Some(&"result"));
    let last = events.last().unwrap().0.to_string();
    let headers = [("last-event-id", last.as_str())];
    let again = server.open(&format!("/v1/runs/mine/events?ticket={ticket}"), "", &headers).await;
    assert_eq!(again.status(), StatusCode::NO_CONTENT);
    for path in [
        format!("/v1/runs/other/events?ticket={ticket}"),
        format!("/v1/runs/mine?ticket={ticket}"),
        format!("/v1/runs/mine/messages?ticket={ticket}"),
        format!("/v1/events?ticket={ticket}"),
        format!("/v1/runs/mine/events?ticket={ticket}x"),
        "/v1/runs/mine/events?ticket=".to_owned(),
    ] {
        server.get(&path, "").await.problem(401, "unauthenticated");
    }
    server.post("/v1/runs/nothing/stream-tickets", &alice, &json!({})).await.problem(404, "not-found");
}

#[tokio::test]
async fn the_tenants_stream_tells_status_and_results_of_its_runs_only() {
    let server = Server::start().await;
    let mut ours = server.read("/v1/events", &server.alice(), &[]).await;
    let theirs = server.token("umbrella", "eve", super::harness::RUNS);
    server.post("/v1/runs", &theirs, &says("theirs")).await;
    server.settled(&says("ours")).await;
    let mut seen = Vec::new();
    for _ in 0..100 {
        let frame = ours.frame().await.expect("live");
        let Some(data) = frame.strip_prefix("data: ") else { continue };
        let event: Value = serde_json::from_str(data).unwrap();
        seen.push(event["type"].as_str().unwrap().to_owned());
        if event["type"] == "result" {
            assert_eq!(event["output"]["text"], "ours");
            break;
        }
    }
    assert_eq!(seen.last().map(String::as_str), Some("result"));
    assert!(seen.iter().all(|kind| kind == "run-status" || kind == "result"), "{seen:?}");
}

#[tokio::test]
async fn a_silent_stream_is_kept_alive_by_comments() {
    let server = Server::start().await;
    tokio::time::pause();
    let mut ours = server.read("/v1/events", &server.alice(), &[]).await;
    assert_eq!(ours.frame().await.as_deref(), Some("retry: 1000"));
    let began = tokio::time::Instant::now();
    assert_eq!(ours.frame().await.as_deref(), Some(": ping"));
    assert_eq!(began.elapsed().as_secs(), Duration::from_secs(15).as_secs());
}

#[tokio::test]
async fn runs_that_other_nodes_drive_are_followed_too() {
    let server = Server::start_deaf().await;
    let alice = server.alice();
    let mut body = slow(300);
    body["id"] = "theirs".into();
    server.post("/v1/runs", &alice, &body).await;
    let events = server.read("/v1/runs/theirs/events", &alice, &[]).await.rest().await;
    assert_eq!(kinds(&events).last(), Some(&"result"));
    assert_eq!(server.settled(&slow(300)).await["status"], "completed");
}

/// What a reader who does not read keeps in memory is one piece of the stream.
#[tokio::test]
async fn a_stream_of_large_events_is_read_in_small_pieces() {
    let server = Server::start().await;
    let call = json!({ "name": "unknown", "arguments": { "note": "x".repeat(40_000) } });
    let script = json!([{ "tool_calls": [call] }]);
    let body = json!({
        "id": "large", "input": "Go.", "limits": { "max_turns": 20 },
        "model": { "provider": "scripted", "name": "demo", "script": script },
    });
    assert_eq!(server.settled(&body).await["reason"], "max-turns");
    let headers = [("accept", "text/event-stream")];
    let asked = request(Method::GET, "/v1/runs/large/events", &server.alice(), &headers, Body::empty());
    let mut pieces = server.router.clone().oneshot(asked).await.unwrap().into_body().into_data_stream();
    let (mut whole, mut largest) = (0, 0);
    while let Some(piece) = timeout(SOON, pieces.next()).await.expect("the stream ends") {
        let size = piece.unwrap().len();
        (whole, largest) = (whole + size, largest.max(size));
    }
    assert!(whole > 800_000, "{whole}");
    assert!(largest < 300_000, "{largest} of {whole}");
}
