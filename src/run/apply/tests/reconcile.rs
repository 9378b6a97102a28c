//! A person decides what nobody knows.

use serde_json::json;

use super::world::*;
use crate::run::apply;
use crate::run::call::Stage;
use crate::run::envelope::Envelope;
use crate::run::fact::{CallRef, Fact, Resolution};
use crate::run::ids::CallId;
use crate::run::refusal::Refusal;
use crate::run::spec::Limits;
use crate::run::status::{Status, SuspendReason};
use crate::run::{Step, next};

const HELD: Status = Status::Suspended(SuspendReason::ToolReconciliationRequired);

/// A run that is held for these calls: their owner died while they were out.
fn held(calls: &[(&str, &str)]) -> Envelope {
    let mut run = begun();
    let fact = ended(&run, turn("", calls));
    apply(&mut run, fact, NOW).unwrap();
    let mut run = reloaded(&run);
    apply(&mut run, Fact::LegBegan, NOW).unwrap();
    assert_eq!(run.head.status, HELD);
    run
}

/// What the model is told once the run goes on.
fn told(run: &Envelope) -> Vec<(serde_json::Value, bool)> {
    let mut run = reloaded(run);
    apply(&mut run, Fact::LegBegan, NOW).unwrap();
    let fact = same_catalog(&run);
    apply(&mut run, fact, NOW).unwrap();
    assert_eq!(next(&run), Step::AskModel);
    let results = run.messages.last().unwrap().content.iter();
    results
        .map(|content| match content {
            crate::run::message::Content::ToolResult { output, is_error, .. } => (output.clone(), *is_error),
            other => panic!("no result: {other:?}"),
        })
        .collect()
}

#[test]
fn a_known_result_and_a_known_failure_are_told_to_the_model_and_nothing_is_sent() {
    for (resolution, want) in
        [(completed(), (json!({"charged": 5}), false)), (failed(), (json!("no charge was found"), true))]
    {
        let mut run = held(&[("call_1", "charge")]);
        let commit = apply(&mut run, reconciled(key(1, 0), resolution), NOW).unwrap();
        assert_eq!(kinds(&commit), ["reconciliation-decided", "tool-output", "run-status"]);
        assert_eq!((run.head.status, run.calls[0].attempt), (Status::Queued, 1));
        assert_eq!(run.calls[0].decided_by.as_ref().unwrap().as_str(), "root");
        assert!(commit.sends.is_empty());
        assert_eq!(told(&run), [want]);
    }
}

#[test]
fn decisions_are_kept_one_by_one_and_the_last_sets_the_run_going() {
    let mut run = held(&[("a", "charge"), ("b", "charge"), ("c", "charge")]);
    let commit = apply(&mut run, reconciled(key(1, 1), completed()), NOW).unwrap();
    assert_eq!((run.head.status, kinds(&commit)), (HELD, vec!["reconciliation-decided", "tool-output"]));
    let commit = apply(&mut run, reconciled(key(1, 2), Resolution::Retry), NOW).unwrap();
    assert_eq!((run.head.status, kinds(&commit)), (HELD, vec!["reconciliation-decided"]));
    let mut run = reloaded(&run);
    apply(&mut run, reconciled(key(1, 0), failed()), NOW).unwrap();
    assert_eq!(run.head.status, Status::Queued);
    let mut run = reloaded(&run);
    apply(&mut run, Fact::LegBegan, NOW).unwrap();
    let fact = same_catalog(&run);
    let commit = apply(&mut run, fact, NOW).unwrap();
    assert_eq!(commit.sends, [key(1, 2)], "only the one that may be sent once more");
}

#[test]
fn only_an_undecided_call_can_be_decided_and_only_once() {
    let mut run = held(&[("a", "charge"), ("b", "charge")]);
    for resolution in [Resolution::Retry, completed(), failed()] {
        assert_eq!(apply(&mut run, reconciled(key(1, 7), resolution), NOW), Err(Refusal::NotReconcilable));
    }
    apply(&mut run, reconciled(key(1, 0), Resolution::Retry), NOW).unwrap();
    for resolution in [Resolution::Retry, completed(), failed()] {
        let before = run.clone();
        assert_eq!(apply(&mut run, reconciled(key(1, 0), resolution), NOW), Err(Refusal::NotReconcilable));
        assert_eq!(run, before);
    }
}

#[test]
fn a_call_is_decided_while_its_siblings_are_still_out_and_the_run_goes_on_by_itself() {
    let mut run = begun();
    let fact = ended(&run, turn("", &[("a", "charge"), ("b", "charge")]));
    apply(&mut run, fact, NOW).unwrap();
    apply(&mut run, unknown(key(1, 0)), NOW).unwrap();
    assert_eq!(next(&run), Step::AwaitCalls);
    let commit = apply(&mut run, reconciled(key(1, 0), Resolution::Retry), NOW).unwrap();
    assert_eq!(commit.sends, [key(1, 0)]);
    apply(&mut run, unknown(key(1, 0)), NOW).unwrap();
    apply(&mut run, reconciled(key(1, 0), completed()), NOW).unwrap();
    apply(&mut run, done(key(1, 1)), NOW).unwrap();
    assert_eq!((run.head.status, next(&run)), (Status::Running, Step::AskModel));
}

#[test]
fn a_run_that_is_being_cancelled_takes_results_and_no_further_attempt() {
    let mut run = begun();
    let fact = ended(&run, turn("", &[("a", "charge"), ("b", "charge")]));
    apply(&mut run, fact, NOW).unwrap();
    apply(&mut run, unknown(key(1, 0)), NOW).unwrap();
    run.leg = crate::run::envelope::Leg::Cancelling;
    assert_eq!(apply(&mut run, reconciled(key(1, 0), Resolution::Retry), NOW), Err(Refusal::RunTerminal));
    let commit = apply(&mut run, reconciled(key(1, 0), completed()), NOW).unwrap();
    assert!(commit.sends.is_empty());
}

#[test]
fn b216_a_call_of_a_cancelled_run_can_be_written_down_and_not_sent_again() {
    let mut run = held(&[("a", "charge"), ("b", "charge")]);
    apply(&mut run, Fact::Cancelled, NOW).unwrap();
    let last = run.head.last_seq;
    let before = run.clone();
    assert_eq!(apply(&mut run, reconciled(key(1, 0), Resolution::Retry), NOW), Err(Refusal::RunTerminal));
    assert_eq!(run, before);
    for (place, resolution, stage) in [(0, completed(), "completed"), (1, failed(), "failed")] {
        let commit = apply(&mut run, reconciled(key(1, place), resolution), NOW).unwrap();
        assert_eq!((commit.events.len(), commit.messages.len()), (0, 0), "nothing follows the result");
        assert_eq!((run.head.status, run.head.last_seq, run.head.finished_at), (Status::Cancelled, last, Some(NOW)));
        assert_eq!(commit.calls_moved[0].stage.code(), stage);
    }
}

#[test]
fn a_repeatable_call_that_is_unknown_when_its_run_ends_can_be_written_down_too() {
    let mut run = begun();
    let fact = ended(&run, turn("", &[("a", "look")]));
    apply(&mut run, fact, NOW).unwrap();
    let mut run = reloaded(&run);
    apply(&mut run, Fact::Cancelled, NOW).unwrap();
    assert_eq!((stages(&run), run.undecided().count()), (vec!["indeterminate"], 1));
    assert_eq!(apply(&mut run, reconciled(key(1, 0), Resolution::Retry), NOW), Err(Refusal::RunTerminal));
    apply(&mut run, reconciled(key(1, 0), failed()), NOW).unwrap();
    assert_eq!((stages(&run), run.undecided().count()), (vec!["failed"], 0));
}

#[test]
fn a_bare_id_that_stands_for_several_undecided_calls_allows_none_of_them() {
    let mut run = held(&[("a", "charge")]);
    let mut earlier = run.calls[0].clone();
    earlier.key = key(7, 0);
    run.calls.push(earlier);
    let before = run.clone();
    let fact = resume(&run, &["a"]);
    assert_eq!(apply(&mut run, fact, NOW), Err(Refusal::AmbiguousCall(CallId::new("a"))));
    assert_eq!(run, before);
    let Fact::Resumed(mut exact) = resume(&run, &[]) else { panic!("a resume") };
    exact.retry = vec![CallRef { turn: Some(7), call_id: CallId::new("a") }];
    apply(&mut run, Fact::Resumed(exact), NOW).unwrap();
    let allowed = |call: &crate::run::call::Call| matches!(call.stage, Stage::Indeterminate { authorized: true, .. });
    assert_eq!(run.calls.iter().map(allowed).collect::<Vec<_>>(), [false, true]);
}

#[test]
fn a_resume_tightens_the_limits_of_the_rest_also_when_the_run_goes_on_waiting() {
    let mut run = held(&[("a", "charge")]);
    let tight = Limits { max_turns: 1, ..Limits::default() };
    let Fact::Resumed(mut waits) = resume(&run, &[]) else { panic!("a resume") };
    waits.limits = Some(Limits::default());
    assert_eq!(
        apply(&mut run, Fact::Resumed(waits.clone()), NOW),
        Err(Refusal::NothingDecided),
        "nothing is tightened"
    );
    waits.limits = Some(tight);
    let commit = apply(&mut run, Fact::Resumed(waits.clone()), NOW).unwrap();
    assert_eq!((run.head.status, run.limits(), commit.events.len()), (HELD, &tight, 0));
    waits.retry = vec![CallRef { turn: None, call_id: CallId::new("a") }];
    apply(&mut run, Fact::Resumed(waits), NOW).unwrap();
    assert_eq!((run.head.status, run.limits()), (Status::Queued, &tight));
    assert_eq!(tight.looser_than(&Limits::default()), [""; 0]);
    let wide = Limits { max_turns: 21, max_tool_calls: 201, max_parallel_tool_calls: 6, ..Limits::default() };
    let capped = Limits { max_tokens: Some(9), max_duration_s: Some(9), ..Limits::default() };
    assert_eq!(wide.looser_than(&capped).len(), 5);
}
