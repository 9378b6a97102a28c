//! Replicas that start at once take turns with the migrations. They ask for their turn again and again: a statement that
//! waits for a lock holds a snapshot, and an online index build waits for the end of every snapshot older than its own,
//! so a replica that waits inside the database and the one that builds would wait for each other.

use std::time::Duration;

use sqlx::PgConnection;
use tokio::time::{Instant, sleep};

use crate::store::StoreError;

/// The advisory lock of who migrates: its number means nothing. It belongs to the connection, and goes with it.
const MIGRATION_LOCK: i64 = 0x3164_a7e5;
/// How often a replica asks whether it is its turn.
const ASK_EVERY: Duration = Duration::from_millis(100);
/// How long a replica waits for the others; longer than any of them should take.
const PATIENCE: Duration = Duration::from_mins(10);

/// Waits until this connection may migrate.
///
/// # Errors
/// `Misconfigured` when another one has not finished after ten minutes; the database's.
pub(super) async fn take(connection: &mut PgConnection) -> Result<(), StoreError> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let mine: bool = sqlx::query_scalar("SELECT pg_try_advisory_lock($1)")
            .bind(MIGRATION_LOCK)
            .fetch_one(&mut *connection)
            .await?;
        if mine {
            return Ok(());
        }
        if Instant::now() >= deadline {
            let text = "another process has been migrating the schema for ten minutes: see to it, then start again";
            return Err(StoreError::Misconfigured(text.to_owned()));
        }
        sleep(ASK_EVERY).await;
    }
}
