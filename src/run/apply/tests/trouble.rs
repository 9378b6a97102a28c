//! Rules for calls whose outcome nobody knows: what each does, over crashes at every commit, and what none may do.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::world::*;
use crate::run::approval::{ApprovalKind, ApprovalRule, Requirement, Subject, Verdict};
use crate::run::call::MAX_ATTEMPTS;
use crate::run::commit::Commit;
use crate::run::envelope::{Envelope, Leg};
use crate::run::fact::{Fact, Ruling};
use crate::run::policy::{Judged, Trigger, Trouble};
use crate::run::spec::SideEffectClass;
use crate::run::status::Status;
use crate::run::{Step, apply, next};

fn decide(run: &mut Envelope, fact: Fact) -> Commit {
    apply(run, fact, NOW).unwrap()
}

fn asks(rule: Value) -> Trouble {
    let rule: ApprovalRule = serde_json::from_value(rule).unwrap();
    Trouble::RequireApproval { requirement: Box::new(Requirement::new(rule, "lost", "It was lost.")) }
}

fn tells() -> Trouble {
    Trouble::ToolError { rule: "lost".to_owned(), reason: Some("As agreed.".to_owned()) }
}

fn fails() -> Trouble {
    Trouble::Fail { rule: "lost".to_owned(), reason: Some("As agreed.".to_owned()) }
}

/// A turn with these calls, of which each `charge` carries what the rules say of a lost one.
fn turn_of(run: &Envelope, calls: &[(&str, &str)], trouble: &Trouble) -> Fact {
    let mut fact = ended(run, turn("", calls));
    if let Fact::TurnEnded { rulings, .. } = &mut fact {
        for ruling in rulings {
            if let Ruling::Admit { target, judged, .. } = ruling
                && target.server_tool == "charge"
            {
                let troubles = BTreeMap::from([(Trigger::Indeterminate, trouble.clone())]);
                **judged = Judged { decision: None, troubles };
            }
        }
    }
    fact
}

/// A run whose `charge` is out, and whose `look` beside it too.
fn out(trouble: &Trouble) -> Envelope {
    let mut run = begun();
    let fact = turn_of(&run, &[("a", "charge"), ("b", "look")], trouble);
    assert_eq!(decide(&mut run, fact).sends.len(), 2);
    run
}

/// The next leg, up to where it sends, asks the model or rests.
fn wake(run: &mut Envelope) -> usize {
    *run = reloaded(run);
    let mut sent = decide(run, Fact::LegBegan).sends.len();
    if next(run) == Step::CheckCatalog {
        let same = same_catalog(run);
        sent += decide(run, same).sends.len();
    }
    sent
}

/// What becomes of a charge that is lost, by a lost answer and by a crash.
#[track_caller]
fn check(trouble: &Trouble, stage: &str, status: &str, told: usize) {
    let mut run = out(trouble);
    let lost = decide(&mut run, unknown(key(1, 0)));
    let sibling = decide(&mut run, done(key(1, 1)));
    let kinds: Vec<_> = [kinds(&lost), kinds(&sibling)].concat();
    let ends = |kinds: &[&str]| kinds.iter().filter(|kind| **kind == "tool-output").count();
    assert_eq!((stages(&run)[0], run.head.status.code(), ends(&kinds)), (stage, status, told), "{trouble:?}");
    let mut crashed = reloaded(&out(trouble));
    decide(&mut crashed, Fact::LegBegan);
    let stood = stages(&crashed)[0];
    // What may be sent again is, once the catalog is the same.
    assert_eq!(stood, if stage == "executing" { "indeterminate" } else { stage }, "{trouble:?}, by a crash");
    let waits = |run: &Envelope| run.undecided().any(|call| call.key == key(1, 0));
    assert_eq!(waits(&crashed), waits(&run), "{trouble:?}");
}

#[test]
fn b214_each_rule_for_a_lost_call_does_what_it_says_also_after_a_crash() {
    check(&Trouble::Retry, "executing", "running", 1);
    check(&tells(), "failed", "running", 2);
    check(&asks(json!({})), "indeterminate", "suspended", 2);
    check(&Trouble::Reconcile, "indeterminate", "suspended", 2);
    check(&fails(), "indeterminate", "failed", 2);
    let mut run = out(&tells());
    decide(&mut run, unknown(key(1, 0)));
    let error = json!(run.calls[0].stage)["error"].clone();
    assert_eq!(error["code"], "outcome-unknown");
    assert!(error["message"].as_str().unwrap().ends_with("Policy 'lost': As agreed."), "{error}");
    let mut run = out(&fails());
    decide(&mut run, unknown(key(1, 0)));
    assert_eq!(run.head.status, Status::Running, "the other call of the turn gets its end first");
    decide(&mut run, done(key(1, 1)));
    let error = run.head.state.error.as_ref().unwrap();
    assert!(error.code == "dispatch-indeterminate" && error.message.contains("charge"), "{error:?}");
    assert_eq!(stages(&run), ["indeterminate", "completed"], "what nobody knows stays visible");
    // Without a rule, and of what repeats by itself, the rules say nothing.
    let mut run = out(&fails());
    decide(&mut run, unknown(key(1, 1)));
    assert_eq!((stages(&run)[1], run.calls[1].attempt), ("executing", 2));
}

#[test]
fn b214_a_rule_has_a_lost_call_sent_three_times_in_all_and_never_what_cannot_be_undone() {
    let mut run = out(&Trouble::Retry);
    decide(&mut run, done(key(1, 1)));
    for attempt in 1..MAX_ATTEMPTS {
        assert_eq!(run.calls[0].attempt, attempt);
        assert_eq!(decide(&mut run, unknown(key(1, 0))).sends, [key(1, 0)]);
    }
    decide(&mut run, unknown(key(1, 0)));
    assert_eq!(run.head.status.reason(), Some("tool-reconciliation-required"), "then a person decides");
    let mut run = out(&Trouble::Retry);
    run.calls[0].target.as_mut().unwrap().class = SideEffectClass::IrreversibleAction;
    decide(&mut run, done(key(1, 1)));
    assert!(decide(&mut run, unknown(key(1, 0))).sends.is_empty());
    assert_eq!(run.head.status.reason(), Some("tool-reconciliation-required"));
}

#[test]
fn b214_people_allow_each_further_attempt_or_end_it() {
    let waiting = |rule: Value| {
        let mut run = out(&asks(rule));
        decide(&mut run, done(key(1, 1)));
        decide(&mut run, unknown(key(1, 0)));
        assert_eq!(run.head.status.reason(), Some("approval-required"));
        assert_eq!(run.head.state.approvals.open[0].approval.kind, ApprovalKind::Repeat);
        reloaded(&run)
    };
    let vote = |run: &mut Envelope, verdict| {
        let fact = vote_on(run, 0, "bob", verdict, None);
        decide(run, fact)
    };
    let mut run = waiting(json!({}));
    vote(&mut run, Verdict::Approve);
    assert_eq!((wake(&mut run), run.calls[0].attempt), (1, 2));
    // Lost again is another question.
    decide(&mut run, unknown(key(1, 0)));
    assert_eq!((run.head.status.reason(), run.head.state.approvals.asked), (Some("approval-required"), 2));
    vote(&mut run, Verdict::Deny);
    assert_eq!((stages(&run)[0], run.head.status), ("failed", Status::Queued));
    assert!(json!(run.calls[0].stage)["error"]["message"].as_str().unwrap().contains("denied by bob"));
    let mut run = waiting(json!({"on_reject": "fail"}));
    vote(&mut run, Verdict::Deny);
    assert_eq!(run.head.state.error.as_ref().unwrap().code, "policy-reject");
    assert_eq!(stages(&run), ["failed", "completed"]);
    // An administrator may know what became of it: then nobody is asked any more.
    let mut run = waiting(json!({}));
    let decided = decide(&mut run, reconciled(key(1, 0), completed()));
    assert_eq!((decided.approvals[0].status.code(), run.head.status), ("cancelled", Status::Queued));
}

#[test]
fn b235_a_denial_that_fails_the_run_waits_for_what_is_out_and_nothing_more_is_sent() {
    // People vote on one call while its sibling is out.
    let denied = || {
        let mut run = out(&asks(json!({"on_reject": "fail"})));
        decide(&mut run, unknown(key(1, 0)));
        let fact = vote_on(&run, 0, "bob", Verdict::Deny, None);
        let commit = decide(&mut run, fact);
        assert_eq!((stages(&run), run.head.status), (vec!["failed", "executing"], Status::Running));
        assert_eq!((next(&run), kinds(&commit)), (Step::AwaitCalls, vec!["approval-decided", "tool-output"]));
        run
    };
    let why = |run: &Envelope| {
        let error = run.head.state.error.as_ref().unwrap();
        assert!(error.code == "policy-reject" && error.message.contains("denied by bob"), "{error:?}");
        (stages(run), run.head.status, run.head.state.failing.is_none())
    };
    let mut run = denied();
    decide(&mut run, done(key(1, 1)));
    assert_eq!(why(&run), (vec!["failed", "completed"], Status::Failed, true));
    // The node dies before the sibling has its end: the denial stands, and nothing is sent again.
    let mut run = reloaded(&denied());
    let commit = decide(&mut run, Fact::LegBegan);
    assert!(commit.sends.is_empty());
    assert_eq!(why(&run), (vec!["failed", "indeterminate"], Status::Failed, true));
    // A wish to cancel is the later word.
    let mut run = denied();
    run.leg = Leg::Cancelling;
    decide(&mut run, done(key(1, 1)));
    decide(&mut run, Fact::Cancelled);
    assert_eq!((run.head.status, run.head.state.failing.is_none()), (Status::Cancelled, true));
}

#[test]
fn b214_silence_never_repeats_without_end_nor_what_cannot_be_undone() {
    let rule = asks(json!({"timeout_s": 5, "on_timeout": "approve"}));
    let silence = |run: &mut Envelope| {
        let approval = run.head.state.approvals.open[0].approval.id;
        decide(run, Fact::ApprovalExpired { approval });
    };
    let mut run = out(&rule);
    decide(&mut run, done(key(1, 1)));
    for attempt in 2..=MAX_ATTEMPTS {
        decide(&mut run, unknown(key(1, 0)));
        silence(&mut run);
        assert_eq!((wake(&mut run), run.calls[0].attempt), (1, attempt));
    }
    decide(&mut run, unknown(key(1, 0)));
    silence(&mut run);
    assert_eq!((stages(&run)[0], run.head.status), ("failed", Status::Queued), "three attempts are enough of silence");
    let mut run = out(&rule);
    run.calls[0].target.as_mut().unwrap().class = SideEffectClass::IrreversibleAction;
    decide(&mut run, done(key(1, 1)));
    decide(&mut run, unknown(key(1, 0)));
    silence(&mut run);
    assert_eq!(stages(&run)[0], "failed");
}

#[test]
fn b214_b216_no_rule_repeats_or_settles_a_lost_call_of_a_run_that_is_cancelled() {
    for trouble in [Trouble::Retry, tells(), asks(json!({})), fails()] {
        let mut run = out(&trouble);
        decide(&mut run, Fact::Cancelled);
        assert_eq!((stages(&run)[0], run.head.status), ("indeterminate", Status::Cancelled), "{trouble:?}");
        let mut run = out(&Trouble::Retry);
        let full = Envelope { room: 0, ..run.clone() };
        run = full;
        decide(&mut run, unknown(key(1, 0)));
        let commit = decide(&mut run, Fact::Cancelled);
        assert_eq!((stages(&run)[0], commit.sends.len()), ("indeterminate", 0));
    }
}

/// Where the process dies: around the n-th commit, before or after it is stored, or after its calls have left.
#[derive(Clone, Copy, Debug)]
enum Dies {
    Never,
    Before(usize),
    After(usize),
    Sent(usize),
}

/// How a run went: how often `charge` happened, the attempts that its receipt said, the words of people, and the commits.
#[derive(Default)]
struct Played {
    effects: u32,
    attempts: u32,
    words: u32,
    commits: usize,
}

/// A run of two turns whose first two answers are lost, driven to its end.
fn play(trouble: &Trouble, dies: Dies) -> (Envelope, Played) {
    let mut stored = new_run(json!({}), true).0;
    let (mut run, mut played, mut lost) = (stored.clone(), Played::default(), 0);
    for _ in 0..60 {
        let fact = match next(&run) {
            Step::BeginLeg => Fact::LegBegan,
            Step::CheckCatalog => same_catalog(&run),
            Step::AskModel if run.head.state.turns == 0 => turn_of(&run, &[("a", "charge"), ("b", "look")], trouble),
            Step::AskModel => ended(&run, turn("done", &[])),
            Step::AwaitCalls => {
                let out = run.calls.iter().find(|call| call.stage.code() == "executing").unwrap();
                let is_lost = out.tool == "charge" && lost < 2;
                lost += u32::from(is_lost);
                if is_lost { unknown(out.key) } else { done(out.key) }
            }
            Step::Rest if run.head.status.is_terminal() => break,
            Step::Rest if run.head.state.approvals.open.is_empty() => resume(&run, &["a"]),
            Step::Rest => {
                assert!(run.head.state.approvals.open.iter().all(|open| open.subject == Subject::Repeat));
                vote_on(&run, 0, "bob", Verdict::Approve, None)
            }
            step => panic!("{step:?}"),
        };
        let is_word = matches!(fact, Fact::Voted { .. } | Fact::Resumed(_));
        let mut decided = run.clone();
        let commit = decide(&mut decided, fact);
        played.commits += 1;
        if matches!(dies, Dies::Before(at) if at == played.commits) {
            run = reloaded(&stored);
            continue;
        }
        stored = decided.clone();
        run = decided;
        played.attempts = run.calls.first().map_or(played.attempts, |call| call.attempt);
        played.words += u32::from(is_word);
        if matches!(dies, Dies::After(at) if at == played.commits) {
            run = reloaded(&stored);
            continue;
        }
        let charges = |key: &&crate::run::ids::CallKey| key.position == 0;
        played.effects += u32::try_from(commit.sends.iter().filter(charges).count()).unwrap();
        // A person's word leaves the run to nobody: its next leg begins.
        let is_left = matches!(dies, Dies::Sent(at) if at == played.commits) || run.head.status == Status::Queued;
        run = if is_left { reloaded(&stored) } else { run };
    }
    (run, played)
}

#[test]
fn b020_b214_a_death_at_any_commit_changes_nothing_of_what_a_rule_allows() {
    for (trouble, by_itself, status) in [
        (Trouble::Retry, 3, "completed"),
        (tells(), 1, "completed"),
        (asks(json!({})), 1, "completed"),
        (Trouble::Reconcile, 1, "completed"),
        (fails(), 1, "failed"),
    ] {
        let (whole, Played { commits, .. }) = play(&trouble, Dies::Never);
        assert_eq!(whole.head.status.code(), status, "{trouble:?}");
        for at in 1..=commits {
            for dies in [Dies::Before(at), Dies::After(at), Dies::Sent(at)] {
                let (run, Played { effects, attempts, words, .. }) = play(&trouble, dies);
                assert_eq!(run.head.status.code(), status, "{trouble:?} {dies:?}");
                assert!(effects <= by_itself + words, "{trouble:?} {dies:?}: {effects} times, {words} words");
                assert!(effects <= attempts, "{trouble:?} {dies:?}: {effects} times, {attempts} said");
            }
        }
    }
}
