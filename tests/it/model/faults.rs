//! Every way in which a provider or the wire to it fails: always an error that says what can be done, never a turn.

use std::time::Duration;

use countersign::model::{ModelError, ModelErrorKind};
use countersign::run::spec::Provider;
use serde_json::json;

use super::fake::{Fake, Then};
use super::protocols::{
    anthropic, block_delta, block_start, block_stop, delta, finish, message_end, message_start, openai,
};
use super::{PROTOCOLS, ask, ask_within, is_retryable, request};
use crate::support::process::free_port;

const RETRYABLE: ModelErrorKind = ModelErrorKind::Retryable { after: None };

async fn fail(provider: Provider, fake: &Fake) -> ModelError {
    ask(request(provider, fake.url(), "go")).await.error()
}

/// A turn with one whole call, without its end.
fn unended(provider: Provider) -> String {
    match provider {
        Provider::Openai => {
            let function = json!({ "name": "add", "arguments": "{\"a\":1}" });
            let call = json!({ "index": 0, "id": "call_a", "type": "function", "function": function });
            openai(&[delta(&json!({ "content": "Let me add." })), delta(&json!({ "tool_calls": [call] }))], false)
        }
        Provider::Anthropic | Provider::Scripted => anthropic(&[
            message_start(),
            block_start(0, &json!({ "type": "text", "text": "" })),
            block_delta(0, &json!({ "type": "text_delta", "text": "Let me add." })),
            block_stop(0),
            block_start(1, &json!({ "type": "tool_use", "id": "call_a", "name": "add", "input": {} })),
            block_delta(1, &json!({ "type": "input_json_delta", "partial_json": "{\"a\":1}" })),
            block_stop(1),
        ]),
    }
}

#[tokio::test]
async fn a_stream_that_ends_before_the_turn_is_cut_off_however_it_ends() {
    for provider in PROTOCOLS {
        for events in [String::new(), unended(provider)] {
            for then in [Then::Close, Then::Reset] {
                let fake = Fake::breaking(&events, then).await;
                let answer = ask(request(provider, fake.url(), "go")).await;
                if matches!(then, Then::Close) && !events.is_empty() {
                    assert_eq!(answer.text, "Let me add.", "what came was shown");
                }
                let error = answer.error();
                assert_eq!(error.kind, RETRYABLE, "{provider:?} {then:?}: {error}");
                assert!(error.message.contains("cut off"), "{provider:?} {then:?}: {error}");
            }
        }
    }
}

#[tokio::test]
async fn a_body_that_breaks_off_inside_a_chunk_is_cut_off() {
    for provider in PROTOCOLS {
        let mut pieces =
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
        pieces.extend_from_slice(b"ffff\r\n");
        pieces.extend_from_slice(unended(provider).as_bytes());
        let fake = Fake::start(vec![pieces], Then::Close).await;
        let error = fail(provider, &fake).await;
        assert_eq!(error.kind, RETRYABLE);
        assert!(error.message.contains("cut off"), "{error}");
    }
}

#[tokio::test]
async fn a_connection_that_breaks_before_any_byte_is_retryable() {
    for provider in PROTOCOLS {
        for then in [Then::Close, Then::Reset] {
            let fake = Fake::start(Vec::new(), then).await;
            assert_eq!(fail(provider, &fake).await.kind, RETRYABLE, "{then:?}");
        }
    }
}

#[tokio::test]
async fn a_call_that_the_end_leaves_unfinished_is_no_call() {
    let mut events = vec![
        message_start(),
        block_start(0, &json!({ "type": "tool_use", "id": "call_a", "name": "add", "input": {} })),
        block_delta(0, &json!({ "type": "input_json_delta", "partial_json": "{\"a\":1" })),
    ];
    events.extend(message_end("tool_use"));
    let fake = Fake::streaming(&anthropic(&events)).await;
    let error = fail(Provider::Anthropic, &fake).await;
    assert_eq!(error.kind, RETRYABLE, "{error}");
    // Named nothing that can be called.
    let call = json!({ "index": 0, "id": "call_a", "type": "function", "function": { "arguments": "{}" } });
    let fake = Fake::streaming(&openai(&[delta(&json!({ "tool_calls": [call] })), finish("tool_calls")], true)).await;
    assert_eq!(fail(Provider::Openai, &fake).await.kind, RETRYABLE);
}

#[tokio::test]
async fn an_end_that_names_a_breakdown_is_no_turn() {
    for reason in ["network_error", "insufficient_system_resource", "abort"] {
        let fake = Fake::streaming(&openai(&[delta(&json!({ "content": "x" })), finish(reason)], true)).await;
        let error = fail(Provider::Openai, &fake).await;
        assert_eq!(error.kind, RETRYABLE);
        assert!(error.message.contains(reason), "{error}");
    }
}

#[tokio::test]
async fn the_providers_wait_is_obeyed() {
    for provider in PROTOCOLS {
        let body = r#"{"error":{"type":"rate_limit_error","message":"slow down"}}"#;
        for (headers, seconds) in [
            ("retry-after: 7\r\n", 7),
            ("date: Sun, 06 Nov 1994 08:49:37 GMT\r\nretry-after: Sun, 06 Nov 1994 08:49:57 GMT\r\n", 20),
        ] {
            let fake = Fake::answering("429 Too Many Requests", headers, body).await;
            let error = fail(provider, &fake).await;
            assert_eq!(error.kind, ModelErrorKind::Retryable { after: Some(Duration::from_secs(seconds)) });
            assert!(error.message.contains("slow down"), "{error}");
        }
    }
}

#[tokio::test]
async fn a_failed_status_says_what_can_be_done() {
    let long = r#"{"error":{"type":"invalid_request_error","message":"prompt is too long: 9 tokens > 8 maximum"}}"#;
    let bad = r#"{"error":{"type":"authentication_error","message":"bad key sk-canary"}}"#;
    for provider in PROTOCOLS {
        for (status, body, kind) in [
            ("500 Internal Server Error", "", RETRYABLE),
            ("503 Service Unavailable", "<html><body>maintenance</body></html>", RETRYABLE),
            ("529 Overloaded", r#"{"error":{"type":"overloaded_error","message":"Overloaded"}}"#, RETRYABLE),
            ("408 Request Timeout", "", RETRYABLE),
            ("401 Unauthorized", bad, ModelErrorKind::Refused),
            ("404 Not Found", "no such page", ModelErrorKind::Refused),
            ("400 Bad Request", long, ModelErrorKind::ContextOverflow),
            ("302 Found", "", ModelErrorKind::Refused),
        ] {
            let fake = Fake::answering(status, "location: http://127.0.0.1:1/\r\n", body).await;
            let error = fail(provider, &fake).await;
            assert_eq!(error.kind, kind, "{status}: {error}");
            let code = status.split(' ').next().unwrap();
            assert!(error.message.contains(code), "{status}: {error}");
            assert!(!error.message.contains('<'), "a web page in {error}");
        }
    }
}

#[tokio::test]
async fn a_200_that_is_no_stream_is_an_error() {
    for provider in PROTOCOLS {
        for (body, kind) in [
            (r#"{"error":{"type":"invalid_request_error","message":"no such model"}}"#, ModelErrorKind::Refused),
            (r#"{"error":{"message":"upstream is busy"}}"#, RETRYABLE),
            (r#"{"id":"c1","choices":[{"message":{"content":"whole"}}]}"#, ModelErrorKind::Refused),
            ("<html></html>", ModelErrorKind::Refused),
        ] {
            let fake = Fake::answering("200 OK", "content-type: application/json\r\n", body).await;
            let error = fail(provider, &fake).await;
            assert_eq!(error.kind, kind, "{body}: {error}");
        }
    }
}

#[tokio::test]
async fn an_error_inside_the_stream_is_an_error() {
    for provider in PROTOCOLS {
        for (kind_name, kind) in [
            ("overloaded_error", RETRYABLE),
            ("server_error", RETRYABLE),
            ("of_tomorrow", RETRYABLE),
            ("invalid_request_error", ModelErrorKind::Refused),
            ("context_length_exceeded", ModelErrorKind::ContextOverflow),
        ] {
            let error = json!({ "type": "error", "error": { "type": kind_name, "message": "sorry, sk-canary" } });
            let fake = Fake::streaming(&format!("{}event: error\ndata: {error}\n\n", unended(provider))).await;
            let error = fail(provider, &fake).await;
            assert_eq!(error.kind, kind, "{provider:?} {kind_name}: {error}");
            assert!(error.message.contains("sorry"), "{error}");
        }
    }
}

#[tokio::test]
async fn a_piece_that_is_not_json_is_an_error() {
    for provider in PROTOCOLS {
        let fake = Fake::streaming(&format!("{}data: {{\"cho\n\n", unended(provider))).await;
        assert_eq!(fail(provider, &fake).await.kind, RETRYABLE);
    }
}

#[tokio::test]
async fn a_silent_provider_is_given_up_before_and_inside_the_stream() {
    let patience = Duration::from_millis(300);
    for provider in PROTOCOLS {
        let silent = Fake::start(Vec::new(), Then::Hang).await;
        let stalled = Fake::breaking(&unended(provider), Then::Hang).await;
        for fake in [silent, stalled] {
            let error = ask_within(patience, request(provider, fake.url(), "go")).await.error();
            assert_eq!(error.kind, RETRYABLE, "{error}");
            assert!(error.message.contains("in time"), "{error}");
        }
    }
}

#[tokio::test]
async fn a_provider_that_nobody_reaches_is_retryable() {
    for provider in PROTOCOLS {
        let url = format!("http://127.0.0.1:{}/v1?token=sk-canary", free_port());
        let error = ask(request(provider, &url, "go")).await.error();
        assert!(is_retryable(&error), "{error}");
        assert!(error.message.contains("could not be reached"), "{error}");
    }
}

#[tokio::test]
async fn an_endless_stream_is_refused() {
    let line = format!("data: {}\n\n", delta(&json!({ "content": "x".repeat(1 << 20) })));
    let fake = Fake::streaming(&line.repeat(33)).await;
    let error = fail(Provider::Openai, &fake).await;
    assert_eq!(error.kind, ModelErrorKind::Refused);
    assert!(error.message.contains("32 MiB"), "{error}");
}
