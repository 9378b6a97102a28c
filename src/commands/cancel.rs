//! Cancels a run: at once when nobody drives it, else by a wish that its owner reads.

use super::resume::DECIDE_TRIES;
use super::{Asker, CommandError, Commands, tell};
use crate::run::apply;
use crate::run::fact::Fact;
use crate::run::ids::RunId;
use crate::store::Loaded;

impl Commands {
    /// Cancels a run. Cancelling a run that has ended changes nothing.
    ///
    /// # Errors
    /// `NotFound`, `Store`, `Contended`.
    pub async fn cancel(&self, asker: &Asker, id: &RunId) -> Result<(), CommandError> {
        for _ in 0..DECIDE_TRIES {
            let Loaded { mut envelope, fence, owned, .. } = self.load(asker, id).await?;
            if envelope.head.status.is_terminal() {
                return Ok(());
            }
            let uid = envelope.uid;
            if owned {
                if self.store.cancel_request(&asker.tenant, uid, &asker.actor).await? {
                    self.executor.attend(&asker.tenant, uid);
                    return Ok(());
                }
                continue;
            }
            let commit = apply(&mut envelope, Fact::Cancelled, self.clock.now())?;
            if self.store.run_decide(&asker.tenant, uid, fence, &commit).await? {
                tell(&self.hub, &asker.tenant, uid, &commit);
                return Ok(());
            }
        }
        Err(CommandError::Contended)
    }
}
