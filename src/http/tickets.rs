//! Stream tickets: what a browser's `EventSource`, which can send no header, shows instead of a token.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use http::StatusCode;
use serde::Serialize;
use utoipa::ToSchema;

use super::Api;
use super::extract::{Reader, RunPath, fetch};
use super::problem::ApiError;
use crate::run::time::Timestamp;

/// A stream ticket.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct TicketView {
    /// Goes into `?ticket=` of the run's events.
    ticket: String,
    /// When it ends.
    expires_at: Timestamp,
}

/// Make a stream ticket.
///
/// The ticket opens the events of this one run, for reading. It must be used within 60 seconds; from then on it is good
/// for reconnects, which show themselves by `Last-Event-ID`, until the token that made it ends, at most an hour.
#[utoipa::path(
    post, path = "/v1/runs/{run_id}/stream-tickets", operation_id = "ticket_create", tag = "events",
    security(("bearer" = ["runs:read"])),
    params(("run_id" = String, Path, description = "The run's name")),
    responses((status = 201, description = "The ticket", body = TicketView))
)]
pub(super) async fn ticket_create(
    State(api): State<Arc<Api>>,
    Reader(caller): Reader,
    RunPath(id): RunPath,
) -> Result<(StatusCode, Json<TicketView>), ApiError> {
    let run = fetch(&api, &caller, &id).await?;
    let made = api.tickets.make(&caller, &run.id, run.uid, api.clock.now());
    let (ticket, expires_at) = made.ok_or(ApiError::Internal("there is no key for tickets"))?;
    Ok((StatusCode::CREATED, Json(TicketView { ticket, expires_at })))
}
