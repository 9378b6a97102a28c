//! Servers that ask people: the question is shown, answered over the API by anybody who may, and told to the server.

use std::time::Duration;

use http::Method;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::harness::{RUNS, SOON, Server, request};
use crate::support::database::{Database, both_stores};
use crate::support::fake_mcp::{FakeMcp, Reply, Seen, Step};
use crate::support::world::run_on;

both_stores! {
    b106_a_question_is_shown_answered_with_defaults_and_told_to_the_server_once,
    a_page_to_visit_is_shown_and_declined,
    a_server_that_nobody_lets_ask_is_declined_and_told_no_capability,
    a_question_that_nobody_answers_ends_before_its_call,
    b106_a_run_that_is_cancelled_closes_its_questions_and_its_connection,
    b106_b109_in_the_newer_era_the_run_waits_and_goes_on_with_the_last_answer,
    a_server_that_asks_for_ever_is_answered_ten_times,
    questions_of_every_kind_come_back_in_one_round,
    a_run_that_waits_for_input_can_be_cancelled_and_is_not_resumed,
}

const FORM: &str = "elicitation/create";

pub(super) fn form() -> Value {
    json!({ "message": "Who pays?", "requestedSchema": {
        "type": "object",
        "properties": {
            "name": { "type": "string", "minLength": 2 },
            "amount": { "type": "number", "default": 5.50 },
            "count": { "type": "integer", "default": 3 },
            "express": { "type": "boolean", "default": true },
            "size": { "type": "string", "enum": ["s", "m"], "default": "m" },
            "note": { "type": "string", "default": "none" },
        },
        "required": ["name"],
    } })
}

fn page() -> Value {
    json!({ "mode": "url", "message": "Sign here.", "url": "https://sign.example/x", "elicitationId": "e1" })
}

/// A run of one charge at a server that may ask.
fn asks(id: &str, fake: &FakeMcp) -> Value {
    run_on(id, &[("charge", json!({ "amount": 5 }))], json!([{ "url": fake.url(), "elicitation": "ask" }]))
}

/// The run once `holds` does.
pub(super) async fn until(server: &Server, id: &str, holds: impl Fn(&Value) -> bool) -> Value {
    let deadline = Instant::now() + SOON;
    loop {
        let run = server.get(&format!("/v1/runs/{id}"), &server.alice()).await.json();
        if holds(&run) {
            return run;
        }
        assert!(Instant::now() < deadline, "{run:#}");
        sleep(Duration::from_millis(5)).await;
    }
}

pub(super) async fn asked(server: &Server, id: &str) -> Value {
    let run = until(server, id, |run| run["pending"]["inputs"].get(0).is_some()).await;
    run["pending"]["inputs"][0].clone()
}

fn path(id: &str, input: &Value) -> String {
    format!("/v1/runs/{id}/inputs/{}", input["input_id"].as_str().unwrap())
}

pub(super) async fn ended(server: &Server, id: &str) -> Value {
    until(server, id, |run| !run["finished_at"].is_null()).await
}

/// The events of a run, of one type.
pub(super) async fn events(server: &Server, id: &str, kind: &str) -> Vec<Value> {
    let request = request(
        Method::GET,
        &format!("/v1/runs/{id}/events?limit=200"),
        &server.alice(),
        &[("accept", "application/json")],
        axum::body::Body::empty(),
    );
    let events = server.send(request).await.json();
    events["data"].as_array().unwrap().iter().filter(|event| event["type"] == kind).cloned().collect()
}

/// What the server was told, as its tool repeated it.
pub(super) async fn told(server: &Server, id: &str) -> Value {
    let receipts = server.get(&format!("/v1/runs/{id}/receipts"), &server.alice()).await.json();
    let text = receipts["data"][0]["output"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{receipts:#}"));
    serde_json::from_str(text).unwrap()
}

async fn b106_a_question_is_shown_answered_with_defaults_and_told_to_the_server_once(database: Database) {
    let (server, fake) = (Server::start_on(database).await, FakeMcp::start().await);
    fake.on_call(|_| Reply::Sse(vec![Step::Ask(71, FORM, form()), Step::Told(vec![71])]));
    let alice = server.alice();
    server.post("/v1/runs", &alice, &asks("r", &fake)).await;
    let input = asked(&server, "r").await;
    let run = server.get("/v1/runs/r", &alice).await.json();
    assert_eq!((run["status"].as_str(), run["reason"].is_null()), (Some("running"), true), "{run:#}");
    assert_eq!((input["mode"].as_str(), input["message"].as_str()), (Some("form"), Some("Who pays?")));
    assert_eq!(input["requested_schema"], form()["requestedSchema"]);
    assert_eq!((input["turn"].as_u64(), input["call_id"].as_str()), (Some(1), Some("call_1")));
    assert!(input["expires_at"].is_string() && input["server"].is_string() && input.get("url").is_none());
    let at = path("r", &input);

    let bad = server.post(&at, &alice, &json!({ "action": "accept", "content": { "name": "A", "count": "x" } })).await;
    let problem = bad.problem(422, "validation-failed");
    let pointers: Vec<&str> =
        problem["errors"].as_array().unwrap().iter().map(|fault| fault["pointer"].as_str().unwrap()).collect();
    assert!(pointers.contains(&"/content/name") && pointers.contains(&"/content/count"), "{problem:#}");
    server.post(&at, &alice, &json!({ "action": "decline", "content": {} })).await.problem(422, "validation-failed");
    server.post(&at, &alice, &json!({ "action": "shrug" })).await.problem(422, "validation-failed");
    server
        .post(&at, &server.token("acme", "bob", "runs:read"), &json!({ "action": "decline" }))
        .await
        .problem(403, "forbidden");
    server
        .post(&at, &server.token("globex", "eve", RUNS), &json!({ "action": "decline" }))
        .await
        .problem(404, "not-found");
    server.post("/v1/runs/r/inputs/input_2", &alice, &json!({ "action": "decline" })).await.problem(404, "not-found");

    let answer = json!({ "action": "accept", "content": { "name": "Ann" } });
    let answered = server.post(&at, &alice, &answer).await;
    assert_eq!(answered.status, 200, "{:?}", answered.body);
    assert_eq!(answered.json()["pending"]["inputs"], json!([]));
    server.post(&at, &alice, &answer).await.problem(409, "already-answered");
    let run = ended(&server, "r").await;
    assert_eq!(run["status"], "completed", "{run:#}");
    let content = json!({ "name": "Ann", "amount": 5.50, "count": 3, "express": true, "size": "m", "note": "none" });
    assert_eq!(told(&server, "r").await["71"], json!({ "action": "accept", "content": content }));
    let requested = &events(&server, "r", "input-requested").await[0];
    assert_eq!(requested["input"], input);
    let answered = &events(&server, "r", "input-answered").await[0]["input"];
    assert_eq!((answered["action"].as_str(), answered["actor"].as_str()), (Some("accept"), Some("alice")));
    assert!(answered.get("content").is_none());
    fake.wait_until(|fake| fake.count_http("DELETE") == 1).await;
    let capabilities = &fake.seen_rpc("initialize")[0].body["params"]["capabilities"];
    assert_eq!(capabilities["elicitation"], json!({ "form": {}, "url": {} }), "{capabilities}");
    assert!(capabilities.get("roots").is_none() && capabilities.get("sampling").is_none());
}

async fn a_page_to_visit_is_shown_and_declined(database: Database) {
    let (server, fake) = (Server::start_on(database).await, FakeMcp::start().await);
    fake.on_call(|_| Reply::Sse(vec![Step::Ask(71, FORM, page()), Step::Told(vec![71])]));
    server.post("/v1/runs", &server.alice(), &asks("r", &fake)).await;
    let input = asked(&server, "r").await;
    assert_eq!((input["mode"].as_str(), input["url"].as_str()), (Some("url"), Some("https://sign.example/x")));
    assert!(input.get("requested_schema").is_none());
    let answered = server.post(&path("r", &input), &server.alice(), &json!({ "action": "decline" })).await;
    assert_eq!(answered.status, 200, "{:?}", answered.body);
    assert_eq!(ended(&server, "r").await["status"], "completed");
    assert_eq!(told(&server, "r").await["71"], json!({ "action": "decline" }));
}

async fn a_server_that_nobody_lets_ask_is_declined_and_told_no_capability(database: Database) {
    let (server, fake) = (Server::start_on(database).await, FakeMcp::start().await);
    fake.on_call(|_| {
        let sample = json!({ "messages": [], "maxTokens": 5 });
        Reply::Sse(vec![
            Step::Ask(71, FORM, form()),
            Step::Ask(72, "sampling/createMessage", sample),
            Step::Ask(73, "roots/list", json!({})),
            Step::Told(vec![71, 72, 73]),
        ])
    });
    let body = run_on("r", &[("charge", json!({ "amount": 5 }))], json!([{ "url": fake.url() }]));
    let run = server.settled(&body).await;
    assert_eq!(run["status"], "completed", "{run:#}");
    let told = told(&server, "r").await;
    assert_eq!(told["71"], json!({ "action": "decline" }));
    assert_eq!((&told["72"]["code"], &told["73"]), (&json!(-32601), &json!({ "roots": [] })));
    let told = &fake.seen_rpc("initialize")[0].body["params"]["capabilities"];
    assert_eq!((told.get("elicitation"), told.get("sampling"), told.get("roots")), (None, None, None));
    assert!(events(&server, "r", "input-requested").await.is_empty());
}

async fn a_question_that_nobody_answers_ends_before_its_call(database: Database) {
    let (server, fake) = (Server::start_on(database).await, FakeMcp::start().await);
    fake.on_call(|_| Reply::Sse(vec![Step::Ask(71, FORM, form()), Step::Told(vec![71])]));
    let mut body = asks("r", &fake);
    body["mcp"][0]["timeouts"] = json!({ "call_ms": 100, "call_total_ms": 2_000 });
    let run = server.settled(&body).await;
    assert_eq!((run["status"].as_str(), &run["pending"]["inputs"]), (Some("completed"), &json!([])), "{run:#}");
    assert_eq!(told(&server, "r").await["71"], json!({ "action": "cancel" }));
    let answered = &events(&server, "r", "input-answered").await[0]["input"];
    assert_eq!((answered["action"].as_str(), answered["reason"].as_str()), (Some("cancel"), Some("expired")));
    server
        .post("/v1/runs/r/inputs/input_1", &server.alice(), &json!({ "action": "decline" }))
        .await
        .problem(409, "already-answered");
}

async fn b106_a_run_that_is_cancelled_closes_its_questions_and_its_connection(database: Database) {
    let (server, fake) = (Server::start_on(database).await, FakeMcp::start().await);
    fake.on_call(|_| Reply::Sse(vec![Step::Ask(71, FORM, form()), Step::Hang]));
    let alice = server.alice();
    server.post("/v1/runs", &alice, &asks("r", &fake)).await;
    let input = asked(&server, "r").await;
    server.post("/v1/runs/r/cancel", &alice, &json!({})).await;
    let run = ended(&server, "r").await;
    assert_eq!((run["status"].as_str(), &run["pending"]["inputs"]), (Some("cancelled"), &json!([])), "{run:#}");
    let answered = &events(&server, "r", "input-answered").await[0]["input"];
    assert_eq!((answered["action"].as_str(), answered["reason"].as_str()), (Some("cancel"), Some("call-ended")));
    server.post(&path("r", &input), &alice, &json!({ "action": "decline" })).await.problem(409, "already-answered");
    fake.wait_until(|fake| fake.count_http("DELETE") == 1).await;
}

/// A server of the newer era that asks these questions until it has an answer to each.
async fn modern(requests: impl Fn(&Seen) -> Option<Value> + Send + Sync + 'static) -> FakeMcp {
    let fake = FakeMcp::start().await;
    fake.be_modern(true);
    fake.on_list(|_| {
        let tool = json!({ "name": "charge", "inputSchema": { "type": "object" } });
        Reply::Result(json!({ "resultType": "complete", "tools": [tool], "ttlMs": 0, "cacheScope": "private" }))
    });
    fake.on_call(move |seen| {
        let done = || {
            let told = seen.body["params"]["inputResponses"].to_string();
            json!({ "resultType": "complete", "content": [{ "type": "text", "text": told }] })
        };
        Reply::Result(requests(seen).unwrap_or_else(done))
    });
    fake
}

fn required(requests: Value, state: &str) -> Value {
    json!({ "resultType": "input_required", "inputRequests": requests, "requestState": state })
}

fn elicit(params: Value) -> Value {
    json!({ "method": FORM, "params": params })
}

const STATE: &str = "\u{7f}ä \"\\ =\n+/";

async fn b106_b109_in_the_newer_era_the_run_waits_and_goes_on_with_the_last_answer(database: Database) {
    let fake = modern(|seen| {
        let asks = json!({ "a": elicit(form()), "b": elicit(page()) });
        seen.body["params"]["inputResponses"].is_null().then(|| required(asks, STATE))
    })
    .await;
    let server = Server::start_on(database).await;
    let alice = server.alice();
    let run = server.settled(&asks("r", &fake)).await;
    assert_eq!(
        (run["status"].as_str(), run["reason"].as_str()),
        (Some("suspended"), Some("input-required")),
        "{run:#}"
    );
    let inputs = run["pending"]["inputs"].as_array().unwrap().clone();
    assert_eq!(inputs.len(), 2);
    assert!(inputs.iter().all(|input| input.get("expires_at").is_none()));
    let receipt = server.get("/v1/runs/r/receipts", &alice).await.json()["data"][0].clone();
    assert_eq!((receipt["stage"].as_str(), receipt["attempt"].as_u64()), (Some("waiting"), Some(1)), "{receipt:#}");

    // A person's answer is kept though the run goes on waiting, and neither a resume nor anything else sends the call.
    let first = server.post(&path("r", &inputs[1]), &alice, &json!({ "action": "accept" })).await;
    assert_eq!((first.status.as_u16(), first.json()["status"].as_str()), (200, Some("suspended")));
    let resumed = server.post("/v1/runs/r/resume", &alice, &json!({})).await;
    assert_eq!((resumed.status.as_u16(), resumed.json()["reason"].as_str()), (200, Some("input-required")));
    assert_eq!(fake.count("tools/call"), 1);

    let server = server.restart().await;
    let run = server.get("/v1/runs/r", &alice).await.json();
    assert_eq!(run["pending"]["inputs"], json!([inputs[0]]), "{run:#}");
    let answer = json!({ "action": "accept", "content": { "name": "Ann", "amount": 117.633_313_914_000_17 } });
    let answer = answer.to_string().replace("117.63331391400017", "117.63331391400017001");
    let answer: Value = serde_json::from_str(&answer).unwrap();
    let last = server.post(&path("r", &inputs[0]), &alice, &answer).await;
    assert_eq!(last.status, 200, "{:?}", last.body);
    server.post(&path("r", &inputs[0]), &alice, &answer).await.problem(409, "already-answered");
    let run = ended(&server, "r").await;
    assert_eq!(run["status"], "completed", "{run:#}");
    let calls = fake.seen_rpc("tools/call");
    assert_eq!(calls.len(), 2);
    assert_eq!(calls[1].body["params"]["requestState"], STATE);
    assert_eq!(calls[0].headers["idempotency-key"], calls[1].headers["idempotency-key"]);
    assert_eq!(calls[0].body["params"]["arguments"], calls[1].body["params"]["arguments"]);
    let told = told(&server, "r").await;
    assert_eq!(told["b"], json!({ "action": "accept" }));
    assert_eq!(told["a"]["content"]["amount"].to_string(), "117.63331391400017001");
    let receipt = server.get("/v1/runs/r/receipts", &alice).await.json()["data"][0].clone();
    assert_eq!((receipt["stage"].as_str(), receipt["attempt"].as_u64()), (Some("completed"), Some(1)), "{receipt:#}");
}

async fn a_server_that_asks_for_ever_is_answered_ten_times(database: Database) {
    let fake = modern(|_| Some(required(json!({}), "again"))).await;
    let server = Server::start_on(database).await;
    let run = server.settled(&asks("r", &fake)).await;
    assert_eq!(run["status"], "completed", "{run:#}");
    assert_eq!(fake.count("tools/call"), 11);
    let receipt = server.get("/v1/runs/r/receipts", &server.alice()).await.json()["data"][0].clone();
    assert_eq!(
        (receipt["stage"].as_str(), receipt["error"]["code"].as_str()),
        (Some("failed"), Some("input-required"))
    );
    assert!(receipt["error"]["message"].as_str().unwrap().contains("more than 10 times"), "{receipt:#}");
}

async fn questions_of_every_kind_come_back_in_one_round(database: Database) {
    let fake = modern(|seen| {
        let sample = json!({ "messages": [{ "role": "user", "content": { "type": "text", "text": "Short?" } }], "maxTokens": 50 });
        let asks = json!({
            "ask": elicit(form()), "roots": { "method": "roots/list" },
            "sample": { "method": "sampling/createMessage", "params": sample },
        });
        seen.body["params"]["inputResponses"].is_null().then(|| required(asks, "s"))
    })
    .await;
    let server = Server::start_on(database).await;
    let mut body = asks("r", &fake);
    let model = json!({ "provider": "scripted", "name": "small", "script": [{ "text": "Yes." }] });
    body["mcp"][0]["sampling"] = json!({ "model": model });
    let run = server.settled(&body).await;
    assert_eq!(run["reason"], "input-required", "{run:#}");
    assert_eq!(run["usage"]["sampling"]["total_tokens"], 15, "the sample is made before anybody is waited for");
    let answer = json!({ "action": "cancel" });
    assert_eq!(server.post(&path("r", &run["pending"]["inputs"][0]), &server.alice(), &answer).await.status, 200);
    let run = ended(&server, "r").await;
    assert_eq!(
        (run["status"].as_str(), run["usage"]["model_requests"].as_u64()),
        (Some("completed"), Some(3)),
        "{run:#}"
    );
    let told = told(&server, "r").await;
    assert_eq!(told["ask"], json!({ "action": "cancel" }));
    assert_eq!(told["roots"], json!({ "roots": [] }));
    assert_eq!(told["sample"]["content"], json!({ "type": "text", "text": "Yes." }));
    assert_eq!(told["sample"]["model"], "small");
}

async fn a_run_that_waits_for_input_can_be_cancelled_and_is_not_resumed(database: Database) {
    let fake = modern(|_| Some(required(json!({ "a": elicit(form()) }), "s"))).await;
    let server = Server::start_on(database).await;
    let alice = server.alice();
    let run = server.settled(&asks("r", &fake)).await;
    assert_eq!(run["reason"], "input-required", "{run:#}");
    server
        .send(request(Method::DELETE, "/v1/runs/r", &alice, &[], axum::body::Body::empty()))
        .await
        .problem(409, "run-not-ended");
    server.post("/v1/runs/r/cancel", &alice, &json!({})).await;
    let run = ended(&server, "r").await;
    assert_eq!((run["status"].as_str(), &run["pending"]["inputs"]), (Some("cancelled"), &json!([])), "{run:#}");
    let receipt = server.get("/v1/runs/r/receipts", &alice).await.json()["data"][0].clone();
    assert_eq!(
        (receipt["stage"].as_str(), receipt["error"]["code"].as_str()),
        (Some("failed"), Some("cancelled")),
        "{receipt:#}"
    );
    server
        .post(&path("r", &json!({ "input_id": "input_1" })), &alice, &json!({ "action": "decline" }))
        .await
        .problem(409, "already-answered");
    assert_eq!(fake.count("tools/call"), 1);
    server.send(request(Method::DELETE, "/v1/runs/r", &alice, &[], axum::body::Body::empty())).await;
}
