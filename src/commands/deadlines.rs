//! Deadlines of approvals: whoever is up when one is over, or the first that comes up after it, applies what its rule says.

use std::collections::HashSet;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use serde_json::json;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{Asker, CommandError, Commands};
use crate::run::apply;
use crate::run::approval::{Approval, TIMEOUT_ACTOR};
use crate::run::fact::{Fact, LeftVote};
use crate::run::ids::{Actor, RunUid, TenantId};
use crate::run::refusal::Refusal;
use crate::run::status::Status;
use crate::store::{DueApproval, KeptApproval, Loaded};

/// How often deadlines are looked for: one statement, whatever the number of approvals.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Approvals that are listed at once.
const BATCH: u32 = 500;

/// Tenants whose deadlines are applied at once.
const TENANTS_AT_ONCE: usize = 16;

impl Commands {
    /// Applies deadlines until the token is cancelled. Those of one tenant go one after the other, and keep no other
    /// tenant's waiting.
    pub async fn keep_deadlines(&self, stop: CancellationToken) {
        let mut looks = interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut busy, mut working) = (HashSet::new(), FuturesUnordered::new());
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                Some(tenant) = working.next(), if !working.is_empty() => {
                    busy.remove(&tenant);
                    continue;
                }
                _ = looks.tick() => {}
            }
            match self.due().await {
                Ok(due) => {
                    for (tenant, approvals) in due {
                        if busy.len() < TENANTS_AT_ONCE && busy.insert(tenant.clone()) {
                            working.push(self.expire_all(tenant, approvals));
                        }
                    }
                }
                Err(fault) => tracing::warn!(%fault, "deadlines of approvals are looked for again"),
            }
        }
    }

    /// The approvals whose deadline is over, of each tenant; the tenant that waits longest comes first.
    async fn due(&self) -> Result<Vec<(TenantId, Vec<Uuid>)>, CommandError> {
        let (mut found, mut after): (Vec<(TenantId, Vec<Uuid>)>, _) = (Vec::new(), None);
        loop {
            let due = self.store.approval_due_list(after, BATCH).await?;
            for DueApproval { tenant, id, .. } in &due {
                match found.iter_mut().find(|(of, _)| of == tenant) {
                    Some((_, approvals)) => approvals.push(*id),
                    None => found.push((tenant.clone(), vec![*id])),
                }
            }
            match due.last() {
                Some(last) if due.len() >= BATCH as usize => after = Some((last.expires_at, last.id)),
                _ => return Ok(found),
            }
        }
    }

    /// One that cannot be applied holds up no other.
    async fn expire_all(&self, tenant: TenantId, approvals: Vec<Uuid>) -> TenantId {
        let Some(actor) = Actor::parse(TIMEOUT_ACTOR) else { return tenant };
        let system = Asker { tenant: tenant.clone(), actor, scopes: Vec::new() };
        for id in approvals {
            match self.approval(&system, id).await {
                Ok(KeptApproval { uid, approval, is_due: true }) => {
                    if let Err(fault) = self.expire(&system, uid, &approval).await {
                        tracing::warn!(approval = %id, %fault, "a deadline could not be applied yet");
                    }
                }
                Ok(KeptApproval { is_due: false, .. }) => {}
                Err(fault) => tracing::warn!(approval = %id, %fault, "an approval could not be read"),
            }
        }
        tenant
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
