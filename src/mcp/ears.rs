//! Whether a connection's announcements are heard yet: tools are listed first once they are, so that nothing is missed in
//! between, and listed again where that took too long.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::watch;

use super::catalog::Announcements;

/// How long the first listing waits for the stream of announcements.
const PATIENCE: Duration = Duration::from_millis(300);

/// The ears of one connection.
pub(super) struct Ears {
    announcements: Arc<Announcements>,
    /// Whether the transport sees announcements itself, in the order in which they came.
    sees: bool,
    /// Whether the stream that is expected was opened or refused; `true` where none is.
    settled: watch::Sender<bool>,
    expected: AtomicBool,
    /// Whether the tools were asked for.
    listed: AtomicBool,
}

impl Ears {
    /// With a transport that sees announcements itself, or leaves that to the protocol library.
    pub(super) fn new(sees: bool) -> Arc<Self> {
        let announcements = Arc::default();
        let (expected, listed) = (AtomicBool::new(false), AtomicBool::new(false));
        Arc::new(Self { announcements, sees, settled: watch::Sender::new(true), expected, listed })
    }

    /// What is announced on the connection.
    pub(super) fn announcements(&self) -> Arc<Announcements> {
        Arc::clone(&self.announcements)
    }

    /// A stream will be asked for.
    pub(super) fn expect(&self) {
        if !self.expected.swap(true, Ordering::AcqRel) {
            self.settled.send_replace(false);
        }
    }

    /// A stream was opened. What changed between a listing and now was not heard.
    pub(super) fn opened(&self) {
        if self.listed.load(Ordering::Acquire) {
            self.announcements.announce();
        }
        self.settled.send_replace(true);
    }

    /// There is no stream, now or ever.
    pub(super) fn closed(&self) {
        self.settled.send_replace(true);
    }

    /// The transport saw that the server announced a change. It sees that before an answer that came later is handed on:
    /// the library tells of both at once, and a run would ask its model for the next step without having heard.
    pub(super) fn saw(&self) {
        self.announcements.announce();
    }

    /// The library told that the server announced a change.
    pub(super) fn told(&self) {
        if !self.sees {
            self.announcements.announce();
        }
    }

    /// Ends once announcements are heard, or the wait for that was long enough; the tools are asked for next.
    pub(super) async fn settled(&self) {
        let mut settled = self.settled.subscribe();
        if !self.listed.load(Ordering::Acquire) {
            // Whatever ends it, the tools are listed next.
            drop(tokio::time::timeout(PATIENCE, settled.wait_for(|is_settled| *is_settled)).await);
        }
        self.listed.store(true, Ordering::Release);
    }
}
