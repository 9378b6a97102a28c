//! Cancellation, and what is said of calls whose results are lost.

use std::sync::Arc;

use reqwest::Method;
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::node::{Node, Setup, Stream};
use crate::support::database::{Database, both_stores};
use crate::support::fake_mcp::{FakeMcp, Reply};
use crate::support::world::run_on;

both_stores! {
    field_a095_each_of_five_calls_has_its_end_when_the_run_is_cancelled_after_two,
    field_a079_a096_closing_a_stream_of_any_kind_stops_nothing_and_cancelling_twice_is_the_same,
    field_a097_a_crash_a_cancellation_and_a_time_out_are_told_apart_and_each_warns,
}

fn list(value: &Value, member: &str) -> Vec<String> {
    value.as_array().unwrap().iter().map(|row| row[member].as_str().unwrap_or("-").to_owned()).collect()
}

async fn field_a095_each_of_five_calls_has_its_end_when_the_run_is_cancelled_after_two(database: Database) {
    let fake = FakeMcp::start().await;
    fake.on_call(|seen| if seen.body["params"]["arguments"]["n"] == 2 { Reply::Silence } else { Reply::text("ok") });
    let node = Node::start(&database).await;
    let calls: Vec<_> = (0..5).map(|n| ("charge", json!({ "n": n }))).collect();
    let mut body = run_on("r", &calls, json!([{ "url": fake.url() }]));
    body["limits"] = json!({ "max_parallel_tool_calls": 1 });
    node.post("/v1/runs", &body, 201).await;
    fake.wait_until(|fake| fake.count("tools/call") == 3).await;
    node.post("/v1/runs/r/cancel", &json!({}), 202).await;
    assert_eq!(node.rested("r").await["status"], "cancelled");
    let receipts = node.get("/v1/runs/r/receipts").await["data"].clone();
    assert_eq!(list(&receipts, "stage"), ["completed", "completed", "indeterminate", "failed", "failed"]);
    for unsent in [3, 4] {
        let error = &receipts[unsent]["error"];
        assert_eq!(error["message"], "The run was cancelled before the call was sent.", "{error}");
        assert_eq!(receipts[unsent]["attempt"], 0);
    }
    let outputs: Vec<Value> = node.events("r").await.into_iter().filter(|e| e["type"] == "tool-output").collect();
    assert_eq!(outputs.len(), 5, "one end each: {outputs:?}");
    assert_eq!(fake.count("tools/call"), 3);
    node.stop().await;
}

/// Opens every kind of stream of a run.
async fn every_kind(node: &Node, body: &Value) -> Vec<Stream> {
    let create = node.request(Method::POST, "/v1/runs").header("accept", "text/event-stream");
    let created = create.header("content-type", "application/json").body(body.to_string()).send().await.unwrap();
    assert_eq!(created.status(), 201);
    let ticket = node.post("/v1/runs/r/stream-tickets", &json!({}), 201).await;
    let with_ticket = node.url(&format!("/v1/runs/r/events?ticket={}", ticket["ticket"].as_str().unwrap()));
    let with_ticket = node.http.get(with_ticket).header("accept", "text/event-stream").send().await.unwrap();
    let mut streams = vec![Stream::new(created), Stream::new(with_ticket)];
    streams.push(node.open("/v1/runs/r/events", None).await);
    streams.push(node.open("/v1/events", None).await);
    streams
}

async fn field_a079_a096_closing_a_stream_of_any_kind_stops_nothing_and_cancelling_twice_is_the_same(
    database: Database,
) {
    let fake = FakeMcp::start().await;
    let answer = Arc::new(Notify::new());
    let gate = Arc::clone(&answer);
    fake.on_call(move |_| Reply::When(Arc::clone(&gate), Box::new(Reply::text("charged"))));
    let node = Node::start(&database).await;
    let charge = [("charge", json!({ "amount": 5 }))];
    let streams = every_kind(&node, &run_on("r", &charge, json!([{ "url": fake.url() }]))).await;
    fake.wait_until(|fake| fake.count("tools/call") == 1).await;
    for mut stream in streams {
        assert_eq!(stream.frame().await.as_deref(), Some("retry: 1000"));
        drop(stream);
    }
    // Who leaves is noticed, and changes nothing.
    let last = node.events("r").await.last().unwrap()["seq"].as_i64().unwrap();
    assert_eq!(node.get("/v1/runs/r").await["status"], "running");
    answer.notify_one();
    assert_eq!(node.rested("r").await["status"], "completed");
    let rest = node.open("/v1/runs/r/events", Some(last)).await.rest().await;
    assert_eq!(rest.first().unwrap().0, last + 1);
    assert_eq!(rest.last().unwrap().1["status"], "completed");
    // The one thing that stops a run, as often as it is said.
    node.post("/v1/runs", &run_on("other", &charge, json!([{ "url": fake.url() }])), 201).await;
    fake.wait_until(|fake| fake.count("tools/call") == 2).await;
    for _ in 0..3 {
        node.post("/v1/runs/other/cancel", &json!({}), 202).await;
    }
    let cancelled = node.rested("other").await;
    assert_eq!(node.post("/v1/runs/other/cancel", &json!({}), 202).await, cancelled);
    let results = node.events("other").await.iter().filter(|event| event["type"] == "result").count();
    assert_eq!((cancelled["status"].as_str(), results), (Some("cancelled"), 1));
    node.stop().await;
}

/// What is told of the one call of a run, by its event and, while it waits for a person, by the run.
async fn told(node: &Node, id: &str) -> (String, String) {
    let run = node.rested(id).await;
    let events = node.events(id).await;
    let output = events.iter().find(|event| event["type"] == "tool-output").unwrap();
    assert_eq!((&output["stage"], &output["error"]["code"]), (&json!("indeterminate"), &json!("outcome-unknown")));
    let message = output["error"]["message"].as_str().unwrap().to_owned();
    if run["status"] == "suspended" {
        assert_eq!(run["pending"]["reconciliations"][0]["message"], message);
        assert_eq!(run["pending"]["reconciliations"][0]["cause"], output["cause"]);
    }
    (output["cause"].as_str().unwrap().to_owned(), message)
}

async fn field_a097_a_crash_a_cancellation_and_a_time_out_are_told_apart_and_each_warns(database: Database) {
    let fake = FakeMcp::start().await;
    fake.on_call(|_| Reply::Silence);
    // A node that does not wait for what is out leaves it as a crash does.
    let node = Node::start_as(&database, Setup { drain_s: 0, ..Setup::default() }).await;
    let charge = [("charge", json!({ "amount": 5 }))];
    let entry = |call_ms: u64| json!([{ "url": fake.url(), "timeouts": { "call_ms": call_ms } }]);
    for (id, call_ms) in [("time-out", 300), ("cancelled", 60_000), ("crash", 60_000)] {
        node.post("/v1/runs", &run_on(id, &charge, entry(call_ms)), 201).await;
    }
    fake.wait_until(|fake| fake.count("tools/call") == 3).await;
    node.post("/v1/runs/cancelled/cancel", &json!({}), 202).await;
    let mut all = vec![told(&node, "time-out").await, told(&node, "cancelled").await];
    node.stop().await;
    let node = Node::start(&database).await;
    all.push(told(&node, "crash").await);
    let causes: Vec<&str> = all.iter().map(|(cause, _)| cause.as_str()).collect();
    assert_eq!(causes, ["time-out", "cancelled", "crash"]);
    let marks = ["not answered in time", "The run was cancelled", "stopped or died"];
    for ((_, message), mark) in all.iter().zip(marks) {
        assert!(message.contains(mark) && message.contains("may have happened"), "{message}");
        assert_eq!(marks.iter().filter(|mark| message.contains(**mark)).count(), 1, "{message}");
    }
    node.stop().await;
}
