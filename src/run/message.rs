//! The conversation as it is stored: roles, content, and what one model turn brought.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::ids::CallId;
use super::spec::FinishReason;

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Instructions inside the input.
    System,
    /// The caller.
    User,
    /// The model.
    Assistant,
    /// The results of a turn's calls, in call order.
    Tool,
}

/// One stored message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// Place in the run, from 0.
    pub position: u32,
    /// The model turn that it belongs to; 0 for the input.
    pub turn: u32,
    /// Who speaks.
    pub role: Role,
    /// What is said, in order.
    pub content: Vec<Content>,
}

/// One piece of a message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum Content {
    /// Text.
    Text {
        /// The text.
        text: String,
    },
    /// A picture, in a message of the user.
    Image {
        /// Where it is.
        source: Source,
    },
    /// A file, in a message of the user.
    File {
        /// What it is called.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
        /// Where it is.
        source: Source,
    },
    /// What the model thought aloud.
    Reasoning {
        /// The text; may be empty where the provider hides it.
        text: String,
        /// The provider's own block, given back untouched (signatures), never read here.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        native: Option<Value>,
    },
    /// A call that the model made.
    ToolCall {
        /// The label of the call, unique in its turn.
        call_id: CallId,
        /// The tool's name as it was offered.
        tool: String,
        /// The arguments; text where the model wrote no JSON object.
        input: Value,
    },
    /// What came of a call, as the model is told.
    ToolResult {
        /// The label of the call.
        call_id: CallId,
        /// The tool's name as it was offered.
        tool: String,
        /// Text, or a JSON value.
        output: Value,
        /// Whether the model is told that the call failed.
        is_error: bool,
        /// Pictures of the result, which the text names.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pictures: Vec<Picture>,
    },
}

/// Where a picture or a file of the input is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "from", rename_all = "kebab-case")]
pub enum Source {
    /// At an address that the provider reads.
    Url {
        /// The address.
        url: String,
    },
    /// Here.
    Data {
        /// Its type.
        media_type: String,
        /// Base64, without white space.
        data: String,
    },
    /// With the provider, which keeps it.
    Id {
        /// The provider's name of it.
        file_id: String,
    },
}

/// A picture that models take.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Picture {
    /// What its bytes are: `image/png`, `image/jpeg`, `image/gif` or `image/webp`.
    pub media_type: String,
    /// Base64, without white space.
    pub data: String,
}

/// Token counts of one model request: what the provider says, and where it does not, what the request used at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TurnUsage {
    /// Tokens read.
    pub input_tokens: u64,
    /// Tokens written.
    pub output_tokens: u64,
    /// Tokens read from the provider's cache, contained in `input_tokens`.
    #[serde(default)]
    pub cached_input_tokens: u64,
    /// How many of the tokens read and written the provider did not count: they are the most that the request may have
    /// used. Left out where it counted all.
    #[serde(default, skip_serializing_if = "is_none")]
    #[schema(required = false)]
    pub estimated_tokens: u64,
}

impl TurnUsage {
    /// What nobody counted.
    pub const fn estimated(input_tokens: u64, output_tokens: u64) -> Self {
        let estimated_tokens = input_tokens.saturating_add(output_tokens);
        Self { input_tokens, output_tokens, cached_input_tokens: 0, estimated_tokens }
    }
}

/// Whether a count is left out.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands over a reference")]
pub(super) const fn is_none(count: &u64) -> bool {
    *count == 0
}

/// One call as the model wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrittenCall {
    /// The provider's id; empty or missing ids get one of ours.
    pub id: Option<String>,
    /// The tool's name as it was offered.
    pub tool: String,
    /// The arguments as text, exactly as they were written.
    pub arguments: String,
}

/// A model turn that ended properly.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelTurn {
    /// What the model thought aloud, with the provider's own blocks.
    pub reasoning: Vec<(String, Option<Value>)>,
    /// What the model said.
    pub text: String,
    /// The calls that it made, in order.
    pub calls: Vec<WrittenCall>,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// What it cost.
    pub usage: TurnUsage,
}

impl ModelTurn {
    /// How many bytes the model wrote.
    pub fn bytes(&self) -> u64 {
        let thought = self.reasoning.iter().map(|(text, _)| text.len());
        let called = self.calls.iter().map(|call| call.tool.len().saturating_add(call.arguments.len()));
        let bytes = thought.chain(called).fold(self.text.len(), usize::saturating_add);
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }
}
