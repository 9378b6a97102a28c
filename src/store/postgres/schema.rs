//! The migrations of this dialect, in their order.

use sqlx::SqlStr;
use sqlx::migrate::{Migration, MigrationType, Migrator};

pub(super) fn migrator() -> Migrator {
    const FILES: [(i64, &str, &str); 15] = [
        (2_026_113_001, "runs", include_str!("../../../migrations/postgres/2026113001_runs.sql")),
        (2_026_113_002, "requests", include_str!("../../../migrations/postgres/2026113002_requests.sql")),
        (2_026_113_003, "decisions", include_str!("../../../migrations/postgres/2026113003_decisions.sql")),
        (2_026_113_004, "retention", include_str!("../../../migrations/postgres/2026113004_retention.sql")),
        (2_026_113_005, "feed", include_str!("../../../migrations/postgres/2026113005_feed.sql")),
        (
            2_026_113_006,
            "servers_and_secrets",
            include_str!("../../../migrations/postgres/2026113006_servers_and_secrets.sql"),
        ),
        (2_026_113_008, "inputs", include_str!("../../../migrations/postgres/2026113008_inputs.sql")),
        (2_026_113_009, "oauth_tokens", include_str!("../../../migrations/postgres/2026113009_oauth_tokens.sql")),
        (2_026_113_010, "approvals", include_str!("../../../migrations/postgres/2026113010_approvals.sql")),
        (2_026_113_011, "worker_calls", include_str!("../../../migrations/postgres/2026113011_worker_calls.sql")),
        (2_026_113_012, "agents", include_str!("../../../migrations/postgres/2026113012_agents.sql")),
        (2_026_113_013, "runs_of_agents", include_str!("../../../migrations/postgres/2026113013_runs_of_agents.sql")),
        (
            2_026_113_014,
            "forgotten_tokens",
            include_str!("../../../migrations/postgres/2026113014_forgotten_tokens.sql"),
        ),
        (
            2_026_113_015,
            "rounds_and_waits",
            include_str!("../../../migrations/postgres/2026113015_rounds_and_waits.sql"),
        ),
        (
            2_026_113_016,
            "labels_of_client_calls",
            include_str!("../../../migrations/postgres/2026113016_labels_of_client_calls.sql"),
        ),
    ];
    let migration = |(version, name, sql)| {
        let sql = SqlStr::from_static(sql);
        Migration::new(version, std::borrow::Cow::Borrowed(name), MigrationType::Simple, sql, false)
    };
    let mut migrator = Migrator::with_migrations(FILES.into_iter().map(migration).collect());
    // Its own lock is waited for inside the database; `turn` says why that must not be.
    migrator.set_locking(false);
    migrator
}
