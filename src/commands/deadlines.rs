//! Deadlines of approvals: whoever is up when one is over, or the first that comes up after it, applies what its rule says.

use std::time::Duration;

use serde_json::json;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::{Asker, CommandError, Commands};
use crate::run::apply;
use crate::run::approval::{Approval, TIMEOUT_ACTOR};
use crate::run::fact::{Fact, LeftVote};
use crate::run::ids::{Actor, RunUid};
use crate::run::refusal::Refusal;
use crate::run::status::Status;
use crate::store::{DueApproval, KeptApproval, Loaded};

/// How often deadlines are looked for: one statement, whatever the number of approvals.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Approvals that are read at once.
const BATCH: u32 = 50;

impl Commands {
    /// Applies deadlines until the token is cancelled.
    pub async fn keep_deadlines(&self, stop: CancellationToken) {
        let mut looks = interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = looks.tick() => {}
            }
            if let Err(fault) = self.approvals_expire().await {
                tracing::warn!(%fault, "deadlines of approvals are looked for again");
            }
        }
    }

    /// Applies every deadline that is over. One that cannot be applied holds up no other.
    ///
    /// # Errors
    /// `Store`, when they cannot be listed.
    pub async fn approvals_expire(&self) -> Result<(), CommandError> {
        let mut after = None;
        loop {
            let due = self.store.approval_due_list(after, BATCH).await?;
            for DueApproval { tenant, id, .. } in &due {
                let Some(actor) = Actor::parse(TIMEOUT_ACTOR) else { return Ok(()) };
                let system = Asker { tenant: tenant.clone(), actor, scopes: Vec::new() };
                match self.approval(&system, *id).await {
                    Ok(KeptApproval { uid, approval, is_due: true }) => {
                        if let Err(fault) = self.expire(&system, uid, &approval).await {
                            tracing::warn!(approval = %id, %fault, "a deadline could not be applied yet");
                        }
                    }
                    Ok(KeptApproval { is_due: false, .. }) => {}
                    Err(fault) => tracing::warn!(approval = %id, %fault, "an approval could not be read"),
                }
            }
            match due.last() {
                Some(last) if due.len() >= usize::try_from(BATCH).unwrap_or(usize::MAX) => {
                    after = Some((last.expires_at, last.id));
                }
                _ => return Ok(()),
            }
        }
    }

    /// Applies the deadline of one approval, or leaves it with the node that owns the run. Somebody who was faster is fine.
    pub(super) async fn expire(&self, asker: &Asker, uid: RunUid, approval: &Approval) -> Result<(), CommandError> {
        let Some(actor) = Actor::parse(TIMEOUT_ACTOR) else { return Ok(()) };
        let system = Asker { tenant: asker.tenant.clone(), actor, scopes: Vec::new() };
        let detail = json!({ "turn": approval.turn, "call_id": approval.call_id });
        let audit = self.audit_row(&system, "approval.timeout", approval.id.to_string(), &approval.run_id, detail);
        let Loaded { mut envelope, fence, owned, .. } = self.load(&system, uid).await?;
        if owned {
            self.store.vote_leave(&system.tenant, uid, &LeftVote::Expired(approval.id), &audit).await?;
            self.executor.attend(&system.tenant, uid);
            return Ok(());
        }
        let commit = match apply(&mut envelope, Fact::ApprovalExpired { approval: approval.id }, self.clock.now()) {
            Err(Refusal::AlreadyDecided(_) | Refusal::RunTerminal) => return Ok(()),
            expired => expired?,
        };
        let decided = self.decide(&system, uid, fence, &commit, &[audit]).await?;
        if decided && envelope.head.status == Status::Queued {
            self.executor.wake();
        }
        Ok(())
    }
}
