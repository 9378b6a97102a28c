//! How many connections one node may have open: of its callers, and for one tenant to MCP servers; and how many bytes of
//! large results it takes in over them.

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

pub(super) const RESULTS_IN_FLIGHT_BYTES: Setting = plain(
    "COUNTERSIGN_RESULTS_IN_FLIGHT_BYTES",
    Some("134217728"),
    "bytes of large tool results that this node takes in at once",
);

pub(super) const MAX_CONNECTIONS: Setting =
    plain("COUNTERSIGN_MAX_CONNECTIONS", Some("10000"), "connections of callers that this node has open at once");

/// Fewest bytes in flight: two of the largest answers for each of two tenants.
const LEAST_IN_FLIGHT: u32 = 64 * 1024 * 1024;

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

pub(super) fn results_in_flight(reader: &mut Reader<'_>) -> Option<u32> {
    reader.number(&RESULTS_IN_FLIGHT_BYTES, LEAST_IN_FLIGHT, u32::MAX)
}

pub(super) fn max_connections(reader: &mut Reader<'_>) -> Option<u32> {
    reader.number(&MAX_CONNECTIONS, 1, MOST)
}

pub(super) fn mcp_connections(reader: &mut Reader<'_>) -> Option<McpConnections> {
    let tenant = reader.number(&MCP_TENANT_CONNECTIONS, 1, MOST);
    let server = reader.number(&MCP_SERVER_CONNECTIONS, 1, MOST);
    let idle_s = reader.number(&MCP_IDLE_S, 1, IDLE_MOST);
    Some(McpConnections { tenant: tenant?, server: server?, idle_s: idle_s? })
}
