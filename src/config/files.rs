//! How many files this process may have open, sockets among them: the system's limit is raised as far as it goes, and
//! what the settings allow beyond it is cut, so that no tenant takes the last one.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::Config;
use super::Setting;
use super::connections::{MAX_CONNECTIONS, MCP_SERVER_CONNECTIONS, MCP_TENANT_CONNECTIONS, McpConnections};

/// Files that are kept for the database, the log, the listener and the like.
const KEPT: u64 = 256;
/// One tenant's connections to MCP servers may take such a part of the others: one connection may be several sockets,
/// there are callers too, and other tenants.
const SHARE: u64 = 4;
/// Callers may take such a part.
const CALLERS: u64 = 2;

/// Raises the limit as far as this process may, and says what holds then; `None`: there is no limit.
pub fn raise_open_files() -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return limit.current;
    }
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum,
        Err(error) => {
            tracing::warn!(%error, "the limit of open files could not be raised");
            limit.current
        }
    }
}

/// The limit that `raise_open_files` can reach.
fn most_open_files() -> Option<u64> {
    getrlimit(Resource::Nofile).maximum
}

impl Config {
    /// What of the settings does not fit the open files that this process may have.
    pub fn unfitting(env: &impl Fn(&str) -> Option<String>) -> Vec<String> {
        Self::from_env(env).map_or_else(|_faults| Vec::new(), |mut config| config.fit_open_files(most_open_files()))
    }

    /// Cuts what does not fit so many open files, and says of each setting so.
    pub fn fit_open_files(&mut self, files: Option<u64>) -> Vec<String> {
        let Some(files) = files else { return Vec::new() };
        let mut said = self.mcp_connections.fit(files);
        said.extend(fit(&MAX_CONNECTIONS, &mut self.max_connections, CALLERS, files));
        said
    }
}

impl McpConnections {
    pub(super) fn fit(&mut self, files: u64) -> Vec<String> {
        let both = [(MCP_TENANT_CONNECTIONS, &mut self.tenant), (MCP_SERVER_CONNECTIONS, &mut self.server)];
        both.into_iter().filter_map(|(setting, value)| fit(&setting, value, SHARE, files)).collect()
    }
}

/// Cuts connections that do not fit their part of so many files, and says so.
fn fit(setting: &Setting, value: &mut u32, part: u64, files: u64) -> Option<String> {
    let most = u32::try_from(files.saturating_sub(KEPT).checked_div(part)?).unwrap_or(u32::MAX).max(1);
    let said = (*value > most).then(|| {
        format!(
            "{}: {value} connections do not fit {files} open files, {most} hold; raise the limit of open files \
             (ulimit -n, LimitNOFILE) or set it lower",
            setting.name
        )
    });
    *value = most.min(*value);
    said
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_that_do_not_fit_are_cut_and_the_settings_named() {
        let mut connections = McpConnections { tenant: 1_000, server: 200, idle_s: 300 };
        assert_eq!(connections.fit(1_048_576), Vec::<String>::new());
        let said = connections.fit(1_024);
        assert_eq!((connections.tenant, connections.server), (192, 192));
        assert!(
            said[0].starts_with("COUNTERSIGN_MCP_TENANT_CONNECTIONS: 1000 connections do not fit 1024"),
            "{said:?}"
        );
        assert!(said[1].starts_with("COUNTERSIGN_MCP_SERVER_CONNECTIONS: 200"), "{said:?}");
        assert_eq!(connections.fit(10).len(), 2);
        assert_eq!((connections.tenant, connections.server), (1, 1));
    }
}
