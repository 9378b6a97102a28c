//! The registry of servers over the API.

use http::Method;
use serde_json::{Value, json};

use super::{Site, pointers};
use crate::support::database::{Database, both_stores};
use crate::support::fake_mcp::{FakeMcp, Reply};

both_stores! {
    a_server_is_registered_shown_replaced_and_deleted => kept,
    a_probe_says_what_the_server_says_of_itself => probed,
}

async fn kept(database: Database) {
    let site = Site::on(database).await;
    site.put_secret("token", "s3cret-value", &["orders.example.com"]).await;
    let body = json!({
        "url": "https://orders.example.com/mcp?key=hidden#x", "headers": { "X-Team": "a" }, "tools": ["refund"],
        "auth": { "scheme": "header", "header": "X-Api-Key", "secret": "token" }, "transport": "streamable-http",
        "side_effect_class": { "refund": "irreversible_action" }, "timeouts": { "call_ms": 100 }, "policies": [],
    });
    let made = site.send(Method::PUT, "/v1/mcp-servers/orders", &body).await;
    assert_eq!((made.status.as_u16(), made.header("location")), (201, "/v1/mcp-servers/orders"));
    let shown = site.get("/v1/mcp-servers/orders").await;
    assert_eq!(shown, made.json());
    for (member, value) in [
        ("name", json!("orders")),
        ("version", json!(1)),
        ("transport", json!("streamable_http")),
        ("url", json!("https://orders.example.com/mcp?redacted")),
        ("auth", json!({ "scheme": "header", "header": "X-Api-Key", "secret": "token" })),
        ("headers", json!({ "X-Team": "a" })),
        ("tools", json!(["refund"])),
        ("side_effect_class", json!({ "refund": "irreversible_action" })),
        ("timeouts", json!({ "connect_ms": 10_000, "call_ms": 100, "call_total_ms": 600_000 })),
        ("policies", json!([])),
    ] {
        assert_eq!(shown[member], value, "{member}");
    }
    let again =
        site.send(Method::PUT, "/v1/mcp-servers/orders", &json!({ "url": "https://orders.example.com/mcp" })).await;
    assert_eq!((again.status.as_u16(), &again.json()["version"]), (200, &json!(2)));
    assert_eq!(again.json()["created_at"], shown["created_at"]);
    assert_eq!(site.send(Method::DELETE, "/v1/mcp-servers/orders", &Value::Null).await.status, 204);
    for method in [Method::DELETE, Method::GET] {
        site.send(method, "/v1/mcp-servers/orders", &Value::Null).await.problem(404, "not-found");
    }
    let audit = site.get("/v1/admin/audit").await;
    let rows = audit["data"].as_array().unwrap();
    let actions: Vec<&str> = rows.iter().map(|row| row["action"].as_str().unwrap()).collect();
    assert_eq!(actions, ["mcp-server.delete", "mcp-server.put", "mcp-server.put", "secret.put"]);
    assert!(!format!("{audit}{shown}").contains("hidden"), "a query may hold a secret");
}

#[tokio::test]
async fn a_registration_that_cannot_be_honoured_is_refused_with_every_pointer() {
    let site = Site::start().await;
    site.put_secret("token", "s3cret-value", &["orders.example.com"]).await;
    let put = async |name: &str, body: Value| {
        pointers(&site.send(Method::PUT, &format!("/v1/mcp-servers/{name}"), &body).await)
    };
    let at = async |name: &str, fields: Value| {
        let mut body = json!({ "url": "https://orders.example.com/mcp" });
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        put(name, body).await
    };
    assert_eq!(put("orders", json!({})).await, ["/url"]);
    assert_eq!(at("orders", json!({ "server": "other", "sevrer": 1 })).await, ["/server", "/sevrer"]);
    for name in ["Orders", "9orders", "orders_x", "o%2Fx"] {
        assert_eq!(at(name, json!({})).await, [""], "{name}");
    }
    assert_eq!(at("orders", json!({ "transport": "stdio" })).await, ["/transport"]);
    assert_eq!(at("orders", json!({ "policies": [{ "name": "p" }] })).await, ["/policies/0/action"]);
    assert_eq!(
        at(
            "orders",
            json!({ "require_approval": true, "replay": "idempotent", "side_effect_class": "irreversible_action" })
        )
        .await,
        ["/replay"]
    );
    for url in ["http://orders.example.com/mcp", "https://127.0.0.2.example@10.0.0.1/mcp", "https://10.0.0.1/", "x"] {
        assert_eq!(at("orders", json!({ "url": url })).await, ["/url"], "{url}");
    }
    assert_eq!(at("orders", json!({ "url": "https://orders.example.com/mcp?redacted" })).await, ["/url"]);
    let bearer = |secret: &str| json!({ "scheme": "bearer", "secret": secret });
    assert_eq!(at("orders", json!({ "auth": bearer("nothing") })).await, ["/auth/secret"]);
    let elsewhere = json!({ "url": "https://evil.example/mcp", "auth": bearer("token") });
    assert_eq!(at("orders", elsewhere).await, ["/auth/secret"]);
    assert_eq!(
        at("orders", json!({ "headers": { "Cookie": "a", "X-A": "b\r\nc" } })).await,
        ["/headers/Cookie", "/headers/X-A"]
    );
    assert_eq!(site.get("/v1/mcp-servers").await["data"], json!([]));
}

async fn probed(database: Database) {
    let site = Site::on(database).await;
    let fake = FakeMcp::start().await;
    site.put_secret("token", "s3cret-value", &["127.0.0.1"]).await;
    let auth = json!({ "scheme": "bearer", "secret": "token" });
    let body = json!({ "url": fake.url(), "auth": auth, "namespace": "till", "tools": ["charge", "refund"] });
    site.put_server("orders", body).await;
    let probe = async || site.send(Method::POST, "/v1/mcp-servers/orders/probe", &Value::Null).await;
    let seen = probe().await;
    assert_eq!(seen.status, 200, "{:?}", seen.body);
    let seen = seen.json();
    assert_eq!((&seen["server"], &seen["protocol_version"]), (&json!("orders"), &json!("2025-06-18")));
    assert_eq!(
        (&seen["server_info"]["name"], &seen["capabilities"]["tools"]["listChanged"]),
        (&json!("fake"), &json!(true))
    );
    assert!(seen["latency_ms"].is_u64());
    let names: Vec<&String> = seen["catalog"]["tools"].as_object().unwrap().keys().collect();
    assert_eq!(names, ["till_charge"]);
    let tool = &seen["tools"][0];
    assert_eq!((&tool["name"], &tool["input_schema"]["type"]), (&json!("charge"), &json!("object")), "{seen}");
    assert_eq!(seen["catalog"]["fingerprint"].as_str().unwrap().len(), 64);
    assert!(seen["warnings"][0]["message"].as_str().unwrap().contains("'refund'"), "{seen}");
    assert!(fake.seen().iter().all(|seen| seen.headers["authorization"] == "Bearer s3cret-value"));
    probe().await;
    assert_eq!(fake.count("initialize"), 1, "probes use the pool");

    fake.on_list(|seen| Reply::Error(json!({ "code": -32000, "message": format!("no {:?}", seen.headers) })));
    let refused = probe().await;
    let problem = refused.problem(502, "mcp-unreachable");
    assert_eq!(problem["server"], "orders");
    assert!(problem["detail"].as_str().unwrap().contains("[redacted]"), "{problem}");
    assert!(!problem.to_string().contains("s3cret"), "{problem}");
    fake.stop().await;
    probe().await.problem(502, "mcp-unreachable");
    let missing = site.send(Method::POST, "/v1/mcp-servers/nothing/probe", &Value::Null).await;
    missing.problem(404, "not-found");
}
