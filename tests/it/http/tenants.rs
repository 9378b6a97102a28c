//! No tenant sees, moves or names what is another's, by any route of the published document: what is another's answers as
//! what does not exist. A route that the document gains is asked here too; a new kind of place in a path stops the test
//! until somebody says what of another tenant stands there.

use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::Body;
use http::Method;
use serde_json::{Value, json};

use super::document::{Operation, body_of, operations};
use super::harness::{Answer, Server, request, says};
use super::inputs::{asked, until};
use crate::support::database::{Database, both_stores};
use crate::support::fake_mcp::{FakeMcp, Reply, tool};
use crate::support::world::run_on;
use countersign::http::openapi;

both_stores! {
    no_route_reaches_what_is_another_tenants,
    no_list_no_place_and_no_stream_shows_what_is_another_tenants,
    no_body_can_name_what_is_another_tenants,
}

/// Stands in every name of the tenant that is attacked.
const CANARY: &str = "canary-";

/// What the tenant "acme" has: one of everything that a path can name.
struct Acme {
    server: Server,
    fake: FakeMcp,
    approval: String,
    input: String,
    /// A worker's call, as its worker knows it.
    handed: Value,
}

impl Acme {
    async fn on(database: Database) -> Self {
        let (server, fake) = (Server::start_on(database).await, FakeMcp::start().await);
        fake.be_modern(true);
        fake.on_list(|_| {
            let tools = json!([tool("charge")]);
            Reply::Result(json!({ "resultType": "complete", "tools": tools, "ttlMs": 0, "cacheScope": "private" }))
        });
        // The first call is lost, the second asks a person.
        let calls = AtomicUsize::new(0);
        fake.on_call(move |_| {
            if calls.fetch_add(1, Ordering::SeqCst) == 0 {
                return Reply::Reset;
            }
            let schema = json!({ "type": "object", "properties": { "why": { "type": "string" } } });
            let ask = json!({ "message": "canary-question", "requestedSchema": schema });
            let requests = json!({ "a": { "method": "elicitation/create", "params": ask } });
            Reply::Result(json!({ "resultType": "input_required", "inputRequests": requests, "requestState": "s" }))
        });
        let admin = server.token("acme", "canary-alice", "admin");
        for (path, body) in [
            ("/v1/secrets/canary-thing", json!({ "value": "canary-value", "hosts": ["a.example"] })),
            ("/v1/mcp-servers/canary-thing", json!({ "url": fake.url() })),
            ("/v1/agents/canary-team/canary-thing/versions/1.0.0", manifest()),
        ] {
            let put = request(Method::PUT, path, &admin, &[], Body::from(body.to_string()));
            assert!(server.send(put).await.status.is_success(), "{path}");
        }
        let path = "/v1/agents/canary-team/canary-thing/deployments";
        assert!(server.post(path, &admin, &json!({ "version": "1.0.0" })).await.status.is_success());
        for (id, entry) in [
            ("canary-held", json!({ "url": fake.url() })),
            ("canary-asks", json!({ "url": fake.url(), "elicitation": "ask" })),
            ("canary-gated", json!({ "url": fake.url(), "require_approval": true })),
        ] {
            let mut body = run_on(id, &[("charge", json!({}))], json!([entry]));
            body["input"] = "canary-text".into();
            let answer = server.post("/v1/runs", &admin, &body).await;
            assert_eq!(answer.status, 201, "{:?}", answer.body);
            until(&server, id, |run| run["status"] == "suspended").await;
        }
        let mut ended = says("canary-text");
        ended["id"] = "canary-ended".into();
        assert_eq!(server.post("/v1/runs", &admin, &ended).await.status, 201);
        until(&server, "canary-ended", |run| run["status"] == "completed").await;
        let input = asked(&server, "canary-asks").await["input_id"].as_str().unwrap().to_owned();
        let gated = server.get("/v1/runs/canary-gated", &admin).await.json();
        let approval = gated["pending"]["approvals"][0]["id"].as_str().unwrap().to_owned();
        let handed = handed(&server, &admin).await;
        Self { server, fake, approval, input, handed }
    }

    fn admin(&self) -> String {
        self.server.token("acme", "canary-alice", "admin")
    }

    fn stranger(&self) -> String {
        self.server.token("umbrella", "mallory", "admin")
    }

    /// The path of the operation, with what acme has in each place, or with what nobody has.
    fn path(&self, operation: &Operation, exists: bool) -> String {
        let run = match operation.path.as_str() {
            path if path.contains("/reconciliations/") || path.contains("/receipts") => "canary-held",
            path if path.contains("/inputs/") => "canary-asks",
            _ => "canary-gated",
        };
        let mut path = operation.path.clone();
        for place in operation.path.split('/').filter(|part| part.starts_with('{')) {
            let (own, none) = match place {
                "{run_id}" => (run, "nothing"),
                "{call_id}" => ("call_1", "call_1"),
                "{turn}" => ("1", "1"),
                "{input_id}" => (self.input.as_str(), "nothing"),
                "{id}" if path.starts_with("/v1/approvals/") => {
                    (self.approval.as_str(), "00000000-0000-8000-8000-000000000000")
                }
                "{id}" if path.starts_with("/v1/worker-calls/") => {
                    (self.handed["id"].as_str().unwrap(), "0198c0de000070008000000000000000-1-0")
                }
                "{worker_id}" => ("canary-worker", "nobody"),
                "{namespace}" => ("canary-team", "nobody"),
                "{name}" => ("canary-thing", "nothing"),
                "{version}" => ("1.0.0", "1.0.0"),
                other => panic!("{}: say what of another tenant stands at {other}", operation.path),
            };
            path = path.replace(place, if exists { own } else { none });
        }
        path
    }

    async fn ask(&self, operation: &Operation, path: &str, token: &str) -> Answer {
        let headers = [("accept", "application/json")];
        let body = match operation.id.as_str() {
            "lease_beat" | "call_reject" => Body::from(json!({ "lease": self.handed["lease"] }).to_string()),
            "call_settle" => Body::from(json!({ "lease": self.handed["lease"], "output": 1 }).to_string()),
            _ => body_of(operation),
        };
        self.server.send(request(operation.method.clone(), path, token, &headers, body)).await
    }

    /// Everything that acme can read, but for what is made anew with each answer.
    async fn all(&self) -> Vec<(String, Value)> {
        let mut all = Vec::new();
        for operation in readable() {
            let path = self.path(&operation, true);
            let answer = self.ask(&operation, &path, &self.admin()).await;
            assert_eq!(answer.status, 200, "{path}: {:?}", answer.body);
            let mut body = answer.json();
            without_tokens(&mut body);
            all.push((path, body));
        }
        all
    }
}

/// A call of acme's that acme's worker has.
async fn handed(server: &Server, admin: &str) -> Value {
    let mut body = run_on("canary-worked", &[("pay", json!({ "to": "canary-payee" }))], json!([]));
    body["tools"] = json!([{ "name": "pay", "executor": { "type": "worker", "tool": "a", "version": "1" } }]);
    assert_eq!(server.post("/v1/runs", admin, &body).await.status, 201);
    let asked = json!({ "tools": [{ "tool": "a", "version": "1" }], "wait_ms": 20_000 });
    let claimed = server.post("/v1/workers/canary-worker/claims", admin, &asked).await.json();
    claimed["calls"][0].clone()
}

fn manifest() -> Value {
    let mut manifest = says("canary-text");
    for beside in ["id", "input"] {
        manifest.as_object_mut().unwrap().remove(beside);
    }
    manifest
}

fn without_tokens(body: &mut Value) {
    match body {
        Value::Object(members) => {
            members.remove("token");
            members.values_mut().for_each(without_tokens);
        }
        Value::Array(items) => items.iter_mut().for_each(without_tokens),
        _ => {}
    }
}

fn scoped() -> impl Iterator<Item = Operation> {
    operations(&openapi::document()).into_iter().filter(|operation| operation.scope.is_some())
}

/// What can be read to its end.
fn readable() -> impl Iterator<Item = Operation> {
    scoped().filter(|operation| operation.method == Method::GET && operation.id != "event_watch")
}

async fn no_route_reaches_what_is_another_tenants(database: Database) {
    let acme = Acme::on(database).await;
    let (before, sent) = (acme.all().await, acme.fake.count("tools/call"));
    for (path, body) in &before {
        assert!(body.to_string().contains(CANARY), "{path} would show nothing: {body}");
    }
    let (puts, others): (Vec<_>, Vec<_>) = scoped()
        .filter(|operation| operation.path.contains('{'))
        .partition(|operation| operation.method == Method::PUT);
    assert!(others.len() > 20, "the document has routes");
    for operation in &others {
        if operation.id == "calls_claim" {
            // A worker has any name that it likes, and finds what its own tenant offers.
            let claimed = acme.ask(operation, &acme.path(operation, true), &acme.stranger()).await;
            assert_eq!((claimed.status.as_u16(), &claimed.json()["calls"]), (200, &json!([])));
            continue;
        }
        let theirs = acme.ask(operation, &acme.path(operation, true), &acme.stranger()).await;
        let missing = acme.ask(operation, &acme.path(operation, false), &acme.stranger()).await;
        let (theirs, missing) = (theirs.problem(404, "not-found"), missing.problem(404, "not-found"));
        let plain = |problem: &Value| json!([problem["detail"], problem["title"], problem["links"], problem["errors"]]);
        assert_eq!(plain(&theirs), plain(&missing), "{}", operation.id);
        assert!(!theirs.to_string().contains(CANARY), "{theirs}");
        // A run's events are not streamed either, wherever the reader says that they stand.
        let headers = [("accept", "text/event-stream"), ("last-event-id", "1")];
        let path = acme.path(operation, true);
        if operation.method == Method::GET {
            let asked = request(Method::GET, &path, &acme.stranger(), &headers, Body::empty());
            assert_eq!(acme.server.send(asked).await.status, 404, "{path}");
        }
    }
    // What a stranger puts under the same name is the stranger's own.
    for operation in &puts {
        let put = acme.ask(operation, &acme.path(operation, true), &acme.stranger()).await;
        assert!(put.status.is_success(), "{}: {:?}", operation.id, put.body);
    }
    assert_eq!(acme.all().await, before, "nothing of acme's has moved");
    assert_eq!(acme.fake.count("tools/call"), sent, "and nothing was sent");
}

async fn no_list_no_place_and_no_stream_shows_what_is_another_tenants(database: Database) {
    let acme = Acme::on(database).await;
    let lists: Vec<Operation> = readable().filter(|operation| !operation.path.contains('{')).collect();
    assert!(lists.len() > 7, "the document has lists");
    for list in &lists {
        let mut asked = vec![list.path.clone()];
        // Where acme's list goes on, the stranger's does not.
        let first = acme.ask(list, &format!("{}?limit=1", list.path), &acme.admin()).await.json();
        if let Some(cursor) = first["next_cursor"].as_str() {
            asked.push(format!("{}?cursor={cursor}", list.path));
        }
        if list.path == "/v1/runs" || list.path == "/v1/receipts" {
            let filters = ["agent=canary-team/canary-thing", "status=suspended", "reason=approval-required"];
            asked.extend(filters.iter().map(|filter| format!("{}?{filter}", list.path)));
        }
        for path in asked {
            let answer = acme.ask(list, &path, &acme.stranger()).await;
            assert!(matches!(answer.status.as_u16(), 200 | 400), "{path}: {:?}", answer.body);
            let text = String::from_utf8_lossy(&answer.body).into_owned();
            assert!(!text.contains(CANARY) && !text.contains(&acme.approval), "{path}: {text}");
        }
    }
    // A stranger watches while acme's run takes place, and reads its own from where acme's stands.
    let mut watch = acme.server.read("/v1/events", &acme.stranger(), &[]).await;
    let mut run = says("canary-text");
    run["id"] = "canary-later".into();
    assert_eq!(acme.server.post("/v1/runs", &acme.admin(), &run).await.status, 201);
    until(&acme.server, "canary-later", |run| run["status"] == "completed").await;
    let mut own = says("own");
    own["id"] = "own".into();
    assert_eq!(acme.server.post("/v1/runs", &acme.stranger(), &own).await.status, 201);
    let mut heard = Vec::new();
    while !heard.iter().any(|frame: &String| frame.contains("\"result\"")) {
        heard.push(watch.frame().await.expect("the stream goes on"));
    }
    assert!(heard.iter().all(|frame| !frame.contains(CANARY)), "{heard:?}");
    let ticket = acme.server.post("/v1/runs/own/stream-tickets", &acme.stranger(), &json!({})).await.json();
    let path = format!("/v1/runs/canary-ended/events?ticket={}", ticket["ticket"].as_str().unwrap());
    let refused = acme.server.get(&path, "").await;
    assert!(matches!(refused.status.as_u16(), 401 | 403 | 404), "{:?}", refused.body);
}

async fn no_body_can_name_what_is_another_tenants(database: Database) {
    let acme = Acme::on(database).await;
    let refused = async |body: Value| {
        let answer = acme.server.post("/v1/runs", &acme.stranger(), &body).await;
        assert!(matches!(answer.status.as_u16(), 404 | 422), "{body}: {:?}", answer.body);
        let problem = answer.json();
        json!([problem["code"], problem["detail"], problem["errors"]]).to_string()
    };
    let model = |secret: &str| json!({ "provider": "openai", "name": "x", "base_url": "https://a.example/v1", "secret": secret });
    let with = |field: &str, value: Value| {
        let mut body = says("hi");
        body[field] = value;
        body
    };
    for (theirs, nobodys, name) in [
        (
            with("mcp", json!([{ "server": "canary-thing" }])),
            with("mcp", json!([{ "server": "nothing" }])),
            "canary-thing",
        ),
        (with("model", model("canary-thing")), with("model", model("nothing")), "canary-thing"),
        (with("continue_from", json!("canary-ended")), with("continue_from", json!("nothing")), "canary-ended"),
        (
            json!({ "agent": "canary-team/canary-thing", "input": "Go." }),
            json!({ "agent": "nothing/nothing", "input": "Go." }),
            "canary-team/canary-thing",
        ),
    ] {
        let nothing = if name.contains('/') { "nothing/nothing" } else { "nothing" };
        assert_eq!(refused(theirs).await.replace(name, nothing), refused(nobodys).await, "{name}");
    }
    // Ids are each tenant's own.
    let mut same = says("own");
    same["id"] = "canary-ended".into();
    assert_eq!(acme.server.post("/v1/runs", &acme.stranger(), &same).await.status, 201);
    let messages = acme.server.get("/v1/runs/canary-ended/messages", &acme.stranger()).await;
    assert!(!String::from_utf8_lossy(&messages.body).contains("canary-text"));
}
