//! Decisions that are left for an owner, and the audit beside them.

use countersign::run::approval::{Verdict, Voter};
use countersign::run::commit::Commit;
use countersign::run::fact::{CastVote, LeftVote, Reconciliation, Resolution};
use countersign::run::ids::{CallKey, Fence};
use countersign::run::status::{Status, SuspendReason};
use countersign::store::{AuditFilter, AuditRow, Left, PlaceInTime, Store, Wishes};
use serde_json::json;
use uuid::Uuid;

use super::draft::{Draft, actor, apply, at, call, node, tenant, undecided};
use crate::support::database::{Database, both_stores};

both_stores! {
    a_decision_waits_for_the_owner_once_a_question => left_for_the_owner,
    a_vote_is_left_once_a_person_and_round_of_arguments => votes_left,
    a_decision_is_left_only_with_an_owner_and_about_an_undecided_call => not_left,
    the_audit_is_listed_newest_first_and_filtered => audited,
}

fn decided(position: u32) -> Reconciliation {
    let key = CallKey { turn: 1, position };
    Reconciliation { actor: actor("root"), key, resolution: Resolution::Complete { output: json!({"n": 1}) } }
}

fn row(n: u128, action: &str, by: &str) -> AuditRow {
    AuditRow {
        id: Uuid::from_u128(n),
        at: at(i64::try_from(n).unwrap()),
        actor: actor(by),
        action: action.to_owned(),
        subject: "r/1/call".to_owned(),
        run_id: None,
        detail: json!({"note": "a\0b"}),
    }
}

/// An owned run with two undecided calls.
async fn held(store: &dyn Store) -> (Draft, countersign::store::Claim) {
    let node = node(store).await;
    let mut run = Draft::new("acme", "r");
    let claim = run.admit_owned(store, node).await;
    let calls = vec![call(1, 0, undecided()), call(1, 1, undecided())];
    let commit = Commit { calls_made: calls, ..run.next() };
    assert!(apply(store, &claim, &commit).await);
    (run, claim)
}

async fn left_for_the_owner(database: Database) {
    let store = database.open().await;
    let (mut run, claim) = held(&*store).await;
    let (tenant, uid) = (run.tenant.clone(), run.uid);
    let leave = |position, n| {
        let (store, tenant) = (&*store, tenant.clone());
        async move {
            let audit = row(n, "reconciliation.complete", "root");
            store.decision_leave(&tenant, uid, &decided(position), at(2), &audit).await.unwrap()
        }
    };
    assert_eq!(leave(0, 1).await, Left::Kept);
    assert_eq!(leave(0, 2).await, Left::Kept, "its caller asks again; no second row of the audit");
    let other = Reconciliation { actor: actor("eve"), ..decided(0) };
    let audit = row(9, "reconciliation.complete", "eve");
    let late = store.decision_leave(&run.tenant, run.uid, &other, at(2), &audit).await.unwrap();
    assert_eq!(late, Left::Decided, "somebody was faster");
    assert_eq!(leave(1, 3).await, Left::Kept);
    let wanted = Wishes {
        cancel_requested_by: None,
        decisions: vec![(at(2), decided(0)), (at(2), decided(1))],
        answers: vec![],
        fetched: vec![],
        votes: vec![],
    };
    assert_eq!(store.wishes_take(&claim).await.unwrap(), wanted);
    assert_eq!(store.wishes_take(&claim).await.unwrap(), wanted, "until they are applied");
    assert_eq!(store.wishes_take(&run.claim(2)).await.unwrap(), Wishes::default(), "another owner's");
    // One is applied; the other call is lost again after an attempt, which is another question.
    let again = call(
        1,
        1,
        countersign::run::call::Stage::Indeterminate {
            cause: countersign::run::outcome::Cause::TimeOut,
            since: at(9),
            authorized: false,
        },
    );
    let applied = call(1, 0, countersign::run::call::Stage::Completed { settled_at: at(3), output: json!(1) });
    let commit = Commit { calls_moved: vec![applied, again], ..run.next() };
    assert!(apply(&*store, &claim, &commit).await);
    assert_eq!(store.wishes_take(&claim).await.unwrap(), Wishes::default());
    let audit = row(4, "reconciliation.complete", "root");
    assert_eq!(store.decision_leave(&run.tenant, run.uid, &decided(1), at(9), &audit).await.unwrap(), Left::Kept);
    store.cancel_request(&run.tenant, run.uid, &actor("ann")).await.unwrap();
    let wanted = Wishes {
        cancel_requested_by: Some(actor("ann")),
        decisions: vec![(at(9), decided(1))],
        answers: vec![],
        votes: vec![],
        fetched: vec![],
    };
    assert_eq!(store.wishes_take(&claim).await.unwrap(), wanted);
    let rows = store.audit_list(&run.tenant, &AuditFilter::default(), None, 10).await.unwrap();
    let kept: Vec<_> = rows.iter().map(|row| row.at.as_millis() - at(0).as_millis()).collect();
    assert_eq!(kept, [4, 3, 1], "what was not kept left no row");
}

async fn votes_left(database: Database) {
    let store = database.open().await;
    let (run, claim) = held(&*store).await;
    let approval = Uuid::from_u128(9);
    let cast = |by: &str, round, decision| {
        let voter = Voter { actor: actor(by), scopes: vec![] };
        let vote = CastVote { voter, approval, decision, comment: None, read: None, arguments: None, round };
        LeftVote::Cast(Box::new(vote))
    };
    let leave = |n, vote: LeftVote| {
        let (store, run) = (&*store, &run);
        let audit = row(n, "approval.approve", "bob");
        async move { store.vote_leave(&run.tenant, run.uid, &vote, &audit).await.unwrap() }
    };
    let first = cast("bob", 0, Verdict::Approve);
    assert_eq!(leave(1, first.clone()).await, Left::Kept);
    assert_eq!(leave(2, first.clone()).await, Left::Kept, "its caller asks again; no second row of the audit");
    assert_eq!(
        leave(3, cast("bob", 0, Verdict::Deny)).await,
        Left::Decided,
        "one vote of a person on the same arguments"
    );
    let second = cast("bob", 1, Verdict::Approve);
    assert_eq!(leave(4, second.clone()).await, Left::Kept, "other arguments are another question");
    assert_eq!(store.wishes_take(&claim).await.unwrap().votes, [first, second], "in the order of the rounds");
    let rows = store.audit_list(&run.tenant, &AuditFilter::default(), None, 10).await.unwrap();
    let kept: Vec<_> = rows.iter().map(|row| row.at.as_millis() - at(0).as_millis()).collect();
    assert_eq!(kept, [4, 1], "what was not kept left no row");
}

async fn not_left(database: Database) {
    let store = database.open().await;
    let (mut run, claim) = held(&*store).await;
    let (audit, uid) = (row(1, "reconciliation.complete", "root"), run.uid);
    let leave = |of: &'static str, position, since| {
        let (store, audit) = (&*store, audit.clone());
        async move { store.decision_leave(&tenant(of), uid, &decided(position), at(since), &audit).await.unwrap() }
    };
    assert_eq!(leave("globex", 0, 2).await, Left::NotOwned, "another tenant's run is not there");
    assert_eq!(leave("acme", 7, 2).await, Left::Decided, "no such call");
    assert_eq!(leave("acme", 0, 1).await, Left::Decided, "another question");
    let held = Status::Suspended(SuspendReason::ToolReconciliationRequired);
    let commit = run.become_(held, countersign::run::commit::Next::Rest);
    assert!(apply(&*store, &claim, &commit).await);
    assert_eq!(leave("acme", 0, 2).await, Left::NotOwned);
    // Decided by the request itself: with its row of the audit, or not at all.
    let next = run.become_(Status::Queued, countersign::run::commit::Next::Due(at(0)));
    let rows = std::slice::from_ref(&audit);
    assert!(!store.run_decide(&run.tenant, run.uid, Fence(9), &next, rows).await.unwrap());
    assert_eq!(store.audit_list(&run.tenant, &AuditFilter::default(), None, 10).await.unwrap().rows, []);
    assert!(store.run_decide(&run.tenant, run.uid, Fence(1), &next, rows).await.unwrap());
    assert_eq!(store.audit_list(&run.tenant, &AuditFilter::default(), None, 10).await.unwrap().rows, rows);
}

async fn audited(database: Database) {
    let store = database.open().await;
    let mut run = Draft::new("acme", "r");
    run.admit(&*store).await;
    let rows =
        [row(1, "a.x", "ann"), row(2, "a.y", "bob"), AuditRow { run_id: Some(run.id.clone()), ..row(3, "a.x", "bob") }];
    let next = run.next();
    assert!(store.run_decide(&run.tenant, run.uid, Fence(0), &next, &rows).await.unwrap());
    let list = |filter: AuditFilter, after: Option<PlaceInTime>, limit| {
        let (store, tenant) = (&*store, run.tenant.clone());
        async move {
            let rows = store.audit_list(&tenant, &filter, after, limit).await.unwrap();
            rows.into_iter().map(|row| row.id.as_u128()).collect::<Vec<_>>()
        }
    };
    let all = AuditFilter::default;
    assert_eq!(list(all(), None, 10).await, [3, 2, 1]);
    assert_eq!(list(all(), Some(PlaceInTime { at: at(2), id: Uuid::from_u128(2) }), 10).await, [1]);
    assert_eq!(list(all(), None, 1).await, [3]);
    assert_eq!(list(AuditFilter { actor: Some("bob".to_owned()), ..all() }, None, 10).await, [3, 2]);
    assert_eq!(list(AuditFilter { action: Some("a.x".to_owned()), ..all() }, None, 10).await, [3, 1]);
    assert_eq!(list(AuditFilter { run_id: Some("r".to_owned()), ..all() }, None, 10).await, [3]);
    assert_eq!(store.audit_list(&tenant("globex"), &all(), None, 10).await.unwrap().rows, []);
}
