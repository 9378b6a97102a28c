//! A whole server in this process, spoken to over a real socket.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use countersign::app::{App, Grants, Server};
use countersign::auth::{AuthSettings, Grant, mint};
use countersign::clock::{Clock, SystemClock};
use countersign::config::Config;
use countersign::run::ids::{Actor, RunId, TenantId};
use countersign::run::time::Timestamp;
use reqwest::{Method, RequestBuilder, Response, StatusCode};
use secrecy::SecretString;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep, timeout};

use crate::support::database::Database;

/// Longest wait for what must happen.
pub(super) const SOON: Duration = Duration::from_secs(20);

/// A clock that is wrong, and can be set while it is read.
pub(super) struct WrongClock(AtomicI64);

impl WrongClock {
    /// A clock that goes so many milliseconds before the right time.
    pub(super) fn ahead(millis: i64) -> Arc<Self> {
        Arc::new(Self(AtomicI64::new(millis)))
    }

    pub(super) fn set_ahead(&self, millis: i64) {
        self.0.store(millis, Ordering::SeqCst);
    }
}

impl Clock for WrongClock {
    fn now(&self) -> Timestamp {
        SystemClock.now().plus_millis(self.0.load(Ordering::SeqCst))
    }

    fn run_id(&self) -> RunId {
        SystemClock.run_id()
    }
}

/// How a node differs from the usual one.
pub(super) struct Setup {
    pub(super) clock: Arc<dyn Clock>,
    pub(super) grants: Grants,
    pub(super) lease_s: u32,
    pub(super) drain_s: u32,
    /// The folder with its keys: another node's when both must know them.
    pub(super) keys: Option<Arc<tempfile::TempDir>>,
}

impl Default for Setup {
    fn default() -> Self {
        Self { clock: Arc::new(SystemClock), grants: Grants::default(), lease_s: 2, drain_s: 5, keys: None }
    }
}

/// One node.
pub(super) struct Node {
    server: Server,
    pub(super) http: reqwest::Client,
    base: String,
    auth: AuthSettings,
    clock: Arc<dyn Clock>,
    data: Arc<tempfile::TempDir>,
}

impl Node {
    pub(super) async fn start(database: &Database) -> Self {
        Self::start_as(database, Setup::default()).await
    }

    /// A second node with the keys of the first.
    pub(super) async fn start_beside(database: &Database, first: &Self) -> Self {
        Self::start_as(database, Setup { keys: Some(Arc::clone(&first.data)), ..Setup::default() }).await
    }

    pub(super) async fn start_as(database: &Database, setup: Setup) -> Self {
        let data = setup.keys.unwrap_or_else(|| Arc::new(tempfile::tempdir().unwrap()));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut config = Config::dev(data.path(), listener.local_addr().unwrap(), &|_: &str| None).unwrap();
        config.database_url = SecretString::from(database.url.clone());
        (config.lease_s, config.drain_s, config.catalog_max_age_ms) = (setup.lease_s, setup.drain_s, 0);
        let app = App::start(&config, Arc::clone(&setup.clock), true).await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let server = Server::start(&config, app, listener, Arc::new(String::new), setup.grants).unwrap();
        Self { server, http: reqwest::Client::new(), base, auth: config.auth, clock: setup.clock, data }
    }

    /// Stops it in order.
    pub(super) async fn stop(self) {
        self.server.stop().await.unwrap();
    }

    pub(super) fn app(&self) -> &App {
        self.server.app()
    }

    pub(super) fn url(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    /// The address that it listens at.
    pub(super) fn address(&self) -> std::net::SocketAddr {
        self.server.address()
    }

    pub(super) fn token(&self) -> String {
        let grant = Grant {
            tenant: TenantId::parse("acme").unwrap(),
            actor: Actor::parse("alice").unwrap(),
            scope: "admin".to_owned(),
            ttl_s: 3600,
            workload_identity: None,
            image_digest: None,
        };
        mint(&self.auth, &grant, self.clock.now()).unwrap()
    }

    pub(super) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.http.request(method, self.url(path)).bearer_auth(self.token())
    }

    pub(super) async fn get(&self, path: &str) -> Value {
        let answer = timeout(SOON, self.request(Method::GET, path).send()).await.unwrap().unwrap();
        read(answer, StatusCode::OK).await
    }

    /// Sends a POST and expects this status.
    pub(super) async fn post(&self, path: &str, body: &Value, status: u16) -> Value {
        let request = self.request(Method::POST, path).header("content-type", "application/json");
        let answer = timeout(SOON, request.body(body.to_string()).send()).await.unwrap().unwrap();
        read(answer, StatusCode::from_u16(status).unwrap()).await
    }

    /// Opens a stream, continued after a number.
    pub(super) async fn open(&self, path: &str, after: Option<i64>) -> Stream {
        let mut request = self.request(Method::GET, path).header("accept", "text/event-stream");
        if let Some(after) = after {
            request = request.header("last-event-id", after.to_string());
        }
        Stream::new(request.send().await.unwrap())
    }

    /// The run once it is as it should be.
    pub(super) async fn until(&self, id: &str, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + SOON;
        loop {
            let run = self.get(&format!("/v1/runs/{id}")).await;
            if holds(&run) {
                return run;
            }
            assert!(Instant::now() < deadline, "{id} is not {what}: {run}");
            sleep(Duration::from_millis(10)).await;
        }
    }

    /// The run once it is terminal or suspended.
    pub(super) async fn rested(&self, id: &str) -> Value {
        self.until(id, "at rest", |run| !matches!(run["status"].as_str(), Some("queued" | "running"))).await
    }

    /// The run's events so far.
    pub(super) async fn events(&self, id: &str) -> Vec<Value> {
        let mut events = Vec::new();
        loop {
            let after = events.last().map_or(0, |event: &Value| event["seq"].as_i64().unwrap());
            let page = self.get(&format!("/v1/runs/{id}/events?limit=200&after={after}")).await;
            let page = page["data"].as_array().unwrap().clone();
            if page.is_empty() {
                return events;
            }
            events.extend(page);
        }
    }

    /// Waits until that many events of a kind are stored.
    pub(super) async fn until_told(&self, id: &str, kind: &str, count: usize) {
        let deadline = Instant::now() + SOON;
        while self.events(id).await.iter().filter(|event| event["type"] == kind).count() < count {
            assert!(Instant::now() < deadline, "{id}: no {count} times {kind}");
            sleep(Duration::from_millis(10)).await;
        }
    }
}

async fn read(answer: Response, wanted: StatusCode) -> Value {
    let (status, path) = (answer.status(), answer.url().path().to_owned());
    let text = answer.text().await.unwrap();
    assert_eq!(status, wanted, "{path}: {text}");
    serde_json::from_str(&text).unwrap_or_else(|fault| panic!("{fault}: {text}"))
}

/// An open stream of events.
pub(super) struct Stream {
    pub(super) response: Response,
    text: String,
}

impl Stream {
    #[track_caller]
    pub(super) fn new(response: Response) -> Self {
        assert!(response.status().is_success(), "{response:?}");
        Self { response, text: String::new() }
    }

    /// The next frame, or `None` at the end of the stream, proper or not.
    pub(super) async fn frame(&mut self) -> Option<String> {
        loop {
            if let Some((frame, rest)) = self.text.split_once("\n\n") {
                let (frame, rest) = (frame.to_owned(), rest.to_owned());
                self.text = rest;
                return Some(frame);
            }
            let chunk = timeout(SOON, self.response.chunk()).await.expect("the stream goes on or ends");
            self.text.push_str(std::str::from_utf8(&chunk.ok()??).unwrap());
        }
    }

    /// The next event with its number; comments and `retry` are passed over.
    pub(super) async fn event(&mut self) -> Option<(i64, Value)> {
        loop {
            let frame = self.frame().await?;
            let Some((id, data)) = frame.split_once('\n') else { continue };
            let id: i64 = id.strip_prefix("id: ").expect("id first").parse().unwrap();
            return Some((id, serde_json::from_str(data.strip_prefix("data: ").expect("then data")).unwrap()));
        }
    }

    /// All that is still to come.
    pub(super) async fn rest(mut self) -> Vec<(i64, Value)> {
        let mut events = Vec::new();
        while let Some(event) = self.event().await {
            events.push(event);
        }
        events
    }
}

/// The numbers and types of events.
pub(super) fn outline(events: &[(i64, Value)]) -> Vec<(i64, String)> {
    events.iter().map(|(seq, event)| (*seq, event["type"].as_str().unwrap().to_owned())).collect()
}

/// A run whose model takes that long to answer.
pub(super) fn slow(id: &str, delay_ms: u64) -> Value {
    serde_json::json!({
        "id": id, "input": "Take your time.",
        "model": { "provider": "scripted", "name": "demo", "script": [{ "text": "late", "delay_ms": delay_ms }] },
    })
}

/// A run that says a lot: so many turns, each with a call of an unknown tool with a note of that size.
pub(super) fn talkative(id: &str, turns: u32, note: usize) -> Value {
    let call = serde_json::json!({ "name": "unknown", "arguments": { "note": "x".repeat(note) } });
    serde_json::json!({
        "id": id, "input": "Talk.", "limits": { "max_turns": turns, "max_tool_calls": turns },
        "model": { "provider": "scripted", "name": "demo", "script": [{ "tool_calls": [call] }] },
    })
}
