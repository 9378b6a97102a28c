//! A worker's call from its offer to its result.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

use super::{
    EXACT, answer, asking, claim, one_call, options, path, payment, pays, problem, receipt, results, run, server,
    staged, until, with_lease,
};
use crate::support::database::{Database, both_stores};
use crate::support::fake_mcp::{FakeMcp, Reply};
use crate::support::product::Product;

both_stores! {
    b236_b241_a_worker_takes_a_call_and_its_result_is_the_runs,
    b241_of_two_results_of_one_claim_one_is_kept_and_the_other_is_told_so,
    b105_b238_a_result_is_kept_as_it_came_and_an_error_is_a_failed_call,
    b104_a_result_is_checked_only_where_a_schema_was_declared,
    b201_a_worker_and_a_server_are_asked_at_once_and_answer_in_call_order,
    b202_no_server_is_contacted_for_tools_that_workers_carry_out,
    b088_a_declared_tool_wins_over_a_servers_of_its_name,
    b206_invalid_arguments_never_reach_a_worker,
    b208_b213_a_second_turn_has_its_own_calls_and_keys,
    b236_fifty_workers_that_claim_at_once_get_every_call_once,
    b240_a_worker_gets_no_more_than_it_can_do_at_once,
    b240_a_call_behind_a_full_queue_has_failed,
    b237_b238_a_call_that_nobody_serves_in_that_version_has_failed_and_was_never_sent,
    b237_b239_one_tenants_late_calls_keep_nobody_elses_waiting,
    b242_a_worker_that_the_operator_does_not_permit_gets_nothing_and_the_call_has_failed,
    a_worker_gets_no_more_at_once_than_a_page_of_arguments,
    a_worker_may_put_a_call_back,
    tools_are_checked_when_the_run_is_created,
    another_tenants_worker_finds_nothing,
}

async fn b236_b241_a_worker_takes_a_call_and_its_result_is_the_runs(database: Database) {
    let server = server(&database).await;
    // Asked before there is a call, and before anybody serves the tool.
    let body = pays("p", json!({}));
    let (call, _) = tokio::join!(one_call(&server, "w1"), server.post("/v1/runs", &body, 201));
    assert_eq!((&call["run_id"], &call["turn"], &call["call_id"]), (&json!("p"), &json!(1), &json!("call_1")));
    assert_eq!((&call["tool"], &call["version"]), (&json!("payments.process"), &json!("1.0.0")));
    assert_eq!((call["input"].to_string().as_str(), &call["attempt"]), (EXACT, &json!(1)));
    let known = receipt(&server, "p", "call_1").await;
    assert_eq!((&known["stage"], &known["backend"]), (&json!("executing"), &json!("worker")));
    assert_eq!(known["idempotency_key"], call["idempotency_key"]);
    assert_eq!(until(&server, "p", |_| true).await["status"], "running");
    let beaten = server.post(&path(&call, "heartbeat"), &with_lease(&call, json!({})), 200).await;
    assert_eq!(beaten["cancelled"], false);
    // The receipt has it when it is acknowledged; the same again is acknowledged again.
    for _ in 0..2 {
        let (status, said) = answer(&server, &call, json!({ "output": { "paid": 5 } })).await;
        assert_eq!(status, 200, "{said}");
        assert_eq!(receipt(&server, "p", "call_1").await["output"], json!({ "paid": 5 }));
    }
    let (status, said) = answer(&server, &call, json!({ "output": { "paid": 6 } })).await;
    assert_eq!((status, &said["code"]), (409, &json!("result-not-awaited")), "another result came too late");
    let run = server.rested("p").await;
    assert_eq!((&run["status"], &run["output"]["text"]), (&json!("completed"), &json!("Done.")), "{run}");
    assert_eq!(results(&server, "p").await[0]["output"], json!({ "paid": 5 }));
    problem(&server, &path(&call, "heartbeat"), &with_lease(&call, json!({})), 409, "lease-lost").await;
    problem(&server, &path(&call, "result"), &json!({ "lease": "x", "output": 1 }), 409, "lease-lost").await;
    problem(&server, "/v1/worker-calls/x/result", &json!({ "lease": "x", "output": 1 }), 404, "not-found").await;
    let kinds = server.event_kinds("p").await;
    assert_eq!(kinds.iter().filter(|kind| *kind == "tool-started" || *kind == "tool-output").count(), 2, "{kinds:?}");
}

async fn b241_of_two_results_of_one_claim_one_is_kept_and_the_other_is_told_so(database: Database) {
    let (server, fake) = (server(&database).await, FakeMcp::start().await);
    let answers = Arc::new(Notify::new());
    let held = Arc::clone(&answers);
    fake.on_call(move |_| Reply::When(Arc::clone(&held), Box::new(Reply::text("charged"))));
    for round in 0..10 {
        let id = format!("r{round}");
        // In every other round a node drives the run meanwhile, and reads what was left for it.
        let is_driven = round % 2 == 1;
        let mut body = pays(&id, json!({}));
        if is_driven {
            let calls = [("process_payment", json!({ "amount": 1 })), ("charge", json!({ "amount": 2 }))];
            body = run(&id, &calls, json!([payment(json!({}))]));
            body["mcp"] = json!([{ "url": fake.url() }]);
        }
        server.post("/v1/runs", &body, 201).await;
        let call = one_call(&server, "w1").await;
        if is_driven {
            staged(&server, &id, "call_2", "executing").await;
        }
        let declined = json!({ "error": { "code": "declined", "message": "No." } });
        let (paid, not) =
            tokio::join!(answer(&server, &call, json!({ "output": "paid" })), answer(&server, &call, declined));
        let kept = receipt(&server, &id, "call_1").await;
        let (other, stage) = if paid.0 == 200 { (not, "completed") } else { (paid, "failed") };
        assert_eq!((other.0, &other.1["code"]), (409, &json!("result-not-awaited")), "{id}: {}", other.1);
        assert_eq!(kept["stage"], stage, "{id}: {kept}");
        if is_driven {
            answers.notify_one();
        }
        server.rested(&id).await;
    }
}

async fn b105_b238_a_result_is_kept_as_it_came_and_an_error_is_a_failed_call(database: Database) {
    let server = server(&database).await;
    server.post("/v1/runs", &pays("kept", json!({})), 201).await;
    let call = one_call(&server, "w1").await;
    // It looks like a server's result, and is none.
    let output = json!({ "content": [{ "type": "text", "text": "x" }], "n": 1 });
    assert_eq!(answer(&server, &call, json!({ "output": output })).await.0, 200);
    server.rested("kept").await;
    assert_eq!(results(&server, "kept").await[0]["output"], output);
    server.post("/v1/runs", &pays("error", json!({})), 201).await;
    let call = one_call(&server, "w1").await;
    let error = json!({ "code": "invalid_args", "message": "no such payee" });
    assert_eq!(answer(&server, &call, json!({ "error": error })).await.0, 200);
    assert_eq!(server.rested("error").await["status"], "completed");
    let known = receipt(&server, "error", "call_1").await;
    assert_eq!((&known["stage"], &known["error"]), (&json!("failed"), &error));
    let told = &results(&server, "error").await[0];
    assert_eq!((&told["is_error"], &told["output"]), (&json!(true), &json!("no such payee")));
    for wrong in [json!({}), json!({ "output": 1, "error": { "message": "x" } })] {
        assert_eq!(answer(&server, &call, wrong).await.0, 422);
    }
}

async fn b104_a_result_is_checked_only_where_a_schema_was_declared(database: Database) {
    let server = server(&database).await;
    let schema = json!({ "type": "object", "required": ["paid"] });
    for (id, more, stage) in [("free", json!({}), "completed"), ("bound", json!({ "output_schema": schema }), "failed")]
    {
        server.post("/v1/runs", &pays(id, more), 201).await;
        let call = one_call(&server, "w1").await;
        assert_eq!(answer(&server, &call, json!({ "output": { "late": true } })).await.0, 200);
        server.rested(id).await;
        let known = receipt(&server, id, "call_1").await;
        // The raw answer is kept either way.
        assert_eq!((&known["stage"], &known["output"]), (&json!(stage), &json!({ "late": true })), "{id}");
    }
    assert_eq!(receipt(&server, "bound", "call_1").await["error"]["code"], "invalid-output");
}

async fn b201_a_worker_and_a_server_are_asked_at_once_and_answer_in_call_order(database: Database) {
    let (server, fake) = (server(&database).await, FakeMcp::start().await);
    let answers = Arc::new(Notify::new());
    let held = Arc::clone(&answers);
    fake.on_call(move |_| Reply::When(Arc::clone(&held), Box::new(Reply::text("charged"))));
    let calls = [("process_payment", json!({ "amount": 1 })), ("charge", json!({ "amount": 2 }))];
    let mut body = run("both", &calls, json!([payment(json!({}))]));
    body["mcp"] = json!([{ "url": fake.url() }]);
    server.post("/v1/runs", &body, 201).await;
    // The server has its call and has not answered while the worker gets its own: a node drives the run.
    staged(&server, "both", "call_2", "executing").await;
    let call = one_call(&server, "w1").await;
    assert_eq!(answer(&server, &call, json!({ "output": "paid" })).await.0, 200);
    assert_eq!(receipt(&server, "both", "call_1").await["stage"], "completed");
    answers.notify_one();
    assert_eq!(server.rested("both").await["status"], "completed");
    let told = results(&server, "both").await;
    let ids: Vec<&Value> = told.iter().map(|result| &result["call_id"]).collect();
    assert_eq!(ids, ["call_1", "call_2"]);
}

async fn b202_no_server_is_contacted_for_tools_that_workers_carry_out(database: Database) {
    let (server, fake) = (server(&database).await, FakeMcp::start().await);
    let mut body = pays("alone", json!({}));
    body["mcp"] = json!([{ "url": fake.url(), "tools": [] }]);
    server.post("/v1/runs", &body, 201).await;
    let call = one_call(&server, "w1").await;
    assert_eq!(answer(&server, &call, json!({ "output": "paid" })).await.0, 200);
    assert_eq!(server.rested("alone").await["status"], "completed");
    assert_eq!(fake.seen().len(), 0);
}

async fn b088_a_declared_tool_wins_over_a_servers_of_its_name(database: Database) {
    let (server, fake) = (server(&database).await, FakeMcp::start().await);
    let mut body = run("mine", &[("charge", json!({ "amount": 1 }))], json!([payment(json!({ "name": "charge" }))]));
    body["mcp"] = json!([{ "url": fake.url() }]);
    let created = server.post("/v1/runs", &body, 201).await;
    assert_eq!(created["warnings"][0]["message"], "MCP tool 'charge' is hidden by a local tool of the same name.");
    let call = one_call(&server, "w1").await;
    assert_eq!(answer(&server, &call, json!({ "output": "paid" })).await.0, 200);
    assert_eq!(server.rested("mine").await["status"], "completed");
    assert_eq!(fake.count("tools/call"), 0);
}

async fn b206_invalid_arguments_never_reach_a_worker(database: Database) {
    let server = server(&database).await;
    server.post("/v1/runs", &run("bad", &[("process_payment", json!({}))], json!([payment(json!({}))])), 201).await;
    assert_eq!(server.rested("bad").await["status"], "completed");
    assert_eq!(claim(&server, "w1", &asking(0)).await["calls"], json!([]));
    let kinds = server.event_kinds("bad").await;
    assert!(!kinds.contains(&"tool-started".to_owned()), "{kinds:?}");
}

async fn b208_b213_a_second_turn_has_its_own_calls_and_keys(database: Database) {
    let server = server(&database).await;
    let mut body = pays("two", json!({}));
    let calls = body["model"]["script"][0].clone();
    body["model"]["script"] = json!([calls, calls, { "text": "Done." }]);
    server.post("/v1/runs", &body, 201).await;
    let first = one_call(&server, "w1").await;
    assert_eq!(answer(&server, &first, json!({ "output": 1 })).await.0, 200);
    let second = one_call(&server, "w1").await;
    assert_eq!((&first["turn"], &second["turn"]), (&json!(1), &json!(2)));
    assert_ne!(first["idempotency_key"], second["idempotency_key"]);
    // The first call's result again settles nothing of the second.
    assert_eq!(answer(&server, &first, json!({ "output": 1 })).await.0, 200);
    assert_eq!(answer(&server, &second, json!({ "output": 2 })).await.0, 200);
    assert_eq!(server.rested("two").await["status"], "completed");
    let told: Vec<Value> = results(&server, "two").await.iter().map(|result| result["output"].clone()).collect();
    assert_eq!(told, [json!(1), json!(2)]);
}

async fn b236_fifty_workers_that_claim_at_once_get_every_call_once(database: Database) {
    let options = options().with("COUNTERSIGN_WORKER_LEASE_S", "60");
    let server = Product::start_as(&database.url, &options).await;
    for n in 0..20 {
        let calls = vec![("process_payment", json!({ "amount": n })); 5];
        server.post("/v1/runs", &run(&format!("r{n}"), &calls, json!([payment(json!({}))])), 201).await;
    }
    for n in 0..20 {
        until(&server, &format!("r{n}"), |run| run["turns"] == 1).await;
    }
    let mut got: Vec<String> = Vec::new();
    while got.len() < 100 {
        let body = json!({ "tools": [{ "tool": "payments.process", "version": "1.0.0" }], "max": 2, "wait_ms": 5000 });
        let names: Vec<String> = (0..50).map(|n| format!("w{n}")).collect();
        let claimed = join_all(names.iter().map(|name| claim(&server, name, &body))).await;
        let calls = claimed.iter().flat_map(|claimed| claimed["calls"].as_array().unwrap());
        let before = got.len();
        got.extend(calls.map(|call| call["id"].as_str().unwrap().to_owned()));
        assert!(got.len() > before, "{} of 100", got.len());
    }
    assert_eq!(got.iter().collect::<BTreeSet<_>>().len(), 100);
    assert_eq!(got.len(), 100);
}

async fn b240_a_worker_gets_no_more_than_it_can_do_at_once(database: Database) {
    let server = server(&database).await;
    let calls = vec![("process_payment", json!({ "amount": 1 })); 3];
    server.post("/v1/runs", &run("many", &calls, json!([payment(json!({}))])), 201).await;
    staged(&server, "many", "call_3", "pending").await;
    let mut body = asking(1_000);
    body["tools"][0]["max_concurrency"] = json!(1);
    let first = claim(&server, "w1", &body).await;
    assert_eq!(first["calls"].as_array().unwrap().len(), 1);
    assert_eq!(claim(&server, "w1", &body).await["calls"], json!([]));
    assert_eq!(claim(&server, "w2", &body).await["calls"].as_array().unwrap().len(), 1);
    assert_eq!(answer(&server, &first["calls"][0], json!({ "output": 1 })).await.0, 200);
    assert_eq!(claim(&server, "w1", &body).await["calls"].as_array().unwrap().len(), 1);
}

async fn b240_a_call_behind_a_full_queue_has_failed(database: Database) {
    let options = options().with("COUNTERSIGN_WORKER_QUEUE_MAX", "2");
    let server = Product::start_as(&database.url, &options).await;
    let calls = vec![("process_payment", json!({ "amount": 1 })); 3];
    server.post("/v1/runs", &run("full", &calls, json!([payment(json!({}))])), 201).await;
    let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(20);
    let failed = loop {
        let page = server.get("/v1/runs/full/receipts").await;
        let receipts = page["data"].as_array().unwrap().clone();
        if let Some(failed) = receipts.iter().find(|receipt| receipt["stage"] == "failed") {
            break failed.clone();
        }
        assert!(tokio::time::Instant::now() < deadline, "{page}");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    };
    assert_eq!(failed["error"]["code"], "dispatch-capacity-exhausted");
    assert_eq!(failed["attempt"], 0);
}

async fn b237_b238_a_call_that_nobody_serves_in_that_version_has_failed_and_was_never_sent(database: Database) {
    let options = options().with("COUNTERSIGN_WORKER_QUEUE_WAIT_S", "2");
    let server = Product::start_as(&database.url, &options).await;
    let executor = json!({ "type": "worker", "tool": "payments.process", "version": "9.9.9" });
    server.post("/v1/runs", &pays("other", json!({ "executor": executor })), 201).await;
    let claimed = claim(&server, "w1", &asking(1_000)).await;
    assert_eq!(claimed["calls"], json!([]), "a worker of 1.0.0");
    assert_eq!(server.rested("other").await["status"], "completed");
    let known = receipt(&server, "other", "call_1").await;
    assert_eq!((&known["error"]["code"], &known["attempt"]), (&json!("dispatch-no-handler"), &json!(0)));
    assert_eq!(results(&server, "other").await[0]["is_error"], true);
}

async fn b237_b239_one_tenants_late_calls_keep_nobody_elses_waiting(database: Database) {
    let options = options().with("COUNTERSIGN_WORKER_QUEUE_WAIT_S", "2");
    let server = Product::start_as(&database.url, &options).await;
    let unserved = payment(json!({ "executor": { "type": "worker", "tool": "nobodys", "version": "1.0.0" } }));
    let many: Vec<_> = (0..100).map(|amount| ("process_payment", json!({ "amount": amount }))).collect();
    for id in ["a", "b", "c"] {
        let mut body = run(id, &many, json!([unserved]));
        body["limits"] = json!({ "max_parallel_tool_calls": 100 });
        server.post("/v1/runs", &body, 201).await;
    }
    staged(&server, "a", "call_1", "failed").await;
    let as_other = async |method: Method, path: &str, body: Option<&Value>| -> Value {
        let answer = server.send_as("globex", method, path, body).await;
        serde_json::from_str(&answer.text().await.unwrap()).unwrap()
    };
    for (id, tool) in [("late", unserved), ("lapsed", payment(json!({})))] {
        let body = run(id, &[("process_payment", json!({ "amount": 1 }))], json!([tool]));
        as_other(Method::POST, "/v1/runs", Some(&body)).await;
    }
    let claimed = as_other(Method::POST, "/v1/workers/w/claims", Some(&asking(20_000))).await;
    assert_eq!(claimed["calls"].as_array().map(Vec::len), Some(1), "{claimed}");
    // Its worker says nothing more; the other call has waited long enough in two seconds.
    let began = Instant::now();
    for (id, status) in [("lapsed", "suspended"), ("late", "completed")] {
        while as_other(Method::GET, &format!("/v1/runs/{id}"), None).await["status"] != status {
            assert!(began.elapsed() < Duration::from_secs(10), "{id}: {}", server.log());
            sleep(Duration::from_millis(20)).await;
        }
    }
}

async fn b242_a_worker_that_the_operator_does_not_permit_gets_nothing_and_the_call_has_failed(database: Database) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("countersign.toml");
    std::fs::write(&file, "[worker_tools.\"payments.process\"]\nworkload_identities = [\"pay\"]\n").unwrap();
    let options = options().with("--config", file.to_str().unwrap());
    let server = Product::start_as(&database.url, &options).await;
    server.post("/v1/runs", &pays("no", json!({})), 201).await;
    staged(&server, "no", "call_1", "pending").await;
    assert_eq!(claim(&server, "w1", &asking(0)).await["calls"], json!([]));
    assert_eq!(server.rested("no").await["status"], "completed");
    let known = receipt(&server, "no", "call_1").await;
    assert_eq!((&known["error"]["code"], &known["attempt"]), (&json!("worker-identity-not-permitted"), &json!(0)));
}

async fn a_worker_gets_no_more_at_once_than_a_page_of_arguments(database: Database) {
    let server = server(&database).await;
    let note = "x".repeat(1_500_000);
    for amount in 0..5 {
        let calls = [("process_payment", json!({ "amount": amount, "note": note }))];
        server.post("/v1/runs", &run(&format!("r{amount}"), &calls, json!([payment(json!({}))])), 201).await;
        staged(&server, &format!("r{amount}"), "call_1", "pending").await;
    }
    let (mut gets, mut amounts) = (Vec::new(), BTreeSet::new());
    while amounts.len() < 5 {
        let mut asking = asking(20_000);
        asking["tools"][0]["max_concurrency"] = json!(50);
        asking["max"] = json!(50);
        let claimed = claim(&server, "w1", &asking).await;
        let calls = claimed["calls"].as_array().unwrap();
        gets.push(calls.len());
        amounts.extend(calls.iter().map(|call| call["input"]["amount"].as_u64().unwrap()));
    }
    assert!(gets.iter().all(|calls| (1..=2).contains(calls)), "{gets:?}");
    assert_eq!(gets.iter().sum::<usize>(), 5, "each once");
}

async fn a_worker_may_put_a_call_back(database: Database) {
    let server = server(&database).await;
    server.post("/v1/runs", &pays("back", json!({})), 201).await;
    let first = one_call(&server, "w1").await;
    server.post(&path(&first, "reject"), &with_lease(&first, json!({})), 200).await;
    problem(&server, &path(&first, "reject"), &with_lease(&first, json!({})), 409, "lease-lost").await;
    assert_eq!(receipt(&server, "back", "call_1").await["stage"], "pending");
    let second = one_call(&server, "w2").await;
    assert_eq!((&second["attempt"], &second["id"]), (&json!(1), &first["id"]));
    assert_eq!(answer(&server, &first, json!({ "output": 1 })).await.0, 409);
    assert_eq!(answer(&server, &second, json!({ "output": 2 })).await.0, 200);
    server.rested("back").await;
    assert_eq!(receipt(&server, "back", "call_1").await["output"], 2);
}

async fn tools_are_checked_when_the_run_is_created(database: Database) {
    let server = server(&database).await;
    let pointers = async |tools: Value| -> Vec<String> {
        let said = server.post("/v1/runs", &run("x", &[], tools), 422).await;
        said["errors"].as_array().unwrap().iter().map(|fault| fault["pointer"].as_str().unwrap().to_owned()).collect()
    };
    let shapes = json!([
        payment(json!({ "name": "a b" })),
        payment(json!({ "name": "ok", "executor": { "type": "worker", "tool": "", "version": "1 0" } })),
    ]);
    let named = pointers(shapes).await;
    assert!(
        named.contains(&"/tools/0/name".to_owned()) && named.iter().any(|at| at.starts_with("/tools/1")),
        "{named:?}"
    );
    let meanings = json!([
        payment(json!({ "side_effect_class": "irreversible_action", "replay": "idempotent" })),
        payment(json!({ "input_schema": { "type": "object", "properties": { "a": { "type": 7 } } } })),
        payment(json!({ "name": "list", "input_schema": { "type": "array" } })),
    ]);
    let want = ["/tools/0/replay", "/tools/1/name", "/tools/1/input_schema"];
    let named = pointers(meanings).await;
    for at in want.into_iter().chain(["/tools/2/input_schema/type"]) {
        assert!(named.contains(&at.to_owned()), "{at}: {named:?}");
    }
    for wrong in [json!({ "type": "robot" }), json!({ "type": "client", "tool": "x" })] {
        server.post("/v1/runs", &run("x", &[], json!([payment(json!({ "executor": wrong }))])), 422).await;
    }
}

async fn another_tenants_worker_finds_nothing(database: Database) {
    let server = server(&database).await;
    server.post("/v1/runs", &pays("mine", json!({})), 201).await;
    let call = one_call(&server, "w1").await;
    let said = server.send_as("globex", Method::POST, "/v1/workers/w1/claims", Some(&asking(0))).await;
    let said: Value = serde_json::from_str(&said.text().await.unwrap()).unwrap();
    assert_eq!(said["calls"], json!([]));
    for (what, more) in [("heartbeat", json!({})), ("result", json!({ "output": 1 })), ("reject", json!({}))] {
        let body = with_lease(&call, more);
        assert_eq!(
            server.send_as("globex", Method::POST, &path(&call, what), Some(&body)).await.status().as_u16(),
            404
        );
    }
    let mut body = asking(0);
    body["in_flight"] = json!([{ "id": call["id"], "lease": call["lease"] }]);
    let said = server.send_as("globex", Method::POST, "/v1/workers/w1/claims", Some(&body)).await;
    let said: Value = serde_json::from_str(&said.text().await.unwrap()).unwrap();
    assert_eq!(said["cancelled"], json!([call["id"]]));
}
