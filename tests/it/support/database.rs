//! A database of its own for each test, on either store, gone afterwards.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use countersign::store::{self, Store};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, Row as _};
use url::Url;
use uuid::Uuid;

/// The variable with the URL of a Postgres where tests may create and drop databases.
const ADMIN: &str = "COUNTERSIGN_TEST_POSTGRES";
/// Lets one test at a time look for the template, or make it.
const TEMPLATE_LOCK: i64 = 0x636f_756e_7465;

/// One empty, migrated database; there for as long as anybody has a share of it.
#[derive(Clone)]
pub(crate) struct Database {
    /// What `store::open` takes.
    pub(crate) url: String,
    kind: Arc<Kind>,
}

enum Kind {
    Sqlite { _folder: tempfile::TempDir },
    Postgres { admin: Url, name: String },
}

impl Database {
    pub(crate) async fn sqlite() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let url = format!("sqlite:{}", folder.path().join("runs.db").display());
        let database = Self { url, kind: Arc::new(Kind::Sqlite { _folder: folder }) };
        database.open().await.close().await;
        database
    }

    pub(crate) async fn postgres() -> Self {
        let database = Self::postgres_named(&format!("it_{}", Uuid::new_v4().simple()));
        let Kind::Postgres { admin, name } = &*database.kind else { unreachable!("just made") };
        let mut connection = connect(admin).await;
        let template = template(admin, &mut connection).await;
        execute(&mut connection, format!("CREATE DATABASE {name} TEMPLATE {template}")).await;
        database
    }

    /// A database without any table.
    pub(crate) async fn postgres_empty() -> Self {
        let database = Self::postgres_named(&format!("it_{}", Uuid::new_v4().simple()));
        let Kind::Postgres { admin, name } = &*database.kind else { unreachable!("just made") };
        execute(&mut connect(admin).await, format!("CREATE DATABASE {name} TEMPLATE template0")).await;
        database
    }

    fn postgres_named(name: &str) -> Self {
        let admin = postgres_admin();
        Self { url: with_name(&admin, name), kind: Arc::new(Kind::Postgres { admin, name: name.to_owned() }) }
    }

    /// The store on it.
    pub(crate) async fn open(&self) -> Arc<dyn Store> {
        store::open(&self.url, true).await.expect("the test's database opens")
    }

    /// Runs SQL behind the store's back.
    pub(crate) async fn execute(&self, sql: &str) {
        match &*self.kind {
            Kind::Sqlite { .. } => {
                let mut connection = sqlx::SqliteConnection::connect(&self.url).await.expect("the file opens");
                connection.execute(AssertSqlSafe(sql.to_owned())).await.expect("the statement runs");
                connection.close().await.expect("the file closes");
            }
            Kind::Postgres { .. } => {
                let mut connection = PgConnection::connect(&self.url).await.expect("the database answers");
                execute(&mut connection, sql.to_owned()).await;
            }
        }
    }

    /// Ends every connection to a Postgres database and refuses new ones, until it is told to let them in again.
    pub(crate) async fn let_in(&self, lets_in: bool) {
        let Kind::Postgres { admin, name } = &*self.kind else { panic!("only Postgres can be away") };
        let mut connection = connect(admin).await;
        execute(&mut connection, format!("ALTER DATABASE {name} ALLOW_CONNECTIONS {lets_in}")).await;
        let end = format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'");
        if !lets_in {
            execute(&mut connection, end).await;
        }
    }

    /// The number that a query answers.
    pub(crate) async fn count(&self, sql: &str) -> i64 {
        let sql = AssertSqlSafe(sql.to_owned());
        if self.is_postgres() {
            let mut connection = PgConnection::connect(&self.url).await.expect("the database answers");
            sqlx::query_scalar(sql).fetch_one(&mut connection).await.expect("a number")
        } else {
            let mut connection = sqlx::SqliteConnection::connect(&self.url).await.expect("the file opens");
            sqlx::query_scalar(sql).fetch_one(&mut connection).await.expect("a number")
        }
    }

    /// A text column of what an SQLite file answers.
    pub(crate) async fn texts(&self, sql: &str, column: &str) -> Vec<String> {
        let mut connection = sqlx::SqliteConnection::connect(&self.url).await.expect("the file opens");
        let rows = sqlx::query(AssertSqlSafe(sql.to_owned())).fetch_all(&mut connection).await.expect("rows");
        rows.iter().map(|row| row.get(column)).collect()
    }

    /// Every row of every table but the nodes', as text: what must be the same byte for byte when nothing may change.
    pub(crate) async fn dump(&self) -> String {
        let mut dump = String::new();
        if self.is_postgres() {
            let mut connection = PgConnection::connect(&self.url).await.expect("the database answers");
            let tables: Vec<String> =
                sqlx::query_scalar("SELECT tablename::text FROM pg_tables WHERE schemaname = 'public' ORDER BY 1")
                    .fetch_all(&mut connection)
                    .await
                    .expect("a list");
            for table in tables.iter().filter(|table| *table != "nodes") {
                let rows = format!("SELECT t::text FROM {table} t ORDER BY 1");
                let rows: Vec<String> =
                    sqlx::query_scalar(AssertSqlSafe(rows)).fetch_all(&mut connection).await.expect("rows");
                dump.extend(rows.iter().map(|row| format!("{table} {row}\n")));
            }
        } else {
            let mut connection = sqlx::SqliteConnection::connect(&self.url).await.expect("the file opens");
            let tables: Vec<(String, String)> = sqlx::query_as(
                "SELECT t.name, (SELECT group_concat('quote(' || name || ')', ' || '','' || ') FROM pragma_table_info(t.name)) \
                 FROM sqlite_master t WHERE type = 'table' AND name <> 'nodes' ORDER BY 1",
            )
            .fetch_all(&mut connection)
            .await
            .expect("a list");
            for (table, columns) in tables {
                let rows = format!("SELECT {columns} FROM {table} ORDER BY 1");
                let rows: Vec<String> =
                    sqlx::query_scalar(AssertSqlSafe(rows)).fetch_all(&mut connection).await.expect("rows");
                dump.extend(rows.iter().map(|row| format!("{table} {row}\n")));
            }
        }
        dump
    }

    /// How many model turns are committed in it.
    pub(crate) async fn turns(&self) -> i64 {
        self.count("SELECT count(*) FROM messages WHERE CAST(body AS text) LIKE '%\"role\":\"assistant\"%'").await
    }

    pub(crate) fn is_postgres(&self) -> bool {
        matches!(*self.kind, Kind::Postgres { .. })
    }
}

/// The server for tests.
#[expect(clippy::disallowed_methods, reason = "the settings of the product do not know the tests' server")]
pub(crate) fn postgres_admin() -> Url {
    let url = std::env::var(ADMIN)
        .unwrap_or_else(|_| panic!("{ADMIN} is not set: run the tests with scripts/test, which starts a Postgres"));
    Url::parse(&url).expect("a postgres:// URL")
}

fn with_name(admin: &Url, name: &str) -> String {
    let mut url = admin.clone();
    url.set_path(name);
    url.into()
}

async fn connect(admin: &Url) -> PgConnection {
    PgConnection::connect(admin.as_str()).await.expect("the tests' Postgres answers")
}

async fn execute(connection: &mut PgConnection, sql: String) {
    connection.execute(AssertSqlSafe(sql)).await.expect("the statement runs");
}

/// The migrated template, made by the first test that needs it and kept for the others of this schema.
async fn template(admin: &Url, connection: &mut PgConnection) -> String {
    let name = format!("it_template_{:016x}", schema_hash());
    sqlx::query("SELECT pg_advisory_lock($1)").bind(TEMPLATE_LOCK).execute(&mut *connection).await.expect("a lock");
    let exists: bool = sqlx::query_scalar("SELECT EXISTS (SELECT 1 FROM pg_database WHERE datname = $1)")
        .bind(&name)
        .fetch_one(&mut *connection)
        .await
        .expect("an answer");
    if !exists {
        let building = format!("{name}_building");
        execute(connection, format!("DROP DATABASE IF EXISTS {building} WITH (FORCE)")).await;
        execute(connection, format!("CREATE DATABASE {building} TEMPLATE template0")).await;
        let store = store::open(&with_name(admin, &building), true).await.expect("the template migrates");
        store.close().await;
        execute(connection, format!("ALTER DATABASE {building} RENAME TO {name}")).await;
    }
    sqlx::query("SELECT pg_advisory_unlock($1)").bind(TEMPLATE_LOCK).execute(connection).await.expect("unlocked");
    name
}

fn schema_hash() -> u64 {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/migrations/postgres");
    let mut files: Vec<_> =
        std::fs::read_dir(folder).expect("the migrations").map(|entry| entry.expect("a file").path()).collect();
    files.sort();
    let mut hasher = DefaultHasher::new();
    for file in files {
        std::fs::read(file).expect("a migration").hash(&mut hasher);
    }
    hasher.finish()
}

impl Drop for Kind {
    /// Drops a Postgres database also when the test failed; a thread of its own, because the test's runtime may be
    /// going down.
    fn drop(&mut self) {
        let Kind::Postgres { admin, name } = self else { return };
        let (admin, sql) = (admin.clone(), format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)"));
        let dropped = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async { execute(&mut connect(&admin).await, sql).await });
        })
        .join();
        assert!(dropped.is_ok() || std::thread::panicking(), "the test's database is not dropped");
    }
}

/// Waits until the condition holds; fails after ten seconds.
#[track_caller]
pub(crate) fn eventually<F, Fut>(what: &'static str, mut holds: F) -> impl Future<Output = ()>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = bool>,
{
    let caller = std::panic::Location::caller();
    async move {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
        while !holds().await {
            assert!(tokio::time::Instant::now() < deadline, "{what}: not within ten seconds ({caller})");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// One test function a store: `both_stores!(a_sentence => check)` for `async fn check(database: Database)`; when both
/// have one name, that name alone.
macro_rules! both_stores {
    ($($name:ident),+ $(,)?) => { both_stores! { $($name => $name),+ } };
    ($($(#[$meta:meta])* $name:ident => $check:ident),+ $(,)?) => {
        mod sqlite {
            $(
                $(#[$meta])*
                #[tokio::test]
                async fn $name() {
                    super::$check($crate::support::database::Database::sqlite().await).await;
                }
            )+
        }
        mod postgres {
            $(
                $(#[$meta])*
                #[tokio::test]
                async fn $name() {
                    super::$check($crate::support::database::Database::postgres().await).await;
                }
            )+
        }
    };
}
pub(crate) use both_stores;
