//! The bodies about declared tools: what they are, and what workers and clients say of their calls.

use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::reconcile::given;
use crate::run::spec::{Replay, SideEffectClass};

/// A tool that is declared with the run.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ToolRequest {
    /// The name offered to the model.
    #[schema(pattern = "^[A-Za-z0-9_-]{1,64}$")]
    pub name: String,
    /// What it does.
    #[schema(max_length = 16_384)]
    pub description: Option<String>,
    /// JSON Schema of its arguments (any object).
    #[schema(value_type = Option<Object>)]
    pub input_schema: Option<Value>,
    /// JSON Schema of its result; a result that does not fit has failed. Left out: nothing is checked.
    #[schema(value_type = Option<Object>)]
    pub output_schema: Option<Value>,
    /// Who carries it out.
    pub executor: Executor,
    /// What it may do to the world (`non_idempotent_write`).
    pub side_effect_class: Option<SideEffectClass>,
    /// Declares that a repeated call is harmless.
    pub replay: Option<Replay>,
    /// Whether each call waits for an approval (`false`).
    pub require_approval: Option<bool>,
}

/// Who carries out a declared tool.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Executor {
    /// A worker that serves this very version.
    Worker {
        /// What workers call the tool.
        #[schema(pattern = "^[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}$")]
        tool: String,
        /// Its version.
        #[schema(pattern = "^[A-Za-z0-9][A-Za-z0-9._+-]{0,63}$")]
        version: String,
    },
    /// The run's client.
    Client {},
}

/// What a worker asks for.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ClaimCalls {
    /// The tools that it serves.
    #[schema(min_items = 1, max_items = 100)]
    pub tools: Vec<ServedTool>,
    /// The most calls that it takes now (10).
    #[schema(minimum = 1, maximum = 100)]
    pub max: Option<u32>,
    /// How long the answer may wait for a call, in milliseconds (20000).
    #[schema(minimum = 0, maximum = 60_000)]
    pub wait_ms: Option<u64>,
    /// Calls that it works on already: their leases run anew, and those that it lost are told.
    #[schema(max_items = 1000)]
    pub in_flight: Option<Vec<InFlight>>,
}

/// A tool that a worker serves.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ServedTool {
    /// What workers call the tool.
    pub tool: String,
    /// Its version: calls of another one are never handed to this worker.
    pub version: String,
    /// How many calls of it this worker has at once (100).
    #[schema(minimum = 1, maximum = 10_000)]
    pub max_concurrency: Option<u32>,
}

/// A call that a worker works on.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct InFlight {
    /// The call.
    pub id: String,
    /// Its lease.
    pub lease: String,
}

/// The lease of a call that a worker has.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HeldCall {
    /// As it came with the call.
    #[schema(max_length = 200)]
    pub lease: String,
}

/// What came of a call: exactly one of `output` and `error`.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CallResult {
    /// As it came with the call.
    #[schema(max_length = 200)]
    pub lease: String,
    /// What the tool returned, any JSON value.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<Value>, nullable = false)]
    pub output: Option<Value>,
    /// Why it failed.
    pub error: Option<CallError>,
}

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CallError {
    /// For programs, e.g. `invalid_args` (`tool-error`).
    #[schema(min_length = 1, max_length = 100)]
    pub code: Option<String>,
    /// What the model is told.
    #[schema(min_length = 1, max_length = 65_536)]
    pub message: String,
}

/// Results of calls that the run's client carried out.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GiveResults {
    /// The results; those of other calls may come later.
    #[schema(min_items = 1, max_items = 100)]
    pub results: Vec<ClientResult>,
}

/// The result of one call: exactly one of `output` and `error`.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ClientResult {
    /// The call's label.
    pub call_id: String,
    /// Its turn; left out: of several calls with that label the one that waits.
    pub turn: Option<u32>,
    /// What the tool returned, any JSON value.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<Value>, nullable = false)]
    pub output: Option<Value>,
    /// Why it failed.
    pub error: Option<CallError>,
}
