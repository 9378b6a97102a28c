//! Policies over the API: what they do to calls, where it is told, and what is refused when they are stored.

use std::sync::atomic::{AtomicBool, Ordering};

use http::Method;
use serde_json::{Value, json};

use super::{Site, faults, pointers};
use crate::http::harness::demo_mcp;
use crate::support::database::{Database, both_stores};
use crate::support::fake_mcp::Reply;

both_stores! {
    b206_b226_b235_a_denied_call_is_not_sent_and_the_model_reads_why,
    b225_a_call_over_the_limit_waits_for_an_approval_and_one_under_it_does_not,
    b227_b232_only_what_a_rule_allows_is_sent_and_what_cannot_be_evaluated_is_not,
    b229_changed_arguments_are_judged_again_and_unchanged_ones_are_not,
    rules_of_a_registered_server_hold_in_every_run_that_names_it,
    b214_a_rule_says_what_is_done_about_an_unknown_outcome,
}

fn cap(amount: u32) -> Value {
    json!({ "name": "cap", "scope": "tool:charge", "when": format!("args.amount > {amount}"), "action": "deny",
        "reason": format!("At most {amount}.") })
}

fn review() -> Value {
    json!({ "name": "review", "when": "args.amount > 1000", "action": "require_approval", "reason": "Over 1000." })
}

async fn b206_b226_b235_a_denied_call_is_not_sent_and_the_model_reads_why(database: Database) {
    let site = Site::on(database).await;
    let calls =
        [("charge", json!({ "amount": 800 })), ("look", json!({ "amount": 800 })), ("charge", json!({ "amount": 5 }))];
    let run = site.settled(&site.calling("r", &calls, json!([cap(500)]))).await;
    assert_eq!(run["status"], "completed", "{run}");
    assert_eq!(site.sent(), [json!({ "amount": 800 }), json!({ "amount": 5 })], "look, and the small charge");
    let outputs = site.outputs("r").await;
    let rejected: Vec<&Value> = outputs.iter().filter(|event| event["stage"] == "rejected").collect();
    let [rejected] = rejected.as_slice() else { panic!("{outputs:?}") };
    assert_eq!((&rejected["rule"], &rejected["call_id"]), (&json!("cap"), &json!("call_1")));
    assert_eq!(rejected["reason"], "The call was denied by the policy 'cap': At most 500.");
    let decision = &rejected["policy"];
    assert_eq!((&decision["rules"], &decision["outcome"]), (&json!(["cap"]), &json!("deny")));
    assert_eq!(decision["inputs_digest"].as_str().unwrap().len(), 64);
    let messages = site.get("/v1/runs/r/messages").await;
    let results = &messages["data"][2]["content"];
    assert_eq!((&results[0]["is_error"], &results[0]["output"]), (&json!(true), &rejected["reason"]));
    let receipts = site.get("/v1/runs/r/receipts").await;
    let receipts: Vec<(&Value, &Value)> =
        receipts["data"].as_array().unwrap().iter().map(|row| (&row["call_id"], &row["policy"]["outcome"])).collect();
    assert_eq!(receipts, [(&json!("call_2"), &Value::Null), (&json!("call_3"), &json!("allow"))]);
}

async fn b225_a_call_over_the_limit_waits_for_an_approval_and_one_under_it_does_not(database: Database) {
    let site = Site::on(database).await;
    let bob = site.server.token("acme", "bob", "approvals:decide runs:read");
    let run = site.settled(&site.calling("small", &[("charge", json!({ "amount": 500 }))], json!([review()]))).await;
    assert_eq!((&run["status"], site.sent().len()), (&json!("completed"), 1));
    for (decision, sent) in [("approve", 2), ("deny", 2)] {
        let id = format!("large-{decision}");
        let run = site.settled(&site.calling(&id, &[("charge", json!({ "amount": 1500 }))], json!([review()]))).await;
        assert_eq!((&run["status"], &run["reason"]), (&json!("suspended"), &json!("approval-required")), "{run}");
        let [approval] = run["pending"]["approvals"].as_array().unwrap().as_slice() else { panic!("{run}") };
        assert_eq!((&approval["rules"], &approval["reason"]), (&json!(["review"]), &json!("Over 1000.")));
        let path = format!("/v1/runs/{id}/approvals/call_1");
        let body = json!({ "decision": decision, "comment": "so be it" });
        assert_eq!(site.send_as(&bob, Method::POST, &path, &body).await.status, 200);
        let run = ended(&site, &id).await;
        assert_eq!((&run["status"], site.sent().len()), (&json!("completed"), sent), "{run}");
    }
    let receipt = site.get("/v1/runs/large-approve/receipts/1/call_1").await;
    assert_eq!((&receipt["decided_by"], &receipt["policy"]["outcome"]), (&json!("bob"), &json!("require-approval")));
}

/// The run once it has ended.
pub(super) async fn ended(site: &Site, id: &str) -> Value {
    let path = format!("/v1/runs/{id}");
    crate::support::database::eventually("the run ends", async || {
        let status = site.get(&path).await["status"].as_str().unwrap().to_owned();
        !matches!(status.as_str(), "queued" | "running" | "suspended")
    })
    .await;
    site.get(&path).await
}

async fn b227_b232_only_what_a_rule_allows_is_sent_and_what_cannot_be_evaluated_is_not(database: Database) {
    let site = Site::on(database).await;
    let usd = json!({ "name": "usd", "scope": "tool:charge", "when": "args.currency in ['USD']", "action": "allow",
        "reason": "Dollars only." });
    let calls = [
        ("charge", json!({ "currency": "EUR" })),
        ("charge", json!({ "currency": "USD" })),
        ("charge", json!({ "amount": 1 })),
        ("charge", json!({ "currency": 7 })),
        ("look", json!({})),
    ];
    site.settled(&site.calling("r", &calls, json!([usd]))).await;
    assert_eq!(site.sent(), [json!({ "currency": "USD" }), json!({})]);
    let outputs = site.outputs("r").await;
    let told = |call: &str| {
        let event = outputs.iter().find(|event| event["call_id"] == call && event["stage"] == "rejected");
        event.map_or_else(String::new, |event| event["reason"].as_str().unwrap().to_owned())
    };
    assert_eq!(
        told("call_1"),
        "The call was denied: no policy that allows calls of charge allows this one. Dollars only."
    );
    assert_eq!(
        told("call_3"),
        "The policy 'usd' could not be evaluated, which denies: there is no field \"currency\"."
    );
    assert!(told("call_4").contains("no policy that allows"), "{}", told("call_4"));
}

async fn b229_changed_arguments_are_judged_again_and_unchanged_ones_are_not(database: Database) {
    let site = Site::on(database).await;
    let bob = site.server.token("acme", "bob", "approvals:decide runs:read");
    let never = json!({ "name": "never", "when": "args.amount > 10000", "action": "deny", "reason": "Never." });
    let vote = async |id: &str, body: Value| {
        let call = [("charge", json!({ "amount": 1500 }))];
        let run = site.settled(&site.calling(id, &call, json!([review(), never]))).await;
        assert_eq!(run["reason"], "approval-required", "{run}");
        let path = format!("/v1/runs/{id}/approvals/call_1");
        let answer = site.send_as(&bob, Method::POST, &path, &body).await;
        assert_eq!(answer.status, 200, "{:?}", answer.body);
        ended(&site, id).await
    };
    let run = vote("lower", json!({ "decision": "approve", "arguments": { "amount": 500 } })).await;
    assert_eq!((&run["status"], site.sent()), (&json!("completed"), vec![json!({ "amount": 500 })]));
    let receipt = site.get("/v1/runs/lower/receipts/1/call_1").await;
    assert_eq!((&receipt["input"], &receipt["policy"]["outcome"]), (&json!({ "amount": 500 }), &json!("allow")));
    vote("same", json!({ "decision": "approve" })).await;
    assert_eq!(site.sent().last(), Some(&json!({ "amount": 1500 })));
    vote("higher", json!({ "decision": "approve", "arguments": { "amount": 20000 } })).await;
    assert_eq!(site.sent().len(), 2, "nothing was sent for it");
    let outputs = site.outputs("higher").await;
    assert_eq!((&outputs[0]["stage"], &outputs[0]["rule"]), (&json!("rejected"), &json!("never")), "{outputs:?}");
}

async fn rules_of_a_registered_server_hold_in_every_run_that_names_it(database: Database) {
    let site = Site::on(database).await;
    let put = async |policies: Value| {
        let body = json!({ "url": site.fake.url(), "policies": policies });
        site.send(Method::PUT, "/v1/mcp-servers/till", &body).await
    };
    let rule = json!({ "name": "cap", "scope": "tool:charge", "when": "args.amount > 5", "action": "deny" });
    let made = put(json!([rule])).await;
    assert_eq!(made.status, 201, "{:?}", made.body);
    assert_eq!(made.json()["policies"][0]["when"], "args.amount > 5");
    let mut body =
        site.calling("r", &[("eu_charge", json!({ "amount": 9 })), ("eu_charge", json!({ "amount": 2 }))], json!([]));
    body["mcp"] = json!([{ "server": "till", "namespace": "eu" }]);
    site.settled(&body).await;
    assert_eq!(site.sent(), [json!({ "amount": 2 })]);
    let wrong = put(json!([
        { "name": "a", "scope": "server:other", "action": "deny" },
        { "name": "a", "when": "arg.x", "action": "deny" },
    ]))
    .await;
    assert_eq!(pointers(&wrong), ["/policies/0/scope", "/policies/1/name", "/policies/1/when"]);
}

async fn b214_a_rule_says_what_is_done_about_an_unknown_outcome(database: Database) {
    let site = Site::on(database).await;
    let seen_before = AtomicBool::new(false);
    site.fake.on_call(move |seen| {
        let is_lost = seen.body["params"]["arguments"]["lost"] == true;
        if is_lost || !seen_before.swap(true, Ordering::SeqCst) { Reply::Reset } else { Reply::text("done") }
    });
    let run = async |id: &str, action: &str| {
        let rule =
            json!({ "name": "lost", "trigger": "dispatch:indeterminate", "action": action, "reason": "As agreed." });
        site.settled(&site.calling(id, &[("charge", json!({ "amount": 5, "lost": action != "retry" }))], json!([rule])))
            .await
    };
    let retried = run("retry", "retry").await;
    assert_eq!((&retried["status"], site.sent().len()), (&json!("completed"), 2), "{retried}");
    let keys: Vec<Value> = site
        .fake
        .seen_rpc("tools/call")
        .iter()
        .map(|seen| seen.body["params"]["_meta"]["countersign/idempotency-key"].clone())
        .collect();
    assert_eq!(keys[0], keys[1]);
    let told = run("told", "tool_error").await;
    assert_eq!(told["status"], "completed", "{told}");
    let outputs = site.outputs("told").await;
    assert_eq!((&outputs[0]["stage"], &outputs[0]["error"]["code"]), (&json!("failed"), &json!("outcome-unknown")));
    assert!(outputs[0]["error"]["message"].as_str().unwrap().contains("As agreed."), "{outputs:?}");
    let waits = run("waits", "reconcile").await;
    assert_eq!(waits["reason"], "tool-reconciliation-required", "{waits}");
    let failed = run("failed", "fail").await;
    assert_eq!((&failed["status"], &failed["error"]["code"]), (&json!("failed"), &json!("dispatch-indeterminate")));
    assert!(failed["error"]["message"].as_str().unwrap().contains("As agreed."), "{failed}");
    let receipt = site.get("/v1/runs/failed/receipts/1/call_1").await;
    assert_eq!(receipt["stage"], "indeterminate", "what nobody knows stays visible");
    let asks = run("asks", "require_approval").await;
    assert_eq!(asks["reason"], "approval-required", "{asks}");
    assert_eq!(asks["pending"]["approvals"][0]["kind"], "repeat", "{asks}");
    let bob = site.server.token("acme", "bob", "approvals:decide");
    let path = "/v1/runs/asks/approvals/call_1";
    assert_eq!(site.send_as(&bob, Method::POST, path, &json!({ "decision": "deny" })).await.status, 200);
    let run = ended(&site, "asks").await;
    assert_eq!(run["status"], "completed", "{run}");
    assert_eq!(site.sent().len(), 6, "nothing was sent again but by the rule that says so");
}

/// The answer to a run with these rules.
async fn with_rules(site: &Site, policies: Value) -> crate::http::harness::Answer {
    site.send(Method::POST, "/v1/runs", &site.calling("r", &[("charge", json!({}))], policies)).await
}

#[tokio::test]
async fn b232_b248_rules_that_mean_nothing_are_refused_with_every_pointer() {
    let site = Site::on(Database::sqlite().await).await;
    let said = faults(
        &with_rules(
            &site,
            json!([
                { "name": "a", "when": "args.amount >", "action": "deny" },
                { "name": "a", "action": "retry" },
                { "name": "c", "scope": "server:nowhere", "action": "deny" },
                { "name": "d", "trigger": "limit:reached", "when": "args.x == 1", "action": "fail" },
                { "name": "e", "action": "require_approval", "approval": { "on_timeout": "escalate", "timeout_s": 5 } },
            ]),
        )
        .await,
    );
    let mut at: Vec<&str> = said.iter().map(|(pointer, _)| pointer.as_str()).collect();
    at.sort_unstable();
    let expected = [
        "/policies/0/when",
        "/policies/1/action",
        "/policies/1/name",
        "/policies/2/scope",
        "/policies/3/when",
        "/policies/4/approval/escalate_to",
    ];
    assert_eq!(at, expected, "{said:?}");
    let compiled = said.iter().find(|(pointer, _)| pointer == "/policies/0/when").unwrap();
    assert!(compiled.1.starts_with("line 1, column "), "{compiled:?}");
}

#[tokio::test]
async fn b248_rules_of_the_wrong_form_are_refused_with_their_pointer() {
    let site = Site::on(Database::sqlite().await).await;
    let asks = |approval: Value| json!({ "name": "a", "action": "require_approval", "approval": approval });
    let long = format!("1{} > 0", "+1".repeat(600));
    for (rule, pointer) in [
        (json!({ "name": "a", "action": "deny", "wehn": "true" }), "/policies/0/wehn"),
        (json!({ "name": "a", "action": "forbid" }), "/policies/0/action"),
        (json!({ "name": "a", "action": "deny", "scope": "worker:x" }), "/policies/0/scope"),
        (json!({ "name": "a", "action": "deny", "trigger": "dispatch:lost" }), "/policies/0/trigger"),
        (json!({ "name": "a", "action": "deny", "when": long }), "/policies/0/when"),
        (json!({ "action": "deny" }), "/policies/0/name"),
        (json!({ "name": "a" }), "/policies/0/action"),
        (asks(json!({ "required": 0 })), "/policies/0/approval/required"),
        (asks(json!({ "quorum": 2 })), "/policies/0/approval/quorum"),
    ] {
        assert_eq!(pointers(&with_rules(&site, json!([rule])).await), [pointer], "{rule}");
    }
}

#[tokio::test]
async fn b248_a_rule_names_what_is_there_and_repeats_nothing_irreversible() {
    let site = Site::on(Database::sqlite().await).await;
    let again = json!([{ "name": "again", "trigger": "dispatch:indeterminate", "action": "retry" }]);
    let mut body = site.calling("r", &[("charge", json!({}))], again);
    body["mcp"][0]["side_effect_class"] = json!({ "charge": "irreversible_action" });
    assert_eq!(pointers(&site.send(Method::POST, "/v1/runs", &body).await), ["/policies/0/action"]);
    let mut alone = site.calling("r", &[], json!([{ "name": "a", "scope": "tool:charge", "action": "deny" }]));
    alone["mcp"] = json!([]);
    assert_eq!(pointers(&site.send(Method::POST, "/v1/runs", &alone).await), ["/policies/0/scope"]);
    let typo = json!([{ "name": "typo", "scope": "tool:chrage", "action": "deny" }]);
    let run = site.settled(&site.calling("warned", &[("charge", json!({}))], typo)).await;
    assert_eq!(run["warnings"][0]["setting"], "policies", "{run}");
    assert!(run["warnings"][0]["message"].as_str().unwrap().contains("'chrage'"), "{run}");
}

#[tokio::test]
async fn the_rules_of_the_readme_do_what_it_says() {
    let readme = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/README.md")).unwrap();
    let (_, rest) = readme.split_once("## Rules for calls").unwrap();
    let (_, rest) = rest.split_once("-d '").unwrap();
    let (body, _) = rest.split_once("'\n```").unwrap();
    let site = Site::on(Database::sqlite().await).await;
    let (url, ledger, _demo) = demo_mcp().await;
    let body: Value = serde_json::from_str(&body.replace("http://127.0.0.1:PORT/mcp", &url)).unwrap();
    let run = site.settled(&body).await;
    assert_eq!((&run["status"], &run["reason"]), (&json!("suspended"), &json!("approval-required")), "{run}");
    assert_eq!(site.outputs("rules-demo").await[0]["rule"], "cap");
    let path = "/v1/runs/rules-demo/approvals/call_2";
    assert_eq!(site.send(Method::POST, path, &json!({ "decision": "approve" })).await.status, 200);
    assert_eq!(ended(&site, "rules-demo").await["status"], "completed");
    let amounts: Vec<Value> = ledger.entries().into_iter().map(|entry| entry.arguments["amount"].clone()).collect();
    assert_eq!(amounts, [json!(500)]);
}
