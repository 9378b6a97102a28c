//! JSON Schemas that are made to cost much, from servers and in requests: they are refused, the server answers meanwhile,
//! its memory stays small, and another tenant's run goes on.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Map, Value, json};
use tokio::time::{Instant, sleep};

use crate::support::database::{Database, both_stores};
use crate::support::fake_mcp::{FakeMcp, Reply, Step};
use crate::support::product::{Ask, Product};

both_stores! {
    requests_whose_schemas_cost_too_much_are_refused_and_hold_up_nobody,
    catalogs_whose_schemas_cost_too_much_lose_tools_and_hold_up_nobody,
    a_question_whose_form_is_a_bomb_is_refused_and_holds_up_nobody,
}

/// The longest anybody may wait for a sign of life meanwhile.
const SIGN_WITHIN: Duration = Duration::from_secs(1);
/// Most memory of the process, in MiB: an idle one of a debug build takes about 60.
const MEMORY_MAX: u64 = 400;

/// So many patterns of `a{900}`, all different.
fn patterns(tag: &str, count: usize) -> Value {
    let parts = (0..count).map(|n| (format!("p{n}"), json!({ "pattern": format!("{tag}x{n}a{{900}}") })));
    json!({ "type": "object", "properties": parts.collect::<Map<_, _>>() })
}

/// Nine hundred bytes, along whose references a rule on unevaluated parts would be compiled in millions of ways.
fn branching() -> Value {
    let level = |n: usize| {
        let next = json!({ "$ref": format!("#/$defs/{}", n + 1) });
        json!({ "unevaluatedProperties": false, "allOf": [next, next] })
    };
    let mut levels: Map<String, Value> = (0..20).map(|n| (n.to_string(), level(n))).collect();
    levels.insert("20".to_owned(), json!({}));
    json!({ "$ref": "#/$defs/0", "$defs": levels })
}

async fn ask(product: &Product, tenant: &str, method: Method, path: &str, body: Option<&Value>) -> (u16, Value) {
    let patience = Duration::from_mins(1);
    product.try_send(&Ask { tenant, method, path, body, key: None, patience }).await.unwrap()
}

/// Another tenant's run, from its admission to its end.
async fn another_run(product: &Product, id: &str) {
    let script = json!([{ "text": "Done." }]);
    let body = json!({ "id": id, "input": "x", "model": { "provider": "scripted", "name": "d", "script": script } });
    let (status, created) = ask(product, "globex", Method::POST, "/v1/runs", Some(&body)).await;
    assert_eq!(status, 201, "{created}");
    loop {
        let (_, run) = ask(product, "globex", Method::GET, &format!("/v1/runs/{id}"), None).await;
        if run["status"] == "completed" {
            return;
        }
        sleep(Duration::from_millis(20)).await;
    }
}

/// Does something, and asks meanwhile again and again whether the server lives; another tenant's run takes place too.
async fn while_others_work<T>(product: &Product, attack: impl Future<Output = T>) -> T {
    let signs = async {
        let mut worst = Duration::ZERO;
        loop {
            let began = Instant::now();
            product.try_send(&sign()).await.unwrap();
            worst = worst.max(began.elapsed());
            assert!(worst < SIGN_WITHIN, "no sign of life for {worst:?}");
            sleep(Duration::from_millis(20)).await;
        }
    };
    let attack = async {
        let run = async {
            tokio::time::timeout(Duration::from_secs(10), another_run(product, "other")).await.unwrap();
        };
        tokio::join!(attack, run).0
    };
    let done = tokio::select! {
        done = attack => done,
        () = signs => unreachable!("it asks for ever"),
    };
    let memory = product.peak_memory();
    assert!(memory < MEMORY_MAX, "{memory} MiB");
    done
}

fn sign() -> Ask<'static> {
    let patience = Duration::from_secs(30);
    Ask { tenant: "globex", method: Method::GET, path: "/v1/runs?limit=1", body: None, key: None, patience }
}

async fn requests_whose_schemas_cost_too_much_are_refused_and_hold_up_nobody(database: Database) {
    let product = Product::start(&database).await;
    let entry =
        |schema: Value| json!({ "url": "http://127.0.0.1:9/", "tools": ["t"], "input_schemas": { "a/b": schema } });
    let run = |schema: Value| {
        let script = json!([{ "text": "x" }]);
        let model = json!({ "provider": "scripted", "name": "d", "script": script });
        json!({ "model": model, "input": "x", "mcp": [entry(schema)] })
    };
    let bodies = [
        (Method::POST, "/v1/runs", run(patterns("a", 20_000)), "/mcp/0/input_schemas/a~1b"),
        (Method::POST, "/v1/runs", run(branching()), "/mcp/0/input_schemas/a~1b"),
        (Method::PUT, "/v1/mcp-servers/s1", entry(patterns("b", 20_000)), "/input_schemas/a~1b"),
        (Method::PUT, "/v1/mcp-servers/s2", entry(branching()), "/input_schemas/a~1b"),
    ];
    // Each schema is small, and all are too many.
    let many: Map<String, Value> = (0..400).map(|n| (format!("t{n}"), patterns(&n.to_string(), 50))).collect();
    let mut many_bodies = run(json!({}));
    many_bodies["mcp"][0]["input_schemas"] = many.into();
    let refused = async {
        let asked = bodies.iter().map(|(method, path, body, pointer)| async {
            let (status, problem) = ask(&product, "acme", method.clone(), path, Some(body)).await;
            assert_eq!(status, 422, "{problem}");
            assert_eq!(problem["errors"][0]["pointer"], *pointer, "{problem}");
        });
        let together = async {
            let (status, problem) = ask(&product, "acme", Method::POST, "/v1/runs", Some(&many_bodies)).await;
            assert_eq!(status, 422, "{}", problem["title"]);
            assert!(problem.to_string().contains("together with the other schemas"), "{}", problem["title"]);
        };
        tokio::join!(futures::future::join_all(asked), together);
    };
    while_others_work(&product, refused).await;
}

async fn catalogs_whose_schemas_cost_too_much_lose_tools_and_hold_up_nobody(database: Database) {
    let product = Product::start(&database).await;
    let mut servers = Vec::new();
    for n in 0..4 {
        let server = FakeMcp::start().await;
        let tool = |t: usize| json!({ "name": format!("t{t}"), "inputSchema": patterns(&format!("{n}y{t}"), 40) });
        let mut tools: Vec<Value> = (0..100).map(tool).collect();
        tools.push(json!({ "name": "bomb", "inputSchema": { "type": "object", "allOf": [branching()] } }));
        tools.push(json!({ "name": "charge", "inputSchema": { "type": "object" } }));
        server.serve(tools);
        servers.push(server);
    }
    let entry = |(n, server): (usize, &FakeMcp)| json!({ "url": server.url(), "namespace": format!("n{n}"), "timeouts": { "connect_ms": 60_000 } });
    let entries: Vec<Value> = servers.iter().enumerate().map(entry).collect();
    let script = json!([{ "tool_calls": [{ "name": "n3_charge", "arguments": {} }] }, { "text": "Done." }]);
    let model = json!({ "provider": "scripted", "name": "d", "script": script });
    let body = json!({ "id": "r", "model": model, "input": "x", "mcp": entries });
    let created = while_others_work(&product, ask(&product, "acme", Method::POST, "/v1/runs", Some(&body))).await;
    assert_eq!(created.0, 201, "{}", created.1);
    assert_eq!(product.rested("r").await["status"], "completed");
    let events = product.get("/v1/runs/r/events?limit=200").await.to_string();
    assert!(events.contains("mcp-tool-unusable") && events.contains("too long to compile"), "{events}");
    assert_eq!(servers[3].count("tools/call"), 1, "the plain tool was called");
}

async fn a_question_whose_form_is_a_bomb_is_refused_and_holds_up_nobody(database: Database) {
    let server = FakeMcp::start().await;
    let deep = (0..26).fold(json!({ "y": 1 }), |inner, _| json!({ "x": inner, "y": 1 }));
    let branch = |name: &str| json!({ "properties": { "x": { "$ref": "#/$defs/n" } }, "required": [name] });
    let schema = json!({ "type": "object", "properties": { "v": { "$ref": "#/$defs/n", "default": deep } },
        "$defs": { "n": { "anyOf": [branch("a"), branch("b")] } } });
    let costly = json!({ "type": "object", "properties": patterns("q", 90)["properties"] });
    let asks = move |seen: &crate::support::fake_mcp::Seen| {
        let (id, schema) = if seen.body["params"]["arguments"]["amount"] == 1 { (9, &schema) } else { (10, &costly) };
        let question = json!({ "message": "Proceed?", "requestedSchema": schema });
        Reply::Sse(vec![Step::Ask(id, "elicitation/create", question), Step::Told(vec![id])])
    };
    server.on_call(asks);
    let product = Product::start(&database).await;
    let call = |amount: u64| json!({ "tool_calls": [{ "name": "charge", "arguments": { "amount": amount } }] });
    let script = json!([call(1), call(2), { "text": "Done." }]);
    let model = json!({ "provider": "scripted", "name": "d", "script": script });
    let body =
        json!({ "id": "r", "model": model, "input": "x", "mcp": [{ "url": server.url(), "elicitation": "ask" }] });
    let asked = async {
        product.post("/v1/runs", &body, 201).await;
        product.rested("r").await
    };
    let run = while_others_work(&product, asked).await;
    assert_eq!((&run["status"], run["pending"]["inputs"].as_array().map(Vec::len)), (&json!("completed"), Some(0)));
    let told = product.get("/v1/runs/r/messages").await.to_string();
    assert!(told.contains("refers to its") && told.contains("too long to check"), "{told}");
}
