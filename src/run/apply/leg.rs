//! A leg begins, compares catalogs, or is ended by a wish.
//!
//! **Recovery.** A leg begins the same way whether its run is new, resumed, or was left by a node that died. It looks
//! at the receipts before it contacts anyone: a call that was `executing` when its owner died may have had its effect.
//! It becomes `indeterminate`; where it may not be repeated the run waits for a person, and nothing of its turn is sent.
//! A call whose server named a task is no such call: it stays `executing`, and the server is asked before anything else.

use super::draft::Draft;
use super::{inputs, proceed, settle, trouble};
use crate::run::binding::Binding;
use crate::run::call::{Call, Stage};
use crate::run::commit::Commit;
use crate::run::envelope::{Envelope, Leg};
use crate::run::event::Part;
use crate::run::ids::CallKey;
use crate::run::outcome::{Cause, ToolError};
use crate::run::refusal::Refusal;
use crate::run::result::RunError;
use crate::run::status::{Status, SuspendReason};
use crate::run::time::Timestamp;

/// A run whose nodes died so often without any progress is given up.
const MAX_CRASHES: u32 = 5;

pub(super) fn begin(envelope: &mut Envelope, now: Timestamp) -> Result<Commit, Refusal> {
    match (envelope.head.status, envelope.leg) {
        (Status::Queued | Status::Running, Leg::Outside) => {}
        (_, Leg::Outside | Leg::CheckingCatalog | Leg::Working | Leg::Cancelling) => {
            return Err(Refusal::Impossible("a leg begins only outside of one"));
        }
    }
    let mut draft = Draft::new(envelope, now);
    draft.envelope.announced = false;
    draft.envelope.turn_told = false;
    enter(&mut draft);
    if draft.envelope.head.crashes >= MAX_CRASHES {
        close(&mut draft, Cause::Crash, "The run ended before the call was sent.");
        let message = format!(
            "{MAX_CRASHES} times a node died or met an error while it drove this run, without any progress in between."
        );
        draft.fail(RunError::new("poisoned", message));
        return Ok(draft.commit());
    }
    interrupt(&mut draft, Cause::Crash, |call| call.is_held() && !call.is_deferred());
    if draft.envelope.sends_no_more() || !needs_catalog(draft.envelope) || only_waits(draft.envelope) {
        draft.envelope.leg = Leg::Working;
        proceed::proceed(&mut draft);
    } else {
        draft.envelope.leg = Leg::CheckingCatalog;
    }
    Ok(draft.commit())
}

/// Counts the leg and says that the run is running.
pub(super) fn enter(draft: &mut Draft<'_>) {
    let now = draft.now;
    let head = &mut draft.envelope.head;
    // A leg that was never left ended with its node: its work counts up to its last commit.
    if let Some(began) = head.state.leg_began_at {
        let until = head.state.idle_since.take().unwrap_or(head.updated_at);
        head.state.worked_ms = head.state.worked_ms.saturating_add(until.millis_since(began));
    }
    head.state.leg_began_at = Some(now);
    head.attempt = if head.state.progressed { 1 } else { head.attempt.saturating_add(1) };
    head.state.progressed = false;
    // Whoever made samples then is gone, and so is whoever listened to the model.
    draft.drop_reservations();
    draft.count_unended();
    draft.status(Status::Running);
}

/// Whether nothing is to be sent, since all that is open is with others.
fn only_waits(envelope: &Envelope) -> bool {
    let with_others = envelope.has_fetched() || envelope.client_calls().next().is_some();
    with_others && !envelope.has_held() && !envelope.calls.iter().any(Call::is_sendable)
}

fn needs_catalog(envelope: &Envelope) -> bool {
    envelope.binding.entries.iter().any(|entry| !entry.is_unused())
}

/// Calls that were out and have no answer: nobody knows whether they had their effect.
fn interrupt(draft: &mut Draft<'_>, cause: Cause, is_lost: impl Fn(&Call) -> bool) {
    let out: Vec<CallKey> = draft
        .envelope
        .calls
        .iter()
        .filter(|call| matches!(call.stage, Stage::Executing { .. }) && is_lost(call))
        .map(|call| call.key)
        .collect();
    for key in out {
        trouble::lose(draft, key, cause);
    }
}

pub(super) fn catalog_read(envelope: &mut Envelope, served: &Binding, now: Timestamp) -> Result<Commit, Refusal> {
    require_checking(envelope)?;
    let drift = envelope.binding.drift(served);
    let mut draft = Draft::new(envelope, now);
    if drift.is_some() {
        // Nobody is there who could accept the change: a leg without a caller never decides by itself.
        draft.suspend(SuspendReason::McpCatalogChanged);
    } else {
        draft.envelope.leg = Leg::Working;
        draft.envelope.head.state.catalog_failures = 0;
        proceed::proceed(&mut draft);
    }
    Ok(draft.commit())
}

pub(super) fn catalog_unreadable(envelope: &mut Envelope, message: String, now: Timestamp) -> Result<Commit, Refusal> {
    require_checking(envelope)?;
    let turn = envelope.head.state.turns;
    let mut draft = Draft::new(envelope, now);
    let error = RunError::new("mcp-unreachable", message);
    draft.part(turn, Part::Error { error });
    draft.suspend(SuspendReason::McpUnreachable);
    Ok(draft.commit())
}

fn require_checking(envelope: &Envelope) -> Result<(), Refusal> {
    match (envelope.head.status, envelope.leg) {
        (Status::Running, Leg::CheckingCatalog) if !envelope.has_held() => Ok(()),
        (_, Leg::Outside | Leg::CheckingCatalog | Leg::Working | Leg::Cancelling) => {
            Err(Refusal::Impossible("no catalog was asked for"))
        }
    }
}

/// Ends the run by a wish. What was out and did not answer stays visible as `indeterminate`.
pub(super) fn cancelled(envelope: &mut Envelope, now: Timestamp) -> Commit {
    let cause = match envelope.leg {
        Leg::Outside => Cause::Crash,
        Leg::CheckingCatalog | Leg::Working | Leg::Cancelling => Cause::Cancelled,
    };
    let mut draft = Draft::new(envelope, now);
    close(&mut draft, cause, "The run was cancelled before the call was sent.");
    draft.finish(Status::Cancelled);
    draft.commit()
}

/// Nothing more is sent: every call that was started gets its end before the run's, and what never left has failed.
pub(super) fn close(draft: &mut Draft<'_>, cause: Cause, unsent: &str) {
    draft.withdraw_offers();
    draft.envelope.leg = Leg::Cancelling;
    interrupt(draft, Cause::Cancelled, |call| !call.is_held());
    interrupt(draft, cause, |_| true);
    // Lost, and to be sent again by themselves: nobody was told yet.
    let untold: Vec<_> = draft
        .envelope
        .calls
        .iter()
        .filter(|call| waits_to_repeat(call))
        .map(|call| settle::ended(call, None))
        .collect();
    for event in untold {
        draft.event(event);
    }
    let pending: Vec<CallKey> =
        draft.envelope.calls.iter().filter(|call| is_unsent(call)).map(|call| call.key).collect();
    for key in pending {
        settle::fail(draft, key, ToolError::new("cancelled", unsent), None);
    }
    let asking = |call: &&Call| matches!(call.stage, Stage::Waiting { .. });
    let asking: Vec<CallKey> = draft.envelope.calls.iter().filter(asking).map(|call| call.key).collect();
    for key in asking {
        settle::fail(draft, key, inputs::abandoned(), None);
    }
    withdraw(draft);
}

/// Whether the call was not sent, and would have been.
const fn is_unsent(call: &Call) -> bool {
    matches!(call.stage, Stage::Proposed | Stage::Pending)
}

/// Whether the outcome is unknown and the call would have been sent again without anybody's word.
fn waits_to_repeat(call: &Call) -> bool {
    matches!(call.stage, Stage::Indeterminate { authorized: false, .. }) && call.repeats_by_itself()
}

/// An attempt that was allowed and not made will not be made: the call is as undecided as before.
fn withdraw(draft: &mut Draft<'_>) {
    let allowed: Vec<_> = draft
        .envelope
        .calls
        .iter()
        .filter_map(|call| match &call.stage {
            Stage::Indeterminate { cause, since, authorized: true } => Some((call.key, *cause, *since)),
            Stage::Indeterminate { .. }
            | Stage::Rejected { .. }
            | Stage::Proposed
            | Stage::Pending
            | Stage::Executing { .. }
            | Stage::Waiting { .. }
            | Stage::Completed { .. }
            | Stage::Failed { .. } => None,
        })
        .collect();
    for (key, cause, since) in allowed {
        draft.move_call(key, Stage::Indeterminate { cause, since, authorized: false });
    }
}
