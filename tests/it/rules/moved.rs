//! What was judged, and approved, is a call to one server at one place. It goes nowhere else, whoever changes what.

use http::Method;
use serde_json::{Value, json};

use super::{Site, faults, open_tool};
use crate::support::database::{Database, both_stores};
use crate::support::fake_mcp::{FakeMcp, Reply};

both_stores! {
    b230_a_resume_takes_no_waiting_call_to_another_server,
    b230_a_resume_brings_no_entries_that_guard_less,
    b230_a_resume_drops_no_schema_of_arguments,
    b230_a_resume_gives_no_tool_a_name_that_the_rules_of_the_run_do_not_find,
    b230_a_call_that_was_approved_for_a_server_is_not_sent_where_that_was_moved,
    b230_a_call_that_was_approved_is_not_sent_to_another_account_of_its_server,
    b212_a_call_whose_outcome_nobody_knows_is_not_repeated_where_its_server_was_moved,
    b247_a_resume_brings_a_run_of_an_agent_no_other_servers,
    b250_a_runs_own_secret_goes_nowhere_else_whoever_resumes_it,
}

/// A server that looks the same.
async fn twin() -> FakeMcp {
    let fake = FakeMcp::start().await;
    fake.on_list(|_| Reply::Result(json!({ "tools": [open_tool("charge"), open_tool("look")] })));
    fake
}

async fn register(site: &Site, fake: &FakeMcp) {
    let answer = site.send(Method::PUT, "/v1/mcp-servers/till", &json!({ "url": fake.url() })).await;
    assert!(matches!(answer.status.as_u16(), 200 | 201), "{:?}", answer.body);
}

/// A run of the registered server, with one charge.
fn charging(site: &Site, id: &str, entry: Value) -> Value {
    let mut body = site.calling(id, &[("charge", json!({ "amount": 9 }))], json!([]));
    let mut given = json!({ "server": "till" });
    for (name, value) in entry.as_object().unwrap() {
        given[name] = value.clone();
    }
    body["mcp"] = json!([given]);
    body
}

async fn approve(site: &Site, id: &str) {
    let bob = site.server.token("acme", "bob", "approvals:decide");
    let path = format!("/v1/runs/{id}/approvals/call_1");
    let answer = site.send_as(&bob, Method::POST, &path, &json!({ "decision": "approve" })).await;
    assert_eq!(answer.status, 200, "{:?}", answer.body);
}

async fn b230_a_resume_takes_no_waiting_call_to_another_server(database: Database) {
    let (site, other) = (Site::on(database).await, twin().await);
    register(&site, &site.fake).await;
    let waiting = site.settled(&charging(&site, "r", json!({ "require_approval": true }))).await;
    assert_eq!(waiting["reason"], "approval-required", "{waiting}");
    let writer = site.server.token("acme", "mallory", "runs:write");
    for mcp in [json!([{ "url": other.url() }]), json!([{ "url": site.fake.url() }])] {
        let body = json!({ "mcp": mcp, "limits": { "max_turns": 19 } });
        let problem = site.send_as(&writer, Method::POST, "/v1/runs/r/resume", &body).await;
        let problem = problem.problem(409, "mcp-server-moved");
        assert_eq!(problem["calls"], json!(["call_1"]), "{problem}");
    }
    approve(&site, "r").await;
    assert_eq!(super::policies::ended(&site, "r").await["status"], "completed");
    assert_eq!((site.sent().len(), other.count("tools/call")), (1, 0));
}

async fn b230_a_resume_brings_no_entries_that_guard_less(database: Database) {
    let site = Site::on(database).await;
    register(&site, &site.fake).await;
    let writer = site.server.token("acme", "mallory", "runs:write");
    let resume = async |id: &str, mcp: &Value| {
        let body = json!({ "mcp": mcp, "limits": { "max_turns": 19 }, "on_catalog_change": "accept" });
        site.send_as(&writer, Method::POST, &format!("/v1/runs/{id}/resume"), &body).await
    };
    let url = site.fake.url();
    let entry = json!({ "url": url, "require_approval": ["charge"] });
    let mut body = site.calling("r", &[("charge", json!({ "amount": 9 }))], json!([]));
    body["mcp"] = json!([entry]);
    assert_eq!(site.settled(&body).await["reason"], "approval-required");
    for mcp in [json!([{ "url": url }]), json!([{ "url": url, "require_approval": ["look"] }])] {
        let problem = resume("r", &mcp).await.problem(409, "mcp-rules-loosened");
        assert_eq!(problem["servers"], json!([url]), "{problem}");
    }
    let stricter = json!([{ "url": url, "require_approval": true }]);
    assert_eq!(resume("r", &stricter).await.status, 200, "it still waits");
    // No call is open while a client is waited for: the servers' names may change, and not their rules.
    let pick = json!([{
        "name": "pick", "description": "Picks.", "input_schema": { "type": "object" }, "executor": { "type": "client" },
    }]);
    for (id, entry) in [("named", json!({ "server": "till" })), ("inline", json!({ "url": url }))] {
        let mut body = site.calling(id, &[("pick", json!({}))], json!([]));
        let mut entry = entry;
        entry["require_approval"] = json!(true);
        (body["mcp"], body["tools"]) = (json!([entry]), pick.clone());
        assert_eq!(site.settled(&body).await["reason"], "client-tool-results-required");
        for mcp in [json!([{ "url": url }]), json!([{ "url": url, "namespace": "z" }])] {
            resume(id, &mcp).await.problem(409, "mcp-rules-loosened");
        }
        assert_eq!(resume(id, &json!([entry])).await.status, 200);
    }
}

async fn b230_a_resume_drops_no_schema_of_arguments(database: Database) {
    let site = Site::on(database).await;
    register(&site, &site.fake).await;
    let url = site.fake.url();
    let pick = json!([{
        "name": "pick", "description": "Picks.", "input_schema": { "type": "object" }, "executor": { "type": "client" },
    }]);
    let most =
        |amount: u32| json!({ "charge": { "type": "object", "properties": { "amount": { "maximum": amount } } } });
    for (id, mut entry) in [("named", json!({ "server": "till" })), ("inline", json!({ "url": url }))] {
        let mut body = site.calling(id, &[("pick", json!({}))], json!([]));
        entry["input_schemas"] = most(1000);
        (body["mcp"], body["tools"]) = (json!([entry]), pick.clone());
        assert_eq!(site.settled(&body).await["reason"], "client-tool-results-required");
        let resume = async |mcp: Value| {
            let path = format!("/v1/runs/{id}/resume");
            site.send(Method::POST, &path, &json!({ "mcp": mcp, "on_catalog_change": "accept" })).await
        };
        for mcp in [json!([{ "url": url }]), json!([{ "url": url, "input_schemas": most(9999) }])] {
            resume(mcp).await.problem(409, "mcp-rules-loosened");
        }
        assert_eq!(resume(json!([entry])).await.status, 200);
    }
}

async fn b230_a_resume_gives_no_tool_a_name_that_the_rules_of_the_run_do_not_find(database: Database) {
    let site = Site::on(database).await;
    register(&site, &site.fake).await;
    let url = site.fake.url();
    let pick = json!([{
        "name": "pick", "description": "Picks.", "input_schema": { "type": "object" }, "executor": { "type": "client" },
    }]);
    let entries = [("named", json!({ "server": "till" })), ("inline", json!({ "url": url, "tools": ["charge"] }))];
    for (id, entry) in entries {
        let mut body = site.calling(id, &[("pick", json!({}))], json!([]));
        (body["mcp"], body["tools"]) = (json!([entry]), pick.clone());
        body["policies"] =
            json!([{ "name": "cap", "scope": "tool:charge", "when": "args.amount > 1000", "action": "deny" }]);
        assert_eq!(site.settled(&body).await["reason"], "client-tool-results-required");
        let resume = async |mcp: Value| {
            let path = format!("/v1/runs/{id}/resume");
            site.send(Method::POST, &path, &json!({ "mcp": mcp, "on_catalog_change": "accept" })).await
        };
        let with = |member: &str, value: Value| {
            let mut other = entry.clone();
            other[member] = value;
            other
        };
        let beside = json!({ "url": url, "namespace": "y" });
        for mcp in [
            json!([with("namespace", json!("x"))]),
            json!([with("tools", json!(["charge", "look"]))]),
            json!([{ "url": url, "namespace": "x" }]),
        ] {
            resume(mcp).await.problem(409, "mcp-rules-loosened");
        }
        // Two inline entries without a namespace are none.
        if id == "named" {
            resume(json!([entry, beside])).await.problem(409, "mcp-rules-loosened");
        }
        resume(json!([])).await.problem(409, "mcp-catalog-changed");
        assert_eq!(resume(json!([with("require_approval", json!(true))])).await.status, 200);
    }
}

async fn b230_a_call_that_was_approved_for_a_server_is_not_sent_where_that_was_moved(database: Database) {
    let (site, other) = (Site::on(database).await, twin().await);
    register(&site, &site.fake).await;
    site.settled(&charging(&site, "r", json!({ "require_approval": true }))).await;
    register(&site, &other).await;
    approve(&site, "r").await;
    assert_eq!(super::policies::ended(&site, "r").await["status"], "completed");
    assert_eq!((site.sent().len(), other.count("tools/call")), (0, 0), "nobody was asked about the other server");
    let receipt = site.get("/v1/runs/r/receipts/1/call_1").await;
    assert_eq!((&receipt["stage"], &receipt["error"]["code"]), (&json!("failed"), &json!("mcp-server-moved")));
    // A call that is judged after the move goes there.
    site.settled(&charging(&site, "later", json!({}))).await;
    assert_eq!((site.sent().len(), other.count("tools/call")), (0, 1));
}

async fn b230_a_call_that_was_approved_is_not_sent_to_another_account_of_its_server(database: Database) {
    let site = Site::on(database).await;
    for name in ["sandbox", "live"] {
        let secret = json!({ "value": format!("key-of-{name}"), "hosts": ["127.0.0.1"] });
        let answer = site.send(Method::PUT, &format!("/v1/secrets/{name}"), &secret).await;
        assert!(answer.status.is_success(), "{:?}", answer.body);
    }
    let url = site.fake.url();
    let at = |account: &str, header: &str, secret: &str| {
        json!({
            "url": format!("{url}?account={account}"), "headers": { "x-account": header },
            "auth": { "scheme": "bearer", "secret": secret },
        })
    };
    let put = async |registration: &Value| {
        let answer = site.send(Method::PUT, "/v1/mcp-servers/till", registration).await;
        assert!(matches!(answer.status.as_u16(), 200 | 201), "{:?}", answer.body);
    };
    let moves = [
        ("query", at("live", "sandbox", "sandbox")),
        ("header", at("sandbox", "live", "sandbox")),
        ("secret", at("sandbox", "sandbox", "live")),
    ];
    let here = at("sandbox", "sandbox", "sandbox");
    for (id, there) in &moves {
        put(&here).await;
        site.settled(&charging(&site, id, json!({ "require_approval": true }))).await;
        put(there).await;
        approve(&site, id).await;
        assert_eq!(super::policies::ended(&site, id).await["status"], "completed");
        let receipt = site.get(&format!("/v1/runs/{id}/receipts/1/call_1")).await;
        assert_eq!(receipt["error"]["code"], "mcp-server-moved", "{id}: {receipt}");
    }
    assert!(site.sent().is_empty(), "nobody was asked about the other account");
    // Another value of the same secret is the same place.
    put(&here).await;
    site.settled(&charging(&site, "rotated", json!({ "require_approval": true }))).await;
    let secret = json!({ "value": "another-key-of-sandbox", "hosts": ["127.0.0.1"] });
    site.send(Method::PUT, "/v1/secrets/sandbox", &secret).await;
    approve(&site, "rotated").await;
    assert_eq!(super::policies::ended(&site, "rotated").await["status"], "completed");
    assert_eq!(site.sent().len(), 1);
}

async fn b212_a_call_whose_outcome_nobody_knows_is_not_repeated_where_its_server_was_moved(database: Database) {
    let (site, other) = (Site::on(database).await, twin().await);
    site.fake.on_call(|_| Reply::Reset);
    register(&site, &site.fake).await;
    let lost = site.settled(&charging(&site, "r", json!({}))).await;
    assert_eq!(lost["reason"], "tool-reconciliation-required", "{lost}");
    register(&site, &other).await;
    let retry = json!({ "retry_tool_call_ids": ["call_1"] });
    let answer = site.server.post_with("/v1/runs/r/resume", &site.admin, &[("prefer", "wait=20")], &retry).await;
    assert_eq!(answer.json()["reason"], "tool-reconciliation-required", "{:?}", answer.body);
    assert_eq!((site.sent().len(), other.count("tools/call")), (1, 0));
    // Back at its place the call may be made.
    site.fake.on_call(|_| Reply::text("charged"));
    register(&site, &site.fake).await;
    let answer = site.server.post_with("/v1/runs/r/resume", &site.admin, &[("prefer", "wait=20")], &retry).await;
    assert_eq!(answer.json()["status"], "completed", "{:?}", answer.body);
    assert_eq!((site.sent().len(), other.count("tools/call")), (2, 0));
}

async fn b247_a_resume_brings_a_run_of_an_agent_no_other_servers(database: Database) {
    let (site, other) = (Site::on(database).await, twin().await);
    register(&site, &site.fake).await;
    let mut manifest = charging(&site, "r", json!({ "require_approval": true }));
    for member in ["id", "input"] {
        manifest.as_object_mut().unwrap().remove(member);
    }
    let published = site.send(Method::PUT, "/v1/agents/pay/er/versions/1.0.0", &manifest).await;
    assert_eq!(published.status, 201, "{:?}", published.body);
    site.settled(&json!({ "id": "r", "agent": "pay/er@1.0.0", "input": "Go." })).await;
    let body = json!({ "mcp": [{ "url": other.url() }] });
    let answer = site.send(Method::POST, "/v1/runs/r/resume", &body).await;
    assert_eq!(
        faults(&answer),
        [("/mcp".to_owned(), "the run is made of the agent pay/er@1.0.0, which says its servers".to_owned())]
    );
}

async fn b250_a_runs_own_secret_goes_nowhere_else_whoever_resumes_it(database: Database) {
    let (site, other) = (Site::on(database).await, twin().await);
    let auth = json!({ "scheme": "bearer", "secret": "till_token" });
    let mut body = site.calling("r", &[("charge", json!({ "amount": 9 }))], json!([]));
    body["mcp"] = json!([{ "url": site.fake.url(), "auth": auth, "require_approval": true }]);
    body["secrets"] = json!({ "till_token": "canary-of-the-run" });
    site.settled(&body).await;
    let writer = site.server.token("acme", "mallory", "runs:write");
    let model = json!({ "provider": "openai", "name": "m", "base_url": other.url(), "secret": "till_token" });
    for (entry, at) in [
        (json!({ "url": other.url(), "auth": auth }), "/mcp/0/auth/secret"),
        (
            json!({ "url": other.url(), "auth": { "scheme": "header", "header": "x-key", "secret": "till_token" } }),
            "/mcp/0/auth/secret",
        ),
        (
            json!({ "url": site.fake.url(), "auth": auth, "sampling": { "model": model } }),
            "/mcp/0/sampling/model/secret",
        ),
    ] {
        let answer = site.send_as(&writer, Method::POST, "/v1/runs/r/resume", &json!({ "mcp": [entry] })).await;
        assert_eq!(super::pointers(&answer), [at], "{entry}");
    }
    assert_eq!(other.seen().len(), 0, "nobody asked there, and nothing was told");
    approve(&site, "r").await;
    assert_eq!(super::policies::ended(&site, "r").await["status"], "completed");
}
