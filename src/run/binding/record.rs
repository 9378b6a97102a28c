//! The record of the servers' catalogs: a fingerprint of the merged, namespaced tools, and how two of them differ.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::run::json::{canonical, sha256_hex};

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
