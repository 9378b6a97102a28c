//! The servers that the operator declared, and which tenants may use them.
//!
//! A name belongs to one of both. A tenant cannot register a name that is declared; one that it had registered before
//! stays its own, so that a declaration never leads a tenant's calls and secrets somewhere else.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::mcp::StdioServer;
use crate::run::asking::Elicitation;
use crate::run::ids::TenantId;
use crate::run::spec::{McpEntry, Timeouts};

/// The servers that the operator declared, by name.
#[derive(Clone, Debug, Default)]
pub struct Declared(BTreeMap<String, (Arc<StdioServer>, Option<BTreeSet<TenantId>>)>);

impl Declared {
    /// Adds a server; `tenants` may use it, or everybody.
    pub fn add(&mut self, server: StdioServer, tenants: Option<BTreeSet<TenantId>>) {
        self.0.insert(server.name.clone(), (Arc::new(server), tenants));
    }

    /// Whether a server of that name is declared for anybody.
    pub(super) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// The server of that name, if the tenant may use it. One that it may not use does not exist for it.
    pub(super) fn find(&self, tenant: &TenantId, name: &str) -> Option<&Arc<StdioServer>> {
        let (server, tenants) = self.0.get(name)?;
        tenants.as_ref().is_none_or(|tenants| tenants.contains(tenant)).then_some(server)
    }
}

/// The entry of a declared server: nothing of it is relaxed.
pub(super) fn declared_entry() -> McpEntry {
    McpEntry {
        server: None,
        url: None,
        namespace: None,
        auth: None,
        headers: BTreeMap::new(),
        tools: None,
        input_schemas: BTreeMap::new(),
        replay: None,
        side_effect_class: None,
        trust_annotations: false,
        require_approval: None,
        own_class: None,
        policies: Vec::new(),
        required: true,
        timeouts: Timeouts::default(),
        elicitation: Elicitation::Deny,
        sampling: None,
    }
}
