//! Entries of a run that name a registered server.

use axum::body::Body;
use http::{HeaderValue, Method};
use serde_json::{Value, json};

use super::{Site, calling, pointers};
use crate::http::harness::request;
use crate::support::database::{Database, both_stores};
use crate::support::fake_mcp::{FakeMcp, Reply, tool};

both_stores! {
    a_run_on_a_registered_server_says_only_its_name => by_name,
    what_a_server_asked_is_answered_there_and_nowhere_else => asked_there,
}

async fn by_name(database: Database) {
    let site = Site::on(database).await;
    let fake = FakeMcp::start().await;
    site.put_secret("token", "s3cret-value", &["127.0.0.1"]).await;
    let auth = json!({ "scheme": "header", "header": "X-Api-Key", "secret": "token" });
    let body = json!({ "url": fake.url(), "auth": auth, "headers": { "X-Team": "a" }, "side_effect_class": "idempotent_write" });
    site.put_server("orders", body).await;
    for _ in 0..2 {
        let run = site.settled(&calling(&["charge"], json!([{ "server": "orders" }]))).await;
        assert_eq!(run["status"], "completed", "{run}");
        let receipts = site.get(&format!("/v1/runs/{}/receipts", run["id"].as_str().unwrap())).await;
        let receipt = &receipts["data"][0];
        assert_eq!((&receipt["tool"], &receipt["server"]), (&json!("charge"), &json!("orders")));
        assert_eq!(receipt["side_effect_class"], "idempotent_write");
    }
    for seen in fake.seen() {
        assert_eq!((seen.headers["x-api-key"].as_str(), seen.headers["x-team"].as_str()), ("s3cret-value", "a"));
    }
    assert_eq!((fake.count("initialize"), fake.count("tools/call")), (1, 2), "a stored secret's connection is shared");
}

#[tokio::test]
async fn a_setting_that_names_a_tool_which_is_not_served_is_a_warning() {
    let site = Site::start().await;
    let fake = FakeMcp::start().await;
    fake.serve(vec![tool("charge"), tool("look")]);
    let misspelt = json!({
        "url": fake.url(), "namespace": "till", "replay": { "lok": "idempotent", "look": "idempotent" },
        "side_effect_class": { "till_charge": "irreversible_action" }, "input_schemas": { "chrage": { "type": "object" } },
        "require_approval": ["charg"],
    });
    let run = site.settled(&calling(&["till_charge"], json!([misspelt]))).await;
    assert_eq!(run["status"], "completed", "a warning fails nothing: {run}");
    let warnings = |of: &Value| -> Vec<String> {
        let of = of["warnings"].as_array().unwrap().iter().filter(|warning| warning["code"] == "mcp-tool-not-served");
        of.map(|warning| warning["message"].as_str().unwrap().to_owned()).collect()
    };
    let told = warnings(&run);
    for named in [
        "'lok' that `replay`",
        "'till_charge' that `side_effect_class`",
        "'chrage' that `input_schemas`",
        "'charg' that `require_approval`",
    ] {
        assert_eq!(told.iter().filter(|message| message.contains(named)).count(), 1, "{named}: {told:?}");
    }
    assert_eq!(told.len(), 4, "{told:?}");
    assert!(told.iter().any(|message| message.ends_with("Its own name of it is 'charge'.")), "{told:?}");
    // A probe of a registered server says the same.
    site.put_server("orders", json!({ "url": fake.url(), "require_approval": ["charg"] })).await;
    let probe = site.send(Method::POST, "/v1/mcp-servers/orders/probe", &Value::Null).await.json();
    assert_eq!(warnings(&probe).len(), 1, "{probe}");
    let run = site.settled(&calling(&["look"], json!([{ "server": "orders", "require_approval": ["lok"] }]))).await;
    assert_eq!((&run["status"], warnings(&run).len()), (&json!("completed"), 2), "{run}");
}

/// In YAML a list with nothing after the colon is null: somebody meant a rule.
#[tokio::test]
async fn a_rule_that_says_nothing_is_refused_with_its_place() {
    let site = Site::start().await;
    let path = "/v1/agents/billing/charger/versions/1.0.0";
    let yaml = "model: {provider: scripted, name: demo, script: [{text: Hi}]}\npolicies:\nlimits:\nmcp:\n  - url: https://a.example\n    require_approval:\n";
    let rules = "model: {provider: scripted, name: demo, script: [{text: Hi}]}\npolicies:\n  - name: review\n    action: require_approval\n    when:\n    approval:\n      approvers:\n        scopes:\ntools:\n  - name: pay\n    executor: {type: client}\n    require_approval:\n";
    let wanted: [(&str, &[&str]); 2] = [
        (yaml, &["/limits", "/mcp/0/require_approval", "/policies"]),
        (rules, &["/policies/0/approval/approvers/scopes", "/policies/0/when", "/tools/0/require_approval"]),
    ];
    for (yaml, wanted) in wanted {
        let mut put = request(Method::PUT, path, &site.admin, &[], Body::from(yaml));
        put.headers_mut().insert("content-type", HeaderValue::from_static("application/yaml"));
        let at = pointers(&site.server.send(put).await);
        assert!(wanted.iter().all(|pointer| at.iter().any(|at| at == pointer)), "{at:?}");
    }
}

#[tokio::test]
async fn a_program_may_write_null_for_what_it_leaves_out() {
    let site = Site::start().await;
    let fake = FakeMcp::start().await;
    let entry = json!({ "url": fake.url(), "tools": null, "require_approval": null });
    let mut run = calling(&["charge"], json!([entry]));
    (run["policies"], run["limits"], run["tools"]) = (Value::Null, Value::Null, Value::Null);
    let answer = site.send(Method::POST, "/v1/runs", &run).await;
    assert_eq!(answer.status, 201, "{:?}", answer.body);
}

/// A server of the newer era that asks one question of a call.
async fn asking() -> FakeMcp {
    let fake = FakeMcp::start().await;
    fake.be_modern(true);
    fake.on_list(|_| {
        let tools = json!([tool("charge")]);
        Reply::Result(json!({ "resultType": "complete", "tools": tools, "ttlMs": 0, "cacheScope": "private" }))
    });
    fake.on_call(|seen| {
        let schema = json!({ "type": "object" });
        let ask =
            json!({ "method": "elicitation/create", "params": { "message": "Sure?", "requestedSchema": schema } });
        Reply::Result(if seen.body["params"]["inputResponses"].is_null() {
            json!({ "resultType": "input_required", "requestState": "state", "inputRequests": { "a": ask } })
        } else {
            json!({ "resultType": "complete", "content": [{ "type": "text", "text": "charged" }] })
        })
    });
    fake
}

async fn asked_there(database: Database) {
    let site = Site::on(database).await;
    let (first, second) = (asking().await, asking().await);
    for (id, after, stage, code) in [
        (
            "stays",
            json!({ "url": first.url(), "timeouts": { "call_ms": 20_000 }, "elicitation": "ask" }),
            "completed",
            None,
        ),
        ("moves", json!({ "url": second.url(), "elicitation": "ask" }), "failed", Some("mcp-server-moved")),
    ] {
        site.put_server("orders", json!({ "url": first.url(), "elicitation": "ask" })).await;
        let mut body = calling(&["charge"], json!([{ "server": "orders" }]));
        body["id"] = json!(id);
        let run = site.settled(&body).await;
        assert_eq!(run["reason"], "input-required", "{run:#}");
        site.put_server("orders", after).await;
        let at = format!("/v1/runs/{id}/inputs/input_1");
        site.send(Method::POST, &at, &json!({ "action": "accept", "content": {} })).await;
        let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(20);
        let receipt = loop {
            let receipt = site.get(&format!("/v1/runs/{id}/receipts")).await["data"][0].clone();
            if !matches!(receipt["stage"].as_str(), Some("waiting" | "pending" | "executing")) {
                break receipt;
            }
            assert!(tokio::time::Instant::now() < deadline, "{receipt:#}");
            tokio::task::yield_now().await;
        };
        assert_eq!((receipt["stage"].as_str(), receipt["error"]["code"].as_str()), (Some(stage), code), "{receipt:#}");
    }
    assert_eq!((first.count("tools/call"), second.count("tools/call")), (3, 0));
}

#[tokio::test]
async fn beside_a_registered_server_only_what_is_stricter_is_taken() {
    let site = Site::start().await;
    let fake = FakeMcp::start().await;
    fake.on_list(|_| Reply::Result(json!({ "tools": [tool("charge"), tool("refund"), tool("list")] })));
    site.put_server(
        "orders",
        json!({
            "url": fake.url(), "tools": ["charge", "list"], "timeouts": { "call_ms": 1000 },
            "side_effect_class": { "list": "read_only", "charge": "idempotent_write" },
        }),
    )
    .await;
    let looser = json!([{
        "server": "orders", "url": fake.url(), "headers": {}, "auth": { "scheme": "bearer", "secret": "t" },
        "tools": ["list", "refund"], "timeouts": { "call_ms": 1001, "connect_ms": 5 }, "replay": "idempotent",
        "required": false, "side_effect_class": { "charge": "read_only", "list": "read_only" },
    }]);
    let answer = site.send(Method::POST, "/v1/runs", &calling(&[], looser)).await;
    assert_eq!(
        pointers(&answer),
        [
            "/mcp/0/auth",
            "/mcp/0/headers",
            "/mcp/0/replay",
            "/mcp/0/required",
            "/mcp/0/side_effect_class/charge",
            "/mcp/0/timeouts/call_ms",
            "/mcp/0/tools/1",
            "/mcp/0/url"
        ]
    );
    let stricter = json!([{
        "server": "orders", "tools": ["charge"], "timeouts": { "call_ms": 900 }, "required": true, "namespace": "till",
        "side_effect_class": "irreversible_action", "input_schemas": { "charge": { "required": ["amount"] } },
    }]);
    let run = site.settled(&calling(&["till_charge"], stricter)).await;
    let names: Vec<&String> = run["binding"]["mcp"]["tools"].as_object().unwrap().keys().collect();
    assert_eq!(names, ["till_charge"]);
    assert_eq!(fake.count("tools/call"), 0, "the arguments do not fit the schema that the run added");
}

#[tokio::test]
async fn a_namespace_is_explicit_or_the_servers_name_among_several() {
    let site = Site::start().await;
    let fake = FakeMcp::start().await;
    site.put_server("orders", json!({ "url": fake.url() })).await;
    site.put_server("billing", json!({ "url": fake.url(), "namespace": "till" })).await;
    let names = async |mcp: Value| {
        let run = site.settled(&calling(&[], mcp)).await;
        let tools = run["binding"]["mcp"]["tools"].as_object().unwrap().clone();
        tools.keys().cloned().collect::<Vec<String>>()
    };
    assert_eq!(names(json!([{ "server": "orders" }])).await, ["charge"]);
    assert_eq!(names(json!([{ "server": "billing" }])).await, ["till_charge"]);
    let both = json!([{ "server": "orders" }, { "server": "billing" }]);
    assert_eq!(names(both).await, ["orders_charge", "till_charge"]);
    let explicit = json!([{ "server": "orders", "namespace": "a" }, { "server": "billing", "namespace": "b" }]);
    assert_eq!(names(explicit).await, ["a_charge", "b_charge"]);
    let mixed = json!([{ "server": "orders" }, { "url": fake.url(), "namespace": "x" }]);
    assert_eq!(names(mixed).await, ["orders_charge", "x_charge"]);
    let inline = json!([{ "url": fake.url() }, { "url": fake.url() }, { "server": "orders" }]);
    let answer = site.send(Method::POST, "/v1/runs", &calling(&[], inline)).await;
    assert_eq!(pointers(&answer), ["/mcp/0/namespace", "/mcp/1/namespace"]);
}

#[tokio::test]
async fn b204_names_of_another_tenant_and_names_that_nobody_has_are_refused_in_the_same_words() {
    let site = Site::start().await;
    let fake = FakeMcp::start().await;
    site.put_secret("token", "s3cret-value", &["127.0.0.1"]).await;
    site.put_server("orders", json!({ "url": fake.url() })).await;
    let stranger = site.server.token("umbrella", "eve", "admin");
    let auth = |secret: &str| json!({ "scheme": "bearer", "secret": secret });
    let body = |server: &str, secret: &str| {
        let mut run =
            calling(&[], json!([{ "server": server }, { "url": fake.url(), "namespace": "x", "auth": auth(secret) }]));
        run["model"] = json!({ "provider": "openai", "name": "m", "base_url": fake.url(), "secret": secret });
        run
    };
    let theirs = site.send_as(&stranger, Method::POST, "/v1/runs", &body("orders", "token")).await;
    let nobodys = site.send_as(&stranger, Method::POST, "/v1/runs", &body("ordars", "tokan")).await;
    let words = |answer: &crate::http::harness::Answer| {
        let text = String::from_utf8_lossy(&answer.body).replace("ordars", "orders").replace("tokan", "token");
        let mut problem: Value = serde_json::from_str(&text).unwrap();
        problem["instance"] = Value::Null;
        problem
    };
    assert_eq!(pointers(&theirs), ["/mcp/0/server", "/mcp/1/auth/secret", "/model/secret"]);
    assert_eq!(words(&theirs), words(&nobodys));
    for odd in ["a\u{0}b", "A", "", &"x".repeat(5000)] {
        let refused = site.send(Method::POST, "/v1/runs", &body(odd, odd)).await;
        assert_eq!(refused.status, 422, "{odd:?}");
    }
    assert!(fake.seen().is_empty(), "nobody is contacted for a run that is refused");
}

#[tokio::test]
async fn what_was_declared_is_frozen_whatever_the_registration_says_later() {
    let site = Site::start().await;
    let fake = FakeMcp::start().await;
    fake.on_call(|_| Reply::Reset);
    site.put_server("orders", json!({ "url": fake.url(), "side_effect_class": "irreversible_action" })).await;
    let mut body = calling(&["charge", "charge"], json!([{ "server": "orders" }]));
    body["id"] = json!("r");
    let run = site.settled(&body).await;
    assert_eq!(run["reason"], "tool-reconciliation-required", "{run}");
    // A looser declaration does not reach the run.
    fake.on_call(|_| Reply::text("charged"));
    site.put_server("orders", json!({ "url": fake.url(), "side_effect_class": "read_only", "tools": ["nothing"] }))
        .await;
    let decided = json!({ "resolution": "retry" });
    let path = "/v1/admin/runs/r/reconciliations/1/call_1";
    assert_eq!(site.send(Method::POST, path, &decided).await.status, 200);
    let receipts = async || site.get("/v1/runs/r/receipts").await["data"].clone();
    crate::support::database::eventually("the run ends", async || {
        site.get("/v1/runs/r").await["status"] == "completed"
    })
    .await;
    let receipts = receipts().await;
    let classes: Vec<&Value> = receipts.as_array().unwrap().iter().map(|row| &row["side_effect_class"]).collect();
    assert_eq!(classes, ["irreversible_action", "irreversible_action"]);
    assert_eq!(fake.count("tools/call"), 3);
}
