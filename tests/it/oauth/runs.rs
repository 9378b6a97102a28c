//! Runs whose MCP server takes access tokens only, over the REST API of the real binary.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::auth;
use crate::support::database::Database;
use crate::support::fake_issuer::{FakeIssuer, Grants, TOKEN_CANARY};
use crate::support::fake_mcp::{FakeMcp, Reply, Seen};
use crate::support::product::Product;

const SECRET_CANARY: &str = "cl1ent-canary";

struct World {
    product: Product,
    server: FakeMcp,
    issuer: Arc<FakeIssuer>,
    database: Database,
}

impl World {
    async fn start() -> Self {
        let database = Database::sqlite().await;
        let (server, issuer) = (FakeMcp::start().await, FakeIssuer::start().await);
        issuer.guard(&server);
        Self { product: Product::start(&database).await, server, issuer: Arc::new(issuer), database }
    }

    /// A run whose model makes so many calls in each of its turns.
    fn body(&self, more: Value, turns: &[usize]) -> Value {
        let call = json!({"name": "charge", "arguments": {"amount": 5}});
        let mut script: Vec<Value> =
            turns.iter().map(|calls| json!({"tool_calls": vec![call.clone(); *calls]})).collect();
        script.push(json!({"text": "Done."}));
        json!({
            "id": "r",
            "model": {"provider": "scripted", "name": "demo", "script": script},
            "input": "Go.",
            "mcp": [{"url": self.server.url(), "auth": auth(more)}],
            "secrets": {"client": SECRET_CANARY},
        })
    }

    async fn run(&self, more: Value, turns: &[usize]) -> Value {
        self.product.post("/v1/runs", &self.body(more, turns), 201).await;
        self.product.rested("r").await
    }

    /// The stage and error of each call.
    async fn calls(&self) -> Vec<(String, Value)> {
        let page = self.product.get("/v1/runs/r/receipts").await;
        let calls = page["data"].as_array().unwrap().iter();
        calls.map(|call| (call["stage"].as_str().unwrap().to_owned(), call["error"].clone())).collect()
    }

    async fn stages(&self) -> Vec<String> {
        self.calls().await.into_iter().map(|(stage, _)| stage).collect()
    }
}

fn token_of(seen: &Seen) -> &str {
    seen.headers.get("authorization").map_or("", String::as_str)
}

#[tokio::test]
async fn b204_b250_every_request_carries_the_token_and_no_output_carries_it_or_the_secret() {
    let world = World::start().await;
    let run = world.run(json!({"scopes": ["pay"]}), &[2, 1]).await;
    assert_eq!((run["status"].as_str(), world.issuer.asked().len()), (Some("completed"), 1));
    let requests: Vec<Seen> = world.server.seen().into_iter().filter(|seen| seen.path == "/mcp").collect();
    let (probe, rest) = requests.split_first().unwrap();
    assert_eq!((probe.rpc(), token_of(probe)), ("ping", ""));
    assert!(rest.len() > 5 && rest.iter().all(|seen| token_of(seen) == format!("Bearer {TOKEN_CANARY}-1")));
    let mut outputs = vec![run.to_string(), world.product.log(), world.database.dump().await];
    for path in ["runs/r/messages", "runs/r/receipts", "runs/r/events?limit=200", "runs", "receipts", "admin/audit"] {
        outputs.push(world.product.get(&format!("/v1/{path}")).await.to_string());
    }
    outputs.push(world.product.send(Method::GET, "/metrics", None).await.text().await.unwrap());
    for output in &outputs {
        assert!(!output.contains(TOKEN_CANARY) && !output.contains(SECRET_CANARY), "{output}");
    }
    assert!(outputs[1].contains("countersign"), "the log is there: {}", outputs[1]);
}

#[tokio::test]
async fn b211_a_token_that_the_server_withdraws_is_renewed_once_and_the_call_made_with_the_new_one() {
    let world = World::start().await;
    let (revoking, calls) = (Arc::clone(&world.issuer), AtomicUsize::new(0));
    world.server.on_call(move |_| {
        if calls.fetch_add(1, Ordering::SeqCst) == 0 {
            revoking.revoke();
        }
        Reply::text("charged")
    });
    assert_eq!(world.run(json!({}), &[1, 5]).await["status"], "completed");
    assert_eq!(world.issuer.asked().len(), 2, "one renewal for five calls");
    let calls = world.server.seen_rpc("tools/call");
    let with_new = calls.iter().filter(|seen| token_of(seen).ends_with("-2")).count();
    assert_eq!(with_new, 5);
    // What was refused came back with the same key.
    for call in calls.iter().skip(1) {
        let key = &call.headers["idempotency-key"];
        assert!(calls.iter().any(|other| other.headers["idempotency-key"] == *key && token_of(other).ends_with("-2")));
    }
    assert_eq!(world.server.count("initialize"), 1, "on the connection that was there");
}

/// Turns every call away with this, whatever token it has.
fn refuse_calls(world: &World, status: u16, challenge: &str) {
    let challenge = challenge.to_owned();
    world.server.on_call(move |_| Reply::Http(status, vec![("www-authenticate", challenge.clone())], String::new()));
}

#[tokio::test]
async fn b211_a_second_refusal_fails_the_call_which_was_not_executed() {
    let world = World::start().await;
    refuse_calls(&world, 401, "Bearer error=\"invalid_token\"");
    let run = world.run(json!({}), &[1, 1]).await;
    assert_eq!(run["status"], "completed");
    let calls = world.calls().await;
    // A server that refuses what was just renewed does not make us renew again with each call.
    for (stage, error) in &calls {
        assert_eq!((stage.as_str(), &error["code"]), ("failed", &json!("mcp-unauthorized")));
        let said = error["message"].as_str().unwrap();
        assert!(said.contains("refuses an access token that was just renewed"), "{said}");
        assert!(said.ends_with("It was not executed."), "{said}");
    }
    assert_eq!((world.server.count("tools/call"), world.issuer.asked().len()), (3, 2));
}

#[tokio::test]
async fn a_token_that_lacks_a_scope_is_not_renewed_and_the_fault_says_so() {
    let world = World::start().await;
    refuse_calls(&world, 403, "Bearer error=\"insufficient_scope\", scope=\"pay refund\"");
    world.run(json!({}), &[1]).await;
    let calls = world.calls().await;
    let said = "The MCP server refused the call with HTTP 403: the credential lacks a scope (it asks for \"pay refund\"). \
                It was not executed.";
    assert_eq!(calls[0], ("failed".to_owned(), json!({"code": "mcp-unauthorized", "message": said})));
    assert_eq!((world.server.count("tools/call"), world.issuer.asked().len()), (1, 1));
}

#[tokio::test]
async fn a_token_that_expires_during_a_run_is_renewed_before_the_server_sees_it() {
    let world = World::start().await;
    world.issuer.on_token(|_| Grants::Token(1));
    let mut body = world.body(json!({}), &[1, 1]);
    body["model"]["script"][1]["delay_ms"] = json!(1_100);
    world.product.post("/v1/runs", &body, 201).await;
    world.product.rested("r").await;
    assert_eq!(world.stages().await, ["completed", "completed"]);
    let calls = world.server.seen_rpc("tools/call");
    assert_eq!(calls.len(), 2);
    assert_ne!(token_of(&calls[0]), token_of(&calls[1]));
}

#[tokio::test]
async fn a_renewal_that_fails_fails_the_call_and_says_why() {
    let world = World::start().await;
    refuse_calls(&world, 401, "Bearer");
    let asked = AtomicUsize::new(0);
    world.issuer.on_token(move |_| match asked.fetch_add(1, Ordering::SeqCst) {
        0 => Grants::Token(3600),
        _ => Grants::Http(500, SECRET_CANARY.to_owned()),
    });
    world.run(json!({}), &[1]).await;
    let said = "The MCP server refused the call with HTTP 401: the token endpoint at 127.0.0.1 could not be reached \
                (HTTP 500). It was not executed.";
    assert_eq!(world.calls().await, [("failed".to_owned(), json!({"code": "mcp-unauthorized", "message": said}))]);
    assert_eq!(world.server.count("tools/call"), 1);
}

#[tokio::test]
async fn a_client_that_is_refused_gives_no_run_and_no_secret() {
    let world = World::start().await;
    let body = json!({"error": "invalid_client", "error_description": SECRET_CANARY}).to_string();
    world.issuer.on_token(move |_| Grants::Http(401, body.clone()));
    let problem = world.product.post("/v1/runs", &world.body(json!({}), &[1]), 502).await;
    assert_eq!(problem["code"], "mcp-unreachable");
    let detail = problem["detail"].as_str().unwrap();
    assert!(
        detail.contains("the token endpoint at 127.0.0.1 refused to give an access token: invalid_client"),
        "{detail}"
    );
    assert!(!problem.to_string().contains(SECRET_CANARY) && !world.product.log().contains(SECRET_CANARY));
    assert_eq!(world.issuer.asked().len(), 1);
}

/// A change of the secret that one node takes reaches the other's next call, and cuts none that is out.
#[tokio::test]
async fn a_replaced_client_secret_makes_new_tokens_and_connections_on_every_node_and_cuts_no_call() {
    let database = Database::postgres().await;
    let (server, issuer) = (FakeMcp::start().await, Arc::new(FakeIssuer::start().await));
    issuer.guard(&server);
    let nodes = [Product::start(&database).await, Product::start(&database).await];
    let put = async |value: &str| {
        let body = json!({"value": value, "hosts": ["127.0.0.1"]});
        assert_eq!(nodes[0].send(Method::PUT, "/v1/secrets/client", Some(&body)).await.status(), 204);
    };
    put("secret-one").await;
    let body = json!({"url": server.url(), "auth": auth(json!({"token_url": issuer.token_url()}))});
    assert_eq!(nodes[0].send(Method::PUT, "/v1/mcp-servers/orders", Some(&body)).await.status(), 201);
    let gate = Arc::new(Notify::new());
    let held = Arc::clone(&gate);
    server.on_call(move |seen| {
        if token_of(seen).ends_with("-1") {
            Reply::When(Arc::clone(&held), Box::new(Reply::text("old")))
        } else {
            Reply::text("new")
        }
    });
    let run = |id: &str, calls: usize| {
        let call = json!({"name": "charge", "arguments": {}});
        let mut script = vec![json!({"tool_calls": [call]}); calls];
        script.push(json!({"text": "Done."}));
        json!({"id": id, "model": {"provider": "scripted", "name": "demo", "script": script}, "input": "Go.",
               "mcp": [{"server": "orders"}]})
    };
    for (node, id) in nodes.iter().zip(["a", "b"]) {
        node.post("/v1/runs", &run(id, 2), 201).await;
    }
    server.wait_until(|server| server.count("tools/call") == 2).await;
    assert_eq!(issuer.asked().len(), 1, "one token for both nodes");
    put("secret-two").await;
    let dump = database.dump().await;
    assert!(!dump.lines().any(|line| line.contains("oauth_tokens") && line.contains("k1")), "no row keeps the old one");
    nodes[1].post("/v1/runs", &run("c", 1), 201).await;
    assert_eq!(nodes[1].rested("c").await["status"], "completed");
    for _ in 0..2 {
        gate.notify_one();
    }
    for (node, id) in nodes.iter().zip(["a", "b"]) {
        assert_eq!(node.rested(id).await["status"], "completed", "{}", node.log());
        let receipts = node.get(&format!("/v1/runs/{id}/receipts")).await;
        let texts: Vec<&Value> =
            receipts["data"].as_array().unwrap().iter().map(|row| &row["output"]["content"][0]["text"]).collect();
        assert_eq!(texts, ["old", "new"], "the call that was out was not cut");
    }
    let secrets: Vec<Option<String>> = issuer.asked().into_iter().map(|asked| asked.authorization).collect();
    let basic = |secret: &str| Some(format!("Basic {}", STANDARD.encode(format!("svc:{secret}"))));
    assert_eq!(secrets, [basic("secret-one"), basic("secret-two")]);
    // The old sessions are ended by us, with what they were opened with.
    server.wait_until(|server| server.count_http("DELETE") == 2).await;
    let ended = server.seen().into_iter().filter(|seen| seen.http_method == "DELETE");
    assert!(ended.into_iter().all(|seen| token_of(&seen).ends_with("-1")));
}

#[tokio::test]
async fn every_fault_of_the_auth_is_told_at_once() {
    let world = World::start().await;
    let shape = json!({"client_id": "", "key_id": "", "audience": "", "tenant": "x"});
    let meaning = json!({
        "issuer": "https://a.example/x?y", "token_url": "http://169.254.169.254/token", "method": "client-secret-post",
        "algorithm": "ES256", "key_id": "k", "scopes": ["a", "b c"], "resource": "https://a.example/#x",
    });
    for (more, wanted) in [
        (shape, vec!["audience", "client_id", "key_id", "tenant"]),
        (meaning, vec!["algorithm", "issuer", "key_id", "resource", "scopes/1", "token_url"]),
    ] {
        let problem = world.product.post("/v1/runs", &world.body(more, &[1]), 422).await;
        let errors = problem["errors"].as_array().unwrap().iter();
        let mut pointers: Vec<&str> = errors.map(|error| error["pointer"].as_str().unwrap()).collect();
        pointers.sort_unstable();
        let wanted: Vec<String> = wanted.iter().map(|name| format!("/mcp/0/auth/{name}")).collect();
        assert_eq!(pointers, wanted);
    }
    for more in
        [json!({"tenant": "x"}), json!({"method": "none"}), json!({"algorithm": "HS256"}), json!({"client_id": 5})]
    {
        let problem = world.product.post("/v1/runs", &world.body(more.clone(), &[1]), 422).await;
        let pointer = problem["errors"][0]["pointer"].as_str().unwrap();
        assert!(pointer.starts_with("/mcp/0/auth"), "{more}: {problem}");
    }
    assert!(world.issuer.asked().is_empty() && world.server.seen().is_empty());
}
