//! What a call that is out is watched by. Knows no server.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::bulk::Held;
use crate::mcp::ProgressSink;

/// What a call that is out is watched by.
pub struct Out {
    /// Ends it.
    pub cancel: CancellationToken,
    /// Hears how far it has come.
    pub progress: ProgressSink,
    /// Keeps the bytes of a large answer.
    pub held: Held,
}

/// How a task is waited for.
pub struct Wait {
    /// Ends it.
    pub cancel: CancellationToken,
    /// How long the call is out already.
    pub waited: Duration,
    /// Whether the server named the task just now, and wants to be left alone at first.
    pub is_new: bool,
    /// Keeps the bytes of a large answer.
    pub held: Held,
}
