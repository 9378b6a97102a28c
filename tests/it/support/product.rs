//! The real binary as a process of its own, spoken to over HTTP: what a user starts, and what a test kills.

use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use countersign::auth::{AuthSettings, Grant, mint};
use countersign::clock::{Clock as _, SystemClock};
use countersign::run::ids::{Actor, TenantId};
use reqwest::{Method, Response, StatusCode};
use secrecy::SecretString;
use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::database::Database;
use super::process::{Process, own_host};
use super::sse::Events;

const SECRET: &str = "0123456789abcdef0123456789abcdef-tests";
const ISSUER: &str = "https://issuer.test";
const AUDIENCE: &str = "countersign-tests";
/// 32 bytes in base64.
const MASTER_KEY: &str = "k1:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

/// The variable that says how the servers under test wake each other: `notify` or `off`.
const WAKE: &str = "COUNTERSIGN_TEST_WAKE";

/// Settings beside, or instead of, the usual ones; names that begin with `--` are arguments.
#[derive(Clone, Debug, Default)]
pub(crate) struct Options(Vec<(String, String)>);

impl Options {
    pub(crate) fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.0.push((name.to_owned(), value.into()));
        self
    }
}

/// A running server.
pub(crate) struct Product {
    process: Process,
    http: reqwest::Client,
    /// Its share of the database: a server outlives no file that it writes to.
    _database: Option<Database>,
}

impl Product {
    /// Starts `countersign serve` on this database and waits until it is ready.
    pub(crate) async fn start(database: &Database) -> Self {
        let product = Self::start_as(&database.url, &Options::default()).await;
        Self { _database: Some(database.clone()), ..product }
    }

    /// The same on the database at this address, with these settings besides.
    pub(crate) async fn start_with(url: &str, settings: &[(&str, &str)]) -> Self {
        let options = settings.iter().fold(Options::default(), |options, (name, value)| options.with(name, *value));
        Self::start_as(url, &options).await
    }

    /// The same with other settings.
    pub(crate) async fn start_as(url: &str, options: &Options) -> Self {
        let process = Process::start_at(own_host(), |address| serve(address, url, options)).await;
        let mut product = Self { process, http: reqwest::Client::new(), _database: None };
        if let Err(fault) = product.ready().await {
            panic!("{fault}");
        }
        product
    }

    /// The same for one that may die before it is ready; then what it said.
    pub(crate) async fn try_start(url: &str, options: &Options) -> Result<Self, String> {
        let process = Process::try_start_at(own_host(), |address| serve(address, url, options)).await?;
        let mut product = Self { process, http: reqwest::Client::new(), _database: None };
        product.ready().await?;
        Ok(product)
    }

    async fn ready(&mut self) -> Result<(), String> {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let ready = self.http.get(self.process.url("/readyz")).send().await;
            if ready.is_ok_and(|answer| answer.status() == StatusCode::OK) {
                return Ok(());
            }
            if self.process.has_ended() || Instant::now() > deadline {
                return Err(format!("not ready: {}", self.process.output()));
            }
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Whether it has ended.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.process.has_ended()
    }

    /// `kill -9`.
    pub(crate) fn kill(self) {
        drop(self);
    }

    /// Sends it a signal by name, e.g. `TERM`.
    pub(crate) fn signal(&self, name: &str) {
        self.process.signal(name);
    }

    /// Waits until it ended by itself.
    pub(crate) async fn ended(mut self) -> std::process::ExitStatus {
        self.process.ended().await
    }

    /// The most memory that it ever took, in MiB.
    pub(crate) fn peak_memory(&self) -> u64 {
        self.process.peak_memory()
    }

    /// What it logged.
    /// How much memory it has now, in mebibytes.
    pub(crate) fn memory(&self) -> u64 {
        self.process.memory()
    }

    pub(crate) fn log(&self) -> String {
        self.process.output()
    }

    pub(crate) fn url(&self, path: &str) -> String {
        self.process.url(path)
    }

    pub(crate) async fn send(&self, method: Method, path: &str, body: Option<&Value>) -> Response {
        self.send_as("acme", method, path, body).await
    }

    /// The same as another tenant's administrator.
    pub(crate) async fn send_as(&self, tenant: &str, method: Method, path: &str, body: Option<&Value>) -> Response {
        let mut request = self.http.request(method, self.url(path)).bearer_auth(token(tenant, "admin"));
        if let Some(body) = body {
            request = request.header("content-type", "application/json").body(body.to_string());
        }
        request.send().await.unwrap()
    }

    /// Asks for this tenant with a key, when there is one; whatever is answered, or that nothing was.
    pub(crate) async fn try_send(&self, ask: &Ask<'_>) -> Result<(u16, Value), String> {
        let mut request = self.http.request(ask.method.clone(), self.url(ask.path));
        request = request.bearer_auth(token(ask.tenant, "admin")).timeout(ask.patience);
        if let Some(key) = ask.key {
            request = request.header("idempotency-key", key);
        }
        if let Some(body) = ask.body {
            request = request.header("content-type", "application/json").body(body.to_string());
        }
        let answer = request.send().await.map_err(|fault| fault.to_string())?;
        let status = answer.status().as_u16();
        let text = answer.text().await.map_err(|fault| fault.to_string())?;
        let body = if text.is_empty() { Ok(Value::Null) } else { serde_json::from_str(&text) };
        Ok((status, body.map_err(|fault| format!("{fault}: {text}"))?))
    }

    /// Votes as this actor.
    pub(crate) async fn vote_as(&self, actor: &str, path: &str, body: &Value) -> (u16, Value) {
        let request = self.http.post(self.url(path)).bearer_auth(token_of("acme", actor, "runs:read approvals:decide"));
        let answer = request.header("content-type", "application/json").body(body.to_string()).send().await.unwrap();
        (answer.status().as_u16(), json_of(answer).await)
    }

    pub(crate) async fn get(&self, path: &str) -> Value {
        let answer = self.send(Method::GET, path, None).await;
        let got = answer.status();
        let body = json_of(answer).await;
        assert_eq!(got, StatusCode::OK, "{path}: {body}\n{}", self.log());
        body
    }

    /// Sends a POST and expects this status.
    pub(crate) async fn post(&self, path: &str, body: &Value, status: u16) -> Value {
        let answer = self.send(Method::POST, path, Some(body)).await;
        let got = answer.status().as_u16();
        let body = json_of(answer).await;
        assert_eq!(got, status, "{path}: {body}\n{}", self.log());
        body
    }

    /// The run once it is terminal or suspended.
    pub(crate) async fn rested(&self, id: &str) -> Value {
        let deadline = Instant::now() + Duration::from_secs(40);
        loop {
            let run = self.get(&format!("/v1/runs/{id}")).await;
            if !matches!(run["status"].as_str(), Some("queued" | "running")) {
                return run;
            }
            assert!(Instant::now() < deadline, "{id} did not come to rest: {run}\n{}", self.log());
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Opens a stream of events.
    pub(crate) async fn stream(&self, path: &str) -> Events {
        let request = self.http.get(self.url(path)).bearer_auth(token("acme", "admin"));
        Events::of(request.header("accept", "text/event-stream").send().await.unwrap()).await
    }

    /// The types of a run's events, in order.
    pub(crate) async fn event_kinds(&self, id: &str) -> Vec<String> {
        let page = self.get(&format!("/v1/runs/{id}/events?limit=200")).await;
        let events = page["data"].as_array().unwrap();
        events.iter().map(|event| event["type"].as_str().unwrap().to_owned()).collect()
    }
}

/// One request of a client that copes with a server that dies.
pub(crate) struct Ask<'a> {
    pub(crate) tenant: &'a str,
    pub(crate) method: Method,
    pub(crate) path: &'a str,
    pub(crate) body: Option<&'a Value>,
    pub(crate) key: Option<&'a str>,
    /// How long an answer is waited for.
    pub(crate) patience: Duration,
}

async fn json_of(answer: Response) -> Value {
    let text = answer.text().await.unwrap();
    serde_json::from_str(&text).unwrap_or_else(|fault| panic!("{fault}: {text}"))
}

/// How the servers under test wake each other where a test does not say.
#[expect(clippy::disallowed_methods, reason = "it says how to test; the product has no such setting")]
pub(crate) fn wake() -> String {
    std::env::var(WAKE).unwrap_or_else(|_| "notify".to_owned())
}

fn serve(address: SocketAddr, database: &str, options: &Options) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_countersign"));
    command.arg("serve").env_clear().envs([
        ("COUNTERSIGN_DATABASE_URL", database),
        ("COUNTERSIGN_LISTEN", &address.to_string()),
        ("COUNTERSIGN_JWT_HS256_SECRET", SECRET),
        ("COUNTERSIGN_JWT_ISSUER", ISSUER),
        ("COUNTERSIGN_JWT_AUDIENCE", AUDIENCE),
        ("COUNTERSIGN_MASTER_KEYS", MASTER_KEY),
        ("COUNTERSIGN_EGRESS_ALLOW", "127.0.0.0/8,localhost"),
        ("COUNTERSIGN_ALLOW_SCRIPTED_MODELS", "true"),
        ("COUNTERSIGN_LEASE_S", "2"),
        ("COUNTERSIGN_DRAIN_S", "5"),
        ("COUNTERSIGN_WAKE", &wake()),
    ]);
    for (name, value) in &options.0 {
        if name.starts_with("--") {
            command.arg(name).arg(value);
        } else {
            command.env(name, value);
        }
    }
    command
}

/// A token of this server's issuer.
pub(crate) fn token(tenant: &str, scope: &str) -> String {
    token_of(tenant, "alice", scope)
}

fn token_of(tenant: &str, actor: &str, scope: &str) -> String {
    let settings = AuthSettings {
        hs256: Some(SecretString::from(SECRET)),
        jwks: None,
        issuer: Some(ISSUER.to_owned()),
        audience: Some(AUDIENCE.to_owned()),
        tenant_claim: "tenant".to_owned(),
    };
    let grant = Grant {
        tenant: TenantId::parse(tenant).unwrap(),
        actor: Actor::parse(actor).unwrap(),
        scope: scope.to_owned(),
        ttl_s: 3600,
        workload_identity: None,
        image_digest: None,
    };
    mint(&settings, &grant, SystemClock.now()).unwrap()
}
