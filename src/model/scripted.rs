//! The scripted model: its turns stand in the run itself. It knows no network, and answers the same request the same
//! way every time, so a request lost in a crash is answered again as if it had never been asked.

use std::time::Duration;

use futures::StreamExt as _;
use serde_json::Value;

use super::fault::{kind_of_status, status_text};
use super::{ModelError, ModelErrorKind, ModelPart, ModelProvider, ModelRequest, ModelStream};
use crate::run::message::{ModelTurn, TurnUsage, WrittenCall};
use crate::run::spec::{FinishReason, ScriptedCall, ScriptedError, ScriptedTurn, ScriptedUsage};

/// What a turn costs when the script says nothing.
const DEFAULT_USAGE: ScriptedUsage = ScriptedUsage { input_tokens: 10, output_tokens: 5, cached_input_tokens: 0 };

/// Answers with the turns of `model.script`: entry n answers the n-th committed request, the last repeats.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scripted;

impl ModelProvider for Scripted {
    fn ask(&self, request: ModelRequest) -> ModelStream {
        let Some(turn) = entry(&request) else {
            let message = "the scripted model has no script".to_owned();
            let refused = ModelError { kind: ModelErrorKind::Refused, message, may_cost: false };
            return futures::stream::iter([Err(refused)]).boxed();
        };
        let delay = turn.delay_ms.map(Duration::from_millis);
        let parts = parts_of(turn, request.calls_before);
        async_stream::stream! {
            if let Some(delay) = delay {
                tokio::time::sleep(delay).await;
            }
            for part in parts {
                yield part;
            }
        }
        .boxed()
    }
}

fn entry(request: &ModelRequest) -> Option<&ScriptedTurn> {
    let script = request.model.script.as_ref()?;
    let wanted = usize::try_from(request.requests_before).unwrap_or(usize::MAX);
    script.get(wanted).or(script.last())
}

/// Everything that the stream of one turn yields.
fn parts_of(turn: &ScriptedTurn, calls_before: u32) -> Vec<Result<ModelPart, ModelError>> {
    if let Some(error) = &turn.error {
        return vec![Err(failure(error))];
    }
    let reasoning = pieces(turn.reasoning.as_deref()).map(ModelPart::Reasoning);
    let text = pieces(turn.text.as_deref()).map(ModelPart::Text);
    let shown = reasoning.chain(text);
    match turn.cut_after {
        // Improper: the stream just ends, as if the connection had broken.
        Some(count) => shown.take(usize::try_from(count).unwrap_or(usize::MAX)).map(Ok).collect(),
        None => shown.chain([ModelPart::Ended(Box::new(whole(turn, calls_before)))]).map(Ok).collect(),
    }
}

fn failure(error: &ScriptedError) -> ModelError {
    let after = error.retry_after_s.map(Duration::from_secs);
    let message = format!("the scripted model answered {}", status_text(error.status));
    ModelError { kind: kind_of_status(error.status, after), message, may_cost: false }
}

/// A text in the pieces that a model would stream it in: words with the space behind them.
fn pieces(text: Option<&str>) -> impl Iterator<Item = String> {
    text.unwrap_or_default().split_inclusive(' ').map(str::to_owned)
}

fn whole(turn: &ScriptedTurn, calls_before: u32) -> ModelTurn {
    let calls: Vec<WrittenCall> = (u64::from(calls_before) + 1..)
        .zip(turn.tool_calls.iter().flatten())
        .map(|(number, call)| written(number, call))
        .collect();
    let default_reason = if calls.is_empty() { FinishReason::Stop } else { FinishReason::ToolCalls };
    let usage = turn.usage.unwrap_or(DEFAULT_USAGE);
    ModelTurn {
        reasoning: turn.reasoning.iter().map(|text| (text.clone(), None)).collect(),
        text: turn.text.clone().unwrap_or_default(),
        calls,
        finish_reason: turn.finish_reason.unwrap_or(default_reason),
        usage: TurnUsage {
            input_tokens: usage.input_tokens,
            output_tokens: usage.output_tokens,
            cached_input_tokens: usage.cached_input_tokens,
            estimated_tokens: 0,
        },
    }
}

fn written(number: u64, call: &ScriptedCall) -> WrittenCall {
    let arguments = match &call.arguments {
        Value::Null => "{}".to_owned(),
        Value::String(text) => text.clone(),
        value => value.to_string(),
    };
    let id = call.id.clone().unwrap_or_else(|| format!("call_{number}"));
    WrittenCall { id: Some(id), tool: call.name.clone(), arguments }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::testing;

    async fn answer(script: &str, requests_before: u32, calls_before: u32) -> Vec<Result<ModelPart, ModelError>> {
        let model = format!(r#"{{"provider":"scripted","name":"demo","script":{script}}}"#);
        let request = ModelRequest { requests_before, calls_before, ..testing::request(&model) };
        Scripted.ask(request).collect().await
    }

    async fn turn(script: &str, requests_before: u32, calls_before: u32) -> ModelTurn {
        match answer(script, requests_before, calls_before).await.pop() {
            Some(Ok(ModelPart::Ended(turn))) => *turn,
            other => panic!("no turn: {other:?}"),
        }
    }

    #[tokio::test]
    async fn entry_n_answers_the_nth_committed_request_and_the_last_repeats() {
        let script = r#"[{"text":"a"},{"text":"b"}]"#;
        for (before, text) in [(0, "a"), (1, "b"), (2, "b"), (900, "b")] {
            assert_eq!(turn(script, before, 0).await.text, text, "after {before} requests");
        }
    }

    #[tokio::test]
    async fn what_is_left_out_has_its_default() {
        let quiet = turn(r#"[{"tool_calls":[{"name":"charge"}]}]"#, 0, 0).await;
        assert_eq!(quiet.finish_reason, FinishReason::ToolCalls);
        assert_eq!(
            quiet.usage,
            TurnUsage { input_tokens: 10, output_tokens: 5, cached_input_tokens: 0, estimated_tokens: 0 }
        );
        assert_eq!(quiet.calls[0].arguments, "{}");
        let said = turn(r#"[{"text":"x","finish_reason":"length","usage":{"input_tokens":7}}]"#, 0, 0).await;
        assert_eq!(said.finish_reason, FinishReason::Length);
        assert_eq!(
            said.usage,
            TurnUsage { input_tokens: 7, output_tokens: 0, cached_input_tokens: 0, estimated_tokens: 0 }
        );
        assert_eq!(turn(r"[{}]", 0, 0).await.finish_reason, FinishReason::Stop);
    }

    #[tokio::test]
    async fn default_ids_go_on_over_the_run_and_arguments_stand_as_written() {
        let script = r#"[{"tool_calls":[{"name":"a","arguments":{"n":18446744073709551617}},
            {"id":"mine","name":"b","arguments":"{\"a\":1,\"a\":"},{"name":"c","arguments":{}}]}]"#;
        let calls = turn(script, 0, 4).await.calls;
        let seen: Vec<_> = calls.iter().map(|call| (call.id.as_deref().unwrap(), call.arguments.as_str())).collect();
        assert_eq!(seen, [("call_5", r#"{"n":18446744073709551617}"#), ("mine", r#"{"a":1,"a":"#), ("call_7", "{}")]);
    }

    #[tokio::test]
    async fn text_is_streamed_in_parts_that_make_the_whole() {
        let parts = answer(r#"[{"reasoning":"let me see","text":"one two  three"}]"#, 0, 0).await;
        let mut text = String::new();
        let mut thought = String::new();
        for part in &parts {
            match part {
                Ok(ModelPart::Text(piece)) => text.push_str(piece),
                Ok(ModelPart::Reasoning(piece)) => thought.push_str(piece),
                Ok(ModelPart::Ended(turn)) => assert_eq!((&turn.text, &turn.reasoning[0].0), (&text, &thought)),
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!((text.as_str(), thought.as_str()), ("one two  three", "let me see"));
        assert!(parts.len() > 5, "only {} parts", parts.len());
    }

    #[tokio::test]
    async fn a_cut_stream_has_no_end() {
        for (cut, expected) in [(0, 0), (2, 2), (99, 3)] {
            let parts = answer(&format!(r#"[{{"text":"a b c","cut_after":{cut}}}]"#), 0, 0).await;
            assert_eq!(parts.len(), expected, "cut after {cut}");
            assert!(parts.iter().all(|part| matches!(part, Ok(ModelPart::Text(_)))), "{parts:?}");
        }
    }

    #[tokio::test]
    async fn a_scripted_error_fails_as_a_provider_would() {
        let one = Some(Duration::from_secs(1));
        let cases = [
            (r#"{"status":429,"retry_after_s":1}"#, ModelErrorKind::Retryable { after: one }),
            (r#"{"status":503}"#, ModelErrorKind::Retryable { after: None }),
            (r#"{"status":401}"#, ModelErrorKind::Refused),
        ];
        for (error, kind) in cases {
            let parts = answer(&format!(r#"[{{"error":{error}}}]"#), 0, 0).await;
            assert!(matches!(&parts[..], [Err(fault)] if fault.kind == kind), "{error}: {parts:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_delay_stands_before_the_first_part() {
        let before = tokio::time::Instant::now();
        turn(r#"[{"text":"late","delay_ms":5000}]"#, 0, 0).await;
        assert_eq!(before.elapsed(), Duration::from_secs(5));
    }

    #[tokio::test]
    async fn a_model_without_script_is_refused() {
        let request = testing::request(r#"{"provider":"scripted","name":"demo"}"#);
        let parts: Vec<_> = Scripted.ask(request).collect().await;
        assert!(matches!(&parts[..], [Err(ModelError { kind: ModelErrorKind::Refused, .. })]), "{parts:?}");
    }
}
