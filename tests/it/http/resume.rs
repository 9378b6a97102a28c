//! Resumes that are refused or decide nothing: in the order of the contract, and without a trace in the database.

use http::Method;
use serde_json::{Value, json};

use super::harness::{Server, says};
use crate::support::database::{Database, both_stores};
use crate::support::fake_mcp::{FakeMcp, Reply, tool};
use crate::support::world::run_on;

both_stores! {
    b012_b013_b038_b048_b077_b081_a_resume_that_is_refused_leaves_every_row_as_it_was,
    b042_a_resume_of_a_run_that_has_ended_asks_nobody_and_answers_what_is_stored,
    a_call_that_was_allowed_before_is_no_fault_of_a_resume_that_comes_again,
    a_name_in_a_resume_that_decides_nothing_is_said,
    a_resume_tightens_limits_and_never_loosens_them,
    b021_b022_b028_what_was_declared_repeatable_is_frozen_in_its_receipt,
}

const RUN: &str = "/v1/runs/r/resume";

/// A server with the run `r`, held for two charges, on a fake MCP server that is up.
async fn held(database: Database) -> (Server, FakeMcp) {
    let fake = FakeMcp::start().await;
    fake.on_call(|_| Reply::Reset);
    let server = Server::start_on(database).await;
    let mut body = run_on(
        "r",
        &[("charge", json!({ "amount": 5 })), ("charge", json!({ "amount": 6 }))],
        json!([{ "url": fake.url() }]),
    );
    body["binding_id"] = json!("2026-11");
    body["limits"] = json!({ "max_turns": 5, "max_tokens": 1000 });
    let run = server.settled(&body).await;
    assert_eq!(run["reason"], "tool-reconciliation-required", "{run}");
    (server, fake)
}

async fn b012_b013_b038_b048_b077_b081_a_resume_that_is_refused_leaves_every_row_as_it_was(database: Database) {
    let (server, fake) = held(database).await;
    let (alice, root) = (server.alice(), server.token("acme", "root", "admin"));
    let before = server.dump().await;
    assert!(before.contains("charge"), "the dump shows rows");
    let retry = json!({ "retry_tool_call_ids": ["call_1", "call_2"] });
    let with = |mut body: Value, more: Value| {
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    // The first that applies is answered, however much else is wrong.
    let wrong = json!({ "binding_id": "2026-12" });
    server.post("/v1/runs/none/resume", &root, &with(retry.clone(), wrong.clone())).await.problem(404, "not-found");
    server.post(RUN, &root, &json!({ "retry_tool_call_ids": 7 })).await.problem(422, "validation-failed");
    server.post(RUN, &alice, &retry).await.problem(403, "forbidden");
    server.post(RUN, &root, &json!({ "limits": { "max_turns": 6 } })).await.problem(422, "validation-failed");
    for nothing in [json!({}), json!({ "binding_id": "2026-11" }), json!({ "on_catalog_change": "accept" })] {
        let said = server.post(RUN, &alice, &nothing).await;
        assert_eq!((said.status.as_u16(), &said.json()["status"]), (200, &json!("suspended")), "{nothing}");
        assert_eq!(said.json()["notice"]["code"], "nothing-decided", "{nothing}");
    }
    let other = json!({ "retry_tool_call_ids": ["call_9", { "turn": 2, "call_id": "call_1" }] });
    let said = server.post(RUN, &root, &other).await;
    assert_eq!((said.status.as_u16(), &said.json()["notice"]["code"]), (200, &json!("nothing-decided")));
    server.post(RUN, &root, &with(retry.clone(), json!({ "mcp": [] }))).await.problem(409, "mcp-catalog-changed");
    let dropped = json!({ "mcp": [], "on_catalog_change": "accept" });
    server.post(RUN, &root, &with(retry.clone(), dropped)).await.problem(409, "mcp-catalog-changed");
    fake.on_list(|_| Reply::Result(json!({ "tools": [tool("charge"), tool("refund")] })));
    let changed = server.post(RUN, &root, &retry).await.problem(409, "mcp-catalog-changed");
    assert_eq!(changed["detail"], "MCP tool catalog changed across resume (added: refund).");
    assert_eq!(changed["added"], json!(["refund"]));
    let accepted = with(retry.clone(), json!({ "on_catalog_change": "accept" }));
    let in_flight = server.post(RUN, &root, &accepted).await.problem(409, "mcp-catalog-changed-in-flight");
    assert_eq!(in_flight["calls"], json!(["call_1", "call_2"]));
    fake.on_list(|_| Reply::status(500, json!({})));
    server.post(RUN, &root, &retry).await.problem(502, "mcp-unreachable");
    server.post(RUN, &root, &with(retry.clone(), wrong)).await.problem(409, "binding-changed");
    assert_eq!(server.dump().await, before);
    assert_eq!(fake.count("tools/call"), 2);
    // The recorded catalog is served again: the very same resume is admitted.
    fake.on_list(|_| Reply::Result(json!({ "tools": [tool("charge")] })));
    fake.on_call(|_| Reply::text("charged"));
    let admitted = server
        .send(super::harness::request(Method::POST, RUN, &root, &[("prefer", "wait=20")], retry.to_string().into()))
        .await;
    assert_eq!(
        (admitted.status.as_u16(), &admitted.json()["status"]),
        (202, &json!("completed")),
        "{:?}",
        admitted.body
    );
    assert_eq!(fake.count("tools/call"), 4);
}

async fn b042_a_resume_of_a_run_that_has_ended_asks_nobody_and_answers_what_is_stored(database: Database) {
    let server = Server::start_on(database).await;
    let mut body = says("hi");
    body["id"] = json!("r");
    let run = server.settled(&body).await;
    let before = server.dump().await;
    let root = server.token("acme", "root", "admin");
    for body in [
        json!({}),
        json!({ "binding_id": "other", "mcp": [{ "url": "http://127.0.0.1:9/mcp" }], "retry_tool_call_ids": ["x"] }),
    ] {
        let said = server.post(RUN, &root, &body).await;
        let mut stored = said.json().clone();
        let notice = stored.as_object_mut().unwrap().remove("notice");
        assert_eq!((said.status.as_u16(), stored), (200, run.clone()));
        assert_eq!(notice.is_some(), body != json!({}), "what was not taken is said");
    }
    assert_eq!(server.dump().await, before);
}

async fn a_name_in_a_resume_that_decides_nothing_is_said(database: Database) {
    let (server, fake) = held(database).await;
    let root = server.token("acme", "root", "admin");
    let before = server.dump().await;
    let body = json!({ "retry_tool_call_ids": ["cal_2", { "turn": 2, "call_id": "call_2" }] });
    let said = server.post(RUN, &root, &body).await;
    let message = said.json()["notice"]["message"].as_str().unwrap().to_owned();
    assert_eq!((said.status.as_u16(), &said.json()["notice"]["code"]), (200, &json!("nothing-decided")));
    assert!(message.contains("\"cal_2\" names no call"), "{message}");
    assert!(message.ends_with("there are: call_1 of turn 1, call_2 of turn 1"), "{message}");
    for (list, item, status, code) in [
        ("tool_results", json!({ "call_id": "call_1", "output": 1 }), 404, "not-found"),
        ("approvals", json!({ "call_id": "call_1", "decision": "approve" }), 409, "no-such-approval"),
    ] {
        let body = json!({ "retry_tool_call_ids": ["call_1"], list: [item] });
        let problem = server.post(RUN, &root, &body).await.problem(status, code);
        assert_eq!(problem["errors"][0]["pointer"], format!("/{list}/0/call_id"), "{problem:#}");
    }
    assert_eq!((server.dump().await, fake.count("tools/call")), (before, 2), "nothing is decided by halves");
    // One that is settled is named as what it is; what can be allowed beside it is.
    let settle = json!({ "resolution": "complete", "output": {} });
    let done = server.post("/v1/admin/runs/r/reconciliations/1/call_1", &root, &settle).await;
    assert!(done.status.is_success(), "{:?}", done.body);
    let both = server.post(RUN, &root, &json!({ "retry_tool_call_ids": ["call_1", "call_2"] })).await;
    assert_eq!((both.status.as_u16(), &both.json()["notice"]["code"]), (202, &json!("calls-passed-over")));
    let message = both.json()["notice"]["message"].as_str().unwrap().to_owned();
    assert!(message.ends_with("\"call_1\" is completed"), "{message}");
}

async fn a_call_that_was_allowed_before_is_no_fault_of_a_resume_that_comes_again(database: Database) {
    let (server, _fake) = held(database).await;
    let root = server.token("acme", "root", "admin");
    let body = json!({ "retry_tool_call_ids": ["call_1"] });
    let first = server.post(RUN, &root, &body).await;
    let again = server.post(RUN, &root, &body).await;
    assert_eq!((first.status.as_u16(), again.status.as_u16()), (200, 200));
    assert_eq!(first.json()["notice"], Value::Null);
    assert_eq!(again.json()["notice"]["code"], "nothing-decided");
    assert_eq!(first.json()["revision"], again.json()["revision"]);
}

async fn a_resume_tightens_limits_and_never_loosens_them(database: Database) {
    let (server, fake) = held(database).await;
    let root = server.token("acme", "root", "admin");
    let retry = |limits: Value| json!({ "retry_tool_call_ids": ["call_1", "call_2"], "limits": limits });
    let before = server.dump().await;
    let loose =
        server.post(RUN, &root, &retry(json!({ "max_turns": 6, "max_tokens": 1001, "max_tool_calls": 201 }))).await;
    let pointers = loose.problem(422, "validation-failed")["errors"].as_array().unwrap().clone();
    let pointers: Vec<_> = pointers.iter().map(|error| error["pointer"].as_str().unwrap().to_owned()).collect();
    assert_eq!(pointers, ["/limits/max_turns", "/limits/max_tool_calls", "/limits/max_tokens"]);
    assert_eq!(server.dump().await, before);
    fake.on_call(|_| Reply::text("charged"));
    let tight = retry(json!({ "max_turns": 1, "max_duration_s": 60 }));
    let said = server.post_with(RUN, &root, &[("prefer", "wait=20")], &tight).await.json();
    assert_eq!((&said["status"], &said["reason"]), (&json!("stopped"), &json!("max-turns")), "{said}");
}

async fn b021_b022_b028_what_was_declared_repeatable_is_frozen_in_its_receipt(database: Database) {
    let fake = FakeMcp::start().await;
    fake.on_list(|_| Reply::Result(json!({ "tools": [tool("charge"), tool("look")] })));
    fake.on_call(|_| Reply::Reset);
    let server = Server::start_on(database).await;
    let root = server.token("acme", "root", "admin");
    let entry = |more: Value| {
        let mut entry = json!({ "url": fake.url() });
        entry.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!([entry])
    };
    // Declared repeatable: three attempts by itself; declared by the prefixed name: not at all.
    let repeats = entry(json!({ "namespace": "ns", "replay": { "charge": "idempotent", "ns_look": "idempotent" } }));
    let run = server.settled(&run_on("r", &[("ns_charge", json!({}))], repeats.clone())).await;
    assert_eq!((&run["reason"], fake.count("tools/call")), (&json!("tool-reconciliation-required"), 3), "{run}");
    let run = server.settled(&run_on("prefixed", &[("ns_look", json!({}))], repeats)).await;
    assert_eq!((&run["reason"], fake.count("tools/call")), (&json!("tool-reconciliation-required"), 4), "{run}");
    // What is declared later relaxes nothing that was sent before.
    let run = server.settled(&run_on("plain", &[("charge", json!({}))], entry(json!({})))).await;
    assert_eq!((&run["reason"], fake.count("tools/call")), (&json!("tool-reconciliation-required"), 5));
    let relaxed = json!({ "mcp": entry(json!({ "replay": "idempotent", "side_effect_class": "read_only" })) });
    let said = server.post("/v1/runs/plain/resume", &root, &relaxed).await;
    assert_eq!((said.status.as_u16(), &said.json()["revision"]), (200, &run["revision"]), "nothing is decided");
    let receipt = server.get("/v1/runs/plain/receipts/1/call_1", &root).await.json();
    assert_eq!((&receipt["side_effect_class"], &receipt["replay"]), (&json!("non_idempotent_write"), &Value::Null));
    assert_eq!(fake.count("tools/call"), 5);
}
