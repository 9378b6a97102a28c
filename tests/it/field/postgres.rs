//! Postgres: connections, and what a run leaves behind.

use std::time::Duration;

use futures::future::join_all;
use reqwest::Method;
use serde_json::json;
use sqlx::{Connection as _, Executor as _, PgConnection};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

use super::node::{Node, SOON, slow, talkative};
use crate::support::database::{Database, eventually};
use crate::support::fake_mcp::FakeMcp;
use crate::support::world::run_on;

/// Connections of the server under test that have stood in a transaction for half a second, and done nothing.
const IDLE_IN_TRANSACTION: &str = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
     AND application_name = 'countersign' AND state LIKE 'idle in transaction%' \
     AND state_change < clock_timestamp() - interval '500 milliseconds'";

/// Sends requests whose callers go away at any moment.
async fn callers_that_go_away(node: &Node, count: u64) {
    let leave = |nth: u64| async move {
        let body = slow(&format!("gone-{nth}"), 0).to_string();
        let (method, path, body) = match nth % 3 {
            0 => ("POST", "/v1/runs".to_owned(), body),
            1 => ("GET", "/v1/runs?limit=200".to_owned(), String::new()),
            _ => ("POST", format!("/v1/runs/gone-{}/cancel", nth - 2), String::new()),
        };
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n{body}",
            node.token(),
            body.len()
        );
        let mut client = TcpStream::connect(node.address()).await.unwrap();
        client.write_all(head.as_bytes()).await.unwrap();
        // From at once to about the time that an answer takes.
        sleep(Duration::from_micros(nth % 50 * 400)).await;
        client.set_zero_linger().unwrap();
    };
    for wave in 0..count / 50 {
        join_all((wave * 50..wave * 50 + 50).map(leave)).await;
    }
}

async fn answers_in(node: &Node, requests: usize) -> Duration {
    let began = Instant::now();
    for answer in join_all((0..requests).map(|_| node.request(Method::GET, "/v1/runs?limit=5").send())).await {
        assert_eq!(answer.unwrap().status(), 200);
    }
    began.elapsed()
}

#[tokio::test]
async fn field_a115_a119_callers_that_go_away_leave_every_connection_usable() {
    let database = Database::postgres().await;
    let node = Node::start(&database).await;
    callers_that_go_away(&node, 300).await;
    eventually("nothing stands in a transaction", || async { database.count(IDLE_IN_TRANSACTION).await == 0 }).await;
    // Twice as many at once as there are connections, again and again: a slot that was lost would show as a time-out.
    for _ in 0..5 {
        let took = answers_in(&node, 40).await;
        assert!(took < Duration::from_secs(5), "{took:?}");
    }
    // What was stored for a caller who had gone is driven to its end like any other.
    let deadline = Instant::now() + SOON;
    loop {
        let open = "SELECT count(*) FROM runs WHERE status IN ('queued', 'running')";
        if database.count(open).await == 0 {
            break;
        }
        assert!(Instant::now() < deadline, "some runs do not end");
        sleep(Duration::from_millis(50)).await;
    }
    node.stop().await;
}

#[tokio::test]
async fn field_a119_who_waits_too_long_for_a_connection_is_told_to_come_again() {
    let database = Database::postgres().await;
    let node = Node::start(&database).await;
    node.post("/v1/runs", &slow("r", 0), 201).await;
    node.rested("r").await;
    let mut other = PgConnection::connect(&database.url).await.unwrap();
    other.execute("BEGIN; LOCK TABLE runs IN ACCESS EXCLUSIVE MODE").await.unwrap();
    // The first take every connection and wait for the lock; the last wait for a connection, and not for ever.
    let began = Instant::now();
    let asked = join_all((0..30).map(|_| node.request(Method::GET, "/v1/runs/r").send()));
    let unlocked = async {
        sleep(Duration::from_secs(13)).await;
        other.execute("COMMIT").await.unwrap();
    };
    let (answers, ()) = timeout(Duration::from_secs(40), async { tokio::join!(asked, unlocked) }).await.unwrap();
    let answers: Vec<_> = answers.into_iter().map(Result::unwrap).collect();
    let refused: Vec<_> = answers.iter().filter(|answer| answer.status() == 503).collect();
    assert!(refused.iter().all(|answer| answer.headers().contains_key("retry-after")));
    assert!(refused.len() >= 10, "{} of 30 after {:?}", refused.len(), began.elapsed());
    assert!(answers.iter().all(|answer| matches!(answer.status().as_u16(), 200 | 503)));
    let took = answers_in(&node, 40).await;
    assert!(took < Duration::from_secs(5), "it recovered: {took:?}");
    node.stop().await;
}

#[tokio::test]
async fn field_a117_no_connection_is_held_while_fifty_models_and_tools_are_slow() {
    let database = Database::postgres().await;
    let fake = FakeMcp::start().await;
    fake.on_call(|_| crate::support::fake_mcp::Reply::Silence);
    let node = Node::start(&database).await;
    let charge = [("charge", json!({}))];
    for nth in 0..50 {
        let body = if nth % 2 == 0 {
            slow(&format!("r{nth}"), 20_000)
        } else {
            run_on(&format!("r{nth}"), &charge, json!([{ "url": fake.url() }]))
        };
        node.post("/v1/runs", &body, 201).await;
    }
    fake.wait_until(|fake| fake.count("tools/call") == 25).await;
    // Longer than it takes to call a connection idle.
    sleep(Duration::from_secs(1)).await;
    let mut slowest = Duration::ZERO;
    for nth in 0..60 {
        assert_eq!(database.count(IDLE_IN_TRANSACTION).await, 0);
        let began = Instant::now();
        match nth % 3 {
            0 => drop(node.get("/v1/runs?limit=50").await),
            1 => drop(node.get("/v1/runs/r1/events").await),
            _ => drop(node.post("/v1/runs", &slow(&format!("quick-{nth}"), 0), 201).await),
        }
        slowest = slowest.max(began.elapsed());
    }
    eprintln!("slowest request beside 50 waiting runs: {slowest:?}");
    assert!(slowest < Duration::from_secs(1), "{slowest:?}");
    assert_eq!(database.count("SELECT count(*) FROM runs WHERE status = 'running' AND id LIKE 'r%'").await, 50);
    for nth in 0..50 {
        node.post(&format!("/v1/runs/r{nth}/cancel"), &json!({}), 202).await;
    }
    node.stop().await;
}

#[tokio::test]
async fn field_a120_storage_grows_with_what_is_new_and_not_with_turns_times_content() {
    let mut left = Vec::new();
    for turns in [50, 200] {
        let database = Database::postgres().await;
        let node = Node::start(&database).await;
        let mut body = talkative("r", turns, 100);
        body["input"] = json!("x".repeat(1 << 20));
        node.post("/v1/runs", &body, 201).await;
        assert_eq!(node.rested("r").await["turns"], turns);
        node.stop().await;
        let bytes = i64::try_from(database.dump().await.len()).unwrap();
        let rows = "SELECT (SELECT count(*) FROM messages) + (SELECT count(*) FROM calls) \
             + (SELECT count(*) FROM events) + (SELECT count(*) FROM bindings) + (SELECT count(*) FROM runs)";
        let head = "SELECT max(octet_length(state::text))::bigint FROM runs";
        left.push((database.count(rows).await, bytes, database.count(head).await));
    }
    eprintln!("rows, bytes, head of 50 and of 200 turns with 1 MiB of input: {left:?}");
    let [(few_rows, few_bytes, few_head), (rows, bytes, head)] = left[..] else { unreachable!() };
    // 1 MiB of input is stored once or twice, not once a turn.
    assert!(few_bytes < 3 << 20, "{few_bytes}");
    let (per_row, per_turn) = ((rows - few_rows) / 150, (bytes - few_bytes) / 150);
    assert!(per_row <= 10, "{per_row} rows a turn");
    assert!(per_turn < 6_000, "{per_turn} bytes a turn");
    // What is written again with every commit is small, and does not grow.
    assert!(head < few_head + 200 && head < 4_000, "{few_head} and {head}");
}

#[tokio::test]
async fn a_caller_who_is_gone_is_not_waited_for() {
    let database = Database::sqlite().await;
    let node = Node::start(&database).await;
    let mut client = TcpStream::connect(node.address()).await.unwrap();
    let head = format!("GET /v1/runs HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {}\r\n\r\n", node.token());
    client.write_all(head.as_bytes()).await.unwrap();
    let mut answer = vec![0; 12];
    timeout(SOON, client.read_exact(&mut answer)).await.unwrap().unwrap();
    assert_eq!(answer, b"HTTP/1.1 200");
    drop(client);
    timeout(Duration::from_secs(4), node.stop()).await.unwrap();
}
