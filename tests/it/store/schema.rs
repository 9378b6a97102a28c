//! Migrations: by many at once, never backwards.

use countersign::store::{self, StoreError};

use crate::support::database::{Database, both_stores};

both_stores! {
    a_schema_newer_than_this_version_is_refused => newer,
    a_schema_that_lacks_a_migration_is_refused_unless_it_may_migrate => older,
    a_migration_that_was_edited_is_refused => edited,
}

#[track_caller]
fn assert_misconfigured(opened: Result<std::sync::Arc<dyn store::Store>, StoreError>, says: &str) {
    match opened {
        Err(StoreError::Misconfigured(text)) => assert!(text.contains(says), "{text}"),
        Err(other) => panic!("{other:?}"),
        Ok(_) => panic!("it opened"),
    }
}

async fn newer(database: Database) {
    let success = if database.is_postgres() { "true" } else { "1" };
    let sql = format!(
        "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) \
         VALUES (2099010101, 'of the future', {success}, '\\x00', 0)"
    );
    let sql = if database.is_postgres() { sql } else { sql.replace("'\\x00'", "x'00'") };
    database.execute(&sql).await;
    for migrate in [true, false] {
        assert_misconfigured(store::open(&database.url, migrate).await, "newer than this version");
    }
}

async fn older(database: Database) {
    database.execute("DELETE FROM _sqlx_migrations WHERE version = 2026113002").await;
    database.execute("DROP TABLE idempotency_keys").await;
    database.execute("DROP TABLE run_secrets").await;
    assert_misconfigured(store::open(&database.url, false).await, "migrate first");
    store::open(&database.url, true).await.unwrap().close().await;
    store::open(&database.url, false).await.unwrap().ping().await.unwrap();
}

async fn edited(database: Database) {
    let zero = if database.is_postgres() { "'\\x00'" } else { "x'00'" };
    database.execute(&format!("UPDATE _sqlx_migrations SET checksum = {zero} WHERE version = 2026113001")).await;
    for migrate in [true, false] {
        assert_misconfigured(store::open(&database.url, migrate).await, "2026113001");
    }
}

#[tokio::test]
async fn replicas_that_migrate_at_once_all_start() {
    let database = Database::postgres_empty().await;
    let opened = futures::future::join_all((0..6).map(|_| store::open(&database.url, true))).await;
    for store in opened {
        store.unwrap().ping().await.unwrap();
    }
}

#[tokio::test]
async fn a_sqlite_file_belongs_to_one_process() {
    let database = Database::sqlite().await;
    let first = database.open().await;
    assert_misconfigured(store::open(&database.url, true).await, "another process uses");
    first.ping().await.unwrap();
    drop(first);
    database.open().await.ping().await.unwrap();
}

#[tokio::test]
async fn a_url_of_something_else_is_refused() {
    for url in ["", "mysql://h/db", "/tmp/runs.db", "postgres:"] {
        assert_misconfigured(store::open(url, true).await, "postgres://");
    }
    let opened = store::open("sqlite:/nowhere/at/all/runs.db", true).await;
    assert_misconfigured(opened, "/nowhere/at/all/runs.db.lock");
}

#[tokio::test]
async fn a_database_that_does_not_answer_is_unavailable() {
    let opened = store::open("postgres://nobody@127.0.0.1:1/none", true).await;
    assert!(matches!(opened, Err(StoreError::Unavailable(_))));
}
