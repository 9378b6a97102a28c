//! Catalogs that changed while a run waited: what a resume compares, refuses, accepts, and stores.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::harness::{SOON, Server};
use crate::support::database::{Database, both_stores};
use crate::support::fake_mcp::{FakeMcp, Reply, Seen, tool};
use crate::support::fake_model::FakeModel;
use crate::support::world::run_on;

both_stores! {
    b033_b035_b036_b037_b052_a_resume_names_every_change_and_nothing_else_counts,
    b041_of_two_entries_one_is_not_enough_and_a_missing_prefix_shows_as_a_rename,
    b049_b050_b051_a_run_without_a_record_takes_the_catalog_that_it_is_resumed_with,
    b072_to_b075_b087_a_missed_change_is_refused_or_recorded_before_the_model_is_asked,
    b077_b080_b086_a_call_that_may_have_been_sent_blocks_every_change,
    b079_b085_b086_a_call_that_never_started_blocks_every_change,
    b023_b024_b091_a_declaration_names_tools_as_the_server_does,
    b027_what_is_declared_between_legs_relaxes_nothing_and_a_bumped_binding_id_is_refused,
    the_class_that_annotations_give_is_taken_only_where_the_caller_believes_them,
    an_entry_that_takes_no_tool_any_more_is_a_change,
    every_revision_can_be_read_and_none_shows_a_secret,
}

const RESUME: &str = "/v1/runs/r/resume";

fn root(server: &Server) -> String {
    server.token("acme", "root", "admin")
}

fn name_of(seen: &Seen) -> &str {
    seen.body["params"]["name"].as_str().unwrap()
}

fn described(name: &str, description: &str) -> Value {
    json!({ "name": name, "description": description, "inputSchema": { "type": "object" } })
}

/// A run of that model that is held for its first call, on a server that answers the later ones.
async fn held(server: &Server, fake: &FakeMcp, body: &Value) {
    fake.on_call(|_| Reply::Reset);
    let run = server.settled(body).await;
    assert_eq!(run["reason"], "tool-reconciliation-required", "{run}");
    fake.on_call(|_| Reply::text("charged"));
}

fn charge_on(entries: Value) -> Value {
    run_on("r", &[("charge", json!({ "amount": 5 }))], entries)
}

async fn rested(server: &Server) -> Value {
    let deadline = Instant::now() + SOON;
    loop {
        let run = server.get("/v1/runs/r", &server.alice()).await.json();
        if !matches!(run["status"].as_str(), Some("queued" | "running")) {
            return run;
        }
        assert!(Instant::now() < deadline, "{run}");
        tokio::task::yield_now().await;
    }
}

/// Says what became of the run's first call: its last open one, so the run goes on.
async fn complete_first_call(server: &Server) -> Value {
    let path = "/v1/admin/runs/r/reconciliations/1/call_1";
    let body = json!({ "resolution": "complete", "output": { "charged": 5 } });
    let said = server.post(path, &root(server), &body).await;
    assert_eq!(said.status.as_u16(), 200, "{:?}", said.body);
    rested(server).await
}

async fn resumed(server: &Server, body: &Value) -> Value {
    server.post_with(RESUME, &root(server), &[("prefer", "wait=20")], body).await.json()
}

async fn b033_b035_b036_b037_b052_a_resume_names_every_change_and_nothing_else_counts(database: Database) {
    let (server, fake) = (Server::start_on(database).await, FakeMcp::start().await);
    fake.serve(vec![described("charge", "Charge."), described("look", "Look.")]);
    held(&server, &fake, &charge_on(json!([{ "url": fake.url() }]))).await;
    let retry = json!({ "retry_tool_call_ids": ["call_1"] });
    let before = server.dump().await;
    let mut other_schema = described("look", "Look.");
    other_schema["inputSchema"] = json!({ "type": "object", "required": ["id"] });
    let checks = [
        (vec![described("charge", "Charge.")], "removed: look"),
        (vec![described("charge", "Charge twice."), described("look", "Look.")], "changed: charge"),
        (vec![described("charge", "Charge."), other_schema], "changed: look"),
        (
            vec![described("charge", "Charge twice."), described("refund", "Refund."), described("book", "Book.")],
            "added: book, refund; removed: look; changed: charge",
        ),
        (
            vec![described("charge", "Charge twice."), described("refund", "Refund."), described("look", "Look.")],
            "added: refund; changed: charge",
        ),
    ];
    for (tools, said) in checks {
        fake.serve(tools);
        let changed = server.post(RESUME, &root(&server), &retry).await.problem(409, "mcp-catalog-changed");
        assert_eq!(changed["detail"], format!("MCP tool catalog changed across resume ({said})."));
        assert_eq!(server.dump().await, before);
    }
    // Another order, another output schema, other annotations: nothing changed.
    let mut charge = described("charge", "Charge.");
    charge["outputSchema"] = json!({ "type": "object" });
    charge["annotations"] = json!({ "readOnlyHint": true });
    fake.on_call(|_| Reply::Result(json!({ "content": [], "structuredContent": {} })));
    fake.serve(vec![described("look", "Look."), charge]);
    let run = resumed(&server, &retry).await;
    assert_eq!((&run["status"], &run["warnings"]), (&json!("completed"), &json!([])), "{run}");
    assert_eq!(run["binding"]["revision"], 1);
}

async fn b041_of_two_entries_one_is_not_enough_and_a_missing_prefix_shows_as_a_rename(database: Database) {
    let (server, a, b) = (Server::start_on(database).await, FakeMcp::start().await, FakeMcp::start().await);
    let entries = json!([{ "url": a.url(), "namespace": "a" }, { "url": b.url(), "namespace": "b" }]);
    held(&server, &a, &run_on("r", &[("a_charge", json!({}))], entries)).await;
    let before = server.dump().await;
    let retry = |entry: Value| json!({ "mcp": [entry], "retry_tool_call_ids": ["call_1"] });
    for (entry, said) in [
        (json!({ "url": a.url(), "namespace": "a" }), "removed: b_charge"),
        (json!({ "url": a.url() }), "added: charge; removed: a_charge, b_charge"),
    ] {
        let changed = server.post(RESUME, &root(&server), &retry(entry)).await.problem(409, "mcp-catalog-changed");
        assert_eq!(changed["detail"], format!("MCP tool catalog changed across resume ({said})."));
    }
    assert_eq!(server.dump().await, before);
}

async fn b049_b050_b051_a_run_without_a_record_takes_the_catalog_that_it_is_resumed_with(database: Database) {
    let (server, fake) = (Server::start_on(database).await, FakeMcp::start().await);
    held(&server, &fake, &charge_on(json!([{ "url": fake.url() }]))).await;
    // As a run that had no servers leaves it.
    let bound = json!({ "v": 1, "body": { "revision": 1, "entries": [], "tools": [], "mcp": null } });
    server.execute(&format!("UPDATE bindings SET body = '{bound}'")).await;
    assert_eq!(server.get("/v1/runs/r", &server.alice()).await.json()["binding"]["mcp"], Value::Null);
    fake.on_call(|_| Reply::Reset);
    let entries = json!([{ "url": fake.url() }]);
    let body = json!({ "mcp": entries, "retry_tool_call_ids": ["call_1"] });
    let run = resumed(&server, &body).await;
    assert_eq!((&run["reason"], &run["binding"]["revision"]), (&json!("tool-reconciliation-required"), &json!(2)));
    assert_eq!(run["binding"]["mcp"]["tools"].as_object().unwrap().keys().collect::<Vec<_>>(), ["charge"]);
    let history = server.get("/v1/runs/r/envelope", &server.alice()).await.json()["bindings"].clone();
    assert_eq!((&history[0]["mcp"], &history[1]["added"]), (&Value::Null, &json!(["charge"])));
    // From then on it is compared like any other.
    let before = server.dump().await;
    fake.serve(vec![tool("charge"), tool("refund")]);
    let changed = server.post(RESUME, &root(&server), &json!({ "retry_tool_call_ids": ["call_1"] })).await;
    let changed = changed.problem(409, "mcp-catalog-changed");
    assert_eq!(changed["detail"], "MCP tool catalog changed across resume (added: refund).");
    assert_eq!(server.dump().await, before);
}

async fn b072_to_b075_b087_a_missed_change_is_refused_or_recorded_before_the_model_is_asked(database: Database) {
    let (server, fake) = (Server::start_on(database).await, FakeMcp::start().await);
    let model = FakeModel::start(&[&["charge"]]).await;
    let mut body = charge_on(json!([{ "url": fake.url() }]));
    body["model"] = model.spec();
    held(&server, &fake, &body).await;
    fake.serve(vec![tool("charge"), tool("refund")]);
    // A leg without a caller finds the change and decides nothing; the result that a person wrote down is kept.
    let path = "/v1/admin/runs/r/reconciliations/1/call_0_0";
    let output = json!({ "resolution": "complete", "output": { "charged": 5 } });
    assert_eq!(server.post(path, &root(&server), &output).await.status.as_u16(), 200);
    let run = rested(&server).await;
    assert_eq!((&run["status"], &run["reason"]), (&json!("suspended"), &json!("mcp-catalog-changed")), "{run}");
    let before = server.dump().await;
    for body in [json!({}), json!({ "on_catalog_change": "stop" })] {
        let changed = server.post(RESUME, &server.alice(), &body).await.problem(409, "mcp-catalog-changed");
        assert_eq!(changed["detail"], "MCP tool catalog changed across resume (added: refund).");
    }
    assert_eq!(server.dump().await, before);
    assert_eq!(model.offered(), [["charge"]]);
    let run = resumed(&server, &json!({ "on_catalog_change": "accept" })).await;
    assert_eq!((&run["status"], &run["binding"]["revision"]), (&json!("completed"), &json!(2)), "{run}");
    let text =
        "MCP tool catalog changed across resume (added: refund); the run's resume binding now records the new catalog.";
    let warning = json!({ "type": "other", "setting": "mcp", "message": text, "code": "mcp-catalog-changed" });
    assert_eq!(run["warnings"], json!([warning]));
    assert_eq!(model.offered(), [&["charge"][..], &["charge", "refund"]]);
    let page = server.get("/v1/runs/r/events?limit=200", &server.alice()).await.json();
    let events = page["data"].as_array().unwrap();
    let told: Vec<&Value> = events.iter().filter(|event| event["part"]["type"] == "warning").collect();
    assert_eq!((told.len(), &told[0]["part"]["warning"]), (1, &warning));
    let at = |kind: &str| events.iter().rposition(|event| event["type"] == kind).unwrap();
    assert!(at("binding-revised") < at("turn-started"), "recorded before the model is asked");
    assert_eq!(fake.count("tools/call"), 1, "the stored result was used");
}

async fn b077_b080_b086_a_call_that_may_have_been_sent_blocks_every_change(database: Database) {
    let (server, fake) = (Server::start_on(database).await, FakeMcp::start().await);
    fake.serve(vec![tool("charge"), tool("put")]);
    let entries = json!([{ "url": fake.url(), "replay": { "put": "idempotent" } }]);
    // The repeatable one is out three times and lost, the plain one once.
    held(&server, &fake, &run_on("r", &[("put", json!({})), ("charge", json!({}))], entries)).await;
    let before = server.dump().await;
    fake.serve(vec![tool("charge"), tool("put"), tool("refund")]);
    for more in [json!({}), json!({ "retry_tool_call_ids": ["call_1", "call_2"] })] {
        let mut body = json!({ "on_catalog_change": "accept" });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let refused = server.post(RESUME, &root(&server), &body).await.problem(409, "mcp-catalog-changed-in-flight");
        assert_eq!((&refused["calls"], &refused["added"]), (&json!(["call_1", "call_2"]), &json!(["refund"])));
    }
    assert_eq!(server.dump().await, before);
    fake.serve(vec![tool("charge"), tool("put")]);
    let run = resumed(&server, &json!({ "retry_tool_call_ids": ["call_1", "call_2"] })).await;
    assert_eq!((&run["status"], &run["binding"]["revision"]), (&json!("completed"), &json!(1)), "{run}");
}

async fn b079_b085_b086_a_call_that_never_started_blocks_every_change(database: Database) {
    let (server, fake) = (Server::start_on(database).await, FakeMcp::start().await);
    let calls = [("charge", json!({ "amount": 5 })), ("charge", json!({ "amount": 6 }))];
    let mut body = run_on("r", &calls, json!([{ "url": fake.url() }]));
    body["limits"] = json!({ "max_parallel_tool_calls": 1 });
    held(&server, &fake, &body).await;
    fake.serve(vec![tool("charge"), tool("refund")]);
    let run = complete_first_call(&server).await;
    assert_eq!(run["reason"], "mcp-catalog-changed", "{run}");
    let before = server.dump().await;
    let accept = json!({ "on_catalog_change": "accept" });
    let refused = server.post(RESUME, &root(&server), &accept).await.problem(409, "mcp-catalog-changed-in-flight");
    assert_eq!(refused["calls"], json!(["call_2"]));
    assert_eq!((server.dump().await, fake.count("tools/call")), (before, 1));
    fake.serve(vec![tool("charge")]);
    let run = resumed(&server, &accept).await;
    assert_eq!((&run["status"], &run["binding"]["revision"]), (&json!("completed"), &json!(1)), "{run}");
    assert_eq!((&run["warnings"], fake.count("tools/call")), (&json!([]), 2));
}

async fn b023_b024_b091_a_declaration_names_tools_as_the_server_does(database: Database) {
    let (server, fake, other) = (Server::start_on(database).await, FakeMcp::start().await, FakeMcp::start().await);
    fake.serve(vec![tool("lookup_order"), tool("refund")]);
    other.serve(vec![tool("refund")]);
    let lost = std::sync::atomic::AtomicBool::new(false);
    fake.on_call(move |seen| {
        let is_repeat = name_of(seen) == "lookup_order" && lost.swap(true, std::sync::atomic::Ordering::SeqCst);
        if is_repeat { Reply::text("found") } else { Reply::Reset }
    });
    let model = FakeModel::start(&[&["orders_lookup_order"], &["orders_refund"]]).await;
    let replay = json!({ "lookup_order": "idempotent", "orders_refund": "idempotent" });
    let entries = json!([
        { "url": fake.url(), "namespace": "orders", "replay": replay },
        { "url": other.url(), "namespace": "billing" },
    ]);
    let mut body = run_on("r", &[], entries);
    body["model"] = model.spec();
    let run = server.settled(&body).await;
    let code = &run["warnings"][0]["code"];
    assert_eq!(
        (&run["reason"], code),
        (&json!("tool-reconciliation-required"), &json!("mcp-tool-not-served")),
        "{run}"
    );
    assert_eq!(model.offered()[0], ["orders_lookup_order", "orders_refund", "billing_refund"]);
    let calls = fake.seen_rpc("tools/call");
    let times = |tool: &str| calls.iter().filter(|seen| name_of(seen) == tool).count();
    assert_eq!((times("lookup_order"), times("refund")), (2, 1), "the prefixed name declares nothing");
    let receipts = server.get("/v1/runs/r/receipts", &server.alice()).await.json();
    let replays: Vec<&Value> = receipts["data"].as_array().unwrap().iter().map(|receipt| &receipt["replay"]).collect();
    assert_eq!(replays, [&json!("idempotent"), &Value::Null]);
}

async fn b027_what_is_declared_between_legs_relaxes_nothing_and_a_bumped_binding_id_is_refused(database: Database) {
    let (server, fake) = (Server::start_on(database).await, FakeMcp::start().await);
    let mut body = charge_on(json!([{ "url": fake.url() }]));
    body["binding_id"] = json!("2026-11");
    held(&server, &fake, &body).await;
    let before = server.dump().await;
    let relaxed = json!([{ "url": fake.url(), "replay": "idempotent", "side_effect_class": "read_only" }]);
    let same = json!({ "mcp": relaxed, "binding_id": "2026-11" });
    let said = server.post(RESUME, &root(&server), &same).await.json();
    assert_eq!(said["reason"], "tool-reconciliation-required", "not detected, and nothing is relaxed");
    let bumped = json!({ "mcp": relaxed, "binding_id": "2026-12", "retry_tool_call_ids": ["call_1"] });
    server.post(RESUME, &root(&server), &bumped).await.problem(409, "binding-changed");
    assert_eq!((server.dump().await, fake.count("tools/call")), (before, 1));
    // Allowed once by a person, it is lost again: still the class that it was made with.
    fake.on_call(|_| Reply::Reset);
    let run = resumed(&server, &json!({ "mcp": relaxed, "retry_tool_call_ids": ["call_1"] })).await;
    assert_eq!((&run["reason"], fake.count("tools/call")), (&json!("tool-reconciliation-required"), 2), "{run}");
    let receipt = server.get("/v1/runs/r/receipts/1/call_1", &server.alice()).await.json();
    assert_eq!((&receipt["side_effect_class"], &receipt["replay"]), (&json!("non_idempotent_write"), &Value::Null));
}

async fn the_class_that_annotations_give_is_taken_only_where_the_caller_believes_them(database: Database) {
    let (server, fake) = (Server::start_on(database).await, FakeMcp::start().await);
    let mut look = tool("look");
    look["annotations"] = json!({ "readOnlyHint": true });
    let mut put = tool("put");
    put["annotations"] = json!({ "idempotentHint": true, "destructiveHint": true });
    fake.serve(vec![look, put]);
    fake.on_call(|_| Reply::Reset);
    let class_of = async |id: &str, tool: &str, more: Value| {
        let mut entry = json!({ "url": fake.url() });
        entry.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let called = fake.count("tools/call");
        server.settled(&run_on(id, &[(tool, json!({}))], json!([entry]))).await;
        let receipt = server.get(&format!("/v1/runs/{id}/receipts/1/call_1"), &server.alice()).await.json();
        (receipt["side_effect_class"].as_str().unwrap().to_owned(), fake.count("tools/call") - called)
    };
    let trusted = || json!({ "trust_annotations": true });
    let plain = ("non_idempotent_write".to_owned(), 1);
    assert_eq!(class_of("plain", "look", json!({})).await, plain);
    assert_eq!(class_of("told-not-to", "look", json!({ "trust_annotations": false })).await, plain);
    assert_eq!(class_of("look", "look", trusted()).await, ("read_only".to_owned(), 3));
    assert_eq!(class_of("put", "put", trusted()).await, ("idempotent_write".to_owned(), 3));
    let declared = json!({ "trust_annotations": true, "side_effect_class": { "look": "irreversible_action" } });
    assert_eq!(class_of("declared", "look", declared).await, ("irreversible_action".to_owned(), 1));
}

async fn an_entry_that_takes_no_tool_any_more_is_a_change(database: Database) {
    let (server, fake) = (Server::start_on(database).await, FakeMcp::start().await);
    held(&server, &fake, &charge_on(json!([{ "url": fake.url() }]))).await;
    let before = server.dump().await;
    let none = json!({ "mcp": [{ "url": fake.url(), "tools": [] }], "retry_tool_call_ids": ["call_1"] });
    let changed = server.post(RESUME, &root(&server), &none).await.problem(409, "mcp-catalog-changed");
    assert_eq!(changed["removed"], json!(["charge"]));
    assert_eq!(server.dump().await, before);
}

async fn every_revision_can_be_read_and_none_shows_a_secret(database: Database) {
    let (server, fake) = (Server::start_on(database).await, Arc::new(FakeMcp::start().await));
    let auth = json!({ "scheme": "bearer", "secret": "orders_token" });
    let mut entry = json!({
        "url": format!("{}?key=canary-query", fake.url()),
        "auth": auth,
        "headers": { "x-team": "canary-header" },
    });
    let mut body = charge_on(json!([entry]));
    body["secrets"] = json!({ "orders_token": "canary-token" });
    held(&server, &fake, &body).await;
    entry["side_effect_class"] = json!({ "charge": "irreversible_action" });
    let run = resumed(&server, &json!({ "mcp": [entry], "retry_tool_call_ids": ["call_1"] })).await;
    assert_eq!(run["status"], "completed", "{run}");
    let said = server.get("/v1/runs/r/envelope", &server.alice()).await;
    assert!(!String::from_utf8_lossy(&said.body).contains("canary"), "{:?}", said.body);
    let history = said.json()["bindings"].clone();
    assert_eq!(history.as_array().unwrap().len(), 2);
    let (first, second) = (&history[0]["entries"][0], &history[1]["entries"][0]);
    for shown in [first, second] {
        assert_eq!((&shown["auth"], &shown["label"]), (&auth, &json!(fake.url())));
        assert_eq!(shown["headers"], json!(["x-team"]));
    }
    assert_ne!(first["tool_classes"], second["tool_classes"]);
    assert_eq!(second["tool_classes"], json!({ "charge": "irreversible_action" }));
    assert_eq!((&history[1]["added"], &history[1]["changed"]), (&json!([]), &json!([])));
    assert_eq!(history[1]["mcp"], history[0]["mcp"]);
    let other = server.token("other", "eve", "runs:read");
    server.get("/v1/runs/r/envelope", &other).await.problem(404, "not-found");
}
