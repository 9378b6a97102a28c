//! MCP servers that are processes of this node: declared by the operator, one process for each tenant.
//!
//! `process` starts and ends them, `strays` finds what left their groups, `lines` and `errors` read what they write,
//! `input` writes to them, `reading` tells what their lines say, `transport` is the protocol over their pipes and knows what
//! was written of a call. Here is how the two eras are told apart: a server that speaks the older one may
//! never answer the question for the newer, or take it amiss, so it is asked by a process of its own.

mod errors;
mod guard;
mod input;
mod lines;
mod process;
mod reading;
#[cfg(target_os = "linux")]
mod strays;
#[cfg(not(target_os = "linux"))]
#[path = "no_strays.rs"]
mod strays;
mod transport;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rmcp::model::ProtocolVersion;
use rmcp::service::ClientLifecycleMode;
use secrecy::{ExposeSecret as _, SecretString};
use tokio::time::Instant;

pub use guard::stand_guard;
pub(super) use process::Children;
pub(super) use transport::StdioLink;

use self::process::Process;
use self::transport::StdioTransport;
use super::connection::Connection;
use super::ears::Ears;
use super::era::Eras;
use super::handshake::lifecycle_of;
use super::link::Link;
use super::{FaultKind, McpFault, McpTarget, PoolSettings};
use crate::bulk::Share;

/// Longest wait for an answer to the question for the newer era.
const PROBE_PATIENCE: Duration = Duration::from_secs(3);

/// A server that is a process of ours.
#[derive(Clone)]
pub struct StdioServer {
    /// What the operator calls it.
    pub name: String,
    /// The program: a path, or a name that is looked for in the server's own `PATH`.
    pub command: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// All of its environment besides `PATH` and `HOME`.
    pub env: Vec<(String, SecretString)>,
    /// Where it runs; `/` unless declared.
    pub cwd: Option<PathBuf>,
}

impl fmt::Debug for StdioServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("StdioServer").field(&self.name).finish()
    }
}

impl StdioServer {
    /// Hands over everything that makes it another server when it changes.
    pub(super) fn identity(&self, add: &mut impl FnMut(&[u8])) {
        add(self.name.as_bytes());
        add(self.command.as_bytes());
        add(&self.args.len().to_be_bytes());
        for argument in &self.args {
            add(argument.as_bytes());
        }
        add(&self.env.len().to_be_bytes());
        for (name, value) in &self.env {
            add(name.as_bytes());
            add(value.expose_secret().as_bytes());
        }
        add(self.cwd.as_deref().unwrap_or(process::HOME.as_ref()).as_os_str().as_encoded_bytes());
    }
}

/// Starts a server and agrees on a protocol revision with it, within the connect time.
///
/// # Errors
/// What went wrong, in words without secrets.
pub(super) async fn open(
    server: &Arc<StdioServer>,
    children: &Children,
    target: &McpTarget,
    (settings, share): (PoolSettings, &Share),
    eras: &Arc<Eras>,
) -> Result<Connection, McpFault> {
    let (name, until) = (target.endpoint.server(), Instant::now() + Duration::from_millis(target.timeouts.connect_ms));
    let start = async |lifecycle, patience| {
        let (process, pipes) = Process::start(server, children).await.map_err(|error| {
            McpFault::of(FaultKind::Process, format!("The MCP server could not be started: {error}."))
        })?;
        let ears = Ears::new(true);
        let limits = (settings.max_result_bytes, share.clone());
        let (transport, link) = StdioTransport::new(server, process, pipes, limits, &ears);
        Connection::open_on((transport, Link::Stdio(link), ears), target, lifecycle, patience, (&name, eras)).await
    };
    let mut was_silent = false;
    if !eras.is_old(&name) {
        let patience = PROBE_PATIENCE.min(until.saturating_duration_since(Instant::now()) / 3);
        let newer = ClientLifecycleMode::Discover { preferred_versions: vec![ProtocolVersion::LATEST] };
        match start(newer, patience).await {
            Ok(connection) => {
                eras.learn(&name, Some(false));
                return Ok(connection);
            }
            Err(fault) => {
                was_silent = fault.kind == FaultKind::TimeOut;
                let fault = target.clean(fault);
                tracing::debug!(server = %server.name, %fault, "no answer in the newer era");
            }
        }
    }
    let left = || until.saturating_duration_since(Instant::now());
    let mut opened = start(lifecycle_of(true), left()).await;
    // It was taken for one of the older era because it said nothing in time, and does not speak that: it was slow.
    if was_silent && opened.as_ref().is_err_and(|fault| fault.kind == FaultKind::Refused) {
        let newer = ClientLifecycleMode::Discover { preferred_versions: vec![ProtocolVersion::LATEST] };
        opened = start(newer, left()).await;
    }
    eras.learn(&name, opened.as_ref().ok().map(|connection| connection.has_sessions));
    opened
}
