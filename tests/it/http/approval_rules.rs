//! What rules make of an approval: quorum, deadlines, who may vote. Each comes as a user gives it: with a run, an
//! agent, or a registered server.

use axum::body::Body;
use countersign::clock::{Clock as _, SystemClock};
use countersign::run::time::Timestamp;
use http::Method;
use serde_json::{Value, json};
use sqlx::{Connection as _, Executor as _, PgConnection};

use super::approvals::{boss, decide, rested};
use super::harness::{Answer, RUNS, Server, request};
use super::inputs::{events, told, until};
use crate::support::database::{Database, both_stores, eventually};
use crate::support::fake_mcp::{FakeMcp, Reply, Step};
use crate::support::product::Product;
use crate::support::world::run_on;

both_stores! {
    b228_a_quorum_counts_actors,
    b228_b233_the_rules_of_an_agent_and_of_its_server_ask_for_one_quorum,
    where_the_operator_asks_for_tokens_no_vote_that_approves_counts_without_one,
    b231_field_a086_a_deadline_that_is_over_denies_and_a_late_vote_is_told,
    b231_a_deadline_approves_or_asks_the_next_where_the_rule_says_so,
    b231_a_deadline_counts_while_no_node_is_up,
    b096_a_sample_waits_for_people_while_its_call_is_out,
    b096_a_sample_of_the_newer_era_waits_for_people_and_survives_a_restart,
}

struct Site {
    server: Server,
    fake: FakeMcp,
}

/// A policy that asks before every charge, decided like this.
fn asks(approval: Value) -> Value {
    json!([{ "name": "review", "scope": "tool:charge", "action": "require_approval", "approval": approval }])
}

/// A run with one charge that waits for an approval by this rule.
async fn asked(database: Database, approval: Value) -> Site {
    let (server, fake) = (Server::start_on(database).await, FakeMcp::start().await);
    let mut body = run_on("r", &[("charge", json!({ "amount": 5 }))], json!([{ "url": fake.url() }]));
    body["policies"] = asks(approval);
    let run = server.settled(&body).await;
    assert_eq!(run["reason"], "approval-required", "{run:#}");
    Site { server, fake }
}

impl Site {
    async fn approvals(&self) -> Vec<Value> {
        let list = self.server.get("/v1/runs/r/approvals", &self.server.alice()).await.json();
        list["data"].as_array().unwrap().clone()
    }

    async fn vote(&self, actor: &str, decision: &str) -> Answer {
        decide(&self.server, actor, "call_1", json!({ "decision": decision })).await
    }
}

async fn b228_a_quorum_counts_actors(database: Database) {
    let site = asked(database, json!({ "required": 2, "exclude_starter": true })).await;
    site.vote("alice", "approve").await.problem(403, "not-an-approver");
    let first = site.vote("bob", "approve").await.json();
    assert_eq!((&first["status"], first["votes"].as_array().unwrap().len()), (&json!("pending"), 1), "{first:#}");
    let problem = site.vote("bob", "approve").await.problem(409, "already-voted");
    assert_eq!(problem["links"][0]["rel"], "approvals");
    let run = site.server.get("/v1/runs/r", &site.server.alice()).await.json();
    assert_eq!((&run["status"], site.fake.count("tools/call")), (&json!("suspended"), 0));
    let open = &run["pending"]["approvals"][0];
    assert_eq!((open["votes"].as_array().unwrap().len(), &open["required"]), (1, &json!(2)), "still 1 of 2");
    assert_eq!(site.vote("carol", "approve").await.json()["status"], "approved");
    assert_eq!(rested(&site.server).await["status"], "completed");
    assert_eq!(site.fake.count("tools/call"), 1);
}

/// The rules of an agent and of the server that it names ask together: the highest quorum, and voters that each admits.
async fn b228_b233_the_rules_of_an_agent_and_of_its_server_ask_for_one_quorum(database: Database) {
    let (server, fake) = (Server::start_on(database).await, FakeMcp::start().await);
    let root = server.token("acme", "root", "admin");
    let put = async |path: &str, body: Value| {
        let request = request(Method::PUT, path, &root, &[], Body::from(body.to_string()));
        let answer = server.send(request).await;
        assert_eq!(answer.status, 201, "{:?}", answer.body);
    };
    let of_server = asks(json!({ "required": 2, "approvers": { "scopes": ["treasury"] } }));
    put("/v1/mcp-servers/till", json!({ "url": fake.url(), "policies": of_server })).await;
    let mut manifest = run_on("r", &[("charge", json!({ "amount": 5 }))], json!([{ "server": "till" }]));
    manifest["policies"] = asks(json!({ "exclude_starter": true }));
    for beside in ["id", "input"] {
        manifest.as_object_mut().unwrap().remove(beside);
    }
    put("/v1/agents/billing/charger/versions/1.0.0", manifest).await;
    let run = server.settled(&json!({ "id": "r", "agent": "billing/charger@1.0.0", "input": "Go." })).await;
    assert_eq!((&run["reason"], &run["pending"]["approvals"][0]["required"]), (&json!("approval-required"), &json!(2)));
    let vote = async |actor: &str, scope: &str| {
        let token = server.token("acme", actor, scope);
        server.post("/v1/runs/r/approvals/call_1", &token, &json!({ "decision": "approve" })).await
    };
    let treasurer = "runs:read approvals:decide treasury";
    vote("bob", "runs:read approvals:decide").await.problem(403, "not-an-approver");
    vote("alice", treasurer).await.problem(403, "not-an-approver");
    assert_eq!(vote("carol", treasurer).await.json()["status"], "pending");
    assert_eq!(vote("dave", treasurer).await.json()["status"], "approved");
    assert_eq!((&rested(&server).await["status"], fake.count("tools/call")), (&json!("completed"), 1));
}

async fn b231_field_a086_a_deadline_that_is_over_denies_and_a_late_vote_is_told(database: Database) {
    let site = asked(database, json!({ "timeout_s": 1 })).await;
    // The vote itself applies a deadline that no node has applied yet.
    passes(&site.approvals().await[0]).await;
    let problem = site.vote("bob", "approve").await.problem(409, "already-decided");
    assert_eq!(
        (&problem["approval"]["status"], &problem["approval"]["votes"][0]["actor"]),
        (&json!("denied"), &json!("system:timeout"))
    );
    let run = rested(&site.server).await;
    assert_eq!((&run["status"], site.fake.count("tools/call")), (&json!("completed"), 0));
    let messages = site.server.get("/v1/runs/r/messages", &site.server.alice()).await.json();
    assert!(messages["data"][2]["content"][0]["output"].as_str().unwrap().contains("in time"), "{messages:#}");
    let audit = site.server.get("/v1/admin/audit", &site.server.token("acme", "root", "admin")).await.json();
    assert_eq!(
        (audit["data"].as_array().unwrap().len(), &audit["data"][0]["action"], &audit["data"][0]["actor"]),
        (1, &json!("approval.timeout"), &json!("system:timeout"))
    );
}

#[tokio::test]
async fn b231_what_keeps_one_tenants_deadlines_waiting_keeps_no_other_tenants() {
    let database = Database::postgres().await;
    let mut holder = PgConnection::connect(&database.url).await.unwrap();
    let (server, fake) = (Server::start_on(database).await, FakeMcp::start().await);
    let asks_in = async |tenant: &str| {
        let mut body = run_on("r", &[("charge", json!({ "amount": 5 }))], json!([{ "url": fake.url() }]));
        body["policies"] = asks(json!({ "timeout_s": 2 }));
        let token = server.token(tenant, "alice", RUNS);
        let run = server.post_with("/v1/runs", &token, &[("prefer", "wait=20")], &body).await.json();
        assert_eq!(run["reason"], "approval-required", "{run:#}");
        token
    };
    let held = asks_in("acme").await;
    holder.execute("BEGIN; SELECT 1 FROM runs WHERE tenant_id = 'acme' FOR UPDATE").await.unwrap();
    let free = asks_in("globex").await;
    let status = async |token: &str| server.get("/v1/runs/r", token).await.json()["status"].clone();
    eventually("the other tenant's deadline is applied", async || status(&free).await == "completed").await;
    assert_eq!(status(&held).await, "suspended", "its deadline is over for longer");
    holder.execute("ROLLBACK").await.unwrap();
    eventually("the held one is applied too", async || status(&held).await == "completed").await;
    assert_eq!(fake.count("tools/call"), 0);
}

/// Waits until the approval's time is over.
async fn passes(approval: &Value) {
    let over: Timestamp = serde_json::from_value(approval["expires_at"].clone()).unwrap();
    eventually("the time is over", async || SystemClock.now() > over).await;
}

async fn b231_a_deadline_approves_or_asks_the_next_where_the_rule_says_so(database: Database) {
    let next = json!({ "approvers": { "subjects": ["carol"] }, "timeout_s": 1 });
    let rule = json!({ "timeout_s": 1, "on_timeout": "escalate", "escalate_to": next });
    let site = asked(database, rule).await;
    let first = site.approvals().await[0]["id"].clone();
    // Nobody asks: a node that looks for deadlines finds it. The others have a second: their vote may come too late.
    eventually("the next are asked", async || site.approvals().await.len() == 2).await;
    let stood = site.approvals().await;
    assert_eq!((&stood[1]["id"], &stood[1]["status"]), (&first, &json!("escalated")), "{stood:?}");
    assert_eq!(stood[0]["tool"], "charge");
    let run = until(&site.server, "r", |run| run["status"] == "completed").await;
    assert_eq!(site.fake.count("tools/call"), 0, "the next did not decide in time either: {run:#}");
    assert_eq!(site.approvals().await[0]["votes"][0]["actor"], "system:timeout");

    // The next have all the time that they need.
    let body = |id: &str, approval: Value| {
        let mut body = run_on(id, &[("charge", json!({ "amount": 5 }))], json!([{ "url": site.fake.url() }]));
        body["policies"] = asks(approval);
        body
    };
    let next = json!({ "approvers": { "subjects": ["carol"] } });
    let rule = json!({ "timeout_s": 1, "on_timeout": "escalate", "escalate_to": next });
    site.server.settled(&body("next", rule)).await;
    let path = "/v1/runs/next/approvals/call_1";
    let is_next = |run: &Value| run["pending"]["approvals"][0].get("expires_at").is_none();
    until(&site.server, "next", is_next).await;
    let approve = json!({ "decision": "approve" });
    site.server.post(path, &boss(&site.server, "bob"), &approve).await.problem(403, "not-an-approver");
    assert_eq!(site.server.post(path, &boss(&site.server, "carol"), &approve).await.json()["status"], "approved");
    until(&site.server, "next", |run| run["status"] == "completed").await;
    assert_eq!(site.fake.count("tools/call"), 1);

    // Silence may also mean yes.
    site.server.settled(&body("silence", json!({ "timeout_s": 1, "on_timeout": "approve" }))).await;
    let run = until(&site.server, "silence", |run| run["status"] == "completed").await;
    assert_eq!(site.fake.count("tools/call"), 2, "{run:#}");
    let late = site.server.post("/v1/runs/silence/approvals/call_1", &boss(&site.server, "carol"), &approve).await;
    late.problem(409, "already-decided");
}

async fn b231_a_deadline_counts_while_no_node_is_up(database: Database) {
    let site = asked(database, json!({ "timeout_s": 1 })).await;
    let asked = site.approvals().await[0].clone();
    let Site { server, fake } = site;
    let down = server.stop().await;
    passes(&asked).await;
    let server = down.start().await;
    let run = until(&server, "r", |run| run["status"] == "completed").await;
    assert_eq!(fake.count("tools/call"), 0, "{run:#}");
    let approval =
        server.get(&format!("/v1/approvals/{}", asked["id"].as_str().unwrap()), &server.alice()).await.json();
    assert_eq!((&approval["status"], &approval["votes"][0]["actor"]), (&json!("denied"), &json!("system:timeout")));
}

/// The real program with the operator's setting: whoever approves shows that they have seen what they approve.
async fn where_the_operator_asks_for_tokens_no_vote_that_approves_counts_without_one(database: Database) {
    let fake = FakeMcp::start().await;
    let product = Product::start_with(&database.url, &[("COUNTERSIGN_APPROVALS_REQUIRE_TOKEN", "true")]).await;
    let mut body = run_on(
        "r",
        &[("charge", json!({ "amount": 5 })), ("charge", json!({ "amount": 6 }))],
        json!([{ "url": fake.url() }]),
    );
    body["policies"] = asks(json!({}));
    product.post("/v1/runs", &body, 201).await;
    let run = product.rested("r").await;
    let open = run["pending"]["approvals"].as_array().unwrap().clone();
    let path = |at: usize| format!("/v1/approvals/{}/decisions", open[at]["id"].as_str().unwrap());
    let approve = json!({ "decision": "approve" });
    let (status, problem) = product.vote_as("bob", &path(0), &approve).await;
    assert_eq!((status, &problem["errors"][0]["pointer"]), (422, &json!("/token")), "{problem}");
    let resume = json!({ "approvals": [{ "call_id": "call_1", "decision": "approve" }] });
    let problem = product.post("/v1/runs/r/resume", &resume, 422).await;
    assert_eq!(problem["errors"][0]["pointer"], "/approvals/0/token", "{problem}");
    let (status, problem) =
        product.vote_as("bob", &path(0), &json!({ "decision": "approve", "token": open[1]["token"] })).await;
    assert_eq!((status, &problem["code"]), (403, &json!("approval-token-refused")), "{problem}");
    assert_eq!(product.get("/v1/runs/r").await["revision"], run["revision"], "nothing counted");
    let (status, answer) =
        product.vote_as("bob", &path(0), &json!({ "decision": "approve", "token": open[0]["token"] })).await;
    assert_eq!((status, &answer["status"]), (200, &json!("approved")), "{answer}");
    // To deny needs no proof.
    let (status, answer) = product.vote_as("bob", &path(1), &json!({ "decision": "deny" })).await;
    assert_eq!((status, &answer["status"]), (200, &json!("denied")), "{answer}");
    let run = product.rested("r").await;
    assert_eq!((&run["status"], fake.count("tools/call")), (&json!("completed"), 1), "{run}");
}

const SAMPLE: &str = "sampling/createMessage";

fn sampling() -> Value {
    let model = json!({ "provider": "scripted", "name": "small", "script": [{ "text": "Short." }] });
    json!({ "model": model, "approval": "always", "max_tokens": 50 })
}

fn ask(max_tokens: u64) -> Value {
    let content = json!({ "type": "text", "text": "Sum up." });
    json!({ "messages": [{ "role": "user", "content": content }], "maxTokens": max_tokens })
}

async fn b096_a_sample_waits_for_people_while_its_call_is_out(database: Database) {
    let server = Server::start_on(database).await;
    for (verdict, requests) in [("deny", 2), ("approve", 3)] {
        let (fake, id) = (FakeMcp::start().await, format!("r-{verdict}"));
        fake.on_call(|_| Reply::Sse(vec![Step::Ask(71, SAMPLE, ask(10)), Step::Told(vec![71])]));
        let entry = json!([{ "url": fake.url(), "sampling": sampling() }]);
        let body = run_on(&id, &[("charge", json!({}))], entry);
        server.post("/v1/runs", &server.alice(), &body).await;
        let run = until(&server, &id, |run| run["pending"]["approvals"][0]["id"].is_string()).await;
        let open = &run["pending"]["approvals"][0];
        assert_eq!(
            (&run["status"], &open["kind"], &open["input"]["max_tokens"]),
            (&json!("running"), &json!("sampling"), &json!(10)),
            "{run:#}"
        );
        let path = format!("/v1/approvals/{}/decisions", open["id"].as_str().unwrap());
        let voted = server.post(&path, &boss(&server, "bob"), &json!({ "decision": verdict })).await;
        assert_eq!(voted.status.as_u16(), 200, "{:?}", voted.body);
        let run = until(&server, &id, |run| run["status"] == "completed").await;
        assert_eq!(run["usage"]["model_requests"], requests, "{run:#}");
        let told = told(&server, &id).await;
        let said: Vec<_> =
            events(&server, &id, "sampling").await.iter().map(|event| event["decision"].clone()).collect();
        if verdict == "deny" {
            assert_eq!((&told["71"]["code"], said), (&json!(-1), vec![json!("refused")]), "{told}");
        } else {
            assert_eq!(
                (&told["71"]["content"]["text"], said),
                (&json!("Short."), vec![json!("reserved"), json!("made")])
            );
        }
        assert_eq!(
            server.post(&path, &boss(&server, "carol"), &json!({ "decision": "approve" })).await.status.as_u16(),
            409
        );
    }
}

async fn b096_a_sample_of_the_newer_era_waits_for_people_and_survives_a_restart(database: Database) {
    let (server, fake) = (Server::start_on(database).await, FakeMcp::start().await);
    fake.be_modern(true);
    fake.on_list(|_| {
        let tool = json!({ "name": "charge", "inputSchema": { "type": "object" } });
        Reply::Result(json!({ "resultType": "complete", "tools": [tool], "ttlMs": 0, "cacheScope": "private" }))
    });
    fake.on_call(|seen| {
        let replies = &seen.body["params"]["inputResponses"];
        if replies.is_null() {
            let requests = json!({ "m": { "method": SAMPLE, "params": ask(10) } });
            return Reply::Result(
                json!({ "resultType": "input_required", "inputRequests": requests, "requestState": "s" }),
            );
        }
        Reply::Result(json!({ "resultType": "complete", "content": [{ "type": "text", "text": replies.to_string() }] }))
    });
    let body = run_on("r", &[("charge", json!({}))], json!([{ "url": fake.url(), "sampling": sampling() }]));
    let run = server.settled(&body).await;
    assert_eq!((&run["status"], &run["reason"]), (&json!("suspended"), &json!("approval-required")), "{run:#}");
    let server = server.restart().await;
    assert_eq!(decide(&server, "bob", "call_1", json!({ "decision": "approve" })).await.json()["status"], "approved");
    let run = rested(&server).await;
    assert_eq!(
        (&run["status"], &run["usage"]["sampling"]["model_requests"]),
        (&json!("completed"), &json!(1)),
        "{run:#}"
    );
    assert_eq!(told(&server, "r").await["m"]["content"]["text"], "Short.");
}
