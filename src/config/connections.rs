//! How many connections to MCP servers one node may have open for one tenant, and for how long.

use super::reader::Reader;
use super::{Setting, plain};

pub(super) const MCP_TENANT_CONNECTIONS: Setting = plain(
    "COUNTERSIGN_MCP_TENANT_CONNECTIONS",
    Some("1000"),
    "connections to MCP servers that this node may have open for one tenant",
);
pub(super) const MCP_SERVER_CONNECTIONS: Setting = plain(
    "COUNTERSIGN_MCP_SERVER_CONNECTIONS",
    Some("200"),
    "connections to one MCP server that this node may have open for one tenant",
);

pub(super) const MCP_IDLE_S: Setting = plain(
    "COUNTERSIGN_MCP_IDLE_S",
    Some("300"),
    "seconds after which a connection to an MCP server that nobody uses is closed",
);

/// Most seconds that an unused connection can be kept.
const IDLE_MOST: u32 = 24 * 60 * 60;

/// Most connections that can be allowed.
const MOST: u32 = 1_000_000;

/// Connections to MCP servers that one node may have open for one tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct McpConnections {
    /// To all servers.
    pub tenant: u32,
    /// To one server.
    pub server: u32,
    /// Seconds after which one that nobody uses is closed.
    pub idle_s: u32,
}

pub(super) fn mcp_connections(reader: &mut Reader<'_>) -> Option<McpConnections> {
    let tenant = reader.number(&MCP_TENANT_CONNECTIONS, 1, MOST);
    let server = reader.number(&MCP_SERVER_CONNECTIONS, 1, MOST);
    let idle_s = reader.number(&MCP_IDLE_S, 1, IDLE_MOST);
    Some(McpConnections { tenant: tenant?, server: server?, idle_s: idle_s? })
}
