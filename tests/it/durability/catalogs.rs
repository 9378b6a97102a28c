//! A process that dies between the reading of a changed catalog and the commit that records it.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::support::database::{Database, both_stores};
use crate::support::fake_mcp::{FakeMcp, Reply, Step, tool};
use crate::support::product::{Options, Product};
use crate::support::world::run_on;

both_stores! {
    b076_a_run_that_died_before_its_new_catalog_was_stored_is_bound_to_the_old_one,
}

/// A run that accepts changes, on a server whose first call brings another tool.
fn run(fake: &Arc<FakeMcp>) -> Value {
    let own = Arc::downgrade(fake);
    fake.on_call(move |_| {
        own.upgrade().unwrap().serve(vec![tool("charge"), tool("refund")]);
        Reply::Sse(vec![Step::ListChanged, Step::Result(json!({ "content": [] }))])
    });
    let mut body = run_on("r", &[("charge", json!({ "amount": 5 }))], json!([{ "url": fake.url() }]));
    body["on_catalog_change"] = json!("accept");
    body
}

async fn b076_a_run_that_died_before_its_new_catalog_was_stored_is_bound_to_the_old_one(database: Database) {
    let fake = Arc::new(FakeMcp::start().await);
    // The first reading is the admission's, the second the refresh.
    let options = Options::default().with("COUNTERSIGN_FAILPOINT_KILL", "catalog.read.after#2");
    let mut product = Product::start_as(&database.url, &options).await;
    product.post("/v1/runs", &run(&fake), 201).await;
    let deadline = Instant::now() + Duration::from_secs(20);
    while !product.has_ended() {
        assert!(Instant::now() < deadline, "the refresh is not reached: {}", product.log());
        sleep(Duration::from_millis(10)).await;
    }
    assert_eq!((fake.count("tools/call"), fake.count("tools/list")), (1, 2));
    let product = Product::start(&database).await;
    let run = product.rested("r").await;
    assert_eq!((&run["status"], &run["reason"]), (&json!("suspended"), &json!("mcp-catalog-changed")), "{run}");
    assert_eq!((&run["binding"]["revision"], &run["warnings"]), (&json!(1), &json!([])));
    let changed = product.post("/v1/runs/r/resume", &json!({}), 409).await;
    assert_eq!(changed["detail"], "MCP tool catalog changed across resume (added: refund).");
    assert_eq!(product.get("/v1/runs/r").await, run, "a refused resume leaves the run as it was");
    product.post("/v1/runs/r/resume", &json!({ "on_catalog_change": "accept" }), 202).await;
    let run = product.rested("r").await;
    assert_eq!((&run["status"], &run["binding"]["revision"]), (&json!("completed"), &json!(2)), "{run}");
    assert_eq!((&run["turns"], fake.count("tools/call")), (&json!(2), 1), "no turn is paid again, no call made again");
    let text =
        "MCP tool catalog changed across resume (added: refund); the run's resume binding now records the new catalog.";
    assert_eq!(run["warnings"][0]["message"], text);
}
