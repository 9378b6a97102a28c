//! Takes what the run's counterparts are told in confidence out of what its model says, before anybody stores or reads
//! it: text, thoughts, calls and errors.

use futures::StreamExt as _;
use serde_json::Value;

use crate::model::{ModelError, ModelPart, ModelStream};
use crate::run::json::parse_strict;
use crate::run::message::{ModelTurn, WrittenCall};
use crate::secrets::{Flow, Redactor};

/// The same stream without secrets. What was streamed of a turn stays what is kept of it.
pub(super) fn clean(mut stream: ModelStream, redactor: Redactor) -> ModelStream {
    if redactor.is_empty() {
        return stream;
    }
    async_stream::stream! {
        let (mut text, mut thoughts) = (Flow::new(redactor.clone()), Flow::new(redactor.clone()));
        while let Some(part) = stream.next().await {
            match part {
                Ok(ModelPart::Text(piece)) => yield Ok(ModelPart::Text(text.push(&piece))),
                Ok(ModelPart::Reasoning(piece)) => yield Ok(ModelPart::Reasoning(thoughts.push(&piece))),
                Ok(ModelPart::Ended(turn)) => {
                    yield Ok(ModelPart::Reasoning(thoughts.finish()));
                    yield Ok(ModelPart::Text(text.finish()));
                    yield Ok(ModelPart::Ended(Box::new(clean_turn(*turn, &redactor))));
                }
                Err(error) => {
                    let message = redactor.flowed(&error.message);
                    yield Err(ModelError { message, ..error });
                }
            }
        }
    }
    .boxed()
}

fn clean_turn(turn: ModelTurn, redactor: &Redactor) -> ModelTurn {
    let said: String = turn.reasoning.iter().map(|(text, _)| text.as_str()).collect();
    let clean = redactor.flowed(&said);
    let reasoning = if clean == said {
        turn.reasoning
            .into_iter()
            .map(|(text, native)| (text, native.filter(|native| !holds(native, redactor))))
            .collect()
    } else {
        // The provider signed what it said: changed it would be refused.
        vec![(clean, None)]
    };
    let calls = turn.calls.into_iter().map(|call| clean_call(call, redactor)).collect();
    ModelTurn { reasoning, text: redactor.flowed(&turn.text), calls, ..turn }
}

fn holds(native: &Value, redactor: &Redactor) -> bool {
    let mut value = native.clone();
    redactor.value(&mut value);
    value != *native
}

/// The gate rules on what is left, and that is what is sent: a secret goes to its hosts in headers, never in arguments.
fn clean_call(call: WrittenCall, redactor: &Redactor) -> WrittenCall {
    let arguments = redactor.flowed(&call.arguments);
    let arguments = match parse_strict(&arguments) {
        // It may stand there in other signs, e.g. as escapes.
        Ok(mut value) if holds(&value, redactor) => {
            redactor.value(&mut value);
            value.to_string()
        }
        Ok(_) | Err(_) => arguments,
    };
    WrittenCall { id: call.id.map(|id| redactor.flowed(&id)), tool: redactor.flowed(&call.tool), arguments }
}

#[cfg(test)]
mod tests {
    use secrecy::SecretString;
    use serde_json::json;

    use super::*;
    use crate::model::ModelErrorKind;
    use crate::run::message::TurnUsage;
    use crate::run::spec::FinishReason;

    fn turn(text: &str, reasoning: Vec<(String, Option<Value>)>, arguments: &str) -> ModelTurn {
        let call = WrittenCall { id: Some("id".into()), tool: "t".into(), arguments: arguments.into() };
        let (finish_reason, usage) = (FinishReason::ToolCalls, TurnUsage::default());
        ModelTurn { reasoning, text: text.into(), calls: vec![call], finish_reason, usage }
    }

    async fn cleaned(parts: Vec<Result<ModelPart, ModelError>>) -> Vec<Result<ModelPart, ModelError>> {
        let redactor = Redactor::of(&[SecretString::from("canary-1")]);
        clean(futures::stream::iter(parts).boxed(), redactor).collect().await
    }

    #[tokio::test]
    async fn what_is_streamed_is_what_is_kept_and_neither_holds_a_secret() {
        let native = json!({ "type": "thinking", "thinking": "I use canary-1", "signature": "c2ln" });
        let parts = vec![
            Ok(ModelPart::Reasoning("I use can".into())),
            Ok(ModelPart::Reasoning("ary-1".into())),
            Ok(ModelPart::Text("the key is canar".into())),
            Ok(ModelPart::Text("y-1.".into())),
            Ok(ModelPart::Ended(Box::new(turn(
                "the key is canary-1.",
                vec![("I use canary-1".into(), Some(native))],
                r#"{"key":"\u0063anary-1","n":18446744073709551617}"#,
            )))),
        ];
        let (mut text, mut thoughts, mut kept) = (String::new(), String::new(), None);
        for part in cleaned(parts).await {
            match part.unwrap() {
                ModelPart::Text(piece) => text.push_str(&piece),
                ModelPart::Reasoning(piece) => thoughts.push_str(&piece),
                ModelPart::Ended(turn) => kept = Some(*turn),
            }
        }
        let kept = kept.unwrap();
        assert_eq!((text.as_str(), thoughts.as_str()), ("the key is [redacted].", "I use [redacted]"));
        assert_eq!((kept.text, kept.reasoning), (text, vec![(thoughts, None)]));
        assert_eq!(kept.calls[0].arguments, r#"{"key":"[redacted]","n":18446744073709551617}"#);
    }

    #[tokio::test]
    async fn what_holds_none_is_not_touched_and_errors_are_cleaned() {
        let native = Some(json!({ "signature": "c2ln" }));
        let plain = turn("hi", vec![("hm".into(), native)], "{\"a\": 1.0,\"a\":");
        let parts = cleaned(vec![Ok(ModelPart::Ended(Box::new(plain.clone())))]).await;
        assert_eq!(parts.last(), Some(&Ok(ModelPart::Ended(Box::new(plain)))));
        let failed = ModelError { kind: ModelErrorKind::Refused, message: "bad key canary-1".into(), may_cost: false };
        let parts = cleaned(vec![Err(failed)]).await;
        assert_eq!(parts[0].as_ref().unwrap_err().message, "bad key [redacted]");
    }
}
