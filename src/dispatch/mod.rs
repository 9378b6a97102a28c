//! Carries calls to their backends and reads what the backends offer. Decides nothing: what may be sent was decided
//! and stored before it comes here.
//!
//! **The effect boundary.** The receipt is stored before the first byte leaves. A crash in between leaves `executing`
//! for a call that was never sent: asking a person once too often is the price of never repeating an effect.

mod catalogs;
mod credential;
mod declared;
mod fresh;
mod gate;
mod out;
mod place;
mod registry;
mod target;
mod tasks;
mod told;

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use serde_json::{Map, Value};
use tokio::sync::mpsc;
use url::Url;

pub use crate::mcp::{AskRefusal, MayLeave, News, ProgressSink, ServerAsk, Sighting};
pub use catalogs::{Catalogs, Unreachable, Watched};
pub use declared::{Declared, Terms};
pub use gate::{Gate, INVALID_ARGUMENTS};
pub use out::{Out, Wait};
pub use registry::SecretFault;

use crate::bulk::{Bulk, Held};
use crate::mcp::{AskDoor, Continuation, McpPool, TaskRequest, ToolRequest};
use crate::net::Egress;
use crate::oauth::Tokens;
use crate::run::ask::{Asked, Question};
use crate::run::binding::Binding;
use crate::run::call::{Backend, Call, idempotency_key};
use crate::run::ids::{Fence, RunId, RunUid, TenantId};
use crate::run::outcome::{Answer, Cause, Outcome, ToolError};
use crate::run::spec::McpEntry;
use crate::schema::{Busy, Schemas};
use crate::secrets::{KeyRing, RunSecrets};
use crate::store::{Claim, Store, StoreError};
use catalogs::{ReadOne, unreadable};
use place::NOWHERE;
use registry::Registry;
use told::EverTold;

/// Whose call it is.
#[derive(Clone, Debug)]
pub struct Caller {
    /// The tenant.
    pub tenant: TenantId,
    /// The run's internal identity.
    pub uid: RunUid,
    /// The fence of the drive that calls.
    pub fence: Fence,
    /// The caller's name of the run.
    pub run: RunId,
    /// Whether its node may still send for it.
    pub may_leave: MayLeave,
    /// Where servers' questions go that may ask the run.
    pub asks: mpsc::Sender<ServerAsk>,
}

/// Reaches servers for runs.
pub struct Dispatch {
    pool: Arc<McpPool>,
    egress: Egress,
    keys: Arc<KeyRing>,
    store: Arc<dyn Store>,
    registry: Registry,
    tokens: Arc<Tokens>,
    told: Arc<EverTold>,
}

impl Dispatch {
    /// Puts the parts together, without servers that the operator declared.
    pub fn new(
        pool: Arc<McpPool>,
        egress: Egress,
        keys: Arc<KeyRing>,
        store: Arc<dyn Store>,
        tokens: Arc<Tokens>,
    ) -> Self {
        let registry = Registry::new(Arc::clone(&store), Arc::clone(&keys), Declared::default());
        Self { pool, egress, keys, store, registry, tokens, told: Arc::default() }
    }

    /// The same with servers that the operator declared.
    #[must_use]
    pub fn with_declared(mut self, declared: Declared) -> Self {
        self.registry.declared = declared;
        self
    }

    /// The gate of one leg.
    pub fn gate(&self, tenant: &TenantId) -> Gate {
        Gate::new(self.pool.schemas(), tenant.clone())
    }

    /// What of large answers is in hand.
    pub fn bulk(&self) -> &Bulk {
        self.pool.bulk()
    }

    /// Where JSON Schemas are compiled and values are checked by them.
    pub fn schemas(&self) -> Arc<Schemas> {
        self.pool.schemas()
    }

    /// What of a result is not as the schema that its tool was declared with wants it.
    ///
    /// # Errors
    /// The node is busy.
    pub async fn misfit(&self, tenant: &TenantId, schema: &Value, output: &Value) -> Result<Option<String>, Busy> {
        gate::misfit(&self.pool.schemas(), tenant, schema, output).await
    }

    /// Whether the server may reach that address at all.
    ///
    /// # Errors
    /// The reason, for people.
    pub fn check_address(&self, address: &str) -> Result<(), String> {
        let url = Url::parse(address).map_err(|fault| format!("is not a URL: {fault}"))?;
        self.egress.check(&url).map_err(|refused| refused.to_string())
    }

    /// The opened secrets of a run. One that cannot be opened is kept as such: whoever needs it says so.
    ///
    /// # Errors
    /// The store's.
    pub async fn secrets(&self, tenant: &TenantId, uid: RunUid) -> Result<RunSecrets, StoreError> {
        let mut opened = RunSecrets::new();
        for sealed in self.store.secret_list(tenant, uid).await? {
            let value = self.keys.open(tenant, uid, &sealed);
            let value = value.inspect_err(
                |fault| tracing::warn!(secret = %sealed.name, %fault, "a run-scoped secret cannot be opened"),
            );
            opened.insert(sealed.name, value.ok());
        }
        Ok(opened)
    }

    /// Reads all servers of a run at once, over connections that are the reader's own where they carry its secrets.
    ///
    /// # Errors
    /// The first required server that gave no catalog, in the order of the entries.
    pub async fn read(
        &self,
        reader: &Claim,
        entries: &[McpEntry],
        secrets: &RunSecrets,
        max_age: Duration,
    ) -> Result<Catalogs, Unreachable> {
        let reads = entries.iter().map(|entry| self.read_one(reader, entry, secrets, max_age));
        let mut read = Catalogs::default();
        for (entry, outcome) in entries.iter().zip(join_all(reads).await) {
            match outcome {
                Ok(one) => {
                    read.push(one);
                }
                Err(unreachable) if entry.required => return Err(unreachable),
                Err(unreachable) => {
                    read.push((None, None));
                    read.warnings.push(unreadable(&unreachable));
                }
            }
        }
        Ok(read)
    }

    /// Reads again the servers that announced other tools, or whose connection is gone; of the others the last reading
    /// holds. One that only went away keeps its last reading too, and is still news.
    ///
    /// # Errors
    /// The first required server that announced other tools and gave no catalog.
    pub async fn read_news(
        &self,
        reader: &Claim,
        entries: &[McpEntry],
        secrets: &RunSecrets,
        watched: &Watched,
    ) -> Result<Catalogs, Unreachable> {
        let reads = entries.iter().map(|entry| self.read_one(reader, entry, secrets, Duration::MAX));
        let mut read = Catalogs::default();
        for (at, (entry, outcome)) in entries.iter().zip(join_all(reads).await).enumerate() {
            let before = watched.0.get(at).cloned().flatten();
            match outcome {
                Ok(one) => read.push(one),
                Err(unreachable) if !entry.required => {
                    read.keep(before);
                    read.warnings.push(unreadable(&unreachable));
                }
                Err(unreachable) if before.as_ref().is_none_or(|kept| kept.news() == News::Announced) => {
                    return Err(unreachable);
                }
                Err(away) => {
                    tracing::warn!(run = %reader.uid.0, fault = %away, "a server is away; the run keeps its last catalog");
                    read.keep(before);
                }
            }
        }
        Ok(read)
    }

    async fn read_one(
        &self,
        reader: &Claim,
        entry: &McpEntry,
        secrets: &RunSecrets,
        max_age: Duration,
    ) -> Result<ReadOne, Unreachable> {
        if entry.is_unused() {
            return Ok((None, None));
        }
        let unreachable = |message: String| Unreachable { server: entry.label().to_owned(), message };
        let drive = (reader.uid, reader.fence);
        let target = self.target(&reader.tenant, entry, drive, secrets).await.map_err(unreachable)?;
        let read = self.pool.read(&reader.tenant, &target, max_age).await;
        let (catalog, subscription) = read.map_err(|fault| unreachable(fault.message))?;
        Ok((Some(catalog), Some(subscription)))
    }

    /// Waits for the end of a call that its server goes on with by itself.
    pub async fn follow(
        &self,
        caller: &Caller,
        binding: &Binding,
        call: &Call,
        secrets: &RunSecrets,
        wait: Wait,
    ) -> Outcome {
        let (Some(task), Some((entry, request))) = (&call.task, prepare(caller, binding, call)) else {
            return Outcome::Unknown(Cause::LostResponse);
        };
        let target = self.target(&caller.tenant, entry, (caller.uid, caller.fence), secrets).await;
        let target = match target {
            Ok(target) => target,
            Err(message) => {
                tracing::warn!(run = %caller.uid.0, %message, "a task cannot be asked for");
                return Outcome::Unknown(Cause::LostResponse);
            }
        };
        if leads_elsewhere(call, &target.place) {
            tracing::warn!(run = %caller.uid.0, "the server of a task was moved: nobody there knows it");
            return Outcome::Unknown(Cause::LostResponse);
        }
        let total = Duration::from_millis(entry.timeouts.call_total_ms).saturating_sub(wait.waited);
        let first_after = if wait.is_new { Duration::from_millis(task.poll_ms.unwrap_or(0)) } else { Duration::ZERO };
        let (id, output_schema) = (task.id.clone(), request.output_schema.clone());
        let task = TaskRequest { id, first_after, total, output_schema, held: wait.held };
        self.pool.follow(&caller.tenant, &target, &task, wait.cancel).await
    }

    /// Sends one call whose receipt is stored, and waits for what comes of it.
    pub async fn send(
        &self,
        caller: &Caller,
        binding: &Binding,
        call: &Call,
        secrets: &RunSecrets,
        out: Out,
    ) -> Outcome {
        let Some((entry, request)) = prepare(caller, binding, call) else {
            return Outcome::NotSent(ToolError::new("no-target", "The call has no server to go to."));
        };
        match self.target(&caller.tenant, entry, (caller.uid, caller.fence), secrets).await {
            Ok(target) => {
                let place = target.place.clone();
                if call.asked.as_ref().and_then(|asked| asked.place.as_ref()).is_some_and(|begun| *begun != place) {
                    return moved(entry);
                }
                if leads_elsewhere(call, &place) {
                    return Outcome::NotSent(not_sent_there(entry, call));
                }
                let told = target.told.clone();
                let door = || AskDoor::new(call.key, caller.asks.clone(), move |ask| told.now().ask(ask));
                let asks = entry.offers_asks().then(door);
                let request = ToolRequest { progress: out.progress, asks, held: out.held, ..request };
                let mut outcome = self.pool.call(&caller.tenant, &target, request, out.cancel).await;
                if let Outcome::InputRequired(questions) = &mut outcome {
                    questions.place = Some(place);
                }
                outcome
            }
            Err(why) => {
                let message =
                    format!("MCP server '{}' cannot be reached: {why}. The call was not executed.", entry.label());
                Outcome::NotSent(ToolError::new("mcp-unreachable", message))
            }
        }
    }

    /// Closes the connections that belong to this reader, or this drive of a run, alone.
    pub async fn release(&self, reader: &Claim) {
        self.pool.release_run(reader.uid, reader.fence).await;
    }
}

/// A server asked, and its name leads elsewhere now: what people answered was said to that server alone, and so was the
/// state that it wants back. What it did until it asked stands, and nobody goes on with it.
fn moved(entry: &McpEntry) -> Outcome {
    let label = entry.label();
    let message = format!(
        "MCP server '{label}' was moved to another address, or other headers or credentials, while the call waited for input. What it asked for was not \
         sent there, and the call was not finished."
    );
    Outcome::Answered(Answer::Failed { error: ToolError::new("mcp-server-moved", message), output: None })
}

/// Whether the entry leads somewhere else than when the call was judged.
fn leads_elsewhere(call: &Call, place: &str) -> bool {
    let judged = call.target.as_ref().and_then(|target| target.place.as_deref());
    judged.is_some_and(|judged| judged != place)
}

fn not_sent_there(entry: &McpEntry, call: &Call) -> ToolError {
    let label = entry.label();
    let is_unknown = call.target.as_ref().and_then(|target| target.place.as_deref()) == Some(NOWHERE);
    if is_unknown {
        let message = format!("MCP server '{label}' led nowhere when the call was judged. The call was not executed.");
        return ToolError::new("mcp-unreachable", message);
    }
    let message = format!(
        "MCP server '{label}' was moved to another address, or other headers or credentials, after the call was judged. \
         The call was not sent there."
    );
    ToolError::new("mcp-server-moved", message)
}

fn prepare<'a>(caller: &Caller, binding: &'a Binding, call: &Call) -> Option<(&'a McpEntry, ToolRequest)> {
    let target = call.target.as_ref().filter(|target| target.backend == Backend::Mcp)?;
    // By the offered name: a resume may have given the entries in another order.
    let tool = binding.tool(&call.tool)?;
    let entry = binding.entries.get(tool.entry()?)?;
    let key = idempotency_key(caller.uid, call.key);
    let mut meta = Map::new();
    meta.insert("countersign/run".to_owned(), caller.run.as_str().into());
    meta.insert("countersign/turn".to_owned(), call.key.turn.into());
    meta.insert("countersign/call-id".to_owned(), call.call_id.as_str().into());
    meta.insert("countersign/idempotency-key".to_owned(), key.clone().into());
    meta.insert("traceparent".to_owned(), traceparent(caller.uid, &key));
    let request = ToolRequest {
        server_tool: target.server_tool.clone(),
        arguments: call.input.as_object().cloned().unwrap_or_default(),
        meta,
        idempotency_key: key,
        input_schema: tool.input_schema.clone(),
        progress: ProgressSink::none(),
        output_schema: tool.output_schema.clone(),
        turned_away: call.turned_away,
        may_leave: caller.may_leave.clone(),
        asks: None,
        continuation: call.asked.as_deref().map(continuation),
        held: Held::default(),
    };
    Some((entry, request))
}

/// The replies to what the server asked in its last round.
fn continuation(asked: &Asked) -> Continuation {
    let replied = |(name, question): (&String, &Question)| Some((name.clone(), question.reply.clone()?));
    Continuation { replies: asked.questions.iter().filter_map(replied).collect(), state: asked.state.clone() }
}

/// One trace a run, one span a logical call: attempts of one call share it.
fn traceparent(uid: RunUid, key: &str) -> Value {
    let span: String = key.chars().take(16).collect();
    format!("00-{}-{span}-01", uid.0.simple()).into()
}
