//! What a server asks of a run while it carries out one of its calls: input of a person, a sample of a model, roots.
//!
//! In the era of sessions a question lives as long as its call is out. In the newer one the server answers the call with
//! its questions; they are kept in the receipt, and once each has its reply the same call is sent again with them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Number, Value};
use utoipa::ToSchema;

use super::estimate::text_tokens;
use super::history::Prompt;
use super::ids::{Actor, CallId, CallKey};
use super::message::{Content, Message, Role, TurnUsage};
use super::money::Usd;
use super::result::Usage;
use super::sampling::{Reservation, SampleCount};
use super::spec::FinishReason;
use super::time::Timestamp;

/// How often a server may answer one call with questions.
pub const MAX_ROUNDS: u32 = 10;
/// Questions to people that one run may have open at once.
pub const MAX_OPEN: usize = 16;
/// Closed questions that are remembered, so that a late answer is told what became of its question.
const CLOSED_KEPT: usize = 32;

/// One question of a server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ask {
    /// Fields for a person to fill in.
    Form {
        /// What the person is told.
        message: String,
        /// JSON Schema of the fields.
        schema: Value,
    },
    /// A page for a person to visit.
    Url {
        /// What the person is told.
        message: String,
        /// The page.
        url: String,
    },
    /// An answer of a model.
    Sample(Box<SampleRequest>),
    /// Which folders it may look at: none.
    Roots,
}

/// What a server wants a model to be asked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SampleRequest {
    /// The system prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
    /// The conversation, oldest first.
    pub messages: Vec<SampleMessage>,
    /// The longest answer, in tokens.
    pub max_tokens: u64,
    /// The sampling temperature.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature: Option<Number>,
    /// Texts that end the answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stop: Vec<String>,
}

/// One message of a sample request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SampleMessage {
    /// Who speaks: the user or the model.
    pub role: Role,
    /// What is said.
    pub text: String,
}

impl SampleRequest {
    /// What the model is sent; a server's request brings no tools.
    pub fn prompt(&self) -> Prompt {
        let message = |(position, message): (u32, &SampleMessage)| Message {
            position,
            turn: 0,
            role: message.role,
            content: vec![Content::Text { text: message.text.clone() }],
        };
        Prompt {
            instructions: self.system.clone(),
            messages: (0..).zip(&self.messages).map(message).collect(),
            tools: Vec::new(),
        }
    }

    /// The tokens that it may cost at worst: what it says, and the longest answer.
    pub fn cost(&self) -> u64 {
        let TurnUsage { input_tokens, output_tokens, .. } = self.most();
        input_tokens.saturating_add(output_tokens)
    }

    /// The same, by what is read and what is written.
    pub fn most(&self) -> TurnUsage {
        let system = self.system.as_deref().map_or(0, text_tokens);
        let said = self.messages.iter().map(|message| text_tokens(&message.text));
        TurnUsage::estimated(said.fold(system, u64::saturating_add), self.max_tokens)
    }
}

/// A model's answer for a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// The model's name.
    pub model: String,
    /// What it said.
    pub text: String,
    /// Why it ended.
    pub finish_reason: FinishReason,
}

/// What a server is told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reply {
    /// What a person did.
    Input {
        /// What.
        action: InputAction,
        /// The fields, when a form was accepted.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        content: Option<Value>,
    },
    /// What a model said.
    Sample(Sample),
    /// No roots.
    Roots,
}

impl Reply {
    /// The reply of nobody: the question went unanswered.
    pub const fn cancel() -> Self {
        Self::Input { action: InputAction::Cancel, content: None }
    }

    /// The reply of a run that lets servers ask nobody.
    pub const fn decline() -> Self {
        Self::Input { action: InputAction::Decline, content: None }
    }
}

/// What a person did about a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum InputAction {
    /// Gave what was asked for.
    Accept,
    /// Refused to give it.
    Decline,
    /// Went away without an answer.
    Cancel,
}

impl InputAction {
    /// The code on the wire.
    pub const fn code(self) -> &'static str {
        match self {
            Self::Accept => "accept",
            Self::Decline => "decline",
            Self::Cancel => "cancel",
        }
    }
}

/// The questions that a server answered a call with.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Questions {
    /// By the server's names of them.
    pub asks: BTreeMap<String, Ask>,
    /// What the server wants back untouched, when it sent that.
    pub state: Option<String>,
    /// A mark of the place that asks: the replies go there and nowhere else.
    pub place: Option<String>,
}

/// What a server asked about one call in its last round, kept in the receipt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Asked {
    /// Which round, from 1.
    pub round: u32,
    /// The questions, by the server's names of them.
    pub questions: BTreeMap<String, Question>,
    /// Given back byte for byte, and only if it was sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// A mark of the place that asked, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<String>,
}

/// One question with its reply.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Question {
    /// What is asked.
    pub ask: Ask,
    /// Whether people have approved it, where they must.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub approved: bool,
    /// The reply, once there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reply: Option<Reply>,
}

impl Asked {
    /// Whether every question has its reply.
    pub fn is_answered(&self) -> bool {
        self.questions.values().all(|question| question.reply.is_some())
    }

    /// Samples that nobody has made yet, by the server's names of them.
    pub fn samples(&self) -> impl Iterator<Item = (&String, &SampleRequest)> {
        self.questions.iter().filter(|(_, question)| question.reply.is_none()).filter_map(|(name, question)| {
            match &question.ask {
                Ask::Sample(request) => Some((name, &**request)),
                Ask::Form { .. } | Ask::Url { .. } | Ask::Roots => None,
            }
        })
    }
}

/// How a person is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum InputMode {
    /// Fields to fill in.
    Form,
    /// A page to visit.
    Url,
}

/// A question to a person, as readers see it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Input {
    /// What an answer names; unique in the run.
    pub input_id: String,
    /// The server that asks.
    pub server: String,
    /// The turn of the call that it asks about.
    pub turn: u32,
    /// That call's label.
    pub call_id: CallId,
    /// How the person is asked.
    pub mode: InputMode,
    /// What the person is told.
    pub message: String,
    /// With `form`: JSON Schema of the fields.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub requested_schema: Option<Value>,
    /// With `url`: the page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// When the server is told that nobody answered; left out where the question waits as long as it takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// When it was asked.
    pub asked_at: Timestamp,
}

/// What became of a question, as readers see it. What was filled in is told to the server only.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct InputAnswered {
    /// The question.
    pub input_id: String,
    /// The server that asked.
    pub server: String,
    /// What was done.
    pub action: InputAction,
    /// Who did it; left out where nobody did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actor: Option<String>,
    /// Why it ended without an answer: `expired`, `withdrawn`, `call-ended`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A question that waits for a person.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OpenInput {
    /// As readers see it.
    pub input: Input,
    /// The call that it is about.
    pub call: CallKey,
    /// The server's name of it, where it is kept in the receipt; else it lives as long as the call is out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub question: Option<String>,
}

/// A question that does not wait any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClosedInput {
    /// Which.
    pub input_id: String,
    /// What was done.
    pub action: InputAction,
    /// Who did it, when somebody did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actor: Option<Actor>,
}

/// What servers ask of a run, and what their samples used.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Asks {
    /// Questions that wait for people.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub open: Vec<OpenInput>,
    /// Questions that were closed last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub closed: Vec<ClosedInput>,
    /// Questions to people so far.
    #[serde(default)]
    pub inputs: u32,
    /// What samples may use that are being made.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reserved: Vec<Reservation>,
    /// Samples so far.
    #[serde(default)]
    pub samples: u32,
    /// Samples that were asked for, by calls that are open.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub counts: Vec<SampleCount>,
    /// What samples used; contained in the run's usage.
    #[serde(default)]
    pub usage: Usage,
}

impl Asks {
    /// Dollars that samples may cost which are being made.
    pub fn reserved_cost(&self) -> Usd {
        self.reserved.iter().filter_map(|reserved| reserved.cost_usd).fold(Usd::ZERO, Usd::plus)
    }

    /// Whether nothing was ever asked.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether the run has had a question of that name, which is not open any more.
    pub fn had(&self, input_id: &str) -> bool {
        let number = input_id.strip_prefix("input_").and_then(|number| number.parse::<u32>().ok());
        number.is_some_and(|number| number >= 1 && number <= self.inputs && input_id == name_of(number))
    }

    /// The name of the next question.
    pub(super) fn name_next(&mut self) -> String {
        self.inputs = self.inputs.saturating_add(1);
        name_of(self.inputs)
    }

    /// Remembers what became of a question, and forgets the oldest.
    pub(super) fn remember(&mut self, closed: ClosedInput) {
        self.closed.push(closed);
        let excess = self.closed.len().saturating_sub(CLOSED_KEPT);
        self.closed.drain(..excess);
    }

    /// Tokens that are reserved now.
    pub fn reserved_tokens(&self) -> u64 {
        self.reserved.iter().fold(0, |sum, reserved| sum.saturating_add(reserved.tokens))
    }
}

fn name_of(number: u32) -> String {
    format!("input_{number}")
}
