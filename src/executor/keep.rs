//! Stores what a drive decided, through every fault that can be waited out; and what to say instead where the database
//! will never take it.

use tokio::time::sleep;

use super::drive::{COMMIT_WAIT, Drive};
use super::stopped::Stopped;
use crate::run::commit::Commit;
use crate::run::envelope::{Envelope, Leg};
use crate::run::fact::Fact;
use crate::run::fetched::{ClientResults, Fetched, FetchedWhat};
use crate::run::outcome::{Answer, Outcome, ToolError};
use crate::store::StoreError;
use crate::store::journal::JournalError;

/// What is true of a fact and can be stored although the fact itself cannot: what was paid for or has happened must
/// settle, or the next leg would pay for it again. `None`: nothing happened yet that a repeat would repeat.
pub(super) fn smaller(fact: &Fact) -> Option<Fact> {
    match fact {
        Fact::TurnEnded { turn, .. } => Some(Fact::TurnUnstorable { usage: turn.usage }),
        Fact::TurnStreamed { usage, .. } => Some(Fact::TurnUnstorable { usage: *usage }),
        Fact::CatalogReread { .. } => {
            Some(Fact::CatalogNotReread { message: "what it serves cannot be stored".to_owned() })
        }
        Fact::CallEnded { key, outcome: Outcome::Answered(answer) } if *answer != unstorable() => {
            Some(Fact::CallEnded { key: *key, outcome: Outcome::Answered(unstorable()) })
        }
        Fact::CallEnded { key, outcome: Outcome::InputRequired(_) } => {
            Some(Fact::CallEnded { key: *key, outcome: Outcome::Answered(unstorable()) })
        }
        Fact::Fetched(fetched) => match &fetched.what {
            FetchedWhat::Answered { lease, answer } if *answer != unstorable() => {
                let what = FetchedWhat::Answered { lease: lease.clone(), answer: unstorable() };
                Some(Fact::Fetched(Box::new(Fetched { key: fetched.key, what })))
            }
            _ => None,
        },
        Fact::ClientAnswered(given) if given.results.iter().any(|(_, answer)| *answer != unstorable()) => {
            let results = given.results.iter().map(|(key, _)| (*key, unstorable())).collect();
            Some(Fact::ClientAnswered(Box::new(ClientResults { actor: given.actor.clone(), results })))
        }
        _ => None,
    }
}

fn unstorable() -> Answer {
    let message = "The call was executed and answered. Its result cannot be stored and is lost.";
    Answer::Failed { error: ToolError::new("result-unstorable", message), output: None }
}

impl Drive<'_> {
    /// Stores a commit that so many bytes came into. While the database does not answer it is tried again, also past the lease: the fence decides
    /// whether it still counts, and an answer that is dropped here would be a person's to find out. A commit whose
    /// answer was lost is recognised by its revision, which nobody else can have written under this fence.
    pub(super) async fn keep(&mut self, bytes: usize, commit: &Commit) -> Result<(), Stopped> {
        let mut answer_lost = false;
        loop {
            let fault = match self.shared.parts.journal.commit_large(self.claim, bytes, commit).await {
                Ok(()) => return Ok(()),
                Err(JournalError::LeaseLost) if answer_lost => match self.is_stored(commit).await {
                    Ok(true) => return Ok(()),
                    Ok(false) => return Err(Stopped::LeaseLost),
                    Err(fault @ StoreError::Unavailable(_)) => JournalError::from(fault),
                    Err(fault) => return Err(fault.into()),
                },
                Err(JournalError::LeaseLost) => return Err(Stopped::LeaseLost),
                // The same rows will be refused again, or there is nobody left to write them.
                Err(fault @ (JournalError::Rejected(_) | JournalError::Closed)) => return Err(Stopped::NotKept(fault)),
                Err(fault @ JournalError::Unavailable(_)) => fault,
            };
            tracing::warn!(run = %self.claim.uid.0, %fault, "a commit is tried again");
            answer_lost = true;
            self.before_the_next_try().await?;
        }
    }

    async fn is_stored(&mut self, commit: &Commit) -> Result<bool, StoreError> {
        Ok(self.shared.parts.store.run_revision(self.claim).await? == Some(commit.head.revision))
    }

    /// The run as it stood before a commit that was refused, in the same leg and with the same announcement.
    pub(super) async fn look_again(&mut self, refused: &Commit, (leg, announced): (Leg, bool)) -> Result<(), Stopped> {
        let loaded = loop {
            match self.shared.parts.store.run_load(&self.claim.tenant, self.claim.uid).await {
                Ok(loaded) => break loaded.ok_or(Stopped::Gone)?,
                Err(fault @ StoreError::Unavailable(_)) => {
                    tracing::warn!(run = %self.claim.uid.0, %fault, "a run is read again");
                    self.before_the_next_try().await?;
                }
                Err(fault) => return Err(fault.into()),
            }
        };
        if loaded.fence != self.claim.fence || loaded.envelope.head.revision != refused.expected {
            return Err(Stopped::LeaseLost);
        }
        self.envelope = Envelope { leg, announced, turn_told: self.envelope.turn_told, ..loaded.envelope };
        Ok(())
    }

    pub(super) async fn before_the_next_try(&mut self) -> Result<(), Stopped> {
        tokio::select! {
            () = self.signals.lost.cancelled() => Err(Stopped::LeaseLost),
            () = sleep(COMMIT_WAIT) => Ok(()),
        }
    }
}
