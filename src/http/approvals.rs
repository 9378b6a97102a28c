//! Approvals: the tenant's inbox, those of a run, and votes.

use std::sync::Arc;

use axum::Json;
use axum::extract::{RawQuery, State};
use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use super::Api;
use super::extract::{Approver, Checked, InputPath, NamePath, Reader, RunPath, asker, fetch};
use super::problem::ApiError;
use super::query::{ApprovalCursor, Query, encode};
use super::views::ApprovalView;
use crate::auth::Caller;
use crate::commands::DecideApproval;
use crate::run::approval::Approval;
use crate::run::ids::{CallId, RunId, RunUid};
use crate::store::PlaceInTime;

/// The statuses that approvals can be asked for by.
const STATUSES: [&str; 5] = ["pending", "approved", "denied", "escalated", "cancelled"];

/// A page of approvals, newest first.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct ApprovalPage {
    /// The approvals.
    data: Vec<ApprovalView>,
    /// Where the list goes on; null at its end.
    next_cursor: Option<String>,
}

/// List the tenant's approvals, newest first.
#[utoipa::path(
    get, path = "/v1/approvals", operation_id = "approval_list", tag = "approvals",
    security(("bearer" = ["runs:read"])),
    params(
        ("status" = Option<String>, Query, description = "`pending`, `approved`, `denied`, `escalated` or `cancelled`"),
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 200, description = "Rows of a page (50)"),
        ("cursor" = Option<String>, Query, description = "The `next_cursor` of the page before"),
    ),
    responses((status = 200, description = "A page of approvals", body = ApprovalPage))
)]
pub(super) async fn approval_list(
    State(api): State<Arc<Api>>,
    Reader(caller): Reader,
    RawQuery(query): RawQuery,
) -> Result<Json<ApprovalPage>, ApiError> {
    page(&api, &caller, None, query.as_deref()).await
}

/// List a run's approvals, newest first.
#[utoipa::path(
    get, path = "/v1/runs/{run_id}/approvals", operation_id = "run_approval_list", tag = "approvals",
    security(("bearer" = ["runs:read"])),
    params(
        ("run_id" = String, Path, description = "The run's name"),
        ("status" = Option<String>, Query, description = "`pending`, `approved`, `denied`, `escalated` or `cancelled`"),
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 200, description = "Rows of a page (50)"),
        ("cursor" = Option<String>, Query, description = "The `next_cursor` of the page before"),
    ),
    responses((status = 200, description = "A page of approvals", body = ApprovalPage))
)]
pub(super) async fn run_approval_list(
    State(api): State<Arc<Api>>,
    Reader(caller): Reader,
    RunPath(run): RunPath,
    RawQuery(query): RawQuery,
) -> Result<Json<ApprovalPage>, ApiError> {
    let run = fetch(&api, &caller, &run).await?;
    page(&api, &caller, Some(run.uid), query.as_deref()).await
}

async fn page(
    api: &Api,
    caller: &Caller,
    run: Option<RunUid>,
    query: Option<&str>,
) -> Result<Json<ApprovalPage>, ApiError> {
    let mut query = Query::parse(query);
    let (limit, after) = (query.take_limit()?, query.take_cursor::<ApprovalCursor>()?);
    let status = query.take_one_of("status", &STATUSES);
    query.finish()?;
    let after = after.map(|ApprovalCursor(place)| place);
    let page = api.store.approval_list(&caller.tenant, (status.as_deref(), run), after, limit).await?;
    let last = page.last().filter(|_| page.more);
    let place = |approval: &Approval| ApprovalCursor(PlaceInTime { at: approval.created_at, id: approval.id });
    let next_cursor = last.map(|approval| encode(&place(approval)));
    let data = page.into_iter().map(|approval| ApprovalView::of(api, &caller.tenant, approval)).collect();
    Ok(Json(ApprovalPage { data, next_cursor }))
}

/// Fetch an approval.
#[utoipa::path(
    get, path = "/v1/approvals/{id}", operation_id = "approval_fetch", tag = "approvals",
    security(("bearer" = ["runs:read"])),
    params(("id" = String, Path, description = "The approval")),
    responses((status = 200, description = "The approval", body = ApprovalView))
)]
pub(super) async fn approval_fetch(
    State(api): State<Arc<Api>>,
    Reader(caller): Reader,
    NamePath(id): NamePath,
) -> Result<Json<ApprovalView>, ApiError> {
    let found = api.store.approval_fetch(&caller.tenant, identity(&id)?).await?;
    found.map(|kept| Json(ApprovalView::of(&api, &caller.tenant, kept.approval))).ok_or(NONE)
}

/// Vote on an approval.
///
/// Every actor has one vote. One denial closes it; the votes that are required approve it, and its call is sent once,
/// with exactly the arguments that were voted on.
#[utoipa::path(
    post, path = "/v1/approvals/{id}/decisions", operation_id = "approval_decide", tag = "approvals",
    request_body = DecideApproval, security(("bearer" = ["approvals:decide"])),
    params(("id" = String, Path, description = "The approval")),
    responses((status = 200, description = "The approval as it stands with the vote", body = ApprovalView))
)]
pub(super) async fn approval_decide(
    State(api): State<Arc<Api>>,
    Approver(caller): Approver,
    NamePath(id): NamePath,
    body: Checked<DecideApproval>,
) -> Result<Json<ApprovalView>, ApiError> {
    vote(&api, &caller, (None, identity(&id)?), body.value).await
}

/// Vote on the pending approval of a run's call.
#[utoipa::path(
    post, path = "/v1/runs/{run_id}/approvals/{call_id}", operation_id = "call_approval_decide", tag = "approvals",
    request_body = DecideApproval, security(("bearer" = ["approvals:decide"])),
    params(
        ("run_id" = String, Path, description = "The run's name"),
        ("call_id" = String, Path, description = "The call's label"),
    ),
    responses((status = 200, description = "The approval as it stands with the vote", body = ApprovalView))
)]
pub(super) async fn call_approval_decide(
    State(api): State<Arc<Api>>,
    Approver(caller): Approver,
    InputPath { run, input_id }: InputPath,
    body: Checked<DecideApproval>,
) -> Result<Json<ApprovalView>, ApiError> {
    let id = api.commands.approval_of_call(&asker(&caller), &run, &CallId::new(input_id)).await?;
    vote(&api, &caller, (Some(run), id), body.value).await
}

async fn vote(
    api: &Api,
    caller: &Caller,
    (run, id): (Option<RunId>, Uuid),
    request: DecideApproval,
) -> Result<Json<ApprovalView>, ApiError> {
    let decided = api.commands.approval_decide(&asker(caller), id, request).await;
    let approval = decided.map_err(|error| ApiError::Command(error, run))?;
    Ok(Json(ApprovalView::of(api, &caller.tenant, approval)))
}

const NONE: ApiError = ApiError::NotFound("there is no such approval");

fn identity(text: &str) -> Result<Uuid, ApiError> {
    Uuid::parse_str(text).map_err(|_no_uuid| NONE)
}
