//! Whether a server may have a model asked: policy, then approval, then the run's budget. In this order, and the first
//! that refuses says why.

use super::approval::{ApprovalRule, Requirement};
use super::ask::SampleRequest;
use super::asking::SamplingApproval;
use super::envelope::Envelope;
use super::money::Usd;
use super::spec::McpEntry;
use super::time::Timestamp;

/// Why a server gets no sample.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denial {
    /// The entry does not offer it.
    #[error("sampling is not offered to this server")]
    NotOffered,
    /// The entry does not allow its own model.
    #[error("the model {0:?} is not among the allowed models")]
    Model(String),
    /// The run has worked as long as it may.
    #[error("the run's deadline has passed")]
    Deadline,
    /// Nobody approved.
    #[error("nobody approved the request")]
    Approval,
    /// The longest answer is longer than the entry allows.
    #[error("{asked} tokens are asked for, and at most {most} are allowed")]
    MaxTokens {
        /// What the server asks for.
        asked: u64,
        /// What the entry allows.
        most: u64,
    },
    /// The run's budget has no room for it.
    #[error("it may cost {cost} tokens, and {left} of the run's budget are left")]
    Budget {
        /// What it may cost.
        cost: u64,
        /// What is left.
        left: u64,
    },
    /// The run's budget of money has no room for it.
    #[error("it may cost {cost} dollars, and {left} of the run's budget are left")]
    Cost {
        /// What it may cost.
        cost: Usd,
        /// What is left.
        left: Usd,
    },
    /// The run has a budget of money, and nobody said what the model costs.
    #[error("the price of the model {0:?} is not known, and the run has a budget of money")]
    NoPrice(String),
    /// The request is one that is not served.
    #[error("{0}")]
    Unsupported(String),
}

impl Denial {
    /// The code in events.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::NotOffered => "not-offered",
            Self::Model(_) => "model-not-allowed",
            Self::Deadline => "deadline",
            Self::Approval => "approval-refused",
            Self::MaxTokens { .. } => "max-tokens",
            Self::Budget { .. } => "budget.tokens",
            Self::Cost { .. } | Self::NoPrice(_) => "budget.usd",
            Self::Unsupported(_) => "unsupported",
        }
    }
}

/// What a sample may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleCost {
    /// Tokens.
    pub tokens: u64,
    /// What they may cost, where that is known.
    pub cost_usd: Option<Usd>,
}

/// What comes before a sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admission {
    /// People must approve it.
    Ask(Requirement),
    /// This is reserved, and it is made.
    Reserve(SampleCost),
}

/// What comes before a sample that people have `approved`, or not been asked about.
///
/// # Errors
/// Why it is not made.
pub fn rule(
    envelope: &Envelope,
    entry: &McpEntry,
    request: &SampleRequest,
    approved: bool,
    now: Timestamp,
) -> Result<Admission, Denial> {
    let sampling = entry.sampling.as_ref().ok_or(Denial::NotOffered)?;
    let model = &sampling.model.name;
    if sampling.allowed_models.as_ref().is_some_and(|allowed| !allowed.contains(model)) {
        return Err(Denial::Model(model.clone()));
    }
    if envelope.is_late(now) {
        return Err(Denial::Deadline);
    }
    // Before people are asked: nobody is bothered with what no word of theirs could allow.
    if let Some(most) = sampling.max_tokens.filter(|most| request.max_tokens > *most) {
        return Err(Denial::MaxTokens { asked: request.max_tokens, most });
    }
    match sampling.approval {
        SamplingApproval::Always if !approved => return Ok(Admission::Ask(requirement(entry, model))),
        SamplingApproval::Always | SamplingApproval::Never => {}
    }
    let cost = request.cost();
    match envelope.tokens_left() {
        Some(left) if cost > left => return Err(Denial::Budget { cost, left }),
        Some(_) | None => {}
    }
    let price = envelope.spec.prices.of(&sampling.model);
    let money = price.map(|price| price.of(request.most()));
    match (envelope.cost_left(), money) {
        (Some(_), None) => Err(Denial::NoPrice(model.clone())),
        (Some(left), Some(cost)) if cost > left => Err(Denial::Cost { cost, left }),
        (Some(_) | None, cost_usd) => Ok(Admission::Reserve(SampleCost { tokens: cost, cost_usd })),
    }
}

fn requirement(entry: &McpEntry, model: &str) -> Requirement {
    let reason = format!("The MCP server {} asks for a sample of the model {model}.", entry.label());
    Requirement::new(ApprovalRule::default(), "sampling.approval", reason)
}
