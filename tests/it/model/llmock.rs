//! Both protocols as llmock speaks them, a server nobody here wrote, which also judges its clients: whether they took a
//! cut answer for a whole one, came back too early, or never came back.

use std::time::Duration;

use countersign::model::{ModelErrorKind, ModelRequest};
use countersign::run::message::ModelTurn;
use countersign::run::spec::{FinishReason, Provider};
use serde_json::{Value, json};

use super::{PROTOCOLS, after, ask_within, request};
use crate::support::counterparts::{llmock, llmock_script};
use crate::support::process::Process;

/// How long a silent stream is waited for; the server stalls for longer.
const PATIENCE: Duration = Duration::from_millis(500);

fn base(server: &Process, provider: Provider) -> String {
    match provider {
        Provider::Openai => server.url("/v1"),
        Provider::Anthropic | Provider::Scripted => server.url("/anthropic"),
    }
}

async fn verdict(server: &Process) -> String {
    let url = server.url("/_llmock/verdict?format=text");
    reqwest::get(url).await.expect("the verdict").text().await.expect("a text")
}

/// Asks again for as long as the error says so, as a run does.
async fn persist(request: &ModelRequest) -> (ModelTurn, usize) {
    let mut pause = Duration::from_millis(60);
    for attempt in 1..=5 {
        match ask_within(PATIENCE, request.clone()).await.turn {
            Ok(turn) => return (turn, attempt),
            Err(error) => match error.kind {
                ModelErrorKind::Retryable { after } => tokio::time::sleep(after.unwrap_or(pause)).await,
                ModelErrorKind::ContextOverflow | ModelErrorKind::Refused | ModelErrorKind::ToolRefused { .. } => {
                    panic!("given up: {error}")
                }
            },
        }
        pause *= 2;
    }
    panic!("no turn after five attempts");
}

#[tokio::test]
async fn two_calls_and_their_results_make_a_conversation() {
    let Some(server) = llmock().await else { return };
    for provider in PROTOCOLS {
        let calls = json!([{ "name": "add", "arguments": { "a": 1, "b": 2 } },
            { "name": "put", "arguments": { "key": "k", "value": "vé😀" } }]);
        llmock_script(&server, json!([{ "type": "reply", "text": "Let me look.", "tool_calls": calls }])).await;
        let first = request(provider, &base(&server, provider), "do both");
        let (turn, _) = persist(&first).await;
        assert_eq!(turn.finish_reason, FinishReason::ToolCalls, "{provider:?}");
        let seen: Vec<Value> = turn.calls.iter().map(|call| serde_json::from_str(&call.arguments).unwrap()).collect();
        assert_eq!(seen, [json!({ "a": 1, "b": 2 }), json!({ "key": "k", "value": "vé😀" })], "{provider:?}");
        assert!(turn.calls.iter().all(|call| call.id.as_deref().is_some_and(|id| !id.is_empty())), "{turn:?}");
        assert!(turn.usage.input_tokens > 0 && turn.usage.output_tokens > 0, "{provider:?} {:?}", turn.usage);
        let (end, _) = persist(&after(first, &turn, &json!("done"))).await;
        assert_eq!((end.finish_reason, end.calls.len()), (FinishReason::Stop, 0), "{provider:?}");
        assert!(!end.text.is_empty());
    }
    let verdict = verdict(&server).await;
    assert!(verdict.contains("PASS"), "{verdict}");
}

async fn check_failures(provider: Provider) {
    let Some(server) = llmock().await else { return };
    llmock_script(&server, json!([{ "type": "reply", "text": "one two three four five", "times": null }])).await;
    let fault = |kind: &str, chunks: u32| json!({ "type": "stream_fault", "kind": kind, "after_chunks": chunks });
    for (name, behaviors, attempts) in [
        ("truncated", json!([fault("truncate", 3)]), 2),
        ("truncated at once", json!([fault("truncate", 0)]), 2),
        ("dropped", json!([fault("disconnect", 2)]), 2),
        ("malformed", json!([fault("malformed", 2)]), 2),
        ("stalled", json!([{ "type": "stream_fault", "kind": "stall", "stall_seconds": 2.0 }]), 2),
        ("limited", json!([{ "type": "fail", "status": 429, "retry_after": 1.0 }]), 2),
        ("overloaded twice", json!([{ "type": "fail", "status": 503, "times": 2 }]), 3),
    ] {
        llmock_script(&server, behaviors).await;
        let (turn, took) = persist(&request(provider, &base(&server, provider), name)).await;
        assert_eq!(took, attempts, "{provider:?} {name}: {turn:?}");
    }
    let verdict = verdict(&server).await;
    assert!(verdict.contains("PASS"), "{verdict}");
}

#[tokio::test]
async fn the_server_finds_no_fault_in_how_failures_of_chat_completions_are_taken() {
    check_failures(Provider::Openai).await;
}

#[tokio::test]
async fn the_server_finds_no_fault_in_how_failures_of_messages_are_taken() {
    check_failures(Provider::Anthropic).await;
}

#[tokio::test]
async fn a_request_that_cannot_succeed_is_not_repeated() {
    let Some(server) = llmock().await else { return };
    for provider in PROTOCOLS {
        for (status, code, kind) in [
            (401, "invalid_api_key", ModelErrorKind::Refused),
            (400, "bad", ModelErrorKind::Refused),
            (404, "model_not_found", ModelErrorKind::Refused),
        ] {
            llmock_script(&server, json!([{ "type": "fail", "status": status, "code": code, "message": "no" }])).await;
            let asked = request(provider, &base(&server, provider), &format!("fail with {status}"));
            let error = ask_within(PATIENCE, asked).await.error();
            assert_eq!(error.kind, kind, "{provider:?} {error}");
        }
    }
    let verdict = verdict(&server).await;
    assert!(verdict.contains("PASS"), "{verdict}");
}
