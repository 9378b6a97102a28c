//! Registers MCP servers, deletes registrations, and looks at a server.

use std::sync::Arc;

use serde_json::json;
use url::Url;

use super::faults::{Faults, Given};
use super::registration::{PutServer, Transport};
use super::{Asker, CommandError, Commands, Fault, entry};
use crate::dispatch::Sighting;
use crate::run::binding::{CatalogRecord, Warning, merge};
use crate::run::spec::McpEntry;
use crate::schema::Budget;
use crate::secrets::RunSecrets;
use crate::store::registry::{RegisteredServer, Registration, ServerPut};

/// The query that stands in a shown address for the real one.
const HIDDEN_QUERY: &str = "redacted";

/// What a look at a server showed.
#[derive(Clone, Debug)]
pub struct Probe {
    /// What the server said of itself.
    pub sighting: Sighting,
    /// The record of its tools, as a run with this server alone would have it.
    pub record: CatalogRecord,
    /// Listed tools that it lacks.
    pub warnings: Vec<Warning>,
}

impl Commands {
    /// Registers a server, or replaces its registration. Runs that are bound to it keep what was declared; where it is and
    /// what it is told they take from here at their next use of it.
    ///
    /// # Errors
    /// `Invalid`, `NameDeclared`, `NotLookedUp`, `Store`; nothing is stored then.
    pub async fn server_put(
        &self,
        asker: &Asker,
        name: &str,
        request: impl Into<Given<PutServer>>,
    ) -> Result<RegisteredServer, CommandError> {
        let entry =
            request.into().check(async |request, faults| self.check_server(asker, name, request, faults).await).await?;
        if self.dispatch.is_declared(name) {
            return Err(CommandError::NameDeclared);
        }
        let audit = self.tenant_row(asker, "mcp-server.put", name, detail(&entry));
        let registration = Registration { entry };
        match self.store.server_put(&asker.tenant, name, &registration, &audit).await? {
            ServerPut::Stored(server) => {
                self.dispatch.registry_changed();
                Ok(*server)
            }
            ServerPut::NoSecret => {
                let fault = Fault::at("/auth/secret", "there is no secret of this name any more");
                Err(CommandError::Invalid(vec![fault]))
            }
        }
    }

    async fn check_server(
        &self,
        asker: &Asker,
        name: &str,
        request: PutServer,
        mut faults: Faults,
    ) -> Result<McpEntry, CommandError> {
        faults.require(entry::is_server_name(name), "", "the name must match [a-z][a-z0-9-]{0,31}");
        let (request, transport, policies) = request.split();
        let is_http = transport.unwrap_or_default() == Transport::StreamableHttp;
        let stdio = "stdio servers run on the operator's machines: the operator declares them, not the API";
        faults.require(is_http, "/transport", stdio);
        self.check_schemas(asker, &request, "", &mut Budget::of_set(), &mut faults).await?;
        let entry = entry::check(request, "", &mut faults).map(|entry| McpEntry { policies, ..entry });
        if let Some(entry) = &entry {
            self.check_own_policies(&asker.tenant, &entry.policies, name, entry, &mut faults).await?;
            self.check_address(entry, "", &mut faults);
            let is_hidden = entry.url.as_deref().and_then(query_of).is_some_and(|query| query == HIDDEN_QUERY);
            faults.require(!is_hidden, "/url", "has a query that was hidden when it was shown: give it whole");
            if let Some(auth) = &entry.auth {
                self.check_stored_for(asker, auth, entry, "/auth/secret", &mut faults).await?;
            }
            self.check_sampling(asker, entry, Some(&RunSecrets::new()), "", &mut faults).await?;
        }
        faults.finish()?;
        entry.ok_or_else(|| CommandError::Invalid(vec![Fault::at("/url", "is required")]))
    }

    /// Deletes a registration. Runs that are bound to the server cannot reach it any more.
    ///
    /// # Errors
    /// `Missing`, `Store`.
    pub async fn server_delete(&self, asker: &Asker, name: &str) -> Result<(), CommandError> {
        let audit = self.tenant_row(asker, "mcp-server.delete", name, json!({}));
        if !entry::is_server_name(name) || !self.store.server_delete(&asker.tenant, name, &audit).await? {
            return Err(NO_SERVER);
        }
        self.dispatch.registry_changed();
        Ok(())
    }

    /// Connects to a registered server and looks at it.
    ///
    /// # Errors
    /// `Missing`, `Unreachable`.
    pub async fn server_probe(&self, asker: &Asker, name: &str) -> Result<Probe, CommandError> {
        if !entry::is_server_name(name) {
            return Err(NO_SERVER);
        }
        let seen = self.dispatch.sight(&asker.tenant, name).await;
        let (entry, sighting) = seen.map_err(|why| why.map_or(NO_SERVER, CommandError::Unreachable))?;
        // A server of whose tools none are taken is looked at too.
        let (binding, warnings) = merge(vec![entry], &[Some(Arc::clone(&sighting.catalog))]);
        let record = binding.mcp.unwrap_or_else(|| CatalogRecord::of([]));
        Ok(Probe { sighting, record, warnings })
    }
}

const NO_SERVER: CommandError = CommandError::Missing("there is no such MCP server");

/// What the audit keeps of a registration.
fn detail(entry: &McpEntry) -> serde_json::Value {
    json!({ "url": entry.url.as_deref().map(without_query), "auth": entry.auth })
}

fn query_of(address: &str) -> Option<String> {
    Url::parse(address).ok()?.query().map(str::to_owned)
}

/// The address as it is shown: what follows its `?` may be a secret.
pub fn without_query(address: &str) -> String {
    let Ok(mut url) = Url::parse(address) else { return String::new() };
    if url.query().is_some() {
        url.set_query(Some(HIDDEN_QUERY));
    }
    url.set_fragment(None);
    url.to_string()
}
