//! The limits of a run.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::money::Usd;

/// What follows when a run reaches a limit, where no rule says more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum OnLimit {
    /// It stops.
    #[default]
    Stop,
    /// It waits for people, who may raise the limit.
    Escalate,
}

/// What a run may use over its whole life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Model turns.
    #[schema(minimum = 1, maximum = 100_000)]
    pub max_turns: u32,
    /// Tool calls made by the model.
    #[schema(minimum = 0, maximum = 1_000_000)]
    pub max_tool_calls: u32,
    /// Tokens read and written.
    #[schema(minimum = 1)]
    pub max_tokens: Option<u64>,
    /// US dollars that its models cost.
    #[schema(value_type = Option<f64>, exclusive_minimum = 0)]
    pub max_cost_usd: Option<Usd>,
    /// Seconds of work; waiting for people does not count.
    #[schema(minimum = 1)]
    pub max_duration_s: Option<u64>,
    /// Calls of one turn that are out at once.
    #[schema(minimum = 1, maximum = 100)]
    pub max_parallel_tool_calls: u32,
    /// What follows when one of the others is reached.
    pub on_limit: OnLimit,
}

impl Limits {
    /// The name of what asks for a raise where no rule does.
    pub const ON_LIMIT: &'static str = "on_limit";
    /// The largest `max_turns`.
    pub const TURNS_MOST: u32 = 100_000;
    /// The largest `max_tool_calls`.
    pub const TOOL_CALLS_MOST: u32 = 1_000_000;

    /// The names of the limits that are looser than in `bound`, as they stand on the wire.
    pub fn looser_than(&self, bound: &Self) -> Vec<&'static str> {
        [
            ("max_turns", self.max_turns > bound.max_turns),
            ("max_tool_calls", self.max_tool_calls > bound.max_tool_calls),
            ("max_tokens", over(self.max_tokens, bound.max_tokens)),
            ("max_cost_usd", over(self.max_cost_usd, bound.max_cost_usd)),
            ("max_duration_s", over(self.max_duration_s, bound.max_duration_s)),
            ("max_parallel_tool_calls", self.max_parallel_tool_calls > bound.max_parallel_tool_calls),
            (Self::ON_LIMIT, self.on_limit > bound.on_limit),
        ]
        .into_iter()
        .filter_map(|(name, looser)| looser.then_some(name))
        .collect()
    }
}

fn over<T: PartialOrd>(mine: Option<T>, bound: Option<T>) -> bool {
    match (mine, bound) {
        (_, None) => false,
        (None, Some(_)) => true,
        (Some(mine), Some(bound)) => mine > bound,
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_turns: 20,
            max_tool_calls: 200,
            max_tokens: None,
            max_cost_usd: None,
            max_duration_s: None,
            max_parallel_tool_calls: 5,
            on_limit: OnLimit::Stop,
        }
    }
}
