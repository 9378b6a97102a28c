//! What a run came to: its answer, its error, and what it used.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::message::{TurnUsage, is_none};
use super::money::{Price, Usd};

/// What a run used over its whole life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Usage {
    /// Requests whose outcome, success or failure, is committed.
    pub model_requests: u32,
    /// Tokens read.
    pub input_tokens: u64,
    /// Tokens written.
    pub output_tokens: u64,
    /// Tokens read from the provider's cache, contained in `input_tokens`.
    pub cached_input_tokens: u64,
    /// Read and written.
    pub total_tokens: u64,
    /// How many of them no provider counted: they are the most that requests may have used whose answer had no count, or
    /// never came to its end. Left out where all are counted.
    #[serde(default, skip_serializing_if = "is_none")]
    #[schema(required = false)]
    pub estimated_tokens: u64,
    /// What they cost, in US dollars; left out where the price of a model is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<f64>)]
    pub cost_usd: Option<Usd>,
}

impl Usage {
    /// Counts one committed request, at its model's price. Once something of an unknown price is among them, the whole
    /// cost is unknown.
    pub fn count(&mut self, turn: TurnUsage, price: Option<&Price>) {
        self.count_lost(turn, price);
        self.model_requests = self.model_requests.saturating_add(1);
    }

    /// Counts what a request may have used whose outcome nobody will know.
    pub fn count_lost(&mut self, turn: TurnUsage, price: Option<&Price>) {
        self.cost_usd = self.cost().zip(price).map(|(before, price)| before.plus(price.of(turn)));
        self.input_tokens = self.input_tokens.saturating_add(turn.input_tokens);
        self.output_tokens = self.output_tokens.saturating_add(turn.output_tokens);
        self.cached_input_tokens = self.cached_input_tokens.saturating_add(turn.cached_input_tokens);
        self.total_tokens = self.input_tokens.saturating_add(self.output_tokens);
        self.estimated_tokens = self.estimated_tokens.saturating_add(turn.estimated_tokens);
    }

    /// What it cost. `None`: nobody knows.
    pub const fn cost(&self) -> Option<Usd> {
        if self.model_requests == 0 && self.total_tokens == 0 { Some(Usd::ZERO) } else { self.cost_usd }
    }
}

/// The final answer of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RunOutput {
    /// What the model said last.
    pub text: String,
    /// The same, as the asked-for structure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub structured: Option<Value>,
}

/// Why a run failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RunError {
    /// A kebab-case code, e.g. `model-error`.
    pub code: String,
    /// For people.
    pub message: String,
}

impl RunError {
    /// An error with its code and text.
    pub fn new(code: &str, message: impl Into<String>) -> Self {
        Self { code: code.to_owned(), message: message.into() }
    }
}
