//! Speaks HTTP: takes requests apart, asks commands or the reading half of the store, and answers. Drives no run,
//! writes no row, and is the only module that knows a status code.

mod admin;
mod agents;
mod approvals;
mod bindings;
mod envelope;
mod events;
mod extract;
mod feed;
mod headers;
mod inputs;
mod layer;
mod links;
mod listen;
mod mend;
mod nulls;
pub mod openapi;
mod probes;
mod problem;
mod query;
mod readers;
mod receipts;
mod records;
mod refused;
mod runs;
mod schema;
mod secrets;
mod servers;
mod tickets;
mod versions;
mod views;
mod wait;
mod workers;
mod yaml;

pub use listen::{ConnectionLimits, serve};

use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post, put};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tower_http::catch_panic::CatchPanicLayer;
use utoipa_swagger_ui::{Config, SwaggerUi};

use crate::auth::{Tickets, Verifier};
use crate::clock::Clock;
use crate::commands::Commands;
use crate::store::Store;
use crate::store::follow::Follower;
use crate::store::hub::Hub;
use readers::Readers;
use schema::Schemas;

/// What the HTTP server needs.
pub struct Parts {
    /// What callers can ask for.
    pub commands: Arc<Commands>,
    /// The store, for reading.
    pub store: Arc<dyn Store>,
    /// Tells of new events.
    pub hub: Arc<Hub>,
    /// Tells of what other nodes store.
    pub follower: Arc<Follower>,
    /// Verifies tokens.
    pub verifier: Verifier,
    /// Makes and verifies stream tickets.
    pub tickets: Tickets,
    /// Now, and fresh ids.
    pub clock: Arc<dyn Clock>,
    /// Where the server is in its life.
    pub phase: watch::Receiver<Phase>,
    /// Cancelled when the server stops: streams and waits end.
    pub stopping: CancellationToken,
    /// Prints the counters.
    pub metrics: Arc<dyn Fn() -> String + Send + Sync>,
    /// What the operator set.
    pub settings: HttpSettings,
}

/// What the operator set.
#[derive(Clone, Debug)]
pub struct HttpSettings {
    /// Largest request body, in bytes.
    pub max_body_bytes: usize,
    /// Origins of browsers' pages that may call the API.
    pub cors_origins: Vec<String>,
    /// Event streams that one actor may have open at once.
    pub streams_per_actor: usize,
}

/// Where a server is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Not serving yet.
    Starting,
    /// Serving.
    Ready,
    /// Ending: what runs is brought to a safe point.
    Draining,
}

/// What every handler can reach.
pub(crate) struct Api {
    commands: Arc<Commands>,
    store: Arc<dyn Store>,
    hub: Arc<Hub>,
    follower: Arc<Follower>,
    verifier: Verifier,
    tickets: Tickets,
    clock: Arc<dyn Clock>,
    phase: watch::Receiver<Phase>,
    stopping: CancellationToken,
    metrics: Arc<dyn Fn() -> String + Send + Sync>,
    settings: HttpSettings,
    schemas: Schemas,
    document: String,
    readers: Readers,
}

/// The whole HTTP server as a router.
///
/// # Errors
/// A schema of the published document that does not compile.
pub fn router(parts: Parts) -> Result<Router, String> {
    let document = openapi::document();
    let bodies = [
        "CreateRun",
        "ResumeRun",
        "ReconcileCall",
        "AnswerInput",
        "DecideApproval",
        "PutServer",
        "PutSecret",
        "AgentManifest",
        "DeployVersion",
        "RollBackVersion",
        "ClaimCalls",
        "HeldCall",
        "CallResult",
        "GiveResults",
    ];
    let schemas = Schemas::compile(&document, &bodies)?;
    let Parts { commands, store, hub, follower, verifier, tickets, clock, phase, stopping, metrics, settings } = parts;
    let cors = layer::cors(&settings.cors_origins);
    let body_limit = DefaultBodyLimit::max(settings.max_body_bytes);
    let api = Arc::new(Api {
        commands,
        store,
        hub,
        follower,
        verifier,
        tickets,
        clock,
        phase,
        stopping,
        metrics,
        readers: Readers::new(settings.streams_per_actor),
        settings,
        schemas,
        document: openapi::print(&document),
    });
    let router = routes()
        .with_state(Arc::clone(&api))
        .merge(SwaggerUi::new("/docs").config(Config::from("/openapi.json")))
        .fallback(layer::no_route)
        .method_not_allowed_fallback(layer::no_method)
        .layer(body_limit)
        .layer(CatchPanicLayer::custom(layer::panicked))
        .layer(cors)
        .layer(from_fn_with_state(api, layer::finish));
    Ok(router)
}

/// Every route.
fn routes() -> Router<Arc<Api>> {
    Router::new()
        .route("/v1/runs", post(runs::run_create).get(runs::run_list))
        .route("/v1/runs/{run_id}", get(runs::run_fetch).delete(runs::run_delete))
        .route("/v1/runs/{run_id}/resume", post(runs::run_resume))
        .route("/v1/runs/{run_id}/cancel", post(runs::run_cancel))
        .route("/v1/runs/{run_id}/inputs/{input_id}", post(inputs::input_answer))
        .route("/v1/runs/{run_id}/tool-results", post(workers::results_give))
        .route("/v1/workers/{worker_id}/claims", post(workers::calls_claim))
        .route("/v1/worker-calls/{id}/heartbeat", post(workers::lease_beat))
        .route("/v1/worker-calls/{id}/result", post(workers::call_settle))
        .route("/v1/worker-calls/{id}/reject", post(workers::call_reject))
        .route("/v1/runs/{run_id}/approvals", get(approvals::run_approval_list))
        .route("/v1/runs/{run_id}/approvals/{call_id}", post(approvals::call_approval_decide))
        .route("/v1/approvals", get(approvals::approval_list))
        .route("/v1/approvals/{id}", get(approvals::approval_fetch))
        .route("/v1/approvals/{id}/decisions", post(approvals::approval_decide))
        .route("/v1/runs/{run_id}/messages", get(records::message_list))
        .route("/v1/runs/{run_id}/receipts", get(records::receipt_list))
        .route("/v1/runs/{run_id}/receipts/{turn}/{call_id}", get(records::receipt_fetch))
        .route("/v1/runs/{run_id}/envelope", get(records::envelope_fetch))
        .route("/v1/runs/{run_id}/events", get(events::event_list))
        .route("/v1/runs/{run_id}/stream-tickets", post(tickets::ticket_create))
        .route("/v1/events", get(events::event_watch))
        .route("/v1/receipts", get(records::receipt_search))
        .route("/v1/mcp-servers", get(servers::server_list))
        .route(
            "/v1/mcp-servers/{name}",
            get(servers::server_fetch).put(servers::server_put).delete(servers::server_delete),
        )
        .route("/v1/mcp-servers/{name}/probe", post(servers::server_probe))
        .route("/v1/agents", get(agents::agent_list))
        .route("/v1/agents/validate", post(versions::agent_validate))
        .route("/v1/agents/{namespace}/{name}", get(agents::agent_fetch))
        .route("/v1/agents/{namespace}/{name}/versions", get(versions::version_list))
        .route(
            "/v1/agents/{namespace}/{name}/versions/{version}",
            get(versions::version_fetch).put(versions::version_publish),
        )
        .route("/v1/agents/{namespace}/{name}/versions/{version}/deprecate", post(versions::version_deprecate))
        .route(
            "/v1/agents/{namespace}/{name}/deployments",
            get(agents::deployment_list).post(agents::deployment_create),
        )
        .route("/v1/agents/{namespace}/{name}/rollback", post(agents::deployment_roll_back))
        .route("/v1/secrets", get(secrets::secret_list))
        .route("/v1/secrets/{name}", put(secrets::secret_put).delete(secrets::secret_delete))
        .route("/v1/admin/reconciliations", get(admin::reconciliation_list))
        .route("/v1/admin/runs/{run_id}/reconciliations/{turn}/{call_id}", post(admin::call_reconcile))
        .route("/v1/admin/audit", get(admin::audit_list))
        .route("/healthz", get(probes::health))
        .route("/readyz", get(probes::readiness))
        .route("/metrics", get(probes::metrics))
        .route("/openapi.json", get(probes::document))
        .route("/", get(probes::front))
}
