//! Limits that people may raise: what is asked, what approving, refusing and silence do, and what rules say before.

use serde_json::{Value, json};

use super::world::*;
use crate::run::approval::{ApprovalRule, Requirement, Verdict};
use crate::run::commit::Commit;
use crate::run::envelope::Envelope;
use crate::run::fact::Fact;
use crate::run::money::{Price, Usd};
use crate::run::policy::Trouble;
use crate::run::refusal::Refusal;
use crate::run::status::Status;
use crate::run::time::Timestamp;
use crate::run::{Step, apply, next};

fn decide(run: &mut Envelope, fact: Fact) -> Commit {
    apply(run, fact, NOW).unwrap()
}

fn vote(run: &mut Envelope, verdict: Verdict) -> Commit {
    let fact = vote_on(run, 0, "bob", verdict, None);
    decide(run, fact)
}

/// A vote that wants another limit than the one that is proposed.
fn vote_for(run: &Envelope, actor: &str, to: Value) -> Fact {
    let mut fact = vote_on(run, 0, actor, Verdict::Approve, None);
    if let Fact::Voted { cast, .. } = &mut fact {
        cast.arguments = Some(to);
    }
    fact
}

/// A run with this limit, and what a turn of it costs.
fn limited(limits: &Value) -> Envelope {
    let mut limits = limits.clone();
    limits["on_limit"] = json!("escalate");
    let (mut run, _) = new_run(limits, false);
    let usd = |text: &str| Usd::parse(text).unwrap();
    let price = Price { input: usd("1"), cached_input: usd("1"), output: usd("2") };
    run.spec.prices = [("scripted/demo".to_owned(), price)].into_iter().collect();
    wake(&mut run);
    run
}

/// Asks the model for turns with one call each until people are asked, and says how many calls left.
fn until_asked(run: &mut Envelope) -> usize {
    let mut sent = 0;
    for _ in 0..20 {
        if next(run) != Step::AskModel {
            break;
        }
        let number = run.head.state.turns + 1;
        let fact = ended(run, turn("more", &[("", "charge")]));
        let commit = decide(run, fact);
        sent += commit.sends.len();
        if commit.sends.len() == 1 {
            apply(run, done(key(number, 0)), NOW.plus_millis(1_500)).unwrap();
        }
    }
    sent
}

/// The next leg, up to where it asks the model, sends or rests.
fn wake(run: &mut Envelope) -> Vec<Commit> {
    *run = reloaded(run);
    let began = decide(run, Fact::LegBegan);
    let same = same_catalog(run);
    vec![began, decide(run, same)]
}

#[track_caller]
fn check_raise(limits: &Value, input: &Value, sent: usize, more: usize) {
    let mut run = limited(limits);
    assert_eq!(until_asked(&mut run), sent, "{limits}");
    assert_eq!(run.head.status.reason(), Some("limit-escalated"), "{limits}");
    let asked = run.head.state.approvals.open[0].approval.clone();
    let member = input.as_object().unwrap().keys().next().unwrap();
    assert_eq!((&asked.input, asked.call_id.as_str()), (input, format!("limit:{member}").as_str()), "{limits}");
    // Refused, the run stops as it would have done.
    let mut refused = reloaded(&run);
    let commit = vote(&mut refused, Verdict::Deny);
    let Status::Stopped(reason) = refused.head.status else { panic!("{:?}", refused.head.status) };
    assert_eq!(commit.events.last().unwrap().body.kind(), "result");
    assert!(refused.calls.iter().all(|call| call.stage.is_settled()), "{limits}");
    assert_eq!(refused.head.state.output.as_ref().unwrap().text, "more");
    // Approved, it goes on where it stood, until it is asked about again.
    let commit = vote(&mut run, Verdict::Approve);
    assert_eq!((kinds(&commit), run.head.status), (vec!["approval-decided", "run-status"], Status::Queued), "{limits}");
    assert_eq!(json!(run.limits())[member], input[member]);
    let waited: usize = wake(&mut run).iter().map(|commit| commit.sends.len()).sum();
    if waited == 1 {
        let key = key(run.head.state.turns, 0);
        decide(&mut run, done(key));
    }
    assert_eq!(waited + until_asked(&mut run), more, "{limits}: {reason:?}");
    assert_eq!(run.head.status.reason(), Some("limit-escalated"), "{limits}");
}

#[test]
fn b244_a_limit_that_escalates_asks_people_and_the_run_goes_on_where_it_stood() {
    check_raise(&json!({"max_turns": 2}), &json!({"max_turns": 4}), 2, 2);
    check_raise(&json!({"max_tool_calls": 1}), &json!({"max_tool_calls": 3}), 1, 2);
    check_raise(&json!({"max_tool_calls": 0}), &json!({"max_tool_calls": 1}), 0, 1);
    check_raise(&json!({"max_tokens": 30}), &json!({"max_tokens": 60}), 2, 2);
    // What is used and what the next turn reads is more than twice as much as was given.
    check_raise(&json!({"max_tokens": 1}), &json!({"max_tokens": 25}), 1, 1);
    check_raise(&json!({"max_duration_s": 1}), &json!({"max_duration_s": 2}), 1, 1);
    let dollars = |text: &str| json!({"max_cost_usd": text.parse::<serde_json::Number>().unwrap()});
    check_raise(&dollars("0.00004"), &dollars("0.00008"), 2, 2);
}

#[test]
fn b229_b244_an_approver_may_raise_a_limit_to_something_else_that_lets_the_run_go_on() {
    let mut run = limited(&json!({"max_turns": 2}));
    until_asked(&mut run);
    let before = run.clone();
    for useless in [
        json!({"max_turns": 2}),
        json!({"max_turns": 100_001}),
        json!({"max_turns": 2.5}),
        json!({"max_turns": "3"}),
        json!({"max_tokens": 9}),
        json!({"max_turns": 3, "max_tokens": 9}),
        json!({}),
    ] {
        let fact = vote_for(&run, "bob", useless.clone());
        assert!(matches!(apply(&mut run, fact, NOW), Err(Refusal::Impossible(_))), "{useless}");
    }
    assert_eq!(run, before, "a refused vote changed the run");
    run.head.state.approvals.open[0].approval.required = 2;
    vote(&mut run, Verdict::Approve);
    let fact = vote_for(&run, "carol", json!({"max_turns": 3}));
    decide(&mut run, fact);
    let asked = &run.head.state.approvals.open[0].approval;
    assert_eq!((&asked.input, asked.votes.len()), (&json!({"max_turns": 3}), 1), "bob voted on another limit");
    vote(&mut run, Verdict::Approve);
    assert_eq!((run.head.status, run.limits().max_turns), (Status::Queued, 3));
}

#[test]
fn b230_b244_calls_beyond_a_raised_limit_still_need_their_own_approvals() {
    let mut run = limited(&json!({"max_tool_calls": 1}));
    need_approval(&mut run, &["put"]);
    let fact = ended(&run, turn("more", &[("a", "charge"), ("b", "put")]));
    let commit = decide(&mut run, fact);
    assert_eq!((stages(&run), commit.sends.len()), (vec!["pending", "proposed"], 0));
    assert_eq!(run.head.status.reason(), Some("limit-escalated"));
    let mut run = reloaded(&run);
    let commit = vote(&mut run, Verdict::Approve);
    assert_eq!(kinds(&commit), ["approval-decided", "approval-requested", "run-status"]);
    assert_eq!((run.head.status.reason(), stages(&run)), (Some("approval-required"), vec!["pending", "proposed"]));
    vote(&mut run, Verdict::Approve);
    let sent: Vec<_> = wake(&mut run).into_iter().flat_map(|commit| commit.sends).collect();
    assert_eq!(sent, [key(1, 0), key(1, 1)]);
}

/// A run whose rules for limits have to be asked.
fn ruled() -> Envelope {
    let mut run = limited(&json!({"max_tool_calls": 1}));
    let rule = json!({"name": "ceiling", "trigger": "limit:reached", "action": "require_approval"});
    run.spec.policies = vec![serde_json::from_value(rule).unwrap()];
    run
}

#[test]
fn b244_rules_for_limits_are_asked_before_anything_goes_on_also_by_the_next_owner() {
    for (said, status, reason) in [
        (None, "suspended", Some("limit-escalated")),
        (Some(Trouble::Fail { rule: "ceiling".into(), reason: Some("Never more.".into()) }), "failed", None),
    ] {
        let mut run = ruled();
        let fact = ended(&run, turn("more", &[("a", "charge"), ("b", "look")]));
        let commit = decide(&mut run, fact);
        assert_eq!((next(&run), commit.sends.len(), run.head.status), (Step::JudgeLimit, 0, Status::Running));
        // The node dies before they are.
        let sent: usize = wake(&mut run).iter().map(|commit| commit.sends.len()).sum();
        assert_eq!((next(&run), sent), (Step::JudgeLimit, 0), "the calls beyond the limit did not leave");
        decide(&mut run, Fact::LimitJudged { said });
        assert_eq!((run.head.status.code(), run.head.status.reason()), (status, reason));
        let refusal = apply(&mut run, Fact::LimitJudged { said: None }, NOW).unwrap_err();
        assert!(matches!(refusal, Refusal::Impossible(_) | Refusal::RunTerminal), "{refusal:?}");
        if let Some(error) = &run.head.state.error {
            assert_eq!(error.code, "limit-reached");
            assert!(
                error.message.contains("limit of 1 tool calls") && error.message.contains("'ceiling': Never more.")
            );
            assert_eq!(stages(&run), ["rejected", "rejected"]);
        }
    }
}

#[test]
fn b231_b244_a_rule_for_limits_says_who_raises_it_by_when_and_what_a_refusal_does() {
    let asked = |rule: Value| {
        let mut run = ruled();
        run.spec.limits.on_limit = crate::run::limits::OnLimit::Stop;
        let fact = ended(&run, turn("more", &[("a", "charge"), ("b", "look")]));
        decide(&mut run, fact);
        let rule: ApprovalRule = serde_json::from_value(rule).unwrap();
        let requirement = Box::new(Requirement::new(rule, "ceiling", "It is much."));
        decide(&mut run, Fact::LimitJudged { said: Some(Trouble::RequireApproval { requirement }) });
        run
    };
    let expired = |run: &mut Envelope| {
        let approval = run.head.state.approvals.open[0].approval.id;
        decide(run, Fact::ApprovalExpired { approval })
    };
    let mut run = asked(json!({"approvers": {"subjects": ["carol"]}, "on_reject": "fail", "on_modify": "forbid"}));
    let open = &run.head.state.approvals.open[0].approval;
    assert!(open.reason.starts_with("The run's limit of 1 tool calls is reached. It is much."), "{}", open.reason);
    let not_hers = vote_for(&run, "bob", json!({}));
    assert_eq!(apply(&mut run, not_hers, NOW), Err(Refusal::NotAnApprover));
    let changed = vote_for(&run, "carol", json!({"max_tool_calls": 9}));
    assert_eq!(apply(&mut run, changed, NOW), Err(Refusal::ArgumentsFixed));
    let fact = vote_on(&run, 0, "carol", Verdict::Deny, None);
    decide(&mut run, fact);
    let error = run.head.state.error.as_ref().unwrap();
    assert!(error.code == "limit-reached" && error.message.contains("carol"), "{error:?}");
    let mut run = asked(json!({"timeout_s": 5}));
    expired(&mut run);
    assert_eq!((run.head.status.reason(), stages(&run)), (Some("max-tool-calls"), vec!["rejected", "rejected"]));
    let mut run = asked(json!({"timeout_s": 5, "on_timeout": "approve"}));
    expired(&mut run);
    assert_eq!((run.head.status, run.limits().max_tool_calls), (Status::Queued, 3));
    let next = json!({"timeout_s": 5, "on_timeout": "escalate", "escalate_to": {"approvers": {"subjects": ["dave"]}}});
    let mut run = asked(next);
    let commit = expired(&mut run);
    assert_eq!(kinds(&commit), ["approval-decided", "approval-requested"]);
    assert_eq!(run.head.status.reason(), Some("limit-escalated"));
    let fact = vote_on(&run, 0, "dave", Verdict::Approve, None);
    decide(&mut run, fact);
    assert_eq!(run.head.status, Status::Queued);
}

#[test]
fn b245_a_tool_that_runs_away_is_no_limit_that_anybody_raises() {
    let mut run = limited(&json!({}));
    run.head.state.pace.errors = [("charge".to_owned(), 2)].into_iter().collect();
    let fact = ended(&run, turn("more", &[("a", "charge")]));
    decide(&mut run, fact);
    let error = crate::run::outcome::ToolError::new("tool-error", "no");
    let answer = crate::run::outcome::Answer::Failed { error, output: None };
    decide(&mut run, Fact::CallEnded { key: key(1, 0), outcome: crate::run::outcome::Outcome::Answered(answer) });
    assert_eq!(run.head.status.reason(), Some("runaway-tool-errors"));
}

#[test]
fn a_run_that_waits_for_a_higher_limit_can_be_cancelled_and_its_catalog_is_compared_before_it_goes_on() {
    let mut run = limited(&json!({"max_tool_calls": 0}));
    until_asked(&mut run);
    let mut cancelled = reloaded(&run);
    let commit = decide(&mut cancelled, Fact::Cancelled);
    assert_eq!(commit.approvals[0].status.code(), "cancelled");
    assert_eq!((cancelled.head.status, stages(&cancelled)), (Status::Cancelled, vec!["failed"]));
    vote(&mut run, Verdict::Approve);
    let mut run = reloaded(&run);
    decide(&mut run, Fact::LegBegan);
    decide(&mut run, Fact::CatalogRead { served: Box::new(binding(&["charge"])) });
    assert_eq!(run.head.status.reason(), Some("mcp-catalog-changed"));
    assert_eq!((stages(&run), run.limits().max_tool_calls), (vec!["pending"], 1), "the decision is kept");
}

#[test]
fn b244_a_turn_that_stands_before_two_limits_waits_for_both() {
    let mut run = limited(&json!({"max_tool_calls": 0, "max_duration_s": 1}));
    let late = Timestamp::from_millis(NOW.as_millis() + 60_000);
    let fact = ended(&run, turn("", &[("a", "charge")]));
    apply(&mut run, fact, late).unwrap();
    for limit in ["max_tool_calls", "max_duration_s"] {
        let asked = &run.head.state.approvals.open;
        assert_eq!(asked.len(), 1);
        assert!(asked[0].approval.input.get(limit).is_some(), "{limit}: {:?}", asked[0].approval.input);
        let fact = vote_on(&run, 0, "bob", Verdict::Approve, None);
        assert!(apply(&mut run, fact, late).unwrap().sends.is_empty());
    }
    assert_eq!((run.head.status, stages(&run)), (Status::Queued, vec!["pending"]));
}
