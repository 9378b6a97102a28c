//! The one place that assembles what a provider is sent. The history is always valid: every call has exactly one
//! result, results stand in call order right behind their turn.

use serde_json::Value;

use super::envelope::Envelope;
use super::message::Message;

/// Everything that one model request says.
#[derive(Clone, Debug, PartialEq)]
pub struct Prompt {
    /// The system prompt.
    pub instructions: Option<String>,
    /// The conversation, oldest first.
    pub messages: Vec<Message>,
    /// The tools on offer; sent with every request, also the last.
    pub tools: Vec<ToolOffer>,
}

/// One tool as the model is told of it.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolOffer {
    /// The offered name.
    pub name: String,
    /// What it does.
    pub description: Option<String>,
    /// JSON Schema of its arguments.
    pub input_schema: Value,
}

/// The prompt of the next turn: the same for the same stored run, whoever asks.
pub fn prompt(envelope: &Envelope) -> Prompt {
    let tools = envelope
        .binding
        .tools
        .iter()
        .map(|tool| ToolOffer {
            name: tool.name.clone(),
            description: tool.description.clone(),
            input_schema: tool.input_schema.clone(),
        })
        .collect();
    Prompt { instructions: envelope.spec.instructions.clone(), messages: envelope.messages.clone(), tools }
}
