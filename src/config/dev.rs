//! The settings of `countersign dev`: SQLite and keys in one folder, made on first start.

use std::fs;
use std::io::{ErrorKind, Write as _};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::{
    ALLOW_SCRIPTED_MODELS, CORS_ORIGINS, Config, ConfigFault, ConfigFaults, DATABASE_URL, DRAIN_S, EGRESS_ALLOW,
    JWT_AUDIENCE, JWT_HS256_SECRET, JWT_ISSUER, KEEP_EVENTS_D, KEEP_RECEIPTS_D, KEEP_RUNS_D, LEASE_S, LISTEN, LOG,
    LOG_FILTER, MASTER_KEYS, MAX_BODY_BYTES, MAX_RUNNING, RESULT_VIEW_BYTES, TENANT_MAX_CALLS, TENANT_MAX_RUNNING,
    TURN_VIEW_BYTES, WAKE,
};

/// What a developer may tune through the environment. Everything else is fixed: `dev` must never reach a database, a
/// key or an issuer of production that happens to be in the shell's environment.
const TUNABLE: [&str; 14] = [
    LEASE_S.name,
    MAX_RUNNING.name,
    TENANT_MAX_RUNNING.name,
    TENANT_MAX_CALLS.name,
    DRAIN_S.name,
    RESULT_VIEW_BYTES.name,
    TURN_VIEW_BYTES.name,
    KEEP_EVENTS_D.name,
    KEEP_RUNS_D.name,
    KEEP_RECEIPTS_D.name,
    LOG.name,
    CORS_ORIGINS.name,
    MAX_BODY_BYTES.name,
    LOG_FILTER.name,
];

impl Config {
    /// The settings of `countersign dev`. Makes the folder and the keys when they are not there.
    ///
    /// # Errors
    /// A folder or a key file that cannot be made or read, and faults of what is tuned.
    pub fn dev(data: &Path, listen: SocketAddr, env: &impl Fn(&str) -> Option<String>) -> Result<Self, ConfigFaults> {
        let fault = |setting: &'static str, detail: String| ConfigFaults(vec![ConfigFault { setting, detail }]);
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(data)
            .map_err(|error| fault(DATABASE_URL.name, format!("{}: {error}", data.display())))?;
        let secret = kept_key(&data.join("jwt-secret")).map_err(|detail| fault(JWT_HS256_SECRET.name, detail))?;
        let master = kept_key(&data.join("master-key")).map_err(|detail| fault(MASTER_KEYS.name, detail))?;
        let database = format!("sqlite:{}", data.join("countersign.db").display());
        Self::from_env(&|name: &str| {
            let fixed = [
                (DATABASE_URL.name, database.clone()),
                (LISTEN.name, listen.to_string()),
                (JWT_HS256_SECRET.name, secret.clone()),
                (JWT_ISSUER.name, "countersign-dev".to_owned()),
                (JWT_AUDIENCE.name, "countersign-dev".to_owned()),
                (MASTER_KEYS.name, format!("dev:{master}")),
                (EGRESS_ALLOW.name, "localhost,127.0.0.0/8,::1".to_owned()),
                (ALLOW_SCRIPTED_MODELS.name, "true".to_owned()),
                (WAKE.name, "off".to_owned()),
            ];
            let fixed = fixed.into_iter().find(|(known, _)| *known == name).map(|(_, value)| value);
            let tuned = || TUNABLE.contains(&name).then(|| env(name)).flatten();
            let default = || (name == LOG.name).then(|| "text".to_owned());
            fixed.or_else(tuned).or_else(default)
        })
    }
}

/// The key in that file: 32 random bytes in base64, made when there is no such file, readable by its owner only.
fn kept_key(path: &Path) -> Result<String, String> {
    let said = |error: std::io::Error| format!("{}: {error}", path.display());
    let created = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    match created {
        Ok(mut file) => {
            let mut bytes = [0; 32];
            if aws_lc_rs::rand::fill(&mut bytes).is_err() {
                return Err("the system gives no random bytes".to_owned());
            }
            let text = STANDARD.encode(bytes);
            file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(said)?;
            Ok(text)
        }
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            let mode = fs::metadata(path).map_err(said)?.permissions().mode();
            if mode & 0o077 != 0 {
                return Err(format!("{}: others may read this key (mode {:o})", path.display(), mode & 0o777));
            }
            let text = fs::read_to_string(path).map_err(said)?.trim().to_owned();
            let whole = STANDARD.decode(&text).is_ok_and(|bytes| bytes.len() == 32);
            if whole { Ok(text) } else { Err(format!("{}: holds no key of 32 bytes", path.display())) }
        }
        Err(error) => Err(said(error)),
    }
}
