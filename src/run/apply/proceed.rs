//! Brings a working run as far as it goes by rules alone.

use super::draft::Draft;
use super::{limits, trouble};
use crate::run::call::Backend;
use crate::run::commit::Commit;
use crate::run::envelope::{Envelope, undecided_call};
use crate::run::event::EventBody;
use crate::run::given::results;
use crate::run::ids::CallKey;
use crate::run::message::{Content, Role};
use crate::run::refusal::Refusal;
use crate::run::result::RunOutput;
use crate::run::status::{Status, StopReason, SuspendReason};
use crate::run::time::Timestamp;

/// What follows from the calls' stages: send more, wait, suspend, or ask the model again.
pub(super) fn proceed(draft: &mut Draft<'_>) {
    if draft.envelope.head.state.reached.is_some() {
        return;
    }
    let samples = draft.envelope.waits_for_sample();
    if draft.envelope.sends_no_more() {
        // While a call waits for a person, no further call of the turn is sent; what is out finishes.
        draft.withdraw_offers();
        if !draft.envelope.has_held() && !samples {
            rest(draft);
        }
        return;
    }
    start_calls(draft, true);
    if draft.envelope.has_held() || samples || draft.envelope.waits_for_room() {
        return;
    }
    if draft.envelope.has_fetched() {
        draft.park();
    } else if draft.envelope.client_calls().next().is_some() {
        draft.suspend(SuspendReason::ClientToolResultsRequired);
    } else {
        give_results(draft);
        ask_again(draft);
    }
}

/// The same for a run that nobody drives: what a leg is needed for is left to one.
pub(super) fn proceed_outside(draft: &mut Draft<'_>) {
    // Left by a driver that died, or about to be read by the next one.
    let leg_is_due = draft.envelope.has_held() || draft.envelope.waits_for_sample();
    if draft.envelope.sends_no_more() {
        draft.withdraw_offers();
        if !leg_is_due {
            rest(draft);
        }
        return;
    }
    let to_send = start_calls(draft, false);
    if leg_is_due {
        return;
    }
    let waits = draft.envelope.has_fetched();
    if !to_send && waits {
        draft.park();
    } else if !to_send && draft.envelope.client_calls().next().is_some() {
        draft.suspend(SuspendReason::ClientToolResultsRequired);
    } else {
        draft.status(Status::Queued);
    }
}

/// Starts what may be started, in call order; whether there is a call left that only a driver can send, and may.
fn start_calls(draft: &mut Draft<'_>, drives: bool) -> bool {
    let mut free = draft.envelope.max_parallel().saturating_sub(draft.envelope.executing());
    // A call that finds no room stays `pending`: certainly not sent, whatever happens to the node meanwhile.
    let mut room = draft.envelope.room;
    let mut to_send = false;
    let sendable = draft.envelope.calls.iter().filter(|call| call.is_sendable());
    let sendable: Vec<(CallKey, Option<Backend>)> = sendable.map(|call| (call.key, call.backend())).collect();
    for (key, backend) in sendable {
        match backend {
            Some(Backend::Client) => draft.request(key),
            Some(Backend::Worker) if free > 0 => draft.offer(key),
            Some(Backend::Mcp) if free > 0 && !drives => to_send = true,
            Some(Backend::Mcp) if free > 0 && room > 0 => {
                draft.send(key);
                room = room.saturating_sub(1);
            }
            Some(Backend::Mcp | Backend::Worker) | None => continue,
        }
        free = free.saturating_sub(usize::from(backend != Some(Backend::Client)));
    }
    to_send
}

/// Nothing is out on behalf of a driver, and people must decide, or a rule fails the run. What workers have finishes first.
fn rest(draft: &mut Draft<'_>) {
    if draft.envelope.has_with_worker() {
        draft.park();
        return;
    }
    if trouble::fails(draft) {
        return;
    }
    if let Some(reason) = draft.envelope.waits_because() {
        wait_for(draft, reason);
    }
}

/// Suspends the run, and says which calls nobody can vote on, so that a person must find out about them.
pub(super) fn wait_for(draft: &mut Draft<'_>, reason: SuspendReason) {
    let envelope = &*draft.envelope;
    let calls: Vec<_> =
        envelope.undecided().filter(|call| !envelope.is_voted_on(call)).filter_map(undecided_call).collect();
    if !calls.is_empty() {
        draft.event(EventBody::ReconciliationRequired { calls });
    }
    draft.suspend(reason);
}

/// Sends what waited for room.
pub(super) fn room_came(envelope: &mut Envelope, now: Timestamp) -> Result<Commit, Refusal> {
    if !envelope.waits_for_room() || envelope.room == 0 {
        return Err(Refusal::Impossible("no call waits for room"));
    }
    let mut draft = Draft::new(envelope, now);
    proceed(&mut draft);
    Ok(draft.commit())
}

/// The results of a settled turn, once, in call order.
fn give_results(draft: &mut Draft<'_>) {
    let turn = draft.envelope.head.state.turns;
    let given = draft.envelope.messages.last().is_none_or(|message| message.role != Role::Assistant);
    if given || draft.envelope.calls.is_empty() {
        return;
    }
    let content = results(&draft.envelope.id, &draft.envelope.calls, draft.envelope.view);
    draft.message(turn, Role::Tool, content);
}

/// The next turn begins, unless a limit stands before it.
pub(super) fn ask_again(draft: &mut Draft<'_>) {
    if draft.envelope.head.state.pace.runs_away() {
        draft.envelope.head.state.output = last_text(draft.envelope);
        draft.finish(Status::Stopped(StopReason::RunawayToolErrors));
        return;
    }
    if let Some(limit) = limits::before_turn(draft.envelope, draft.now) {
        limits::reach(draft, limit, Vec::new());
        return;
    }
    // What could not be read is read before each step until it can be.
    draft.envelope.announced |= draft.envelope.head.state.catalog_failures > 0;
    if !draft.envelope.announced {
        tell_turn(draft);
    }
}

/// Tells readers that the next turn begins, once.
pub(super) fn tell_turn(draft: &mut Draft<'_>) {
    if draft.envelope.turn_told {
        return;
    }
    draft.envelope.turn_told = true;
    let turn = draft.envelope.head.state.turns.saturating_add(1);
    let model = draft.envelope.spec.model.name.clone();
    draft.event(EventBody::TurnStarted { turn, model });
}

/// What the model said last: kept as the output of a run that a rule ended.
pub(super) fn last_text(envelope: &Envelope) -> Option<RunOutput> {
    let said = envelope.messages.iter().rev().find(|message| message.role == Role::Assistant)?;
    // What another run or the caller says that a model said is not this run's output.
    let said = Some(said).filter(|said| said.turn > 0)?;
    let text: String = said
        .content
        .iter()
        .filter_map(|content| match content {
            Content::Text { text } => Some(text.as_str()),
            Content::Image { .. }
            | Content::File { .. }
            | Content::Reasoning { .. }
            | Content::ToolCall { .. }
            | Content::ToolResult { .. } => None,
        })
        .collect();
    (!text.is_empty()).then_some(RunOutput { text, structured: None })
}
