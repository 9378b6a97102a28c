//! The bodies that registered servers and stored secrets are put with.

use std::collections::BTreeMap;

use secrecy::SecretString;
use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::request::{EntryRequest, TimeoutsRequest};
use crate::run::approval::RequireApproval;
use crate::run::asking::{Elicitation, Sampling};
use crate::run::policy::Policy;
use crate::run::spec::{McpAuth, PerTool, Replay, SideEffectClass};

/// How a registered server is spoken to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// Streamable HTTP.
    #[default]
    #[serde(alias = "streamable-http")]
    StreamableHttp,
    /// A process of the operator's: never declared over the API.
    Stdio,
}

/// A registered MCP server: the fields of an entry of a run, for every run of the tenant that names it.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PutServer {
    /// `streamable_http`; servers with `stdio` are declared by the operator.
    pub transport: Option<Transport>,
    /// The server's Streamable HTTP endpoint; `https` unless the operator allows the host.
    #[schema(min_length = 1, max_length = 2000)]
    pub url: String,
    /// `[A-Za-z0-9-]{1,32}`; its tools are offered as `NAMESPACE_tool`.
    #[schema(pattern = "^[A-Za-z0-9-]{1,32}$")]
    pub namespace: Option<String>,
    /// How the server is told who asks, with a stored secret.
    pub auth: Option<McpAuth>,
    /// Sent with every request to this server. Not for secrets: they are shown to whoever may read servers.
    pub headers: Option<BTreeMap<String, String>>,
    /// Only these tools, named as the server names them; left out: all.
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
    /// Whether the server's `readOnlyHint` and `idempotentHint` may relax a class that is not declared.
    pub trust_annotations: Option<bool>,
    /// Time limits.
    pub timeouts: Option<TimeoutsRequest>,
    /// Whether the server may ask people (`deny`).
    pub elicitation: Option<Elicitation>,
    /// The model that the server may have asked; left out: none.
    pub sampling: Option<Sampling>,
    /// Rules for its calls in every run that names it. `tool:NAME` names a tool as the server does.
    #[schema(max_items = 100)]
    pub policies: Option<Vec<Policy>>,
}

impl PutServer {
    /// As an entry of a run, with what an entry has not.
    pub(super) fn split(self) -> (EntryRequest, Option<Transport>, Vec<Policy>) {
        let entry = EntryRequest {
            server: None,
            url: Some(self.url),
            namespace: self.namespace,
            auth: self.auth,
            headers: self.headers,
            tools: self.tools,
            input_schemas: self.input_schemas,
            replay: self.replay,
            side_effect_class: self.side_effect_class,
            require_approval: self.require_approval,
            required: self.required,
            trust_annotations: self.trust_annotations,
            timeouts: self.timeouts,
            elicitation: self.elicitation,
            sampling: self.sampling,
        };
        (entry, self.transport, self.policies.unwrap_or_default())
    }
}

/// A secret of the tenant, and where it may be sent.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PutSecret {
    /// Stored encrypted, never readable.
    #[schema(value_type = String, min_length = 1, max_length = 16384)]
    pub value: SecretString,
    /// The only hosts that it is ever sent to: `host` or `host:port`, without wildcards.
    #[schema(min_items = 1, max_items = 32)]
    pub hosts: Vec<String>,
}
