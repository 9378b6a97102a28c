//! An authorization server of the test's own: it gives tokens by the client credentials grant, says where it is, counts,
//! and misbehaves when it is told to. It can guard a [`FakeMcp`], which then takes its tokens only.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{OriginalUri, State};
use axum::response::IntoResponse as _;
use http::{HeaderMap, StatusCode};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use super::fake_mcp::{FakeMcp, Reply, Seen};

/// Stands in every token, so that a test can look for it.
pub(crate) const TOKEN_CANARY: &str = "t0ken-canary";

/// One request for a token.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) authorization: Option<String>,
    pub(crate) form: HashMap<String, String>,
}

/// How a request for a token is answered.
#[derive(Clone)]
pub(crate) enum Grants {
    /// With a new token that is good for so many seconds.
    Token(u64),
    /// With this status and body.
    Http(u16, String),
    /// With a new token, once the test says so.
    When(Arc<Notify>),
    /// Not at all.
    Never,
}

type Script = Box<dyn Fn(&Asked) -> Grants + Send + Sync>;

struct Inner {
    url: String,
    asked: Mutex<Vec<Asked>>,
    arrived: Notify,
    documents: Mutex<Vec<String>>,
    /// Metadata by path; the rest is not found.
    metadata: Mutex<HashMap<String, Value>>,
    good: Mutex<HashSet<String>>,
    script: Mutex<Script>,
}

/// The running server; it ends when it is dropped.
pub(crate) struct FakeIssuer {
    inner: Arc<Inner>,
    _stop: DropGuard,
}

impl FakeIssuer {
    /// One that gives whoever asks a token for an hour, and describes itself as RFC 8414 says.
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr: SocketAddr = listener.local_addr().unwrap();
        let inner = Arc::new(Inner {
            url: format!("http://{addr}"),
            asked: Mutex::default(),
            arrived: Notify::new(),
            documents: Mutex::default(),
            metadata: Mutex::default(),
            good: Mutex::default(),
            script: Mutex::new(Box::new(|_| Grants::Token(3600))),
        });
        let issuer = inner.url.clone();
        let stop = CancellationToken::new();
        let app = Router::new().fallback(answer).with_state(Arc::clone(&inner));
        let served = axum::serve(listener, app).into_future();
        TaskTracker::new().spawn(stop.clone().run_until_cancelled_owned(served));
        let server = Self { inner, _stop: stop.drop_guard() };
        server.describe("/.well-known/oauth-authorization-server", server.metadata(&issuer));
        server
    }

    /// Its name of itself.
    pub(crate) fn url(&self) -> &str {
        &self.inner.url
    }

    pub(crate) fn token_url(&self) -> String {
        format!("{}/token", self.inner.url)
    }

    /// What it says of an issuer of this name.
    pub(crate) fn metadata(&self, issuer: &str) -> Value {
        json!({"issuer": issuer, "token_endpoint": self.token_url()})
    }

    /// Serves a document from now on.
    pub(crate) fn describe(&self, path: &str, document: Value) {
        self.inner.metadata.lock().insert(path.to_owned(), document);
    }

    /// Serves no document any more.
    pub(crate) fn hide(&self) {
        self.inner.metadata.lock().clear();
    }

    /// How a token is asked for from now on.
    pub(crate) fn on_token(&self, script: impl Fn(&Asked) -> Grants + Send + Sync + 'static) {
        *self.inner.script.lock() = Box::new(script);
    }

    /// Every token so far is good no more.
    pub(crate) fn revoke(&self) {
        self.inner.good.lock().clear();
    }

    /// The requests for tokens so far.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.inner.asked.lock().clone()
    }

    /// The paths of documents that were asked for, found or not.
    pub(crate) fn documents(&self) -> Vec<String> {
        self.inner.documents.lock().clone()
    }

    /// Waits until so many tokens were asked for.
    pub(crate) async fn wait_for(&self, count: usize) {
        let waiting = async {
            loop {
                let arrived = self.inner.arrived.notified();
                if self.asked().len() >= count {
                    return;
                }
                arrived.await;
            }
        };
        let seen = tokio::time::timeout(std::time::Duration::from_secs(10), waiting).await;
        assert!(seen.is_ok(), "{count} requests for a token did not come: {:?}", self.asked());
    }

    /// Lets only its own tokens through to a server, which names it as RFC 9728 says.
    pub(crate) fn guard(&self, server: &FakeMcp) {
        let metadata = format!("http://{}/.well-known/oauth-protected-resource/mcp", server.addr());
        let document = json!({"resource": server.url(), "authorization_servers": [self.url()]});
        let challenge = format!("Bearer error=\"invalid_token\", resource_metadata=\"{metadata}\"");
        self.guard_with(server, Some(("/.well-known/oauth-protected-resource/mcp", document)), &challenge);
    }

    /// The same with the server's own document and challenge.
    pub(crate) fn guard_with(&self, server: &FakeMcp, document: Option<(&'static str, Value)>, challenge: &str) {
        let (inner, challenge) = (Arc::clone(&self.inner), challenge.to_owned());
        server.guard(move |seen: &Seen| {
            if seen.path.contains("/.well-known/") || document.as_ref().is_some_and(|(path, _)| *path == seen.path) {
                let found = document.as_ref().filter(|(path, _)| *path == seen.path);
                return Some(match found {
                    Some((_, document)) => Reply::status(200, document.clone()),
                    None => Reply::status(404, json!({})),
                });
            }
            let token = seen.headers.get("authorization").and_then(|text| text.strip_prefix("Bearer "));
            if token.is_some_and(|token| inner.good.lock().contains(token)) {
                return None;
            }
            Some(Reply::Http(401, vec![("www-authenticate", challenge.clone())], String::new()))
        });
    }
}

async fn answer(
    State(inner): State<Arc<Inner>>,
    OriginalUri(uri): OriginalUri,
    headers: HeaderMap,
    body: Bytes,
) -> axum::response::Response {
    if uri.path() != "/token" {
        inner.documents.lock().push(uri.path().to_owned());
        let document = inner.metadata.lock().get(uri.path()).cloned();
        return match document {
            Some(document) => axum::Json(document).into_response(),
            None => StatusCode::NOT_FOUND.into_response(),
        };
    }
    let form = url::form_urlencoded::parse(&body).into_owned().collect();
    let authorization = headers.get("authorization").map(|value| value.to_str().unwrap().to_owned());
    let asked = Asked { authorization, form };
    let number = {
        let mut all = inner.asked.lock();
        all.push(asked.clone());
        all.len()
    };
    inner.arrived.notify_waiters();
    let grants = (inner.script.lock())(&asked);
    let lives = match grants {
        Grants::Token(lives) => lives,
        Grants::Http(status, body) => return (StatusCode::from_u16(status).unwrap(), body).into_response(),
        Grants::When(gate) => {
            gate.notified().await;
            3600
        }
        Grants::Never => std::future::pending().await,
    };
    let token = format!("{TOKEN_CANARY}-{number}");
    inner.good.lock().insert(token.clone());
    axum::Json(json!({"access_token": token, "token_type": "bearer", "expires_in": lives})).into_response()
}
