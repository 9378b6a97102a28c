//! Answers that hold what is no character: half of a surrogate pair, bytes that are no UTF-8, bare control characters.
//! The call was answered, so its outcome is known, over each way that an answer comes.

use std::time::Duration;

use countersign::mcp::ToolRequest;
use countersign::run::outcome::{Answer, Outcome};
use countersign::run::tool_result::told;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::{acme, call, charge, object, pool, target};
use crate::support::bad_stdio::BadStdio;
use crate::support::fake_mcp::{FakeMcp, Reply};

/// What stands in the answer's text, and what is kept of it.
const TEXTS: [(&[u8], &str); 6] = [
    (br"a\ud800b", "a\u{fffd}b"),
    (br"\udc00", "\u{fffd}"),
    (br"\ud83d\ude00\ud83d", "\u{1f600}\u{fffd}"),
    (b"a\xff\xc3b", "a\u{fffd}\u{fffd}b"),
    (b"a\tb\x01", "a\tb\u{1}"),
    (b"a\\u0000b", "a\0b"),
];

fn answer(text: &[u8], member: &str) -> Vec<u8> {
    let (before, after): (&[u8], &[u8]) = if member == "result" {
        (br#"{"jsonrpc":"2.0","id":@ID@,"result":{"content":[{"type":"text","text":""#, br#""}]}}"#)
    } else {
        (br#"{"jsonrpc":"2.0","id":@ID@,"error":{"code":-32000,"message":""#, br#""}}"#)
    };
    [before, text, after].concat()
}

#[track_caller]
fn check(outcome: &Outcome, kept: &str, how: &str) {
    match outcome {
        Outcome::Answered(Answer::Done { output }) => assert_eq!(told(output).output, kept, "{how}"),
        Outcome::Answered(Answer::Failed { error, .. }) => {
            assert_eq!((error.code.as_str(), error.message.as_str()), ("mcp-error", kept), "{how}");
        }
        other => panic!("{how}: {other:?}"),
    }
}

/// The answer of an HTTP server, as one body, as one event, and as an event with a mark of byte order in front.
async fn over_http(text: &'static [u8], kept: &str) {
    for member in ["result", "error"] {
        let body = answer(text, member);
        let event = [b"event: message\ndata: ", body.as_slice(), b"\n\n"].concat();
        for (kind, bytes) in [
            ("application/json", body.clone()),
            ("application/json", [b"\xef\xbb\xbf", body.as_slice()].concat()),
            ("text/event-stream", event),
        ] {
            let fake = FakeMcp::start().await;
            fake.on_call(move |_| Reply::Raw(kind, bytes.clone()));
            let outcome = call(&pool(), &target(&fake.url())).await;
            check(&outcome, kept, &format!("{kind} {member} {text:?}"));
            assert_eq!(fake.count("tools/call"), 1);
        }
    }
}

#[tokio::test]
async fn field_a015_half_a_character_in_an_answer_over_http_leaves_no_outcome_unknown() {
    for (text, kept) in TEXTS {
        over_http(text, kept).await;
    }
}

#[tokio::test]
async fn field_a015_half_a_character_in_a_line_of_a_process_leaves_no_outcome_unknown() {
    let bad = BadStdio::new("");
    let (pool, target) = (pool(), bad.target());
    pool.catalog(&acme(), &target, Duration::from_mins(1)).await.unwrap();
    for (text, kept) in TEXTS {
        for member in ["result", "error"] {
            let arguments = object(json!({ "hex": hex::encode(answer(text, member)) }));
            let request = ToolRequest { server_tool: "bytes".to_owned(), arguments, ..charge(1) };
            let outcome = pool.call(&acme(), &target, request, CancellationToken::new()).await;
            check(&outcome, kept, &format!("{member} {text:?}"));
        }
    }
    assert_eq!((bad.count("initialize"), bad.count("call")), (1, 12));
    pool.close().await;
}
