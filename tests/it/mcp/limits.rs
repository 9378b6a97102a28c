//! What a server may answer at most: bytes, blocks, depth and number of values, and what that costs the process.

use countersign::mcp::PoolSettings;
use countersign::run::outcome::{Answer, Outcome};
use serde_json::{Value, json};

use super::{call, class, pool_with, settings, target};
use crate::support::fake_mcp::{FakeMcp, Reply, Step};

/// As in production.
const MAX_BYTES: usize = 16 * 1024 * 1024;

fn blocks(count: usize) -> Value {
    json!({ "content": vec![json!({ "type": "text", "text": "b" }); count] })
}

/// A result as text, since no value can be nested that deeply.
fn raw(result: &str, id: &Value) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#)
}

fn nested(levels: usize) -> String {
    format!(r#"{{"content":[],"structuredContent":{{"a":{}{}}}}}"#, "[".repeat(levels), "]".repeat(levels))
}

async fn outcome(answer: impl Fn(&Value) -> Reply + Send + Sync + 'static) -> Outcome {
    let fake = FakeMcp::start().await;
    fake.on_call(move |seen| answer(&seen.body["id"]));
    let pool = pool_with(PoolSettings { max_result_bytes: MAX_BYTES, ..settings() });
    let outcome = call(&pool, &target(&fake.url())).await;
    assert_eq!(fake.count("tools/call"), 1, "what is too large is not asked for again");
    outcome
}

/// As JSON, and as an event of a stream that goes on.
async fn check(result: String, want: &str, says: &str) {
    let text = result.clone();
    let json = Box::pin(outcome(move |id| {
        let kind = vec![("content-type", "application/json".to_owned())];
        Reply::Http(200, kind, raw(&text, id))
    }));
    let stream = {
        let text = result.clone();
        let event = move |id: &Value| Step::Raw(format!("data: {}\n\n", raw(&text, id)));
        Box::pin(outcome(move |id| Reply::Sse(vec![event(id), Step::Hang])))
    };
    for outcome in [json.await, stream.await] {
        assert_eq!(class(&outcome), want, "{says}");
        if let Outcome::Answered(Answer::Failed { error, .. }) = outcome {
            assert!(error.message.contains(says) && error.message.contains("was executed"), "{error:?}");
        }
    }
}

#[tokio::test]
async fn field_a013_blocks_depth_and_values_beyond_a_limit_settle_as_too_large() {
    check(blocks(2_000).to_string(), "done", "").await;
    check(blocks(10_000).to_string(), "failed result-too-large", "more than 2000 content blocks").await;
    check(nested(90), "done", "").await;
    check(nested(110), "failed result-too-large", "deeper than 100 levels").await;
    check(nested(5_000), "failed result-too-large", "deeper than 100 levels").await;
    let many = format!(r#"{{"content":[],"structuredContent":{{"a":[{}0]}}}}"#, "0,".repeat(4_000_000));
    check(many, "failed result-too-large", "more than 200000 values").await;
}

#[tokio::test]
async fn what_is_no_answer_to_the_call_stays_unknown_however_deep_it_is() {
    let deep = "[".repeat(5_000) + &"]".repeat(5_000);
    for body in [deep.clone(), raw(&deep, &json!("another")), format!(r#"{{"id":1,"method":{deep}}}"#)] {
        let kind = vec![("content-type", "application/json".to_owned())];
        let outcome = outcome(move |_| Reply::Http(200, kind.clone(), body.clone())).await;
        assert_eq!(class(&outcome), "unknown lost-response");
    }
}

/// The most memory that this process ever had, in bytes.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    let kibibytes: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kibibytes * 1024
}

#[tokio::test]
async fn field_a013_a_body_of_200_megabytes_costs_no_more_than_the_limit() {
    drop(outcome(|_| Reply::text("warm")).await);
    let before = peak();
    let outcome = outcome(|_| Reply::Flood(200)).await;
    assert_eq!(class(&outcome), "failed result-too-large");
    let cost = peak() - before;
    assert!(cost < 64 * 1024 * 1024, "{cost} bytes more than before");
}
