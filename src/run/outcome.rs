//! The ways an attempt of a call can end. The whole effect rule hangs on this distinction: what was *not sent* may be sent,
//! what was *answered* is settled, and what is *unknown* is never repeated without a right to do so. What is *deferred* has not ended:
//! its server names a task, and that name is kept in the receipt, so that whoever drives the run next can ask.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::ask::Questions;
use super::call::Task;

/// How one attempt of a call ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// The server answered: the effect is known.
    Answered(Answer),
    /// Certainly not executed: nothing left, or the server refused before doing anything.
    NotSent(ToolError),
    /// The same, where another attempt by itself can fare better: the server forgot our session, wanted another token,
    /// or asked for a pause, which is over.
    TurnedAway(ToolError),
    /// Sent and not answered: the effect may or may not have happened.
    Unknown(Cause),
    /// The server answered with questions: it goes on once the same call comes again with the replies.
    InputRequired(Box<Questions>),
    /// The server goes on with it by itself and is to be asked for the end.
    Deferred(Task),
}

/// What a backend answered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "kebab-case")]
pub enum Answer {
    /// The call did what it should.
    Done {
        /// What the backend returned: for MCP the whole result object.
        output: Value,
    },
    /// The call failed, says the server.
    Failed {
        /// What the model is told.
        error: ToolError,
        /// What the backend returned, when there was a result object.
        output: Option<Value>,
    },
}

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ToolError {
    /// A kebab-case code, e.g. `tool-error`, `mcp-unreachable`.
    pub code: String,
    /// The text that the model reads.
    pub message: String,
}

impl ToolError {
    /// An error with its code and text.
    pub fn new(code: &str, message: impl Into<String>) -> Self {
        Self { code: code.to_owned(), message: message.into() }
    }
}

/// Why nobody knows whether a call had its effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// The process that sent it died.
    Crash,
    /// The connection broke, or the answer could not be read.
    LostResponse,
    /// No answer within the limits.
    TimeOut,
    /// The run was cancelled while the call was out.
    Cancelled,
    /// The worker that had it gave no sign of life in time.
    LeaseExpired,
}

impl Cause {
    /// The code on the wire.
    pub const fn code(self) -> &'static str {
        match self {
            Self::Crash => "crash",
            Self::LostResponse => "lost-response",
            Self::TimeOut => "time-out",
            Self::Cancelled => "cancelled",
            Self::LeaseExpired => "lease-expired",
        }
    }

    /// What a person is told. Each says what happened, and all that the action may have happened.
    pub const fn message(self) -> &'static str {
        match self {
            Self::Crash => {
                "The server stopped or died after this call was sent and before an answer was stored. The action may \
                 have happened."
            }
            Self::LostResponse => {
                "This call was sent, and the connection broke or the answer could not be read. The action may have \
                 happened."
            }
            Self::TimeOut => "This call was sent and not answered in time. The action may have happened.",
            Self::Cancelled => "The run was cancelled while this call was out. The action may have happened.",
            Self::LeaseExpired => {
                "The worker that took this call gave no sign of life in time. The action may have happened."
            }
        }
    }
}
