//! Rules for calls, and the agents that carry them.

mod agents;
mod limits;
mod moved;
mod policies;

use axum::body::Body;
use http::Method;
use serde_json::{Value, json};

use crate::http::harness::{Answer, Server, request};
use crate::support::database::Database;
use crate::support::fake_mcp::{FakeMcp, Reply};

/// A server on this database, an MCP server with tools for money, and an administrator of the tenant "acme".
struct Site {
    server: Server,
    fake: FakeMcp,
    admin: String,
}

/// A tool that takes whatever it is given.
fn open_tool(name: &str) -> Value {
    json!({ "name": name, "inputSchema": { "type": "object" } })
}

impl Site {
    async fn on(database: Database) -> Self {
        let fake = FakeMcp::start().await;
        fake.on_list(|_| Reply::Result(json!({ "tools": [open_tool("charge"), open_tool("look")] })));
        fake.on_call(|seen| Reply::text(&format!("did {}", seen.body["params"]["name"].as_str().unwrap())));
        let server = Server::start_on(database).await;
        let admin = server.token("acme", "alice", "admin");
        Self { server, fake, admin }
    }

    async fn send_as(&self, token: &str, method: Method, path: &str, body: &Value) -> Answer {
        let body = if body.is_null() { Body::empty() } else { Body::from(body.to_string()) };
        self.server.send(request(method, path, token, &[], body)).await
    }

    async fn send(&self, method: Method, path: &str, body: &Value) -> Answer {
        self.send_as(&self.admin, method, path, body).await
    }

    async fn get(&self, path: &str) -> Value {
        let answer = self.server.get(path, &self.admin).await;
        assert_eq!(answer.status, 200, "{path}: {:?}", answer.body);
        answer.json()
    }

    /// A run whose model makes these calls in its first turn and then says "Done.".
    fn calling(&self, id: &str, calls: &[(&str, Value)], policies: Value) -> Value {
        let calls: Vec<Value> = calls.iter().map(|(tool, args)| json!({ "name": tool, "arguments": args })).collect();
        json!({
            "id": id,
            "model": { "provider": "scripted", "name": "demo", "script": [{ "tool_calls": calls }, { "text": "Done." }] },
            "input": "Go.",
            "mcp": [{ "url": self.fake.url() }],
            "policies": policies,
        })
    }

    /// Creates a run and waits until it rests.
    #[track_caller]
    fn settled<'a>(&'a self, body: &'a Value) -> impl Future<Output = Value> + 'a {
        let place = std::panic::Location::caller();
        async move {
            let answer = self.server.post_with("/v1/runs", &self.admin, &[("prefer", "wait=20")], body).await;
            assert_eq!(answer.status, 201, "{place}: {:?}", answer.body);
            answer.json()
        }
    }

    /// The `tool-output` events of a run.
    async fn outputs(&self, id: &str) -> Vec<Value> {
        let events = self.get(&format!("/v1/runs/{id}/events")).await;
        let events = events["data"].as_array().unwrap();
        events.iter().filter(|event| event["type"] == "tool-output").cloned().collect()
    }

    /// The arguments of everything that the MCP server was asked to do.
    fn sent(&self) -> Vec<Value> {
        self.fake.seen_rpc("tools/call").iter().map(|seen| seen.body["params"]["arguments"].clone()).collect()
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
