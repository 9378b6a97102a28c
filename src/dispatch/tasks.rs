//! Work that servers go on with by themselves and nobody waits for any more.

use super::{Dispatch, leads_elsewhere};
use crate::run::binding::Binding;
use crate::run::call::Call;
use crate::secrets::RunSecrets;
use crate::store::Claim;

impl Dispatch {
    /// Tells the server of a call, once, that the work it named is not wanted any more. `false`: it did not say that it
    /// heard so. A connection that is opened for it is this reader's own where it carries the run's secrets.
    pub async fn abandon_task(&self, reader: &Claim, binding: &Binding, call: &Call, secrets: &RunSecrets) -> bool {
        let entry = binding.tool(&call.tool).and_then(|tool| binding.entries.get(tool.entry()?));
        let (Some(task), Some(entry)) = (&call.task, entry) else { return false };
        let told = match self.target(&reader.tenant, entry, (reader.uid, reader.fence), secrets).await {
            // The place that the entry leads to now knows nothing of it.
            Ok(target) if leads_elsewhere(call, &target.place) => false,
            Ok(target) => self.pool.abandon(&reader.tenant, &target, &task.id).await,
            Err(fault) => {
                tracing::debug!(run = %reader.uid.0, fault, "a task cannot be cancelled");
                false
            }
        };
        let outcome = if told { "told" } else { "untold" };
        metrics::counter!("countersign_tasks_abandoned_total", "outcome" => outcome).increment(1);
        tracing::info!(run = %reader.uid.0, server = entry.label(), outcome, "a task of a cancelled run is not wanted");
        told
    }
}
