//! One connection to one MCP server: the handshake in either era of the protocol, and one attempt of a call.
//! Knows nothing of the pool around it.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::HeaderValue;
use parking_lot::Mutex;
use rmcp::model::{
    CallToolRequest, CallToolRequestParams, CancelledNotification, CancelledNotificationParam, ClientConfig,
    ClientRequest, CustomRequest, CustomResult, ElicitRequestParams, ElicitResult, ErrorData, Implementation,
    JsonObject, ProgressNotificationParam, ProtocolVersion, RequestId, RequestMetaObject,
};
use rmcp::service::{
    ClientLifecycleMode, NotificationContext, PeerRequestOptions, RequestContext, RunningService, ServiceError,
};
use rmcp::transport::Transport;
use rmcp::{ClientHandler, Peer, RoleClient};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use url::Url;

use super::asks::{Asker, SampleParams, SampleResult};
use super::attempt::{Attempt, Stage};
use super::catalog::CatalogCache;
use super::ears::Ears;
use super::era::Eras;
use super::handshake::{Dial, Shaken, Undone, shake};
use super::link::Link;
use super::listen::Ear;
use super::outcome::Ended;
use super::params;
use super::progress::Listeners;
use super::wire::IDEMPOTENCY_KEY;
use super::{FaultKind, McpFault, McpTarget, PoolSettings, Sighting, ToolRequest};
use crate::bulk::{Held, Share};
use crate::net::EgressClient;
use crate::run::binding::ServedCatalog;

/// The `_meta` member that carries the idempotency key.
const META_KEY: &str = "countersign/idempotency-key";
/// How long the library gets to see an answer that the transport saw.
const HANDOVER: Duration = Duration::from_secs(1);

/// A live connection.
pub(super) struct Connection {
    client: Link,
    peer: Peer<RoleClient>,
    service: Mutex<Option<RunningService<RoleClient, Listener>>>,
    progress: Listeners,
    pub(super) ears: Arc<Ears>,
    /// Hears announcements where that takes a request of its own; ends with the connection.
    ear: Mutex<JoinSet<()>>,
    pub(super) has_sessions: bool,
    retired: AtomicBool,
    /// When it was opened.
    pub(super) opened: Instant,
    /// The tools, as last read.
    pub(super) catalog: CatalogCache,
}

/// What a server may tell us unasked, and ask.
pub(super) struct Listener {
    pub(super) ears: Arc<Ears>,
    pub(super) progress: Listeners,
    pub(super) asker: Asker,
}

impl ClientHandler for Listener {
    fn get_info(&self) -> ClientConfig {
        let ours = Implementation::new("countersign", env!("CARGO_PKG_VERSION"));
        // The newest revision that still has a handshake; the newer era is asked for by `server/discover`.
        ClientConfig::new(self.asker.capabilities(), ours)
            .with_protocol_version(ProtocolVersion::LATEST_WITH_INITIALIZE)
    }

    async fn create_message(
        &self,
        params: SampleParams,
        context: RequestContext<RoleClient>,
    ) -> Result<SampleResult, ErrorData> {
        self.asker.sample(params, context).await
    }

    async fn create_elicitation(
        &self,
        params: ElicitRequestParams,
        context: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        self.asker.elicit(params, context).await
    }

    async fn on_custom_request(
        &self,
        request: CustomRequest,
        context: RequestContext<RoleClient>,
    ) -> Result<CustomResult, ErrorData> {
        self.asker.custom(request, context).await
    }

    async fn on_tool_list_changed(&self, _context: NotificationContext<RoleClient>) {
        self.ears.told();
    }

    async fn on_progress(&self, told: ProgressNotificationParam, _context: NotificationContext<RoleClient>) {
        self.progress.tell(told);
    }
}

impl Connection {
    /// Connects over HTTP and agrees on a protocol revision, within the target's connect time.
    ///
    /// # Errors
    /// What went wrong, in words without secrets.
    pub(super) async fn open_http(
        http: &EgressClient,
        url: &Url,
        target: &McpTarget,
        (settings, share): (PoolSettings, &Share),
        eras: &Arc<Eras>,
    ) -> Result<Self, McpFault> {
        http.check(url).map_err(|refusal| McpFault::of(FaultKind::Forbidden, refusal.to_string()))?;
        let patience = Duration::from_millis(target.timeouts.connect_ms);
        let (server, was_old) = (url.as_str(), eras.is_old(url.as_str()));
        let dial = Dial { http, url, target, settings, share, until: Instant::now() + patience };
        let shaken = match dial.handshake(was_old).await {
            // It may have moved on to the newer era since it was asked.
            Err(Undone::Refused(_)) if was_old => dial.handshake(false).await,
            shaken => shaken,
        };
        match shaken {
            Ok(shaken) => {
                let connection = Self::of(shaken, server, eras);
                eras.learn(server, Some(connection.has_sessions));
                Ok(connection)
            }
            Err(undone) => {
                eras.learn(server, None);
                let older = match &undone {
                    Undone::Refused(_) => dial.older_transport().await,
                    Undone::Silent | Undone::Unreachable(_) | Undone::Misconfigured(_) => None,
                };
                Err(match older {
                    Some(why) => unreachable((FaultKind::Protocol, why)),
                    None => fault_of(undone, patience),
                })
            }
        }
    }

    /// Agrees on a protocol revision over a transport that there is.
    ///
    /// # Errors
    /// What went wrong, in words without secrets.
    pub(super) async fn open_on(
        (transport, link, ears): (impl Transport<RoleClient> + 'static, Link, Arc<Ears>),
        target: &McpTarget,
        lifecycle: ClientLifecycleMode,
        patience: Duration,
        (server, eras): (&str, &Arc<Eras>),
    ) -> Result<Self, McpFault> {
        let shaken = shake((transport, link), ears, target, lifecycle, Instant::now() + patience).await;
        shaken.map(|shaken| Self::of(shaken, server, eras)).map_err(|undone| fault_of(undone, patience))
    }

    fn of(shaken: Shaken, server: &str, eras: &Arc<Eras>) -> Self {
        let Shaken { client, service, version, ears, progress, tells_changes } = shaken;
        let (peer, has_sessions) = (service.peer().clone(), version.has_initialize());
        let announcements = ears.announcements();
        let mut ear = JoinSet::new();
        if !has_sessions && tells_changes && !eras.is_mute(server) {
            ears.expect();
            let (peer, ears, eras) = (peer.clone(), Arc::clone(&ears), Arc::clone(eras));
            ear.spawn(Ear { peer, ears, eras, server: server.to_owned() }.listen());
        }
        Self {
            client,
            peer,
            progress,
            ears,
            ear: Mutex::new(ear),
            has_sessions,
            service: Mutex::new(Some(service)),
            retired: AtomicBool::new(false),
            opened: Instant::now(),
            catalog: CatalogCache::new(announcements),
        }
    }

    /// Whether calls can still be made on it.
    pub(super) fn is_alive(&self) -> bool {
        !self.retired.load(Ordering::Acquire) && !self.peer.is_transport_closed() && !self.client.session_lost()
    }

    /// How many calls are out on it.
    pub(super) fn calls_out(&self) -> usize {
        self.client.calls_out()
    }

    /// Takes it out of use; calls that are out go on.
    pub(super) fn retire(&self) {
        self.retired.store(true, Ordering::Release);
    }

    /// The protocol library's handle, for listings.
    pub(super) fn peer(&self) -> &Peer<RoleClient> {
        &self.peer
    }

    /// Whatever happens to the future that holds it, the attempt leaves the table of those that are out.
    pub(super) fn enter<'a>(&'a self, attempt: &'a Attempt) -> Entry<'a> {
        Entry { client: &self.client, attempt }
    }

    /// Asks a question that changes nothing, and says how far it came.
    pub(super) async fn ask(
        &self,
        question: impl FnOnce(&Arc<Attempt>) -> ClientRequest,
        patience: Duration,
        held: &Held,
    ) -> (Stage, Ended) {
        let attempt = Attempt::of_question(held.clone());
        let _entry = self.enter(&attempt);
        let options = PeerRequestOptions::with_timeout(patience);
        let Ok(handle) = self.peer.send_request_with_option(question(&attempt), options).await else {
            return (attempt.close(), Ended::Settled);
        };
        let mut response = pin!(handle.await_response());
        let ended = tokio::select! {
            biased;
            answer = &mut response => end_of(answer.as_ref().err()),
            () = attempt.settled() => {
                drop(tokio::time::timeout(HANDOVER, &mut response).await);
                Ended::Settled
            }
        };
        (attempt.close(), ended)
    }

    /// What a failed listing failed of.
    pub(super) fn last_fault(&self) -> Option<String> {
        self.client.last_fault().map(|(_kind, text)| text)
    }

    /// What the server said of itself in the handshake, beside its tools.
    ///
    /// # Errors
    /// The connection has gone.
    pub(super) fn sighting(&self, catalog: Arc<ServedCatalog>, latency: Duration) -> Result<Sighting, McpFault> {
        let info = self
            .peer
            .peer_info()
            .ok_or_else(|| unreachable((FaultKind::Unreachable, "the connection ended".to_owned())))?;
        let json = |value: Result<serde_json::Value, serde_json::Error>| value.unwrap_or_default();
        Ok(Sighting {
            protocol_version: info.protocol_version.to_string(),
            server_info: json(serde_json::to_value(&info.server_info)),
            capabilities: json(serde_json::to_value(&info.capabilities)),
            latency,
            catalog,
        })
    }

    /// Ends the session and the connection.
    pub(super) async fn close(&self) {
        self.retire();
        self.ear.lock().abort_all();
        let service = self.service.lock().take();
        if let Some(service) = service
            && let Err(error) = service.cancel().await
        {
            tracing::debug!(fault = %error, "a connection did not close cleanly");
        }
    }

    /// Makes one attempt of a call and waits for its end.
    pub(super) async fn attempt(
        &self,
        request: &ToolRequest,
        limits: CallLimits,
        cancel: &CancellationToken,
    ) -> (Stage, Ended) {
        let Ok(key) = HeaderValue::try_from(request.idempotency_key.as_str()) else {
            return (Stage::NotConnected("the idempotency key cannot be sent".to_owned()), Ended::Settled);
        };
        let mut headers = params::headers_of(&request.input_schema, &request.arguments);
        headers.insert(IDEMPOTENCY_KEY, key);
        let attempt = Attempt::new(headers, request.may_leave.clone(), request.asks.clone(), request.held.clone());
        let _entry = self.enter(&attempt);
        let options = options_of(request, limits);
        let handle = match self.peer.send_request_with_option(tool_call(request, &attempt), options).await {
            Ok(handle) => handle,
            Err(_gone) => return (attempt.close(), Ended::Settled),
        };
        let id = handle.id.clone();
        let _hearing = self.progress.add(handle.progress_token.clone(), request.progress.clone());
        let mut response = pin!(handle.await_response());
        let ended = tokio::select! {
            biased;
            answer = &mut response => end_of(answer.as_ref().err()),
            () = attempt.settled() => {
                // Normally the library has it at the same moment; it must not decide how long a call takes.
                drop(tokio::time::timeout(HANDOVER, &mut response).await);
                Ended::Settled
            }
            () = cancel.cancelled() => {
                self.cancel(&attempt, id, limits.cancel_grace).await
            }
        };
        (attempt.close(), ended)
    }

    /// Asks the server to stop, and gives an answer that is already under way the time to arrive.
    async fn cancel(&self, attempt: &Attempt, id: RequestId, grace: Duration) -> Ended {
        let until = Instant::now() + grace;
        if !attempt.withdraw() {
            // In the era of sessions, and to a process, a notice is sent and the answer can still come. Over HTTP in the
            // newer one closing the stream is the notice, so the grace comes first.
            if self.has_sessions || self.client.is_stdio() {
                self.client.cancel_call(attempt, grace).await;
            }
            if tokio::time::timeout_at(until, attempt.settled()).await.is_ok() {
                return Ended::Settled;
            }
        }
        let params = CancelledNotificationParam::new(Some(id), Some("the run was cancelled".to_owned()));
        if self.peer.send_notification(CancelledNotification::new(params).into()).await.is_err() {
            tracing::debug!("the connection was gone before a call on it was cancelled");
        }
        Ended::Cancelled
    }
}

/// The limits of one attempt.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallLimits {
    pub(super) idle: Duration,
    pub(super) total: Duration,
    pub(super) cancel_grace: Duration,
}

/// A call or a listing in the table of those that are out.
pub(super) struct Entry<'a> {
    client: &'a Link,
    attempt: &'a Attempt,
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        self.attempt.withdraw();
        self.client.forget(self.attempt);
    }
}

fn end_of(error: Option<&ServiceError>) -> Ended {
    match error {
        Some(ServiceError::Timeout { .. }) => Ended::TimedOut,
        _ => Ended::Settled,
    }
}

fn tool_call(request: &ToolRequest, attempt: &Arc<Attempt>) -> ClientRequest {
    let mut params = CallToolRequestParams::new(request.server_tool.clone()).with_arguments(request.arguments.clone());
    if let Some(continuation) = &request.continuation {
        params = continuation.put_into(params);
    }
    let mut call = CallToolRequest::new(params);
    call.extensions.insert(Arc::clone(attempt));
    ClientRequest::CallToolRequest(call)
}

fn options_of(request: &ToolRequest, limits: CallLimits) -> PeerRequestOptions {
    let mut meta: JsonObject = request.meta.clone();
    meta.insert(META_KEY.to_owned(), request.idempotency_key.clone().into());
    // Whoever waits for a person shows no sign of life meanwhile.
    let idle = if request.asks.is_some() { limits.total } else { limits.idle };
    PeerRequestOptions::with_timeout(idle)
        .reset_timeout_on_progress()
        .with_max_total_timeout(limits.total)
        .with_meta(RequestMetaObject::from(meta))
}

fn fault_of(undone: Undone, patience: Duration) -> McpFault {
    match undone {
        Undone::Silent => unreachable((FaultKind::TimeOut, format!("no handshake within {} ms", patience.as_millis()))),
        Undone::Refused(why) | Undone::Unreachable(why) => unreachable(why),
        Undone::Misconfigured(fault) => fault,
    }
}

fn unreachable((kind, why): (FaultKind, String)) -> McpFault {
    McpFault::of(kind, format!("The MCP server could not be reached: {why}."))
}
