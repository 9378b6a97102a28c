//! Limits as callers give them.

use super::faults::Faults;
use super::request::LimitsRequest;
use crate::run::limits::Limits;
use crate::run::money::{self, Prices, Usd};
use crate::run::spec::ModelSpec;

/// A limit on money means nothing for a model of which nobody knows what it costs.
pub(super) fn check_price(prices: &Prices, model: &ModelSpec, faults: &mut Faults) {
    let name = money::name_of(model);
    let detail = format!("the price of {name} is not known: the server's configuration names none");
    faults.require(prices.of(model).is_some(), "/limits/max_cost_usd", &detail);
}

/// What is left out stays as in `base`.
pub(super) fn check_limits(request: LimitsRequest, base: &Limits, faults: &mut Faults) -> Limits {
    let max_cost_usd = request.max_cost_usd.map(|number| Usd::parse(&number.to_string()));
    let is_money = max_cost_usd.is_none_or(|amount| amount.is_some_and(|amount| amount > Usd::ZERO));
    let detail = "must be more than 0, at most 18000000, with at most 12 digits behind the point";
    faults.require(is_money, "/limits/max_cost_usd", detail);
    let limits = Limits {
        max_turns: request.max_turns.unwrap_or(base.max_turns),
        max_tool_calls: request.max_tool_calls.unwrap_or(base.max_tool_calls),
        max_tokens: request.max_tokens.or(base.max_tokens),
        max_cost_usd: max_cost_usd.flatten().or(base.max_cost_usd),
        max_duration_s: request.max_duration_s.or(base.max_duration_s),
        max_parallel_tool_calls: request.max_parallel_tool_calls.unwrap_or(base.max_parallel_tool_calls),
        on_limit: request.on_limit.unwrap_or(base.on_limit),
    };
    faults.require(limits.max_turns > 0, "/limits/max_turns", "must be at least 1");
    let parallel = (1..=100).contains(&limits.max_parallel_tool_calls);
    faults.require(parallel, "/limits/max_parallel_tool_calls", "must be 1 to 100");
    limits
}
