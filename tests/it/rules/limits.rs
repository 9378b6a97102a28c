//! Limits that people may raise, over the API: how they are found, voted on and told, and what rules for limits do.

use http::Method;
use serde_json::{Value, json};

use super::{Site, faults, pointers};
use crate::http::harness::Answer;
use crate::support::database::{Database, both_stores, eventually};

both_stores! {
    b244_a_limit_that_is_reached_waits_in_the_inbox_and_a_person_lets_the_run_go_on_or_stops_it,
    b222_b244_what_was_asked_about_a_limit_survives_a_restart_and_a_resume_may_answer_it,
    b229_b244_a_vote_may_say_how_far_a_limit_is_raised,
    b231_b244_rules_for_limits_say_who_is_asked_and_what_silence_does,
    b244_an_agent_says_whether_its_limits_may_be_raised_and_no_run_says_more,
}

/// A run whose model calls the same tool again and again.
fn busy(site: &Site, id: &str, limits: Value) -> Value {
    let mut body = site.calling(id, &[], json!([]));
    body["model"]["script"] = json!([{ "text": "More.", "tool_calls": [{ "name": "charge", "arguments": {} }] }]);
    body["limits"] = limits;
    body
}

async fn vote(site: &Site, actor: &str, path: &str, body: &Value) -> Answer {
    let token = site.server.token("acme", actor, "approvals:decide runs:read");
    site.send_as(&token, Method::POST, path, body).await
}

/// The run once it waits or has ended.
async fn rested(site: &Site, id: &str) -> Value {
    let path = format!("/v1/runs/{id}");
    eventually("the run rests", async || {
        !matches!(site.get(&path).await["status"].as_str(), Some("queued" | "running"))
    })
    .await;
    site.get(&path).await
}

fn state(run: &Value) -> (&str, Option<&str>) {
    (run["status"].as_str().unwrap(), run["reason"].as_str())
}

async fn b244_a_limit_that_is_reached_waits_in_the_inbox_and_a_person_lets_the_run_go_on_or_stops_it(
    database: Database,
) {
    let site = Site::on(database).await;
    let run = site.settled(&busy(&site, "r", json!({ "max_turns": 1, "on_limit": "escalate" }))).await;
    assert_eq!(state(&run), ("suspended", Some("limit-escalated")), "{run:#}");
    assert_eq!(run["limits"]["on_limit"], "escalate");
    let [asked] = run["pending"]["approvals"].as_array().unwrap().as_slice() else { panic!("{run:#}") };
    assert_eq!(
        (&asked["kind"], &asked["call_id"], &asked["input"], &asked["rules"]),
        (&json!("limit"), &json!("limit:max_turns"), &json!({ "max_turns": 2 }), &json!(["on_limit"]))
    );
    assert_eq!(asked["reason"], "The run's limit of 1 model turns is reached.");
    let inbox = site.get("/v1/approvals?status=pending").await;
    assert_eq!((inbox["data"].as_array().unwrap().len(), &inbox["data"][0]["id"]), (1, &asked["id"]));
    let listed = site.get("/v1/runs?reason=limit-escalated").await;
    assert_eq!(listed["data"][0]["id"], "r");
    // The link that the run gives is followed.
    let links = run["links"].as_array().unwrap();
    let approve = links.iter().find(|link| link["rel"] == "approve").unwrap();
    let answer = vote(&site, "bob", approve["href"].as_str().unwrap(), &approve["body"]).await;
    assert_eq!((answer.status.as_u16(), &answer.json()["status"]), (200, &json!("approved")));
    let run = rested(&site, "r").await;
    assert_eq!(state(&run), ("suspended", Some("limit-escalated")), "it is reached again");
    assert_eq!((&run["turns"], &run["limits"]["max_turns"], site.sent().len()), (&json!(2), &json!(2), 2));
    assert_eq!(run["pending"]["approvals"][0]["input"], json!({ "max_turns": 3 }), "as much again as it was given");
    // Refused, the run stops with the reason that it would have had.
    let denied = json!({ "decision": "deny", "comment": "enough" });
    let answer = vote(&site, "bob", "/v1/runs/r/approvals/limit:max_turns", &denied).await;
    assert_eq!(answer.json()["status"], "denied", "{:?}", answer.body);
    let run = rested(&site, "r").await;
    assert_eq!((state(&run), &run["output"]["text"]), (("stopped", Some("max-turns")), &json!("More.")));
    let late = vote(&site, "carol", "/v1/runs/r/approvals/limit:max_turns", &json!({ "decision": "approve" })).await;
    assert_eq!(late.problem(409, "already-decided")["approval"]["votes"][0]["comment"], "enough");
    let audit = site.get("/v1/admin/audit?run_id=r").await;
    let actions: Vec<&Value> = audit["data"].as_array().unwrap().iter().map(|row| &row["action"]).collect();
    assert_eq!(actions, ["approval.deny", "approval.approve"]);
    let events = site.get("/v1/runs/r/events?limit=200").await;
    let told: Vec<&str> =
        events["data"].as_array().unwrap().iter().filter_map(|event| event["type"].as_str()).collect();
    let count = |kind: &str| told.iter().filter(|told| **told == kind).count();
    assert_eq!((count("approval-requested"), count("approval-decided"), count("result")), (2, 2, 1));
}

async fn b222_b244_what_was_asked_about_a_limit_survives_a_restart_and_a_resume_may_answer_it(database: Database) {
    let Site { server, fake, admin } = Site::on(database).await;
    let site = Site { server, fake, admin };
    // Calls of a turn that exceed the limit wait with it, and so does what people must be asked about them.
    let calls = [("charge", json!({ "amount": 1 })), ("look", json!({}))];
    let review = json!({ "name": "review", "scope": "tool:charge", "action": "require_approval" });
    let mut body = site.calling("r", &calls, json!([review]));
    body["limits"] = json!({ "max_tool_calls": 1, "on_limit": "escalate" });
    let run = site.settled(&body).await;
    assert_eq!((state(&run), site.sent().len()), (("suspended", Some("limit-escalated")), 0), "{run:#}");
    let site = Site { server: site.server.restart().await, ..site };
    let run = rested(&site, "r").await;
    assert_eq!(run["pending"]["approvals"][0]["input"], json!({ "max_tool_calls": 3 }), "{run:#}");
    let votes = json!({ "approvals": [{ "call_id": "limit:max_tool_calls", "decision": "approve" }] });
    let answer = site.send(Method::POST, "/v1/runs/r/resume", &votes).await;
    assert_eq!(answer.status, 200, "it goes on waiting: {:?}", answer.body);
    let run = rested(&site, "r").await;
    assert_eq!((state(&run), site.sent().len()), (("suspended", Some("approval-required")), 0), "{run:#}");
    let site = Site { server: site.server.restart().await, ..site };
    let answer = vote(&site, "bob", "/v1/runs/r/approvals/call_1", &json!({ "decision": "approve" })).await;
    assert_eq!(answer.status, 200, "{:?}", answer.body);
    let run = rested(&site, "r").await;
    assert_eq!((state(&run), site.sent().len()), (("completed", None), 2), "{run:#}");
}

async fn b229_b244_a_vote_may_say_how_far_a_limit_is_raised(database: Database) {
    let site = Site::on(database).await;
    let limits = json!({ "max_tokens": 20, "on_limit": "escalate" });
    let run = site.settled(&busy(&site, "r", limits)).await;
    assert_eq!(run["pending"]["approvals"][0]["input"], json!({ "max_tokens": 40 }), "{run:#}");
    let path = "/v1/runs/r/approvals/limit:max_tokens";
    let raise = |to: Value| json!({ "decision": "approve", "arguments": to });
    for (useless, says) in [
        (json!({ "max_tokens": 24 }), "from 25 to"),
        (json!({ "max_tokens": 30.5 }), "whole number"),
        (json!({ "max_turns": 99 }), "the one number `max_tokens`"),
        (json!({}), "the one number `max_tokens`"),
    ] {
        let answer = vote(&site, "bob", path, &raise(useless)).await;
        let [(pointer, detail)] = faults(&answer).try_into().unwrap();
        assert!(pointer == "/arguments" && detail.contains(says), "{detail}");
    }
    assert_eq!(site.get("/v1/runs/r").await["revision"], run["revision"], "nothing was written");
    let answer = vote(&site, "bob", path, &raise(json!({ "max_tokens": 35 }))).await;
    let approval = answer.json();
    assert_eq!((&approval["status"], &approval["input"]), (&json!("approved"), &json!({ "max_tokens": 35 })));
    let run = rested(&site, "r").await;
    // Each turn costs 15, and the next one reads 10 at least.
    assert_eq!((state(&run), &run["turns"]), (("suspended", Some("limit-escalated")), &json!(2)), "{run:#}");
    assert_eq!(run["limits"]["max_tokens"], 35);
}

async fn b231_b244_rules_for_limits_say_who_is_asked_and_what_silence_does(database: Database) {
    let site = Site::on(database).await;
    let rule = |when: &str, approval: Value| {
        json!({ "name": "ceiling", "trigger": "limit:reached", "when": when, "action": "require_approval",
            "reason": "Ask the owner.", "approval": approval })
    };
    let with = |id: &str, policies: Value| {
        let mut body = busy(&site, id, json!({ "max_turns": 1 }));
        body["policies"] = policies;
        body
    };
    // A rule asks although the run itself would stop, and says of whom.
    let owner = json!({ "approvers": { "subjects": ["dave"] }, "on_reject": "fail" });
    let run = site.settled(&with("asks", json!([rule("run.turns >= 1", owner)]))).await;
    let asked = &run["pending"]["approvals"][0];
    assert_eq!(state(&run), ("suspended", Some("limit-escalated")), "{run:#}");
    assert_eq!(asked["reason"], "The run's limit of 1 model turns is reached. Ask the owner.");
    let path = "/v1/runs/asks/approvals/limit:max_turns";
    vote(&site, "bob", path, &json!({ "decision": "deny" })).await.problem(403, "not-an-approver");
    assert_eq!(vote(&site, "dave", path, &json!({ "decision": "deny" })).await.json()["status"], "denied");
    let run = rested(&site, "asks").await;
    assert_eq!((state(&run), &run["error"]["code"]), (("failed", None), &json!("limit-reached")), "{run:#}");
    // One that does not hold changes nothing, one that fails the run fails it, and so does one that cannot be evaluated.
    let run = site.settled(&with("other", json!([rule("run.turns > 5", json!({}))]))).await;
    assert_eq!(state(&run), ("stopped", Some("max-turns")), "{run:#}");
    let fail = json!({ "name": "never", "trigger": "limit:reached", "action": "fail", "reason": "No more." });
    let run = site.settled(&with("never", json!([fail, rule("true", json!({}))]))).await;
    assert_eq!((state(&run), &run["error"]["code"]), (("failed", None), &json!("limit-reached")), "{run:#}");
    assert!(run["error"]["message"].as_str().unwrap().contains("'never': No more."), "{run:#}");
    let run = site.settled(&with("broken", json!([rule("run.metadata.team == 'a'", json!({}))]))).await;
    assert!(run["error"]["message"].as_str().unwrap().contains("could not be evaluated"), "{run:#}");
    // Nobody decides in time.
    site.settled(&with("late", json!([rule("true", json!({ "timeout_s": 1 }))]))).await;
    eventually("the deadline stops it", async || site.get("/v1/runs/late").await["status"] == "stopped").await;
    let approval = &site.get("/v1/runs/late/approvals").await["data"][0];
    assert_eq!((&approval["status"], &approval["votes"][0]["actor"]), (&json!("denied"), &json!("system:timeout")));
}

async fn b244_an_agent_says_whether_its_limits_may_be_raised_and_no_run_says_more(database: Database) {
    let site = Site::on(database).await;
    let mut manifest = busy(&site, "x", json!({ "max_turns": 1 }));
    for beside in ["id", "input"] {
        manifest.as_object_mut().unwrap().remove(beside);
    }
    for (version, on_limit) in [("1.0.0", "stop"), ("2.0.0", "escalate")] {
        manifest["limits"]["on_limit"] = json!(on_limit);
        let path = format!("/v1/agents/billing/charger/versions/{version}");
        assert_eq!(site.send(Method::PUT, &path, &manifest).await.status, 201);
    }
    let run = |id: &str, version: &str, limits: Value| json!({ "id": id, "agent": format!("billing/charger@{version}"), "input": "Go.", "limits": limits });
    let looser = run("r", "1.0.0", json!({ "on_limit": "escalate" }));
    let answer = site.send(Method::POST, "/v1/runs", &looser).await;
    assert_eq!(pointers(&answer), ["/limits/on_limit"]);
    assert_eq!(state(&site.settled(&run("a", "1.0.0", json!({}))).await), ("stopped", Some("max-turns")));
    assert_eq!(state(&site.settled(&run("b", "2.0.0", json!({}))).await), ("suspended", Some("limit-escalated")));
    let tighter = site.settled(&run("c", "2.0.0", json!({ "on_limit": "stop" }))).await;
    assert_eq!(state(&tighter), ("stopped", Some("max-turns")));
    // A rule for limits stands with the run, not with a server.
    let rule = json!({ "name": "ceiling", "trigger": "limit:reached", "action": "fail" });
    let body = json!({ "url": site.fake.url(), "policies": [rule] });
    assert_eq!(pointers(&site.send(Method::PUT, "/v1/mcp-servers/till", &body).await), ["/policies/0/trigger"]);
}
