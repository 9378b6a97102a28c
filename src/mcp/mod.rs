//! Speaks MCP. rmcp types stop here: the rest of the server sees catalogs, calls and outcomes.

mod asks;
mod attempt;
mod body;
mod catalog;
mod client;
mod connection;
mod counted;
pub mod demo;
mod ears;
mod era;
mod handshake;
mod listen;
mod listening;
mod listing;
mod outcome;
mod outline;
mod params;
mod pool;
mod progress;
pub mod schemas;
mod shape;
mod sight;
mod task;
mod transport;
mod wire;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use secrecy::SecretString;
use serde_json::{Map, Value};
use url::Url;

use crate::run::ids::{Fence, RunUid};
use crate::run::spec::Timeouts;

pub use asks::{AskDoor, AskRefusal, Continuation, ServerAsk};
pub use catalog::{News, Subscription};
pub use pool::McpPool;
pub use progress::ProgressSink;
pub use sight::Sighting;
pub use task::TaskRequest;

/// One MCP server as a run reaches it.
#[derive(Clone, Debug)]
pub struct McpTarget {
    /// The Streamable HTTP endpoint.
    pub url: Url,
    /// Plain headers of every request.
    pub headers: Vec<(String, String)>,
    /// Header name and value that carry a secret, e.g. `authorization`, `Bearer …`.
    pub secret_header: Option<(String, SecretString)>,
    /// Time limits.
    pub timeouts: Timeouts,
    /// The drive of a run whose own connection this is (it carries run-scoped secrets); `None`: the tenant's pool shares
    /// it.
    pub private_to: Option<(RunUid, Fence)>,
    /// What it was looked up by, e.g. `server/orders`: when that leads elsewhere, `McpPool::retire` ends what it led to.
    pub origin: Option<String>,
    /// What its server may ask of the run.
    pub offers: Offers,
}

/// What a server may ask of the run whose own connection it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offers {
    /// Input of people.
    pub elicitation: bool,
    /// Samples of a model.
    pub sampling: bool,
}

impl Offers {
    /// Whether it may ask anything.
    pub const fn any(self) -> bool {
        self.elicitation || self.sampling
    }
}

/// One call of a tool.
#[derive(Clone, Debug)]
pub struct ToolRequest {
    /// The server's name of the tool.
    pub server_tool: String,
    /// The arguments, digits as the model wrote them.
    pub arguments: Map<String, Value>,
    /// Sent as `_meta` (`countersign/run`, `countersign/turn`, `countersign/call-id`, `countersign/idempotency-key`).
    pub meta: Map<String, Value>,
    /// Sent as the header `Idempotency-Key` of this request.
    pub idempotency_key: String,
    /// The tool's schema of its arguments, as the server gave it: it may want some of them in headers too.
    pub input_schema: Value,
    /// Hears how far the call has come.
    pub progress: ProgressSink,
    /// The server's schema of `structuredContent`; a result that does not fit is a failed call.
    pub output_schema: Option<Value>,
    /// Whether the call may still leave.
    pub may_leave: MayLeave,
    /// Where its server's questions go while it is out; `None`: it may ask nothing.
    pub asks: Option<AskDoor>,
    /// The replies to what the server answered the last attempt with.
    pub continuation: Option<Continuation>,
}

/// Asked in the moment before a call leaves. A handshake, or a pause before a second attempt, may take longer than the
/// right to send lasts.
#[derive(Clone)]
pub struct MayLeave(Arc<dyn Fn() -> bool + Send + Sync>);

impl MayLeave {
    /// The right to send, as its owner sees it whenever it is asked for.
    pub fn new(holds: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(holds))
    }

    fn holds(&self) -> bool {
        (self.0)()
    }
}

impl fmt::Debug for MayLeave {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MayLeave").field(&self.holds()).finish()
    }
}

/// Why a server gave no catalog.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct McpFault {
    /// For people; names the server's fault, never a secret.
    pub message: String,
}

impl McpFault {
    /// A fault in words.
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into() }
    }
}

/// How the pool treats connections.
#[derive(Clone, Copy, Debug)]
pub struct PoolSettings {
    /// A shared connection that nobody used for so long is closed.
    pub idle_close: Duration,
    /// A shared connection older than that is replaced once nobody uses it.
    pub max_age: Duration,
    /// Largest answer that is read, in bytes; of a listing each page.
    pub max_result_bytes: usize,
    /// How long an answer may still arrive after a run with a call out was cancelled.
    pub cancel_grace: Duration,
}
