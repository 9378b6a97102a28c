//! What the model is told of results: bounded, with pictures where its protocol takes them, and everything in the
//! receipt.

use countersign::run::call::Stage;
use countersign::run::message::{Content, Role};
use countersign::store::RunView;
use serde_json::{Value, json};

use crate::support::fake_mcp::{FakeMcp, Reply};
use crate::support::fake_model::FakeModel;
use crate::support::world::{World, asker, run_id, run_on};

/// A picture of one pixel.
const PNG: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII=";

/// What the model was told of the calls of the first turn.
async fn told(world: &World, view: &RunView) -> Vec<Value> {
    let page = world.app.store.message_list(&asker().tenant, view.uid, 0, 100).await.unwrap();
    let content =
        page.rows.into_iter().filter(|message| message.role == Role::Tool).flat_map(|message| message.content);
    let outputs = content.map(|content| match content {
        Content::ToolResult { output, .. } => output,
        other => panic!("{other:?}"),
    });
    outputs.collect()
}

#[tokio::test]
async fn field_a012_four_results_of_a_megabyte_become_a_prompt_that_fits_and_receipts_that_are_whole() {
    let (world, fake) = (World::start().await, FakeMcp::start().await);
    let rows: Vec<Value> = (0..20_000).map(|id| json!({ "id": id, "note": "n".repeat(30) })).collect();
    let result = json!({ "content": [], "structuredContent": { "rows": rows } });
    let served = result.clone();
    fake.on_call(move |_| Reply::Result(served.clone()));
    let model = FakeModel::start(&[&["charge"; 4]]).await;
    let mut body = run_on("r", &[], json!([{ "url": fake.url() }]));
    body["model"] = model.spec();
    world.create(body).await.unwrap();
    let view = world.rested(&run_id("r")).await;
    assert_eq!(view.head.status.code(), "completed", "{:?}", view.head.state.error);
    let prompt = &model.requests()[1];
    assert!(prompt.to_string().len() < 220_000, "{}", prompt.to_string().len());
    let messages = prompt["messages"].as_array().unwrap();
    let results: Vec<&Value> = messages.iter().filter(|message| message["role"] == "tool").collect();
    assert_eq!(results.len(), 4);
    for (nth, result) in results.iter().enumerate() {
        let view: Value = serde_json::from_str(result["content"].as_str().unwrap()).expect("valid JSON");
        let notice = view["shortened"].as_str().unwrap();
        assert!(notice.contains(&format!("receipt of this call (call_0_{nth}, turn 1)")), "{notice}");
        let shown = view["value"]["rows"].as_array().unwrap();
        assert_eq!(shown[0], rows[0]);
        assert!(shown.last().unwrap().as_str().unwrap().ends_with(" more items left out]"), "{shown:?}");
    }
    for call in world.receipts("r").await {
        let Stage::Completed { output, .. } = call.stage else { panic!("{call:?}") };
        assert_eq!(output, result, "the receipt has all of it");
    }
}

#[tokio::test]
async fn a_long_document_is_never_told_as_if_it_were_whole() {
    let (world, fake) = (World::start().await, FakeMcp::start().await);
    let document = "\u{4e16}\u{1f600}x".repeat(40_000);
    let served = document.clone();
    fake.on_call(move |_| Reply::text(&served));
    world.create(run_on("r", &[("charge", json!({}))], json!([{ "url": fake.url() }]))).await.unwrap();
    let view = world.rested(&run_id("r")).await;
    let told = told(&world, &view).await.remove(0);
    let told = told.as_str().unwrap();
    assert!(told.len() < 51_000 && !told.contains('\u{fffd}'), "{}", told.len());
    assert!(told.contains(&format!("of {} bytes are left out here", document.len())), "the notice says how much");
    assert!(told.contains(
        "The whole result is kept in the receipt of this call (call_1, turn 1): GET /v1/runs/r/receipts/1/call_1."
    ));
    let Stage::Completed { output, .. } = &world.receipts("r").await[0].stage else { panic!("no result") };
    assert_eq!(output["content"][0]["text"], document);
}

#[tokio::test]
async fn pictures_reach_the_model_as_pictures_and_everything_else_in_words() {
    let (world, fake) = (World::start().await, FakeMcp::start().await);
    fake.on_call(|_| {
        Reply::Result(json!({ "content": [
            { "type": "text", "text": "The screen:" },
            { "type": "image", "data": PNG, "mimeType": "image/png" },
            { "type": "audio", "data": "AAAAAA==", "mimeType": "audio/wav" },
            { "type": "resource", "resource": { "uri": "a://b", "mimeType": "application/pdf", "blob": "AAAA" } },
        ] }))
    });
    let model = FakeModel::start(&[&["charge", "charge"]]).await;
    let mut body = run_on("r", &[], json!([{ "url": fake.url() }]));
    body["model"] = model.spec();
    world.create(body).await.unwrap();
    assert_eq!(world.rested(&run_id("r")).await.head.status.code(), "completed");
    let messages = model.requests()[1]["messages"].as_array().unwrap().clone();
    let roles: Vec<&str> = messages.iter().map(|message| message["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["user", "assistant", "tool", "tool", "user"], "results stand together behind their turn");
    let words = "The screen:\n[image: image/png, 68 bytes] (picture 1 of this result)\n[audio: audio/wav, 4 bytes]\n\
                 [resource a://b: application/pdf, 3 bytes]";
    assert_eq!((&messages[2]["content"], &messages[3]["content"]), (&json!(words), &json!(words)));
    let parts = messages[4]["content"].as_array().unwrap();
    assert_eq!(parts.len(), 4);
    assert_eq!(parts[0]["text"], "Pictures of the result of charge (call_0_0):");
    assert_eq!(
        parts[1],
        json!({ "type": "image_url", "image_url": { "url": format!("data:image/png;base64,{PNG}") } })
    );
}
