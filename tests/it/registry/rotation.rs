//! Rotation of the master keys with the real binary.

use std::process::{Command, Output};

use http::Method;
use serde_json::json;

use super::calling;
use crate::support::database::{Database, both_stores};
use crate::support::fake_mcp::{FakeMcp, Reply};
use crate::support::product::{Options, Product};

/// 32 bytes in base64 each.
const OLD: &str = "k1:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
const NEW: &str = "k2:ICEiIyQlJicoKSorLC0uLzAxMjM0NTY3ODk6Ozw9Pj8=";

both_stores! {
    field_a137_after_a_rotation_the_old_key_can_go_and_every_secret_still_works => field_a137_after_a_rotation_the_old_key_can_go_and_every_secret_still_works,
}

fn rotate(url: &str, keys: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_countersign"));
    command.args(["secrets", "rotate"]).env_clear();
    command.env("COUNTERSIGN_DATABASE_URL", url).env("COUNTERSIGN_MASTER_KEYS", keys).output().unwrap()
}

#[track_caller]
fn says(output: &Output, succeeds: bool, words: &str) {
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.success(), succeeds, "{text}");
    assert!(text.contains(words), "{text}");
    assert!(!text.contains("canary"), "no value in {text}");
}

async fn put(product: &Product, name: &str, value: &str) {
    let body = json!({ "value": value, "hosts": ["127.0.0.1"] });
    assert_eq!(product.send(Method::PUT, &format!("/v1/secrets/{name}"), Some(&body)).await.status(), 204);
}

async fn field_a137_after_a_rotation_the_old_key_can_go_and_every_secret_still_works(database: Database) {
    let with = |keys: &str| Options::default().with("COUNTERSIGN_MASTER_KEYS", keys);
    let both = format!("{NEW},{OLD}");
    let product = Product::start_as(&database.url, &with(OLD)).await;
    let fake = FakeMcp::start().await;
    fake.on_call(|_| Reply::Reset);
    for at in 0..3 {
        put(&product, &format!("s{at}"), &format!("canary-{at}")).await;
    }
    let auth = json!({ "scheme": "bearer", "secret": "mine" });
    let mut body = calling(&["charge"], json!([{ "url": fake.url(), "auth": auth }]));
    (body["id"], body["secrets"]) = (json!("r"), json!({ "mine": "canary-of-the-run" }));
    product.post("/v1/runs", &body, 201).await;
    assert_eq!(product.rested("r").await["reason"], "tool-reconciliation-required");
    if database.is_postgres() {
        // Beside a node that still puts the old key first: what it puts is under the old key, until it is rotated again.
        says(&rotate(&database.url, &both), true, "4 secrets were sealed anew under the key \"k2\"");
        put(&product, "late", "canary-late").await;
        says(&rotate(&database.url, &both), true, "1 secrets were sealed anew");
        product.kill();
    } else {
        says(&rotate(&database.url, &both), false, "another process uses");
        product.kill();
        says(&rotate(&database.url, &both), true, "4 secrets were sealed anew under the key \"k2\"");
    }
    says(&rotate(&database.url, &both), true, "0 secrets were sealed anew under the key \"k2\"");
    says(&rotate(&database.url, NEW), true, "Every stored secret is under \"k2\" now.");
    says(&rotate(&database.url, OLD), false, "sealed under the key \"k2\", which is not among the master keys");
    says(&rotate(&database.url, "k1:short"), false, "COUNTERSIGN_MASTER_KEYS");

    let refused = Product::try_start(&database.url, &with(OLD)).await.err().expect("it does not start");
    assert!(refused.contains("COUNTERSIGN_MASTER_KEYS does not open the stored secrets"), "{refused}");
    let product = Product::start_as(&database.url, &with(NEW)).await;
    fake.on_call(|_| Reply::text("charged"));
    product.post("/v1/runs/r/resume", &json!({ "retry_tool_call_ids": ["call_1"] }), 202).await;
    assert_eq!(product.rested("r").await["status"], "completed");
    let auth = json!({ "scheme": "bearer", "secret": "s1" });
    let mut body = calling(&["charge"], json!([{ "url": fake.url(), "auth": auth }]));
    body["id"] = json!("r2");
    product.post("/v1/runs", &body, 201).await;
    assert_eq!(product.rested("r2").await["status"], "completed");
    let last: Vec<String> =
        fake.seen_rpc("tools/call").iter().map(|seen| seen.headers["authorization"].clone()).collect();
    assert_eq!(last[last.len() - 2..], ["Bearer canary-of-the-run", "Bearer canary-1"]);
    let listed = product.get("/v1/secrets").await;
    assert!(listed["data"].as_array().unwrap().iter().all(|secret| secret["key_id"] == "k2"), "{listed}");
}

#[tokio::test]
async fn b249_a_stored_secret_that_was_changed_or_moved_opens_nowhere_and_the_server_says_so() {
    let database = Database::sqlite().await;
    let product = Product::start(&database).await;
    put(&product, "token", "canary-1").await;
    product.kill();
    database.execute("UPDATE secrets SET name = 'moved'").await;
    let refused = Product::try_start(&database.url, &Options::default()).await.err().expect("it does not start");
    assert!(refused.contains("\"moved\" does not open under the key \"k1\""), "{refused}");
    assert!(!refused.contains("canary"), "{refused}");
    says(&rotate(&database.url, &format!("{NEW},{OLD}")), false, "1 do not open under the key \"k1\"");
}
