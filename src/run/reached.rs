//! A limit that a run has reached: which one, what the run needs to go on, and what people are asked to raise it to.
//! What is voted on is the new limit itself, so an approver who wants another one votes with other arguments.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::approval::Requirement;
use super::envelope::Envelope;
use super::ids::CallKey;
use super::limits::Limits;
use super::money::Usd;
use super::status::StopReason;
use super::time::Timestamp;

/// A limit on what a run uses over its whole life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// `max_turns`.
    MaxTurns,
    /// `max_tool_calls`.
    MaxToolCalls,
    /// `max_tokens`.
    MaxTokens,
    /// `max_cost_usd`.
    MaxCostUsd,
    /// `max_duration_s`.
    MaxDurationS,
}

/// A limit that stands in the way of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reached {
    /// Which.
    pub limit: Limit,
    /// What people are asked about the calls of the turn that exceeds it, once it is raised.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub asks: Vec<(CallKey, Requirement)>,
}

/// A limit that counts something.
struct Count {
    used: u64,
    /// What the next step needs.
    least: u64,
    holds: u64,
    /// As the run was created.
    first: u64,
    most: u64,
}

impl Limit {
    /// Its name among the limits of a run.
    pub const fn member(self) -> &'static str {
        match self {
            Self::MaxTurns => "max_turns",
            Self::MaxToolCalls => "max_tool_calls",
            Self::MaxTokens => "max_tokens",
            Self::MaxCostUsd => "max_cost_usd",
            Self::MaxDurationS => "max_duration_s",
        }
    }

    /// Why a run stops that may not go on.
    pub const fn reason(self) -> StopReason {
        match self {
            Self::MaxTurns => StopReason::MaxTurns,
            Self::MaxToolCalls => StopReason::MaxToolCalls,
            Self::MaxTokens => StopReason::BudgetTokens,
            Self::MaxCostUsd => StopReason::BudgetUsd,
            Self::MaxDurationS => StopReason::Deadline,
        }
    }

    /// That it is reached, for people and for the model.
    pub fn sentence(self, limits: &Limits) -> String {
        let text = |most: Option<String>| most.unwrap_or_default();
        let what = match self {
            Self::MaxTurns => format!("{} model turns", limits.max_turns),
            Self::MaxToolCalls => format!("{} tool calls", limits.max_tool_calls),
            Self::MaxTokens => format!("{} tokens", text(limits.max_tokens.map(|most| most.to_string()))),
            Self::MaxCostUsd => format!("{} US dollars", text(limits.max_cost_usd.map(|most| most.to_string()))),
            Self::MaxDurationS => {
                format!("{} seconds of work", text(limits.max_duration_s.map(|most| most.to_string())))
            }
        };
        format!("The run's limit of {what} is reached.")
    }

    /// What people are asked to raise it to, as an object with this one member: as much again as the run was given, and no
    /// less than its next step needs. `None`: no value lets the run go on.
    pub fn proposal(self, run: &Envelope, now: Timestamp) -> Option<Value> {
        let raised = if let Some(Count { used, least, holds, first, most }) = self.count(run, now) {
            let raised = holds.max(used).saturating_add(first.min(holds)).max(least).min(most);
            (raised >= least).then(|| Value::from(raised))?
        } else {
            let (holds, (used, least)) = (run.limits().max_cost_usd?, least_cost(run)?);
            let first = run.spec.limits.max_cost_usd.unwrap_or(holds).min(holds);
            serde_json::to_value(holds.max(used).plus(first).max(least)).ok()?
        };
        Some(Value::Object(Map::from_iter([(self.member().to_owned(), raised)])))
    }

    /// The limits of the run with this one raised to what was voted on.
    ///
    /// # Errors
    /// In words, where that is no such value, or would not let the run go on.
    pub fn raised(self, run: &Envelope, to: &Value, now: Timestamp) -> Result<Limits, String> {
        let member = self.member();
        let number = match to.as_object() {
            Some(members) if members.len() == 1 => members.get(member).and_then(Value::as_number),
            Some(_) | None => None,
        };
        let number = number.ok_or_else(|| format!("must be an object with the one number `{member}`"))?;
        let mut limits = *run.limits();
        let Some(Count { least, most, .. }) = self.count(run, now) else {
            let (_, least) = least_cost(run).ok_or("what the run costs is not known")?;
            let amount = Usd::parse(&number.to_string()).filter(|amount| *amount >= least);
            limits.max_cost_usd = Some(amount.ok_or_else(|| format!("`{member}` must be at least {least} to go on"))?);
            return Ok(limits);
        };
        let detail = || format!("`{member}` must be a whole number from {least} to {most} to go on");
        let to = number.as_u64().filter(|to| (least..=most).contains(to)).ok_or_else(detail)?;
        let short = u32::try_from(to).unwrap_or(u32::MAX);
        match self {
            Self::MaxTurns => limits.max_turns = short,
            Self::MaxToolCalls => limits.max_tool_calls = short,
            Self::MaxTokens => limits.max_tokens = Some(to),
            Self::MaxDurationS => limits.max_duration_s = Some(to),
            Self::MaxCostUsd => {}
        }
        Ok(limits)
    }

    fn count(self, run: &Envelope, now: Timestamp) -> Option<Count> {
        let (state, holds, first) = (&run.head.state, run.limits(), &run.spec.limits);
        Some(match self {
            Self::MaxTurns => Count {
                used: state.turns.into(),
                least: u64::from(state.turns).saturating_add(1),
                holds: holds.max_turns.into(),
                first: first.max_turns.into(),
                most: Limits::TURNS_MOST.into(),
            },
            Self::MaxToolCalls => Count {
                used: state.tool_calls.into(),
                least: state.tool_calls.into(),
                holds: holds.max_tool_calls.into(),
                first: first.max_tool_calls.into(),
                most: Limits::TOOL_CALLS_MOST.into(),
            },
            Self::MaxTokens => {
                let (holds, used) = (holds.max_tokens?, state.usage.total_tokens);
                let used = used.saturating_add(state.asks.reserved_tokens());
                let least = used.saturating_add(state.pace.last_input_tokens.max(1));
                Count { used, least, holds, first: first.max_tokens.unwrap_or(holds), most: u64::MAX }
            }
            Self::MaxDurationS => {
                let holds = holds.max_duration_s?;
                let used = u64::try_from(run.worked_ms(now).saturating_div(1000)).unwrap_or(0);
                let first = first.max_duration_s.unwrap_or(holds);
                Count { used, least: used.saturating_add(1), holds, first, most: u64::MAX }
            }
            Self::MaxCostUsd => return None,
        })
    }
}

/// What the run has cost or may yet cost, and what it needs to go on. `None`: nobody knows.
fn least_cost(run: &Envelope) -> Option<(Usd, Usd)> {
    let (state, price) = (&run.head.state, run.price()?);
    let used = state.usage.cost()?;
    let used = used.plus(state.asks.reserved_cost());
    let next = price.least(state.pace.last_input_tokens);
    let next = if price.is_free() { next } else { next.max(Usd::LEAST) };
    Some((used, used.plus(next)))
}
