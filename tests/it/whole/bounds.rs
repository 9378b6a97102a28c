//! What one tenant, or one server, can take of a node: never so much that the others go without.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::mcp::floods::pings;
use crate::support::database::{Database, both_stores, eventually};
use crate::support::fake_mcp::{FakeMcp, Reply, Step};
use crate::support::product::Product;
use crate::support::world::run_on;

both_stores! {
    a_server_that_asks_without_an_end_takes_no_memory_and_nobody_elses_time,
    all_of_a_run_is_read_page_by_page_however_large_its_results_are,
}

/// Watches a node until this has happened: the most memory that it had, in mebibytes, and the longest that another
/// tenant waited for an answer.
async fn watch<T>(node: &Product, until: impl Future<Output = T>) -> (T, u64, Duration) {
    let mut until = std::pin::pin!(until);
    let (mut memory, mut wait) = (0, Duration::ZERO);
    loop {
        let began = Instant::now();
        let asked = async {
            let answer = node.send_as("globex", Method::GET, "/v1/runs?limit=1", None).await;
            assert_eq!(answer.status().as_u16(), 200);
            memory = memory.max(node.memory());
            wait = wait.max(began.elapsed());
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        tokio::select! {
            came = &mut until => return (came, memory, wait),
            () = asked => {}
        }
    }
}

async fn cause(node: &Product, id: &str) -> Value {
    node.get(&format!("/v1/runs/{id}/receipts")).await["data"][0]["cause"].clone()
}

async fn a_server_that_asks_without_an_end_takes_no_memory_and_nobody_elses_time(database: Database) {
    let (node, fake) = (Product::start(&database).await, FakeMcp::start().await);
    // Written once: this process serves both sides.
    let flood = pings(100_000);
    fake.on_call(move |_| Reply::Sse(vec![Step::Raw(flood.clone()), Step::Hang]));
    for id in ["a", "b", "c"] {
        let entry = json!({ "url": format!("{}/{id}", fake.url()), "elicitation": "ask" });
        node.post("/v1/runs", &run_on(id, &[("charge", json!({}))], json!([entry])), 201).await;
    }
    let before = node.memory();
    let rested = async {
        for id in ["a", "b", "c"] {
            let run = node.rested(id).await;
            assert_eq!(run["reason"], "tool-reconciliation-required", "{run:#}");
            assert_eq!(cause(&node, id).await, "lost-response");
        }
    };
    let ((), memory, wait) = watch(&node, rested).await;
    assert!(memory < before + 64, "{memory} MiB, {before} before");
    assert!(wait < Duration::from_secs(2), "another tenant waited {wait:?}");
    assert!(node.log().contains("more requests of its own than a connection may bring"), "{}", node.log());
}

/// Four runs of four calls each, every run with a server of its own.
async fn four_runs_of_four_calls(node: &Product, fake: &FakeMcp, rests: impl Fn(&Value)) -> (u64, Duration) {
    let before = node.memory();
    for id in ["a", "b", "c", "d"] {
        let entry = json!({ "url": format!("{}/{id}", fake.url()), "timeouts": { "call_ms": 10_000 } });
        node.post("/v1/runs", &run_on(id, &vec![("charge", json!({})); 4], json!([entry])), 201).await;
    }
    let rested = async {
        for id in ["a", "b", "c", "d"] {
            rests(&node.rested(id).await);
        }
    };
    let ((), memory, wait) = watch(node, rested).await;
    (memory.saturating_sub(before), wait)
}

/// A node that takes in as little as it can be told to, and a server.
async fn node_of_little_room(database: &Database) -> (Product, FakeMcp) {
    let settings = [("COUNTERSIGN_RESULTS_IN_FLIGHT_BYTES", "67108864")];
    (Product::start_with(&database.url, &settings).await, FakeMcp::start().await)
}

#[tokio::test]
async fn many_large_results_that_never_become_whole_take_a_bounded_memory_until_their_time_is_over() {
    let database = Database::sqlite().await;
    let (node, fake) = node_of_little_room(&database).await;
    let half = format!("data: {}", "x".repeat(14 * 1024 * 1024));
    fake.on_call(move |_| Reply::Sse(vec![Step::Raw(half.clone()), Step::Hang]));
    let (grown, wait) = four_runs_of_four_calls(&node, &fake, |run| {
        assert_eq!(run["reason"], "tool-reconciliation-required", "{run:#}");
    })
    .await;
    // All of them together would be 224 MiB, and grow a node by 300; two are 28, and each piece that grows is copied.
    assert!(grown < 150, "{grown} MiB");
    assert!(wait < Duration::from_secs(2), "another tenant waited {wait:?}");
}

#[tokio::test]
async fn many_large_results_at_once_keep_nobody_waiting_and_every_call_ends() {
    let database = Database::sqlite().await;
    let (node, fake) = node_of_little_room(&database).await;
    let large = "x".repeat(3 * 1024 * 1024);
    fake.on_call(move |_| Reply::text(&large));
    let (_grown, wait) = four_runs_of_four_calls(&node, &fake, |run| {
        assert_eq!(run["status"], "completed", "{run:#}");
    })
    .await;
    assert!(wait < Duration::from_secs(2), "another tenant waited {wait:?}");
}

async fn all_of_a_run_is_read_page_by_page_however_large_its_results_are(database: Database) {
    const RESULT: usize = 6 * 1024 * 1024;
    let (node, fake) = (Product::start(&database).await, FakeMcp::start().await);
    let large = "x".repeat(RESULT);
    fake.on_call(move |_| Reply::text(&large));
    let calls = vec![("charge", json!({})); 6];
    let mut body = run_on("r", &calls, json!([{ "url": fake.url() }]));
    body["limits"] = json!({ "max_parallel_tool_calls": 1 });
    node.post("/v1/runs", &body, 201).await;
    let run = node.rested("r").await;
    assert_eq!(run["status"], "completed", "{run:#}");
    let before = node.memory();
    let read = async {
        let mut answer = node.send(Method::GET, "/v1/runs/r/envelope", None).await;
        let (mut bytes, mut last) = (0, Vec::new());
        while let Some(chunk) = answer.chunk().await.unwrap() {
            bytes += chunk.len();
            last = chunk.to_vec();
        }
        assert!(last.ends_with(b"]}"));
        bytes
    };
    let (bytes, memory, wait) = watch(&node, read).await;
    assert!(bytes > 6 * RESULT, "{bytes} bytes");
    assert!(memory < before + 64, "{memory} MiB, {before} before");
    assert!(wait < Duration::from_secs(3), "another tenant waited {wait:?}");
    let small = node.get("/v1/runs/r/envelope").await;
    assert_eq!((small["receipts"].as_array().map(Vec::len), small["run"]["id"].as_str()), (Some(6), Some("r")));
    let messages = node.get("/v1/runs/r/messages").await;
    assert_eq!(small["messages"].as_array().map(Vec::len), messages["data"].as_array().map(Vec::len));
}

#[tokio::test]
async fn rules_that_would_take_every_thread_or_all_memory_deny_at_once() {
    let database = Database::sqlite().await;
    let (node, fake) = (Product::start(&database).await, FakeMcp::start().await);
    let mcp = json!([{ "url": fake.url() }]);
    let with = |id: &str, args: Value, when: &str| {
        let mut body = run_on(id, &[("charge", args)], mcp.clone());
        body["policies"] = json!([{ "name": "p", "when": when, "action": "deny", "reason": "No." }]);
        body
    };
    let args = json!({ "l": (0..9_000).collect::<Vec<u32>>(), "s": "xy".repeat(125_000) });
    let copies = vec!["args.l.map(x, bytes(args.s))"; 25].join(" + ");
    let hostile =
        ["args.l.exists(x, args.s.matches('(?:x|y)*x(?:x|y){30}[^xy]'))".to_owned(), format!("size({copies}) > 0")];
    let before = node.memory();
    let began = Instant::now();
    for at in 0..6 {
        let body = with(&format!("evil-{at}"), args.clone(), &hostile[at % 2]);
        node.post("/v1/runs", &body, 201).await;
    }
    let rested = async {
        for at in 0..6 {
            let id = format!("evil-{at}");
            let run = node.rested(&id).await;
            assert_eq!(run["status"], "completed", "{run:#}");
            let messages = node.get(&format!("/v1/runs/{id}/messages")).await.to_string();
            assert!(messages.contains("it costs too much on what it looks at"), "{messages}");
        }
        let body = with("victim", json!({ "a": 1 }), "args.a > 5");
        assert_eq!(node.send_as("globex", Method::POST, "/v1/runs", Some(&body)).await.status().as_u16(), 201);
        eventually("the other tenant's run ends", async || {
            let answer = node.send_as("globex", Method::GET, "/v1/runs/victim", None).await;
            answer.text().await.unwrap().contains("\"status\":\"completed\"")
        })
        .await;
    };
    let ((), memory, wait) = watch(&node, rested).await;
    assert_eq!(fake.count("tools/call"), 1, "only the other tenant's");
    assert!(memory < before + 128, "{memory} MiB, {before} before");
    assert!(wait < Duration::from_secs(2), "another tenant waited {wait:?}");
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
}
