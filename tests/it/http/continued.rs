//! Runs that go on with the conversation of one that has ended.

use serde_json::{Value, json};

use super::harness::{RUNS, Server, says, slow};
use super::inputs::until;
use crate::support::database::{Database, both_stores};
use crate::support::fake_mcp::{FakeMcp, Reply};
use crate::support::fake_model::FakeModel;
use crate::support::world::run_on;

both_stores! {
    a_run_goes_on_with_the_conversation_of_one_that_ended_and_of_the_one_before,
    a_call_that_its_run_left_without_a_result_has_one_in_the_next,
    only_a_run_of_the_tenant_that_has_ended_can_be_continued,
    field_a090_a_new_message_waits_for_the_approval_or_finds_the_call_settled_as_not_executed,
    field_a094_a_message_after_a_cancelled_call_is_valid,
    only_who_may_read_a_run_can_continue_it,
    more_than_sixteen_mebibytes_are_not_carried_over,
}

/// The roles of what a model was asked last.
fn roles(model: &FakeModel) -> Vec<String> {
    let requests = model.requests();
    let messages = requests.last().unwrap()["messages"].as_array().unwrap();
    messages.iter().map(|message| message["role"].as_str().unwrap().to_owned()).collect()
}

/// Every call of the last request has exactly one result, right behind its turn, and no id stands twice.
#[track_caller]
fn assert_valid(model: &FakeModel) {
    let requests = model.requests();
    let messages = requests.last().unwrap()["messages"].as_array().unwrap();
    let (mut open, mut known): (Vec<&str>, Vec<&str>) = (Vec::new(), Vec::new());
    for message in messages {
        if message["role"] == "tool" {
            assert_eq!(message["tool_call_id"].as_str(), Some(open.remove(0)), "{messages:#?}");
            continue;
        }
        assert!(open.is_empty(), "{open:?} without a result: {messages:#?}");
        for call in message["tool_calls"].as_array().into_iter().flatten() {
            let id = call["id"].as_str().unwrap();
            assert!(!known.contains(&id), "{id} stands twice");
            open.push(id);
            known.push(id);
        }
    }
    assert!(open.is_empty() && !known.is_empty());
}

async fn a_run_goes_on_with_the_conversation_of_one_that_ended_and_of_the_one_before(database: Database) {
    let (server, fake) = (Server::start_on(database).await, FakeMcp::start().await);
    let mcp = json!([{ "url": fake.url() }]);
    // Scripted ids begin anew in each run.
    let first = server.settled(&run_on("first", &[("charge", json!({ "amount": 5 }))], mcp.clone())).await;
    assert_eq!(first["status"], "completed", "{first}");
    let mut second = run_on("second", &[("charge", json!({ "amount": 6 }))], mcp);
    second["continue_from"] = json!("first");
    second["input"] = json!("Again.");
    assert_eq!(server.settled(&second).await["status"], "completed");
    let model = FakeModel::start(&[]).await;
    let third = json!({ "id": "third", "model": model.spec(), "input": "How much?", "continue_from": "second",
                        "instructions": "Be exact." });
    let third = server.settled(&third).await;
    assert_eq!((&third["status"], &third["turns"]), (&json!("completed"), &json!(1)), "{third}");
    let one = ["user", "assistant", "tool", "assistant"];
    let expected: Vec<&str> = ["system"].into_iter().chain(one).chain(one).chain(["user"]).collect();
    assert_eq!(roles(&model), expected);
    assert_valid(&model);
    let request = &model.requests()[0]["messages"];
    assert_eq!((&request[1]["content"], &request[9]["content"]), (&json!("Go."), &json!("How much?")));
    assert_eq!(request[6]["tool_calls"][0]["function"]["arguments"], r#"{"amount":6}"#);
    let page = server.get("/v1/runs/third/messages?limit=100", &server.alice()).await.json();
    let turns: Vec<&Value> = page["data"].as_array().unwrap().iter().map(|message| &message["turn"]).collect();
    assert_eq!((turns.len(), turns[8], turns[9]), (10, &json!(0), &json!(1)), "what was carried over is input");
    assert_eq!(fake.count("tools/call"), 2, "nothing is called again");
}

async fn a_call_that_its_run_left_without_a_result_has_one_in_the_next(database: Database) {
    let (server, fake) = (Server::start_on(database).await, FakeMcp::start().await);
    let mut first = run_on("first", &[("charge", json!({})), ("charge", json!({}))], json!([{ "url": fake.url() }]));
    first["limits"] = json!({ "max_tool_calls": 1 });
    let first = server.settled(&first).await;
    assert_eq!(first["reason"], "max-tool-calls", "{first}");
    let model = FakeModel::start(&[]).await;
    let body = json!({ "id": "second", "model": model.spec(), "input": "Go on.", "continue_from": "first" });
    assert_eq!(server.settled(&body).await["status"], "completed");
    assert_eq!(roles(&model), ["user", "assistant", "tool", "tool", "user"]);
    assert_valid(&model);
    let told = model.requests()[0]["messages"][2]["content"].as_str().unwrap().to_owned();
    assert!(told.contains("limit of 1 tool calls"), "{told}");
}

async fn field_a090_a_new_message_waits_for_the_approval_or_finds_the_call_settled_as_not_executed(database: Database) {
    let (server, fake) = (Server::start_on(database).await, FakeMcp::start().await);
    let entry = json!([{ "url": fake.url(), "require_approval": true }]);
    let first = server.settled(&run_on("first", &[("charge", json!({}))], entry)).await;
    assert_eq!(first["reason"], "approval-required", "{first}");
    for (provider, model) in
        [("openai", FakeModel::start(&[]).await), ("anthropic", FakeModel::start_anthropic().await)]
    {
        let mut body =
            json!({ "id": provider, "model": model.spec(), "input": "Something else.", "continue_from": "first" });
        body["model"]["provider"] = json!(provider);
        if provider == "openai" {
            // While the approval is open, nothing goes on beside it.
            server.post("/v1/runs", &server.alice(), &body).await.problem(409, "run-not-ended");
            let still = server.get("/v1/runs/first", &server.alice()).await.json();
            assert_eq!((&still["revision"], model.requests().len()), (&first["revision"], 0), "{still}");
            server.post("/v1/runs/first/cancel", &server.alice(), &json!({})).await;
            until(&server, "first", |run| run["status"] == "cancelled").await;
        }
        let next = server.settled(&body).await;
        assert_eq!(next["status"], "completed", "{next}");
        let request = model.requests().last().unwrap().to_string();
        assert!(request.contains("cancelled before the call was sent"), "{request}");
        if provider == "openai" {
            assert_valid(&model);
        } else {
            assert_paired(&model);
        }
    }
    assert_eq!(fake.count("tools/call"), 0, "nothing was carried out");
}

async fn field_a094_a_message_after_a_cancelled_call_is_valid(database: Database) {
    let (server, fake) = (Server::start_on(database).await, FakeMcp::start().await);
    fake.on_call(|_| Reply::Silence);
    let first = run_on("first", &[("charge", json!({})), ("charge", json!({}))], json!([{ "url": fake.url() }]));
    assert_eq!(server.post("/v1/runs", &server.alice(), &first).await.status.as_u16(), 201);
    fake.wait_until(|fake| fake.count("tools/call") == 2).await;
    server.post("/v1/runs/first/cancel", &server.alice(), &json!({})).await;
    until(&server, "first", |run| run["status"] == "cancelled").await;
    let receipts = server.get("/v1/runs/first/receipts", &server.alice()).await.json();
    assert_eq!(
        (&receipts["data"][0]["stage"], &receipts["data"][0]["cause"]),
        (&json!("indeterminate"), &json!("cancelled"))
    );
    for (provider, model) in
        [("openai", FakeModel::start(&[]).await), ("anthropic", FakeModel::start_anthropic().await)]
    {
        let mut body = json!({ "id": provider, "model": model.spec(), "input": "Go on.", "continue_from": "first" });
        body["model"]["provider"] = json!(provider);
        let next = server.settled(&body).await;
        assert_eq!(next["status"], "completed", "{next}");
        if provider == "openai" {
            assert_valid(&model);
        } else {
            assert_paired(&model);
        }
    }
}

/// Every `tool_use` of the last request has exactly one `tool_result` in the message right behind it.
#[track_caller]
fn assert_paired(model: &FakeModel) {
    let requests = model.requests();
    let messages = requests.last().unwrap()["messages"].as_array().unwrap();
    let ids = |message: &Value, kind: &str, name: &str| -> Vec<String> {
        let blocks = message["content"].as_array().into_iter().flatten();
        blocks.filter(|block| block["type"] == kind).map(|block| block[name].as_str().unwrap().to_owned()).collect()
    };
    let mut used = 0;
    for pair in messages.windows(2) {
        let open = ids(&pair[0], "tool_use", "id");
        used += open.len();
        assert_eq!(open, ids(&pair[1], "tool_result", "tool_use_id"), "{messages:#?}");
    }
    assert!(used > 0, "{messages:#?}");
}

async fn only_a_run_of_the_tenant_that_has_ended_can_be_continued(database: Database) {
    let server = Server::start_on(database).await;
    let alice = server.alice();
    let continued = |from: &str| {
        let mut body = says("hi");
        body["continue_from"] = json!(from);
        body
    };
    let mut theirs = says("ours");
    theirs["id"] = json!("theirs");
    let other = server.token("umbrella", "eve", RUNS);
    assert_eq!(server.post_with("/v1/runs", &other, &[("prefer", "wait=20")], &theirs).await.status.as_u16(), 201);
    for from in ["nobody", "theirs", "not a name"] {
        let problem = server.post("/v1/runs", &alice, &continued(from)).await.problem(422, "validation-failed");
        assert_eq!(problem["errors"], json!([{ "pointer": "/continue_from", "detail": "there is no such run" }]));
    }
    let mut active = slow(60_000);
    active["id"] = json!("active");
    assert_eq!(server.post("/v1/runs", &alice, &active).await.status.as_u16(), 201);
    server.post("/v1/runs", &alice, &continued("active")).await.problem(409, "run-not-ended");
}

async fn only_who_may_read_a_run_can_continue_it(database: Database) {
    let server = Server::start_on(database).await;
    let mut first = says("between us");
    first["id"] = json!("first");
    assert_eq!(server.settled(&first).await["status"], "completed");
    let model = FakeModel::start(&[]).await;
    let body = |from: Value| json!({ "model": model.spec(), "input": "What was said?", "continue_from": from });
    let writer = server.token("acme", "mallory", "runs:write");
    for from in ["first", "nobody"] {
        let refused = server.post("/v1/runs", &writer, &body(json!(from))).await.problem(403, "forbidden");
        assert_eq!(refused["required_scope"], "runs:read");
    }
    assert!(model.requests().is_empty());
    let wait = [("prefer", "wait=20")];
    assert_eq!(server.post_with("/v1/runs", &writer, &wait, &body(Value::Null)).await.status.as_u16(), 201);
    for scope in [RUNS, "admin"] {
        let reader = server.token("acme", "alice", scope);
        assert_eq!(server.post_with("/v1/runs", &reader, &wait, &body(json!("first"))).await.status.as_u16(), 201);
        assert_eq!(roles(&model), ["user", "assistant", "user"]);
    }
}

async fn more_than_sixteen_mebibytes_are_not_carried_over(database: Database) {
    const MOST: usize = 16 * 1024 * 1024;
    let server = Server::start_on(database).await;
    let mut first = says("hi");
    first["id"] = json!("first");
    assert_eq!(server.settled(&first).await["status"], "completed");
    let mut body = says("ok");
    (body["id"], body["continue_from"]) = (json!("second"), json!("first"));
    // It would not read: that many bytes are refused before anybody tries.
    let kept = |bytes: usize| json!({ "/body/content/0/text": { "digest": "lost", "bytes": bytes } });
    server.execute(&format!("UPDATE messages SET blobs = '{}' WHERE pos = 0", kept(MOST))).await;
    let problem = server.post("/v1/runs", &server.alice(), &body).await.problem(422, "validation-failed");
    assert_eq!(problem["errors"][0]["pointer"], "/continue_from", "{problem}");
    assert!(
        problem["errors"][0]["detail"].as_str().unwrap().ends_with("at most 16777216 are carried over"),
        "{problem}"
    );
    let text = "x".repeat(MOST - 64 * 1024);
    let said = json!({ "position": 0, "turn": 0, "role": "user", "content": [{ "type": "text", "text": text }] });
    let long = json!({ "v": 1, "body": said });
    server.execute(&format!("UPDATE messages SET blobs = NULL, body = '{long}' WHERE pos = 0")).await;
    let second = server.settled(&body).await;
    assert_eq!(second["status"], "completed", "{second}");
    let page = server.get("/v1/runs/second/messages?limit=1", &server.alice()).await.json();
    assert!(page["data"][0]["content"][0]["text"] == text, "the whole of it");
}
