//! The production store: a pool for requests, one connection for the journal, one for the beats. Same functions as
//! `sqlite/`. Everything that others may care about leaves a hint once it is stored.

mod admin;
mod administers;
mod agents;
mod approvals;
mod commits;
mod follow;
mod inputs;
mod nodes;
mod reads;
mod registry;
mod retention;
mod runs;
mod schema;
mod sealed;
mod steady;
mod tokens;
mod turn;
mod wake;
mod workers;

use async_trait::async_trait;
use parking_lot::Mutex;
use sqlx::PgPool;
use tokio_util::sync::CancellationToken;

pub(super) use steady::SteadyPostgres;

use super::wake::{Hint, Hints};
use super::{
    Admission, Admitted, AuditRow, Beat, Claim, ExecutorStore, FeedEvent, FollowStore, KeptAnswer, KeptRequest, Loaded,
    OwnedCommit, Page, RunCursor, RunFilter, RunStore, RunView, SealedSecret, StoreError, StoredEvent, Wishes, feed,
};
use crate::run::binding::Binding;
use crate::run::call::Call;
use crate::run::commit::Commit;
use crate::run::ids::{Actor, CallId, Fence, NodeId, RunId, RunUid, TenantId};
use crate::run::message::Message;
use crate::run::time::Timestamp;

/// What the store does, over one set of connections.
struct PostgresStore {
    pool: PgPool,
    /// The journal's own connection, planned for its one big statement.
    writer: PgPool,
    /// The beats' own connection: a node full of requests is still alive.
    beats: PgPool,
    /// The tenant that this node's last claim ended with: among equals the next one's turn it is.
    turn: Mutex<String>,
}

#[async_trait]
impl RunStore for SteadyPostgres {
    async fn run_admit(&self, admission: Admission) -> Result<Admitted, StoreError> {
        let store = self.now();
        let admitted = self.within(&store, runs::run_admit(&store, &admission)).await?;
        if matches!(admitted, Admitted::Created | Admitted::NotTaken) {
            self.hints.tell(Hint::Feed);
            if admitted == Admitted::NotTaken || admission.owner.is_none() {
                self.hints.tell(Hint::Due);
            }
        }
        Ok(admitted)
    }

    async fn kept_fetch(
        &self,
        tenant: &TenantId,
        request: &KeptRequest,
        now: Timestamp,
    ) -> Result<Option<KeptAnswer>, StoreError> {
        let store = self.now();
        self.within(&store, runs::kept_fetch(&store, tenant, request, now)).await
    }

    async fn run_fetch(&self, tenant: &TenantId, id: &RunId) -> Result<Option<RunView>, StoreError> {
        let store = self.now();
        self.within(&store, reads::run_fetch(&store, tenant, id)).await
    }

    async fn run_list(
        &self,
        tenant: &TenantId,
        filter: &RunFilter,
        after: Option<RunCursor>,
        limit: u32,
    ) -> Result<Page<RunView>, StoreError> {
        let store = self.now();
        self.within(&store, reads::run_list(&store, tenant, filter, after, limit)).await
    }

    async fn run_bytes(&self, tenant: &TenantId, uid: RunUid) -> Result<u64, StoreError> {
        let store = self.now();
        self.within(&store, reads::run_bytes(&store, tenant, uid)).await
    }

    async fn run_load(&self, tenant: &TenantId, uid: RunUid) -> Result<Option<Loaded>, StoreError> {
        let store = self.now();
        self.within(&store, runs::run_load(&store, tenant, uid)).await
    }

    async fn run_decide(
        &self,
        tenant: &TenantId,
        uid: RunUid,
        seen: Fence,
        commit: &Commit,
        audit: &[AuditRow],
    ) -> Result<bool, StoreError> {
        let store = self.now();
        // The batch's columns are wide; on the heap they do not swell every future around.
        let deciding = Box::pin(commits::run_decide(&store, tenant, uid, seen, commit, audit));
        let decided = self.within(&store, deciding).await?;
        if decided {
            if commit.offers() {
                self.hints.tell(Hint::Work);
            }
            self.hints.tell(Hint::Due);
            self.hints.tell(Hint::Events);
            self.hints.tell(Hint::Feed);
        }
        Ok(decided)
    }

    async fn cancel_request(&self, tenant: &TenantId, uid: RunUid, actor: &Actor) -> Result<bool, StoreError> {
        let store = self.now();
        let asked = self.within(&store, runs::cancel_request(&store, tenant, uid, actor)).await?;
        if asked {
            // One that nobody owns is due now.
            self.hints.tell(Hint::Due);
            self.hints.tell(Hint::Wish);
        }
        Ok(asked)
    }

    async fn message_list(
        &self,
        tenant: &TenantId,
        uid: RunUid,
        from: u32,
        limit: u32,
    ) -> Result<Page<Message>, StoreError> {
        let store = self.now();
        self.within(&store, reads::message_list(&store, tenant, uid, from, limit)).await
    }

    async fn receipt_list(
        &self,
        tenant: &TenantId,
        uid: RunUid,
        after: Option<(u32, u32)>,
        limit: u32,
    ) -> Result<Page<Call>, StoreError> {
        let store = self.now();
        self.within(&store, reads::receipt_list(&store, tenant, uid, after, limit)).await
    }

    async fn receipt_fetch(
        &self,
        tenant: &TenantId,
        uid: RunUid,
        turn: u32,
        call_id: &CallId,
    ) -> Result<Option<Call>, StoreError> {
        let store = self.now();
        self.within(&store, reads::receipt_fetch(&store, tenant, uid, turn, call_id)).await
    }

    async fn event_list(
        &self,
        tenant: &TenantId,
        uid: RunUid,
        after: i64,
        limit: u32,
    ) -> Result<Page<StoredEvent>, StoreError> {
        let store = self.now();
        self.within(&store, reads::event_list(&store, tenant, uid, after, limit)).await
    }

    async fn binding_list(
        &self,
        tenant: &TenantId,
        uid: RunUid,
        after: u32,
        limit: u32,
    ) -> Result<Page<Binding>, StoreError> {
        let store = self.now();
        self.within(&store, reads::binding_list(&store, tenant, uid, after, limit)).await
    }

    async fn secret_list(&self, tenant: &TenantId, uid: RunUid) -> Result<Vec<SealedSecret>, StoreError> {
        let store = self.now();
        self.within(&store, reads::secret_list(&store, tenant, uid)).await
    }

    async fn secret_samples(&self) -> Result<Vec<(TenantId, RunUid, SealedSecret)>, StoreError> {
        let store = self.now();
        self.within(&store, reads::secret_samples(&store)).await
    }

    async fn ping(&self) -> Result<(), StoreError> {
        let store = self.now();
        self.within(&store, nodes::ping(&store)).await
    }

    async fn close(&self) {
        self.close_pools().await;
    }
}

#[async_trait]
impl ExecutorStore for SteadyPostgres {
    async fn node_register(&self, node: NodeId) -> Result<(), StoreError> {
        let store = self.now();
        self.within(&store, nodes::node_register(&store, node)).await
    }

    async fn node_beat(&self, node: NodeId) -> Result<Beat, StoreError> {
        let store = self.now();
        self.within_beat(&store, nodes::node_beat(&store, node)).await
    }

    async fn wish_list(&self, node: NodeId) -> Result<Vec<Claim>, StoreError> {
        let store = self.now();
        self.within_beat(&store, nodes::wish_list(&store, node)).await
    }

    async fn node_retire(&self, node: NodeId) -> Result<(), StoreError> {
        let store = self.now();
        self.within(&store, nodes::node_retire(&store, node)).await?;
        self.hints.tell(Hint::Due);
        Ok(())
    }

    async fn node_reap(&self, lease_ms: i64) -> Result<u64, StoreError> {
        let store = self.now();
        let freed = self.within(&store, nodes::node_reap(&store, lease_ms)).await?;
        if freed > 0 {
            self.hints.tell(Hint::Due);
        }
        Ok(freed)
    }

    async fn run_claim(&self, node: NodeId, slots: u32, per_tenant: u32) -> Result<Vec<Claim>, StoreError> {
        let store = self.now();
        self.within(&store, nodes::run_claim(&store, node, slots, per_tenant)).await
    }

    async fn run_release(&self, claim: &Claim, crashed: bool) -> Result<bool, StoreError> {
        let store = self.now();
        let released = self.within(&store, nodes::run_release(&store, claim, crashed)).await?;
        if released {
            self.hints.tell(Hint::Due);
        }
        Ok(released)
    }

    async fn run_revision(&self, claim: &Claim) -> Result<Option<i64>, StoreError> {
        let store = self.now();
        self.within(&store, nodes::run_revision(&store, claim)).await
    }

    async fn run_due_in(&self) -> Result<Option<i64>, StoreError> {
        let store = self.now();
        self.within(&store, nodes::run_due_in(&store)).await
    }

    async fn commit_apply(&self, commits: &[OwnedCommit]) -> Result<Vec<bool>, StoreError> {
        let store = self.now();
        let applied = self.within(&store, commits::commit_apply(&store, commits)).await?;
        for (commit, _) in commits.iter().zip(&applied).filter(|(_, applied)| **applied) {
            self.tell_of(commit);
        }
        Ok(applied)
    }

    async fn wishes_take(&self, claim: &Claim) -> Result<Wishes, StoreError> {
        let store = self.now();
        self.within(&store, admin::wishes_take(&store, claim)).await
    }
}

#[async_trait]
impl FollowStore for SteadyPostgres {
    fn hints(&self) -> &Hints {
        &self.hints
    }

    async fn hint_carry(&self, node: NodeId, stop: CancellationToken) {
        Box::pin(wake::carry(self.options(), &self.hints, node, stop)).await;
    }

    async fn seq_list(&self, runs: &[(TenantId, RunUid)]) -> Result<Vec<(RunUid, i64)>, StoreError> {
        let store = self.now();
        self.within(&store, follow::seq_list(&store, runs)).await
    }

    async fn feed_list(
        &self,
        tenants: &[TenantId],
        since: Timestamp,
        limit: u32,
    ) -> Result<Vec<FeedEvent>, StoreError> {
        let store = self.now();
        self.within(&store, follow::feed_list(&store, tenants, since, limit)).await
    }
}

impl SteadyPostgres {
    /// What a commit that is stored may mean to other nodes.
    fn tell_of(&self, commit: &OwnedCommit) {
        let events = &commit.rows.events;
        if !events.is_empty() {
            self.hints.tell(Hint::Events);
        }
        if events.iter().any(|row| feed::is_fed(&row.event.kind)) {
            self.hints.tell(Hint::Feed);
        }
        if commit.rows.offers {
            self.hints.tell(Hint::Work);
        }
        // Also when it rests or has ended: another run of the tenant may take its place.
        if commit.rows.lets_go {
            self.hints.tell(Hint::Due);
        }
    }
}
