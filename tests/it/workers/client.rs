//! Tools that the run's client carries out.

use std::sync::Arc;

use reqwest::Method;
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::{problem, receipt, results, run, server, until};
use crate::support::database::{Database, both_stores};
use crate::support::fake_mcp::{FakeMcp, Reply, tool};

both_stores! {
    b105_the_run_waits_for_its_client_and_goes_on_with_the_last_result,
    a_resume_may_bring_results_too,
    results_come_while_a_server_still_works,
    b202_b223_results_contact_no_server_before_the_leg_that_follows,
    a_run_that_waits_for_its_client_can_be_cancelled,
    b208_a_result_that_comes_again_settles_no_later_call_of_the_same_label,
    b208_nor_does_one_of_a_call_of_many_turns_ago,
}

fn pick() -> Value {
    json!({ "name": "pick", "input_schema": { "type": "object" }, "executor": { "type": "client" } })
}

fn picks(id: &str, calls: usize) -> Value {
    run(id, &vec![("pick", json!({ "of": ["red", "blue"] })); calls], json!([pick()]))
}

const WAITS: &str = "client-tool-results-required";

async fn b105_the_run_waits_for_its_client_and_goes_on_with_the_last_result(database: Database) {
    let server = server(&database).await;
    server.post("/v1/runs", &picks("p", 2), 201).await;
    let waiting = server.rested("p").await;
    assert_eq!((&waiting["status"], &waiting["reason"]), (&json!("suspended"), &json!(WAITS)));
    let asked = &waiting["pending"]["client_tools"];
    assert_eq!(asked.as_array().unwrap().len(), 2);
    assert_eq!((&asked[0]["call_id"], &asked[0]["input"]["of"][0]), (&json!("call_1"), &json!("red")));
    let kinds = server.event_kinds("p").await;
    assert_eq!(kinds.iter().filter(|kind| *kind == "client-tool-requested").count(), 2);
    let one = json!({ "results": [{ "call_id": "call_2", "output": { "content": ["blue"] } }] });
    let still = server.post("/v1/runs/p/tool-results", &one, 200).await;
    assert_eq!((&still["reason"], still["pending"]["client_tools"].as_array().unwrap().len()), (&json!(WAITS), 1));
    // The same again changes nothing, another one is refused, and so is what nobody asked for.
    let again = server.post("/v1/runs/p/tool-results", &one, 200).await;
    assert_eq!(again["revision"], still["revision"]);
    let other = json!({ "results": [{ "call_id": "call_1", "output": 1 }, { "call_id": "call_2", "output": "red" }] });
    problem(&server, "/v1/runs/p/tool-results", &other, 409, "result-not-awaited").await;
    assert_eq!(receipt(&server, "p", "call_1").await["stage"], "executing", "none of a refused request is kept");
    let unknown = json!({ "results": [{ "call_id": "call_9", "output": 1 }] });
    problem(&server, "/v1/runs/p/tool-results", &unknown, 404, "not-found").await;
    let wrong = json!({ "results": [{ "call_id": "call_1" }] });
    problem(&server, "/v1/runs/p/tool-results", &wrong, 422, "validation-failed").await;
    let last =
        json!({ "results": [{ "call_id": "call_1", "error": { "code": "closed", "message": "The user left." } }] });
    server.post("/v1/runs/p/tool-results", &last, 200).await;
    assert_eq!(server.rested("p").await["status"], "completed");
    let told = results(&server, "p").await;
    assert_eq!((&told[0]["output"], &told[0]["is_error"]), (&json!("The user left."), &json!(true)));
    assert_eq!(told[1]["output"], json!({ "content": ["blue"] }));
    // After the end, too.
    server.post("/v1/runs/p/tool-results", &last, 200).await;
    let answer = server.send_as("globex", Method::POST, "/v1/runs/p/tool-results", Some(&last)).await;
    assert_eq!(answer.status().as_u16(), 404);
}

async fn a_resume_may_bring_results_too(database: Database) {
    let server = server(&database).await;
    server.post("/v1/runs", &picks("r", 2), 201).await;
    server.rested("r").await;
    let nothing = server.post("/v1/runs/r/resume", &json!({}), 200).await;
    assert_eq!(nothing["reason"], WAITS);
    let one = json!({ "tool_results": [{ "call_id": "call_1", "output": 1 }] });
    assert_eq!(server.post("/v1/runs/r/resume", &one, 200).await["reason"], WAITS);
    let last = json!({ "tool_results": [{ "call_id": "call_2", "output": 2 }] });
    server.post("/v1/runs/r/resume", &last, 202).await;
    assert_eq!(server.rested("r").await["status"], "completed");
}

async fn results_come_while_a_server_still_works(database: Database) {
    let (server, fake) = (server(&database).await, FakeMcp::start().await);
    let answers = Arc::new(Notify::new());
    let held = Arc::clone(&answers);
    fake.on_call(move |_| Reply::When(Arc::clone(&held), Box::new(Reply::text("charged"))));
    let mut body = run("both", &[("pick", json!({})), ("charge", json!({ "amount": 1 }))], json!([pick()]));
    body["mcp"] = json!([{ "url": fake.url() }]);
    server.post("/v1/runs", &body, 201).await;
    let running = until(&server, "both", |run| run["pending"]["client_tools"].get(0).is_some()).await;
    assert_eq!(running["status"], "running");
    let given = json!({ "results": [{ "call_id": "call_1", "output": "blue" }] });
    let after = server.post("/v1/runs/both/tool-results", &given, 200).await;
    assert_eq!((&after["status"], &after["pending"]["client_tools"]), (&json!("running"), &json!([])));
    answers.notify_one();
    assert_eq!(server.rested("both").await["status"], "completed");
}

async fn b202_b223_results_contact_no_server_before_the_leg_that_follows(database: Database) {
    let (server, fake) = (server(&database).await, FakeMcp::start().await);
    let mut body = picks("leg", 1);
    body["mcp"] = json!([{ "url": fake.url() }]);
    server.post("/v1/runs", &body, 201).await;
    server.rested("leg").await;
    fake.serve(vec![tool("charge"), tool("refund")]);
    let given = json!({ "results": [{ "call_id": "call_1", "output": "blue" }] });
    server.post("/v1/runs/leg/tool-results", &given, 200).await;
    // The leg has no caller: what its servers changed meanwhile is nobody's to accept. The result is kept.
    let parked = until(&server, "leg", |run| run["reason"] == "mcp-catalog-changed").await;
    assert_eq!(parked["status"], "suspended");
    assert_eq!(receipt(&server, "leg", "call_1").await["output"], "blue");
}

async fn a_run_that_waits_for_its_client_can_be_cancelled(database: Database) {
    let server = server(&database).await;
    server.post("/v1/runs", &picks("c", 1), 201).await;
    server.rested("c").await;
    server.post("/v1/runs/c/cancel", &json!({}), 202).await;
    assert_eq!(server.rested("c").await["status"], "cancelled");
    let known = receipt(&server, "c", "call_1").await;
    assert_eq!((&known["stage"], &known["cause"]), (&json!("indeterminate"), &json!("cancelled")));
    let late = json!({ "results": [{ "call_id": "call_1", "output": 1 }] });
    problem(&server, "/v1/runs/c/tool-results", &late, 409, "result-not-awaited").await;
}

async fn b208_a_result_that_comes_again_settles_no_later_call_of_the_same_label(database: Database) {
    let server = server(&database).await;
    let mut body = picks("twice", 1);
    // Providers there are that number the calls of each turn anew.
    let turn = json!({ "tool_calls": [{ "id": "call_1", "name": "pick", "arguments": {} }] });
    body["model"]["script"] = json!([turn, turn, { "text": "Done." }]);
    server.post("/v1/runs", &body, 201).await;
    server.rested("twice").await;
    let links = server.get("/v1/runs/twice").await["links"].clone();
    let way = links.as_array().unwrap().iter().find(|link| link["rel"] == "give-results").unwrap();
    let path = way["href"].as_str().unwrap();
    let paid = |turn: Option<u32>, output: &str| {
        let mut result = json!({ "call_id": "call_1", "output": output });
        if let Some(turn) = turn {
            result["turn"] = turn.into();
        }
        json!({ "results": [result] })
    };
    server.post(path, &paid(None, "paid"), 200).await;
    until(&server, "twice", |run| run["turns"] == 2 && run["reason"] == WAITS).await;
    // The answer was lost, so the client sends it again: it may be either call's.
    problem(&server, path, &paid(None, "paid"), 409, "ambiguous-call").await;
    let again = server.post(path, &paid(Some(1), "paid"), 200).await;
    assert_eq!(again["pending"]["client_tools"][0]["turn"], 2, "{again}");
    problem(&server, path, &paid(Some(1), "other"), 409, "result-not-awaited").await;
    problem(&server, path, &paid(Some(7), "paid"), 404, "not-found").await;
    server.post(path, &paid(Some(2), "paid"), 200).await;
    assert_eq!(server.rested("twice").await["status"], "completed");
}

async fn b208_nor_does_one_of_a_call_of_many_turns_ago(database: Database) {
    let server = server(&database).await;
    let mut body = picks("long", 1);
    let turn = |tool: &str| json!({ "tool_calls": [{ "id": "call_1", "name": tool, "arguments": {} }] });
    // The turns between call a tool that is not there.
    let between = (0..30).map(|n| turn(&format!("nothing_{n}")));
    let script = std::iter::once(turn("pick")).chain(between).chain([turn("pick"), json!({ "text": "Done." })]);
    body["model"]["script"] = script.collect();
    body["limits"] = json!({ "max_turns": 40 });
    server.post("/v1/runs", &body, 201).await;
    server.rested("long").await;
    let path = "/v1/runs/long/tool-results";
    let paid = json!({ "results": [{ "call_id": "call_1", "output": "paid" }] });
    server.post(path, &paid, 200).await;
    until(&server, "long", |run| run["turns"] == 32 && run["reason"] == WAITS).await;
    problem(&server, path, &paid, 409, "ambiguous-call").await;
    let other = json!({ "results": [{ "call_id": "call_1", "output": "also paid" }] });
    server.post(path, &other, 200).await;
    assert_eq!(server.rested("long").await["status"], "completed");
}
