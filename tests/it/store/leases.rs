//! Claims, beats, takeovers, due times, wishes.

use std::collections::BTreeMap;
use std::time::Duration;

use countersign::run::commit::Next;
use countersign::run::ids::{Fence, NodeId};
use countersign::run::status::{Status, SuspendReason};
use countersign::store::{Beat, Claim, Store};
use sqlx::{Connection as _, Executor as _};
use uuid::Uuid;

use super::draft::{Draft, actor, apply, at, node};
use crate::support::database::{Database, both_stores, eventually};

both_stores! {
    claims_are_fair_across_tenants => fairness,
    no_tenant_waits_longer_than_its_share => shares,
    what_somebody_decides_at_this_moment_is_not_waited_for => decided_now,
    a_tenant_never_runs_more_than_its_limit => tenant_limit,
    inside_a_tenant_priority_goes_first_then_who_waits_longest => order,
    claimers_at_once_never_take_one_run_twice => claims_at_once,
    a_run_is_taken_over_after_its_node_lapsed_and_not_before => takeover,
    a_released_run_is_due_and_its_last_owner_is_fenced_off => release,
    the_runs_of_a_node_that_says_good_bye_are_due => retire,
    a_run_is_due_when_its_commit_said => due_times,
    a_wish_to_cancel_reaches_the_owner_and_whoever_comes_after => wishes,
    a_dead_node_is_forgotten_after_a_day => forgotten,
    a_node_that_was_taken_for_dead_learns_it_and_claims_nothing => dead_node,
}

async fn admit_many(store: &dyn Store, of: &str, count: usize) {
    for i in 0..count {
        Draft::new(of, &format!("r-{i}")).admit(store).await;
    }
}

fn per_tenant(claims: &[Claim]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for claim in claims {
        *counts.entry(claim.tenant.to_string()).or_default() += 1;
    }
    counts
}

#[track_caller]
fn assert_counts(claims: &[Claim], wanted: &[(&str, usize)]) {
    let wanted: BTreeMap<String, usize> = wanted.iter().map(|(of, count)| ((*of).to_owned(), *count)).collect();
    assert_eq!(per_tenant(claims), wanted);
}

async fn fairness(database: Database) {
    let store = database.open().await;
    let node = node(&*store).await;
    admit_many(&*store, "flood", 20).await;
    admit_many(&*store, "acme", 2).await;
    admit_many(&*store, "globex", 3).await;
    let first = store.run_claim(node, 6, 100).await.unwrap();
    assert_counts(&first, &[("flood", 2), ("acme", 2), ("globex", 2)]);
    assert!(first.iter().all(|claim| claim.fence == Fence(1)));
    let second = store.run_claim(node, 3, 100).await.unwrap();
    assert_counts(&second, &[("flood", 2), ("globex", 1)]);
    assert_eq!(store.run_claim(node, 0, 100).await.unwrap(), []);
    let rest = store.run_claim(node, 100, 100).await.unwrap();
    assert_counts(&rest, &[("flood", 16)]);
    assert_eq!(store.run_claim(node, 100, 100).await.unwrap(), []);
}

/// Runs that end as soon as they are claimed, on nodes with one, three or more free slots: whoever floods is always the
/// one who waits longest, and gets no more than the others for it.
async fn shares(database: Database) {
    const TENANTS: usize = 8;
    let store = database.open().await;
    let node = node(&*store).await;
    for slots in [1, 3, 20] {
        let mut runs = std::collections::HashMap::new();
        let floods = std::iter::repeat_n(0, 40);
        let others = (1..TENANTS).flat_map(|tenant| [tenant; 3]);
        for (nth, tenant) in floods.chain(others).enumerate() {
            let mut run = Draft::new(&format!("t-{tenant}"), &format!("r-{slots}-{nth}"));
            run.admit(&*store).await;
            runs.insert(run.uid, run);
        }
        let mut claimed = Vec::new();
        while claimed.len() < runs.len() {
            let claims = store.run_claim(node, u32::try_from(slots).unwrap(), 100).await.unwrap();
            assert!(!claims.is_empty());
            for claim in claims {
                let run = runs.get_mut(&claim.uid).unwrap();
                assert!(apply(&*store, &claim, &run.become_(Status::Completed, Next::Rest)).await);
                claimed.push(claim.tenant.to_string());
            }
        }
        for tenant in 1..TENANTS {
            let places = claimed.iter().enumerate().filter(|(_, of)| **of == format!("t-{tenant}"));
            for (nth, (place, _)) in places.enumerate() {
                let share = (nth + 1) * TENANTS + slots;
                assert!(place < share, "{slots} slots: run {nth} of t-{tenant} came {place}.");
            }
        }
    }
}

async fn decided_now(database: Database) {
    if !database.is_postgres() {
        // One writer: nobody decides at the same moment.
        return;
    }
    let store = database.open().await;
    let node = node(&*store).await;
    admit_many(&*store, "acme", 3).await;
    let mut deciding = sqlx::PgConnection::connect(&database.url).await.unwrap();
    deciding.execute("BEGIN; SELECT 1 FROM runs WHERE id = 'r-1' FOR UPDATE").await.unwrap();
    let claims = tokio::time::timeout(Duration::from_secs(5), store.run_claim(node, 10, 10)).await.unwrap().unwrap();
    assert_counts(&claims, &[("acme", 2)]);
    deciding.execute("COMMIT").await.unwrap();
    assert_counts(&store.run_claim(node, 10, 10).await.unwrap(), &[("acme", 1)]);
}

async fn tenant_limit(database: Database) {
    let store = database.open().await;
    let node = node(&*store).await;
    admit_many(&*store, "flood", 10).await;
    admit_many(&*store, "acme", 1).await;
    let first = store.run_claim(node, 100, 3).await.unwrap();
    assert_counts(&first, &[("flood", 3), ("acme", 1)]);
    assert_eq!(store.run_claim(node, 100, 3).await.unwrap(), []);
    let flooded = first.iter().find(|claim| claim.tenant.as_str() == "flood").unwrap();
    assert!(store.run_release(flooded, false).await.unwrap());
    assert_counts(&store.run_claim(node, 100, 3).await.unwrap(), &[("flood", 1)]);
}

async fn order(database: Database) {
    let store = database.open().await;
    let node = node(&*store).await;
    let mut wanted = Vec::new();
    for (id, priority) in [("low", -1), ("first", 0), ("second", 0), ("urgent", 7)] {
        let mut run = Draft::new("acme", id);
        run.spec.priority = priority;
        run.admit(&*store).await;
        wanted.push(run.uid);
        // The next one waits less long, by the database's clock.
        let before = store.run_due_in().await.unwrap();
        eventually("the clock moves", || async { store.run_due_in().await.unwrap() != before }).await;
    }
    let mut taken = Vec::new();
    for _ in 0..4 {
        taken.extend(store.run_claim(node, 1, 10).await.unwrap().into_iter().map(|claim| claim.uid));
    }
    assert_eq!(taken, [wanted[3], wanted[1], wanted[2], wanted[0]]);
}

async fn claims_at_once(database: Database) {
    let store = database.open().await;
    let node = node(&*store).await;
    admit_many(&*store, "acme", 12).await;
    admit_many(&*store, "globex", 12).await;
    let mut all = Vec::new();
    while all.len() < 16 {
        let claims = (0..4).map(|_| store.run_claim(node, 3, 8));
        for claims in futures::future::join_all(claims).await {
            all.extend(claims.unwrap());
        }
    }
    assert_counts(&all, &[("acme", 8), ("globex", 8)]);
    let runs: std::collections::HashSet<_> = all.iter().map(|claim| claim.uid).collect();
    assert_eq!(runs.len(), 16);
    assert!(all.iter().all(|claim| claim.fence == Fence(1)));
}

async fn takeover(database: Database) {
    let store = database.open().await;
    let first = node(&*store).await;
    let mut run = Draft::new("acme", "r-1");
    let mine = run.admit_owned(&*store, first).await;
    assert_eq!(store.node_reap(60_000).await.unwrap(), 0);
    assert!(apply(&*store, &mine, &run.next()).await);

    eventually("the lease lapses", || async { store.node_reap(20).await.unwrap() == 1 }).await;
    assert_eq!(store.node_reap(0).await.unwrap(), 0, "once");
    assert_eq!(store.node_beat(first).await.unwrap(), Beat::default());
    let loaded = store.run_load(&run.tenant, run.uid).await.unwrap().unwrap();
    assert_eq!((loaded.owned, loaded.fence, loaded.envelope.head.crashes), (false, Fence(1), 1));
    assert!(!apply(&*store, &mine, &run.clone().next()).await, "nobody owns it");

    let second = node(&*store).await;
    assert_eq!(store.run_revision(&mine).await.unwrap(), Some(run.head.revision));
    assert_eq!(store.run_claim(second, 10, 10).await.unwrap(), [run.claim(2)]);
    assert_eq!(store.run_revision(&mine).await.unwrap(), None, "another fence");
    assert_eq!(store.run_revision(&run.claim(2)).await.unwrap(), Some(run.head.revision));
    assert!(!apply(&*store, &mine, &run.clone().next()).await, "somebody else owns it");
    assert!(!store.run_release(&mine, false).await.unwrap());
    assert!(apply(&*store, &run.claim(2), &run.next()).await);
}

async fn release(database: Database) {
    let store = database.open().await;
    let node = node(&*store).await;
    let mut run = Draft::new("acme", "r-1");
    let claim = run.admit_owned(&*store, node).await;
    assert_eq!(store.run_due_in().await.unwrap(), None);
    assert!(store.run_release(&claim, false).await.unwrap());
    assert!(!store.run_release(&claim, false).await.unwrap());
    assert!(!apply(&*store, &claim, &run.clone().next()).await);
    assert!(store.run_due_in().await.unwrap().is_some_and(|due| due <= 0));
    assert_eq!(store.run_claim(node, 10, 10).await.unwrap(), [run.claim(2)]);
    let head = store.run_load(&run.tenant, run.uid).await.unwrap().unwrap().envelope.head;
    assert_eq!(head, run.head, "the run itself is untouched");
    // A crash is counted, and makes the run due later each time.
    let mut waits = Vec::new();
    for crashes in 1..=3 {
        assert!(store.run_release(&run.claim(1 + crashes), true).await.unwrap());
        waits.push(store.run_due_in().await.unwrap().unwrap());
        let loaded = store.run_load(&run.tenant, run.uid).await.unwrap().unwrap();
        assert_eq!(i64::from(loaded.envelope.head.crashes), crashes);
        eventually("it falls due", || async { !store.run_claim(node, 10, 10).await.unwrap().is_empty() }).await;
    }
    assert!(waits[0] > 0 && waits.is_sorted() && waits[2] <= 1000, "{waits:?}");
}

async fn retire(database: Database) {
    let store = database.open().await;
    let leaving = node(&*store).await;
    let mut run = Draft::new("acme", "r-1");
    let claim = run.admit_owned(&*store, leaving).await;
    store.node_retire(leaving).await.unwrap();
    assert!(!store.node_beat(leaving).await.unwrap().alive);
    assert!(!apply(&*store, &claim, &run.clone().next()).await);
    let staying = node(&*store).await;
    assert_eq!(store.run_claim(staying, 10, 10).await.unwrap(), [run.claim(2)]);
    let head = store.run_load(&run.tenant, run.uid).await.unwrap().unwrap().envelope.head;
    assert_eq!(head.crashes, 0, "leaving is not dying");
}

async fn due_times(database: Database) {
    let store = database.open().await;
    let node = node(&*store).await;
    let mut run = Draft::new("acme", "r-1");
    let claim = run.admit_owned(&*store, node).await;
    let far = run.become_(Status::Running, Next::Due(at(60_000)));
    assert!(apply(&*store, &claim, &far).await);
    let due = store.run_due_in().await.unwrap().unwrap();
    assert!((50_000..=60_000).contains(&due), "{due}");
    assert_eq!(store.run_claim(node, 10, 10).await.unwrap(), []);

    let near = run.become_(Status::Running, Next::Due(at(30)));
    assert!(store.run_decide(&run.tenant, run.uid, Fence(1), &near, &[]).await.unwrap());
    eventually("it is due", || async { store.run_claim(node, 10, 10).await.unwrap() == [run.claim(3)] }).await;
    assert_eq!(store.run_due_in().await.unwrap(), None);
}

async fn wishes(database: Database) {
    let store = database.open().await;
    let node = node(&*store).await;
    let mut run = Draft::new("acme", "r-1");
    run.admit(&*store).await;
    assert!(!store.cancel_request(&run.tenant, run.uid, &actor("bob")).await.unwrap(), "nobody owns it: decide");
    let claim = store.run_claim(node, 1, 1).await.unwrap().remove(0);
    assert_eq!(
        store.node_beat(node).await.unwrap(),
        Beat { alive: true, owned: vec![claim.clone()], attention: Vec::new() }
    );
    assert!(store.cancel_request(&run.tenant, run.uid, &actor("bob")).await.unwrap());
    assert!(store.cancel_request(&run.tenant, run.uid, &actor("cyd")).await.unwrap());
    assert_eq!(
        store.node_beat(node).await.unwrap(),
        Beat { alive: true, owned: vec![claim.clone()], attention: vec![claim.clone()] }
    );
    let loaded = store.run_load(&run.tenant, run.uid).await.unwrap().unwrap();
    assert_eq!(loaded.cancel_requested_by, Some(actor("bob")), "the first wish stays");
    assert_eq!((loaded.envelope.head.revision, loaded.fence), (run.head.revision, claim.fence));

    // The owner lets go without having read it: the run is due, so that somebody does.
    let rest = run.become_(Status::Suspended(SuspendReason::McpUnreachable), Next::Rest);
    assert!(apply(&*store, &claim, &rest).await);
    let next = store.run_claim(node, 1, 1).await.unwrap();
    assert_eq!(next, [run.claim(2)]);
    assert_eq!(store.node_beat(node).await.unwrap().attention, next);
    let done = run.become_(Status::Cancelled, Next::Rest);
    assert!(apply(&*store, &next[0], &done).await);
    assert!(!store.cancel_request(&run.tenant, run.uid, &actor("bob")).await.unwrap());
    assert_eq!(store.node_beat(node).await.unwrap().attention, []);
}

async fn dead_node(database: Database) {
    let store = database.open().await;
    let dead = node(&*store).await;
    let unknown = NodeId(Uuid::new_v4());
    store.node_retire(dead).await.unwrap();
    Draft::new("acme", "r-1").admit(&*store).await;
    for node in [dead, unknown] {
        assert_eq!(store.node_beat(node).await.unwrap(), Beat::default());
        assert_eq!(store.run_claim(node, 10, 10).await.unwrap(), []);
    }
    store.node_register(dead).await.unwrap();
    assert_eq!(store.run_claim(dead, 10, 10).await.unwrap().len(), 1);
}

async fn forgotten(database: Database) {
    let store = database.open().await;
    let dead = node(&*store).await;
    store.node_retire(dead).await.unwrap();
    store.node_reap(60_000).await.unwrap();
    // Still known: to change the row, there must be one.
    database.execute("UPDATE nodes SET dead_at = dead_at - 86399000, started_at = 7").await;
    store.node_reap(60_000).await.unwrap();
    store.node_register(dead).await.unwrap();
    let rows = |sql: &'static str| database.count(sql);
    assert_eq!(rows("SELECT count(*) FROM nodes WHERE started_at = 7").await, 1);
    store.node_retire(dead).await.unwrap();
    database.execute("UPDATE nodes SET dead_at = dead_at - 86401000").await;
    store.node_reap(60_000).await.unwrap();
    assert_eq!(rows("SELECT count(*) FROM nodes").await, 0);
}

mod alone {
    //! One process has a SQLite file for itself.

    use super::super::draft::{Draft, node};
    use crate::support::database::Database;

    #[tokio::test]
    async fn on_sqlite_a_new_node_frees_the_runs_of_every_other() {
        let store = Database::sqlite().await;
        let store = store.open().await;
        let killed = node(&*store).await;
        let mut run = Draft::new("acme", "r-1");
        run.admit_owned(&*store, killed).await;
        let risen = node(&*store).await;
        assert!(!store.node_beat(killed).await.unwrap().alive);
        assert_eq!(store.run_claim(risen, 10, 10).await.unwrap(), [run.claim(2)]);
        let head = store.run_load(&run.tenant, run.uid).await.unwrap().unwrap().envelope.head;
        assert_eq!(head.crashes, 1);
    }

    #[tokio::test]
    async fn on_postgres_a_new_node_leaves_the_others_alone() {
        let database = Database::postgres().await;
        let store = database.open().await;
        let first = node(&*store).await;
        let mut run = Draft::new("acme", "r-1");
        run.admit_owned(&*store, first).await;
        node(&*store).await;
        assert!(store.node_beat(first).await.unwrap().alive);
        assert!(store.run_load(&run.tenant, run.uid).await.unwrap().unwrap().owned);
    }
}
