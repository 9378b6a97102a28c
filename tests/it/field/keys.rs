//! API idempotency.

use futures::future::join_all;
use reqwest::Method;
use serde_json::Value;

use super::node::{Node, slow};
use crate::support::database::Database;

/// So many creations with one key at once, spread over these nodes.
async fn one_run_of_one_key(nodes: &[&Node], count: usize) {
    let mut body = slow("x", 0);
    body.as_object_mut().unwrap().remove("id");
    let created = join_all((0..count).map(|nth| {
        let request = nodes[nth % nodes.len()].request(Method::POST, "/v1/runs");
        let request = request.header("content-type", "application/json").header("idempotency-key", "k");
        request.body(body.to_string()).send()
    }));
    let (mut ids, mut replayed) = (Vec::new(), 0);
    for answer in created.await {
        let answer = answer.unwrap();
        assert_eq!(answer.status(), 201);
        replayed += usize::from(answer.headers().contains_key("idempotent-replayed"));
        let run: Value = serde_json::from_str(&answer.text().await.unwrap()).unwrap();
        ids.push(run["id"].as_str().unwrap().to_owned());
    }
    assert_eq!(replayed, count - 1, "one creates");
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    let list = nodes[0].get("/v1/runs").await;
    assert_eq!(list["data"].as_array().unwrap().len(), 1, "{list}");
}

#[tokio::test]
async fn field_a157_fifty_creations_with_one_key_make_one_run_on_sqlite() {
    let database = Database::sqlite().await;
    let node = Node::start(&database).await;
    one_run_of_one_key(&[&node], 50).await;
    node.stop().await;
}

#[tokio::test]
async fn field_a157_fifty_creations_with_one_key_on_two_nodes_make_one_run() {
    let database = Database::postgres().await;
    // Both nodes must know the keys of the other: a key's digest of the body is made with the master key.
    let first = Node::start(&database).await;
    let second = Node::start_beside(&database, &first).await;
    one_run_of_one_key(&[&first, &second], 50).await;
    first.stop().await;
    second.stop().await;
}
