//! How many connections to MCP servers one node may have open for one tenant.

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

/// Most connections that can be allowed.
const MOST: u32 = 1_000_000;

/// Connections to MCP servers that one node may have open for one tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct McpConnections {
    /// To all servers.
    pub tenant: u32,
    /// To one server.
    pub server: u32,
}

pub(super) fn mcp_connections(reader: &mut Reader<'_>) -> Option<McpConnections> {
    let tenant = reader.number(&MCP_TENANT_CONNECTIONS, 1, MOST);
    let server = reader.number(&MCP_SERVER_CONNECTIONS, 1, MOST);
    Some(McpConnections { tenant: tenant?, server: server? })
}
