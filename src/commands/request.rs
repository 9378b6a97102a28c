//! The bodies that callers send, and what they mean. A field that this version cannot honour is refused unless it has
//! its neutral value, so nothing that somebody relies on is ever ignored.

use std::collections::BTreeMap;

use secrecy::SecretString;
use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::tool_request::{ClientResult, ToolRequest};
use crate::run::approval::{RequireApproval, Verdict};
use crate::run::ask::InputAction;
use crate::run::asking::{Elicitation, Sampling};
use crate::run::limits::OnLimit;
use crate::run::policy::Policy;
use crate::run::spec::{CatalogPolicy, McpAuth, ModelSpec, PerTool, Replay, SideEffectClass, Timeouts};

/// A new run.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateRun {
    /// Unique in the tenant; default: a UUID that rises with time.
    #[schema(pattern = "^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$")]
    pub id: Option<String>,
    /// A published agent, `NAMESPACE/NAME` (its active version) or `NAMESPACE/NAME@VERSION`. Beside it stand only `id`,
    /// `input`, `metadata`, `secrets`, `priority`, `continue_from`, `binding_id` and tighter `limits`.
    #[schema(max_length = 300)]
    pub agent: Option<String>,
    /// The model that is asked; required without `agent`.
    pub model: Option<ModelSpec>,
    /// The system prompt.
    pub instructions: Option<String>,
    /// What the model is told first.
    pub input: RunInput,
    /// The MCP servers whose tools are offered.
    pub mcp: Option<Vec<EntryRequest>>,
    /// Tools that workers or the run's client carry out. One wins over an MCP tool of its name.
    pub tools: Option<Vec<ToolRequest>>,
    /// Rules for calls, for what goes wrong with them, and for limits.
    #[schema(max_items = 100)]
    pub policies: Option<Vec<Policy>>,
    /// What a hot refresh of a changed catalog does.
    pub on_catalog_change: Option<CatalogPolicy>,
    /// The caller's own revision of what cannot be fingerprinted.
    #[schema(max_length = 255)]
    pub binding_id: Option<String>,
    /// What the run may use over its whole life.
    pub limits: Option<LimitsRequest>,
    /// JSON Schema of the final answer; an answer that does not fit is asked for once more.
    pub output_schema: Option<Value>,
    /// Run-scoped secrets: stored encrypted, purged when the run is terminal, never readable.
    #[schema(value_type = Option<BTreeMap<String, String>>)]
    pub secrets: Option<BTreeMap<String, SecretString>>,
    /// A run of the tenant that has ended, whose messages are carried over: 16 MiB of them at most. Needs the scope
    /// `runs:read` too.
    pub continue_from: Option<String>,
    /// The caller's own labels: up to 32 pairs, filterable.
    pub metadata: Option<BTreeMap<String, String>>,
    /// Order among due runs of one tenant: higher goes first.
    #[schema(minimum = -100, maximum = 100)]
    pub priority: Option<i32>,
}

impl CreateRun {
    /// The fields that are given and belong to the manifest of an agent.
    pub(super) fn fixed_by_agent(&self) -> Vec<&'static str> {
        [
            ("model", self.model.is_some()),
            ("instructions", self.instructions.is_some()),
            ("mcp", self.mcp.is_some()),
            ("tools", self.tools.is_some()),
            ("policies", self.policies.is_some()),
            ("on_catalog_change", self.on_catalog_change.is_some()),
            ("output_schema", self.output_schema.is_some()),
        ]
        .into_iter()
        .filter_map(|(field, is_given)| is_given.then_some(field))
        .collect()
    }
}

/// Text, or an array of messages.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum RunInput {
    /// One message of the user.
    Text(String),
    /// A conversation, oldest first.
    Messages(Vec<InputMessage>),
}

/// One message of the input.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct InputMessage {
    /// Who speaks.
    pub role: InputRole,
    /// What is said.
    pub content: InputContent,
}

/// Who speaks in the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum InputRole {
    /// Instructions.
    System,
    /// The caller.
    User,
    /// The model, in an earlier conversation.
    Assistant,
}

/// Text, or an array of parts.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum InputContent {
    /// Text.
    Text(String),
    /// Parts, in order.
    Parts(Vec<InputPart>),
}

/// One part of a message.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "kebab-case", deny_unknown_fields)]
pub enum InputPart {
    /// Text.
    Text {
        /// The text.
        text: String,
    },
    /// A picture, in a message of the user: exactly one of `url` and `data`.
    Image {
        /// An address that the provider reads.
        #[schema(max_length = 2000)]
        url: Option<String>,
        /// Base64 of a PNG, JPEG, GIF or WebP, at most 5 MiB.
        data: Option<String>,
        /// The type of the data.
        media_type: Option<String>,
    },
    /// A file, in a message of the user: exactly one of `url`, `data` and `file_id`, as far as the model's protocol takes it.
    File {
        /// What it is called.
        #[schema(max_length = 255)]
        name: Option<String>,
        /// An address that the provider reads.
        #[schema(max_length = 2000)]
        url: Option<String>,
        /// Base64.
        data: Option<String>,
        /// The type of the data; required with it.
        media_type: Option<String>,
        /// The provider's name of a file that it keeps.
        #[schema(max_length = 255)]
        file_id: Option<String>,
    },
}

/// One MCP server of a new run.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EntryRequest {
    /// A registered server of the tenant, by its name. Beside it only what is stricter than its registration is taken:
    /// some of its `tools`, stricter classes, shorter time limits, further `input_schemas`; and `namespace`.
    #[schema(pattern = "^[a-z][a-z0-9-]{0,31}$")]
    pub server: Option<String>,
    /// Instead: the server's Streamable HTTP endpoint; `https` unless the operator allows the host.
    #[schema(max_length = 2000)]
    pub url: Option<String>,
    /// `[A-Za-z0-9-]{1,32}`; its tools are offered as `NAMESPACE_tool`. Needed with several entries, of which a registered
    /// server has its name for one.
    #[schema(pattern = "^[A-Za-z0-9-]{1,32}$")]
    pub namespace: Option<String>,
    /// How the server is told who asks.
    pub auth: Option<McpAuth>,
    /// Sent with every request to this server.
    pub headers: Option<BTreeMap<String, String>>,
    /// Only these tools, named as the server names them; left out: all; empty: the server is not contacted.
    pub tools: Option<Vec<String>>,
    /// Stricter input schemas, by the server's tool name.
    #[schema(value_type = Option<Object>)]
    pub input_schemas: Option<BTreeMap<String, Value>>,
    /// Which tools are safe to repeat.
    pub replay: Option<PerTool<Replay>>,
    /// What the tools may do to the world.
    pub side_effect_class: Option<PerTool<SideEffectClass>>,
    /// Tools whose calls wait for an approval: `true`, or a list of the server's names.
    pub require_approval: Option<RequireApproval>,
    /// `false`: an unreachable server is a warning.
    pub required: Option<bool>,
    /// Whether the server's annotations may relax the class of tools whose class is not declared here (`false`).
    pub trust_annotations: Option<bool>,
    /// Time limits; what is left out is as registered, or the default.
    pub timeouts: Option<TimeoutsRequest>,
    /// Whether the server may ask people (`deny`); with `ask` the run shows its questions and waits for answers.
    pub elicitation: Option<Elicitation>,
    /// The model that the server may have asked; left out: none, or the registered one.
    pub sampling: Option<Sampling>,
}

/// Time limits of one server, in milliseconds.
#[derive(Clone, Copy, Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[expect(clippy::struct_field_names, reason = "the contract's names say their unit")]
pub struct TimeoutsRequest {
    /// Connect, handshake and first listing (10000).
    #[schema(minimum = 1, maximum = 120_000)]
    pub connect_ms: Option<u64>,
    /// A call without any sign of life; progress starts it again (60000).
    #[schema(minimum = 1, maximum = 86_400_000)]
    pub call_ms: Option<u64>,
    /// A call in all (600000).
    #[schema(minimum = 1, maximum = 86_400_000)]
    pub call_total_ms: Option<u64>,
}

impl TimeoutsRequest {
    /// Over the defaults.
    pub(super) fn or_default(self) -> Timeouts {
        let usual = Timeouts::default();
        Timeouts {
            connect_ms: self.connect_ms.unwrap_or(usual.connect_ms),
            call_ms: self.call_ms.unwrap_or(usual.call_ms),
            call_total_ms: self.call_total_ms.unwrap_or(usual.call_total_ms),
        }
    }
}

/// What a run may use over its whole life.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LimitsRequest {
    /// Model turns (20).
    #[schema(minimum = 1, maximum = 100_000)]
    pub max_turns: Option<u32>,
    /// Tool calls made by the model (200).
    #[schema(minimum = 0, maximum = 1_000_000)]
    pub max_tool_calls: Option<u32>,
    /// Tokens read and written.
    #[schema(minimum = 1)]
    pub max_tokens: Option<u64>,
    /// US dollars that the run's models cost, with at most 12 digits behind the point. Needs the models' prices in the
    /// server's configuration.
    #[schema(value_type = Option<f64>, exclusive_minimum = 0)]
    pub max_cost_usd: Option<serde_json::Number>,
    /// Seconds of work; waiting for people does not count.
    #[schema(minimum = 1)]
    pub max_duration_s: Option<u64>,
    /// Calls of one turn that are out at once (5).
    #[schema(minimum = 1, maximum = 100)]
    pub max_parallel_tool_calls: Option<u32>,
    /// What follows when one of the others is reached: the run stops (`stop`), or waits for people who may raise it
    /// (`escalate`).
    pub on_limit: Option<OnLimit>,
}

/// A resume of a run.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResumeRun {
    /// Undecided calls that may be sent exactly once more (scope `admin`).
    pub retry_tool_call_ids: Option<Vec<RetryCall>>,
    /// What to do about a catalog that changed while the run was down; not stored.
    pub on_catalog_change: Option<CatalogPolicy>,
    /// Left out: the run's own entries; empty: none.
    pub mcp: Option<Vec<EntryRequest>>,
    /// Must be the run's own.
    pub binding_id: Option<String>,
    /// Votes on calls that wait for an approval (scope `approvals:decide`).
    #[schema(max_items = 200)]
    pub approvals: Option<Vec<DecideCall>>,
    /// Results of calls that the run's client carried out.
    #[schema(max_items = 100)]
    pub tool_results: Option<Vec<ClientResult>>,
    /// Tighter limits for the rest of the run's life; none can be loosened.
    pub limits: Option<LimitsRequest>,
}

/// A vote on a call that waits for an approval.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DecideApproval {
    /// What is said.
    pub decision: Verdict,
    /// Why; kept with the vote and in the audit.
    #[schema(max_length = 4000)]
    pub comment: Option<String>,
    /// With `approve`: other arguments than the model's. They clear earlier votes.
    #[schema(value_type = Option<Object>)]
    pub arguments: Option<Map<String, Value>>,
    /// The `token` of the approval: proof that it was seen as it stands. The operator may ask for it.
    #[schema(max_length = 8192)]
    pub token: Option<String>,
}

/// A vote on the approval of one call of the run that is resumed.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DecideCall {
    /// The call's label.
    #[schema(max_length = 1024)]
    pub call_id: String,
    /// What is said.
    pub decision: Verdict,
    /// Why; kept with the vote and in the audit.
    #[schema(max_length = 4000)]
    pub comment: Option<String>,
    /// With `approve`: other arguments than the model's. They clear earlier votes.
    #[schema(value_type = Option<Object>)]
    pub arguments: Option<Map<String, Value>>,
    /// The `token` of the approval.
    #[schema(max_length = 8192)]
    pub token: Option<String>,
}

impl DecideCall {
    /// The same without the call.
    pub(super) fn vote(&self) -> DecideApproval {
        let Self { decision, comment, arguments, token, .. } = self.clone();
        DecideApproval { decision, comment, arguments, token }
    }
}

/// What a person answers to a server's question.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AnswerInput {
    /// What they do.
    pub action: InputAction,
    /// With `accept` of a form: the fields; those that are left out get their defaults.
    #[schema(value_type = Option<Object>)]
    pub content: Option<Map<String, Value>>,
}

/// A call by its id, or by turn and id.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum RetryCall {
    /// The call's label.
    Id(String),
    /// Turn and label.
    Exact {
        /// The turn.
        #[schema(minimum = 1, maximum = 2_147_483_647)]
        turn: u32,
        /// The label.
        call_id: String,
    },
}

/// Which version is to be active.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DeployVersion {
    /// A published one that is not deprecated.
    #[schema(max_length = 128)]
    pub version: String,
}

/// Which version is to be active again.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RollBackVersion {
    /// One that was active at some time; left out: the one before.
    #[schema(max_length = 128)]
    pub version: Option<String>,
}
