//! Carries hints by `NOTIFY`. A notification holds a transaction's commit behind one lock of the whole database, so none
//! is made where runs are committed: one connection of its own says what was told since, at most once in a while; another
//! one listens. Neither takes a connection from anything else.
//!
//! A payload has always the same size: the node, a counter, and the kinds of hints as two digits.

use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use sqlx::{ConnectOptions, Executor};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::run::ids::NodeId;
use crate::store::StoreError;
use crate::store::wake::{HintSet, Hints};

/// The channel. Notifications stay inside one database.
const CHANNEL: &str = "countersign";
/// Least time between two notifications: what is told meanwhile becomes one.
const PAUSE: Duration = Duration::from_millis(15);
/// How long the database may take for anything here.
const PATIENCE: Duration = Duration::from_secs(5);
/// A listener that heard nothing for so long asks whether the connection is alive.
const SILENCE: Duration = Duration::from_secs(5);
/// How long the last hints may take when the node stops.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Pauses between two tries to connect: doubled from the least to the most.
const RETRY_LEAST: Duration = Duration::from_millis(100);
const RETRY_MOST: Duration = Duration::from_secs(10);

/// Says and listens until the token is cancelled.
pub(super) async fn carry(options: &PgConnectOptions, hints: &Hints, node: NodeId, stop: CancellationToken) {
    // Losing a hint in a crash of the database loses nothing: waiting for the disk would be for nothing.
    let options = options.clone().options([("synchronous_commit", "off")]);
    let speaker = Speaker { options: options.clone().application_name("countersign-notify"), hints, node };
    let listener = Listener { options: options.application_name("countersign-listen"), hints, node };
    futures::future::join(speaker.speak(stop.clone()), listener.listen(stop)).await;
}

struct Speaker<'a> {
    options: PgConnectOptions,
    hints: &'a Hints,
    node: NodeId,
}

impl Speaker<'_> {
    async fn speak(&self, stop: CancellationToken) {
        let mut trouble = Trouble::new(self.node, "other nodes are not told of what is stored here");
        let mut counter = 0;
        while !stop.is_cancelled() {
            let fault = match self.speak_until_lost(&mut counter, &mut trouble, &stop).await {
                Ok(()) => return,
                Err(fault) => fault,
            };
            let wait = trouble.of(&fault);
            tokio::select! {
                () = stop.cancelled() => {}
                () = sleep(wait) => {}
            }
        }
    }

    /// Ends well only when the node stops, after its last hints.
    async fn speak_until_lost(
        &self,
        counter: &mut u64,
        trouble: &mut Trouble,
        stop: &CancellationToken,
    ) -> Result<(), StoreError> {
        let mut connection = within(PATIENCE, self.options.connect()).await?;
        loop {
            let (set, limit) = tokio::select! {
                biased;
                () = stop.cancelled() => match self.hints.take() {
                    Some(set) => (set, LAST_WORDS),
                    None => return Ok(()),
                },
                set = self.hints.to_pass_on() => (set, PATIENCE),
            };
            *counter = counter.wrapping_add(1);
            let payload = payload(self.node, *counter, set);
            let said = sqlx::query("SELECT pg_notify($1, $2)").bind(CHANNEL).bind(payload).execute(&mut connection);
            if let Err(fault) = within(limit, said).await {
                self.hints.put_back(set);
                return Err(fault);
            }
            trouble.is_over();
            tokio::select! {
                () = stop.cancelled() => {}
                () = sleep(PAUSE) => {}
            }
        }
    }
}

struct Listener<'a> {
    options: PgConnectOptions,
    hints: &'a Hints,
    node: NodeId,
}

impl Listener<'_> {
    async fn listen(&self, stop: CancellationToken) {
        let mut trouble = Trouble::new(self.node, "other nodes are not heard; this one looks by itself");
        loop {
            let fault = tokio::select! {
                () = stop.cancelled() => return,
                fault = self.listen_until_lost(&mut trouble) => fault,
            };
            let wait = trouble.of(&fault);
            tokio::select! {
                () = stop.cancelled() => return,
                () = sleep(wait) => {}
            }
        }
    }

    async fn listen_until_lost(&self, trouble: &mut Trouble) -> StoreError {
        let mut listener = match self.connect().await {
            Ok(listener) => listener,
            Err(fault) => return fault,
        };
        trouble.is_over();
        // First listening, then looking at everything: what was said in between is not missed.
        self.hints.hear(HintSet::ALL);
        loop {
            match timeout(SILENCE, listener.try_recv()).await {
                Ok(Ok(Some(said))) => self.hear(said.payload()),
                Ok(Ok(None)) => {
                    return StoreError::Unavailable(sqlx::Error::Io(std::io::ErrorKind::ConnectionReset.into()));
                }
                Ok(Err(fault)) => return fault.into(),
                Err(_silence) => {
                    if let Err(fault) = within(PATIENCE, listener.execute("SELECT 1")).await {
                        return fault;
                    }
                }
            }
        }
    }

    async fn connect(&self) -> Result<PgListener, StoreError> {
        // The library's listener lives in a pool; this one has a single connection and is nobody else's.
        let pool = PgPoolOptions::new()
            .max_connections(1)
            .acquire_timeout(PATIENCE)
            .idle_timeout(None)
            .max_lifetime(None)
            .connect_lazy_with(self.options.clone());
        let mut listener = PgListener::connect_with(&pool).await?;
        listener.eager_reconnect(false);
        within(PATIENCE, listener.listen(CHANNEL)).await?;
        Ok(listener)
    }

    fn hear(&self, payload: &str) {
        match heard(payload) {
            Some((node, _)) if node == self.node.0.hyphenated().to_string() => {}
            Some((_, set)) => self.hints.hear(set),
            None => self.hints.hear(HintSet::ALL),
        }
    }
}

fn payload(node: NodeId, counter: u64, set: HintSet) -> String {
    format!("{}:{counter:016x}:{:02x}", node.0.hyphenated(), set.digits())
}

/// Who said it, and what. `None`: not written by any version so far.
fn heard(payload: &str) -> Option<(&str, HintSet)> {
    let (node, rest) = payload.split_once(':')?;
    let (_counter, digits) = rest.split_once(':')?;
    Some((node, HintSet::from_digits(digits)))
}

async fn within<T>(limit: Duration, work: impl Future<Output = Result<T, sqlx::Error>>) -> Result<T, StoreError> {
    match timeout(limit, work).await {
        Ok(done) => Ok(done?),
        Err(_elapsed) => Err(StoreError::Unavailable(sqlx::Error::Io(std::io::ErrorKind::TimedOut.into()))),
    }
}

/// Says once that something is wrong, and how long to wait before it is tried again.
struct Trouble {
    node: NodeId,
    means: &'static str,
    tries: u32,
}

impl Trouble {
    const fn new(node: NodeId, means: &'static str) -> Self {
        Self { node, means, tries: 0 }
    }

    fn of(&mut self, fault: &StoreError) -> Duration {
        if self.tries == 0 {
            tracing::warn!(%fault, "{}", self.means);
        } else {
            tracing::debug!(%fault, "{}", self.means);
        }
        let wait = RETRY_LEAST.saturating_mul(2_u32.saturating_pow(self.tries)).min(RETRY_MOST);
        self.tries = self.tries.saturating_add(1);
        // Spread by the node's identity, which is random: nodes that lost the database together come back one by one.
        wait.mul_f64(0.5 + f64::from(self.node.0.as_bytes()[0]) / 255.0)
    }

    fn is_over(&mut self) {
        if self.tries > 0 {
            tracing::info!("no longer: {}", self.means);
        }
        self.tries = 0;
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn a_payload_reads_back_and_has_always_the_same_size() {
        let node = NodeId(Uuid::from_u128(7));
        for (counter, digits) in [(0, "01"), (u64::MAX, "1f"), (300, "06")] {
            let set = HintSet::from_digits(digits);
            let payload = payload(node, counter, set);
            assert_eq!(payload.len(), 56);
            assert_eq!(heard(&payload), Some((node.0.hyphenated().to_string().as_str(), set)));
        }
        assert_eq!(heard("hello"), None);
    }

    #[test]
    fn tries_come_slower_and_slower_and_each_node_has_its_own_pace() {
        let fault = StoreError::Misconfigured(String::new());
        let waits = |node: u128| {
            let mut trouble = Trouble::new(NodeId(Uuid::from_u128(node)), "");
            (0..12).map(|_| trouble.of(&fault)).collect::<Vec<_>>()
        };
        let (first, last) = (waits(0), waits(u128::MAX));
        assert_eq!((first[0], first[1], first[11]), (RETRY_LEAST / 2, RETRY_LEAST, RETRY_MOST / 2));
        assert!(first.is_sorted() && last[11] == RETRY_MOST.mul_f64(1.5));
    }
}
