//! What is known of a connection over HTTP itself, beside its calls.

use std::sync::atomic::Ordering;

use super::FaultKind;
use super::transport::TrackedClient;

impl TrackedClient {
    /// What the last failed request of the connection itself failed of.
    pub(super) fn last_fault(&self) -> Option<(FaultKind, String)> {
        self.shared.last_fault.lock().clone()
    }

    /// Whether the server said that it does not know our session any more.
    pub(super) fn session_lost(&self) -> bool {
        self.shared.session_lost.load(Ordering::Acquire)
    }

    /// Whether the server asked more than it may, and is not listened to any more.
    pub(super) fn is_flooded(&self) -> bool {
        self.shared.owed.is_flooded()
    }
}
