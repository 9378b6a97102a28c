//! What other nodes stored reaches those who follow it, and hints say when to look.

use std::sync::Arc;
use std::time::Duration;

use countersign::run::commit::Next;
use countersign::run::ids::{NodeId, RunUid};
use countersign::run::status::{Status, SuspendReason};
use countersign::store::Store;
use countersign::store::follow::Follower;
use countersign::store::hub::{Heard, Hub};
use countersign::store::wake::Hint;
use futures::FutureExt as _;
use sqlx::postgres::PgListener;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::draft::{Draft, apply, at, node, tenant};
use super::hub::heard;
use crate::support::database::{Database, both_stores};

both_stores! {
    the_last_numbers_of_many_runs_are_read_at_once => last_numbers,
    status_and_result_events_are_found_by_tenant_and_time => feed,
    only_readers_that_are_behind_are_sent_to_the_store => readers_behind,
    who_watches_a_tenant_is_told_what_others_stored_once_and_nothing_from_before => watched,
}

const SOON: Duration = Duration::from_secs(10);

async fn last_numbers(database: Database) {
    let store = database.open().await;
    let node = node(&*store).await;
    let mut runs = Vec::new();
    for i in 0..3 {
        let mut run = Draft::new(["acme", "globex"][i % 2], &format!("r-{i}"));
        let claim = run.admit_owned(&*store, node).await;
        for _ in 0..i {
            assert!(apply(&*store, &claim, &run.next()).await);
        }
        runs.push(run);
    }
    let mut asked: Vec<_> = runs.iter().map(|run| (run.tenant.clone(), run.uid)).collect();
    asked.push((tenant("acme"), RunUid(Uuid::new_v4())));
    asked.push((tenant("umbrella"), runs[0].uid));
    let mut found = store.seq_list(&asked).await.unwrap();
    let mut wanted: Vec<_> = runs.iter().map(|run| (run.uid, run.head.last_seq)).collect();
    found.sort();
    wanted.sort();
    assert_eq!(found, wanted);
    assert_eq!(store.seq_list(&[]).await.unwrap(), []);
}

/// Tenants, since when, how many of each; whose events of which time are found.
type Case<'a> = (&'a [&'a str], i64, u32, &'a [(&'a str, i64)]);

async fn feed(database: Database) {
    let store = database.open().await;
    for (of, id, time) in [("acme", "a", 10), ("acme", "b", 20), ("globex", "c", 30), ("umbrella", "d", 40)] {
        let mut run = Draft::new(of, id);
        run.head.updated_at = at(time);
        run.admit(&*store).await;
    }
    let found = async |tenants: &[&str], since, limit| {
        let tenants: Vec<_> = tenants.iter().map(|name| tenant(name)).collect();
        let mut found = store.feed_list(&tenants, at(since), limit).await.unwrap();
        found.sort_by_key(|event| event.at);
        found.into_iter().map(|event| (event.tenant.to_string(), event.at.as_millis() - at(0).as_millis())).collect()
    };
    let cases: [Case; 5] = [
        (&["acme", "globex"], 0, 10, &[("acme", 10), ("acme", 20), ("globex", 30)]),
        (&["acme", "globex"], 20, 10, &[("acme", 20), ("globex", 30)]),
        (&["acme", "globex"], 0, 1, &[("acme", 20), ("globex", 30)]),
        (&["nobody"], 0, 10, &[]),
        (&[], 0, 10, &[]),
    ];
    for (tenants, since, limit, wanted) in cases {
        let found: Vec<(String, i64)> = found(tenants, since, limit).await;
        let wanted: Vec<(String, i64)> = wanted.iter().map(|(of, time)| ((*of).to_owned(), *time)).collect();
        assert_eq!(found, wanted, "{tenants:?} since {since}, {limit}");
    }
}

/// A follower at work, until the test ends.
fn follow(store: &Arc<dyn Store>, hub: &Arc<Hub>) -> Arc<Follower> {
    let follower = Arc::new(Follower::new(Arc::clone(store), Arc::clone(hub), || at(1_000)));
    let running = Arc::clone(&follower);
    tokio_util::task::TaskTracker::new().spawn(async move { running.run(CancellationToken::new()).await });
    follower
}

async fn readers_behind(database: Database) {
    let store = database.open().await;
    let node = node(&*store).await;
    let hub = Arc::new(Hub::new());
    let mut run = Draft::new("acme", "r-1");
    let claim = run.admit_owned(&*store, node).await;
    let (mut ahead, mut behind) = (hub.subscribe(&run.tenant, run.uid), hub.subscribe(&run.tenant, run.uid));
    ahead.reached(2);
    behind.reached(1);
    follow(&store, &hub);
    // Nobody publishes it here, as when another node stores it.
    assert!(apply(&*store, &claim, &run.next()).await);
    assert_eq!(heard(&mut behind).await, Heard::Lagged);
    behind.reached(2);
    assert!(apply(&*store, &claim, &run.next()).await);
    assert_eq!(heard(&mut ahead).await, Heard::Lagged, "of the third");
    assert_eq!(heard(&mut behind).await, Heard::Lagged);
    // Whoever was told once is not told again of the same, though it did not say that it has it.
    let looks = timeout(Duration::from_millis(2_500), ahead.next());
    assert!(looks.await.is_err());
}

async fn watched(database: Database) {
    let store = database.open().await;
    let node = node(&*store).await;
    let hub = Arc::new(Hub::new());
    let mut old = Draft::new("acme", "old");
    let claim = old.admit_owned(&*store, node).await;
    let follower = follow(&store, &hub);
    let mut reader = follower.watch(&old.tenant).await.unwrap();

    let done = old.become_(Status::Suspended(SuspendReason::McpUnreachable), Next::Rest);
    assert!(apply(&*store, &claim, &done).await);
    let Heard::Event(event) = heard(&mut reader).await else { panic!("lagged") };
    assert_eq!(event.seq, 2, "the first was there before");
    // A second watcher makes nothing old new, and nothing that is found later old.
    let mut second = follower.watch(&old.tenant).await.unwrap();
    // This node's own is told at once, and not again when it is found.
    let mut own = Draft::new("acme", "own");
    let admission = own.admission(Some(node));
    let events = admission.commit.events.clone();
    store.run_admit(admission).await.unwrap();
    hub.announce(&own.tenant, own.uid).tell(&events).unwrap();
    let mut theirs = Draft::new("acme", "theirs");
    theirs.head.updated_at = at(5);
    theirs.admit(&*store).await;
    Draft::new("globex", "else").admit(&*store).await;
    for reader in [&mut reader, &mut second] {
        let mut names = Vec::new();
        for _ in 0..2 {
            let Heard::Event(event) = heard(reader).await else { panic!("lagged") };
            let body: serde_json::Value = serde_json::from_str(&event.body).unwrap();
            names.push(body["run_id"].as_str().unwrap().to_owned());
        }
        assert_eq!(names, ["own", "theirs"]);
        assert!(timeout(Duration::from_millis(1_500), reader.next()).await.is_err(), "each once");
    }
}

#[tokio::test]
async fn hints_reach_other_nodes_merged_and_never_come_back() {
    let database = Database::postgres().await;
    let (one, two) = (database.open().await, database.open().await);
    let first = node(&*one).await;
    let second = NodeId(Uuid::new_v4());
    let stop = CancellationToken::new();
    for (store, node) in [(&one, first), (&two, second)] {
        let (store, stop) = (Arc::clone(store), stop.clone());
        tokio_util::task::TaskTracker::new().spawn(async move { store.hint_carry(node, stop).await });
    }
    // A listener that is new looks at everything.
    for store in [&one, &two] {
        for hint in [Hint::Due, Hint::Wish, Hint::Events, Hint::Feed] {
            timeout(SOON, store.hints().heard(hint)).await.unwrap();
        }
    }
    let mut wire = PgListener::connect(&database.url).await.unwrap();
    wire.listen("countersign").await.unwrap();

    let mut run = Draft::new("acme", "r-1");
    let claim = run.admit_owned(&*one, first).await;
    let began = Instant::now();
    for _ in 0..200 {
        assert!(apply(&*one, &claim, &run.next()).await);
    }
    let took = began.elapsed();
    timeout(SOON, two.hints().heard(Hint::Events)).await.unwrap();
    timeout(SOON, two.hints().heard(Hint::Feed)).await.unwrap();
    assert_eq!(two.hints().heard(Hint::Wish).now_or_never(), None);
    two.cancel_request(&run.tenant, run.uid, &super::draft::actor("bob")).await.unwrap();
    timeout(SOON, one.hints().heard(Hint::Wish)).await.unwrap();
    // What the first said of itself went over the same wire, before the wish did.
    assert_eq!(one.hints().heard(Hint::Events).now_or_never(), None);
    assert_eq!(one.wish_list(first).await.unwrap(), [claim]);

    let deadline = Instant::now() + Duration::from_millis(500);
    let mut said = Vec::new();
    while let Ok(notification) = timeout_at(deadline, wire.recv()).await {
        said.push(notification.unwrap().payload().to_owned());
    }
    // Said at most once in 15 ms, however many commits there were meanwhile.
    let most = usize::try_from(took.as_millis()).unwrap() / 10 + 20;
    assert!((2..most).contains(&said.len()), "200 commits became {} in {took:?}", said.len());
    assert!(said.iter().all(|payload| payload.len() == 56), "{said:?}");
    stop.cancel();
}
