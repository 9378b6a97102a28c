//! Agents over the API: versions, deployments, rollbacks, and runs that are made of them.

use axum::body::Body;
use http::{Method, Request};
use serde_json::{Value, json};

use super::{Site, faults, pointers};
use crate::support::database::{Database, both_stores};

both_stores! {
    b247_a_version_never_changes_and_deployments_say_which_one_runs_get,
    b247_a_run_keeps_its_version_and_says_less_only_beside_it,
    agents_are_their_tenants_and_every_change_is_in_the_audit,
}

fn manifest(site: &Site, says: &str) -> Value {
    json!({
        "model": { "provider": "scripted", "name": "demo", "script": [{ "text": says }] },
        "instructions": "You are a billing agent.",
        "limits": { "max_turns": 5 },
        "mcp": [{ "url": format!("{}?key=hidden", site.fake.url()), "tools": ["charge"] }],
    })
}

async fn publish(site: &Site, version: &str, manifest: &Value) -> crate::http::harness::Answer {
    site.send(Method::PUT, &format!("/v1/agents/billing/charger/versions/{version}"), manifest).await
}

async fn deploy(site: &Site, version: &str) -> crate::http::harness::Answer {
    site.send(Method::POST, "/v1/agents/billing/charger/deployments", &json!({ "version": version })).await
}

async fn b247_a_version_never_changes_and_deployments_say_which_one_runs_get(database: Database) {
    let site = Site::on(database).await;
    let one = manifest(&site, "one");
    let made = publish(&site, "1.0.0", &one).await;
    assert_eq!(made.status, 201, "{:?}", made.body);
    assert_eq!(made.header("location"), "/v1/agents/billing/charger/versions/1.0.0");
    let made = made.json();
    assert_eq!(
        (&made["version"], &made["published_by"], &made["deprecated_at"]),
        (&json!("1.0.0"), &json!("alice"), &Value::Null)
    );
    assert_eq!(made["manifest"]["instructions"], one["instructions"]);
    assert!(!made.to_string().contains("hidden"), "a query may hold a secret");
    let again = publish(&site, "1.0.0", &one).await;
    assert_eq!((again.status.as_u16(), &again.json()["digest"]), (200, &made["digest"]));
    let yaml = format!(
        "instructions: You are a billing agent.\nlimits: {{max_turns: 5}}\nmodel:\n  provider: scripted\n  name: demo\n  \
         script:\n    - text: one\nmcp:\n  - url: {}?key=hidden\n    tools: [charge]\n",
        site.fake.url()
    );
    let same = site.server.send(yaml_request("/v1/agents/billing/charger/versions/1.0.0", &site.admin, &yaml)).await;
    assert_eq!((same.status.as_u16(), &same.json()["digest"]), (200, &made["digest"]), "{:?}", same.body);
    publish(&site, "1.0.0", &manifest(&site, "other")).await.problem(409, "version-exists");
    let agent = site.get("/v1/agents/billing/charger").await;
    assert_eq!(agent["active_version"], Value::Null, "publishing makes nothing active");
    for version in ["1.1.0", "2.0.0"] {
        assert_eq!(publish(&site, version, &manifest(&site, version)).await.status, 201);
    }
    let active = async || site.get("/v1/agents/billing/charger").await["active_version"].clone();
    let back = async |body: Value| site.send(Method::POST, "/v1/agents/billing/charger/rollback", &body).await;
    back(json!({})).await.problem(409, "nothing-before");
    for version in ["1.0.0", "1.1.0", "2.0.0"] {
        let deployed = deploy(&site, version).await;
        assert_eq!((deployed.status.as_u16(), &deployed.json()["version"]), (201, &json!(version)));
        assert_eq!(active().await, version);
    }
    assert_eq!(deploy(&site, "2.0.0").await.status, 200, "it is active already");
    assert_eq!(pointers(&deploy(&site, "9.9.9").await), ["/version"]);
    assert_eq!(pointers(&deploy(&site, "latest").await), ["/version"]);
    assert_eq!(back(Value::Null).await.status, 201);
    assert_eq!(active().await, "1.1.0");
    assert_eq!((back(json!({})).await.status.as_u16(), active().await), (201, json!("1.0.0")));
    back(json!({})).await.problem(409, "nothing-before");
    assert_eq!((back(json!({ "version": "2.0.0" })).await.status.as_u16(), active().await), (201, json!("2.0.0")));
    let retired = site.send(Method::POST, "/v1/agents/billing/charger/versions/1.1.0/deprecate", &Value::Null).await;
    assert!(retired.json()["deprecated_at"].is_string(), "{:?}", retired.body);
    deploy(&site, "1.1.0").await.problem(409, "version-deprecated");
    back(json!({})).await.problem(409, "version-deprecated");
    let first = site.get("/v1/agents/billing/charger/versions?limit=2").await;
    let cursor = first["next_cursor"].as_str().unwrap();
    let rest = site.get(&format!("/v1/agents/billing/charger/versions?limit=2&cursor={cursor}")).await;
    let named =
        |page: &Value| page["data"].as_array().unwrap().iter().map(|row| row["version"].clone()).collect::<Vec<_>>();
    assert_eq!((named(&first), named(&rest)), (vec![json!("1.0.0"), json!("1.1.0")], vec![json!("2.0.0")]));
    let history = site.get("/v1/agents/billing/charger/deployments").await;
    assert_eq!(named(&history), ["2.0.0", "1.0.0", "1.1.0", "2.0.0", "1.1.0", "1.0.0"]);
    assert_eq!(history["data"][0]["action"], "rollback");
    assert_eq!(site.get("/v1/agents").await["data"][0]["name"], "charger");
}

fn yaml_request(path: &str, token: &str, body: &str) -> Request<Body> {
    Request::builder()
        .method(Method::PUT)
        .uri(path)
        .header("content-type", "application/yaml; charset=utf-8")
        .header("authorization", format!("Bearer {token}"))
        .body(Body::from(body.to_owned()))
        .unwrap()
}

/// The lists find the runs of an agent, or of one version of it.
async fn check_filters(site: &Site) {
    for (filter, found) in [
        ("billing/charger", vec!["of-two", "of-one"]),
        ("billing/charger@1.0.0", vec!["of-one"]),
        ("billing/charge", vec![]),
        ("billing/charger@1", vec![]),
    ] {
        let list = site.get(&format!("/v1/runs?agent={filter}")).await;
        let ids: Vec<&str> = list["data"].as_array().unwrap().iter().map(|run| run["id"].as_str().unwrap()).collect();
        assert_eq!(ids, found, "{filter}");
    }
    assert_eq!(site.get("/v1/receipts?agent=billing/charger").await["data"], json!([]));
}

async fn b247_a_run_keeps_its_version_and_says_less_only_beside_it(database: Database) {
    let site = Site::on(database).await;
    let mut one = manifest(&site, "one");
    one["secrets"] = json!(["key"]);
    one["binding_id"] = json!("a");
    assert_eq!(publish(&site, "1.0.0", &one).await.status, 201);
    assert_eq!(publish(&site, "2.0.0", &manifest(&site, "two")).await.status, 201);
    let create = async |body: Value| site.send(Method::POST, "/v1/runs", &body).await;
    let named = |agent: &str| json!({ "agent": agent, "input": "Go." });
    assert_eq!(pointers(&create(named("billing/charger")).await), ["/agent"], "no version is active");
    for agent in ["billing/other", "billing/charger@9.0.0", "charger", "billing/charger@1"] {
        assert_eq!(pointers(&create(named(agent)).await), ["/agent"], "{agent}");
    }
    assert_eq!(deploy(&site, "2.0.0").await.status, 201);
    let mut body = named("billing/charger@1.0.0");
    assert_eq!(pointers(&create(body.clone()).await), ["/secrets/key"]);
    body["secrets"] = json!({ "key": "value", "more": "value" });
    assert_eq!(pointers(&create(body.clone()).await), ["/secrets/more"]);
    body["secrets"] = json!({ "key": "value" });
    for (field, value) in [
        ("model", manifest(&site, "x")["model"].clone()),
        ("instructions", json!("Other.")),
        ("mcp", json!([])),
        ("policies", json!([])),
        ("on_catalog_change", json!("accept")),
    ] {
        let mut wrong = body.clone();
        wrong[field] = value;
        assert_eq!(pointers(&create(wrong).await), [format!("/{field}")]);
    }
    let mut looser = body.clone();
    looser["limits"] = json!({ "max_turns": 6, "max_tool_calls": 201 });
    assert_eq!(pointers(&create(looser).await), ["/limits/max_tool_calls", "/limits/max_turns"]);
    body["limits"] = json!({ "max_turns": 3 });
    body["metadata"] = json!({ "order": "7" });
    body["id"] = json!("of-one");
    let run = site.settled(&body).await;
    assert_eq!((&run["agent"], &run["output"]["text"]), (&json!("billing/charger@1.0.0"), &json!("one")));
    assert_eq!((&run["limits"]["max_turns"], &run["binding_id"]), (&json!(3), &json!("a")));
    let run =
        site.settled(&json!({ "id": "of-two", "agent": "billing/charger", "input": "Go.", "binding_id": "b" })).await;
    assert_eq!(
        (&run["agent"], &run["output"]["text"], &run["binding_id"]),
        (&json!("billing/charger@2.0.0"), &json!("two"), &json!("b"))
    );
    assert_eq!(deploy(&site, "1.0.0").await.status, 201);
    assert_eq!(site.get("/v1/runs/of-two").await["agent"], "billing/charger@2.0.0", "it keeps its version");
    check_filters(&site).await;
    site.send(Method::POST, "/v1/agents/billing/charger/versions/2.0.0/deprecate", &Value::Null).await;
    assert_eq!(pointers(&create(named("billing/charger@2.0.0")).await), ["/agent"]);
    assert_eq!(pointers(&create(json!({ "input": "Go." })).await), ["/model"]);
}

async fn agents_are_their_tenants_and_every_change_is_in_the_audit(database: Database) {
    let site = Site::on(database).await;
    assert_eq!(publish(&site, "1.0.0", &manifest(&site, "one")).await.status, 201);
    assert_eq!(deploy(&site, "1.0.0").await.status, 201);
    let other = site.server.token("rival", "eve", "admin");
    for path in ["", "/versions", "/versions/1.0.0", "/deployments"] {
        let path = format!("/v1/agents/billing/charger{path}");
        site.server.get(&path, &other).await.problem(404, "not-found");
    }
    let body = json!({ "agent": "billing/charger", "input": "Go." });
    assert_eq!(pointers(&site.send_as(&other, Method::POST, "/v1/runs", &body).await), ["/agent"]);
    let path = "/v1/agents/billing/charger/deployments";
    site.send_as(&other, Method::POST, path, &json!({ "version": "1.0.0" })).await.problem(404, "not-found");
    let reader = site.server.token("acme", "carl", "runs:read runs:write");
    let refused = site.send_as(&reader, Method::POST, path, &json!({ "version": "1.0.0" })).await;
    assert_eq!(refused.problem(403, "forbidden")["required_scope"], "agents:write");
    let writer = site.server.token("acme", "wilma", "agents:write");
    let path = "/v1/agents/billing/charger/versions/1.0.0/deprecate";
    assert_eq!(site.send_as(&writer, Method::POST, path, &Value::Null).await.status, 200);
    assert_eq!(site.send_as(&writer, Method::POST, path, &Value::Null).await.status, 200, "once more changes nothing");
    let audit = site.get("/v1/admin/audit").await;
    let rows: Vec<(&str, &str)> = audit["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| (row["action"].as_str().unwrap(), row["actor"].as_str().unwrap()))
        .collect();
    assert_eq!(rows, [("agent.deprecate", "wilma"), ("agent.deploy", "alice"), ("agent.publish", "alice")]);
}

#[tokio::test]
async fn b248_every_fault_of_a_manifest_is_told_at_once_with_its_pointer() {
    let site = Site::on(Database::sqlite().await).await;
    let validate = async |manifest: &Value| site.send(Method::POST, "/v1/agents/validate", manifest).await;
    let good = validate(&manifest(&site, "one")).await;
    assert_eq!((good.status.as_u16(), &good.json()["valid"]), (200, &json!(true)), "{:?}", good.body);
    let form = json!({
        "model": { "provider": "scripted", "name": "demo", "script": [{ "text": "x" }] },
        "id": "no", "input": "no", "mcp": [{ "url": site.fake.url(), "side_effect_class": "sometimes" }], "tols": [],
    });
    assert_eq!(pointers(&validate(&form).await), ["/id", "/input", "/mcp/0/side_effect_class", "/tols"]);
    let meaning = json!({
        "model": { "provider": "openai", "name": "gpt", "secret": "nowhere", "parameters": { "temperature": 0, "top_p": 1 } },
        "mcp": [{ "url": "http://tools.example.com/mcp", "namespace": "a" }, { "server": "unknown" }],
        "secrets": ["key", "key", ""],
        "limits": { "max_parallel_tool_calls": 100 },
        "policies": [
            { "name": "same", "action": "deny", "scope": "server:nowhere" },
            { "name": "same", "action": "deny", "when": "args.x +" },
        ],
    });
    assert_eq!(
        pointers(&validate(&meaning).await),
        [
            "/mcp/0/url",
            "/mcp/1/server",
            "/model/parameters/top_p",
            "/model/secret",
            "/policies/0/scope",
            "/policies/1/name",
            "/policies/1/when",
            "/secrets/1",
            "/secrets/2",
        ]
    );
    let undeclared = json!({
        "model": { "provider": "scripted", "name": "demo", "script": [{ "text": "x" }] },
        "policies": [{ "name": "p", "action": "deny", "scope": "tool:charge" }],
    });
    assert_eq!(pointers(&validate(&undeclared).await), ["/policies/0/scope"]);
    let mut warned = manifest(&site, "one");
    warned["policies"] = json!([{ "name": "p", "action": "deny", "scope": "tool:refund" }]);
    let warned = validate(&warned).await.json();
    assert!(warned["warnings"][0]["message"].as_str().unwrap().contains("'refund'"), "{warned}");
    let path = |name: &str, version: &str| format!("/v1/agents/billing/{name}/versions/{version}");
    for (name, version) in [("charger", "1.0"), ("charger", "v1.0.0"), ("charger", "01.0.0"), ("-charger", "1.0.0")] {
        let refused = site.send(Method::PUT, &path(name, version), &manifest(&site, "one")).await;
        assert_eq!(pointers(&refused), [""], "{name} {version}");
    }
    let refused = site.server.send(yaml_request(&path("charger", "1.0.0"), &site.admin, "model: {name: a\n")).await;
    let problem = refused.problem(400, "malformed-json");
    assert!(problem["detail"].as_str().unwrap().contains("line "), "{problem}");
    check_yaml_that_grows(&site, &path("charger", "1.0.0")).await;
    let refused = site.server.send(yaml_request(&path("charger", "1.0.0"), &site.admin, "model: 5\nmodle: x\n")).await;
    let said = faults(&refused);
    assert_eq!(said.len(), 2, "{said:?}");
    assert_eq!(site.get("/v1/agents").await["data"], json!([]));
}

#[tokio::test]
async fn b248_faults_of_the_form_and_of_the_meaning_are_told_together() {
    let site = Site::on(Database::sqlite().await).await;
    let mut all = json!({
        "model": { "provider": "openai", "name": "gpt", "secret": "nowhere", "parameters": { "temperature": 0, "top_p": 1 } },
        "bogus": 1,
        "mcp": [{ "url": "http://tools.example.com/mcp", "side_effect_class": "sometimes" }],
        "limits": { "max_turns": 0 },
        "tools": [
            { "name": "pay", "input_schema": { "type": "object" }, "executor": { "type": "client" } },
            { "name": "pay", "input_schema": { "type": "object" }, "executor": { "type": "client" }, "colour": "red" },
        ],
        "policies": [
            { "name": "same", "action": "deny", "scope": "server:nowhere" },
            { "name": "same", "action": "deny", "when": "args.x +" },
        ],
    });
    let wrong = [
        "/bogus",
        "/limits/max_turns",
        "/mcp/0/side_effect_class",
        "/mcp/0/url",
        "/model/parameters/top_p",
        "/model/secret",
        "/policies/0/scope",
        "/policies/1/name",
        "/policies/1/when",
        "/tools/1/colour",
        "/tools/1/name",
    ];
    assert_eq!(pointers(&site.send(Method::POST, "/v1/agents/validate", &all).await), wrong);
    let published = site.send(Method::PUT, "/v1/agents/billing/charger/versions/1.x", &all).await;
    assert_eq!(pointers(&published), [&[""], wrong.as_slice()].concat(), "the version is none either");
    // A run lacks its input, and has an id that is none; what the absent input means is not said.
    all["id"] = "no id".into();
    let created = site.send(Method::POST, "/v1/runs", &all).await;
    let mut of_run = [&["/id", "/input"], wrong.as_slice()].concat();
    of_run.sort_unstable();
    assert_eq!(pointers(&created), of_run);
    // What the others are judged by is not there: then only its own faults are told, and none is made up.
    all["tools"] = json!({});
    all.as_object_mut().unwrap().remove("id");
    let form = ["/bogus", "/limits/max_turns", "/mcp/0/side_effect_class", "/tools"];
    assert_eq!(pointers(&site.send(Method::POST, "/v1/agents/validate", &all).await), form);
    let server = json!({ "url": "http://tools.example.com/mcp", "colour": "red", "auth": { "scheme": "bearer", "secret": "nowhere" } });
    let put = site.send(Method::PUT, "/v1/mcp-servers/till", &server).await;
    assert_eq!(pointers(&put), ["/auth/secret", "/colour", "/url"]);
    assert_eq!(
        (&site.get("/v1/agents").await["data"], &site.get("/v1/mcp-servers").await["data"]),
        (&json!([]), &json!([]))
    );
    assert_eq!(site.get("/v1/runs").await["data"], json!([]));
}

/// A body that stands for far more than it holds, in bytes or in depth.
async fn check_yaml_that_grows(site: &Site, path: &str) {
    let model = "model: {provider: scripted, name: demo, script: [{text: hi}]}";
    let wide = format!("{model}\ninstructions: &a \"{}\"\nmcp: [{}]\n", "x".repeat(8192), vec!["*a"; 4000].join(","));
    let link = |n: u32| format!("  k{n}: &a{n} {}*a{} {}", "[".repeat(95), n - 1, "]".repeat(95));
    let links: Vec<String> = (1..40).map(link).collect();
    let deep = format!("{model}\noutput_schema:\n  k0: &a0 1\n{}\n", links.join("\n"));
    for (yaml, line) in [(wide, "line 2, column 15: "), (deep, "line 3, column 7: ")] {
        let refused = site.server.send(yaml_request(path, &site.admin, &yaml)).await;
        let problem = refused.problem(422, "validation-failed");
        let detail = problem["errors"][0]["detail"].as_str().unwrap();
        assert!(detail.starts_with(line) && detail.contains("anchors and aliases"), "{problem}");
    }
}
