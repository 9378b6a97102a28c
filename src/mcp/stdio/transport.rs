//! The protocol over the pipes of a process: one message a line.
//!
//! Writes into a call's `Attempt` what really happened: it leaves when its line begins to be written, one line at a
//! time, so a call that waits for another's line has certainly not left. A finished write does not mean that the server
//! read it: from then on only its answer tells. Noise on the output is passed over, as long as it is not endless.

use std::sync::Arc;
use std::time::Duration;

use dashmap::{DashMap, DashSet};
use http::HeaderMap;
use parking_lot::Mutex;
use rmcp::RoleClient;
use rmcp::model::{ClientJsonRpcMessage, ServerJsonRpcMessage};
use rmcp::transport::Transport;
use serde_json::Value;
use tokio::process::ChildStdout;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::StdioServer;
use super::errors::Errors;
use super::input::{Input, PipeFault};
use super::lines::Lines;
use super::process::{Pipes, Process};
use super::reading::Read;
use crate::bulk::{Share, aside};
use crate::failpoint;
use crate::mcp::attempt::{Attempt, Route, Stage};
use crate::mcp::ears::Ears;
use crate::mcp::owed::{FLOOD, Owed, Taken};
use crate::mcp::wire::{Post, cancellation, cancelled_id, id_text};
use crate::mcp::{AskDoor, FaultKind};

/// Noise between two messages that is passed over, in bytes.
const NOISE_MAX: usize = 4 * 1024 * 1024;
/// How much of a line that is too long is passed over at most, as a multiple of the longest line.
const PASS_OVER: usize = 8;
/// How long the notice that a call is not wanted any more may wait for the process to read.
const NOTICE_PATIENCE: Duration = Duration::from_millis(500);
/// How long what an ended process wrote is still read: a grandchild may keep its output open for ever.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// The connection's handle on the pipes.
#[derive(Clone)]
pub(in crate::mcp) struct StdioLink(Arc<Shared>);

pub(super) struct Shared {
    pub(super) input: tokio::sync::Mutex<Input>,
    pub(super) max_bytes: usize,
    /// Hears of announcements as they are read.
    pub(super) ears: Arc<Ears>,
    /// Calls that are out, by the id on the wire.
    pub(super) calls: DashMap<String, Arc<Attempt>>,
    /// Ids whose cancellation the server was told already.
    pub(super) told: DashSet<String>,
    /// What the server asked and has no answer to.
    pub(super) owed: Arc<Owed>,
    pub(super) last_fault: Mutex<Option<(FaultKind, String)>>,
    /// Cancelled once nothing can be written any more.
    pub(super) gone: CancellationToken,
}

/// The pipes as the protocol library uses them.
pub(super) struct StdioTransport {
    shared: Arc<Shared>,
    process: Option<Process>,
    output: Lines<ChildStdout>,
    errors: Errors,
    noise: usize,
    /// A request of the server that waits until one before it is answered.
    held: Option<(String, usize, ServerJsonRpcMessage)>,
    /// Set when the process has ended: until then what it wrote is still read.
    until: Option<Instant>,
}

impl StdioTransport {
    pub(super) fn new(
        server: &Arc<StdioServer>,
        process: Process,
        pipes: Pipes,
        (max_bytes, share): (usize, Share),
        ears: &Arc<Ears>,
    ) -> (Self, StdioLink) {
        let shared = Arc::new(Shared {
            input: tokio::sync::Mutex::new(Input::new(pipes.input)),
            max_bytes,
            ears: Arc::clone(ears),
            calls: DashMap::new(),
            told: DashSet::new(),
            owed: Owed::new(&server.name),
            last_fault: Mutex::new(None),
            gone: CancellationToken::new(),
        });
        let link = StdioLink(Arc::clone(&shared));
        let transport = Self {
            shared,
            process: Some(process),
            output: Lines::shared(pipes.output, max_bytes, max_bytes.saturating_mul(PASS_OVER), share),
            errors: Errors::new(server, pipes.errors),
            noise: 0,
            held: None,
            until: None,
        };
        (transport, link)
    }

    /// The next message; `None` once there will be none.
    async fn next_message(&mut self) -> Option<ServerJsonRpcMessage> {
        loop {
            if let Some((id, bytes, _)) = &self.held {
                let taken = tokio::select! {
                    taken = self.shared.owed.place(id, *bytes) => taken,
                    () = self.errors.read_on() => continue,
                };
                let held = self.held.take();
                if taken == Taken::In {
                    return held.map(|(_, _, message)| message);
                }
            }
            let Some(read) = self.read_line().await else {
                self.name_the_end().await;
                return None;
            };
            match read {
                Read::Message(message) => {
                    self.noise = 0;
                    return Some(*message);
                }
                Read::Request(id, bytes, message) => {
                    self.noise = 0;
                    if !self.shared.owed.may_come() {
                        self.shared.failed(FLOOD.to_owned());
                        return None;
                    }
                    self.held = Some((id, bytes, *message));
                }
                Read::Nothing => {}
                Read::Noise(bytes) => {
                    self.noise = self.noise.saturating_add(bytes);
                    if self.noise > NOISE_MAX {
                        self.shared.failed("its process writes something else than the protocol".to_owned());
                        return None;
                    }
                }
                Read::Flood => {
                    let max = self.shared.max_bytes;
                    self.shared.failed(format!("its process wrote a line of more than {max} bytes"));
                    return None;
                }
            }
        }
    }

    /// What the next line says; `None` once there will be none. What comes beside it says nothing.
    async fn read_line(&mut self) -> Option<Read> {
        let until = self.until;
        let line = tokio::select! {
            line = self.output.next() => line?,
            () = self.errors.read_on() => return Some(Read::Nothing),
            status = exited(&mut self.process), if until.is_none() => {
                self.shared.failed(format!("its process ended ({status})"));
                self.until = Some(Instant::now() + LAST_WORDS);
                return Some(Read::Nothing);
            }
            () = tokio::time::sleep_until(until.unwrap_or_else(Instant::now)), if until.is_some() => return None,
        };
        let hold = self.output.take_hold(&line);
        Some(aside(line.len(), || self.shared.read(line, hold)))
    }

    /// Writes down why the output ended: most often because the process did, at the same moment.
    async fn name_the_end(&mut self) {
        if self.until.is_none()
            && let Ok(status) = tokio::time::timeout(LAST_WORDS, exited(&mut self.process)).await
        {
            self.shared.failed(format!("its process ended ({status})"));
        }
        self.shared.failed("its process closed its output".to_owned());
    }
}

async fn exited(process: &mut Option<Process>) -> String {
    match process {
        Some(process) => process.exited().await.map_or_else(|error| error.to_string(), |status| status.to_string()),
        None => "already".to_owned(),
    }
}

impl Transport<RoleClient> for StdioTransport {
    type Error = PipeFault;

    fn send(&mut self, item: ClientJsonRpcMessage) -> impl Future<Output = Result<(), PipeFault>> + Send + 'static {
        let shared = Arc::clone(&self.shared);
        async move { shared.send(item).await }
    }

    async fn receive(&mut self) -> Option<ServerJsonRpcMessage> {
        let message = self.next_message().await;
        if message.is_none() {
            self.shared.gone.cancel();
        }
        message
    }

    async fn close(&mut self) -> Result<(), PipeFault> {
        // Whoever is writing stops at once, so the lock is free.
        self.shared.gone.cancel();
        self.process.iter_mut().for_each(Process::look_for_strays);
        self.shared.input.lock().await.close();
        if let Some(process) = self.process.take() {
            process.end().await;
        }
        Ok(())
    }
}

impl Drop for StdioTransport {
    fn drop(&mut self) {
        self.shared.gone.cancel();
    }
}

impl StdioLink {
    /// What ended the connection, as far as it has ended.
    pub(in crate::mcp) fn last_fault(&self) -> Option<(FaultKind, String)> {
        self.0.last_fault.lock().clone()
    }

    /// Whether nothing can be written any more.
    pub(in crate::mcp) fn is_gone(&self) -> bool {
        self.0.gone.is_cancelled()
    }

    /// The call that a server's question is about: the one that it names, else the oldest that is out.
    pub(in crate::mcp) fn door_of(&self, request: Option<&Value>) -> Option<AskDoor> {
        let calls = &self.0.calls;
        if let Some(id) = request {
            return calls.get(&id_text(id)).and_then(|attempt| attempt.asks().cloned());
        }
        calls.iter().filter_map(|attempt| attempt.asks().cloned()).min_by_key(|door| door.call)
    }

    /// How many calls are out.
    pub(in crate::mcp) fn calls_out(&self) -> usize {
        self.0.calls.len() + self.0.told.len()
    }

    /// Takes a call off the table of those that are out.
    pub(in crate::mcp) fn forget(&self, attempt: &Attempt) {
        if let Some(route) = attempt.route() {
            let id = id_text(&route.id);
            self.0.calls.remove(&id);
            self.0.told.remove(&id);
        }
    }

    /// Tells the server that a call is not wanted any more.
    pub(in crate::mcp) async fn cancel_call(&self, attempt: &Attempt, patience: Duration) {
        let Some(route) = attempt.route() else { return };
        self.0.told.insert(id_text(&route.id));
        failpoint::pass("mcp.cancel.before");
        match tokio::time::timeout(patience, self.0.tell(cancellation(&route.id))).await {
            Ok(Ok(())) => {}
            Ok(Err(fault)) => tracing::debug!(%fault, "a cancellation could not be sent"),
            Err(_elapsed) => tracing::debug!("a cancellation was not taken in time"),
        }
        failpoint::pass("mcp.cancel.after");
    }
}

impl Shared {
    /// Writes down what the connection failed of; the first thing that is known stays.
    fn failed(&self, why: String) {
        self.last_fault.lock().get_or_insert((FaultKind::Process, why));
    }

    async fn send(&self, message: ClientJsonRpcMessage) -> Result<(), PipeFault> {
        let _until_sent = self.owed.answering(&message);
        let cancelled = cancelled_id(&message);
        if cancelled.as_ref().is_some_and(|id| self.told.remove(id).is_some()) {
            return Ok(());
        }
        let post = Post::of(message, None).map_err(|_no_json| PipeFault::Unwritable)?;
        if cancelled.is_some() {
            // The library waits for this before it gives a call up: a process that reads nothing must not hold it.
            let told = tokio::time::timeout(NOTICE_PATIENCE, self.tell(post.text)).await;
            return told.unwrap_or(Ok(()));
        }
        let Some(attempt) = &post.attempt else { return self.tell(post.text).await };
        let mut input = self.input.lock().await;
        // Until here nothing of this call was written, so a fault leaves it where it was: in the queue.
        input.finish(&self.gone).await?;
        let id = post.id.clone().unwrap_or_default();
        let text = id_text(&id);
        self.calls.insert(text.clone(), Arc::clone(attempt));
        if !attempt.start(Route { id, headers: HeaderMap::new() }) {
            self.calls.remove(&text);
            return Err(PipeFault::Withdrawn);
        }
        let length = input.begin(&post.text);
        post.pass("mcp.call.before");
        let written = input.finish(&self.gone).await;
        post.pass("mcp.call.written");
        if written.is_err() {
            // A pipe that took not one byte has no reader left.
            attempt.settle(if input.left() == length {
                Stage::NotConnected("its process takes no input any more".to_owned())
            } else {
                Stage::Unreadable("the process closed its input in the middle of the call")
            });
        }
        written
    }

    /// Writes a message that is no call.
    async fn tell(&self, text: String) -> Result<(), PipeFault> {
        let mut input = self.input.lock().await;
        input.finish(&self.gone).await?;
        input.begin(&text);
        input.finish(&self.gone).await
    }
}
