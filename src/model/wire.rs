//! The seam to the provider library: our request goes out byte for byte, the library frames and decodes what comes
//! back, and its events become our parts. The library's own request encoder is not used: it rewrites histories (calls
//! of tools that are not on offer, arguments that are not JSON), and a run must say again exactly what was said.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::StreamExt as _;
use http::{HeaderMap, HeaderValue, Method, header};
use rig_core::completion::{CompletionRequest, CompletionResponse, FinishReason as LibraryReason};
use rig_core::driver::Model;
use rig_core::error::EncodeError;
use rig_core::message::{AssistantContent, CallId};
use rig_core::operation::Completion;
use rig_core::streaming::{Item, StreamEvent};
use rig_core::wire::document::{Reassemble, Serves};
use rig_core::wire::{Body, Descriptor, Encoded, Framing, Mode, Wire, WireFrame};
use secrecy::SecretString;
use serde_json::Value;
use url::Url;

use super::fault::{classify, cut_off, refused};
use super::transport::Transport;
use super::{ModelError, ModelPart, ModelStream};
use crate::run::estimate::{Estimate, SaidUsage};
use crate::run::message::{ModelTurn, TurnUsage, WrittenCall};
use crate::run::spec::FinishReason;

/// A request as it leaves.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) url: Url,
    /// Who asks; values that are secrets are marked as such.
    pub(super) headers: HeaderMap,
    pub(super) body: Value,
}

/// `base` with `path` behind its own path. Its query string stays: some gateways want one.
pub(super) fn endpoint(base: &str, path: &[&str]) -> Result<Url, ModelError> {
    let mut url = Url::parse(base).map_err(|fault| refused(format!("the model's base_url is no address: {fault}")))?;
    match url.path_segments_mut() {
        Ok(mut segments) => segments.pop_if_empty().extend(path),
        Err(()) => return Err(refused("the model's base_url is no address of a server")),
    };
    Ok(url)
}

/// A header value that no log prints.
pub(super) fn secret_header(text: &str) -> Result<HeaderValue, ModelError> {
    let fault = |_| refused("the model's key holds characters that no header can carry");
    let mut value = HeaderValue::from_str(text).map_err(fault)?;
    value.set_sensitive(true);
    Ok(value)
}

/// A library wire that sends our request instead of its own.
#[derive(Clone)]
struct Exact<W> {
    inner: W,
    outgoing: Arc<Outgoing>,
}

impl<W> Wire for Exact<W>
where
    W: Wire<Op = Completion, Payload = Encoded, Frame = WireFrame>,
{
    type Op = Completion;
    type Payload = Encoded;
    type Frame = WireFrame;
    type Decoder<'id> = W::Decoder<'id>;
    type Reassembler = Unkept;

    fn describe(&self) -> Descriptor<'_> {
        self.inner.describe()
    }

    fn encode(&self, _: CompletionRequest, _: Mode) -> Result<Encoded, EncodeError> {
        let mut request = http::Request::new(Body::Bytes(self.outgoing.body.to_string().into_bytes()));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.outgoing.url.as_str().parse().map_err(http::Error::from)?;
        request.headers_mut().clone_from(&self.outgoing.headers);
        request.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        Ok(Encoded::new(request, Framing::Sse).with_relaxed_content_type())
    }

    fn decoder<'id>(&self) -> W::Decoder<'id> {
        self.inner.decoder()
    }
}

/// Nobody reads the provider's document a second time.
#[derive(Default)]
struct Unkept;

impl Reassemble<WireFrame> for Unkept {
    fn absorb(&mut self, _: &WireFrame) {}

    fn finish(self) -> Value {
        Value::Null
    }
}

impl Serves<Completion> for Unkept {}

/// Sends `outgoing` and yields the parts of the turn as they arrive.
pub(super) fn ask<W>(
    inner: W,
    outgoing: Result<Outgoing, ModelError>,
    transport: Transport,
    (secret, estimate): (Option<SecretString>, Estimate),
) -> ModelStream
where
    W: Wire<Op = Completion, Payload = Encoded, Frame = WireFrame>,
{
    async_stream::try_stream! {
        let wire = Exact { inner, outgoing: Arc::new(outgoing?) };
        let fault = |error| classify(&error, secret.as_ref());
        // Only a formality: the wire sends `outgoing`.
        let mut request = CompletionRequest::new("-");
        request.accept_unknown_finish_reasons = true;
        let mut reply = Model::new(wire, transport).stream(request).map_err(fault)?;
        let mut heard = Heard::default();
        while let Some(item) = reply.next().await {
            match item.map_err(fault)? {
                Item::Event(event) => {
                    if let Some(part) = heard.take(event) {
                        yield part;
                    }
                }
                // A keep-alive or a novelty: no part of the turn.
                Item::Unknown(_) => {}
            }
        }
        let end = reply.finish().await.map_err(fault)?;
        yield ModelPart::Ended(Box::new(heard.turn(&end, &estimate)?));
    }
    .boxed()
}

/// What a reply said so far.
#[derive(Default)]
struct Heard {
    /// The argument text of each call, by the part's place in the reply, as the provider wrote it.
    arguments: BTreeMap<usize, String>,
    /// The parts that ended, by their place.
    ended: BTreeMap<usize, AssistantContent>,
}

impl Heard {
    /// Notes an event; what a reader is shown of it at once comes back.
    fn take(&mut self, event: StreamEvent) -> Option<ModelPart> {
        match event {
            StreamEvent::Text { text, .. } => Some(ModelPart::Text(text)),
            StreamEvent::Reasoning { text, .. } => Some(ModelPart::Reasoning(text)),
            StreamEvent::Arguments { part, json } => {
                self.arguments.entry(part.index()).or_default().push_str(&json);
                None
            }
            StreamEvent::End { part, content } => {
                self.ended.insert(part.index(), content);
                None
            }
            StreamEvent::Start { .. } => None,
        }
    }

    /// The whole turn, once the provider ended it.
    fn turn(self, end: &CompletionResponse, estimate: &Estimate) -> Result<ModelTurn, ModelError> {
        let finish_reason = finish_reason(end)?;
        let (reasoning, text, calls) = (Vec::new(), String::new(), Vec::new());
        let mut turn = ModelTurn { reasoning, text, calls, finish_reason, usage: TurnUsage::default() };
        let Self { mut arguments, ended } = self;
        for (place, content) in ended {
            match content {
                AssistantContent::Text(text) => turn.text.push_str(&text.text),
                AssistantContent::Reasoning(thought) => {
                    turn.reasoning.push((thought.text, thought.native.map(|native| native.item)));
                }
                AssistantContent::ToolCall(call) => {
                    let id = match &call.id {
                        CallId::Provider(id) => Some(id.as_str().to_owned()),
                        CallId::Local(_) => None,
                    };
                    let written = arguments.remove(&place).filter(|text| !text.trim().is_empty());
                    let arguments = written.unwrap_or_else(|| call.function.arguments_value().to_string());
                    turn.calls.push(WrittenCall { id, tool: call.function.name.as_str().to_owned(), arguments });
                }
                // Pictures and a provider's own tools: nothing here asks for them.
                _ => {}
            }
        }
        if turn.finish_reason == FinishReason::ToolCalls && turn.calls.is_empty() {
            return Err(cut_off("the turn ended for tool calls and held none that names a tool"));
        }
        let said = SaidUsage {
            input_tokens: end.usage.input_tokens,
            output_tokens: end.usage.output_tokens,
            cached_input_tokens: end.usage.cached_input_tokens,
        };
        turn.usage = estimate.ended(said, turn.bytes());
        Ok(turn)
    }
}

/// Why the turn ended; an end that is none is a cut.
fn finish_reason(end: &CompletionResponse) -> Result<FinishReason, ModelError> {
    let has_calls = end.tool_calls().next().is_some();
    let reason = match end.finish_reason() {
        Some(LibraryReason::ToolCalls) => FinishReason::ToolCalls,
        Some(LibraryReason::Length) => FinishReason::Length,
        // A refusal comes with an explanation in the error's place, and is an end like any other.
        Some(LibraryReason::ContentFilter) => return Ok(FinishReason::ContentFilter),
        Some(LibraryReason::Other(reason)) if is_failure(&reason) => {
            return Err(cut_off(&format!("the provider ended the turn with {reason}")));
        }
        // `stop`, and reasons that only a newer protocol knows.
        Some(_) if has_calls => FinishReason::ToolCalls,
        Some(_) => FinishReason::Stop,
        None => return Err(cut_off("the provider gave no reason for the end")),
    };
    match &end.error {
        Some(fault) => Err(cut_off(fault)),
        None => Ok(reason),
    }
}

/// Finish reasons beyond the protocol that say the provider broke down, e.g. `network_error`.
fn is_failure(reason: &str) -> bool {
    let reason = reason.to_ascii_lowercase();
    ["error", "insufficient", "abort", "cancel", "timeout"].iter().any(|sign| reason.contains(sign))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_goes_behind_the_base_and_its_query_stays() {
        let join = |base| endpoint(base, &["chat", "completions"]).map(String::from);
        for (base, url) in [
            ("https://api.openai.com/v1", "https://api.openai.com/v1/chat/completions"),
            ("https://gateway.test/v1/", "https://gateway.test/v1/chat/completions"),
            ("http://127.0.0.1:4010", "http://127.0.0.1:4010/chat/completions"),
            ("https://a.test/x?api-version=1", "https://a.test/x/chat/completions?api-version=1"),
        ] {
            assert_eq!(join(base).unwrap(), url);
        }
        assert!(join("nonsense").is_err());
        assert!(join("mailto:a@b.test").is_err());
    }

    #[test]
    fn a_key_that_no_header_can_carry_is_refused_without_naming_it() {
        assert!(!secret_header("sk\nx").unwrap_err().message.contains("sk"));
        assert!(secret_header("sk-1").unwrap().is_sensitive());
    }
}
