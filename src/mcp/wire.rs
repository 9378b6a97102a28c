//! The messages of the transport as they stand on the wire: what must be known of one on its way out, and how the
//! parts of an answer read. Sends nothing itself.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use chrono::DateTime;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use rmcp::model::{
    ClientJsonRpcMessage, ClientNotification, ClientRequest, ErrorCode, ErrorData, GetExtensions, ServerJsonRpcMessage,
};
use rmcp::transport::streamable_http_client::{StreamableHttpError, StreamableHttpPostResponse};
use serde_json::{Value, json};

use super::FaultKind;
use super::attempt::{Attempt, Stage};
use super::listing;
use super::observe::seen;
use super::params;
use super::shape::{self, Excess};
use crate::bulk::Hold;
use crate::failpoint;
pub(super) use crate::net::describe;
use crate::run::mend::mended;

pub(super) const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");
pub(super) const LAST_EVENT: HeaderName = HeaderName::from_static("last-event-id");
pub(super) const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// Stands on every request of the era without sessions, and on none of the older one.
pub(super) const METHOD: HeaderName = HeaderName::from_static("mcp-method");
pub(super) const EVENT_STREAM: &str = "text/event-stream";
pub(super) const JSON: &str = "application/json";
const BOTH_KINDS: HeaderValue = HeaderValue::from_static("application/json, text/event-stream");

pub(super) type Fault = StreamableHttpError<TransportFault>;
pub(super) type Posted = Result<StreamableHttpPostResponse, Fault>;

/// Why a request failed. It may name the scopes that the server asks for, and quotes nothing else that it wrote.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub(super) struct TransportFault {
    pub(super) text: String,
    pub(super) kind: FaultKind,
}

pub(super) fn fault(text: impl Into<String>) -> Fault {
    fault_of(FaultKind::Protocol, text)
}

pub(super) fn fault_of(kind: FaultKind, text: impl Into<String>) -> Fault {
    StreamableHttpError::Client(TransportFault { text: text.into(), kind })
}

/// One message on its way out, and what must be known of it while it is.
#[derive(Default)]
#[expect(clippy::struct_excessive_bools, reason = "five facts about a message that hold independently")]
pub(super) struct Post {
    pub(super) text: String,
    pub(super) id: Option<Value>,
    /// What the library calls it, where that differs.
    pub(super) library_id: Option<Value>,
    pub(super) attempt: Option<Arc<Attempt>>,
    pub(super) session: Option<Arc<str>>,
    pub(super) awaits_answer: bool,
    pub(super) is_discover: bool,
    pub(super) is_listen: bool,
    pub(super) is_list: bool,
    /// Whether it is a request of the era without sessions.
    pub(super) is_modern: bool,
}

impl Post {
    pub(super) fn of(message: ClientJsonRpcMessage, session: Option<Arc<str>>) -> Result<Self, Fault> {
        let text = serde_json::to_string(&message)?;
        let mut post = Self { text, session, ..Self::default() };
        if let ClientJsonRpcMessage::Request(request) = &message {
            post.awaits_answer = true;
            post.id = Some(request.id.clone().into_json_value());
            post.attempt = request.request.extensions().get::<Arc<Attempt>>().map(Arc::clone);
            post.is_discover = matches!(request.request, ClientRequest::DiscoverRequest(_));
            post.is_listen = matches!(request.request, ClientRequest::SubscriptionsListenRequest(_));
            post.is_list = matches!(request.request, ClientRequest::ListToolsRequest(_));
        }
        Ok(post)
    }

    /// The id by which the library knows it.
    fn own_id(&self) -> Option<&Value> {
        self.library_id.as_ref().or(self.id.as_ref())
    }

    /// Whether a message with that id answers this request.
    pub(super) fn is_asked(&self, id: &Value) -> bool {
        self.id.as_ref().is_some_and(|ours| id_text(ours) == id_text(id))
    }

    /// Whether it calls a tool.
    pub(super) fn is_call(&self) -> bool {
        self.attempt.as_ref().is_some_and(|attempt| attempt.is_call())
    }

    /// Leaves the bytes of the answer with the attempt; of a message that is none they are the caller's.
    pub(super) fn hold(&self, hold: Option<Hold>) -> Option<Hold> {
        let Some(attempt) = &self.attempt else { return hold };
        attempt.hold(hold);
        None
    }

    pub(super) fn settle(&self, stage: Stage) {
        if let Some(attempt) = &self.attempt {
            attempt.settle(stage);
        }
    }

    /// Puts a call back into the queue that the server turned away unread.
    pub(super) fn recall(&self) {
        if let Some(attempt) = &self.attempt {
            attempt.recall();
        }
    }

    /// Ends a call that will not leave.
    pub(super) fn turn_away(&self, stage: Stage, why: String) -> Fault {
        if let Some(attempt) = &self.attempt {
            attempt.turn_away(stage);
        }
        fault(why)
    }

    /// Passes a point on the way of a call; other messages have none.
    pub(super) fn pass(&self, point: &'static str) {
        if self.is_call() {
            failpoint::pass(point);
        }
    }

    pub(super) fn unreadable(&self, why: &'static str) -> Posted {
        self.settle(Stage::Unreadable(why));
        if self.is_discover { Ok(self.old_era(why)) } else { Err(fault(why)) }
    }

    /// The text of a JSON body.
    pub(super) fn take_body(&self, text: &[u8], session: Option<String>) -> Posted {
        let text = &*mended(text);
        if let Some(excess) = shape::excess(text) {
            return self.take_excess(excess, shape::answered_id(text).as_ref());
        }
        match serde_json::from_slice(text) {
            Ok(value) => self.take_answer(value, session),
            Err(_malformed) => self.unreadable("the answer is not JSON"),
        }
    }

    /// A JSON body: the answer to this request, or nothing that helps.
    fn take_answer(&self, mut value: Value, session: Option<String>) -> Posted {
        let is_error = value.get("error").is_some_and(Value::is_object);
        if !is_error && value.get("result").is_none() {
            return self.unreadable("the answer is no JSON-RPC response");
        }
        let ours = self.own_id().cloned().unwrap_or_default();
        let theirs = value.get("id").cloned().unwrap_or_default();
        // A server that could not read the id answers with none; the HTTP exchange itself tells whose error it is.
        let nameless = is_error && theirs.is_null();
        if !nameless && !self.is_asked(&theirs) {
            return self.unreadable("the answer carries another id than the request");
        }
        if let Some(object) = value.as_object_mut() {
            object.insert("id".to_owned(), ours.clone());
        }
        if self.is_discover && !is_error && !completes_discovery(&mut value) {
            return Ok(self.old_era("the answer to server/discover names no revision"));
        }
        if self.is_call() {
            self.settle(Stage::Answered(std::mem::replace(&mut value, seen(ours))));
        } else {
            self.settle(Stage::Answered(value.clone()));
        }
        if self.is_list {
            value = listing::readable(&value);
        }
        let message = serde_json::from_value::<ServerJsonRpcMessage>(value)
            .map_err(|_malformed| fault("the answer is no JSON-RPC response"))?;
        Ok(StreamableHttpPostResponse::Json(message, session))
    }

    /// A JSON body that is over a limit; `theirs` is the id of the answer that it is.
    fn take_excess(&self, excess: Excess, theirs: Option<&Value>) -> Posted {
        if theirs.map(id_text) != Some(id_text(&self.id.clone().unwrap_or_default())) {
            return self.unreadable("the answer is no JSON-RPC response to the request");
        }
        self.settle(Stage::TooLarge(excess));
        Err(fault(format!("the answer {excess}")))
    }

    /// The server refused `server/discover`: its own error when there is one, else one that means "old era".
    pub(super) fn discover_refused(&self, error: Option<Value>) -> StreamableHttpPostResponse {
        let error = error.and_then(|error| serde_json::from_value::<ErrorData>(error).ok());
        error.map_or_else(|| self.old_era("server/discover was refused"), |error| self.error_answer(error))
    }

    pub(super) fn old_era(&self, why: &'static str) -> StreamableHttpPostResponse {
        self.error_answer(ErrorData::invalid_request(why, None))
    }

    /// The answer to a question that the server does not know, whatever the status that comes with it.
    pub(super) fn not_known(&self, status: StatusCode, code: Option<i64>) -> Option<StreamableHttpPostResponse> {
        let is_deaf = self.is_listen && matches!(status.as_u16(), 400 | 404 | 405);
        let is_unknown = (self.is_listen || self.is_list) && code == Some(ErrorCode::METHOD_NOT_FOUND.0.into());
        let error = ErrorData::new(ErrorCode::METHOD_NOT_FOUND, "the server does not know the method", None);
        (is_deaf || is_unknown).then(|| self.error_answer(error))
    }

    pub(super) fn error_answer(&self, error: ErrorData) -> StreamableHttpPostResponse {
        let id = self.own_id().and_then(|id| serde_json::from_value(id.clone()).ok());
        StreamableHttpPostResponse::Json(ServerJsonRpcMessage::error(error, id), None)
    }
}

/// Whether this is an answer to `server/discover` at all: servers of the older era answer what they do not know with a
/// result that is empty, too. Fields that only say how long it may be kept are added where a server left them out.
fn completes_discovery(answer: &mut Value) -> bool {
    let Some(result) = answer.get_mut("result").and_then(Value::as_object_mut) else { return false };
    if !result.get("supportedVersions").is_some_and(Value::is_array) {
        return false;
    }
    for (field, default) in [
        ("resultType", Value::from("complete")),
        ("capabilities", Value::Object(serde_json::Map::new())),
        ("ttlMs", Value::from(0)),
        ("cacheScope", Value::from("private")),
    ] {
        result.entry(field).or_insert(default);
    }
    true
}

pub(super) fn headers_of(custom: HashMap<HeaderName, HeaderValue>, session: Option<&str>) -> Result<HeaderMap, Fault> {
    let mut headers: HeaderMap = custom.into_iter().collect();
    headers.insert(header::ACCEPT, BOTH_KINDS);
    if let Some(session) = session {
        let value =
            HeaderValue::try_from(session).map_err(|_invalid| fault("a session id that no header can carry"))?;
        headers.insert(SESSION, value);
    }
    Ok(headers)
}

/// Adds the headers of one request; the parameters of a tool only where the server knows such headers, and where the
/// protocol library did not set them by the schema that the server listed last.
pub(super) fn own_headers(headers: &mut HeaderMap, own: &HeaderMap) {
    let is_modern = headers.contains_key(METHOD);
    for (name, value) in own {
        if (is_modern || !name.as_str().starts_with(params::PREFIX)) && !headers.contains_key(name) {
            headers.insert(name.clone(), value.clone());
        }
    }
}

pub(super) fn header_text(headers: &HeaderMap, name: &HeaderName) -> Option<String> {
    headers.get(name)?.to_str().ok().map(str::to_owned)
}

/// The pause that a server asks for: seconds, or a date, which counts from the date of the same answer.
pub(super) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = header_text(headers, &header::RETRY_AFTER)?;
    if let Ok(seconds) = text.trim().parse() {
        return Some(Duration::from_secs(seconds));
    }
    let until = DateTime::parse_from_rfc2822(text.trim()).ok()?;
    let now = DateTime::parse_from_rfc2822(header_text(headers, &header::DATE)?.trim()).ok()?;
    Some(until.signed_duration_since(now).to_std().unwrap_or(Duration::ZERO))
}

pub(super) fn is_kind(headers: &HeaderMap, kind: &str) -> bool {
    let text = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    text.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case(kind)
}

/// The notice that a call is not wanted any more.
pub(super) fn cancellation(id: &Value) -> String {
    let params = json!({ "requestId": id, "reason": "the run was cancelled" });
    json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": params }).to_string()
}

/// The request whose cancellation the library wants to send, as text.
pub(super) fn cancelled_id(message: &ClientJsonRpcMessage) -> Option<String> {
    let ClientJsonRpcMessage::Notification(notification) = message else { return None };
    let ClientNotification::CancelledNotification(cancelled) = &notification.notification else { return None };
    Some(id_text(&cancelled.params.request_id.clone()?.into_json_value()))
}

/// Ids compare as text: some servers answer `"7"` to `7`.
pub(super) fn id_text(id: &Value) -> String {
    id.as_str().map_or_else(|| id.to_string(), str::to_owned)
}

/// Whether a server says that it does not know the session of a request: by 404, as the specification wants it, or, as
/// common servers do it, by 400 or 401 with an error that answers no request. The answer to a request may well speak of
/// sessions of its own, a checkout's for one.
pub(super) fn says_session_lost(post: &Post, status: StatusCode, body: &Value) -> bool {
    match status {
        StatusCode::NOT_FOUND => true,
        StatusCode::BAD_REQUEST | StatusCode::UNAUTHORIZED => {
            turned_away(post, body).is_some_and(|message| message.contains("session"))
        }
        _ => false,
    }
}

/// The message, in small letters, of a JSON-RPC error that was made before the request was read: it has another id, or
/// none.
fn turned_away(post: &Post, body: &Value) -> Option<String> {
    let answers = body.get("id").is_some_and(|id| post.is_asked(id));
    let is_error = body.get("jsonrpc").and_then(Value::as_str) == Some("2.0") && error_code(body).is_some();
    let message = body.pointer("/error/message").and_then(Value::as_str)?;
    (is_error && !answers).then(|| message.to_ascii_lowercase())
}

pub(super) fn error_code(body: &Value) -> Option<i64> {
    body.pointer("/error/code").and_then(Value::as_i64)
}

/// The codes of 2026-07-28 for a request that is not of it: headers that are missing or differ, a capability that is
/// not declared, a revision that is not spoken.
const OTHER_ERA: std::ops::RangeInclusive<i64> = -32_022..=-32_020;
/// What the newer era answers to a request without its `_meta`.
const INVALID_PARAMS: i64 = -32_602;

/// Whether a server turned a request down because it speaks another era by now than when the connection was made. Such a
/// request was not executed, and a new handshake finds the era again.
pub(super) fn says_other_era(post: &Post, status: StatusCode, body: &Value) -> bool {
    let code = error_code(body);
    let is_other = if post.is_modern {
        let said = turned_away(post, body).unwrap_or_default();
        code == Some(*OTHER_ERA.start()) || said.contains("session") || said.contains("not initialized")
    } else {
        let said = body.pointer("/error/message").and_then(Value::as_str).unwrap_or_default().to_ascii_lowercase();
        let lacks_meta = said.contains("_meta") || said.contains("protocolversion");
        code.is_some_and(|code| OTHER_ERA.contains(&code) || (code == INVALID_PARAMS && lacks_meta))
    };
    status == StatusCode::BAD_REQUEST && is_other
}

/// What kind of fault kept a request from being answered.
pub(super) fn error_kind(error: &Fault) -> FaultKind {
    match error {
        StreamableHttpError::Client(fault) => fault.kind,
        StreamableHttpError::SessionExpired => FaultKind::Refused,
        _ => FaultKind::Protocol,
    }
}

/// What kind of fault it is that no answer came.
pub(super) fn send_kind(error: &reqwest::Error) -> FaultKind {
    if error.is_timeout() { FaultKind::TimeOut } else { FaultKind::Unreachable }
}

/// What kind of fault a status other than 2xx is.
pub(super) fn status_kind(status: StatusCode) -> FaultKind {
    if status.is_server_error() || status == StatusCode::REQUEST_TIMEOUT {
        FaultKind::ServerError
    } else {
        FaultKind::Refused
    }
}

pub(super) fn error_text(error: &Fault) -> String {
    match error {
        StreamableHttpError::Client(fault) => fault.text.clone(),
        StreamableHttpError::SessionExpired => "the server ended the session".to_owned(),
        StreamableHttpError::ResponseBodyTooLarge { max_size } => format!("the answer is larger than {max_size} bytes"),
        // In the library's words it would quote the server.
        _ => "the request failed".to_owned(),
    }
}
