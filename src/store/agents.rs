//! Agents of a tenant: immutable versions, and which of them is active. Knows no SQL; what a manifest may say is checked
//! before it comes here.

use async_trait::async_trait;
use serde_json::Value;

use super::{AuditRow, Page, StoreError, codec};
use crate::run::agent::AgentName;
use crate::run::ids::{Actor, TenantId};
use crate::run::time::Timestamp;

/// An agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agent {
    /// Its name.
    pub name: AgentName,
    /// The version that runs get which name none.
    pub active: Option<String>,
    /// When its first version was published.
    pub created_at: Timestamp,
    /// When something of it changed last.
    pub updated_at: Timestamp,
}

/// A published version.
#[derive(Clone, Debug, PartialEq)]
pub struct AgentVersion {
    /// Whose.
    pub agent: AgentName,
    /// By semver.org.
    pub version: String,
    /// SHA-256 of the manifest's canonical text.
    pub digest: String,
    /// What was published.
    pub manifest: Value,
    /// Who published it.
    pub published_by: Actor,
    /// When.
    pub published_at: Timestamp,
    /// Since when no new runs are made of it.
    pub deprecated_at: Option<Timestamp>,
}

/// A version became the active one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deployment {
    /// Counts from 1 for each agent.
    pub number: u32,
    /// Which version.
    pub version: String,
    /// `deploy` or `rollback`.
    pub action: String,
    /// Who did it.
    pub actor: Actor,
    /// When.
    pub at: Timestamp,
    /// The deployment that a rollback goes back to.
    pub before: Option<u32>,
}

/// What became of a publication.
#[derive(Clone, Debug, PartialEq)]
pub enum Published {
    /// It is stored.
    New,
    /// The version was there, with the same content.
    Same(Box<AgentVersion>),
    /// The version was there, with another content; nothing was stored.
    Other,
}

/// What is to become active.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// This version.
    Deploy(String),
    /// The version that was active before, or this one, which was active at some time.
    RollBack(Option<String>),
}

/// What became of a deployment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Deployed {
    /// It is active now.
    Done(Deployment),
    /// It was active already; nothing was stored.
    Already(Deployment),
    /// There is no such agent.
    NoAgent,
    /// There is no such version, or it was never active before a rollback to it.
    NoVersion,
    /// No new runs are made of it.
    Deprecated(String),
    /// There is nothing to go back to.
    Nothing,
}

/// What agents need of the store. The tenant comes first everywhere.
#[async_trait]
pub trait AgentStore: Send + Sync {
    /// Stores a version unless it is there, beside its row of the audit.
    async fn version_publish(
        &self,
        tenant: &TenantId,
        version: &AgentVersion,
        audit: &AuditRow,
    ) -> Result<Published, StoreError>;
    /// One version.
    async fn version_fetch(
        &self,
        tenant: &TenantId,
        agent: &AgentName,
        version: &str,
    ) -> Result<Option<AgentVersion>, StoreError>;
    /// The versions of an agent by their text, strictly after `after`.
    async fn version_list(
        &self,
        tenant: &TenantId,
        agent: &AgentName,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Page<AgentVersion>, StoreError>;
    /// Makes no more runs of a version, beside its row of the audit; one that is deprecated keeps its time. `None`: there
    /// is no such version.
    async fn version_deprecate(
        &self,
        tenant: &TenantId,
        agent: &AgentName,
        version: &str,
        audit: &AuditRow,
    ) -> Result<Option<AgentVersion>, StoreError>;
    /// One agent.
    async fn agent_fetch(&self, tenant: &TenantId, agent: &AgentName) -> Result<Option<Agent>, StoreError>;
    /// The tenant's agents by name, strictly after `after`.
    async fn agent_list(
        &self,
        tenant: &TenantId,
        after: Option<&AgentName>,
        limit: u32,
    ) -> Result<Page<Agent>, StoreError>;
    /// Makes a version the active one, beside its row of the audit, whose actor and time it takes.
    async fn deployment_add(
        &self,
        tenant: &TenantId,
        agent: &AgentName,
        target: &Target,
        audit: &AuditRow,
    ) -> Result<Deployed, StoreError>;
    /// The deployments of an agent, newest first, strictly before number `before`.
    async fn deployment_list(
        &self,
        tenant: &TenantId,
        agent: &AgentName,
        before: Option<u32>,
        limit: u32,
    ) -> Result<Page<Deployment>, StoreError>;
}

/// An agent as it is read: namespace, name, active, created, updated.
pub(super) type AgentColumns = (String, String, Option<String>, i64, i64);

/// The agent that they say.
pub(super) fn agent((namespace, name, active, created_at, updated_at): AgentColumns) -> Result<Agent, StoreError> {
    Ok(Agent {
        name: codec::named("agent", AgentName::parse(&namespace, &name))?,
        active,
        created_at: Timestamp::from_millis(created_at),
        updated_at: Timestamp::from_millis(updated_at),
    })
}

/// A version as it is read: version, digest, body, published by, published, deprecated.
pub(super) type VersionColumns = (String, String, String, String, i64, Option<i64>);

/// The version that they say.
pub(super) fn version(agent: &AgentName, columns: VersionColumns) -> Result<AgentVersion, StoreError> {
    let (version, digest, body, published_by, published_at, deprecated_at) = columns;
    Ok(AgentVersion {
        agent: agent.clone(),
        version,
        digest,
        manifest: codec::decode("agent version", &body)?,
        published_by: codec::named("actor", Actor::parse(published_by))?,
        published_at: Timestamp::from_millis(published_at),
        deprecated_at: deprecated_at.map(Timestamp::from_millis),
    })
}

/// A deployment as it is read: number, version, action, actor, at, before.
pub(super) type DeploymentColumns = (i64, String, String, String, i64, Option<i64>);

/// The deployment that they say.
pub(super) fn deployment(columns: DeploymentColumns) -> Result<Deployment, StoreError> {
    let (number, version, action, actor, at, before) = columns;
    Ok(Deployment {
        number: codec::count("deployment", number)?,
        version,
        action,
        actor: codec::named("actor", Actor::parse(actor))?,
        at: Timestamp::from_millis(at),
        before: before.map(|before| codec::count("deployment", before)).transpose()?,
    })
}

/// What follows from what is stored: the deployments that there are, newest first, decide what a rollback means.
pub(super) fn next_deployment(
    deployments: &[Deployment],
    target: &Target,
    audit: &AuditRow,
) -> Result<Deployment, Deployed> {
    let current = deployments.first();
    let (version, before, action) = match target {
        Target::Deploy(version) => {
            if let Some(current) = current.filter(|current| current.version == *version) {
                return Err(Deployed::Already(current.clone()));
            }
            (version.clone(), current.map(|current| current.number), "deploy")
        }
        Target::RollBack(given) => {
            let current = current.ok_or(Deployed::Nothing)?;
            if given.as_ref().is_some_and(|version| current.version == *version) {
                return Err(Deployed::Already(current.clone()));
            }
            let back = if let Some(version) = given {
                deployments.iter().find(|earlier| earlier.version == *version).ok_or(Deployed::NoVersion)?
            } else {
                let earlier = |earlier: &&Deployment| Some(earlier.number) == current.before;
                deployments.iter().find(earlier).ok_or(Deployed::Nothing)?
            };
            (back.version.clone(), back.before, "rollback")
        }
    };
    Ok(Deployment {
        number: current.map_or(0, |current| current.number).saturating_add(1),
        version,
        action: action.to_owned(),
        actor: audit.actor.clone(),
        at: audit.at,
        before,
    })
}
