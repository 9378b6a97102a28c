//! Creating once: ids, idempotency keys, waiting, lists.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use axum::body::Body;
use http::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::harness::{Server, request, says, slow};

#[tokio::test]
async fn the_same_key_creates_once_and_answers_the_same_run() {
    let server = Server::start().await;
    let alice = server.alice();
    let body = says("once");
    let create = |token: String, body: Value, key: &'static str| {
        let server = &server;
        async move { server.post_with("/v1/runs", &token, &[("idempotency-key", key)], &body).await }
    };
    let several = futures::future::join_all((0..8).map(|_| create(alice.clone(), body.clone(), "k-1"))).await;
    let first = several[0].json()["id"].clone();
    for answer in &several {
        assert_eq!(answer.status, StatusCode::CREATED, "{:?}", answer.body);
        assert_eq!(answer.json()["id"], first);
        assert_eq!(answer.header("location"), format!("/v1/runs/{}", first.as_str().unwrap()));
    }
    let replays = several.iter().filter(|answer| answer.header("idempotent-replayed") == "true").count();
    assert_eq!(replays, 7, "exactly one creates");
    let reused = create(alice.clone(), says("other"), "k-1").await;
    reused.problem(422, "idempotency-key-reused");
    for other in [server.token("acme", "bob", "runs:write runs:read"), server.token("umbrella", "alice", "admin")] {
        assert_ne!(create(other, body.clone(), "k-1").await.json()["id"], first, "keys belong to tenant and actor");
    }
    for bad in ["", "a b", "\u{e9}", &"x".repeat(256)] {
        let answer = server.post_with("/v1/runs", &alice, &[("idempotency-key", bad)], &body).await;
        let problem = answer.problem(422, "validation-failed");
        assert_eq!(problem["errors"][0]["parameter"], "Idempotency-Key", "{bad}");
    }
}

#[tokio::test]
async fn a_failure_is_not_kept_under_its_key() {
    let server = Server::start().await;
    let headers = [("idempotency-key", "k-2")];
    let alice = server.alice();
    server.post_with("/v1/runs", &alice, &headers, &json!({})).await.problem(422, "validation-failed");
    let mut unreachable = says("hi");
    unreachable["mcp"] = json!([{ "url": "http://127.0.0.1:1/mcp", "timeouts": { "connect_ms": 2000 } }]);
    unreachable["id"] = "again".into();
    let problem = server.post_with("/v1/runs", &alice, &headers, &unreachable).await.problem(502, "mcp-unreachable");
    assert_eq!(problem["server"], "http://127.0.0.1:1/mcp");
    server.get("/v1/runs/again", &alice).await.problem(404, "not-found");
    let mut good = says("hi");
    good["id"] = "again".into();
    let made = server.post_with("/v1/runs", &alice, &headers, &good).await;
    assert_eq!((made.status.as_u16(), made.header("idempotent-replayed")), (201, ""));
    let taken = server.post("/v1/runs", &alice, &good).await.problem(409, "run-exists");
    assert_eq!(taken["links"][0]["href"], "/v1/runs/again");
}

#[tokio::test]
async fn a_wait_ends_with_the_run_or_with_its_time() {
    let server = Server::start().await;
    let alice = server.alice();
    let done = server.post_with("/v1/runs", &alice, &[("prefer", "wait=20")], &says("done")).await;
    assert_eq!((done.header("preference-applied"), &done.json()["status"]), ("wait=20", &"completed".into()));
    let began = std::time::Instant::now();
    let late = server.post_with("/v1/runs", &alice, &[("prefer", "wait=1")], &slow(30_000)).await;
    assert_eq!((late.status.as_u16(), &late.json()["status"]), (201, &"running".into()));
    assert!(began.elapsed() >= std::time::Duration::from_secs(1));
    let path = late.header("location").to_owned();
    let cancel = request(Method::POST, &format!("{path}/cancel"), &alice, &[("prefer", "wait=20")], Body::empty());
    let cancelled = server.send(cancel).await;
    assert_eq!((cancelled.status.as_u16(), &cancelled.json()["status"]), (202, &"cancelled".into()));
    let again = server.post(&format!("{path}/cancel"), &alice, &json!({})).await;
    assert_eq!((again.status.as_u16(), &again.json()["status"]), (202, &"cancelled".into()));
    let resumed = server.post(&format!("{path}/resume"), &alice, &json!({})).await;
    assert_eq!((resumed.status.as_u16(), &resumed.json()["status"]), (200, &"cancelled".into()));
}

#[tokio::test]
async fn an_active_run_is_not_resumed_and_says_what_can_be_done() {
    let server = Server::start().await;
    let alice = server.alice();
    let mut body = slow(30_000);
    body["id"] = "busy".into();
    server.post("/v1/runs", &alice, &body).await;
    let problem = server.post("/v1/runs/busy/resume", &alice, &json!({})).await.problem(409, "run-active");
    let rels: Vec<&str> =
        problem["links"].as_array().unwrap().iter().map(|link| link["rel"].as_str().unwrap()).collect();
    assert_eq!(rels, ["run", "cancel"]);
}

#[tokio::test]
async fn lists_page_through_every_run_newest_first() {
    let server = Server::start().await;
    let alice = server.alice();
    for number in 0..7 {
        let mut body = says("hi");
        body["id"] = format!("r{number}").into();
        body["metadata"] = json!({ "parity": if number % 2 == 0 { "even" } else { "odd" } });
        server.settled(&body).await;
    }
    let pages = |filter: &'static str| {
        let (server, alice) = (&server, &alice);
        async move {
            let (mut seen, mut cursor) = (Vec::new(), String::new());
            loop {
                let page = server.get(&format!("/v1/runs?limit=2{filter}{cursor}"), alice).await.json();
                seen.extend(page["data"].as_array().unwrap().iter().map(|run| run["id"].as_str().unwrap().to_owned()));
                let Some(next) = page["next_cursor"].as_str() else { return seen };
                cursor = format!("&cursor={next}");
            }
        }
    };
    assert_eq!(pages("").await, ["r6", "r5", "r4", "r3", "r2", "r1", "r0"]);
    assert_eq!(pages("&metadata[parity]=odd&status=completed").await, ["r5", "r3", "r1"]);
    assert_eq!(pages("&status=failed").await, [""; 0]);
    let stranger = server.token("umbrella", "alice", "admin");
    assert_eq!(server.get("/v1/runs", &stranger).await.json()["data"], json!([]));
    let messages = server.get("/v1/runs/r0/messages?limit=1", &alice).await.json();
    assert_eq!(messages["data"][0]["role"], "user");
    let next = messages["next_cursor"].as_str().unwrap();
    let rest = server.get(&format!("/v1/runs/r0/messages?cursor={next}"), &alice).await.json();
    assert_eq!((&rest["data"][0]["role"], &rest["next_cursor"]), (&"assistant".into(), &Value::Null));
    let envelope = server.get("/v1/runs/r0/envelope", &alice).await.json();
    assert_eq!(envelope["messages"].as_array().unwrap().len(), 2);
    assert_eq!(envelope["run"]["id"], "r0");
}

/// A request's future is dropped when its connection goes away, wherever it stands.
#[tokio::test]
async fn a_caller_that_goes_away_leaves_a_run_that_ends_or_none() {
    let server = Server::start().await;
    for polls in 0..60_u32 {
        let mut body = says("hello");
        body["id"] = format!("gone-{polls}").into();
        let request = request(Method::POST, "/v1/runs", &server.alice(), &[], Body::from(body.to_string()));
        let mut answering = pin!(server.send(request));
        let mut left = polls;
        let answer = poll_fn(|context| match left.checked_sub(1) {
            Some(fewer) => {
                left = fewer;
                answering.as_mut().poll(context).map(Some)
            }
            None => Poll::Ready(None),
        })
        .await;
        if answer.is_some() {
            break;
        }
    }
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        let page = server.get("/v1/runs?limit=200", &server.alice()).await.json();
        let runs = page["data"].as_array().unwrap();
        // One was answered; one more at least was stored for a caller who had gone.
        if runs.len() > 1 && runs.iter().all(|run| run["status"] == "completed") {
            return;
        }
        assert!(Instant::now() < deadline, "some runs do not end: {page}");
        sleep(Duration::from_millis(20)).await;
    }
}
