//! What a run was bound to, revision by revision, as callers read it: no address with its query, no value of a header.

use std::collections::BTreeMap;

use serde::Serialize;
use utoipa::ToSchema;

use crate::run::binding::{Binding, CatalogRecord, Drift};
use crate::run::spec::{McpAuth, McpEntry, PerTool, Replay, SideEffectClass};
use crate::run::time::Timestamp;

/// What a run was bound to from one time on.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct BindingRevision {
    /// Counts from 1.
    revision: u32,
    /// When the run was bound to it.
    at: Option<Timestamp>,
    /// The servers.
    entries: Vec<BoundEntry>,
    /// The record of the servers' tools; null when there is none.
    mcp: Option<CatalogRecord>,
    /// Names that came with it.
    added: Vec<String>,
    /// Names that went with it.
    removed: Vec<String>,
    /// Names whose description or input schema changed with it.
    changed: Vec<String>,
}

/// A server of a run.
#[derive(Clone, Debug, Serialize, ToSchema)]
struct BoundEntry {
    /// What it is called: its namespace, else its name, else its address without the query.
    label: String,
    /// The prefix of its tools.
    namespace: Option<String>,
    /// The name of a registered server.
    server: Option<String>,
    /// How it is told who asks; only ever the name of a secret.
    auth: Option<McpAuth>,
    /// The headers that are sent to it, by name.
    headers: Vec<String>,
    /// The tools that are taken of it; null for all.
    tools: Option<Vec<String>>,
    /// Which tools are safe to repeat.
    replay: Option<PerTool<Replay>>,
    /// What the tools may do to the world, as declared.
    side_effect_class: Option<PerTool<SideEffectClass>>,
    /// The same as it holds for each tool, by its offered name.
    tool_classes: BTreeMap<String, SideEffectClass>,
    /// Whether the server is believed about what was not declared.
    trust_annotations: bool,
    /// Whether the run needs it.
    required: bool,
}

impl BindingRevision {
    /// A revision, and how it differs from the one before.
    pub(super) fn new(binding: Binding, before: Option<&Binding>) -> Self {
        let Drift { added, removed, changed } =
            before.map_or_else(Drift::default, |before| binding.changes_since(before));
        let entries = binding.entries.iter().enumerate().map(|(at, entry)| BoundEntry::new(at, entry, &binding));
        Self {
            revision: binding.revision,
            at: binding.at,
            entries: entries.collect(),
            mcp: binding.mcp,
            added,
            removed,
            changed,
        }
    }
}

impl BoundEntry {
    fn new(at: usize, entry: &McpEntry, binding: &Binding) -> Self {
        let own = binding.tools.iter().filter(|tool| tool.entry() == Some(at));
        Self {
            label: entry.label().to_owned(),
            namespace: entry.namespace.clone(),
            server: entry.server.clone(),
            auth: entry.auth.clone(),
            headers: entry.headers.keys().cloned().collect(),
            tools: entry.tools.clone(),
            replay: entry.replay.clone(),
            side_effect_class: entry.side_effect_class.clone(),
            tool_classes: own.map(|tool| (tool.name.clone(), tool.class)).collect(),
            trust_annotations: entry.trust_annotations,
            required: entry.required,
        }
    }
}
