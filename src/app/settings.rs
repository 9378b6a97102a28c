//! What the configuration means for each part.

use std::time::Duration;

use super::{CONNECT_TIMEOUT, ISSUER_READ_TIMEOUT};
use crate::auth::JwksSource;
use crate::commands::{Permit, Permits, WorkerSettings};
use crate::config::{Config, KeepDays};
use crate::dispatch::{Declared, Terms};
use crate::executor::ExecutorSettings;
use crate::mcp::{PoolSettings, StdioServer};
use crate::net::{Egress, EgressClient};
use crate::run::view::ViewLimits;
use crate::store::retention::Keep;

/// How connections to MCP servers are kept.
pub(super) fn pool_settings(config: &Config) -> PoolSettings {
    let most = |connections: u32| usize::try_from(connections).unwrap_or(usize::MAX);
    let connections = config.mcp_connections;
    PoolSettings {
        idle_close: Duration::from_secs(connections.idle_s.into()),
        ..PoolSettings::bounded(most(connections.tenant), most(connections.server))
    }
}

/// The servers of the configuration file.
pub(super) fn declared(config: &Config) -> Declared {
    let mut declared = Declared::default();
    for server in config.mcp_servers.iter().cloned() {
        let terms = Terms {
            tenants: server.tenants.map(|tenants| tenants.into_iter().collect()),
            replay: server.replay,
            side_effect_class: server.side_effect_class,
            elicitation: server.elicitation,
            timeouts: server.timeouts,
        };
        let (name, command) = (server.name, server.command);
        declared.add(StdioServer { name, command, args: server.args, env: server.env, cwd: server.cwd }, terms);
    }
    declared
}

/// How runs are driven.
pub(super) fn executor_settings(config: &Config) -> ExecutorSettings {
    let bytes = |count: u32| usize::try_from(count).unwrap_or(usize::MAX);
    ExecutorSettings {
        lease: Duration::from_secs(config.lease_s.into()),
        max_running: usize::try_from(config.max_running).unwrap_or(usize::MAX),
        tenant_max_running: usize::try_from(config.tenant_max_running).unwrap_or(usize::MAX),
        tenant_max_calls: usize::try_from(config.tenant_max_calls).unwrap_or(usize::MAX),
        worker_grace: Duration::from_secs(config.workers.lease_s.into()),
        catalog_max_age: Duration::from_millis(config.catalog_max_age_ms.into()),
        view: ViewLimits { result: bytes(config.view.result), turn: bytes(config.view.turn) },
    }
}

/// How calls are handed to workers.
pub(super) fn worker_settings(config: &Config) -> WorkerSettings {
    let permits = config.worker_tools.iter().map(|(tool, permit)| {
        let (identities, image_digests) = (permit.workload_identities.clone(), permit.image_digests.clone());
        (tool.clone(), Permit { identities, image_digests })
    });
    WorkerSettings {
        lease: Duration::from_secs(config.workers.lease_s.into()),
        queue_wait: Duration::from_secs(config.workers.queue_wait_s.into()),
        queue_max: config.workers.queue_max,
        permits: Permits(permits.collect()),
    }
}

/// How long what has ended is kept.
pub(super) fn keep(days: KeepDays) -> Keep {
    let millis = |days: u32| i64::from(days) * 24 * 60 * 60 * 1000;
    Keep { events_ms: millis(days.events), runs_ms: millis(days.runs), receipts_ms: millis(days.receipts) }
}

/// Asks the issuer of tokens for its keys. The operator named its address, so that may be private.
///
/// # Errors
/// The trust roots could not be loaded.
pub(super) fn issuer_client(egress: &Egress, config: &Config) -> Result<EgressClient, reqwest::Error> {
    let egress = match &config.auth.jwks {
        Some(JwksSource::Url(address)) => egress.and_named(address),
        Some(JwksSource::File(_)) | None => egress.clone(),
    };
    egress.client(CONNECT_TIMEOUT, Some(ISSUER_READ_TIMEOUT))
}
