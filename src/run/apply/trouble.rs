//! Rules for calls that went wrong: what they say in the place of what is done without any rule. They were asked when the
//! call was made, and what they said is frozen with it: whoever finds the trouble, in whichever leg, only does it.

use super::draft::Draft;
use super::{approvals, leg, settle};
use crate::run::approval::Subject;
use crate::run::call::{Call, MAX_ATTEMPTS, Stage};
use crate::run::envelope::Leg;
use crate::run::ids::{Actor, CallKey};
use crate::run::outcome::{Cause, ToolError};
use crate::run::policy::{Trigger, Trouble};
use crate::run::result::RunError;
use crate::run::spec::SideEffectClass;

/// What the rules say to do about a call whose outcome nobody knows and which does not repeat by itself; `None`: what is
/// done without any rule.
pub(super) fn on_unknown(draft: &Draft<'_>, key: CallKey) -> Option<Trouble> {
    if draft.envelope.leg == Leg::Cancelling {
        return None;
    }
    let call = draft.envelope.calls.iter().find(|call| call.key == key)?;
    if call.repeats_by_itself() {
        return None;
    }
    let said = call.judged.on_trouble(Trigger::Indeterminate)?;
    let may_not_repeat = is_irreversible(call) || call.taken() >= MAX_ATTEMPTS;
    if *said == Trouble::Retry && may_not_repeat { None } else { Some(said.clone()) }
}

fn is_irreversible(call: &Call) -> bool {
    call.target.as_ref().is_some_and(|target| target.class == SideEffectClass::IrreversibleAction)
}

/// Does it. The call is told as unknown, unless it has its end or is sent again by itself.
pub(super) fn unknown(draft: &mut Draft<'_>, key: CallKey, cause: Cause, trouble: Trouble) {
    let since = draft.now;
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
        // The run fails once its other calls have their ends.
        Trouble::Reconcile | Trouble::Fail { .. } => {
            draft.move_call(key, unknown(false));
            tell(draft, key);
        }
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

/// Ends a run that a rule fails for a call whose outcome nobody knows. `false`: there is none.
pub(super) fn fails(draft: &mut Draft<'_>) -> bool {
    let failing = draft.envelope.undecided().find_map(|call| match call.judged.on_trouble(Trigger::Indeterminate) {
        Some(Trouble::Fail { rule, reason }) => Some((call.tool.clone(), why(rule, reason.as_deref()))),
        Some(Trouble::Retry | Trouble::ToolError { .. } | Trouble::RequireApproval { .. } | Trouble::Reconcile)
        | None => None,
    });
    let Some((tool, why)) = failing else { return false };
    leg::close(draft, Cause::Cancelled, "The run ended before the call was sent.");
    let message = format!("Nobody knows whether a call of {tool} had its effect. {why}");
    draft.fail(RunError::new("dispatch-indeterminate", message));
    true
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
