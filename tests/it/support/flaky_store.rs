//! A real store whose n-th write of a kind fails: as if nothing had been written, or as if the answer had been lost.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use countersign::run::agent::AgentName;
use countersign::run::approval::Approval;
use countersign::run::binding::Binding;
use countersign::run::call::Call;
use countersign::run::commit::Commit;
use countersign::run::fact::{InputAnswer, LeftVote, Reconciliation};
use countersign::run::fetched::Fetched;
use countersign::run::ids::{Actor, CallId, CallKey, Fence, NodeId, RunId, RunUid, TenantId};
use countersign::run::message::Message;
use countersign::run::time::Timestamp;
use countersign::store::agents::{Agent, AgentStore, AgentVersion, Deployed, Deployment, Published, Target};
use countersign::store::registry::{
    RegisteredServer, Registration, SealedPlace, SealedRow, SecretDeletion, SecretInfo, ServerPut, StoredSecret,
};
use countersign::store::retention::{Deletion, Leftover, OldRun, Step};
use countersign::store::tokens::{SealedToken, TokenKey, TokenStore, TokenTurn};
use countersign::store::wake::Hints;
use countersign::store::{
    AdminStore, Admission, Admitted, AuditFilter, AuditRow, Beat, Claim, DueApproval, ExecutorStore, FeedEvent,
    FollowStore, FoundCall, KeptAnswer, KeptApproval, KeptRequest, Left, Loaded, OwnedCommit, Page, PlaceInTime,
    ReceiptFilter, ReceiptPlace, RegistryStore, RetentionStore, RunCursor, RunFilter, RunStore, RunView, SealedSecret,
    Store, StoreError, StoredEvent, Wishes,
};
use countersign::store::{Asked, Behind, Extended, LeftFact, Reserved, WorkerStore};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// How a write fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fails {
    /// Nothing is written.
    Before,
    /// It is written, and nobody hears of it.
    After,
    /// Nothing is written, nor by the next few writes of any kind.
    ForAWhile,
}

/// How many writes fail with the one that [`Fails::ForAWhile`].
const A_WHILE: u32 = 6;

/// Which write fails: the kind, its number from 1, and how.
pub(crate) type Fault = (&'static str, u32, Fails);

/// The store.
pub(crate) struct FlakyStore {
    store: Arc<dyn Store>,
    fault: Option<Fault>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    writes: BTreeMap<&'static str, u32>,
    /// Whether the fault came.
    failed: bool,
    /// How many more writes fail.
    away: u32,
}

impl FlakyStore {
    pub(crate) fn new(store: Arc<dyn Store>, fault: Option<Fault>) -> Arc<Self> {
        Arc::new(Self { store, fault, state: Mutex::default() })
    }

    /// How often each kind of write was asked for.
    pub(crate) fn writes(&self) -> BTreeMap<&'static str, u32> {
        self.state.lock().writes.clone()
    }

    /// Whether the write that was to fail came.
    pub(crate) fn has_failed(&self) -> bool {
        self.state.lock().failed
    }

    fn fails(&self, kind: &'static str) -> Option<Fails> {
        let mut state = self.state.lock();
        let count = state.writes.entry(kind).or_default();
        *count += 1;
        let count = *count;
        if state.away > 0 {
            state.away -= 1;
            return Some(Fails::Before);
        }
        let fails = self.fault.filter(|fault| (fault.0, fault.1) == (kind, count)).map(|fault| fault.2)?;
        state.failed = true;
        if fails == Fails::ForAWhile {
            state.away = A_WHILE - 1;
        }
        Some(fails)
    }

    async fn write<T>(
        &self,
        kind: &'static str,
        write: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        let lost = || StoreError::Unavailable(std::io::Error::other("the connection is lost").into());
        match self.fails(kind) {
            None => write.await,
            Some(Fails::Before | Fails::ForAWhile) => Err(lost()),
            Some(Fails::After) => {
                write.await?;
                Err(lost())
            }
        }
    }
}

#[async_trait]
impl RunStore for FlakyStore {
    async fn run_admit(&self, admission: Admission) -> Result<Admitted, StoreError> {
        self.write("run_admit", self.store.run_admit(admission)).await
    }

    async fn run_decide(
        &self,
        tenant: &TenantId,
        uid: RunUid,
        seen: Fence,
        commit: &Commit,
        audit: &[AuditRow],
    ) -> Result<bool, StoreError> {
        self.write("run_decide", self.store.run_decide(tenant, uid, seen, commit, audit)).await
    }

    async fn cancel_request(&self, tenant: &TenantId, uid: RunUid, actor: &Actor) -> Result<bool, StoreError> {
        self.write("cancel_request", self.store.cancel_request(tenant, uid, actor)).await
    }

    async fn kept_fetch(
        &self,
        tenant: &TenantId,
        request: &KeptRequest,
        now: Timestamp,
    ) -> Result<Option<KeptAnswer>, StoreError> {
        self.store.kept_fetch(tenant, request, now).await
    }

    async fn run_fetch(&self, tenant: &TenantId, id: &RunId) -> Result<Option<RunView>, StoreError> {
        self.store.run_fetch(tenant, id).await
    }

    async fn run_list(
        &self,
        tenant: &TenantId,
        filter: &RunFilter,
        after: Option<RunCursor>,
        limit: u32,
    ) -> Result<Page<RunView>, StoreError> {
        self.store.run_list(tenant, filter, after, limit).await
    }

    async fn run_bytes(&self, tenant: &TenantId, uid: RunUid) -> Result<u64, StoreError> {
        self.store.run_bytes(tenant, uid).await
    }

    async fn run_load(&self, tenant: &TenantId, uid: RunUid) -> Result<Option<Loaded>, StoreError> {
        self.store.run_load(tenant, uid).await
    }

    async fn message_list(
        &self,
        tenant: &TenantId,
        uid: RunUid,
        from: u32,
        limit: u32,
    ) -> Result<Page<Message>, StoreError> {
        self.store.message_list(tenant, uid, from, limit).await
    }

    async fn receipt_list(
        &self,
        tenant: &TenantId,
        uid: RunUid,
        after: Option<(u32, u32)>,
        limit: u32,
    ) -> Result<Page<Call>, StoreError> {
        self.store.receipt_list(tenant, uid, after, limit).await
    }

    async fn receipt_fetch(
        &self,
        tenant: &TenantId,
        uid: RunUid,
        turn: u32,
        call_id: &CallId,
    ) -> Result<Option<Call>, StoreError> {
        self.store.receipt_fetch(tenant, uid, turn, call_id).await
    }

    async fn event_list(
        &self,
        tenant: &TenantId,
        uid: RunUid,
        after: i64,
        limit: u32,
    ) -> Result<Page<StoredEvent>, StoreError> {
        self.store.event_list(tenant, uid, after, limit).await
    }

    async fn binding_list(
        &self,
        tenant: &TenantId,
        uid: RunUid,
        after: u32,
        limit: u32,
    ) -> Result<Page<Binding>, StoreError> {
        self.store.binding_list(tenant, uid, after, limit).await
    }

    async fn secret_list(&self, tenant: &TenantId, uid: RunUid) -> Result<Vec<SealedSecret>, StoreError> {
        self.store.secret_list(tenant, uid).await
    }

    async fn secret_samples(&self) -> Result<Vec<(TenantId, RunUid, SealedSecret)>, StoreError> {
        self.store.secret_samples().await
    }

    async fn ping(&self) -> Result<(), StoreError> {
        self.store.ping().await
    }

    async fn close(&self) {
        self.store.close().await;
    }
}

#[async_trait]
impl ExecutorStore for FlakyStore {
    async fn node_register(&self, node: NodeId) -> Result<(), StoreError> {
        self.store.node_register(node).await
    }

    async fn node_beat(&self, node: NodeId) -> Result<Beat, StoreError> {
        self.write("node_beat", self.store.node_beat(node)).await
    }

    async fn node_retire(&self, node: NodeId) -> Result<(), StoreError> {
        self.store.node_retire(node).await
    }

    async fn node_reap(&self, lease_ms: i64) -> Result<u64, StoreError> {
        self.write("node_reap", self.store.node_reap(lease_ms)).await
    }

    async fn run_claim(&self, node: NodeId, slots: u32, per_tenant: u32) -> Result<Vec<Claim>, StoreError> {
        self.write("run_claim", self.store.run_claim(node, slots, per_tenant)).await
    }

    async fn run_release(&self, claim: &Claim, crashed: bool) -> Result<bool, StoreError> {
        self.write("run_release", self.store.run_release(claim, crashed)).await
    }

    async fn run_due_in(&self) -> Result<Option<i64>, StoreError> {
        self.store.run_due_in().await
    }

    async fn commit_apply(&self, commits: &[OwnedCommit]) -> Result<Vec<bool>, StoreError> {
        self.write("commit_apply", self.store.commit_apply(commits)).await
    }

    async fn run_revision(&self, claim: &Claim) -> Result<Option<i64>, StoreError> {
        self.store.run_revision(claim).await
    }

    async fn wish_list(&self, node: NodeId) -> Result<Vec<Claim>, StoreError> {
        self.store.wish_list(node).await
    }

    async fn wishes_take(&self, claim: &Claim) -> Result<Wishes, StoreError> {
        self.write("wishes_take", self.store.wishes_take(claim)).await
    }
}

#[async_trait]
impl AdminStore for FlakyStore {
    async fn decision_leave(
        &self,
        tenant: &TenantId,
        uid: RunUid,
        decided: &Reconciliation,
        since: Timestamp,
        audit: &AuditRow,
    ) -> Result<Left, StoreError> {
        self.write("decision_leave", self.store.decision_leave(tenant, uid, decided, since, audit)).await
    }

    async fn answer_leave(&self, tenant: &TenantId, uid: RunUid, answer: &InputAnswer) -> Result<Left, StoreError> {
        self.write("answer_leave", self.store.answer_leave(tenant, uid, answer)).await
    }

    async fn left_list(&self, tenant: &TenantId, uid: RunUid) -> Result<Vec<(Timestamp, Reconciliation)>, StoreError> {
        self.store.left_list(tenant, uid).await
    }

    async fn undecided_list(
        &self,
        tenant: &TenantId,
        after: Option<ReceiptPlace>,
        limit: u32,
    ) -> Result<Page<FoundCall>, StoreError> {
        self.store.undecided_list(tenant, after, limit).await
    }

    async fn receipt_search(
        &self,
        tenant: &TenantId,
        filter: &ReceiptFilter,
        after: Option<ReceiptPlace>,
        limit: u32,
    ) -> Result<Page<FoundCall>, StoreError> {
        self.store.receipt_search(tenant, filter, after, limit).await
    }

    async fn audit_list(
        &self,
        tenant: &TenantId,
        filter: &AuditFilter,
        after: Option<PlaceInTime>,
        limit: u32,
    ) -> Result<Page<AuditRow>, StoreError> {
        self.store.audit_list(tenant, filter, after, limit).await
    }

    async fn approval_list(
        &self,
        tenant: &TenantId,
        of: (Option<&str>, Option<RunUid>),
        after: Option<PlaceInTime>,
        limit: u32,
    ) -> Result<Page<Approval>, StoreError> {
        self.store.approval_list(tenant, of, after, limit).await
    }

    async fn approval_fetch(&self, tenant: &TenantId, id: Uuid) -> Result<Option<KeptApproval>, StoreError> {
        self.store.approval_fetch(tenant, id).await
    }

    async fn approval_due_list(
        &self,
        after: Option<(Timestamp, Uuid)>,
        limit: u32,
    ) -> Result<Vec<DueApproval>, StoreError> {
        self.store.approval_due_list(after, limit).await
    }

    async fn vote_leave(
        &self,
        tenant: &TenantId,
        uid: RunUid,
        vote: &LeftVote,
        audit: &AuditRow,
    ) -> Result<Left, StoreError> {
        self.store.vote_leave(tenant, uid, vote, audit).await
    }
}

#[async_trait]
impl FollowStore for FlakyStore {
    fn hints(&self) -> &Hints {
        self.store.hints()
    }

    async fn hint_carry(&self, node: NodeId, stop: CancellationToken) {
        self.store.hint_carry(node, stop).await;
    }

    async fn seq_list(&self, runs: &[(TenantId, RunUid)]) -> Result<Vec<(RunUid, i64)>, StoreError> {
        self.store.seq_list(runs).await
    }

    async fn feed_list(
        &self,
        tenants: &[TenantId],
        since: Timestamp,
        limit: u32,
    ) -> Result<Vec<FeedEvent>, StoreError> {
        self.store.feed_list(tenants, since, limit).await
    }
}

#[async_trait]
impl RetentionStore for FlakyStore {
    async fn run_delete(&self, tenant: &TenantId, uid: RunUid, audit: &AuditRow) -> Result<Deletion, StoreError> {
        self.write("run_delete", self.store.run_delete(tenant, uid, audit)).await
    }

    async fn old_list(
        &self,
        what: Leftover,
        older_ms: i64,
        after: Option<&OldRun>,
        limit: u32,
    ) -> Result<Vec<OldRun>, StoreError> {
        self.store.old_list(what, older_ms, after, limit).await
    }

    async fn old_drop(&self, what: Leftover, run: &OldRun, older_ms: i64) -> Result<Step, StoreError> {
        self.write("old_drop", self.store.old_drop(what, run, older_ms)).await
    }

    async fn keys_drop(&self) -> Result<bool, StoreError> {
        self.write("keys_drop", self.store.keys_drop()).await
    }
}

#[async_trait]
impl TokenStore for FlakyStore {
    async fn token_turn(
        &self,
        key: &TokenKey,
        seen: i64,
        holder: Uuid,
        lease_ms: i64,
    ) -> Result<TokenTurn, StoreError> {
        self.write("token_turn", self.store.token_turn(key, seen, holder, lease_ms)).await
    }

    async fn token_keep(&self, key: &TokenKey, holder: Uuid, token: &SealedToken) -> Result<bool, StoreError> {
        self.write("token_keep", self.store.token_keep(key, holder, token)).await
    }

    async fn token_waive(&self, key: &TokenKey, holder: Uuid) -> Result<(), StoreError> {
        self.write("token_waive", self.store.token_waive(key, holder)).await
    }

    async fn token_forget(&self, key_id: &str) -> Result<u64, StoreError> {
        self.write("token_forget", self.store.token_forget(key_id)).await
    }
}

#[async_trait]
impl RegistryStore for FlakyStore {
    async fn stored_secret_put(
        &self,
        tenant: &TenantId,
        secret: &StoredSecret,
        audit: &AuditRow,
    ) -> Result<bool, StoreError> {
        self.write("stored_secret_put", self.store.stored_secret_put(tenant, secret, audit)).await
    }

    async fn stored_secret_fetch(&self, tenant: &TenantId, name: &str) -> Result<Option<StoredSecret>, StoreError> {
        self.store.stored_secret_fetch(tenant, name).await
    }

    async fn stored_secret_list(
        &self,
        tenant: &TenantId,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Page<SecretInfo>, StoreError> {
        self.store.stored_secret_list(tenant, after, limit).await
    }

    async fn stored_secret_delete(
        &self,
        tenant: &TenantId,
        name: &str,
        audit: &AuditRow,
    ) -> Result<SecretDeletion, StoreError> {
        self.write("stored_secret_delete", self.store.stored_secret_delete(tenant, name, audit)).await
    }

    async fn server_put(
        &self,
        tenant: &TenantId,
        name: &str,
        registration: &Registration,
        audit: &AuditRow,
    ) -> Result<ServerPut, StoreError> {
        self.write("server_put", self.store.server_put(tenant, name, registration, audit)).await
    }

    async fn server_fetch(
        &self,
        tenant: &TenantId,
        name: &str,
    ) -> Result<Option<(RegisteredServer, Option<StoredSecret>)>, StoreError> {
        self.write("server_fetch", self.store.server_fetch(tenant, name)).await
    }

    async fn server_list(
        &self,
        tenant: &TenantId,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Page<RegisteredServer>, StoreError> {
        self.store.server_list(tenant, after, limit).await
    }

    async fn server_delete(&self, tenant: &TenantId, name: &str, audit: &AuditRow) -> Result<bool, StoreError> {
        self.write("server_delete", self.store.server_delete(tenant, name, audit)).await
    }

    async fn stored_secret_samples(&self) -> Result<Vec<(TenantId, StoredSecret)>, StoreError> {
        self.store.stored_secret_samples().await
    }

    async fn sealed_list(
        &self,
        key_id: &str,
        after: Option<&SealedPlace>,
        limit: u32,
    ) -> Result<Vec<SealedRow>, StoreError> {
        self.store.sealed_list(key_id, after, limit).await
    }

    async fn sealed_replace(&self, old: &SealedRow, key_id: &str, sealed: &[u8]) -> Result<bool, StoreError> {
        self.write("sealed_replace", self.store.sealed_replace(old, key_id, sealed)).await
    }
}

#[async_trait]
impl WorkerStore for FlakyStore {
    async fn tools_seen(&self, tenant: &TenantId, asked: &[Asked], pause_ms: i64) -> Result<(), StoreError> {
        self.store.tools_seen(tenant, asked, pause_ms).await
    }

    async fn call_reserve(
        &self,
        tenant: &TenantId,
        by: (&str, &str),
        asked: &[Asked],
        most: u32,
        lease_ms: i64,
    ) -> Result<Vec<Reserved>, StoreError> {
        self.write("call_reserve", self.store.call_reserve(tenant, by, asked, most, lease_ms)).await
    }

    async fn reservation_drop(
        &self,
        tenant: &TenantId,
        call: (RunUid, CallKey),
        lease: &str,
    ) -> Result<(), StoreError> {
        self.write("reservation_drop", self.store.reservation_drop(tenant, call, lease)).await
    }

    async fn lease_extend(
        &self,
        tenant: &TenantId,
        call: (RunUid, CallKey),
        lease: &str,
        lease_ms: i64,
    ) -> Result<Option<Extended>, StoreError> {
        self.write("lease_extend", self.store.lease_extend(tenant, call, lease, lease_ms)).await
    }

    async fn call_fetch(&self, tenant: &TenantId, call: (RunUid, CallKey)) -> Result<Option<Call>, StoreError> {
        self.store.call_fetch(tenant, call).await
    }

    async fn client_call_find(
        &self,
        tenant: &TenantId,
        uid: RunUid,
        call_id: &CallId,
        before: u32,
    ) -> Result<Option<CallKey>, StoreError> {
        self.store.client_call_find(tenant, uid, call_id, before).await
    }

    async fn fact_leave(&self, tenant: &TenantId, uid: RunUid, fact: &LeftFact) -> Result<Left, StoreError> {
        self.write("fact_leave", self.store.fact_leave(tenant, uid, fact)).await
    }

    async fn fact_withdraw(&self, tenant: &TenantId, uid: RunUid, fact: &LeftFact) -> Result<(), StoreError> {
        self.write("fact_withdraw", self.store.fact_withdraw(tenant, uid, fact)).await
    }

    async fn behind_list(&self, behind: Behind) -> Result<Vec<(TenantId, RunUid, Fetched)>, StoreError> {
        self.store.behind_list(behind).await
    }
}

#[async_trait]
impl AgentStore for FlakyStore {
    async fn version_publish(
        &self,
        tenant: &TenantId,
        version: &AgentVersion,
        audit: &AuditRow,
    ) -> Result<Published, StoreError> {
        self.write("version_publish", self.store.version_publish(tenant, version, audit)).await
    }

    async fn version_fetch(
        &self,
        tenant: &TenantId,
        agent: &AgentName,
        version: &str,
    ) -> Result<Option<AgentVersion>, StoreError> {
        self.store.version_fetch(tenant, agent, version).await
    }

    async fn version_list(
        &self,
        tenant: &TenantId,
        agent: &AgentName,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Page<AgentVersion>, StoreError> {
        self.store.version_list(tenant, agent, after, limit).await
    }

    async fn version_deprecate(
        &self,
        tenant: &TenantId,
        agent: &AgentName,
        version: &str,
        audit: &AuditRow,
    ) -> Result<Option<AgentVersion>, StoreError> {
        self.write("version_deprecate", self.store.version_deprecate(tenant, agent, version, audit)).await
    }

    async fn agent_fetch(&self, tenant: &TenantId, agent: &AgentName) -> Result<Option<Agent>, StoreError> {
        self.store.agent_fetch(tenant, agent).await
    }

    async fn agent_list(
        &self,
        tenant: &TenantId,
        after: Option<&AgentName>,
        limit: u32,
    ) -> Result<Page<Agent>, StoreError> {
        self.store.agent_list(tenant, after, limit).await
    }

    async fn deployment_add(
        &self,
        tenant: &TenantId,
        agent: &AgentName,
        target: &Target,
        audit: &AuditRow,
    ) -> Result<Deployed, StoreError> {
        self.write("deployment_add", self.store.deployment_add(tenant, agent, target, audit)).await
    }

    async fn deployment_list(
        &self,
        tenant: &TenantId,
        agent: &AgentName,
        before: Option<u32>,
        limit: u32,
    ) -> Result<Page<Deployment>, StoreError> {
        self.store.deployment_list(tenant, agent, before, limit).await
    }
}
