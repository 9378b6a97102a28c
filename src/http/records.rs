//! What a run leaves: messages, receipts, and all of it in one document.

use std::sync::Arc;

use axum::Json;
use axum::extract::{RawQuery, State};
use axum::response::Response;

use super::Api;
use super::envelope::envelope;
use super::extract::{Reader, ReceiptPath, RunPath, fetch};
use super::problem::ApiError;
use super::query::{FoundCursor, MessageCursor, Query, ReceiptCursor, encode};
use super::receipts::{Receipt, ReceiptPage, place};
use super::runs::take_filter;
use super::views::{EnvelopeView, MessagePage, MessageView};
use crate::run::call::Call;
use crate::run::ids::CallId;
use crate::store::{FoundCall, ReceiptFilter, RunView};

/// The stages that receipts can be asked for by.
const STAGES: [&str; 5] = ["pending", "executing", "completed", "failed", "indeterminate"];

/// List a run's messages, in order.
#[utoipa::path(
    get, path = "/v1/runs/{run_id}/messages", operation_id = "message_list", tag = "runs",
    security(("bearer" = ["runs:read"])),
    params(
        ("run_id" = String, Path, description = "The run's name"),
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 200, description = "Rows of a page (50)"),
        ("cursor" = Option<String>, Query, description = "The `next_cursor` of the page before"),
    ),
    responses((status = 200, description = "A page of messages", body = MessagePage))
)]
pub(super) async fn message_list(
    State(api): State<Arc<Api>>,
    Reader(caller): Reader,
    RunPath(id): RunPath,
    RawQuery(query): RawQuery,
) -> Result<Json<MessagePage>, ApiError> {
    let mut query = Query::parse(query.as_deref());
    let (limit, from) = (query.take_limit()?, query.take_cursor::<MessageCursor>()?);
    query.finish()?;
    let run = fetch(&api, &caller, &id).await?;
    let from = from.map_or(0, |MessageCursor(position)| position);
    let page = api.store.message_list(&caller.tenant, run.uid, from, limit).await?;
    let last = page.last().filter(|_| page.more);
    let next_cursor = last.map(|message| encode(&MessageCursor(message.position.saturating_add(1))));
    Ok(Json(MessagePage { data: page.into_iter().map(MessageView::from).collect(), next_cursor }))
}

/// List a run's receipts, in order of turn and position.
#[utoipa::path(
    get, path = "/v1/runs/{run_id}/receipts", operation_id = "receipt_list", tag = "runs",
    security(("bearer" = ["runs:read"])),
    params(
        ("run_id" = String, Path, description = "The run's name"),
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 200, description = "Rows of a page (50)"),
        ("cursor" = Option<String>, Query, description = "The `next_cursor` of the page before"),
    ),
    responses((status = 200, description = "A page of receipts", body = ReceiptPage))
)]
pub(super) async fn receipt_list(
    State(api): State<Arc<Api>>,
    Reader(caller): Reader,
    RunPath(id): RunPath,
    RawQuery(query): RawQuery,
) -> Result<Json<ReceiptPage>, ApiError> {
    let mut query = Query::parse(query.as_deref());
    let (limit, after) = (query.take_limit()?, query.take_cursor::<ReceiptCursor>()?);
    query.finish()?;
    let run = fetch(&api, &caller, &id).await?;
    let after = after.map(|ReceiptCursor(turn, position)| (turn, position));
    let page = api.store.receipt_list(&caller.tenant, run.uid, after, limit).await?;
    let last = page.last().filter(|_| page.more);
    let next_cursor = last.map(|call| encode(&ReceiptCursor(call.key.turn, call.key.position)));
    let data = page.into_iter().map(|call| of(&run, call)).collect();
    Ok(Json(ReceiptPage { data, next_cursor }))
}

/// Fetch one receipt.
#[utoipa::path(
    get, path = "/v1/runs/{run_id}/receipts/{turn}/{call_id}", operation_id = "receipt_fetch", tag = "runs",
    security(("bearer" = ["runs:read"])),
    params(
        ("run_id" = String, Path, description = "The run's name"),
        ("turn" = u32, Path, description = "The model turn that made the call, from 1"),
        ("call_id" = String, Path, description = "The call's label"),
    ),
    responses((status = 200, description = "The receipt", body = Receipt))
)]
pub(super) async fn receipt_fetch(
    State(api): State<Arc<Api>>,
    Reader(caller): Reader,
    ReceiptPath { run, turn, call_id }: ReceiptPath,
) -> Result<Json<Receipt>, ApiError> {
    let run = fetch(&api, &caller, &run).await?;
    let missing = ApiError::NotFound("there is no such receipt");
    let Some(turn) = turn else { return Err(missing) };
    let call = api.store.receipt_fetch(&caller.tenant, run.uid, turn, &CallId::new(call_id)).await?;
    Ok(Json(of(&run, call.ok_or(missing)?)))
}

/// The receipt of a call of that run.
fn of(run: &RunView, call: Call) -> Receipt {
    Receipt::new(FoundCall { run_id: run.id.clone(), uid: run.uid, ended: run.head.status.is_terminal(), call })
}

/// List receipts across the tenant's runs, newest first.
#[utoipa::path(
    get, path = "/v1/receipts", operation_id = "receipt_search", tag = "runs", security(("bearer" = ["runs:read"])),
    params(
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 200, description = "Rows of a page (50)"),
        ("cursor" = Option<String>, Query, description = "The `next_cursor` of the page before"),
        ("stage" = Option<String>, Query, description = "Only receipts at this stage"),
        ("status" = Option<String>, Query, description = "Only of runs of this status"),
        ("reason" = Option<String>, Query, description = "Only of runs of this reason"),
        ("agent" = Option<String>, Query, description = "Only of runs of this agent (`NAMESPACE/NAME`) or version (`NAMESPACE/NAME@VERSION`)"),
        ("metadata" = Option<std::collections::BTreeMap<String, String>>, Query, style = DeepObject, explode, description = "Only of runs with all of these labels: `metadata[key]=value`"),
        ("created_after" = Option<String>, Query, format = DateTime, description = "Only of calls made at or after this time"),
        ("created_before" = Option<String>, Query, format = DateTime, description = "Only of calls made before this time"),
    ),
    responses((status = 200, description = "A page of receipts", body = ReceiptPage))
)]
pub(super) async fn receipt_search(
    State(api): State<Arc<Api>>,
    Reader(caller): Reader,
    RawQuery(query): RawQuery,
) -> Result<Json<ReceiptPage>, ApiError> {
    let mut query = Query::parse(query.as_deref());
    let (limit, after) = (query.take_limit()?, query.take_cursor::<FoundCursor>()?);
    let filter = ReceiptFilter { stage: query.take_one_of("stage", &STAGES), run: take_filter(&mut query) };
    query.finish()?;
    let after = after.map(|FoundCursor(place)| place);
    let page = api.store.receipt_search(&caller.tenant, &filter, after, limit).await?;
    let last = page.last().filter(|_| page.more);
    let next_cursor = last.map(|found| encode(&FoundCursor(place(found, found.call.created_at))));
    Ok(Json(ReceiptPage { data: page.into_iter().map(Receipt::new).collect(), next_cursor }))
}

/// Fetch everything of a run in one document.
#[utoipa::path(
    get, path = "/v1/runs/{run_id}/envelope", operation_id = "envelope_fetch", tag = "runs",
    security(("bearer" = ["runs:read"])),
    params(("run_id" = String, Path, description = "The run's name")),
    responses((status = 200, description = "The run, all revisions of its binding, messages and receipts", body = EnvelopeView))
)]
pub(super) async fn envelope_fetch(
    State(api): State<Arc<Api>>,
    Reader(caller): Reader,
    RunPath(id): RunPath,
) -> Result<Response, ApiError> {
    let view = fetch(&api, &caller, &id).await?;
    envelope(api, caller, view).await
}
