//! The headers of a connection that a tenant chose: what belongs to the protocol or to one hop is refused.

use std::collections::HashMap;

use http::{HeaderName, HeaderValue};
use secrecy::ExposeSecret as _;

use super::wire::IDEMPOTENCY_KEY;
use super::{FaultKind, McpFault, McpTarget};

/// Plain headers, and the one that carries the secret.
///
/// # Errors
/// A name or a value that no header has, or that may not be set.
pub(super) fn headers_of(target: &McpTarget) -> Result<HashMap<HeaderName, HeaderValue>, McpFault> {
    let mut headers = HashMap::new();
    for (name, value) in &target.headers {
        insert_header(&mut headers, name, value, false)?;
    }
    if let Some((name, secret)) = &target.secret_header {
        insert_header(&mut headers, name, secret.expose_secret(), true)?;
    }
    Ok(headers)
}

/// Headers that belong to the protocol or to one hop; a tenant's value would break or bend the exchange.
const RESERVED: [&str; 14] = [
    "accept",
    "connection",
    "content-length",
    "content-type",
    "host",
    "idempotency-key",
    "keep-alive",
    "last-event-id",
    "mcp-method",
    "mcp-protocol-version",
    "mcp-session-id",
    "te",
    "transfer-encoding",
    "upgrade",
];

fn insert_header(
    headers: &mut HashMap<HeaderName, HeaderValue>,
    name: &str,
    value: &str,
    is_secret: bool,
) -> Result<(), McpFault> {
    let name = HeaderName::try_from(name)
        .map_err(|_invalid| McpFault::of(FaultKind::Forbidden, format!("'{name}' is no header name")))?;
    if RESERVED.contains(&name.as_str()) || name == IDEMPOTENCY_KEY {
        return Err(McpFault::of(FaultKind::Forbidden, format!("the header '{name}' may not be set")));
    }
    let mut value = HeaderValue::try_from(value).map_err(|_invalid| {
        McpFault::of(FaultKind::Forbidden, format!("the value of the header '{name}' cannot be sent"))
    })?;
    value.set_sensitive(is_secret);
    headers.insert(name, value);
    Ok(())
}
