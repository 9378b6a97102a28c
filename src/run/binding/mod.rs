//! What a run is bound to: the tools that its model is offered, and the record of the servers' catalogs.
//!
//! The record is a fingerprint of the merged, namespaced tools, taken before anything local shadows a name.
//! A resume compares what the servers serve now with the record, so a model never goes on with tools that
//! somebody changed behind its back.

mod merge;
mod record;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::call::{Backend, CallTarget};
use super::offer::Offer;
use super::spec::{McpEntry, SideEffectClass};
use super::time::Timestamp;

pub use merge::merge;
pub use record::{CatalogRecord, Drift, tool_hash};

/// One tool as a server lists it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ServedTool {
    /// The server's own name.
    pub name: String,
    /// What the server says it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// JSON Schema of its arguments.
    pub input_schema: Value,
    /// JSON Schema of its structured result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_schema: Option<Value>,
    /// What the server claims about its effects; believed only where the caller says so.
    #[serde(default)]
    pub hints: Hints,
    /// Why it cannot be offered to any model; it stays in the record.
    #[serde(default)]
    pub unusable: Option<String>,
    /// What of it was left out, for people.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// What a server claims about the effects of a tool (its annotations). Nothing of it is part of the record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hints {
    /// `readOnlyHint`: it changes nothing.
    pub read_only: Option<bool>,
    /// `destructiveHint`: it may destroy something.
    pub destructive: Option<bool>,
    /// `idempotentHint`: repeating it is harmless.
    pub idempotent: Option<bool>,
}

impl Hints {
    /// The class that the claims come to, for a server that is believed. A claim that contradicts another counts for
    /// nothing.
    pub const fn class(&self) -> SideEffectClass {
        match (self.read_only, self.destructive, self.idempotent) {
            (Some(true), None | Some(false), _) => SideEffectClass::ReadOnly,
            (None | Some(false), _, Some(true)) => SideEffectClass::IdempotentWrite,
            _ => SideEffectClass::NonIdempotentWrite,
        }
    }
}

/// All pages of one server's tools, in the server's order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ServedCatalog {
    /// The tools.
    pub tools: Vec<ServedTool>,
    /// What was listed and cannot even be named, e.g. `a tool without a name`.
    #[serde(default)]
    pub unnamed: Vec<String>,
}

/// Who carries out a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolSource {
    /// An MCP server.
    Mcp {
        /// Index of the server in the binding's `entries`.
        entry: usize,
        /// The name that the server knows.
        server_tool: String,
    },
    /// Nobody that the run's entries name: the tool was declared with the run itself.
    Local {
        /// Which kind of counterpart.
        backend: Backend,
        /// The name that the worker knows; of a client tool the offered one.
        tool: String,
        /// Which version of it; `None` for a client tool.
        version: Option<String>,
    },
}

/// One tool as the model is offered it, with the way back to whoever carries it out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "StoredTool", into = "StoredTool")]
pub struct BoundTool {
    /// The name offered to the model.
    pub name: String,
    /// Who carries it out.
    pub source: ToolSource,
    /// What it is said to do.
    pub description: Option<String>,
    /// JSON Schema of its arguments, as served or declared.
    pub input_schema: Value,
    /// JSON Schema of its structured result, as served: metadata, checked by the connection.
    pub output_schema: Option<Value>,
    /// The caller's stricter schema, checked besides the server's.
    pub own_schema: Option<Value>,
    /// What it may do to the world.
    pub class: SideEffectClass,
    /// Whether the caller declared that a repeat is harmless.
    pub replay: bool,
    /// Whether it was declared that each call of it needs an approval.
    pub needs_approval: bool,
    /// How it is offered, where that differs from how it is served.
    pub offer: Offer,
}

impl BoundTool {
    /// The index of its server in the binding's `entries`.
    pub const fn entry(&self) -> Option<usize> {
        match &self.source {
            ToolSource::Mcp { entry, .. } => Some(*entry),
            ToolSource::Local { .. } => None,
        }
    }

    /// The digest of its definition, as it stands in the record of what is served.
    pub fn digest(&self) -> String {
        tool_hash(self.recorded_name(), self.description.as_deref(), &self.input_schema)
    }

    /// Whether an MCP server serves it.
    pub const fn is_served(&self) -> bool {
        self.entry().is_some()
    }
}

/// A bound tool as it is stored: flat.
#[derive(Serialize, Deserialize)]
struct StoredTool {
    name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    server_tool: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    entry: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    backend: Option<Backend>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    version: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    description: Option<String>,
    input_schema: Value,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    output_schema: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    own_schema: Option<Value>,
    class: SideEffectClass,
    replay: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    needs_approval: bool,
    #[serde(default, skip_serializing_if = "Offer::is_plain")]
    offer: Offer,
}

impl From<BoundTool> for StoredTool {
    fn from(tool: BoundTool) -> Self {
        let (entry, server_tool, backend, version) = match tool.source {
            ToolSource::Mcp { entry, server_tool } => (Some(entry), Some(server_tool), None, None),
            ToolSource::Local { backend, tool, version } => (None, Some(tool), Some(backend), version),
        };
        Self {
            name: tool.name,
            server_tool,
            entry,
            backend,
            version,
            description: tool.description,
            input_schema: tool.input_schema,
            output_schema: tool.output_schema,
            own_schema: tool.own_schema,
            class: tool.class,
            replay: tool.replay,
            needs_approval: tool.needs_approval,
            offer: tool.offer,
        }
    }
}

impl TryFrom<StoredTool> for BoundTool {
    type Error = &'static str;

    fn try_from(stored: StoredTool) -> Result<Self, Self::Error> {
        let source = match (stored.entry, stored.server_tool, stored.backend) {
            (Some(entry), Some(server_tool), None) => ToolSource::Mcp { entry, server_tool },
            (None, tool, Some(backend)) => ToolSource::Local {
                backend,
                tool: tool.unwrap_or_else(|| stored.name.clone()),
                version: stored.version,
            },
            _ => return Err("a tool is carried out by a server of the run or by a backend of its own"),
        };
        Ok(Self {
            name: stored.name,
            source,
            description: stored.description,
            input_schema: stored.input_schema,
            output_schema: stored.output_schema,
            own_schema: stored.own_schema,
            class: stored.class,
            replay: stored.replay,
            needs_approval: stored.needs_approval,
            offer: stored.offer,
        })
    }
}

/// What a run is bound to; a new revision when a changed catalog was accepted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Binding {
    /// Counts from 1.
    pub revision: u32,
    /// When the run was bound to it; `None` before it is committed, and in the oldest rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Timestamp>,
    /// The MCP servers, namespaces resolved.
    #[serde(default)]
    pub entries: Vec<McpEntry>,
    /// Indices of entries that could not be read and are not required: what they serve is not known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unread: Vec<usize>,
    /// The tools offered to the model, in order.
    pub tools: Vec<BoundTool>,
    /// Served tools that the model is not offered: a local tool has their name, or it cannot use them. The record knows
    /// them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hidden: Vec<BoundTool>,
    /// The record; `None` for a run without MCP entries.
    pub mcp: Option<CatalogRecord>,
}

impl Binding {
    /// The tool of that offered name.
    pub fn tool(&self, name: &str) -> Option<&BoundTool> {
        self.tools.iter().find(|tool| tool.name == name)
    }

    /// The entry of the server that serves a tool; `None` for one that is declared with the run.
    pub fn entry_of(&self, tool: &BoundTool) -> Option<&McpEntry> {
        self.entries.get(tool.entry()?)
    }

    /// Where a call of that tool goes, as it is frozen in the receipt.
    pub fn target(&self, tool: &BoundTool) -> CallTarget {
        let (backend, entry, server_tool, version) = match &tool.source {
            ToolSource::Mcp { entry, server_tool } => (Backend::Mcp, *entry, server_tool.clone(), None),
            ToolSource::Local { backend, tool, version } => (*backend, 0, tool.clone(), version.clone()),
        };
        let server = self.label_of(tool).to_owned();
        CallTarget { backend, entry, server, server_tool, version, place: None, class: tool.class, replay: tool.replay }
    }

    /// Everything that the servers serve, offered or not: what the record is taken of.
    fn served(&self) -> impl Iterator<Item = &BoundTool> {
        self.tools.iter().filter(|tool| tool.is_served()).chain(&self.hidden)
    }

    /// How `served`, read now, differs from what the run is bound to. Entries that were not read on either side are
    /// left out of the comparison; dropping every entry of a run that has a record removes every tool.
    pub fn drift(&self, served: &Self) -> Option<Drift> {
        let recorded = self.mcp.as_ref()?;
        // By name, not by place: a resume may give the entries in another order.
        let skipped: Vec<&str> = self.unread_labels().chain(served.unread_labels()).collect();
        match &served.mcp {
            None => recorded.drift(&record_of([])),
            Some(now) if skipped.is_empty() => recorded.drift(now),
            Some(_) => {
                let read = |binding: &Self| -> CatalogRecord {
                    record_of(binding.served().filter(|tool| !skipped.contains(&binding.label_of(tool))))
                };
                read(self).drift(&read(served))
            }
        }
    }

    /// The servers that were not read.
    fn unread_labels(&self) -> impl Iterator<Item = &str> {
        self.unread.iter().filter_map(|index| self.entries.get(*index)).map(McpEntry::label)
    }

    /// The server of a tool.
    fn label_of(&self, tool: &BoundTool) -> &str {
        tool.entry().and_then(|entry| self.entries.get(entry)).map_or("", McpEntry::label)
    }

    /// How its record differs from that of the revision before.
    pub fn changes_since(&self, before: &Self) -> Drift {
        let record = |binding: &Self| binding.mcp.clone().unwrap_or_else(|| record_of([]));
        record(before).drift(&record(self)).unwrap_or_default()
    }

    /// The revision that follows `before`, made of what was read now: with the local tools of the run, and with the
    /// tools that `before` knows of servers which were not read now. An optional server that is down keeps its place in
    /// the record, and calls to it fail.
    pub fn following(self, before: &Self) -> (Self, Vec<Warning>) {
        let revision = before.revision.saturating_add(1);
        let local = before.tools.iter().filter(|tool| !tool.is_served()).cloned().collect();
        let mut next = Self { revision, ..self.keeping_unread_of(before) };
        next.keep_refusals_of(before);
        next.with_local(local)
    }

    fn keeping_unread_of(mut self, before: &Self) -> Self {
        let unread: Vec<(usize, String)> = self
            .unread
            .iter()
            .filter_map(|index| self.entries.get(*index).map(|entry| (*index, entry.label().to_owned())))
            .collect();
        for tool in before.served() {
            let ToolSource::Mcp { server_tool, .. } = &tool.source else { continue };
            let place = unread.iter().find(|(_, label)| label == before.label_of(tool));
            if let Some((entry, _)) = place.filter(|_| self.tool(tool.recorded_name()).is_none()) {
                let source = ToolSource::Mcp { entry: *entry, server_tool: server_tool.clone() };
                self.tools.push(BoundTool { source, ..tool.clone().into_served() });
            }
        }
        // What was read once stays known: the next reading is compared with it.
        let never: Vec<&str> = before.unread_labels().collect();
        let known: Vec<&str> =
            before.entries.iter().map(McpEntry::label).filter(|label| !never.contains(label)).collect();
        self.unread = unread.iter().filter(|(_, label)| !known.contains(&label.as_str())).map(|(at, _)| *at).collect();
        self.mcp = self.mcp.is_some().then(|| record_of(self.served()));
        self
    }

    /// The same with tools that were declared with the run: they win over served ones of their name, and a warning says
    /// so. The record stays what it is.
    pub fn with_local(mut self, local: Vec<BoundTool>) -> (Self, Vec<Warning>) {
        let hides = |tool: &BoundTool| tool.is_served() && local.iter().any(|own| own.name == tool.name);
        let (hidden, offered): (Vec<_>, Vec<_>) = self.tools.into_iter().partition(|tool| hides(tool));
        let warning = |tool: &BoundTool| {
            let message = format!("MCP tool '{}' is hidden by a local tool of the same name.", tool.name);
            Warning::mcp(WarningKind::UnsupportedTool, message, None)
        };
        let warnings = hidden.iter().map(warning).collect();
        self.tools = local.into_iter().chain(offered).collect();
        self.hidden.extend(hidden);
        (self, warnings)
    }
}

fn record_of<'a>(tools: impl IntoIterator<Item = &'a BoundTool>) -> CatalogRecord {
    CatalogRecord::of(tools.into_iter().map(|t| (t.recorded_name(), t.description.as_deref(), &t.input_schema)))
}

/// Something a person should know about a run; stands once in `run.warnings` and once in the stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Warning {
    /// `unsupported-tool` or `other`.
    #[serde(rename = "type")]
    pub kind: WarningKind,
    /// Which setting it is about, e.g. `mcp`.
    pub setting: String,
    /// For people.
    pub message: String,
    /// For programs, e.g. `mcp-catalog-changed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
}

/// The kinds of warnings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum WarningKind {
    /// A tool is hidden, or cannot be offered.
    UnsupportedTool,
    /// Anything else.
    Other,
}

impl Warning {
    /// A warning about the run's MCP servers.
    pub fn mcp(kind: WarningKind, message: String, code: Option<&str>) -> Self {
        Self { kind, setting: "mcp".to_owned(), message, code: code.map(str::to_owned) }
    }
}

#[cfg(test)]
mod tests;
