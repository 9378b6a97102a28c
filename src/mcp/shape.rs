//! Measures JSON text before anybody reads it into values: a small text can hold a million of them, or be nested so
//! deeply that no reader takes it. Knows nothing of what the text says.

use std::fmt;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

use crate::run::json::{MAX_DEPTH, has_reserved_key};

/// Deepest nesting that the JSON reader takes.
const READER_DEPTH: usize = 127;
/// Most values in one message. Each takes about a hundred bytes once it is read.
const MAX_NODES: usize = 200_000;
/// Most content blocks of one result.
pub(super) const MAX_BLOCKS: usize = 2_000;

/// Which limit an answer is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Excess {
    /// So many bytes.
    Bytes(usize),
    /// The nesting of values.
    Depth,
    /// The number of values.
    Nodes,
    /// The number of content blocks.
    Blocks,
    /// A key that cannot be kept.
    ReservedKey,
}

impl fmt::Display for Excess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(max) => write!(f, "is larger than {max} bytes"),
            Self::Depth => write!(f, "is nested deeper than {MAX_DEPTH} levels"),
            Self::Nodes => write!(f, "has more than {MAX_NODES} values"),
            Self::ReservedKey => f.write_str("has a key that is reserved"),
            Self::Blocks => write!(f, "has more than {MAX_BLOCKS} content blocks"),
        }
    }
}

/// The limit that a text is over, if any. One pass, no memory.
pub(super) fn excess(text: &[u8]) -> Option<Excess> {
    let (mut depth, mut nodes, mut quoted, mut escaped) = (0_usize, 0_usize, false, false);
    for &byte in text {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b'[' | b'{' if !quoted => {
                depth += 1;
                nodes += 1;
            }
            b']' | b'}' if !quoted => depth = depth.saturating_sub(1),
            b',' if !quoted => nodes += 1,
            _ => {}
        }
        if depth > READER_DEPTH {
            return Some(Excess::Depth);
        }
        if nodes > MAX_NODES {
            return Some(Excess::Nodes);
        }
    }
    has_reserved_key(text).then_some(Excess::ReservedKey)
}

#[derive(Deserialize)]
struct Envelope {
    id: Option<Value>,
    result: Option<IgnoredAny>,
    error: Option<IgnoredAny>,
}

/// Whose answer a text is that is over a limit: the id of a JSON-RPC response. What it holds is passed over, however
/// deep it is; nothing of it is kept.
pub(super) fn answered_id(text: &[u8]) -> Option<Value> {
    let envelope = serde_json::from_slice::<Envelope>(text).ok()?;
    (envelope.result.is_some() || envelope.error.is_some()).then_some(envelope.id)?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depth_and_number_of_values_are_measured_outside_of_texts() {
        let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        assert_eq!(excess(nested(READER_DEPTH).as_bytes()), None);
        assert_eq!(excess(nested(READER_DEPTH + 1).as_bytes()), Some(Excess::Depth));
        assert_eq!(excess("[],".repeat(READER_DEPTH * 2).as_bytes()), None);
        let items = |count: usize| format!("[{}0]", "0,".repeat(count - 1));
        assert_eq!(excess(items(MAX_NODES).as_bytes()), None);
        assert_eq!(excess(items(MAX_NODES + 1).as_bytes()), Some(Excess::Nodes));
        assert_eq!(excess(br#"{"a":{"\u0024serde_json::private::Number":"7"}}"#), Some(Excess::ReservedKey));
        let text = format!("\"\\\"{}{}\\\\\"", "[".repeat(500), ",".repeat(MAX_NODES + 1));
        assert_eq!(excess(text.as_bytes()), None);
    }

    #[test]
    fn an_answer_is_known_by_its_id_however_deep_it_is() {
        let deep = "[".repeat(5_000) + &"]".repeat(5_000);
        let answer = |member: &str| answered_id(format!(r#"{{"jsonrpc":"2.0","id":7,"{member}":{deep}}}"#).as_bytes());
        assert_eq!(answer("result"), Some(Value::from(7)));
        assert_eq!(answer("error"), Some(Value::from(7)));
        assert_eq!(answer("params"), None);
        assert_eq!(answered_id(br#"{"id":null,"result":{}}"#), None);
        assert_eq!(answered_id(deep.as_bytes()), None);
        assert_eq!(answered_id(br#"{"id":7,"result":"#), None);
    }
}
