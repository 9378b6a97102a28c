//! Votes across nodes and deaths: one outcome for each approval, and each call at most once with its own arguments.

use std::sync::Arc;

use reqwest::Method;
use serde_json::{Value, json};

use super::dice::Dice;
use crate::support::database::{Database, both_stores};
use crate::support::fake_mcp::{FakeMcp, Reply};
use crate::support::product::{Options, Product};
use crate::support::world::run_on;

/// Rounds of each race; `COUNTERSIGN_TEST_RACES` asks for more.
const ROUNDS: usize = 5;
/// Voters of one race.
const VOTERS: usize = 50;

both_stores! {
    field_a007_a_node_that_dies_between_a_vote_and_its_call_sends_it_once_or_asks,
}

fn gated(id: &str, fake: &FakeMcp, amounts: &[usize]) -> Value {
    let calls: Vec<_> = amounts.iter().map(|amount| ("charge", json!({ "amount": amount }))).collect();
    run_on(id, &calls, json!([{ "url": fake.url(), "require_approval": true }]))
}

async fn asked(node: &Product, id: &str) -> Vec<Value> {
    let run = node.rested(id).await;
    assert_eq!(run["reason"], "approval-required", "{run}");
    run["pending"]["approvals"].as_array().unwrap().clone()
}

fn vote_path(approval: &Value) -> String {
    format!("/v1/approvals/{}/decisions", approval["id"].as_str().unwrap())
}

/// After the vote is stored and before it is answered; after the receipt is stored and before the request leaves.
async fn field_a007_a_node_that_dies_between_a_vote_and_its_call_sends_it_once_or_asks(database: Database) {
    for (at, point, certain) in [("a", "run.decide.after#1", true), ("b", "journal.commit.after#4", false)] {
        let fake = FakeMcp::start().await;
        fake.on_call(|_| Reply::text("charged"));
        let options = Options::default().with("COUNTERSIGN_FAILPOINT_KILL", point);
        let node = Product::start_as(&database.url, &options).await;
        node.post("/v1/runs", &gated(at, &fake, &[5]), 201).await;
        let open = asked(&node, at).await;
        let vote = json!({ "decision": "approve" });
        let request = crate::support::product::Ask {
            tenant: "acme",
            method: Method::POST,
            path: &vote_path(&open[0]),
            body: Some(&vote),
            key: None,
            patience: std::time::Duration::from_secs(20),
        };
        // It may be answered or not: the node dies.
        let _answered = node.try_send(&request).await;
        node.ended().await;
        let node = Product::start(&database).await;
        let approval = node.get(&format!("/v1/approvals/{}", open[0]["id"].as_str().unwrap())).await;
        assert_eq!(approval["status"], "approved", "{point}: the vote was stored");
        let run = node.rested(at).await;
        if certain || run["status"] == "completed" {
            assert_eq!((&run["status"], fake.count("tools/call")), (&json!("completed"), 1), "{point}: {run}");
        } else {
            assert_eq!(run["reason"], "tool-reconciliation-required", "{point}: {run}");
            assert!(fake.count("tools/call") <= 1, "{point}");
        }
        node.kill();
    }
}

fn rounds() -> usize {
    let asked = countersign::config::process_env("COUNTERSIGN_TEST_RACES");
    asked.and_then(|text| text.parse().ok()).unwrap_or(ROUNDS)
}

/// What 50 voters on two nodes got for these approvals, each voting on each in an order of its own.
async fn race(nodes: &[Arc<Product>; 2], run: usize, open: &[Value]) -> Vec<(usize, u16, Value)> {
    let mut votes = Vec::new();
    for voter in 0..VOTERS {
        let mut dice = Dice::new(run as u64, "votes", voter as u64);
        let node = Arc::clone(&nodes[usize::from(dice.roll(2) == 0)]);
        let paths: Vec<_> = open.iter().map(vote_path).collect();
        let turned = usize::from(dice.roll(2) == 0);
        let decisions: Vec<_> = paths.iter().map(|_| if dice.roll(3) == 0 { "deny" } else { "approve" }).collect();
        votes.push((dice.roll(u64::MAX), async move {
            let mut got = Vec::new();
            for at in 0..paths.len() {
                let which = (at + turned) % paths.len();
                let body = json!({ "decision": decisions[which] });
                let (status, answer) = node.vote_as(&format!("voter{voter}"), &paths[which], &body).await;
                got.push((which, status, answer));
            }
            got
        }));
    }
    votes.sort_by_key(|(place, _)| *place);
    futures::future::join_all(votes.into_iter().map(|(_, vote)| vote)).await.concat()
}

#[tokio::test]
async fn b230_field_a091_fifty_voters_on_two_nodes_come_to_one_outcome_for_each_approval() {
    let (database, fake) = (Database::postgres().await, FakeMcp::start().await);
    fake.on_call(|_| Reply::text("charged"));
    let nodes = [Arc::new(Product::start(&database).await), Arc::new(Product::start(&database).await)];
    for round in 0..rounds() {
        for amounts in [vec![round * 10 + 1], vec![round * 10 + 2, round * 10 + 3]] {
            let (id, before) = (format!("r{round}-{}", amounts.len()), fake.count("tools/call"));
            nodes[round % 2].post("/v1/runs", &gated(&id, &fake, &amounts), 201).await;
            let open = asked(&nodes[1], &id).await;
            let answers = race(&nodes, round, &open).await;
            let mut expected = Vec::new();
            for (which, asked) in open.iter().enumerate() {
                let won: Vec<_> = answers
                    .iter()
                    .filter(|(at, status, _)| *at == which && *status == 200)
                    .map(|(_, _, a)| a)
                    .collect();
                assert_eq!(won.len(), 1, "one vote decides: {answers:?}");
                let outcome = &won[0]["status"];
                for (_, status, answer) in answers.iter().filter(|(at, status, _)| *at == which && *status != 200) {
                    assert_eq!((*status, &answer["code"]), (409, &json!("already-decided")), "{answer}");
                    assert_eq!((&answer["approval"]["status"], &answer["approval"]["id"]), (outcome, &asked["id"]));
                }
                if outcome == "approved" {
                    expected.push(asked["input"].to_string());
                }
            }
            let run = nodes[0].rested(&id).await;
            assert_eq!(run["status"], "completed", "{run}");
            let mut sent: Vec<_> = fake.seen_rpc("tools/call")[before..]
                .iter()
                .map(|seen| seen.body["params"]["arguments"].to_string())
                .collect();
            sent.sort();
            expected.sort();
            assert_eq!(sent, expected, "each approved call once, with its own arguments");
        }
    }
}
