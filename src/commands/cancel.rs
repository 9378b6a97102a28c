//! Cancels a run: at once when nobody drives it, else by a wish that its owner reads.

use super::resume::DECIDE_TRIES;
use super::{Asker, CommandError, Commands};
use crate::failpoint;
use crate::run::apply;
use crate::run::fact::Fact;
use crate::run::ids::RunId;
use crate::run::refusal::Refusal;
use crate::run::status::Status;
use crate::store::Loaded;

impl Commands {
    /// Cancels a run. Cancelling a run that has ended changes nothing.
    ///
    /// # Errors
    /// `NotFound`, `Store`, `Contended`.
    pub async fn cancel(&self, asker: &Asker, id: &RunId) -> Result<(), CommandError> {
        for _ in 0..DECIDE_TRIES {
            let view = self.view(asker, id).await?;
            if view.head.status.is_terminal() {
                return Ok(());
            }
            let uid = view.uid;
            // Workers that have calls of it hear of the wish; a node then waits for them.
            if view.owned || view.head.status == Status::Running {
                failpoint::pass("cancel.wish.before");
                let left = self.store.cancel_request(&asker.tenant, uid, &asker.actor).await?;
                failpoint::pass("cancel.wish.after");
                if left {
                    self.executor.cancel(uid);
                    self.executor.wake();
                    return Ok(());
                }
                if view.owned {
                    continue;
                }
            }
            if self.apply_left(asker, &view).await? {
                continue;
            }
            let Loaded { mut envelope, fence, .. } = self.load(asker, uid).await?;
            let commit = match apply(&mut envelope, Fact::Cancelled, self.clock.now()) {
                // It ended between the two looks.
                Err(Refusal::RunTerminal) => return Ok(()),
                decided => decided?,
            };
            if self.decide(asker, uid, fence, &commit, &[]).await? {
                return Ok(());
            }
        }
        Err(CommandError::Contended)
    }
}
