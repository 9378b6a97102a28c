//! The effect boundary, seen from the server's side.

use std::sync::Arc;

use countersign::run::call::{Stage, idempotency_key};
use countersign::run::message::Content;
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::support::fake_mcp::{FakeMcp, Reply, tool};
use crate::support::world::{World, asker, run_id, run_on};

const HELD: (&str, Option<&str>) = ("suspended", Some("tool-reconciliation-required"));

#[tokio::test]
async fn b006_b203_when_the_server_hears_of_a_call_its_receipt_is_stored_as_executing() {
    let (world, fake) = (World::start().await, FakeMcp::start().await);
    let answer = Arc::new(Notify::new());
    let gate = Arc::clone(&answer);
    fake.on_call(move |_| Reply::When(Arc::clone(&gate), Box::new(Reply::text("charged"))));
    world.create(run_on("r", &[("charge", json!({"amount": 5}))], json!([{"url": fake.url()}]))).await.unwrap();
    fake.wait_until(|fake| fake.count("tools/call") == 1).await;
    let receipts = world.receipts("r").await;
    assert_eq!((receipts[0].stage.code(), receipts[0].attempt), ("executing", 1));
    answer.notify_one();
    assert_eq!(world.rested(&run_id("r")).await.head.status.code(), "completed");
    assert_eq!(world.receipts("r").await[0].stage.code(), "completed");
}

#[tokio::test]
async fn b029_b213_every_call_carries_its_own_key_in_meta_and_header() {
    let (world, fake) = (World::start().await, FakeMcp::start().await);
    let calls = [("charge", json!({"amount": 1})), ("charge", json!({"amount": 1}))];
    world.create(run_on("r", &calls, json!([{"url": fake.url()}]))).await.unwrap();
    let view = world.rested(&run_id("r")).await;
    let mut keys: Vec<String> = Vec::new();
    for seen in fake.seen_rpc("tools/call") {
        let meta = &seen.body["params"]["_meta"];
        assert_eq!((&meta["countersign/run"], &meta["countersign/turn"]), (&json!("r"), &json!(1)));
        assert!(meta["traceparent"].as_str().unwrap().starts_with("00-"));
        let key = meta["countersign/idempotency-key"].as_str().unwrap();
        assert_eq!(seen.headers["idempotency-key"], key);
        keys.push(key.to_owned());
    }
    let mut expected: Vec<String> =
        world.receipts("r").await.iter().map(|receipt| idempotency_key(view.uid, receipt.key)).collect();
    keys.sort();
    expected.sort();
    assert_eq!(keys, expected);
}

#[tokio::test]
async fn b015_b016_a_failed_call_keeps_its_text_and_the_run_goes_on() {
    let (world, fake) = (World::start().await, FakeMcp::start().await);
    fake.on_call(|_| Reply::Result(json!({"isError": true, "content": [{"type": "text", "text": "card declined"}]})));
    world.create(run_on("r", &[("charge", json!({"amount": 5}))], json!([{"url": fake.url()}]))).await.unwrap();
    let view = world.rested(&run_id("r")).await;
    assert_eq!(view.head.status.code(), "completed");
    let receipts = world.receipts("r").await;
    let Stage::Failed { error, output, .. } = &receipts[0].stage else { panic!("{:?}", receipts[0].stage) };
    assert_eq!(error.message, "card declined");
    assert_eq!(output.as_ref().unwrap()["isError"], json!(true));
    let messages = world.app.store.message_list(&asker().tenant, view.uid, 0, 100).await.unwrap();
    let Content::ToolResult { output, is_error, .. } = &messages[2].content[0] else { panic!("{:?}", messages[2]) };
    assert_eq!((output, *is_error), (&json!("card declined"), true));
}

#[tokio::test]
async fn b010_b212_a_lost_answer_holds_the_run_until_a_person_allows_one_more_attempt() {
    let (world, fake) = (World::start().await, FakeMcp::start().await);
    fake.on_call(|_| Reply::Reset);
    world.create(run_on("r", &[("charge", json!({"amount": 5}))], json!([{"url": fake.url()}]))).await.unwrap();
    let held = world.rested(&run_id("r")).await;
    assert_eq!((held.head.status.code(), held.head.status.reason()), HELD);
    assert_eq!((held.undecided.len(), held.undecided[0].cause.as_str()), (1, "lost-response"));
    for body in [
        json!({}),
        json!({"retry_tool_call_ids": ["other"]}),
        json!({"retry_tool_call_ids": [{"turn": 2, "call_id": "call_1"}]}),
    ] {
        let said = world.resume("r", body).await.unwrap();
        assert_eq!(said, countersign::commands::Resumed::Unchanged);
        assert_eq!(world.view(&run_id("r")).await.head, held.head);
    }
    assert_eq!(fake.count("tools/call"), 1);
    fake.on_call(|_| Reply::text("charged"));
    let said = world.resume("r", json!({"retry_tool_call_ids": ["call_1"]})).await.unwrap();
    assert_eq!(said, countersign::commands::Resumed::Queued);
    let done = world.rested(&run_id("r")).await;
    assert_eq!((done.head.status.code(), done.head.state.usage.model_requests), ("completed", 2));
    let calls = fake.seen_rpc("tools/call");
    assert_eq!(calls.len(), 2);
    assert_eq!(calls[0].body["params"], {
        // The progress token is the request's own; everything else of the second attempt is the first's.
        let mut second = calls[1].body["params"].clone();
        second["_meta"]["progressToken"] = calls[0].body["params"]["_meta"]["progressToken"].clone();
        second
    });
}

#[tokio::test]
async fn b021_b022_b212_a_repeatable_call_is_sent_again_by_itself_with_the_same_key() {
    let (world, fake) = (World::start().await, FakeMcp::start().await);
    fake.on_list(|_| Reply::Result(json!({"tools": [tool("lookup_order"), tool("refund")]})));
    let failures = Arc::new(std::sync::atomic::AtomicU32::new(0));
    fake.on_call(move |_| {
        let nth = failures.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        if nth == 0 { Reply::status(500, json!({})) } else { Reply::text("found") }
    });
    let entry = json!([{"url": fake.url(), "namespace": "orders", "replay": {"lookup_order": "idempotent"}}]);
    world.create(run_on("r", &[("orders_lookup_order", json!({}))], entry.clone())).await.unwrap();
    assert_eq!(world.rested(&run_id("r")).await.head.status.code(), "completed");
    let keys: Vec<String> =
        fake.seen_rpc("tools/call").iter().map(|seen| seen.headers["idempotency-key"].clone()).collect();
    assert_eq!(keys.len(), 2);
    assert_eq!(keys[0], keys[1]);
    fake.on_call(|_| Reply::status(500, json!({})));
    world.create(run_on("s", &[("orders_refund", json!({}))], entry)).await.unwrap();
    let held = world.rested(&run_id("s")).await;
    assert_eq!((held.head.status.code(), held.head.status.reason()), HELD);
    assert_eq!(world.receipts("s").await[0].attempt, 1);
}

#[tokio::test]
async fn b216_cancelling_reaches_a_call_in_flight_and_its_receipt_stays_visible() {
    let (world, fake) = (World::start().await, FakeMcp::start().await);
    fake.on_call(|_| Reply::Silence);
    world.create(run_on("r", &[("charge", json!({"amount": 5}))], json!([{"url": fake.url()}]))).await.unwrap();
    fake.wait_until(|fake| fake.count("tools/call") == 1).await;
    world.cancel("r").await.unwrap();
    let view = world.rested(&run_id("r")).await;
    assert_eq!(view.head.status.code(), "cancelled");
    let receipts = world.receipts("r").await;
    let Stage::Indeterminate { cause, .. } = &receipts[0].stage else { panic!("{:?}", receipts[0].stage) };
    assert_eq!(cause.code(), "cancelled");
    fake.wait_until(|fake| fake.count("notifications/cancelled") == 1).await;
    world.cancel("r").await.unwrap();
    assert_eq!(world.events(&view).await.last().unwrap().0, "result");
}

#[tokio::test]
async fn cancelling_ends_a_model_stream_and_a_queued_wait() {
    let world = World::start().await;
    let slow = json!({"id": "r", "input": "Go.", "model": {"provider": "scripted", "name": "demo",
        "script": [{"text": "late", "delay_ms": 600_000}]}});
    world.create(slow).await.unwrap();
    world.cancel("r").await.unwrap();
    let view = world.rested(&run_id("r")).await;
    assert_eq!((view.head.status.code(), view.head.state.usage.model_requests), ("cancelled", 0));
}

#[tokio::test]
async fn field_a017_digits_reach_the_server_the_receipt_and_the_next_prompt_unchanged() {
    let (world, fake) = (World::start().await, FakeMcp::start().await);
    let exact = r#"{"amount":18446744073709551617,"rate":117.63331139400017,"order":2512292042121000001}"#;
    fake.on_call(|seen| Reply::Result(json!({"content": [], "structuredContent": seen.body["params"]["arguments"]})));
    let calls = [("charge", Value::String(exact.to_owned()))];
    world.create(run_on("r", &calls, json!([{"url": fake.url()}]))).await.unwrap();
    let view = world.rested(&run_id("r")).await;
    assert_eq!(fake.seen_rpc("tools/call")[0].body["params"]["arguments"].to_string(), exact);
    assert_eq!(world.receipts("r").await[0].input.to_string(), exact);
    let messages = world.app.store.message_list(&asker().tenant, view.uid, 0, 100).await.unwrap();
    let Content::ToolResult { output, .. } = &messages[2].content[0] else { panic!("{:?}", messages[2]) };
    assert_eq!(output.to_string(), exact);
}

#[tokio::test]
async fn a_wish_to_cancel_that_the_owner_did_not_read_is_heeded_by_the_next() {
    let (world, fake) = (World::start().await, FakeMcp::start().await);
    let lost = Arc::new(Notify::new());
    let gate = Arc::clone(&lost);
    fake.on_call(move |_| Reply::When(Arc::clone(&gate), Box::new(Reply::Reset)));
    world.create(run_on("r", &[("charge", json!({"amount": 5}))], json!([{"url": fake.url()}]))).await.unwrap();
    fake.wait_until(|fake| fake.count("tools/call") == 1).await;
    // Left in the store only, as by another node; the owner lets go of the held run without having read it.
    let view = world.view(&run_id("r")).await;
    assert!(world.app.store.cancel_request(&asker().tenant, view.uid, &asker().actor).await.unwrap());
    lost.notify_one();
    let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(10);
    while world.view(&run_id("r")).await.head.status.code() != "cancelled" {
        assert!(tokio::time::Instant::now() < deadline, "{:?}", world.view(&run_id("r")).await.head);
        tokio::task::yield_now().await;
    }
    assert_eq!(world.receipts("r").await[0].stage.code(), "indeterminate");
}

#[tokio::test]
async fn a_server_whose_keys_do_not_open_the_stored_secrets_does_not_start() {
    let (world, fake) = (World::start().await, FakeMcp::start().await);
    fake.on_call(|_| Reply::Reset);
    let auth = json!({"scheme": "bearer", "secret": "token"});
    let mut body = run_on("r", &[("charge", json!({"amount": 5}))], json!([{"url": fake.url(), "auth": auth}]));
    body["secrets"] = json!({"token": "s3cr3t-canary"});
    world.create(body).await.unwrap();
    assert_eq!(world.rested(&run_id("r")).await.head.status.code(), "suspended");
    let refused = world.restart_with_keys("dev:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=").await.unwrap_err();
    let said = format!("{refused:#}");
    assert!(said.contains("COUNTERSIGN_MASTER_KEYS") && !said.contains("canary"), "{said}");
}

#[tokio::test]
async fn arguments_with_a_key_that_the_reader_keeps_for_itself_never_reach_the_boundary() {
    let world = World::start().await;
    for (id, arguments) in [
        ("raw", r#"{"amount":5,"x":{"\u0024serde_json::private::RawValue":"{bad"}}"#),
        ("number", r#"{"amount":{"\u0024serde_json::private::Number":"7"}}"#),
    ] {
        let mut body = world.charge(id);
        body["model"]["script"][0]["tool_calls"][0]["arguments"] = json!(arguments);
        let created = world.create(body).await.unwrap();
        let view = world.rested(&created.id).await;
        assert_eq!(view.head.status.code(), "completed", "{:?}", view.head);
        let events = world.events(&view).await;
        let output = events.iter().find(|(kind, _)| kind == "tool-output").map(|(_, event)| event).unwrap();
        assert_eq!((&output["stage"], &output["rule"]), (&json!("rejected"), &json!("invalid-arguments")), "{output}");
    }
    assert_eq!(world.demo.ledger.entries().len(), 0, "nothing was charged");
}
