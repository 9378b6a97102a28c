//! Lets go of what is old: the rule of what is kept how long, and the task that keeps it. Knows the store's steps, no
//! SQL, and nothing of what runs mean.
//!
//! A finished run is let go of in three steps, each by an age of its own: first its events and messages, all but
//! `result`; then the run, whose receipts stay and say themselves whose they are; then those. A run with a call that
//! waits for a person stays whole, however old it is: somebody has still to look at it.
//!
//! Each step is a short transaction on one run, with a pause behind it, and takes only so many rows; what is left of a
//! run is for the next. A step that is cut off anywhere is done again. Ages are counted by the database clock.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{AuditRow, StoreError, StoredEvent, codec};
use crate::run::event::{Event, EventBody};
use crate::run::ids::{RunId, RunUid, TenantId};
use crate::run::time::Timestamp;

/// Rows of one table that a step takes at most.
pub(super) const STEP_ROWS: i64 = 1_000;
/// Runs that are looked up at once.
const RUNS: u32 = 100;
/// Between two steps, so that whoever has work to do goes first.
const PAUSE: Duration = Duration::from_millis(20);
/// Between two rounds.
const PERIOD: Duration = Duration::from_mins(15);

/// What is let go of, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leftover {
    /// Events (all but `result`) and messages of a finished run.
    Events,
    /// A finished run, less its receipts.
    Run,
    /// The receipts of a run that is gone.
    Receipts,
}

impl Leftover {
    /// As figures name it.
    const fn code(self) -> &'static str {
        match self {
            Self::Events => "events",
            Self::Run => "run",
            Self::Receipts => "receipts",
        }
    }
}

/// A run that has something old. Also the place where a list of them goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OldRun {
    /// Whose run it is.
    pub tenant: TenantId,
    /// Its internal identity.
    pub uid: RunUid,
    /// When it ended, in milliseconds since 1970.
    pub finished_at: i64,
}

/// What one step did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The last of it is gone.
    Done,
    /// There is more of it: do the step again.
    More,
    /// Nothing was touched: it is not old, has not ended, or waits for a person.
    Kept,
    /// Nothing was touched: another node is at it at this moment.
    Busy,
}

/// What became of a wish to delete a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deletion {
    /// It is gone, with everything that was kept of it.
    Deleted,
    /// The tenant has no such run.
    Missing,
    /// It has not ended.
    Active,
    /// A call of it waits for a person.
    Undecided,
}

/// Deletes, by age or by wish.
#[async_trait]
pub trait RetentionStore: Send + Sync {
    /// Deletes one run whole, receipts too, beside its row of the audit, in one transaction. A key that created it stays
    /// until it expires: a request that is sent once more must not do everything again.
    async fn run_delete(&self, tenant: &TenantId, uid: RunUid, audit: &AuditRow) -> Result<Deletion, StoreError>;
    /// Runs that have something older than this, oldest first, strictly after `after`; none that waits for a person.
    async fn old_list(
        &self,
        what: Leftover,
        older_ms: i64,
        after: Option<&OldRun>,
        limit: u32,
    ) -> Result<Vec<OldRun>, StoreError>;
    /// Lets go of a little of it, in one transaction. One node at a time does this.
    async fn old_drop(&self, what: Leftover, run: &OldRun, older_ms: i64) -> Result<Step, StoreError>;
    /// Forgets idempotency keys that expired, at most `STEP_ROWS`. `true`: there may be more.
    async fn keys_drop(&self) -> Result<bool, StoreError>;
}

/// How long things are kept after the end of their run, in milliseconds; each at least as long as the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keep {
    /// Events and messages.
    pub events_ms: i64,
    /// The run.
    pub runs_ms: i64,
    /// Its receipts.
    pub receipts_ms: i64,
}

/// What a round did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Round {
    /// Runs whose events and messages went.
    pub pruned: u64,
    /// Runs that went.
    pub runs: u64,
    /// Runs whose receipts went.
    pub receipts: u64,
}

/// The task.
pub struct Retention {
    store: Arc<dyn RetentionStore>,
    keep: Keep,
}

impl Retention {
    /// Keeps things so long.
    pub fn new(store: Arc<dyn RetentionStore>, keep: Keep) -> Self {
        Self { store, keep }
    }

    /// A round now and then, until `cancel`. Nodes that started together do not go together.
    pub async fn run(self, cancel: CancellationToken) {
        let rounds = async {
            let mut wait = spread(PERIOD / 15);
            loop {
                tokio::time::sleep(wait).await;
                match self.round().await {
                    Ok(Round { pruned: 0, runs: 0, receipts: 0 }) => {}
                    Ok(round) => tracing::info!(?round, "let go of what is old"),
                    Err(fault) => tracing::warn!(%fault, "what is old stays for now"),
                }
                wait = PERIOD / 2 + spread(PERIOD);
            }
        };
        // A step that is dropped half-way is rolled back.
        cancel.run_until_cancelled(rounds).await;
    }

    /// Lets go of everything that is old now, and ends early when another node is at it.
    ///
    /// # Errors
    /// What the store says; the next round goes on where this one stopped.
    pub async fn round(&self) -> Result<Round, StoreError> {
        let Keep { events_ms, runs_ms, receipts_ms } = self.keep;
        let round = Round {
            pruned: self.drop_all(Leftover::Events, events_ms).await?,
            runs: self.drop_all(Leftover::Run, runs_ms).await?,
            receipts: self.drop_all(Leftover::Receipts, receipts_ms).await?,
        };
        self.drop_keys().await?;
        Ok(round)
    }

    async fn drop_all(&self, what: Leftover, older_ms: i64) -> Result<u64, StoreError> {
        let (mut dropped, mut after) = (0, None);
        loop {
            let runs = self.store.old_list(what, older_ms, after.as_ref(), RUNS).await?;
            let Some(last) = runs.last().cloned() else { return Ok(dropped) };
            for run in &runs {
                match self.drop_one(what, run, older_ms).await? {
                    Step::Done => {
                        dropped += 1;
                        metrics::counter!("countersign_retention_dropped_total", "what" => what.code()).increment(1);
                    }
                    Step::Kept | Step::More => {}
                    Step::Busy => return Ok(dropped),
                }
            }
            after = Some(last);
        }
    }

    async fn drop_one(&self, what: Leftover, run: &OldRun, older_ms: i64) -> Result<Step, StoreError> {
        loop {
            let step = self.store.old_drop(what, run, older_ms).await?;
            tokio::time::sleep(PAUSE).await;
            if step != Step::More {
                return Ok(step);
            }
        }
    }

    async fn drop_keys(&self) -> Result<(), StoreError> {
        while self.store.keys_drop().await? {
            tokio::time::sleep(PAUSE).await;
        }
        Ok(())
    }
}

/// A random share of a time.
fn spread(time: Duration) -> Duration {
    let share = u32::from(Uuid::new_v4().as_bytes()[0]);
    time * share / u32::from(u8::MAX)
}

/// What a reader is told first who asks for events that are kept no longer: `gap`, with the number of the first event
/// that there is. Its own number is the one before, so that whoever goes on after it misses nothing and hears no
/// second one.
///
/// # Errors
/// `Rejected` when it does not print.
pub fn gap(run: &RunId, after: i64, events: &[StoredEvent], now: Timestamp) -> Result<Option<StoredEvent>, StoreError> {
    let Some(first_seq) = events.first().map(|event| event.seq).filter(|first| *first > after.saturating_add(1)) else {
        return Ok(None);
    };
    let body = EventBody::Gap { first_seq };
    codec::stored_event(&Event { body, run_id: run.clone(), seq: first_seq - 1, at: now }).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gap_of(after: i64, seqs: &[i64]) -> Option<(i64, String)> {
        let event = |seq: &i64| StoredEvent { seq: *seq, kind: "result".to_owned(), body: String::new() };
        let events: Vec<StoredEvent> = seqs.iter().map(event).collect();
        let run = RunId::parse("r").unwrap();
        gap(&run, after, &events, Timestamp::from_millis(0)).unwrap().map(|event| (event.seq, event.body))
    }

    #[test]
    fn a_gap_is_told_only_where_events_are_missing() {
        assert_eq!(gap_of(0, &[]), None);
        assert_eq!(gap_of(0, &[1, 2]), None);
        assert_eq!(gap_of(8, &[9]), None);
        let (seq, body) = gap_of(3, &[9]).unwrap();
        assert_eq!(seq, 8);
        assert_eq!(body, r#"{"type":"gap","first_seq":9,"run_id":"r","seq":8,"at":"1970-01-01T00:00:00.000Z"}"#);
    }
}
