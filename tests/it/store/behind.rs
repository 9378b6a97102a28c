//! Calls of workers that are behind time, as nodes look for them.

use countersign::run::call::{Backend, Call, Lease, Stage};
use countersign::run::commit::Commit;
use countersign::run::fetched::{Fetched, FetchedWhat};
use countersign::run::outcome::Answer;
use countersign::run::policy::{Trigger, Trouble};
use countersign::run::untaken::Untaken;
use countersign::store::{Asked, Behind, Left, LeftFact, Store};
use serde_json::json;

use super::draft::{Draft, apply, at, call, executing, node, tenant};
use crate::support::database::{Database, both_stores};

both_stores! {
    calls_behind_time_are_found_in_turns_of_tenants_and_the_longest_behind_first => in_turns,
    a_result_that_waits_for_the_owner_goes_before_the_end_of_its_lease => answered_in_time,
    a_tenants_tools_that_were_asked_for_are_kept_up_to_a_number => tools_kept,
    a_call_that_rules_let_wait_on_is_not_found => waits_on,
    a_call_that_outwaits_that_nobody_serves_it_waits_for_room_from_when_somebody_does => served_anew,
    a_call_that_is_written_while_it_is_set_aside_stays_so => set_aside,
}

const MINUTE: i64 = 60_000;

/// A worker's call that is on offer for so long.
fn offered(position: u32, for_ms: i64, outwaits: &[Trigger]) -> Call {
    let mut call = call(1, position, Stage::Pending);
    call.attempt = 0;
    call.handing.offered_at = Some(at(-for_ms));
    call.judged.troubles = outwaits.iter().map(|trigger| (*trigger, Trouble::Retry)).collect();
    let target = call.target.as_mut().unwrap();
    (target.backend, target.version) = (Backend::Worker, Some("1".to_owned()));
    call
}

/// A run of this tenant with these calls.
async fn with_calls(store: &dyn Store, of: &str, calls: Vec<Call>) {
    let node = node(store).await;
    let mut run = Draft::new(of, "r");
    let claim = run.admit_owned(store, node).await;
    let commit = Commit { calls_made: calls, ..run.next() };
    assert!(apply(store, &claim, &commit).await);
}

async fn found(store: &dyn Store, queue_max: u32, limit: u32) -> Vec<(String, u32, FetchedWhat)> {
    let behind = Behind { queue_wait_ms: MINUTE / 2, queue_max, limit };
    let found = store.behind_list(behind).await.unwrap();
    let each =
        found.into_iter().map(|(tenant, _, Fetched { key, what })| (tenant.as_str().to_owned(), key.position, what));
    each.collect()
}

fn untaken(trouble: Untaken) -> FetchedWhat {
    FetchedWhat::NotTaken { trouble }
}

async fn in_turns(database: Database) {
    let store = database.open().await;
    // Later than what waits, and before all of it.
    let mut lapsed = offered(9, 1000, &[]);
    lapsed.stage = executing();
    lapsed.handing.lease = Some(Lease { id: "l".to_owned(), worker: "w".to_owned() });
    let many = (0..5).map(|n| offered(n, MINUTE + i64::from(n) * 1000, &[])).chain([lapsed]).collect();
    with_calls(&*store, "acme", many).await;
    with_calls(&*store, "globex", vec![offered(0, MINUTE, &[]), offered(1, 0, &[])]).await;
    let nobody = || untaken(Untaken::NoHandler);
    let first = [
        ("acme".to_owned(), 9, FetchedWhat::Lapsed { lease: "l".to_owned() }),
        ("globex".to_owned(), 0, nobody()),
        ("acme".to_owned(), 4, nobody()),
    ];
    assert_eq!(found(&*store, 100, 3).await, first, "whose worker is gone first, and no tenant before all others");
    assert_eq!(found(&*store, 100, 100).await.len(), 7, "the one that is new is not behind");
}

async fn answered_in_time(database: Database) {
    let store = database.open().await;
    let mut lapsed = offered(0, MINUTE, &[]);
    lapsed.stage = executing();
    let lease = Lease { id: "l".to_owned(), worker: "w".to_owned() };
    lapsed.handing.lease = Some(lease.clone());
    let (key, node) = (lapsed.key, node(&*store).await);
    let mut run = Draft::new("acme", "r");
    let claim = run.admit_owned(&*store, node).await;
    let commit = Commit { calls_made: vec![lapsed], ..run.next() };
    assert!(apply(&*store, &claim, &commit).await);
    assert_eq!(found(&*store, 100, 3).await.len(), 1);
    let answer = Answer::Done { output: json!("paid") };
    let what = FetchedWhat::Answered { lease: lease.id, answer };
    let fact = LeftFact::Fetched(Fetched { key, what });
    assert_eq!(store.fact_leave(&claim.tenant, claim.uid, &fact).await.unwrap(), Left::Kept);
    assert_eq!(found(&*store, 100, 3).await, [], "the next owner reads it first");
    store.fact_withdraw(&claim.tenant, claim.uid, &fact).await.unwrap();
    assert_eq!(found(&*store, 100, 3).await.len(), 1);
}

async fn tools_kept(database: Database) {
    let store = database.open().await;
    let names: Vec<Asked> = (0..1100).map(|n| Asked { tool: format!("invented{n}@1"), most: 1 }).collect();
    store.tools_seen(&tenant("globex"), &names[..1], MINUTE).await.unwrap();
    for asked in names.chunks(100) {
        store.tools_seen(&tenant("acme"), asked, MINUTE).await.unwrap();
    }
    let kept =
        async |of: &str| database.count(&format!("SELECT count(*) FROM worker_tools WHERE tenant_id = '{of}'")).await;
    assert_eq!((kept("acme").await, kept("globex").await), (1000, 1));
}

async fn waits_on(database: Database) {
    let store = database.open().await;
    let rules: [&[Trigger]; 4] =
        [&[], &[Trigger::NoHandler], &[Trigger::CapacityExhausted], &[Trigger::NoHandler, Trigger::CapacityExhausted]];
    // The first one is what fills the queue.
    let mut calls = vec![offered(0, 2 * MINUTE, rules[3])];
    calls.extend((1..).zip(rules).map(|(n, rules)| offered(n, MINUTE, rules)));
    with_calls(&*store, "acme", calls).await;
    let expected = |positions: &[u32], trouble: Untaken| -> Vec<_> {
        positions.iter().map(|n| ("acme".to_owned(), *n, untaken(trouble.clone()))).collect()
    };
    assert_eq!(found(&*store, 100, 9).await, expected(&[1, 3], Untaken::NoHandler));
    assert_eq!(found(&*store, 1, 9).await, expected(&[1, 2], Untaken::CapacityExhausted), "the queue is full");
}

async fn served_anew(database: Database) {
    let store = database.open().await;
    with_calls(&*store, "acme", vec![offered(0, MINUTE, &[Trigger::NoHandler]), offered(1, MINUTE, &[])]).await;
    let asked = [Asked { tool: "charge@1".to_owned(), most: 1 }];
    store.tools_seen(&tenant("acme"), &asked, MINUTE).await.unwrap();
    let full = untaken(Untaken::CapacityExhausted);
    assert_eq!(found(&*store, 100, 9).await, [("acme".to_owned(), 1, full.clone())], "who serves it has just come");
    // As if they had come long ago.
    database.execute("UPDATE worker_tools SET served_since = served_since - 60000").await;
    let both = [("acme".to_owned(), 0, full.clone()), ("acme".to_owned(), 1, full.clone())];
    assert_eq!(found(&*store, 100, 9).await, both);
    // Asked again after a pause that is too long, they come anew; after a shorter one they have been there all the while.
    for (pause, behind) in [(MINUTE, 2), (2000, 1)] {
        database.execute("UPDATE worker_tools SET seen_at = seen_at - 5000, served_since = seen_at - 60000").await;
        store.tools_seen(&tenant("acme"), &asked, pause).await.unwrap();
        assert_eq!(found(&*store, 100, 9).await.len(), behind, "{pause}");
    }
}

async fn set_aside(database: Database) {
    let store = database.open().await;
    let node = node(&*store).await;
    let mut run = Draft::new("acme", "r");
    let claim = run.admit_owned(&*store, node).await;
    let commit = Commit { calls_made: vec![offered(0, MINUTE, &[])], ..run.next() };
    assert!(apply(&*store, &claim, &commit).await);
    let asked = [Asked { tool: "charge@1".to_owned(), most: 1 }];
    let reserve = async |by| store.call_reserve(&tenant("acme"), (by, by), &asked, 1, MINUTE).await.unwrap().len();
    assert_eq!(reserve("w1").await, 1);
    let written = Commit { calls_moved: vec![offered(0, MINUTE, &[Trigger::NoHandler])], ..run.clone().next() };
    assert!(apply(&*store, &claim, &written).await);
    assert_eq!(reserve("w2").await, 0, "w1 is about to get it");
    let mut handed = offered(0, MINUTE, &[]);
    handed.stage = executing();
    handed.handing.lease = Some(Lease { id: "w1".to_owned(), worker: "w1".to_owned() });
    run.next();
    let commit = Commit { calls_moved: vec![handed], ..run.next() };
    assert!(apply(&*store, &claim, &commit).await);
    assert_eq!(found(&*store, 100, 9).await, [], "its lease runs on");
}
