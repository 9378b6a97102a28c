//! Workers of two nodes that share a database.

use std::collections::BTreeMap;

use futures::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{options, payment, receipt, run, with_lease};
use crate::support::database::Database;
use crate::support::product::{Ask, Product};

/// How long all of it may take.
const PATIENCE: std::time::Duration = std::time::Duration::from_mins(1);

async fn ask(node: &Product, path: &str, body: &Value) -> Option<(u16, Value)> {
    let patience = std::time::Duration::from_secs(8);
    node.try_send(&Ask { tenant: "acme", method: Method::POST, path, body: Some(body), key: None, patience }).await.ok()
}

/// What one worker does until nothing is left: it claims at its node, and gives its results at the other one as well.
async fn work(name: String, nodes: [&Product; 2], left: &tokio::sync::Semaphore) -> Vec<String> {
    let asking = json!({ "tools": [{ "tool": "payments.process", "version": "1.0.0" }], "max": 2, "wait_ms": 300 });
    let (mut done, deadline) = (Vec::new(), Instant::now() + PATIENCE);
    while left.available_permits() > 0 {
        assert!(Instant::now() < deadline, "calls are left: {}", left.available_permits());
        let Some((200, claimed)) = ask(nodes[0], &format!("/v1/workers/{name}/claims"), &asking).await else {
            continue;
        };
        for call in claimed["calls"].as_array().unwrap() {
            let result = with_lease(call, json!({ "output": call["input"] }));
            let path = format!("/v1/worker-calls/{}/result", call["id"].as_str().unwrap());
            // The other node knows the lease as well.
            let mut taken = None;
            for node in [nodes[1], nodes[0]] {
                if let Some((200, said)) = ask(node, &path, &result).await {
                    taken = Some(said);
                    break;
                }
            }
            assert!(taken.is_some(), "nobody takes the result of {call}");
            done.push(call["idempotency_key"].as_str().unwrap().to_owned());
            left.acquire().await.unwrap().forget();
        }
    }
    done
}

#[tokio::test]
async fn b236_b241_workers_of_two_nodes_get_every_call_once_and_a_node_that_dies_takes_none_along() {
    let database = Database::postgres().await;
    let options = options().with("COUNTERSIGN_WORKER_LEASE_S", "30");
    let (first, second) =
        (Product::start_as(&database.url, &options).await, Product::start_as(&database.url, &options).await);
    let calls: Vec<(&str, Value)> = (0..4).map(|n| ("process_payment", json!({ "amount": n }))).collect();
    let create = async |from: usize| {
        for n in from..from + 10 {
            let node = if n % 2 == 0 { &first } else { &second };
            node.post("/v1/runs", &run(&format!("r{n}"), &calls, json!([payment(json!({}))])), 201).await;
        }
    };
    create(0).await;
    let left = tokio::sync::Semaphore::new(40);
    let workers = (0..10).map(|n| {
        let nodes = if n % 2 == 0 { [&first, &second] } else { [&second, &first] };
        work(format!("w{n}"), nodes, &left)
    });
    let mut done: BTreeMap<String, u32> = BTreeMap::new();
    for key in join_all(workers).await.into_iter().flatten() {
        *done.entry(key).or_default() += 1;
    }
    assert_eq!((done.len(), done.values().max()), (40, Some(&1)), "{done:?}");
    // More calls are made at the one that dies, and claimed there.
    create(10).await;
    let asking = json!({ "tools": [{ "tool": "payments.process", "version": "1.0.0" }], "max": 20, "wait_ms": 5000 });
    let claimed = first.post("/v1/workers/w1/claims", &asking, 200).await["calls"].as_array().unwrap().clone();
    assert!(!claimed.is_empty());
    first.kill();
    for call in &claimed {
        let path = format!("/v1/worker-calls/{}/result", call["id"].as_str().unwrap());
        let (status, said) = ask(&second, &path, &with_lease(call, json!({ "output": call["input"] }))).await.unwrap();
        assert_eq!(status, 200, "{said}");
    }
    let mut handed: Vec<String> = claimed.iter().map(|call| call["id"].as_str().unwrap().to_owned()).collect();
    let deadline = Instant::now() + PATIENCE;
    while handed.len() < 40 {
        assert!(Instant::now() < deadline, "{} of 40\n{}", handed.len(), second.log());
        for call in second.post("/v1/workers/w2/claims", &asking, 200).await["calls"].as_array().unwrap() {
            let path = format!("/v1/worker-calls/{}/result", call["id"].as_str().unwrap());
            second.post(&path, &with_lease(call, json!({ "output": call["input"] })), 200).await;
            handed.push(call["id"].as_str().unwrap().to_owned());
        }
    }
    handed.sort();
    handed.dedup();
    assert_eq!(handed.len(), 40, "none was handed out twice");
    for n in 0..20 {
        let id = format!("r{n}");
        assert_eq!(second.rested(&id).await["status"], "completed");
        for (at, (_, arguments)) in calls.iter().enumerate() {
            let known = receipt(&second, &id, &format!("call_{}", at + 1)).await;
            assert_eq!((&known["output"], &known["attempt"]), (arguments, &json!(1)), "{id}");
        }
    }
}
