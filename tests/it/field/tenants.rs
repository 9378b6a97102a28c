//! Borders: what one tenant asks of another's runs answers exactly as what does not exist, and what must not pass in
//! addresses and headers does not.

use axum::body::Body;
use http::Method;
use serde_json::{Value, json};

use crate::http::harness::{RUNS, Server, request};
use crate::support::database::{Database, both_stores};
use crate::support::fake_mcp::{FakeMcp, Reply};
use crate::support::world::run_on;

both_stores! {
    field_a070_a071_what_another_tenant_asks_of_a_run_answers_as_if_there_were_none,
}

/// The answer without what differs from request to request.
async fn told(server: &Server, path: &str, token: &str, run: &str) -> (u16, String) {
    let answer = server.get(path, token).await;
    let mut body: Value = serde_json::from_slice(&answer.body).unwrap_or(Value::Null);
    if let Some(members) = body.as_object_mut() {
        members.remove("instance");
    }
    (answer.status.as_u16(), body.to_string().replace(run, "RUN"))
}

async fn field_a070_a071_what_another_tenant_asks_of_a_run_answers_as_if_there_were_none(database: Database) {
    let (server, fake) = (Server::start_on(database).await, FakeMcp::start().await);
    fake.on_call(|_| Reply::Reset);
    let mut body = run_on("theirs", &[("charge", json!({ "amount": 5 }))], json!([{ "url": fake.url() }]));
    body["metadata"] = json!({ "canary": "of-acme" });
    assert_eq!(server.settled(&body).await["reason"], "tool-reconciliation-required");
    let alice = server.alice();
    let eve = server.token("globex", "eve", &format!("{RUNS} approvals:decide admin"));
    for path in [
        "",
        "/messages",
        "/receipts",
        "/receipts/1/call_1",
        "/approvals",
        "/envelope",
        "/events",
        "/events?after=3",
        "/events?limit=200",
    ] {
        let theirs = format!("/v1/runs/theirs{path}");
        assert_eq!(server.get(&theirs, &alice).await.status, 200, "{path}");
        let foreign = told(&server, &theirs, &eve, "theirs").await;
        let random = told(&server, &format!("/v1/runs/nobodys{path}"), &eve, "nobodys").await;
        assert_eq!(foreign, random, "{path}");
        assert_eq!(foreign.0, 404, "{path}");
    }
    for path in [
        "/v1/runs",
        "/v1/receipts",
        "/v1/receipts?stage=indeterminate",
        "/v1/approvals",
        "/v1/admin/reconciliations",
        "/v1/admin/audit",
    ] {
        let page = server.get(path, &eve).await.json();
        assert_eq!(page["data"], json!([]), "{path}");
    }
    // A place in another tenant's stream is no way in either.
    let headers = [("last-event-id", "3"), ("accept", "text/event-stream")];
    let asked = request(Method::GET, "/v1/runs/theirs/events", &eve, &headers, Body::empty());
    server.send(asked).await.problem(404, "not-found");
    for (path, body) in [
        ("resume", json!({})),
        ("cancel", json!({})),
        ("stream-tickets", json!({})),
        ("approvals/call_1", json!({ "decision": "approve" })),
    ] {
        server.post(&format!("/v1/runs/theirs/{path}"), &eve, &body).await.problem(404, "not-found");
    }
    let resolution = json!({ "resolution": "complete", "output": {} });
    server.post("/v1/admin/runs/theirs/reconciliations/1/call_1", &eve, &resolution).await.problem(404, "not-found");
    assert_eq!(server.get("/v1/runs/theirs", &alice).await.json()["reason"], "tool-reconciliation-required");
}

#[tokio::test]
async fn field_a134_keys_in_addresses_are_neither_taken_nor_shown() {
    let server = Server::start().await;
    let token = server.token("acme", "alice", &format!("{RUNS} mcp:write"));
    for name in ["token", "access_token", "authorization", "ticket"] {
        server.get(&format!("/v1/runs?{name}={token}"), "").await.problem(401, "unauthenticated");
    }
    let put = async |url: &str| {
        let body = Body::from(json!({ "url": url }).to_string());
        server.send(request(Method::PUT, "/v1/mcp-servers/orders", &token, &[], body)).await
    };
    let refused = put("http://user:canary@127.0.0.1:1/mcp").await;
    assert_eq!(refused.problem(422, "validation-failed")["errors"][0]["pointer"], "/url");
    assert_eq!(put("http://127.0.0.1:1/mcp?key=canary").await.status, 201);
    for path in ["/v1/mcp-servers/orders", "/v1/mcp-servers"] {
        let shown = server.get(path, &token).await;
        assert_eq!(shown.status, 200);
        assert!(!String::from_utf8_lossy(&shown.body).contains("canary"), "{path}");
    }
}

#[tokio::test]
async fn field_a135_headers_that_cannot_be_sent_are_refused_when_they_are_saved() {
    let server = Server::start().await;
    let token = server.token("acme", "alice", &format!("{RUNS} mcp:write"));
    for (name, value, is_fine) in [
        ("X-Team", "a", true),
        ("X-Team", "a\r\nX-Admin: 1", false),
        ("X-Team", "a\n", false),
        ("X-Team", "a\u{0}", false),
        ("X Team", "a", false),
        ("X-Team\r\nX-Admin", "a", false),
        ("Host", "evil.example", false),
        ("Cookie", "a=b", false),
        ("Mcp-Session-Id", "s", false),
        ("Transfer-Encoding", "chunked", false),
    ] {
        let body = json!({ "url": "http://127.0.0.1:1/mcp", "headers": { name: value } });
        let body = Body::from(body.to_string());
        let answer = server.send(request(Method::PUT, "/v1/mcp-servers/orders", &token, &[], body)).await;
        if is_fine {
            assert!(answer.status.is_success(), "{name:?}");
            continue;
        }
        let problem = answer.problem(422, "validation-failed");
        let pointer = problem["errors"][0]["pointer"].as_str().unwrap();
        assert!(pointer.starts_with("/headers"), "{name:?} {value:?}: {problem}");
    }
}
