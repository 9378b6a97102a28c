//! Creates a run: everything is checked, the servers are connected and read, and only then is anything stored.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use secrecy::ExposeSecret;
use serde_json::{Map, Value};

use super::agents::MadeOf;
use super::carried::Carried;
use super::faults::{Faults, Given};
use super::input::check_input;
use super::limits::{check_limits, check_price};
use super::manifest::{Declaring, SECRET_NAME, check_brought, is_secret_name};
use super::request::{CreateRun, LimitsRequest};
use super::stored::{SENDABLE, is_sendable};
use super::{Asker, CommandError, Commands, Fault, RequestKey, Seat, tell};
use crate::bulk::Hold;
use crate::dispatch::{Catalogs, Watched};
use crate::failpoint;
use crate::run::agent::RunAgent;
use crate::run::apply::{NewRun, admit};
use crate::run::binding::{BoundTool, merge};
use crate::run::envelope::Envelope;
use crate::run::ids::{Fence, RunId, RunUid};
use crate::run::message::{Content, Role};
use crate::run::policy::unserved;
use crate::run::spec::{Limits, McpEntry, ModelSpec, Provider, RunSpec};
use crate::run::time::Timestamp;
use crate::secrets::RunSecrets;
use crate::store::{Admission, Admitted, Claim, KeptRequest, SealedSecret};

/// How long an `Idempotency-Key` is kept, in milliseconds: 24 h.
const KEY_TTL_MS: i64 = 24 * 60 * 60 * 1000;

/// What became of a creating request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Created {
    /// The run's name.
    pub id: RunId,
    /// Whether an earlier request with the same key created it.
    pub replayed: bool,
}

impl Commands {
    /// Creates a run.
    ///
    /// # Errors
    /// `Invalid`, `RunExists`, `KeyReused`, `Unreachable` and `Store`; nothing is stored then.
    pub async fn create(
        &self,
        asker: &Asker,
        request: impl Into<Given<CreateRun>>,
        key: Option<RequestKey>,
    ) -> Result<Created, CommandError> {
        let now = self.clock.now();
        let kept = key.map(|key| keep(asker, key, now));
        if let Some(kept) = &kept
            && let Some(answer) = self.store.kept_fetch(&asker.tenant, kept, now).await?
        {
            return replay(kept, &answer.body_digest, answer.run_id);
        }
        let uid = self.clock.run_uid();
        let asked = request.into().check(async |request, faults| self.check(asker, request, faults).await).await?;
        let sealed = self.seal(asker, uid, &asked.secrets)?;
        // The connections that this opens are the first owner's.
        let first = Claim { tenant: asker.tenant.clone(), uid, fence: Fence(1) };
        let catalogs = self.read_first(&first, &asked).await?;
        let (binding, mut warnings) = merge(asked.entries, &catalogs.catalogs);
        let (binding, hidden) = binding.with_local(asked.tools);
        warnings.extend(hidden);
        let (binding, set_aside) = binding.offered_to(asked.spec.model.provider);
        warnings.extend(set_aside);
        warnings.extend(catalogs.warnings);
        warnings.extend(unserved(&asked.spec.policies, &binding));
        let id = asked.id.unwrap_or_else(|| self.clock.run_id());
        let seat = self.executor.seat(&asker.tenant);
        let new = NewRun {
            tenant: asker.tenant.clone(),
            uid,
            id: id.clone(),
            actor: asker.actor.clone(),
            spec: asked.spec,
            input: asked.input,
            binding,
            warnings,
            begin: seat.is_some(),
        };
        let (envelope, commit) = admit(new, self.clock.now());
        let admission = Admission {
            tenant: asker.tenant.clone(),
            uid,
            id: id.clone(),
            spec: envelope.spec.clone(),
            commit,
            owner: seat.as_ref().map(|seat| seat.node),
            idempotency: kept.clone(),
            secrets: sealed,
        };
        let watched = catalogs.watched;
        if seat.is_none() {
            // Whoever takes it opens its own; once it is stored that may be this node at any moment.
            self.dispatch.release(&first).await;
        }
        let admitted = self.admit(admission, envelope, watched, seat).await?;
        drop(asked.held);
        if matches!(admitted, Admitted::RunExists | Admitted::KeyUsed(_)) {
            self.dispatch.release(&first).await;
        }
        match (admitted, kept) {
            (Admitted::Created | Admitted::NotTaken, _) => Ok(Created { id, replayed: false }),
            (Admitted::RunExists, _) => Err(CommandError::RunExists),
            (Admitted::KeyUsed(answer), Some(kept)) => replay(&kept, &answer.body_digest, answer.run_id),
            (Admitted::KeyUsed(_), None) => Err(CommandError::KeyReused),
        }
    }

    /// What the servers serve. Where one cannot be read, no connection stays that the others got for this run.
    async fn read_first(&self, first: &Claim, asked: &Asked) -> Result<Catalogs, CommandError> {
        let read = self.dispatch.read(first, &asked.entries, &asked.secrets, self.catalog_max_age()).await;
        if read.is_err() {
            self.dispatch.release(first).await;
        }
        Ok(read?)
    }

    /// Stores the run and begins it: both or neither, even when the caller goes away in between. So it is a task of its
    /// own; a request's future ends where it stands when its connection does.
    async fn admit(
        &self,
        admission: Admission,
        envelope: Envelope,
        watched: Watched,
        seat: Option<Seat>,
    ) -> Result<Admitted, CommandError> {
        let (store, hub, executor) = (Arc::clone(&self.store), Arc::clone(&self.hub), Arc::clone(&self.executor));
        let admitting = self.tasks.spawn(async move {
            let (commit, claim) = (
                admission.commit.clone(),
                Claim { tenant: admission.tenant.clone(), uid: admission.uid, fence: Fence(1) },
            );
            // From the moment it is stored any node may drive the run on.
            let announced = hub.announce(&claim.tenant, claim.uid);
            failpoint::pass("run.admit.before");
            let admitted = store.run_admit(admission).await?;
            failpoint::pass("run.admit.after");
            match (&admitted, seat) {
                (Admitted::Created, Some(seat)) => {
                    tell(announced, &commit);
                    executor.begin(seat, claim, envelope, watched);
                }
                (Admitted::Created | Admitted::NotTaken, _) => {
                    tell(announced, &commit);
                    executor.wake();
                }
                (Admitted::RunExists | Admitted::KeyUsed(_), _) => {}
            }
            Ok(admitted)
        });
        admitting.await.unwrap_or_else(|_panicked| Err(CommandError::Interrupted))
    }

    pub(super) fn catalog_max_age(&self) -> Duration {
        Duration::from_millis(self.allow.catalog_max_age_ms)
    }

    fn seal(&self, asker: &Asker, uid: RunUid, secrets: &RunSecrets) -> Result<Vec<SealedSecret>, CommandError> {
        let seal = |(name, value): (&String, &secrecy::SecretString)| {
            self.keys
                .seal(&asker.tenant, uid, name, value)
                .map_err(|fault| CommandError::Invalid(vec![Fault::at(format!("/secrets/{name}"), fault.to_string())]))
        };
        secrets.opened().map(seal).collect()
    }
}

fn keep(asker: &Asker, key: RequestKey, now: Timestamp) -> KeptRequest {
    KeptRequest {
        actor: asker.actor.clone(),
        route: "run_create",
        key: key.key,
        body_digest: key.body_digest,
        expires_at: now.plus_millis(KEY_TTL_MS),
    }
}

fn replay(kept: &KeptRequest, digest: &str, id: RunId) -> Result<Created, CommandError> {
    if kept.body_digest == digest { Ok(Created { id, replayed: true }) } else { Err(CommandError::KeyReused) }
}

/// A request whose every field is known to mean something.
struct Asked {
    id: Option<RunId>,
    spec: RunSpec,
    entries: Vec<McpEntry>,
    tools: Vec<BoundTool>,
    input: Vec<(Role, Vec<Content>)>,
    held: Option<Hold>,
    secrets: RunSecrets,
}

impl Commands {
    async fn check(&self, asker: &Asker, mut request: CreateRun, mut faults: Faults) -> Result<Asked, CommandError> {
        let id = request.id.take().map(RunId::parse);
        faults.require(id != Some(None), "/id", "must match [A-Za-z0-9][A-Za-z0-9._:-]{0,127}");
        let secrets: RunSecrets = request.secrets.take().unwrap_or_default().into_iter().collect();
        check_secrets(&secrets, &mut faults);
        let metadata = request.metadata.take().unwrap_or_default();
        check_metadata(&metadata, &mut faults);
        let priority = request.priority.unwrap_or_default();
        let (given, continue_from) = (request.input.clone(), request.continue_from.take());
        let Some((declaring, beside)) = self.declared_by(asker, request, &secrets, &mut faults).await? else {
            // Whatever the model's protocol is: a scripted one takes everything.
            check_input(given, Provider::Scripted, &mut faults);
            return Err(faults.into());
        };
        let declared = self.check_declared(asker, declaring, &secrets, &mut faults).await?;
        let limits = beside.limits(&declared.limits, &mut faults);
        let Carried { messages: mut input, held } =
            self.carried(asker, continue_from.as_deref(), &declared.model, &mut faults).await?;
        input.extend(check_input(given, declared.model.provider, &mut faults));
        let sampled =
            declared.entries.iter().filter_map(|entry| entry.sampling.as_ref().map(|sampling| &sampling.model));
        let prices = self.allow.prices.for_models(std::iter::once(&declared.model).chain(sampled.clone()));
        if limits.max_cost_usd.is_some() {
            for model in std::iter::once(&declared.model).chain(sampled) {
                check_price(&prices, model, &mut faults);
            }
        }
        faults.finish()?;
        let spec = RunSpec {
            agent: beside.agent,
            model: declared.model,
            instructions: declared.instructions,
            policies: declared.policies,
            on_catalog_change: declared.on_catalog_change,
            binding_id: beside.binding_id.or(declared.binding_id),
            limits,
            output_schema: declared.output_schema,
            continue_from,
            prices,
            metadata,
            priority,
        };
        Ok(Asked { id: id.flatten(), spec, entries: declared.entries, tools: declared.tools, input, held, secrets })
    }

    /// What a run is made of: its own fields, or those of a version of an agent, with what stands beside it. `None`: that
    /// cannot be said, and a fault says why.
    async fn declared_by(
        &self,
        asker: &Asker,
        request: CreateRun,
        secrets: &RunSecrets,
        faults: &mut Faults,
    ) -> Result<Option<(Declaring, BesideAgent)>, CommandError> {
        let Some(named) = request.agent.clone() else {
            faults.require(request.model.is_some(), "/model", "is required, or `agent`");
            return Ok(request.declaring().map(|declaring| (declaring, BesideAgent::default())));
        };
        for field in request.fixed_by_agent() {
            faults.add(format!("/{field}"), "cannot stand beside `agent`: it is as published");
        }
        let Some(MadeOf { agent, manifest }) = self.agent_of_run(asker, &named, faults).await? else {
            return Ok(None);
        };
        check_brought(manifest.secrets.as_deref().unwrap_or_default(), secrets, faults);
        let beside = BesideAgent { agent: Some(agent), limits: request.limits, binding_id: request.binding_id };
        Ok(Some((manifest.into(), beside)))
    }

    /// The model of a run, or of a server's samples. `secrets` is `None` where the run's own are not known yet.
    pub(super) async fn check_model(
        &self,
        asker: &Asker,
        model: &ModelSpec,
        secrets: Option<&RunSecrets>,
        at: &str,
        faults: &mut Faults,
    ) -> Result<(), CommandError> {
        let place = |field: &str| format!("{at}/{field}");
        faults.require(!model.name.is_empty(), &place("name"), "must not be empty");
        if let (Some(name), Some(secrets)) = (model.secret.as_deref(), secrets)
            && !secrets.has(name)
        {
            self.check_stored(asker, name, model.address(), &place("secret"), faults).await?;
        }
        if let Some(address) = &model.base_url
            && let Err(refused) = self.dispatch.check_address(address)
        {
            faults.add(place("base_url"), refused);
        }
        let both = |parameters: &Map<String, Value>| {
            ["temperature", "top_p"].iter().all(|name| parameters.contains_key(*name))
        };
        if model.parameters.as_ref().is_some_and(both) {
            faults.add(place("parameters/top_p"), "cannot stand beside `temperature`: providers take one of them");
        }
        match model.provider {
            Provider::Scripted => {
                faults.require(self.allow.scripted_models, &place("provider"), "scripted models are not allowed here");
                let has_turns = model.script.as_ref().is_some_and(|turns| !turns.is_empty());
                faults.require(has_turns, &place("script"), "a scripted model needs at least one turn");
            }
            Provider::Openai | Provider::Anthropic => {
                faults.require(model.script.is_none(), &place("script"), "only a scripted model has a script");
            }
        }
        Ok(())
    }
}

/// What a run says beside its agent.
#[derive(Default)]
struct BesideAgent {
    agent: Option<RunAgent>,
    limits: Option<LimitsRequest>,
    binding_id: Option<String>,
}

impl BesideAgent {
    /// The limits of the run: those of its agent, or tighter ones.
    fn limits(&self, declared: &Limits, faults: &mut Faults) -> Limits {
        let Some(own) = self.limits.clone() else { return *declared };
        let limits = check_limits(own, declared, faults);
        for name in limits.looser_than(declared) {
            faults.add(format!("/limits/{name}"), "is looser than the agent's");
        }
        limits
    }
}

fn check_secrets(secrets: &RunSecrets, faults: &mut Faults) {
    faults.require(secrets.count() <= 32, "/secrets", "at most 32 secrets");
    for (name, value) in secrets.opened() {
        faults.require(is_secret_name(name), "/secrets", SECRET_NAME);
        faults.require(is_sendable(value.expose_secret()), &format!("/secrets/{name}"), SENDABLE);
    }
}

fn check_metadata(metadata: &BTreeMap<String, String>, faults: &mut Faults) {
    faults.require(metadata.len() <= 32, "/metadata", "at most 32 pairs");
    for (key, value) in metadata {
        let fits = !key.is_empty() && key.len() <= 64 && value.len() <= 512;
        let clean = !key.contains('\0') && !value.contains('\0');
        let at = format!("/metadata/{key}");
        faults.require(fits && clean, &at, "keys have 1 to 64 bytes, values at most 512, and no NUL");
    }
}
