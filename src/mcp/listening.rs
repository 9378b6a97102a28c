//! How often, and after which pause, a connection asks for a stream of events again. Sends nothing itself.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rmcp::transport::streamable_http_client::SseError;
use sse_stream::Sse;

/// How often one event id may be resumed from: a server that closes every resumed stream at once would loop for ever.
const RESUMES_PER_EVENT: u32 = 5;
/// Event ids that are remembered; beyond that all are forgotten.
const EVENTS_MAX: usize = 1_000;
/// Longest pause between two attempts to listen for announcements.
const PAUSE_MAX: Duration = Duration::from_mins(1);

/// Longest pause that a server may ask for before its stream is resumed; the call's own limits end it sooner.
const RETRY_MAX: Duration = Duration::from_secs(30);

/// What one connection has asked for.
#[derive(Default)]
pub(super) struct Listening {
    resumes: Mutex<HashMap<String, u32>>,
    /// The pauses that servers asked for on streams that broke, by the last event.
    broken: Mutex<HashMap<String, Duration>>,
    listens: AtomicU32,
}

impl Listening {
    /// Waits until a stream may be asked for: a new one, or the rest of one after that event. `false`: it may not.
    pub(super) async fn turn(&self, event: Option<&str>) -> bool {
        let pause = match event {
            Some(event) if !self.may_resume(event) => return false,
            Some(event) => self.retry_after(event),
            None => self.pause(),
        };
        tokio::time::sleep(pause).await;
        true
    }

    /// Whether a stream may be resumed from that event once more.
    fn may_resume(&self, event: &str) -> bool {
        let mut resumes = self.resumes.lock();
        if resumes.len() > EVENTS_MAX {
            resumes.clear();
        }
        let count = resumes.entry(event.to_owned()).or_insert(0);
        *count += 1;
        *count <= RESUMES_PER_EVENT
    }

    /// The pause that the server asked for, of a stream that broke after that event. A stream that ended properly is
    /// waited for by the protocol library.
    fn retry_after(&self, event: &str) -> Duration {
        self.broken.lock().remove(event).unwrap_or_default()
    }

    /// The pause before announcements are listened for: none at first, then longer each time.
    fn pause(&self) -> Duration {
        match self.listens.fetch_add(1, Ordering::Relaxed) {
            0 => Duration::ZERO,
            count => Duration::from_secs(1 << count.min(6)).min(PAUSE_MAX),
        }
    }
}

/// Follows one stream: how to go on when it breaks.
#[derive(Default)]
pub(super) struct Watch {
    event: Option<String>,
    retry: Option<Duration>,
}

impl Watch {
    /// Takes note of what came.
    pub(super) fn see(&mut self, came: &Result<Sse, SseError>, listening: &Listening) {
        match came {
            Ok(event) => {
                self.retry = event.retry.map(Duration::from_millis).or(self.retry);
                if event.id.is_some() {
                    self.event.clone_from(&event.id);
                }
            }
            Err(_broken) => {
                if let (Some(event), Some(retry)) = (&self.event, self.retry) {
                    let mut broken = listening.broken.lock();
                    if broken.len() > EVENTS_MAX {
                        broken.clear();
                    }
                    broken.insert(event.clone(), retry.min(RETRY_MAX));
                }
            }
        }
    }
}
