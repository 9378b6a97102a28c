//! What a message that is too large to be read would have been, as far as its beginning tells. The work of a call is
//! done when its answer is too large; an announcement that is too large says nothing of it. In doubt it is no answer.
//! Knows no transport.

use std::fmt;

use serde::Deserializer as _;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde_json::Value;

/// So much of a message is looked at, in bytes: its members stand before or around one large value.
pub(super) const START: usize = 4 * 1024;

/// The outermost members of a JSON-RPC message that was cut off.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Outline {
    /// It has a result or an error.
    pub(super) is_response: bool,
    /// Its id, when that stands whole in the beginning.
    pub(super) id: Option<Value>,
}

impl Outline {
    /// Of the beginning of a JSON text.
    pub(super) fn of(start: &[u8]) -> Self {
        let mut outline = Self::default();
        let mut text = serde_json::Deserializer::from_slice(start);
        // It ends in the middle, so this always fails: what was met until then is what there is to know.
        if let Err(cut) = text.deserialize_map(Members(&mut outline)) {
            tracing::trace!(%cut, "the beginning of a message was read");
        }
        outline
    }

    /// Of the beginning of an event of a stream; events that are no messages have none.
    pub(super) fn of_event(start: &[u8]) -> Self {
        let mut data = Vec::with_capacity(start.len());
        for line in start.split(|byte| *byte == b'\n') {
            if let Some(kind) = line.strip_prefix(b"event:") {
                if !matches!(kind.trim_ascii(), b"" | b"message") {
                    return Self::default();
                }
            } else if let Some(part) = line.strip_prefix(b"data:") {
                data.extend_from_slice(part);
            }
        }
        Self::of(&data)
    }
}

struct Members<'a>(&'a mut Outline);

impl<'de> Visitor<'de> for Members<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON-RPC message")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        let mut id = None;
        while let Some(name) = members.next_key::<String>()? {
            // A number at the very end may go on: an id counts once something follows it.
            self.0.id = id.take().or(self.0.id.take());
            match name.as_str() {
                "id" => id = Some(members.next_value()?),
                "result" | "error" => {
                    self.0.is_response = true;
                    members.next_value::<IgnoredAny>()?;
                }
                _ => drop(members.next_value::<IgnoredAny>()?),
            }
        }
        self.0.id = id.or(self.0.id.take());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(start: &str, is_response: bool, id: Option<u64>) {
        assert_eq!(Outline::of(start.as_bytes()), Outline { is_response, id: id.map(Value::from) }, "{start}");
        let event = format!("id: 7\nevent: message\ndata: {start}");
        assert_eq!(Outline::of_event(event.as_bytes()), Outline { is_response, id: id.map(Value::from) }, "{event}");
    }

    #[test]
    fn the_beginning_of_a_message_tells_what_it_is() {
        check(r#"{"jsonrpc":"2.0","id":7,"result":{"content":[{"te"#, true, Some(7));
        check(r#"{"result":{"content":[{"type":"text","text":"xxx"#, true, None);
        check(r#"{"error":{"message":"xx"},"id":7,"json"#, true, None);
        check(r#"{"error":{"message":"xx"},"id":7,"jsonrpc":"2."#, true, Some(7));
        check(r#"{"jsonrpc":"2.0","result":{},"id":7"#, true, None);
        check(r#"{"method":"notifications/message","params":{"result":{"id":7},"id":7,"x"#, false, None);
        check(r#"{"jsonrpc":"2.0","id":7,"method":"sampling/createMessage","params":{"#, false, Some(7));
        check(r#"["result","#, false, None);
        check("", false, None);
    }

    #[test]
    fn an_event_of_another_kind_is_no_message() {
        assert_eq!(
            Outline::of_event(
                br#"event: endpoint
data: {"result":{"#
            ),
            Outline::default()
        );
    }
}
