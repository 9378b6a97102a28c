//! The ids of calls on the wire in the era without sessions.
//!
//! The protocol library counts the requests of each connection from nought. Without a session a server has nothing but
//! the id to tell two requests apart, and the one that answers its questions, which may go over another connection or
//! leave another process, must not have the id of the call that it continues. So each connection counts its calls from
//! a number of its own.

use std::hash::{BuildHasher as _, RandomState};

use rmcp::model::{ClientJsonRpcMessage, ClientNotification, ClientRequest, RequestId};
use serde_json::Value;

/// The library's own ids stay below it.
const FIRST: i64 = 1 << 32;
/// Every client keeps integers up to 2^53 apart.
const SPAN: u64 = 1 << 52;

/// Where one connection's calls begin to count.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ids(i64);

impl Ids {
    pub(super) fn new() -> Self {
        // Every state of the hasher is seeded at random.
        let random = i64::try_from(RandomState::new().hash_one(0) % SPAN).unwrap_or_default();
        Self(FIRST + random)
    }

    /// Gives a call, and the notice that it is not wanted any more, the id that its server sees.
    pub(super) fn lift(self, message: &mut ClientJsonRpcMessage) {
        match message {
            ClientJsonRpcMessage::Request(request) => {
                if matches!(request.request, ClientRequest::CallToolRequest(_)) {
                    self.raise(&mut request.id);
                }
            }
            ClientJsonRpcMessage::Notification(notification) => {
                // Nothing but calls is ever cancelled.
                if let ClientNotification::CancelledNotification(cancelled) = &mut notification.notification
                    && let Some(id) = &mut cancelled.params.request_id
                {
                    self.raise(id);
                }
            }
            _ => {}
        }
    }

    fn raise(self, id: &mut RequestId) {
        if let RequestId::Number(number) = id {
            *number = number.saturating_add(self.0);
        }
    }

    /// The library's id of the call that a server answers; `None` for one that was not lifted.
    pub(super) fn library_id(self, id: &Value) -> Option<Value> {
        let number = id.as_i64().or_else(|| id.as_str()?.parse().ok())?;
        number.checked_sub(self.0).filter(|number| (0..FIRST).contains(number)).map(Value::from)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_lifted_id_leads_back_and_no_other_does() {
        let ids = Ids::new();
        let mut id = RequestId::Number(7);
        ids.raise(&mut id);
        let seen = id.into_json_value();
        assert!(seen.as_i64().unwrap() >= FIRST && seen.as_i64().unwrap() < 1 << 53, "{seen}");
        assert_eq!(ids.library_id(&seen), Some(json!(7)));
        assert_eq!(ids.library_id(&json!(seen.to_string())), Some(json!(7)), "some servers answer with a text");
        for other in [json!(7), json!("7"), json!(null), json!("x"), json!(i64::MAX), json!(1.5)] {
            assert_eq!(ids.library_id(&other), None, "{other}");
        }
    }

    #[test]
    fn no_two_connections_count_from_one_number() {
        let firsts: std::collections::BTreeSet<i64> = (0..1000).map(|_| Ids::new().0).collect();
        assert_eq!(firsts.len(), 1000);
    }
}
