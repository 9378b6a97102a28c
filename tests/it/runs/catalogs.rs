//! What a run is bound to, and what happens when the servers change or vanish.

use std::sync::Arc;

use countersign::commands::{CommandError, Resumed};
use countersign::run::refusal::Refusal;
use serde_json::{Value, json};

use crate::support::fake_mcp::{FakeMcp, Reply, tool};
use crate::support::world::{World, asker, run_id, run_on};

/// A run that waits for a person, on a server that answers again.
async fn held(world: &World, fake: &FakeMcp, id: &str) {
    fake.on_call(|_| Reply::Reset);
    world.create(run_on(id, &[("charge", json!({"amount": 5}))], json!([{"url": fake.url()}]))).await.unwrap();
    assert_eq!(world.rested(&run_id(id)).await.head.status.code(), "suspended");
    fake.on_call(|_| Reply::text("charged"));
}

fn serve(fake: &FakeMcp, tools: Vec<Value>) {
    let tools = Arc::new(tools);
    fake.on_list(move |_| Reply::Result(json!({"tools": tools.as_slice()})));
}

#[tokio::test]
async fn b030_b031_the_record_is_in_the_first_checkpoint() {
    let (world, fake) = (World::start().await, FakeMcp::start().await);
    serve(&fake, vec![tool("charge")]);
    world.create(run_on("r", &[("charge", json!({"amount": 5}))], json!([{"url": fake.url()}]))).await.unwrap();
    let view = world.view(&run_id("r")).await;
    let record = view.mcp.unwrap();
    assert_eq!((view.binding_revision, record.algorithm.as_str()), (1, "sha-256"));
    assert_eq!(record.tools.keys().collect::<Vec<_>>(), ["charge"]);
    assert_eq!(record.fingerprint.len(), 64);
}

#[tokio::test]
async fn b032_b034_b038_b039_a_changed_catalog_refuses_the_resume_until_it_is_back() {
    let (world, fake) = (World::start().await, FakeMcp::start().await);
    serve(&fake, vec![tool("charge")]);
    held(&world, &fake, "r").await;
    let before = world.view(&run_id("r")).await;
    serve(&fake, vec![tool("charge"), tool("refund")]);
    let refused = world.resume("r", json!({"retry_tool_call_ids": ["call_1"]})).await.unwrap_err();
    let CommandError::Refused(refused @ Refusal::CatalogChanged(_)) = &refused else { panic!("{refused:?}") };
    assert_eq!(refused.to_string(), "MCP tool catalog changed across resume (added: refund).");
    assert_eq!(world.view(&run_id("r")).await.head, before.head);
    assert_eq!(fake.count("tools/call"), 1);
    serve(&fake, vec![tool("charge")]);
    assert_eq!(world.resume("r", json!({"retry_tool_call_ids": ["call_1"]})).await.unwrap(), Resumed::Queued);
    assert_eq!(world.rested(&run_id("r")).await.head.status.code(), "completed");
}

#[tokio::test]
async fn b040_a_resume_that_drops_the_entries_is_a_change() {
    let (world, fake) = (World::start().await, FakeMcp::start().await);
    held(&world, &fake, "r").await;
    let refused = world.resume("r", json!({"mcp": []})).await.unwrap_err();
    assert!(refused.to_string().contains("(removed: charge)"), "{refused}");
}

#[tokio::test]
async fn b042_b043_b044_a_run_that_has_ended_answers_without_contacting_anyone() {
    let (world, fake) = (World::start().await, FakeMcp::start().await);
    let url = json!([{"url": fake.url()}]);
    let charge = || [("charge", json!({"amount": 5}))];
    world.create(run_on("completed", &charge(), url.clone())).await.unwrap();
    let mut stopped = run_on("stopped", &charge(), url.clone());
    stopped["limits"] = json!({"max_turns": 1});
    world.create(stopped).await.unwrap();
    let mut failed = run_on("failed", &charge(), url);
    failed["model"]["script"] = json!([{"error": {"status": 400}}]);
    world.create(failed).await.unwrap();
    for id in ["completed", "stopped", "failed"] {
        assert_eq!(world.rested(&run_id(id)).await.head.status.code(), id);
    }
    let seen = fake.seen().len();
    fake.stop().await;
    for id in ["completed", "stopped", "failed"] {
        let before = world.view(&run_id(id)).await;
        assert_eq!(world.resume(id, json!({})).await.unwrap(), Resumed::Terminal);
        assert_eq!(world.view(&run_id(id)).await.head, before.head);
    }
    assert!(seen > 0);
}

#[tokio::test]
async fn b045_b046_b047_an_unreachable_server_leaves_nothing_and_the_id_is_free() {
    let (world, first) = (World::start().await, FakeMcp::start().await);
    let second = FakeMcp::start().await;
    let addr = second.addr();
    second.stop().await;
    let entries = json!([
        {"url": first.url(), "namespace": "a"},
        {"url": format!("http://{addr}/mcp"), "namespace": "b"},
    ]);
    let calls = [("a_charge", json!({"amount": 5}))];
    let refused = world.create(run_on("r", &calls, entries.clone())).await.unwrap_err();
    let CommandError::Unreachable(unreachable) = refused else { panic!("{refused:?}") };
    assert_eq!(unreachable.server, "b");
    assert!(world.app.store.run_fetch(&asker().tenant, &run_id("r")).await.unwrap().is_none());
    let _second = FakeMcp::start_at(addr).await;
    world.create(run_on("r", &calls, entries)).await.unwrap();
    assert_eq!(world.rested(&run_id("r")).await.head.status.code(), "completed");
}

#[tokio::test]
async fn b048_an_unreachable_server_refuses_the_resume_and_leaves_the_run() {
    let (world, fake) = (World::start().await, FakeMcp::start().await);
    held(&world, &fake, "r").await;
    let before = world.view(&run_id("r")).await;
    fake.stop().await;
    let refused = world.resume("r", json!({"retry_tool_call_ids": ["call_1"]})).await.unwrap_err();
    assert!(matches!(refused, CommandError::Unreachable(_)), "{refused:?}");
    assert_eq!(world.view(&run_id("r")).await.head, before.head);
}

#[tokio::test]
async fn b089_b090_b093_a_name_served_twice_is_a_warning_in_the_run_and_in_the_stream() {
    let world = World::start().await;
    let (first, second) = (FakeMcp::start().await, FakeMcp::start().await);
    let entries = json!([{"url": first.url(), "namespace": "n"}, {"url": second.url(), "namespace": "n"}]);
    world.create(run_on("r", &[("n_charge", json!({"amount": 5}))], entries)).await.unwrap();
    let view = world.rested(&run_id("r")).await;
    assert_eq!((first.count("tools/call"), second.count("tools/call")), (0, 1));
    let text = "MCP tool 'n_charge' is served by more than one server; the later one is used.";
    assert_eq!(view.head.state.warnings.len(), 1);
    assert_eq!(view.head.state.warnings[0].message, text);
    let told: Vec<Value> = world
        .events(&view)
        .await
        .into_iter()
        .filter(|(_, event)| event["part"]["type"] == "warning")
        .map(|(_, event)| event)
        .collect();
    assert_eq!((told.len(), &told[0]["turn"]), (1, &json!(0)));
    assert_eq!(told[0]["part"]["warning"], json!({"type": "unsupported-tool", "setting": "mcp", "message": text}));
}

#[tokio::test]
async fn b107_b108_a_second_run_of_the_tenant_makes_no_new_handshake() {
    let (world, fake) = (World::start().await, FakeMcp::start().await);
    for id in ["a", "b"] {
        world.create(run_on(id, &[("charge", json!({"amount": 5}))], json!([{"url": fake.url()}]))).await.unwrap();
        assert_eq!(world.rested(&run_id(id)).await.head.status.code(), "completed");
    }
    assert_eq!((fake.count("initialize"), fake.count("tools/call")), (1, 2));
}

#[tokio::test]
async fn b025_b026_a_declaration_makes_no_other_connection_and_reaches_no_server() {
    let (world, fake) = (World::start().await, FakeMcp::start().await);
    let entries = json!([
        {"url": fake.url(), "namespace": "a", "replay": "idempotent"},
        {"url": fake.url(), "namespace": "b", "side_effect_class": "read_only", "tools": ["charge"]},
    ]);
    let calls = [("a_charge", json!({"amount": 5})), ("b_charge", json!({"amount": 6}))];
    world.create(run_on("a", &calls, entries)).await.unwrap();
    assert_eq!(world.rested(&run_id("a")).await.head.status.code(), "completed");
    assert_eq!((fake.count("initialize"), fake.count("tools/call")), (1, 2));
    for seen in fake.seen() {
        let said = format!("{:?} {}", seen.headers, seen.body);
        for declared in ["replay", "idempotent", "read_only", "side_effect_class", "namespace"] {
            assert!(!said.contains(declared), "{declared}: {said}");
        }
    }
}

#[tokio::test]
async fn b106_b109_b204_a_connection_with_a_runs_own_secret_is_closed_with_the_run() {
    let (world, fake) = (World::start().await, FakeMcp::start().await);
    for id in ["a", "b"] {
        let auth = json!({"scheme": "bearer", "secret": "orders_token"});
        let entry = json!([{"url": fake.url(), "auth": auth}]);
        let mut body = run_on(id, &[("charge", json!({"amount": 5}))], entry);
        body["secrets"] = json!({"orders_token": "s3cr3t-canary"});
        world.create(body).await.unwrap();
        let view = world.rested(&run_id(id)).await;
        assert_eq!(view.head.status.code(), "completed");
        // Purged with the end of the run.
        assert!(world.app.store.secret_list(&asker().tenant, view.uid).await.unwrap().is_empty());
    }
    fake.wait_until(|fake| fake.count_http("DELETE") == 2).await;
    assert_eq!(fake.count("initialize"), 2);
    for seen in fake.seen() {
        assert_eq!(seen.headers["authorization"], "Bearer s3cr3t-canary");
    }
}

#[tokio::test]
async fn entries_given_with_a_resume_are_stored_and_take_no_open_call_elsewhere() {
    let (world, first) = (World::start().await, FakeMcp::start().await);
    held(&world, &first, "r").await;
    let second = FakeMcp::start().await;
    let retry = |entry: Value| json!({"mcp": [entry], "retry_tool_call_ids": ["call_1"]});
    let elsewhere = [
        json!({"url": second.url()}),
        json!({"url": format!("{}?as=me", first.url())}),
        json!({"url": first.url(), "headers": {"x-account": "mine"}}),
    ];
    for entry in elsewhere {
        let refused = world.resume("r", retry(entry)).await.unwrap_err();
        assert!(matches!(refused, CommandError::Refused(Refusal::ServerMoved { .. })), "{refused}");
    }
    first.on_call(|_| Reply::text("charged"));
    let same = json!({"url": first.url(), "side_effect_class": {"charge": "irreversible_action"}});
    assert_eq!(world.resume("r", retry(same)).await.unwrap(), Resumed::Queued);
    let view = world.rested(&run_id("r")).await;
    assert_eq!((view.head.status.code(), view.binding_revision), ("completed", 2));
    assert_eq!((first.count("tools/call"), second.count("tools/call")), (2, 0));
    assert!(view.head.state.warnings.is_empty());
}
