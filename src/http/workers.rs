//! Workers: they fetch calls, say that they live, and give results. And the results of a run's client.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::Api;
use super::extract::{Checked, NamePath, RunPath, Worker, Writer, asker, fetch};
use super::problem::{ApiError, Flaw};
use super::views::Run;
use crate::auth::Caller;
use crate::commands::{CallResult, ClaimCalls, Claimed, GiveResults, HandedCall, HeldCall, Workload};
use crate::run::ids::{CallId, RunId};
use crate::run::time::Timestamp;
use crate::store::Extended;

/// Longest name of a worker.
const WORKER_MAX: usize = 128;

/// Calls for a worker.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct ClaimedView {
    /// The calls that it has from now on; empty after the wait.
    calls: Vec<WorkerCall>,
    /// Those of `in_flight` that it should stop: their run is cancelled, or the lease is lost.
    cancelled: Vec<String>,
}

/// A call that a worker has.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct WorkerCall {
    /// Its name between server and worker.
    id: String,
    /// What proves that the worker has it.
    lease: String,
    /// The run.
    run_id: RunId,
    /// The turn.
    turn: u32,
    /// The call's label.
    call_id: CallId,
    /// What workers call the tool.
    tool: String,
    /// Its version.
    version: String,
    /// The arguments.
    input: Value,
    /// How often the call was handed out, this time included.
    attempt: u32,
    /// The key that every attempt carries.
    idempotency_key: String,
    /// When the call is lost without a sign of life.
    lease_expires_at: Timestamp,
    /// When the run has used up its time, where that is limited.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    deadline_at: Option<Timestamp>,
}

impl From<HandedCall> for WorkerCall {
    fn from(call: HandedCall) -> Self {
        let HandedCall { id, lease, run_id, turn, call_id, tool, version, input, .. } = call;
        let (attempt, idempotency_key) = (call.attempt, call.idempotency_key);
        let (lease_expires_at, deadline_at) = (call.lease_expires_at, call.deadline_at);
        Self {
            id,
            lease,
            run_id,
            turn,
            call_id,
            tool,
            version,
            input,
            attempt,
            idempotency_key,
            lease_expires_at,
            deadline_at,
        }
    }
}

/// How a lease stands.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub(super) struct LeaseView {
    /// When the call is lost without another sign of life.
    lease_expires_at: Timestamp,
    /// Whether the run is being cancelled: the worker should stop, and say what it did.
    cancelled: bool,
}

/// What was taken.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub(super) struct Taken {
    /// Always `true`.
    accepted: bool,
}

fn workload(caller: &Caller) -> Workload {
    Workload { identity: caller.workload_identity.clone(), image_digest: caller.image_digest.clone() }
}

/// Fetch calls.
///
/// Answers as soon as there is a call of one of the tools, with an empty list after the wait. A call that is answered is this
/// worker's until its lease ends; each sign of life lets the lease run anew.
#[utoipa::path(
    post, path = "/v1/workers/{worker_id}/claims", operation_id = "calls_claim", tag = "workers",
    request_body = ClaimCalls, security(("bearer" = ["workers"])),
    params(("worker_id" = String, Path, description = "What the worker calls itself: `[A-Za-z0-9._:-]{1,128}`")),
    responses((status = 200, description = "Calls, or none after the wait", body = ClaimedView))
)]
pub(super) async fn calls_claim(
    State(api): State<Arc<Api>>,
    Worker(caller): Worker,
    NamePath(worker): NamePath,
    body: Checked<ClaimCalls>,
) -> Result<Json<ClaimedView>, ApiError> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "._:-".contains(c);
    if worker.is_empty() || worker.len() > WORKER_MAX || !worker.chars().all(fits) {
        return Err(ApiError::Invalid(vec![Flaw::of("worker_id", "must match [A-Za-z0-9._:-]{1,128}")]));
    }
    let by = (worker.as_str(), workload(&caller));
    let claimed = api.commands.calls_claim(&asker(&caller), by, body.value, &api.stopping).await;
    let Claimed { calls, cancelled } = claimed.map_err(|error| ApiError::Command(error, None))?;
    Ok(Json(ClaimedView { calls: calls.into_iter().map(WorkerCall::from).collect(), cancelled }))
}

/// Say that a worker lives and has a call.
#[utoipa::path(
    post, path = "/v1/worker-calls/{id}/heartbeat", operation_id = "lease_beat", tag = "workers",
    request_body = HeldCall, security(("bearer" = ["workers"])),
    params(("id" = String, Path, description = "The call, as it was claimed")),
    responses((status = 200, description = "The lease runs anew", body = LeaseView))
)]
pub(super) async fn lease_beat(
    State(api): State<Arc<Api>>,
    Worker(caller): Worker,
    NamePath(id): NamePath,
    body: Checked<HeldCall>,
) -> Result<Json<LeaseView>, ApiError> {
    let held = api.commands.lease_beat(&asker(&caller), &id, &body.value.lease).await;
    let Extended { until, cancelled } = held.map_err(|error| ApiError::Command(error, None))?;
    Ok(Json(LeaseView { lease_expires_at: until, cancelled }))
}

/// Give the result of a call.
///
/// Answered once the receipt has it; the same again is answered the same. A result of a call that is another worker's by now is
/// refused.
#[utoipa::path(
    post, path = "/v1/worker-calls/{id}/result", operation_id = "call_settle", tag = "workers",
    request_body = CallResult, security(("bearer" = ["workers"])),
    params(("id" = String, Path, description = "The call, as it was claimed")),
    responses((status = 200, description = "The receipt has it", body = Taken))
)]
pub(super) async fn call_settle(
    State(api): State<Arc<Api>>,
    Worker(caller): Worker,
    NamePath(id): NamePath,
    body: Checked<CallResult>,
) -> Result<Json<Taken>, ApiError> {
    let settled = api.commands.call_settle(&asker(&caller), &id, body.value).await;
    settled.map_err(|error| ApiError::Command(error, None))?;
    Ok(Json(Taken { accepted: true }))
}

/// Give a call back that was certainly not executed.
#[utoipa::path(
    post, path = "/v1/worker-calls/{id}/reject", operation_id = "call_reject", tag = "workers",
    request_body = HeldCall, security(("bearer" = ["workers"])),
    params(("id" = String, Path, description = "The call, as it was claimed")),
    responses((status = 200, description = "Another worker may take it", body = Taken))
)]
pub(super) async fn call_reject(
    State(api): State<Arc<Api>>,
    Worker(caller): Worker,
    NamePath(id): NamePath,
    body: Checked<HeldCall>,
) -> Result<Json<Taken>, ApiError> {
    let rejected = api.commands.call_reject(&asker(&caller), &id, &body.value.lease).await;
    rejected.map_err(|error| ApiError::Command(error, None))?;
    Ok(Json(Taken { accepted: true }))
}

/// Give results of calls that the run's client carried out.
///
/// Each is kept as it comes, and the last one sets the run going. The same result again changes nothing; where an
/// earlier call has the same label and result, `turn` says whose it is.
#[utoipa::path(
    post, path = "/v1/runs/{run_id}/tool-results", operation_id = "results_give", tag = "runs",
    request_body = GiveResults, security(("bearer" = ["runs:write"])),
    params(("run_id" = String, Path, description = "The run's name")),
    responses((status = 200, description = "The run as it stands with the results", body = Run))
)]
pub(super) async fn results_give(
    State(api): State<Arc<Api>>,
    Writer(caller): Writer,
    RunPath(run): RunPath,
    body: Checked<GiveResults>,
) -> Result<Json<Run>, ApiError> {
    let given = api.commands.give_results(&asker(&caller), &run, body.value).await;
    given.map_err(|error| ApiError::Command(error, Some(run.clone())))?;
    Ok(Json(Run::of(&api, &caller.tenant, fetch(&api, &caller, &run).await?)))
}
