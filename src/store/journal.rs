//! Group commit: one writer task drains whatever commits wait, of all runs of this node, and stores them in one
//! transaction; then it tells the hub; then it answers. A lone commit waits for nobody.
//!
//! The order is the promise: kept, told, answered. A commit that was handed over is stored even when its sender has
//! gone. Knows the store and the hub, nothing of what a commit means.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::hub::Hub;
use super::{Claim, ExecutorStore, OwnedCommit, StoreError};
use crate::bulk::aside;
use crate::failpoint;
use crate::run::commit::Commit;

/// Most rows of one batch; a single commit may have more.
const BATCH_ROWS: usize = 400;
/// Most bytes of one batch; a single commit may have more.
const BATCH_BYTES: usize = 1 << 20;
/// Commits that may wait before senders do.
const QUEUE: usize = 1024;

/// Why a commit was not acknowledged.
#[derive(Clone, Debug, thiserror::Error)]
pub enum JournalError {
    /// Somebody else owns the run, or its revision is another: nothing was written.
    #[error("the lease of the run is lost")]
    LeaseLost,
    /// The database did not answer. The commit may be stored or not: load the run again before going on with it.
    #[error("the commit is not acknowledged")]
    Unavailable(#[source] Arc<StoreError>),
    /// These very rows can not be stored; the same commit will fail again. Nothing was written.
    #[error("the commit is refused")]
    Rejected(#[source] Arc<StoreError>),
    /// The journal has ended: nothing was written.
    #[error("the journal is closed")]
    Closed,
}

impl From<StoreError> for JournalError {
    fn from(fault: StoreError) -> Self {
        match fault {
            StoreError::Rejected(_) => Self::Rejected(Arc::new(fault)),
            StoreError::Unavailable(_)
            | StoreError::Corrupt { .. }
            | StoreError::Newer { .. }
            | StoreError::Misconfigured(_) => Self::Unavailable(Arc::new(fault)),
        }
    }
}

struct Waiting {
    commit: OwnedCommit,
    answer: oneshot::Sender<Result<(), JournalError>>,
}

/// The senders' half; cheap to clone.
#[derive(Clone, Debug)]
pub struct Journal {
    queue: mpsc::Sender<Waiting>,
}

/// The writer's half: `run` it once, on a task of its own.
pub struct JournalWriter {
    store: Arc<dyn ExecutorStore>,
    hub: Arc<Hub>,
    queue: mpsc::Receiver<Waiting>,
    /// Taken from the queue, not yet in a batch.
    waiting: VecDeque<Waiting>,
}

impl Journal {
    /// A journal in front of a store. Nothing is stored until the writer runs.
    pub fn new(store: Arc<dyn ExecutorStore>, hub: Arc<Hub>) -> (Self, JournalWriter) {
        let (sender, receiver) = mpsc::channel(QUEUE);
        (Self { queue: sender }, JournalWriter { store, hub, queue: receiver, waiting: VecDeque::new() })
    }

    /// Stores a commit of an owned run. `Ok` means durable, and told to the readers of this node.
    ///
    /// # Errors
    /// See [`JournalError`]. Dropping the future after it waited once does not take the commit back.
    pub async fn commit(&self, claim: &Claim, commit: &Commit) -> Result<(), JournalError> {
        self.commit_large(claim, 0, commit).await
    }

    /// The same of a commit that has at least so many bytes.
    ///
    /// # Errors
    /// The same.
    pub async fn commit_large(&self, claim: &Claim, bytes: usize, commit: &Commit) -> Result<(), JournalError> {
        let commit = aside(bytes, || OwnedCommit::encode(claim, commit))?;
        let (answer, answered) = oneshot::channel();
        if self.queue.send(Waiting { commit, answer }).await.is_err() {
            return Err(JournalError::Closed);
        }
        // The writer answers everything that it took; it can only vanish whole.
        answered.await.unwrap_or(Err(JournalError::Closed))
    }
}

impl Journal {
    /// How many commits are queued behind the batch that is under way: what a load gauge shows.
    pub fn waiting(&self) -> usize {
        self.queue.max_capacity() - self.queue.capacity()
    }
}

impl JournalWriter {
    /// Writes until `cancel`, then takes no more, stores what waits, and ends. Ends too when all senders are gone.
    pub async fn run(mut self, cancel: CancellationToken) {
        loop {
            if self.waiting.is_empty() {
                let first = tokio::select! {
                    biased;
                    () = cancel.cancelled(), if !self.queue.is_closed() => {
                        self.queue.close();
                        continue;
                    }
                    first = self.queue.recv() => first,
                };
                let Some(first) = first else { return };
                self.waiting.push_back(first);
            }
            let batch = self.batch();
            self.store(batch).await;
        }
    }

    /// Whatever waits, in order, up to the caps. A run stands in it once: its second commit builds on the first.
    fn batch(&mut self) -> Vec<Waiting> {
        while self.waiting.len() < BATCH_ROWS {
            let Ok(next) = self.queue.try_recv() else { break };
            self.waiting.push_back(next);
        }
        let (mut batch, mut runs, mut left) = (Vec::new(), HashSet::new(), VecDeque::new());
        let (mut rows, mut bytes) = (0, 0);
        for waiting in self.waiting.drain(..) {
            let more = (rows + waiting.commit.rows.rows(), bytes + waiting.commit.rows.bytes());
            let fits = batch.is_empty() || (left.is_empty() && more.0 <= BATCH_ROWS && more.1 <= BATCH_BYTES);
            if fits && runs.insert(waiting.commit.uid) {
                (rows, bytes) = more;
                batch.push(waiting);
            } else {
                left.push_back(waiting);
            }
        }
        self.waiting = left;
        batch
    }

    async fn store(&self, batch: Vec<Waiting>) {
        let (commits, answers): (Vec<_>, Vec<_>) = batch.into_iter().map(|one| (one.commit, one.answer)).unzip();
        failpoint::pass("journal.commit.before");
        let stored = self.store.commit_apply(&commits).await;
        failpoint::pass("journal.commit.after");
        match stored {
            Ok(applied) => {
                for ((commit, answer), applied) in commits.iter().zip(answers).zip(applied) {
                    self.finish(commit, answer, Ok(applied));
                }
            }
            // One bad item spoils the transaction of all: find it. After `Unavailable` a second try could meet its own
            // first one and call that a lost lease.
            Err(StoreError::Rejected(_)) if commits.len() > 1 => {
                for (commit, answer) in commits.iter().zip(answers) {
                    let applied = self.store.commit_apply(std::slice::from_ref(commit)).await;
                    let applied = applied.map(|took| took.first().copied().unwrap_or(false));
                    self.finish(commit, answer, applied.map_err(JournalError::from));
                }
            }
            Err(fault) => {
                let fault = JournalError::from(fault);
                for (commit, answer) in commits.iter().zip(answers) {
                    self.finish(commit, answer, Err(fault.clone()));
                }
            }
        }
    }

    fn finish(
        &self,
        commit: &OwnedCommit,
        answer: oneshot::Sender<Result<(), JournalError>>,
        applied: Result<bool, JournalError>,
    ) {
        let result = match applied {
            Ok(true) => {
                self.hub.publish_stored(&commit.tenant, commit.uid, &commit.rows.events);
                Ok(())
            }
            Ok(false) => Err(JournalError::LeaseLost),
            Err(fault) => Err(fault),
        };
        failpoint::pass("journal.answer.before");
        // Whoever no longer waits learns it from the store.
        drop(answer.send(result));
    }
}
