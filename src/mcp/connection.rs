//! One connection to one MCP server: the handshake in either era of the protocol, and one attempt of a call.
//! Knows nothing of the pool around it.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::{HeaderName, HeaderValue};
use parking_lot::Mutex;
use rmcp::model::{
    CallToolRequest, CallToolRequestParams, CancelledNotification, CancelledNotificationParam, ClientConfig,
    ClientRequest, CustomRequest, CustomResult, ElicitRequestParams, ElicitResult, ErrorData, Implementation,
    JsonObject, ProtocolVersion, RequestId, RequestMetaObject,
};
use rmcp::service::{
    ClientCacheConfig, ClientLifecycleMode, ClientServiceExt as _, NotificationContext, PeerRequestOptions,
    RequestContext, RunningService, ServiceError,
};
use rmcp::transport::common::client_side_sse::ExponentialBackoff;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use rmcp::transport::{StreamableHttpClientTransport, Transport};
use rmcp::{ClientHandler, Peer, RoleClient};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use url::Url;

use super::asks::{Asker, SampleParams, SampleResult};
use super::attempt::{Attempt, Stage};
use super::catalog::{Announcements, CatalogCache};
use super::headers::headers_of;
use super::link::Link;
use super::outcome::Ended;
use super::transport::TrackedClient;
use super::{FaultKind, McpFault, McpTarget, Offers, PoolSettings, Sighting, ToolRequest};
use crate::net::Egress;
use crate::run::binding::ServedCatalog;

/// The `_meta` member that carries the idempotency key.
const META_KEY: &str = "countersign/idempotency-key";
/// Calls of one connection that may be on their way at once; the executor's own limits are far below.
const PARALLEL_CALLS: usize = 256;
/// Longest wait for an answer to `server/discover`; after it the server is taken for one of the old era.
const DISCOVER_PATIENCE: Duration = Duration::from_secs(3);
/// How long the library gets to see an answer that the transport saw.
const HANDOVER: Duration = Duration::from_secs(1);

/// A live connection.
pub(super) struct Connection {
    client: Link,
    peer: Peer<RoleClient>,
    service: Mutex<Option<RunningService<RoleClient, Listener>>>,
    has_sessions: bool,
    retired: AtomicBool,
    /// When it was opened.
    pub(super) opened: Instant,
    /// The tools, as last read.
    pub(super) catalog: CatalogCache,
}

/// What a server may tell us unasked, and ask.
struct Listener {
    announcements: Arc<Announcements>,
    asker: Asker,
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
        self.announcements.announce();
    }
}

impl Connection {
    /// Connects over HTTP and agrees on a protocol revision, within the target's connect time.
    ///
    /// # Errors
    /// What went wrong, in words without secrets.
    pub(super) async fn open_http(
        (http, egress): (&reqwest::Client, &Egress),
        url: &Url,
        target: &McpTarget,
        settings: PoolSettings,
        is_old_era: bool,
    ) -> Result<Self, McpFault> {
        egress.check(url).map_err(|refusal| McpFault::of(FaultKind::Forbidden, refusal.to_string()))?;
        let headers = headers_of(target)?;
        let patience = Duration::from_millis(target.timeouts.connect_ms);
        let client = TrackedClient::new(
            http.clone(),
            egress.clone(),
            url.clone(),
            settings.max_result_bytes,
            DISCOVER_PATIENCE.min(patience / 2),
        );
        let transport = StreamableHttpClientTransport::with_client(client.clone(), config_of(url, headers));
        Self::open_on((transport, Link::Http(client)), target.offers, lifecycle_of(is_old_era), patience).await
    }

    /// Agrees on a protocol revision over a transport that there is.
    ///
    /// # Errors
    /// What went wrong, in words without secrets.
    pub(super) async fn open_on(
        (transport, client): (impl Transport<RoleClient> + 'static, Link),
        offers: Offers,
        lifecycle: ClientLifecycleMode,
        patience: Duration,
    ) -> Result<Self, McpFault> {
        let announcements = Arc::<Announcements>::default();
        let asker = Asker::new(offers, client.clone());
        let listener = Listener { announcements: Arc::clone(&announcements), asker };
        let opening = listener.serve_with_lifecycle(transport, lifecycle);
        let service = match tokio::time::timeout(patience, opening).await {
            Ok(Ok(service)) => service,
            Ok(Err(error)) => {
                tracing::debug!(fault = %error, "an MCP handshake failed");
                let unknown = || (FaultKind::Protocol, "the handshake failed".to_owned());
                return Err(unreachable(client.last_fault().unwrap_or_else(unknown)));
            }
            Err(_elapsed) => {
                let why = format!("no handshake within {} ms", patience.as_millis());
                return Err(unreachable((FaultKind::TimeOut, why)));
            }
        };
        let peer = service.peer().clone();
        let version = peer.peer_info().map(|info| info.protocol_version.clone());
        let version = version.filter(|version| ProtocolVersion::KNOWN_VERSIONS.contains(version)).ok_or_else(|| {
            unreachable((FaultKind::Protocol, "it speaks a protocol revision that is not known".to_owned()))
        })?;
        peer.set_response_cache_config(ClientCacheConfig::disabled()).await;
        Ok(Self {
            client,
            peer,
            has_sessions: version.has_initialize(),
            service: Mutex::new(Some(service)),
            retired: AtomicBool::new(false),
            opened: Instant::now(),
            catalog: CatalogCache::new(announcements),
        })
    }

    /// Whether the server speaks the era of sessions.
    pub(super) fn has_sessions(&self) -> bool {
        self.has_sessions
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
        let attempt = Attempt::new(key, request.may_leave.clone(), request.asks.clone());
        let _entry = self.enter(&attempt);
        let options = options_of(request, limits);
        let handle = match self.peer.send_request_with_option(tool_call(request, &attempt), options).await {
            Ok(handle) => handle,
            Err(_gone) => return (attempt.close(), Ended::Settled),
        };
        let id = handle.id.clone();
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
        if attempt.close() != Stage::Queued {
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
        self.attempt.close();
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

pub(super) fn lifecycle_of(is_old_era: bool) -> ClientLifecycleMode {
    if is_old_era {
        return ClientLifecycleMode::Initialize;
    }
    ClientLifecycleMode::Auto {
        preferred_versions: vec![ProtocolVersion::LATEST],
        legacy_version: Some(ProtocolVersion::LATEST_WITH_INITIALIZE),
    }
}

fn config_of(url: &Url, headers: HashMap<HeaderName, HeaderValue>) -> StreamableHttpClientTransportConfig {
    let mut resume = ExponentialBackoff::default();
    resume.max_times = Some(5);
    resume.base_duration = Duration::from_millis(200);
    resume.max_delay = Some(Duration::from_secs(5));
    let mut config = StreamableHttpClientTransportConfig::with_uri(url.as_str())
        .custom_headers(headers)
        .max_concurrent_requests(PARALLEL_CALLS)
        // A silent new session would hide what happened to the calls of the old one: the pool reconnects instead.
        .reinit_on_expired_session(false);
    config.retry_config = Arc::new(resume);
    config
}

fn unreachable((kind, why): (FaultKind, String)) -> McpFault {
    McpFault::of(kind, format!("The MCP server could not be reached: {why}."))
}
