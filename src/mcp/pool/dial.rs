//! Opens connections of either transport, and remembers which servers speak only the older era.

use std::sync::Arc;

use crate::bulk::Share;
use crate::mcp::connection::Connection;
use crate::mcp::era::Eras;
use crate::mcp::stdio::{self, Children};
use crate::mcp::{Endpoint, McpFault, McpTarget, PoolSettings};
use crate::net::EgressClient;

/// Opens connections.
pub(super) struct Dialer {
    http: EgressClient,
    settings: PoolSettings,
    eras: Arc<Eras>,
    pub(super) children: Children,
}

impl Dialer {
    pub(super) fn new(http: EgressClient, settings: PoolSettings, children: Children) -> Self {
        Self { http, settings, eras: Arc::default(), children }
    }

    /// Opens a connection of a tenant that may take so much in, within the target's connect time.
    ///
    /// # Errors
    /// What went wrong, in words without secrets.
    pub(super) async fn open(&self, target: &McpTarget, share: &Share) -> Result<Connection, McpFault> {
        let settings = (self.settings, share);
        let opened = match &target.endpoint {
            Endpoint::Http(url) => Connection::open_http(&self.http, url, target, settings, &self.eras).await,
            Endpoint::Stdio(server) => stdio::open(server, &self.children, target, settings, &self.eras).await,
        };
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
}
