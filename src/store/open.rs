//! Opens a database: which kind, by its address, and at which schema.

use std::sync::Arc;
use std::time::Duration;

use super::{Store, StoreError, postgres, sqlite};

/// The lease that is meant where none is named.
const LEASE: Duration = Duration::from_secs(15);

/// Opens a store: `postgres://…`, or `sqlite:PATH`. With `migrate` the schema is brought up to this version first.
///
/// # Errors
/// `Misconfigured` for another URL, a schema that this version does not know or that lacks migrations, or a SQLite file
/// that another process has; `Unavailable` when the database does not answer.
pub async fn open(url: &str, migrate: bool) -> Result<Arc<dyn Store>, StoreError> {
    open_for(url, migrate, LEASE).await
}

/// The same for a node with this lease, which says how long a database may be silent until its connections count as
/// lost.
///
/// # Errors
/// As [`open`].
pub async fn open_for(url: &str, migrate: bool, lease: Duration) -> Result<Arc<dyn Store>, StoreError> {
    if let Some(path) = url.strip_prefix("sqlite:") {
        let path = path.strip_prefix("//").unwrap_or(path);
        return Ok(Arc::new(sqlite::SqliteStore::open(std::path::Path::new(path), migrate).await?));
    }
    if url.starts_with("postgres://") || url.starts_with("postgresql://") {
        return Ok(Arc::new(postgres::SteadyPostgres::open(url, migrate, lease).await?));
    }
    Err(StoreError::Misconfigured("a database URL is postgres://… or sqlite:PATH".to_owned()))
}

/// Brings the schema up to this version, or checks that it is. Fails on a schema that knows more than this version.
pub(super) async fn migrate<C>(
    migrator: &sqlx::migrate::Migrator,
    connection: &mut C,
    apply: bool,
) -> Result<(), StoreError>
where
    C: sqlx::migrate::Migrate,
{
    if apply {
        migrator.run_direct(None, connection, false).await?;
        return Ok(());
    }
    connection.ensure_migrations_table(&migrator.table_name).await?;
    let applied = connection.list_applied_migrations(&migrator.table_name).await?;
    let misfit = |text: String| Err(StoreError::Misconfigured(text));
    for done in &applied {
        match migrator.iter().find(|known| known.version == done.version) {
            None => return misfit(format!("the schema is newer than this version: it has migration {}", done.version)),
            Some(known) if known.checksum != done.checksum => {
                return misfit(format!("migration {} is not the one that was applied", done.version));
            }
            Some(_) => {}
        }
    }
    match migrator.iter().find(|known| !applied.iter().any(|done| done.version == known.version)) {
        Some(missing) => misfit(format!("the schema lacks migration {}: migrate first", missing.version)),
        None => Ok(()),
    }
}
