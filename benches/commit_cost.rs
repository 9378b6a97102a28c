//! What one turn with one tool call costs the store, early and late in a run: bytes and rows written, which must not
//! depend on the run's length. `cargo bench --bench commit_cost`; Postgres too when `COUNTERSIGN_TEST_POSTGRES` is set.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a bench states facts and prints them")]

#[expect(dead_code, unused_macros, unused_imports, reason = "the tests use the rest")]
#[path = "../tests/it/support/database.rs"]
mod database;
#[expect(dead_code, reason = "the tests use the rest")]
#[path = "../tests/it/store/draft.rs"]
mod draft;

use std::path::Path;

use countersign::run::call::Stage;
use countersign::run::event::Event;
use countersign::store::{Claim, Store};
use database::Database;
use draft::{Draft, apply, at, call, executing, node};
use serde_json::json;
use sqlx::{Connection, Executor, SqliteConnection};

const EARLY: u32 = 5;
const LATE: u32 = 500;
/// Turns that are measured together, so that where a page happens to end does not matter.
const WINDOW: u32 = 10;
const TABLES: [&str; 7] = ["runs", "bindings", "messages", "calls", "events", "run_secrets", "blobs"];

#[tokio::main]
async fn main() {
    println!("store     turns      bytes/turn  rows/turn");
    measure("sqlite", Database::sqlite().await, Database::sqlite().await).await;
    #[expect(clippy::disallowed_methods, reason = "the settings of the product do not know the tests' server")]
    let postgres = std::env::var("COUNTERSIGN_TEST_POSTGRES").is_ok();
    if postgres {
        measure("postgres", Database::postgres().await, Database::postgres().await).await;
    } else {
        println!("postgres  not measured: COUNTERSIGN_TEST_POSTGRES is not set");
    }
}

/// Bytes on one database, rows on another: counting rows writes rows.
async fn measure(name: &str, plain: Database, counted: Database) {
    let bytes = bytes(&plain).await;
    let rows = rows(&counted).await;
    for (from, bytes, rows) in [(EARLY, bytes.0, rows.0), (LATE, bytes.1, rows.1)] {
        let turns = format!("{from}..{}", from + WINDOW);
        println!("{name:<9} {turns:<10} {:>10} {:>10.1}", bytes / u64::from(WINDOW), rows / f64::from(WINDOW));
    }
}

struct Writer {
    store: std::sync::Arc<dyn Store>,
    run: Draft,
    claim: Claim,
}

impl Writer {
    async fn new(database: &Database) -> Self {
        let store = database.open().await;
        let node = node(&*store).await;
        let mut run = Draft::new("acme", "r-1");
        let claim = run.admit_owned(&*store, node).await;
        Self { store, run, claim }
    }

    /// Model turns with one call each, two commits a turn: what the model said, and what came of the call.
    async fn advance(&mut self, to: u32) {
        while self.run.head.state.turns < to {
            self.run.head.state.turns += 1;
            let turn = self.run.head.state.turns;
            let mut said = self.run.next();
            said.calls_made = vec![call(turn, 0, executing())];
            self.commit(said).await;
            let mut settled = self.run.next();
            let output = json!({"content": [{"type": "text", "text": "charged ".repeat(30)}]});
            settled.calls_moved = vec![call(turn, 0, Stage::Completed { settled_at: at(5), output })];
            self.commit(settled).await;
        }
    }

    /// With three more events, as a turn has them.
    async fn commit(&mut self, mut commit: countersign::run::commit::Commit) {
        for _ in 0..3 {
            self.run.head.last_seq += 1;
            let event: Event = self.run.event(self.run.head.last_seq);
            commit.events.push(event);
        }
        commit.head.last_seq = self.run.head.last_seq;
        assert!(apply(&*self.store, &self.claim, &commit).await);
    }
}

async fn bytes(database: &Database) -> (u64, u64) {
    let mut writer = Writer::new(database).await;
    let mut taken = Vec::new();
    for from in [EARLY, LATE] {
        writer.advance(from).await;
        let before = log_position(database).await;
        writer.advance(from + WINDOW).await;
        taken.push(log_end(database).await - before);
    }
    (taken[0], taken[1])
}

fn file(database: &Database) -> &str {
    database.url.strip_prefix("sqlite:").unwrap()
}

/// Where the write-ahead log ends. SQLite's is emptied first: a window is shorter than what it takes to wrap it.
async fn log_position(database: &Database) -> u64 {
    if !database.is_postgres() {
        let mut connection = SqliteConnection::connect(&database.url).await.unwrap();
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").await.unwrap();
    }
    log_end(database).await
}

async fn log_end(database: &Database) -> u64 {
    if !database.is_postgres() {
        let log = format!("{}-wal", file(database));
        return std::fs::metadata(Path::new(&log)).map_or(0, |meta| meta.len());
    }
    database.count("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint").await.unsigned_abs()
}

async fn rows(database: &Database) -> (f64, f64) {
    let mut writer = Writer::new(database).await;
    database.execute("CREATE TABLE written (what text)").await;
    if database.is_postgres() {
        database
            .execute(
                "CREATE FUNCTION count_row() RETURNS trigger LANGUAGE plpgsql AS \
                 $$ BEGIN INSERT INTO written VALUES (TG_TABLE_NAME); RETURN NULL; END $$",
            )
            .await;
    }
    for table in TABLES {
        if database.is_postgres() {
            let on = "AFTER INSERT OR UPDATE OR DELETE";
            let sql = format!("CREATE TRIGGER written {on} ON {table} FOR EACH ROW EXECUTE FUNCTION count_row()");
            database.execute(&sql).await;
        } else {
            for on in ["INSERT", "UPDATE", "DELETE"] {
                let count = format!("INSERT INTO written VALUES ('{table}')");
                let sql = format!("CREATE TRIGGER {table}_{on} AFTER {on} ON {table} BEGIN {count}; END");
                database.execute(&sql).await;
            }
        }
    }
    let mut taken = Vec::new();
    for from in [EARLY, LATE] {
        writer.advance(from).await;
        let before = written(database).await;
        writer.advance(from + WINDOW).await;
        taken.push(written(database).await - before);
    }
    (taken[0], taken[1])
}

async fn written(database: &Database) -> f64 {
    f64::from(u32::try_from(database.count("SELECT count(*) FROM written").await).unwrap())
}
