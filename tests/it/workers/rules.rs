//! What rules say of workers' calls: before they are on offer, and when no worker takes them or one falls silent.

use reqwest::Method;
use serde_json::{Value, json};

use super::{answer, asking, claim, one_call, options, pays, receipt, results, run, server, until};
use crate::support::database::{Database, both_stores};
use crate::support::product::Product;

both_stores! {
    b236_a_tool_that_needs_an_approval_is_on_offer_once_it_is_approved,
    b105_a_clients_tool_that_needs_an_approval_is_asked_for_once_it_is_approved,
    b237_a_rule_says_what_is_done_about_a_call_that_nobody_serves,
    b237_b240_a_rule_says_what_is_done_about_a_call_behind_a_full_queue,
    b237_b239_a_rule_says_what_is_done_about_a_worker_that_fell_silent,
    b206_b226_a_rule_denies_a_workers_call_before_it_is_on_offer,
}

/// The same run, with one rule.
fn ruled(id: &str, more: Value, rule: Value) -> Value {
    let mut body = pays(id, more);
    body["policies"] = json!([rule]);
    body
}

fn on(trigger: &str, action: &str) -> Value {
    json!({ "name": "r", "scope": "tool:process_payment", "trigger": trigger, "action": action, "reason": "As agreed." })
}

async fn decide(server: &Product, id: &str, decision: &str) {
    server.post(&format!("/v1/runs/{id}/approvals/call_1"), &json!({ "decision": decision }), 200).await;
}

/// A run that waits for people to approve its call.
async fn asked(server: &Product, id: &str) -> Value {
    let waiting = server.rested(id).await;
    assert_eq!(
        (&waiting["status"], &waiting["reason"]),
        (&json!("suspended"), &json!("approval-required")),
        "{waiting}"
    );
    waiting["pending"]["approvals"][0].clone()
}

/// A run that failed by the rule, with this code.
async fn failed(server: &Product, id: &str, code: &str) {
    let ended = server.rested(id).await;
    assert_eq!((&ended["status"], &ended["error"]["code"]), (&json!("failed"), &json!(code)), "{ended}");
    assert!(ended["error"]["message"].as_str().unwrap().contains("As agreed."), "{ended}");
}

/// A run whose model was told that the call failed, by the rule.
async fn told(server: &Product, id: &str, code: &str) {
    assert_eq!(server.rested(id).await["status"], "completed");
    let known = receipt(server, id, "call_1").await;
    assert_eq!((&known["stage"], &known["error"]["code"]), (&json!("failed"), &json!(code)), "{known}");
    let result = &results(server, id).await[0];
    assert!(result["output"].as_str().unwrap().ends_with("Policy 'r': As agreed."), "{result}");
}

async fn b236_a_tool_that_needs_an_approval_is_on_offer_once_it_is_approved(database: Database) {
    let server = server(&database).await;
    let needs = json!({ "require_approval": true });
    for (id, decision) in [("no", "deny"), ("yes", "approve")] {
        server.post("/v1/runs", &pays(id, needs.clone()), 201).await;
        assert_eq!(asked(&server, id).await["tool"], "process_payment");
        let early = server.send(Method::GET, &format!("/v1/runs/{id}/receipts/1/call_1"), None).await;
        assert_eq!(early.status().as_u16(), 404, "what is not approved has no receipt");
        assert_eq!(claim(&server, "w1", &asking(0)).await["calls"], json!([]), "nothing is on offer before");
        decide(&server, id, decision).await;
    }
    let denied = server.rested("no").await;
    assert_eq!(denied["status"], "completed", "{denied}");
    let call = one_call(&server, "w1").await;
    assert_eq!(call["run_id"], "yes");
    assert_eq!(answer(&server, &call, json!({ "output": "paid" })).await.0, 200);
    assert_eq!(server.rested("yes").await["status"], "completed");
    assert_eq!(claim(&server, "w1", &asking(0)).await["calls"], json!([]));
}

async fn b105_a_clients_tool_that_needs_an_approval_is_asked_for_once_it_is_approved(database: Database) {
    let server = server(&database).await;
    let pick = json!([{ "name": "pick", "executor": { "type": "client" }, "require_approval": true }]);
    server.post("/v1/runs", &run("c", &[("pick", json!({ "of": 2 }))], pick), 201).await;
    asked(&server, "c").await;
    assert_eq!(server.get("/v1/runs/c").await["pending"]["client_tools"], json!([]));
    let early = json!({ "results": [{ "call_id": "call_1", "output": 1 }] });
    server.post("/v1/runs/c/tool-results", &early, 409).await;
    decide(&server, "c", "approve").await;
    let waiting = until(&server, "c", |run| run["reason"] == "client-tool-results-required").await;
    assert_eq!(waiting["pending"]["client_tools"][0]["input"], json!({ "of": 2 }));
    server.post("/v1/runs/c/tool-results", &early, 200).await;
    assert_eq!(server.rested("c").await["status"], "completed");
}

async fn b237_a_rule_says_what_is_done_about_a_call_that_nobody_serves(database: Database) {
    let options = options().with("COUNTERSIGN_WORKER_QUEUE_WAIT_S", "1");
    let server = Product::start_as(&database.url, &options).await;
    let rule = |action| on("dispatch:no_handler", action);
    for action in ["fail", "tool_error", "retry", "require_approval", "reconcile"] {
        server.post("/v1/runs", &ruled(action, json!({}), rule(action)), 201).await;
    }
    failed(&server, "fail", "dispatch-no-handler").await;
    told(&server, "tool_error", "dispatch-no-handler").await;
    asked(&server, "require_approval").await;
    asked(&server, "reconcile").await;
    decide(&server, "reconcile", "deny").await;
    assert_eq!(server.rested("reconcile").await["status"], "completed");
    // The one that retries is on offer still, and the approved one is again.
    decide(&server, "require_approval", "approve").await;
    let mut got = Vec::new();
    while got.len() < 2 {
        for call in claim(&server, "w1", &asking(20_000)).await["calls"].as_array().unwrap() {
            assert_eq!(call["attempt"], 1);
            assert_eq!(answer(&server, call, json!({ "output": "paid" })).await.0, 200);
            got.push(call["run_id"].as_str().unwrap().to_owned());
        }
    }
    got.sort();
    assert_eq!(got, ["require_approval", "retry"]);
    for id in got {
        assert_eq!(server.rested(&id).await["status"], "completed");
    }
}

async fn b237_b240_a_rule_says_what_is_done_about_a_call_behind_a_full_queue(database: Database) {
    let options = options().with("COUNTERSIGN_WORKER_QUEUE_MAX", "1").with("COUNTERSIGN_WORKER_LEASE_S", "60");
    let server = Product::start_as(&database.url, &options).await;
    // One worker, which is busy.
    server.post("/v1/runs", &pays("first", json!({})), 201).await;
    let first = one_call(&server, "w1").await;
    server.post("/v1/runs", &pays("queued", json!({})), 201).await;
    super::staged(&server, "queued", "call_1", "pending").await;
    let rule = |action| on("dispatch:capacity_exhausted", action);
    server.post("/v1/runs", &ruled("retry", json!({}), rule("retry")), 201).await;
    super::staged(&server, "retry", "call_1", "pending").await;
    let waiting = server.get("/v1/runs/retry").await;
    for action in ["fail", "tool_error", "require_approval"] {
        server.post("/v1/runs", &ruled(action, json!({}), rule(action)), 201).await;
    }
    failed(&server, "fail", "dispatch-capacity-exhausted").await;
    told(&server, "tool_error", "dispatch-capacity-exhausted").await;
    asked(&server, "require_approval").await;
    assert_eq!(server.get("/v1/runs/retry").await, waiting, "nothing is written for a call that only waits");
    assert_eq!(answer(&server, &first, json!({ "output": "paid" })).await.0, 200);
    for id in ["queued", "retry"] {
        let one = json!({ "tools": [{ "tool": "payments.process", "version": "1.0.0" }], "max": 1 });
        let call = claim(&server, "w1", &one).await["calls"][0].clone();
        assert_eq!(call["run_id"], id, "those that wait keep their order");
    }
}

async fn b237_b239_a_rule_says_what_is_done_about_a_worker_that_fell_silent(database: Database) {
    let options = options().with("COUNTERSIGN_WORKER_LEASE_S", "1");
    let server = Product::start_as(&database.url, &options).await;
    for action in ["fail", "tool_error", "require_approval", "retry"] {
        server.post("/v1/runs", &ruled(action, json!({}), on("dispatch:lease_expired", action)), 201).await;
        let call = one_call(&server, "w1").await;
        assert_eq!((&call["run_id"], &call["attempt"]), (&json!(action), &json!(1)));
        match action {
            "fail" => {
                failed(&server, "fail", "dispatch-lease-expired").await;
                assert_eq!(receipt(&server, "fail", "call_1").await["stage"], "indeterminate", "it stays visible");
            }
            "tool_error" => told(&server, "tool_error", "outcome-unknown").await,
            "require_approval" => {
                assert_eq!(asked(&server, action).await["kind"], "repeat");
                decide(&server, action, "deny").await;
                assert_eq!(server.rested(action).await["status"], "completed");
            }
            _ => {
                let again = one_call(&server, "w2").await;
                assert_eq!((&again["id"], &again["attempt"]), (&call["id"], &json!(2)));
                assert_eq!(again["idempotency_key"], call["idempotency_key"]);
                assert_eq!(answer(&server, &again, json!({ "output": "paid" })).await.0, 200);
                assert_eq!(server.rested(action).await["status"], "completed");
            }
        }
    }
    assert_eq!(claim(&server, "w1", &asking(0)).await["calls"], json!([]), "nothing else was handed out again");
}

async fn b206_b226_a_rule_denies_a_workers_call_before_it_is_on_offer(database: Database) {
    let server = server(&database).await;
    let mut rule = on("call", "deny");
    rule["when"] = json!("args.amount > 100.0");
    server.post("/v1/runs", &ruled("much", json!({}), rule.clone()), 201).await;
    assert_eq!(server.rested("much").await["status"], "completed");
    let said = &results(&server, "much").await[0];
    assert!(said["output"].as_str().unwrap().contains("As agreed."), "{said}");
    assert_eq!(claim(&server, "w1", &asking(0)).await["calls"], json!([]));
    rule["scope"] = json!("tool:pay_process");
    let unknown = server.post("/v1/runs", &ruled("x", json!({}), rule), 422).await;
    assert_eq!(unknown["errors"][0]["pointer"], "/policies/0/scope", "{unknown}");
}
