//! Which era of the protocol each server speaks, and whether it tells changes of its tools: found once, then remembered
//! by address. What a server says of itself may change, so everything here is a first guess that a failed handshake
//! corrects.

use std::time::Duration;

use dashmap::DashMap;
use tokio::time::Instant;

/// Remembered servers; beyond that all are forgotten, which costs one question per server.
const SERVERS_MAX: usize = 10_000;
/// After so long a server is asked again for what it did not know.
const ASK_AGAIN: Duration = Duration::from_hours(1);

/// What is remembered of all servers.
#[derive(Default)]
pub(super) struct Eras {
    /// Servers that have sessions and no `server/discover`: they are not asked for it again.
    old: DashMap<String, ()>,
    /// Servers that know no `subscriptions/listen`, and since when.
    mute: DashMap<String, Instant>,
}

impl Eras {
    /// Whether the server is taken for one of the older era.
    pub(super) fn is_old(&self, server: &str) -> bool {
        self.old.contains_key(server)
    }

    /// A handshake showed the era; `None`: it failed, so the server is asked anew next time.
    pub(super) fn learn(&self, server: &str, has_sessions: Option<bool>) {
        if has_sessions == Some(true) {
            if self.old.len() >= SERVERS_MAX {
                self.old.clear();
            }
            self.old.insert(server.to_owned(), ());
        } else {
            self.old.remove(server);
        }
    }

    /// Whether the server tells no changes, as far as it is known.
    pub(super) fn is_mute(&self, server: &str) -> bool {
        self.mute.get(server).is_some_and(|since| since.elapsed() < ASK_AGAIN)
    }

    /// The server said that it tells no changes.
    pub(super) fn learn_mute(&self, server: &str) {
        if self.mute.len() >= SERVERS_MAX {
            self.mute.clear();
        }
        self.mute.insert(server.to_owned(), Instant::now());
    }
}
