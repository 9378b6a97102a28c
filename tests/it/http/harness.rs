//! A whole server without a socket.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use bytes::Bytes;
use countersign::app::App;
use countersign::auth::{AuthSettings, Grant, Tickets, Verifier, mint};
use countersign::clock::{Clock, SystemClock};
use countersign::config::{Config, Wake};
use countersign::http::{HttpSettings, Parts, Phase, router};
use countersign::mcp::demo::{self, DemoLedger};
use countersign::net::{Egress, EgressAllow, EgressClient};
use countersign::run::ids::{Actor, TenantId};
use countersign::store::follow::Follower;
use countersign::store::hub::Hub;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::BodyExt as _;
use secrecy::SecretString;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt as _;

use crate::support::database::Database;
use crate::support::product::wake;

/// The scopes of a caller who works with runs.
pub(crate) const RUNS: &str = "runs:read runs:write";

/// Longest wait for what must happen.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// Largest body of the server under test, in bytes.
pub(crate) const BODY_MAX: usize = 64 * 1024;

/// A server, and the means to make tokens for it.
pub(crate) struct Server {
    pub(crate) app: App,
    pub(crate) router: Router,
    pub(crate) phase: watch::Sender<Phase>,
    auth: AuthSettings,
    data: tempfile::TempDir,
    database: Option<Database>,
}

/// One answer, read whole.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|fault| panic!("{fault}: {:?}", self.body))
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// Checks that this is a problem of that code, whole as the contract says.
    #[track_caller]
    pub(crate) fn problem(&self, status: u16, code: &str) -> Value {
        let said = String::from_utf8_lossy(&self.body);
        assert_eq!((self.status.as_u16(), self.header("content-type")), (status, "application/problem+json"), "{said}");
        let problem = self.json();
        assert_eq!((problem["code"].as_str(), problem["status"].as_u64()), (Some(code), Some(status.into())), "{said}");
        assert_eq!(problem["type"], format!("urn:countersign:problem:{code}"));
        assert_eq!(problem["instance"], self.header("x-request-id"));
        assert!(problem["title"].is_string() && problem["detail"].is_string(), "{said}");
        problem
    }
}

impl Server {
    pub(crate) async fn start() -> Self {
        Self::start_with(None, |app| Arc::clone(&app.hub)).await
    }

    /// A server on this database.
    pub(crate) async fn start_on(database: Database) -> Self {
        Self::start_with(Some(database), |app| Arc::clone(&app.hub)).await
    }

    /// Stops the server and starts another on the same database.
    pub(crate) async fn restart(self) -> Self {
        self.stop().await.start().await
    }

    /// Stops the server; nobody serves its database until it is started again.
    pub(crate) async fn stop(self) -> Stopped {
        let Self { app, router, data, database, .. } = self;
        drop(router);
        app.stop().await;
        Stopped { data, database }
    }

    /// Every row of the database that it was started on.
    pub(crate) async fn dump(&self) -> String {
        self.database.as_ref().expect("a server on a database").dump().await
    }

    /// Runs SQL behind the server's back.
    pub(crate) async fn execute(&self, sql: &str) {
        self.database.as_ref().expect("a server on a database").execute(sql).await;
    }

    /// A server whose readers hear nothing, as if other nodes drove all runs.
    pub(crate) async fn start_deaf() -> Self {
        Self::start_with(None, |_| Arc::new(Hub::new())).await
    }

    async fn start_with(database: Option<Database>, hub: impl FnOnce(&App) -> Arc<Hub>) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), database, hub).await
    }

    async fn start_in(data: tempfile::TempDir, database: Option<Database>, hub: impl FnOnce(&App) -> Arc<Hub>) -> Self {
        let mut config = Config::dev(data.path(), "127.0.0.1:0".parse().unwrap(), &|_: &str| None).unwrap();
        // Every resume reads the servers anew, so that a change is seen at once.
        config.catalog_max_age_ms = 0;
        if let Some(database) = &database {
            config.database_url = SecretString::from(database.url.clone());
            config.wake = if wake() == "off" { Wake::Off } else { Wake::Notify };
        }
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let app = App::start(&config, Arc::clone(&clock), true).await.unwrap();
        let hub = hub(&app);
        let follower = if Arc::ptr_eq(&hub, &app.hub) { Arc::clone(&app.follower) } else { follow(&app, &hub) };
        let (phase, watched) = watch::channel(Phase::Ready);
        let parts = Parts {
            commands: Arc::clone(&app.commands),
            store: Arc::clone(&app.store) as Arc<_>,
            hub,
            follower,
            verifier: Verifier::new(&config.auth, issuer_client()).unwrap(),
            tickets: Tickets::new(config.keys.signing_keys("stream-ticket")),
            clock,
            phase: watched,
            stopping: app.stopping.clone(),
            metrics: Arc::new(String::new),
            settings: HttpSettings {
                max_body_bytes: BODY_MAX,
                cors_origins: vec!["https://console.example".to_owned()],
                streams_per_actor: 1000,
            },
        };
        Self { router: router(parts).unwrap(), phase, auth: config.auth, app, data, database }
    }

    pub(crate) fn token(&self, tenant: &str, actor: &str, scope: &str) -> String {
        self.token_for(tenant, actor, scope, 3600)
    }

    pub(crate) fn token_for(&self, tenant: &str, actor: &str, scope: &str, ttl_s: i64) -> String {
        let grant = Grant {
            tenant: TenantId::parse(tenant).unwrap(),
            actor: Actor::parse(actor).unwrap(),
            scope: scope.to_owned(),
            ttl_s,
            workload_identity: None,
            image_digest: None,
        };
        mint(&self.auth, &grant, SystemClock.now()).unwrap()
    }

    pub(crate) fn alice(&self) -> String {
        self.token("acme", "alice", RUNS)
    }

    /// Sends a request and reads the answer whole.
    pub(crate) async fn send(&self, request: Request<Body>) -> Answer {
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let body = tokio::time::timeout(SOON, body.collect()).await.expect("the answer ends").unwrap().to_bytes();
        Answer { status: parts.status, headers: parts.headers, body }
    }

    pub(crate) async fn get(&self, path: &str, token: &str) -> Answer {
        self.send(request(Method::GET, path, token, &[], Body::empty())).await
    }

    pub(crate) async fn post(&self, path: &str, token: &str, body: &Value) -> Answer {
        self.post_with(path, token, &[], body).await
    }

    pub(crate) async fn post_with(&self, path: &str, token: &str, headers: &[(&str, &str)], body: &Value) -> Answer {
        self.send(request(Method::POST, path, token, headers, Body::from(body.to_string()))).await
    }

    /// Creates a run and waits until it has ended or waits for somebody.
    pub(crate) async fn settled(&self, body: &Value) -> Value {
        let answer = self.post_with("/v1/runs", &self.alice(), &[("prefer", "wait=20")], body).await;
        assert_eq!(answer.status, StatusCode::CREATED, "{:?}", answer.body);
        answer.json()
    }
}

/// A server that was stopped, with what it leaves behind.
pub(crate) struct Stopped {
    data: tempfile::TempDir,
    database: Option<Database>,
}

impl Stopped {
    pub(crate) async fn start(self) -> Server {
        Server::start_in(self.data, self.database, |app| Arc::clone(&app.hub)).await
    }
}

/// Looks for the readers of a hub that nothing else tells.
fn issuer_client() -> EgressClient {
    Egress::new(EgressAllow::default()).client(Duration::from_secs(5), None).unwrap()
}

fn follow(app: &App, hub: &Arc<Hub>) -> Arc<Follower> {
    let follower = Arc::new(Follower::new(Arc::clone(&app.store), Arc::clone(hub), || SystemClock.now()));
    let (running, stop) = (Arc::clone(&follower), app.stopping.clone());
    TaskTracker::new().spawn(async move { running.run(stop).await });
    follower
}

/// A request with a token (none when empty).
pub(crate) fn request(method: Method, path: &str, token: &str, headers: &[(&str, &str)], body: Body) -> Request<Body> {
    let mut builder = Request::builder().method(method).uri(path).header("content-type", "application/json");
    if !token.is_empty() {
        builder = builder.header("authorization", format!("Bearer {token}"));
    }
    for (name, value) in headers {
        builder = builder.header(*name, *value);
    }
    builder.body(body).unwrap()
}

/// A run whose model says these texts, one a turn: it ends after the first.
pub(crate) fn says(text: &str) -> Value {
    json!({ "model": { "provider": "scripted", "name": "demo", "script": [{ "text": text }] }, "input": "Say it." })
}

/// A run whose model takes that long to answer.
pub(crate) fn slow(delay_ms: u64) -> Value {
    json!({
        "model": { "provider": "scripted", "name": "demo", "script": [{ "text": "late", "delay_ms": delay_ms }] },
        "input": "Take your time.",
    })
}

/// The demo MCP server on a free port, what it did, and its task.
pub(crate) async fn demo_mcp() -> (String, DemoLedger, JoinSet<()>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    let ledger = DemoLedger::default();
    let router = demo::router(ledger.clone(), CancellationToken::new());
    let mut tasks = JoinSet::new();
    tasks.spawn(async move { axum::serve(listener, router).await.unwrap() });
    (url, ledger, tasks)
}
