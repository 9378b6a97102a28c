//! Deletes a run whole: everything that was kept of it, its receipts too. Who did it stays in the audit.

use serde_json::json;

use super::{Asker, CommandError, Commands};
use crate::run::ids::RunId;
use crate::run::refusal::Refusal;
use crate::store::retention::Deletion;

impl Commands {
    /// Deletes a run that has ended and of which no call waits for a person.
    ///
    /// # Errors
    /// `NotFound`, `Store`, `Refused` with `RunNotEnded` or `CallsUndecided`; nothing is deleted then.
    pub async fn delete(&self, asker: &Asker, id: &RunId) -> Result<(), CommandError> {
        let view = self.view(asker, id).await?;
        let detail = json!({ "status": view.head.status.code(), "finished_at": view.head.finished_at });
        let audit = self.audit_row(asker, "run.delete", id.to_string(), id, detail);
        match self.store.run_delete(&asker.tenant, view.uid, &audit).await? {
            Deletion::Deleted => Ok(()),
            Deletion::Missing => Err(CommandError::NotFound),
            Deletion::Active => Err(Refusal::RunNotEnded.into()),
            Deletion::Undecided => Err(Refusal::CallsUndecided.into()),
        }
    }
}
