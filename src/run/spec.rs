//! What the caller asked for: the declared part of a run, the same document in the API and in the store.
//! Never changes after admission.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::agent::RunAgent;
use super::approval::RequireApproval;
use super::asking::{Elicitation, Sampling};
pub use super::credential::{ClientAuthMethod, McpAuth, SigningAlgorithm};
pub use super::limits::Limits;
use super::money::Prices;
use super::policy::Policy;

/// The declared part of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunSpec {
    /// The version of the agent that it is made of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<RunAgent>,
    /// The model that is asked.
    pub model: ModelSpec,
    /// The system prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instructions: Option<String>,
    /// Rules for calls, for what goes wrong with them, and for limits.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub policies: Vec<Policy>,
    /// What a hot refresh of a changed catalog does.
    #[serde(default)]
    pub on_catalog_change: CatalogPolicy,
    /// The caller's own revision of what cannot be fingerprinted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binding_id: Option<String>,
    /// What the run may use over its whole life.
    #[serde(default)]
    pub limits: Limits,
    /// JSON Schema of the final answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_schema: Option<Value>,
    /// The run whose messages were carried over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continue_from: Option<String>,
    /// What its models cost, as it stood in the configuration when the run was created.
    #[serde(default, skip_serializing_if = "Prices::is_empty")]
    pub prices: Prices,
    /// The caller's own labels.
    #[serde(default)]
    pub metadata: BTreeMap<String, String>,
    /// Order among due runs of one tenant: higher goes first.
    #[serde(default)]
    pub priority: i32,
}

/// Which protocol speaks to the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Provider {
    /// OpenAI chat completions, and every server that speaks them (`base_url`).
    #[serde(alias = "openai_compatible", alias = "openai-compatible")]
    Openai,
    /// Anthropic messages.
    Anthropic,
    /// Turns given in the run itself; only where the operator allows it.
    Scripted,
}

impl Provider {
    /// The name on the wire.
    pub const fn code(self) -> &'static str {
        match self {
            Self::Openai => "openai",
            Self::Anthropic => "anthropic",
            Self::Scripted => "scripted",
        }
    }
}

/// The model that is asked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ModelSpec {
    /// Which protocol speaks to the model.
    pub provider: Provider,
    /// The provider's name of the model.
    #[schema(min_length = 1, max_length = 200)]
    pub name: String,
    /// Name of the secret that holds the key: a run-scoped one, or a stored one whose hosts include the address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// Another address that speaks the same protocol; `https` unless the operator allows the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 2000)]
    pub base_url: Option<String>,
    /// Passed to the provider as they are, e.g. `temperature`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters: Option<Map<String, Value>>,
    /// The turns of a scripted model: entry n answers the n-th request, the last repeats.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_items = 1, max_items = 1000)]
    pub script: Option<Vec<ScriptedTurn>>,
}

/// One answer of a scripted model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ScriptedTurn {
    /// What the model says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// What the model thinks aloud first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<String>,
    /// The calls the model makes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<Vec<ScriptedCall>>,
    /// Default: `tool-calls` with calls, else `stop`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finish_reason: Option<FinishReason>,
    /// Default: 10 in, 5 out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<ScriptedUsage>,
    /// Wait before the first part, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 600_000)]
    pub delay_ms: Option<u64>,
    /// Fail the request instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ScriptedError>,
    /// End the stream improperly after so many parts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cut_after: Option<u64>,
}

/// One call of a scripted turn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ScriptedCall {
    /// Default: `call_1`, `call_2`, … over the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The tool's name as it was offered.
    pub name: String,
    /// The arguments; text is sent as it is, for malformed cases.
    #[serde(default)]
    pub arguments: Value,
}

/// Token counts of a scripted turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ScriptedUsage {
    /// Tokens read.
    #[serde(default)]
    pub input_tokens: u64,
    /// Tokens written.
    #[serde(default)]
    pub output_tokens: u64,
    /// Tokens read from the provider's cache, contained in `input_tokens`.
    #[serde(default)]
    pub cached_input_tokens: u64,
}

/// A failed request of a scripted model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ScriptedError {
    /// The HTTP status that the provider would answer.
    #[schema(minimum = 400, maximum = 599)]
    pub status: u16,
    /// The provider's `Retry-After`, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_s: Option<u64>,
}

/// Why a model turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum FinishReason {
    /// The model was done.
    Stop,
    /// The model waits for tool results.
    #[serde(alias = "tool_calls")]
    ToolCalls,
    /// The provider cut the answer at its length limit.
    Length,
    /// The provider withheld the answer.
    #[serde(alias = "content_filter")]
    ContentFilter,
}

/// What a changed catalog does to a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CatalogPolicy {
    /// The run ends (or the resume is refused) before the model is offered the new catalog.
    #[default]
    Stop,
    /// The new catalog opens a new binding revision.
    Accept,
}

/// What a call may do to the world; decides what happens when its outcome is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SideEffectClass {
    /// Changes nothing: repeated freely.
    #[serde(alias = "read-only")]
    ReadOnly,
    /// Repeating it is harmless.
    #[serde(alias = "idempotent-write")]
    IdempotentWrite,
    /// Repeating it would do it twice.
    #[default]
    #[serde(alias = "non-idempotent-write")]
    NonIdempotentWrite,
    /// As above, and it cannot be undone.
    #[serde(alias = "irreversible-action")]
    IrreversibleAction,
}

/// Declares that a repeated call is harmless.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Replay {
    /// An interrupted call may be sent again with the same key.
    Idempotent,
}

/// One value for every tool of a server, or one per tool, named as the server names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum PerTool<T> {
    /// The same for every tool.
    All(T),
    /// By the server's tool name.
    Each(BTreeMap<String, T>),
}

impl<T: Copy> PerTool<T> {
    /// The value for one tool.
    pub fn of(&self, server_tool: &str) -> Option<T> {
        match self {
            Self::All(value) => Some(*value),
            Self::Each(map) => map.get(server_tool).copied(),
        }
    }
}

/// Whether both declarations together say that an irreversible action may be repeated.
pub fn repeats_what_cannot_be_undone(
    replay: Option<&PerTool<Replay>>,
    class: Option<&PerTool<SideEffectClass>>,
) -> bool {
    let (Some(replay), Some(class)) = (replay, class) else { return false };
    match class {
        PerTool::All(class) => *class == SideEffectClass::IrreversibleAction,
        PerTool::Each(map) => {
            map.iter().any(|(tool, class)| *class == SideEffectClass::IrreversibleAction && replay.of(tool).is_some())
        }
    }
}

/// Time limits of one server, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Timeouts {
    /// Connect, handshake and first listing.
    #[schema(minimum = 1, maximum = 120_000)]
    pub connect_ms: u64,
    /// A call without any sign of life; progress starts it again.
    #[schema(minimum = 1, maximum = 86_400_000)]
    pub call_ms: u64,
    /// A call in all.
    #[schema(minimum = 1, maximum = 86_400_000)]
    pub call_total_ms: u64,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self { connect_ms: 10_000, call_ms: 60_000, call_total_ms: 600_000 }
    }
}

/// One MCP server of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct McpEntry {
    /// The name of a registered or declared server; its address and credential are looked up whenever it is reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// Instead: the server's Streamable HTTP endpoint; `https` unless the operator allows the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 2000)]
    pub url: Option<String>,
    /// `[A-Za-z0-9-]{1,32}`; its tools are offered as `NAMESPACE_tool`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^[A-Za-z0-9-]{1,32}$")]
    pub namespace: Option<String>,
    /// How the server is told who asks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auth: Option<McpAuth>,
    /// Sent with every request to this server.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// Only these tools, named as the server names them; left out: all; empty: the server is not contacted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<Vec<String>>,
    /// Stricter input schemas of the caller's, by the server's tool name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(value_type = Object)]
    pub input_schemas: BTreeMap<String, Value>,
    /// Which tools are safe to repeat.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replay: Option<PerTool<Replay>>,
    /// What the tools may do to the world.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub side_effect_class: Option<PerTool<SideEffectClass>>,
    /// Whether the server is believed about the effects of tools whose class is not declared here.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub trust_annotations: bool,
    /// What the run itself says of them beside `server`: the stricter of both holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own_class: Option<PerTool<SideEffectClass>>,
    /// Rules of the server's registration for calls to it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub policies: Vec<Policy>,
    /// Tools whose calls wait for an approval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub require_approval: Option<RequireApproval>,
    /// `false`: an unreachable server is a warning.
    #[serde(default = "required_default")]
    pub required: bool,
    /// Time limits.
    #[serde(default)]
    pub timeouts: Timeouts,
    /// Whether the server may ask people.
    #[serde(default, skip_serializing_if = "Elicitation::is_deny")]
    pub elicitation: Elicitation,
    /// The model that the server may have asked; left out: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampling: Option<Box<Sampling>>,
}

const fn required_default() -> bool {
    true
}

impl McpEntry {
    /// The prefix of this entry's tools, `NAMESPACE_` or nothing.
    pub fn offered_name(&self, server_tool: &str) -> String {
        match &self.namespace {
            Some(namespace) => format!("{namespace}_{server_tool}"),
            None => server_tool.to_owned(),
        }
    }

    /// What this entry is called in receipts, events and problems: its namespace, else its server's name, else its
    /// address without the query, which may hold a secret.
    pub fn label(&self) -> &str {
        let address = || self.url.as_deref().unwrap_or_default().split(['?', '#']).next().unwrap_or_default();
        self.namespace.as_deref().or(self.server.as_deref()).unwrap_or_else(address)
    }

    /// Whether the caller takes no tool of this server at all; then it is never contacted.
    pub fn is_unused(&self) -> bool {
        self.tools.as_ref().is_some_and(Vec::is_empty)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn enum_values_are_taken_with_either_dash() {
        for text in ["\"idempotent_write\"", "\"idempotent-write\""] {
            assert_eq!(serde_json::from_str::<SideEffectClass>(text).unwrap(), SideEffectClass::IdempotentWrite);
        }
        for text in ["\"tool_calls\"", "\"tool-calls\""] {
            assert_eq!(serde_json::from_str::<FinishReason>(text).unwrap(), FinishReason::ToolCalls);
        }
    }

    #[test]
    fn a_declaration_per_tool_names_the_servers_tool() {
        let declared: PerTool<Replay> = serde_json::from_str(r#"{"lookup_order":"idempotent"}"#).unwrap();
        assert_eq!(declared.of("lookup_order"), Some(Replay::Idempotent));
        assert_eq!(declared.of("orders_lookup_order"), None);
        let all: PerTool<Replay> = serde_json::from_str("\"idempotent\"").unwrap();
        assert_eq!(all.of("refund"), Some(Replay::Idempotent));
    }
}
