//! Whole runs, from their creation to their end.

mod boundary;
mod catalogs;
mod results;
mod tools;
mod unstorable;

use std::time::Duration;

use serde_json::json;
use tokio::time::{sleep, timeout};

use crate::support::fake_mcp::FakeMcp;
use crate::support::world::{World, asker, run_id, run_on};

#[tokio::test]
async fn b001_b003_b005_the_first_example_completes_with_one_charge_and_one_receipt() {
    let world = World::start().await;
    world.create(world.charge("charge-demo")).await.unwrap();
    let view = world.rested(&run_id("charge-demo")).await;
    assert_eq!(view.head.status.code(), "completed");
    assert_eq!(view.head.state.output.as_ref().unwrap().text, "Charged 5.");
    assert_eq!((view.head.state.usage.model_requests, view.head.state.usage.total_tokens), (2, 30));
    let charges = world.demo.ledger.entries();
    assert_eq!(charges.len(), 1);
    assert_eq!(json!(charges[0].arguments), json!({"amount": 5}));
    let receipts = world.app.store.receipt_list(&asker().tenant, view.uid, None, 100).await.unwrap();
    assert_eq!(receipts.len(), 1);
    assert_eq!(
        (receipts[0].key.turn, receipts[0].call_id.as_str(), receipts[0].stage.code()),
        (1, "call_1", "completed")
    );
    let kinds: Vec<String> = world.events(&view).await.into_iter().map(|(kind, _)| kind).collect();
    let expected =
        "run-status run-status turn-started part part tool-started tool-output turn-started part part result";
    assert_eq!(kinds.join(" "), expected);
}

#[tokio::test]
async fn b202_a_run_that_takes_no_tool_of_a_server_never_contacts_it() {
    let (world, fake) = (World::start().await, FakeMcp::start().await);
    for (id, mcp) in [("none", json!([])), ("unused", json!([{"url": fake.url(), "tools": []}]))] {
        world.create(run_on(id, &[], mcp)).await.unwrap();
        assert_eq!(world.rested(&run_id(id)).await.head.status.code(), "completed");
    }
    assert_eq!(fake.seen().len(), 0, "not even a connection was opened to it: {:?}", fake.seen());
}

#[tokio::test]
async fn the_result_is_there_after_a_restart() {
    let world = World::start().await;
    world.create(world.charge("charge-demo")).await.unwrap();
    let before = world.rested(&run_id("charge-demo")).await;
    let world = world.restart().await;
    let after = world.view(&run_id("charge-demo")).await;
    assert_eq!(after.head, before.head);
    assert_eq!(world.demo.ledger.count("charge"), 1);
}

#[tokio::test]
async fn a_caller_who_goes_away_while_a_run_is_created_leaves_none_that_nobody_drives() {
    let world = World::start().await;
    let began = std::time::Instant::now();
    world.create(world.charge("first")).await.unwrap();
    let usual = began.elapsed();
    // From callers who go at once to callers who stay.
    for nth in 0..60 {
        let patience = usual * nth / 20;
        let created = tokio::time::timeout(patience, world.create(world.charge(&format!("r{nth}")))).await;
        if let Ok(created) = created {
            created.unwrap();
        }
    }
    // What was stored is driven to its end; what was not stored is not there.
    world.create(world.charge("last")).await.unwrap();
    world.rested(&run_id("last")).await;
    let mut stored = 0;
    for nth in 0..60 {
        let id = run_id(&format!("r{nth}"));
        if world.app.store.run_fetch(&asker().tenant, &id).await.unwrap().is_some() {
            assert_eq!(world.rested(&id).await.head.status.code(), "completed");
            stored += 1;
        }
    }
    assert!(stored > 0);
}

#[tokio::test]
async fn what_is_out_when_the_drain_time_is_over_is_let_go_of_before_others_have_the_run() {
    let world = World::start().await;
    let body = run_on("r", &[("slow", json!({"ms": 60_000}))], json!([{"url": world.demo.url}]));
    world.create(body).await.unwrap();
    let out = async {
        while !world.receipts("r").await.iter().any(|call| call.stage.code() == "executing") {
            sleep(Duration::from_millis(5)).await;
        }
        world.app.executor.drain(Duration::ZERO).await;
    };
    timeout(Duration::from_secs(10), out).await.unwrap();
    let let_go = async {
        while world.app.executor.running() > 0 {
            sleep(Duration::from_millis(5)).await;
        }
    };
    // Sooner than the next beat, which would find the node retired.
    timeout(Duration::from_secs(3), let_go).await.unwrap();
    assert!(!world.view(&run_id("r")).await.owned);
    let world = world.restart().await;
    let view = world.rested(&run_id("r")).await;
    assert_eq!(view.head.status.reason(), Some("tool-reconciliation-required"));
}
