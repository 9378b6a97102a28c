//! Hears of changes from a server of the era without sessions: one `subscriptions/listen` a connection, asked for again
//! whenever it ends. Such a stream cannot be resumed, so what changed meanwhile is not told: the tools count as changed
//! each time somebody listens anew.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::time::Duration;

use rmcp::model::{ErrorCode, ServerNotification, SubscriptionFilter};
use rmcp::service::ServiceError;
use rmcp::{Peer, RoleClient};

use super::ears::Ears;
use super::era::Eras;

/// Pauses before it is asked again.
const PAUSE_MIN: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_mins(1);

/// One connection's ear.
pub(super) struct Ear {
    pub(super) peer: Peer<RoleClient>,
    pub(super) ears: Arc<Ears>,
    pub(super) eras: Arc<Eras>,
    /// The server's address.
    pub(super) server: String,
}

impl Ear {
    /// Listens until the server says that it tells no changes, or nobody wants to know any more.
    pub(super) async fn listen(self) {
        let mut pause = PAUSE_MIN;
        loop {
            match self.hear().await {
                Heard::Nothing => {
                    self.ears.closed();
                    self.eras.learn_mute(&self.server);
                    return;
                }
                Heard::Something => pause = PAUSE_MIN,
                Heard::Failed => {
                    self.ears.closed();
                    pause = pause.saturating_mul(2).min(PAUSE_MAX);
                }
            }
            tokio::time::sleep(spread(pause, &self.server)).await;
        }
    }

    /// One stream, to its end.
    async fn hear(&self) -> Heard {
        let filter = SubscriptionFilter::builder().tools_list_changed().build();
        let mut stream = match self.peer.listen(filter).await {
            Ok(stream) => stream,
            Err(error) => {
                tracing::debug!(fault = word(&error), "a server could not be listened to");
                return if has_none(&error) { Heard::Nothing } else { Heard::Failed };
            }
        };
        if stream.acknowledged().tools_list_changed != Some(true) {
            return Heard::Nothing;
        }
        self.ears.opened();
        loop {
            match stream.next().await {
                Ok(Some(ServerNotification::ToolListChangedNotification(_))) => self.ears.told(),
                Ok(Some(_)) => {}
                Ok(None) => return Heard::Something,
                Err(error) => {
                    tracing::debug!(fault = word(&error), "a stream of announcements broke");
                    return Heard::Failed;
                }
            }
        }
    }
}

enum Heard {
    /// The server tells no changes.
    Nothing,
    /// It does, and the stream ended.
    Something,
    /// This time it did not work.
    Failed,
}

/// What kind of fault it is; in the library's words it would quote the server.
const fn word(error: &ServiceError) -> &'static str {
    match error {
        ServiceError::McpError(_) => "the server answered with an error",
        ServiceError::TransportClosed => "the connection ended",
        ServiceError::TransportSend(_) => "the request could not be sent",
        ServiceError::Timeout { .. } => "no answer in time",
        _ => "no answer that can be read",
    }
}

fn has_none(error: &ServiceError) -> bool {
    match error {
        ServiceError::McpError(error) => error.code == ErrorCode::METHOD_NOT_FOUND,
        ServiceError::UnexpectedResponse => true,
        _ => false,
    }
}

/// A pause made longer by up to a quarter: those who lost it together do not come back
/// together.
fn spread(pause: Duration, server: &str) -> Duration {
    // Keyed anew each time, so this is a number that nobody knows before.
    let share = RandomState::new().hash_one(server) % 256;
    pause + pause / 4 * u32::try_from(share).unwrap_or(0) / 256
}
