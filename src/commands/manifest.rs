//! What a manifest says, and a run's inline fields: the same fields, checked by the same functions.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::faults::Faults;
use super::limits::check_limits;
use super::request::{CreateRun, EntryRequest, LimitsRequest};
use super::tool_request::ToolRequest;
use super::{Asker, CommandError, Commands};
use crate::run::binding::BoundTool;
use crate::run::limits::Limits;
use crate::run::policy::Policy;
use crate::run::spec::{CatalogPolicy, McpEntry, ModelSpec};
use crate::schema::Budget;
use crate::secrets::RunSecrets;

/// A version of an agent: the inline fields of a run.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AgentManifest {
    /// The model that is asked.
    pub model: ModelSpec,
    /// The system prompt.
    pub instructions: Option<String>,
    /// The MCP servers whose tools are offered.
    pub mcp: Option<Vec<EntryRequest>>,
    /// Tools that workers or the run's client carry out. One wins over an MCP tool of its name.
    pub tools: Option<Vec<ToolRequest>>,
    /// Rules for calls, for what goes wrong with them, and for limits.
    #[schema(max_items = 100)]
    pub policies: Option<Vec<Policy>>,
    /// What a hot refresh of a changed catalog does.
    pub on_catalog_change: Option<CatalogPolicy>,
    /// The publisher's own revision of what cannot be fingerprinted.
    #[schema(max_length = 255)]
    pub binding_id: Option<String>,
    /// What a run may use over its whole life; a run can only have less.
    pub limits: Option<LimitsRequest>,
    /// JSON Schema of a structured final answer.
    pub output_schema: Option<Value>,
    /// Names of the run-scoped secrets that a run must bring.
    #[schema(max_items = 32)]
    pub secrets: Option<Vec<String>>,
}

/// The fields of a run that are declared: inline, or by the manifest of the version that it is made of.
pub(super) struct Declaring {
    pub(super) model: ModelSpec,
    pub(super) instructions: Option<String>,
    pub(super) mcp: Vec<EntryRequest>,
    pub(super) tools: Vec<ToolRequest>,
    pub(super) policies: Vec<Policy>,
    pub(super) on_catalog_change: Option<CatalogPolicy>,
    pub(super) binding_id: Option<String>,
    pub(super) limits: LimitsRequest,
    pub(super) output_schema: Option<Value>,
}

impl From<AgentManifest> for Declaring {
    fn from(manifest: AgentManifest) -> Self {
        Self {
            model: manifest.model,
            instructions: manifest.instructions,
            mcp: manifest.mcp.unwrap_or_default(),
            tools: manifest.tools.unwrap_or_default(),
            policies: manifest.policies.unwrap_or_default(),
            on_catalog_change: manifest.on_catalog_change,
            binding_id: manifest.binding_id,
            limits: manifest.limits.unwrap_or_default(),
            output_schema: manifest.output_schema,
        }
    }
}

impl CreateRun {
    /// What the run declares of itself; `None` without a model.
    pub(super) fn declaring(self) -> Option<Declaring> {
        Some(Declaring {
            model: self.model?,
            instructions: self.instructions,
            mcp: self.mcp.unwrap_or_default(),
            tools: self.tools.unwrap_or_default(),
            policies: self.policies.unwrap_or_default(),
            on_catalog_change: self.on_catalog_change,
            binding_id: self.binding_id,
            limits: self.limits.unwrap_or_default(),
            output_schema: self.output_schema,
        })
    }
}

/// Declared fields that all mean something.
pub(super) struct Declared {
    pub(super) model: ModelSpec,
    pub(super) instructions: Option<String>,
    pub(super) entries: Vec<McpEntry>,
    pub(super) tools: Vec<BoundTool>,
    pub(super) policies: Vec<Policy>,
    pub(super) on_catalog_change: CatalogPolicy,
    pub(super) binding_id: Option<String>,
    pub(super) limits: Limits,
    pub(super) output_schema: Option<Value>,
}

impl Commands {
    /// Checks what is declared. `secrets` are the run's own, or those that a run must bring, without their values.
    pub(super) async fn check_declared(
        &self,
        asker: &Asker,
        declaring: Declaring,
        secrets: &RunSecrets,
        faults: &mut Faults,
    ) -> Result<Declared, CommandError> {
        if let Some(schema) = &declaring.output_schema {
            self.check_schema(asker, schema, "/output_schema".to_owned(), &mut Budget::of_one(), faults).await?;
        }
        self.check_model(asker, &declaring.model, Some(secrets), "/model", faults).await?;
        let limits = check_limits(declaring.limits, &Limits::default(), faults);
        let entries = self.check_entries(asker, declaring.mcp, Some(secrets), faults).await?;
        let tools = self.check_tools(asker, declaring.tools, declaring.model.provider, faults).await?;
        self.check_policies(&asker.tenant, &declaring.policies, &entries, &tools, faults).await?;
        Ok(Declared {
            model: declaring.model,
            instructions: declaring.instructions,
            entries,
            tools,
            policies: declaring.policies,
            on_catalog_change: declaring.on_catalog_change.unwrap_or_default(),
            binding_id: declaring.binding_id,
            limits,
            output_schema: declaring.output_schema,
        })
    }

    /// Checks a manifest, whose secrets nobody has brought yet.
    pub(super) async fn check_manifest(
        &self,
        asker: &Asker,
        manifest: AgentManifest,
        faults: &mut Faults,
    ) -> Result<Declared, CommandError> {
        let mut secrets = RunSecrets::new();
        for (index, name) in manifest.secrets.iter().flatten().enumerate() {
            let at = format!("/secrets/{index}");
            faults.require(is_secret_name(name), &at, SECRET_NAME);
            faults.require(!secrets.has(name), &at, "stands here twice");
            secrets.insert(name.clone(), None);
        }
        self.check_declared(asker, manifest.into(), &secrets, faults).await
    }
}

/// What the name of a run-scoped secret must be.
pub(super) const SECRET_NAME: &str = "names have 1 to 64 visible ASCII characters";

pub(super) fn is_secret_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= 64 && name.chars().all(|c| c.is_ascii_graphic())
}

/// A run brings the secrets that its agent asks for, and no others: one that the manifest does not know could only stand
/// in the place of another of its name.
pub(super) fn check_brought(asked: &[String], brought: &RunSecrets, faults: &mut Faults) {
    for name in asked.iter().filter(|name| !brought.has(name)) {
        faults.add(format!("/secrets/{}", escaped(name)), "is needed by the agent");
    }
    let asked: BTreeSet<&String> = asked.iter().collect();
    let unknown: BTreeSet<&String> =
        brought.opened().map(|(name, _)| name).filter(|name| !asked.contains(name)).collect();
    for name in unknown {
        faults.add(format!("/secrets/{}", escaped(name)), "is not one that the agent asks for");
    }
}

/// A member's name in a JSON Pointer.
pub(super) fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}
