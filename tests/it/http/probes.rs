//! What stands around the API: probes, unknown routes and methods, browsers, request ids.

use axum::body::Body;
use countersign::http::Phase;
use http::{Method, StatusCode};

use super::harness::{Server, request, says};

#[tokio::test]
async fn readiness_follows_the_life_of_the_server() {
    let server = Server::start().await;
    for (phase, status, said) in
        [(Phase::Starting, 503, "starting"), (Phase::Ready, 200, "ready"), (Phase::Draining, 503, "draining")]
    {
        server.phase.send(phase).unwrap();
        let answer = server.get("/readyz", "").await;
        assert_eq!((answer.status.as_u16(), &answer.json()["status"]), (status, &said.into()));
        assert_eq!(answer.json()["checks"]["database"], "ok");
        assert_eq!(server.get("/healthz", "").await.status, StatusCode::OK, "alive while {said}");
    }
    server.phase.send(Phase::Ready).unwrap();
    server.app.store.close().await;
    let answer = server.get("/readyz", "").await;
    assert_eq!((answer.status.as_u16(), &answer.json()["checks"]["database"]), (503, &"failing".into()));
    let refused = server.get("/v1/runs", &server.alice()).await;
    refused.problem(503, "overloaded");
    assert_eq!(refused.header("retry-after"), "1");
}

#[tokio::test]
async fn unknown_routes_and_methods_answer_problems() {
    let server = Server::start().await;
    for path in ["/v2/runs", "/v1", "/v1/runs/", "/v1/runs/a/b", "/favicon.ico"] {
        server.get(path, "").await.problem(404, "not-found");
    }
    for (method, path, allow) in [
        ("DELETE", "/v1/runs", "POST,GET,HEAD"),
        ("QUERY", "/v1/runs/x", "GET,HEAD,DELETE"),
        ("PUT", "/v1/runs/x/cancel", "POST"),
    ] {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let answer = server.send(request(method, path, "", &[], Body::empty())).await;
        answer.problem(405, "method-not-allowed");
        let mut named: Vec<&str> = answer.header("allow").split(',').collect();
        let mut expected: Vec<&str> = allow.split(',').collect();
        named.sort_unstable();
        expected.sort_unstable();
        assert_eq!(named, expected, "{path}");
    }
    let options = server.send(request(Method::OPTIONS, "/v1/runs", "", &[], Body::empty())).await;
    assert_eq!((options.status.as_u16(), options.header("allow").is_empty()), (200, false));
    let head = server.send(request(Method::HEAD, "/v1/runs", &server.alice(), &[], Body::empty())).await;
    assert_eq!((head.status.as_u16(), head.body.len()), (200, 0));
}

#[tokio::test]
async fn pages_of_configured_origins_may_call_the_api_and_no_others() {
    let server = Server::start().await;
    let preflight = |origin: &'static str| {
        let headers = [
            ("origin", origin),
            ("access-control-request-method", "POST"),
            ("access-control-request-headers", "authorization,content-type,last-event-id"),
        ];
        server.send(request(Method::OPTIONS, "/v1/runs", "", &headers, Body::empty()))
    };
    let answer = preflight("https://console.example").await;
    assert_eq!(answer.header("access-control-allow-origin"), "https://console.example");
    assert!(answer.header("access-control-allow-headers").contains("last-event-id"));
    assert_eq!(preflight("https://evil.example").await.header("access-control-allow-origin"), "");
}

#[tokio::test]
async fn a_request_id_is_taken_or_made_and_returned() {
    let server = Server::start().await;
    let send = |id: &'static str| {
        server.send(request(Method::GET, "/v1/runs", &server.alice(), &[("x-request-id", id)], Body::empty()))
    };
    assert_eq!(send("my-id.7").await.header("x-request-id"), "my-id.7");
    let made = send("not one\u{9}id").await;
    assert_eq!(made.header("x-request-id").len(), 36);
}

#[tokio::test]
async fn the_pages_load_nothing_from_elsewhere() {
    let server = Server::start().await;
    for path in ["/", "/docs/"] {
        let answer = server.get(path, "").await;
        assert!(answer.status.is_success() && answer.header("content-type").starts_with("text/html"), "{path}");
        let page = String::from_utf8_lossy(&answer.body).into_owned();
        assert!(!page.contains("http://") && !page.contains("https://"), "{path}: {page}");
    }
    let document = server.get("/openapi.json", "").await;
    assert_eq!(document.json()["openapi"], "3.1.0");
}

#[tokio::test]
async fn a_run_is_shown_as_the_contract_says() {
    let server = Server::start().await;
    let mut body = says("Charged 5.");
    body["id"] = "charge-demo".into();
    body["metadata"] = serde_json::json!({ "order": "7" });
    let run = server.settled(&body).await;
    let names: Vec<&str> = run.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(
        names,
        [
            "id",
            "status",
            "reason",
            "agent",
            "model",
            "metadata",
            "binding_id",
            "binding",
            "limits",
            "output",
            "error",
            "turns",
            "usage",
            "pending",
            "warnings",
            "created_by",
            "attempt",
            "revision",
            "created_at",
            "updated_at",
            "finished_at",
            "links"
        ]
    );
    assert_eq!((&run["status"], &run["output"]["text"]), (&"completed".into(), &"Charged 5.".into()));
    let usage = serde_json::json!({
        "model_requests": 1, "input_tokens": 10, "output_tokens": 5, "cached_input_tokens": 0, "total_tokens": 15,
        "sampling": {
            "model_requests": 0, "input_tokens": 0, "output_tokens": 0, "cached_input_tokens": 0, "total_tokens": 0
        },
        "cost_usd": null
    });
    assert_eq!(run["usage"], usage);
    assert_eq!(run["binding"], serde_json::json!({ "revision": 1, "mcp": null }));
    assert_eq!(run["created_by"], "alice");
    assert_eq!(
        run["pending"],
        serde_json::json!({ "approvals": [], "reconciliations": [], "client_tools": [], "inputs": [] })
    );
}
