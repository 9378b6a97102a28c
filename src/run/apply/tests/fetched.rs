//! Calls that workers and the client come and fetch.

use super::world::*;
use crate::run::apply;
use crate::run::call::Stage;
use crate::run::commit::{Commit, Next};
use crate::run::envelope::{Envelope, Leg};
use crate::run::event::EventBody;
use crate::run::fact::{Fact, Resolution};
use crate::run::outcome::Cause;
use crate::run::status::{Status, SuspendReason};
use crate::run::{Step, next};

fn called(run: &mut Envelope, calls: &[(&str, &str)]) -> Commit {
    let fact = ended(run, turn("", calls));
    apply(run, fact, NOW).unwrap()
}

fn did(run: &mut Envelope, fact: Fact) -> Commit {
    apply(run, fact, NOW).unwrap()
}

#[track_caller]
fn refused(run: &Envelope, fact: Fact, code: &str) {
    let mut tried = run.clone();
    assert_eq!(apply(&mut tried, fact, NOW).unwrap_err().code(), code);
    assert_eq!(tried, *run);
}

#[test]
fn b209_a_call_is_pending_until_a_worker_takes_it_and_needs_no_driver() {
    let mut run = local_run(false);
    let commit = called(&mut run, &[("a", "work")]);
    assert_eq!((stages(&run), commit.next, run.head.status), (vec!["pending"], Next::Rest, Status::Running));
    assert!(commit.offers() && commit.sends.is_empty());
    let commit = did(&mut run, claimed(0, "l"));
    assert_eq!((kinds(&commit), commit.next, run.calls[0].attempt), (vec!["tool-started"], Next::Rest, 1));
    let commit = did(&mut run, worked(0, "l"));
    assert_eq!((kinds(&commit), run.head.status), (vec!["tool-output", "run-status"], Status::Queued));
    did(&mut run, Fact::LegBegan);
    assert_eq!(next(&run), Step::AskModel);
}

#[test]
fn b201_a_workers_call_and_a_servers_are_out_together() {
    let mut run = local_run(true);
    let commit = called(&mut run, &[("a", "work"), ("b", "charge")]);
    assert_eq!((stages(&run), commit.sends.len(), commit.next), (vec!["pending", "executing"], 1, Next::Owner));
    did(&mut run, claimed(0, "l"));
    assert_eq!(next(&run), Step::AwaitCalls);
    // The server answers first: the run waits for the worker without its driver.
    let commit = did(&mut run, done(key(1, 1)));
    assert_eq!((commit.next, run.head.status), (Next::Rest, Status::Running));
    let mut run = reloaded(&run);
    did(&mut run, worked(0, "l"));
    assert_eq!((stages(&run), run.head.status), (vec!["completed", "completed"], Status::Queued));
}

#[test]
fn b239_a_worker_that_is_gone_leaves_its_call_to_another_only_where_that_is_harmless() {
    let mut run = local_run(false);
    called(&mut run, &[("a", "read")]);
    for attempt in 1..=3 {
        did(&mut run, claimed(0, "l"));
        let commit = did(&mut run, lapsed(0, "l"));
        assert_eq!(run.calls[0].attempt, attempt);
        assert_eq!(run.calls[0].is_offered(), attempt < 3);
        assert!(commit.offers(), "whoever serves the tool has room again");
    }
    assert_eq!((stages(&run), run.head.status), (vec!["failed"], Status::Queued));
    let mut run = local_run(false);
    called(&mut run, &[("a", "work")]);
    did(&mut run, claimed(0, "l"));
    did(&mut run, lapsed(0, "l"));
    assert!(matches!(run.calls[0].stage, Stage::Indeterminate { cause: Cause::LeaseExpired, .. }));
    assert_eq!(run.head.status, Status::Suspended(SuspendReason::ToolReconciliationRequired));
    refused(&run, worked(0, "l"), "lease-lost");
    // A person allows one more attempt: it is on offer again.
    did(&mut run, reconciled(key(1, 0), Resolution::Retry));
    let mut run = reloaded(&run);
    assert!(did(&mut run, Fact::LegBegan).offers());
    did(&mut run, claimed(0, "m"));
    did(&mut run, worked(0, "m"));
    assert_eq!((stages(&run), run.calls[0].attempt), (vec!["completed"], 2));
}

#[test]
fn b241_only_the_lease_that_holds_settles_a_call() {
    let mut run = local_run(false);
    called(&mut run, &[("a", "read")]);
    refused(&run, worked(0, "l"), "lease-lost");
    did(&mut run, claimed(0, "l"));
    refused(&run, claimed(0, "m"), "not-offered");
    refused(&run, worked(0, "m"), "lease-lost");
    did(&mut run, lapsed(0, "l"));
    did(&mut run, claimed(0, "m"));
    refused(&run, worked(0, "l"), "lease-lost");
    did(&mut run, worked(0, "m"));
    refused(&run, worked(0, "m"), "lease-lost");
}

#[test]
fn a_call_that_is_put_back_was_never_sent() {
    let mut run = local_run(false);
    called(&mut run, &[("a", "work")]);
    did(&mut run, claimed(0, "l"));
    assert!(did(&mut run, put_back(0, "l")).offers());
    assert_eq!((stages(&run), run.calls[0].attempt), (vec!["pending"], 0));
    refused(&run, worked(0, "l"), "lease-lost");
    did(&mut run, not_taken(0));
    assert_eq!(stages(&run), ["failed"]);
}

#[test]
fn b237_a_call_that_nobody_takes_has_failed_unless_an_earlier_attempt_may_have_had_its_effect() {
    let mut run = local_run(false);
    called(&mut run, &[("a", "work")]);
    let commit = did(&mut run, not_taken(0));
    let told = commit.events.iter().find_map(|event| match &event.body {
        EventBody::ToolOutput { error: Some(error), .. } => Some(error.code.clone()),
        _ => None,
    });
    assert_eq!((told.as_deref(), run.head.status), (Some("dispatch-no-handler"), Status::Queued));
    let mut run = local_run(false);
    run.binding.tools[0].replay = true;
    called(&mut run, &[("a", "work")]);
    did(&mut run, claimed(0, "l"));
    did(&mut run, lapsed(0, "l"));
    did(&mut run, not_taken(0));
    assert_eq!((stages(&run), run.undecided().count()), (vec!["indeterminate"], 1));
    assert_eq!(run.head.status, Status::Suspended(SuspendReason::ToolReconciliationRequired));
}

#[test]
fn while_a_call_waits_for_a_person_no_worker_gets_another_one_of_the_turn() {
    let mut run = local_run(false);
    called(&mut run, &[("a", "work"), ("b", "work"), ("c", "work")]);
    did(&mut run, claimed(0, "l"));
    did(&mut run, claimed(1, "m"));
    did(&mut run, lapsed(0, "l"));
    // What a worker has finishes; the third is not on offer any more.
    assert_eq!(run.head.status, Status::Running);
    refused(&run, claimed(2, "n"), "not-offered");
    let commit = did(&mut run, worked(1, "m"));
    assert_eq!(kinds(&commit), ["tool-output", "reconciliation-required", "run-status"]);
    assert_eq!(stages(&run), ["indeterminate", "completed", "pending"]);
    let commit = did(&mut run, reconciled(key(1, 0), completed()));
    assert_eq!((commit.next, run.head.status), (Next::Due(NOW), Status::Queued));
    let mut run = reloaded(&run);
    assert!(did(&mut run, Fact::LegBegan).offers());
}

#[test]
fn clients_calls_wait_together_and_the_last_result_sets_the_run_going() {
    let mut run = local_run(false);
    let commit = called(&mut run, &[("a", "pick"), ("b", "pick")]);
    let told = ["tool-started", "client-tool-requested", "tool-started", "client-tool-requested", "run-status"];
    assert_eq!(kinds(&commit)[kinds(&commit).len() - 5..], told);
    let waits = Status::Suspended(SuspendReason::ClientToolResultsRequired);
    assert_eq!((stages(&run), run.head.status), (vec!["executing", "executing"], waits));
    let mut run = reloaded(&run);
    did(&mut run, given(1));
    assert_eq!((stages(&run), run.head.status), (vec!["executing", "completed"], waits));
    refused(&run, given(1), "result-not-awaited");
    did(&mut run, given(0));
    assert_eq!(run.head.status, Status::Queued);
    did(&mut run, Fact::LegBegan);
    assert_eq!(next(&run), Step::AskModel);
}

#[test]
fn a_node_that_dies_takes_no_fetched_call_with_it() {
    let mut run = local_run(true);
    called(&mut run, &[("a", "work"), ("b", "pick"), ("c", "charge")]);
    did(&mut run, claimed(0, "l"));
    let mut run = reloaded(&run);
    did(&mut run, Fact::LegBegan);
    assert_eq!(stages(&run), ["executing", "executing", "indeterminate"]);
    // The worker's word still counts, and the client's.
    did(&mut run, worked(0, "l"));
    did(&mut run, given(1));
    assert_eq!(stages(&run), ["completed", "completed", "indeterminate"]);
    assert_eq!(run.head.status, Status::Suspended(SuspendReason::ToolReconciliationRequired));
}

#[test]
fn b243_a_run_that_is_cancelled_hands_nothing_out_and_what_is_out_stays_visible() {
    let mut run = local_run(false);
    called(&mut run, &[("a", "work"), ("b", "work"), ("c", "pick")]);
    did(&mut run, claimed(0, "l"));
    let mut leaving = Envelope { leg: Leg::Cancelling, ..run.clone() };
    assert_eq!(next(&leaving), Step::AwaitCalls);
    refused(&leaving, claimed(1, "m"), "not-offered");
    did(&mut leaving, worked(0, "l"));
    assert_eq!(next(&leaving), Step::Cancel);
    did(&mut leaving, Fact::Cancelled);
    assert_eq!(stages(&leaving), ["completed", "failed", "indeterminate"]);
    did(&mut run, Fact::Cancelled);
    let cancelled =
        |call: &&crate::run::call::Call| matches!(call.stage, Stage::Indeterminate { cause: Cause::Cancelled, .. });
    assert_eq!(
        (stages(&run), run.calls.iter().filter(cancelled).count()),
        (vec!["indeterminate", "failed", "indeterminate"], 2)
    );
    assert!(!run.calls.iter().any(crate::run::call::Call::is_offered));
}

/// A run that is suspended for its servers while a worker has a call of it, and another one is offered.
fn suspended_while_a_worker_works(calls: &[(&str, &str)]) -> Envelope {
    let mut run = Envelope { room: 0, ..local_run(true) };
    called(&mut run, calls);
    for position in 0..u32::try_from(calls.len() - 1).unwrap() {
        did(&mut run, claimed(position, "l"));
    }
    let mut run = reloaded(&run);
    did(&mut run, Fact::LegBegan);
    did(&mut run, Fact::CatalogUnreadable { message: "refused".to_owned() });
    assert_eq!(run.head.status, Status::Suspended(SuspendReason::McpUnreachable));
    run
}

#[test]
fn a_suspended_run_says_of_each_call_that_is_lost_meanwhile_that_a_person_must_decide() {
    let mut run = suspended_while_a_worker_works(&[("a", "work"), ("b", "work"), ("c", "charge")]);
    for position in [0, 1] {
        let commit = did(&mut run, lapsed(position, "l"));
        assert_eq!(kinds(&commit), ["tool-output", "reconciliation-required", "run-status"], "{position}");
        assert_eq!(run.head.status, Status::Suspended(SuspendReason::ToolReconciliationRequired));
    }
    let mut run = suspended_while_a_worker_works(&[("a", "work"), ("b", "charge")]);
    assert_eq!(kinds(&did(&mut run, worked(0, "l"))), ["tool-output", "run-status"]);
    assert_eq!(run.head.status, Status::Queued);
}

#[test]
fn b216_b243_a_suspended_run_that_is_cancelled_waits_for_what_its_workers_say() {
    let mut run = suspended_while_a_worker_works(&[("a", "work"), ("b", "charge")]);
    assert_eq!(next(&run), Step::Rest);
    run.leg = Leg::Cancelling;
    assert_eq!(next(&run), Step::AwaitCalls);
    let commit = did(&mut run, worked(0, "l"));
    assert_eq!((kinds(&commit), commit.next, next(&run)), (vec!["tool-output"], Next::Owner, Step::Cancel));
    did(&mut run, Fact::Cancelled);
    assert_eq!((stages(&run), run.head.status), (vec!["completed", "failed"], Status::Cancelled));
}

#[test]
fn a_run_that_is_suspended_offers_nothing_and_offers_again_when_it_goes_on() {
    let mut run = Envelope { room: 0, ..local_run(true) };
    called(&mut run, &[("a", "work"), ("b", "charge")]);
    assert_eq!((stages(&run), run.calls[0].is_offered()), (vec!["pending", "pending"], true));
    let mut run = reloaded(&run);
    did(&mut run, Fact::LegBegan);
    did(&mut run, Fact::CatalogUnreadable { message: "refused".to_owned() });
    assert_eq!(run.head.status, Status::Suspended(SuspendReason::McpUnreachable));
    assert!(!run.calls[0].is_offered(), "no worker is told of what none may take");
    let fact = resume(&run, &[]);
    did(&mut run, fact);
    let mut run = Envelope { room: 1, ..reloaded(&run) };
    did(&mut run, Fact::LegBegan);
    let fact = same_catalog(&run);
    assert!(did(&mut run, fact).offers());
}
