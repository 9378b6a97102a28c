//! The one place that asks what time it is and makes fresh ids. Everything else is handed both.

use std::sync::atomic::{AtomicI64, Ordering};

use uuid::Uuid;

use crate::run::ids::{NodeId, RunId, RunUid};
use crate::run::time::Timestamp;

/// Now, and fresh ids.
pub trait Clock: Send + Sync {
    /// The wall clock, in milliseconds.
    fn now(&self) -> Timestamp;

    /// A random internal identity.
    fn run_uid(&self) -> RunUid {
        RunUid(Uuid::new_v4())
    }

    /// The default name of a run: rises with time.
    fn run_id(&self) -> RunId;

    /// A random identity of this process.
    fn node_id(&self) -> NodeId {
        NodeId(Uuid::new_v4())
    }

    /// A random name of one request, for problems and logs.
    fn request_id(&self) -> String {
        Uuid::new_v4().hyphenated().to_string()
    }
}

/// The machine's clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "this is the one place")]
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(chrono::Utc::now().timestamp_millis())
    }

    fn run_id(&self) -> RunId {
        RunId::of_uuid(Uuid::now_v7())
    }
}

/// A clock that stands still until it is moved.
#[derive(Debug)]
pub struct ManualClock(AtomicI64);

impl ManualClock {
    /// Stands at so many milliseconds since the epoch.
    pub const fn new(millis: i64) -> Self {
        Self(AtomicI64::new(millis))
    }

    /// Moves the clock forward.
    pub fn advance(&self, millis: i64) {
        self.0.fetch_add(millis, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.0.load(Ordering::SeqCst))
    }

    fn run_id(&self) -> RunId {
        RunId::of_uuid(Uuid::now_v7())
    }
}
