//! What is old goes, step by step, and nothing else does.

use std::sync::Arc;

use countersign::run::call::Stage;
use countersign::run::commit::Next;
use countersign::run::event::EventBody;
use countersign::run::result::Usage;
use countersign::run::status::Status;
use countersign::store::retention::{Deletion, Keep, Leftover, OldRun, Retention, Round, Step};
use countersign::store::{Claim, RunFilter, SealedSecret, Store};
use serde_json::{Value, json};

use super::admission::kept;
use super::draft::{Draft, apply, at, audit_row, call, node, picture, undecided};
use crate::support::database::{Database, both_stores};

both_stores! {
    a_finished_run_is_let_go_of_in_three_steps => steps,
    what_is_young_or_unfinished_or_undecided_stays => stays,
    a_long_run_goes_in_many_short_steps => long,
    expired_keys_are_forgotten_and_others_are_not => keys,
    a_run_is_deleted_whole_and_nothing_of_its_neighbours => deleted,
    a_run_that_has_not_ended_or_is_undecided_is_not_deleted => refused,
}

const DAY: i64 = 24 * 60 * 60 * 1000;
const TABLES: [&str; 7] = ["runs", "bindings", "messages", "calls", "events", "blobs", "run_secrets"];

fn keep() -> Keep {
    Keep { events_ms: 30 * DAY, runs_ms: 90 * DAY, receipts_ms: 400 * DAY }
}

fn big(letter: &str) -> Value {
    Value::String(letter.repeat(100_000))
}

/// A run with a settled call of a big input and output, a rejected one, and a last word.
async fn finished(store: &dyn Store, run: &mut Draft, node: countersign::run::ids::NodeId) -> Claim {
    let claim = run.admit_owned(store, node).await;
    run.head.state.turns = 1;
    let mut commit = run.next();
    let rejected = Stage::Rejected { rule: "unknown-tool".to_owned(), reason: "no such tool".to_owned() };
    let mut made = call(1, 0, Stage::Completed { settled_at: at(1), output: big("o") });
    made.input = big("i");
    commit.calls_made = vec![made, call(1, 1, rejected)];
    // Only this message holds it.
    commit.messages[0].content = vec![countersign::run::message::Content::Text { text: "m".repeat(100_000) }];
    assert!(apply(store, &claim, &commit).await);
    end(store, run, &claim).await;
    claim
}

async fn end(store: &dyn Store, run: &mut Draft, claim: &Claim) {
    let mut last = run.become_(Status::Completed, Next::Rest);
    last.events[0].body = EventBody::Result {
        status: "completed".to_owned(),
        reason: None,
        output: None,
        error: None,
        usage: Usage::default(),
    };
    assert!(apply(store, claim, &last).await);
}

/// Makes everything that has ended end so many days ago, by the database clock.
async fn age(database: &Database, days: i64) {
    let now = if database.is_postgres() { "now_ms()" } else { "CAST(unixepoch('subsec') * 1000 AS INTEGER)" };
    let at = format!("{now} - {}", days * DAY);
    database.execute(&format!("UPDATE runs SET finished_at = {at} WHERE finished_at IS NOT NULL")).await;
    database.execute(&format!("UPDATE calls SET run_finished_at = {at} WHERE run_finished_at IS NOT NULL")).await;
}

async fn rows(database: &Database, table: &str) -> i64 {
    database.count(&format!("SELECT count(*) FROM {table}")).await
}

async fn round(store: &Arc<dyn Store>) -> Round {
    Retention::new(Arc::clone(store) as Arc<_>, keep()).round().await.unwrap()
}

async fn steps(database: Database) {
    let store = database.open().await;
    let node = node(&*store).await;
    let mut run = Draft::new("acme", "r-1");
    finished(&*store, &mut run, node).await;
    let (of, uid) = (&run.tenant, run.uid);
    let receipts = store.receipt_list(of, uid, None, 10).await.unwrap();
    assert_eq!(rows(&database, "blobs").await, 3);

    age(&database, 29).await;
    assert_eq!(round(&store).await, Round::default());
    let whole = picture(&*store, &run).await;

    age(&database, 31).await;
    assert_eq!(round(&store).await, Round { pruned: 1, ..Round::default() });
    assert_eq!(round(&store).await, Round::default(), "it is not looked at again");
    let events = store.event_list(of, uid, 0, 10).await.unwrap();
    assert_eq!(events.iter().map(|event| event.kind.as_str()).collect::<Vec<_>>(), ["result"]);
    assert!(store.message_list(of, uid, 0, 10).await.unwrap().is_empty());
    assert!(store.receipt_list(of, uid, None, 10).await.unwrap() == receipts);
    assert!(store.run_fetch(of, &run.id).await.unwrap().is_some());
    assert_eq!(rows(&database, "blobs").await, 2, "those of the receipt");
    assert_ne!(picture(&*store, &run).await, whole);

    age(&database, 91).await;
    assert_eq!(round(&store).await, Round { runs: 1, ..Round::default() });
    assert!(store.run_fetch(of, &run.id).await.unwrap().is_none());
    assert!(store.run_list(of, &RunFilter::default(), None, 10).await.unwrap().is_empty());
    assert!(store.receipt_list(of, uid, None, 10).await.unwrap() == receipts, "they outlive their run");
    assert_eq!(database.count("SELECT count(*) FROM calls WHERE run_id = 'r-1'").await, 1);
    for (table, left) in TABLES.into_iter().zip([0, 0, 0, 1, 0, 2, 0]) {
        assert_eq!(rows(&database, table).await, left, "{table}");
    }

    // The name is free again, and the old receipt is not the new run's.
    let mut next = Draft::new("acme", "r-1");
    next.admit_owned(&*store, node).await;
    assert!(store.receipt_list(of, next.uid, None, 10).await.unwrap().is_empty());

    age(&database, 401).await;
    assert_eq!(round(&store).await, Round { receipts: 1, ..Round::default() });
    assert_eq!((rows(&database, "calls").await, rows(&database, "blobs").await), (0, 0));
    assert_eq!(rows(&database, "runs").await, 1);
}

async fn stays(database: Database) {
    let store = database.open().await;
    let node = node(&*store).await;
    let mut open = Draft::new("acme", "undecided");
    let claim = open.admit_owned(&*store, node).await;
    let mut commit = open.next();
    commit.calls_made = vec![call(0, 0, undecided())];
    assert!(apply(&*store, &claim, &commit).await);
    open.head.status = Status::Cancelled;
    end(&*store, &mut open, &claim).await;
    let mut running = Draft::new("acme", "running");
    running.admit_owned(&*store, node).await;
    let mut old = Draft::new("globex", "old");
    finished(&*store, &mut old, node).await;
    age(&database, 500).await;
    let before = (picture(&*store, &open).await, picture(&*store, &running).await);
    let done = Round { pruned: 1, runs: 1, receipts: 1 };
    assert_eq!(round(&store).await, done, "all three ages are over at once");
    assert_eq!((picture(&*store, &open).await, picture(&*store, &running).await), before);
    // Nor by a step of its own.
    for run in [&open, &running] {
        let run = OldRun { tenant: run.tenant.clone(), uid: run.uid, finished_at: 0 };
        for what in [Leftover::Events, Leftover::Run, Leftover::Receipts] {
            assert_eq!(store.old_drop(what, &run, DAY).await.unwrap(), Step::Kept, "{what:?}");
        }
    }
    assert_eq!((picture(&*store, &open).await, picture(&*store, &running).await), before);
    // Once somebody has decided, it goes.
    database.execute("UPDATE calls SET undecided_since = NULL").await;
    assert_eq!(round(&store).await, done);
}

async fn long(database: Database) {
    let store = database.open().await;
    let node = node(&*store).await;
    let mut run = Draft::new("acme", "r-1");
    finished(&*store, &mut run, node).await;
    let numbers = "WITH RECURSIVE n (i) AS (SELECT 10 UNION ALL SELECT i + 1 FROM n WHERE i < 2509)";
    for (table, columns, values) in [
        ("events", "seq, at, kind, body", "i, at, kind, body FROM events, n WHERE seq = 1"),
        ("calls", "turn, pos, stage, input, body", "turn, i, stage, input, body FROM calls, n WHERE pos = 0"),
    ] {
        let into = format!("INSERT INTO {table} (tenant_id, run_uid, {columns})");
        database.execute(&format!("{into} {numbers} SELECT tenant_id, run_uid, {values}")).await;
    }
    age(&database, 500).await;
    let old = store.old_list(Leftover::Events, DAY, None, 10).await.unwrap();
    assert_eq!(old.len(), 1);
    for (what, table) in [(Leftover::Events, "events"), (Leftover::Run, "runs"), (Leftover::Receipts, "calls")] {
        let mut steps = Vec::new();
        while steps.last() != Some(&Step::Done) {
            steps.push(store.old_drop(what, &old[0], DAY).await.unwrap());
            assert!(steps.len() < 10, "{what:?}: {steps:?}");
        }
        assert_eq!(steps, [Step::More, Step::More, Step::Done], "{what:?}");
        assert!(rows(&database, table).await <= 1, "{table}");
    }
    assert_eq!(store.old_drop(Leftover::Receipts, &old[0], DAY).await.unwrap(), Step::Kept);
}

async fn keys(database: Database) {
    let store = database.open().await;
    for id in ["r-1", "r-2"] {
        let mut run = Draft::new("acme", id);
        let mut admission = run.admission(None);
        admission.idempotency = Some(kept(id));
        store.run_admit(admission).await.unwrap();
    }
    let now = if database.is_postgres() { "now_ms()" } else { "CAST(unixepoch('subsec') * 1000 AS INTEGER)" };
    database.execute(&format!("UPDATE idempotency_keys SET expires_at = {now} - 1 WHERE key = 'r-1'")).await;
    database.execute(&format!("UPDATE idempotency_keys SET expires_at = {now} + 60000 WHERE key = 'r-2'")).await;
    round(&store).await;
    assert_eq!(database.count("SELECT count(*) FROM idempotency_keys WHERE key = 'r-1'").await, 0);
    assert_eq!(rows(&database, "idempotency_keys").await, 1);
}

async fn deleted(database: Database) {
    let store = database.open().await;
    let node = node(&*store).await;
    let mut neighbours = [Draft::new("acme", "r-2"), Draft::new("globex", "r-1")];
    let mut run = Draft::new("acme", "r-1");
    neighbours[1].uid = run.uid;
    for neighbour in &mut neighbours {
        finished(&*store, neighbour, node).await;
    }
    let mut counts = Vec::new();
    for table in TABLES {
        counts.push(rows(&database, table).await);
    }
    let mut admission = run.admission(Some(node));
    admission.idempotency = Some(kept("key"));
    admission.secrets = vec![SealedSecret { name: "a".to_owned(), key_id: "k".to_owned(), sealed: vec![1] }];
    store.run_admit(admission).await.unwrap();
    run.head.state.turns = 1;
    let mut commit = run.next();
    commit.calls_made = vec![call(1, 0, Stage::Completed { settled_at: at(1), output: json!([big("o"), big("p")]) })];
    assert!(apply(&*store, &run.claim(1), &commit).await);
    let claim = run.claim(1);
    end(&*store, &mut run, &claim).await;
    let before = [picture(&*store, &neighbours[0]).await, picture(&*store, &neighbours[1]).await];

    assert_eq!(store.run_delete(&run.tenant, run.uid, &audit_row()).await.unwrap(), Deletion::Deleted);
    assert_eq!(store.run_delete(&run.tenant, run.uid, &audit_row()).await.unwrap(), Deletion::Missing);
    let mut left = Vec::new();
    for table in TABLES {
        left.push(rows(&database, table).await);
    }
    assert_eq!(left, counts, "{TABLES:?}");
    assert_eq!(
        rows(&database, "idempotency_keys").await,
        1,
        "a request that is sent once more does not do it all again"
    );
    assert_eq!([picture(&*store, &neighbours[0]).await, picture(&*store, &neighbours[1]).await], before);
}

async fn refused(database: Database) {
    let store = database.open().await;
    let node = node(&*store).await;
    let mut run = Draft::new("acme", "r-1");
    let claim = run.admit_owned(&*store, node).await;
    let mut commit = run.next();
    commit.calls_made = vec![call(0, 0, undecided())];
    assert!(apply(&*store, &claim, &commit).await);
    let before = picture(&*store, &run).await;
    assert_eq!(store.run_delete(&run.tenant, run.uid, &audit_row()).await.unwrap(), Deletion::Active);
    let other = super::draft::tenant("globex");
    assert_eq!(store.run_delete(&other, run.uid, &audit_row()).await.unwrap(), Deletion::Missing);
    assert_eq!(picture(&*store, &run).await, before);
    end(&*store, &mut run, &claim).await;
    let before = picture(&*store, &run).await;
    assert_eq!(store.run_delete(&run.tenant, run.uid, &audit_row()).await.unwrap(), Deletion::Undecided);
    assert_eq!(picture(&*store, &run).await, before);
}

#[tokio::test]
async fn one_node_at_a_time_lets_go_of_what_is_old() {
    let database = Database::postgres().await;
    let (first, second) = (database.open().await, database.open().await);
    let node = node(&*first).await;
    let mut run = Draft::new("acme", "r-1");
    finished(&*first, &mut run, node).await;
    age(&database, 31).await;
    let old = first.old_list(Leftover::Events, DAY, None, 10).await.unwrap().remove(0);
    // Somebody is at it for as long as this transaction lives.
    let held = sqlx::PgPool::connect(&database.url).await.unwrap();
    let mut tx = held.begin().await.unwrap();
    sqlx::query("SELECT pg_advisory_xact_lock(203037211)").execute(&mut *tx).await.unwrap();
    for store in [&first, &second] {
        assert_eq!(store.old_drop(Leftover::Events, &old, DAY).await.unwrap(), Step::Busy);
    }
    tx.rollback().await.unwrap();
    assert_eq!(second.old_drop(Leftover::Events, &old, DAY).await.unwrap(), Step::Done);
    assert_eq!(round(&first).await, Round::default());
}
