//! What an entry lets its server ask of the run.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::spec::{McpEntry, ModelSpec};

/// Whether a server may ask people.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Elicitation {
    /// It is not offered, and declined where a server asks anyway.
    #[default]
    Deny,
    /// The run shows the question and waits for the answer.
    Ask,
}

impl Elicitation {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
    pub(super) const fn is_deny(&self) -> bool {
        matches!(self, Self::Deny)
    }
}

/// The model that a server may have asked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Sampling {
    /// The model.
    pub model: ModelSpec,
    /// Names that the model may have; left out: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_items = 100)]
    pub allowed_models: Option<Vec<String>>,
    /// The longest answer that may be asked for, in tokens; left out: what the run's budget has room for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub max_tokens: Option<u64>,
    /// Whether somebody must approve each request.
    #[serde(default)]
    pub approval: SamplingApproval,
}

/// Whether somebody must approve each request for a sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SamplingApproval {
    /// The rules alone decide.
    #[default]
    Never,
    /// Somebody must approve.
    Always,
}

impl McpEntry {
    /// Whether its server may ask something of the run: then no other run may share the connection.
    pub fn offers_asks(&self) -> bool {
        self.elicitation == Elicitation::Ask || self.sampling.is_some()
    }
}
