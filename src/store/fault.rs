//! What a driver's error means to whoever asked, by remedy.

use sqlx::error::ErrorKind;
use sqlx::migrate::MigrateError;

use super::StoreError;

impl From<sqlx::Error> for StoreError {
    fn from(fault: sqlx::Error) -> Self {
        match &fault {
            sqlx::Error::ColumnDecode { index, source } => {
                Self::Corrupt { what: "column", detail: format!("{index}: {source}") }
            }
            sqlx::Error::Decode(source) => Self::Corrupt { what: "row", detail: source.to_string() },
            sqlx::Error::Encode(source) => Self::Rejected(source.to_string()),
            sqlx::Error::ColumnNotFound(name) => Self::Misconfigured(format!("the column {name} is missing")),
            sqlx::Error::Configuration(source) => Self::Misconfigured(source.to_string()),
            sqlx::Error::Database(answer) => {
                let code = answer.code().unwrap_or_default().into_owned();
                if refuses_rows(&answer.kind(), &code) {
                    // The server's message names columns and constraints; its detail, left out, would quote values.
                    Self::Rejected(format!("{code} {}", answer.message()))
                } else if lacks_schema(&code) {
                    Self::Misconfigured(format!("{code} {}", answer.message()))
                } else {
                    Self::Unavailable(fault)
                }
            }
            _ => Self::Unavailable(fault),
        }
    }
}

/// Constraint violations; data exceptions and program limits of Postgres; "too big" and "mismatch" of SQLite.
fn refuses_rows(kind: &ErrorKind, code: &str) -> bool {
    let postgres = code.len() == 5 && ["22", "23", "54"].iter().any(|class| code.starts_with(class));
    !matches!(kind, ErrorKind::Other) || postgres || matches!(code, "18" | "20")
}

/// A missing table or column, a missing database, wrong credentials.
fn lacks_schema(code: &str) -> bool {
    code.len() == 5 && ["42", "3D", "3F", "28"].iter().any(|class| code.starts_with(class))
}

impl From<MigrateError> for StoreError {
    fn from(fault: MigrateError) -> Self {
        match fault {
            MigrateError::Execute(fault) | MigrateError::ExecuteMigration(fault, _) => Self::from(fault),
            MigrateError::VersionMissing(version) => {
                Self::Misconfigured(format!("the schema is newer than this version: it has migration {version}"))
            }
            other => Self::Misconfigured(format!("the schema does not fit: {other}")),
        }
    }
}
