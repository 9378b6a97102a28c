//! What operators and browsers ask first: is it alive, is it ready, what does it count, what can it do.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::response::{Html, IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use serde::Serialize;
use tokio::time::timeout;
use utoipa::ToSchema;

use super::{Api, Phase};

/// Whoever asks for readiness waits a few seconds at most.
const DATABASE_TIME: Duration = Duration::from_secs(2);

const FRONT: &str = include_str!("front.html");

/// Whether the server can take requests.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct Readiness {
    /// `starting`, `ready`, `failing` (it cannot reach what it depends on) or `draining`.
    status: &'static str,
    /// What it depends on.
    checks: Checks,
}

/// What a server depends on.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct Checks {
    /// `ok` or `failing`.
    database: &'static str,
}

/// Whether the process lives.
#[utoipa::path(
    get, path = "/healthz", operation_id = "health", tag = "server",
    responses((status = 200, description = "It lives", body = String, content_type = "text/plain"))
)]
pub(super) async fn health() -> &'static str {
    "ok\n"
}

/// Whether it takes requests.
#[utoipa::path(
    get, path = "/readyz", operation_id = "readiness", tag = "server",
    responses(
        (status = 200, description = "It is ready", body = Readiness),
        (status = 503, description = "It starts, drains, or cannot reach what it depends on", body = Readiness),
    )
)]
pub(super) async fn readiness(State(api): State<Arc<Api>>) -> (StatusCode, Json<Readiness>) {
    let phase = *api.phase.borrow();
    let database = match timeout(DATABASE_TIME, api.store.ping()).await {
        Ok(Ok(())) => "ok",
        Ok(Err(fault)) => {
            tracing::warn!(%fault, "not ready");
            "failing"
        }
        Err(_elapsed) => {
            tracing::warn!("not ready: the database does not answer");
            "failing"
        }
    };
    let status = match phase {
        Phase::Starting => "starting",
        Phase::Ready if database == "ok" => "ready",
        Phase::Ready => "failing",
        Phase::Draining => "draining",
    };
    let is_ready = phase == Phase::Ready && database == "ok";
    let code = if is_ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (code, Json(Readiness { status, checks: Checks { database } }))
}

/// The counters, in the text format of Prometheus.
#[utoipa::path(
    get, path = "/metrics", operation_id = "metrics", tag = "server",
    responses((status = 200, description = "The counters", body = String, content_type = "text/plain"))
)]
pub(super) async fn metrics(State(api): State<Arc<Api>>) -> Response {
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    ([(header::CONTENT_TYPE, kind)], (api.metrics)()).into_response()
}

/// This document.
#[utoipa::path(
    get, path = "/openapi.json", operation_id = "document", tag = "server",
    responses((status = 200, description = "The OpenAPI document", body = Object))
)]
pub(super) async fn document(State(api): State<Arc<Api>>) -> Response {
    let kind = HeaderValue::from_static("application/json");
    ([(header::CONTENT_TYPE, kind)], api.document.clone()).into_response()
}

/// The page that says what this is.
pub(super) async fn front() -> Html<&'static str> {
    Html(FRONT)
}
