//! Speaks MCP. rmcp types stop here: the rest of the server sees catalogs, calls and outcomes.

mod asks;
mod attempt;
mod authorized;
mod bearer;
mod body;
mod catalog;
mod client;
mod connection;
pub mod demo;
mod ears;
mod era;
mod handshake;
mod headers;
mod ids;
mod known;
mod link;
mod listen;
mod listening;
mod listing;
mod observe;
mod outcome;
mod outline;
mod owed;
mod params;
mod pool;
mod progress;
mod promise;
mod questions;
mod session_stream;
mod shape;
mod sight;
mod stdio;
mod task;
mod told;
mod transport;
mod wire;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use secrecy::SecretString;
use serde_json::{Map, Value};
use url::Url;

use crate::bulk::Held;
use crate::run::ids::{Fence, RunUid};
use crate::run::spec::Timeouts;

pub use asks::{AskDoor, AskRefusal, Continuation, ServerAsk};
pub use bearer::{Bearer, BearerSource, BearerToken};
pub use catalog::{News, Subscription};
pub use pool::McpPool;
pub use progress::ProgressSink;
pub use sight::Sighting;
pub use stdio::{StdioServer, stand_guard};
pub use task::TaskRequest;
pub use told::Told;

/// One MCP server as a run reaches it.
#[derive(Clone, Debug)]
pub struct McpTarget {
    /// A mark of the address and of who is told there by what: calls are bound to it.
    pub place: String,
    /// Where it is.
    pub endpoint: Endpoint,
    /// Plain headers of every request; a process has none.
    pub headers: Vec<(String, String)>,
    /// Header name and value that carry a secret, e.g. `authorization`, `Bearer …`.
    pub secret_header: Option<(String, SecretString)>,
    /// Instead: where the token of the header `Authorization` comes from.
    pub bearer: Option<Bearer>,
    /// Time limits.
    pub timeouts: Timeouts,
    /// The drive of a run whose own connection this is (it carries run-scoped secrets); `None`: the tenant's pool shares
    /// it.
    pub private_to: Option<(RunUid, Fence)>,
    /// What it was looked up by, e.g. `server/orders`: when that leads elsewhere, `McpPool::retire` ends what it led to.
    pub origin: Option<String>,
    /// What its server may ask of the run.
    pub offers: Offers,
    /// What is taken out of everything that it says.
    pub told: Told,
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

/// Where an MCP server is.
#[derive(Clone, Debug)]
pub enum Endpoint {
    /// Streamable HTTP at this address.
    Http(Url),
    /// A process of our own, one for each tenant.
    Stdio(Arc<StdioServer>),
}

impl Endpoint {
    /// The server's identity for limits and breakers: what it is reached at, without what may hold a secret.
    pub fn server(&self) -> String {
        match self {
            Self::Http(url) => url.as_str().split(['?', '#']).next().unwrap_or_default().to_owned(),
            Self::Stdio(server) => format!("stdio:{}", server.name),
        }
    }

    fn transport(&self) -> &'static str {
        match self {
            Self::Http(_) => "http",
            Self::Stdio(_) => "stdio",
        }
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
    /// How often its server turned it away already.
    pub turned_away: u32,
    /// Whether the call may still leave.
    pub may_leave: MayLeave,
    /// Where its server's questions go while it is out; `None`: it may ask nothing.
    pub asks: Option<AskDoor>,
    /// The replies to what the server answered the last attempt with.
    pub continuation: Option<Continuation>,
    /// Keeps the bytes of a large answer until whoever has it lets them go.
    pub held: Held,
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

/// Why there is no connection, or no catalog.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct McpFault {
    /// For people; may quote the server, without what it was told.
    /// Inside of this module: as the server wrote it.
    pub message: String,
    /// What kind of fault it is.
    pub kind: FaultKind,
}

/// What kind of fault keeps a server from being used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// No connection came about, or it broke.
    Unreachable,
    /// No handshake in time.
    TimeOut,
    /// The server says that it cannot serve: a status of 500 or more.
    ServerError,
    /// The process did not start, or ended.
    Process,
    /// The server turned us away: a status below 500.
    Refused,
    /// It answered something that is no handshake or no catalog.
    Protocol,
    /// Our own rules keep us from asking it.
    Forbidden,
    /// It was down so often that it is left alone for a while.
    Paused,
    /// The tenant has as many connections as it may have, all in use.
    Full,
    /// This process is stopping.
    Closing,
}

impl FaultKind {
    /// The word for the metrics.
    pub const fn code(self) -> &'static str {
        match self {
            Self::Unreachable => "unreachable",
            Self::TimeOut => "time-out",
            Self::ServerError => "server-error",
            Self::Process => "process",
            Self::Refused => "refused",
            Self::Protocol => "protocol",
            Self::Forbidden => "forbidden",
            Self::Paused => "paused",
            Self::Full => "full",
            Self::Closing => "closing",
        }
    }

    /// Whether the server is up: `None` where the fault tells nothing of it.
    const fn is_up(self) -> Option<bool> {
        match self {
            Self::Unreachable | Self::TimeOut | Self::ServerError | Self::Process => Some(false),
            Self::Refused | Self::Protocol => Some(true),
            Self::Forbidden | Self::Paused | Self::Full | Self::Closing => None,
        }
    }
}

impl McpFault {
    /// A fault of what the server said.
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self::of(FaultKind::Protocol, message)
    }

    /// A fault in words.
    pub(crate) fn of(kind: FaultKind, message: impl Into<String>) -> Self {
        Self { message: message.into(), kind }
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
    /// Bytes of large answers that all tenants together may have in hand at once.
    pub bulk_bytes: usize,
    /// How long an answer may still arrive after a run with a call out was cancelled.
    pub cancel_grace: Duration,
    /// Connections of one tenant that may be open at once.
    pub tenant_connections: usize,
    /// Connections of one tenant to one server that may be open at once.
    pub server_connections: usize,
    /// How long a caller waits for one of them to become free.
    pub place_wait: Duration,
    /// When a server that is down is left alone.
    pub breaker: BreakerSettings,
}

impl PoolSettings {
    /// As a server keeps them, with these limits for one tenant, in all and to one server, and of large answers.
    pub const fn bounded(tenant_connections: usize, server_connections: usize, bulk_bytes: usize) -> Self {
        Self {
            idle_close: Duration::from_mins(5),
            max_age: Duration::from_hours(1),
            max_result_bytes: 16 * 1024 * 1024,
            bulk_bytes,
            cancel_grace: Duration::from_secs(2),
            tenant_connections,
            server_connections,
            place_wait: Duration::from_secs(5),
            breaker: BreakerSettings { failures: 5, pause: Duration::from_secs(2), pause_max: Duration::from_mins(1) },
        }
    }
}

/// When a server that is down is left alone, for each tenant by itself.
#[derive(Clone, Copy, Debug)]
pub struct BreakerSettings {
    /// Failures to connect in a row until then.
    pub failures: u32,
    /// The first pause; each failed trial doubles it.
    pub pause: Duration,
    /// The longest pause.
    pub pause_max: Duration,
}
