//! Links: the requests that resolve what somebody waits for.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::auth::Scope;
use crate::run::approval::OpenApproval;
use crate::run::event::UndecidedCall;
use crate::run::ids::RunId;
use crate::run::status::{Status, SuspendReason};

/// What stands in an address as it is: the unreserved characters of RFC 3986.
const LABEL: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// A request that resolves something.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub(super) struct Link {
    /// What it does: `run`, `receipts`, `resume`, `accept`, `retry`, `retry-call`, `complete-call`, `fail-call`,
    /// `reconciliations`, `approvals`, `approve`, `deny`, `cancel`.
    rel: &'static str,
    /// The request's method.
    method: &'static str,
    /// The request's address.
    href: String,
    /// The scope that it needs.
    scope: &'static str,
    /// The body to send.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Object, required = false)]
    body: Option<Value>,
}

/// The run itself.
pub(super) fn to_run(run: &RunId) -> Link {
    Link { rel: "run", method: "GET", href: run_path(run), scope: Scope::RunsRead.code(), body: None }
}

/// Its receipts.
pub(super) fn to_receipts(run: &RunId) -> Link {
    let href = format!("{}/receipts", run_path(run));
    Link { rel: "receipts", method: "GET", href, scope: Scope::RunsRead.code(), body: None }
}

/// Every call that waits for a decision.
pub(super) fn reconciliations() -> Link {
    let href = "/v1/admin/reconciliations".to_owned();
    Link { rel: "reconciliations", method: "GET", href, scope: Scope::Admin.code(), body: None }
}

/// The same resume once more.
pub(super) fn resume(run: &RunId) -> Link {
    command(run, "resume", "resume", Scope::RunsWrite, Some(json!({})))
}

/// What can be done with a run that a node drives.
pub(super) fn of_active(run: Option<&RunId>) -> Vec<Link> {
    run.map(|run| vec![to_run(run), cancel(run)]).unwrap_or_default()
}

/// What can be done about tools that changed.
pub(super) fn of_drift(run: Option<&RunId>) -> Vec<Link> {
    run.map(|run| vec![accept(run), cancel(run)]).unwrap_or_default()
}

/// Where the approvals of a run stand.
pub(super) fn of_approvals(run: Option<&RunId>) -> Vec<Link> {
    run.map(approvals).into_iter().collect()
}

/// What can be done about a run that waits.
pub(super) fn of_run(run: &RunId, status: Status, undecided: &[UndecidedCall], open: &[OpenApproval]) -> Vec<Link> {
    let votes = open.iter().flat_map(|open| {
        let href = format!("/v1/approvals/{}/decisions", open.approval.id);
        ["approve", "deny"].map(|rel| Link {
            rel,
            method: "POST",
            href: href.clone(),
            scope: Scope::ApprovalsDecide.code(),
            body: Some(json!({ "decision": rel })),
        })
    });
    let listed = (!open.is_empty()).then(|| approvals(run));
    votes.chain(listed).chain(of_status(run, status, undecided)).collect()
}

fn of_status(run: &RunId, status: Status, undecided: &[UndecidedCall]) -> Vec<Link> {
    match status {
        Status::Suspended(SuspendReason::ToolReconciliationRequired) => {
            let calls: Vec<Value> =
                undecided.iter().map(|call| json!({ "turn": call.turn, "call_id": call.call_id })).collect();
            let body = json!({ "retry_tool_call_ids": calls });
            let all = command(run, "retry", "resume", Scope::Admin, Some(body));
            [all].into_iter().chain(reconcile_each(run, undecided, true)).chain([cancel(run)]).collect()
        }
        Status::Suspended(SuspendReason::ClientToolResultsRequired) => {
            vec![command(run, "give-results", "tool-results", Scope::RunsWrite, None), cancel(run)]
        }
        Status::Suspended(
            SuspendReason::LimitEscalated | SuspendReason::ApprovalRequired | SuspendReason::InputRequired,
        ) => vec![cancel(run)],
        Status::Suspended(SuspendReason::McpCatalogChanged) => vec![accept(run), cancel(run)],
        Status::Suspended(SuspendReason::McpUnreachable) => vec![resume(run), cancel(run)],
        Status::Queued | Status::Running => reconcile_each(run, undecided, true).collect(),
        // What became of the calls of a run that has ended can still be written down.
        Status::Completed | Status::Stopped(_) | Status::Failed | Status::Cancelled => {
            reconcile_each(run, undecided, false).collect()
        }
    }
}

/// The decisions that each undecided call waits for.
pub(super) fn reconcile_each<'a>(
    run: &'a RunId,
    undecided: &'a [UndecidedCall],
    may_retry: bool,
) -> impl Iterator<Item = Link> + 'a {
    undecided.iter().flat_map(move |call| {
        let label = utf8_percent_encode(call.call_id.as_str(), LABEL);
        let href = format!("/v1/admin/runs/{run}/reconciliations/{}/{label}", call.turn);
        let link = move |rel: &'static str, body: Value| Link {
            rel,
            method: "POST",
            href: href.clone(),
            scope: Scope::Admin.code(),
            body: Some(body),
        };
        let retry = may_retry.then(|| link("retry-call", json!({ "resolution": "retry" })));
        // What it returned nobody can say in advance: whoever sends the first adds `output`; the second may have an `error`.
        let decided = [
            link("complete-call", json!({ "resolution": "complete" })),
            link("fail-call", json!({ "resolution": "fail" })),
        ];
        retry.into_iter().chain(decided)
    })
}

/// The address of a run.
pub(super) fn run_path(run: &RunId) -> String {
    format!("/v1/runs/{run}")
}

fn approvals(run: &RunId) -> Link {
    let href = format!("{}/approvals", run_path(run));
    Link { rel: "approvals", method: "GET", href, scope: Scope::RunsRead.code(), body: None }
}

fn accept(run: &RunId) -> Link {
    command(run, "accept", "resume", Scope::RunsWrite, Some(json!({ "on_catalog_change": "accept" })))
}

fn cancel(run: &RunId) -> Link {
    command(run, "cancel", "cancel", Scope::RunsWrite, None)
}

fn command(run: &RunId, rel: &'static str, verb: &str, scope: Scope, body: Option<Value>) -> Link {
    Link { rel, method: "POST", href: format!("{}/{verb}", run_path(run)), scope: scope.code(), body }
}
