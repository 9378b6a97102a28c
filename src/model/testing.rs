//! Requests for the unit tests of the providers.

use serde_json::{Value, json};

use super::ModelRequest;
use crate::run::history::{Prompt, ToolOffer};
use crate::run::ids::CallId;
use crate::run::message::{Content, Message, Role};

/// A request to the model that `spec` describes, with an empty conversation.
pub(super) fn request(spec: &str) -> ModelRequest {
    ModelRequest {
        model: serde_json::from_str(spec).expect("a model"),
        prompt: Prompt { instructions: None, messages: Vec::new(), tools: Vec::new() },
        secret: None,
        requests_before: 0,
        calls_before: 0,
    }
}

/// A conversation with everything in it: a system message, a turn with three calls (one of them no JSON, one with an
/// exact number), their results, a silent turn.
pub(super) fn prompt() -> Prompt {
    let messages = [
        (Role::System, vec![text("Be exact.")]),
        (Role::User, vec![text("Charge "), text("5.")]),
        (Role::Assistant, first_turn()),
        (Role::Tool, results()),
        (Role::User, vec![text("And now?")]),
        (Role::Assistant, vec![text("")]),
    ];
    let message = |(position, (role, content))| Message { position, turn: 0, role, content };
    Prompt {
        instructions: Some("You charge cards.".to_owned()),
        messages: (0..).zip(messages).map(message).collect(),
        tools: vec![
            ToolOffer {
                name: "charge".to_owned(),
                description: Some("Charge the card on file.".to_owned()),
                input_schema: json!({ "type": "object", "properties": { "amount": { "type": "number" } } }),
            },
            ToolOffer { name: "bare".to_owned(), description: None, input_schema: json!({ "type": "object" }) },
        ],
    }
}

fn text(text: &str) -> Content {
    Content::Text { text: text.to_owned() }
}

fn first_turn() -> Vec<Content> {
    let call = |id: &str, tool: &str, input| Content::ToolCall { call_id: CallId::new(id), tool: tool.into(), input };
    let exact: Value = serde_json::from_str(r#"{"amount":18446744073709551617}"#).expect("JSON");
    vec![
        Content::Reasoning { text: "hm".to_owned(), native: None },
        text("I charge."),
        call("call_1", "charge", exact),
        call("call_1~2", "charge", Value::from(r#"{"amount": 5, "amo"#)),
        call("call_3", "unknown", Value::from(r#"{"a":1,"a":2}"#)),
    ]
}

fn results() -> Vec<Content> {
    let result = |id: &str, output: Value, is_error| Content::ToolResult {
        call_id: CallId::new(id),
        tool: "charge".to_owned(),
        output,
        is_error,
        pictures: Vec::new(),
    };
    let exact: Value = serde_json::from_str(r#"{"paid":117.63331139400017}"#).expect("JSON");
    vec![
        result("call_1", exact, false),
        result("call_1~2", Value::from("not JSON"), true),
        result("call_3", Value::from("no such tool"), true),
    ]
}
