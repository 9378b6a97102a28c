//! Whether a server may have a model asked: policy, then approval, then the run's budget. In this order, and the first
//! that refuses says why.

use serde::{Deserialize, Serialize};

use super::approval::{ApprovalRule, Requirement};
use super::ask::{Asks, SampleRequest};
use super::asking::SamplingApproval;
use super::envelope::Envelope;
use super::ids::CallKey;
use super::message::TurnUsage;
use super::money::Usd;
use super::spec::McpEntry;
use super::time::Timestamp;

/// Samples that the server of one call may ask for, whatever becomes of them.
pub const MAX_SAMPLES: u32 = 64;
/// Samples of one call that are made at once.
pub const MAX_AT_ONCE: usize = 4;
/// Samples of one run that are made at once.
pub const MAX_AT_ONCE_IN_RUN: usize = 8;

/// How many samples the server of one call has asked for, refused ones among them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SampleCount {
    /// The call.
    pub call: CallKey,
    /// How many.
    pub samples: u32,
}

impl Asks {
    /// How many samples the server of this call has asked for.
    pub fn samples_of(&self, call: CallKey) -> u32 {
        self.counts.iter().find(|count| count.call == call).map_or(0, |count| count.samples)
    }

    /// Counts one more, and forgets the calls that are not open any more.
    pub(super) fn count_sample(&mut self, call: CallKey, is_open: impl Fn(CallKey) -> bool) {
        self.counts.retain(|count| is_open(count.call));
        match self.counts.iter_mut().find(|count| count.call == call) {
            Some(count) => count.samples = count.samples.saturating_add(1),
            None => self.counts.push(SampleCount { call, samples: 1 }),
        }
    }
}

/// Whether the server of this call has asked for as many samples as it may.
pub fn is_spent(envelope: &Envelope, call: CallKey) -> bool {
    envelope.head.state.asks.samples_of(call) >= MAX_SAMPLES
}

/// Whether one more sample of this call may be made now. Those that people approve while their server waits are made
/// at once, by their word.
pub fn has_room(envelope: &Envelope, call: CallKey) -> bool {
    let reserved = &envelope.head.state.asks.reserved;
    let of_call = reserved.iter().filter(|reserved| reserved.call == call).count();
    of_call < MAX_AT_ONCE && reserved.len() < MAX_AT_ONCE_IN_RUN
}

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
    /// The server has asked for as many as one call may.
    #[error("the call has had its {MAX_SAMPLES} samples")]
    TooMany,
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
            Self::TooMany => "too-many",
            Self::Unsupported(_) => "unsupported",
        }
    }
}

/// What a sample may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleCost {
    /// Tokens.
    pub most: TurnUsage,
    /// What they may cost, where that is known.
    pub cost_usd: Option<Usd>,
}

/// Tokens of the run's budget that a sample may use, while it is made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reservation {
    /// Number of the sample in the run, from 1.
    pub sample: u32,
    /// The call that it is about.
    pub call: CallKey,
    /// The server's name of the question, where it is kept in the receipt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub question: Option<String>,
    /// The approval by which it is made, where its server waits for it while the call is out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<uuid::Uuid>,
    /// The server that asks.
    pub server: String,
    /// The model that is asked.
    pub model: String,
    /// How many tokens.
    pub tokens: u64,
    /// How many of them to read.
    #[serde(default)]
    pub input_tokens: u64,
    /// What they may cost, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<Usd>,
}

impl Reservation {
    /// What was reserved, as what was used: that is all that is known of a sample without an end.
    pub const fn usage(&self) -> TurnUsage {
        TurnUsage::estimated(self.input_tokens, self.tokens.saturating_sub(self.input_tokens))
    }
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
    let most = request.most();
    let cost = most.input_tokens.saturating_add(most.output_tokens);
    match envelope.tokens_left() {
        Some(left) if cost > left => return Err(Denial::Budget { cost, left }),
        Some(_) | None => {}
    }
    let price = envelope.spec.prices.of(&sampling.model);
    let money = price.map(|price| price.of(most));
    match (envelope.cost_left(), money) {
        (Some(_), None) => Err(Denial::NoPrice(model.clone())),
        (Some(left), Some(cost)) if cost > left => Err(Denial::Cost { cost, left }),
        (Some(_) | None, cost_usd) => Ok(Admission::Reserve(SampleCost { most, cost_usd })),
    }
}

fn requirement(entry: &McpEntry, model: &str) -> Requirement {
    let reason = format!("The MCP server {} asks for a sample of the model {model}.", entry.label());
    Requirement::new(ApprovalRule::default(), "sampling.approval", reason)
}
