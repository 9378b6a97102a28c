//! What the lines of a process say, and what of it the protocol library is told. Reads none itself.

use rmcp::model::{ErrorData, RequestId, ServerJsonRpcMessage, ServerNotification};
use serde_json::Value;

use super::lines::Line;
use super::transport::Shared;
use crate::bulk::Hold;
use crate::mcp::attempt::Stage;
use crate::mcp::listing;
use crate::mcp::observe::seen;
use crate::mcp::outline::Outline;
use crate::mcp::owed::taken_back;
use crate::mcp::shape::{self, Excess};
use crate::mcp::wire::id_text;
use crate::run::mend::mended;

/// What a line turned out to be.
pub(super) enum Read {
    /// A message for the protocol library.
    Message(Box<ServerJsonRpcMessage>),
    /// One that asks for something: its id, and its size in bytes.
    Request(String, usize, Box<ServerJsonRpcMessage>),
    /// Nothing.
    Nothing,
    /// So many bytes that are no message.
    Noise(usize),
    /// The beginning of something so large that nobody can tell what it answers.
    Flood,
}

impl Shared {
    /// Looks at one line on its way to the library, and writes down what it says of a call.
    pub(super) fn read(&self, line: Line, hold: Option<Hold>) -> Read {
        let text = match line {
            Line::Whole(text) => text,
            Line::TooLong(start) => return self.outgrown(&start),
        };
        let text = mended(&text);
        let text = text.trim_ascii();
        if text.is_empty() {
            return Read::Nothing;
        }
        if !text.starts_with(b"{") {
            return Read::Noise(text.len());
        }
        if let Some(excess) = shape::excess(text) {
            return shape::answered_id(text).map_or(Read::Noise(text.len()), |id| self.excess(&id, excess));
        }
        let Ok(mut value) = serde_json::from_slice::<Value>(text) else { return Read::Noise(text.len()) };
        let is_answer = value.get("method").is_none()
            && (value.get("result").is_some() || value.get("error").is_some_and(Value::is_object));
        let id = value.get("id").filter(|_| is_answer).cloned();
        if let Some(id) = &id
            && let Some(attempt) = self.calls.get(&id_text(id))
        {
            let ours = attempt.route().map_or_else(|| id.clone(), |route| route.id);
            attempt.hold(hold);
            if attempt.is_call() {
                attempt.settle(Stage::Answered(std::mem::replace(&mut value, seen(ours))));
            } else {
                attempt.settle(Stage::Answered(value.clone()));
                if attempt.is_list() {
                    value = listing::readable(&value);
                }
                if let Some(object) = value.as_object_mut() {
                    object.insert("id".to_owned(), ours);
                }
            }
        }
        match (serde_json::from_value(value), id) {
            (Ok(ServerJsonRpcMessage::Request(request)), _) => {
                let id = id_text(&request.id.clone().into_json_value());
                Read::Request(id, text.len(), Box::new(ServerJsonRpcMessage::Request(request)))
            }
            (Ok(ServerJsonRpcMessage::Notification(notice)), _) => {
                self.notice(ServerJsonRpcMessage::Notification(notice), text.len())
            }
            (Ok(message), _) => Read::Message(Box::new(message)),
            (Err(_malformed), Some(id)) => self.error(&id, "the answer cannot be read"),
            (Err(_malformed), None) => Read::Noise(text.len()),
        }
    }

    /// A notice. That tools changed is heard here, before an answer that came later is handed on, and whatever becomes of
    /// the notice.
    fn notice(&self, message: ServerJsonRpcMessage, bytes: usize) -> Read {
        if let ServerJsonRpcMessage::Notification(notice) = &message
            && matches!(notice.notification, ServerNotification::ToolListChangedNotification(_))
        {
            self.ears.saw();
        }
        let is_waited_for = taken_back(&message).is_some_and(|id| self.owed.settle(&id));
        if is_waited_for || self.owed.may_tell(bytes) { Read::Message(Box::new(message)) } else { Read::Nothing }
    }

    /// A line that is too long: when it answers a call, that is settled.
    fn outgrown(&self, start: &[u8]) -> Read {
        let outline = Outline::of(start);
        match outline.id.filter(|_| outline.is_response) {
            Some(id) => self.excess(&id, Excess::Bytes(self.max_bytes)),
            None => Read::Flood,
        }
    }

    fn excess(&self, id: &Value, excess: Excess) -> Read {
        if let Some(attempt) = self.calls.get(&id_text(id)) {
            attempt.settle(Stage::TooLarge(excess));
        }
        self.error(id, &format!("the answer {excess}"))
    }

    /// Ends the library's wait for an answer that it cannot have.
    fn error(&self, id: &Value, why: &str) -> Read {
        let ours = self.calls.get(&id_text(id)).and_then(|attempt| attempt.route()).map(|route| route.id);
        let id = serde_json::from_value::<RequestId>(ours.unwrap_or_else(|| id.clone())).ok();
        let error = ErrorData::internal_error(why.to_owned(), None);
        id.map_or(Read::Nothing, |id| Read::Message(Box::new(ServerJsonRpcMessage::error(error, Some(id)))))
    }
}
