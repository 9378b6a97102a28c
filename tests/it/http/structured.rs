//! Runs whose final answer must be a structure.

use serde_json::{Value, json};

use super::harness::Server;
use crate::support::database::{Database, both_stores};
use crate::support::fake_model::FakeModel;

both_stores! {
    an_answer_that_fits_is_the_structured_output_with_its_digits,
    an_answer_that_does_not_fit_is_asked_for_once_more,
    an_answer_that_does_not_fit_twice_fails_the_run,
    the_model_is_told_of_the_schema_and_what_was_wrong,
    a_schema_that_is_none_is_refused,
}

fn schema() -> Value {
    json!({ "type": "object", "required": ["total"], "properties": { "total": { "type": "number" } } })
}

/// A run whose model says these texts.
fn run(texts: &[&str]) -> Value {
    let script: Vec<Value> = texts.iter().map(|text| json!({ "text": text })).collect();
    json!({ "id": "r", "model": { "provider": "scripted", "name": "demo", "script": script }, "input": "How much?",
            "output_schema": schema() })
}

async fn roles(server: &Server) -> Vec<String> {
    let page = server.get("/v1/runs/r/messages", &server.alice()).await.json();
    let messages = page["data"].as_array().unwrap();
    messages.iter().map(|message| message["role"].as_str().unwrap().to_owned()).collect()
}

async fn an_answer_that_fits_is_the_structured_output_with_its_digits(database: Database) {
    let server = Server::start_on(database).await;
    let answer = server.settled(&run(&["```json\n{\"total\": 117.63331139400017}\n```"])).await;
    assert_eq!((&answer["status"], &answer["turns"]), (&json!("completed"), &json!(1)), "{answer}");
    assert_eq!(answer["output"]["structured"]["total"].to_string(), "117.63331139400017");
    assert!(answer["output"]["text"].as_str().unwrap().starts_with("```json"), "the text is what was said");
    let events = server.get("/v1/runs/r/events?limit=100", &server.alice()).await.json();
    let result = events["data"].as_array().unwrap().last().unwrap();
    assert_eq!((&result["type"], &result["output"]), (&json!("result"), &answer["output"]));
}

async fn an_answer_that_does_not_fit_is_asked_for_once_more(database: Database) {
    let server = Server::start_on(database).await;
    let answer = server.settled(&run(&["It is five.", "{\"total\": 5}"])).await;
    assert_eq!((&answer["status"], &answer["turns"]), (&json!("completed"), &json!(2)), "{answer}");
    assert_eq!(answer["output"], json!({ "text": "{\"total\": 5}", "structured": { "total": 5 } }));
    assert_eq!(roles(&server).await, ["user", "assistant", "user", "assistant"]);
    let warnings = answer["warnings"].as_array().unwrap();
    assert_eq!((warnings.len(), &warnings[0]["code"]), (1, &json!("invalid-output")));
    // A limit stands before the second try as before every turn.
    let mut limited = run(&["It is five."]);
    limited["id"] = json!("limited");
    limited["limits"] = json!({ "max_turns": 1 });
    let limited = server.settled(&limited).await;
    assert_eq!((&limited["status"], &limited["reason"]), (&json!("stopped"), &json!("max-turns")), "{limited}");
}

async fn an_answer_that_does_not_fit_twice_fails_the_run(database: Database) {
    let server = Server::start_on(database).await;
    let answer = server.settled(&run(&["{\"total\": \"five\"}"])).await;
    assert_eq!((&answer["status"], &answer["error"]["code"]), (&json!("failed"), &json!("invalid-output")), "{answer}");
    assert_eq!((&answer["turns"], &answer["output"]), (&json!(2), &Value::Null));
    assert!(answer["error"]["message"].as_str().unwrap().contains("/total"), "{answer}");
}

async fn the_model_is_told_of_the_schema_and_what_was_wrong(database: Database) {
    let (server, model) = (Server::start_on(database).await, FakeModel::start(&[]).await);
    let mut body = run(&[]);
    body["model"] = model.spec();
    body["instructions"] = json!("Be exact.");
    assert_eq!(server.settled(&body).await["error"]["code"], "invalid-output");
    let requests = model.requests();
    assert_eq!(requests.len(), 2);
    let told = requests[1]["messages"].as_array().unwrap();
    let system = told[0]["content"].as_str().unwrap();
    assert!(system.starts_with("Be exact.\n\n") && system.ends_with(&schema().to_string()), "{system}");
    assert_eq!(told[2], json!({ "role": "assistant", "content": "Done." }));
    let repair = told[3]["content"].as_str().unwrap();
    assert!(told[3]["role"] == "user" && repair.contains("it is not JSON"), "{repair}");
}

async fn a_schema_that_is_none_is_refused(database: Database) {
    let server = Server::start_on(database).await;
    let mut body = run(&["x"]);
    body["output_schema"] = json!({ "type": "nonsense" });
    let problem = server.post("/v1/runs", &server.alice(), &body).await.problem(422, "validation-failed");
    assert_eq!(problem["errors"][0]["pointer"], "/output_schema");
}
