//! Registered servers and stored secrets: what is kept, what a run may say beside them, and what reaches a server when
//! they change.

mod canary;
mod echoes;
mod entries;
mod rotation;
mod secrets;
mod servers;
mod uses;

use axum::body::Body;
use http::Method;
use serde_json::{Value, json};

use crate::http::harness::{Answer, Server, request};
use crate::support::database::Database;

/// A server on this database, and an administrator of the tenant "acme".
struct Site {
    server: Server,
    admin: String,
}

impl Site {
    async fn on(database: Database) -> Self {
        let server = Server::start_on(database).await;
        let admin = server.token("acme", "alice", "admin");
        Self { server, admin }
    }

    async fn start() -> Self {
        Self::on(Database::sqlite().await).await
    }

    async fn send(&self, method: Method, path: &str, body: &Value) -> Answer {
        self.send_as(&self.admin, method, path, body).await
    }

    async fn send_as(&self, token: &str, method: Method, path: &str, body: &Value) -> Answer {
        let body = if body.is_null() { Body::empty() } else { Body::from(body.to_string()) };
        self.server.send(request(method, path, token, &[], body)).await
    }

    async fn get(&self, path: &str) -> Value {
        let answer = self.server.get(path, &self.admin).await;
        assert_eq!(answer.status, 200, "{path}: {:?}", answer.body);
        answer.json()
    }

    #[track_caller]
    fn put_secret<'a>(&'a self, name: &'a str, value: &'a str, hosts: &'a [&'a str]) -> impl Future<Output = ()> + 'a {
        let place = std::panic::Location::caller();
        async move {
            let body = json!({ "value": value, "hosts": hosts });
            let answer = self.send(Method::PUT, &format!("/v1/secrets/{name}"), &body).await;
            assert_eq!(answer.status, 204, "{place}: {:?}", answer.body);
        }
    }

    #[track_caller]
    fn put_server<'a>(&'a self, name: &'a str, body: Value) -> impl Future<Output = Value> + 'a {
        let place = std::panic::Location::caller();
        async move {
            let answer = self.send(Method::PUT, &format!("/v1/mcp-servers/{name}"), &body).await;
            assert!(matches!(answer.status.as_u16(), 200 | 201), "{place}: {:?}", answer.body);
            answer.json()
        }
    }

    /// Creates a run and waits until it rests.
    async fn settled(&self, body: &Value) -> Value {
        let headers = [("prefer", "wait=20")];
        let answer = self.server.post_with("/v1/runs", &self.admin, &headers, body).await;
        assert_eq!(answer.status, 201, "{:?}", answer.body);
        answer.json()
    }

    /// The pointers of the faults of a run that is refused.
    async fn faults(&self, body: &Value) -> Vec<(String, String)> {
        faults(&self.send(Method::POST, "/v1/runs", body).await)
    }
}

/// Pointer and words of every fault of a 422.
#[track_caller]
fn faults(answer: &Answer) -> Vec<(String, String)> {
    let problem = answer.problem(422, "validation-failed");
    let text = |flaw: &Value, member: &str| flaw[member].as_str().unwrap_or_default().to_owned();
    let flaws = problem["errors"].as_array().unwrap();
    flaws.iter().map(|flaw| (text(flaw, "pointer"), text(flaw, "detail"))).collect()
}

#[track_caller]
fn pointers(answer: &Answer) -> Vec<String> {
    let mut pointers: Vec<String> = faults(answer).into_iter().map(|(pointer, _)| pointer).collect();
    pointers.sort();
    pointers
}

/// A run whose model calls these tools one after the other and then says "Done.".
fn calling(tools: &[&str], mcp: Value) -> Value {
    let mut script: Vec<Value> =
        tools.iter().map(|tool| json!({ "tool_calls": [{ "name": tool, "arguments": {} }] })).collect();
    script.push(json!({ "text": "Done." }));
    json!({ "model": { "provider": "scripted", "name": "demo", "script": script }, "input": "Go.", "mcp": mcp })
}
