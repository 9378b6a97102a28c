//! Turns, limits, results.

use proptest::prelude::*;
use serde_json::json;

use super::world::*;
use crate::run::apply;
use crate::run::commit::Next;
use crate::run::envelope::Envelope;
use crate::run::event::EventBody;
use crate::run::fact::Fact;
use crate::run::ids::CallKey;
use crate::run::message::{Content, ModelTurn, Role, TurnUsage};
use crate::run::money::{Price, Prices, Usd};
use crate::run::outcome::{Answer, Outcome, ToolError};
use crate::run::result::RunError;
use crate::run::spec::FinishReason;
use crate::run::status::{Status, StopReason};
use crate::run::{Step, next};

#[test]
fn b002_a_turn_with_its_calls_is_one_commit_and_the_example_ends_completed() {
    let (mut run, admitted) = new_run(json!({}), true);
    assert_eq!(kinds(&admitted), ["run-status", "run-status", "turn-started"]);
    assert_eq!(next(&run), Step::AskModel);
    let fact = ended(&run, turn("", &[("call_1", "charge")]));
    let asked = apply(&mut run, fact, NOW).unwrap();
    assert_eq!(kinds(&asked), ["part", "part", "tool-started"]);
    assert_eq!(asked.calls_made[0].stage.code(), "executing");
    assert_eq!(asked.sends, [key(1, 0)]);
    assert_eq!(next(&run), Step::AwaitCalls);
    let settled = apply(&mut run, done(key(1, 0)), NOW).unwrap();
    assert_eq!(kinds(&settled), ["tool-output", "turn-started"]);
    assert_eq!(settled.messages[0].role, Role::Tool);
    let fact = ended(&run, turn("Charged 5.", &[]));
    let finished = apply(&mut run, fact, NOW).unwrap();
    assert_eq!(kinds(&finished), ["part", "result"]);
    assert_eq!(finished.next, Next::Rest);
    assert_eq!(run.head.status, Status::Completed);
    let usage = run.head.state.usage;
    assert_eq!((usage.model_requests, usage.total_tokens, run.head.state.turns), (2, 30, 2));
    assert_eq!(run.head.state.output.as_ref().unwrap().text, "Charged 5.");
}

#[test]
fn b004_a_provider_id_that_repeats_in_a_later_turn_is_another_call() {
    let mut run = begun();
    for number in 1..=2 {
        let fact = ended(&run, turn("", &[("call_1", "charge")]));
        let commit = apply(&mut run, fact, NOW).unwrap();
        assert_eq!(commit.sends, [key(number, 0)]);
        apply(&mut run, done(key(number, 0)), NOW).unwrap();
    }
    assert_eq!(run.head.state.tool_calls, 2);
}

#[test]
fn b207_a_provider_id_that_repeats_inside_a_turn_is_made_unique() {
    let mut run = begun();
    let calls = [("a", "charge"), ("a", "charge"), ("", "charge"), ("a", "look")];
    let fact = ended(&run, turn("", &calls));
    apply(&mut run, fact, NOW).unwrap();
    let labels: Vec<_> = run.calls.iter().map(|call| call.call_id.as_str()).collect();
    assert_eq!(labels, ["a", "a~2", "call_1_3", "a~3"]);
}

#[test]
fn b016_a_failed_call_does_not_end_the_run_and_the_model_reads_its_text() {
    let mut run = begun();
    let fact = ended(&run, turn("", &[("call_1", "charge")]));
    apply(&mut run, fact, NOW).unwrap();
    let error = ToolError::new("tool-error", "card declined");
    let outcome = Outcome::Answered(Answer::Failed { error, output: None });
    let commit = apply(&mut run, Fact::CallEnded { key: key(1, 0), outcome }, NOW).unwrap();
    let Content::ToolResult { output, is_error, .. } = &commit.messages[0].content[0] else { panic!("no result") };
    assert_eq!((output, *is_error), (&json!("card declined"), true));
    assert_eq!(next(&run), Step::AskModel);
}

#[test]
fn b206_a_rejected_call_is_told_and_never_sent() {
    let mut run = begun();
    let fact = ended(&run, turn("", &[("call_1", "nope"), ("call_2", "look")]));
    let commit = apply(&mut run, fact, NOW).unwrap();
    assert_eq!(commit.sends, [key(1, 1)]);
    assert!(run.calls[0].target.is_none());
    assert!(commit.events.iter().any(|event| matches!(&event.body,
        EventBody::ToolOutput { stage, rule: Some(rule), .. } if stage == "rejected" && rule == "unknown-tool")));
    let commit = apply(&mut run, done(key(1, 1)), NOW).unwrap();
    assert_eq!(commit.messages[0].content.len(), 2);
}

#[test]
fn b209_calls_behind_the_parallel_limit_are_pending_and_follow_in_order() {
    let (mut run, _) = new_run(json!({"max_parallel_tool_calls": 2}), true);
    let fact = ended(&run, turn("", &[("a", "charge"), ("b", "charge"), ("c", "charge")]));
    let commit = apply(&mut run, fact, NOW).unwrap();
    assert_eq!(commit.sends, [key(1, 0), key(1, 1)]);
    assert_eq!(stages(&run), ["executing", "executing", "pending"]);
    let commit = apply(&mut run, done(key(1, 1)), NOW).unwrap();
    assert_eq!(commit.sends, [key(1, 2)]);
}

#[test]
fn results_stand_in_call_order_whatever_the_order_of_the_answers() {
    let mut run = begun();
    let fact = ended(&run, turn("", &[("a", "charge"), ("b", "look"), ("c", "put")]));
    apply(&mut run, fact, NOW).unwrap();
    for position in [2, 0, 1] {
        apply(&mut run, done(key(1, position)), NOW).unwrap();
    }
    let results = &run.messages.last().unwrap().content;
    let order: Vec<_> = results
        .iter()
        .map(|content| match content {
            Content::ToolResult { call_id, .. } => call_id.as_str(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(order, ["a", "b", "c"]);
}

#[track_caller]
fn check_stop(limits: serde_json::Value, reason: StopReason, calls_sent: u32) {
    let (mut run, _) = new_run(limits, true);
    let mut sent = 0;
    for number in 1..=5 {
        let fact = ended(&run, turn("more", &[("a", "charge")]));
        sent += u32::try_from(apply(&mut run, fact, NOW).unwrap().sends.len()).unwrap();
        if run.head.status.is_terminal() {
            break;
        }
        apply(&mut run, done(key(number, 0)), NOW.plus_millis(1500)).unwrap();
        if run.head.status.is_terminal() {
            break;
        }
    }
    assert_eq!(run.head.status, Status::Stopped(reason));
    assert_eq!(sent, calls_sent);
    assert_eq!(run.head.state.output.as_ref().unwrap().text, "more");
}

#[test]
fn b244_each_limit_stops_the_run_before_the_step_that_would_exceed_it() {
    check_stop(json!({"max_turns": 2}), StopReason::MaxTurns, 2);
    check_stop(json!({"max_tool_calls": 1}), StopReason::MaxToolCalls, 1);
    check_stop(json!({"max_tool_calls": 0}), StopReason::MaxToolCalls, 0);
    check_stop(json!({"max_tokens": 30}), StopReason::BudgetTokens, 2);
    // The next turn reads at least what the last one did: 9 tokens are not enough for it, 10 are.
    check_stop(json!({"max_tokens": 24}), StopReason::BudgetTokens, 1);
    check_stop(json!({"max_tokens": 25}), StopReason::BudgetTokens, 2);
    check_stop(json!({"max_duration_s": 1}), StopReason::Deadline, 1);
}

/// A run with a budget of money; a turn of this world costs 0.00002 dollars, and reading alone 0.00001.
fn with_money(most: &str) -> Envelope {
    let (mut run, _) = new_run(json!({"max_cost_usd": most.parse::<serde_json::Number>().unwrap()}), false);
    let usd = |text: &str| Usd::parse(text).unwrap();
    let price = Price { input: usd("1"), cached_input: usd("1"), output: usd("2") };
    run.spec.prices = [("scripted/demo".to_owned(), price)].into_iter().collect();
    apply(&mut run, Fact::LegBegan, NOW).unwrap();
    let fact = same_catalog(&run);
    apply(&mut run, fact, NOW).unwrap();
    run
}

#[test]
fn b244_a_budget_of_money_stops_the_run_before_the_turn_that_it_has_no_room_for() {
    for (most, turns, used) in [("0.00001", 1, "0.00002"), ("0.000029", 1, "0.00002"), ("0.00004", 2, "0.00004")] {
        let mut run = with_money(most);
        for number in 1..=turns {
            assert_eq!(next(&run), Step::AskModel, "{most}");
            let fact = ended(&run, turn("more", &[("a", "charge")]));
            apply(&mut run, fact, NOW).unwrap();
            apply(&mut run, done(key(number, 0)), NOW).unwrap();
        }
        assert_eq!(run.head.status, Status::Stopped(StopReason::BudgetUsd), "{most}");
        assert_eq!(run.head.state.usage.cost_usd.map(|cost| cost.to_string()).as_deref(), Some(used), "{most}");
    }
    // What failed cost nothing and is known to; a price that nobody knows leaves nothing of a budget.
    let mut run = with_money("0.00004");
    let (error, usage) = (RunError::new("model-error", "no"), TurnUsage::default());
    let failed = Fact::ModelFailed { error, retry: true, refused: None, usage };
    apply(&mut run, failed, NOW).unwrap();
    assert_eq!(run.head.state.usage.cost_usd, Some(Usd::ZERO));
    run.spec.prices = Prices::default();
    let fact = ended(&run, turn("more", &[("a", "charge")]));
    apply(&mut run, fact, NOW).unwrap();
    assert_eq!((run.head.state.usage.cost_usd, run.cost_left()), (None, Some(Usd::ZERO)));
}

#[test]
fn b244_calls_that_the_model_makes_after_the_deadline_do_not_leave() {
    let (mut run, _) = new_run(json!({"max_duration_s": 1}), true);
    let fact = ended(&run, turn("more", &[("a", "charge")]));
    let commit = apply(&mut run, fact, NOW.plus_millis(1_000)).unwrap();
    assert_eq!((run.head.status, commit.sends.len()), (Status::Stopped(StopReason::Deadline), 0));
    assert_eq!(stages(&run), ["rejected"]);
}

#[test]
fn b208_a_turn_gets_the_results_of_its_own_calls_only() {
    let mut run = begun();
    for (number, said) in [(1, "first"), (2, "second")] {
        let fact = ended(&run, turn(said, &[("call_0", "charge"), ("call_1", "look")]));
        apply(&mut run, fact, NOW).unwrap();
        for position in [1, 0] {
            let output = json!({"content": [{"type": "text", "text": format!("{said} {position}")}]});
            let outcome = Outcome::Answered(Answer::Done { output });
            apply(&mut run, Fact::CallEnded { key: key(number, position), outcome }, NOW).unwrap();
        }
        let given = json!(run.messages.last().unwrap().content).to_string();
        let other = if number == 1 { "second" } else { "first" };
        assert!(given.contains(&format!("{said} 0")) && given.contains(&format!("{said} 1")), "{given}");
        assert!(!given.contains(other), "{given}");
    }
}

fn erred(key: CallKey) -> Fact {
    let error = ToolError::new("tool-error", "no");
    Fact::CallEnded { key, outcome: Outcome::Answered(Answer::Failed { error, output: None }) }
}

/// Plays turns of calls of two tools; `x` is an error, `.` a success, and a capital letter is the other tool's.
#[track_caller]
fn check_runaway(turns: &[&str], stops: bool) {
    let mut run = begun();
    for (number, calls) in (1..).zip(turns) {
        assert_eq!(run.head.status, Status::Running, "{turns:?}: before turn {number}");
        let made: Vec<(&str, &str)> =
            calls.chars().map(|call| ("", if call.is_ascii_uppercase() { "look" } else { "charge" })).collect();
        let fact = ended(&run, turn("more", &made));
        apply(&mut run, fact, NOW).unwrap();
        for (position, call) in (0..).zip(calls.chars()) {
            let key = key(number, position);
            apply(&mut run, if matches!(call, 'x' | 'X') { erred(key) } else { done(key) }, NOW).unwrap();
        }
    }
    let stopped = Status::Stopped(StopReason::RunawayToolErrors);
    assert_eq!(run.head.status, if stops { stopped } else { Status::Running }, "{turns:?}");
}

#[test]
fn b245_three_errors_of_one_tool_in_a_row_stop_the_run_once_the_turn_is_settled() {
    check_runaway(&["x", "x", "x"], true);
    check_runaway(&["xxx"], true);
    check_runaway(&["xx", "X", "x"], true);
    check_runaway(&["xxx."], true);
    check_runaway(&["x", "x", ".", "x", "x"], false);
    check_runaway(&["xx.xx"], false);
    check_runaway(&["xX", "xX"], false);
    check_runaway(&["xX", "xX", "X"], true);
}

#[test]
fn b245_what_never_reached_its_server_is_no_error_of_the_tool() {
    let mut run = begun();
    for _ in 0..4 {
        let fact = ended(&run, turn("more", &[("", "nowhere")]));
        apply(&mut run, fact, NOW).unwrap();
    }
    assert_eq!((run.head.status, run.head.state.pace.errors.len()), (Status::Running, 0));
}

#[test]
fn field_a149_what_a_turn_without_its_end_may_have_used_counts_against_the_budget() {
    let streamed = |usage| Fact::TurnStreamed { parts: Vec::new(), usage };
    let most = TurnUsage::estimated(700, 200);
    let failed = |usage| {
        let error = RunError::new("model-error", "cut off");
        Fact::ModelFailed { error, retry: true, refused: None, usage }
    };
    // Cut off: nothing is asked again that the budget may not have.
    for (budget, status) in [(901, Status::Running), (900, Status::Stopped(StopReason::BudgetTokens))] {
        let (mut run, _) = new_run(json!({ "max_tokens": budget }), true);
        apply(&mut run, streamed(TurnUsage::estimated(700, 10)), NOW).unwrap();
        assert_eq!(run.head.state.usage.total_tokens, 0, "its end may still come");
        apply(&mut run, failed(most), NOW).unwrap();
        let usage = run.head.state.usage;
        assert_eq!((run.head.status, usage.total_tokens, usage.estimated_tokens), (status, 900, 900));
        assert_eq!((usage.model_requests, run.head.state.asked), (1, None));
    }
    // Cancelled in the middle, or left by a node that died: it is no request with an outcome, and counts.
    let (mut run, _) = new_run(json!({ "max_tokens": 10_000 }), true);
    apply(&mut run, streamed(most), NOW).unwrap();
    let mut crashed = reloaded(&run);
    apply(&mut run, Fact::Cancelled, NOW).unwrap();
    apply(&mut crashed, Fact::LegBegan, NOW).unwrap();
    for run in [&run, &crashed] {
        let state = &run.head.state;
        assert_eq!((state.usage.total_tokens, state.usage.estimated_tokens, state.own_requests()), (900, 900, 0));
        assert_eq!((run.tokens_left(), state.asked), (Some(9_100), None));
    }
    // What ends is counted by its end alone.
    let (mut run, _) = new_run(json!({}), true);
    apply(&mut run, streamed(most), NOW).unwrap();
    let fact = ended(&run, turn("done", &[]));
    apply(&mut run, fact, NOW).unwrap();
    assert_eq!((run.head.state.usage.total_tokens, run.head.state.usage.estimated_tokens), (15, 0));
}

proptest! {
    #[test]
    fn b244_no_turn_begins_with_nothing_left_and_every_cost_is_exact(
        turns in prop::collection::vec((0_u64..5_000, 0_u64..5_000), 1..20),
        most in 1_u32..100_000,
    ) {
        let mut run = with_money(&format!("{most}e-6"));
        run.spec.limits.max_turns = 100;
        let mut spent = Usd::ZERO;
        for (number, (input_tokens, output_tokens)) in (1..).zip(turns) {
            if run.head.status.is_terminal() {
                break;
            }
            prop_assert!(run.cost_left() > Some(Usd::ZERO), "{:?}", run.cost_left());
            let usage = TurnUsage { input_tokens, output_tokens, cached_input_tokens: 0, estimated_tokens: 0 };
            spent = spent.plus(Usd::parse(&format!("{}e-6", input_tokens + 2 * output_tokens)).unwrap());
            let fact = ended(&run, ModelTurn { usage, ..turn("more", &[("", "charge")]) });
            apply(&mut run, fact, NOW).unwrap();
            apply(&mut run, done(key(number, 0)), NOW).unwrap();
            prop_assert_eq!(run.head.state.usage.cost_usd, Some(spent));
        }
    }
}

#[test]
fn b246_a_turn_that_was_cut_off_executes_none_of_its_calls_unless_each_is_whole() {
    let cut = |calls: &[(&str, &str)], finish_reason| {
        let mut run = begun();
        let turn = crate::run::message::ModelTurn { finish_reason, ..turn("half", calls) };
        let fact = ended(&run, turn);
        let commit = apply(&mut run, fact, NOW).unwrap();
        (run.head.status, commit.sends.len())
    };
    let length = Status::Stopped(StopReason::Length);
    assert_eq!(cut(&[], FinishReason::Length), (length, 0));
    assert_eq!(cut(&[("a", "charge"), ("b", "nope")], FinishReason::Length), (length, 0));
    assert_eq!(cut(&[("a", "charge")], FinishReason::Length), (Status::Running, 1));
    assert_eq!(cut(&[], FinishReason::ContentFilter), (Status::Stopped(StopReason::ContentFilter), 0));
}
