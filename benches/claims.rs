//! What claims and heartbeats cost: throughput and fairness with a flood, one claim with many due rows and with dead
//! rows that an old snapshot keeps, one heartbeat with many owned runs.
//!
//! `cargo bench --bench claims` measures SQLite; with `COUNTERSIGN_TEST_POSTGRES` (an admin URL) Postgres too.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a bench states facts and prints them")]

#[expect(dead_code, unused_macros, unused_imports, reason = "the tests use the rest")]
#[path = "../tests/it/support/database.rs"]
mod database;
#[expect(dead_code, reason = "the tests use the rest")]
#[path = "../tests/it/store/draft.rs"]
mod draft;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use countersign::run::ids::NodeId;
use countersign::store::{Claim, Store};
use database::Database;
use draft::node;
use sqlx::{Connection as _, Executor as _};

/// Queued runs, and whose they are: tenant 0 floods with half of them.
const RUNS: u32 = 10_000;
const TENANTS: u32 = 50;
/// Runs taken by one claim, as the executor does.
const BATCH: u32 = 64;
/// Runs that one node owns.
const OWNED: u32 = 1_000;
const NO_LIMIT: u32 = 1_000_000;

#[tokio::main]
async fn main() {
    measure("sqlite", Database::sqlite).await;
    #[expect(clippy::disallowed_methods, reason = "the settings of the product do not know the tests' server")]
    let postgres = std::env::var("COUNTERSIGN_TEST_POSTGRES").is_ok();
    if postgres {
        measure("postgres", Database::postgres).await;
    } else {
        println!("postgres  not measured: COUNTERSIGN_TEST_POSTGRES is not set");
    }
}

async fn measure(name: &str, database: impl AsyncFn() -> Database) {
    flood(name, &database().await).await;
    for due in [RUNS / 10, RUNS] {
        due_rows(name, &database().await, due).await;
    }
    heartbeat(name, &database().await).await;
    let database = database().await;
    if database.is_postgres() {
        old_snapshot(name, &database).await;
    }
}

/// Everything is claimed in batches; a claimed run ends at once.
async fn flood(name: &str, database: &Database) {
    let store = database.open().await;
    let node = node(&*store).await;
    fill(database, RUNS).await;
    let (mut claimed, mut spent) = (0, Duration::ZERO);
    let mut last: BTreeMap<String, u32> = BTreeMap::new();
    while claimed < RUNS {
        let began = Instant::now();
        let claims = store.run_claim(node, BATCH, NO_LIMIT).await.unwrap();
        spent += began.elapsed();
        assert!(!claims.is_empty());
        claimed += count(&claims);
        for claim in &claims {
            last.insert(claim.tenant.to_string(), claimed);
        }
        finish(database).await;
    }
    last.remove("t-0");
    let mut waits: Vec<u32> = last.into_values().collect();
    waits.sort_unstable();
    println!(
        "{name:<9} {RUNS} runs of {TENANTS} tenants, one floods: {:.0} claims/s in batches of {BATCH}; the last run of \
         a tenant was claim {} (median), {} (worst)",
        f64::from(claimed) / spent.as_secs_f64(),
        waits[waits.len() / 2],
        waits[waits.len() - 1],
    );
}

async fn due_rows(name: &str, database: &Database, due: u32) {
    let store = database.open().await;
    let node = node(&*store).await;
    fill(database, due).await;
    let took = claim_times(&*store, node).await;
    println!("{name:<9} a claim of {BATCH} with {due} due: {}", shown(took));
}

/// A repeatable-read transaction elsewhere keeps every version of the rows that were due once.
async fn old_snapshot(name: &str, database: &Database) {
    let store = database.open().await;
    let node = node(&*store).await;
    fill(database, RUNS).await;
    let mut old = sqlx::PgConnection::connect(&database.url).await.unwrap();
    old.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM runs").await.unwrap();
    let mut claimed = 0;
    while claimed < RUNS * 8 / 10 {
        claimed += count(&store.run_claim(node, BATCH, NO_LIMIT).await.unwrap());
        finish(database).await;
    }
    let took = claim_times(&*store, node).await;
    println!("{name:<9} a claim of {BATCH} with {claimed} dead rows under an old snapshot: {}", shown(took));
    old.execute("ROLLBACK").await.unwrap();
}

async fn heartbeat(name: &str, database: &Database) {
    let store = database.open().await;
    let node = node(&*store).await;
    fill(database, OWNED).await;
    let mut owned = 0;
    while owned < OWNED {
        owned += count(&store.run_claim(node, BATCH, NO_LIMIT).await.unwrap());
    }
    let mut times = Vec::new();
    let mut rows = 0;
    for _ in 0..50 {
        let began = Instant::now();
        rows = store.node_beat(node).await.unwrap().owned.len();
        times.push(began.elapsed());
    }
    println!("{name:<9} a heartbeat that reads {rows} owned runs: {}", shown(times));
}

/// A few claims in a row, each of a whole batch.
async fn claim_times(store: &dyn Store, node: NodeId) -> Vec<Duration> {
    let mut times = Vec::new();
    for _ in 0..10 {
        let began = Instant::now();
        assert_eq!(count(&store.run_claim(node, BATCH, NO_LIMIT).await.unwrap()), BATCH);
        times.push(began.elapsed());
    }
    times
}

fn count(claims: &[Claim]) -> u32 {
    u32::try_from(claims.len()).unwrap()
}

fn shown(mut times: Vec<Duration>) -> String {
    times.sort_unstable();
    format!("{:.2?} (median), {:.2?} (worst)", times[times.len() / 2], times[times.len() - 1])
}

/// Queued runs of all tenants, the flood's waiting longest. Rows that only claims look at.
async fn fill(database: &Database, runs: u32) {
    let columns = "tenant_id, uid, id, status, revision, fence, last_seq, owner, due_at, attempt, crashes, priority, \
                   spec, state, metadata, binding_revision, created_at, updated_at";
    let tenant = format!("'t-' || (CASE WHEN g <= {} THEN 0 ELSE g % {TENANTS} END)", runs / 2);
    let sql = if database.is_postgres() {
        format!(
            "INSERT INTO runs ({columns}) SELECT {tenant}, gen_random_uuid(), 'r-' || g, 'queued', 1, 0, 1, NULL, g, \
             0, 0, 0, '{{}}', '{{}}', '{{}}', 1, 0, 0 FROM generate_series(1, {runs}) g"
        )
    } else {
        format!(
            "WITH RECURSIVE n (g) AS (SELECT 1 UNION ALL SELECT g + 1 FROM n WHERE g < {runs}) \
             INSERT INTO runs ({columns}) SELECT {tenant}, randomblob(16), 'r-' || g, 'queued', 1, 0, 1, NULL, g, \
             0, 0, 0, '{{}}', '{{}}', '{{}}', 1, 0, 0 FROM n"
        )
    };
    database.execute(&sql).await;
}

/// What was claimed has ended.
async fn finish(database: &Database) {
    database.execute("UPDATE runs SET owner = NULL, status = 'completed' WHERE owner IS NOT NULL").await;
}
