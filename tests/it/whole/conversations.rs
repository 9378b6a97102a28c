//! Conversations that go on, answers of a shape, and pictures and files, told to a model server that nobody here wrote,
//! in both protocols.

use serde_json::{Value, json};

use super::model;
use crate::support::counterparts::{llmock, llmock_script};
use crate::support::database::Database;
use crate::support::process::Process;
use crate::support::product::Product;

/// A picture of one pixel.
const PNG: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII=";

const PROTOCOLS: [(&str, &str); 2] = [("openai", "/v1"), ("anthropic", "/anthropic")];

/// What the server was asked, in order.
async fn asked(server: &Process) -> Vec<Value> {
    let answer = reqwest::get(server.url("/_llmock/requests")).await.unwrap().text().await.unwrap();
    let seen: Value = serde_json::from_str(&answer).unwrap();
    seen["requests"].as_array().unwrap().iter().map(|request| request["body"].clone()).collect()
}

/// The run has ended well with this text.
async fn says(product: &Product, body: &Value, text: &str) -> Value {
    product.post("/v1/runs", body, 201).await;
    let run = product.rested(body["id"].as_str().unwrap()).await;
    assert_eq!((&run["status"], &run["output"]["text"]), (&json!("completed"), &json!(text)), "{run}");
    run
}

#[tokio::test]
async fn an_independent_model_server_is_told_conversations_schemas_pictures_and_files() {
    let Some(server) = llmock().await else { return };
    let database = Database::sqlite().await;
    let product = Product::start(&database).await;
    for (provider, path) in PROTOCOLS {
        let (model, from) = (model(&server, provider, path), asked(&server).await.len());
        let named = |what: &str| format!("{provider}-{what}");
        let replies = ["First.", "Second.", "It is five.", "{\"total\": 5}", "Seen."];
        let replies: Vec<Value> = replies.iter().map(|text| json!({ "type": "reply", "text": text })).collect();
        llmock_script(&server, json!(replies)).await;

        let first = json!({ "id": named("first"), "model": model, "input": "Begin here." });
        says(&product, &first, "First.").await;
        let second =
            json!({ "id": named("second"), "model": model, "input": "Go on.", "continue_from": named("first") });
        says(&product, &second, "Second.").await;

        let schema =
            json!({ "type": "object", "required": ["total"], "properties": { "total": { "type": "number" } } });
        let shaped = json!({ "id": named("shaped"), "model": model, "input": "How much?", "output_schema": schema });
        let run = says(&product, &shaped, "{\"total\": 5}").await;
        assert_eq!((&run["output"]["structured"], &run["turns"]), (&json!({ "total": 5 }), &json!(2)), "{run}");

        let content = json!([
            { "type": "text", "text": "Look." },
            { "type": "image", "url": "https://a.example/x.png" },
            { "type": "image", "data": PNG, "media_type": "image/png" },
            { "type": "file", "data": "JVBERi0=", "media_type": "application/pdf", "name": "a.pdf" },
        ]);
        let seen = json!({ "id": named("seen"), "model": model, "input": [{ "role": "user", "content": content }] });
        says(&product, &seen, "Seen.").await;

        let told = &asked(&server).await[from..];
        assert_eq!(told.len(), 5, "a request for each turn: {told:#?}");
        let second = told[1]["messages"].to_string();
        for text in ["Begin here.", "First.", "Go on."] {
            assert!(second.contains(text), "{provider}: {second}");
        }
        let repair = told[3]["messages"].to_string();
        assert!(repair.contains("It is five.") && repair.contains("not JSON"), "{provider}: {repair}");
        let looked = told[4]["messages"].to_string();
        for part in ["https://a.example/x.png", PNG, "JVBERi0=", "a.pdf"] {
            assert!(looked.contains(part), "{provider}: {looked}");
        }
    }
    let verdict = reqwest::get(server.url("/_llmock/verdict?format=text")).await.unwrap().text().await.unwrap();
    assert!(verdict.contains("PASS"), "{verdict}");
}
