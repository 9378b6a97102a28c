//! What readers are told, in the order in which it became true. Committed before it is sent.

use serde::{Deserialize, Serialize};
use serde_json::{Number, Value};
use utoipa::ToSchema;

use super::approval::Approval;
use super::ask::{Input, InputAnswered};
use super::binding::Warning;
use super::ids::{CallId, RunId};
use super::message::TurnUsage;
use super::outcome::ToolError;
use super::policy::Decision;
use super::result::{RunError, RunOutput, Usage};
use super::spec::FinishReason;
use super::time::Timestamp;

/// One event of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// What happened.
    #[serde(flatten)]
    pub body: EventBody,
    /// Whose event it is.
    pub run_id: RunId,
    /// Strictly rising per run, from 1.
    pub seq: i64,
    /// When it was decided.
    pub at: Timestamp,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum EventBody {
    /// The run's status changed to one that is not terminal.
    RunStatus {
        /// The status.
        status: String,
        /// Its reason.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
        /// Legs begun without progress in between.
        attempt: u32,
    },
    /// The model is asked.
    TurnStarted {
        /// The turn, from 1.
        turn: u32,
        /// The model's name.
        model: String,
    },
    /// A part of the model's answer, or a warning.
    Part {
        /// The turn; 0 before the first.
        turn: u32,
        /// The part.
        part: Part,
    },
    /// The receipt is `executing`: the request may leave.
    ToolStarted {
        /// The turn.
        turn: u32,
        /// The call's label.
        call_id: CallId,
        /// The tool's offered name.
        tool: String,
        /// How often the call was sent, this time included.
        attempt: u32,
    },
    /// The run's client is to carry out a call and give its result.
    ClientToolRequested {
        /// The turn.
        turn: u32,
        /// The call's label.
        call_id: CallId,
        /// The tool's offered name.
        tool: String,
        /// The arguments.
        input: Value,
    },
    /// A backend said how far a call has come.
    ToolProgress {
        /// The turn.
        turn: u32,
        /// The call's label.
        call_id: CallId,
        /// How far.
        #[serde(flatten)]
        progress: Progress,
    },
    /// A call settled, or its outcome is unknown.
    ToolOutput {
        /// The turn.
        turn: u32,
        /// The call's label.
        call_id: CallId,
        /// The tool's offered name.
        tool: String,
        /// `completed`, `failed`, `indeterminate` or `rejected`.
        stage: String,
        /// How often the call was sent.
        attempt: u32,
        /// What the backend returned.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        output: Option<Value>,
        /// Why it failed, or why nobody knows whether it did.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<ToolError>,
        /// Why the outcome is unknown.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cause: Option<String>,
        /// Which rule rejected it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rule: Option<String>,
        /// What the model is told of the rejection.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
        /// For a rejected call: what the policies decided about it, where any are.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        policy: Option<Decision>,
        /// Milliseconds from the receipt to the answer.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        duration_ms: Option<i64>,
    },
    /// Calls wait for a person to say what became of them.
    ReconciliationRequired {
        /// The calls.
        calls: Vec<UndecidedCall>,
    },
    /// A person decided an undecided call.
    ReconciliationDecided {
        /// The turn.
        turn: u32,
        /// The call's label.
        call_id: CallId,
        /// `retry`, `complete` or `fail`.
        resolution: String,
        /// Who decided.
        actor: String,
    },
    /// A call waits for votes.
    ApprovalRequested {
        /// The approval.
        approval: Box<Approval>,
    },
    /// Votes, or the run's end, decided an approval.
    ApprovalDecided {
        /// The approval.
        approval: Box<Approval>,
    },
    /// A server asks a person.
    InputRequested {
        /// What.
        input: Input,
    },
    /// A server's question has its answer, or ended without one.
    InputAnswered {
        /// What became of it.
        input: InputAnswered,
    },
    /// A server asked for a sample of a model.
    Sampling {
        /// The turn of the call that it is about.
        turn: u32,
        /// That call's label.
        call_id: CallId,
        /// The server.
        server: String,
        /// The model's name.
        model: String,
        /// `refused`; or `reserved`, and then `made` or `failed`.
        decision: String,
        /// Why it was refused or failed: a code.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
        /// The same in words.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        message: Option<String>,
        /// Tokens of the run's budget that are reserved for it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reserved_tokens: Option<u64>,
        /// What it used.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        usage: Option<TurnUsage>,
    },
    /// A changed catalog was accepted.
    BindingRevised {
        /// The new revision.
        revision: u32,
        /// Names that came.
        added: Vec<String>,
        /// Names that went.
        removed: Vec<String>,
        /// Names whose definition changed.
        changed: Vec<String>,
    },
    /// Earlier events are kept no longer; never stored itself, and told only to a reader who asked for them.
    Gap {
        /// Number of the first event that there is.
        first_seq: i64,
    },
    /// The run ended; always the last.
    Result {
        /// The terminal status.
        status: String,
        /// Its reason.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
        /// The final answer.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        output: Option<RunOutput>,
        /// Why it failed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<RunError>,
        /// What it used.
        usage: Usage,
    },
}

impl EventBody {
    /// The event's type, as on the wire.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::RunStatus { .. } => "run-status",
            Self::TurnStarted { .. } => "turn-started",
            Self::Part { .. } => "part",
            Self::ToolStarted { .. } => "tool-started",
            Self::ClientToolRequested { .. } => "client-tool-requested",
            Self::ToolProgress { .. } => "tool-progress",
            Self::ToolOutput { .. } => "tool-output",
            Self::ReconciliationRequired { .. } => "reconciliation-required",
            Self::ReconciliationDecided { .. } => "reconciliation-decided",
            Self::ApprovalRequested { .. } => "approval-requested",
            Self::ApprovalDecided { .. } => "approval-decided",
            Self::InputRequested { .. } => "input-requested",
            Self::InputAnswered { .. } => "input-answered",
            Self::Sampling { .. } => "sampling",
            Self::BindingRevised { .. } => "binding-revised",
            Self::Gap { .. } => "gap",
            Self::Result { .. } => "result",
        }
    }
}

/// A part of the model's answer, or a warning.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum Part {
    /// More text.
    TextDelta {
        /// The new text.
        text: String,
        /// Characters of this turn's text before it; a reader writes the text there.
        offset: u64,
    },
    /// More of what the model thinks aloud.
    ReasoningDelta {
        /// The new text.
        text: String,
        /// Characters of this turn's reasoning before it.
        offset: u64,
    },
    /// A whole call.
    ToolCall {
        /// The call's label.
        call_id: CallId,
        /// The tool's offered name.
        tool: String,
        /// The arguments.
        input: Value,
    },
    /// Something that a person should know.
    Warning {
        /// The warning.
        warning: Warning,
    },
    /// The turn ended properly.
    TurnFinish {
        /// Why it ended.
        finish_reason: FinishReason,
        /// What it cost.
        usage: TurnUsage,
    },
    /// A model request failed.
    Error {
        /// Why.
        error: RunError,
    },
}

/// How far a call has come, in the backend's own unit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Progress {
    /// What is done.
    #[schema(value_type = f64)]
    pub progress: Number,
    /// What there is to do, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<f64>)]
    pub total: Option<Number>,
    /// The same in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// A call that the run's client is to carry out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ClientCall {
    /// The turn.
    pub turn: u32,
    /// The call's label.
    pub call_id: CallId,
    /// The tool's offered name.
    pub tool: String,
    /// The arguments.
    pub input: Value,
    /// Since when.
    pub since: Timestamp,
}

/// A call that waits for a person.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct UndecidedCall {
    /// The turn.
    pub turn: u32,
    /// The call's label.
    pub call_id: CallId,
    /// The tool's offered name.
    pub tool: String,
    /// The arguments.
    pub input: Value,
    /// Why nobody knows.
    pub cause: String,
    /// The same in words, for people.
    pub message: String,
    /// Since when.
    pub since: Timestamp,
}
