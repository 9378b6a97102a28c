//! Opens connections of either transport, and remembers which servers speak only the older era.

use dashmap::DashMap;

use crate::mcp::connection::Connection;
use crate::mcp::stdio::{self, Children};
use crate::mcp::{Endpoint, McpFault, McpTarget, PoolSettings};
use crate::net::Egress;

/// Remembered eras; beyond that all are forgotten, which costs one question per server.
const ERAS_MAX: usize = 10_000;

/// Opens connections.
pub(super) struct Dialer {
    http: reqwest::Client,
    egress: Egress,
    settings: PoolSettings,
    /// Servers that speak only the older era: they are not asked again. By address.
    old_era: DashMap<String, ()>,
    pub(super) children: Children,
}

impl Dialer {
    pub(super) fn new(http: reqwest::Client, egress: Egress, settings: PoolSettings, children: Children) -> Self {
        Self { http, egress, settings, old_era: DashMap::new(), children }
    }

    /// Opens a connection within the target's connect time.
    ///
    /// # Errors
    /// What went wrong, in words without secrets.
    pub(super) async fn open(&self, target: &McpTarget) -> Result<Connection, McpFault> {
        let (server, is_old_era) = match &target.endpoint {
            Endpoint::Http(url) => (url.as_str().to_owned(), self.old_era.contains_key(url.as_str())),
            Endpoint::Stdio(_) => {
                let server = target.endpoint.server();
                let is_old_era = self.old_era.contains_key(&server);
                (server, is_old_era)
            }
        };
        let opened = match &target.endpoint {
            Endpoint::Http(url) => {
                let clients = (&self.http, &self.egress);
                Connection::open_http(clients, url, target, self.settings, is_old_era).await
            }
            Endpoint::Stdio(server) => stdio::open(server, &self.children, target, self.settings, is_old_era).await,
        };
        self.remember(&server, &opened);
        let transport = target.endpoint.transport();
        match &opened {
            Ok(_) => metrics::counter!("countersign_mcp_connects_total", "transport" => transport).increment(1),
            Err(fault) => {
                let labels = [("transport", transport), ("kind", fault.kind.code())];
                metrics::counter!("countersign_mcp_connect_failures_total", &labels).increment(1);
            }
        }
        opened
    }

    fn remember(&self, server: &str, opened: &Result<Connection, McpFault>) {
        match opened {
            Ok(connection) if connection.has_sessions() => {
                if self.old_era.len() >= ERAS_MAX {
                    self.old_era.clear();
                }
                self.old_era.insert(server.to_owned(), ());
            }
            // The server may have moved on since: ask it again next time.
            Ok(_) | Err(_) => drop(self.old_era.remove(server)),
        }
    }
}
