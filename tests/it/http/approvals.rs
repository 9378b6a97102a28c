//! Approvals through the API: questions, votes, what is sent then, and what everybody reads of it.

use std::sync::Arc;

use serde_json::{Value, json};

use super::harness::{Answer, Server};
use super::inputs::until;
use crate::support::database::{Database, both_stores};
use crate::support::fake_mcp::{FakeMcp, Reply, tool};
use crate::support::world::run_on;

both_stores! {
    b203_b235_field_a093_a_gated_call_is_proposed_asked_about_started_and_settled_once_each,
    b235_field_a088_a_denied_call_has_a_result_that_says_who_and_why,
    b230_field_a003_a087_a089_calls_of_one_turn_are_decided_one_by_one_and_sent_after_the_last,
    b079_b230_a_sibling_that_nobody_asks_about_waits_too,
    b229_changed_arguments_are_checked_kept_and_sent,
    b222_field_a084_what_was_asked_and_decided_survives_a_restart,
    b223_field_a092_a_decision_is_kept_while_the_catalog_differs,
    b053_b078_b086_a_changed_catalog_refuses_votes_and_the_approval_stays_pending,
    field_a004_a091_of_many_voters_at_once_one_wins_and_the_others_are_told,
    a_run_that_is_cancelled_closes_its_approvals,
    the_inbox_lists_by_status_newest_first_and_knows_its_tenant,
    votes_that_cannot_count_are_refused_in_words,
    a_token_fits_the_approval_that_it_came_with_and_no_other,
    a_registered_server_and_a_run_add_up_what_they_want_approved,
}

/// A server, and an MCP server with tools to gate.
async fn world(database: Database) -> (Server, FakeMcp) {
    let fake = FakeMcp::start().await;
    let mut charge = tool("charge");
    charge["inputSchema"] =
        json!({ "type": "object", "properties": { "amount": { "type": "number", "maximum": 1000 } } });
    fake.serve(vec![charge, tool("look")]);
    fake.on_call(|seen| Reply::text(&format!("did {}", seen.body["params"]["arguments"])));
    (Server::start_on(database).await, fake)
}

pub(super) fn boss(server: &Server, actor: &str) -> String {
    server.token("acme", actor, "runs:read approvals:decide")
}

/// A run of these charges, each of which somebody must approve.
fn charges(fake: &FakeMcp, amounts: &[u32]) -> Value {
    let calls: Vec<_> = amounts.iter().map(|amount| ("charge", json!({ "amount": amount }))).collect();
    run_on("r", &calls, json!([{ "url": fake.url(), "require_approval": ["charge"] }]))
}

pub(super) async fn decide(server: &Server, actor: &str, call: &str, body: Value) -> Answer {
    server.post(&format!("/v1/runs/r/approvals/{call}"), &boss(server, actor), &body).await
}

pub(super) async fn rested(server: &Server) -> Value {
    until(server, "r", |run| !matches!(run["status"].as_str(), Some("queued" | "running"))).await
}

async fn kinds(server: &Server) -> Vec<String> {
    let page = server.get("/v1/runs/r/events?limit=200", &server.alice()).await.json();
    page["data"].as_array().unwrap().iter().map(|event| event["type"].as_str().unwrap().to_owned()).collect()
}

fn sent(fake: &FakeMcp) -> Vec<Value> {
    fake.seen_rpc("tools/call").iter().map(|seen| seen.body["params"]["arguments"].clone()).collect()
}

async fn b203_b235_field_a093_a_gated_call_is_proposed_asked_about_started_and_settled_once_each(database: Database) {
    let (server, fake) = world(database).await;
    let run = server.settled(&charges(&fake, &[5])).await;
    assert_eq!((&run["status"], &run["reason"]), (&json!("suspended"), &json!("approval-required")), "{run:#}");
    let pending = run["pending"]["approvals"].as_array().unwrap();
    let asked = &pending[0];
    assert_eq!(
        (pending.len(), &asked["status"], &asked["required"], &asked["votes"]),
        (1, &json!("pending"), &json!(1), &json!([]))
    );
    assert_eq!(
        (&asked["call_id"], &asked["input"], &asked["rules"]),
        (&json!("call_1"), &json!({"amount": 5}), &json!(["require_approval"]))
    );
    assert_eq!(asked["tool_digest"], run["binding"]["mcp"]["tools"]["charge"]);
    assert!(asked["token"].as_str().unwrap().starts_with("v1."));
    let id = asked["id"].as_str().unwrap();
    let links = run["links"].as_array().unwrap();
    let approve = links.iter().find(|link| link["rel"] == "approve").unwrap();
    assert_eq!(
        (&approve["href"], &approve["scope"]),
        (&json!(format!("/v1/approvals/{id}/decisions")), &json!("approvals:decide"))
    );
    assert_eq!(
        server.get("/v1/runs/r/receipts", &server.alice()).await.json()["data"],
        json!([]),
        "no receipt before it may be sent"
    );
    assert_eq!(
        (
            fake.count("tools/call"),
            server.get(&format!("/v1/approvals/{id}"), &server.alice()).await.json()["id"].as_str()
        ),
        (0, Some(id))
    );
    // The link that the run gave is followed.
    let voted = server.post(approve["href"].as_str().unwrap(), &boss(&server, "bob"), &approve["body"]).await;
    let approval = voted.json();
    assert_eq!(
        (voted.status.as_u16(), &approval["status"], &approval["votes"][0]["actor"]),
        (200, &json!("approved"), &json!("bob")),
        "{approval:#}"
    );
    assert!(approval["decided_at"].is_string() && approval.get("token").is_none());
    let run = rested(&server).await;
    assert_eq!((&run["status"], &run["pending"]["approvals"]), (&json!("completed"), &json!([])), "{run:#}");
    assert_eq!(sent(&fake), [json!({ "amount": 5 })]);
    let told = kinds(&server).await;
    let of_call: Vec<_> = told.iter().filter(|kind| kind.starts_with("approval") || kind.starts_with("tool")).collect();
    assert_eq!(of_call, ["approval-requested", "approval-decided", "tool-started", "tool-output"]);
    let receipts = server.get("/v1/runs/r/receipts", &server.alice()).await.json();
    assert_eq!(
        (&receipts["data"][0]["stage"], &receipts["data"][0]["decided_by"]),
        (&json!("completed"), &json!("bob"))
    );
    let audit = server.get("/v1/admin/audit?run_id=r", &server.token("acme", "root", "admin")).await.json();
    assert_eq!(
        (&audit["data"][0]["action"], &audit["data"][0]["actor"], &audit["data"][0]["subject"]),
        (&json!("approval.approve"), &json!("bob"), &json!(id))
    );
}

async fn b235_field_a088_a_denied_call_has_a_result_that_says_who_and_why(database: Database) {
    let (server, fake) = world(database).await;
    server.settled(&charges(&fake, &[5, 6])).await;
    decide(&server, "bob", "call_1", json!({ "decision": "deny", "comment": "too much" })).await;
    decide(&server, "bob", "call_2", json!({ "decision": "approve" })).await;
    let run = rested(&server).await;
    assert_eq!((&run["status"], sent(&fake)), (&json!("completed"), vec![json!({ "amount": 6 })]));
    let messages = server.get("/v1/runs/r/messages", &server.alice()).await.json();
    let results = messages["data"][2]["content"].as_array().unwrap();
    let said = results[0]["output"].as_str().unwrap();
    assert!(said.contains("bob") && said.contains("too much") && results[0]["is_error"] == true, "{said}");
    assert_eq!((results.len(), &results[1]["is_error"]), (2, &json!(false)));
    let page = server.get("/v1/runs/r/events?limit=200", &server.alice()).await.json();
    let events = page["data"].as_array().unwrap();
    let rejected = events.iter().find(|event| event["stage"] == "rejected").unwrap();
    assert_eq!((&rejected["rule"], &rejected["call_id"]), (&json!("require_approval"), &json!("call_1")));
    let receipts = server.get("/v1/runs/r/receipts", &server.alice()).await.json();
    assert_eq!(receipts["data"].as_array().unwrap().len(), 1, "a call that was never to be sent has no receipt");
    let list = server.get("/v1/runs/r/approvals", &server.alice()).await.json();
    let stood: Vec<_> =
        list["data"].as_array().unwrap().iter().map(|a| (&a["status"], &a["votes"][0]["comment"])).collect();
    assert!(stood.contains(&(&json!("denied"), &json!("too much"))), "{list:#}");
}

async fn b230_field_a003_a087_a089_calls_of_one_turn_are_decided_one_by_one_and_sent_after_the_last(
    database: Database,
) {
    let (server, fake) = world(database).await;
    let run = server.settled(&charges(&fake, &[1, 2, 3])).await;
    let ids: Vec<_> = run["pending"]["approvals"].as_array().unwrap().iter().map(|asked| asked["id"].clone()).collect();
    assert!(ids.len() == 3 && ids[0] != ids[1] && ids[1] != ids[2], "{run:#}");
    decide(&server, "bob", "call_3", json!({ "decision": "approve" })).await;
    let changed = json!({ "decision": "approve", "arguments": { "amount": 20.50 } });
    assert_eq!(decide(&server, "bob", "call_2", changed).await.json()["status"], "approved");
    let run = server.get("/v1/runs/r", &server.alice()).await.json();
    assert_eq!((&run["status"], run["pending"]["approvals"].as_array().unwrap().len()), (&json!("suspended"), 1));
    // A resume that decides nothing leaves it as it is; one that decides the rest sets it going.
    let writer = server.token("acme", "carol", "runs:read runs:write approvals:decide");
    assert_eq!(server.post("/v1/runs/r/resume", &writer, &json!({})).await.json()["revision"], run["revision"]);
    assert_eq!(fake.count("tools/call"), 0, "none is sent before the last is decided");
    let rest = json!({ "approvals": [{ "call_id": "call_1", "decision": "deny" }] });
    let scopeless = server.post("/v1/runs/r/resume", &server.alice(), &rest).await.problem(403, "forbidden");
    assert_eq!(scopeless["required_scope"], "approvals:decide");
    assert_eq!(server.post("/v1/runs/r/resume", &writer, &rest).await.status.as_u16(), 202);
    assert_eq!(rested(&server).await["status"], "completed");
    let mut got = sent(&fake);
    got.sort_by_key(ToString::to_string);
    assert_eq!(got, [json!({ "amount": 20.50 }), json!({ "amount": 3 })]);
    let again = server.post("/v1/runs/r/resume", &writer, &rest).await;
    assert_eq!(
        (again.status.as_u16(), fake.count("tools/call")),
        (200, 2),
        "a run that has ended is answered as it is"
    );
    decide(&server, "bob", "call_1", json!({ "decision": "approve" })).await.problem(409, "already-decided");
}

async fn b079_b230_a_sibling_that_nobody_asks_about_waits_too(database: Database) {
    let (server, fake) = world(database).await;
    let mcp = json!([{ "url": fake.url(), "require_approval": ["charge"] }]);
    let run = server.settled(&run_on("r", &[("look", json!({})), ("charge", json!({ "amount": 1 }))], mcp)).await;
    assert_eq!((&run["reason"], fake.count("tools/call")), (&json!("approval-required"), 0));
    let receipts = server.get("/v1/runs/r/receipts", &server.alice()).await.json();
    assert_eq!((receipts["data"].as_array().unwrap().len(), &receipts["data"][0]["stage"]), (1, &json!("pending")));
    decide(&server, "bob", "call_2", json!({ "decision": "approve" })).await;
    assert_eq!((&rested(&server).await["status"], fake.count("tools/call")), (&json!("completed"), 2));
}

async fn b229_changed_arguments_are_checked_kept_and_sent(database: Database) {
    let (server, fake) = world(database).await;
    server.settled(&charges(&fake, &[5])).await;
    let wrong = json!({ "decision": "approve", "arguments": { "amount": 1001 } });
    let problem = decide(&server, "bob", "call_1", wrong).await.problem(422, "validation-failed");
    assert_eq!(problem["errors"][0]["pointer"], "/arguments", "{problem:#}");
    let before = server.get("/v1/runs/r", &server.alice()).await.json();
    assert_eq!(before["pending"]["approvals"][0]["votes"], json!([]));
    let odd: Value =
        serde_json::from_str(r#"{ "decision": "approve", "arguments": { "amount": 117.63331139400017 } }"#).unwrap();
    let voted = decide(&server, "bob", "call_1", odd).await.json();
    assert_ne!(voted["input_digest"], before["pending"]["approvals"][0]["input_digest"]);
    assert_eq!(rested(&server).await["status"], "completed");
    assert_eq!(sent(&fake)[0].to_string(), r#"{"amount":117.63331139400017}"#, "digits are kept");
    let receipts = server.get("/v1/runs/r/receipts", &server.alice()).await.json();
    assert_eq!(receipts["data"][0]["input"], voted["input"], "what was sent is what is stored");
    let audit = server.get("/v1/admin/audit", &server.token("acme", "root", "admin")).await.json();
    assert_eq!(audit["data"][0]["detail"]["arguments_changed"], true);
}

async fn b222_field_a084_what_was_asked_and_decided_survives_a_restart(database: Database) {
    let (server, fake) = world(database).await;
    server.settled(&charges(&fake, &[1, 2, 3])).await;
    decide(&server, "bob", "call_2", json!({ "decision": "deny", "comment": "no" })).await;
    let before = server.get("/v1/runs/r/approvals", &server.alice()).await.json();
    let server = server.restart().await;
    let strip = |mut list: Value| {
        for asked in list["data"].as_array_mut().unwrap() {
            asked.as_object_mut().unwrap().remove("token");
        }
        list
    };
    let after = server.get("/v1/runs/r/approvals", &server.alice()).await.json();
    assert_eq!(strip(after), strip(before));
    decide(&server, "bob", "call_1", json!({ "decision": "approve" })).await;
    decide(&server, "bob", "call_3", json!({ "decision": "approve" })).await;
    assert_eq!(rested(&server).await["status"], "completed");
    assert_eq!(fake.count("tools/call"), 2);
}

async fn b223_field_a092_a_decision_is_kept_while_the_catalog_differs(database: Database) {
    let (server, fake) = world(database).await;
    let served = fake.seen_rpc("tools/list").len();
    server.settled(&charges(&fake, &[5])).await;
    assert!(fake.seen_rpc("tools/list").len() > served);
    fake.serve(vec![tool("charge"), tool("look"), tool("refund")]);
    assert_eq!(decide(&server, "bob", "call_1", json!({ "decision": "approve" })).await.status.as_u16(), 200);
    let run = rested(&server).await;
    assert_eq!((&run["reason"], fake.count("tools/call")), (&json!("mcp-catalog-changed"), 0), "{run:#}");
    let accept = server.post("/v1/runs/r/resume", &server.alice(), &json!({ "on_catalog_change": "accept" })).await;
    accept.problem(409, "mcp-catalog-changed-in-flight");
    let mut charge = tool("charge");
    charge["inputSchema"] =
        json!({ "type": "object", "properties": { "amount": { "type": "number", "maximum": 1000 } } });
    fake.serve(vec![charge, tool("look")]);
    assert_eq!(server.post("/v1/runs/r/resume", &server.alice(), &json!({})).await.status.as_u16(), 202);
    assert_eq!(
        (&rested(&server).await["status"], sent(&fake)),
        (&json!("completed"), vec![json!({ "amount": 5 })]),
        "nobody is asked again"
    );
}

async fn b053_b078_b086_a_changed_catalog_refuses_votes_and_the_approval_stays_pending(database: Database) {
    let (server, fake) = world(database).await;
    let before = server.settled(&charges(&fake, &[5])).await;
    fake.serve(vec![tool("look")]);
    let writer = server.token("acme", "carol", "runs:read runs:write approvals:decide");
    let votes = json!([{ "call_id": "call_1", "decision": "approve" }]);
    for (policy, code) in [("stop", "mcp-catalog-changed"), ("accept", "mcp-catalog-changed-in-flight")] {
        let body = json!({ "approvals": votes, "on_catalog_change": policy });
        let problem = server.post("/v1/runs/r/resume", &writer, &body).await.problem(409, code);
        assert!(
            problem["detail"].as_str().unwrap().starts_with("MCP tool catalog changed across resume (removed: charge)"),
            "{problem:#}"
        );
    }
    let after = server.get("/v1/runs/r", &server.alice()).await.json();
    assert_eq!(
        (&after["revision"], &after["pending"]["approvals"][0]["status"]),
        (&before["revision"], &json!("pending"))
    );
    assert_eq!(after["pending"]["approvals"][0]["votes"], json!([]));
}

async fn field_a004_a091_of_many_voters_at_once_one_wins_and_the_others_are_told(database: Database) {
    let (server, fake) = world(database).await;
    server.settled(&charges(&fake, &[5])).await;
    let server = Arc::new(server);
    let votes = (0..12).map(|at| {
        let server = Arc::clone(&server);
        let verdict = if at % 2 == 0 { "approve" } else { "deny" };
        async move { decide(&server, &format!("boss{at}"), "call_1", json!({ "decision": verdict })).await }
    });
    let answers = futures::future::join_all(votes).await;
    let (won, lost): (Vec<_>, Vec<_>) = answers.iter().partition(|answer| answer.status.as_u16() == 200);
    assert_eq!(won.len(), 1);
    let winner = won[0].json();
    for answer in lost {
        let problem = answer.problem(409, "already-decided");
        assert_eq!(
            (&problem["approval"]["status"], &problem["approval"]["votes"]),
            (&winner["status"], &winner["votes"])
        );
    }
    assert_eq!(rested(&server).await["status"], "completed");
    assert_eq!(fake.count("tools/call"), usize::from(winner["status"] == "approved"));
}

async fn a_run_that_is_cancelled_closes_its_approvals(database: Database) {
    let (server, fake) = world(database).await;
    server.settled(&charges(&fake, &[5])).await;
    server.post("/v1/runs/r/cancel", &server.alice(), &json!({})).await;
    let run = rested(&server).await;
    assert_eq!((&run["status"], &run["pending"]["approvals"]), (&json!("cancelled"), &json!([])));
    let problem =
        decide(&server, "bob", "call_1", json!({ "decision": "approve" })).await.problem(409, "already-decided");
    assert_eq!(problem["approval"]["status"], "cancelled");
    assert_eq!((fake.count("tools/call"), kinds(&server).await.last().unwrap().as_str()), (0, "result"));
    assert!(
        server.get("/v1/approvals?status=pending", &server.alice()).await.json()["data"].as_array().unwrap().is_empty()
    );
}

async fn the_inbox_lists_by_status_newest_first_and_knows_its_tenant(database: Database) {
    let (server, fake) = world(database).await;
    server.settled(&charges(&fake, &[1, 2, 3])).await;
    decide(&server, "bob", "call_2", json!({ "decision": "deny" })).await;
    let list = |query: &str| {
        let query = format!("/v1/approvals?{query}");
        let server = &server;
        async move { server.get(&query, &server.alice()).await.json() }
    };
    let first = list("status=pending&limit=1").await;
    let second = list(&format!("status=pending&limit=1&cursor={}", first["next_cursor"].as_str().unwrap())).await;
    assert_ne!(first["data"][0]["id"], second["data"][0]["id"]);
    assert_eq!(second["next_cursor"], Value::Null);
    assert_eq!(list("status=denied").await["data"][0]["call_id"], "call_2");
    assert_eq!(list("").await["data"].as_array().unwrap().len(), 3);
    server.get("/v1/approvals?status=open", &server.alice()).await.problem(422, "validation-failed");
    let stranger = server.token("globex", "eve", "runs:read approvals:decide");
    assert_eq!(server.get("/v1/approvals", &stranger).await.json()["data"], json!([]));
    let id = first["data"][0]["id"].as_str().unwrap();
    server.get(&format!("/v1/approvals/{id}"), &stranger).await.problem(404, "not-found");
    let vote = json!({ "decision": "approve" });
    server.post(&format!("/v1/approvals/{id}/decisions"), &stranger, &vote).await.problem(404, "not-found");
}

async fn votes_that_cannot_count_are_refused_in_words(database: Database) {
    let (server, fake) = world(database).await;
    server.settled(&charges(&fake, &[5])).await;
    decide(&server, "bob", "call_9", json!({ "decision": "approve" })).await.problem(404, "not-found");
    let writer = server.token("acme", "carol", "runs:read runs:write approvals:decide");
    let unknown = json!({ "approvals": [{ "call_id": "call_9", "decision": "approve" }] });
    server.post("/v1/runs/r/resume", &writer, &unknown).await.problem(409, "no-such-approval");
    let twice = json!({ "approvals": [{ "call_id": "call_1", "decision": "approve" }, { "call_id": "call_1", "decision": "deny" }] });
    let problem = server.post("/v1/runs/r/resume", &writer, &twice).await.problem(409, "already-voted");
    assert_eq!(problem["errors"][0]["pointer"], "/approvals/1/call_id", "{problem:#}");
    decide(&server, "bob", "call_1", json!({ "decision": "maybe" })).await.problem(422, "validation-failed");
    let odd = json!({ "decision": "deny", "arguments": {}, "comment": "x".repeat(4001) });
    let problem = decide(&server, "bob", "call_1", odd).await.problem(422, "validation-failed");
    assert!(!problem["errors"].as_array().unwrap().is_empty(), "{problem:#}");
    let vote = json!({ "decision": "approve" });
    server.post("/v1/runs/r/approvals/call_1", &server.alice(), &vote).await.problem(403, "forbidden");
    assert_eq!(server.get("/v1/runs/r", &server.alice()).await.json()["pending"]["approvals"][0]["votes"], json!([]));
}

async fn a_token_fits_the_approval_that_it_came_with_and_no_other(database: Database) {
    let (server, fake) = world(database).await;
    let run = server.settled(&charges(&fake, &[1, 2])).await;
    let tokens: Vec<_> = run["pending"]["approvals"]
        .as_array()
        .unwrap()
        .iter()
        .map(|asked| asked["token"].as_str().unwrap().to_owned())
        .collect();
    let with = |token: &str| json!({ "decision": "approve", "token": token });
    for wrong in [tokens[1].clone(), format!("{}x", tokens[0]), "v1.e30.e30".to_owned(), "nonsense".to_owned()] {
        decide(&server, "bob", "call_1", with(&wrong)).await.problem(403, "approval-token-refused");
    }
    assert_eq!(decide(&server, "bob", "call_1", with(&tokens[0])).await.json()["status"], "approved");
    let fresh = server.get("/v1/runs/r", &server.alice()).await.json();
    let fresh = fresh["pending"]["approvals"][0]["token"].as_str().unwrap();
    assert_eq!(decide(&server, "bob", "call_2", with(fresh)).await.json()["status"], "approved");
    assert_eq!(rested(&server).await["status"], "completed");
}

async fn a_registered_server_and_a_run_add_up_what_they_want_approved(database: Database) {
    let (server, fake) = world(database).await;
    let writer = server.token("acme", "root", "admin");
    let put = |body: Value| {
        let request = super::harness::request(
            http::Method::PUT,
            "/v1/mcp-servers/shop",
            &writer,
            &[],
            axum::body::Body::from(body.to_string()),
        );
        server.send(request)
    };
    assert!(put(json!({ "url": fake.url(), "require_approval": ["charge"] })).await.status.is_success());
    let calls = [("charge", json!({ "amount": 1 })), ("look", json!({}))];
    let run = server.settled(&run_on("r", &calls, json!([{ "server": "shop", "require_approval": ["look"] }]))).await;
    assert_eq!(run["pending"]["approvals"].as_array().unwrap().len(), 2, "{run:#}");
    let run = server.settled(&run_on("s", &calls, json!([{ "server": "shop", "require_approval": false }]))).await;
    assert_eq!(run["pending"]["approvals"].as_array().unwrap().len(), 1, "nothing is relaxed: {run:#}");
}
