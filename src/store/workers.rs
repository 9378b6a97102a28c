//! What workers need of the store: calls on offer, leases by the database's clock, and facts left for owners.
//!
//! The columns of `calls` that this reads and writes say where a call is found and until when a lease runs. What is true of a
//! call is decided by commits alone: they write those columns too, so a call is on offer exactly while its receipt says so.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::{Left, StoreError};
use crate::run::call::Call;
use crate::run::fact::Fact;
use crate::run::fetched::{ClientResults, Fetched};
use crate::run::ids::{CallId, CallKey, RunUid, TenantId};
use crate::run::time::Timestamp;

/// How many calls of one tool a worker can take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The tool and version, as calls are queued under.
    pub tool: String,
    /// How many it may have at once, those that it has counted.
    pub most: u32,
}

/// A call that is set aside for a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reserved {
    /// Its run.
    pub uid: RunUid,
    /// Which call.
    pub key: CallKey,
    /// When the lease ends, unless it is extended; by the database's clock.
    pub until: Timestamp,
}

/// A lease that holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extended {
    /// Its new end, by the database's clock.
    pub until: Timestamp,
    /// Whether somebody wished the run cancelled.
    pub cancelled: bool,
}

/// A fact about calls that others fetch, left for the owner of their run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LeftFact {
    /// About a worker's call.
    Fetched(Fetched),
    /// The result of a client's call.
    Client(ClientResults),
}

impl LeftFact {
    /// The call that it is about; `None`: it says nothing.
    pub fn key(&self) -> Option<CallKey> {
        match self {
            Self::Fetched(fetched) => Some(fetched.key),
            Self::Client(given) => given.results.first().map(|(key, _)| *key),
        }
    }

    /// One fact of a kind is left for a call at a time.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Fetched(fetched) => fetched.what.code(),
            Self::Client(_) => "client",
        }
    }

    /// What the run is told.
    pub fn into_fact(self) -> Fact {
        match self {
            Self::Fetched(fetched) => Fact::Fetched(Box::new(fetched)),
            Self::Client(given) => Fact::ClientAnswered(Box::new(given)),
        }
    }
}

/// When calls on offer are behind time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Behind {
    /// How long a call may be on offer, in milliseconds.
    pub queue_wait_ms: i64,
    /// How many calls of one tool of a tenant may be on offer.
    pub queue_max: u32,
    /// At most so many.
    pub limit: u32,
}

/// What workers need of the store.
#[async_trait]
pub trait WorkerStore: Send + Sync {
    /// Notes that somebody asks for calls of these tools. Where nobody did for longer than `pause_ms`, they are served anew.
    async fn tools_seen(&self, tenant: &TenantId, asked: &[Asked], pause_ms: i64) -> Result<(), StoreError>;
    /// Sets calls on offer aside for a worker, the oldest of each tool first, at most `most` in all; nobody else gets them
    /// until the lease ends or `reservation_drop`. No call is given twice, however many ask at once.
    async fn call_reserve(
        &self,
        tenant: &TenantId,
        (worker, lease): (&str, &str),
        asked: &[Asked],
        most: u32,
        lease_ms: i64,
    ) -> Result<Vec<Reserved>, StoreError>;
    /// Gives back what was set aside and not handed out.
    async fn reservation_drop(&self, tenant: &TenantId, call: (RunUid, CallKey), lease: &str)
    -> Result<(), StoreError>;
    /// A sign of life of whoever has a call: the lease runs anew. `None`: it holds no longer.
    async fn lease_extend(
        &self,
        tenant: &TenantId,
        call: (RunUid, CallKey),
        lease: &str,
        lease_ms: i64,
    ) -> Result<Option<Extended>, StoreError>;
    /// A call with a receipt, by its place.
    async fn call_fetch(&self, tenant: &TenantId, call: (RunUid, CallKey)) -> Result<Option<Call>, StoreError>;
    /// The last call of the run's client with this label in a turn before this one.
    async fn client_call_find(
        &self,
        tenant: &TenantId,
        uid: RunUid,
        call_id: &CallId,
        before: u32,
    ) -> Result<Option<CallKey>, StoreError>;
    /// Leaves a fact with a run that a node owns. A later one takes the place of an earlier one of its kind, but for
    /// results, of which the first stays.
    async fn fact_leave(&self, tenant: &TenantId, uid: RunUid, fact: &LeftFact) -> Result<Left, StoreError>;
    /// Takes back what was left, unless the owner has read it.
    async fn fact_withdraw(&self, tenant: &TenantId, uid: RunUid, fact: &LeftFact) -> Result<(), StoreError>;
    /// Calls whose lease has ended, and calls that are on offer for too long or behind too many others, but for those that
    /// rules let wait on. One that outwaits that nobody serves its tool waits for room from when somebody does. Of each tenant the longest behind first, and of
    /// all tenants in turns.
    async fn behind_list(&self, behind: Behind) -> Result<Vec<(TenantId, RunUid, Fetched)>, StoreError>;
}
