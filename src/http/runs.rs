//! Runs: create, list, fetch, resume, cancel.

use std::sync::Arc;

use axum::Json;
use axum::extract::{RawQuery, State};
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderValue, StatusCode, header};

use super::Api;
use super::extract::{Checked, Declared, Reader, RunPath, Writer, asker, fetch, need, request_key};
use super::headers::{self, Form};
use super::problem::ApiError;
use super::query::{Query, encode};
use super::readers::Reading;
use super::views::{Notice, Run, RunPage};
use super::{events, links, wait};
use crate::auth::{Caller, Scope};
use crate::commands::{CreateRun, ResumeRun, Resumed};
use crate::run::ids::RunId;
use crate::run::status::{StopReason, SuspendReason};
use crate::store::{RunCursor, RunFilter, RunView};

/// The statuses that runs can be asked for by.
const STATUSES: [&str; 7] = ["queued", "running", "suspended", "completed", "stopped", "failed", "cancelled"];

/// Create a run.
///
/// Everything is checked and the MCP servers are read before anything is stored. With `Prefer: wait=N` the answer comes
/// when the run has ended or waits for somebody, or after N seconds. With `Accept: text/event-stream` the answer is the
/// run's event stream from its first event. `continue_from` needs the scope `runs:read` too, as that stream does.
#[utoipa::path(
    post, path = "/v1/runs", operation_id = "run_create", tag = "runs", request_body = CreateRun,
    security(("bearer" = ["runs:write"])),
    params(
        ("Idempotency-Key" = Option<String>, Header, description = "1 to 255 visible ASCII characters, kept for 24 hours"),
        ("Prefer" = Option<String>, Header, description = "`wait=N`, at most 60 seconds"),
    ),
    responses((status = 201, description = "The run", body = Run, headers(
        ("Location" = String, description = "The run's address"),
        ("Idempotent-Replayed" = Option<bool>, description = "The run was created by an earlier request with this key"),
        ("Preference-Applied" = Option<String>, description = "The wait that was granted"),
    )))
)]
pub(super) async fn run_create(
    State(api): State<Arc<Api>>,
    Writer(caller): Writer,
    headers: HeaderMap,
    body: Declared<CreateRun>,
) -> Result<Response, ApiError> {
    if body.given.read().continue_from.is_some() {
        // What was said is sent to the model that the caller names: that is reading.
        need(&caller, Scope::RunsRead)?;
    }
    let form = headers::form(&headers).ok_or(ApiError::NotAcceptable(events::FORMS))?;
    let reading = match form {
        Form::Stream => Some(reading(&api, &caller)?),
        Form::Json => None,
    };
    let key = request_key(&headers, &api, &body.bytes)?;
    let named = body.given.read().id.clone().and_then(RunId::parse);
    let created = api.commands.create(&asker(&caller), body.given, key).await;
    let created = created.map_err(|error| {
        // Only a taken id names a run that is there.
        let run = if matches!(error, crate::commands::CommandError::RunExists) { named } else { None };
        ApiError::Command(error, run)
    })?;
    let view = fetch(&api, &caller, &created.id).await?;
    let mut response = match reading {
        Some(reading) => events::stream_of(&api, &caller, &view, 0, reading),
        None => settled(&api, &caller, view, &headers, None).await?,
    };
    *response.status_mut() = StatusCode::CREATED;
    mark_created(&mut response, &created.id, created.replayed);
    Ok(response)
}

/// A place for the stream of a run that is not created yet: who may not read it should not have created it.
fn reading(api: &Api, caller: &Caller) -> Result<Reading, ApiError> {
    need(caller, Scope::RunsRead)?;
    api.readers.enter(caller)
}

fn mark_created(response: &mut Response, id: &RunId, replayed: bool) {
    if let Ok(address) = HeaderValue::from_str(&links::run_path(id)) {
        response.headers_mut().insert(header::LOCATION, address);
    }
    if replayed {
        response.headers_mut().insert("idempotent-replayed", HeaderValue::from_static("true"));
    }
}

/// List runs, newest first.
#[utoipa::path(
    get, path = "/v1/runs", operation_id = "run_list", tag = "runs", security(("bearer" = ["runs:read"])),
    params(
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 200, description = "Rows of a page (50)"),
        ("cursor" = Option<String>, Query, description = "The `next_cursor` of the page before"),
        ("status" = Option<String>, Query, description = "Only runs of this status"),
        ("reason" = Option<String>, Query, description = "Only runs of this reason"),
        ("agent" = Option<String>, Query, description = "Only runs of this agent (`NAMESPACE/NAME`) or version (`NAMESPACE/NAME@VERSION`)"),
        ("metadata" = Option<std::collections::BTreeMap<String, String>>, Query, style = DeepObject, explode, description = "Only runs with all of these labels: `metadata[key]=value`"),
        ("created_after" = Option<String>, Query, format = DateTime, description = "Only runs created at or after this time"),
        ("created_before" = Option<String>, Query, format = DateTime, description = "Only runs created before this time"),
    ),
    responses((status = 200, description = "A page of runs", body = RunPage))
)]
pub(super) async fn run_list(
    State(api): State<Arc<Api>>,
    Reader(caller): Reader,
    RawQuery(query): RawQuery,
) -> Result<Json<RunPage>, ApiError> {
    let mut query = Query::parse(query.as_deref());
    let (limit, after) = (query.take_limit()?, query.take_cursor::<RunCursor>()?);
    let filter = take_filter(&mut query);
    query.finish()?;
    let page = api.store.run_list(&caller.tenant, &filter, after, limit).await?;
    let last = page.last().filter(|_| page.more);
    let next_cursor = last.map(|run| encode(&RunCursor { created_at: run.head.created_at, uid: run.uid }));
    Ok(Json(RunPage { data: page.into_iter().map(|view| Run::of(&api, &caller.tenant, view)).collect(), next_cursor }))
}

/// What a list of runs, or of what runs left, is filtered by.
pub(super) fn take_filter(query: &mut Query) -> RunFilter {
    RunFilter {
        status: query.take_one_of("status", &STATUSES),
        reason: query.take_one_of("reason", &reasons()),
        agent: query.take_text("agent"),
        metadata: query.take_map("metadata"),
        created_after: query.take_time("created_after"),
        created_before: query.take_time("created_before"),
    }
}

/// Every reason that a run can have: one that is misspelt would find nothing, and nobody would notice.
fn reasons() -> Vec<&'static str> {
    let suspended = SuspendReason::ALL.iter().map(|reason| reason.code());
    suspended.chain(StopReason::ALL.iter().map(|reason| reason.code())).collect()
}

/// Fetch a run.
#[utoipa::path(
    get, path = "/v1/runs/{run_id}", operation_id = "run_fetch", tag = "runs", security(("bearer" = ["runs:read"])),
    params(("run_id" = String, Path, description = "The run's name")),
    responses((status = 200, description = "The run", body = Run))
)]
pub(super) async fn run_fetch(
    State(api): State<Arc<Api>>,
    Reader(caller): Reader,
    RunPath(id): RunPath,
) -> Result<Json<Run>, ApiError> {
    Ok(Json(Run::of(&api, &caller.tenant, fetch(&api, &caller, &id).await?)))
}

/// Resume a run that waits.
///
/// 202: the run is queued. 200: it has ended, or goes on waiting; with a `notice` when the request decided nothing of
/// what it waits for. A list that names a call which does not wait for that is refused. `retry_tool_call_ids` needs the scope `admin`,
/// `approvals` the scope `approvals:decide`.
#[utoipa::path(
    post, path = "/v1/runs/{run_id}/resume", operation_id = "run_resume", tag = "runs", request_body = Option<ResumeRun>,
    security(("bearer" = ["runs:write"])),
    params(
        ("run_id" = String, Path, description = "The run's name"),
        ("Prefer" = Option<String>, Header, description = "`wait=N`, at most 60 seconds"),
    ),
    responses(
        (status = 200, description = "The run has ended, or goes on waiting", body = Run),
        (status = 202, description = "The run is queued", body = Run),
    )
)]
pub(super) async fn run_resume(
    State(api): State<Arc<Api>>,
    Writer(caller): Writer,
    RunPath(id): RunPath,
    headers: HeaderMap,
    body: Checked<ResumeRun>,
) -> Result<Response, ApiError> {
    if body.value.retry_tool_call_ids.as_ref().is_some_and(|calls| !calls.is_empty()) {
        need(&caller, Scope::Admin)?;
    }
    if body.value.approvals.as_ref().is_some_and(|votes| !votes.is_empty()) {
        need(&caller, Scope::ApprovalsDecide)?;
    }
    let resumed = api.commands.resume(&asker(&caller), &id, body.value).await;
    let (resumed, passed_over) = resumed.map_err(|error| ApiError::Command(error, Some(id.clone())))?;
    let view = fetch(&api, &caller, &id).await?;
    match resumed {
        Resumed::Terminal | Resumed::Suspended | Resumed::Unchanged => {
            let notice = Notice::of_resume(resumed == Resumed::Unchanged, &passed_over);
            Ok(Json(Run::of(&api, &caller.tenant, view).noticed(notice)).into_response())
        }
        Resumed::Queued => {
            let notice = Notice::of_resume(false, &passed_over);
            Ok(accepted(settled(&api, &caller, view, &headers, notice).await?))
        }
    }
}

/// Cancel a run.
///
/// Cancelling a run that has ended changes nothing.
#[utoipa::path(
    post, path = "/v1/runs/{run_id}/cancel", operation_id = "run_cancel", tag = "runs",
    security(("bearer" = ["runs:write"])),
    params(
        ("run_id" = String, Path, description = "The run's name"),
        ("Prefer" = Option<String>, Header, description = "`wait=N`, at most 60 seconds"),
    ),
    responses((status = 202, description = "The run as it stands", body = Run))
)]
pub(super) async fn run_cancel(
    State(api): State<Arc<Api>>,
    Writer(caller): Writer,
    RunPath(id): RunPath,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let cancelled = api.commands.cancel(&asker(&caller), &id).await;
    cancelled.map_err(|error| ApiError::Command(error, Some(id.clone())))?;
    let view = fetch(&api, &caller, &id).await?;
    Ok(accepted(settled(&api, &caller, view, &headers, None).await?))
}

/// Delete a run that has ended, with everything that was kept of it.
///
/// Refused while a call of it waits for a decision.
#[utoipa::path(
    delete, path = "/v1/runs/{run_id}", operation_id = "run_delete", tag = "runs",
    security(("bearer" = ["runs:write"])),
    params(("run_id" = String, Path, description = "The run's name")),
    responses((status = 204, description = "The run is gone"))
)]
pub(super) async fn run_delete(
    State(api): State<Arc<Api>>,
    Writer(caller): Writer,
    RunPath(id): RunPath,
) -> Result<StatusCode, ApiError> {
    let deleted = api.commands.delete(&asker(&caller), &id).await;
    deleted.map_err(|error| ApiError::Command(error, Some(id)))?;
    Ok(StatusCode::NO_CONTENT)
}

/// The run as it stands, or as it stands after the wait that the caller prefers.
async fn settled(
    api: &Api,
    caller: &Caller,
    view: RunView,
    headers: &HeaderMap,
    notice: Option<Notice>,
) -> Result<Response, ApiError> {
    let shown = |view| Json(Run::of(api, &caller.tenant, view).noticed(notice)).into_response();
    let Some(wait) = headers::wait(headers) else { return Ok(shown(view)) };
    let view = wait::until_settled(api, caller, view, wait).await?;
    let mut response = shown(view);
    if let Ok(applied) = HeaderValue::from_str(&format!("wait={}", wait.as_secs())) {
        response.headers_mut().insert("preference-applied", applied);
    }
    Ok(response)
}

fn accepted(mut response: Response) -> Response {
    *response.status_mut() = StatusCode::ACCEPTED;
    response
}
