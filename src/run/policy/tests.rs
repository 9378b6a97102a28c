use serde_json::{Value, json};

use super::*;
use crate::run::approval::{OnModify, OnReject, OnTimeout};

fn policy(value: &Value) -> Policy {
    serde_json::from_value(value.clone()).unwrap()
}

/// Judges a call by rules and what each condition says.
fn judgement(rules: &[(Value, Found)]) -> Judgement {
    let policies: Vec<(Policy, Found)> = rules.iter().map(|(value, found)| (policy(value), found.clone())).collect();
    let rules: Vec<(&Policy, Found)> = policies.iter().map(|(policy, found)| (policy, found.clone())).collect();
    judge(&rules, "charge", "digest".to_owned())
}

fn judged(rules: &[(Value, Found)]) -> Judged {
    judgement(rules).judged
}

#[track_caller]
fn check(rules: &[(Value, Found)], outcome: DecisionOutcome, rule: Option<&str>) {
    let judgement = judgement(rules);
    let decision = judgement.judged.decision.expect("a decision");
    assert_eq!((decision.outcome, decision.rule.as_deref()), (outcome, rule), "{decision:?}");
    assert_eq!(judgement.requirement.is_some(), outcome == DecisionOutcome::RequireApproval);
}

fn rule(name: &str, action: &str) -> Value {
    json!({ "name": name, "action": action, "reason": format!("{name} says so.") })
}

#[test]
fn b233_deny_wins_over_all_and_then_the_strictest_approval() {
    use DecisionOutcome::{Allow, Deny, RequireApproval};
    let failed = || Found::Failed("there is no field \"amount\"".to_owned());
    let (yes, no) = (|| Found::Yes, || Found::No);
    check(&[(rule("a", "allow"), yes())], Allow, None);
    check(&[(rule("a", "allow"), no())], Deny, Some("a"));
    check(&[(rule("a", "allow"), no()), (rule("b", "allow"), yes())], Allow, None);
    check(&[(rule("d", "deny"), no())], Allow, None);
    check(&[(rule("d", "deny"), yes()), (rule("a", "allow"), yes())], Deny, Some("d"));
    check(&[(rule("r", "require_approval"), yes()), (rule("d", "deny"), yes())], Deny, Some("d"));
    check(&[(rule("r", "require_approval"), yes()), (rule("a", "allow"), no())], Deny, Some("a"));
    check(&[(rule("r", "require_approval"), no())], Allow, None);
    check(&[(rule("r", "require_approval"), yes()), (rule("a", "allow"), yes())], RequireApproval, None);
    // What cannot be evaluated denies, whatever it would have done.
    for action in ["allow", "deny", "require_approval"] {
        check(&[(rule("x", action), failed()), (rule("a", "allow"), yes())], Deny, Some("x"));
    }
    check(&[(rule("x", "deny"), failed()), (rule("d", "deny"), yes())], Deny, Some("d"));
    assert!(judged(&[]).is_empty());
}

#[test]
fn b233_several_approvals_become_the_strictest_one() {
    let with = |name: &str, approval: Value| {
        let mut value = rule(name, "require_approval");
        value["approval"] = approval;
        (value, Found::Yes)
    };
    let Judgement { judged, requirement } = judgement(&[
        with("quorum", json!({ "required": 2, "timeout_s": 600, "on_timeout": "approve", "on_modify": "accept" })),
        with("fast", json!({ "timeout_s": 60, "exclude_starter": true, "on_reject": "fail" })),
        with("plain", json!({})),
    ]);
    let requirement = requirement.unwrap();
    assert_eq!(requirement.rules, ["quorum", "fast", "plain"]);
    let rule = requirement.rule;
    assert_eq!((rule.required, rule.timeout_s, rule.exclude_starter), (2, Some(60), true));
    let modes = (rule.on_timeout, rule.on_reject, rule.on_modify);
    assert_eq!(modes, (OnTimeout::Deny, OnReject::Fail, OnModify::Revalidate));
    assert_eq!(judged.decision.unwrap().rules, ["quorum", "fast", "plain"]);
}

#[test]
fn b232_a_denial_says_which_rule_and_why() {
    let reason = |rules: &[(Value, Found)]| judged(rules).decision.unwrap().reason.unwrap();
    assert_eq!(
        reason(&[(json!({ "name": "cap", "action": "deny", "reason": "At most 500." }), Found::Yes)]),
        "The call was denied by the policy 'cap': At most 500."
    );
    assert_eq!(
        reason(&[(json!({ "name": "cap", "action": "deny" }), Found::Failed("there is no field \"amount\"".into()))]),
        "The policy 'cap' could not be evaluated, which denies: there is no field \"amount\"."
    );
    let usd = json!({ "name": "usd", "action": "allow", "reason": "Dollars only." });
    assert_eq!(
        reason(&[(usd, Found::No)]),
        "The call was denied: no policy that allows calls of charge allows this one. Dollars only."
    );
}

#[test]
fn b214_the_strictest_rule_says_what_is_done_when_something_goes_wrong() {
    let at = |action: &str, found: Found| {
        let trigger = "dispatch:indeterminate";
        (json!({ "name": action, "action": action, "trigger": trigger }), found)
    };
    let said = |rules: &[(Value, Found)]| judged(rules).troubles.remove(&Trigger::Indeterminate);
    let fail = Trouble::Fail { rule: "fail".into(), reason: None };
    let error = Trouble::ToolError { rule: "tool_error".into(), reason: None };
    assert_eq!(said(&[at("retry", Found::Yes)]), Some(Trouble::Retry));
    assert_eq!(said(&[at("retry", Found::No)]), None);
    assert_eq!(said(&[at("retry", Found::Yes), at("tool_error", Found::Yes)]), Some(error));
    assert_eq!(said(&[at("tool_error", Found::Yes), at("reconcile", Found::Yes)]), Some(Trouble::Reconcile));
    assert_eq!(said(&[at("reconcile", Found::Yes), at("fail", Found::Yes)]), Some(fail));
    let asks = said(&[at("require_approval", Found::Yes), at("tool_error", Found::Yes)]);
    assert!(matches!(asks, Some(Trouble::RequireApproval { .. })));
    assert_eq!(said(&[at("retry", Found::Yes), at("fail", Found::Failed("x".into()))]), None, "nothing is repeated");
}

#[test]
fn b234_a_rule_for_calls_and_one_for_failures_never_meet() {
    let rules = [
        (json!({ "name": "c", "action": "deny" }), Found::Yes),
        (json!({ "name": "d", "trigger": "dispatch:no_handler", "action": "fail" }), Found::Yes),
    ];
    let both = judged(&rules);
    assert_eq!(both.decision.as_ref().unwrap().rules, ["c"]);
    assert_eq!(both.troubles.keys().copied().collect::<Vec<_>>(), [Trigger::NoHandler]);
    let failures = judged(&rules[1..]);
    assert_eq!(failures.decision, None, "nothing was decided about the call itself");
    assert!(judged(&rules[..1]).troubles.is_empty());
}

#[test]
fn a_limit_is_judged_by_its_own_rules_and_an_unclear_one_fails_the_run() {
    let limit = policy(&json!({ "name": "l", "trigger": "limit:reached", "action": "require_approval" }));
    let call = policy(&json!({ "name": "c", "action": "deny" }));
    assert_eq!(judge_limit(&[(&call, Found::Yes)]), None);
    let asks = judge_limit(&[(&limit, Found::Yes), (&call, Found::Yes)]);
    assert!(matches!(asks, Some(Trouble::RequireApproval { .. })));
    assert!(matches!(judge_limit(&[(&limit, Found::Failed("x".into()))]), Some(Trouble::Fail { .. })));
}

#[test]
fn a_scope_covers_its_tool_its_server_or_everything() {
    let place = Place {
        offered: "orders_refund_1",
        recorded: "orders_refund",
        server_tool: "refund",
        servers: ["orders-eu", "orders"],
    };
    for (scope, covers, covers_own) in [
        ("agent", true, true),
        ("tool:orders_refund_1", true, false),
        ("tool:orders_refund", true, false),
        ("tool:refund", false, true),
        ("server:orders", true, true),
        ("server:orders-eu", true, true),
        ("server:other", false, true),
    ] {
        let parsed = Scope::try_from(scope.to_owned()).unwrap();
        assert_eq!((parsed.covers(place), parsed.covers_own("refund")), (covers, covers_own), "{scope}");
        assert_eq!(String::from(parsed), scope);
    }
    for wrong in ["", "agents", "tool:", "tool", "server:", "worker:x"] {
        assert!(Scope::try_from(wrong.to_owned()).is_err(), "{wrong}");
    }
}

#[track_caller]
fn contradictions(value: Value, expected: &[&str]) {
    let found: Vec<&str> = policy(&value).contradictions().into_iter().map(|(member, _)| member).collect();
    assert_eq!(found, expected, "{value}");
}

#[test]
fn what_contradicts_itself_in_a_rule_is_named() {
    contradictions(json!({ "name": "p", "action": "deny" }), &[]);
    contradictions(json!({ "name": "p", "action": "retry" }), &["action"]);
    contradictions(json!({ "name": "p", "action": "allow", "trigger": "dispatch:no-handler" }), &["action"]);
    contradictions(json!({ "name": "p", "action": "fail", "trigger": "limit:reached" }), &[]);
    contradictions(json!({ "name": "p", "action": "deny", "approval": {} }), &["approval"]);
    let asks = |approval: Value| json!({ "name": "p", "action": "require-approval", "approval": approval });
    contradictions(asks(json!({ "on_timeout": "escalate", "timeout_s": 5 })), &["approval/escalate_to"]);
    contradictions(asks(json!({ "on_timeout": "approve" })), &["approval/timeout_s"]);
    contradictions(asks(json!({ "escalate_to": {} })), &["approval/escalate_to"]);
    contradictions(asks(json!({ "on_timeout": "approve", "timeout_s": 5, "exclude_starter": true })), &[]);
}
