//! How large the tables grow: bytes a turn, with small results and with results of a megabyte, and what is left after
//! each step of retention. `cargo bench --bench table_growth`; Postgres too when `COUNTERSIGN_TEST_POSTGRES` is set.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a bench states facts and prints them")]

#[expect(dead_code, unused_macros, unused_imports, reason = "the tests use the rest")]
#[path = "../tests/it/support/database.rs"]
mod database;
#[expect(dead_code, reason = "the tests use the rest")]
#[path = "../tests/it/store/draft.rs"]
mod draft;

use std::sync::Arc;

use countersign::run::call::Stage;
use countersign::run::commit::Next;
use countersign::run::event::{Event, EventBody};
use countersign::run::ids::CallId;
use countersign::run::message::Content;
use countersign::run::status::Status;
use countersign::run::tool_result;
use countersign::store::Store;
use countersign::store::retention::{Keep, Retention};
use database::Database;
use draft::{Draft, apply, at, call, executing, node};
use serde_json::{Value, json};

const RUNS: u32 = 10;
const DAY: i64 = 24 * 60 * 60 * 1000;
/// What has ended is older than this.
const NOW: i64 = -60_000;

#[tokio::main]
async fn main() {
    println!("store     result    turns   bytes/turn      whole   no events     no runs   no receipts");
    for (result, turns) in [(240, 100), (1 << 20, 4)] {
        measure("sqlite", Database::sqlite().await, result, turns).await;
        #[expect(clippy::disallowed_methods, reason = "the settings of the product do not know the tests' server")]
        let postgres = std::env::var("COUNTERSIGN_TEST_POSTGRES").is_ok();
        if postgres {
            measure("postgres", Database::postgres().await, result, turns).await;
        }
    }
}

async fn measure(name: &str, database: Database, result: usize, turns: u32) {
    let store = database.open().await;
    let empty = size(&database).await;
    fill(&*store, result, turns).await;
    let whole = size(&database).await - empty;
    let mut left = Vec::new();
    for (runs_ms, receipts_ms) in [(DAY, DAY), (NOW, DAY), (NOW, NOW)] {
        let keep = Keep { events_ms: NOW, runs_ms, receipts_ms };
        Retention::new(Arc::clone(&store) as Arc<_>, keep).round().await.unwrap();
        left.push(size(&database).await - empty);
    }
    let turn = whole / i64::from(RUNS * turns);
    println!(
        "{name:<9} {result:>7} {:>8} {turn:>12} {whole:>10} {:>11} {:>11} {:>13}",
        RUNS * turns,
        left[0],
        left[1],
        left[2]
    );
}

/// Runs that have ended, each turn with one call, as two commits with three events each.
async fn fill(store: &dyn Store, result: usize, turns: u32) {
    let node = node(store).await;
    for i in 0..RUNS {
        let mut run = Draft::new("acme", &format!("r-{i}"));
        let claim = run.admit_owned(store, node).await;
        for turn in 1..=turns {
            run.head.state.turns = turn;
            let mut said = run.next();
            said.calls_made = vec![call(turn, 0, executing())];
            events(&mut run, &mut said, None);
            assert!(apply(store, &claim, &said).await);
            let output = json!({"content": [{"type": "text", "text": noise(result)}]});
            let mut settled = run.next();
            let message = Content::ToolResult {
                call_id: CallId::new("c"),
                tool: "charge".to_owned(),
                output: tool_result::told(&output).output,
                is_error: false,
                pictures: Vec::new(),
            };
            settled.messages[0].content = vec![message];
            events(&mut run, &mut settled, Some(&output));
            settled.calls_moved = vec![call(turn, 0, Stage::Completed { settled_at: at(5), output })];
            assert!(apply(store, &claim, &settled).await);
        }
        assert!(apply(store, &claim, &run.become_(Status::Completed, Next::Rest)).await);
    }
}

/// Three more events; the last one tells the result.
fn events(run: &mut Draft, commit: &mut countersign::run::commit::Commit, output: Option<&Value>) {
    for _ in 0..3 {
        run.head.last_seq += 1;
        let event: Event = run.event(run.head.last_seq);
        commit.events.push(event);
    }
    commit.head.last_seq = run.head.last_seq;
    if let (Some(output), Some(event)) = (output, commit.events.last_mut()) {
        event.body = EventBody::ToolOutput {
            turn: run.head.state.turns,
            call_id: CallId::new("c"),
            tool: "charge".to_owned(),
            stage: "completed".to_owned(),
            attempt: 1,
            output: Some(output.clone()),
            error: None,
            cause: None,
            rule: None,
            reason: None,
            policy: None,
            duration_ms: Some(5),
        };
    }
}

/// Text that hardly compresses.
fn noise(bytes: usize) -> String {
    let mut text = String::new();
    while text.len() < bytes {
        text.push_str(&uuid::Uuid::new_v4().simple().to_string());
    }
    text
}

/// Bytes of all tables and indexes, without what a vacuum gives back.
async fn size(database: &Database) -> i64 {
    if database.is_postgres() {
        database.execute("VACUUM FULL").await;
        let sum = "SELECT sum(pg_total_relation_size(oid))::bigint FROM pg_class \
                   WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace";
        return database.count(sum).await;
    }
    database.execute("VACUUM").await;
    database.count("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size").await
}
