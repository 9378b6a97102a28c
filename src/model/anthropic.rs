//! Anthropic messages, and every server that speaks them.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, HeaderName, HeaderValue};
use rig_core::providers::anthropic::wire::{AnthropicConfig, Messages};
use secrecy::ExposeSecret as _;
use serde_json::{Map, Value, json};

use super::transport::Transport;
use super::wire::{Outgoing, ask, endpoint, secret_header};
use super::{ModelError, ModelProvider, ModelRequest, ModelStream, unreadable};
use crate::net::EgressClient;
use crate::run::estimate::Estimate;
use crate::run::history::{Prompt, ToolOffer};
use crate::run::message::{Content, Message, Role, Source};

/// The version of the protocol.
const VERSION: &str = "2023-06-01";

/// What lets a message name a file that the provider keeps.
const FILES: &str = "files-api-2025-04-14";

/// The longest answer that is asked for when the run says nothing and the model's own limit is unknown, in tokens. The
/// protocol wants a number.
const DEFAULT_MAX_TOKENS: u64 = 8192;

/// Speaks messages.
#[derive(Clone, Debug)]
pub struct Anthropic {
    transport: Transport,
}

impl Anthropic {
    /// Sends through `client`, which brings the limits: no redirects, a connect and a read time-out.
    pub fn new(client: EgressClient) -> Self {
        Self { transport: Transport::new(client) }
    }

    fn decoding(&self, model: &str) -> Messages {
        // The library needs no key: the request is ours.
        AnthropicConfig::new("").connect(self.transport.clone()).completion(model).wire
    }
}

impl ModelProvider for Anthropic {
    fn ask(&self, request: ModelRequest) -> ModelStream {
        let decoding = self.decoding(&request.model.name);
        let max_tokens = decoding.default_max_tokens.unwrap_or(DEFAULT_MAX_TOKENS);
        let estimate = Estimate::of(&request.model, &request.prompt);
        ask(decoding, outgoing(&request, max_tokens), self.transport.clone(), (request.secret, estimate))
    }
}

fn outgoing(request: &ModelRequest, max_tokens: u64) -> Result<Outgoing, ModelError> {
    let url = endpoint(request.model.address().unwrap_or_default(), &["v1", "messages"])?;
    let mut headers = HeaderMap::new();
    headers.insert(HeaderName::from_static("anthropic-version"), HeaderValue::from_static(VERSION));
    if keeps_files(&request.prompt) {
        headers.insert(HeaderName::from_static("anthropic-beta"), HeaderValue::from_static(FILES));
    }
    if let Some(secret) = &request.secret {
        headers.insert(HeaderName::from_static("x-api-key"), secret_header(secret.expose_secret())?);
    }
    Ok(Outgoing { url, headers, body: body(request, max_tokens) })
}

/// The caller's parameters, and over them what the run says.
fn body(request: &ModelRequest, max_tokens: u64) -> Value {
    let mut body = request.model.parameters.clone().unwrap_or_default();
    body.insert("model".to_owned(), Value::from(request.model.name.as_str()));
    body.entry("max_tokens").or_insert_with(|| Value::from(max_tokens));
    body.remove("system");
    let system = system(&request.prompt);
    if !system.is_empty() {
        body.insert("system".to_owned(), Value::String(system));
    }
    body.insert("messages".to_owned(), Value::Array(messages(&request.prompt)));
    body.remove("tools");
    if !request.prompt.tools.is_empty() {
        body.insert("tools".to_owned(), request.prompt.tools.iter().map(tool).collect());
    } else {
        let called = called(&request.prompt);
        if !called.is_empty() {
            body.insert("tools".to_owned(), called.into());
            body.insert("tool_choice".to_owned(), json!({ "type": "none" }));
        }
    }
    body.insert("stream".to_owned(), Value::Bool(true));
    Value::Object(body)
}

/// Whether a file of the conversation is with the provider.
fn keeps_files(prompt: &Prompt) -> bool {
    let is_kept = |content: &Content| matches!(content, Content::File { source: Source::Id { .. }, .. });
    prompt.messages.iter().any(|message| message.content.iter().any(is_kept))
}

/// Tools of an earlier conversation that are not on offer: the protocol wants calls to be of known tools.
fn called(prompt: &Prompt) -> Vec<Value> {
    let mut names: Vec<&str> = Vec::new();
    for content in prompt.messages.iter().flat_map(|message| &message.content) {
        if let Content::ToolCall { tool, .. } = content
            && !names.contains(&tool.as_str())
        {
            names.push(tool);
        }
    }
    names.into_iter().map(|name| json!({ "name": name, "input_schema": { "type": "object" } })).collect()
}

fn tool(offer: &ToolOffer) -> Value {
    let mut tool = json!({ "name": offer.name, "input_schema": offer.input_schema });
    if let Some(description) = &offer.description {
        tool["description"] = Value::from(description.as_str());
    }
    tool
}

/// The instructions and every system message: the protocol has one place for them.
fn system(prompt: &Prompt) -> String {
    let said = prompt.messages.iter().filter(|message| message.role == Role::System);
    let texts = said.flat_map(|message| &message.content).filter_map(|content| match content {
        Content::Text { text } => Some(text.as_str()),
        Content::Image { .. }
        | Content::File { .. }
        | Content::Reasoning { .. }
        | Content::ToolCall { .. }
        | Content::ToolResult { .. } => None,
    });
    prompt.instructions.as_deref().into_iter().chain(texts).collect::<Vec<_>>().join("\n\n")
}

/// The conversation in alternating roles: what one side says in a row is one message.
fn messages(prompt: &Prompt) -> Vec<Value> {
    let mut sides: Vec<(&str, Vec<Value>)> = Vec::new();
    for message in &prompt.messages {
        let side = match message.role {
            Role::System => continue,
            Role::User | Role::Tool => "user",
            Role::Assistant => "assistant",
        };
        let blocks = blocks(message);
        if blocks.is_empty() {
            continue;
        }
        match sides.last_mut() {
            Some((last, said)) if *last == side => said.extend(blocks),
            _ => sides.push((side, blocks)),
        }
    }
    sides.into_iter().map(|(role, content)| json!({ "role": role, "content": content })).collect()
}

fn blocks(message: &Message) -> Vec<Value> {
    message.content.iter().filter_map(block).collect()
}

/// One block; `None` for what the protocol does not take: blank text, and thoughts without the provider's signature.
fn block(content: &Content) -> Option<Value> {
    match content {
        Content::Text { text } if text.trim().is_empty() => None,
        Content::Text { text } => Some(json!({ "type": "text", "text": text })),
        Content::Image { source } => Some(json!({ "type": "image", "source": source_of(source) })),
        Content::File { name, source } => {
            let mut document = json!({ "type": "document", "source": source_of(source) });
            if let Some(name) = name {
                document["title"] = Value::from(name.as_str());
            }
            Some(document)
        }
        Content::Reasoning { native, .. } => native.clone().filter(|block| block.get("type").is_some()),
        Content::ToolCall { call_id, tool, input } => {
            let input = if input.is_object() { input.clone() } else { unreadable(input) };
            Some(json!({ "type": "tool_use", "id": wire_id(call_id.as_str()), "name": tool, "input": input }))
        }
        Content::ToolResult { call_id, output, is_error, pictures, .. } => {
            let text = output.as_str().map_or_else(|| output.to_string(), str::to_owned);
            let shown = pictures.iter().map(|picture| {
                let source = json!({ "type": "base64", "media_type": picture.media_type, "data": picture.data });
                json!({ "type": "image", "source": source })
            });
            let output = if pictures.is_empty() {
                Value::String(text)
            } else {
                [json!({ "type": "text", "text": text })].into_iter().chain(shown).collect()
            };
            let mut fields = Map::from_iter([
                ("type".to_owned(), Value::from("tool_result")),
                ("tool_use_id".to_owned(), Value::String(wire_id(call_id.as_str()))),
                ("content".to_owned(), output),
            ]);
            if *is_error {
                fields.insert("is_error".to_owned(), Value::Bool(true));
            }
            Some(Value::Object(fields))
        }
    }
}

/// Where a picture or a document is; plain text is said as text.
fn source_of(source: &Source) -> Value {
    match source {
        Source::Url { url } => json!({ "type": "url", "url": url }),
        Source::Id { file_id } => json!({ "type": "file", "file_id": file_id }),
        Source::Data { media_type, data } => {
            let text = STANDARD.decode(data).ok().filter(|_| media_type == "text/plain");
            match text.and_then(|bytes| String::from_utf8(bytes).ok()) {
                Some(text) => json!({ "type": "text", "media_type": "text/plain", "data": text }),
                None => json!({ "type": "base64", "media_type": media_type, "data": data }),
            }
        }
    }
}

/// A label in the alphabet that the protocol takes (`[A-Za-z0-9_-]`): each other byte becomes `-` and its two hex
/// digits, so two labels never become one in practice.
fn wire_id(label: &str) -> String {
    let mut id = String::new();
    for byte in label.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-') {
            id.push(char::from(byte));
        } else {
            id.push('-');
            id.push_str(&hex::encode([byte]));
        }
    }
    id
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::testing;

    #[test]
    fn a_history_is_said_as_it_was() {
        let mut request = testing::request(r#"{"provider":"anthropic","name":"claude"}"#);
        request.prompt = testing::prompt();
        let sent = body(&request, 1000);
        insta::assert_snapshot!(serde_json::to_string_pretty(&sent).unwrap());
    }

    #[test]
    fn the_length_limit_is_the_callers_else_the_default() {
        let limit = |parameters: &str| {
            let model = format!(r#"{{"provider":"anthropic","name":"claude","parameters":{parameters}}}"#);
            body(&testing::request(&model), 1000)["max_tokens"].clone()
        };
        assert_eq!(limit("{}"), json!(1000));
        assert_eq!(limit(r#"{"max_tokens":7}"#), json!(7));
    }

    #[test]
    fn parameters_never_replace_what_the_run_says() {
        let model = r#"{"provider":"anthropic","name":"claude","parameters":{"thinking":{"type":"adaptive"},
            "model":"other","system":"x","tools":[1],"messages":[],"stream":false}}"#;
        let sent = body(&testing::request(model), 1000);
        let expected = json!({ "thinking": { "type": "adaptive" }, "model": "claude", "max_tokens": 1000,
            "messages": [], "stream": true });
        assert_eq!(sent, expected);
    }

    #[test]
    fn thoughts_go_back_with_their_signature_or_not_at_all() {
        let native = json!({ "type": "thinking", "thinking": "hm", "signature": "c2ln" });
        let signed = Content::Reasoning { text: "hm".to_owned(), native: Some(native.clone()) };
        assert_eq!(block(&signed), Some(native));
        assert_eq!(block(&Content::Reasoning { text: "hm".to_owned(), native: None }), None);
    }

    #[test]
    fn pictures_and_documents_are_said_in_the_protocols_words() {
        let data = |kind: &str, data: &str| Source::Data { media_type: kind.to_owned(), data: data.to_owned() };
        let file = |source| Content::File { name: Some("a".to_owned()), source };
        for (content, expected) in [
            (
                Content::Image { source: data("image/png", "AAAA") },
                json!({ "type": "image", "source": { "type": "base64", "media_type": "image/png", "data": "AAAA" } }),
            ),
            (
                file(Source::Url { url: "https://a.example/a.pdf".to_owned() }),
                json!({ "type": "document", "title": "a",
                        "source": { "type": "url", "url": "https://a.example/a.pdf" } }),
            ),
            (
                file(data("text/plain", "aGk=")),
                json!({ "type": "document", "title": "a",
                        "source": { "type": "text", "media_type": "text/plain", "data": "hi" } }),
            ),
            (
                file(Source::Id { file_id: "file_1".to_owned() }),
                json!({ "type": "document", "title": "a", "source": { "type": "file", "file_id": "file_1" } }),
            ),
        ] {
            assert_eq!(block(&content), Some(expected));
        }
        let picture = crate::run::message::Picture { media_type: "image/png".to_owned(), data: "AAAA".to_owned() };
        let result = Content::ToolResult {
            call_id: crate::run::ids::CallId::new("c"),
            tool: "t".to_owned(),
            output: json!("[image]"),
            is_error: false,
            pictures: vec![picture],
        };
        let shown =
            json!({ "type": "image", "source": { "type": "base64", "media_type": "image/png", "data": "AAAA" } });
        assert_eq!(block(&result).unwrap()["content"], json!([{ "type": "text", "text": "[image]" }, shown]));
    }

    #[test]
    fn calls_of_an_earlier_conversation_are_of_known_tools_and_none_is_called() {
        let mut request = testing::request(r#"{"provider":"anthropic","name":"claude"}"#);
        request.prompt = testing::prompt();
        request.prompt.tools.clear();
        let sent = body(&request, 1000);
        assert_eq!(sent["tool_choice"], json!({ "type": "none" }));
        assert!(sent["tools"].as_array().unwrap().iter().any(|tool| tool["name"] == "charge"), "{sent}");
    }

    #[test]
    fn labels_fit_the_protocol() {
        for (label, id) in [("toolu_01-a", "toolu_01-a"), ("call_1~2", "call_1-7e2"), ("a b", "a-20b")] {
            assert_eq!(wire_id(label), id);
        }
    }
}
