//! Bad input: every wrong field, type, size, id, scope and cursor gets the right problem, and nothing is half-stored.

use axum::body::Body;
use http::Method;
use serde_json::{Value, json};

use super::harness::{Answer, BODY_MAX, Server, request, says};

#[track_caller]
fn pointers(problem: &Value) -> Vec<&str> {
    let mut found: Vec<&str> =
        problem["errors"].as_array().unwrap().iter().map(|fault| fault["pointer"].as_str().unwrap()).collect();
    found.sort_unstable();
    found
}

async fn create(server: &Server, body: &Value) -> Answer {
    server.post("/v1/runs", &server.alice(), body).await
}

/// A field of a new run, a wrong value of it, and where the fault is.
fn wrong_fields() -> Vec<(&'static str, Value, &'static str)> {
    let mut cases = wrong_entries();
    cases.extend(wrong_models_and_limits());
    let huge = "x".repeat(513);
    cases.extend(vec![
        ("id", json!("-a"), "/id"),
        ("id", json!(7), "/id"),
        ("id", json!("x".repeat(129)), "/id"),
        ("modle", json!({}), "/modle"),
        ("input", json!(""), "/input"),
        ("input", json!([]), "/input"),
        ("input", json!(5), "/input"),
        ("input", json!([{ "role": "robot", "content": "x" }]), "/input/0/role"),
        (
            "input",
            json!([{ "role": "user", "content": [{ "type": "text", "text": "x", "extra": 1 }] }]),
            "/input/0/content/0/extra",
        ),
        ("tools", json!([{ "name": "a", "executor": { "type": "robot" } }]), "/tools/0/executor/type"),
        ("policies", json!([{ "name": "a" }]), "/policies/0/action"),
        ("output_schema", json!({ "type": "nonsense" }), "/output_schema"),
        ("continue_from", json!("x"), "/continue_from"),
        ("on_catalog_change", json!("maybe"), "/on_catalog_change"),
        ("metadata", json!({ "a": 1 }), "/metadata/a"),
        ("metadata", json!({ "a": huge }), "/metadata/a"),
        ("priority", json!(101), "/priority"),
        ("secrets", json!({ "a": 5 }), "/secrets/a"),
        ("secrets", json!({ "a": "" }), "/secrets/a"),
    ]);
    cases
}

fn wrong_models_and_limits() -> Vec<(&'static str, Value, &'static str)> {
    vec![
        ("model", json!("gpt"), "/model"),
        ("model", json!({ "provider": "acme", "name": "x" }), "/model/provider"),
        ("model", json!({ "provider": "openai" }), "/model/name"),
        ("model", json!({ "provider": "openai", "name": "" }), "/model/name"),
        ("model", json!({ "provider": "openai", "name": "x", "temperature": 1 }), "/model/temperature"),
        ("model", json!({ "provider": "openai", "name": "x", "secret": "absent" }), "/model/secret"),
        ("model", json!({ "provider": "openai", "name": "x", "base_url": "http://10.0.0.1/" }), "/model/base_url"),
        ("model", json!({ "provider": "openai", "name": "x", "script": [{ "text": "a" }] }), "/model/script"),
        ("model", json!({ "provider": "scripted", "name": "x" }), "/model/script"),
        ("model", json!({ "provider": "scripted", "name": "x", "script": [{ "txt": "a" }] }), "/model/script/0/txt"),
        (
            "model",
            json!({ "provider": "scripted", "name": "x", "script": [{ "error": { "status": 200 } }] }),
            "/model/script/0/error/status",
        ),
        ("limits", json!({ "max_turns": 0 }), "/limits/max_turns"),
        ("limits", json!({ "max_turns": 1.5 }), "/limits/max_turns"),
        ("limits", json!({ "max_turns": 1e99 }), "/limits/max_turns"),
        ("limits", json!({ "max_cost_usd": 1 }), "/limits/max_cost_usd"),
        ("limits", json!({ "max_parallel_tool_calls": 101 }), "/limits/max_parallel_tool_calls"),
        ("limits", json!({ "max_turn": 1 }), "/limits/max_turn"),
        ("limits", json!({ "on_limit": "ask" }), "/limits/on_limit"),
    ]
}

fn wrong_entries() -> Vec<(&'static str, Value, &'static str)> {
    let entry = |field: &str, value: Value| json!([{ "url": "https://mcp.example/mcp", field: value }]);
    vec![
        ("mcp", json!({}), "/mcp"),
        ("mcp", json!([{}]), "/mcp/0/url"),
        ("mcp", json!([{ "url": "http://169.254.169.254/mcp" }]), "/mcp/0/url"),
        ("mcp", json!([{ "url": "https://u:p@mcp.example/" }]), "/mcp/0/url"),
        ("mcp", entry("namespace", json!("a_b")), "/mcp/0/namespace"),
        ("mcp", entry("replay", json!("always")), "/mcp/0/replay"),
        ("mcp", entry("side_effect_class", json!({ "a": "sometimes" })), "/mcp/0/side_effect_class/a"),
        ("mcp", entry("auth", json!({ "scheme": "basic" })), "/mcp/0/auth/scheme"),
        ("mcp", entry("auth", json!({ "scheme": "bearer", "secret": "absent" })), "/mcp/0/auth/secret"),
        ("mcp", entry("headers", json!({ "Authorization": "x" })), "/mcp/0/headers/Authorization"),
        ("mcp", entry("headers", json!({ "X-A": "a\nb" })), "/mcp/0/headers/X-A"),
        ("mcp", json!([{ "server": "orders" }]), "/mcp/0/server"),
        ("mcp", entry("require_approval", json!(5)), "/mcp/0/require_approval"),
        ("mcp", entry("timeouts", json!({ "call_ms": 0 })), "/mcp/0/timeouts/call_ms"),
        ("mcp", entry("input_schemas", json!({ "a": { "type": 7 } })), "/mcp/0/input_schemas/a"),
    ]
}

#[tokio::test]
async fn every_wrong_field_of_a_new_run_is_named_by_its_place() {
    let server = Server::start().await;
    for (field, value, pointer) in wrong_fields() {
        let mut body = says("hi");
        body[field] = value.clone();
        let problem = create(&server, &body).await.problem(422, "validation-failed");
        assert_eq!(pointers(&problem), [pointer], "{field} = {value}: {problem}");
    }
    // Its form and what it means at once.
    let entry = json!([{ "url": "https://mcp.example/mcp", "auth": { "scheme": "bearer", "secret": "a", "x": 1 } }]);
    let mut body = says("hi");
    body["mcp"] = entry;
    let problem = create(&server, &body).await.problem(422, "validation-failed");
    assert_eq!(pointers(&problem), ["/mcp/0/auth/secret", "/mcp/0/auth/x"]);
    let problem = create(&server, &json!({})).await.problem(422, "validation-failed");
    assert_eq!(pointers(&problem), ["/input", "/model"]);
    let problem = create(&server, &json!({ "input": "" })).await.problem(422, "validation-failed");
    assert_eq!(pointers(&problem), ["/input", "/model"]);
    let stored = server.get("/v1/runs", &server.alice()).await.json();
    assert_eq!(stored["data"], json!([]), "nothing is stored of what was refused");
}

#[tokio::test]
async fn a_fault_never_repeats_a_secret() {
    let server = Server::start().await;
    for secrets in [json!({ "a": { "deep": "hunter2" } }), json!({ "a": "hunter2\u{1}" }), json!("hunter2")] {
        let mut body = says("hi");
        body["secrets"] = secrets.clone();
        let answer = create(&server, &body).await;
        answer.problem(422, "validation-failed");
        assert!(!String::from_utf8_lossy(&answer.body).contains("hunter2"), "{secrets}: {:?}", answer.body);
    }
}

#[tokio::test]
async fn bodies_that_are_not_json_are_refused_before_they_are_read_further() {
    let server = Server::start().await;
    let alice = server.alice();
    let send = |kind: &'static str, body: Vec<u8>| {
        let mut request = request(Method::POST, "/v1/runs", &alice, &[], Body::from(body));
        request.headers_mut().remove("content-type");
        if !kind.is_empty() {
            request.headers_mut().insert("content-type", kind.parse().unwrap());
        }
        server.send(request)
    };
    let json = "application/json";
    let deep = "[".repeat(10_000);
    for bad in [
        "",
        "{",
        "nope",
        r#"{"id":"a","id":"b"}"#,
        r#"{"model":{"name":1,"name":2}}"#,
        "{} {}",
        deep.as_str(),
        "\u{feff}{}",
    ] {
        send(json, bad.as_bytes().to_vec()).await.problem(400, "malformed-json");
    }
    send(json, vec![b'"', 0xff, b'"']).await.problem(400, "malformed-json");
    for kind in ["", "text/plain", "application/x-www-form-urlencoded", "application/jsonx"] {
        send(kind, b"{}".to_vec()).await.problem(415, "unsupported-media-type");
    }
    send("application/json; charset=utf-8", b"{}".to_vec()).await.problem(422, "validation-failed");
    let large = send(json, vec![b' '; BODY_MAX + 1]).await;
    large.problem(413, "payload-too-large");
    send(json, b"[]".to_vec()).await.problem(422, "validation-failed");
    // The parser reads this deep; the store, which wraps it, would not.
    let nested = format!("{}{}", "[".repeat(110), "]".repeat(110));
    send(json, nested.into_bytes()).await.problem(422, "validation-failed");
}

#[tokio::test]
async fn wrong_parameters_and_cursors_are_refused() {
    let server = Server::start().await;
    let alice = server.alice();
    let mut run = says("hi");
    run["id"] = "mine".into();
    server.settled(&run).await;
    let events = server.get("/v1/runs/mine/events?limit=1", &alice).await.json();
    let foreign = events["next_cursor"].as_str().unwrap().to_owned();
    for path in ["/v1/runs", "/v1/runs/mine/messages", "/v1/runs/mine/receipts"] {
        for bad in [
            "limit=0",
            "limit=201",
            "limit=x",
            "limit=-1",
            "limit=",
            "cursor=",
            "cursor=x",
            &format!("cursor={foreign}"),
        ] {
            server.get(&format!("{path}?{bad}"), &alice).await.problem(400, "invalid-cursor");
        }
        let problem = server.get(&format!("{path}?limt=1"), &alice).await.problem(422, "validation-failed");
        assert_eq!(problem["errors"][0]["parameter"], "limt");
    }
    for (bad, parameter) in [
        ("status=done", "status"),
        ("reason=tool-reconciliation", "reason"),
        ("created_after=yesterday", "created_after"),
        ("status=failed&status=queued", "status"),
        ("reason=because", "reason"),
        ("reason=%00", "reason"),
        ("sttaus=failed", "sttaus"),
    ] {
        let problem = server.get(&format!("/v1/runs?{bad}"), &alice).await.problem(422, "validation-failed");
        assert_eq!(problem["errors"][0]["parameter"], parameter, "{bad}");
    }
    for bad in ["after=-1", "after=x", "after=", "after=99999999999999999999", "after=1000", "limit=0", "cursor=x"] {
        server.get(&format!("/v1/runs/mine/events?{bad}"), &alice).await.problem(400, "invalid-cursor");
    }
    for bad in ["-1", "x", "1.5", "99999999999999999999"] {
        for accept in ["text/event-stream", "application/json"] {
            let headers = [("last-event-id", bad), ("accept", accept)];
            let asked = request(Method::GET, "/v1/runs/mine/events", &alice, &headers, Body::empty());
            server.send(asked).await.problem(400, "invalid-cursor");
        }
    }
    let html = request(Method::GET, "/v1/runs/mine/events", &alice, &[("accept", "text/html")], Body::empty());
    server.send(html).await.problem(406, "not-acceptable");
    for path in [
        "/v1/runs/nothing",
        "/v1/runs/-bad-",
        "/v1/runs/%00",
        "/v1/runs/%ff",
        "/v1/runs/mine/receipts/1/call_1",
        "/v1/runs/mine/receipts/0/call_1",
        "/v1/runs/mine/receipts/x/call_1",
        "/v1/runs/mine/receipts/99999999999/call_1",
    ] {
        server.get(path, &alice).await.problem(404, "not-found");
    }
}

#[tokio::test]
async fn a_resume_checks_body_and_scope_before_the_run() {
    let server = Server::start().await;
    let alice = server.alice();
    let mut run = says("hi");
    run["id"] = "mine".into();
    server.settled(&run).await;
    let resume = |body: Value| {
        let (server, alice) = (&server, &alice);
        async move { server.post("/v1/runs/mine/resume", alice, &body).await }
    };
    for (body, pointer) in [
        (json!({ "retry": [] }), "/retry"),
        (json!({ "on_catalog_change": "ask" }), "/on_catalog_change"),
        (json!({ "retry_tool_call_ids": [7] }), "/retry_tool_call_ids/0"),
        (json!({ "retry_tool_call_ids": [{ "turn": 1, "call_id": "a", "x": 1 }] }), "/retry_tool_call_ids/0/x"),
        (json!({ "mcp": [{ "url": "http://10.0.0.1/" }] }), "/mcp/0/url"),
        (json!({ "approvals": [{ "call_id": "a" }] }), "/approvals/0/decision"),
    ] {
        let problem = resume(body.clone()).await.problem(422, "validation-failed");
        assert_eq!(pointers(&problem), [pointer], "{body}");
    }
    let retry = json!({ "retry_tool_call_ids": ["call_1", { "turn": 1, "call_id": "call_2" }] });
    let refused = resume(retry.clone()).await.problem(403, "forbidden");
    assert_eq!(refused["required_scope"], "admin");
    let admin = server.token("acme", "root", "admin");
    let done = server.post("/v1/runs/mine/resume", &admin, &retry).await;
    assert_eq!((done.status.as_u16(), &done.json()["status"]), (200, &"completed".into()), "{:?}", done.body);
    let empty = request(Method::POST, "/v1/runs/mine/resume", &alice, &[], Body::empty());
    assert_eq!(server.send(empty).await.status.as_u16(), 200);
}
