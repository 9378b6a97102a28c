//! How often, and after which pause, a connection asks for a stream of events again. Sends nothing itself.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

/// How often one event id may be resumed from: a server that closes every resumed stream at once would loop for ever.
const RESUMES_PER_EVENT: u32 = 5;
/// Event ids that are remembered; beyond that all are forgotten.
const EVENTS_MAX: usize = 1_000;
/// Longest pause between two attempts to listen for announcements.
const PAUSE_MAX: Duration = Duration::from_mins(1);

/// What one connection has asked for.
#[derive(Default)]
pub(super) struct Listening {
    resumes: Mutex<HashMap<String, u32>>,
    listens: AtomicU32,
}

impl Listening {
    /// Whether a stream may be resumed from that event once more.
    pub(super) fn may_resume(&self, event: &str) -> bool {
        let mut resumes = self.resumes.lock();
        if resumes.len() > EVENTS_MAX {
            resumes.clear();
        }
        let count = resumes.entry(event.to_owned()).or_insert(0);
        *count += 1;
        *count <= RESUMES_PER_EVENT
    }

    /// The pause before announcements are listened for: none at first, then longer each time.
    pub(super) fn pause(&self) -> Duration {
        match self.listens.fetch_add(1, Ordering::Relaxed) {
            0 => Duration::ZERO,
            count => Duration::from_secs(1 << count.min(6)).min(PAUSE_MAX),
        }
    }
}
