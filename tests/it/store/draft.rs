//! Runs for tests, made by hand from the core's types.

use countersign::run::approval::Approvals;
use countersign::run::ask::Asks;
use countersign::run::binding::merge;
use countersign::run::call::{Backend, Call, CallTarget, Stage};
use countersign::run::commit::{Commit, Next};
use countersign::run::envelope::{Head, HeadState};
use countersign::run::event::{Event, EventBody};
use countersign::run::ids::{Actor, CallId, CallKey, NodeId, RunId, RunUid, TenantId};
use countersign::run::message::{Content, Message, Role};
use countersign::run::outcome::Cause;
use countersign::run::pace::Pace;
use countersign::run::result::Usage;
use countersign::run::spec::{RunSpec, SideEffectClass};
use countersign::run::status::Status;
use countersign::run::time::Timestamp;
use countersign::store::{Admission, Admitted, AuditRow, Claim, ExecutorStore, OwnedCommit, RunStore, Store};
use serde_json::json;
use uuid::Uuid;

pub(crate) fn tenant(name: &str) -> TenantId {
    TenantId::parse(name).unwrap()
}

pub(crate) fn actor(name: &str) -> Actor {
    Actor::parse(name).unwrap()
}

pub(crate) fn at(millis: i64) -> Timestamp {
    Timestamp::from_millis(1_796_000_000_000 + millis)
}

pub(crate) fn spec() -> RunSpec {
    serde_json::from_value(json!({"model": {"provider": "scripted", "name": "m", "script": [{"text": "hi"}]}})).unwrap()
}

/// A run as its writer knows it: what it was asked for, and the head that the store should hold.
#[derive(Clone)]
pub(crate) struct Draft {
    pub(crate) tenant: TenantId,
    pub(crate) uid: RunUid,
    pub(crate) id: RunId,
    pub(crate) spec: RunSpec,
    pub(crate) head: Head,
}

impl Draft {
    pub(crate) fn new(of: &str, id: &str) -> Self {
        let state = HeadState {
            limits: None,
            created_by: actor("ann"),
            turns: 0,
            messages: 0,
            tool_calls: 0,
            usage: Usage::default(),
            progressed: false,
            reached: None,
            repaired: false,
            failing: None,
            asked: None,
            model_failures: 0,
            asks: Asks::default(),
            catalog_failures: 0,
            approvals: Approvals::default(),
            worked_ms: 0,
            leg_began_at: None,
            idle_since: None,
            pace: Pace::default(),
            warnings: Vec::new(),
            output: None,
            error: None,
        };
        let head = Head {
            status: Status::Queued,
            revision: 0,
            last_seq: 0,
            attempt: 0,
            crashes: 0,
            state,
            created_at: at(0),
            updated_at: at(0),
            finished_at: None,
        };
        let (tenant, uid) = (tenant(of), RunUid(Uuid::new_v4()));
        Self { tenant, uid, id: RunId::parse(id).unwrap(), spec: spec(), head }
    }

    /// The next commit: one message, one event; the owner goes on.
    pub(crate) fn next(&mut self) -> Commit {
        let expected = self.head.revision;
        self.head.revision += 1;
        self.head.last_seq += 1;
        let position = self.head.state.messages;
        self.head.state.messages += 1;
        let message = self.message(position, vec![Content::Text { text: format!("message {position}") }]);
        Commit {
            expected,
            head: self.head.clone(),
            messages: vec![message],
            calls_made: Vec::new(),
            approvals: vec![],
            calls_moved: Vec::new(),
            events: vec![self.event(self.head.last_seq)],
            binding: None,
            sends: Vec::new(),
            next: Next::Owner,
        }
    }

    pub(crate) fn message(&self, position: u32, content: Vec<Content>) -> Message {
        Message { position, turn: self.head.state.turns, role: Role::Assistant, content }
    }

    pub(crate) fn event(&self, seq: i64) -> Event {
        let status = self.head.status;
        let body = EventBody::RunStatus {
            status: status.code().to_owned(),
            reason: status.reason().map(str::to_owned),
            attempt: self.head.attempt,
        };
        Event { body, run_id: self.id.clone(), seq, at: self.head.updated_at }
    }

    /// The next commit with this status.
    pub(crate) fn become_(&mut self, status: Status, next: Next) -> Commit {
        self.head.status = status;
        self.head.finished_at = status.is_terminal().then_some(self.head.updated_at);
        Commit { next, ..self.next() }
    }

    /// The first commit of a run, with an empty binding.
    pub(crate) fn admission(&mut self, owner: Option<NodeId>) -> Admission {
        let binding = merge(Vec::new(), &[]).0;
        Admission {
            tenant: self.tenant.clone(),
            uid: self.uid,
            id: self.id.clone(),
            spec: self.spec.clone(),
            commit: Commit { binding: Some(binding), ..self.next() },
            owner,
            idempotency: None,
            secrets: Vec::new(),
        }
    }

    /// Stores it, due now.
    pub(crate) async fn admit(&mut self, store: &dyn Store) {
        let admission = self.admission(None);
        assert_eq!(store.run_admit(admission).await.unwrap(), Admitted::Created);
    }

    /// Stores it, owned by the node with fence 1.
    pub(crate) async fn admit_owned(&mut self, store: &dyn Store, node: NodeId) -> Claim {
        let admission = self.admission(Some(node));
        assert_eq!(store.run_admit(admission).await.unwrap(), Admitted::Created);
        self.claim(1)
    }

    pub(crate) fn claim(&self, fence: i64) -> Claim {
        Claim { tenant: self.tenant.clone(), uid: self.uid, fence: countersign::run::ids::Fence(fence) }
    }
}

/// A node that the store knows.
pub(crate) async fn node(store: &dyn ExecutorStore) -> NodeId {
    let node = NodeId(Uuid::new_v4());
    store.node_register(node).await.unwrap();
    node
}

pub(crate) async fn apply(store: &dyn ExecutorStore, claim: &Claim, commit: &Commit) -> bool {
    let commit = OwnedCommit::encode(claim, commit).unwrap();
    store.commit_apply(&[commit]).await.unwrap()[0]
}

pub(crate) fn call(turn: u32, position: u32, stage: Stage) -> Call {
    Call {
        key: CallKey { turn, position },
        call_id: CallId::new(format!("call_{turn}_{position}")),
        tool: "charge".to_owned(),
        input: json!({"amount": 5}),
        target: Some(CallTarget {
            backend: Backend::Mcp,
            place: None,
            version: None,
            entry: 0,
            server: "shop".to_owned(),
            server_tool: "charge".to_owned(),
            class: SideEffectClass::NonIdempotentWrite,
            replay: false,
        }),
        attempt: 1,
        turned_away: 0,
        asked: None,
        task: None,
        handing: countersign::run::call::Handing::default(),
        judged: countersign::run::policy::Judged::default(),
        decided_by: None,
        stage,
        created_at: at(0),
    }
}

pub(crate) fn executing() -> Stage {
    Stage::Executing { since: at(1) }
}

pub(crate) fn undecided() -> Stage {
    Stage::Indeterminate { cause: Cause::Crash, since: at(2), authorized: false }
}

/// All that the store holds of a run, as text, to compare before and after.
pub(crate) async fn picture(store: &dyn RunStore, run: &Draft) -> String {
    let loaded = store.run_load(&run.tenant, run.uid).await.unwrap();
    let events = store.event_list(&run.tenant, run.uid, 0, 10_000).await.unwrap();
    let receipts = store.receipt_list(&run.tenant, run.uid, None, 10_000).await.unwrap();
    let secrets = store.secret_list(&run.tenant, run.uid).await.unwrap();
    format!("{loaded:#?}\n{events:#?}\n{receipts:#?}\n{secrets:#?}")
}

/// A row of the audit.
pub(crate) fn audit_row() -> AuditRow {
    AuditRow {
        id: Uuid::new_v4(),
        at: at(5),
        actor: actor("root"),
        action: "run.delete".to_owned(),
        subject: "r".to_owned(),
        run_id: None,
        detail: json!({}),
    }
}
