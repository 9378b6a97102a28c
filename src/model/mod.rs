//! Asks models. Provider types stop here: the rest of the server sees a prompt go in and parts of a turn come out.

mod anthropic;
mod blame;
mod bounded;
mod fault;
mod openai;
mod scripted;
#[cfg(test)]
mod testing;
mod transport;
mod wire;

use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::BoxStream;
use secrecy::SecretString;
use serde_json::{Value, json};

pub use self::anthropic::Anthropic;
pub use self::bounded::{bounded, within};
pub use self::openai::OpenAi;
pub use self::scripted::Scripted;
use crate::net::EgressClient;
use crate::run::history::Prompt;
use crate::run::message::ModelTurn;
use crate::run::spec::{ModelSpec, Provider};

/// One request to a model.
#[derive(Clone, Debug)]
pub struct ModelRequest {
    /// Which model, where.
    pub model: ModelSpec,
    /// Everything that is said.
    pub prompt: Prompt,
    /// The key, when the model needs one.
    pub secret: Option<SecretString>,
    /// Requests of this run whose outcome is committed: picks the entry of a scripted model.
    pub requests_before: u32,
    /// Calls that the run's model made before: numbers the default call ids of a scripted model.
    pub calls_before: u32,
}

/// What a model stream yields.
#[derive(Clone, Debug, PartialEq)]
pub enum ModelPart {
    /// More text.
    Text(String),
    /// More of what the model thinks aloud.
    Reasoning(String),
    /// The turn ended properly: the whole of it, always the last part. A stream without it was cut off.
    Ended(Box<ModelTurn>),
}

/// Why a request brought no turn.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ModelError {
    /// What can be done about it.
    pub kind: ModelErrorKind,
    /// For people; holds no secret and no query string.
    pub message: String,
    /// Whether the provider may have begun to answer, and may want to be paid for it.
    pub may_cost: bool,
}

/// What can be done about a failed request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelErrorKind {
    /// Ask again: overloaded, rate limited, unreachable, cut off. Not before the provider's `Retry-After`.
    Retryable {
        /// The provider's `Retry-After`.
        after: Option<Duration>,
    },
    /// The prompt is longer than the model takes.
    ContextOverflow,
    /// The provider does not accept the request or the key: asking again is certain to fail.
    Refused,
    /// The provider does not accept one of the tools on offer.
    ToolRefused {
        /// Its offered name.
        tool: String,
    },
}

/// The parts of one turn, in order. An error is the last item; a stream that ends with neither [`ModelPart::Ended`] nor
/// an error was cut off, and is to be asked again like any other cut stream.
pub type ModelStream = BoxStream<'static, Result<ModelPart, ModelError>>;

/// One provider protocol.
pub trait ModelProvider: Send + Sync {
    /// Starts a request. Dropping the stream ends it.
    fn ask(&self, request: ModelRequest) -> ModelStream;
}

/// Every provider; asks the one that the run names.
#[derive(Clone, Debug)]
pub struct Models {
    openai: OpenAi,
    anthropic: Anthropic,
    scripted: Scripted,
}

impl Models {
    /// All providers on one HTTP client, which brings the limits: the address check, no redirects, a connect and a read
    /// time-out. A whole turn has no limit here.
    pub fn new(client: EgressClient) -> Self {
        Self { openai: OpenAi::new(client.clone()), anthropic: Anthropic::new(client), scripted: Scripted }
    }
}

impl ModelProvider for Models {
    fn ask(&self, request: ModelRequest) -> ModelStream {
        let tools: Vec<String> = request.prompt.tools.iter().map(|tool| tool.name.clone()).collect();
        let stream = match request.model.provider {
            Provider::Openai => self.openai.ask(request),
            Provider::Anthropic => self.anthropic.ask(request),
            Provider::Scripted => self.scripted.ask(request),
        };
        stream.map(move |part| part.map_err(|error| blame::blame(error, &tools))).boxed()
    }
}

/// Arguments that are no JSON object, inside one, so that every provider takes the history and the model sees what it
/// wrote.
fn unreadable(input: &Value) -> Value {
    let text = input.as_str().map_or_else(|| input.to_string(), str::to_owned);
    json!({ "invalid_json": text })
}
