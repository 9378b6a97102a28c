//! The configuration file, and in it the MCP servers that are processes of this node, for all tenants or for some.
//!
//! All faults are found at once. No value of an `env` table is ever quoted: that is where secrets stand.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use secrecy::SecretString;
use serde::de::DeserializeOwned;
use toml::{Table, Value};

use super::prices::prices;
use super::workers::{self, ToolPermit};
use super::{Config, ConfigFault, ConfigFaults};
use crate::run::asking::Elicitation;
use crate::run::ids::TenantId;
use crate::run::money::Prices;
use crate::run::spec::{PerTool, Replay, SideEffectClass, Timeouts, repeats_what_cannot_be_undone};

/// What the faults of the file are reported under.
const FILE: &str = "--config";
/// Longest name of a server.
const NAME_MAX: usize = 32;
/// Longest time limit, in milliseconds.
const DAY_MS: u64 = 86_400_000;

/// One `[mcp_servers.NAME]` of the file.
#[derive(Clone, Debug)]
pub struct DeclaredServer {
    /// What entries call it.
    pub name: String,
    /// The program.
    pub command: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// Its environment.
    pub env: Vec<(String, SecretString)>,
    /// Where it runs.
    pub cwd: Option<PathBuf>,
    /// Which of its tools are safe to repeat.
    pub replay: Option<PerTool<Replay>>,
    /// What its tools may do to the world.
    pub side_effect_class: Option<PerTool<SideEffectClass>>,
    /// Whether it may ask people.
    pub elicitation: Elicitation,
    /// Its time limits.
    pub timeouts: Timeouts,
    /// Who may use it; `None`: every tenant.
    pub tenants: Option<Vec<TenantId>>,
}

impl Config {
    /// Adds what a configuration file declares.
    ///
    /// # Errors
    /// A file that cannot be read, and everything in it that means nothing.
    pub fn with_file(mut self, path: &Path) -> Result<Self, ConfigFaults> {
        let declared = read(path).map_err(ConfigFaults)?;
        self.mcp_servers = declared.servers;
        self.prices = declared.prices;
        self.worker_tools = declared.worker_tools;
        Ok(self)
    }
}

/// What a file declares.
#[derive(Debug, Default)]
struct Declarations {
    servers: Vec<DeclaredServer>,
    prices: Prices,
    worker_tools: BTreeMap<String, ToolPermit>,
}

/// What a file declares.
///
/// # Errors
/// A file that cannot be read, and everything in it that means nothing.
fn read(path: &Path) -> Result<Declarations, Vec<ConfigFault>> {
    let text = std::fs::read_to_string(path).map_err(|error| vec![fault(format!("{}: {error}", path.display()))])?;
    parse(&text)
        .map_err(|faults| faults.into_iter().map(|detail| fault(format!("{}: {detail}", path.display()))).collect())
}

fn fault(detail: String) -> ConfigFault {
    ConfigFault { setting: FILE, detail }
}

fn parse(text: &str) -> Result<Declarations, Vec<String>> {
    let table = text.parse::<Table>().map_err(|error| {
        // The error's own text quotes the line, and that may be a secret's.
        let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
        vec![format!("line {} is no TOML", before.matches('\n').count() + 1)]
    })?;
    let mut faults = Vec::new();
    let mut found = Declarations::default();
    for (key, value) in table {
        match value {
            Value::Table(declared) if key == "mcp_servers" => {
                found.servers.extend(declared.into_iter().filter_map(|(name, value)| server(name, value, &mut faults)));
            }
            Value::Table(declared) if key == "prices" => found.prices = prices(declared, &mut faults),
            value if key == "worker_tools" => found.worker_tools = workers::permits(value, &mut faults),
            _ if key == "mcp_servers" || key == "prices" => faults.push(format!("{key} is no table")),
            _ => faults.push(format!("{key} is not a setting of this version")),
        }
    }
    if faults.is_empty() { Ok(found) } else { Err(faults) }
}

/// Reads one server, and says what it has found wrong under the server's name.
fn server(name: String, value: Value, faults: &mut Vec<String>) -> Option<DeclaredServer> {
    let Value::Table(mut table) = value else {
        faults.push(format!("mcp_servers.{name} is no table"));
        return None;
    };
    let mut found = Vec::new();
    if !is_name(&name) {
        found.push("its name must match [a-z][a-z0-9-]{0,31}".to_owned());
    }
    let command = table.remove("command").and_then(|value| value.as_str().map(str::to_owned));
    if command.as_deref().is_none_or(str::is_empty) {
        found.push("command must be a text".to_owned());
    }
    let args = texts(table.remove("args"), "args", &mut found);
    let env = environment(table.remove("env"), &mut found);
    let cwd = table.remove("cwd").map(|value| PathBuf::from(value.as_str().unwrap_or_default()));
    if cwd.as_ref().is_some_and(|path| !path.is_absolute()) {
        found.push("cwd must be an absolute path".to_owned());
    }
    let replay = declared(table.remove("replay"), "replay", &mut found);
    let side_effect_class = declared(table.remove("side_effect_class"), "side_effect_class", &mut found);
    let elicitation =
        declared::<Elicitation>(table.remove("elicitation"), "elicitation", &mut found).unwrap_or_default();
    let timeouts = declared::<Timeouts>(table.remove("timeouts"), "timeouts", &mut found).unwrap_or_default();
    if repeats_what_cannot_be_undone(replay.as_ref(), side_effect_class.as_ref()) {
        found.push("replay: an irreversible action cannot be declared repeatable".to_owned());
    }
    if ![timeouts.connect_ms, timeouts.call_ms, timeouts.call_total_ms].iter().all(|ms| (1..=DAY_MS).contains(ms)) {
        found.push(format!("timeouts must be from 1 to {DAY_MS} milliseconds"));
    }
    let tenants = table.remove("tenants").map(|value| tenants(value, &mut found));
    found.extend(table.keys().map(|key| format!("{key} is not a setting of a server")));
    faults.extend(found.iter().map(|detail| format!("mcp_servers.{name}: {detail}")));
    let command = command.filter(|_| found.is_empty())?;
    Some(DeclaredServer { name, command, args, env, cwd, replay, side_effect_class, elicitation, timeouts, tenants })
}

/// What an entry of a run declares in the same words.
fn declared<T: DeserializeOwned>(value: Option<Value>, what: &str, faults: &mut Vec<String>) -> Option<T> {
    let value = value?;
    let read = serde_json::to_value(&value).ok().and_then(|value| serde_json::from_value(value).ok());
    if read.is_none() {
        faults.push(format!("{what} must be as in an entry of a run"));
    }
    read
}

fn is_name(name: &str) -> bool {
    name.len() <= NAME_MAX
        && name.starts_with(|first: char| first.is_ascii_lowercase())
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
}

fn texts(value: Option<Value>, what: &str, faults: &mut Vec<String>) -> Vec<String> {
    let Some(value) = value else { return Vec::new() };
    let texts = value
        .as_array()
        .map(|values| values.iter().map(|value| value.as_str().map(str::to_owned)).collect::<Option<Vec<String>>>());
    texts.flatten().unwrap_or_else(|| {
        faults.push(format!("{what} must be an array of texts"));
        Vec::new()
    })
}

fn environment(value: Option<Value>, faults: &mut Vec<String>) -> Vec<(String, SecretString)> {
    let declared = match value {
        None => return Vec::new(),
        Some(Value::Table(table)) => table.into_iter().collect::<BTreeMap<_, _>>(),
        Some(_) => {
            faults.push("env must be a table".to_owned());
            return Vec::new();
        }
    };
    let mut env = Vec::new();
    for (name, value) in declared {
        let is_name = !name.is_empty() && !name.contains(['=', '\0']);
        match value {
            Value::String(value) if is_name && !value.contains('\0') => env.push((name, SecretString::from(value))),
            _ => faults.push(format!("env.{name} must be a text")),
        }
    }
    env
}

fn tenants(value: Value, faults: &mut Vec<String>) -> Vec<TenantId> {
    let names = texts(Some(value), "tenants", faults);
    let tenants: Option<Vec<TenantId>> = names.iter().map(|name| TenantId::parse(name.as_str())).collect();
    tenants.unwrap_or_else(|| {
        faults.push("tenants must be names of tenants".to_owned());
        Vec::new()
    })
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret as _;

    use super::*;

    #[test]
    fn a_server_is_read_with_everything_that_it_declares() {
        let servers = parse(
            r#"
            [mcp_servers.files]
            command = "/usr/bin/serve"
            args = ["stdio", "/srv"]
            env = { TOKEN = "hunter2" }
            cwd = "/srv"
            tenants = ["acme"]
            replay = { read = "idempotent" }
            side_effect_class = { pay = "irreversible_action" }
            timeouts = { call_ms = 5000 }
            [mcp_servers.clock]
            command = "clock"
            "#,
        );
        let servers = servers.unwrap().servers;
        let files = servers.iter().find(|server| server.name == "files").unwrap();
        assert_eq!(
            (files.command.as_str(), files.args.as_slice()),
            ("/usr/bin/serve", &["stdio".into(), "/srv".into()][..])
        );
        assert_eq!(files.env[0].1.expose_secret(), "hunter2");
        assert_eq!(files.cwd.as_deref(), Some(Path::new("/srv")));
        assert_eq!(files.tenants.as_ref().map(Vec::len), Some(1));
        assert_eq!(files.replay.as_ref().and_then(|replay| replay.of("read")), Some(Replay::Idempotent));
        assert_eq!(
            files.side_effect_class,
            Some(PerTool::Each([("pay".to_owned(), SideEffectClass::IrreversibleAction)].into()))
        );
        assert_eq!((files.timeouts.call_ms, files.timeouts.connect_ms), (5_000, 10_000));
        let clock = servers.iter().find(|server| server.name == "clock").unwrap();
        assert!(clock.args.is_empty() && clock.env.is_empty() && clock.cwd.is_none() && clock.tenants.is_none());
        assert!(!format!("{servers:?}").contains("hunter2"));
    }

    #[test]
    fn every_fault_is_named_at_once_and_no_value_is_shown() {
        let faults = parse(
            r#"
            prices = 1
            policies = 1
            [mcp_servers.payer]
            command = "pay"
            replay = "idempotent"
            side_effect_class = "irreversible_action"
            [mcp_servers.Files]
            command = ""
            args = "hunter2"
            env = { TOKEN = 41414141 }
            cwd = "srv"
            tenants = ["", 5]
            replay = "twice"
            side_effect_class = { x = "harmless" }
            timeouts = { call_ms = 0 }
            shell = true
            "#,
        );
        let text = faults.unwrap_err().join("\n");
        let named = [
            "prices is no table",
            "policies is not",
            "its name must",
            "command must",
            "args must",
            "env.TOKEN must",
            "cwd must",
        ];
        let more = [
            "tenants must",
            "replay must",
            "side_effect_class must",
            "timeouts must",
            "an irreversible action cannot",
            "shell is not a setting",
        ];
        for part in named.into_iter().chain(more) {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("hunter2") && !text.contains("4141"), "{text}");
        assert_eq!(parse("a = 1\nb = hunter2").unwrap_err(), ["line 2 is no TOML"]);
    }
}
