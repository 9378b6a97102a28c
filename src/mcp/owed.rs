//! What a server has asked on one connection and has no answer to yet. Only so much of it is taken in at once: after
//! that its stream is not read on until an answer has left, and a server that goes on asking faster than any server
//! needs to is not listened to any more. The protocol library would begin a task for each request, however many come.
//! Knows nothing of what is asked.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use parking_lot::Mutex;
use rmcp::model::{ClientJsonRpcMessage, ServerJsonRpcMessage, ServerNotification};
use rmcp::transport::streamable_http_client::SseError;
use serde::Deserialize;
use serde_json::Value;
use sse_stream::Sse;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::transport::SseEvent;
use super::wire::id_text;

/// Requests that may wait for their answers at once.
const OPEN_MAX: u32 = 64;
/// So many bytes of a request count as one more.
const BYTES_EACH: usize = 64 * 1024;
/// Requests that may come at once on a connection, and how many more may each second.
const BURST: f64 = 1_000.0;
const EACH_SECOND: f64 = 10.0;
/// The same of notices, of which one of many bytes counts as several.
const NOTICES: f64 = 1_000.0;
const NOTICES_EACH_SECOND: f64 = 100.0;

/// Why a connection is not listened to any more, for people.
pub(super) const FLOOD: &str = "the server sent more requests of its own than a connection may bring";

/// The requests of one server on one connection.
#[derive(Debug)]
pub(super) struct Owed {
    open: DashMap<String, OwnedSemaphorePermit>,
    places: Arc<Semaphore>,
    asks: Rate,
    notices: Rate,
    is_flooded: AtomicBool,
    /// Whether the log says that notices are passed over.
    is_noted: AtomicBool,
    /// Which server, for the log.
    server: String,
}

/// How much may come: so much at once, and so much more each second.
#[derive(Debug)]
struct Rate {
    at_once: f64,
    each_second: f64,
    /// What may still come, and when that was so.
    left: Mutex<(f64, Instant)>,
}

impl Rate {
    fn new(at_once: f64, each_second: f64) -> Self {
        Self { at_once, each_second, left: Mutex::new((at_once, Instant::now())) }
    }

    /// Takes so much; `false`: it is too much now.
    fn take(&self, much: f64) -> bool {
        let (mut held, now) = (self.left.lock(), Instant::now());
        let (left, at) = *held;
        let left = now.duration_since(at).as_secs_f64().mul_add(self.each_second, left).min(self.at_once);
        let fits = left >= much;
        *held = (if fits { left - much } else { left }, now);
        fits
    }
}

/// What is done with a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// It is handed on, and an answer to it is owed.
    In,
    /// One with its id waits for its answer already: it is passed over.
    Twice,
    /// It is one too many: the stream ends.
    TooMany,
}

/// A message of a server that asks for something, or takes that back.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wish {
    /// A request of that id and size.
    Ask(String, usize),
    /// The request of that id is not wanted any more.
    TakeBack(String),
    /// A notice of that size.
    Tell(usize),
}

/// As much of a message as tells what it is.
#[derive(Deserialize)]
struct Head<'a> {
    #[serde(borrow)]
    method: Option<Cow<'a, str>>,
    id: Option<Value>,
}

impl Wish {
    /// The wish of a message, when it is one that somebody will hear.
    pub(super) fn of(message: &str) -> Option<Self> {
        // Everything that has a method says so, if need be by an escape.
        if !message.contains("method") && !message.contains("\\u") {
            return None;
        }
        let head = serde_json::from_str::<Head<'_>>(message).ok()?;
        let method = head.method?;
        match head.id {
            Some(Value::Null) | None => {
                let taken_back = || taken_back(&serde_json::from_str(message).ok()?);
                let id = if method == "notifications/cancelled" { taken_back() } else { None };
                Some(id.map_or(Self::Tell(message.len()), Self::TakeBack))
            }
            Some(id) if id.is_number() || id.is_string() => {
                // What the library cannot read it does not answer either.
                let readable = serde_json::from_str::<ServerJsonRpcMessage>(message);
                matches!(readable, Ok(ServerJsonRpcMessage::Request(_))).then(|| Self::Ask(id_text(&id), message.len()))
            }
            _ => None,
        }
    }
}

impl Owed {
    pub(super) fn new(server: &str) -> Arc<Self> {
        Arc::new(Self {
            open: DashMap::new(),
            places: Arc::new(Semaphore::new(usize::try_from(OPEN_MAX).unwrap_or(Semaphore::MAX_PERMITS))),
            asks: Rate::new(BURST, EACH_SECOND),
            notices: Rate::new(NOTICES, NOTICES_EACH_SECOND),
            is_flooded: AtomicBool::new(false),
            is_noted: AtomicBool::new(false),
            server: server.to_owned(),
        })
    }

    /// Whether the server asked too much.
    pub(super) fn is_flooded(&self) -> bool {
        self.is_flooded.load(Ordering::Acquire)
    }

    /// Takes a request in, once there is a place for it. May be dropped while it waits, and then counts as not taken,
    /// except against the rate.
    pub(super) async fn take(&self, id: &str, bytes: usize) -> Taken {
        if !self.may_come() {
            return Taken::TooMany;
        }
        self.place(id, bytes).await
    }

    /// Whether one more may come now.
    pub(super) fn may_come(&self) -> bool {
        let is_flooded = self.is_flooded() || !self.asks.take(1.0);
        if is_flooded && !self.is_flooded.swap(true, Ordering::AcqRel) {
            metrics::counter!("countersign_mcp_floods_total").increment(1);
            tracing::warn!(server = self.server, "{FLOOD}: its connection is not used any more");
        }
        !is_flooded
    }

    /// Whether a notice of so many bytes is handed on. The protocol library would begin a task for each; what is passed
    /// over is told again by the next, or was told already.
    pub(super) fn may_tell(&self, bytes: usize) -> bool {
        let pieces = u32::try_from(bytes / BYTES_EACH).unwrap_or(u32::MAX).saturating_add(1);
        // The largest one passes at a time at which there was none for long.
        if self.notices.take(f64::from(pieces).min(NOTICES)) {
            return true;
        }
        metrics::counter!("countersign_mcp_notices_dropped_total").increment(1);
        if !self.is_noted.swap(true, Ordering::AcqRel) {
            tracing::warn!(
                server = self.server,
                "the server sends more notices than a connection may bring: some are passed over"
            );
        }
        false
    }

    /// Waits for a place for a request that may come.
    pub(super) async fn place(&self, id: &str, bytes: usize) -> Taken {
        let size = u32::try_from(bytes / BYTES_EACH).unwrap_or(OPEN_MAX).saturating_add(1).min(OPEN_MAX);
        if self.open.contains_key(id) {
            return Taken::Twice;
        }
        let Ok(place) = Arc::clone(&self.places).acquire_many_owned(size).await else {
            return Taken::TooMany;
        };
        // Two streams of a connection may bring the same id at once.
        match self.open.entry(id.to_owned()) {
            Entry::Occupied(_) => Taken::Twice,
            Entry::Vacant(vacant) => {
                vacant.insert(place);
                Taken::In
            }
        }
    }

    /// No answer to that request is owed any more; whether one was.
    pub(super) fn settle(&self, id: &str) -> bool {
        self.open.remove(id).is_some()
    }

    /// The sending of an answer: until this is dropped, the answer is still owed. Other messages answer nothing.
    pub(super) fn answering(self: &Arc<Self>, message: &ClientJsonRpcMessage) -> Option<Answering> {
        let id = match message {
            ClientJsonRpcMessage::Response(response) => Some(response.id.clone()),
            ClientJsonRpcMessage::Error(error) => error.id.clone(),
            _ => None,
        };
        id.map(|id| Answering { owed: Arc::clone(self), id: id_text(&id.into_json_value()) })
    }

    /// Lets an event of a stream pass, if need be after a wait; `None`: it is passed over.
    pub(super) async fn admit(self: Arc<Self>, came: SseEvent) -> Option<SseEvent> {
        let is_read = |event: &&Sse| matches!(event.event.as_deref(), None | Some("" | "message"));
        let event = came.as_ref().ok().filter(is_read);
        let wish = event.and_then(|event| event.data.as_deref()).and_then(Wish::of);
        match wish {
            None => Some(came),
            Some(Wish::TakeBack(id)) => (self.settle(&id) || self.may_tell(0)).then_some(came),
            Some(Wish::Tell(bytes)) => self.may_tell(bytes).then_some(came),
            Some(Wish::Ask(id, bytes)) => match self.take(&id, bytes).await {
                Taken::In => Some(came),
                Taken::Twice => None,
                Taken::TooMany => Some(Err(SseError::Body(Box::new(Flooded)))),
            },
        }
    }
}

/// The request that a notice takes back.
pub(super) fn taken_back(message: &ServerJsonRpcMessage) -> Option<String> {
    let ServerJsonRpcMessage::Notification(notification) = message else { return None };
    let ServerNotification::CancelledNotification(cancelled) = &notification.notification else { return None };
    Some(id_text(&cancelled.params.request_id.clone()?.into_json_value()))
}

#[derive(Debug, thiserror::Error)]
#[error("{FLOOD}")]
struct Flooded;

/// See `Owed::answering`.
pub(super) struct Answering {
    owed: Arc<Owed>,
    id: String,
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.owed.settle(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn wish(message: Value, expected: Option<Wish>) {
        assert_eq!(Wish::of(&message.to_string()), expected, "{message}");
    }

    #[test]
    fn a_wish_is_what_somebody_will_answer_or_what_takes_that_back() {
        let ping = json!({ "jsonrpc": "2.0", "id": "p", "method": "ping" });
        let bytes = ping.to_string().len();
        wish(ping, Some(Wish::Ask("p".into(), bytes)));
        wish(json!({ "jsonrpc": "2.0", "id": 7, "result": { "method": "ping" } }), None);
        wish(json!({ "jsonrpc": "2.0", "id": { "a": 1 }, "method": "ping" }), None);
        let progress = json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": {} });
        let bytes = progress.to_string().len();
        wish(progress, Some(Wish::Tell(bytes)));
        let cancelled = json!({ "requestId": 9 });
        wish(
            json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": cancelled }),
            Some(Wish::TakeBack("9".into())),
        );
        let escaped = r#"{"jsonrpc":"2.0","id":1,"\u006dethod":"ping"}"#;
        assert_eq!(Wish::of(escaped), Some(Wish::Ask("1".into(), escaped.len())));
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_waits_for_answers_before_its_next_request_is_taken_in() {
        let owed = Owed::new("a");
        for id in 0..OPEN_MAX {
            assert_eq!(owed.take(&id.to_string(), 10).await, Taken::In);
        }
        assert_eq!(owed.take("3", 10).await, Taken::Twice);
        assert!(owed.take("next", 10).now_or_never().is_none());
        owed.settle("3");
        assert_eq!(owed.take("next", 10).await, Taken::In);
        owed.settle("next");
        assert!(owed.take("large", 2 * BYTES_EACH).now_or_never().is_none(), "a large one takes more places");
    }

    #[tokio::test(start_paused = true)]
    async fn notices_are_passed_over_while_there_are_too_many_and_a_large_one_counts_as_several() {
        let owed = Owed::new("a");
        let told = |bytes: usize, times: usize| (0..times).filter(|_| owed.may_tell(bytes)).count();
        assert_eq!(told(100, 2_000), 1_000);
        tokio::time::advance(std::time::Duration::from_secs(1)).await;
        assert_eq!(told(100, 2_000), 100, "a hundred more each second");
        tokio::time::advance(std::time::Duration::from_secs(10)).await;
        assert_eq!((told(15 * BYTES_EACH, 100), owed.is_flooded()), (62, false));
        tokio::time::advance(std::time::Duration::from_secs(10)).await;
        assert_eq!(told(usize::MAX, 2), 1, "the largest passes when there was none for long");
    }

    #[tokio::test(start_paused = true)]
    async fn more_requests_than_any_server_needs_are_a_flood_that_never_ends() {
        let owed = Owed::new("a");
        for _ in 0..1_000 {
            assert_eq!(owed.take("p", 10).await, Taken::In);
            owed.settle("p");
        }
        tokio::time::advance(std::time::Duration::from_millis(100)).await;
        assert_eq!(owed.take("p", 10).await, Taken::In, "one more each tenth of a second");
        assert!(!owed.is_flooded());
        assert_eq!(owed.take("q", 10).await, Taken::TooMany);
        tokio::time::advance(std::time::Duration::from_mins(10)).await;
        assert_eq!((owed.take("q", 10).await, owed.is_flooded()), (Taken::TooMany, true));
    }
}
