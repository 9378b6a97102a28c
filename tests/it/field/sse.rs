//! SSE delivery.

use std::time::Duration;

use countersign::app::Grants;
use countersign::http::ConnectionLimits;
use countersign::run::ids::RunUid;
use futures::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Instant, sleep};

use super::node::{Node, Setup, Stream, outline, slow, talkative};
use crate::store::draft::{Draft, apply, node};
use crate::support::database::{Database, both_stores, eventually};
use crate::support::fake_mcp::{FakeMcp, Reply};
use crate::support::product::{Product, token};
use crate::support::world::run_on;

both_stores! {
    field_a074_readers_that_reconnect_in_the_flood_see_each_event_once_and_in_order,
    field_a075_a_place_in_the_future_or_of_nonsense_is_refused_and_one_at_the_end_ends,
    field_a078_numbers_are_given_in_the_order_of_the_commits_and_a_reader_skips_none,
    field_a082_numbers_stay_over_connections_and_restarts_and_nothing_older_comes_again,
    field_a083_a_stream_that_was_cut_has_no_result_and_its_rest_has_it,
}

#[tokio::test]
async fn field_a072_nothing_on_the_way_may_hold_a_stream_back_or_change_it() {
    let database = Database::sqlite().await;
    let node = Node::start(&database).await;
    let request = node.request(Method::POST, "/v1/runs").header("accept", "text/event-stream");
    let request = request.header("content-type", "application/json").header("accept-encoding", "gzip, br, zstd");
    let began = Instant::now();
    let response = request.body(slow("r", 5_000).to_string()).send().await.unwrap();
    let header = |name: &str| response.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
    assert_eq!(header("content-encoding"), None);
    assert_eq!(header("x-accel-buffering").as_deref(), Some("no"));
    assert!(header("cache-control").unwrap().contains("no-transform"));
    let (first, _) = Stream::new(response).event().await.unwrap();
    assert_eq!(first, 1);
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
}

#[tokio::test]
async fn field_a073_a081_a_quiet_stream_stays_open_and_its_comments_carry_no_number() {
    // Far shorter than the silence: a limit of the connection that counted against an open answer would end it.
    let connection = ConnectionLimits {
        head: Duration::from_millis(500),
        acknowledge: Duration::from_secs(2),
        ..ConnectionLimits::default()
    };
    let grants = Grants { connection, ..Grants::default() };
    let database = Database::sqlite().await;
    let node = Node::start_as(&database, Setup { grants, ..Setup::default() }).await;
    node.post("/v1/runs", &slow("r", 17_000), 201).await;
    node.until_told("r", "turn-started", 1).await;
    let before = node.get("/v1/runs/r").await;
    let mut stream = node.open("/v1/runs/r/events", None).await;
    let mut frames = Vec::new();
    loop {
        let frame = stream.frame().await.expect("the stream is open");
        let quiet = frame.starts_with(':');
        frames.push(frame);
        if quiet {
            break;
        }
    }
    assert_eq!(frames.last().map(String::as_str), Some(": ping"), "a comment, without a number");
    let after = node.get("/v1/runs/r").await;
    let of = |run: &Value| (run["revision"].clone(), run["updated_at"].clone());
    assert_eq!(of(&after), of(&before), "it is no activity of the run");
    let told = i64::try_from(frames.iter().filter(|frame| frame.starts_with("id: ")).count()).unwrap();
    let rest = stream.rest().await;
    assert_eq!(rest.first().unwrap().0, told + 1, "numbers go on as if there had been no comment");
    assert_eq!(rest.last().unwrap().1["status"], "completed");
}

async fn field_a074_readers_that_reconnect_in_the_flood_see_each_event_once_and_in_order(database: Database) {
    let node = Node::start(&database).await;
    let began = Instant::now();
    // 40 calls a turn, 80 events a commit: far more than 500 a second.
    let mut body = talkative("r", 25, 20);
    let call = body["model"]["script"][0]["tool_calls"][0].clone();
    body["model"]["script"][0]["tool_calls"] = json!(vec![call; 40]);
    body["limits"]["max_tool_calls"] = json!(1_000);
    node.post("/v1/runs", &body, 201).await;
    // Each leaves after so many events and comes back with the number of the last.
    let reader = |leaves_after: usize| {
        let node = &node;
        async move {
            let (mut seen, mut last) = (Vec::new(), None);
            loop {
                let request = node.request(Method::GET, "/v1/runs/r/events").header("accept", "text/event-stream");
                let after = last.unwrap_or(0_i64).to_string();
                let response = request.header("last-event-id", after).send().await.unwrap();
                if response.status() == 204 {
                    return seen;
                }
                let mut stream = Stream::new(response);
                for _ in 0..leaves_after {
                    let Some((seq, event)) = stream.event().await else { break };
                    last = Some(seq);
                    seen.push((seq, event));
                }
            }
        }
    };
    let read = join_all([3, 17, 90, 100_000].map(reader)).await;
    let took = began.elapsed();
    let stored = node.events("r").await;
    assert!(stored.len() >= 2_000, "{}", stored.len());
    for seen in &read {
        let numbers: Vec<i64> = seen.iter().map(|(seq, _)| *seq).collect();
        assert_eq!(numbers, (1..=i64::try_from(stored.len()).unwrap()).collect::<Vec<_>>());
        assert!(seen.iter().map(|(_, event)| event).eq(&stored));
    }
    eprintln!("{} events in {took:?}", stored.len());
    node.stop().await;
}

async fn field_a075_a_place_in_the_future_or_of_nonsense_is_refused_and_one_at_the_end_ends(database: Database) {
    let node = Node::start(&database).await;
    node.post("/v1/runs", &slow("live", 60_000), 201).await;
    node.until_told("live", "turn-started", 1).await;
    node.post("/v1/runs", &slow("ended", 0), 201).await;
    node.rested("ended").await;
    let ask = |run: &str, header: Option<&str>, query: &str| {
        let mut request = node.request(Method::GET, &format!("/v1/runs/{run}/events{query}"));
        request = request.header("accept", "text/event-stream");
        request = header.into_iter().fold(request, |request, id| request.header("last-event-id", id));
        async move { request.send().await.unwrap() }
    };
    let future = (node.events("live").await.len() + 1).to_string();
    let largest = i64::MAX.to_string();
    let nonsense = ["-1", "1.5", "abc", "0x1", "99999999999999999999", "1 2", "+1", "٣"];
    for id in nonsense.into_iter().chain([future.as_str(), largest.as_str()]) {
        let answer = ask("live", Some(id), "").await;
        assert_eq!(answer.status(), 400, "{id}");
        assert!(answer.text().await.unwrap().contains("invalid-cursor"), "{id}");
        let query = format!("?after={}", id.replace('+', "%2B").replace(' ', "%20"));
        assert_eq!(ask("live", None, &query).await.status(), 400, "{id}");
    }
    // Of a run that has ended there is nothing to come, so that a reader stops for good.
    let last = node.events("ended").await.len();
    for id in [last.to_string(), (last + 1).to_string(), largest] {
        assert_eq!(ask("ended", Some(&id), "").await.status(), 204, "{id}");
    }
    let rest = Stream::new(ask("ended", Some(&(last - 1).to_string()), "").await).rest().await;
    assert_eq!(outline(&rest), [(i64::try_from(last).unwrap(), "result".to_owned())]);
    assert_eq!(ask("ended", Some("abc"), "").await.status(), 400);
    node.stop().await;
}

/// Connects and asks for a stream, and never reads; its window is small, so that the server soon has to wait.
async fn never_reads(node: &Node) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut client = socket.connect(node.address()).await.unwrap();
    let head = format!(
        "GET /v1/runs/r/events HTTP/1.1\r\nhost: a\r\naccept: text/event-stream\r\nauthorization: Bearer {}\r\n\r\n",
        node.token()
    );
    client.write_all(head.as_bytes()).await.unwrap();
    client
}

/// Memory of this process, in KiB.
fn resident_kib() -> i64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[tokio::test]
async fn field_a076_readers_that_never_read_cost_little_are_let_go_and_lose_nothing() {
    const READERS: usize = 200;
    let connection = ConnectionLimits { acknowledge: Duration::from_secs(2), ..ConnectionLimits::default() };
    let grants = Grants { connection, ..Grants::default() };
    let database = Database::sqlite().await;
    let node = Node::start_as(&database, Setup { grants, ..Setup::default() }).await;
    // A first run warms everything up.
    let mut warm = talkative("warm", 20, 40_000);
    warm["id"] = json!("warm");
    node.post("/v1/runs", &warm, 201).await;
    node.rested("warm").await;
    node.post("/v1/runs", &talkative("r", 400, 40_000), 201).await;
    let mut stalled = Vec::new();
    for _ in 0..READERS {
        stalled.push(never_reads(&node).await);
    }
    eventually("they are readers", || async { node.app().hub.followed().0 == 1 }).await;
    let before = resident_kib();
    node.rested("r").await;
    let grown_mib = (resident_kib() - before) / 1024;
    let told_mib = node.events("r").await.iter().map(|event| event.to_string().len()).sum::<usize>() / (1 << 20);
    assert!(told_mib >= 15, "{told_mib}");
    eprintln!("{READERS} readers of {told_mib} MiB: {grown_mib} MiB more");
    // All of it for each of them would be gigabytes; a page for each is what may be.
    assert!(grown_mib < 150, "{grown_mib} MiB");
    let deadline = Instant::now() + Duration::from_secs(30);
    while node.app().hub.followed().0 > 0 {
        assert!(Instant::now() < deadline, "the server keeps readers that never read");
        sleep(Duration::from_millis(50)).await;
    }
    drop(stalled);
    let whole = node.open("/v1/runs/r/events", None).await.rest().await;
    assert!(whole.iter().map(|(_, event)| event).eq(&node.events("r").await));
    node.stop().await;
}

#[tokio::test]
async fn field_a077_one_connection_carries_many_streams_and_an_actor_has_a_limit() {
    let grants = Grants { streams_per_actor: 30, ..Grants::default() };
    let database = Database::sqlite().await;
    let mut node = Node::start_as(&database, Setup { grants, ..Setup::default() }).await;
    node.http = reqwest::Client::builder().http2_prior_knowledge().build().unwrap();
    node.post("/v1/runs", &slow("r", 60_000), 201).await;
    let mut streams = Vec::new();
    for nth in 0..30 {
        let path = if nth == 0 { "/v1/events" } else { "/v1/runs/r/events" };
        let mut stream = node.open(path, None).await;
        assert_eq!(stream.response.version(), reqwest::Version::HTTP_2);
        assert!(stream.frame().await.is_some());
        streams.push(stream);
    }
    let began = Instant::now();
    node.get("/v1/runs/r").await;
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    let more = |method: Method, path: &str| {
        let request = node.request(method, path).header("accept", "text/event-stream");
        request.header("content-type", "application/json").body(slow("never", 0).to_string())
    };
    for (method, path) in [(Method::GET, "/v1/runs/r/events"), (Method::GET, "/v1/events"), (Method::POST, "/v1/runs")]
    {
        let refused = more(method, path).send().await.unwrap();
        assert_eq!((refused.status().as_u16(), refused.headers()["retry-after"].to_str().unwrap()), (429, "1"));
        assert!(refused.text().await.unwrap().contains("30 event streams of this actor are open"));
    }
    let missing = node.request(Method::GET, "/v1/runs/never").send().await.unwrap();
    assert_eq!(missing.status(), 404, "nothing was created for a stream that cannot be");
    // One stream tells of all runs of the tenant.
    let mut all = streams.remove(0);
    for id in ["one", "two"] {
        node.post("/v1/runs", &slow(id, 0), 201).await;
    }
    let mut results = Vec::new();
    while results.len() < 2 {
        let frame = all.frame().await.expect("live");
        let Some(data) = frame.strip_prefix("data: ") else { continue };
        let event: Value = serde_json::from_str(data).unwrap();
        if event["type"] == "result" {
            results.push(event["run_id"].as_str().unwrap().to_owned());
        }
    }
    results.sort();
    assert_eq!(results, ["one", "two"]);
    drop((all, streams));
    let deadline = Instant::now() + Duration::from_secs(10);
    while more(Method::GET, "/v1/events").send().await.unwrap().status() != 200 {
        assert!(Instant::now() < deadline, "a closed stream keeps its place");
    }
}

/// The numbers of a run's events that a reader sees at this moment.
async fn numbers(store: &dyn countersign::store::Store, run: &Draft) -> Vec<i64> {
    let (tenant, uid): (_, RunUid) = (&run.tenant, run.uid);
    store.event_list(tenant, uid, 0, 10_000).await.unwrap().iter().map(|event| event.seq).collect()
}

async fn field_a078_numbers_are_given_in_the_order_of_the_commits_and_a_reader_skips_none(database: Database) {
    let store = database.open().await;
    let owner = node(&*store).await;
    let mut run = Draft::new("acme", "r");
    let claim = run.admit_owned(&*store, owner).await;
    let reading = async {
        let mut looks = 0;
        loop {
            let seen = numbers(&*store, &run.clone()).await;
            assert!(seen.iter().copied().eq(1..=i64::try_from(seen.len()).unwrap()), "{seen:?}");
            looks += 1;
            if seen.len() > 100 {
                return looks;
            }
        }
    };
    let mut first = run.clone();
    let writing = async {
        for _ in 0..100 {
            // Two writers that both stand at the same revision: one of them takes, and only that one gives numbers.
            let mut second = first.clone();
            let (mine, theirs) = (first.next(), second.next());
            let took = tokio::join!(apply(&*store, &claim, &mine), apply(&*store, &claim, &theirs));
            assert!(took.0 != took.1, "{took:?}");
        }
    };
    let (looks, ()) = tokio::join!(reading, writing);
    assert!(looks > 5, "{looks}");
    assert_eq!(numbers(&*store, &run).await.len(), 101);
}

#[tokio::test]
async fn field_a080_in_a_cancelled_run_each_started_call_has_one_end_before_the_result() {
    let fake = FakeMcp::start().await;
    fake.on_call(|seen| if seen.body["params"]["arguments"]["n"] == 0 { Reply::text("ok") } else { Reply::Silence });
    let database = Database::sqlite().await;
    let node = Node::start(&database).await;
    let calls: Vec<_> = (0..3).map(|n| ("charge", json!({ "n": n }))).collect();
    node.post("/v1/runs", &run_on("r", &calls, json!([{ "url": fake.url() }])), 201).await;
    node.until_told("r", "tool-output", 1).await;
    node.post("/v1/runs/r/cancel", &json!({}), 202).await;
    node.rested("r").await;
    let events = node.open("/v1/runs/r/events", None).await.rest().await;
    let of = |kind: &str| -> Vec<String> {
        let told = events.iter().filter(|(_, event)| event["type"] == kind);
        let mut calls: Vec<String> = told.map(|(_, event)| event["call_id"].as_str().unwrap().to_owned()).collect();
        calls.sort();
        calls
    };
    assert_eq!((of("tool-started"), of("tool-started").len()), (of("tool-output"), 3));
    assert_eq!(events.last().unwrap().1["type"], "result");
}

async fn field_a082_numbers_stay_over_connections_and_restarts_and_nothing_older_comes_again(database: Database) {
    let node = Node::start(&database).await;
    node.post("/v1/runs", &talkative("r", 15, 10), 201).await;
    node.rested("r").await;
    let whole = node.open("/v1/runs/r/events", None).await.rest().await;
    assert!(whole.len() > 40);
    let check = async |node: &Node| {
        for after in [None, None, None, Some(0), Some(1), Some(20), Some(39)] {
            let read = node.open("/v1/runs/r/events", after).await.rest().await;
            assert_eq!(read, whole[usize::try_from(after.unwrap_or(0)).unwrap()..], "{after:?}");
        }
    };
    check(&node).await;
    node.stop().await;
    let node = Node::start(&database).await;
    check(&node).await;
    node.stop().await;
}

async fn field_a083_a_stream_that_was_cut_has_no_result_and_its_rest_has_it(database: Database) {
    let product = Product::start(&database).await;
    let mut body = talkative("r", 1, 10);
    body["limits"] = json!({});
    body["model"]["script"] = json!([
        { "tool_calls": [{ "name": "unknown", "arguments": {} }] }, { "text": "whole", "delay_ms": 2_000 },
    ]);
    product.post("/v1/runs", &body, 201).await;
    let open = async |product: &Product, after: i64| {
        let request = reqwest::Client::new().get(product.url("/v1/runs/r/events")).bearer_auth(token("acme", "admin"));
        let request = request.header("accept", "text/event-stream").header("last-event-id", after.to_string());
        Stream::new(request.send().await.unwrap())
    };
    let mut stream = open(&product, 0).await;
    let (mut seen, mut starts) = (Vec::new(), 0);
    while starts < 2 {
        let event = stream.event().await.expect("the run goes on");
        starts += usize::from(event.1["type"] == "turn-started");
        seen.push(event);
    }
    product.kill();
    seen.extend(stream.rest().await);
    assert!(seen.iter().all(|(_, event)| event["type"] != "result"), "an end without a result is no end of the run");
    let product = Product::start(&database).await;
    let rest = open(&product, seen.last().unwrap().0).await.rest().await;
    assert_eq!(rest.first().unwrap().0, seen.last().unwrap().0 + 1);
    let (last, before) = rest.split_last().unwrap();
    assert_eq!((&last.1["type"], &last.1["status"]), (&json!("result"), &json!("completed")));
    assert!(before.iter().all(|(_, event)| event["type"] != "result"));
}
