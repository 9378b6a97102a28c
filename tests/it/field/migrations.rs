//! Migrations.

use std::time::Duration;

use countersign::store;
use sqlx::{Connection as _, Executor as _, PgConnection};
use tokio::time::timeout;

use crate::support::database::{Database, eventually};
use crate::support::product::Product;

/// The number of the lock that who migrates holds: a change of it lets an older version migrate at the same time.
const MIGRATION_LOCK: i64 = 0x3164_a7e5;

const LEDGER: &str = "SELECT count(*) FROM _sqlx_migrations WHERE success";
const INVALID: &str = "SELECT count(*) FROM pg_index WHERE NOT indisvalid";

#[tokio::test]
async fn field_a121_three_replicas_that_start_at_once_on_nothing_all_come_up() {
    let database = Database::postgres_empty().await;
    let started = tokio::join!(Product::start(&database), Product::start(&database), Product::start(&database));
    let migrations = i64::try_from(std::fs::read_dir("migrations/postgres").unwrap().count()).unwrap();
    assert_eq!(database.count(LEDGER).await, migrations);
    assert_eq!(database.count(INVALID).await, 0);
    let first = database.dump().await;
    for product in [&started.0, &started.1, &started.2] {
        product.get("/v1/runs").await;
    }
    drop(started);
    // Once more changes nothing: not one row, not one time of the ledger.
    let product = Product::start(&database).await;
    product.kill();
    assert_eq!(database.dump().await, first);
}

#[tokio::test]
async fn field_a122_replicas_that_wait_for_their_turn_do_not_hold_up_an_online_index_build() {
    let database = Database::postgres().await;
    let mut builder = PgConnection::connect(&database.url).await.unwrap();
    sqlx::query("SELECT pg_advisory_lock($1)").bind(MIGRATION_LOCK).execute(&mut builder).await.unwrap();
    let waiting = async { tokio::join!(store::open(&database.url, true), store::open(&database.url, true)) };
    let building = async {
        let replicas = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
             AND application_name = 'countersign'";
        eventually("both wait", || async { database.count(replicas).await == 2 }).await;
        // It waits for the end of every older snapshot: two statements that wait for the lock would never end.
        builder.execute("SET statement_timeout = '15s'").await.unwrap();
        builder.execute("CREATE INDEX CONCURRENTLY runs_online ON runs (updated_at)").await.expect("it is built");
        builder.execute("DROP INDEX runs_online").await.unwrap();
        builder.close().await.unwrap();
    };
    let both = Box::pin(async { tokio::join!(waiting, building) });
    let ((first, second), ()) = timeout(Duration::from_secs(40), both).await.unwrap();
    first.unwrap().ping().await.unwrap();
    second.unwrap().ping().await.unwrap();
    assert_eq!(database.count(INVALID).await, 0);
}
