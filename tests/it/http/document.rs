//! The published document, and every route of it against every kind of caller.

use axum::body::Body;
use countersign::http::openapi;
use http::Method;
use serde_json::Value;
use uuid::Uuid;

use super::harness::{Server, request, says};

#[test]
fn the_committed_document_is_the_generated_one() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/openapi/openapi.json");
    let committed = std::fs::read_to_string(path).unwrap_or_default();
    let generated = openapi::print(&openapi::document());
    assert!(
        committed == generated,
        "openapi/openapi.json is not what the code says; renew it: countersign openapi > openapi/openapi.json"
    );
}

#[test]
fn the_document_is_one_that_generators_take() {
    let document = openapi::document();
    assert_eq!(document["openapi"], "3.1.0");
    no_boolean_schema(&document, "");
    let mut ids = Vec::new();
    for operation in operations(&document) {
        assert!(operation.description.is_some(), "{} has no summary", operation.id);
        for range in ["4XX", "5XX"] {
            let problem = &operation.responses[range]["content"]["application/problem+json"];
            assert!(problem.is_object(), "{} says no {range}", operation.id);
        }
        ids.push(operation.id);
    }
    let count = ids.len();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), count, "operation ids are unique");
}

fn no_boolean_schema(value: &Value, at: &str) {
    match value {
        Value::Object(object) => {
            for (name, member) in object {
                let at = format!("{at}/{name}");
                let is_schema = matches!(name.as_str(), "items" | "schema" | "additionalProperties")
                    || at.rsplit('/').nth(1) == Some("properties");
                let allowed = name == "additionalProperties" && *member == Value::Bool(false);
                assert!(!(is_schema && member.is_boolean() && !allowed), "{at}");
                no_boolean_schema(member, &at);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| no_boolean_schema(item, at)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

pub(super) struct Operation {
    pub(super) id: String,
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) scope: Option<String>,
    description: Option<String>,
    responses: Value,
}

pub(super) fn operations(document: &Value) -> Vec<Operation> {
    let mut found = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let scope = operation.pointer("/security/0/bearer/0").and_then(Value::as_str);
            found.push(Operation {
                id: operation["operationId"].as_str().unwrap().to_owned(),
                method: method.to_uppercase().parse().unwrap(),
                path: path.clone(),
                scope: scope.map(str::to_owned),
                description: operation["summary"].as_str().map(str::to_owned),
                responses: operation["responses"].clone(),
            });
        }
    }
    found
}

fn at_run(operation: &Operation, run: &str) -> String {
    let path = operation
        .path
        .replace("{run_id}", run)
        .replace("{name}", run)
        .replace("{namespace}", "mine")
        .replace("{worker_id}", "w1")
        .replace("{version}", "1.0.0");
    let path = path.replace("{turn}", "1").replace("{call_id}", "call_1").replace("{input_id}", "input_1");
    let path = if path.starts_with("/v1/approvals/") { path.replace("{id}", &Uuid::nil().to_string()) } else { path };
    let path = if path.starts_with("/v1/worker-calls/") { path.replace("{id}", "nothing") } else { path };
    assert!(!path.contains('{'), "{path}: say what stands there");
    path
}

/// A body that the operation takes.
pub(super) fn body_of(operation: &Operation) -> Body {
    match operation.id.as_str() {
        "run_create" => Body::from(says("hi").to_string()),
        "call_reconcile" => Body::from(r#"{"resolution":"retry"}"#),
        "input_answer" => Body::from(r#"{"action":"decline"}"#),
        "approval_decide" | "call_approval_decide" => Body::from(r#"{"decision":"approve"}"#),
        "server_put" => Body::from(r#"{"url":"http://127.0.0.1:9/mcp"}"#),
        "version_publish" => Body::from(
            r#"{"model":{"provider":"scripted","name":"demo","script":[{"text":"hi"}]},"instructions":"Be brief."}"#,
        ),
        "deployment_create" => Body::from(r#"{"version":"1.0.0"}"#),
        "secret_put" => Body::from(r#"{"value":"hunter2!","hosts":["a.example"]}"#),
        "results_give" => Body::from(r#"{"results":[{"call_id":"call_1","output":1}]}"#),
        "calls_claim" => Body::from(r#"{"tools":[{"tool":"a","version":"1"}],"wait_ms":0}"#),
        "lease_beat" | "call_reject" => Body::from(r#"{"lease":"x"}"#),
        "call_settle" => Body::from(r#"{"lease":"x","output":1}"#),
        _ => Body::from("{}"),
    }
}

async fn ask(server: &Server, operation: &Operation, token: &str) -> super::harness::Answer {
    // A stream would not end by itself, so the feeds are asked for what they cannot give.
    let headers: &[(&str, &str)] =
        if operation.id == "event_watch" { &[("accept", "text/html")] } else { &[("accept", "application/json")] };
    server.send(request(operation.method.clone(), &at_run(operation, "mine"), token, headers, body_of(operation))).await
}

#[tokio::test]
async fn every_route_lets_in_exactly_the_callers_that_its_document_names() {
    let server = Server::start().await;
    let mut run = says("hi");
    run["id"] = "mine".into();
    server.settled(&run).await;
    let admin = server.token("acme", "alice", "admin");
    for operation in operations(&openapi::document()).iter().filter(|operation| operation.method == Method::PUT) {
        assert!(ask(&server, operation, &admin).await.status.is_success(), "{}", operation.id);
    }
    for operation in operations(&openapi::document()) {
        let id = &operation.id;
        let Some(scope) = &operation.scope else {
            let open = ask(&server, &operation, "").await;
            assert_eq!(open.status.as_u16(), 200, "{id} needs no token");
            continue;
        };
        let none = ask(&server, &operation, "").await;
        none.problem(401, "unauthenticated");
        assert_eq!(none.header("www-authenticate"), r#"Bearer realm="countersign""#, "{id}");
        for garbage in ["x", "a.b.c", "eyJhbGciOiJub25lIn0.e30.", &server.alice().replace('.', "x")] {
            ask(&server, &operation, garbage).await.problem(401, "unauthenticated");
        }
        let expired = server.token_for("acme", "alice", "admin", -120);
        ask(&server, &operation, &expired).await.problem(401, "unauthenticated");
        let others = "approvals:decide agents:write mcp:write secrets:write workers openid".replace(scope, "");
        let wrong = if scope == "runs:read" { format!("runs:write {others}") } else { format!("runs:read {others}") };
        let refused = ask(&server, &operation, &server.token("acme", "alice", &wrong)).await;
        assert_eq!(refused.problem(403, "forbidden")["required_scope"], **scope, "{id}");
        for allowed in [scope.as_str(), "admin"] {
            let status = ask(&server, &operation, &server.token("acme", "alice", allowed)).await.status.as_u16();
            assert!(!matches!(status, 401 | 403 | 405 | 500), "{id} as {allowed}: {status}");
        }
    }
}
