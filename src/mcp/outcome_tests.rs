use serde_json::json;

use super::*;
use crate::schema::{Budget, Schemas};

fn status(status: u16) -> Stage {
    Stage::Status(HttpRefusal { status, ..HttpRefusal::default() })
}

fn answered(message: Value) -> Stage {
    Stage::Answered(message)
}

#[track_caller]
fn class(stage: Stage, ended: Ended) -> String {
    match classify(stage, ended, None, &Redactor::default()).0 {
        Outcome::Answered(Answer::Done { .. }) => "done".to_owned(),
        Outcome::Answered(Answer::Failed { error, .. }) => format!("failed {}", error.code),
        Outcome::NotSent(error) => format!("not sent {}", error.code),
        Outcome::TurnedAway(error) => format!("turned away {}", error.code),
        Outcome::Unknown(cause) => format!("unknown {}", cause.code()),
        Outcome::InputRequired(questions) => format!("asks {}", questions.asks.len()),
        Outcome::Deferred(task) => format!("deferred {}", task.id),
    }
}

#[test]
fn b210_b211_b212_every_status_has_its_class() {
    for code in 300..400 {
        assert_eq!(class(status(code), Ended::Settled), "not sent mcp-refused", "{code}");
    }
    for code in 400..500 {
        let want = match code {
            401 | 403 => "not sent mcp-unauthorized",
            408 => "unknown lost-response",
            429 => "not sent mcp-rate-limited",
            _ => "not sent mcp-refused",
        };
        assert_eq!(class(status(code), Ended::Settled), want, "{code}");
    }
    for code in (100..200).chain(500..600) {
        assert_eq!(class(status(code), Ended::Settled), "unknown lost-response", "{code}");
    }
}

#[test]
fn b209_what_never_left_is_not_sent_whoever_stopped_waiting() {
    for (ended, want) in [
        (Ended::Settled, "not sent mcp-unreachable"),
        (Ended::TimedOut, "not sent mcp-timeout"),
        (Ended::Cancelled, "not sent cancelled"),
    ] {
        assert_eq!(class(Stage::Queued, ended), want);
        assert_eq!(class(Stage::Withdrawn, ended), want);
        assert_eq!(class(Stage::NotConnected("refused".into()), ended), "not sent mcp-unreachable");
    }
}

#[test]
fn b212_what_left_and_was_not_answered_is_unknown() {
    assert_eq!(class(Stage::Sent, Ended::Settled), "unknown lost-response");
    assert_eq!(class(Stage::Sent, Ended::TimedOut), "unknown time-out");
    assert_eq!(class(Stage::Sent, Ended::Cancelled), "unknown cancelled");
    assert_eq!(class(Stage::Unreadable("half a body"), Ended::Settled), "unknown lost-response");
    assert_eq!(class(answered(json!({ "result": { "resultType": "task" } })), Ended::Settled), "unknown lost-response");
}

#[test]
fn b210_what_the_server_said_settles_the_call_whoever_stopped_waiting() {
    for ended in [Ended::Settled, Ended::TimedOut, Ended::Cancelled] {
        for (message, want) in [
            (json!({ "result": { "content": [] } }), "done"),
            (json!({ "result": {} }), "done"),
            (json!({ "result": { "isError": true } }), "failed tool-error"),
            (json!({ "result": { "resultType": "input_required" } }), "asks 0"),
            (json!({ "error": { "code": -32602, "message": "no" } }), "failed mcp-error"),
        ] {
            assert_eq!(class(answered(message.clone()), ended), want, "{message}");
        }
        assert_eq!(class(Stage::TooLarge(Excess::Bytes(9)), ended), "failed result-too-large");
        let deep = (0..110).fold(json!(1), |inner, _| json!([inner]));
        assert_eq!(
            class(answered(json!({ "result": { "structuredContent": deep } })), ended),
            "failed result-too-large"
        );
    }
}

fn class_of(stage: Stage, promised: Option<Promised<'_>>) -> Outcome {
    classify(stage, Ended::Settled, promised, &Redactor::default()).0
}

#[test]
fn b103_structured_content_must_keep_the_output_schema() {
    let schema = json!({ "type": "object", "properties": { "n": { "type": "integer" } }, "required": ["n"] });
    let (at, schemas) = (AtDesk::for_tests(), Schemas::default());
    let schema = schemas.of_here(&at, &schema, &mut Budget::of_one()).unwrap();
    let promised = || Some(Promised::By(&at, Arc::clone(&schema)));
    let code = |result: Value| match class_of(answered(json!({ "result": result })), promised()) {
        Outcome::Answered(Answer::Done { .. }) => "done".to_owned(),
        Outcome::Answered(Answer::Failed { error, output }) => {
            assert!(output.is_some(), "the raw answer is kept");
            error.code
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(code(json!({ "structuredContent": { "n": 1 } })), "done");
    assert_eq!(code(json!({ "structuredContent": { "n": "1" } })), "invalid-output");
    assert_eq!(code(json!({ "content": [] })), "invalid-output");
    assert_eq!(code(json!({ "isError": true, "content": [] })), "tool-error");
}

#[test]
fn only_a_lost_session_a_new_token_no_connection_and_a_short_rate_limit_are_tried_again() {
    let remedy = |stage: Stage| classify(stage, Ended::Settled, None, &Redactor::default()).1;
    let limited = |seconds: u64| {
        Stage::Status(HttpRefusal {
            status: 429,
            retry_after: Some(Duration::from_secs(seconds)),
            ..HttpRefusal::default()
        })
    };
    assert_eq!(remedy(limited(10)), Remedy::After(Duration::from_secs(10)));
    assert_eq!(remedy(limited(11)), Remedy::None);
    assert_eq!(remedy(status(429)), Remedy::None);
    let lost = HttpRefusal { status: 404, session_lost: true, ..HttpRefusal::default() };
    assert_eq!(remedy(Stage::Status(lost)), Remedy::NewSession);
    assert_eq!(remedy(status(404)), Remedy::None);
    let renewed = HttpRefusal { status: 401, renewed: true, ..HttpRefusal::default() };
    assert_eq!(remedy(Stage::Status(renewed)), Remedy::NewToken);
    assert_eq!(remedy(status(401)), Remedy::None);
    assert_eq!(remedy(Stage::NotConnected("refused".into())), Remedy::Redial);
    for stage in [Stage::Sent, Stage::Unreadable("x"), status(503), status(408), Stage::TooLarge(Excess::Nodes)] {
        assert_eq!(remedy(stage), Remedy::None);
    }
}

#[test]
fn b210_the_text_of_a_failed_tool_is_the_text_of_its_blocks() {
    let message = json!({ "result": { "isError": true, "content": [
        { "type": "text", "text": "no such order" }, { "type": "image", "data": "", "mimeType": "image/png" },
        { "type": "text", "text": "try another" },
    ] } });
    let Outcome::Answered(Answer::Failed { error, .. }) =
        classify(answered(message), Ended::Settled, None, &Redactor::default()).0
    else {
        panic!("not failed");
    };
    assert_eq!(error, ToolError::new("tool-error", "no such order\ntry another"));
}
