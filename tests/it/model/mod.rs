//! The providers over real sockets: against a fake that breaks the wire in every way, and against servers nobody here
//! wrote.

mod aimock;
pub(crate) mod fake;
mod faults;
mod llmock;
mod protocols;

use std::time::Duration;

use countersign::model::{ModelError, ModelErrorKind, ModelPart, ModelProvider as _, ModelRequest, Models};
use countersign::net::{Egress, EgressAllow};
use countersign::run::history::{Prompt, ToolOffer};
use countersign::run::ids::CallId;
use countersign::run::message::{Content, Message, ModelTurn, Role};
use countersign::run::spec::{ModelSpec, Provider};
use futures::StreamExt as _;
use serde_json::{Value, json};

/// How long a provider may be silent in these tests.
const READ_TIMEOUT: Duration = Duration::from_secs(10);

const PROTOCOLS: [Provider; 2] = [Provider::Openai, Provider::Anthropic];

fn models(read_timeout: Duration) -> Models {
    let egress = Egress::new(EgressAllow::parse(["127.0.0.0/8"]).expect("an allow list"));
    let client = egress.client(READ_TIMEOUT, Some(read_timeout));
    Models::new(client.expect("a client"))
}

/// A request that says `user` and offers the tools `add` and `put`.
fn request(provider: Provider, base_url: &str, user: &str) -> ModelRequest {
    let tool = |name: &str| ToolOffer {
        name: name.to_owned(),
        description: Some(format!("The tool {name}.")),
        input_schema: json!({ "type": "object", "properties": { "a": { "type": "integer" } } }),
    };
    let content = vec![Content::Text { text: user.to_owned() }];
    let model = ModelSpec {
        provider,
        name: "test-model".to_owned(),
        secret: Some("key".to_owned()),
        base_url: Some(base_url.to_owned()),
        parameters: None,
        script: None,
    };
    ModelRequest {
        model,
        prompt: Prompt {
            instructions: Some("You are tested.".to_owned()),
            messages: vec![Message { position: 0, turn: 0, role: Role::User, content }],
            tools: vec![tool("add"), tool("put")],
        },
        secret: Some("sk-canary".into()),
        requests_before: 0,
        calls_before: 0,
    }
}

/// Everything that a request brings.
struct Answer {
    text: String,
    reasoning: String,
    turn: Result<ModelTurn, ModelError>,
}

impl Answer {
    #[track_caller]
    fn turn(self) -> ModelTurn {
        let turn = self.turn.unwrap_or_else(|error| panic!("no turn: {error}"));
        let thoughts: String = turn.reasoning.iter().map(|(text, _)| text.as_str()).collect();
        assert_eq!((&self.text, &self.reasoning), (&turn.text, &thoughts), "what was streamed is what is kept");
        turn
    }

    #[track_caller]
    fn error(self) -> ModelError {
        let error = self.turn.expect_err("a turn where none can be");
        assert!(!error.message.contains("sk-canary"), "the key in {}", error.message);
        assert!(!error.message.contains('?'), "a query string in {}", error.message);
        error
    }
}

async fn ask(request: ModelRequest) -> Answer {
    ask_within(READ_TIMEOUT, request).await
}

async fn ask_within(read_timeout: Duration, request: ModelRequest) -> Answer {
    let mut parts = models(read_timeout).ask(request);
    let mut text = String::new();
    let mut reasoning = String::new();
    let mut turn = None;
    while let Some(part) = parts.next().await {
        assert!(turn.is_none(), "{part:?} behind the end");
        match part {
            Ok(ModelPart::Text(piece)) => text.push_str(&piece),
            Ok(ModelPart::Reasoning(piece)) => reasoning.push_str(&piece),
            Ok(ModelPart::Ended(ended)) => turn = Some(Ok(*ended)),
            Err(error) => turn = Some(Err(error)),
        }
    }
    let turn = turn.expect("the stream ended with neither a turn nor an error");
    Answer { text, reasoning, turn }
}

/// The conversation after a turn whose calls all answered `result`.
fn after(mut request: ModelRequest, turn: &ModelTurn, result: &Value) -> ModelRequest {
    let id = |call: &countersign::run::message::WrittenCall| CallId::new(call.id.clone().unwrap_or_default());
    let mut said: Vec<Content> = Vec::new();
    for (text, native) in &turn.reasoning {
        said.push(Content::Reasoning { text: text.clone(), native: native.clone() });
    }
    said.push(Content::Text { text: turn.text.clone() });
    let mut results = Vec::new();
    for call in &turn.calls {
        let input = serde_json::from_str(&call.arguments).unwrap_or_else(|_| Value::from(call.arguments.as_str()));
        said.push(Content::ToolCall { call_id: id(call), tool: call.tool.clone(), input });
        let (tool, output) = (call.tool.clone(), result.clone());
        results.push(Content::ToolResult { call_id: id(call), tool, output, is_error: false, pictures: Vec::new() });
    }
    request.prompt.messages.push(Message { position: 1, turn: 1, role: Role::Assistant, content: said });
    request.prompt.messages.push(Message { position: 2, turn: 1, role: Role::Tool, content: results });
    request
}

fn is_retryable(error: &ModelError) -> bool {
    matches!(error.kind, ModelErrorKind::Retryable { .. })
}
