//! What administrators decide and look through: calls whose outcome nobody knows, and the audit.

use std::sync::Arc;

use axum::Json;
use axum::extract::{RawQuery, State};
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::Api;
use super::extract::{Admin, Checked, ReceiptPath, asker, fetch};
use super::links::{self, Link};
use super::problem::ApiError;
use super::query::{AuditCursor, Query, UndecidedCursor, encode};
use super::receipts::place;
use super::views::Run;
use crate::commands::ReconcileCall;
use crate::run::call::{Stage, idempotency_key};
use crate::run::envelope::undecided_call;
use crate::run::event::UndecidedCall;
use crate::run::ids::{CallId, RunId};
use crate::run::time::Timestamp;
use crate::store::{AuditFilter, AuditRow, FoundCall, PlaceInTime, ReceiptPlace};

/// A call whose outcome nobody knows, and the requests that decide it.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct ReconciliationView {
    /// The run's name.
    run_id: RunId,
    #[serde(flatten)]
    call: UndecidedCall,
    /// What the server is called: its namespace, else its address.
    server: Option<String>,
    /// How often it was sent.
    attempt: u32,
    /// The key that every attempt carried: what to look for at the server.
    idempotency_key: String,
    /// Requests that decide it.
    links: Vec<Link>,
}

/// A page of undecided calls, oldest first. A page may be short of its limit; the list ends where `next_cursor` is null.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct ReconciliationPage {
    /// The calls.
    data: Vec<ReconciliationView>,
    /// Where the list goes on; null at its end.
    next_cursor: Option<String>,
}

/// Who did what, when.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct AuditView {
    /// When.
    at: Timestamp,
    /// Who.
    actor: String,
    /// What, e.g. `reconciliation.retry`.
    action: String,
    /// To what.
    subject: String,
    /// To which run, when it was one.
    run_id: Option<RunId>,
    /// What else was kept.
    #[schema(value_type = Object)]
    detail: Value,
}

/// A page of the audit, newest first.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct AuditPage {
    /// The rows.
    data: Vec<AuditView>,
    /// Where the list goes on; null at its end.
    next_cursor: Option<String>,
}

/// List the tenant's calls that wait for a decision, oldest first.
#[utoipa::path(
    get, path = "/v1/admin/reconciliations", operation_id = "reconciliation_list", tag = "admin",
    security(("bearer" = ["admin"])),
    params(
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 200, description = "Rows of a page (50)"),
        ("cursor" = Option<String>, Query, description = "The `next_cursor` of the page before"),
    ),
    responses((status = 200, description = "A page of undecided calls", body = ReconciliationPage))
)]
pub(super) async fn reconciliation_list(
    State(api): State<Arc<Api>>,
    Admin(caller): Admin,
    RawQuery(query): RawQuery,
) -> Result<Json<ReconciliationPage>, ApiError> {
    let mut query = Query::parse(query.as_deref());
    let (limit, after) = (query.take_limit()?, query.take_cursor::<UndecidedCursor>()?);
    query.finish()?;
    let mut after = after.map(|UndecidedCursor(place)| place);
    loop {
        let page = api.store.undecided_list(&caller.tenant, after, limit).await?;
        let last = page.last().filter(|_| page.more).and_then(since);
        let data: Vec<ReconciliationView> = page.into_iter().filter_map(view).collect();
        // A page of nothing but calls that go on by themselves would look like the end.
        if data.is_empty() && last.is_some() {
            after = last;
            continue;
        }
        let next_cursor = last.map(|place| encode(&UndecidedCursor(place)));
        return Ok(Json(ReconciliationPage { data, next_cursor }));
    }
}

fn since(found: &FoundCall) -> Option<ReceiptPlace> {
    let Stage::Indeterminate { since, .. } = &found.call.stage else { return None };
    Some(place(found, *since))
}

/// `None` for a call that goes on by itself.
fn view(found: FoundCall) -> Option<ReconciliationView> {
    let FoundCall { run_id, uid, ended, call } = found;
    if !call.is_undecided_in(ended) {
        return None;
    }
    let undecided = undecided_call(&call)?;
    let links = links::reconcile_each(&run_id, std::slice::from_ref(&undecided), !ended).collect();
    Some(ReconciliationView {
        idempotency_key: idempotency_key(uid, call.key),
        run_id,
        call: undecided,
        server: call.target.map(|target| target.server),
        attempt: call.attempt,
        links,
    })
}

/// Decide an undecided call.
///
/// `retry` allows exactly one more attempt, `complete` records the known result, `fail` tells the model that it failed.
/// The last decision of a run sets it going. Every decision is kept in the audit.
#[utoipa::path(
    post, path = "/v1/admin/runs/{run_id}/reconciliations/{turn}/{call_id}", operation_id = "call_reconcile",
    tag = "admin", request_body = ReconcileCall, security(("bearer" = ["admin"])),
    params(
        ("run_id" = String, Path, description = "The run's name"),
        ("turn" = u32, Path, description = "The model turn that made the call, from 1"),
        ("call_id" = String, Path, description = "The call's label"),
    ),
    responses((status = 200, description = "The run as it stands with the decision", body = Run))
)]
pub(super) async fn call_reconcile(
    State(api): State<Arc<Api>>,
    Admin(caller): Admin,
    ReceiptPath { run, turn, call_id }: ReceiptPath,
    body: Checked<ReconcileCall>,
) -> Result<Json<Run>, ApiError> {
    let turn = turn.ok_or(ApiError::NotFound("there is no such receipt"))?;
    let call = CallId::new(call_id);
    let decided = api.commands.reconcile(&asker(&caller), &run, (turn, &call), body.value).await;
    decided.map_err(|error| ApiError::Command(error, Some(run.clone())))?;
    Ok(Json(Run::of(&api, &caller.tenant, fetch(&api, &caller, &run).await?)))
}

/// List the tenant's audit, newest first.
#[utoipa::path(
    get, path = "/v1/admin/audit", operation_id = "audit_list", tag = "admin", security(("bearer" = ["admin"])),
    params(
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 200, description = "Rows of a page (50)"),
        ("cursor" = Option<String>, Query, description = "The `next_cursor` of the page before"),
        ("actor" = Option<String>, Query, description = "Only what this actor did"),
        ("action" = Option<String>, Query, description = "Only this action, e.g. `reconciliation.retry`"),
        ("run_id" = Option<String>, Query, description = "Only what was done to this run"),
    ),
    responses((status = 200, description = "A page of the audit", body = AuditPage))
)]
pub(super) async fn audit_list(
    State(api): State<Arc<Api>>,
    Admin(caller): Admin,
    RawQuery(query): RawQuery,
) -> Result<Json<AuditPage>, ApiError> {
    let mut query = Query::parse(query.as_deref());
    let (limit, after) = (query.take_limit()?, query.take_cursor::<AuditCursor>()?);
    let filter = AuditFilter {
        actor: query.take_text("actor"),
        action: query.take_text("action"),
        run_id: query.take_text("run_id"),
    };
    query.finish()?;
    let page = api.store.audit_list(&caller.tenant, &filter, after.map(|AuditCursor(place)| place), limit).await?;
    let last = page.last().filter(|_| page.more);
    let next_cursor = last.map(|row| encode(&AuditCursor(PlaceInTime { at: row.at, id: row.id })));
    Ok(Json(AuditPage { data: page.into_iter().map(audit_view).collect(), next_cursor }))
}

fn audit_view(row: AuditRow) -> AuditView {
    let AuditRow { id: _, at, actor, action, subject, run_id, detail } = row;
    AuditView { at, actor: actor.as_str().to_owned(), action, subject, run_id, detail }
}
