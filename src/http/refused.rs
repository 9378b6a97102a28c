//! Refusals of the core as problems.

use http::StatusCode;
use serde_json::Value;

use super::links;
use super::problem::{Problem, conflict, internal};
use crate::run::binding::Drift;
use crate::run::ids::{CallId, RunId};
use crate::run::refusal::Refusal;

pub(super) fn of_refusal(refusal: Refusal, run: Option<&RunId>) -> Problem {
    let (code, detail) = (refusal.code(), refusal.to_string());
    match refusal {
        Refusal::RunActive => conflict(code, "The run is active", detail).linked(links::of_active(run)),
        Refusal::RunTerminal => {
            conflict(code, "The run has ended", detail).linked(run.map(links::to_run).into_iter().collect())
        }
        Refusal::BindingChanged => {
            conflict(code, "Another binding", detail).linked(run.map(links::to_run).into_iter().collect())
        }
        Refusal::CatalogChanged(drift) => {
            drifted(conflict(code, "The MCP tools changed", detail), drift).linked(links::of_drift(run))
        }
        Refusal::CatalogChangedInFlight { drift, calls } => {
            drifted(conflict(code, "The MCP tools changed", detail).with("calls", named(&calls)), drift)
                .linked(links::of_active(run))
        }
        Refusal::ServerMoved { calls } => {
            conflict(code, "Another server", detail).with("calls", named(&calls)).linked(links::of_active(run))
        }
        Refusal::RulesLoosened { servers } => {
            conflict(code, "Fewer rules", detail).with("servers", servers).linked(links::of_active(run))
        }
        Refusal::AmbiguousCall(_) => conflict(code, "Which call?", detail),
        Refusal::NotReconcilable => conflict(code, "The call is not undecided", detail)
            .linked(run.map(links::to_run).into_iter().chain(run.map(links::to_receipts)).collect()),
        Refusal::AlreadyAnswered | Refusal::NotAwaited(_) => {
            conflict(code, "No answer is awaited", detail).linked(run.map(links::to_run).into_iter().collect())
        }
        Refusal::AlreadyDecided(_) => {
            conflict(code, "The approval is decided", detail).linked(run.map(links::to_run).into_iter().collect())
        }
        Refusal::NoApproval(_) => conflict(code, "No such approval", detail).linked(links::of_approvals(run)),
        Refusal::ApprovalChanged => {
            conflict(code, "The arguments were changed", detail).linked(links::of_approvals(run))
        }
        Refusal::AlreadyVoted => conflict(code, "One vote an actor", detail).linked(links::of_approvals(run)),
        Refusal::NotAnApprover => {
            Problem::new(StatusCode::FORBIDDEN, code, "Not an approver", detail).linked(links::of_approvals(run))
        }
        Refusal::ArgumentsFixed => conflict(code, "The arguments are fixed", detail),
        Refusal::LeaseLost | Refusal::NotOffered => conflict(code, "The call is another's", detail),
        Refusal::RunNotEnded => conflict(code, "The run has not ended", detail).linked(links::of_active(run)),
        Refusal::CallsUndecided => conflict(code, "Calls are undecided", detail)
            .linked(run.map(links::to_run).into_iter().chain([links::reconciliations()]).collect()),
        Refusal::NothingDecided => conflict(code, "Nothing is decided", detail),
        Refusal::Impossible(cause) => internal(cause),
    }
}

fn named(calls: &[CallId]) -> Value {
    calls.iter().map(CallId::as_str).collect()
}

fn drifted(problem: Problem, drift: Drift) -> Problem {
    problem.with("added", drift.added).with("removed", drift.removed).with("changed", drift.changed)
}
