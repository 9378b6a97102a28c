//! Stored secrets: runs and nodes share the token that one buys, and it stays on the secret's hosts.

use futures::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};

use super::auth;
use crate::support::database::Database;
use crate::support::fake_issuer::{FakeIssuer, TOKEN_CANARY};
use crate::support::fake_mcp::{FakeMcp, Reply};
use crate::support::product::Product;

const SECRET_CANARY: &str = "cl1ent-canary";

async fn put_secret(product: &Product, hosts: Value) {
    let body = json!({"value": SECRET_CANARY, "hosts": hosts});
    let answer = product.send(Method::PUT, "/v1/secrets/client", Some(&body)).await;
    assert_eq!(answer.status().as_u16(), 204);
}

fn run(id: &str, server: &FakeMcp, more: Value, calls: usize) -> Value {
    let call = json!({"name": "charge", "arguments": {"amount": 5}});
    let script = json!([{"tool_calls": vec![call; calls]}, {"text": "Done."}]);
    json!({
        "id": id,
        "model": {"provider": "scripted", "name": "demo", "script": script},
        "input": "Go.",
        "mcp": [{"url": server.url(), "auth": auth(more)}],
    })
}

#[tokio::test]
async fn b211_two_nodes_whose_token_is_withdrawn_under_fifty_calls_each_get_one_new_token() {
    let database = Database::postgres().await;
    let (server, issuer) = (FakeMcp::start().await, FakeIssuer::start().await);
    issuer.guard(&server);
    let nodes = [Product::start(&database).await, Product::start(&database).await];
    put_secret(&nodes[0], json!(["127.0.0.1"])).await;
    for (at, node) in nodes.iter().enumerate() {
        let id = format!("first-{at}");
        node.post("/v1/runs", &run(&id, &server, json!({}), 1), 201).await;
        assert_eq!(node.rested(&id).await["status"], "completed");
    }
    assert_eq!(issuer.asked().len(), 1, "the second node has the first one's");
    issuer.revoke();
    join_all(nodes.iter().enumerate().flat_map(|(at, node)| {
        let server = &server;
        (0..10).map(move |nth| async move {
            let id = format!("r-{at}-{nth}");
            node.post("/v1/runs", &run(&id, server, json!({}), 5), 201).await;
            assert_eq!(node.rested(&id).await["status"], "completed");
        })
    }))
    .await;
    assert_eq!(issuer.asked().len(), 2);
    let done = server.seen_rpc("tools/call");
    let done = done.iter().filter(|seen| seen.headers["authorization"].ends_with("-2")).count();
    assert_eq!(done, 100);
    let dump = database.dump().await;
    assert!(dump.contains("oauth_tokens") && !dump.contains(TOKEN_CANARY) && !dump.contains(SECRET_CANARY));
}

#[tokio::test]
async fn a_stored_secret_and_its_token_stay_on_the_secrets_hosts() {
    let (server, issuer) = (FakeMcp::start().await, FakeIssuer::start().await);
    issuer.guard(&server);
    let product = Product::start(&Database::sqlite().await).await;
    put_secret(&product, json!(["127.0.0.1"])).await;
    let elsewhere = issuer.token_url().replace("127.0.0.1", "localhost");
    let body = run("r", &server, json!({"token_url": elsewhere}), 1);
    let problem = product.post("/v1/runs", &body, 422).await;
    assert_eq!(problem["errors"][0]["pointer"], "/mcp/0/auth/secret", "{problem}");
    // Found by the server's word, it is refused before anything is sent.
    let port = server.addr().port();
    put_secret(&product, json!([format!("127.0.0.1:{port}")])).await;
    let problem = product.post("/v1/runs", &run("r", &server, json!({}), 1), 502).await;
    assert!(problem["detail"].as_str().unwrap().contains("its hosts do not include '127.0.0.1'"), "{problem}");
    assert!(issuer.asked().is_empty());
    put_secret(&product, json!(["127.0.0.1"])).await;
    product.post("/v1/runs", &run("r", &server, json!({}), 1), 201).await;
    assert_eq!(product.rested("r").await["status"], "completed");
}

#[tokio::test]
async fn a_token_that_the_server_repeats_is_taken_out_of_what_it_says() {
    let (server, issuer) = (FakeMcp::start().await, FakeIssuer::start().await);
    issuer.guard(&server);
    server.on_call(|seen| Reply::text(&format!("you are {}", seen.headers["authorization"])));
    let product = Product::start(&Database::sqlite().await).await;
    put_secret(&product, json!(["127.0.0.1"])).await;
    product.post("/v1/runs", &run("r", &server, json!({}), 1), 201).await;
    product.rested("r").await;
    let receipt = product.get("/v1/runs/r/receipts").await["data"][0].clone();
    assert_eq!(receipt["output"]["content"][0]["text"], "you are Bearer [redacted]", "{receipt}");
    let events = product.get("/v1/runs/r/events?limit=200").await.to_string();
    assert!(!events.contains(TOKEN_CANARY) && !product.log().contains(TOKEN_CANARY));
}
