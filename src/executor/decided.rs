//! What people decided about a run while it is driven: read with its wishes, applied as facts.

use super::drive::Drive;
use super::stopped::Stopped;
use crate::run::fact::Fact;
use crate::run::refusal::Refusal;

impl Drive<'_> {
    /// What people decided while other calls of the turn were out.
    pub(super) async fn heed_decisions(&mut self) -> Result<(), Stopped> {
        let decisions = std::mem::take(&mut *self.signals.decisions.lock());
        for (since, decided) in decisions {
            // Read twice, it may come after the attempt that it allowed was lost again: that is another question.
            if !self.envelope.is_unknown_since(decided.key, since) {
                continue;
            }
            match self.decide(Fact::Reconciled(Box::new(decided))).await {
                // It was applied before: a decision comes again until its call is not undecided any more.
                Err(Stopped::Refused(Refusal::NotReconcilable | Refusal::RunTerminal)) => {}
                applied => applied?,
            }
        }
        self.heed_answers().await
    }
}
