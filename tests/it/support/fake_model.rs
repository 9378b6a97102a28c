//! A model server of the OpenAI protocol that calls the tools it is told to, and notes which ones it was offered; and one
//! of the Anthropic protocol that only answers.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use http::StatusCode;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

struct Script {
    turns: Vec<Vec<String>>,
    /// Tools that no request may offer.
    refused: Vec<String>,
    offered: Mutex<Vec<Vec<String>>>,
    requests: Mutex<Vec<Value>>,
}

/// The running server; it ends when it is dropped.
pub(crate) struct FakeModel {
    url: String,
    script: Arc<Script>,
    _tasks: JoinSet<()>,
}

impl FakeModel {
    /// A model that calls these tools, one list a turn, and then says "Done.".
    pub(crate) async fn start(turns: &[&[&str]]) -> Self {
        Self::start_refusing(turns, &[]).await
    }

    /// The same, but it refuses every request that offers one of these tools, and names the first.
    pub(crate) async fn start_refusing(turns: &[&[&str]], refused: &[&str]) -> Self {
        let refused = refused.iter().map(|tool| (*tool).to_owned()).collect();
        let turns = turns.iter().map(|turn| turn.iter().map(|tool| (*tool).to_owned()).collect()).collect();
        let script = Arc::new(Script { turns, refused, offered: Mutex::default(), requests: Mutex::default() });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        let router = Router::new().route("/v1/chat/completions", post(answer)).with_state(Arc::clone(&script));
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { url, script, _tasks: tasks }
    }

    /// A model of the Anthropic protocol that says "Done.".
    pub(crate) async fn start_anthropic() -> Self {
        let script = Arc::new(Script {
            turns: Vec::new(),
            refused: Vec::new(),
            offered: Mutex::default(),
            requests: Mutex::default(),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let router = Router::new().route("/v1/messages", post(say_done)).with_state(Arc::clone(&script));
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { url, script, _tasks: tasks }
    }

    /// The `model` of a run that asks it.
    pub(crate) fn spec(&self) -> Value {
        json!({ "provider": "openai", "name": "fake", "base_url": self.url })
    }

    /// The requests so far.
    pub(crate) fn requests(&self) -> Vec<Value> {
        self.script.requests.lock().clone()
    }

    /// The names of the tools that each request so far offered.
    pub(crate) fn offered(&self) -> Vec<Vec<String>> {
        self.script.offered.lock().clone()
    }
}

async fn say_done(State(script): State<Arc<Script>>, Json(request): Json<Value>) -> Response {
    script.requests.lock().push(request);
    let usage = json!({ "input_tokens": 3, "output_tokens": 1 });
    let message = json!({ "id": "m", "type": "message", "role": "assistant", "model": "fake", "content": [],
        "stop_reason": null, "stop_sequence": null, "usage": usage });
    let events = [
        json!({ "type": "message_start", "message": message }),
        json!({ "type": "content_block_start", "index": 0, "content_block": { "type": "text", "text": "" } }),
        json!({ "type": "content_block_delta", "index": 0, "delta": { "type": "text_delta", "text": "Done." } }),
        json!({ "type": "content_block_stop", "index": 0 }),
        json!({ "type": "message_delta", "delta": { "stop_reason": "end_turn", "stop_sequence": null }, "usage": usage }),
        json!({ "type": "message_stop" }),
    ];
    let frame = |event: &Value| format!("event: {}\ndata: {event}\n\n", event["type"].as_str().unwrap());
    ([("content-type", "text/event-stream")], events.iter().map(frame).collect::<String>()).into_response()
}

async fn answer(State(script): State<Arc<Script>>, Json(request): Json<Value>) -> Response {
    let names = |list: &Value| -> Vec<String> {
        let tools = list.as_array().into_iter().flatten();
        tools.map(|tool| tool["function"]["name"].as_str().unwrap().to_owned()).collect()
    };
    let offered = names(&request["tools"]);
    script.offered.lock().push(offered.clone());
    script.requests.lock().push(request.clone());
    if let Some(at) = offered.iter().position(|tool| script.refused.contains(tool)) {
        let message = format!("Invalid schema for function '{}': None is not valid.", offered[at]);
        let param = format!("tools[{at}].function.parameters");
        let error = json!({ "message": message, "type": "invalid_request_error", "param": param });
        return (StatusCode::BAD_REQUEST, Json(json!({ "error": error }))).into_response();
    }
    let said = request["messages"].as_array().unwrap().iter().filter(|message| message["role"] == "assistant").count();
    let (delta, finish) = match script.turns.get(said) {
        Some(tools) => {
            let call = |(index, tool): (usize, &String)| {
                let function = json!({ "name": tool, "arguments": "{}" });
                json!({ "index": index, "id": format!("call_{said}_{index}"), "type": "function", "function": function })
            };
            let calls: Vec<Value> = tools.iter().enumerate().map(call).collect();
            (json!({ "role": "assistant", "tool_calls": calls }), "tool_calls")
        }
        None => (json!({ "role": "assistant", "content": "Done." }), "stop"),
    };
    let choice = |delta: Value, finish: Value| {
        json!({ "id": "c", "object": "chat.completion.chunk", "created": 1, "model": "fake",
                "choices": [{ "index": 0, "delta": delta, "finish_reason": finish }] })
    };
    let events = format!(
        "data: {}\n\ndata: {}\n\ndata: [DONE]\n\n",
        choice(delta, Value::Null),
        choice(json!({}), json!(finish))
    );
    ([("content-type", "text/event-stream")], events).into_response()
}
