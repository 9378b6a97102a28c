//! Values that must never be seen again are given to the server in every place that takes one, everything is made to
//! happen, and then every text that comes out of it is searched for them.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Method;
use serde_json::{Value, json};

use super::calling;
use crate::support::database::{Database, both_stores};
use crate::support::fake_mcp::{FakeMcp, Reply, Seen, Step, tool};
use crate::support::product::{Options, Product, token};

/// What is given to the server, and is stored sealed or not at all.
const RUN: &str = "canary-run-5f1c";
const QUOTED: &str = r#"canary-"quoted\7e22"#;
const STORED: &str = "canary-stored-91bd";
const HEADER: &str = "canary-header-c3a0";
const MODEL: &str = "canary-model-44fe";
const UNSENT: &str = "canary-unsent-08d7";
const SECRETS: [&str; 6] = [RUN, QUOTED, STORED, HEADER, MODEL, UNSENT];
/// Keys of the server itself, as the settings have them: tokens and master keys.
const SETTINGS: [&str; 2] = ["0123456789abcdef0123456789abcdef", "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8"];
/// In the query of an address, which is stored as it is and shown without.
const QUERY: &str = "canary-query-6b19";

/// Tools of the echoing server; the outcome of the last is unknown.
const TOOLS: [&str; 9] =
    ["ok", "structured", "is_error", "rpc_error", "http_400", "http_401", "http_429", "stream", "reset"];

both_stores! {
    b250_no_secret_comes_out_of_the_server_whatever_happens_to_a_call,
}

/// What the server was told, said back.
fn echo(seen: &Seen) -> String {
    let mut headers: Vec<String> = seen.headers.iter().map(|(name, value)| format!("{name}: {value}")).collect();
    headers.sort();
    headers.join("; ")
}

fn answer(seen: &Seen) -> Reply {
    let said = echo(seen);
    let text =
        json!([{ "type": "text", "text": said }, { "type": "text", "text": json!({ "quoted": said }).to_string() }]);
    let problem = json!({ "error": { "message": said }, "detail": said }).to_string();
    let http = |status| Reply::Http(status, vec![("content-type", "application/json".to_owned())], problem.clone());
    match seen.body["params"]["name"].as_str().unwrap() {
        "ok" => Reply::Result(json!({ "content": text })),
        "structured" => Reply::Result(json!({ "content": [], "structuredContent": { said.clone(): [said] } })),
        "is_error" => Reply::Result(json!({ "content": text, "isError": true })),
        "rpc_error" => Reply::Error(json!({ "code": -32000, "message": said, "data": said })),
        "http_400" => http(400),
        "http_401" => http(401),
        "http_429" => http(429),
        "stream" => Reply::Sse(vec![Step::Progress(1), Step::Result(json!({ "content": text }))]),
        _ => Reply::Sse(vec![
            Step::Raw(format!("data: {{\"jsonrpc\":\"2.0\",\"method\":\"x\",\"params\":\"{said}\"}}\n\n")),
            Step::Cut,
        ]),
    }
}

/// A server that repeats everything it is told, in its tools too.
async fn echoing() -> FakeMcp {
    let fake = FakeMcp::start().await;
    fake.on_call(answer);
    fake.on_list(|seen| {
        let mut tools: Vec<Value> = TOOLS.iter().map(|name| tool(name)).collect();
        // Of its own session nothing, or each connection would have other tools.
        let told: Vec<&str> =
            ["authorization", "x-api-key"].iter().filter_map(|name| Some(seen.headers.get(*name)?.as_str())).collect();
        tools[0]["description"] = json!(told.join(" "));
        tools[0]["inputSchema"] = json!({ "type": "object", "description": told.join(" ") });
        Reply::Result(json!({ "tools": tools }))
    });
    fake
}

/// A provider that calls the tool `ok` in every turn, or refuses and repeats the key.
async fn provider(refuses: bool) -> FakeMcp {
    let fake = FakeMcp::start().await;
    if refuses {
        let body = json!({ "error": { "message": format!("bad key {MODEL}"), "type": "auth" } }).to_string();
        fake.refuse_handshakes(Reply::Http(401, vec![("content-type", "application/json".to_owned())], body));
        return fake;
    }
    let chunk = |delta: Value, finish: Value| {
        let choice = json!({ "index": 0, "delta": delta, "finish_reason": finish });
        let chunk =
            json!({ "id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice] });
        Step::Raw(format!("data: {chunk}\n\n"))
    };
    let call =
        json!([{ "index": 0, "id": "call_1", "type": "function", "function": { "name": "ok", "arguments": "{}" } }]);
    fake.refuse_handshakes(Reply::Sse(vec![
        chunk(json!({ "role": "assistant", "tool_calls": call }), Value::Null),
        chunk(json!({}), json!("tool_calls")),
        Step::Raw("data: [DONE]\n\n".to_owned()),
    ]));
    fake
}

/// Asks the server, and keeps everything that comes out of it, each with where.
struct Watch<'a> {
    product: &'a Product,
    out: Vec<(String, String)>,
}

impl Watch<'_> {
    /// Sends a request and keeps what is answered, headers too.
    async fn ask(&mut self, method: Method, path: &str, body: &Value) -> (u16, String) {
        let body = (!body.is_null()).then_some(body);
        let answer = self.product.send(method.clone(), path, body).await;
        let (status, headers) = (answer.status().as_u16(), format!("{:?}", answer.headers()));
        let text = answer.text().await.unwrap();
        self.out.push((format!("{method} {path}"), format!("{headers}\n{text}")));
        (status, text)
    }

    /// Creates a run and waits until it rests.
    async fn run(&mut self, id: &str, mut body: Value) -> Value {
        body["id"] = json!(id);
        let (status, text) = self.ask(Method::POST, "/v1/runs", &body).await;
        assert_eq!(status, 201, "{id}: {text}");
        let stream = format!("/v1/runs/{id}/events");
        let run = self.product.rested(id).await;
        for path in ["", "/messages", "/receipts", "/envelope", "/events?limit=200"] {
            self.ask(Method::GET, &format!("/v1/runs/{id}{path}"), &Value::Null).await;
        }
        if run["status"] != "suspended" {
            let events = self.product.stream(&stream).await.until("result").await;
            self.out.push((format!("stream of {id}"), json!(events).to_string()));
        }
        run
    }
}

async fn b250_no_secret_comes_out_of_the_server_whatever_happens_to_a_call(database: Database) {
    let options = Options::default().with("RUST_LOG", "debug");
    let product = Product::start_as(&database.url, &options).await;
    let (fake, refusing, calling_model) = (echoing().await, provider(true).await, provider(false).await);
    let mut watch = Watch { product: &product, out: Vec::new() };
    for (name, value) in [("stored", STORED), ("header", HEADER), ("model", MODEL)] {
        let body = json!({ "value": value, "hosts": ["127.0.0.1"] });
        assert_eq!(watch.ask(Method::PUT, &format!("/v1/secrets/{name}"), &body).await.0, 204);
    }
    let header = |secret: &str| json!({ "scheme": "header", "header": "X-Api-Key", "secret": secret });
    let bearer = |secret: &str| json!({ "scheme": "bearer", "secret": secret });
    let url = format!("{}?key={QUERY}", fake.url());
    for (name, auth) in [("one", bearer("stored")), ("two", header("header"))] {
        let body = json!({ "url": url, "auth": auth });
        assert_eq!(watch.ask(Method::PUT, &format!("/v1/mcp-servers/{name}"), &body).await.0, 201);
        assert_eq!(watch.ask(Method::POST, &format!("/v1/mcp-servers/{name}/probe"), &Value::Null).await.0, 200);
    }
    calls(&mut watch, &url, &header, &bearer).await;
    models(&mut watch, &refusing, &calling_model, &url, &bearer).await;
    refusals(&mut watch, &fake, &url).await;
    let ticket = read_all(&mut watch).await;
    let mut out = std::mem::take(&mut watch.out);

    for secret in [RUN, QUOTED, STORED, HEADER] {
        let told = fake.seen().iter().any(|seen| seen.headers.values().any(|value| value.contains(secret)));
        assert!(told, "{secret} was told to its server");
    }
    let paid: Vec<Seen> = calling_model.seen().into_iter().chain(refusing.seen()).collect();
    assert!(paid.iter().all(|seen| seen.headers["authorization"].contains(MODEL)));
    out.extend(paid.iter().map(|seen| ("a request to a model".to_owned(), seen.body.to_string())));
    assert!(out.iter().any(|(_, text)| text.contains("[redacted]")), "servers do repeat what they are told");

    product.signal("TERM");
    crate::support::database::eventually("the server stops", async || product.log().contains("\"stopped\"")).await;
    let log = product.log();
    assert!(log.contains("\"DEBUG\""), "the log is told at debug");
    assert!(!log.contains(&ticket) && !log.contains("eyJ"), "neither tickets nor tokens are logged");
    out.push(("the log".to_owned(), log));
    for (place, text) in &out {
        for secret in SECRETS.iter().chain(&SETTINGS).chain(&[QUERY]) {
            assert!(!holds(text, secret), "{secret} stands in {place}: {text}");
        }
    }
    let dump = database.dump().await;
    assert!(dump.contains("[redacted]") && !dump.contains(&ticket), "results are stored");
    for secret in SECRETS.iter().chain(&SETTINGS) {
        assert!(!holds(&dump, secret), "{secret} stands in the database");
    }
}

/// Whether a text holds a value as it is, as JSON text has it, in hexadecimal, or in base64.
fn holds(text: &str, value: &str) -> bool {
    let quoted = json!(value).to_string();
    let quoted = quoted.trim_matches('"');
    [value, quoted, &hex::encode(value), &STANDARD.encode(value)].iter().any(|form| text.contains(form))
}

/// Every end of a call, with every kind of credential.
async fn calls(watch: &mut Watch<'_>, url: &str, header: &impl Fn(&str) -> Value, bearer: &impl Fn(&str) -> Value) {
    for (id, entry) in [
        ("stored-bearer", json!({ "server": "one" })),
        ("stored-header", json!({ "server": "two" })),
        ("stored-inline", json!({ "url": url, "auth": bearer("stored") })),
        ("run-bearer", json!({ "url": url, "auth": bearer("run") })),
        ("run-header", json!({ "url": url, "auth": header("quoted") })),
    ] {
        let mut body = calling(&TOOLS, json!([entry]));
        body["secrets"] = json!({ "run": RUN, "quoted": QUOTED, "unsent": UNSENT });
        let run = watch.run(id, body).await;
        assert_eq!(run["reason"], "tool-reconciliation-required", "{id}: {run}");
        let (_, receipts) = watch.ask(Method::GET, &format!("/v1/runs/{id}/receipts"), &Value::Null).await;
        let receipts: Value = serde_json::from_str(&receipts).unwrap();
        assert_eq!(receipts["data"].as_array().unwrap().len(), TOOLS.len(), "{id}");
        watch.ask(Method::GET, "/v1/admin/reconciliations", &Value::Null).await;
        let note = json!({ "resolution": "fail", "note": "looked" });
        let path = format!("/v1/admin/runs/{id}/reconciliations/{}/call_{}", TOOLS.len(), TOOLS.len());
        assert_eq!(watch.ask(Method::POST, &path, &note).await.0, 200);
    }
}

/// A model that refuses the key, and one that reads results.
async fn models(
    watch: &mut Watch<'_>,
    refusing: &FakeMcp,
    calling: &FakeMcp,
    url: &str,
    bearer: &impl Fn(&str) -> Value,
) {
    let body = |fake: &FakeMcp| {
        json!({
            "model": { "provider": "openai", "name": "m", "base_url": fake.url(), "secret": "model" }, "input": "Go.",
            "mcp": [{ "url": url, "auth": bearer("run") }], "secrets": { "run": RUN }, "limits": { "max_turns": 2 },
        })
    };
    let failed = watch.run("model-refuses", body(refusing)).await;
    assert_eq!(failed["error"]["code"], "model-error", "{failed}");
    let stopped = watch.run("model-calls", body(calling)).await;
    assert_eq!(stopped["reason"], "max-turns", "{stopped}");
}

/// Requests that are refused, with secrets in the wrong places.
async fn refusals(watch: &mut Watch<'_>, fake: &FakeMcp, url: &str) {
    let run = |fields: Value| {
        let mut body = calling(&[], json!([]));
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        body
    };
    let auth = json!({ "scheme": "bearer", "secret": "run" });
    for body in [
        run(json!({ "secrets": { "run": { "value": RUN } } })),
        run(json!({ "secrets": [RUN] })),
        run(json!({ "secrets": { "run": format!("{RUN}\r\nX: y") } })),
        run(json!({ "secrets": { "run": RUN }, "mcp": [{ "url": format!("http://u:{RUN}@127.0.0.1/") }] })),
        run(
            json!({ "secrets": { "run": RUN }, "mcp": [{ "url": url, "auth": { "scheme": "digest", "secret": RUN } }] }),
        ),
        run(json!({ "secrets": { "run": RUN }, "model": RUN })),
    ] {
        assert_eq!(watch.ask(Method::POST, "/v1/runs", &body).await.0, 422, "{body}");
    }
    for body in [
        json!({ "value": [STORED], "hosts": ["a.example"] }),
        json!({ "value": format!("{STORED}\n"), "hosts": ["*"] }),
    ] {
        assert_eq!(watch.ask(Method::PUT, "/v1/secrets/bad", &body).await.0, 422, "{body}");
    }
    // Nothing can be read: first the tools, then not even the handshake.
    let body = run(json!({ "secrets": { "run": RUN }, "mcp": [{ "url": url, "auth": auth }] }));
    fake.on_list(|seen| Reply::Error(json!({ "code": -32603, "message": echo(seen) })));
    for path in ["/v1/runs", "/v1/mcp-servers/one/probe"] {
        assert_eq!(watch.ask(Method::POST, path, &body).await.0, 502);
    }
    let said = format!("no session for {RUN} {STORED} {HEADER}");
    let error = json!({ "jsonrpc": "2.0", "id": 0, "error": { "code": -32600, "message": said } });
    for reply in [Reply::status(401, error.clone()), Reply::status(200, error), Reply::Reset, Reply::HalfBody] {
        fake.lose_sessions(Reply::status(404, json!({ "message": said })));
        fake.refuse_handshakes(reply);
        assert_eq!(watch.ask(Method::POST, "/v1/runs", &body).await.0, 502);
        assert_eq!(watch.ask(Method::POST, "/v1/mcp-servers/two/probe", &Value::Null).await.0, 502);
    }
}

/// What there is to read besides, and a stream ticket.
async fn read_all(watch: &mut Watch<'_>) -> String {
    for path in [
        "/v1/runs",
        "/v1/receipts",
        "/v1/admin/reconciliations",
        "/v1/admin/audit?limit=200",
        "/v1/secrets",
        "/v1/mcp-servers",
        "/v1/mcp-servers/one",
        "/metrics",
        "/openapi.json",
        "/readyz",
        "/healthz",
        "/",
        "/nothing",
    ] {
        watch.ask(Method::GET, path, &Value::Null).await;
    }
    for path in ["/v1/secrets/stored", "/v1/mcp-servers/one", "/v1/secrets/stored"] {
        watch.ask(Method::DELETE, path, &Value::Null).await;
    }
    let path = "/v1/runs/run-bearer/stream-tickets";
    let answer = watch.product.send(Method::POST, path, None).await;
    let ticket: Value = serde_json::from_str(&answer.text().await.unwrap()).unwrap();
    let ticket = ticket["ticket"].as_str().unwrap().to_owned();
    let path = format!("/v1/runs/run-bearer/events?ticket={ticket}");
    let streamed = reqwest::get(watch.product.url(&path)).await.unwrap();
    assert_eq!(streamed.status(), 200);
    watch.out.push(("a stream with a ticket".to_owned(), streamed.text().await.unwrap()));
    let foreign =
        reqwest::Client::new().get(watch.product.url("/v1/runs")).bearer_auth(format!("{}x", token("acme", "admin")));
    let refused = foreign.send().await.unwrap();
    assert_eq!(refused.status(), 401);
    watch.out.push(("a refused token".to_owned(), refused.text().await.unwrap()));
    ticket
}
