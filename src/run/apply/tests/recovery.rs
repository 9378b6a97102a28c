//! What a new owner finds, and what a person may decide.

use super::world::*;
use crate::run::apply;
use crate::run::call::{Backend, Stage};
use crate::run::envelope::{Envelope, Leg};
use crate::run::fact::{Fact, Ruling};
use crate::run::outcome::{Outcome, ToolError};
use crate::run::refusal::Refusal;
use crate::run::spec::CatalogPolicy;
use crate::run::status::{Status, SuspendReason};
use crate::run::{Step, next};

const HELD: Status = Status::Suspended(SuspendReason::ToolReconciliationRequired);

/// A run whose owner died with these calls out.
fn crashed(calls: &[(&str, &str)]) -> Envelope {
    let mut run = begun();
    let fact = ended(&run, turn("", calls));
    apply(&mut run, fact, NOW).unwrap();
    reloaded(&run)
}

fn held(calls: &[(&str, &str)]) -> Envelope {
    let mut run = crashed(calls);
    apply(&mut run, Fact::LegBegan, NOW).unwrap();
    assert_eq!(run.head.status, HELD);
    run
}

#[test]
fn b007_b008_b009_an_interrupted_call_is_held_and_nothing_is_sent() {
    let mut run = crashed(&[("call_1", "charge")]);
    let commit = apply(&mut run, Fact::LegBegan, NOW).unwrap();
    assert_eq!(kinds(&commit), ["run-status", "tool-output", "reconciliation-required", "run-status"]);
    assert!(commit.sends.is_empty());
    assert_eq!(run.head.status, HELD);
    assert_eq!(next(&run), Step::Rest);
}

#[test]
fn b012_b013_a_resume_that_decides_nothing_leaves_the_run_as_it_was() {
    let mut run = held(&[("call_1", "charge")]);
    let before = run.clone();
    for retry in [&[][..], &["call_2"], &["charge"]] {
        let fact = resume(&run, retry);
        assert_eq!(apply(&mut run, fact, NOW), Err(Refusal::NothingDecided));
        assert_eq!(run, before);
    }
}

#[test]
fn b010_b011_an_authorized_call_is_sent_once_more_and_the_turn_is_not_asked_again() {
    let mut run = held(&[("call_1", "charge")]);
    let fact = resume(&run, &["call_1"]);
    let commit = apply(&mut run, fact, NOW).unwrap();
    assert_eq!(kinds(&commit), ["reconciliation-decided", "run-status"]);
    assert_eq!(run.head.status, Status::Queued);
    let mut run = reloaded(&run);
    apply(&mut run, Fact::LegBegan, NOW).unwrap();
    assert_eq!(next(&run), Step::CheckCatalog);
    let fact = same_catalog(&run);
    let commit = apply(&mut run, fact, NOW).unwrap();
    assert_eq!(commit.sends, [key(1, 0)]);
    assert_eq!(run.calls[0].attempt, 2);
    assert_eq!(run.head.state.usage.model_requests, 1);
    // The authorization was for one attempt: lost again, it is held again.
    let commit = apply(&mut run, unknown(key(1, 0)), NOW).unwrap();
    assert_eq!(run.head.status, HELD);
    assert_eq!(kinds(&commit), ["tool-output", "reconciliation-required", "run-status"]);
}

#[test]
fn b014_a_stored_result_is_reused_when_its_sibling_is_authorized() {
    let mut run = begun();
    let fact = ended(&run, turn("", &[("a", "charge"), ("b", "charge")]));
    apply(&mut run, fact, NOW).unwrap();
    apply(&mut run, done(key(1, 0)), NOW).unwrap();
    let mut run = reloaded(&run);
    apply(&mut run, Fact::LegBegan, NOW).unwrap();
    let fact = resume(&run, &["b"]);
    apply(&mut run, fact, NOW).unwrap();
    let mut run = reloaded(&run);
    apply(&mut run, Fact::LegBegan, NOW).unwrap();
    let fact = same_catalog(&run);
    assert_eq!(apply(&mut run, fact, NOW).unwrap().sends, [key(1, 1)]);
}

#[test]
fn b021_b022_b218_what_may_be_repeated_is_sent_again_by_itself() {
    let mut run = crashed(&[("a", "put"), ("b", "look")]);
    apply(&mut run, Fact::LegBegan, NOW).unwrap();
    assert_eq!(run.head.status, Status::Running);
    let fact = same_catalog(&run);
    assert_eq!(apply(&mut run, fact, NOW).unwrap().sends, [key(1, 0), key(1, 1)]);
}

#[test]
fn b028_a_repeatable_call_waits_beside_one_that_is_held() {
    let mut run = held(&[("a", "put"), ("b", "charge")]);
    assert_eq!(run.undecided().count(), 1);
    let fact = resume(&run, &["b"]);
    apply(&mut run, fact, NOW).unwrap();
    let mut run = reloaded(&run);
    apply(&mut run, Fact::LegBegan, NOW).unwrap();
    let fact = same_catalog(&run);
    assert_eq!(apply(&mut run, fact, NOW).unwrap().sends, [key(1, 0), key(1, 1)]);
}

#[test]
fn b212_a_lost_answer_is_asked_for_again_only_where_that_is_harmless() {
    let mut run = begun();
    let fact = ended(&run, turn("", &[("a", "look"), ("b", "put"), ("c", "charge")]));
    apply(&mut run, fact, NOW).unwrap();
    // While nothing is held, a repeatable call goes out again with the same commit.
    for attempt in 2..=3 {
        assert_eq!(apply(&mut run, unknown(key(1, 0)), NOW).unwrap().sends, [key(1, 0)]);
        assert_eq!(apply(&mut run, unknown(key(1, 1)), NOW).unwrap().sends, [key(1, 1)]);
        assert_eq!(run.calls[0].attempt, attempt);
    }
    // A reader that was asked three times has failed; a writer waits for a person.
    apply(&mut run, unknown(key(1, 0)), NOW).unwrap();
    let Stage::Failed { error, .. } = &run.calls[0].stage else { panic!("{:?}", run.calls[0].stage) };
    assert_eq!(error.message, "outcome unknown after 3 attempts");
    apply(&mut run, unknown(key(1, 1)), NOW).unwrap();
    assert_eq!(run.head.status, Status::Running);
    // b215: the sibling that is still out finishes first.
    apply(&mut run, unknown(key(1, 2)), NOW).unwrap();
    assert_eq!(run.head.status, HELD);
    assert_eq!(stages(&run), ["failed", "indeterminate", "indeterminate"]);
}

#[test]
fn b215_siblings_of_a_held_call_finish_and_what_is_pending_waits() {
    let (mut run, _) = new_run(serde_json::json!({"max_parallel_tool_calls": 2}), true);
    let fact = ended(&run, turn("", &[("a", "charge"), ("b", "charge"), ("c", "charge")]));
    apply(&mut run, fact, NOW).unwrap();
    assert!(apply(&mut run, unknown(key(1, 0)), NOW).unwrap().sends.is_empty());
    assert!(apply(&mut run, done(key(1, 1)), NOW).unwrap().sends.is_empty());
    assert_eq!(stages(&run), ["indeterminate", "completed", "pending"]);
    assert_eq!(run.head.status, HELD);
}

#[test]
fn b017_b018_b219_a_settled_turn_is_replayed_from_the_store() {
    let mut run = begun();
    let fact = ended(&run, turn("", &[("a", "charge")]));
    apply(&mut run, fact, NOW).unwrap();
    apply(&mut run, done(key(1, 0)), NOW).unwrap();
    let prompt = crate::run::history::prompt(&run);
    let mut run = reloaded(&run);
    apply(&mut run, Fact::LegBegan, NOW).unwrap();
    let fact = same_catalog(&run);
    let commit = apply(&mut run, fact, NOW).unwrap();
    assert!(commit.sends.is_empty());
    assert_eq!(next(&run), Step::AskModel);
    assert_eq!(crate::run::history::prompt(&run), prompt);
}

#[test]
fn b034_b038_a_changed_catalog_refuses_the_resume_and_leaves_the_run() {
    let mut run = held(&[("call_1", "charge")]);
    let before = run.clone();
    let served = binding(&["charge", "look", "put", "refund"]);
    let fact = resume_with(served.clone(), &["call_1"], CatalogPolicy::Stop);
    let refused = apply(&mut run, fact, NOW).unwrap_err();
    assert_eq!(refused.to_string(), "MCP tool catalog changed across resume (added: refund).");
    // b077, b080: an open call was made against the record, so accepting is refused too.
    let fact = resume_with(served, &["call_1"], CatalogPolicy::Accept);
    assert_eq!(apply(&mut run, fact, NOW).unwrap_err().code(), "mcp-catalog-changed-in-flight");
    assert_eq!(run, before);
}

#[test]
fn b223_a_leg_without_a_caller_parks_on_a_changed_catalog_and_a_resume_finds_it_again() {
    let mut run = reloaded(&begun());
    apply(&mut run, Fact::LegBegan, NOW).unwrap();
    let fact = Fact::CatalogRead { served: Box::new(binding(&["charge"])) };
    apply(&mut run, fact, NOW).unwrap();
    assert_eq!(run.head.status, Status::Suspended(SuspendReason::McpCatalogChanged));
    let fact = resume(&run, &[]);
    apply(&mut run, fact, NOW).unwrap();
    assert_eq!(run.head.status, Status::Queued);
}

#[test]
fn b073_b075_an_accepted_change_opens_a_binding_revision_and_says_so_once() {
    let mut run = reloaded(&begun());
    apply(&mut run, Fact::LegBegan, NOW).unwrap();
    let fact = Fact::CatalogUnreadable { message: "refused".to_owned() };
    apply(&mut run, fact, NOW).unwrap();
    let served = binding(&["charge", "look", "put", "refund"]);
    let fact = resume_with(served, &[], CatalogPolicy::Accept);
    let commit = apply(&mut run, fact, NOW).unwrap();
    assert_eq!(kinds(&commit), ["binding-revised", "part", "run-status"]);
    assert_eq!(commit.binding.as_ref().unwrap().revision, 2);
    assert_eq!(
        run.head.state.warnings[0].message,
        "MCP tool catalog changed across resume (added: refund); the run's resume binding now records the new catalog."
    );
}

#[test]
fn b040_b081_dropping_the_entries_of_a_recorded_run_is_refused_also_with_accept() {
    let mut run = held(&[("call_1", "charge")]);
    let none = crate::run::binding::merge(vec![], &[]).0;
    for policy in [CatalogPolicy::Stop, CatalogPolicy::Accept] {
        let fact = resume_with(none.clone(), &["call_1"], policy);
        let refused = apply(&mut run, fact, NOW).unwrap_err();
        assert_eq!(refused.to_string(), "MCP tool catalog changed across resume (removed: charge, look, put).");
    }
}

#[test]
fn b224_a_run_that_kills_its_nodes_is_given_up() {
    let mut run = reloaded(&begun());
    run.head.crashes = 4;
    let mut alive = run.clone();
    apply(&mut alive, Fact::LegBegan, NOW).unwrap();
    assert_eq!(alive.head.status, Status::Running);
    run.head.crashes = 5;
    apply(&mut run, Fact::LegBegan, NOW).unwrap();
    assert_eq!(run.head.status, Status::Failed);
    assert_eq!(run.head.state.error.as_ref().unwrap().code, "poisoned");
}

#[test]
fn b216_a_cancelled_run_keeps_its_unknown_calls_visible() {
    let (mut run, _) = new_run(serde_json::json!({"max_parallel_tool_calls": 1}), true);
    let fact = ended(&run, turn("", &[("a", "charge"), ("b", "charge")]));
    apply(&mut run, fact, NOW).unwrap();
    let commit = apply(&mut run, Fact::Cancelled, NOW).unwrap();
    assert_eq!(stages(&run), ["indeterminate", "failed"]);
    assert_eq!(run.head.status, Status::Cancelled);
    assert_eq!(kinds(&commit), ["tool-output", "tool-output", "result"]);
}

#[test]
fn b216_whoever_reads_a_cancelled_run_is_told_of_every_call_that_was_out() {
    // Lost with its node, or while the run was being cancelled: nobody will send it again, harmless or not.
    let mut run = crashed(&[("a", "look"), ("b", "put")]);
    let commit = apply(&mut run, Fact::Cancelled, NOW).unwrap();
    assert_eq!(stages(&run), ["indeterminate", "indeterminate"]);
    assert_eq!(kinds(&commit), ["tool-output", "tool-output", "result"]);
    let mut run = begun();
    let fact = ended(&run, turn("", &[("a", "put")]));
    apply(&mut run, fact, NOW).unwrap();
    run.leg = Leg::Cancelling;
    assert_eq!(kinds(&apply(&mut run, unknown(key(1, 0)), NOW).unwrap()), Vec::<&str>::new());
    assert_eq!(kinds(&apply(&mut run, Fact::Cancelled, NOW).unwrap()), ["tool-output", "result"]);
}

#[test]
fn b216_an_attempt_that_was_allowed_and_not_made_is_undecided_again_when_the_run_is_cancelled() {
    let mut run = held(&[("call_1", "charge")]);
    let fact = resume(&run, &["call_1"]);
    apply(&mut run, fact, NOW).unwrap();
    assert_eq!(run.undecided().count(), 0);
    let mut run = reloaded(&run);
    let commit = apply(&mut run, Fact::Cancelled, NOW).unwrap();
    assert_eq!((run.undecided().count(), commit.calls_moved.len()), (1, 1));
    assert_eq!(run.calls[0].decided_by.as_ref().unwrap().as_str(), "alice");
}

#[test]
fn field_a006_a_repeat_that_did_not_arrive_says_nothing_of_the_first_attempt() {
    let refused = |key| Fact::CallEnded {
        key,
        outcome: Outcome::NotSent(ToolError::new("mcp-unreachable", "The call was not executed.")),
    };
    // Allowed once more by a person, and the server is down: nobody knows more than before.
    let mut run = held(&[("call_1", "charge")]);
    let fact = resume(&run, &["call_1"]);
    apply(&mut run, fact, NOW).unwrap();
    let mut run = reloaded(&run);
    apply(&mut run, Fact::LegBegan, NOW).unwrap();
    let fact = same_catalog(&run);
    apply(&mut run, fact, NOW).unwrap();
    apply(&mut run, refused(key(1, 0)), NOW).unwrap();
    assert_eq!((run.head.status, run.undecided().count()), (HELD, 1));
    // Sent again by itself, and refused: the last refusal must not be told as "not executed".
    let mut run = begun();
    let fact = ended(&run, turn("", &[("a", "put")]));
    apply(&mut run, fact, NOW).unwrap();
    apply(&mut run, unknown(key(1, 0)), NOW).unwrap();
    apply(&mut run, refused(key(1, 0)), NOW).unwrap();
    assert_eq!(run.calls[0].attempt, 3);
    apply(&mut run, refused(key(1, 0)), NOW).unwrap();
    assert_eq!((run.head.status, stages(&run)), (HELD, vec!["indeterminate"]));
    // A first attempt that never arrived has failed, and the model may know.
    let mut run = begun();
    let fact = ended(&run, turn("", &[("a", "charge")]));
    apply(&mut run, fact, NOW).unwrap();
    apply(&mut run, refused(key(1, 0)), NOW).unwrap();
    assert_eq!((stages(&run), next(&run)), (vec!["failed"], Step::AskModel));
}

#[test]
fn b211_b213_a_call_that_was_turned_away_is_sent_again_once_and_says_so_before_it_leaves() {
    let away = |key| Fact::CallEnded {
        key,
        outcome: Outcome::TurnedAway(ToolError::new("mcp-refused", "HTTP 404. It was not executed.")),
    };
    // An action that nobody may repeat: it was not executed, and its second attempt is an attempt like any other.
    let mut run = begun();
    let fact = ended(&run, turn("", &[("a", "charge")]));
    apply(&mut run, fact, NOW).unwrap();
    let commit = apply(&mut run, away(key(1, 0)), NOW).unwrap();
    assert_eq!((kinds(&commit), commit.sends.len()), (vec!["part", "tool-started"], 1));
    assert_eq!((run.calls[0].attempt, run.calls[0].turned_away, stages(&run)), (2, 1, vec!["executing"]));
    let warning = &run.head.state.warnings[0];
    assert_eq!(warning.code.as_deref(), Some("mcp-call-sent-again"));
    // Turned away again it has failed, and the model may know: no attempt of it was executed.
    let mut again = run.clone();
    apply(&mut again, away(key(1, 0)), NOW).unwrap();
    assert_eq!((stages(&again), next(&again)), (vec!["failed"], Step::AskModel));
    // Lost at its second attempt it waits for a person, as at the first.
    apply(&mut run, unknown(key(1, 0)), NOW).unwrap();
    assert_eq!((run.head.status, run.undecided().count()), (HELD, 1));
    // A repeat that is turned away says nothing of the first attempt, whatever the next one ends with.
    let mut run = begun();
    let fact = ended(&run, turn("", &[("a", "put")]));
    apply(&mut run, fact, NOW).unwrap();
    apply(&mut run, unknown(key(1, 0)), NOW).unwrap();
    apply(&mut run, away(key(1, 0)), NOW).unwrap();
    assert_eq!((run.calls[0].attempt, stages(&run)), (3, vec!["executing"]));
    apply(&mut run, away(key(1, 0)), NOW).unwrap();
    assert_ne!(stages(&run), ["failed"]);
    // A run that is cancelled sends nothing again.
    let mut run = begun();
    let fact = ended(&run, turn("", &[("a", "charge")]));
    apply(&mut run, fact, NOW).unwrap();
    run.leg = Leg::Cancelling;
    let commit = apply(&mut run, away(key(1, 0)), NOW).unwrap();
    assert_eq!((kinds(&commit), stages(&run)), (vec!["tool-output"], vec!["failed"]));
}

#[test]
fn b019_receipts_events_and_resume_do_not_depend_on_the_backend() {
    let lived = |backend: Backend| {
        let is_worker = backend == Backend::Worker;
        let mut run = begun();
        let mut fact = ended(&run, turn("", &[("a", "charge"), ("b", "look")]));
        let Fact::TurnEnded { rulings, .. } = &mut fact else { panic!("{fact:?}") };
        for ruling in rulings {
            let Ruling::Admit { target, .. } = ruling else { panic!("{ruling:?}") };
            target.backend = backend;
        }
        let mut told = kinds(&apply(&mut run, fact, NOW).unwrap());
        if is_worker {
            for position in 0..2 {
                told.extend(kinds(&apply(&mut run, claimed(position, "l"), NOW).unwrap()));
            }
        }
        // Whoever had them is gone.
        let mut run = reloaded(&run);
        if is_worker {
            for position in 0..2 {
                told.extend(kinds(&apply(&mut run, lapsed(position, "l"), NOW).unwrap()));
            }
        } else {
            told.extend(kinds(&apply(&mut run, Fact::LegBegan, NOW).unwrap()));
        }
        assert_eq!(run.head.status, Status::Suspended(SuspendReason::ToolReconciliationRequired));
        let fact = resume(&run, &["a"]);
        told.extend(kinds(&apply(&mut run, fact, NOW).unwrap()));
        let mut run = reloaded(&run);
        told.extend(kinds(&apply(&mut run, Fact::LegBegan, NOW).unwrap()));
        let fact = same_catalog(&run);
        told.extend(kinds(&apply(&mut run, fact, NOW).unwrap()));
        for position in 0..2 {
            if is_worker {
                told.extend(kinds(&apply(&mut run, claimed(position, "m"), NOW).unwrap()));
            }
        }
        for position in 0..2 {
            let fact = if is_worker { worked(position, "m") } else { done(key(1, position)) };
            told.extend(kinds(&apply(&mut run, fact, NOW).unwrap()));
        }
        // A leg that no worker's call needs comes and goes without an effect.
        told.retain(|kind| !matches!(*kind, "run-status" | "turn-started"));
        (told, stages(&run))
    };
    assert_eq!(lived(Backend::Worker), lived(Backend::Mcp));
}

#[test]
fn a_resume_that_decides_only_some_calls_keeps_its_decision_and_its_entries() {
    let mut run = held(&[("a", "charge"), ("b", "charge")]);
    let mut served = run.binding.clone();
    served.entries[0].required = !served.entries[0].required;
    let fact = resume_with(served, &["a"], CatalogPolicy::Stop);
    let commit = apply(&mut run, fact, NOW).unwrap();
    assert_eq!(kinds(&commit), ["reconciliation-decided", "binding-revised"], "its status is what it was");
    assert_eq!((run.head.status, run.undecided().count(), run.binding.revision), (HELD, 1, 2));
    let fact = resume(&run, &["b"]);
    apply(&mut run, fact, NOW).unwrap();
    assert_eq!((run.head.status, run.binding.revision), (Status::Queued, 2));
}

#[test]
fn b218_a_call_whose_server_named_a_task_is_asked_for_before_anything_else() {
    let mut run = begun();
    let fact = ended(&run, turn("", &[("call_1", "charge"), ("call_2", "charge")]));
    apply(&mut run, fact, NOW).unwrap();
    let keys: Vec<_> = run.calls.iter().map(|call| call.key).collect();
    let commit = apply(&mut run, deferred(keys[0]), NOW).unwrap();
    assert_eq!(commit.calls_moved[0].task.as_ref().unwrap().id, "task-1-0", "the name is kept before it is waited for");
    assert!(commit.sends.is_empty() && commit.events.is_empty());
    let mut run = reloaded(&run);
    let commit = apply(&mut run, Fact::LegBegan, NOW).unwrap();
    // The other had no task: it is held. Neither is sent, and the run is not suspended while somebody can be asked.
    assert_eq!(kinds(&commit), ["run-status", "tool-output"]);
    assert_eq!((commit.sends.len(), next(&run)), (0, Step::AwaitCalls));
    let commit = apply(&mut run, done(keys[0]), NOW).unwrap();
    assert_eq!(kinds(&commit), ["tool-output", "reconciliation-required", "run-status"]);
    assert_eq!((run.head.status, run.undecided().count()), (HELD, 1));
}

#[test]
fn b218_b223_catalogs_are_compared_once_the_end_of_a_task_is_known() {
    let mut run = begun();
    let fact = ended(&run, turn("", &[("call_1", "charge")]));
    apply(&mut run, fact, NOW).unwrap();
    let key = run.calls[0].key;
    apply(&mut run, deferred(key), NOW).unwrap();
    let mut run = reloaded(&run);
    apply(&mut run, Fact::LegBegan, NOW).unwrap();
    assert_eq!((run.leg, next(&run)), (Leg::CheckingCatalog, Step::AwaitCalls));
    let early = same_catalog(&run);
    assert!(apply(&mut run, early, NOW).is_err());
    apply(&mut run, done(key), NOW).unwrap();
    assert_eq!(next(&run), Step::CheckCatalog);
    let same = same_catalog(&run);
    let commit = apply(&mut run, same, NOW).unwrap();
    assert_eq!((kinds(&commit), next(&run)), (vec!["turn-started"], Step::AskModel));
}

#[test]
fn b216_b218_a_task_that_nobody_knows_any_more_is_a_persons_and_an_allowed_attempt_forgets_it() {
    let mut run = begun();
    let fact = ended(&run, turn("", &[("call_1", "charge")]));
    apply(&mut run, fact, NOW).unwrap();
    let key = run.calls[0].key;
    apply(&mut run, deferred(key), NOW).unwrap();
    let mut run = reloaded(&run);
    apply(&mut run, Fact::LegBegan, NOW).unwrap();
    let commit = apply(&mut run, unknown(key), NOW).unwrap();
    assert_eq!(kinds(&commit), ["tool-output", "reconciliation-required", "run-status"]);
    assert_eq!((run.head.status, run.calls[0].task.is_some()), (HELD, true));
    let fact = resume(&run, &["call_1"]);
    apply(&mut run, fact, NOW).unwrap();
    let mut run = reloaded(&run);
    apply(&mut run, Fact::LegBegan, NOW).unwrap();
    let same = same_catalog(&run);
    let commit = apply(&mut run, same, NOW).unwrap();
    assert_eq!((commit.sends, run.calls[0].task.is_none()), (vec![key], true));
}

#[test]
fn how_far_a_call_has_come_is_told_and_changes_nothing_else() {
    let mut run = begun();
    let fact = ended(&run, turn("", &[("call_1", "charge")]));
    apply(&mut run, fact, NOW).unwrap();
    let key = run.calls[0].key;
    run.head.crashes = 3;
    let before = run.clone();
    let commit = apply(&mut run, progressed(key), NOW).unwrap();
    assert_eq!((kinds(&commit), run.head.crashes), (vec!["tool-progress"], 3));
    assert!(commit.calls_moved.is_empty() && commit.messages.is_empty());
    assert_eq!(run.calls, before.calls);
    apply(&mut run, done(key), NOW).unwrap();
    assert!(apply(&mut run, progressed(key), NOW).is_err());
}
