//! The servers that the operator declared, and which tenants may use them.
//!
//! A name belongs to one of both. A tenant cannot register a name that is declared; one that it had registered before
//! stays its own, so that a declaration never leads a tenant's calls and secrets somewhere else.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::mcp::StdioServer;
use crate::run::asking::Elicitation;
use crate::run::ids::TenantId;
use crate::run::spec::{McpEntry, PerTool, Replay, SideEffectClass, Timeouts};

/// The servers that the operator declared, by name.
#[derive(Clone, Debug, Default)]
pub struct Declared(BTreeMap<String, (Arc<StdioServer>, Terms)>);

/// On what terms a declared server is used.
#[derive(Clone, Debug, Default)]
pub struct Terms {
    /// Who may use it; `None`: everybody.
    pub tenants: Option<BTreeSet<TenantId>>,
    /// Which of its tools are safe to repeat.
    pub replay: Option<PerTool<Replay>>,
    /// What its tools may do to the world.
    pub side_effect_class: Option<PerTool<SideEffectClass>>,
    /// Whether it may ask people.
    pub elicitation: Elicitation,
    /// Its time limits.
    pub timeouts: Timeouts,
}

impl Declared {
    /// Adds a server.
    pub fn add(&mut self, server: StdioServer, terms: Terms) {
        self.0.insert(server.name.clone(), (Arc::new(server), terms));
    }

    /// Whether a server of that name is declared for anybody.
    pub(super) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// The server of that name, if the tenant may use it. One that it may not use does not exist for it.
    pub(super) fn find(&self, tenant: &TenantId, name: &str) -> Option<(Arc<StdioServer>, McpEntry)> {
        let (server, terms) = self.0.get(name)?;
        let may = terms.tenants.as_ref().is_none_or(|tenants| tenants.contains(tenant));
        may.then(|| (Arc::clone(server), entry_on(terms)))
    }
}

/// The entry of a declared server: nothing of it is relaxed that the operator did not relax.
fn entry_on(terms: &Terms) -> McpEntry {
    McpEntry {
        server: None,
        url: None,
        namespace: None,
        auth: None,
        headers: BTreeMap::new(),
        tools: None,
        input_schemas: BTreeMap::new(),
        replay: terms.replay.clone(),
        side_effect_class: terms.side_effect_class.clone(),
        trust_annotations: false,
        require_approval: None,
        own_class: None,
        policies: Vec::new(),
        required: true,
        timeouts: terms.timeouts,
        elicitation: terms.elicitation,
        sampling: None,
    }
}
