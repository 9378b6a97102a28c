//! Calls whose outcome nobody knows: the list, the decisions, the audit, and that nobody else is held up.

use std::sync::Arc;

use countersign::run::fact::{Reconciliation, Resolution};
use countersign::run::ids::{Actor, CallKey, RunId, TenantId};
use countersign::store::{AuditRow, Left};
use http::Method;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use super::harness::{SOON, Server, request, says};
use crate::support::database::{Database, both_stores};
use crate::support::fake_mcp::{FakeMcp, Reply, tool};
use crate::support::world::run_on;

both_stores! {
    a_call_is_completed_failed_or_retried_by_name_and_the_last_decision_sets_the_run_going,
    b216_what_became_of_the_calls_of_a_cancelled_run_is_written_down_and_nothing_else_changes,
    a_decision_reaches_a_run_that_a_node_drives_and_is_answered_when_it_is_applied,
    a_decision_that_an_owner_let_go_without_reading_comes_before_every_later_one,
    of_many_deciders_at_once_one_wins_and_the_others_are_told,
    an_undecided_call_holds_up_neither_other_runs_nor_its_settled_siblings,
    receipts_are_found_across_runs_by_stage_newest_first,
    a_call_that_is_not_undecided_and_a_body_that_means_nothing_are_refused,
}

/// A server, and an MCP server whose `charge` is never answered.
async fn lossy(database: Database) -> (Server, FakeMcp) {
    let fake = FakeMcp::start().await;
    fake.on_list(|_| Reply::Result(json!({ "tools": [tool("charge"), tool("look")] })));
    fake.on_call(|seen| if seen.body["params"]["name"] == "charge" { Reply::Reset } else { Reply::text("seen") });
    (Server::start_on(database).await, fake)
}

fn admin(server: &Server) -> String {
    server.token("acme", "root", "admin")
}

fn charges(id: &str, fake: &FakeMcp, times: usize) -> Value {
    let calls = vec![("charge", json!({ "amount": 5 })); times];
    run_on(id, &calls, json!([{ "url": fake.url() }]))
}

async fn rested(server: &Server, id: &str) -> Value {
    let deadline = Instant::now() + SOON;
    loop {
        let run = server.get(&format!("/v1/runs/{id}"), &server.alice()).await.json();
        if !matches!(run["status"].as_str(), Some("queued" | "running")) {
            return run;
        }
        assert!(Instant::now() < deadline, "{run}");
        tokio::task::yield_now().await;
    }
}

fn path(run: &str, call: &str) -> String {
    format!("/v1/admin/runs/{run}/reconciliations/1/{call}")
}

async fn a_call_is_completed_failed_or_retried_by_name_and_the_last_decision_sets_the_run_going(database: Database) {
    let (server, fake) = lossy(database).await;
    let root = admin(&server);
    let run = server.settled(&charges("r", &fake, 3)).await;
    assert_eq!((&run["status"], &run["reason"]), (&"suspended".into(), &"tool-reconciliation-required".into()));
    let listed = server.get("/v1/admin/reconciliations", &root).await.json();
    let listed = listed["data"].as_array().unwrap();
    assert_eq!(listed.iter().map(|call| call["call_id"].as_str().unwrap()).collect::<Vec<_>>().len(), 3);
    for call in listed {
        assert_eq!(
            (&call["run_id"], &call["cause"], &call["attempt"]),
            (&"r".into(), &"lost-response".into(), &1.into())
        );
        let keys =
            fake.seen_rpc("tools/call").iter().map(|seen| seen.headers["idempotency-key"].clone()).collect::<Vec<_>>();
        assert!(keys.contains(&call["idempotency_key"].as_str().unwrap().to_owned()), "what to look for at the server");
    }
    let completed = r#"{ "resolution": "complete", "output": {"charged":5.10}, "note": "seen in the console" }"#;
    let completed: Value = serde_json::from_str(completed).unwrap();
    let after = server.post(&path("r", "call_1"), &root, &completed).await;
    assert_eq!((after.status.as_u16(), &after.json()["status"]), (200, &"suspended".into()), "{:?}", after.body);
    assert_eq!(after.json()["pending"]["reconciliations"].as_array().unwrap().len(), 2);
    let failed = json!({ "resolution": "fail", "error": { "message": "no charge was found" } });
    assert_eq!(server.post(&path("r", "call_2"), &root, &failed).await.json()["status"], "suspended");
    fake.on_call(|_| Reply::text("charged"));
    let last = server.post(&path("r", "call_3"), &root, &json!({ "resolution": "retry" })).await;
    assert_eq!(last.status.as_u16(), 200);
    let run = rested(&server, "r").await;
    assert_eq!((&run["status"], &run["usage"]["model_requests"]), (&"completed".into(), &2.into()), "{run}");
    assert_eq!(fake.count("tools/call"), 4, "one attempt more, for the one that was allowed it");
    let receipts = server.get("/v1/runs/r/receipts", &server.alice()).await.json();
    let stood: Vec<_> = receipts["data"].as_array().unwrap().iter().map(|r| (&r["stage"], &r["decided_by"])).collect();
    let by = json!("root");
    assert_eq!(stood, [(&"completed".into(), &by), (&"failed".into(), &by), (&"completed".into(), &by)]);
    assert_eq!(receipts["data"][0]["output"].to_string(), r#"{"charged":5.10}"#, "digits are kept");
    let told = server.get("/v1/runs/r/messages", &server.alice()).await.json();
    let told: Vec<_> = told["data"][2]["content"].as_array().unwrap().iter().map(|r| &r["output"]).collect();
    assert_eq!(told, [&completed["output"], &json!("no charge was found"), &json!("charged")]);
    let audit = server.get("/v1/admin/audit?run_id=r", &root).await.json();
    let rows = audit["data"].as_array().unwrap();
    let actions: Vec<_> = rows.iter().map(|row| row["action"].as_str().unwrap()).collect();
    assert_eq!(actions, ["reconciliation.retry", "reconciliation.fail", "reconciliation.complete"], "newest first");
    assert_eq!((&rows[2]["actor"], &rows[2]["detail"]["note"]), (&"root".into(), &"seen in the console".into()));
    assert_eq!(server.get("/v1/admin/reconciliations", &root).await.json()["data"], json!([]));
}

async fn b216_what_became_of_the_calls_of_a_cancelled_run_is_written_down_and_nothing_else_changes(database: Database) {
    let (server, fake) = lossy(database).await;
    let root = admin(&server);
    server.settled(&charges("r", &fake, 2)).await;
    assert_eq!(server.post("/v1/runs/r/cancel", &server.alice(), &json!({})).await.status.as_u16(), 202);
    let run = rested(&server, "r").await;
    assert_eq!(run["status"], "cancelled");
    assert_eq!(run["pending"]["reconciliations"].as_array().unwrap().len(), 2, "undecided receipts stay visible");
    let events = server.get("/v1/runs/r/events?limit=200", &server.alice()).await.json();
    server.post(&path("r", "call_1"), &root, &json!({ "resolution": "retry" })).await.problem(409, "run-terminal");
    let completed = json!({ "resolution": "complete", "output": "charged by hand" });
    assert_eq!(server.post(&path("r", "call_1"), &root, &completed).await.status.as_u16(), 200);
    assert_eq!(server.post(&path("r", "call_2"), &root, &json!({ "resolution": "fail" })).await.status.as_u16(), 200);
    let after = server.get("/v1/runs/r", &server.alice()).await.json();
    for same in ["status", "output", "error", "usage", "finished_at"] {
        assert_eq!(after[same], run[same], "{same}");
    }
    assert_eq!(after["pending"]["reconciliations"], json!([]));
    assert_eq!(server.get("/v1/runs/r/events?limit=200", &server.alice()).await.json(), events);
    let receipts = server.get("/v1/runs/r/receipts", &server.alice()).await.json();
    let stages: Vec<_> = receipts["data"].as_array().unwrap().iter().map(|receipt| &receipt["stage"]).collect();
    assert_eq!(stages, ["completed", "failed"]);
    assert_eq!(fake.count("tools/call"), 2);
    assert_eq!(server.get("/v1/admin/audit", &root).await.json()["data"].as_array().unwrap().len(), 2);
}

async fn a_decision_reaches_a_run_that_a_node_drives_and_is_answered_when_it_is_applied(database: Database) {
    let (server, fake) = lossy(database).await;
    let answer = Arc::new(Notify::new());
    let gate = Arc::clone(&answer);
    fake.on_call(move |seen| match seen.body["params"]["name"].as_str() {
        Some("charge") => Reply::Reset,
        _ => Reply::When(Arc::clone(&gate), Box::new(Reply::text("seen"))),
    });
    let calls = [("charge", json!({})), ("look", json!({}))];
    server.post("/v1/runs", &server.alice(), &run_on("r", &calls, json!([{ "url": fake.url() }]))).await;
    let deadline = Instant::now() + SOON;
    loop {
        let run = server.get("/v1/runs/r", &server.alice()).await.json();
        if run["pending"]["reconciliations"].as_array().unwrap().len() == 1 {
            assert_eq!(run["status"], "running", "its sibling is still out");
            break;
        }
        assert!(Instant::now() < deadline, "{run}");
        tokio::task::yield_now().await;
    }
    let completed = json!({ "resolution": "complete", "output": "charged" });
    let root = admin(&server);
    let decided = timeout(SOON, server.post(&path("r", "call_1"), &root, &completed)).await.unwrap();
    assert_eq!(decided.status.as_u16(), 200, "{:?}", decided.body);
    assert_eq!(decided.json()["pending"]["reconciliations"], json!([]), "applied when it is answered");
    assert_eq!(decided.json()["status"], "running");
    server.post(&path("r", "call_1"), &root, &completed).await.problem(409, "not-reconcilable");
    answer.notify_one();
    assert_eq!(rested(&server, "r").await["status"], "completed");
    let audit = server.get("/v1/admin/audit", &root).await.json();
    assert_eq!(audit["data"].as_array().unwrap().len(), 1, "one decision, one row: {audit}");
}

async fn a_decision_that_an_owner_let_go_without_reading_comes_before_every_later_one(database: Database) {
    let (server, fake) = lossy(database).await;
    server.settled(&charges("r", &fake, 2)).await;
    let acme = TenantId::parse("acme").unwrap();
    let view = server.app.store.run_fetch(&acme, &RunId::parse("r").unwrap()).await.unwrap().unwrap();
    // As if a node owned the run, a decision was left with it, and it let go, and whoever left it died.
    server.execute("UPDATE runs SET owner = uid").await;
    let left = Reconciliation {
        actor: Actor::parse("ann").unwrap(),
        key: CallKey { turn: 1, position: 0 },
        resolution: Resolution::Complete { output: json!("charged by hand") },
    };
    let audit = AuditRow {
        id: uuid::Uuid::new_v4(),
        at: view.head.updated_at,
        actor: left.actor.clone(),
        action: "reconciliation.complete".to_owned(),
        subject: "r/1/call_1".to_owned(),
        run_id: Some(view.id.clone()),
        detail: json!({}),
    };
    let since = view.undecided[0].since;
    let kept = server.app.store.decision_leave(&acme, view.uid, &left, since, &audit).await.unwrap();
    assert_eq!(kept, Left::Kept);
    server.execute("UPDATE runs SET owner = NULL").await;
    let root = admin(&server);
    let later = server.post(&path("r", "call_1"), &root, &json!({ "resolution": "fail" })).await;
    later.problem(409, "not-reconcilable");
    let receipt = server.get("/v1/runs/r/receipts/1/call_1", &root).await.json();
    assert_eq!((&receipt["stage"], &receipt["decided_by"]), (&json!("completed"), &json!("ann")), "the first counts");
    let last = server.post(&path("r", "call_2"), &root, &json!({ "resolution": "fail" })).await;
    assert_eq!(last.status.as_u16(), 200, "{:?}", last.body);
    assert_eq!(rested(&server, "r").await["status"], "completed");
    let audit = server.get("/v1/admin/audit", &root).await.json();
    let by: Vec<_> = audit["data"].as_array().unwrap().iter().map(|row| row["actor"].as_str().unwrap()).collect();
    assert_eq!(by, ["root", "ann"], "one row a decision that counts");
    assert_eq!(fake.count("tools/call"), 2);
}

async fn of_many_deciders_at_once_one_wins_and_the_others_are_told(database: Database) {
    let (server, fake) = lossy(database).await;
    server.settled(&charges("r", &fake, 1)).await;
    fake.on_call(|_| Reply::text("charged"));
    let bodies = [
        json!({ "resolution": "retry" }),
        json!({ "resolution": "complete", "output": "charged" }),
        json!({ "resolution": "fail" }),
    ];
    let tokens: Vec<String> = (0..12).map(|n| server.token("acme", &format!("root-{n}"), "admin")).collect();
    let at = path("r", "call_1");
    let asked = tokens.iter().zip(bodies.iter().cycle()).map(|(token, body)| server.post(&at, token, body));
    let answers = futures::future::join_all(asked).await;
    let won = answers.iter().filter(|answer| answer.status.as_u16() == 200).count();
    assert_eq!(won, 1, "{answers:?}");
    for lost in answers.iter().filter(|answer| answer.status.as_u16() != 200) {
        let problem = lost.problem(409, "not-reconcilable");
        assert!(!problem["links"].as_array().unwrap().is_empty(), "it names where to look");
    }
    assert_eq!(rested(&server, "r").await["status"], "completed");
    assert!(fake.count("tools/call") <= 2);
    assert_eq!(server.get("/v1/admin/audit", &admin(&server)).await.json()["data"].as_array().unwrap().len(), 1);
}

async fn an_undecided_call_holds_up_neither_other_runs_nor_its_settled_siblings(database: Database) {
    let (server, fake) = lossy(database).await;
    let calls = [("charge", json!({})), ("look", json!({})), ("no_such_tool", json!({}))];
    let entry = json!([{ "url": fake.url(), "side_effect_class": { "look": "read_only" } }]);
    let run = server.settled(&run_on("r", &calls, entry.clone())).await;
    assert_eq!(run["reason"], "tool-reconciliation-required");
    let receipts = server.get("/v1/runs/r/receipts", &server.alice()).await.json();
    let stages: Vec<_> = receipts["data"].as_array().unwrap().iter().map(|receipt| &receipt["stage"]).collect();
    assert_eq!(stages, ["indeterminate", "completed"], "the sibling is settled; a rejected call has no receipt");
    let other = server.settled(&run_on("other", &[("look", json!({}))], entry)).await;
    assert_eq!(other["status"], "completed");
}

async fn receipts_are_found_across_runs_by_stage_newest_first(database: Database) {
    let (server, fake) = lossy(database).await;
    server.settled(&charges("lost", &fake, 1)).await;
    let mut body = run_on("seen", &[("look", json!({})), ("look", json!({}))], json!([{ "url": fake.url() }]));
    body["metadata"] = json!({ "order": "7" });
    server.settled(&body).await;
    let find = |query: &'static str| {
        let server = &server;
        async move {
            let page = server.get(&format!("/v1/receipts{query}"), &server.alice()).await.json();
            let rows = page["data"].as_array().unwrap().clone();
            let names =
                rows.iter().map(|r| format!("{}/{}", r["run_id"].as_str().unwrap(), r["call_id"].as_str().unwrap()));
            (names.collect::<Vec<_>>(), page["next_cursor"].as_str().map(str::to_owned))
        }
    };
    let all = ["seen/call_2", "seen/call_1", "lost/call_1"];
    assert_eq!(find("").await.0, all);
    assert_eq!(find("?stage=indeterminate").await.0, ["lost/call_1"]);
    assert_eq!(find("?stage=completed&metadata[order]=7").await.0, ["seen/call_2", "seen/call_1"]);
    assert_eq!(find("?status=suspended&reason=tool-reconciliation-required").await.0, ["lost/call_1"]);
    assert_eq!(find("?created_before=2020-01-01T00:00:00Z").await.0, [""; 0]);
    let (first, cursor) = find("?limit=2").await;
    let rest = server.get(&format!("/v1/receipts?limit=2&cursor={}", cursor.unwrap()), &server.alice()).await.json();
    assert_eq!(
        (first.as_slice(), rest["data"].as_array().unwrap().len()),
        (&["seen/call_2".to_owned(), "seen/call_1".to_owned()][..], 1)
    );
    server.get("/v1/receipts?stage=odd", &server.alice()).await.problem(422, "validation-failed");
    let stranger = server.token("umbrella", "eve", "admin");
    for list in ["/v1/receipts", "/v1/admin/reconciliations", "/v1/admin/audit"] {
        assert_eq!(server.get(list, &stranger).await.json()["data"], json!([]), "{list}");
    }
}

async fn a_call_that_is_not_undecided_and_a_body_that_means_nothing_are_refused(database: Database) {
    let (server, fake) = lossy(database).await;
    let root = admin(&server);
    let entry = json!([{ "url": fake.url() }]);
    server.settled(&run_on("seen", &[("look", json!({}))], entry)).await;
    server.settled(&charges("lost", &fake, 1)).await;
    server
        .settled(&{
            let mut body = says("hi");
            body["id"] = "quiet".into();
            body
        })
        .await;
    let retry = json!({ "resolution": "retry" });
    server.post(&path("seen", "call_1"), &root, &retry).await.problem(409, "not-reconcilable");
    for missing in ["seen/reconciliations/2/call_1", "seen/reconciliations/x/call_1", "quiet/reconciliations/1/call_1"]
    {
        server.post(&format!("/v1/admin/runs/{missing}"), &root, &retry).await.problem(404, "not-found");
    }
    let bad = [
        json!({}),
        json!({ "resolution": "perhaps" }),
        json!({ "resolution": "complete" }),
        json!({ "resolution": "retry", "output": 1 }),
        json!({ "resolution": "fail", "output": 1 }),
        json!({ "resolution": "complete", "output": 1, "error": { "message": "x" } }),
        json!({ "resolution": "fail", "error": { "message": "" } }),
        json!({ "resolution": "retry", "note": "x".repeat(4001) }),
        json!({ "resolution": "retry", "why": "typo" }),
    ];
    for body in bad {
        let problem = server.post(&path("lost", "call_1"), &root, &body).await.problem(422, "validation-failed");
        assert!(!problem["errors"].as_array().unwrap().is_empty(), "{body}");
    }
    // A known result may well be null.
    let null =
        request(Method::POST, &path("lost", "call_1"), &root, &[], r#"{"resolution":"complete","output":null}"#.into());
    assert_eq!(server.send(null).await.status.as_u16(), 200);
    assert_eq!(rested(&server, "lost").await["status"], "completed");
}
