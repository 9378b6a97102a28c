//! A product that dies, and a client that copes with it: it repeats what was not answered, at whoever is up.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::judge::Evidence;
use crate::support::database::Database;
use crate::support::product::{Ask, Options, Product};

/// How long anything may take: far more than it needs.
const PATIENCE: Duration = Duration::from_mins(1);
/// The lease of these nodes.
pub(super) const LEASE: Duration = Duration::from_secs(2);

/// Where the product dies, and who goes on.
pub(super) struct Site {
    database: Arc<Database>,
    node: Product,
    standby: Option<Product>,
    /// What all nodes are started with.
    options: Options,
    /// Since when somebody is up again after the death: at once where a node stood by.
    back: Option<Instant>,
    /// The model turns that were committed when the node died.
    pub(super) turns_at_death: Option<i64>,
    /// How long after that it was told that the crash left a call undecided.
    pub(super) word_after: Option<Duration>,
}

impl Site {
    /// A node with the failpoints armed, and perhaps one beside it that is up already.
    pub(super) async fn start(database: Arc<Database>, log: &Path, kill: Option<&str>, with_standby: bool) -> Self {
        Self::start_as(database, Options::default(), log, kill, with_standby).await
    }

    /// The same with nodes of these options.
    pub(super) async fn start_as(
        database: Arc<Database>,
        options: Options,
        log: &Path,
        kill: Option<&str>,
        with_standby: bool,
    ) -> Self {
        let mut armed = options.clone().with("COUNTERSIGN_FAILPOINT_LOG", log.display().to_string());
        if let Some(point) = kill {
            armed = armed.with("COUNTERSIGN_FAILPOINT_KILL", point);
        }
        let mut standby = None;
        if with_standby {
            standby = Some(Product::start_as(&database.url, &options).await);
        }
        let (node, back) = match Product::try_start(&database.url, &armed).await {
            Ok(node) => (node, None),
            Err(_died) => {
                let next = match standby.take() {
                    Some(standby) => standby,
                    None => Product::start_as(&database.url, &options).await,
                };
                (next, Some(Instant::now()))
            }
        };
        Self { database, node, standby, options, back, turns_at_death: back.map(|_| 0), word_after: None }
    }

    /// Whether the node died.
    pub(super) fn has_died(&self) -> bool {
        self.back.is_some()
    }

    /// Sends the node a signal, unless it has died.
    pub(super) fn signal(&self, name: &str) {
        if !self.has_died() {
            self.node.signal(name);
        }
    }

    pub(super) fn log(&self) -> String {
        self.node.log()
    }

    /// Whether it died by now; then somebody goes on.
    pub(super) async fn look(&mut self) -> bool {
        if !self.has_died() && self.node.has_ended() {
            self.go_on().await;
        }
        self.has_died()
    }

    /// The answer to a request, asked as often as nobody answers.
    async fn ask(&mut self, method: Method, path: &str, body: Option<&Value>, key: Option<&str>) -> (u16, Value) {
        loop {
            let ask = Ask { tenant: "acme", method: method.clone(), path, body, key, patience: PATIENCE };
            match self.node.try_send(&ask).await {
                Ok(answer) => return answer,
                Err(fault) => self.replace(&fault).await,
            }
        }
    }

    async fn replace(&mut self, fault: &str) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !self.node.has_ended() {
            assert!(Instant::now() < deadline, "it lives and does not answer: {fault}\n{}", self.node.log());
            sleep(Duration::from_millis(10)).await;
        }
        self.go_on().await;
    }

    async fn go_on(&mut self) {
        assert!(!self.has_died(), "it died twice: {}", self.node.log());
        self.turns_at_death = Some(self.database.turns().await);
        self.node = match self.standby.take() {
            Some(standby) => standby,
            None => Product::start_as(&self.database.url, &self.options).await,
        };
        self.back = Some(Instant::now());
    }

    /// Creates the run of that body and gives its id; asked again with the same key, it is the same run.
    pub(super) async fn create(&mut self, body: &Value) -> String {
        let (status, run) = self.ask(Method::POST, "/v1/runs", Some(body), Some("the-key")).await;
        assert_eq!(status, 201, "{run}");
        run["id"].as_str().unwrap().to_owned()
    }

    /// The answer to a request that may be repeated.
    pub(super) async fn post(&mut self, path: &str, body: &Value) -> (u16, Value) {
        self.ask(Method::POST, path, Some(body), None).await
    }

    pub(super) async fn get(&mut self, path: &str) -> Value {
        let (status, body) = self.ask(Method::GET, path, None, None).await;
        assert_eq!(status, 200, "{path}: {body}");
        body
    }

    /// Cancels the run, until that is acknowledged.
    pub(super) async fn cancel(&mut self, id: &str) {
        let (status, body) = self.ask(Method::POST, &format!("/v1/runs/{id}/cancel"), Some(&json!({})), None).await;
        assert!(matches!(status, 200 | 202), "{status} {body}");
    }

    /// The run once it is terminal or suspended.
    pub(super) async fn rested(&mut self, id: &str) -> Value {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let run = self.get(&format!("/v1/runs/{id}")).await;
            if !matches!(run["status"].as_str(), Some("queued" | "running")) {
                return run;
            }
            assert!(Instant::now() < deadline, "{id} does not come to rest: {run}\n{}", self.log());
            sleep(Duration::from_millis(15)).await;
        }
    }

    /// Brings the run to its end: whatever is undecided is allowed once more.
    pub(super) async fn settle(&mut self, id: &str) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let run = self.rested(id).await;
            if run["status"] != "suspended" {
                return;
            }
            assert_eq!(run["reason"], "tool-reconciliation-required", "{run}");
            self.clock_the_word(&run);
            let calls: Vec<Value> = run["pending"]["reconciliations"].as_array().unwrap().iter().map(named).collect();
            let body = json!({"retry_tool_call_ids": calls});
            let (status, answer) = self.resume(id, &body).await;
            // A resume that was stored before the node died finds its run on the way.
            assert!(matches!(status, 200 | 202 | 409), "{status} {answer}");
            assert!(Instant::now() < deadline, "{id} does not settle: {run}");
        }
    }

    /// Resumes the run with that body, and gives the answer.
    pub(super) async fn resume(&mut self, id: &str, body: &Value) -> (u16, Value) {
        self.ask(Method::POST, &format!("/v1/runs/{id}/resume"), Some(body), None).await
    }

    /// Within lease + 2 s somebody is told that a call which the crash interrupted is undecided.
    pub(super) fn clock_the_word(&mut self, run: &Value) {
        let crashed = run["pending"]["reconciliations"].as_array().unwrap().iter().any(|call| call["cause"] == "crash");
        if let (true, None, Some(back)) = (crashed, self.word_after, self.back) {
            self.word_after = Some(back.elapsed());
        }
    }

    /// Everything that the product says of the run.
    pub(super) async fn evidence(&mut self, id: &str) -> Evidence {
        let run = self.get(&format!("/v1/runs/{id}")).await;
        let (mut events, mut path) = (Vec::new(), format!("/v1/runs/{id}/events?limit=200"));
        loop {
            let page = self.get(&path).await;
            events.extend(page["data"].as_array().unwrap().iter().cloned());
            let Some(cursor) = page["next_cursor"].as_str() else { break };
            path = format!("/v1/runs/{id}/events?limit=200&cursor={cursor}");
        }
        let receipts = self.get(&format!("/v1/runs/{id}/receipts?limit=200")).await;
        Evidence { run, events, receipts: receipts["data"].as_array().unwrap().clone() }
    }
}

/// A call as a resume names it.
pub(super) fn named(call: &Value) -> Value {
    json!({"turn": call["turn"], "call_id": call["call_id"]})
}
