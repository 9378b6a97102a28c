//! The servers that the operator declared, and which tenants may use them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::mcp::StdioServer;
use crate::run::ids::TenantId;

/// The servers that the operator declared, by name.
#[derive(Clone, Debug, Default)]
pub struct Declared(BTreeMap<String, (Arc<StdioServer>, Option<BTreeSet<TenantId>>)>);

impl Declared {
    /// Adds a server; `tenants` may use it, or everybody.
    pub fn add(&mut self, server: StdioServer, tenants: Option<BTreeSet<TenantId>>) {
        self.0.insert(server.name.clone(), (Arc::new(server), tenants));
    }

    /// The server of that name, if the tenant may use it. One that it may not use does not exist for it.
    pub fn find(&self, tenant: &TenantId, name: &str) -> Option<&Arc<StdioServer>> {
        let (server, tenants) = self.0.get(name)?;
        tenants.as_ref().is_none_or(|tenants| tenants.contains(tenant)).then_some(server)
    }
}
