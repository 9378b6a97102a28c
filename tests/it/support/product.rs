//! The real binary as a process of its own, spoken to over HTTP: what a user starts, and what a test kills.

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
use super::process::Process;
use super::sse::Events;

const SECRET: &str = "0123456789abcdef0123456789abcdef-tests";
const ISSUER: &str = "https://issuer.test";
const AUDIENCE: &str = "countersign-tests";
/// 32 bytes in base64.
const MASTER_KEY: &str = "k1:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

/// The variable that says how the servers under test wake each other: `notify` or `off`.
const WAKE: &str = "COUNTERSIGN_TEST_WAKE";

/// A running server.
pub(crate) struct Product {
    process: Process,
    http: reqwest::Client,
}

impl Product {
    /// Starts `countersign serve` on this database and waits until it is ready.
    pub(crate) async fn start(database: &Database) -> Self {
        Self::start_with(&database.url, &[]).await
    }

    /// The same on a database of this address, with these settings besides.
    pub(crate) async fn start_with(database: &str, settings: &[(&str, &str)]) -> Self {
        let process = Process::start(|port| serve(port, database, settings)).await;
        let product = Self { process, http: reqwest::Client::new() };
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let ready = product.http.get(product.process.url("/readyz")).send().await;
            if ready.is_ok_and(|answer| answer.status() == StatusCode::OK) {
                return product;
            }
            assert!(Instant::now() < deadline, "not ready: {}", product.process.output());
            sleep(Duration::from_millis(20)).await;
        }
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

    /// What it logged.
    pub(crate) fn log(&self) -> String {
        self.process.output()
    }

    pub(crate) fn url(&self, path: &str) -> String {
        self.process.url(path)
    }

    pub(crate) async fn send(&self, method: Method, path: &str, body: Option<&Value>) -> Response {
        let mut request = self.http.request(method, self.url(path)).bearer_auth(token("acme", "admin"));
        if let Some(body) = body {
            request = request.header("content-type", "application/json").body(body.to_string());
        }
        request.send().await.unwrap()
    }

    pub(crate) async fn get(&self, path: &str) -> Value {
        let answer = self.send(Method::GET, path, None).await;
        assert_eq!(answer.status(), StatusCode::OK, "{path}");
        json_of(answer).await
    }

    /// Sends a POST and expects this status.
    pub(crate) async fn post(&self, path: &str, body: &Value, status: u16) -> Value {
        let answer = self.send(Method::POST, path, Some(body)).await;
        let got = answer.status().as_u16();
        let body = json_of(answer).await;
        assert_eq!(got, status, "{path}: {body}");
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

async fn json_of(answer: Response) -> Value {
    let text = answer.text().await.unwrap();
    serde_json::from_str(&text).unwrap_or_else(|fault| panic!("{fault}: {text}"))
}

/// How the servers under test wake each other where a test does not say.
#[expect(clippy::disallowed_methods, reason = "it says how to test; the product has no such setting")]
pub(crate) fn wake() -> String {
    std::env::var(WAKE).unwrap_or_else(|_| "notify".to_owned())
}

fn serve(port: u16, database: &str, settings: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_countersign"));
    command.arg("serve").env_clear().envs([
        ("COUNTERSIGN_DATABASE_URL", database),
        ("COUNTERSIGN_LISTEN", &format!("127.0.0.1:{port}")),
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
    command.envs(settings.iter().copied());
    command
}

/// A token of this server's issuer.
pub(crate) fn token(tenant: &str, scope: &str) -> String {
    let settings = AuthSettings {
        hs256: Some(SecretString::from(SECRET)),
        jwks: None,
        issuer: Some(ISSUER.to_owned()),
        audience: Some(AUDIENCE.to_owned()),
        tenant_claim: "tenant".to_owned(),
    };
    let grant = Grant {
        tenant: TenantId::parse(tenant).unwrap(),
        actor: Actor::parse("alice").unwrap(),
        scope: scope.to_owned(),
        ttl_s: 3600,
    };
    mint(&settings, &grant, SystemClock.now()).unwrap()
}
