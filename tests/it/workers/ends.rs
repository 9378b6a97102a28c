//! Workers and nodes that die, runs that are cancelled.

use serde_json::json;

use super::{
    answer, asking, claim, one_call, options, path, payment, pays, problem, receipt, run, server, staged, until,
    with_lease,
};
use crate::support::database::{Database, both_stores};
use crate::support::fake_mcp::{FakeMcp, tool};
use crate::support::product::Product;

both_stores! {
    b239_a_worker_that_dies_leaves_a_harmless_call_to_another_with_the_same_key,
    b239_a_worker_that_dies_with_another_call_leaves_it_to_a_person,
    b241_a_worker_that_restarts_keeps_the_calls_that_it_names,
    b241_a_node_that_dies_between_claim_and_result_loses_neither,
    b243_a_worker_hears_of_a_cancel_and_its_answer_still_counts,
    b216_b243_a_worker_that_does_not_answer_a_cancel_leaves_the_outcome_unknown,
    b216_b243_a_suspended_run_that_is_cancelled_has_what_its_worker_says,
}

async fn b239_a_worker_that_dies_leaves_a_harmless_call_to_another_with_the_same_key(database: Database) {
    let server = server(&database).await;
    server.post("/v1/runs", &pays("again", json!({ "side_effect_class": "idempotent_write" })), 201).await;
    let first = one_call(&server, "w1").await;
    let second = one_call(&server, "w2").await;
    assert_eq!((&second["id"], &second["idempotency_key"]), (&first["id"], &first["idempotency_key"]));
    assert_eq!(second["attempt"], 2);
    assert_ne!(second["lease"], first["lease"]);
    assert_eq!(answer(&server, &first, json!({ "output": 1 })).await.0, 409, "the lease is lost");
    assert_eq!(answer(&server, &second, json!({ "output": 2 })).await.0, 200);
    assert_eq!(server.rested("again").await["status"], "completed");
    assert_eq!(receipt(&server, "again", "call_1").await["output"], 2);
}

async fn b239_a_worker_that_dies_with_another_call_leaves_it_to_a_person(database: Database) {
    let server = server(&database).await;
    server.post("/v1/runs", &pays("lost", json!({})), 201).await;
    let call = one_call(&server, "w1").await;
    let held = server.rested("lost").await;
    assert_eq!(held["reason"], "tool-reconciliation-required");
    assert_eq!(held["pending"]["reconciliations"][0]["cause"], "lease-expired");
    assert_eq!(answer(&server, &call, json!({ "output": 1 })).await.0, 409);
    assert_eq!(claim(&server, "w2", &asking(0)).await["calls"], json!([]));
    // A person allows one more attempt; it is handed out with the same key.
    server.post("/v1/admin/runs/lost/reconciliations/1/call_1", &json!({ "resolution": "retry" }), 200).await;
    let again = one_call(&server, "w2").await;
    assert_eq!((&again["attempt"], &again["idempotency_key"]), (&json!(2), &call["idempotency_key"]));
    assert_eq!(answer(&server, &again, json!({ "output": 2 })).await.0, 200);
    assert_eq!(server.rested("lost").await["status"], "completed");
}

async fn b241_a_worker_that_restarts_keeps_the_calls_that_it_names(database: Database) {
    let server = server(&database).await;
    server.post("/v1/runs", &pays("kept", json!({})), 201).await;
    let call = one_call(&server, "w1").await;
    let mut body = asking(0);
    body["in_flight"] = json!([{ "id": call["id"], "lease": call["lease"] }, { "id": call["id"], "lease": "old" }]);
    // For longer than a lease: each of these lets it run anew.
    let began = tokio::time::Instant::now();
    while began.elapsed() < std::time::Duration::from_secs(3) {
        let said = claim(&server, "w1", &body).await;
        assert_eq!((&said["calls"], &said["cancelled"]), (&json!([]), &json!([call["id"]])), "the old one is lost");
    }
    assert_eq!(answer(&server, &call, json!({ "output": 1 })).await.0, 200);
    assert_eq!(server.rested("kept").await["status"], "completed");
}

async fn b241_a_node_that_dies_between_claim_and_result_loses_neither(database: Database) {
    let options = options().with("COUNTERSIGN_WORKER_LEASE_S", "30");
    let first = Product::start_as(&database.url, &options).await;
    first.post("/v1/runs", &pays("node", json!({})), 201).await;
    let call = one_call(&first, "w1").await;
    first.kill();
    let second = Product::start_as(&database.url, &options).await;
    assert_eq!(receipt(&second, "node", "call_1").await["stage"], "executing");
    assert_eq!(claim(&second, "w2", &asking(0)).await["calls"], json!([]), "it is still the first worker's");
    second.post(&path(&call, "heartbeat"), &with_lease(&call, json!({})), 200).await;
    assert_eq!(answer(&second, &call, json!({ "output": 1 })).await.0, 200);
    assert_eq!(second.rested("node").await["status"], "completed");
    assert_eq!(receipt(&second, "node", "call_1").await["attempt"], 1);
}

async fn b243_a_worker_hears_of_a_cancel_and_its_answer_still_counts(database: Database) {
    let options = options().with("COUNTERSIGN_WORKER_LEASE_S", "20");
    let server = Product::start_as(&database.url, &options).await;
    server.post("/v1/runs", &pays("stop", json!({})), 201).await;
    let call = one_call(&server, "w1").await;
    server.post("/v1/runs/stop/cancel", &json!({}), 202).await;
    let beaten = server.post(&path(&call, "heartbeat"), &with_lease(&call, json!({})), 200).await;
    assert_eq!(beaten["cancelled"], true);
    let mut body = asking(10_000);
    body["in_flight"] = json!([{ "id": call["id"], "lease": call["lease"] }]);
    assert_eq!(claim(&server, "w1", &body).await["cancelled"], json!([call["id"]]));
    assert_eq!(answer(&server, &call, json!({ "output": "undone" })).await.0, 200);
    assert_eq!(server.rested("stop").await["status"], "cancelled");
    let known = receipt(&server, "stop", "call_1").await;
    assert_eq!((&known["stage"], &known["output"]), (&json!("completed"), &json!("undone")));
}

async fn b216_b243_a_worker_that_does_not_answer_a_cancel_leaves_the_outcome_unknown(database: Database) {
    let server = server(&database).await;
    server.post("/v1/runs", &pays("mute", json!({ "side_effect_class": "read_only" })), 201).await;
    let call = one_call(&server, "w1").await;
    server.post("/v1/runs/mute/cancel", &json!({}), 202).await;
    let ended = until(&server, "mute", |run| run["status"] == "cancelled").await;
    assert_eq!(ended["pending"]["reconciliations"][0]["call_id"], "call_1");
    let known = staged(&server, "mute", "call_1", "indeterminate").await;
    assert!(known["cause"] == "cancelled" || known["cause"] == "lease-expired", "{known}");
    let late = with_lease(&call, json!({ "output": 1 }));
    problem(&server, &path(&call, "result"), &late, 409, "lease-lost").await;
    assert_eq!(claim(&server, "w2", &asking(0)).await["calls"], json!([]), "nothing of a cancelled run is handed out");
}

async fn b216_b243_a_suspended_run_that_is_cancelled_has_what_its_worker_says(database: Database) {
    let options = options().with("COUNTERSIGN_WORKER_LEASE_S", "20");
    let (server, fake) = (Product::start_as(&database.url, &options).await, FakeMcp::start().await);
    let amount = json!({ "amount": 1 });
    let calls = [("process_payment", amount.clone()), ("process_payment", amount.clone()), ("charge", amount)];
    let mut body = run("parked", &calls, json!([payment(json!({}))]));
    body["mcp"] = json!([{ "url": fake.url() }]);
    body["limits"] = json!({ "max_parallel_tool_calls": 2 });
    server.post("/v1/runs", &body, 201).await;
    let claimed = claim(&server, "w1", &asking(20_000)).await["calls"].clone();
    assert_eq!(claimed.as_array().map(Vec::len), Some(2), "{claimed}");
    // The first answer makes room for the server's call, and the leg that would send it finds another catalog.
    fake.serve(vec![tool("charge"), tool("refund")]);
    assert_eq!(answer(&server, &claimed[0], json!({ "output": "paid" })).await.0, 200);
    until(&server, "parked", |run| run["status"] == "suspended" && run["reason"] == "mcp-catalog-changed").await;
    server.post("/v1/runs/parked/cancel", &json!({}), 202).await;
    let beaten = server.post(&path(&claimed[1], "heartbeat"), &with_lease(&claimed[1], json!({})), 200).await;
    assert_eq!(beaten["cancelled"], true);
    assert_eq!(answer(&server, &claimed[1], json!({ "output": "paid too" })).await.0, 200);
    assert_eq!(
        until(&server, "parked", |run| run["status"] == "cancelled").await["pending"]["reconciliations"],
        json!([])
    );
    let known = receipt(&server, "parked", "call_2").await;
    assert_eq!((&known["stage"], &known["output"]), (&json!("completed"), &json!("paid too")));
    assert_eq!(
        (receipt(&server, "parked", "call_3").await["stage"].clone(), fake.count("tools/call")),
        (json!("failed"), 0)
    );
}
