//! Values that must never be seen again are given to the server in every place that takes one, everything is made to
//! happen, and then every text that comes out of it is searched for them.

use http::Method;
use serde_json::{Value, json};

use super::calling;
use super::echoes::{self, holds, holds_beginning};
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
/// Replaces the stored one while servers may still repeat that.
const ROTATED: &str = "canary-rotated-e05b";
const NUMBER: &str = "4111111111111111";
/// What the operator gives a process of ours to keep.
const PROCESS: &str = "canary-process-2d68";
const SECRETS: [&str; 9] = [RUN, QUOTED, STORED, HEADER, MODEL, UNSENT, ROTATED, NUMBER, PROCESS];
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
        "task" => {
            Reply::Result(json!({ "resultType": "task", "taskId": format!("task-{}", echoes::credential(seen)) }))
        }
        "reset" => Reply::Sse(vec![
            Step::Raw(format!("data: {{\"jsonrpc\":\"2.0\",\"method\":\"x\",\"params\":\"{said}\"}}\n\n")),
            Step::Cut,
        ]),
        _ => echoes::answer(seen, &format!("first you said {STORED} and {HEADER}")),
    }
}

/// A server that repeats everything it is told, in its tools too.
async fn echoing() -> FakeMcp {
    let fake = FakeMcp::start().await;
    fake.on_call(answer);
    fake.on_list(|seen| {
        let mut tools: Vec<Value> = TOOLS.iter().chain(&["task"]).map(|name| tool(name)).collect();
        tools.extend(echoes::tools());
        tools.extend(echoes::unusable(&echoes::credential(seen)));
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
    let declared = process();
    let file = declared.path().join("servers.toml").display().to_string();
    let options = Options::default().with("RUST_LOG", "debug").with("--config", file);
    let product = Product::start_as(&database.url, &options).await;
    let (fake, refusing, calling_model) = (echoing().await, provider(true).await, provider(false).await);
    let mut watch = Watch { product: &product, out: Vec::new() };
    for (name, value) in [("stored", STORED), ("header", HEADER), ("model", MODEL), ("number", NUMBER)] {
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
    repeats(&mut watch, &url, &header, &bearer).await;
    talks(&mut watch, &bearer).await;
    models(&mut watch, &refusing, &calling_model, &url, &bearer).await;
    refusals(&mut watch, &fake, &url).await;
    let ticket = read_all(&mut watch).await;
    let mut out = std::mem::take(&mut watch.out);

    for secret in [RUN, QUOTED, STORED, HEADER, ROTATED, NUMBER] {
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
        for secret in SECRETS {
            assert!(!holds_beginning(text, secret), "{secret} begins in {place}: {text}");
        }
    }
    let dump = database.dump().await;
    assert!(dump.contains("[redacted]") && !dump.contains(&ticket), "results are stored");
    for secret in SECRETS.iter().chain(&SETTINGS) {
        assert!(!holds(&dump, secret), "{secret} stands in the database");
    }
    for secret in SECRETS {
        assert!(!holds_beginning(&dump, secret), "{secret} begins in the database");
    }
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

/// Every way to repeat a credential; of one that was replaced, too; and what must go back to the server as it is.
async fn repeats(watch: &mut Watch<'_>, url: &str, header: &impl Fn(&str) -> Value, bearer: &impl Fn(&str) -> Value) {
    let names = echoes::names();
    let turns: Vec<Value> = names
        .chunks(20)
        .map(|turn| turn.iter().map(|name| json!({ "name": name, "arguments": {} })).collect::<Value>())
        .map(|calls| json!({ "tool_calls": calls }))
        .chain([json!({ "text": "Done." })])
        .collect();
    let mut all = async |id: &str, entry: Value| {
        let mut body = calling(&[], json!([entry]));
        body["model"]["script"] = json!(turns);
        body["secrets"] = json!({ "run": RUN, "quoted": QUOTED });
        let run = watch.run(id, body).await;
        assert_eq!(run["status"], "completed", "{id}: {run}");
        let (_, receipts) = watch.ask(Method::GET, &format!("/v1/runs/{id}/receipts?limit=200"), &Value::Null).await;
        let receipts: Value = serde_json::from_str(&receipts).unwrap();
        let receipts = receipts["data"].as_array().unwrap();
        assert_eq!(receipts.len(), names.len(), "{id}");
        assert!(receipts.iter().all(|receipt| matches!(receipt["stage"].as_str(), Some("completed" | "failed"))));
        let events = &watch.out.iter().find(|(place, _)| *place == format!("stream of {id}")).unwrap().1;
        assert!(events.contains("tool-progress") && events.contains("[redacted]"), "{id}: progress is told");
    };
    all("repeats-stored", json!({ "server": "one" })).await;
    all("repeats-run", json!({ "url": url, "auth": header("quoted"), "elicitation": "ask" })).await;
    all("repeats-number", json!({ "url": url, "auth": bearer("number") })).await;
    for (id, entry) in
        [("task-stored", json!({ "server": "one" })), ("task-run", json!({ "url": url, "auth": bearer("run") }))]
    {
        let mut body = calling(&["task"], json!([entry]));
        body["secrets"] = json!({ "run": RUN });
        let run = watch.run(id, body).await;
        assert_eq!(run["reason"], "tool-reconciliation-required", "{id}: {run}");
    }
    let body = json!({ "value": ROTATED, "hosts": ["127.0.0.1"] });
    assert_eq!(watch.ask(Method::PUT, "/v1/secrets/stored", &body).await.0, 204);
    for (id, entry) in [
        ("rotated-server", json!({ "server": "one" })),
        ("rotated-inline", json!({ "url": url, "auth": bearer("stored") })),
    ] {
        let run = watch.run(id, calling(&["earlier", "ok"], json!([entry]))).await;
        assert_eq!(run["status"], "completed", "{id}: {run}");
    }
}

/// A server that repeats its credential before it is asked for anything, and a process that does.
async fn talks(watch: &mut Watch<'_>, bearer: &impl Fn(&str) -> Value) {
    let talking = FakeMcp::start().await;
    talking.forgo_sessions();
    talking.guard(|seen| {
        let told = echoes::credential(seen);
        let info = json!({ "name": told, "title": told, "version": told });
        let capabilities = json!({ "tools": {}, "experimental": { told.clone(): { "a": told } } });
        (seen.rpc() == "initialize").then(|| {
            let version = "2025-06-18";
            Reply::Result(json!({ "protocolVersion": version, "serverInfo": info, "capabilities": capabilities, "instructions": told }))
        })
    });
    let body = json!({ "url": talking.url(), "auth": bearer("stored") });
    assert_eq!(watch.ask(Method::PUT, "/v1/mcp-servers/talking", &body).await.0, 201);
    for path in ["/v1/mcp-servers/talking/probe", "/v1/mcp-servers/process/probe"] {
        let (status, text) = watch.ask(Method::POST, path, &Value::Null).await;
        assert!(status == 200 && text.contains("[redacted]"), "{path}: {text}");
    }
    let run = watch.run("process", calling(&["say", "say"], json!([{ "server": "process" }]))).await;
    assert_eq!(run["status"], "completed", "{run}");
    let events = watch.product.get("/v1/runs/process/events?limit=200").await.to_string();
    assert!(events.contains("tool-progress") && events.contains("[redacted]"), "{events}");
}

/// A server that is a process of ours and says its key wherever it can, and the file that declares it.
fn process() -> tempfile::TempDir {
    const SCRIPT: &str = r#"
import json, os, sys, time
KEY = os.environ["KEY"]
def say(message):
    sys.stdout.write(json.dumps(dict(message, jsonrpc="2.0")) + "\n"); sys.stdout.flush()
for line in sys.stdin:
    asked = json.loads(line); id = asked.get("id"); method = asked.get("method")
    sys.stderr.write("the key is " + KEY + "\n" + "x" * (4096 - 14) + KEY + "\n"); sys.stderr.flush()
    if method == "initialize":
        say({"id": id, "result": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": KEY, "version": "1"}}})
    elif method == "tools/list":
        say({"id": id, "result": {"tools": [{"name": "say", "description": KEY, "inputSchema": {"type": "object"}}]}})
    elif method == "tools/call":
        token = asked["params"]["_meta"]["progressToken"]
        say({"method": "notifications/progress", "params": {"progressToken": token, "progress": 1, "message": "x" * (500 - 14) + KEY}})
        say({"method": "notifications/message", "params": {"level": "error", "data": KEY}})
        time.sleep(0.6)
        say({"id": id, "result": {"isError": True, "content": [{"type": "text", "text": "x" * (4000 - 14) + KEY}]}})
    elif id is not None:
        say({"id": id, "error": {"code": -32601, "message": "no " + KEY}})
"#;
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("server.py");
    std::fs::write(&script, SCRIPT).unwrap();
    let declared = format!(
        "[mcp_servers.process]\ncommand = \"python3\"\nargs = [{:?}]\ntenants = [\"acme\"]\n[mcp_servers.process.env]\nKEY = \"{PROCESS}\"\n",
        script.display().to_string()
    );
    std::fs::write(folder.path().join("servers.toml"), declared).unwrap();
    folder
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
    for padding in (400..510).step_by(4).chain((3_900..4_010).step_by(4)) {
        fake.on_list(move |seen| {
            let said = "x".repeat(padding) + &echoes::credential(seen);
            Reply::Error(json!({ "code": -32603, "message": said }))
        });
        assert_eq!(watch.ask(Method::POST, "/v1/runs", &body).await.0, 502);
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
