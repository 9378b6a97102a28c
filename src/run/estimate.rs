//! What a model request has used at most, where its provider does not say. It is counted like what providers say, and
//! marked: what nobody counted must not look free.
//!
//! A token is at least one byte of what is said, so a request reads no more tokens than it has bytes. An answer that came
//! whole has no more tokens than bytes either. One that did not may have been written to its end without being heard: it
//! counts as the longest that the request allows, and where the request names no such limit, as what was heard.

use serde_json::Value;

use super::history::Prompt;
use super::message::{Content, Source, TurnUsage};
use super::spec::ModelSpec;

/// Each message has a few tokens around it.
const TOKENS_A_MESSAGE: u64 = 4;

/// No provider reads more tokens of a picture: it is made smaller first.
const TOKENS_A_PICTURE: u64 = 10_000;

/// A file that only the provider sees counts as a long one.
const TOKENS_A_FILE: u64 = 100_000;

/// The most that one request may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Estimate {
    /// Tokens read.
    input_tokens: u64,
    /// Tokens written, where the request has a limit on them.
    output_tokens: Option<u64>,
}

/// What a provider says that a request used. A count of nothing where there was something is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SaidUsage {
    /// Tokens read.
    pub input_tokens: Option<u64>,
    /// Tokens written.
    pub output_tokens: Option<u64>,
    /// Tokens read from the provider's cache, contained in `input_tokens`.
    pub cached_input_tokens: Option<u64>,
}

impl Estimate {
    /// The most that this may use.
    pub fn of(model: &ModelSpec, prompt: &Prompt) -> Self {
        let instructions = prompt.instructions.as_deref().map_or(0, text_tokens);
        let messages = prompt
            .messages
            .iter()
            .map(|message| message.content.iter().map(content_tokens).fold(TOKENS_A_MESSAGE, u64::saturating_add));
        let tools = prompt.tools.iter().map(|tool| {
            let description = tool.description.as_deref().map_or(0, bytes);
            text_tokens(&tool.name).saturating_add(description).saturating_add(value_tokens(&tool.input_schema))
        });
        let limit = |name: &str| model.parameters.as_ref()?.get(name)?.as_u64();
        let output_tokens = ["max_tokens", "max_completion_tokens"].into_iter().filter_map(limit).min();
        Self { input_tokens: messages.chain(tools).fold(instructions, u64::saturating_add), output_tokens }
    }

    /// What an answer used that came whole, with so many bytes.
    #[must_use]
    pub fn ended(&self, said: SaidUsage, came: u64) -> TurnUsage {
        let read = said.input_tokens.filter(|tokens| *tokens > 0);
        let wrote = said.output_tokens.filter(|tokens| *tokens > 0 || came == 0);
        let at_most = self.output_tokens.map_or(came, |most| came.min(most));
        let guessed = |said: Option<u64>, most: u64| if said.is_some() { 0 } else { most };
        TurnUsage {
            input_tokens: read.unwrap_or(self.input_tokens),
            output_tokens: wrote.unwrap_or(at_most),
            cached_input_tokens: read.and(said.cached_input_tokens).unwrap_or(0),
            estimated_tokens: guessed(read, self.input_tokens).saturating_add(guessed(wrote, at_most)),
        }
    }

    /// What an answer used of which so many bytes came, and not its end.
    #[must_use]
    pub fn unended(&self, came: u64) -> TurnUsage {
        TurnUsage::estimated(self.input_tokens, self.output_tokens.unwrap_or(came))
    }
}

/// The most tokens of a text, with what stands around it.
pub(super) fn text_tokens(text: &str) -> u64 {
    bytes(text).saturating_add(TOKENS_A_MESSAGE)
}

fn bytes(text: &str) -> u64 {
    u64::try_from(text.len()).unwrap_or(u64::MAX)
}

fn value_tokens(value: &Value) -> u64 {
    let mut count = Count(0);
    match value.as_str() {
        Some(text) => bytes(text),
        None => serde_json::to_writer(&mut count, value).map_or(u64::MAX, |()| count.0),
    }
}

/// Counts the bytes that are written to it.
struct Count(u64);

impl std::io::Write for Count {
    fn write(&mut self, written: &[u8]) -> std::io::Result<usize> {
        self.0 = self.0.saturating_add(u64::try_from(written.len()).unwrap_or(u64::MAX));
        Ok(written.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn content_tokens(content: &Content) -> u64 {
    match content {
        Content::Text { text } => bytes(text),
        Content::Image { .. } => TOKENS_A_PICTURE,
        Content::File { source: Source::Data { data, .. }, .. } => bytes(data),
        Content::File { source: Source::Url { .. } | Source::Id { .. }, .. } => TOKENS_A_FILE,
        Content::Reasoning { text, native } => bytes(text).max(native.as_ref().map_or(0, value_tokens)),
        Content::ToolCall { call_id, tool, input } => {
            text_tokens(call_id.as_str()).saturating_add(bytes(tool)).saturating_add(value_tokens(input))
        }
        Content::ToolResult { call_id, output, pictures, .. } => {
            let shown = u64::try_from(pictures.len()).unwrap_or(u64::MAX).saturating_mul(TOKENS_A_PICTURE);
            text_tokens(call_id.as_str()).saturating_add(value_tokens(output)).saturating_add(shown)
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::run::history::ToolOffer;
    use crate::run::message::{Message, Role};

    fn estimate(parameters: &Value, content: Vec<Content>) -> Estimate {
        let model = json!({ "provider": "openai", "name": "m", "parameters": parameters });
        let prompt = Prompt {
            instructions: Some("be".to_owned()),
            messages: vec![Message { position: 0, turn: 0, role: Role::User, content }],
            tools: vec![ToolOffer { name: "t".to_owned(), description: Some("d".to_owned()), input_schema: json!({}) }],
        };
        Estimate::of(&serde_json::from_value(model).unwrap(), &prompt)
    }

    fn text(text: &str) -> Content {
        Content::Text { text: text.to_owned() }
    }

    const fn said(input: Option<u64>, output: Option<u64>) -> SaidUsage {
        SaidUsage { input_tokens: input, output_tokens: output, cached_input_tokens: Some(2) }
    }

    #[test]
    fn field_a149_a_request_counts_as_no_fewer_tokens_than_it_can_have() {
        // "be" and 4, the message and 4, the tool's name and 4, its description, its schema.
        assert_eq!(estimate(&json!({}), vec![text("hällo")]).unended(0).input_tokens, 6 + 10 + 5 + 1 + 2);
        let picture = Content::Image { source: Source::Url { url: "https://a.test/b".to_owned() } };
        assert!(estimate(&json!({}), vec![picture]).unended(0).input_tokens >= TOKENS_A_PICTURE);
    }

    #[test]
    fn field_a149_what_a_provider_says_is_taken_and_the_rest_is_marked() {
        let estimate = estimate(&json!({}), vec![text("hi")]);
        let most = estimate.unended(0).input_tokens;
        let usage = |input_tokens, output_tokens, cached_input_tokens, estimated_tokens| TurnUsage {
            input_tokens,
            output_tokens,
            cached_input_tokens,
            estimated_tokens,
        };
        assert_eq!(estimate.ended(said(Some(7), Some(3)), 9), usage(7, 3, 2, 0));
        assert_eq!(estimate.ended(said(Some(7), None), 9), usage(7, 9, 2, 9));
        assert_eq!(estimate.ended(said(None, Some(3)), 9), usage(most, 3, 0, most));
        // Nothing was not read, and nothing was not written where something came.
        assert_eq!(estimate.ended(said(Some(0), Some(0)), 9), usage(most, 9, 0, most + 9));
        assert_eq!(estimate.ended(said(Some(7), Some(0)), 0), usage(7, 0, 2, 0));
    }

    #[test]
    fn field_a149_an_answer_without_its_end_counts_as_the_longest_that_is_allowed() {
        let free = estimate(&json!({}), vec![text("hi")]);
        assert_eq!(free.unended(9), TurnUsage::estimated(free.unended(0).input_tokens, 9));
        for name in ["max_tokens", "max_completion_tokens"] {
            let bounded = estimate(&json!({ name: 500 }), vec![text("hi")]);
            assert_eq!(bounded.unended(9).output_tokens, 500);
            assert_eq!(bounded.ended(SaidUsage::default(), 9).output_tokens, 9);
            assert_eq!(bounded.ended(SaidUsage::default(), 900).output_tokens, 500);
        }
    }
}
