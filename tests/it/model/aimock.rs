//! Both protocols as aimock speaks them, a server nobody here wrote; its answers stand in `tests/world/aimock`.

use countersign::model::ModelErrorKind;
use countersign::run::spec::{FinishReason, Provider};
use serde_json::{Value, json};

use super::{PROTOCOLS, after, ask, is_retryable, request};
use crate::support::counterparts::aimock;
use crate::support::process::Process;

fn base(server: &Process, provider: Provider) -> String {
    match provider {
        Provider::Openai => server.url("/v1"),
        Provider::Anthropic | Provider::Scripted => server.url(""),
    }
}

/// What the server got, newest last.
async fn journal(server: &Process) -> Value {
    let text = reqwest::get(server.url("/__aimock/journal")).await.expect("the journal").text().await;
    serde_json::from_str(&text.expect("a text")).expect("JSON")
}

#[tokio::test]
async fn two_calls_and_their_results_make_a_conversation() {
    let Some(server) = aimock("model.json").await else { return };
    for provider in PROTOCOLS {
        let first = request(provider, &base(&server, provider), "parallel please");
        let turn = ask(first.clone()).await.turn();
        assert_eq!(turn.text, "Let me look. é😀", "{provider:?}");
        let seen: Vec<_> = turn.calls.iter().map(|call| (call.id.as_deref(), call.tool.as_str())).collect();
        assert_eq!(seen, [(Some("call_a"), "add"), (Some("call_b"), "put")], "{provider:?}");
        if provider == Provider::Openai {
            // As messages it parses the text itself, and rounds the number.
            assert_eq!(turn.calls[0].arguments, r#"{"a":18446744073709551617,"b":117.63331139400017}"#);
        }
        let value: Value = serde_json::from_str(&turn.calls[1].arguments).expect("JSON");
        assert_eq!(value, json!({ "key": "k", "value": "vé😀" }), "{provider:?}");
        assert_eq!(turn.finish_reason, FinishReason::ToolCalls);
        let end = ask(after(first, &turn, &json!({ "ok": true }))).await.turn();
        assert_eq!((end.text.as_str(), end.finish_reason), ("Both are done.", FinishReason::Stop), "{provider:?}");
    }
    let journal = journal(&server).await;
    assert_eq!(journal.as_array().map(Vec::len), Some(4), "one request a turn: {journal}");
}

#[tokio::test]
async fn every_failure_of_the_server_has_its_remedy() {
    let Some(server) = aimock("model.json").await else { return };
    for provider in PROTOCOLS {
        let say = |words: &str| ask(request(provider, &base(&server, provider), words));
        let cut = say("cutoff").await;
        assert!("this answer will not be finished".starts_with(&cut.text), "{provider:?} {}", cut.text);
        assert!(is_retryable(&cut.error()), "{provider:?}");
        assert!(is_retryable(&say("overloaded").await.error()), "{provider:?}");
        let long = say("toolong").await.error();
        assert_eq!(long.kind, ModelErrorKind::ContextOverflow, "{provider:?} {long}");
    }
    let limited = || ask(request(Provider::Openai, &base(&server, Provider::Openai), "limited"));
    let error = limited().await.error();
    assert!(is_retryable(&error) && error.message.contains("slow down"), "{error}");
    assert_eq!(limited().await.turn().text, "Through at last.");
}

#[tokio::test]
async fn arguments_that_are_no_json_are_kept_as_they_were_written() {
    let Some(server) = aimock("model.json").await else { return };
    let turn = ask(request(Provider::Openai, &base(&server, Provider::Openai), "badargs")).await.turn();
    assert_eq!(turn.calls[0].arguments, r#"{"a": 1, "b": "#);
}

#[tokio::test]
async fn thoughts_and_the_length_limit_are_told_apart_from_an_answer() {
    let Some(server) = aimock("model.json").await else { return };
    for provider in PROTOCOLS {
        let turn = ask(request(provider, &base(&server, provider), "thinking")).await.turn();
        assert_eq!(turn.text, "Four.");
        assert_eq!(turn.reasoning.first().map(|(text, _)| text.as_str()), Some("two and two"), "{provider:?}");
        let turn = ask(request(provider, &base(&server, provider), "long")).await.turn();
        assert_eq!(turn.finish_reason, FinishReason::Length, "{provider:?}");
    }
}
