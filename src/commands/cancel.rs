//! Cancels a run: at once when nobody drives it, else by a wish that its owner reads.
//!
//! Work that a server goes on with is cancelled there: by the owner, who waits a moment for its end; for a run that nobody
//! owns, by this node, once, when the cancellation is stored. The audit keeps that it was.

use std::sync::Arc;

use futures::future::join_all;
use serde_json::json;

use super::resume::DECIDE_TRIES;
use super::{Asker, CommandError, Commands};
use crate::failpoint;
use crate::run::apply;
use crate::run::binding::Binding;
use crate::run::call::{Call, Stage};
use crate::run::envelope::Envelope;
use crate::run::fact::Fact;
use crate::run::ids::RunId;
use crate::run::outcome::Cause;
use crate::run::refusal::Refusal;
use crate::secrets::RunSecrets;
use crate::store::{AuditRow, Claim, Loaded};

/// Calls whose servers may still work on them, and what it takes to tell them that they need not.
struct Abandoned {
    reader: Claim,
    calls: Vec<Call>,
    binding: Binding,
    secrets: RunSecrets,
}

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
            failpoint::pass("cancel.wish.before");
            let left = self.store.cancel_request(&asker.tenant, uid, &asker.actor).await?;
            failpoint::pass("cancel.wish.after");
            if left {
                self.executor.cancel(uid);
                self.executor.wake();
                return Ok(());
            }
            if view.owned || self.apply_left(asker, &view).await? {
                continue;
            }
            let Loaded { mut envelope, fence, .. } = self.load(asker, uid).await?;
            let reader = Claim { tenant: asker.tenant.clone(), uid, fence };
            let abandoned = self.abandoned(reader, &envelope).await?;
            let audit = self.audit_of_tasks(asker, id, &abandoned.calls);
            let commit = match apply(&mut envelope, Fact::Cancelled, self.clock.now()) {
                // It ended between the two looks.
                Err(Refusal::RunTerminal) => return Ok(()),
                decided => decided?,
            };
            if self.decide(asker, uid, fence, &commit, &audit).await? {
                self.abandon(abandoned);
                return Ok(());
            }
        }
        Err(CommandError::Contended)
    }

    /// What servers go on with. The run's own secrets are read while they are there: they go with the run's end.
    async fn abandoned(&self, reader: Claim, envelope: &Envelope) -> Result<Abandoned, CommandError> {
        let calls: Vec<Call> = envelope.calls.iter().filter(|call| may_go_on(call)).cloned().collect();
        let secrets = if calls.is_empty() {
            RunSecrets::new()
        } else {
            self.dispatch.secrets(&reader.tenant, reader.uid).await?
        };
        Ok(Abandoned { reader, calls, binding: envelope.binding.clone(), secrets })
    }

    fn audit_of_tasks(&self, asker: &Asker, run: &RunId, calls: &[Call]) -> Vec<AuditRow> {
        let row = |call: &Call| {
            let subject = format!("{run}/{}/{}", call.key.turn, call.call_id);
            let task = call.task.as_ref().map(|task| task.id.as_str());
            self.audit_row(asker, "task.cancel", subject, run, json!({ "task": task }))
        };
        calls.iter().map(row).collect()
    }

    /// Beside the answer: a server that is slow to hear must not keep the caller, and the run has ended either way.
    fn abandon(&self, abandoned: Abandoned) {
        if abandoned.calls.is_empty() {
            return;
        }
        let dispatch = Arc::clone(&self.dispatch);
        self.tasks.spawn(async move {
            let Abandoned { reader, calls, binding, secrets } = abandoned;
            let telling = calls.iter().map(|call| dispatch.abandon_task(&reader, &binding, call, &secrets));
            join_all(telling).await;
            dispatch.release(&reader).await;
        });
    }
}

/// Whether the call's server named work that it may still do. Where the run stopped waiting for it, it was told so then.
fn may_go_on(call: &Call) -> bool {
    let is_open = match &call.stage {
        Stage::Executing { .. } => true,
        Stage::Indeterminate { cause, .. } => matches!(cause, Cause::Crash | Cause::LostResponse),
        Stage::Rejected { .. }
        | Stage::Proposed
        | Stage::Pending
        | Stage::Waiting { .. }
        | Stage::Completed { .. }
        | Stage::Failed { .. } => false,
    };
    is_open && call.task.is_some()
}
