//! Leases and recovery, by the database's clock. Killed and paused processes are in `durability`.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::node::{Node, Setup, WrongClock, slow};
use crate::store::draft::{Draft, node};
use crate::support::database::{Database, both_stores, eventually};

both_stores! {
    field_a100_a_run_that_takes_ten_leases_is_never_taken_over_while_its_node_beats,
    field_a106_a_node_that_cannot_read_a_run_of_a_later_version_gives_it_back_unharmed,
    field_a107_restarts_are_not_counted_against_a_run,
}

async fn field_a100_a_run_that_takes_ten_leases_is_never_taken_over_while_its_node_beats(database: Database) {
    const LEASE_MS: i64 = 150;
    let store = database.open().await;
    let owner = node(&*store).await;
    let mut run = Draft::new("acme", "long");
    let claim = run.admit_owned(&*store, owner).await;
    let ends = Instant::now() + Duration::from_millis(10 * 150);
    let mut looks = 0;
    while Instant::now() < ends {
        assert!(store.node_beat(owner).await.unwrap().alive);
        assert_eq!(store.node_reap(LEASE_MS).await.unwrap(), 0);
        looks += 1;
        sleep(Duration::from_millis(20)).await;
    }
    assert!(looks > 20, "{looks}");
    let commit = run.next();
    assert!(crate::store::draft::apply(&*store, &claim, &commit).await, "still the owner's");
    // The same node that stops beating loses it within the lease and one look.
    let stopped = Instant::now();
    eventually("the lease lapses", || async { store.node_reap(LEASE_MS).await.unwrap() == 1 }).await;
    assert!(stopped.elapsed() < Duration::from_secs(2), "{:?}", stopped.elapsed());
}

/// Changes the version of the stored heads.
async fn restamp(database: &Database, from: u32, to: u32) {
    let (was, is) = (format!("{{\"v\":{from},"), format!("{{\"v\":{to},"));
    let (text, json) = if database.is_postgres() { ("::text", "::json") } else { ("", "") };
    database.execute(&format!("UPDATE runs SET state = replace(state{text}, '{was}', '{is}'){json}")).await;
}

async fn field_a106_a_node_that_cannot_read_a_run_of_a_later_version_gives_it_back_unharmed(database: Database) {
    let first = Node::start_as(&database, Setup { drain_s: 0, ..Setup::default() }).await;
    first.post("/v1/runs", &slow("r", 30_000), 201).await;
    first.until_told("r", "turn-started", 1).await;
    first.stop().await;
    restamp(&database, 1, 2).await;
    // To this node the run is of the future: it may come across it as often as it likes.
    let old = Node::start(&database).await;
    let fences = "SELECT max(fence) FROM runs";
    let before = database.count(fences).await;
    eventually("the old node came across it again and again", || async { database.count(fences).await >= before + 3 })
        .await;
    assert_eq!(database.count("SELECT max(crashes) FROM runs").await, 0);
    let answer = old.request(reqwest::Method::GET, "/v1/runs/r").send().await.unwrap();
    assert_eq!(answer.status(), 503, "not 500: a newer node answers");
    assert!(answer.headers().contains_key("retry-after"));
    restamp(&database, 2, 1).await;
    old.until("r", "running", |run| run["status"] == "running").await;
    old.post("/v1/runs/r/cancel", &serde_json::json!({}), 202).await;
    assert_eq!(old.rested("r").await["status"], "cancelled");
    old.stop().await;
}

async fn field_a107_restarts_are_not_counted_against_a_run(database: Database) {
    let hasty = || Setup { drain_s: 0, ..Setup::default() };
    let mut node = Node::start_as(&database, hasty()).await;
    node.post("/v1/runs", &slow("r", 2_000), 201).await;
    // More often than a run may crash.
    for legs in 1..=6 {
        node.until_told("r", "run-status", legs + 1).await;
        node.stop().await;
        assert_eq!(database.count("SELECT max(crashes) FROM runs").await, 0);
        node = Node::start_as(&database, hasty()).await;
    }
    let run = node.rested("r").await;
    assert_eq!((run["status"].as_str(), run["turns"].as_u64()), (Some("completed"), Some(1)), "{run}");
    assert_eq!(run["usage"]["model_requests"], 1);
    node.stop().await;
}

#[tokio::test]
async fn field_a108_nodes_whose_clocks_differ_and_jump_own_runs_as_if_they_were_right() {
    const MINUTES_MS: i64 = 5 * 60_000;
    let database = Database::postgres().await;
    let clocks = [WrongClock::ahead(MINUTES_MS), WrongClock::ahead(-MINUTES_MS)];
    let [fast, late] = clocks.each_ref().map(|clock| Setup { clock: Arc::clone(clock) as Arc<_>, ..Setup::default() });
    let fast = Node::start_as(&database, fast).await;
    let late = Node::start_as(&database, late).await;
    fast.post("/v1/runs", &slow("on-fast", 5_000), 201).await;
    late.post("/v1/runs", &slow("on-late", 5_000), 201).await;
    for (node, id) in [(&fast, "on-fast"), (&late, "on-late")] {
        node.until_told(id, "turn-started", 1).await;
    }
    // In the middle of both runs the clocks jump, backwards and forwards.
    clocks[0].set_ahead(-2 * MINUTES_MS);
    clocks[1].set_ahead(2 * MINUTES_MS);
    let rested = [fast.rested("on-fast").await, late.rested("on-late").await];
    for run in rested {
        assert_eq!((run["status"].as_str(), run["attempt"].as_u64()), (Some("completed"), Some(1)), "{run}");
    }
    // Two and a half leases long, and nobody ever had them but the node that created them.
    assert_eq!(database.count("SELECT max(fence) FROM runs").await, 1);
    assert_eq!(database.count("SELECT count(*) FROM nodes WHERE dead_at IS NULL").await, 2);
    fast.stop().await;
    late.stop().await;
}
