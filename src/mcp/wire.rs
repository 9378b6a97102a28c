//! The messages of the transport as they stand on the wire: what must be known of one on its way out, and how the
//! parts of an answer read. Sends nothing itself.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use chrono::DateTime;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use rmcp::model::{
    ClientJsonRpcMessage, ClientNotification, ClientRequest, ErrorData, GetExtensions, ServerJsonRpcMessage,
};
use rmcp::transport::streamable_http_client::{StreamableHttpError, StreamableHttpPostResponse};
use serde_json::{Value, json};
use sse_stream::Sse;

use super::FaultKind;
use super::attempt::{Attempt, Stage};
use super::listing;
use super::shape::{self, Excess};
use crate::failpoint;

pub(super) const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");
pub(super) const LAST_EVENT: HeaderName = HeaderName::from_static("last-event-id");
pub(super) const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
pub(super) const EVENT_STREAM: &str = "text/event-stream";
pub(super) const JSON: &str = "application/json";
const BOTH_KINDS: HeaderValue = HeaderValue::from_static("application/json, text/event-stream");

pub(super) type Fault = StreamableHttpError<TransportFault>;
pub(super) type Posted = Result<StreamableHttpPostResponse, Fault>;

/// Why a request failed: safe to log and to show, it never quotes what the server wrote.
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
pub(super) struct Post {
    pub(super) text: String,
    pub(super) id: Option<Value>,
    pub(super) attempt: Option<Arc<Attempt>>,
    pub(super) session: Option<Arc<str>>,
    pub(super) awaits_answer: bool,
    pub(super) is_discover: bool,
}

impl Post {
    pub(super) fn of(message: ClientJsonRpcMessage, session: Option<Arc<str>>) -> Result<Self, Fault> {
        let text = serde_json::to_string(&message)?;
        let (mut id, mut attempt, mut is_discover) = (None, None, false);
        if let ClientJsonRpcMessage::Request(request) = &message {
            id = Some(request.id.clone().into_json_value());
            attempt = request.request.extensions().get::<Arc<Attempt>>().map(Arc::clone);
            is_discover = matches!(request.request, ClientRequest::DiscoverRequest(_));
        }
        Ok(Self { text, awaits_answer: id.is_some(), id, attempt, session, is_discover })
    }

    /// Whether a message with that id answers this request.
    pub(super) fn is_asked(&self, id: &Value) -> bool {
        self.id.as_ref().is_some_and(|ours| id_text(ours) == id_text(id))
    }

    /// Whether it calls a tool.
    pub(super) fn is_call(&self) -> bool {
        self.attempt.as_ref().is_some_and(|attempt| attempt.key().is_some())
    }

    pub(super) fn settle(&self, stage: Stage) {
        if let Some(attempt) = &self.attempt {
            attempt.settle(stage);
        }
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
        let ours = self.id.clone().unwrap_or_default();
        let theirs = value.get("id").cloned().unwrap_or_default();
        // A server that could not read the id answers with none; the HTTP exchange itself tells whose error it is.
        let nameless = is_error && theirs.is_null();
        if !nameless && !self.is_asked(&theirs) {
            return self.unreadable("the answer carries another id than the request");
        }
        if let Some(object) = value.as_object_mut() {
            object.insert("id".to_owned(), ours);
        }
        self.settle(Stage::Answered(value.clone()));
        if self.attempt.is_some() && !self.is_call() {
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
        error.map_or_else(|| self.old_era("server/discover was refused"), |error| self.discover_error(error))
    }

    pub(super) fn old_era(&self, why: &'static str) -> StreamableHttpPostResponse {
        self.discover_error(ErrorData::invalid_request(why, None))
    }

    pub(super) fn discover_error(&self, error: ErrorData) -> StreamableHttpPostResponse {
        let id = self.id.clone().and_then(|id| serde_json::from_value(id).ok());
        StreamableHttpPostResponse::Json(ServerJsonRpcMessage::error(error, id), None)
    }
}

/// The answer that an event of a stream brings, as the server wrote it, with its id; and whether the event may be read
/// by anybody.
pub(super) fn answer_in(event: &Sse) -> (Option<(Value, Stage)>, bool) {
    let Some(data) = event.data.as_deref() else { return (None, true) };
    if let Some(excess) = shape::excess(data.as_bytes()) {
        return (shape::answered_id(data.as_bytes()).map(|id| (id, Stage::TooLarge(excess))), false);
    }
    if !matches!(event.event.as_deref(), None | Some("" | "message")) {
        return (None, true);
    }
    let message = serde_json::from_str::<Value>(data).ok();
    let answer = message.filter(|message| message.get("result").is_some() || message.get("error").is_some());
    (answer.and_then(|answer| Some((answer.get("id").cloned()?, Stage::Answered(answer)))), true)
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

/// Lost sessions come as 404 (the specification), as 400 or as 401 with words about the session (common servers).
pub(super) fn says_session_lost(status: StatusCode, body: &[u8]) -> bool {
    match status {
        StatusCode::NOT_FOUND | StatusCode::GONE => true,
        StatusCode::BAD_REQUEST | StatusCode::UNAUTHORIZED => {
            String::from_utf8_lossy(body).to_ascii_lowercase().contains("session")
        }
        _ => false,
    }
}

/// The innermost cause in words, without the URL (its query may carry what must not be shown).
pub(super) fn describe(error: &reqwest::Error) -> String {
    let mut source: &dyn std::error::Error = error;
    while let Some(inner) = source.source() {
        source = inner;
    }
    let kind = if error.is_timeout() {
        "time-out"
    } else if error.is_connect() {
        "no connection"
    } else {
        "the connection broke"
    };
    if std::ptr::addr_eq(std::ptr::from_ref(source), std::ptr::from_ref(error)) {
        kind.to_owned()
    } else {
        format!("{kind}: {source}")
    }
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
        other => {
            tracing::debug!(fault = %other, "a request of a connection failed");
            "the request failed".to_owned()
        }
    }
}
