//! OpenAI chat completions, and every server that speaks them.

use http::{HeaderMap, header};
use rig_core::providers::openai::OpenAIConfig;
use secrecy::ExposeSecret as _;
use serde_json::{Map, Value, json};

use super::transport::Transport;
use super::wire::{Outgoing, ask, endpoint, secret_header};
use super::{ModelError, ModelProvider, ModelRequest, ModelStream, unreadable};
use crate::net::EgressClient;
use crate::run::estimate::Estimate;
use crate::run::history::{Prompt, ToolOffer};
use crate::run::message::{Content, Message, Role, Source};

/// Speaks chat completions.
#[derive(Clone, Debug)]
pub struct OpenAi {
    transport: Transport,
}

impl OpenAi {
    /// Sends through `client`, which brings the limits: no redirects, a connect and a read time-out.
    pub fn new(client: EgressClient) -> Self {
        Self { transport: Transport::new(client) }
    }
}

impl ModelProvider for OpenAi {
    fn ask(&self, request: ModelRequest) -> ModelStream {
        // The library needs no key: the request is ours.
        let decoding = OpenAIConfig::new("").chat(request.model.name.clone());
        let estimate = Estimate::of(&request.model, &request.prompt);
        ask(decoding, outgoing(&request), self.transport.clone(), (request.secret, estimate))
    }
}

fn outgoing(request: &ModelRequest) -> Result<Outgoing, ModelError> {
    let url = endpoint(request.model.address().unwrap_or_default(), &["chat", "completions"])?;
    let mut headers = HeaderMap::new();
    if let Some(secret) = &request.secret {
        headers.insert(header::AUTHORIZATION, secret_header(&format!("Bearer {}", secret.expose_secret()))?);
    }
    Ok(Outgoing { url, headers, body: body(request) })
}

/// The caller's parameters, and over them what the run says.
fn body(request: &ModelRequest) -> Value {
    let mut body = request.model.parameters.clone().unwrap_or_default();
    body.insert("model".to_owned(), Value::from(request.model.name.as_str()));
    body.insert("messages".to_owned(), Value::Array(messages(&request.prompt)));
    // An empty list is refused by the protocol.
    body.remove("tools");
    if !request.prompt.tools.is_empty() {
        body.insert("tools".to_owned(), request.prompt.tools.iter().map(tool).collect());
    }
    body.insert("stream".to_owned(), Value::Bool(true));
    // `null` leaves it out, for servers that do not know the option; tokens are estimated then.
    match body.entry("stream_options").or_insert_with(|| json!({})) {
        Value::Object(options) => {
            options.insert("include_usage".to_owned(), Value::Bool(true));
        }
        _ => {
            body.remove("stream_options");
        }
    }
    Value::Object(body)
}

fn tool(offer: &ToolOffer) -> Value {
    let mut function = json!({ "name": offer.name, "parameters": offer.input_schema });
    if let Some(description) = &offer.description {
        function["description"] = Value::from(description.as_str());
    }
    json!({ "type": "function", "function": function })
}

fn messages(prompt: &Prompt) -> Vec<Value> {
    let system = prompt.instructions.iter().map(|text| json!({ "role": "system", "content": text }));
    system.chain(prompt.messages.iter().flat_map(message)).collect()
}

/// One stored message; the results of a turn are one message each.
fn message(message: &Message) -> Vec<Value> {
    match message.role {
        Role::System => vec![json!({ "role": "system", "content": text(message) })],
        Role::User => vec![json!({ "role": "user", "content": user(message) })],
        Role::Assistant => assistant(message).into_iter().collect(),
        Role::Tool => message.content.iter().filter_map(tool_result).chain(pictures(message)).collect(),
    }
}

/// What the user says: text alone as text, else parts.
fn user(message: &Message) -> Value {
    let is_text = |content: &Content| matches!(content, Content::Text { .. });
    if message.content.iter().all(is_text) {
        text(message).into()
    } else {
        message.content.iter().filter_map(part).collect()
    }
}

fn part(content: &Content) -> Option<Value> {
    match content {
        Content::Text { text } => Some(json!({ "type": "text", "text": text })),
        Content::Image { source } => {
            let url = match source {
                Source::Url { url } => url.clone(),
                Source::Data { media_type, data } => format!("data:{media_type};base64,{data}"),
                Source::Id { .. } => return None,
            };
            Some(json!({ "type": "image_url", "image_url": { "url": url } }))
        }
        Content::File { name, source } => {
            let file = match source {
                Source::Id { file_id } => json!({ "file_id": file_id }),
                Source::Data { media_type, data } => {
                    let name = name.as_deref().unwrap_or("file");
                    json!({ "filename": name, "file_data": format!("data:{media_type};base64,{data}") })
                }
                Source::Url { .. } => return None,
            };
            Some(json!({ "type": "file", "file": file }))
        }
        Content::Reasoning { .. } | Content::ToolCall { .. } | Content::ToolResult { .. } => None,
    }
}

fn text(message: &Message) -> String {
    let texts = message.content.iter().filter_map(|content| match content {
        Content::Text { text } => Some(text.as_str()),
        Content::Image { .. }
        | Content::File { .. }
        | Content::Reasoning { .. }
        | Content::ToolCall { .. }
        | Content::ToolResult { .. } => None,
    });
    texts.collect::<Vec<_>>().join("\n")
}

/// One turn of the model; `None` where it neither said nor called anything, which the protocol does not take.
fn assistant(message: &Message) -> Option<Value> {
    let mut fields = Map::new();
    let mut thoughts = Vec::new();
    let mut calls = Vec::new();
    for content in &message.content {
        match content {
            // What the provider gave is given back: a typed block as content, else the message's own fields.
            Content::Reasoning { native: Some(block), .. } if block.get("type").is_some() => {
                thoughts.push(block.clone());
            }
            Content::Reasoning { native: Some(Value::Object(native)), .. } => fields.extend(native.clone()),
            Content::ToolCall { call_id, tool, input } => calls.push(json!({
                "id": call_id, "type": "function", "function": { "name": tool, "arguments": arguments(input) },
            })),
            Content::Text { .. }
            | Content::Image { .. }
            | Content::File { .. }
            | Content::Reasoning { .. }
            | Content::ToolResult { .. } => {}
        }
    }
    let said = text(message);
    if said.is_empty() && calls.is_empty() {
        return None;
    }
    let content = if !thoughts.is_empty() {
        if !said.is_empty() {
            thoughts.push(json!({ "type": "text", "text": said }));
        }
        Value::Array(thoughts)
    } else if said.is_empty() {
        Value::Null
    } else {
        Value::String(said)
    };
    fields.insert("role".to_owned(), Value::from("assistant"));
    fields.insert("content".to_owned(), content);
    if !calls.is_empty() {
        fields.insert("tool_calls".to_owned(), Value::Array(calls));
    }
    Some(Value::Object(fields))
}

/// The argument text of a call. Text that no server could parse goes inside an object: some refuse the whole history
/// otherwise.
fn arguments(input: &Value) -> String {
    match input {
        Value::Object(_) => input.to_string(),
        Value::String(text) if serde_json::from_str::<Map<String, Value>>(text).is_ok() => text.clone(),
        other => unreadable(other).to_string(),
    }
}

fn tool_result(content: &Content) -> Option<Value> {
    let Content::ToolResult { call_id, output, .. } = content else {
        return None;
    };
    let output = output.as_str().map_or_else(|| output.to_string(), str::to_owned);
    Some(json!({ "role": "tool", "tool_call_id": call_id, "content": output }))
}

/// The pictures of a turn's results: the protocol takes none inside a result, so they follow in a message.
fn pictures(message: &Message) -> Option<Value> {
    let mut parts = Vec::new();
    for content in &message.content {
        if let Content::ToolResult { call_id, tool, pictures, .. } = content
            && !pictures.is_empty()
        {
            let text = format!("Pictures of the result of {tool} ({call_id}):");
            parts.push(json!({ "type": "text", "text": text }));
            parts.extend(pictures.iter().map(|picture| {
                let url = format!("data:{};base64,{}", picture.media_type, picture.data);
                json!({ "type": "image_url", "image_url": { "url": url } })
            }));
        }
    }
    (!parts.is_empty()).then(|| json!({ "role": "user", "content": parts }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::testing;

    #[test]
    fn a_history_is_said_as_it_was() {
        let mut request = testing::request(r#"{"provider":"openai","name":"gpt"}"#);
        request.prompt = testing::prompt();
        let sent = body(&request);
        insta::assert_snapshot!(serde_json::to_string_pretty(&sent).unwrap());
    }

    #[test]
    fn parameters_go_along_and_never_replace_what_the_run_says() {
        let request = testing::request(
            r#"{"provider":"openai","name":"gpt","parameters":{"temperature":0.20,"seed":18446744073709551617,
                "model":"other","tools":[1],"stream":false,"stream_options":{"x":1}}}"#,
        );
        let sent = body(&request).to_string();
        for part in [r#""temperature":0.20"#, r#""seed":18446744073709551617"#, r#""model":"gpt""#, r#""stream":true"#]
        {
            assert!(sent.contains(part), "{part} is not in {sent}");
        }
        assert!(sent.contains(r#""stream_options":{"x":1,"include_usage":true}"#), "{sent}");
        assert!(!sent.contains("tools"), "{sent}");
        let request = testing::request(r#"{"provider":"openai","name":"g","parameters":{"stream_options":null}}"#);
        assert!(!body(&request).to_string().contains("stream_options"));
    }

    #[test]
    fn reasoning_goes_back_the_way_it_came() {
        let reasoning = |native: Value| Content::Reasoning { text: "hm".to_owned(), native: Some(native) };
        let said = Content::Text { text: "yes".to_owned() };
        let turn = |content| Message { position: 1, turn: 1, role: Role::Assistant, content };
        let fields = assistant(&turn(vec![reasoning(json!({ "reasoning_content": "hm" })), said.clone()]));
        assert_eq!(fields, Some(json!({ "reasoning_content": "hm", "role": "assistant", "content": "yes" })));
        let block = json!({ "type": "thinking", "thinking": [{ "type": "text", "text": "hm" }] });
        let typed = assistant(&turn(vec![reasoning(block.clone()), said]));
        let content = json!([block, { "type": "text", "text": "yes" }]);
        assert_eq!(typed, Some(json!({ "role": "assistant", "content": content })));
        let silent = Content::Reasoning { text: "hm".to_owned(), native: None };
        assert_eq!(assistant(&turn(vec![silent])), None);
    }
}
