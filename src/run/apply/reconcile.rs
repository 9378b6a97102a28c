//! A person decides a call whose outcome nobody knows. Decisions are kept one by one; the last one sets the run going.
//!
//! A run that has ended keeps its undecided calls, and a person may still write down what became of them: receipt and
//! audit change, the ended run does not, and there is no event after `result`.

use super::draft::Draft;
use super::{proceed, settle};
use crate::run::call::Stage;
use crate::run::commit::Commit;
use crate::run::envelope::{Envelope, Leg};
use crate::run::event::EventBody;
use crate::run::fact::{Reconciliation, Resolution};
use crate::run::ids::{Actor, CallKey};
use crate::run::refusal::Refusal;
use crate::run::status::{Status, SuspendReason};
use crate::run::time::Timestamp;

pub(super) fn reconciled(envelope: &mut Envelope, decided: Reconciliation, now: Timestamp) -> Result<Commit, Refusal> {
    let Reconciliation { actor, key, resolution } = decided;
    if !envelope.undecided().any(|call| call.key == key) {
        return Err(Refusal::NotReconcilable);
    }
    let ended = envelope.head.status.is_terminal();
    // A run that is being cancelled sends nothing more either.
    if (ended || envelope.leg == Leg::Cancelling) && resolution == Resolution::Retry {
        return Err(Refusal::RunTerminal);
    }
    let mut draft = Draft::new(envelope, now);
    match resolution {
        Resolution::Retry => authorize(&mut draft, key, &actor),
        Resolution::Complete { output } => {
            decide(&mut draft, key, &actor, "complete", ended);
            write_down(&mut draft, key, Stage::Completed { settled_at: now, output }, ended);
        }
        Resolution::Fail { error } => {
            decide(&mut draft, key, &actor, "fail", ended);
            write_down(&mut draft, key, Stage::Failed { settled_at: now, error, output: None }, ended);
        }
    }
    if !ended {
        go_on(&mut draft);
    }
    Ok(draft.commit())
}

/// Allows exactly one more attempt.
pub(super) fn authorize(draft: &mut Draft<'_>, key: CallKey, actor: &Actor) {
    let Some(call) = draft.envelope.calls.iter().find(|call| call.key == key) else { return };
    let Stage::Indeterminate { cause, since, .. } = call.stage else { return };
    draft.move_call(key, Stage::Indeterminate { cause, since, authorized: true });
    decide(draft, key, actor, "retry", false);
}

/// Keeps who decided, and tells it unless the run has ended.
fn decide(draft: &mut Draft<'_>, key: CallKey, actor: &Actor, resolution: &str, ended: bool) {
    let Some(call) = draft.envelope.calls.iter_mut().find(|call| call.key == key) else { return };
    call.decided_by = Some(actor.clone());
    draft.cancel_approvals_of(|call| call.key == key);
    let Some(call) = draft.envelope.calls.iter().find(|call| call.key == key) else { return };
    let call_id = call.call_id.clone();
    if !ended {
        let (turn, resolution, actor) = (key.turn, resolution.to_owned(), actor.to_string());
        draft.event(EventBody::ReconciliationDecided { turn, call_id, resolution, actor });
    }
}

fn write_down(draft: &mut Draft<'_>, key: CallKey, stage: Stage, ended: bool) {
    draft.move_call(key, stage);
    let told = draft.envelope.calls.iter().find(|call| call.key == key && !ended).map(|call| settle::ended(call, None));
    if let Some(event) = told {
        draft.event(event);
    }
}

/// A run that waited goes on with its last decision; one whose other calls are still out goes on as rules say.
pub(super) fn go_on(draft: &mut Draft<'_>) {
    draft.progress();
    match (draft.envelope.head.status, draft.envelope.leg) {
        (Status::Suspended(reason), Leg::Outside | Leg::CheckingCatalog | Leg::Working) => {
            match draft.envelope.waits_because() {
                // The client's calls of a turn that may go on are no reason to keep the others.
                None => draft.status(Status::Queued),
                Some(SuspendReason::ClientToolResultsRequired)
                    if reason != SuspendReason::ClientToolResultsRequired && !draft.envelope.waits_for_person() =>
                {
                    proceed::proceed_outside(draft);
                }
                // What is left to decide is of another kind.
                Some(left) if left != reason => draft.status(Status::Suspended(left)),
                Some(_) => {}
            }
        }
        (Status::Running, Leg::Working) => proceed::proceed(draft),
        (Status::Running, Leg::Outside) => proceed::proceed_outside(draft),
        // A leg that compares catalogs or ends looks at the calls when it has done so.
        (Status::Running, Leg::CheckingCatalog)
        | (Status::Running | Status::Suspended(_), Leg::Cancelling)
        | (Status::Queued | Status::Completed | Status::Stopped(_) | Status::Failed | Status::Cancelled, _) => {}
    }
}
