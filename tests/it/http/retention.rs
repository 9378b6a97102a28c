//! What callers see of what is kept no longer, and of what is large.

use std::sync::Arc;

use axum::body::Body;
use countersign::store::retention::{Keep, Retention, Round};
use http::{Method, StatusCode};
use serde_json::{Value, json};
use tower::ServiceExt as _;

use super::harness::{Server, request, says};
use crate::support::database::Database;
use crate::support::fake_mcp::{FakeMcp, Reply};

const DAY: i64 = 24 * 60 * 60 * 1000;
/// What has ended is older than this.
const NOW: i64 = -60_000;

/// The events of a stream that has an end, with their numbers.
async fn stream(server: &Server, path: &str) -> Vec<(i64, Value)> {
    let headers = [("accept", "text/event-stream")];
    let asked = request(Method::GET, path, &server.alice(), &headers, Body::empty());
    let response = server.router.clone().oneshot(asked).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK, "{path}");
    let text = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
    let text = String::from_utf8(text.to_vec()).unwrap();
    let frames = text.split("\n\n").filter(|frame| frame.starts_with("id: "));
    let parsed = frames.map(|frame| {
        let (id, data) = frame.split_once("\ndata: ").unwrap();
        (id.strip_prefix("id: ").unwrap().parse().unwrap(), serde_json::from_str(data).unwrap())
    });
    parsed.collect()
}

async fn round(server: &Server, keep: Keep) -> Round {
    Retention::new(Arc::clone(&server.app.store) as Arc<_>, keep).round().await.unwrap()
}

#[tokio::test]
async fn a_reader_of_dropped_events_is_told_of_the_gap_on_sqlite() {
    gap(Server::start().await).await;
}

#[tokio::test]
async fn a_reader_of_dropped_events_is_told_of_the_gap_on_postgres() {
    gap(Server::start_on(Database::postgres().await).await).await;
}

async fn gap(server: Server) {
    let mut body = says("Hello.");
    body["id"] = "mine".into();
    let run = server.settled(&body).await;
    let events = stream(&server, "/v1/runs/mine/events").await;
    let (last, result) = events.last().unwrap().clone();
    assert!(last > 2 && result["type"] == "result");
    let keep = Keep { events_ms: NOW, runs_ms: DAY, receipts_ms: DAY };
    assert_eq!(round(&server, keep).await.pruned, 1);

    let told = stream(&server, "/v1/runs/mine/events").await;
    assert_eq!(told.len(), 2, "{told:?}");
    let gap = &told[0].1;
    assert_eq!((gap["type"].as_str(), gap["first_seq"].as_i64()), (Some("gap"), Some(last)));
    assert_eq!((gap["run_id"].as_str(), gap["seq"].as_i64(), told[0].0), (Some("mine"), Some(last - 1), last - 1));
    assert_eq!(told[1], (last, result.clone()));
    // Whoever goes on after the gap hears of no other.
    let rest = stream(&server, &format!("/v1/runs/mine/events?after={}", last - 1)).await;
    assert_eq!(rest, [(last, result.clone())]);

    let alice = server.alice();
    let page = server.get("/v1/runs/mine/events?limit=1", &alice).await.json();
    assert_eq!(page["data"][0]["type"], "gap");
    assert_eq!((&page["data"][1], &page["next_cursor"]), (&result, &Value::Null));
    assert_eq!(server.get("/v1/runs/mine", &alice).await.json(), run, "the run is what it was");
    assert_eq!(server.get("/v1/runs/mine/messages", &alice).await.json()["data"], json!([]));
    assert_eq!(server.get("/v1/runs/mine/envelope", &alice).await.json()["run"], run);

    let keep = Keep { events_ms: NOW, runs_ms: NOW, receipts_ms: DAY };
    assert_eq!(round(&server, keep).await.runs, 1);
    server.get("/v1/runs/mine", &alice).await.problem(404, "not-found");
    server.get("/v1/runs/mine/events", &alice).await.problem(404, "not-found");
}

#[tokio::test]
async fn results_of_a_megabyte_each_come_in_pages_of_bytes_on_sqlite() {
    large(Server::start().await).await;
}

#[tokio::test]
async fn results_of_a_megabyte_each_come_in_pages_of_bytes_on_postgres() {
    large(Server::start_on(Database::postgres().await).await).await;
}

/// Every page of a list; checks that none is larger than 4 MiB and a little, unless it is one row.
async fn pages(server: &Server, path: &str) -> Vec<Value> {
    let (mut all, mut cursor) = (Vec::new(), String::new());
    loop {
        let answer = server.get(&format!("{path}?limit=200{cursor}"), &server.alice()).await;
        assert_eq!(answer.status, StatusCode::OK);
        let page = answer.json();
        let is_one = page["data"].as_array().unwrap().len() == 1;
        assert!(is_one || answer.body.len() < 4_500_000, "{path}: {}", answer.body.len());
        all.extend(page["data"].as_array().unwrap().clone());
        let Some(next) = page["next_cursor"].as_str() else { return all };
        cursor = format!("&cursor={next}");
    }
}

async fn large(server: Server) {
    let fake = FakeMcp::start().await;
    let text = "0123456789abcdef".repeat(1 << 16);
    let output = json!({ "content": [{ "type": "text", "text": text }] });
    let answer = output.clone();
    fake.on_call(move |_| Reply::Result(answer.clone()));
    let calls: Vec<Value> =
        (0..6).map(|amount| json!({ "name": "charge", "arguments": { "amount": amount } })).collect();
    let run = server
        .settled(&json!({
            "id": "mine",
            "model": { "provider": "scripted", "name": "demo", "script": [{ "tool_calls": calls }, { "text": "Done." }] },
            "input": "Go.",
            "mcp": [{ "url": fake.url() }],
        }))
        .await;
    assert_eq!(run["status"], "completed", "{run}");

    let receipts = pages(&server, "/v1/runs/mine/receipts").await;
    assert_eq!(receipts.len(), 6);
    assert!(receipts.iter().all(|receipt| receipt["output"] == output));
    let events = pages(&server, "/v1/runs/mine/events").await;
    let outputs: Vec<&Value> = events.iter().filter(|event| event["type"] == "tool-output").collect();
    assert_eq!(outputs.len(), 6);
    assert!(outputs.iter().all(|event| event["output"] == output));
    let streamed: Vec<Value> =
        stream(&server, "/v1/runs/mine/events").await.into_iter().map(|(_, event)| event).collect();
    assert!(streamed == events, "the stream holds the same");
    let messages = pages(&server, "/v1/runs/mine/messages").await;
    assert_eq!(messages.len(), 4);
    let results = messages[2]["content"].as_array().unwrap();
    let is_a_view = |told: &str| told.len() < 40_000 && told.contains("of 1048576 bytes are left out here");
    assert!(results.len() == 6 && results.iter().all(|result| is_a_view(result["output"].as_str().unwrap())));
    let envelope = server.get("/v1/runs/mine/envelope", &server.alice()).await.json();
    assert!(envelope["receipts"] == Value::from(receipts) && envelope["messages"] == Value::from(messages));
}
