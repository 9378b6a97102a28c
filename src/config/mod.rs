//! Every setting, read once. Nobody else asks the environment.
//!
//! All faults are reported at once, each by the name of its setting; no value of a secret is ever printed.

mod auth;
mod connections;
mod dev;
#[cfg(debug_assertions)]
mod failpoints;
mod files;
mod keep;
mod prices;
mod reader;
mod report;
mod servers;
#[cfg(test)]
mod tests;
mod unknown;
mod view;
mod workers;

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use secrecy::SecretString;
use url::Url;

use crate::auth::AuthSettings;
use crate::net::EgressAllow;
use crate::run::money::Prices;
use crate::secrets::KeyRing;
use auth::auth;
pub use connections::McpConnections;
use connections::{MCP_IDLE_S, MCP_SERVER_CONNECTIONS, MCP_TENANT_CONNECTIONS, mcp_connections};
pub use files::raise_open_files;
pub use keep::KeepDays;
use keep::{KEEP_EVENTS_D, KEEP_RECEIPTS_D, KEEP_RUNS_D, keep_days};
use reader::Reader;
pub use servers::DeclaredServer;
pub use unknown::{process_env, unknown_variables};
pub use view::ViewBytes;
use view::{RESULT_VIEW_BYTES, TURN_VIEW_BYTES, view_bytes};
pub use workers::{ToolPermit, WorkerLimits};
use workers::{WORKER_LEASE_S, WORKER_QUEUE_MAX, WORKER_QUEUE_WAIT_S, worker_limits};

/// Smallest shared secret, in bytes: the strength of HS256.
const SECRET_MIN: usize = 32;

/// One setting.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Its name in the environment.
    pub name: &'static str,
    /// What holds when it is not set.
    pub default: Option<&'static str>,
    /// Whether its value is a secret.
    pub secret: bool,
    /// What it is for.
    pub about: &'static str,
}

const fn plain(name: &'static str, default: Option<&'static str>, about: &'static str) -> Setting {
    Setting { name, default, secret: false, about }
}

const fn secret(name: &'static str, about: &'static str) -> Setting {
    Setting { name, default: None, secret: true, about }
}

const DATABASE_URL: Setting = plain("COUNTERSIGN_DATABASE_URL", None, "postgres://… or sqlite:PATH");
const LISTEN: Setting = plain("COUNTERSIGN_LISTEN", Some("0.0.0.0:8080"), "address and port of the HTTP server");
const JWT_HS256_SECRET: Setting =
    secret("COUNTERSIGN_JWT_HS256_SECRET", "shared secret of HS256 tokens, 32 bytes or more");
const JWKS_URL: Setting = plain("COUNTERSIGN_JWKS_URL", None, "address of the issuer's key set");
const JWKS_FILE: Setting = plain("COUNTERSIGN_JWKS_FILE", None, "file with the issuer's key set");
const JWT_ISSUER: Setting = plain("COUNTERSIGN_JWT_ISSUER", None, "the only iss that is taken");
const JWT_AUDIENCE: Setting = plain("COUNTERSIGN_JWT_AUDIENCE", None, "the aud that tokens must name");
const JWT_TENANT_CLAIM: Setting =
    plain("COUNTERSIGN_JWT_TENANT_CLAIM", Some("tenant"), "the claim that names the tenant");
const MASTER_KEYS: Setting = secret("COUNTERSIGN_MASTER_KEYS", "keyid:base64,… (32 bytes each); the first encrypts");
const EGRESS_ALLOW: Setting =
    plain("COUNTERSIGN_EGRESS_ALLOW", None, "hosts and networks that may be private or plain http");
const ALLOW_SCRIPTED_MODELS: Setting =
    plain("COUNTERSIGN_ALLOW_SCRIPTED_MODELS", Some("false"), "whether runs may bring scripted models");
const APPROVALS_REQUIRE_TOKEN: Setting = plain(
    "COUNTERSIGN_APPROVALS_REQUIRE_TOKEN",
    Some("false"),
    "whether a vote that approves must bring the approval's token",
);
const LEASE_S: Setting = plain("COUNTERSIGN_LEASE_S", Some("15"), "seconds without a beat until a node is dead");
const MAX_RUNNING: Setting = plain("COUNTERSIGN_MAX_RUNNING", Some("1000"), "runs that this node drives at once");
const TENANT_MAX_RUNNING: Setting =
    plain("COUNTERSIGN_TENANT_MAX_RUNNING", Some("100"), "runs of one tenant that are driven at once");
const TENANT_MAX_CALLS: Setting =
    plain("COUNTERSIGN_TENANT_MAX_CALLS", Some("200"), "tool calls of one tenant that this node has out at once");
const CATALOG_MAX_AGE_MS: Setting = plain(
    "COUNTERSIGN_CATALOG_MAX_AGE_MS",
    Some("2000"),
    "milliseconds that a reading of a server's tools counts at a creation, a resume or the start of a leg",
);
const WAKE: Setting =
    plain("COUNTERSIGN_WAKE", Some("notify"), "how nodes tell each other what changed: notify or off");
const DRAIN_S: Setting = plain("COUNTERSIGN_DRAIN_S", Some("30"), "seconds that runs may go on after SIGTERM");
const LOG: Setting = plain("COUNTERSIGN_LOG", Some("json"), "json or text");
const CORS_ORIGINS: Setting = plain("COUNTERSIGN_CORS_ORIGINS", None, "origins of browsers' pages, with commas");
const MAX_BODY_BYTES: Setting = plain("COUNTERSIGN_MAX_BODY_BYTES", Some("4194304"), "largest request body");
const LOG_FILTER: Setting = plain("RUST_LOG", None, "which log lines are written");
const OTLP_ENDPOINT: Setting = plain("OTEL_EXPORTER_OTLP_ENDPOINT", None, "not used by this version");

/// Every setting, in the order in which `countersign config` prints them.
pub const SETTINGS: [Setting; 35] = [
    DATABASE_URL,
    LISTEN,
    JWT_HS256_SECRET,
    JWKS_URL,
    JWKS_FILE,
    JWT_ISSUER,
    JWT_AUDIENCE,
    JWT_TENANT_CLAIM,
    MASTER_KEYS,
    EGRESS_ALLOW,
    ALLOW_SCRIPTED_MODELS,
    APPROVALS_REQUIRE_TOKEN,
    LEASE_S,
    MAX_RUNNING,
    TENANT_MAX_RUNNING,
    TENANT_MAX_CALLS,
    MCP_TENANT_CONNECTIONS,
    MCP_SERVER_CONNECTIONS,
    MCP_IDLE_S,
    CATALOG_MAX_AGE_MS,
    WORKER_LEASE_S,
    WORKER_QUEUE_WAIT_S,
    WORKER_QUEUE_MAX,
    WAKE,
    DRAIN_S,
    RESULT_VIEW_BYTES,
    TURN_VIEW_BYTES,
    KEEP_EVENTS_D,
    KEEP_RUNS_D,
    KEEP_RECEIPTS_D,
    LOG,
    CORS_ORIGINS,
    MAX_BODY_BYTES,
    LOG_FILTER,
    OTLP_ENDPOINT,
];

/// The settings of one process.
#[derive(Clone, Debug)]
pub struct Config {
    /// `postgres://…` or `sqlite:PATH`; may hold a password.
    pub database_url: SecretString,
    /// Where the HTTP server listens.
    pub listen: SocketAddr,
    /// Where tokens come from.
    pub auth: AuthSettings,
    /// The master keys.
    pub keys: Arc<KeyRing>,
    /// Hosts and networks that may be private or plain `http`, as written.
    pub egress_allow: Vec<String>,
    /// Whether runs may bring scripted models.
    pub allow_scripted_models: bool,
    /// Whether a vote that approves must bring the approval's token.
    pub approvals_require_token: bool,
    /// Seconds without a beat until a node is dead; at least 2.
    pub lease_s: u32,
    /// Runs that this node drives at once.
    pub max_running: u32,
    /// Runs of one tenant that are driven at once.
    pub tenant_max_running: u32,
    /// Tool calls of one tenant that this node has out at once.
    pub tenant_max_calls: u32,
    /// Connections to MCP servers that this node may have open for one tenant.
    pub mcp_connections: McpConnections,
    /// MCP servers that are processes of this node.
    pub mcp_servers: Vec<DeclaredServer>,
    /// What models cost.
    pub prices: Prices,
    /// The program that ends them when this process is killed; `None`: nobody does.
    pub stdio_guard: Option<PathBuf>,
    /// Milliseconds that a reading of a server's tools counts.
    pub catalog_max_age_ms: u32,
    /// How calls are handed to workers.
    pub workers: WorkerLimits,
    /// Who may have which tools of workers.
    pub worker_tools: BTreeMap<String, ToolPermit>,
    /// How nodes tell each other what changed.
    pub wake: Wake,
    /// Seconds that runs may go on after SIGTERM.
    pub drain_s: u32,
    /// How long things are kept after their run has ended.
    pub keep: KeepDays,
    /// How much of tool results models are told.
    pub view: ViewBytes,
    /// Form of the log.
    pub log: LogFormat,
    /// Which log lines are written; `None`: the default of `telemetry`.
    pub log_filter: Option<String>,
    /// Origins of browsers' pages that may call the API.
    pub cors_origins: Vec<String>,
    /// Largest request body, in bytes.
    pub max_body_bytes: usize,
    /// What the operator should know; names no secret.
    pub warnings: Vec<String>,
}

/// How nodes tell each other what changed, besides looking themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// Not at all.
    Off,
    /// By `NOTIFY`, where the database is Postgres.
    Notify,
}

/// Form of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// One JSON object a line.
    Json,
    /// For people.
    Text,
}

/// What is wrong with one setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigFault {
    /// The setting's name.
    pub setting: &'static str,
    /// What is wrong; never its value when that is a secret.
    pub detail: String,
}

/// Everything that is wrong with the settings.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct ConfigFaults(pub Vec<ConfigFault>);

impl fmt::Display for ConfigFaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> = self.0.iter().map(|fault| format!("{}: {}", fault.setting, fault.detail)).collect();
        f.write_str(&lines.join("\n"))
    }
}

impl Config {
    /// The settings of a production server. `env` answers the value of a name.
    ///
    /// # Errors
    /// Every missing, weak or unreadable setting.
    pub fn from_env(env: &impl Fn(&str) -> Option<String>) -> Result<Self, ConfigFaults> {
        let mut reader = Reader::new(env);
        let config = Self::read(&mut reader);
        config.ok_or(ConfigFaults(reader.faults))
    }

    /// The database alone, for `countersign migrate`.
    ///
    /// # Errors
    /// A missing or unreadable address.
    pub fn database_from_env(env: &impl Fn(&str) -> Option<String>) -> Result<SecretString, ConfigFaults> {
        let mut reader = Reader::new(env);
        let url = database_url(&mut reader);
        url.ok_or(ConfigFaults(reader.faults))
    }

    /// The master keys alone, for `countersign secrets rotate`.
    ///
    /// # Errors
    /// Missing or unreadable keys.
    pub fn keys_from_env(env: &impl Fn(&str) -> Option<String>) -> Result<KeyRing, ConfigFaults> {
        let mut reader = Reader::new(env);
        let keys = master_keys(&mut reader);
        keys.ok_or(ConfigFaults(reader.faults))
    }

    /// What `countersign token` needs.
    ///
    /// # Errors
    /// The same faults as a server's.
    pub fn auth_from_env(env: &impl Fn(&str) -> Option<String>) -> Result<AuthSettings, ConfigFaults> {
        let mut reader = Reader::new(env);
        let auth = auth(&mut reader);
        auth.ok_or(ConfigFaults(reader.faults))
    }

    /// Reads everything before giving up, so that all faults are found.
    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let database_url = database_url(reader);
        let listen = reader.parsed(&LISTEN, "an address and a port like 0.0.0.0:8080");
        let auth = auth(reader);
        let keys = master_keys(reader);
        let egress_allow = egress_allow(reader);
        let allow_scripted_models = reader.one_of(&ALLOW_SCRIPTED_MODELS, &[("true", true), ("false", false)]);
        let approvals_require_token = reader.one_of(&APPROVALS_REQUIRE_TOKEN, &[("true", true), ("false", false)]);
        let lease_s = reader.number(&LEASE_S, 2, 3600);
        let max_running = reader.number(&MAX_RUNNING, 1, 1_000_000);
        let tenant_max_running = reader.number(&TENANT_MAX_RUNNING, 1, 1_000_000);
        let tenant_max_calls = reader.number(&TENANT_MAX_CALLS, 1, 1_000_000);
        let mcp_connections = mcp_connections(reader);
        let catalog_max_age_ms = reader.number(&CATALOG_MAX_AGE_MS, 0, 3_600_000);
        let workers = worker_limits(reader);
        let wake = reader.one_of(&WAKE, &[("notify", Wake::Notify), ("off", Wake::Off)]);
        let drain_s = reader.number(&DRAIN_S, 0, 86_400);
        let (keep, view) = (keep_days(reader), view_bytes(reader));
        let log = reader.one_of(&LOG, &[("json", LogFormat::Json), ("text", LogFormat::Text)]);
        let max_body_bytes = reader.number(&MAX_BODY_BYTES, 1024, 1024 * 1024 * 1024);
        let cors_origins = cors_origins(reader);
        let log_filter = reader.text(&LOG_FILTER);
        let mut warnings = Vec::new();
        if reader.text(&OTLP_ENDPOINT).is_some() {
            warnings.push(format!("{} is set, but this version exports no traces", OTLP_ENDPOINT.name));
        }
        if !reader.faults.is_empty() {
            return None;
        }
        Some(Self {
            database_url: database_url?,
            listen: listen?,
            auth: auth?,
            keys: Arc::new(keys?),
            egress_allow,
            allow_scripted_models: allow_scripted_models?,
            approvals_require_token: approvals_require_token?,
            lease_s: lease_s?,
            max_running: max_running?,
            tenant_max_running: tenant_max_running?,
            tenant_max_calls: tenant_max_calls?,
            mcp_connections: mcp_connections?,
            mcp_servers: Vec::new(),
            prices: Prices::default(),
            stdio_guard: None,
            catalog_max_age_ms: catalog_max_age_ms?,
            workers: workers?,
            worker_tools: BTreeMap::new(),
            wake: wake?,
            drain_s: drain_s?,
            keep: keep?,
            view: view?,
            log: log?,
            log_filter,
            cors_origins,
            max_body_bytes: usize::try_from(max_body_bytes?).ok()?,
            warnings,
        })
    }
}

fn database_url(reader: &mut Reader<'_>) -> Option<SecretString> {
    let text = reader.required(&DATABASE_URL)?;
    let is_postgres =
        (text.starts_with("postgres://") || text.starts_with("postgresql://")) && Url::parse(&text).is_ok();
    let is_sqlite = text.strip_prefix("sqlite:").is_some_and(|path| !path.trim_start_matches('/').is_empty());
    if !is_postgres && !is_sqlite {
        // The text may hold a password.
        reader.fault(&DATABASE_URL, "is neither postgres://… nor sqlite:PATH");
        return None;
    }
    Some(SecretString::from(text))
}

fn master_keys(reader: &mut Reader<'_>) -> Option<KeyRing> {
    let text = reader.required(&MASTER_KEYS)?;
    KeyRing::parse(&text).map_err(|fault| reader.fault(&MASTER_KEYS, fault.to_string())).ok()
}

/// Checked here, so that a wrong entry is named among the other faults.
fn egress_allow(reader: &mut Reader<'_>) -> Vec<String> {
    let entries = reader.list(&EGRESS_ALLOW);
    if let Err(fault) = EgressAllow::parse(entries.iter().map(String::as_str)) {
        reader.fault(&EGRESS_ALLOW, fault.to_string());
    }
    entries
}

fn cors_origins(reader: &mut Reader<'_>) -> Vec<String> {
    let origins = reader.list(&CORS_ORIGINS);
    for origin in &origins {
        let is_origin = Url::parse(origin).is_ok_and(|url| url.origin().ascii_serialization() == *origin);
        if !is_origin {
            reader.fault(&CORS_ORIGINS, format!("{origin:?} is not an origin like https://app.example.com"));
        }
    }
    origins
}
