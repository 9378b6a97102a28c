//! Why a run is let go of before it rests, and whether that counts against it.

use std::time::Duration;

use crate::run::refusal::Refusal;
use crate::store::StoreError;
use crate::store::journal::JournalError;

/// Why a drive stops although its run does not rest.
#[derive(Debug, thiserror::Error)]
pub(super) enum Stopped {
    /// Another owner has it, or will: nothing more may be written or sent.
    #[error("the lease of the run is lost")]
    LeaseLost,
    /// The node drains.
    #[error("the node drains")]
    Draining,
    /// The store did not answer in time.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The core refused a fact: a defect of this driver.
    #[error("the run refused a fact: {0}")]
    Refused(#[from] Refusal),
    /// The commit cannot be stored, now or later.
    #[error("a commit cannot be stored: {0}")]
    NotKept(JournalError),
    /// The claimed run is not there.
    #[error("the run is gone")]
    Gone,
    /// The claimed run waits for a decision, or has ended: it should not have been due.
    #[error("the run was due and has nothing to do")]
    NothingToDo,
}

impl Stopped {
    /// Whether it counts against the run. A database that does not answer is no run's fault, and neither is a node that
    /// is older than the run: runs that meet it often must not be given up for it.
    pub(super) const fn is_the_runs(&self) -> bool {
        !matches!(
            self,
            Self::LeaseLost | Self::Draining | Self::Store(StoreError::Unavailable(_) | StoreError::Newer { .. })
        )
    }
}

impl Stopped {
    /// How long a node keeps a run that it cannot go on with before it gives it back. One that a later version must
    /// drive waits longer: that node must not have to outrun this one.
    pub(super) const fn wait(&self) -> Duration {
        match self {
            Self::Store(StoreError::Newer { .. }) => Duration::from_secs(1),
            Self::Store(_)
            | Self::LeaseLost
            | Self::Draining
            | Self::Refused(_)
            | Self::NotKept(_)
            | Self::Gone
            | Self::NothingToDo => Duration::from_millis(200),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_that_does_not_answer_does_not_count_against_a_run() {
        let unavailable = Stopped::Store(StoreError::Unavailable(std::io::Error::other("no answer").into()));
        let corrupt = Stopped::Store(StoreError::Corrupt { what: "head", detail: String::new() });
        let checks = [
            (unavailable, false),
            (Stopped::Store(StoreError::Newer { what: "head", version: 2 }), false),
            (Stopped::LeaseLost, false),
            (Stopped::Draining, false),
            (corrupt, true),
            (Stopped::NotKept(JournalError::Closed), true),
            (Stopped::NothingToDo, true),
        ];
        for (stopped, counts) in checks {
            assert_eq!(stopped.is_the_runs(), counts, "{stopped}");
        }
    }
}
