//! Looks at what a server says on its way to the protocol library: what answers a call is written down, and the library is
//! told no more of it than it needs.

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::{Value, json};
use sse_stream::Sse;

use super::attempt::{Attempt, Stage};
use super::listing;
use super::outline::Outline;
use super::shape::{self, Excess};
use super::transport::Shared;
use super::wire::id_text;
use crate::bulk::Hold;
use crate::run::mend::mended_text;

impl Shared {
    /// Looks at one event on its way to the library, and writes down what it says of a call. `false`: the library must
    /// not read it.
    pub(super) fn observe(&self, event: &mut Sse, mut hold: Option<Hold>, is_list: bool) -> bool {
        if let Some(Cow::Owned(readable)) = event.data.as_deref().map(mended_text) {
            event.data = Some(readable);
        }
        let bytes = event.data.as_ref().map_or(0, String::len);
        if announces_change(event) {
            self.ears.saw();
        }
        let (answer, is_readable) = answer_in(event);
        if let Some((id, stage)) = answer
            && let Some(attempt) = self.calls.get(&id_text(&id))
        {
            let own = self.ids.library_id(&id);
            match &stage {
                Stage::Answered(_) if attempt.is_call() => {
                    event.data = Some(seen(own.unwrap_or(id)).to_string());
                }
                Stage::Answered(message) if is_list => event.data = Some(listing::readable(message).to_string()),
                Stage::Answered(message) => {
                    if let Some(own) = own {
                        event.data = Some(with_id(message, own).to_string());
                    }
                }
                _ => {}
            }
            attempt.hold(hold.take().map(|hold| hold.of(bytes)));
            attempt.settle(stage);
        }
        is_readable
    }

    /// Looks at the beginning of an event that is too large: `true` when it answers a call, which is then settled.
    pub(super) fn outgrown(&self, start: &[u8], own: Option<&Attempt>) -> bool {
        let outline = Outline::of_event(start);
        if !outline.is_response {
            return false;
        }
        let named = outline.id.map(|id| self.calls.get(&id_text(&id)).map(|call| Arc::clone(&call)));
        let answered = match &named {
            Some(named) => named.as_deref(),
            // A stream that answers a request brings no other response.
            None => own,
        };
        if let Some(attempt) = answered {
            attempt.settle(Stage::TooLarge(Excess::Bytes(self.max_bytes)));
        }
        answered.is_some()
    }
}

/// Whether an event says that the server's tools changed.
fn announces_change(event: &Sse) -> bool {
    const CHANGED: &str = "notifications/tools/list_changed";
    // Read only where the word stands: answers are large and many.
    let said = event.data.as_deref().filter(|data| data.contains(CHANGED));
    let message = said.and_then(|data| serde_json::from_str::<Value>(data).ok());
    message.is_some_and(|message| message.get("method").and_then(Value::as_str) == Some(CHANGED))
}

/// The answer that an event of a stream brings, as the server wrote it, with its id; and whether the event may be read
/// by anybody.
fn answer_in(event: &Sse) -> (Option<(Value, Stage)>, bool) {
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

/// What the protocol library is told of the answer to a call: that there is one. It would take a large one apart several
/// times, and nobody asks it what it found.
pub(super) fn seen(id: Value) -> Value {
    let mut answer = json!({ "jsonrpc": "2.0", "result": { "content": [] } });
    if let Some(object) = answer.as_object_mut() {
        object.insert("id".to_owned(), id);
    }
    answer
}

/// The same answer to a request of that id.
fn with_id(answer: &Value, id: Value) -> Value {
    let mut answer = answer.clone();
    if let Some(object) = answer.as_object_mut() {
        object.insert("id".to_owned(), id);
    }
    answer
}
