//! MCP over real sockets: what each end of a call is taken for, and how connections are shared.

mod cancel;
mod catalog;
mod characters;
mod deaf;
mod demo;
pub(crate) mod floods;
mod limits;
mod modern;
mod outcomes;
mod places;
mod pool;
mod real;
mod sessions;
mod stdio;
mod stdio_ends;
mod tasks;
mod ways;

use std::sync::Arc;
use std::time::Duration;

use countersign::bulk::Held;
use countersign::mcp::{
    BreakerSettings, Endpoint, MayLeave, McpPool, McpTarget, Offers, PoolSettings, ProgressSink, Told, ToolRequest,
};
use countersign::net::{Egress, EgressAllow};
use countersign::run::call::MAX_TURNED_AWAY;
use countersign::run::ids::TenantId;
use countersign::run::outcome::{Answer, Outcome};
use countersign::run::spec::Timeouts;
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

pub(crate) fn settings() -> PoolSettings {
    PoolSettings {
        idle_close: Duration::from_mins(1),
        max_age: Duration::from_mins(10),
        max_result_bytes: 64 * 1024,
        bulk_bytes: 64 * 1024 * 1024,
        cancel_grace: Duration::from_millis(300),
        tenant_connections: 100,
        server_connections: 100,
        place_wait: Duration::from_millis(300),
        breaker: BreakerSettings { failures: 20, pause: Duration::from_millis(300), pause_max: Duration::from_secs(1) },
    }
}

pub(crate) fn pool_with(settings: PoolSettings) -> Arc<McpPool> {
    let egress = Egress::new(EgressAllow::parse(["127.0.0.0/8"]).unwrap());
    let http = egress.client(Duration::from_secs(5), None).unwrap();
    McpPool::new(http, settings)
}

pub(crate) fn pool() -> Arc<McpPool> {
    pool_with(settings())
}

pub(crate) fn acme() -> TenantId {
    TenantId::parse("acme").unwrap()
}

pub(crate) fn target(url: &str) -> McpTarget {
    McpTarget {
        place: String::new(),
        endpoint: Endpoint::Http(url.parse().unwrap()),
        headers: vec![("X-Team".to_owned(), "a".to_owned())],
        secret_header: Some(("authorization".to_owned(), "Bearer hunter2".into())),
        bearer: None,
        timeouts: Timeouts { connect_ms: 5_000, call_ms: 5_000, call_total_ms: 10_000 },
        private_to: None,
        origin: None,
        offers: Offers::default(),
        told: Told::default(),
    }
}

pub(crate) fn charge(amount: u64) -> ToolRequest {
    let arguments = json!({ "amount": amount });
    let meta = json!({ "countersign/run": "r", "countersign/turn": 1, "countersign/call-id": "call_1" });
    ToolRequest {
        server_tool: "charge".to_owned(),
        arguments: object(arguments),
        meta: object(meta),
        idempotency_key: "key-1".to_owned(),
        input_schema: json!({}),
        progress: ProgressSink::none(),
        output_schema: None,
        turned_away: 0,
        may_leave: MayLeave::new(|| true),
        asks: None,
        continuation: None,
        held: Held::default(),
    }
}

pub(crate) fn object(value: Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

pub(crate) async fn call(pool: &McpPool, target: &McpTarget) -> Outcome {
    call_as(pool, &acme(), target, charge(5)).await
}

/// Calls as a run does: what was turned away is sent again.
pub(crate) async fn call_as(pool: &McpPool, tenant: &TenantId, target: &McpTarget, request: ToolRequest) -> Outcome {
    let mut turned_away = 0;
    loop {
        let request = ToolRequest { turned_away, ..request.clone() };
        match pool.call(tenant, target, request, CancellationToken::new()).await {
            Outcome::TurnedAway(_) if turned_away < MAX_TURNED_AWAY => turned_away += 1,
            outcome => return outcome,
        }
    }
}

/// The class of an outcome in a word, with its code.
pub(crate) fn class(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Answered(Answer::Done { .. }) => "done".to_owned(),
        Outcome::Answered(Answer::Failed { error, .. }) => format!("failed {}", error.code),
        Outcome::NotSent(error) => format!("not sent {}", error.code),
        Outcome::TurnedAway(error) => format!("turned away {}", error.code),
        Outcome::Unknown(cause) => format!("unknown {}", cause.code()),
        Outcome::InputRequired(questions) => format!("asks {}", questions.asks.len()),
        Outcome::Deferred(task) => format!("deferred {}", task.id),
    }
}
