//! How a connection comes about: the address is dialled, and a revision of the protocol is agreed on, in whichever era the
//! server speaks. Knows nothing of calls.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use http::{HeaderName, HeaderValue, Method, header};
use rmcp::RoleClient;
use rmcp::model::ProtocolVersion;
use rmcp::service::{ClientCacheConfig, ClientLifecycleMode, ClientServiceExt as _, RunningService};
use rmcp::transport::common::client_side_sse::ExponentialBackoff;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use rmcp::transport::{StreamableHttpClientTransport, Transport};
use tokio::time::Instant;
use url::Url;

use super::asks::Asker;
use super::connection::Listener;
use super::ears::Ears;
use super::headers::headers_of;
use super::link::Link;
use super::progress::Listeners;
use super::transport::TrackedClient;
use super::wire::{EVENT_STREAM, is_kind};
use super::{FaultKind, McpFault, McpTarget, PoolSettings, body};
use crate::bulk::Share;
use crate::net::EgressClient;

/// Calls of one connection that may be on their way at once; the executor's own limits are far below.
const PARALLEL_CALLS: usize = 256;
/// Longest wait for an answer to `server/discover`; after it the server is taken for one of the old era.
const DISCOVER_PATIENCE: Duration = Duration::from_secs(3);
/// Longest wait for the first event of a server that may speak the transport of 2024-11-05.
const OLDER_PATIENCE: Duration = Duration::from_secs(2);
/// Longest event that is read there, in bytes.
const OLDER_MAX: usize = 4 * 1024;

/// One server behind an address, about to be connected to.
pub(super) struct Dial<'a> {
    pub(super) http: &'a EgressClient,
    pub(super) url: &'a Url,
    pub(super) target: &'a McpTarget,
    pub(super) settings: PoolSettings,
    /// What the tenant may take in at once.
    pub(super) share: &'a Share,
    /// When it must be done.
    pub(super) until: Instant,
}

/// A handshake that was done.
pub(super) struct Shaken {
    pub(super) client: Link,
    pub(super) service: RunningService<RoleClient, Listener>,
    pub(super) version: ProtocolVersion,
    pub(super) ears: Arc<Ears>,
    pub(super) progress: Listeners,
    /// Whether the server says that it tells changes of its tools.
    pub(super) tells_changes: bool,
}

/// Why a handshake was not done.
pub(super) enum Undone {
    /// The server answered, and not as one that speaks the era it was asked in.
    Refused((FaultKind, String)),
    /// Nothing came in time.
    Silent,
    /// There was nobody to answer.
    Unreachable((FaultKind, String)),
    /// What was to be sent cannot be sent.
    Misconfigured(McpFault),
}

/// Agrees on a revision over a transport that there is.
pub(super) async fn shake(
    (transport, client): (impl Transport<RoleClient> + 'static, Link),
    ears: Arc<Ears>,
    target: &McpTarget,
    lifecycle: ClientLifecycleMode,
    until: Instant,
) -> Result<Shaken, Undone> {
    let progress = Listeners::default();
    let asker = Asker::new(target.offers, client.clone());
    let listener = Listener { ears: Arc::clone(&ears), progress: progress.clone(), asker };
    let service = match tokio::time::timeout_at(until, listener.serve_with_lifecycle(transport, lifecycle)).await {
        Ok(Ok(service)) => service,
        Ok(Err(error)) => {
            let said = error.to_string();
            tracing::debug!(fault = %target.told.now().text(&said), "an MCP handshake failed");
            let unknown = || (FaultKind::Protocol, "the handshake failed".to_owned());
            let fault = client.last_fault().unwrap_or_else(unknown);
            return Err(if client.was_answered() { Undone::Refused(fault) } else { Undone::Unreachable(fault) });
        }
        Err(_elapsed) => return Err(Undone::Silent),
    };
    let peer = service.peer();
    let info = peer.peer_info();
    let tells_changes = info
        .as_ref()
        .is_some_and(|info| info.capabilities.tools.as_ref().is_some_and(|tools| tools.list_changed == Some(true)));
    let version = info
        .map(|info| info.protocol_version.clone())
        .filter(|version| ProtocolVersion::KNOWN_VERSIONS.contains(version))
        .ok_or_else(|| {
            Undone::Refused((FaultKind::Protocol, "it speaks a protocol revision that is not known".to_owned()))
        })?;
    peer.set_response_cache_config(ClientCacheConfig::disabled()).await;
    Ok(Shaken { client, service, version, ears, progress, tells_changes })
}

impl Dial<'_> {
    /// Agrees on a revision; of a server that is known for the older era without asking for the newer one first.
    pub(super) async fn handshake(&self, is_old: bool) -> Result<Shaken, Undone> {
        match self.once(is_old).await {
            // It was taken for one of the older era because it said nothing in time, and does not speak that: it was slow.
            (Err(Undone::Refused(_)), true) => self.once(false).await.0,
            (shaken, _) => shaken,
        }
    }

    /// One handshake; and whether the server let the question for its era pass in silence.
    async fn once(&self, is_old: bool) -> (Result<Shaken, Undone>, bool) {
        let target = self.target;
        let headers = match headers_of(target) {
            Ok(headers) => headers,
            Err(fault) => return (Err(Undone::Misconfigured(fault)), false),
        };
        let ears = Ears::new(true);
        let client = TrackedClient::new(
            self.http.clone(),
            (self.url.clone(), target.bearer.clone()),
            (self.settings.max_result_bytes, self.share.clone()),
            DISCOVER_PATIENCE.min(Duration::from_millis(target.timeouts.connect_ms / 2)),
            Arc::clone(&ears),
        );
        let transport = StreamableHttpClientTransport::with_client(client.clone(), config_of(self.url, headers));
        let link = Link::Http(client.clone());
        let shaken = shake((transport, link), ears, target, lifecycle_of(is_old), self.until).await;
        (shaken, client.was_silent())
    }

    /// Whether the address is one of the transport of 2024-11-05, which opens with an event that names another address.
    /// It is not spoken here: two addresses, and answers that come on a stream of their own, would be a second effect
    /// boundary for servers that all have a successor.
    pub(super) async fn older_transport(&self) -> Option<String> {
        let headers = headers_of(self.target).ok()?;
        let request = self.http.request(Method::GET, self.url).ok()?.headers(headers.into_iter().collect());
        let looking = async {
            let response = request.header(header::ACCEPT, EVENT_STREAM).send().await.ok()?;
            if !response.status().is_success() || !is_kind(response.headers(), EVENT_STREAM) {
                return None;
            }
            body::events(response, (OLDER_MAX, self.share), |_, _| true, |_| true).next().await?.ok()
        };
        let until = self.until.min(Instant::now() + OLDER_PATIENCE);
        let event = tokio::time::timeout_at(until, looking).await.ok()??;
        (event.event.as_deref() == Some("endpoint")).then(|| {
            "it speaks the HTTP+SSE transport of 2024-11-05, which is not supported; give the address of its Streamable \
             HTTP endpoint"
                .to_owned()
        })
    }
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
