//! What reaches a server when its registration or its secret changes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::Method;
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::{Site, calling};
use crate::support::database::{Database, eventually};
use crate::support::fake_mcp::{FakeMcp, Reply, Seen};
use crate::support::product::{Product, wake};

fn bearer(seen: &Seen) -> &str {
    seen.headers.get("authorization").map_or("", String::as_str)
}

async fn registered(site: &Site, fake: &FakeMcp) {
    site.put_secret("token", "value-one", &["127.0.0.1"]).await;
    let auth = json!({ "scheme": "bearer", "secret": "token" });
    site.put_server("orders", json!({ "url": fake.url(), "auth": auth, "side_effect_class": "irreversible_action" }))
        .await;
}

#[tokio::test]
async fn a_rotated_secret_makes_a_new_connection_and_cuts_no_call_that_is_out() {
    let site = Site::start().await;
    let fake = FakeMcp::start().await;
    registered(&site, &fake).await;
    let gate = Arc::new(Notify::new());
    let first = Arc::clone(&gate);
    fake.on_call(move |seen| match bearer(seen) {
        "Bearer value-one" => Reply::When(Arc::clone(&first), Box::new(Reply::text("old"))),
        _ => Reply::text("new"),
    });
    let mut body = calling(&["charge", "charge"], json!([{ "server": "orders" }]));
    body["id"] = json!("r");
    assert_eq!(site.send(Method::POST, "/v1/runs", &body).await.status, 201);
    fake.wait_until(|fake| fake.count("tools/call") == 1).await;
    site.put_secret("token", "value-two", &["127.0.0.1"]).await;
    // While the old connection has a call out, another run already speaks over a new one.
    let other = site.settled(&calling(&["charge"], json!([{ "server": "orders" }]))).await;
    assert_eq!(other["status"], "completed");
    gate.notify_one();
    eventually("the run ends", async || site.get("/v1/runs/r").await["status"] == "completed").await;
    let receipts = site.get("/v1/runs/r/receipts").await;
    let texts: Vec<&Value> =
        receipts["data"].as_array().unwrap().iter().map(|row| &row["output"]["content"][0]["text"]).collect();
    assert_eq!(texts, ["old", "new"]);
    let calls: Vec<String> = fake.seen_rpc("tools/call").iter().map(|seen| bearer(seen).to_owned()).collect();
    assert_eq!(calls, ["Bearer value-one", "Bearer value-two", "Bearer value-two"]);
    assert_eq!(fake.count("initialize"), 2);
    // The old session is ended by us, with the credential that it was opened with.
    fake.wait_until(|fake| fake.count_http("DELETE") == 1).await;
    let ended = fake.seen().into_iter().find(|seen| seen.http_method == "DELETE").unwrap();
    assert_eq!(bearer(&ended), "Bearer value-one");
}

#[tokio::test]
async fn a_server_that_was_deleted_meanwhile_is_named_and_nothing_is_sent() {
    let site = Site::start().await;
    let fake = FakeMcp::start().await;
    registered(&site, &fake).await;
    let mut body = calling(&["charge"], json!([{ "server": "orders" }]));
    body["id"] = json!("r");
    body["model"]["script"][0]["delay_ms"] = json!(700);
    assert_eq!(site.send(Method::POST, "/v1/runs", &body).await.status, 201);
    assert_eq!(site.send(Method::DELETE, "/v1/mcp-servers/orders", &Value::Null).await.status, 204);
    eventually("the run ends", async || site.get("/v1/runs/r").await["status"] == "completed").await;
    let receipt = site.get("/v1/runs/r/receipts/1/call_1").await;
    assert_eq!((&receipt["stage"], &receipt["error"]["code"]), (&json!("failed"), &json!("mcp-unreachable")));
    assert!(receipt["error"]["message"].as_str().unwrap().contains("'orders'"), "{receipt}");
    assert_eq!(fake.count("tools/call"), 0);
    let refused = site.faults(&calling(&[], json!([{ "server": "orders" }]))).await;
    assert_eq!(refused[0].0, "/mcp/0/server");
}

#[tokio::test]
async fn a_secret_goes_to_its_hosts_only_also_when_they_change_later() {
    let site = Site::start().await;
    let fake = FakeMcp::start().await;
    registered(&site, &fake).await;
    let inline = json!([{ "url": fake.url(), "auth": { "scheme": "bearer", "secret": "token" } }]);
    assert_eq!(site.settled(&calling(&["charge"], inline.clone())).await["status"], "completed");
    assert_eq!(bearer(&fake.seen_rpc("tools/call")[0]), "Bearer value-one");
    site.put_secret("token", "value-two", &["127.0.0.1:1"]).await;
    let refused = site.faults(&calling(&[], inline)).await;
    assert_eq!(refused[0].0, "/mcp/0/auth/secret");
    assert!(refused[0].1.contains("do not include '127.0.0.1'"), "{refused:?}");
    // The registration stands; its secret may not go there any more.
    let answer = site.send(Method::POST, "/v1/runs", &calling(&[], json!([{ "server": "orders" }]))).await;
    let problem = answer.problem(502, "mcp-unreachable");
    assert!(problem["detail"].as_str().unwrap().contains("not meant for the host"), "{problem}");
    assert!(fake.seen().iter().all(|seen| bearer(seen) == "Bearer value-one"));
}

#[tokio::test]
async fn a_models_key_may_be_a_stored_secret_whose_hosts_include_its_address() {
    let site = Site::start().await;
    let fake = FakeMcp::start().await;
    site.put_secret("key", "value-one", &["127.0.0.1"]).await;
    let run = |base_url: &str, secret: &str| {
        json!({
            "model": { "provider": "openai", "name": "m", "base_url": base_url, "secret": secret }, "input": "Hi.",
        })
    };
    // The counterpart is no model: what matters is what it was told.
    let failed = site.settled(&run(&fake.url(), "key")).await;
    assert_eq!(failed["status"], "failed", "{failed}");
    assert_eq!(bearer(&fake.seen()[0]), "Bearer value-one");
    let refused = site.faults(&run("https://evil.example/v1", "key")).await;
    assert_eq!(refused[0].0, "/model/secret");
    let mut usual = run("", "key");
    usual["model"].as_object_mut().unwrap().remove("base_url");
    let refused = site.faults(&usual).await;
    assert!(refused[0].1.contains("'api.openai.com'"), "{refused:?}");
}

/// A change that one node takes reaches a run that another drives.
#[tokio::test]
async fn another_node_uses_a_rotated_secret_at_its_next_call() {
    let database = Database::postgres().await;
    let (one, other) = (Product::start(&database).await, Product::start(&database).await);
    let fake = FakeMcp::start().await;
    let put = async |value: &str| {
        let body = json!({ "value": value, "hosts": ["127.0.0.1"] });
        assert_eq!(one.send(Method::PUT, "/v1/secrets/token", Some(&body)).await.status(), 204);
    };
    put("value-one").await;
    let auth = json!({ "scheme": "bearer", "secret": "token" });
    let body = json!({ "url": fake.url(), "auth": auth, "side_effect_class": "read_only" });
    assert_eq!(one.send(Method::PUT, "/v1/mcp-servers/orders", Some(&body)).await.status(), 201);
    let mut body = calling(&["charge"], json!([{ "server": "orders" }]));
    body["model"]["script"] = json!([{ "tool_calls": [{ "name": "charge", "arguments": {} }], "delay_ms": 20 }]);
    body["limits"] = json!({ "max_turns": 10_000, "max_tool_calls": 10_000 });
    body["id"] = json!("r");
    other.post("/v1/runs", &body, 201).await;
    fake.wait_until(|fake| fake.count("tools/call") > 2).await;
    put("value-two").await;
    let rotated = Instant::now();
    fake.wait_until(|fake| fake.seen_rpc("tools/call").iter().any(|seen| bearer(seen) == "Bearer value-two")).await;
    // By a hint; without hints when a reading counts no longer.
    let most = if wake() == "off" { Duration::from_secs(9) } else { Duration::from_secs(3) };
    assert!(rotated.elapsed() < most, "{:?}", rotated.elapsed());
    other.post("/v1/runs/r/cancel", &json!({}), 202).await;
}
