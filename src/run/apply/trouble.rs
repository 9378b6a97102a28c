//! Calls that went wrong: what is done about them without any rule, and what rules say in its place. Rules were asked when the
//! call was made, and what they said is frozen with it: whoever finds the trouble, in whichever leg, only does it.

use super::draft::Draft;
use super::{approvals, leg, settle};
use crate::run::approval::{ApprovalRule, Requirement, Subject};
use crate::run::call::{Call, MAX_ATTEMPTS, Stage};
use crate::run::envelope::{Envelope, Leg};
use crate::run::ids::{Actor, CallKey};
use crate::run::outcome::{Cause, ToolError};
use crate::run::policy::{Trigger, Trouble};
use crate::run::result::RunError;
use crate::run::spec::SideEffectClass;
use crate::run::status::Status;
use crate::run::time::Timestamp;
use crate::run::untaken::Untaken;

/// An attempt was made, and nobody knows what came of it. A call that may be repeated is sent again by `proceed`, with the
/// same key; one that only read has failed after its last attempt; every other one waits for a person, and the model is
/// told nothing. Where rules say what is done about it, that is done instead.
pub(super) fn lose(draft: &mut Draft<'_>, key: CallKey, cause: Cause) {
    let since = draft.now;
    if let Some(call) = draft.envelope.calls.iter_mut().find(|call| call.key == key) {
        // Whoever had it has it no longer.
        call.handing.offered_at = None;
        call.handing.lease = None;
    }
    unknown(draft, key, cause, since);
}

fn unknown(draft: &mut Draft<'_>, key: CallKey, cause: Cause, since: Timestamp) {
    let Some(call) = draft.envelope.calls.iter().find(|call| call.key == key) else { return };
    if let Some(said) = on_unknown(draft, call, cause) {
        by_rule(draft, key, (cause, since), said);
    } else if is_spent_reader(call) {
        let message = format!("outcome unknown after {} attempts", call.taken());
        settle::fail(draft, key, ToolError::new("outcome-unknown", message), None);
    } else {
        draft.move_call(key, Stage::Indeterminate { cause, since, authorized: false });
        // One that is sent again by itself says so with its next `tool-started`, or is told when the run ends before that.
        if draft.envelope.calls.iter().any(|call| call.key == key && call.is_undecided()) {
            tell(draft, key);
        }
    }
}

fn is_spent_reader(call: &Call) -> bool {
    let reads = call.target.as_ref().is_some_and(|target| target.class == SideEffectClass::ReadOnly);
    reads && (call.taken() >= MAX_ATTEMPTS || call.handing.gave_up)
}

/// What the rules say to do about a call whose outcome nobody knows and which does not repeat by itself; `None`: what is
/// done without any rule.
fn on_unknown(draft: &Draft<'_>, call: &Call, cause: Cause) -> Option<Trouble> {
    if draft.envelope.leg == Leg::Cancelling || call.repeats_by_itself() {
        return None;
    }
    let said = call.judged.on_lost(cause)?.1;
    let may_not_repeat = is_irreversible(call) || call.taken() >= MAX_ATTEMPTS;
    if *said == Trouble::Retry && may_not_repeat { None } else { Some(said.clone()) }
}

fn is_irreversible(call: &Call) -> bool {
    call.target.as_ref().is_some_and(|target| target.class == SideEffectClass::IrreversibleAction)
}

/// Does it. The call is told as unknown, unless it has its end or is sent again by itself.
fn by_rule(draft: &mut Draft<'_>, key: CallKey, (cause, since): (Cause, Timestamp), trouble: Trouble) {
    let unknown = |authorized: bool| Stage::Indeterminate { cause, since, authorized };
    match trouble {
        Trouble::Retry => draft.move_call(key, unknown(true)),
        Trouble::ToolError { rule, reason } => {
            let message = format!("{} {}", cause.message(), why(&rule, reason.as_deref()));
            settle::fail(draft, key, ToolError::new("outcome-unknown", message), None);
        }
        Trouble::RequireApproval { requirement } => {
            draft.move_call(key, unknown(false));
            tell(draft, key);
            approvals::ask(draft, key, Subject::Repeat, *requirement);
        }
        // The run fails once what servers and workers have has its end.
        Trouble::Reconcile | Trouble::Fail { .. } => {
            draft.move_call(key, unknown(false));
            tell(draft, key);
        }
    }
}

/// Nobody took a call that was on offer. One that was never handed out had no effect, and has failed unless rules say
/// otherwise. An earlier attempt may have had its effect: that nobody took the repeat says nothing of it.
pub(super) fn not_taken(draft: &mut Draft<'_>, key: CallKey, untaken: &Untaken) {
    let now = draft.now;
    let Some(call) = draft.envelope.calls.iter_mut().find(|call| call.key == key) else { return };
    if call.outwaits(untaken) {
        // It stays on offer and keeps its place. Its row says so, so it is not found again.
        return;
    }
    let said = untaken.trigger().and_then(|trigger| call.judged.on_trouble(trigger)).cloned();
    call.handing.offered_at = None;
    if call.attempt > 0 {
        call.handing.gave_up = true;
        let (cause, since) = unknown_since(call, now);
        unknown(draft, key, cause, since);
        return;
    }
    let mut error = untaken.error(&call.tool);
    match said {
        Some(Trouble::RequireApproval { requirement }) => ask_again(draft, key, *requirement),
        // There is nothing to find out about a call that was not sent: whether it is to be is what a person says.
        Some(Trouble::Reconcile) => {
            let rule = untaken.trigger().map_or("", Trigger::code);
            ask_again(draft, key, Requirement::new(ApprovalRule::default(), rule, error.message));
        }
        // The run fails once what servers and workers have has its end.
        Some(Trouble::Retry | Trouble::Fail { .. }) | None => settle::fail(draft, key, error, None),
        Some(Trouble::ToolError { rule, reason }) => {
            error.message = format!("{} {}", error.message, why(&rule, reason.as_deref()));
            settle::fail(draft, key, error, None);
        }
    }
}

/// The call is as certainly not sent as before it was on offer; who approves it puts it there again.
fn ask_again(draft: &mut Draft<'_>, key: CallKey, requirement: Requirement) {
    draft.move_call(key, Stage::Proposed);
    approvals::ask(draft, key, Subject::Call, requirement);
}

fn unknown_since(call: &Call, now: Timestamp) -> (Cause, Timestamp) {
    match &call.stage {
        Stage::Indeterminate { cause, since, .. } => (*cause, *since),
        Stage::Rejected { .. }
        | Stage::Proposed
        | Stage::Pending
        | Stage::Executing { .. }
        | Stage::Waiting { .. }
        | Stage::Completed { .. }
        | Stage::Failed { .. } => (Cause::LeaseExpired, now),
    }
}

fn tell(draft: &mut Draft<'_>, key: CallKey) {
    let told = draft.envelope.calls.iter().find(|call| call.key == key).map(|call| settle::ended(call, None));
    if let Some(event) = told {
        draft.event(event);
    }
}

fn why(rule: &str, reason: Option<&str>) -> String {
    match reason {
        Some(reason) => format!("Policy '{rule}': {reason}"),
        None => format!("Policy '{rule}' applies."),
    }
}

/// Fails the run for a denial, as soon as what servers and workers have of it has its end.
pub(super) fn fail_after_all(draft: &mut Draft<'_>, error: RunError) {
    draft.envelope.head.state.failing.get_or_insert(error);
    let envelope = &*draft.envelope;
    let suspended = matches!(envelope.head.status, Status::Suspended(_));
    let driven = !suspended && (envelope.has_held() || envelope.waits_for_sample());
    if !driven && !envelope.has_with_worker() {
        fails(draft);
    }
}

/// Ends a run that a denial fails, or a rule for a call that went wrong. `false`: there is none.
pub(super) fn fails(draft: &mut Draft<'_>) -> bool {
    let denied = draft.envelope.head.state.failing.take();
    let failing = denied.or_else(|| by_a_rule(draft.envelope));
    let Some(error) = failing else { return false };
    leg::close(draft, Cause::Cancelled, "The run ended before the call was sent.");
    draft.fail(error);
    true
}

fn by_a_rule(envelope: &Envelope) -> Option<RunError> {
    envelope.calls.iter().find_map(|call| {
        let (trigger, rule, reason) = call.fails_run()?;
        let what = match &call.stage {
            Stage::Failed { error, .. } => error.message.clone(),
            Stage::Rejected { .. }
            | Stage::Proposed
            | Stage::Pending
            | Stage::Executing { .. }
            | Stage::Waiting { .. }
            | Stage::Completed { .. }
            | Stage::Indeterminate { .. } => format!("Nobody knows whether a call of {} had its effect.", call.tool),
        };
        Some(RunError::new(failed_code(trigger), format!("{what} {}", why(rule, reason))))
    })
}

const fn failed_code(trigger: Trigger) -> &'static str {
    match trigger {
        Trigger::NoHandler => "dispatch-no-handler",
        Trigger::CapacityExhausted => "dispatch-capacity-exhausted",
        Trigger::LeaseExpired => "dispatch-lease-expired",
        Trigger::Indeterminate | Trigger::Call | Trigger::LimitReached => "dispatch-indeterminate",
    }
}

/// People allowed one more attempt. A deadline allows none of what cannot be undone, and no more than a rule that says so
/// by itself: silence repeats nothing without end.
pub(super) fn allow_repeat(draft: &mut Draft<'_>, key: CallKey, by_deadline: bool) {
    let Some(call) = draft.envelope.calls.iter().find(|call| call.key == key) else { return };
    let Stage::Indeterminate { cause, since, .. } = call.stage else { return };
    if by_deadline && (is_irreversible(call) || call.taken() >= MAX_ATTEMPTS) {
        deny_repeat(draft, key, "Nobody allowed another attempt in time.");
    } else {
        draft.move_call(key, Stage::Indeterminate { cause, since, authorized: true });
    }
}

/// People refused another attempt: the model learns that nobody knows.
pub(super) fn deny_repeat(draft: &mut Draft<'_>, key: CallKey, why: &str) {
    let Some(call) = draft.envelope.calls.iter().find(|call| call.key == key) else { return };
    let Stage::Indeterminate { cause, .. } = call.stage else { return };
    let message = format!("{} It was not sent again. {why}", cause.message());
    settle::fail(draft, key, ToolError::new("outcome-unknown", message), None);
}

/// Who refused it, for the model.
pub(super) fn refused_by(actor: &Actor, comment: Option<&str>) -> String {
    let comment = comment.map(|comment| format!(": {comment}")).unwrap_or_default();
    format!("Another attempt was denied by {actor}{comment}.")
}
