//! What a run is bound to: the tools that its model is offered, and the record of the servers' catalogs.
//!
//! The record is a fingerprint of the merged, namespaced tools, taken before anything local shadows a name.
//! A resume compares what the servers serve now with the record, so a model never goes on with tools that
//! somebody changed behind its back.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::json::{canonical, sha256_hex};
use super::spec::{McpEntry, SideEffectClass};

/// One tool as a server lists it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
}

/// All pages of one server's tools, in the server's order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ServedCatalog {
    /// The tools.
    pub tools: Vec<ServedTool>,
    /// What the server lists and nobody is offered.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub set_aside: Vec<SetAside>,
}

/// A tool that cannot be offered to anybody; the others of its server are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetAside {
    /// The server's own name.
    pub name: String,
    /// Why, for people.
    pub why: String,
}

/// One tool as the model is offered it, with the way back to its server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BoundTool {
    /// The name offered to the model.
    pub name: String,
    /// The name that the server knows.
    pub server_tool: String,
    /// Index of the server in the binding's `entries`.
    pub entry: usize,
    /// What the server says it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// JSON Schema of its arguments, as served.
    pub input_schema: Value,
    /// JSON Schema of its structured result, as served: metadata, checked by the connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_schema: Option<Value>,
    /// The caller's stricter schema, checked besides the server's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own_schema: Option<Value>,
    /// What it may do to the world.
    pub class: SideEffectClass,
    /// Whether the caller declared that a repeat is harmless.
    pub replay: bool,
}

/// The fingerprint of a merged catalog.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CatalogRecord {
    /// Always `sha-256`.
    pub algorithm: String,
    /// Offered name → digest of its identity.
    pub tools: BTreeMap<String, String>,
    /// Digest of all of them.
    pub fingerprint: String,
}

impl CatalogRecord {
    /// Takes the fingerprint. Of two tools of one name the later counts.
    pub fn of<'a>(tools: impl IntoIterator<Item = (&'a str, Option<&'a str>, &'a Value)>) -> Self {
        let tools: BTreeMap<String, String> = tools
            .into_iter()
            .map(|(name, description, schema)| (name.to_owned(), tool_hash(name, description, schema)))
            .collect();
        let mut pairs: Vec<(&String, &String)> = tools.iter().collect();
        pairs.sort_by(|a, b| a.0.encode_utf16().cmp(b.0.encode_utf16()));
        let fingerprint = sha256_hex(&canonical(&json!(pairs)));
        Self { algorithm: "sha-256".to_owned(), tools, fingerprint }
    }

    /// What `served` has that this record has not, and the reverse; `None` when they are the same.
    pub fn drift(&self, served: &Self) -> Option<Drift> {
        if self.fingerprint == served.fingerprint {
            return None;
        }
        let mut drift = Drift::default();
        for (name, hash) in &served.tools {
            match self.tools.get(name) {
                None => drift.added.push(name.clone()),
                Some(recorded) if recorded != hash => drift.changed.push(name.clone()),
                Some(_) => {}
            }
        }
        drift.removed = self.tools.keys().filter(|name| !served.tools.contains_key(*name)).cloned().collect();
        Some(drift)
    }
}

/// The digest of one tool's identity: name, description (left out when empty), input schema.
pub fn tool_hash(name: &str, description: Option<&str>, input_schema: &Value) -> String {
    let schema =
        if input_schema.is_null() { json!({"type": "object", "properties": {}}) } else { input_schema.clone() };
    let identity = match description.filter(|text| !text.is_empty()) {
        Some(description) => json!({"name": name, "description": description, "inputSchema": schema}),
        None => json!({"name": name, "inputSchema": schema}),
    };
    sha256_hex(&canonical(&identity))
}

/// How two catalogs differ, names sorted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drift {
    /// Served now, not recorded.
    pub added: Vec<String>,
    /// Recorded, not served now.
    pub removed: Vec<String>,
    /// Recorded with another description or input schema.
    pub changed: Vec<String>,
}

impl Drift {
    /// The sentence of a refused resume.
    pub fn across_resume(&self) -> String {
        format!("MCP tool catalog changed across resume ({self}).")
    }
}

impl fmt::Display for Drift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [("added", &self.added), ("removed", &self.removed), ("changed", &self.changed)];
        let said: Vec<String> = parts
            .into_iter()
            .filter(|(_, names)| !names.is_empty())
            .map(|(what, names)| format!("{what}: {}", names.join(", ")))
            .collect();
        f.write_str(&said.join("; "))
    }
}

/// What a run is bound to; a new revision when a changed catalog was accepted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Binding {
    /// Counts from 1.
    pub revision: u32,
    /// The MCP servers, namespaces resolved.
    #[serde(default)]
    pub entries: Vec<McpEntry>,
    /// Indices of entries that were not read: unused, or not required and unreachable.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unread: Vec<usize>,
    /// The tools offered to the model, in order.
    pub tools: Vec<BoundTool>,
    /// The record; `None` for a run without MCP entries.
    pub mcp: Option<CatalogRecord>,
}

impl Binding {
    /// The tool of that offered name.
    pub fn tool(&self, name: &str) -> Option<&BoundTool> {
        self.tools.iter().find(|tool| tool.name == name)
    }

    /// How `served`, read now, differs from what the run is bound to. Entries that were not read on either side are
    /// left out of the comparison; dropping every entry of a run that has a record removes every tool.
    pub fn drift(&self, served: &Self) -> Option<Drift> {
        let recorded = self.mcp.as_ref()?;
        // By name, not by place: a resume may give the entries in another order.
        let skipped: Vec<&str> = self.unread_labels().chain(served.unread_labels()).collect();
        match &served.mcp {
            None => recorded.drift(&record_of(&[])),
            Some(now) if skipped.is_empty() => recorded.drift(now),
            Some(_) => {
                let read = |binding: &Self| -> CatalogRecord {
                    let tools: Vec<BoundTool> = binding
                        .tools
                        .iter()
                        .filter(|tool| !skipped.contains(&binding.label_of(tool)))
                        .cloned()
                        .collect();
                    record_of(&tools)
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
        self.entries.get(tool.entry).map_or("", McpEntry::label)
    }

    /// This binding with the tools that `before` knows of servers which were not read now: an optional server that is
    /// down keeps its place in the record, and calls to it fail.
    #[must_use]
    pub fn keeping_unread_of(mut self, before: &Self) -> Self {
        let unread: Vec<(usize, String)> = self
            .unread
            .iter()
            .filter_map(|index| self.entries.get(*index).map(|entry| (*index, entry.label().to_owned())))
            .collect();
        for tool in &before.tools {
            let place = unread.iter().find(|(_, label)| label == before.label_of(tool));
            if let Some((entry, _)) = place.filter(|_| self.tool(&tool.name).is_none()) {
                self.tools.push(BoundTool { entry: *entry, ..tool.clone() });
            }
        }
        if self.mcp.is_some() {
            self.mcp = Some(record_of(&self.tools));
        }
        self
    }
}

fn record_of(tools: &[BoundTool]) -> CatalogRecord {
    CatalogRecord::of(tools.iter().map(|t| (t.name.as_str(), t.description.as_deref(), &t.input_schema)))
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

/// Merges what the servers serve into what the model is offered.
///
/// `catalogs` stands in the order of `entries`; `None` for an entry that was not contacted (unused, or not required
/// and unreachable). Of two entries that serve one name, the later one is used, and a warning says so.
pub fn merge(entries: Vec<McpEntry>, catalogs: &[Option<Arc<ServedCatalog>>]) -> (Binding, Vec<Warning>) {
    let mut tools: Vec<BoundTool> = Vec::new();
    let mut warnings = Vec::new();
    let mut unread = Vec::new();
    for (index, (entry, catalog)) in entries.iter().zip(catalogs).enumerate() {
        let Some(catalog) = catalog else {
            unread.push(index);
            continue;
        };
        warnings.extend(missing_tools(entry, catalog));
        for served in catalog.tools.iter().filter(|tool| is_wanted(entry, &tool.name)) {
            let tool = bind(entry, index, served);
            match tools.iter_mut().find(|known| known.name == tool.name) {
                Some(known) => {
                    let message =
                        format!("MCP tool '{}' is served by more than one server; the later one is used.", tool.name);
                    warnings.push(Warning::mcp(WarningKind::UnsupportedTool, message, None));
                    *known = tool;
                }
                None => tools.push(tool),
            }
        }
    }
    let mcp = (!entries.is_empty()).then(|| record_of(&tools));
    (Binding { revision: 1, entries, unread, tools, mcp }, warnings)
}

fn is_wanted(entry: &McpEntry, server_tool: &str) -> bool {
    entry.tools.as_ref().is_none_or(|wanted| wanted.iter().any(|name| name == server_tool))
}

fn missing_tools(entry: &McpEntry, catalog: &ServedCatalog) -> Vec<Warning> {
    let wanted = entry.tools.iter().flatten();
    wanted
        .filter(|name| !catalog.tools.iter().any(|tool| tool.name == **name))
        .map(|name| {
            let message = format!("MCP server '{}' does not serve the listed tool '{name}'.", entry.label());
            Warning::mcp(WarningKind::UnsupportedTool, message, None)
        })
        .collect()
}

fn bind(entry: &McpEntry, index: usize, served: &ServedTool) -> BoundTool {
    BoundTool {
        name: entry.offered_name(&served.name),
        server_tool: served.name.clone(),
        entry: index,
        description: served.description.clone(),
        input_schema: served.input_schema.clone(),
        output_schema: served.output_schema.clone(),
        own_schema: entry.input_schemas.get(&served.name).cloned(),
        class: entry.side_effect_class.as_ref().and_then(|class| class.of(&served.name)).unwrap_or_default(),
        replay: entry.replay.as_ref().and_then(|replay| replay.of(&served.name)).is_some(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::json::parse_strict;

    fn record(tools: &[(&str, Option<&str>, Value)]) -> CatalogRecord {
        CatalogRecord::of(tools.iter().map(|(name, description, schema)| (*name, *description, schema)))
    }

    fn charge() -> (&'static str, Option<&'static str>, Value) {
        let schema = json!({"type":"object","properties":{"amount":{"type":"number"}},"required":["amount"]});
        ("charge", Some("Charge the card on file."), schema)
    }

    #[track_caller]
    fn check(tools: &[(&str, Option<&str>, Value)], hashes: &[&str], fingerprint: &str) {
        for ((name, description, schema), hash) in tools.iter().zip(hashes) {
            assert_eq!(tool_hash(name, *description, schema), *hash, "{name}");
        }
        assert_eq!(record(tools).fingerprint, fingerprint);
    }

    #[test]
    fn fingerprints_are_those_of_the_published_vectors() {
        let number = parse_strict(
            r#"{"type":"object","properties":{"x":{"type":"number","minimum":1.0,"maximum":1e21,"multipleOf":0.1}}}"#,
        );
        let unicode =
            json!({"type":"object","properties":{"\u{ff5e}":{"type":"string"},"\u{1f600}":{"type":"string"}}});
        check(&[], &[], "4f53cda18c2baa0c0354bb5f9a3ecbe5ed12ab4d8e11ba873c2f11161202b945");
        check(
            &[("t", None, Value::Null)],
            &["0df53ebc499c64aa4c03e4ac9da5741dd5de82e10f86a9b2fde930a7af3e230d"],
            "28f817b771196eb00c49156859320aa65f8264e281c5f259dc468d56376e347f",
        );
        check(
            &[charge()],
            &["27aef82b0ef14fb7c2b7e312b1c9e9bae1137068854eba4c7c4a526fc46b46ac"],
            "ba74302c8532dd68fd1a512cb61cad48c46efc478794ee7783884e26c537eab5",
        );
        check(
            &[("orders_refund", None, Value::Null), ("orders_lookup_order", Some("Find an order"), Value::Null)],
            &[
                "60a98b7a17640b803b4e6b4f1780019483d8b5ca8547a7618b0cc8ddf7bb4c29",
                "14f5526c1b62bd9f35b1d2c83c64a39c985dcbad1c16900653cef229049a5abf",
            ],
            "fa6be0e62729e39acb2c00127ee7968c96472f6242d42bdcf495b6829f76c0dc",
        );
        check(
            &[("n", None, number.unwrap())],
            &["9f4180873888b652b09e56b4eac2a16a7a82dbd7e1a4b0d3826ef5b56dcc93f2"],
            "49c90c63c1be958ee7221235f57ff5321f417603300592839e6a4942c839bd78",
        );
        check(
            &[("u", None, unicode)],
            &["7c79487b6fc0d2de5c765d5a4fdb49eef6973ff5dff92a9e14a2e186dbf596e4"],
            "5ee42f74c2f66e3f85173c91ee441e1a2af578d940c198c9e70cb8f60d45b987",
        );
    }

    #[test]
    fn b033_order_of_tools_and_keys_is_no_change() {
        let shuffled =
            parse_strict(r#"{"required":["amount"],"properties":{"amount":{"type":"number"}},"type":"object"}"#);
        let a = record(&[charge(), ("refund", None, Value::Null)]);
        let b =
            record(&[("refund", None, Value::Null), ("charge", Some("Charge the card on file."), shuffled.unwrap())]);
        assert_eq!(a.drift(&b), None);
    }

    #[test]
    fn b034_to_b037_drift_is_said_in_exact_words() {
        let recorded = record(&[charge()]);
        let added = record(&[charge(), ("refund", None, Value::Null)]);
        let changed = record(&[("charge", Some("Charge twice."), charge().2), ("refund", None, Value::Null)]);
        let said = |a: &CatalogRecord, b: &CatalogRecord| a.drift(b).unwrap().across_resume();
        assert_eq!(said(&recorded, &added), "MCP tool catalog changed across resume (added: refund).");
        assert_eq!(said(&added, &recorded), "MCP tool catalog changed across resume (removed: refund).");
        assert_eq!(
            said(&recorded, &changed),
            "MCP tool catalog changed across resume (added: refund; changed: charge)."
        );
        assert_eq!(said(&added, &changed), "MCP tool catalog changed across resume (changed: charge).");
    }

    #[test]
    fn an_optional_server_that_is_down_is_left_out_of_the_comparison_and_keeps_its_tools() {
        let entry = |namespace: &str| -> McpEntry {
            serde_json::from_value(json!({ "url": "https://a", "namespace": namespace, "required": false })).unwrap()
        };
        let served = |names: &[&str]| {
            let tool = |name: &&str| ServedTool {
                name: (*name).to_owned(),
                description: None,
                input_schema: Value::Null,
                output_schema: None,
            };
            Some(Arc::new(ServedCatalog { tools: names.iter().map(tool).collect(), ..ServedCatalog::default() }))
        };
        let (before, _) = merge(vec![entry("a"), entry("b")], &[served(&["x"]), served(&["y"])]);
        // The entries in another order, and `b` is down.
        let (now, _) = merge(vec![entry("b"), entry("a")], &[None, served(&["x"])]);
        assert_eq!(before.drift(&now), None);
        let kept = now.keeping_unread_of(&before);
        assert_eq!(kept.mcp, before.mcp);
        assert_eq!((kept.tool("a_x").unwrap().entry, kept.tool("b_y").unwrap().entry), (1, 0));
        let (changed, _) = merge(vec![entry("b"), entry("a")], &[None, served(&["z"])]);
        assert_eq!(before.drift(&changed).unwrap().to_string(), "added: a_z; removed: a_x");
    }

    #[test]
    fn b089_of_two_servers_with_one_name_the_later_is_used_and_a_warning_says_so() {
        let entry =
            |url: &str| -> McpEntry { serde_json::from_value(json!({ "url": url, "namespace": "n" })).unwrap() };
        let served = ServedTool { name: "t".into(), description: None, input_schema: Value::Null, output_schema: None };
        let catalog = || Some(Arc::new(ServedCatalog { tools: vec![served.clone()], ..ServedCatalog::default() }));
        let (binding, warnings) = merge(vec![entry("https://a"), entry("https://b")], &[catalog(), catalog()]);
        assert_eq!(binding.tools.len(), 1);
        assert_eq!(binding.tool("n_t").unwrap().entry, 1);
        assert_eq!(warnings[0].message, "MCP tool 'n_t' is served by more than one server; the later one is used.");
    }
}
