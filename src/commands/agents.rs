//! Publishes versions of agents, says which one is active, and finds the one that a run is made of.

use serde_json::{Value, json};

use super::faults::{Faults, Given};
use super::manifest::{AgentManifest, Declared};
use super::{Asker, CommandError, Commands, Fault};
use crate::run::agent::{AgentName, AgentRef, RunAgent, is_semver};
use crate::run::binding::Warning;
use crate::run::json::{canonical, sha256_hex};
use crate::run::policy::unserved_by_declaration;
use crate::store::agents::{AgentVersion, Deployed, Deployment, Published, Target};

/// What became of a publication.
#[derive(Clone, Debug, PartialEq)]
pub struct Publication {
    /// The version.
    pub version: AgentVersion,
    /// Whether it is new.
    pub is_new: bool,
    /// What a person should know of the manifest.
    pub warnings: Vec<Warning>,
}

/// A manifest that was found good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Validated {
    /// SHA-256 of its canonical text.
    pub digest: String,
    /// What a person should know of it.
    pub warnings: Vec<Warning>,
}

/// A manifest as it came, and what it says.
pub struct Manifest {
    /// As it came, for the digest and to be stored.
    pub given: Value,
    /// What it says.
    pub read: Given<AgentManifest>,
}

/// The version that a run is made of.
pub(super) struct MadeOf {
    pub(super) agent: RunAgent,
    pub(super) manifest: AgentManifest,
}

const NO_AGENT: CommandError = CommandError::Missing("there is no such agent");
const NO_VERSION: CommandError = CommandError::Missing("there is no such version of the agent");

impl Commands {
    /// Checks a manifest and stores nothing.
    ///
    /// # Errors
    /// `Invalid` with every fault, `Store`, `NotEvaluated`.
    pub async fn agent_validate(&self, asker: &Asker, manifest: Manifest) -> Result<Validated, CommandError> {
        let digest = sha256_hex(&canonical(&manifest.given));
        let meaning = async |read, mut faults: Faults| {
            let declared = self.check_manifest(asker, read, &mut faults).await?;
            faults.finish().map(|()| declared)
        };
        let declared = manifest.read.check(meaning).await?;
        Ok(Validated { digest, warnings: warnings(&declared) })
    }

    /// Publishes a version, which never changes after that.
    ///
    /// # Errors
    /// `Invalid` with every fault, `VersionExists`, `Store`, `NotEvaluated`; nothing is stored then.
    pub async fn version_publish(
        &self,
        asker: &Asker,
        (namespace, name): (&str, &str),
        version: &str,
        manifest: Manifest,
    ) -> Result<Publication, CommandError> {
        let agent = AgentName::parse(namespace, name);
        let meaning = async |read, mut faults: Faults| {
            faults.require(agent.is_some(), "", "namespace and name must match [A-Za-z0-9][A-Za-z0-9._-]{0,63}");
            faults.require(is_semver(version), "", "the version must be one by semver.org, e.g. 1.2.0");
            let declared = self.check_manifest(asker, read, &mut faults).await?;
            let Some(agent) = agent else { return Err(faults.into()) };
            faults.finish().map(|()| (agent, declared))
        };
        let (agent, declared) = manifest.read.check(meaning).await?;
        let digest = sha256_hex(&canonical(&manifest.given));
        let subject = format!("{agent}@{version}");
        let audit = self.tenant_row(asker, "agent.publish", &subject, json!({ "digest": digest }));
        let published = AgentVersion {
            agent,
            version: version.to_owned(),
            digest,
            manifest: manifest.given,
            published_by: asker.actor.clone(),
            published_at: audit.at,
            deprecated_at: None,
        };
        let warnings = warnings(&declared);
        match self.store.version_publish(&asker.tenant, &published, &audit).await? {
            Published::New => Ok(Publication { version: published, is_new: true, warnings }),
            Published::Same(version) => Ok(Publication { version: *version, is_new: false, warnings }),
            Published::Other => Err(CommandError::VersionExists),
        }
    }

    /// Makes a version the active one; `true`: it was not before.
    ///
    /// # Errors
    /// `Missing`, `Invalid`, `VersionDeprecated`, `NothingBefore`, `Store`; nothing changes then.
    pub async fn deployment_add(
        &self,
        asker: &Asker,
        (namespace, name): (&str, &str),
        target: Target,
    ) -> Result<(Deployment, bool), CommandError> {
        let agent = AgentName::parse(namespace, name).ok_or(NO_AGENT)?;
        let (action, version) = match &target {
            Target::Deploy(version) => ("agent.deploy", Some(version)),
            Target::RollBack(version) => ("agent.rollback", version.as_ref()),
        };
        if version.is_some_and(|version| !is_semver(version)) {
            return Err(CommandError::Invalid(vec![Fault::at("/version", "is not a version by semver.org")]));
        }
        let audit = self.tenant_row(asker, action, &agent.to_string(), json!({ "version": version }));
        match self.store.deployment_add(&asker.tenant, &agent, &target, &audit).await? {
            Deployed::Done(deployment) => Ok((deployment, true)),
            Deployed::Already(deployment) => Ok((deployment, false)),
            Deployed::NoAgent => Err(NO_AGENT),
            Deployed::NoVersion => {
                let detail = match target {
                    Target::Deploy(_) => "is not a published version of the agent",
                    Target::RollBack(_) => "was never an active version of the agent",
                };
                Err(CommandError::Invalid(vec![Fault::at("/version", detail)]))
            }
            Deployed::Deprecated(version) => Err(CommandError::VersionDeprecated(version)),
            Deployed::Nothing => Err(CommandError::NothingBefore),
        }
    }

    /// Lets no new runs be made of a version. Those that are made of it go on.
    ///
    /// # Errors
    /// `Missing`, `Store`.
    pub async fn version_deprecate(
        &self,
        asker: &Asker,
        (namespace, name): (&str, &str),
        version: &str,
    ) -> Result<AgentVersion, CommandError> {
        let agent = AgentName::parse(namespace, name).ok_or(NO_VERSION)?;
        if !is_semver(version) {
            return Err(NO_VERSION);
        }
        let audit = self.tenant_row(asker, "agent.deprecate", &format!("{agent}@{version}"), json!({}));
        self.store.version_deprecate(&asker.tenant, &agent, version, &audit).await?.ok_or(NO_VERSION)
    }

    /// The version that a run names, or a fault at `/agent`.
    pub(super) async fn agent_of_run(
        &self,
        asker: &Asker,
        named: &str,
        faults: &mut Faults,
    ) -> Result<Option<MadeOf>, CommandError> {
        let mut refuse = |detail: String| {
            faults.add("/agent", detail);
            Ok(None)
        };
        let Some(AgentRef { agent, version }) = AgentRef::parse(named) else {
            return refuse("must be NAMESPACE/NAME or NAMESPACE/NAME@VERSION".to_owned());
        };
        let version = match version {
            Some(version) => version,
            None => match self.store.agent_fetch(&asker.tenant, &agent).await? {
                None => return refuse(format!("there is no agent {agent}")),
                Some(found) => match found.active {
                    Some(active) => active,
                    None => return refuse(format!("no version of {agent} is active: deploy one, or name one")),
                },
            },
        };
        let Some(found) = self.store.version_fetch(&asker.tenant, &agent, &version).await? else {
            return refuse(format!("there is no version {version} of {agent}"));
        };
        if found.deprecated_at.is_some() {
            return refuse(format!("version {version} of {agent} is deprecated: no new runs are made of it"));
        }
        // Published by an earlier version of this program, and not understood by this one.
        let Ok(manifest) = serde_json::from_value(found.manifest) else {
            return refuse(format!(
                "version {version} of {agent} must be published anew: this server does not read it"
            ));
        };
        Ok(Some(MadeOf { agent: RunAgent { agent, version }, manifest }))
    }
}

fn warnings(declared: &Declared) -> Vec<Warning> {
    unserved_by_declaration(&declared.policies, &declared.entries, &declared.tools)
}
