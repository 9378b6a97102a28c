//! Calls that others come and fetch: workers, who take a call and answer it, and the run's client, which is told of it.
//!
//! Such a call needs no driver. It is on offer (`pending`) until a worker takes it, and only that commits it as `executing`; it
//! then ends by its worker's word, by a lapse of the lease, or with the run. Whoever applies such a fact to a run that nobody
//! drives brings it as far as it goes without a leg.

use super::draft::Draft;
use super::{proceed, settle, trouble};
use crate::run::call::{Call, Lease, Stage};
use crate::run::commit::Commit;
use crate::run::envelope::{Envelope, Leg};
use crate::run::event::EventBody;
use crate::run::fetched::{ClientResults, Fetched, FetchedWhat};
use crate::run::ids::{Actor, CallKey};
use crate::run::outcome::{Answer, Cause};
use crate::run::refusal::Refusal;
use crate::run::status::Status;
use crate::run::time::Timestamp;

pub(super) fn fetched(envelope: &mut Envelope, fetched: Fetched, now: Timestamp) -> Result<Commit, Refusal> {
    let Fetched { key, what } = fetched;
    match &what {
        FetchedWhat::Claimed { .. } | FetchedWhat::NotTaken { .. } => require_offered(envelope, key)?,
        FetchedWhat::Answered { lease, .. } | FetchedWhat::PutBack { lease } | FetchedWhat::Lapsed { lease } => {
            require_lease(envelope, key, lease)?;
        }
    }
    let mut draft = Draft::new(envelope, now);
    draft.progress();
    match what {
        FetchedWhat::Claimed { lease } => draft.hand_out(key, lease),
        FetchedWhat::Answered { answer, .. } => answered(&mut draft, key, answer),
        FetchedWhat::PutBack { .. } => draft.put_back(key),
        FetchedWhat::Lapsed { .. } => trouble::lose(&mut draft, key, Cause::LeaseExpired),
        FetchedWhat::NotTaken { trouble: untaken } => {
            trouble::not_taken(&mut draft, key, &untaken);
            draft.touch(key);
        }
    }
    go_on(&mut draft);
    Ok(draft.commit())
}

/// The run's client gives results. Each is kept as it comes; the last one sets the run going.
pub(super) fn client_answered(
    envelope: &mut Envelope,
    given: ClientResults,
    now: Timestamp,
) -> Result<Commit, Refusal> {
    refuse_results(envelope, &given.results)?;
    let mut draft = Draft::new(envelope, now);
    draft.progress();
    for (key, answer) in given.results {
        settle_client(&mut draft, key, &given.actor, answer);
    }
    go_on(&mut draft);
    Ok(draft.commit())
}

/// Refuses results of calls that wait for none.
pub(super) fn refuse_results(envelope: &Envelope, results: &[(CallKey, Answer)]) -> Result<(), Refusal> {
    let waits = |key: &CallKey| envelope.client_calls().any(|call| call.key == *key);
    match results.iter().find(|(key, _)| !waits(key)) {
        None => Ok(()),
        Some((key, _)) => match envelope.calls.iter().find(|call| call.key == *key) {
            Some(call) => Err(Refusal::NotAwaited(call.call_id.clone())),
            None => Err(Refusal::Impossible("a result is of a call of the turn")),
        },
    }
}

pub(super) fn settle_client(draft: &mut Draft<'_>, key: CallKey, actor: &Actor, answer: Answer) {
    if let Some(call) = draft.envelope.calls.iter_mut().find(|call| call.key == key) {
        call.decided_by = Some(actor.clone());
    }
    answered(draft, key, answer);
}

fn answered(draft: &mut Draft<'_>, key: CallKey, answer: Answer) {
    match answer {
        Answer::Done { output } => settle::complete(draft, key, output),
        Answer::Failed { error, output } => settle::fail(draft, key, error, output),
    }
}

/// A run that waits for people hands nothing out, and neither does one that ends.
fn require_offered(envelope: &Envelope, key: CallKey) -> Result<(), Refusal> {
    let is_open = match envelope.head.status {
        Status::Queued | Status::Running => envelope.leg != Leg::Cancelling,
        Status::Suspended(_) | Status::Completed | Status::Stopped(_) | Status::Failed | Status::Cancelled => false,
    };
    let offered = envelope.calls.iter().any(|call| call.key == key && call.is_offered());
    if is_open && offered { Ok(()) } else { Err(Refusal::NotOffered) }
}

fn require_lease(envelope: &Envelope, key: CallKey, lease: &str) -> Result<(), Refusal> {
    let holds = |call: &Call| {
        call.key == key && call.is_with_worker() && call.handing.lease.as_ref().is_some_and(|held| held.id == lease)
    };
    if envelope.calls.iter().any(holds) { Ok(()) } else { Err(Refusal::LeaseLost) }
}

/// As far as the run goes now: by its driver's rules, or without one.
fn go_on(draft: &mut Draft<'_>) {
    match (draft.envelope.head.status, draft.envelope.leg) {
        (Status::Running | Status::Suspended(_), Leg::Outside) => proceed_or_stay(draft),
        // It has a node to come anyway.
        (Status::Queued, Leg::Outside) => {}
        (
            Status::Queued
            | Status::Running
            | Status::Suspended(_)
            | Status::Completed
            | Status::Stopped(_)
            | Status::Failed
            | Status::Cancelled,
            Leg::Outside | Leg::CheckingCatalog | Leg::Working | Leg::Cancelling,
        ) => settle::go_on(draft),
    }
}

/// A run that is suspended says so again only for another reason or of another call, and fails with the last of its workers'
/// calls where it is to.
fn proceed_or_stay(draft: &mut Draft<'_>) {
    let suspended = matches!(draft.envelope.head.status, Status::Suspended(_));
    if suspended && !draft.envelope.has_with_worker() && trouble::fails(draft) {
        return;
    }
    match (draft.envelope.head.status, draft.envelope.waits_because()) {
        (Status::Suspended(_), None) => draft.status(Status::Queued),
        (Status::Suspended(reason), Some(left)) if reason == left && !draft.leaves_to_person() => {}
        (Status::Suspended(_), Some(left)) => proceed::wait_for(draft, left),
        (
            Status::Queued
            | Status::Running
            | Status::Completed
            | Status::Stopped(_)
            | Status::Failed
            | Status::Cancelled,
            None | Some(_),
        ) => proceed::proceed_outside(draft),
    }
}

impl Draft<'_> {
    /// Lets workers take a call: it stays what it is until one does.
    pub(super) fn offer(&mut self, key: CallKey) {
        let now = self.now;
        if let Some(call) = self.envelope.calls.iter_mut().find(|call| call.key == key) {
            call.handing.offered_at = Some(now);
        }
        self.touch(key);
    }

    /// No worker may take anything any more; what some have they keep.
    pub(super) fn withdraw_offers(&mut self) {
        let offered: Vec<CallKey> =
            self.envelope.calls.iter().filter(|call| call.is_offered()).map(|call| call.key).collect();
        for key in offered {
            if let Some(call) = self.envelope.calls.iter_mut().find(|call| call.key == key) {
                call.handing.offered_at = None;
            }
            self.touch(key);
        }
    }

    /// Commits the receipt as `executing`: from then on the worker may hear of the call.
    fn hand_out(&mut self, key: CallKey, lease: Lease) {
        if let Some(call) = self.envelope.calls.iter_mut().find(|call| call.key == key) {
            call.handing.lease = Some(lease);
            call.handing.gave_up = false;
        }
        self.start(key);
    }

    /// The last hand-out did nothing: the call is on offer again, since when it was before.
    fn put_back(&mut self, key: CallKey) {
        let now = self.now;
        let Some(call) = self.envelope.calls.iter_mut().find(|call| call.key == key) else { return };
        call.handing.lease = None;
        call.handing.offered_at.get_or_insert(now);
        call.attempt = call.attempt.saturating_sub(1);
        let stage = if call.attempt == 0 {
            Stage::Pending
        } else {
            // A right to one more attempt that was not used is still there.
            let authorized = !call.repeats_by_itself();
            Stage::Indeterminate { cause: Cause::LeaseExpired, since: now, authorized }
        };
        self.move_call(key, stage);
    }

    /// Tells the run's client to carry out a call. From then on it may have its effect.
    pub(super) fn request(&mut self, key: CallKey) {
        self.start(key);
        let Some(call) = self.envelope.calls.iter().find(|call| call.key == key) else { return };
        let (turn, call_id, tool, input) = (key.turn, call.call_id.clone(), call.tool.clone(), call.input.clone());
        self.event(EventBody::ClientToolRequested { turn, call_id, tool, input });
    }
}
