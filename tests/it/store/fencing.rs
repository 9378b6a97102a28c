//! Who may write: an old fence, an old revision or a missing lease writes nothing at all.

use std::sync::Arc;

use countersign::run::commit::{Commit, Next};
use countersign::run::ids::Fence;
use countersign::run::status::{Status, SuspendReason};
use countersign::store::{Admitted, OwnedCommit, StoreError};
use serde_json::json;

use super::draft::{Draft, apply, call, executing, node, picture, undecided};
use crate::support::database::{Database, both_stores};

both_stores! {
    what_lost_its_lease_writes_nothing_in_a_batch_with_others => stale_in_a_batch,
    a_commit_moves_messages_calls_events_and_binding_together => whole_commit,
    a_commit_whose_numbers_do_not_follow_is_refused => numbers,
    a_decision_is_taken_once_and_only_while_nobody_owns_the_run => decisions,
    of_many_decisions_at_once_one_is_taken => decisions_at_once,
    a_terminal_commit_leaves_no_owner_and_nothing_due => terminal,
}

async fn stale_in_a_batch(database: Database) {
    let store = database.open().await;
    let node = node(&*store).await;
    let mut runs: Vec<Draft> = (0..6).map(|i| Draft::new(["acme", "globex"][i % 2], &format!("r-{i}"))).collect();
    for run in &mut runs {
        run.admit_owned(&*store, node).await;
    }
    assert!(store.run_release(&runs[4].claim(1), false).await.unwrap());
    let mut before = Vec::new();
    for run in &runs {
        before.push(picture(&*store, run).await);
    }
    let mut commits = Vec::new();
    for (i, run) in runs.iter_mut().enumerate() {
        let mut commit = run.next();
        commit.calls_made = vec![call(1, 0, executing())];
        let mut claim = run.claim(1);
        match i {
            1 => claim.fence = Fence(0),
            2 => claim.fence = Fence(2),
            3 => (commit.expected, commit.head.revision) = (0, 1),
            5 => claim.tenant = super::draft::tenant("initech"),
            _ => {}
        }
        commits.push(OwnedCommit::encode(&claim, &commit).unwrap());
    }
    let applied = store.commit_apply(&commits).await.unwrap();
    assert_eq!(applied, [true, false, false, false, false, false]);
    for (i, run) in runs.iter().enumerate() {
        assert_eq!(picture(&*store, run).await == before[i], !applied[i], "run {i}");
    }
}

async fn whole_commit(database: Database) {
    let store = database.open().await;
    let node = node(&*store).await;
    let mut run = Draft::new("acme", "r-1");
    let claim = run.admit_owned(&*store, node).await;

    run.head.state.turns = 1;
    let mut made = run.next();
    made.calls_made = vec![call(1, 0, executing()), call(1, 1, executing())];
    let (bound, _) = countersign::run::binding::merge(Vec::new(), &[]);
    made.binding = Some(countersign::run::binding::Binding { revision: 2, ..bound });
    assert!(apply(&*store, &claim, &made).await);
    let mut moved = run.become_(Status::Suspended(SuspendReason::ToolReconciliationRequired), Next::Rest);
    let done = countersign::run::call::Stage::Completed { settled_at: super::draft::at(3), output: json!({"ok": 1}) };
    moved.calls_moved = vec![call(1, 0, done), call(1, 1, undecided())];
    // Made and moved by one commit: the last stage counts.
    moved.calls_made = vec![call(1, 2, executing())];
    moved.calls_moved.push(call(1, 2, undecided()));
    assert!(apply(&*store, &claim, &moved).await);

    let loaded = store.run_load(&run.tenant, run.uid).await.unwrap().unwrap();
    assert_eq!(loaded.envelope.calls, moved.calls_moved);
    assert_eq!(loaded.envelope.binding.revision, 2);
    assert_eq!(loaded.envelope.head, run.head);
    assert_eq!(loaded.envelope.messages.len(), 3);
    assert!(!loaded.owned);
    let view = store.run_fetch(&run.tenant, &run.id).await.unwrap().unwrap();
    assert_eq!(view.binding_revision, 2);
    assert_eq!(view.undecided, loaded.envelope.undecided_calls());
    assert_eq!(view.undecided.len(), 2);
    let listed = store.run_list(&run.tenant, &countersign::store::RunFilter::default(), None, 10).await.unwrap();
    assert_eq!(listed[0].undecided, view.undecided);
}

async fn numbers(database: Database) {
    let store = database.open().await;
    let node = node(&*store).await;
    let mut run = Draft::new("acme", "r-1");
    let claim = run.admit_owned(&*store, node).await;
    let commit = run.clone().next();
    type Spoil = fn(&mut Commit);
    let bad: [(&str, Spoil); 3] = [
        ("an event number is skipped", |commit| commit.events[0].seq += 1),
        ("an event is missing", |commit| commit.head.last_seq += 1),
        ("the revision jumps", |commit| commit.head.revision += 1),
    ];
    for (what, spoil) in bad {
        let mut commit = commit.clone();
        spoil(&mut commit);
        assert!(matches!(OwnedCommit::encode(&claim, &commit), Err(StoreError::Rejected(_))), "{what}");
        let decided = store.run_decide(&run.tenant, run.uid, claim.fence, &commit, &[]).await;
        assert!(matches!(decided, Err(StoreError::Rejected(_))), "{what}");
    }
    let mut unbound = Draft::new("acme", "r-2").admission(None);
    unbound.commit.binding = None;
    assert!(matches!(store.run_admit(unbound).await, Err(StoreError::Rejected(_))), "a run has a binding");
    // Consistent in itself, but not with what is stored.
    let mut later = commit.clone();
    later.head.last_seq += 5;
    later.events[0].seq += 5;
    assert!(!apply(&*store, &claim, &later).await);
    assert!(apply(&*store, &claim, &commit).await);
    assert!(!apply(&*store, &claim, &commit).await, "the same commit is never applied twice");
}

async fn decisions(database: Database) {
    let store = database.open().await;
    let node = node(&*store).await;
    let mut run = Draft::new("acme", "r-1");
    let claim = run.admit_owned(&*store, node).await;
    let commit = run.clone().next();
    assert!(!store.run_decide(&run.tenant, run.uid, Fence(1), &commit, &[]).await.unwrap(), "a node owns it");

    let rest = run.become_(Status::Suspended(SuspendReason::McpUnreachable), Next::Rest);
    assert!(apply(&*store, &claim, &rest).await);
    assert_eq!(store.run_claim(node, 10, 10).await.unwrap(), [], "a resting run is not due");
    let commit = run.clone().next();
    assert!(!store.run_decide(&run.tenant, run.uid, Fence(0), &commit, &[]).await.unwrap(), "the fence seen is old");
    assert!(!store.run_decide(&run.tenant, run.uid, Fence(1), &rest, &[]).await.unwrap(), "the revision seen is old");
    assert!(!apply(&*store, &claim, &commit).await, "nobody owns it");

    assert!(store.run_decide(&run.tenant, run.uid, Fence(1), &commit, &[]).await.unwrap());
    let loaded = store.run_load(&run.tenant, run.uid).await.unwrap().unwrap();
    assert_eq!((loaded.fence, loaded.owned, &loaded.envelope.head), (Fence(2), false, &commit.head));
    assert_eq!(store.run_claim(node, 10, 10).await.unwrap(), [run.claim(3)], "who goes on is due now");
}

async fn decisions_at_once(database: Database) {
    let store = database.open().await;
    let mut run = Draft::new("acme", "r-1");
    run.admit(&*store).await;
    let attempts = (0..8).map(|_| {
        let (store, mut run) = (Arc::clone(&store), run.clone());
        async move {
            let commit = run.become_(Status::Suspended(SuspendReason::McpUnreachable), Next::Rest);
            store.run_decide(&run.tenant, run.uid, Fence(0), &commit, &[]).await.unwrap()
        }
    });
    let taken = futures::future::join_all(attempts).await;
    assert_eq!(taken.iter().filter(|taken| **taken).count(), 1);
    let events = store.event_list(&run.tenant, run.uid, 0, 10).await.unwrap();
    assert_eq!(events.iter().map(|event| event.seq).collect::<Vec<_>>(), [1, 2]);
}

async fn terminal(database: Database) {
    let store = database.open().await;
    let node = node(&*store).await;
    let mut run = Draft::new("acme", "r-1");
    let claim = run.admit_owned(&*store, node).await;
    assert!(store.cancel_request(&run.tenant, run.uid, &super::draft::actor("bob")).await.unwrap());
    let commit = run.become_(Status::Cancelled, Next::Owner);
    assert!(apply(&*store, &claim, &commit).await);
    let loaded = store.run_load(&run.tenant, run.uid).await.unwrap().unwrap();
    assert_eq!((loaded.owned, loaded.cancel_requested_by), (false, None));
    assert_eq!(store.run_due_in().await.unwrap(), None);
    assert_eq!(store.node_beat(node).await.unwrap().attention, []);
    assert!(!apply(&*store, &claim, &run.next()).await);

    let mut born_done = Draft::new("acme", "r-2");
    born_done.head.status = Status::Failed;
    let admission = born_done.admission(Some(node));
    assert_eq!(store.run_admit(admission).await.unwrap(), Admitted::Created);
    assert!(!store.run_load(&born_done.tenant, born_done.uid).await.unwrap().unwrap().owned);
    assert_eq!(store.run_due_in().await.unwrap(), None);
}
