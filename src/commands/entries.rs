//! The MCP entries of a request as a run is bound to them: inline ones, and registered servers that they tighten.

use serde_json::Value;

use super::faults::Faults;
use super::request::EntryRequest;
use super::{Asker, CommandError, Commands, entry};
use crate::run::spec::{McpAuth, McpEntry};
use crate::run::tighten::tighten;
use crate::schema::{Budget, FAULT_MAX, Unusable};
use crate::secrets::{Redactor, RunSecrets};

/// What a run was told in confidence stays where it was told to go, whoever resumes it.
const OWN_SECRET: &str = "is the run's own: it goes only where it was given for, under the same address";

impl Commands {
    /// The entries as the run is bound to them. `secrets` is `None` for a resume: the run's own names are not known
    /// here, and `check_secrets_of` looks at them later.
    pub(super) async fn check_entries(
        &self,
        asker: &Asker,
        requests: Vec<EntryRequest>,
        secrets: Option<&RunSecrets>,
        faults: &mut Faults,
    ) -> Result<Vec<McpEntry>, CommandError> {
        let several = requests.len() > 1;
        let (mut entries, mut budget) = (Vec::new(), Budget::of_set());
        for (index, request) in requests.into_iter().enumerate() {
            let at = format!("/mcp/{index}");
            self.check_schemas(asker, &request, &at, &mut budget, faults).await?;
            let entry = if let Some(server) = request.server.clone() {
                self.registered_entry(asker, &server, request, &at, faults).await?
            } else {
                let named = request.namespace.is_some();
                faults.require(named || !several, &format!("{at}/namespace"), "several entries need a namespace each");
                self.inline_entry(asker, request, secrets, &at, faults).await?
            };
            if let Some(mut entry) = entry {
                // An explicit namespace wins; a single entry needs none.
                if several && entry.namespace.is_none() {
                    entry.namespace.clone_from(&entry.server);
                }
                entries.push(entry);
            }
        }
        Ok(entries)
    }

    /// The schemas that an entry brings for its tools. They are compiled when they are stored, so that nobody learns at a
    /// call that they cannot be.
    pub(super) async fn check_schemas(
        &self,
        asker: &Asker,
        request: &EntryRequest,
        at: &str,
        budget: &mut Budget,
        faults: &mut Faults,
    ) -> Result<(), CommandError> {
        for (tool, schema) in request.input_schemas.iter().flatten() {
            let tool = tool.replace('~', "~0").replace('/', "~1");
            self.check_schema(asker, schema, format!("{at}/input_schemas/{tool}"), budget, faults).await?;
        }
        Ok(())
    }

    /// One schema of a request: it must compile, within what all of them may cost.
    pub(super) async fn check_schema(
        &self,
        asker: &Asker,
        schema: &Value,
        at: String,
        budget: &mut Budget,
        faults: &mut Faults,
    ) -> Result<(), CommandError> {
        match self.dispatch.schemas().of(&asker.tenant, schema, budget).await {
            Ok(_) => Ok(()),
            Err(Unusable::Fault(why)) => {
                faults.add(at, Redactor::default().cut(&why, FAULT_MAX));
                Ok(())
            }
            Err(Unusable::Busy(busy)) => Err(CommandError::NotEvaluated(format!("a JSON Schema {busy}"))),
        }
    }

    async fn inline_entry(
        &self,
        asker: &Asker,
        request: EntryRequest,
        secrets: Option<&RunSecrets>,
        at: &str,
        faults: &mut Faults,
    ) -> Result<Option<McpEntry>, CommandError> {
        let Some(entry) = entry::check(request, at, faults) else { return Ok(None) };
        self.check_address(&entry, at, faults);
        if let (Some(auth), Some(secrets)) = (&entry.auth, secrets)
            && !secrets.has(auth.secret())
        {
            self.check_stored_for(asker, auth, &entry, &format!("{at}/auth/secret"), faults).await?;
        }
        self.check_sampling(asker, &entry, secrets, at, faults).await?;
        Ok(Some(entry))
    }

    /// A stored secret must be meant for every host that the entry names.
    pub(super) async fn check_stored_for(
        &self,
        asker: &Asker,
        auth: &McpAuth,
        entry: &McpEntry,
        pointer: &str,
        faults: &mut Faults,
    ) -> Result<(), CommandError> {
        let named = auth.addresses().into_iter().map(|(_, address)| Some(address));
        for address in std::iter::once(entry.url.as_deref()).chain(named) {
            let before = faults.count();
            self.check_stored(asker, auth.secret(), address, pointer, faults).await?;
            if faults.count() > before {
                break;
            }
        }
        Ok(())
    }

    async fn registered_entry(
        &self,
        asker: &Asker,
        server: &str,
        request: EntryRequest,
        at: &str,
        faults: &mut Faults,
    ) -> Result<Option<McpEntry>, CommandError> {
        let beside = entry::beside(request, at, faults);
        let registered = if entry::is_server_name(server) {
            self.dispatch.registered(&asker.tenant, server).await.map_err(CommandError::NotLookedUp)?
        } else {
            None
        };
        let Some(registered) = registered else {
            faults.add(format!("{at}/server"), format!("there is no registered server named {server:?}"));
            return Ok(None);
        };
        match tighten(server, &registered, beside) {
            Ok(entry) => Ok(Some(entry)),
            Err(looser) => {
                for looser in looser {
                    faults.add(format!("{at}{}", looser.pointer), looser.detail);
                }
                Ok(None)
            }
        }
    }

    /// The model that the server may have asked.
    pub(super) async fn check_sampling(
        &self,
        asker: &Asker,
        entry: &McpEntry,
        secrets: Option<&RunSecrets>,
        at: &str,
        faults: &mut Faults,
    ) -> Result<(), CommandError> {
        match &entry.sampling {
            Some(sampling) => {
                self.check_model(asker, &sampling.model, secrets, &format!("{at}/sampling/model"), faults).await
            }
            None => Ok(()),
        }
    }

    /// Whether the server may reach the entry's address at all.
    pub(super) fn check_address(&self, entry: &McpEntry, at: &str, faults: &mut Faults) {
        if let Some(address) = &entry.url
            && let Err(refused) = self.dispatch.check_address(address)
        {
            faults.add(format!("{at}/url"), refused);
        }
        for (name, address) in entry.auth.iter().flat_map(McpAuth::addresses) {
            if let Err(refused) = self.dispatch.check_address(address) {
                faults.add(format!("{at}/auth/{name}"), refused);
            }
        }
    }

    /// The secrets of entries that came with a resume: the run's own, or stored ones.
    pub(super) async fn check_secrets_of(
        &self,
        asker: &Asker,
        (entries, bound): (&[McpEntry], &[McpEntry]),
        secrets: &RunSecrets,
    ) -> Result<(), CommandError> {
        let mut faults = Faults::default();
        for (index, entry) in entries.iter().enumerate() {
            let at = format!("/mcp/{index}");
            match &entry.auth {
                Some(auth) if secrets.has(auth.secret()) => {
                    let known = |known: &McpEntry| (&known.url, &known.auth) == (&entry.url, &entry.auth);
                    faults.require(bound.iter().any(known), &format!("{at}/auth/secret"), OWN_SECRET);
                }
                Some(auth) => {
                    self.check_stored_for(asker, auth, entry, &format!("{at}/auth/secret"), &mut faults).await?;
                }
                None => {}
            }
            let model = |entry: &McpEntry| entry.sampling.as_ref().map(|sampling| sampling.model.clone());
            if let Some(wanted) = model(entry)
                && wanted.secret.as_ref().is_some_and(|secret| secrets.has(secret))
            {
                let known = bound.iter().any(|known| model(known).as_ref() == Some(&wanted));
                faults.require(known, &format!("{at}/sampling/model/secret"), OWN_SECRET);
            }
            self.check_sampling(asker, entry, Some(secrets), &at, &mut faults).await?;
        }
        faults.finish()
    }
}
