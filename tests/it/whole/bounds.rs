//! What one tenant, or one server, can take of a node: never so much that the others go without.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::mcp::floods::pings;
use crate::support::database::{Database, both_stores};
use crate::support::fake_mcp::{FakeMcp, Reply, Step};
use crate::support::product::Product;
use crate::support::world::run_on;

both_stores! {
    a_server_that_asks_without_an_end_takes_no_memory_and_nobody_elses_time,
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
    fake.on_call(|_| Reply::Sse(vec![Step::Raw(pings(300_000)), Step::Hang]));
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
