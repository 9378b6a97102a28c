//! Where an entry leads and what is told there, put together anew for each use, and what else is asked of the registry.

use std::sync::Arc;
use std::time::Duration;

use secrecy::SecretString;
use url::Url;

use super::credential::{Credential, credential};
use super::fresh::LookupFault;
use super::place::{address_of, place_at, place_in};
use super::registry::{Looked, Opened, SecretFault, Server, value_for};
use super::told::Place;
use super::{Dispatch, Sighting, Unreachable};
use crate::mcp::{Endpoint, McpTarget, Offers, StdioServer, Told};
use crate::oauth::{ClientSecret, SecretOwner};
use crate::run::asking::Elicitation;
use crate::run::binding::Binding;
use crate::run::ids::{Fence, RunUid, TenantId};
use crate::run::spec::{McpEntry, ModelSpec};
use crate::secrets::{Found, Redactor, RunSecrets};
use crate::store::Claim;

/// A stored secret, or why it does not open; `None`: there is none of that name.
type Stored = Option<Arc<Result<Opened, String>>>;

/// A drive of a run.
type Drive = (RunUid, Fence);

/// How long a look at a server may take in all.
const SIGHT_TIME: Duration = Duration::from_secs(15);

impl Dispatch {
    /// # Errors
    /// Why it cannot be reached, in words.
    pub(super) async fn target(
        &self,
        tenant: &TenantId,
        entry: &McpEntry,
        drive: Drive,
        secrets: &RunSecrets,
    ) -> Result<McpTarget, String> {
        if let Some(name) = &entry.server {
            return self.registered_target(tenant, name, entry, Some(drive), secrets).await;
        }
        let url = address_of(entry)?;
        let secret = match &entry.auth {
            None => None,
            Some(auth) => Some((auth, self.secret_for(tenant, auth.secret(), &url, (drive.0, secrets)).await?)),
        };
        let owned = secret.as_ref().map(|(auth, secret)| (auth.secret(), &secret.owner));
        let (private_to, origin) = match owned {
            None => (None, None),
            Some((_, SecretOwner::Run(_))) => (Some(drive), None),
            Some((name, SecretOwner::Tenant { .. })) => (None, Some(secret_origin(name))),
        };
        let told = secret.map(|(auth, secret)| credential(&self.tokens, tenant, auth, &url, secret)).transpose()?;
        let whose = Whose { tenant, drive: Some(drive), private_to, origin };
        Ok(self.put_together((entry, entry), url, told, secrets, whose))
    }

    async fn registered_target(
        &self,
        tenant: &TenantId,
        name: &str,
        entry: &McpEntry,
        drive: Option<Drive>,
        secrets: &RunSecrets,
    ) -> Result<McpTarget, String> {
        let server = self.server(tenant, name, Duration::MAX).await?;
        let server = server.ok_or_else(|| format!("there is no registered server named '{name}' any more"))?;
        if let Some(process) = &server.process {
            return Ok(process_target(process, entry, drive, secrets));
        }
        let url = address_of(&server.entry)?;
        let secret = match (&server.entry.auth, &server.secret) {
            (None, _) | (Some(_), Ok(None)) => None,
            (Some(_), Err(why)) => return Err(why.clone()),
            (Some(auth), Ok(Some(opened))) => {
                value_for(opened, auth.secret(), &url)?;
                Some(credential(&self.tokens, tenant, auth, &url, opened.of_client(auth.secret()))?)
            }
        };
        let whose = Whose { tenant, drive, private_to: None, origin: Some(server_origin(name)) };
        Ok(self.put_together((entry, &server.entry), url, secret, secrets, whose))
    }

    pub(super) async fn server(
        &self,
        tenant: &TenantId,
        name: &str,
        max_age: Duration,
    ) -> Result<Option<Arc<Server>>, LookupFault> {
        let Looked { value, has_moved } = self.registry.server(tenant, name, max_age).await?;
        if has_moved {
            self.pool.retire(tenant, &server_origin(name));
        }
        Ok(value)
    }

    async fn stored(&self, tenant: &TenantId, name: &str, max_age: Duration) -> Result<Stored, String> {
        let Looked { value, has_moved } = self.registry.secret(tenant, name, max_age).await?;
        if has_moved {
            self.pool.retire(tenant, &secret_origin(name));
        }
        Ok(value)
    }

    /// The secret of an inline entry, by its name: the run's own, else a stored one that may go to that address.
    async fn secret_for(
        &self,
        tenant: &TenantId,
        name: &str,
        url: &Url,
        (run, secrets): (RunUid, &RunSecrets),
    ) -> Result<ClientSecret, String> {
        match secrets.find(name) {
            Found::Value(value) => {
                Ok(ClientSecret { name: name.to_owned(), value: value.clone(), owner: SecretOwner::Run(run) })
            }
            Found::Unreadable => Err(format!("its secret {name:?} cannot be opened")),
            Found::Nothing => {
                let secret = self.stored(tenant, name, Duration::MAX).await?;
                let secret = secret.ok_or_else(|| format!("its secret {name:?} is missing"))?;
                let opened = secret.as_ref().as_ref().map_err(Clone::clone)?;
                value_for(opened, name, url)?;
                Ok(opened.of_client(name))
            }
        }
    }

    /// The key of a run's model: a run-scoped secret, or a stored one that may go to the model's address.
    ///
    /// # Errors
    /// Why there is none.
    pub async fn model_secret(
        &self,
        tenant: &TenantId,
        model: &ModelSpec,
        secrets: &RunSecrets,
    ) -> Result<Option<SecretString>, SecretFault> {
        let Some(name) = &model.secret else { return Ok(None) };
        match secrets.find(name) {
            Found::Value(value) => return Ok(Some(value.clone())),
            Found::Unreadable => return Err(SecretFault::lasting("the model's secret cannot be opened")),
            Found::Nothing => {}
        }
        // Turns of a script leave nowhere.
        let Some(address) = model.address() else { return Ok(None) };
        let url =
            Url::parse(address).map_err(|_unparsable| SecretFault::lasting("the model's address is not a URL"))?;
        let secret = self.stored(tenant, name, Duration::MAX).await;
        let secret = secret.map_err(|message| SecretFault { message, is_passing: true })?;
        let unusable = |why: &str| SecretFault::lasting(format!("the model cannot be asked: {why}"));
        let secret = secret.ok_or_else(|| unusable(&format!("its secret {name:?} is missing")))?;
        let opened = secret.as_ref().as_ref().map_err(|why| unusable(why))?;
        value_for(opened, name, &url).map(|value| Some(value.clone())).map_err(|why| unusable(&why))
    }

    /// Takes out of what a run's models say whatever its servers and its models are told. A server that cannot be looked
    /// up now is told nothing now.
    pub async fn told_to(
        &self,
        reader: &Claim,
        binding: &Binding,
        model: &ModelSpec,
        secrets: &RunSecrets,
    ) -> Redactor {
        let entries = &binding.entries;
        let samples = entries.iter().filter_map(|entry| Some(&entry.sampling.as_ref()?.model));
        let mut told = Redactor::of(secrets.opened().map(|(_, value)| value));
        for model in samples.chain([model]) {
            match self.model_secret(&reader.tenant, model, secrets).await {
                Ok(key) => told = told.joined(&self.told_to_model(&reader.tenant, model, key, secrets)),
                Err(fault) => {
                    tracing::debug!(run = %reader.uid.0, %fault, "a model's key is not there to be looked for");
                }
            }
        }
        for entry in entries.iter().filter(|entry| !entry.is_unused()) {
            match self.target(&reader.tenant, entry, (reader.uid, reader.fence), secrets).await {
                Ok(target) => told = told.joined(&target.told.now()),
                Err(fault) => {
                    tracing::debug!(run = %reader.uid.0, fault, "a server's secret is not there to be looked for");
                }
            }
        }
        told
    }

    /// The key of a model, and those that it was told before.
    fn told_to_model(
        &self,
        tenant: &TenantId,
        model: &ModelSpec,
        key: Option<SecretString>,
        secrets: &RunSecrets,
    ) -> Redactor {
        let is_runs_own = model.secret.as_ref().is_some_and(|name| !matches!(secrets.find(name), Found::Nothing));
        let place = (tenant.clone(), model.address().unwrap_or_default().to_owned());
        let key = key.as_slice();
        if !is_runs_own {
            self.told.note(std::slice::from_ref(&place), key);
        }
        self.told.known(&place).and(key)
    }

    /// Whether a stored secret may go to that address, as it stands now. `None`: there is no such secret.
    ///
    /// # Errors
    /// `is_passing` when the store does not answer; else why it may not, for people.
    pub async fn check_secret(
        &self,
        tenant: &TenantId,
        name: &str,
        address: Option<&str>,
    ) -> Result<Option<()>, SecretFault> {
        let secret = self.stored(tenant, name, Duration::ZERO).await;
        let secret = secret.map_err(|message| SecretFault { message, is_passing: true })?;
        let Some(secret) = secret else { return Ok(None) };
        let opened = secret.as_ref().as_ref().map_err(|_why| SecretFault::lasting("the secret cannot be opened"))?;
        // An address that does not read is another fault.
        let Some(url) = address.and_then(|address| Url::parse(address).ok()) else { return Ok(Some(())) };
        if value_for(opened, name, &url).is_ok() {
            return Ok(Some(()));
        }
        let host = url.host_str().unwrap_or_default();
        Err(SecretFault::lasting(format!("the hosts of the secret {name:?} do not include '{host}'")))
    }

    /// What is registered or declared under a name, as it stands now.
    ///
    /// # Errors
    /// The store does not answer, in words.
    pub async fn registered(&self, tenant: &TenantId, name: &str) -> Result<Option<McpEntry>, String> {
        Ok(self.server(tenant, name, Duration::ZERO).await?.map(|server| server.entry.clone()))
    }

    /// Whether the operator declared that name, for whomever.
    pub fn is_declared(&self, name: &str) -> bool {
        self.registry.declared.has(name)
    }

    /// Servers or secrets were changed, by this node or another: what leads elsewhere now is seen at the next use.
    pub fn registry_changed(&self) {
        self.registry.expire();
    }

    /// Connects to a registered server and looks at what it says of itself.
    ///
    /// # Errors
    /// `None`: nothing has that name. Else why it cannot be reached.
    pub async fn sight(&self, tenant: &TenantId, name: &str) -> Result<(McpEntry, Sighting), Option<Unreachable>> {
        let unreachable = |message: String| Some(Unreachable { server: name.to_owned(), message });
        let entry = self.registered(tenant, name).await.map_err(unreachable)?.ok_or(None)?;
        let looking = async {
            let target = self.registered_target(tenant, name, &entry, None, &RunSecrets::new()).await?;
            self.pool.sight(tenant, &target).await.map_err(|fault| fault.message)
        };
        let looked = tokio::time::timeout(SIGHT_TIME, looking).await;
        let looked = looked.unwrap_or_else(|_elapsed| Err(format!("no answer within {} s", SIGHT_TIME.as_secs())));
        looked.map(|sighting| (entry, sighting)).map_err(unreachable)
    }

    /// `entry` is what the run is bound to, `registered` where it leads.
    fn put_together(
        &self,
        (entry, registered): (&McpEntry, &McpEntry),
        url: Url,
        credential: Option<Credential>,
        secrets: &RunSecrets,
        whose: Whose<'_>,
    ) -> McpTarget {
        let told = self.told_there(&url, credential.as_ref(), secrets, &whose);
        let (secret_header, bearer) = credential.map(|told| (told.header, told.bearer)).unwrap_or_default();
        let offers = offers_of(entry, whose.drive);
        McpTarget {
            place: place_at(&url, registered),
            endpoint: Endpoint::Http(url),
            headers: registered.headers.iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
            secret_header,
            bearer,
            timeouts: entry.timeouts,
            // The credential is the run's own, or its server may ask this run: so is the connection.
            private_to: whose.private_to.or(whose.drive.filter(|_| offers.any())),
            offers,
            origin: whose.origin,
            told,
        }
    }

    /// The run's own secrets, and whatever the tenant ever told that server: it may repeat what was replaced since.
    fn told_there(&self, url: &Url, credential: Option<&Credential>, secrets: &RunSecrets, whose: &Whose<'_>) -> Told {
        let secret = credential.map(|credential| &credential.secret);
        let own = Redactor::of(secrets.opened().map(|(_, value)| value).chain(secret));
        let places: Vec<Place> = [url.as_str().split(['?', '#']).next(), whose.origin.as_deref()]
            .into_iter()
            .flatten()
            .map(|place| (whose.tenant.clone(), place.to_owned()))
            .collect();
        if let (Some(secret), None) = (secret, whose.private_to) {
            self.told.note(&places, std::slice::from_ref(secret));
        }
        let bearer = credential.and_then(|credential| credential.bearer.clone());
        // What a run's own secret bought ends with the run, like the secret.
        let (ever, is_kept) = (Arc::clone(&self.told), whose.private_to.is_none());
        Told::new(move || {
            let spoken = bearer.as_ref().map(|bearer| bearer.spoken()).unwrap_or_default();
            if is_kept {
                ever.note(&places, &spoken);
            }
            places.iter().fold(own.clone().and(&spoken), |told, place| told.joined(&ever.known(place)))
        })
    }
}

/// Which runs a connection may serve, and what it was looked up by.
struct Whose<'a> {
    tenant: &'a TenantId,
    drive: Option<Drive>,
    private_to: Option<Drive>,
    origin: Option<String>,
}

/// A process of ours. What the operator gave it to keep is taken out of what it says.
fn process_target(
    process: &Arc<StdioServer>,
    entry: &McpEntry,
    drive: Option<Drive>,
    secrets: &RunSecrets,
) -> McpTarget {
    let offers = offers_of(entry, drive);
    let given = process.env.iter().map(|(_, value)| value);
    let told = Redactor::of(secrets.opened().map(|(_, value)| value).chain(given));
    McpTarget {
        place: place_in(process),
        endpoint: Endpoint::Stdio(Arc::clone(process)),
        headers: Vec::new(),
        secret_header: None,
        bearer: None,
        timeouts: entry.timeouts,
        private_to: drive.filter(|_| offers.any()),
        offers,
        origin: Some(server_origin(&process.name)),
        told: Told::new(move || told.clone()),
    }
}

/// What a server may ask of the run. Where no run is, nothing can be asked of it.
fn offers_of(entry: &McpEntry, drive: Option<Drive>) -> Offers {
    match drive {
        Some(_) => Offers { elicitation: entry.elicitation == Elicitation::Ask, sampling: entry.sampling.is_some() },
        None => Offers::default(),
    }
}

fn server_origin(name: &str) -> String {
    format!("server/{name}")
}

fn secret_origin(name: &str) -> String {
    format!("secret/{name}")
}
