//! Marks of the places that calls go to: a call is bound to the one that it was judged for (records 33 and 39).

use std::time::Duration;

use serde_json::json;
use url::Url;

use super::Dispatch;
use crate::mcp::StdioServer;
use crate::run::binding::Binding;
use crate::run::ids::TenantId;
use crate::run::json::sha256_hex;
use crate::run::spec::McpEntry;

pub(super) fn address_of(entry: &McpEntry) -> Result<Url, String> {
    let address = entry.url.as_deref().ok_or("the entry names no address")?;
    Url::parse(address).map_err(|fault| format!("the address is not a URL: {fault}"))
}

/// A mark of the place that an entry leads to: the whole address, the headers, and as whom (by the secret's name: another
/// value of it is the same place). It says nothing of them.
pub(super) fn place_at(url: &Url, entry: &McpEntry) -> String {
    let mut url = url.clone();
    url.set_fragment(None);
    sha256_hex(&json!([url.as_str(), &entry.headers, &entry.auth]).to_string())
}

pub(super) fn place_in(server: &StdioServer) -> String {
    sha256_hex(&format!("stdio {}", server.name))
}

/// The place of a call whose server led nowhere when it was judged: it is sent nowhere.
pub(super) const NOWHERE: &str = "nowhere";

impl Dispatch {
    /// A mark of the place where a call of that tool goes now; `None`: it goes to no server. What is judged, and approved, is
    /// a call to that place: it is compared before anything leaves.
    ///
    /// # Errors
    /// The store does not answer, in words. That is no fact about the call: ask again.
    pub async fn place(&self, tenant: &TenantId, binding: &Binding, tool: &str) -> Result<Option<String>, String> {
        let Some(entry) = binding.tool(tool).and_then(|tool| binding.entry_of(tool)) else { return Ok(None) };
        let place = match &entry.server {
            None => address_of(entry).map(|url| place_at(&url, entry)),
            Some(name) => match self.server(tenant, name, Duration::MAX).await {
                Ok(Some(server)) => match &server.process {
                    Some(process) => Ok(place_in(process)),
                    None => address_of(&server.entry).map(|url| place_at(&url, &server.entry)),
                },
                Ok(None) => Err(format!("there is no registered server named '{name}' any more")),
                Err(fault) if fault.is_passing => return Err(fault.message),
                Err(fault) => Err(fault.message),
            },
        };
        let place =
            place.inspect_err(|why| tracing::warn!(server = entry.label(), %why, "a call is judged for no place"));
        Ok(Some(place.unwrap_or_else(|_why| NOWHERE.to_owned())))
    }
}
