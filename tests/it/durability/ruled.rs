//! What rules make of lost calls and of limits, with a death at every point: people are asked once for each question, and
//! nothing happens that neither a rule nor a person allowed.

use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::failpoints::{Kind, Scenario, charge, only_look, reset, settle, sweep};
use super::site::Site;
use crate::support::fake_mcp::FakeMcp;

const ASKED: Scenario = Scenario {
    name: "a lost call that people have sent again",
    status: "completed",
    receipts: 1,
    body: asked,
    act: approve_all,
    repeats: only_look,
};
const RAISED: Scenario = Scenario {
    name: "a limit that people raise",
    status: "completed",
    receipts: 1,
    body: raised,
    act: approve_all,
    repeats: only_look,
};
const RULED: Scenario = Scenario {
    name: "a lost call that a rule has sent again",
    status: "completed",
    receipts: 1,
    body: ruled,
    act: settle,
    repeats: any,
};

pub(super) fn any(_tool: &str) -> bool {
    true
}

/// The first answer is lost, and people are asked.
pub(super) fn asked(fake: &FakeMcp) -> Value {
    let mut body = reset(fake);
    body["policies"] = json!([{ "name": "lost", "trigger": "dispatch:indeterminate", "action": "require_approval" }]);
    body
}

/// The call is one more than the run may make, and a rule asks people.
pub(super) fn raised(fake: &FakeMcp) -> Value {
    let mut body = charge(fake);
    // Also what a crash leaves unknown is theirs to decide.
    body["policies"] = json!([
        { "name": "lost", "trigger": "dispatch:indeterminate", "action": "require_approval" },
        { "name": "ceiling", "trigger": "limit:reached", "action": "require_approval" },
    ]);
    body["limits"] = json!({ "max_tool_calls": 0 });
    body
}

/// The first answer is lost, and a rule has the call sent again.
pub(super) fn ruled(fake: &FakeMcp) -> Value {
    let mut body = reset(fake);
    body["policies"] = json!([{ "name": "lost", "trigger": "dispatch:indeterminate", "action": "retry" }]);
    body
}

/// Brings the run to its end: whatever people are asked is approved.
fn approve_all<'a>(site: &'a mut Site, _fake: &'a FakeMcp, body: &'a Value) -> BoxFuture<'a, String> {
    async move {
        let id = site.create(body).await;
        let deadline = Instant::now() + Duration::from_secs(40);
        loop {
            let run = site.rested(&id).await;
            if run["status"] != "suspended" {
                return id;
            }
            let reason = run["reason"].as_str().unwrap();
            assert!(matches!(reason, "approval-required" | "limit-escalated"), "{run}");
            // A run that waits for people has asked them something, and it stands in their inbox.
            let open = run["pending"]["approvals"].as_array().unwrap();
            assert!(!open.is_empty(), "it waits for nothing: {run}");
            let inbox = site.get("/v1/approvals?status=pending").await["data"].clone();
            let ids = |list: &[Value]| list.iter().map(|asked| asked["id"].clone()).collect::<Vec<_>>();
            assert_eq!(ids(inbox.as_array().unwrap()), ids(open), "{run}");
            for asked in open {
                let (status, answer) = site.approve(asked["id"].as_str().unwrap()).await;
                // A vote that was stored before the node died finds its approval decided.
                assert!(matches!(status, 200 | 409), "{status} {answer}");
            }
            assert!(Instant::now() < deadline, "{id} does not settle: {run}");
        }
    }
    .boxed()
}

#[tokio::test]
async fn b020_b244_field_a085_a_limit_that_people_raise_survives_a_death_at_every_point_on_sqlite() {
    sweep(RAISED, Kind::Sqlite).await;
}

#[tokio::test]
async fn b020_b214_field_a085_what_people_decide_of_a_lost_call_survives_a_death_at_every_point_on_postgres() {
    sweep(ASKED, Kind::Postgres).await;
}

#[tokio::test]
async fn b020_b214_a_rule_for_lost_calls_survives_a_death_at_every_point_on_sqlite() {
    sweep(RULED, Kind::Sqlite).await;
}
