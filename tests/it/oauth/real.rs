//! A certified `OpenID` provider, and a FastMCP server that takes its tokens only: both discovered from the server alone.

use serde_json::json;

use super::auth;
use crate::support::counterparts::token_world;
use crate::support::database::Database;
use crate::support::product::Product;

#[tokio::test]
async fn b204_a_real_server_takes_the_token_that_a_real_issuer_gave() {
    let Some((_issuer, server)) = token_world().await else { return };
    let product = Product::start(&Database::sqlite().await).await;
    let run = |id: &str, secret: &str| {
        let script = json!([{"tool_calls": [{"name": "whoami"}]}, {"text": "Done."}]);
        json!({
            "id": id,
            "model": {"provider": "scripted", "name": "demo", "script": script},
            "input": "Who am I?",
            "mcp": [{
                "url": server.url("/mcp"),
                "auth": auth(json!({"scopes": ["runs:write"]})),
                "timeouts": {"connect_ms": 30_000},
            }],
            "secrets": {"client": secret},
        })
    };
    product.post("/v1/runs", &run("r", "svc-s3cret-canary"), 201).await;
    assert_eq!(product.rested("r").await["status"], "completed");
    let receipt = &product.get("/v1/runs/r/receipts").await["data"][0];
    assert_eq!(receipt["output"]["structuredContent"], json!({"client": "svc", "scopes": ["runs:write"]}), "{receipt}");
    let problem = product.post("/v1/runs", &run("s", "another-s3cret"), 502).await;
    assert!(problem["detail"].as_str().unwrap().contains("invalid_client"), "{problem}");
    assert!(!product.log().contains("s3cret"));
}
