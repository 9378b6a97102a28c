//! Pictures and files in a run's input: what the model gets, what callers see again, and what is refused.

use serde_json::{Value, json};

use super::harness::Server;
use crate::support::database::{Database, both_stores};
use crate::support::fake_mcp::{FakeMcp, Reply};
use crate::support::fake_model::FakeModel;
use crate::support::world::run_on;

both_stores! {
    pictures_and_files_of_the_user_reach_the_model_and_are_seen_again,
    what_the_models_protocol_does_not_take_is_refused_with_its_place,
    field_a012_a014_what_a_shortened_result_names_is_the_whole_to_the_last_digit,
}

/// A picture of one pixel.
const PNG: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII=";

async fn pictures_and_files_of_the_user_reach_the_model_and_are_seen_again(database: Database) {
    let (server, model) = (Server::start_on(database).await, FakeModel::start(&[]).await);
    let content = json!([
        { "type": "text", "text": "What is this?" },
        { "type": "image", "url": "https://a.example/x.png" },
        { "type": "image", "data": PNG, "media_type": "image/png" },
        { "type": "file", "data": "JVBERi0=", "media_type": "application/pdf", "name": "a.pdf" },
        { "type": "file", "file_id": "file-1" },
    ]);
    let input = json!([
        { "role": "system", "content": "Look well." },
        { "role": "assistant", "content": [{ "type": "text", "text": "Show me." }] },
        { "role": "user", "content": content },
    ]);
    let run = server.settled(&json!({ "id": "r", "model": model.spec(), "input": input })).await;
    assert_eq!(run["status"], "completed", "{run}");
    let told = model.requests()[0]["messages"].clone();
    assert_eq!(told[0], json!({ "role": "system", "content": "Look well." }));
    assert_eq!(told[1], json!({ "role": "assistant", "content": "Show me." }));
    let picture = |url: &str| json!({ "type": "image_url", "image_url": { "url": url } });
    let expected = json!([
        { "type": "text", "text": "What is this?" },
        picture("https://a.example/x.png"),
        picture(&format!("data:image/png;base64,{PNG}")),
        { "type": "file", "file": { "filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERi0=" } },
        { "type": "file", "file": { "file_id": "file-1" } },
    ]);
    assert_eq!(told[2], json!({ "role": "user", "content": expected }));
    let page = server.get("/v1/runs/r/messages", &server.alice()).await.json();
    assert_eq!(page["data"][2]["content"], content, "as it was given");
}

/// The places and words of the faults of an input.
async fn faults(server: &Server, provider: &str, messages: Value) -> Vec<(String, String)> {
    let body = json!({ "model": { "provider": provider, "name": "m" }, "input": messages });
    let problem = server.post("/v1/runs", &server.alice(), &body).await.problem(422, "validation-failed");
    let text = |fault: &Value, member: &str| fault[member].as_str().unwrap().to_owned();
    let faults = problem["errors"].as_array().unwrap().iter();
    faults.map(|fault| (text(fault, "pointer"), text(fault, "detail"))).collect()
}

async fn what_the_models_protocol_does_not_take_is_refused_with_its_place(database: Database) {
    let server = Server::start_on(database).await;
    let image = json!({ "type": "image", "url": "https://a.example/x.png" });
    let file = json!({ "type": "file", "url": "https://a.example/x.pdf" });
    let both = json!({ "type": "image", "url": "https://a.example/x.png", "data": PNG });
    let found = faults(
        &server,
        "openai",
        json!([
            { "role": "assistant", "content": [image] },
            { "role": "user", "content": [file, both, { "type": "image", "data": "AAAA" },
                { "type": "image", "data": PNG, "media_type": "image/gif" }, { "type": "image", "url": "file:///x" },
                { "type": "file", "data": "JVBERi0=" }, { "type": "file" }] },
            { "role": "user", "content": [] },
        ]),
    )
    .await;
    let places: Vec<&str> = found.iter().map(|(place, _)| place.as_str()).collect();
    let second = |rest: &str| format!("/input/1/content/{rest}");
    let expected = [
        "/input/0/content/0".to_owned(),
        second("0"),
        second("1"),
        second("2/data"),
        second("3/media_type"),
        second("4/url"),
        second("5/media_type"),
        second("6"),
        "/input/2/content".to_owned(),
    ];
    assert_eq!(places, expected, "{found:?}");
    assert!(found[1].1.contains("not by address"), "{found:?}");
    let csv = json!([{ "role": "user", "content": [{ "type": "file", "data": "YQ==", "media_type": "text/csv" }] }]);
    let found = faults(&server, "anthropic", csv).await;
    assert_eq!((found.len(), found[0].0.as_str()), (1, "/input/0/content/0"), "{found:?}");
}

async fn field_a012_a014_what_a_shortened_result_names_is_the_whole_to_the_last_digit(database: Database) {
    let (server, fake) = (Server::start_on(database).await, FakeMcp::start().await);
    let rows: Vec<Value> =
        (0..6_000_u64).map(|nth| json!({ "id": 2_512_292_042_121_000_000 + nth, "t": "x".repeat(30) })).collect();
    let result =
        json!({ "content": [{ "type": "text", "text": "\u{4e16}\u{1f600}" }], "structuredContent": { "rows": rows } });
    let served = result.clone();
    fake.on_call(move |_| Reply::Result(served.clone()));
    let mut body = run_on("r", &[], json!([{ "url": fake.url() }]));
    // Providers name calls as they like.
    body["model"]["script"] = json!([
        { "tool_calls": [{ "id": "call/1 ?#\u{e4}", "name": "charge", "arguments": {} }] }, { "text": "Done." } ]);
    assert_eq!(server.settled(&body).await["status"], "completed");
    let alice = server.alice();
    let page = server.get("/v1/runs/r/messages", &alice).await.json();
    let told = page["data"].as_array().unwrap().iter().find(|message| message["role"] == "tool").unwrap();
    let told = &told["content"][0]["output"]["shortened"];
    let path = told.as_str().unwrap().rsplit(": GET ").next().unwrap().trim_end_matches('.');
    assert_eq!(path, "/v1/runs/r/receipts/1/call%2F1%20%3F%23%C3%A4");
    let receipt = server.get(path, &alice).await;
    assert_eq!((receipt.status.as_u16(), &receipt.json()["output"]), (200, &result));
    assert!(receipt.json()["output"].to_string().contains("2512292042121005999"), "no digit is lost");
    let stranger = server.token("globex", "eve", "runs:read");
    server.get(path, &stranger).await.problem(404, "not-found");
}
