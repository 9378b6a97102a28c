//! The HTTP half of a connection, under the protocol library.
//!
//! The library's own client would lose what the effect rule needs: whether a request was ever written, the status
//! behind a JSON-RPC body, the answer's exact text. This one sends the same requests, judges the address first, sets
//! the `Idempotency-Key`, bounds what is read, and writes into the call's `Attempt` what really happened.
//! Knows nothing of pools, catalogs or outcomes.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dashmap::{DashMap, DashSet};
use futures::stream::{BoxStream, StreamExt as _};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use parking_lot::Mutex;
use rmcp::model::ClientJsonRpcMessage;
use rmcp::transport::streamable_http_client::{SseError, StreamableHttpError, StreamableHttpPostResponse};
use serde_json::Value;
use sse_stream::Sse;
use url::Url;

use super::attempt::{Attempt, HttpRefusal, Route, Stage};
use super::bearer::{Bearer, Pass, missing_scope, required};
use super::body::{self, BodyFault};
use super::ears::Ears;
use super::ids::Ids;
use super::listening::{Listening, Watch};
use super::outline::Outline;
use super::owed::Owed;
use super::shape::Excess;
use super::wire::{
    EVENT_STREAM, Fault, JSON, METHOD, Post, Posted, SESSION, cancelled_id, describe, error_code, error_kind,
    error_text, fault, fault_of, header_text, headers_of, id_text, is_kind, own_headers, retry_after, says_other_era,
    says_session_lost, send_kind, status_kind,
};
use super::{AskDoor, FaultKind};
use crate::bulk::{Share, aside};
use crate::net::{Challenge, EgressClient, EgressRefusal};
use crate::run::mend::mended;

/// Of an error's body so much is looked at, for so long: the status alone decides.
const ERROR_PREFIX: usize = 16 * 1024;
const ERROR_PATIENCE: Duration = Duration::from_secs(2);

pub(super) type SseEvent = Result<Sse, SseError>;

/// The client of one connection.
#[derive(Clone)]
pub(super) struct TrackedClient {
    pub(super) shared: Arc<Shared>,
}

pub(super) struct Shared {
    http: EgressClient,
    url: Url,
    pub(super) max_bytes: usize,
    /// What the tenant may take in at once.
    share: Share,
    discover_patience: Duration,
    /// Calls that are out, by the id on the wire: a resumed stream brings answers that only the id connects.
    pub(super) calls: DashMap<String, Arc<Attempt>>,
    /// Ids whose cancellation the server was told already.
    told: DashSet<String>,
    /// The ids of its calls in the era without sessions.
    pub(super) ids: Ids,
    /// What the last failed request of the connection itself (handshake, listing) failed of.
    pub(super) last_fault: Mutex<Option<(FaultKind, String)>>,
    pub(super) session_lost: AtomicBool,
    /// Whether the server answered anything at all.
    answered: AtomicBool,
    /// Whether it let the question for its era pass in silence.
    was_silent: AtomicBool,
    /// Hears of announcements as they are read.
    pub(super) ears: Arc<Ears>,
    listening: Listening,
    /// What the server asked and has no answer to.
    pub(super) owed: Arc<Owed>,
    /// Where the token of every request comes from.
    bearer: Option<Bearer>,
}

impl TrackedClient {
    pub(super) fn new(
        http: EgressClient,
        (url, bearer): (Url, Option<Bearer>),
        (max_bytes, share): (usize, Share),
        discover_patience: Duration,
        ears: Arc<Ears>,
    ) -> Self {
        let shared = Shared {
            owed: Owed::new(url.host_str().unwrap_or_default()),
            http,
            url,
            max_bytes,
            share,
            discover_patience,
            calls: DashMap::new(),
            told: DashSet::new(),
            ids: Ids::new(),
            last_fault: Mutex::new(None),
            session_lost: AtomicBool::new(false),
            answered: AtomicBool::new(false),
            was_silent: AtomicBool::new(false),
            ears,
            listening: Listening::default(),
            bearer,
        };
        Self { shared: Arc::new(shared) }
    }

    pub(super) fn bearer(&self) -> Option<&Bearer> {
        self.shared.bearer.as_ref()
    }

    /// Begins a request, if the address may still be dialled.
    pub(super) fn request(&self, method: Method) -> Result<reqwest::RequestBuilder, EgressRefusal> {
        self.shared.http.request(method, &self.shared.url)
    }

    /// The library may send the cancellation of this call again: it was told.
    pub(super) fn mark_told(&self, id: &Value) {
        self.shared.told.insert(id_text(id));
    }

    pub(super) fn ears(&self) -> &Ears {
        &self.shared.ears
    }

    pub(super) fn listening(&self) -> &Listening {
        &self.shared.listening
    }

    /// How many calls are out.
    pub(super) fn calls_out(&self) -> usize {
        self.shared.calls.len() + self.shared.told.len()
    }

    /// The call that a server's question is about: the one whose answer's stream brought it, else the oldest that is out.
    pub(super) fn door_of(&self, request: Option<&Value>) -> Option<AskDoor> {
        let calls = &self.shared.calls;
        if let Some(id) = request {
            return calls.get(&id_text(id)).and_then(|attempt| attempt.asks().cloned());
        }
        calls.iter().filter_map(|attempt| attempt.asks().cloned()).min_by_key(|door| door.call)
    }

    /// Whether the server answered anything at all.
    pub(super) fn was_answered(&self) -> bool {
        self.shared.answered.load(Ordering::Acquire)
    }

    /// Whether it is taken for a server of the older era for its silence alone.
    pub(super) fn was_silent(&self) -> bool {
        self.shared.was_silent.load(Ordering::Acquire)
    }

    /// Takes a call off the table of those that are out.
    pub(super) fn forget(&self, attempt: &Attempt) {
        if let Some(route) = attempt.route() {
            let id = id_text(&route.id);
            self.shared.calls.remove(&id);
            self.shared.told.remove(&id);
        }
    }

    pub(super) async fn post(
        &self,
        mut message: ClientJsonRpcMessage,
        session: Option<Arc<str>>,
        custom: HashMap<HeaderName, HeaderValue>,
    ) -> Posted {
        let _until_sent = self.shared.owed.answering(&message);
        let is_modern = custom.contains_key(&METHOD);
        if is_modern {
            self.shared.ids.lift(&mut message);
        }
        // The library wants to send what was sent by us already.
        if cancelled_id(&message).is_some_and(|id| self.shared.told.remove(&id).is_some()) {
            return Ok(StreamableHttpPostResponse::Accepted);
        }
        let mut post = Post::of(message, session)?;
        post.is_modern = is_modern;
        post.library_id = post.id.as_ref().and_then(|id| self.shared.ids.library_id(id));
        if post.session.is_some() {
            // The library asks for the stream of announcements as soon as there is a session.
            self.shared.ears.expect();
        }
        let mut headers = headers_of(custom, post.session.as_deref())?;
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(JSON));
        let result = self.post_authorized(&post, headers).await;
        if let Err(error) = &result
            && !post.is_call()
        {
            *self.shared.last_fault.lock() = Some((error_kind(error), error_text(error)));
        }
        result
    }

    /// Marks a call as sent; from here on the server may have it.
    pub(super) fn start(&self, post: &Post, headers: &mut HeaderMap) -> Result<(), Fault> {
        let Some(attempt) = &post.attempt else { return Ok(()) };
        own_headers(headers, attempt.headers());
        let id = post.id.clone().unwrap_or_default();
        let name = id_text(&id);
        self.shared.calls.insert(name.clone(), Arc::clone(attempt));
        if attempt.start(Route { id, headers: headers.clone() }) {
            return Ok(());
        }
        self.shared.calls.remove(&name);
        Err(fault("the call was given up before it was sent, or may not leave any more"))
    }

    pub(super) async fn send_in_time(&self, post: &Post, headers: HeaderMap, pass: &Pass<'_>) -> Posted {
        let sent = self.send(post, headers, pass);
        if !post.is_discover {
            return sent.await;
        }
        let sent = tokio::time::timeout(self.shared.discover_patience, sent).await;
        sent.unwrap_or_else(|_elapsed| {
            self.shared.was_silent.store(true, Ordering::Release);
            Ok(post.old_era("no answer to server/discover"))
        })
    }

    async fn send(&self, post: &Post, headers: HeaderMap, pass: &Pass<'_>) -> Posted {
        let request = match self.request(Method::POST) {
            Ok(request) => request,
            Err(refusal) => {
                post.settle(Stage::NotConnected(refusal.to_string()));
                return Err(fault_of(FaultKind::Forbidden, refusal.to_string()));
            }
        };
        post.pass("mcp.call.before");
        let response = request.headers(headers).body(post.text.clone()).send().await;
        post.pass("mcp.call.written");
        let response = match response {
            Ok(response) => response,
            Err(error) => {
                let text = describe(&error);
                // Builder faults and everything up to the end of the TLS handshake: nothing was written.
                if error.is_connect() || error.is_builder() {
                    post.settle(Stage::NotConnected(text.clone()));
                } else {
                    post.settle(Stage::Unreadable("the connection broke before an answer came"));
                }
                return Err(fault_of(send_kind(&error), text));
            }
        };
        self.shared.answered.store(true, Ordering::Release);
        let status = response.status();
        if !status.is_success() {
            return self.refused(post, response, pass).await;
        }
        if matches!(status, StatusCode::ACCEPTED | StatusCode::NO_CONTENT) {
            if !post.awaits_answer {
                return Ok(StreamableHttpPostResponse::Accepted);
            }
            return post.unreadable("the server accepted the request without answering it");
        }
        self.answered(post, response).await
    }

    /// Reads a 2xx.
    async fn answered(&self, post: &Post, response: reqwest::Response) -> Posted {
        if !post.awaits_answer {
            return Ok(StreamableHttpPostResponse::Accepted);
        }
        let session = header_text(response.headers(), &SESSION);
        if is_kind(response.headers(), EVENT_STREAM) {
            let is_list = post.is_list;
            let events = self.events(response, post.attempt.clone(), is_list);
            return Ok(StreamableHttpPostResponse::Sse(events, session));
        }
        if !is_kind(response.headers(), JSON) {
            return post.unreadable("the answer is neither JSON nor an event stream");
        }
        let (bytes, hold) = match body::read(response, self.shared.max_bytes, &self.shared.share).await {
            Ok(read) => read,
            Err(BodyFault::TooLarge(start)) => {
                let outline = Outline::of(&start);
                if !outline.is_response || outline.id.is_some_and(|id| !post.is_asked(&id)) {
                    return post.unreadable("what came is too large, and not the answer");
                }
                post.settle(Stage::TooLarge(Excess::Bytes(self.shared.max_bytes)));
                return Err(StreamableHttpError::ResponseBodyTooLarge { max_size: self.shared.max_bytes });
            }
            Err(BodyFault::Broken) => return post.unreadable("the connection broke in the middle of the answer"),
        };
        let _until_read = post.hold(hold);
        aside(bytes.len(), || post.take_body(&bytes, session))
    }

    /// Reads a status that is no success: the status decides, the body only adds words.
    async fn refused(&self, post: &Post, response: reqwest::Response, pass: &Pass<'_>) -> Posted {
        let status = response.status();
        let challenge = Challenge::of(response.headers());
        let retry_after = retry_after(response.headers());
        let prefix =
            tokio::time::timeout(ERROR_PATIENCE, body::prefix(response, ERROR_PREFIX)).await.unwrap_or_default();
        let mut body = serde_json::from_slice::<Value>(&mended(&prefix)).unwrap_or_default();
        let message = body.pointer("/error/message").and_then(Value::as_str).map(str::to_owned);
        let code = error_code(&body);
        let forgotten = post.session.is_some()
            && says_session_lost(post, status, &body)
            && !pass.explains(status, challenge.as_ref());
        if !forgotten && pass.may_help(status) {
            return Err(StreamableHttpError::AuthRequired(required(challenge)));
        }
        let lacks = missing_scope(status, challenge.as_ref());
        let said = lacks.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
        let message = lacks.or(message);
        let session_lost = !post.is_discover && (forgotten || says_other_era(post, status, &body));
        if session_lost {
            self.shared.session_lost.store(true, Ordering::Release);
        }
        let refusal = HttpRefusal { status: status.as_u16(), retry_after, session_lost, message, code, renewed: false };
        post.settle(Stage::Status(refusal));
        // Old servers refuse the question for the era in many ways; only "who are you" must stay what it is.
        if post.is_discover && !matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
            return Ok(post.discover_refused(body.get_mut("error").map(Value::take)));
        }
        if forgotten {
            return Err(StreamableHttpError::SessionExpired);
        }
        if let Some(answer) = post.not_known(status, code) {
            return Ok(answer);
        }
        Err(fault_of(status_kind(status), format!("the server answered HTTP {}{said}", status.as_u16())))
    }

    /// The events of an answer: to this call, or of a stream that is listened to or resumed.
    pub(super) fn events(
        &self,
        response: reqwest::Response,
        own: Option<Arc<Attempt>>,
        is_list: bool,
    ) -> BoxStream<'static, SseEvent> {
        let (observer, shared) = (Arc::clone(&self.shared), Arc::clone(&self.shared));
        let overflow = move |start: &[u8]| shared.outgrown(start, own.as_deref());
        let observe = move |event: &mut Sse, hold| observer.observe(event, hold, is_list);
        let events = body::events(response, (self.shared.max_bytes, &self.shared.share), observe, overflow);
        let owed = Arc::clone(&self.shared.owed);
        let events = events.filter_map(move |came| Arc::clone(&owed).admit(came));
        let (mut watch, shared) = (Watch::default(), Arc::clone(&self.shared));
        events.inspect(move |came| watch.see(came, &shared.listening)).boxed()
    }
}
