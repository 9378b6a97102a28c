//! What one decision writes: applied whole or not at all, under the run's fence and revision.

use super::approval::Approval;
use super::binding::Binding;
use super::call::{Backend, Call};
use super::envelope::Head;
use super::event::Event;
use super::ids::CallKey;
use super::message::Message;
use super::time::Timestamp;

/// Who moves the run next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Its owner goes on.
    Owner,
    /// Any node, from that time on; the owner lets go.
    Due(Timestamp),
    /// Nobody, until a decision: the owner lets go.
    Rest,
}

/// The rows of one decision.
#[derive(Clone, Debug, PartialEq)]
pub struct Commit {
    /// The revision that the store must still hold; 0 for a new run.
    pub expected: i64,
    /// The head as it is from now on (`revision` = `expected` + 1).
    pub head: Head,
    /// New messages.
    pub messages: Vec<Message>,
    /// New calls.
    pub calls_made: Vec<Call>,
    /// Calls whose stage changed.
    pub calls_moved: Vec<Call>,
    /// Approvals that were asked for or changed, whole.
    pub approvals: Vec<Approval>,
    /// What readers are told, numbered.
    pub events: Vec<Event>,
    /// A new binding revision.
    pub binding: Option<Binding>,
    /// The calls that may leave once this is stored.
    pub sends: Vec<CallKey>,
    /// Who moves the run next.
    pub next: Next,
}

impl Commit {
    /// Whether workers may take a call that they could not take before: it is on offer, or one of them has room again.
    pub fn offers(&self) -> bool {
        let ended = |call: &Call| call.backend() == Some(Backend::Worker) && !call.is_with_worker();
        self.calls_made.iter().any(Call::is_offered)
            || self.calls_moved.iter().any(|call| call.is_offered() || ended(call))
    }
}
