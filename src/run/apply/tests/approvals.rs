//! Calls that wait for people: who decides them, what changed arguments do, and what is sent then.

use serde_json::{Value, json};

use super::world::*;
use crate::run::apply;
use crate::run::approval::{ApprovalRule, ApprovalStatus, Requirement, Subject, Verdict};
use crate::run::binding::{BoundTool, ToolSource};
use crate::run::call::Backend;
use crate::run::commit::Commit;
use crate::run::envelope::Envelope;
use crate::run::event::EventBody;
use crate::run::fact::{Fact, Ruling};
use crate::run::refusal::Refusal;
use crate::run::spec::{CatalogPolicy, SideEffectClass};

fn decide(run: &mut Envelope, fact: Fact) -> Commit {
    apply(run, fact, NOW).unwrap()
}

/// A run that has made these calls, where `charge` needs an approval by this rule.
fn asked(calls: &[(&str, &str)], rule: &Value) -> Envelope {
    let mut run = begun();
    need_approval(&mut run, &["charge"]);
    let mut fact = ended(&run, turn("", calls));
    if let Fact::TurnEnded { rulings, .. } = &mut fact {
        for ruling in rulings {
            if let Ruling::Ask { requirement, .. } = ruling {
                let rule: ApprovalRule = serde_json::from_value(rule.clone()).unwrap();
                **requirement = Requirement::new(rule, "limit", "It is much.");
            }
        }
    }
    decide(&mut run, fact);
    run
}

fn vote(run: &mut Envelope, at: usize, actor: &str, verdict: Verdict, ruling: Option<Ruling>) -> Commit {
    let fact = vote_on(run, at, actor, verdict, ruling);
    decide(run, fact)
}

fn refused(run: &Envelope, fact: Fact) -> Refusal {
    let mut tried = run.clone();
    let refusal = apply(&mut tried, fact, NOW).unwrap_err();
    assert_eq!(&tried, run, "a refused vote changed the run");
    refusal
}

fn on_its_way(mut run: Envelope) -> Commit {
    decide(&mut run, Fact::LegBegan);
    let same = same_catalog(&run);
    decide(&mut run, same)
}

fn statuses(commit: &Commit) -> Vec<&'static str> {
    commit.approvals.iter().map(|approval| approval.status.code()).collect()
}

#[test]
fn b079_b230_none_of_a_turn_is_sent_before_the_last_decision_and_each_releases_only_its_own_call() {
    let mut run = asked(&[("a", "charge"), ("b", "charge"), ("c", "look")], &json!({}));
    assert_eq!(
        (run.head.status.reason(), stages(&run)),
        (Some("approval-required"), vec!["proposed", "proposed", "pending"])
    );
    let ids: Vec<_> = run.head.state.approvals.open.iter().map(|open| open.approval.id).collect();
    assert_ne!(ids[0], ids[1]);
    // In the other order than they were asked for, and the first after a crash.
    let commit = vote(&mut run, 1, "bob", Verdict::Approve, None);
    assert_eq!((kinds(&commit), commit.sends.len()), (vec!["approval-decided"], 0));
    let mut run = reloaded(&run);
    let commit = vote(&mut run, 0, "bob", Verdict::Deny, None);
    assert_eq!(kinds(&commit), ["approval-decided", "tool-output", "run-status"]);
    assert_eq!((run.head.status.code(), stages(&run)), ("queued", vec!["rejected", "pending", "pending"]));
    let commit = on_its_way(run.clone());
    assert_eq!(commit.sends, [key(1, 1), key(1, 2)]);
    assert_eq!(run.calls[1].decided_by.as_ref().unwrap().as_str(), "bob");
    assert_eq!(refused(&run, vote_of(ids[0], "carol", Verdict::Approve, None)), Refusal::AlreadyDecided(ids[0]));
}

#[test]
fn b228_a_quorum_needs_different_actors_and_may_leave_out_whoever_began_the_run() {
    let mut run = asked(&[("a", "charge")], &json!({"required": 2, "exclude_starter": true}));
    assert_eq!(refused(&run, vote_on(&run, 0, "alice", Verdict::Approve, None)), Refusal::NotAnApprover);
    let commit = vote(&mut run, 0, "bob", Verdict::Approve, None);
    assert_eq!((statuses(&commit), run.head.status.code()), (vec!["pending"], "suspended"));
    assert_eq!(refused(&run, vote_on(&run, 0, "bob", Verdict::Approve, None)), Refusal::AlreadyVoted);
    assert_eq!(refused(&run, vote_on(&run, 0, "bob", Verdict::Deny, None)), Refusal::AlreadyVoted);
    let commit = vote(&mut run, 0, "carol", Verdict::Approve, None);
    assert_eq!((statuses(&commit), run.head.status.code()), (vec!["approved"], "queued"));
    let mut run = asked(&[("a", "charge")], &json!({"required": 2}));
    vote(&mut run, 0, "bob", Verdict::Approve, None);
    let commit = vote(&mut run, 0, "carol", Verdict::Deny, None);
    assert_eq!(statuses(&commit), ["denied"], "one denial closes it");
}

#[test]
fn b229_nobody_approves_changed_arguments_without_having_read_them() {
    let mut run = asked(&[("a", "charge")], &json!({"required": 2}));
    let approval = run.head.state.approvals.open[0].approval.id;
    let blind = vote_of(approval, "carol", Verdict::Approve, None);
    let read = vote_on(&run, 0, "carol", Verdict::Approve, None);
    assert!(apply(&mut run.clone(), blind.clone(), NOW).is_ok(), "as they were asked about, a vote is enough");
    let to = Ruling::Admit {
        target: run.calls[0].target.clone().unwrap(),
        input: json!({"amount": 3}),
        judged: Box::default(),
    };
    vote(&mut run, 0, "bob", Verdict::Approve, Some(to));
    for unread in [blind, read] {
        let mut tried = run.clone();
        assert_eq!(apply(&mut tried, unread, NOW).unwrap_err().code(), "approval-changed");
        assert_eq!(tried, run);
    }
    assert!(apply(&mut run.clone(), vote_of(approval, "carol", Verdict::Deny, None), NOW).is_ok());
    vote(&mut run, 0, "carol", Verdict::Approve, None);
    assert!(run.head.state.approvals.open.is_empty());
}

#[test]
fn b229_changed_arguments_clear_earlier_votes_and_are_what_is_sent() {
    let mut run = asked(&[("a", "charge")], &json!({"required": 2}));
    vote(&mut run, 0, "bob", Verdict::Approve, None);
    let digest = run.head.state.approvals.open[0].approval.input_digest.clone();
    let changed = Some(Ruling::Admit {
        target: run.calls[0].target.clone().unwrap(),
        input: json!({"amount": 3}),
        judged: Box::default(),
    });
    vote(&mut run, 0, "carol", Verdict::Approve, changed);
    let approval = &run.head.state.approvals.open[0].approval;
    assert_eq!((approval.votes.len(), &approval.input), (1, &json!({"amount": 3})));
    assert_ne!(approval.input_digest, digest);
    assert_eq!(run.calls[0].input, json!({"amount": 3}), "bob may vote again: it is another question");
    vote(&mut run, 0, "bob", Verdict::Approve, None);
    let commit = on_its_way(run.clone());
    assert_eq!((commit.sends, &run.calls[0].input), (vec![key(1, 0)], &json!({"amount": 3})));
}

#[test]
fn b229_a_vote_belongs_to_the_arguments_that_it_was_cast_for() {
    let mut run = asked(&[("a", "charge")], &json!({"required": 3}));
    let to = |run: &Envelope, amount: u32| {
        let target = run.calls[0].target.clone().unwrap();
        Some(Ruling::Admit { target, input: json!({ "amount": amount }), judged: Box::default() })
    };
    let approves = vote_on(&run, 0, "bob", Verdict::Approve, None);
    decide(&mut run, approves.clone());
    let first = run.calls[0].input.clone();
    let changes = vote_on(&run, 0, "carol", Verdict::Approve, to(&run, 3));
    decide(&mut run, changes.clone());
    assert_eq!(refused(&run, approves.clone()), Refusal::ApprovalChanged, "read again, it is not counted for others");
    let changes_back = vote_on(&run, 0, "dave", Verdict::Approve, to(&run, 5));
    decide(&mut run, changes_back);
    assert_eq!(run.calls[0].input, first);
    // The same arguments again are another round: nobody's vote of the first one is counted, and nobody's change made anew.
    for earlier in [approves, changes] {
        assert_eq!(refused(&run, earlier), Refusal::ApprovalChanged);
    }
    for voter in ["bob", "carol"] {
        vote(&mut run, 0, voter, Verdict::Approve, None);
    }
    assert!(run.head.state.approvals.open.is_empty(), "three voted on these");
}

#[test]
fn b229_changed_arguments_never_make_it_easier_and_what_a_rule_denies_stays_denied() {
    let ask = |run: &Envelope, rule: Value| {
        let rule: ApprovalRule = serde_json::from_value(rule).unwrap();
        let requirement = Box::new(Requirement::new(rule, "much", "It is very much."));
        let target = run.calls[0].target.clone().unwrap();
        Some(Ruling::Ask { target, input: json!({"amount": 9000}), judged: Box::default(), requirement })
    };
    let mut run = asked(&[("a", "charge")], &json!({}));
    let fact = vote_on(&run, 0, "bob", Verdict::Approve, ask(&run, json!({"required": 3})));
    decide(&mut run, fact);
    let approval = &run.head.state.approvals.open[0].approval;
    assert_eq!(
        (approval.required, approval.votes.len(), approval.rules.as_slice()),
        (3, 1, ["limit".to_owned(), "much".to_owned()].as_slice())
    );
    let mut run = asked(&[("a", "charge")], &json!({}));
    let others = ask(&run, json!({"approvers": {"subjects": ["carol"]}}));
    assert_eq!(refused(&run, vote_on(&run, 0, "bob", Verdict::Approve, others)), Refusal::NotAnApprover);
    let denied = Ruling::Reject {
        rule: "ceiling".into(),
        reason: "Never.".into(),
        input: json!({"amount": 9000}),
        judged: Box::default(),
    };
    let fact = vote_on(&run, 0, "bob", Verdict::Approve, Some(denied));
    let commit = decide(&mut run, fact);
    assert_eq!((statuses(&commit), stages(&run)), (vec!["denied"], vec!["rejected"]));
    assert!(commit.events.iter().any(|event| matches!(&event.body,
        EventBody::ToolOutput { rule: Some(rule), .. } if rule == "ceiling")));
    let mut run = asked(&[("a", "charge")], &json!({"on_modify": "accept"}));
    let fact = vote_on(&run, 0, "bob", Verdict::Approve, ask(&run, json!({"required": 3})));
    decide(&mut run, fact);
    assert_eq!(run.head.status.code(), "queued", "accepted as they are");
    let run = asked(&[("a", "charge")], &json!({"on_modify": "forbid"}));
    let fact = vote_on(&run, 0, "bob", Verdict::Approve, ask(&run, json!({})));
    assert_eq!(refused(&run, fact), Refusal::ArgumentsFixed);
}

#[test]
fn b231_a_deadline_denies_approves_or_asks_the_next() {
    let over = |run: &Envelope| Fact::ApprovalExpired { approval: run.head.state.approvals.open[0].approval.id };
    let mut run = asked(&[("a", "charge")], &json!({"timeout_s": 60}));
    let expires_at = run.head.state.approvals.open[0].approval.expires_at;
    assert_eq!(expires_at, Some(NOW.plus_millis(60_000)));
    let fact = over(&run);
    let commit = decide(&mut run, fact.clone());
    let decided = &commit.approvals[0];
    assert_eq!((decided.status, decided.votes[0].actor.as_str()), (ApprovalStatus::Denied, "system:timeout"));
    assert_eq!((stages(&run), run.head.status.code()), (vec!["rejected"], "queued"));
    assert_eq!(refused(&run, fact).code(), "already-decided");
    let mut run = asked(&[("a", "charge")], &json!({"timeout_s": 60, "on_timeout": "approve", "required": 2}));
    let fact = over(&run);
    assert_eq!(statuses(&decide(&mut run, fact)), ["approved"]);
    assert_eq!(stages(&run), ["pending"]);
    let next = json!({"approvers": {"subjects": ["carol"]}, "timeout_s": 30});
    let rule = json!({"timeout_s": 60, "on_timeout": "escalate", "escalate_to": next});
    let mut run = asked(&[("a", "charge")], &rule);
    let first = run.head.state.approvals.open[0].approval.id;
    let fact = over(&run);
    let commit = decide(&mut run, fact);
    assert_eq!(
        (kinds(&commit), statuses(&commit)),
        (vec!["approval-decided", "approval-requested"], vec!["escalated", "pending"])
    );
    let open = &run.head.state.approvals.open[0].approval;
    assert!(
        open.id != first && open.expires_at == Some(NOW.plus_millis(30_000)) && run.head.status.code() == "suspended"
    );
    assert_eq!(refused(&run, vote_on(&run, 0, "bob", Verdict::Approve, None)), Refusal::NotAnApprover);
    let fact = over(&run);
    assert_eq!(statuses(&decide(&mut run, fact)), ["denied"], "the next did not decide in time either");
}

#[test]
fn b235_a_denial_may_end_the_run_and_closes_what_else_was_asked() {
    let mut run = asked(&[("a", "charge"), ("b", "charge"), ("c", "look")], &json!({"on_reject": "fail"}));
    let fact = vote_on(&run, 0, "bob", Verdict::Deny, None);
    let commit = decide(&mut run, fact);
    assert_eq!(
        (run.head.status.code(), run.head.state.error.as_ref().unwrap().code.as_str()),
        ("failed", "policy-reject")
    );
    assert_eq!(statuses(&commit), ["denied", "cancelled"]);
    assert_eq!(stages(&run), ["rejected", "failed", "failed"]);
    let mut run = asked(&[("a", "charge")], &json!({}));
    assert_eq!(statuses(&decide(&mut run, Fact::Cancelled)), ["cancelled"]);
    assert!(run.head.state.approvals.open.is_empty());
}

fn with_local(mut run: Envelope) -> Envelope {
    let local = BoundTool {
        name: "pay".to_owned(),
        source: ToolSource::Local { backend: Backend::Worker, tool: "x".to_owned(), version: None },
        class: SideEffectClass::NonIdempotentWrite,
        needs_approval: true,
        ..run.binding.tools[0].clone()
    };
    run.binding = run.binding.with_local(vec![local]).0;
    run
}

#[test]
fn b082_b084_a_pending_approval_of_a_local_tool_keeps_a_changed_catalog_waiting_and_not_out() {
    let mut run = with_local(begun());
    let fact = ended(&run, turn("", &[("a", "pay")]));
    decide(&mut run, fact);
    let served = binding(&["charge", "look", "put", "refund"]);
    let accept = resume_with(served.clone(), &[], CatalogPolicy::Accept);
    assert_eq!(refused(&run, accept), Refusal::NothingDecided, "nothing is recorded, no warning is given");
    let mut with_vote = resume_with(served, &[], CatalogPolicy::Accept);
    if let (Fact::Resumed(resume), Fact::Voted { cast, .. }) =
        (&mut with_vote, vote_on(&run, 0, "bob", Verdict::Approve, None))
    {
        resume.votes.push((*cast, None));
    }
    let commit = decide(&mut run, with_vote);
    assert_eq!((run.head.status.code(), commit.binding.is_some()), ("queued", true));
    assert_eq!(run.head.state.warnings.len(), 1, "{:?}", run.head.state.warnings);
}

#[test]
fn b053_b078_a_changed_catalog_refuses_a_resume_while_a_call_of_a_server_waits_for_its_approval() {
    let run = asked(&[("a", "charge")], &json!({}));
    let served = binding(&["charge", "look", "put", "refund"]);
    for (policy, code) in
        [(CatalogPolicy::Stop, "mcp-catalog-changed"), (CatalogPolicy::Accept, "mcp-catalog-changed-in-flight")]
    {
        let mut fact = resume_with(served.clone(), &[], policy);
        if let (Fact::Resumed(resume), Fact::Voted { cast, .. }) =
            (&mut fact, vote_on(&run, 0, "bob", Verdict::Approve, None))
        {
            resume.votes.push((*cast, None));
        }
        assert_eq!(refused(&run, fact).code(), code);
    }
}

#[test]
fn b096_a_sample_that_people_must_approve_is_reserved_only_once_they_have() {
    let mut run = begun();
    let mut sampling = small();
    sampling["approval"] = json!("always");
    let_ask(&mut run, sampling);
    let fact = ended(&run, turn("", &[("a", "charge"), ("b", "charge")]));
    decide(&mut run, fact);
    for (at, verdict, said) in [(0, Verdict::Approve, "reserved"), (1, Verdict::Deny, "refused")] {
        let commit = decide(&mut run, sample_asked(at, 10));
        assert_eq!(
            (kinds(&commit), run.head.state.asks.reserved.len()),
            (vec!["approval-requested"], usize::try_from(at).unwrap())
        );
        assert!(matches!(run.head.state.approvals.open[0].subject, Subject::Sample { .. }));
        assert_eq!(run.head.status.code(), "running", "the call is out");
        let commit = vote(&mut run, 0, "bob", verdict, None);
        let told = commit.events.iter().find(|event| event.body.kind() == "sampling").unwrap();
        assert_eq!(json!(told)["decision"], said);
        assert_eq!(run.head.state.asks.reserved.len(), 1);
    }
    // One that is asked when its call ends is over.
    decide(&mut run, sample_asked(1, 10));
    assert_eq!(statuses(&decide(&mut run, done(key(1, 1)))), ["cancelled"]);
}

#[test]
fn b096_a_sample_that_is_kept_in_its_receipt_waits_for_people_across_a_crash() {
    for verdict in [Verdict::Approve, Verdict::Deny] {
        let mut run = begun();
        let mut sampling = small();
        sampling["approval"] = json!("always");
        let_ask(&mut run, sampling);
        let fact = ended(&run, turn("", &[("a", "charge")]));
        decide(&mut run, fact);
        decide(&mut run, required(0, vec![("m", crate::run::ask::Ask::Sample(Box::new(sample(9))))]));
        let wanted = Fact::SampleAsked { key: key(1, 0), question: Some("m".to_owned()), request: Box::new(sample(9)) };
        decide(&mut run, wanted.clone());
        assert_eq!(run.head.status.reason(), Some("approval-required"));
        let mut run = reloaded(&run);
        vote(&mut run, 0, "bob", verdict, None);
        assert_eq!(run.head.status.code(), "queued");
        decide(&mut run, Fact::LegBegan);
        let same = same_catalog(&run);
        decide(&mut run, same);
        match verdict {
            Verdict::Approve => {
                decide(&mut run, wanted);
                assert_eq!(run.head.state.asks.reserved.len(), 1, "nobody is asked twice");
            }
            Verdict::Deny => assert_eq!(stages(&run), ["failed"]),
        }
    }
}
