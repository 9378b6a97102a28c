//! Servers that have a model asked: policy, budget and settlement, as seen through the API.

use serde_json::{Value, json};

use super::harness::Server;
use super::inputs::{events, told};
use crate::support::database::{Database, both_stores};
use crate::support::fake_mcp::{FakeMcp, Reply, Step};
use crate::support::world::run_on;

both_stores! {
    b094_a_model_that_is_not_allowed_is_not_asked,
    b095_after_the_deadline_no_model_is_asked,
    b097_what_the_budget_has_no_room_for_is_refused_and_nothing_stays_reserved,
    b098_b099_a_sample_is_reserved_then_made_then_counted_beside_the_runs_own,
    b100_the_entrys_own_limit_is_the_last_that_is_made,
    b101_two_samples_at_once_are_never_admitted_past_the_budget,
    what_a_model_could_not_answer_is_told_and_its_tokens_are_free_again,
    a_sample_with_tools_is_refused_in_words,
    b101_what_a_model_reports_beyond_its_reservation_is_seen_by_the_next_admission,
    so_many_samples_are_made_at_once_and_a_call_gets_no_more_than_its_number,
}

const SAMPLE: &str = "sampling/createMessage";

fn ask(max_tokens: u64) -> Value {
    json!({
        "messages": [{ "role": "user", "content": { "type": "text", "text": "Sum up." } }],
        "systemPrompt": "Be short.",
        "maxTokens": max_tokens,
    })
}

fn model() -> Value {
    json!({ "provider": "scripted", "name": "small", "script": [{ "text": "Short." }] })
}

/// A run of one call at a server that asks for these samples, one after the other.
async fn run(database: Database, samples: Vec<Value>, sampling: Value, limits: Value) -> (Server, FakeMcp, Value) {
    let (server, fake) = (Server::start_on(database).await, FakeMcp::start().await);
    fake.on_call(move |_| {
        let ids: Vec<u64> = (71..).take(samples.len()).collect();
        let mut steps: Vec<Step> =
            ids.iter().zip(&samples).map(|(id, params)| Step::Ask(*id, SAMPLE, params.clone())).collect();
        steps.push(Step::Told(ids));
        Reply::Sse(steps)
    });
    let mut body = run_on("r", &[("charge", json!({}))], json!([{ "url": fake.url(), "sampling": sampling }]));
    body["limits"] = limits;
    let run = server.settled(&body).await;
    (server, fake, run)
}

fn decisions(events: &[Value]) -> Vec<String> {
    let said = |event: &Value| match event["reason"].as_str() {
        Some(reason) => format!("{} {reason}", event["decision"].as_str().unwrap()),
        None => event["decision"].as_str().unwrap().to_owned(),
    };
    events.iter().map(said).collect()
}

async fn b094_a_model_that_is_not_allowed_is_not_asked(database: Database) {
    let sampling = json!({ "model": model(), "allowed_models": ["large"] });
    let (server, fake, run) = run(database, vec![ask(100)], sampling, json!({})).await;
    assert_eq!(
        (run["status"].as_str(), run["usage"]["model_requests"].as_u64()),
        (Some("completed"), Some(2)),
        "{run:#}"
    );
    assert_eq!(run["usage"]["sampling"]["model_requests"], 0);
    let told = told(&server, "r").await;
    assert_eq!(told["71"]["code"], -1);
    assert!(told["71"]["message"].as_str().unwrap().contains("allowed models"), "{told}");
    let events = events(&server, "r", "sampling").await;
    assert_eq!(decisions(&events), ["refused model-not-allowed"]);
    assert_eq!((events[0]["model"].as_str(), events[0].get("usage")), (Some("small"), None));
    let told = &fake.seen_rpc("initialize")[0].body["params"]["capabilities"];
    assert_eq!((told.get("sampling"), told.get("elicitation")), (Some(&json!({})), None));
    fake.wait_until(|fake| fake.count_http("DELETE") == 1).await;
}

async fn b095_after_the_deadline_no_model_is_asked(database: Database) {
    let (server, fake) = (Server::start_on(database).await, FakeMcp::start().await);
    fake.on_call(|_| {
        let late = Step::Pause(std::time::Duration::from_millis(1_100));
        Reply::Sse(vec![late, Step::Ask(71, SAMPLE, ask(10)), Step::Told(vec![71])])
    });
    let entry = json!({ "url": fake.url(), "sampling": { "model": model() } });
    let mut body = run_on("r", &[("charge", json!({}))], json!([entry]));
    body["limits"] = json!({ "max_duration_s": 1 });
    let run = server.settled(&body).await;
    assert_eq!(
        (run["reason"].as_str(), run["usage"]["model_requests"].as_u64()),
        (Some("deadline"), Some(1)),
        "{run:#}"
    );
    assert_eq!(decisions(&events(&server, "r", "sampling").await), ["refused deadline"]);
    assert!(told(&server, "r").await["71"]["message"].as_str().unwrap().contains("deadline"));
}

async fn b097_what_the_budget_has_no_room_for_is_refused_and_nothing_stays_reserved(database: Database) {
    let sampling = json!({ "model": model() });
    // The second takes what is left to the last token: nothing of the first is reserved any more.
    let (server, _fake, run) =
        run(database, vec![ask(500), ask(200 - 15 - 24)], sampling, json!({ "max_tokens": 200 })).await;
    let events = events(&server, "r", "sampling").await;
    assert_eq!(decisions(&events), ["refused budget.tokens", "reserved", "made"]);
    assert_eq!(events[1]["reserved_tokens"], 185);
    assert_eq!(
        (run["usage"]["sampling"]["model_requests"].as_u64(), run["status"].as_str()),
        (Some(1), Some("completed")),
        "{run:#}"
    );
    let told = told(&server, "r").await;
    assert_eq!(told["71"]["code"], -1);
    assert!(told["71"]["message"].as_str().unwrap().contains("budget"), "{told}");
    assert_eq!(told["72"]["content"]["text"], "Short.");
}

async fn b098_b099_a_sample_is_reserved_then_made_then_counted_beside_the_runs_own(database: Database) {
    let model = json!({ "provider": "scripted", "name": "small", "script": [
        { "text": "Short.", "usage": { "input_tokens": 7, "output_tokens": 2 } },
        { "text": "Cut", "finish_reason": "length" },
    ] });
    let (server, _fake, run) = run(
        database,
        vec![ask(100), ask(100)],
        json!({ "model": model, "max_tokens": 100 }),
        json!({ "max_tokens": 20_000 }),
    )
    .await;
    assert_eq!(run["status"], "completed", "{run:#}");
    let usage = &run["usage"];
    assert_eq!(
        (usage["sampling"]["model_requests"].as_u64(), usage["sampling"]["total_tokens"].as_u64()),
        (Some(2), Some(24))
    );
    assert_eq!(
        (usage["model_requests"].as_u64(), usage["total_tokens"].as_u64()),
        (Some(4), Some(54)),
        "the run's own script goes on"
    );
    assert_eq!(run["output"]["text"], "Done.");
    let events = events(&server, "r", "sampling").await;
    assert_eq!(decisions(&events), ["reserved", "made", "reserved", "made"]);
    assert_eq!(events[1]["usage"], json!({ "input_tokens": 7, "output_tokens": 2, "cached_input_tokens": 0 }));
    assert!(events.iter().all(|event| event["server"].is_string() && event["call_id"] == "call_1"));
    let told = told(&server, "r").await;
    let first = json!({ "role": "assistant", "content": { "type": "text", "text": "Short." }, "model": "small", "stopReason": "endTurn" });
    assert_eq!((&told["71"], &told["72"]["stopReason"]), (&first, &json!("maxTokens")));
}

async fn b100_the_entrys_own_limit_is_the_last_that_is_made(database: Database) {
    let sampling = json!({ "model": model(), "max_tokens": 1000, "approval": "never" });
    let (server, _fake, _run) = run(database, vec![ask(1001), ask(1000)], sampling, json!({})).await;
    assert_eq!(decisions(&events(&server, "r", "sampling").await), ["refused max-tokens", "reserved", "made"]);
    let told = told(&server, "r").await;
    assert!(told["71"]["message"].as_str().unwrap().contains("1000"), "{told}");
    assert_eq!(told["72"]["content"]["text"], "Short.");
}

async fn b101_two_samples_at_once_are_never_admitted_past_the_budget(database: Database) {
    let (server, fake) = (Server::start_on(database).await, FakeMcp::start().await);
    fake.on_call(|seen| {
        let id = seen.body["id"].as_u64().unwrap() + 1_000;
        Reply::Sse(vec![Step::Ask(id, SAMPLE, ask(10_000)), Step::Told(vec![id])])
    });
    let model = json!({ "provider": "scripted", "name": "small", "script": [
        { "text": "Long.", "delay_ms": 500, "usage": { "input_tokens": 12, "output_tokens": 10_000 } },
    ] });
    let calls = [("charge", json!({})), ("charge", json!({}))];
    let mut body = run_on("r", &calls, json!([{ "url": fake.url(), "sampling": { "model": model } }]));
    body["limits"] = json!({ "max_tokens": 20_000 });
    let run = server.settled(&body).await;
    let mut said = decisions(&events(&server, "r", "sampling").await);
    said.sort_unstable();
    assert_eq!(said, ["made", "refused budget.tokens", "reserved"]);
    assert_eq!(
        (run["usage"]["sampling"]["model_requests"].as_u64(), run["usage"]["total_tokens"].as_u64()),
        (Some(1), Some(10_042)),
        "{run:#}"
    );
}

async fn what_a_model_could_not_answer_is_told_and_its_tokens_are_free_again(database: Database) {
    let model = json!({ "provider": "scripted", "name": "small", "script": [{ "error": { "status": 401 } }, { "text": "Short." }] });
    let limits = json!({ "max_tokens": 200 });
    let (server, _fake, run) = run(database, vec![ask(150), ask(150)], json!({ "model": model }), limits).await;
    let events = events(&server, "r", "sampling").await;
    assert_eq!(decisions(&events), ["reserved", "failed model-error", "reserved", "made"]);
    assert_eq!(
        (run["usage"]["sampling"]["model_requests"].as_u64(), run["status"].as_str()),
        (Some(2), Some("completed")),
        "{run:#}"
    );
    let told = told(&server, "r").await;
    assert!(told["71"]["message"].as_str().unwrap().contains("401"), "{told}");
    assert_eq!(told["72"]["content"]["text"], "Short.");
}

/// A call whose server asks for so many samples at once, and tells which of them it was given.
fn asks_at_once(fake: &FakeMcp, samples: u64, max_tokens: u64) {
    fake.on_call(move |_| {
        let ids: Vec<u64> = (1_000..1_000 + samples).collect();
        let ask = |id: &u64| json!({ "jsonrpc": "2.0", "id": id, "method": SAMPLE, "params": ask(max_tokens) });
        let mut steps: Vec<Step> = ids.iter().map(|id| Step::Raw(format!("data: {}\n\n", ask(id)))).collect();
        steps.push(Step::Told(ids));
        Reply::Sse(steps)
    });
}

async fn b101_what_a_model_reports_beyond_its_reservation_is_seen_by_the_next_admission(database: Database) {
    let model = json!({ "provider": "scripted", "name": "small", "script": [
        { "text": "Long.", "usage": { "input_tokens": 900, "output_tokens": 5_000 } },
    ] });
    let limits = json!({ "max_tokens": 1_000 });
    let (server, _fake, run) = run(database, vec![ask(100), ask(1)], json!({ "model": model }), limits).await;
    let events = events(&server, "r", "sampling").await;
    assert_eq!(decisions(&events), ["reserved", "made", "refused budget.tokens"]);
    assert_eq!(events[0]["reserved_tokens"], 124, "every byte may be a token");
    assert_eq!(run["usage"]["sampling"]["total_tokens"], 5_900, "{run:#}");
    assert_eq!((run["status"].as_str(), run["reason"].as_str()), (Some("stopped"), Some("budget.tokens")), "{run:#}");
}

async fn so_many_samples_are_made_at_once_and_a_call_gets_no_more_than_its_number(database: Database) {
    let (server, fake) = (Server::start_on(database).await, FakeMcp::start().await);
    asks_at_once(&fake, 300, 10);
    let model = json!({ "provider": "scripted", "name": "small", "script": [{ "text": "Short.", "delay_ms": 5 }] });
    let body = run_on("r", &[("charge", json!({}))], json!([{ "url": fake.url(), "sampling": { "model": model } }]));
    let run = server.settled(&body).await;
    assert_eq!(run["status"], "completed", "{run:#}");
    assert_eq!(run["usage"]["sampling"]["model_requests"], 64);
    let said = decisions(&events(&server, "r", "sampling").await);
    assert_eq!(said.len(), 128, "the others left no trace");
    let mut at_once = (0_i32, 0_i32);
    for decision in &said {
        at_once.0 += if decision == "reserved" { 1 } else { -1 };
        at_once.1 = at_once.1.max(at_once.0);
    }
    assert_eq!(at_once, (0, 4));
    let told = told(&server, "r").await;
    let refused = told.as_object().unwrap().values().filter(|told| told["code"] == -1).count();
    assert_eq!(refused, 300 - 64);
}

async fn a_sample_with_tools_is_refused_in_words(database: Database) {
    let mut params = ask(10);
    params["tools"] = json!([{ "name": "t", "inputSchema": { "type": "object" } }]);
    let (server, _fake, run) = run(database, vec![params], json!({ "model": model() }), json!({})).await;
    assert_eq!(run["status"], "completed", "{run:#}");
    let told = told(&server, "r").await;
    assert_eq!(told["71"]["code"], -32602);
    assert!(told["71"]["message"].as_str().unwrap().contains("tools"), "{told}");
}

#[tokio::test]
async fn what_a_sampling_entry_may_not_say_is_told_before_the_run_begins() {
    let server = Server::start().await;
    let sampling = json!({ "model": { "provider": "scripted", "name": "small", "secret": "none" }, "approval": "always", "max_tokens": 5 });
    let entry = json!({ "url": "http://127.0.0.1:9/mcp", "sampling": sampling });
    let problem = server
        .post("/v1/runs", &server.alice(), &run_on("r", &[], json!([entry])))
        .await
        .problem(422, "validation-failed");
    let faults = problem["errors"].as_array().unwrap();
    for pointer in ["model/secret", "model/script"] {
        let pointer = format!("/mcp/0/sampling/{pointer}");
        assert!(faults.iter().any(|fault| fault["pointer"] == pointer.as_str()), "{pointer}: {problem:#}");
    }
}
