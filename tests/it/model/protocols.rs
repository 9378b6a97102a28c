//! Both protocols as their providers speak them: parallel calls, exact numbers, split characters, usage, thoughts.

use std::fmt::Write as _;

use countersign::run::message::TurnUsage;
use countersign::run::spec::{FinishReason, Provider};
use serde_json::{Value, json};

use super::fake::Fake;
use super::{after, ask, request};

/// A chat completions stream of these chunks.
pub(super) fn openai(chunks: &[Value], done: bool) -> String {
    let mut events = String::new();
    for chunk in chunks {
        write!(events, "data: {chunk}\n\n").expect("text");
    }
    if done {
        events.push_str("data: [DONE]\n\n");
    }
    events
}

/// One chunk with this delta.
pub(super) fn delta(delta: &Value) -> Value {
    json!({ "id": "c1", "object": "chat.completion.chunk", "model": "m",
        "choices": [{ "index": 0, "delta": delta, "finish_reason": null }] })
}

/// The chunk that ends the turn.
pub(super) fn finish(reason: &str) -> Value {
    json!({ "id": "c1", "object": "chat.completion.chunk", "model": "m",
        "choices": [{ "index": 0, "delta": {}, "finish_reason": reason }] })
}

fn piece(index: u32, text: &str) -> Value {
    delta(&json!({ "tool_calls": [{ "index": index, "function": { "arguments": text } }] }))
}

fn start(index: u32, id: &str, name: &str) -> Value {
    let function = json!({ "name": name, "arguments": "" });
    delta(&json!({ "tool_calls": [{ "index": index, "id": id, "type": "function", "function": function }] }))
}

/// A messages stream of these events.
pub(super) fn anthropic(events: &[Value]) -> String {
    let mut stream = String::new();
    for event in events {
        let kind = event["type"].as_str().unwrap_or_default();
        write!(stream, "event: {kind}\ndata: {event}\n\n").expect("text");
    }
    stream
}

pub(super) fn message_start() -> Value {
    let usage = json!({ "input_tokens": 20, "cache_read_input_tokens": 4, "output_tokens": 1 });
    json!({ "type": "message_start", "message": { "id": "msg_1", "type": "message", "role": "assistant",
        "model": "m", "content": [], "stop_reason": null, "usage": usage } })
}

pub(super) fn block_start(index: u32, block: &Value) -> Value {
    json!({ "type": "content_block_start", "index": index, "content_block": block })
}

pub(super) fn block_delta(index: u32, delta: &Value) -> Value {
    json!({ "type": "content_block_delta", "index": index, "delta": delta })
}

pub(super) fn block_stop(index: u32) -> Value {
    json!({ "type": "content_block_stop", "index": index })
}

pub(super) fn message_end(reason: &str) -> [Value; 2] {
    let usage = json!({ "output_tokens": 9 });
    let delta = json!({ "stop_reason": reason, "stop_sequence": null });
    [json!({ "type": "message_delta", "delta": delta, "usage": usage }), json!({ "type": "message_stop" })]
}

fn input(index: u32, text: &str) -> Value {
    block_delta(index, &json!({ "type": "input_json_delta", "partial_json": text }))
}

/// Two calls whose pieces are mixed; a number and a repeated key that must stay as they are; a call without arguments.
fn openai_calls() -> String {
    let usage = json!({ "id": "c1", "object": "chat.completion.chunk", "model": "m", "choices": [],
        "usage": { "prompt_tokens": 24, "completion_tokens": 9, "total_tokens": 33,
            "prompt_tokens_details": { "cached_tokens": 4 } } });
    let chunks = [
        delta(&json!({ "role": "assistant", "content": "" })),
        delta(&json!({ "content": "Héllo " })),
        delta(&json!({ "content": "😀" })),
        start(0, "call_a", "add"),
        start(1, "call_b", "put"),
        piece(0, r#"{"a": 184467440"#),
        piece(1, r#"{"k":"v😀","#),
        piece(0, "73709551617}"),
        piece(1, r#""a":1,"a":1.50}"#),
        start(2, "call_c", "add"),
        finish("tool_calls"),
        usage,
    ];
    openai(&chunks, true)
}

fn anthropic_calls() -> String {
    let call = |id: &str, name: &str| json!({ "type": "tool_use", "id": id, "name": name, "input": {} });
    let mut events = vec![
        message_start(),
        json!({ "type": "ping" }),
        block_start(0, &json!({ "type": "thinking", "thinking": "" })),
        block_delta(0, &json!({ "type": "thinking_delta", "thinking": "let me " })),
        block_delta(0, &json!({ "type": "thinking_delta", "thinking": "see" })),
        block_delta(0, &json!({ "type": "signature_delta", "signature": "c2lnbmF0dXJl" })),
        block_stop(0),
        block_start(1, &json!({ "type": "text", "text": "" })),
        block_delta(1, &json!({ "type": "text_delta", "text": "Héllo 😀" })),
        block_stop(1),
        block_start(2, &call("call_a", "add")),
        block_start(3, &call("call_b", "put")),
        input(2, ""),
        input(2, r#"{"a": 184467440"#),
        input(3, r#"{"k":"v😀","#),
        input(2, "73709551617}"),
        input(3, r#""a":1,"a":1.50}"#),
        block_stop(3),
        block_stop(2),
        block_start(4, &call("call_c", "add")),
        block_stop(4),
    ];
    events.extend(message_end("tool_use"));
    anthropic(&events)
}

async fn check_calls(provider: Provider, fake: Fake) {
    let turn = ask(request(provider, fake.url(), "go")).await.turn();
    let calls: Vec<_> = turn.calls.iter().map(|call| (call.id.as_deref(), &*call.tool, &*call.arguments)).collect();
    let expected = [
        (Some("call_a"), "add", r#"{"a": 18446744073709551617}"#),
        (Some("call_b"), "put", r#"{"k":"v😀","a":1,"a":1.50}"#),
        (Some("call_c"), "add", "{}"),
    ];
    assert_eq!(calls, expected, "{provider:?}");
    assert_eq!(turn.text, "Héllo 😀");
    assert_eq!(turn.finish_reason, FinishReason::ToolCalls);
    assert_eq!(
        turn.usage,
        TurnUsage { input_tokens: 24, output_tokens: 9, cached_input_tokens: 4, estimated_tokens: 0 }
    );
}

#[tokio::test]
async fn parallel_calls_keep_their_ids_and_every_character() {
    check_calls(Provider::Openai, Fake::streaming(&openai_calls()).await).await;
    check_calls(Provider::Anthropic, Fake::streaming(&anthropic_calls()).await).await;
}

#[tokio::test]
async fn a_stream_that_arrives_byte_by_byte_says_the_same() {
    check_calls(Provider::Openai, Fake::dripping(&openai_calls()).await).await;
    check_calls(Provider::Anthropic, Fake::dripping(&anthropic_calls()).await).await;
}

#[tokio::test]
async fn a_thought_goes_back_with_its_signature_untouched() {
    let fake = Fake::streaming(&anthropic_calls()).await;
    let first = request(Provider::Anthropic, fake.url(), "go");
    let turn = ask(first.clone()).await.turn();
    let native = json!({ "type": "thinking", "thinking": "let me see", "signature": "c2lnbmF0dXJl" });
    assert_eq!(turn.reasoning, [("let me see".to_owned(), Some(native.clone()))]);
    ask(after(first, &turn, &json!({ "sum": 3 }))).await.turn();
    let sent = fake.seen().body;
    assert_eq!(sent["messages"][1]["content"][0], native);
    assert_eq!(sent["messages"][2]["content"][0]["content"], json!(r#"{"sum":3}"#));
}

#[tokio::test]
async fn reasoning_of_a_compatible_server_is_kept_and_given_back() {
    let chunks = [
        delta(&json!({ "role": "assistant", "reasoning_content": "let me " })),
        delta(&json!({ "reasoning_content": "see" })),
        delta(&json!({ "content": "Yes." })),
        finish("stop"),
    ];
    let fake = Fake::streaming(&openai(&chunks, true)).await;
    let first = request(Provider::Openai, fake.url(), "go");
    let turn = ask(first.clone()).await.turn();
    assert_eq!(turn.reasoning[0].0, "let me see");
    assert_eq!(turn.finish_reason, FinishReason::Stop);
    ask(after(first, &turn, &Value::Null)).await.turn();
    assert_eq!(fake.seen().body["messages"][2]["reasoning_content"], json!("let me see"));
}

#[tokio::test]
async fn the_request_names_the_key_the_model_and_the_tools() {
    let fake = Fake::streaming(&openai_calls()).await;
    ask(request(Provider::Openai, &format!("{}/v1", fake.url()), "go")).await.turn();
    let seen = fake.seen();
    assert!(seen.head.starts_with("post /v1/chat/completions http/1.1"), "{}", seen.head);
    assert!(seen.head.contains("authorization: bearer sk-canary\r\n"), "{}", seen.head);
    assert_eq!(seen.body["tools"][1]["function"]["name"], json!("put"));

    let fake = Fake::streaming(&anthropic_calls()).await;
    ask(request(Provider::Anthropic, fake.url(), "go")).await.turn();
    let seen = fake.seen();
    assert!(seen.head.starts_with("post /v1/messages http/1.1"), "{}", seen.head);
    assert!(seen.head.contains("x-api-key: sk-canary\r\n"), "{}", seen.head);
    assert!(seen.head.contains("anthropic-version: 2023-06-01\r\n"), "{}", seen.head);
    assert_eq!((&seen.body["system"], &seen.body["tools"][1]["name"]), (&json!("You are tested."), &json!("put")));
}

#[tokio::test]
async fn a_server_without_a_key_gets_none() {
    let fake = Fake::streaming(&openai_calls()).await;
    let mut request = request(Provider::Openai, fake.url(), "go");
    request.secret = None;
    ask(request).await.turn();
    assert!(!fake.seen().head.contains("authorization"));
}

#[tokio::test]
async fn calls_of_a_gateway_with_ids_and_indices_of_its_own_are_told_apart() {
    let whole = |index: u32, id: &Value, a: u32| {
        let function = json!({ "name": "add", "arguments": format!("{{\"a\":{a}}}") });
        delta(&json!({ "tool_calls": [{ "index": index, "id": id, "type": "function", "function": function }] }))
    };
    // Two calls that both say index 0; then two calls without ids.
    let same = [whole(0, &json!("x"), 1), whole(0, &json!("y"), 2), finish("tool_calls")];
    let nameless = [whole(0, &Value::Null, 1), whole(1, &json!(""), 2), finish("stop")];
    for (chunks, ids) in [(same, [Some("x"), Some("y")]), (nameless, [None, None])] {
        let fake = Fake::streaming(&openai(&chunks, true)).await;
        let turn = ask(request(Provider::Openai, fake.url(), "go")).await.turn();
        let seen: Vec<_> = turn.calls.iter().map(|call| (call.id.as_deref(), call.arguments.as_str())).collect();
        assert_eq!(seen, [(ids[0], r#"{"a":1}"#), (ids[1], r#"{"a":2}"#)]);
        assert_eq!(turn.finish_reason, FinishReason::ToolCalls);
    }
}

#[tokio::test]
async fn a_turn_at_the_length_limit_ends_with_what_was_written() {
    let chunks = [start(0, "call_a", "add"), piece(0, r#"{"a": 1"#), finish("length")];
    let fake = Fake::streaming(&openai(&chunks, true)).await;
    let turn = ask(request(Provider::Openai, fake.url(), "go")).await.turn();
    assert_eq!(turn.finish_reason, FinishReason::Length);
    assert_eq!(turn.calls[0].arguments, r#"{"a": 1"#);

    let mut events = vec![
        message_start(),
        block_start(0, &json!({ "type": "tool_use", "id": "call_a", "name": "add", "input": {} })),
        input(0, r#"{"a": 1"#),
        block_stop(0),
    ];
    events.extend(message_end("max_tokens"));
    let fake = Fake::streaming(&anthropic(&events)).await;
    let turn = ask(request(Provider::Anthropic, fake.url(), "go")).await.turn();
    assert_eq!(turn.finish_reason, FinishReason::Length);
    assert_eq!(turn.calls[0].arguments, r#"{"a": 1"#);
}

#[tokio::test]
async fn every_end_has_its_reason() {
    for (word, reason) in [
        ("stop", FinishReason::Stop),
        ("content_filter", FinishReason::ContentFilter),
        ("a_reason_of_tomorrow", FinishReason::Stop),
    ] {
        let fake = Fake::streaming(&openai(&[delta(&json!({ "content": "x" })), finish(word)], true)).await;
        assert_eq!(ask(request(Provider::Openai, fake.url(), "go")).await.turn().finish_reason, reason, "{word}");
    }
    for (word, reason) in [
        ("end_turn", FinishReason::Stop),
        ("refusal", FinishReason::ContentFilter),
        ("model_context_window_exceeded", FinishReason::Length),
    ] {
        let mut events = vec![message_start(), block_start(0, &json!({ "type": "text", "text": "x" })), block_stop(0)];
        events.extend(message_end(word));
        let fake = Fake::streaming(&anthropic(&events)).await;
        assert_eq!(ask(request(Provider::Anthropic, fake.url(), "go")).await.turn().finish_reason, reason, "{word}");
    }
}

#[tokio::test]
async fn field_a027_a_piece_of_a_call_that_was_never_begun_makes_no_call() {
    let chunks = [start(0, "call_a", "add"), piece(0, r#"{"a":1}"#), piece(7, r#"{"a":2}"#), finish("tool_calls")];
    let fake = Fake::streaming(&openai(&chunks, true)).await;
    let calls = ask(request(Provider::Openai, fake.url(), "go")).await.turn().calls;
    let seen: Vec<_> = calls.iter().map(|call| (call.id.as_deref(), &*call.tool, &*call.arguments)).collect();
    assert_eq!(seen, [(Some("call_a"), "add", r#"{"a":1}"#)]);
}

#[tokio::test]
async fn field_a140_whole_calls_are_made_whatever_reason_stands_at_the_end() {
    for reason in ["stop", "other", "unknown"] {
        let chunks = [start(0, "call_a", "add"), piece(0, r#"{"a":1}"#), finish(reason)];
        let fake = Fake::streaming(&openai(&chunks, true)).await;
        let turn = ask(request(Provider::Openai, fake.url(), "go")).await.turn();
        assert_eq!((turn.calls.len(), turn.finish_reason), (1, FinishReason::ToolCalls), "{reason}");
    }
    // Without any reason nobody knows that the calls are whole.
    let chunks = [start(0, "call_a", "add"), piece(0, r#"{"a":1}"#)];
    let fake = Fake::streaming(&openai(&chunks, true)).await;
    let cut = ask(request(Provider::Openai, fake.url(), "go")).await.error();
    assert!(cut.message.contains("cut off") && cut.may_cost, "{cut}");
}

#[tokio::test]
async fn field_a143_a_reason_for_calls_without_any_is_an_answer_that_was_cut_off() {
    let fake = Fake::streaming(&openai(&[delta(&json!({ "content": "x" })), finish("tool_calls")], true)).await;
    let cut = ask(request(Provider::Openai, fake.url(), "go")).await.error();
    assert!(cut.message.contains("cut off") && cut.may_cost, "{cut}");
}
