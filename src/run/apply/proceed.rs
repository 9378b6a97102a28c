//! Brings a working run as far as it goes by rules alone.

use super::draft::Draft;
use super::trouble;
use crate::run::commit::Commit;
use crate::run::envelope::{Envelope, undecided_call};
use crate::run::event::EventBody;
use crate::run::given::results;
use crate::run::ids::CallKey;
use crate::run::message::{Content, Role};
use crate::run::money::Usd;
use crate::run::refusal::Refusal;
use crate::run::result::RunOutput;
use crate::run::status::{Status, StopReason};
use crate::run::time::Timestamp;

/// What follows from the calls' stages: send more, wait, suspend, or ask the model again.
pub(super) fn proceed(draft: &mut Draft<'_>) {
    let executing = draft.envelope.executing();
    let samples = draft.envelope.waits_for_sample();
    if draft.envelope.waits_for_person() {
        // While a call waits for a person, no further call of the turn is sent; what is out finishes.
        if executing == 0 && !samples && !trouble::fails(draft) {
            rest(draft);
        }
        return;
    }
    // A call that finds no room stays `pending`: certainly not sent, whatever happens to the node meanwhile.
    let free = draft.envelope.max_parallel().saturating_sub(executing).min(draft.envelope.room);
    let sendable: Vec<CallKey> =
        draft.envelope.calls.iter().filter(|call| call.is_sendable()).map(|call| call.key).collect();
    for key in sendable.iter().take(free) {
        draft.send(*key);
    }
    if executing == 0 && sendable.is_empty() && !samples {
        give_results(draft);
        ask_again(draft);
    }
}

/// Nothing is out, and people must decide.
fn rest(draft: &mut Draft<'_>) {
    let envelope = &*draft.envelope;
    let calls: Vec<_> =
        envelope.undecided().filter(|call| !envelope.is_voted_on(call)).filter_map(undecided_call).collect();
    if !calls.is_empty() {
        draft.event(EventBody::ReconciliationRequired { calls });
    }
    if let Some(reason) = draft.envelope.awaits() {
        draft.suspend(reason);
    }
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
    if let Some(reason) = limit_before_turn(draft) {
        draft.envelope.head.state.output = last_text(draft.envelope);
        draft.finish(Status::Stopped(reason));
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

fn limit_before_turn(draft: &Draft<'_>) -> Option<StopReason> {
    let limits = draft.envelope.limits();
    let state = &draft.envelope.head.state;
    // The next turn's part of the budget is what is left. It is taken only if the turn does not need more than that for
    // what it reads alone, which is known from the turn before it.
    let least = state.pace.last_input_tokens;
    let spent_tokens = draft.envelope.tokens_left().is_some_and(|left| left == 0 || left < least);
    let spent_cost = draft.envelope.cost_left().is_some_and(|left| {
        let price = draft.envelope.price();
        price.is_none_or(|price| left < price.least(least) || (left == Usd::ZERO && !price.is_free()))
    });
    if state.pace.runs_away() {
        Some(StopReason::RunawayToolErrors)
    } else if state.turns >= limits.max_turns {
        Some(StopReason::MaxTurns)
    } else if spent_tokens {
        Some(StopReason::BudgetTokens)
    } else if spent_cost {
        Some(StopReason::BudgetUsd)
    } else if draft.envelope.is_late(draft.now) {
        Some(StopReason::Deadline)
    } else {
        None
    }
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
