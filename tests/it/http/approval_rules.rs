//! What rules make of an approval: quorum, deadlines, who may vote. The rules are written into the stored run here.

use serde_json::{Value, json};

use super::approvals::{boss, decide, rested};
use super::harness::Server;
use super::inputs::{events, told, until};
use crate::support::database::{Database, both_stores};
use crate::support::fake_mcp::{FakeMcp, Reply, Step};
use crate::support::world::run_on;

both_stores! {
    b228_a_quorum_counts_actors,
    b231_field_a086_a_deadline_that_is_over_denies_and_a_late_vote_is_told,
    b231_a_deadline_approves_or_asks_the_next_where_the_rule_says_so,
    b231_a_deadline_counts_while_no_node_is_up,
    b096_a_sample_waits_for_people_while_its_call_is_out,
    b096_a_sample_of_the_newer_era_waits_for_people_and_survives_a_restart,
}

struct Site {
    server: Server,
    fake: FakeMcp,
    postgres: bool,
}

/// A run with one charge that waits for an approval.
async fn asked(database: Database) -> Site {
    let postgres = database.url.starts_with("postgres");
    let (server, fake) = (Server::start_on(database).await, FakeMcp::start().await);
    let mcp = json!([{ "url": fake.url(), "require_approval": true }]);
    let run = server.settled(&run_on("r", &[("charge", json!({ "amount": 5 }))], mcp)).await;
    assert_eq!(run["reason"], "approval-required", "{run:#}");
    Site { server, fake, postgres }
}

impl Site {
    /// Writes another rule into the stored run.
    async fn rule(&self, from: &str, to: &str) {
        let sql = if self.postgres {
            format!("UPDATE runs SET state = replace(state::text, '{from}', '{to}')::json")
        } else {
            format!("UPDATE runs SET state = replace(state, '{from}', '{to}')")
        };
        self.server.execute(&sql).await;
    }

    /// The time of what waits is over.
    async fn time_passes(&self) {
        self.server.execute("UPDATE approvals SET expires_at = 1 WHERE status = 'pending'").await;
    }

    async fn approvals(&self) -> Vec<Value> {
        let list = self.server.get("/v1/runs/r/approvals", &self.server.alice()).await.json();
        list["data"].as_array().unwrap().clone()
    }
}

async fn b228_a_quorum_counts_actors(database: Database) {
    let site = asked(database).await;
    site.rule("\"required\":1", "\"required\":2").await;
    site.rule("\"exclude_starter\":false", "\"exclude_starter\":true").await;
    let approve = json!({ "decision": "approve" });
    decide(&site.server, "alice", "call_1", approve.clone()).await.problem(403, "not-an-approver");
    let first = decide(&site.server, "bob", "call_1", approve.clone()).await.json();
    assert_eq!((&first["status"], first["votes"].as_array().unwrap().len()), (&json!("pending"), 1), "{first:#}");
    let problem = decide(&site.server, "bob", "call_1", approve.clone()).await.problem(409, "already-voted");
    assert_eq!(problem["links"][0]["rel"], "approvals");
    let run = site.server.get("/v1/runs/r", &site.server.alice()).await.json();
    assert_eq!((&run["status"], site.fake.count("tools/call")), (&json!("suspended"), 0));
    assert_eq!(run["pending"]["approvals"][0]["votes"].as_array().unwrap().len(), 1, "still 1 of 2");
    assert_eq!(decide(&site.server, "carol", "call_1", approve).await.json()["status"], "approved");
    assert_eq!(rested(&site.server).await["status"], "completed");
    assert_eq!(site.fake.count("tools/call"), 1);
}

async fn b231_field_a086_a_deadline_that_is_over_denies_and_a_late_vote_is_told(database: Database) {
    let site = asked(database).await;
    site.time_passes().await;
    let problem =
        decide(&site.server, "bob", "call_1", json!({ "decision": "approve" })).await.problem(409, "already-decided");
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

async fn b231_a_deadline_approves_or_asks_the_next_where_the_rule_says_so(database: Database) {
    let site = asked(database).await;
    let next = "\"on_timeout\":\"escalate\",\"escalate_to\":{\"approvers\":{\"subjects\":[\"carol\"]}}";
    site.rule("\"on_timeout\":\"deny\"", next).await;
    site.time_passes().await;
    // Nobody asks: a node that looks for deadlines finds it.
    let run = until(&site.server, "r", |run| {
        run["pending"]["approvals"][0]["votes"] == json!([]) && run["revision"].as_i64() > Some(2)
    })
    .await;
    super::approvals::soon(|| async { site.approvals().await.len() == 2 }).await;
    let stood: Vec<_> = site.approvals().await.iter().map(|asked| asked["status"].clone()).collect();
    assert!(stood.contains(&json!("escalated")) && stood.contains(&json!("pending")), "{stood:?} {run:#}");
    let approve = json!({ "decision": "approve" });
    decide(&site.server, "bob", "call_1", approve.clone()).await.problem(403, "not-an-approver");
    site.rule("\"on_timeout\":\"deny\"", "\"on_timeout\":\"approve\"").await;
    site.time_passes().await;
    let run = until(&site.server, "r", |run| run["status"] == "completed").await;
    assert_eq!(site.fake.count("tools/call"), 1, "{run:#}");
    decide(&site.server, "carol", "call_1", approve).await.problem(409, "already-decided");
}

async fn b231_a_deadline_counts_while_no_node_is_up(database: Database) {
    let other = database.clone();
    let Site { server, fake, .. } = asked(database).await;
    // This one looks for deadlines no more.
    server.app.stopping.cancel();
    other.execute("UPDATE approvals SET expires_at = 1 WHERE status = 'pending'").await;
    let server = server.restart().await;
    let run = until(&server, "r", |run| run["status"] == "completed").await;
    assert_eq!(fake.count("tools/call"), 0, "{run:#}");
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
