//! Tools that models or providers do not take, in whole runs.

use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use crate::support::fake_mcp::{FakeMcp, Reply, tool};
use crate::support::world::{World, run_id, run_on};

fn serve(fake: &FakeMcp, tools: Value) {
    fake.on_list(move |_| Reply::Result(json!({ "tools": tools })));
}

#[tokio::test]
async fn field_a028_a029_names_that_models_do_not_take_are_mapped_and_mapped_back() {
    let (world, fake) = (World::start().await, FakeMcp::start().await);
    let long = |end: &str| format!("{}{end}", "x".repeat(70));
    let names = ["calendar.update", "a.b", "a/b", &long("1"), &long("2")];
    serve(&fake, names.iter().map(|name| tool(name)).collect());
    let body = run_on("r", &[("n_calendar_update", json!({}))], json!([{"url": fake.url(), "namespace": "n"}]));
    world.create(body).await.unwrap();
    let view = world.rested(&run_id("r")).await;
    assert_eq!(view.head.status.code(), "completed");
    assert_eq!(fake.seen_rpc("tools/call")[0].body["params"]["name"], "calendar.update");
    let recorded: Vec<String> = view.mcp.unwrap().tools.into_keys().collect();
    assert!(names.iter().all(|name| recorded.contains(&format!("n_{name}"))), "{recorded:?}");
    let told: Vec<String> = view.head.state.warnings.iter().map(|warning| warning.message.clone()).collect();
    assert_eq!(told.len(), 5, "{told:?}");
    assert_eq!(told[0], "MCP tool 'n_calendar.update' is offered as 'n_calendar_update': models take no other names.");
    let receipts = world.receipts("r").await;
    assert_eq!(
        (receipts[0].tool.as_str(), receipts[0].target.as_ref().unwrap().server_tool.as_str()),
        ("n_calendar_update", "calendar.update")
    );
}

#[tokio::test]
async fn b211_a_call_that_is_sent_again_after_a_refusal_is_told_as_a_second_attempt() {
    let (world, fake) = (World::start().await, FakeMcp::start().await);
    serve(&fake, json!([tool("charge")]));
    fake.on_call({
        let count = AtomicUsize::new(0);
        move |_| match count.fetch_add(1, Ordering::SeqCst) {
            0 => Reply::Http(429, vec![("retry-after", "0".to_owned())], String::new()),
            _ => Reply::text("charged"),
        }
    });
    world.create(run_on("r", &[("charge", json!({}))], json!([{"url": fake.url()}]))).await.unwrap();
    let view = world.rested(&run_id("r")).await;
    assert_eq!((view.head.status.code(), fake.count("tools/call")), ("completed", 2));
    let told = &view.head.state.warnings[0];
    assert_eq!(told.code.as_deref(), Some("mcp-call-sent-again"));
    assert!(told.message.contains("HTTP 429"), "{}", told.message);
    let receipts = world.receipts("r").await;
    assert_eq!((receipts[0].attempt, receipts[0].turned_away, receipts[0].stage.code()), (2, 1, "completed"));
    let keys: Vec<String> =
        fake.seen_rpc("tools/call").iter().map(|seen| seen.headers["idempotency-key"].clone()).collect();
    assert_eq!(keys[0], keys[1]);
}

#[tokio::test]
async fn field_a034_a_bad_tool_is_set_aside_visibly_and_its_repair_is_a_change() {
    let (world, fake) = (World::start().await, FakeMcp::start().await);
    let broken = json!({ "name": "broken", "inputSchema": { "properties": { "a": { "$ref": "#/$defs/Gone" } } } });
    serve(&fake, json!([tool("charge"), broken, { "inputSchema": {} }]));
    fake.on_call(|_| Reply::Reset);
    world.create(run_on("r", &[("charge", json!({}))], json!([{"url": fake.url()}]))).await.unwrap();
    let view = world.rested(&run_id("r")).await;
    assert_eq!(view.head.status.code(), "suspended");
    let told: Vec<(String, String)> =
        view.head.state.warnings.iter().map(|w| (w.message.clone(), w.setting.clone())).collect();
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told.iter().any(|(text, _)| text.contains("a tool without a name")), "{told:?}");
    assert!(
        told.iter().any(|(text, setting)| text.contains("'broken' is not offered") && setting == "mcp"),
        "{told:?}"
    );
    assert_eq!(view.mcp.as_ref().unwrap().tools.keys().collect::<Vec<_>>(), ["broken", "charge"]);
    serve(&fake, json!([tool("charge"), tool("broken")]));
    let refused = world.resume("r", json!({"retry_tool_call_ids": ["call_1"]})).await.unwrap_err();
    assert!(refused.to_string().contains("(changed: broken)"), "{refused}");
}
