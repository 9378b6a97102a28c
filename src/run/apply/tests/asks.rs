//! Servers that ask: people, models, and what of it outlives a call, a leg and a crash.

use serde_json::{Value, json};

use super::world::*;
use crate::run::approval::Verdict;
use crate::run::ask::Ask;
use crate::run::commit::Commit;
use crate::run::envelope::Envelope;
use crate::run::event::EventBody;
use crate::run::fact::{Fact, Resolution, SampleEnd};
use crate::run::refusal::Refusal;
use crate::run::sampling::{MAX_AT_ONCE, MAX_SAMPLES, has_room, is_spent};
use crate::run::{Step, apply, next};

fn decide(run: &mut Envelope, fact: Fact) -> Commit {
    apply(run, fact, NOW).unwrap()
}

/// A run with this call out, at a server that may ask people and have a model asked.
fn calling(tools: &[&str], limits: Value, sampling: Value) -> Envelope {
    let (mut run, _) = new_run(limits, true);
    let_ask(&mut run, sampling);
    let calls: Vec<(&str, &str)> = tools.iter().map(|tool| ("", *tool)).collect();
    let fact = ended(&run, turn("", &calls));
    decide(&mut run, fact);
    run
}

fn decisions(commit: &Commit) -> Vec<String> {
    let sampling = commit.events.iter().map(|event| json!(event)).filter(|event| event["type"] == "sampling");
    sampling.map(|event| format!("{} {}", event["decision"], event["reason"]).replace('"', "")).collect()
}

#[test]
fn a_question_about_a_call_that_is_out_ends_with_the_call_or_its_node() {
    let mut run = calling(&["charge"], json!({}), small());
    decide(&mut run, Fact::InputAsked { key: key(1, 0), ask: form(), expires_at: NOW.plus_millis(1000) });
    assert_eq!((run.head.status.code(), next(&run)), ("running", Step::AwaitCalls));
    let mut crashed = reloaded(&run);
    let commit = decide(&mut crashed, Fact::LegBegan);
    assert_eq!(
        kinds(&commit),
        ["run-status", "input-answered", "tool-output", "reconciliation-required", "run-status"]
    );
    assert!(crashed.head.state.asks.open.is_empty());
    assert_eq!(apply(&mut crashed, answer("input_1"), NOW), Err(Refusal::AlreadyAnswered));
    decide(&mut run, done(key(1, 0)));
    assert!(run.head.state.asks.open.is_empty() && run.head.state.asks.had("input_1"));
    assert!(!run.head.state.asks.had("input_2") && !run.head.state.asks.had("input_01"));
    let asked = Fact::InputAsked { key: key(1, 0), ask: form(), expires_at: NOW };
    assert!(matches!(apply(&mut run, asked, NOW), Err(Refusal::Impossible(_))));
}

#[test]
fn a_call_that_waits_for_input_survives_its_node_and_holds_its_siblings_back() {
    let mut run = calling(&["charge", "charge", "look"], json!({ "max_parallel_tool_calls": 2 }), small());
    decide(&mut run, required(0, vec![("a", form()), ("b", form())]));
    assert_eq!(stages(&run), ["waiting", "executing", "pending"]);
    let commit = decide(&mut run, done(key(1, 1)));
    assert_eq!((run.head.status.reason(), commit.sends.len()), (Some("input-required"), 0));
    let mut run = reloaded(&run);
    assert!(decide(&mut run, answer("input_2")).sends.is_empty());
    assert_eq!(run.head.status.code(), "suspended");
    decide(&mut run, answer("input_1"));
    assert_eq!(run.head.status.code(), "queued");
    decide(&mut run, Fact::LegBegan);
    let same = same_catalog(&run);
    let commit = decide(&mut run, same);
    assert_eq!(commit.sends, [key(1, 0), key(1, 2)]);
    assert_eq!((run.calls[0].attempt, run.calls[2].attempt), (1, 1), "the first goes on with its only attempt");
    // Its answer is lost: whoever may repeat it sends the same replies again.
    decide(&mut run, done(key(1, 2)));
    decide(&mut run, unknown(key(1, 0)));
    assert_eq!(run.head.status.reason(), Some("tool-reconciliation-required"));
    decide(&mut run, reconciled(key(1, 0), Resolution::Retry));
    decide(&mut run, Fact::LegBegan);
    let same = same_catalog(&run);
    let commit = decide(&mut run, same);
    assert_eq!((commit.sends.as_slice(), run.calls[0].attempt), ([key(1, 0)].as_slice(), 2));
    assert!(run.calls[0].asked.as_ref().unwrap().is_answered());
}

#[test]
fn a_run_that_waits_for_a_decision_and_for_input_goes_on_with_the_last_of_both() {
    let mut run = calling(&["charge", "charge"], json!({}), small());
    decide(&mut run, required(0, vec![("a", form())]));
    decide(&mut run, unknown(key(1, 1)));
    assert_eq!(run.head.status.reason(), Some("tool-reconciliation-required"));
    let mut other = run.clone();
    decide(&mut run, reconciled(key(1, 1), failed()));
    assert_eq!(run.head.status.reason(), Some("input-required"));
    decide(&mut run, answer("input_1"));
    assert_eq!(run.head.status.code(), "queued");
    decide(&mut other, answer("input_1"));
    assert_eq!(other.head.status.reason(), Some("tool-reconciliation-required"));
    let resumed = resume(&other, &["call_1_2"]);
    decide(&mut other, resumed);
    assert_eq!(other.head.status.code(), "queued");
}

#[test]
fn b096_a_sample_that_somebody_must_approve_is_refused_and_nothing_is_reserved() {
    let mut sampling = small();
    sampling["approval"] = json!("always");
    let mut run = calling(&["charge"], json!({ "max_tokens": 1000 }), sampling);
    let left = run.tokens_left();
    let commit = decide(&mut run, sample_asked(0, 10));
    assert_eq!((kinds(&commit), run.tokens_left()), (vec!["approval-requested"], left));
    let denied = vote_on(&run, 0, "bob", Verdict::Deny, None);
    assert_eq!(decisions(&decide(&mut run, denied)), ["refused approval-refused"]);
    assert_eq!((run.tokens_left(), run.head.state.usage.model_requests), (left, 1));
}

#[test]
fn b101_what_is_reserved_and_used_never_exceeds_the_budget_and_ends_with_its_call_and_leg() {
    let mut run = calling(&["charge", "charge"], json!({ "max_tokens": 20_000 }), small());
    decide(&mut run, sample_asked(0, 10_000));
    let left = run.tokens_left().unwrap();
    assert_eq!(left, 20_000 - 15 - sample(10_000).cost());
    assert_eq!(decisions(&decide(&mut run, sample_asked(1, left))), ["refused budget.tokens"]);
    let fits = left - sample(0).cost();
    assert_eq!(decisions(&decide(&mut run, sample_asked(1, fits))), ["reserved null"]);
    assert_eq!(run.tokens_left(), Some(0));
    // A node that dies takes its reservations with it: they may have been used.
    let mut crashed = reloaded(&run);
    let commit = decide(&mut crashed, Fact::LegBegan);
    assert_eq!(decisions(&commit), ["failed call-ended", "failed call-ended"]);
    assert_eq!((crashed.tokens_left(), crashed.head.state.asks.reserved.len()), (Some(0), 0));
    assert_eq!(crashed.head.state.usage.estimated_tokens, 20_000 - 15);
    assert_eq!(crashed.head.state.asks.usage.estimated_tokens, 20_000 - 15);
    assert!(matches!(apply(&mut crashed, made(1), NOW), Err(Refusal::Impossible(_))));
    // So does a call that ends first; the other one's is settled.
    assert_eq!(decisions(&decide(&mut run, done(key(1, 0)))), ["failed call-ended"]);
    assert_eq!(decisions(&decide(&mut run, made(2))), ["made null"]);
    let lost = sample(10_000).cost();
    assert_eq!((run.tokens_left(), run.head.state.usage.total_tokens), (Some(20_000 - 25 - lost), 25 + lost));
    assert_eq!((run.head.state.asks.usage.total_tokens, run.head.state.own_requests()), (10 + lost, 1));
}

#[test]
fn b101_a_call_has_so_many_samples_and_so_many_at_once_whatever_becomes_of_them() {
    let mut run = calling(&["charge", "charge", "charge"], json!({ "max_tokens": 20_000 }), small());
    for _ in 0..MAX_AT_ONCE {
        assert_eq!(decisions(&decide(&mut run, sample_asked(0, 10))), ["reserved null"]);
        decide(&mut run, sample_asked(1, 10));
    }
    let before = run.clone();
    for position in [0, 1, 2] {
        assert!(!has_room(&run, key(1, position)), "neither the call nor the run has room");
        assert!(matches!(apply(&mut run, sample_asked(position, 10), NOW), Err(Refusal::Impossible(_))));
    }
    assert_eq!(run, before);
    decide(&mut run, made(1));
    assert_eq!(decisions(&decide(&mut run, sample_asked(2, 10))), ["reserved null"]);
    decide(&mut run, done(key(1, 1)));
    for _ in run.head.state.asks.samples_of(key(1, 0))..MAX_SAMPLES {
        assert_eq!(decisions(&decide(&mut run, sample_asked(0, 100_000))), ["refused budget.tokens"]);
    }
    assert!(is_spent(&run, key(1, 0)) && !is_spent(&run, key(1, 2)));
    assert!(matches!(apply(&mut run, sample_asked(0, 10), NOW), Err(Refusal::Impossible(_))));
    assert_eq!(run.head.state.asks.counts.len(), 2, "a call that has ended is not counted any more");
}

#[test]
fn a_call_that_waits_fails_with_its_first_sample_too_many() {
    let mut run = calling(&["charge"], json!({}), small());
    let names: Vec<String> = (0..13).map(|number| format!("m{number}")).collect();
    let asks = || names.iter().map(|name| (name.as_str(), Ask::Sample(Box::new(sample(10))))).collect();
    let asked = |name: &String| {
        let (question, request) = (Some(name.clone()), Box::new(sample(10)));
        Fact::SampleAsked { key: key(1, 0), question, request }
    };
    for number in 1..=MAX_SAMPLES {
        let at = usize::try_from(number - 1).unwrap() % names.len();
        if at == 0 {
            decide(&mut run, required(0, asks()));
        }
        decide(&mut run, asked(&names[at]));
        decide(&mut run, made(number));
    }
    assert_eq!(decisions(&decide(&mut run, asked(&names[12]))), ["refused too-many"]);
    assert_eq!(stages(&run), ["failed"]);
}

#[test]
fn a_stored_sample_is_made_before_a_person_is_waited_for_and_begun_again_after_a_crash() {
    let mut run = calling(&["charge"], json!({}), small());
    decide(&mut run, required(0, vec![("a", form()), ("m", Ask::Sample(Box::new(sample(10))))]));
    assert_eq!((run.head.status.code(), next(&run)), ("running", Step::AwaitCalls));
    let asked = |run: &Envelope| {
        let call = run.calls[0].asked.clone().unwrap();
        let (name, request) = call.samples().next().unwrap();
        Fact::SampleAsked { key: key(1, 0), question: Some(name.clone()), request: Box::new(request.clone()) }
    };
    let fact = asked(&run);
    decide(&mut run, fact);
    let mut run = reloaded(&run);
    decide(&mut run, Fact::LegBegan);
    assert_eq!((run.head.state.asks.reserved.len(), next(&run)), (0, Step::AwaitCalls));
    let fact = asked(&run);
    decide(&mut run, fact);
    decide(&mut run, made(2));
    assert_eq!(run.head.status.reason(), Some("input-required"));
    decide(&mut run, answer("input_1"));
    assert_eq!(run.head.status.code(), "queued");
}

#[test]
fn a_stored_sample_that_is_refused_or_fails_fails_its_call_and_closes_its_questions() {
    let request = || Box::new(sample(10));
    let stored = |limits: Value| {
        let mut run = calling(&["charge"], limits, small());
        decide(&mut run, required(0, vec![("a", form()), ("m", Ask::Sample(request()))]));
        let asked = Fact::SampleAsked { key: key(1, 0), question: Some("m".to_owned()), request: request() };
        decide(&mut run, asked);
        run
    };
    let refused = stored(json!({ "max_tokens": 26 }));
    let mut failed = stored(json!({}));
    decide(
        &mut failed,
        Fact::SampleEnded { sample: 1, end: SampleEnd::Failed { message: "no".to_owned(), may_cost: false } },
    );
    for run in [refused, failed] {
        assert_eq!((stages(&run), next(&run)), (vec!["failed"], Step::AskModel));
        assert!(run.head.state.asks.open.is_empty() && run.head.state.asks.reserved.is_empty());
    }
}

/// What the run counts as work after each of these, each a second after the one before.
fn worked(run: &mut Envelope, facts: Vec<Fact>) -> Vec<i64> {
    let at = |nth: usize| NOW.plus_millis(1_000 * i64::try_from(nth + 1).unwrap());
    let mut worked = Vec::new();
    for (nth, fact) in facts.into_iter().enumerate() {
        apply(run, fact, at(nth)).unwrap();
        // Whoever looks half a second later sees whether the clock goes on.
        worked.push(run.worked_ms(at(nth).plus_millis(500)));
    }
    worked
}

fn asked(position: u32) -> Fact {
    Fact::InputAsked { key: key(1, position), ask: form(), expires_at: NOW.plus_millis(60_000) }
}

#[test]
fn waiting_for_people_is_no_work_and_what_goes_on_beside_it_is() {
    let mut run = calling(&["charge"], json!({ "max_duration_s": 3 }), small());
    let facts = vec![asked(0), asked(0), answer("input_1"), answer("input_2"), done(key(1, 0))];
    assert_eq!(worked(&mut run, facts), [1_000, 1_000, 1_000, 1_500, 2_500]);
    assert_eq!(next(&run), Step::AskModel, "five seconds passed, and two of them were work");

    let mut run = calling(&["charge", "look"], json!({}), small());
    let facts = vec![asked(0), done(key(1, 1)), answer("input_1"), done(key(1, 0))];
    assert_eq!(worked(&mut run, facts), [1_500, 2_000, 2_500, 3_500], "the other call worked for a second");

    // A node that dies meanwhile leaves no work behind that was none.
    let mut run = calling(&["charge"], json!({}), small());
    worked(&mut run, vec![asked(0)]);
    let mut crashed = reloaded(&run);
    apply(&mut crashed, Fact::LegBegan, NOW.plus_millis(60_000)).unwrap();
    assert_eq!(crashed.worked_ms(NOW.plus_millis(60_000)), 1_000);

    // A vote on a sample is waited for likewise, and the sample itself is work.
    let mut sampling = small();
    sampling["approval"] = json!("always");
    let mut run = calling(&["charge"], json!({ "max_tokens": 1000 }), sampling);
    assert_eq!(worked(&mut run, vec![sample_asked(0, 10)]), [1_000]);
    let vote = vote_on(&run, 0, "bob", Verdict::Approve, None);
    apply(&mut run, vote, NOW.plus_millis(9_000)).unwrap();
    assert_eq!(run.worked_ms(NOW.plus_millis(9_500)), 1_500);
}

#[test]
fn field_a149_a_sample_that_failed_after_it_began_counts_as_what_was_reserved() {
    for may_cost in [false, true] {
        let mut run = calling(&["charge"], json!({ "max_tokens": 20_000 }), small());
        decide(&mut run, sample_asked(0, 100));
        let used = if may_cost { sample(100).cost() } else { 0 };
        let end = SampleEnd::Failed { message: "cut off".to_owned(), may_cost };
        let commit = decide(&mut run, Fact::SampleEnded { sample: 1, end });
        let EventBody::Sampling { usage, .. } = &commit.events[0].body else { panic!("no sampling") };
        assert_eq!(usage.map_or(0, |usage| usage.estimated_tokens), used);
        assert_eq!((run.tokens_left(), run.head.state.usage.estimated_tokens), (Some(20_000 - 15 - used), used));
    }
}
