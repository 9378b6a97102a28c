//! The model answered, or did not. A turn with its calls is one commit, so a paid turn is never asked for again.

use std::collections::HashSet;

use serde_json::Value;

use super::draft::Draft;
use super::{approvals, limits, proceed, require_asking, settle};
use crate::run::approval::{Requirement, Subject};
use crate::run::binding::{Warning, WarningKind};
use crate::run::call::{Call, Handing, Stage};
use crate::run::commit::Commit;
use crate::run::envelope::Envelope;
use crate::run::event::Part;
use crate::run::fact::Ruling;
use crate::run::ids::{CallId, CallKey};
use crate::run::message::{Content, ModelTurn, Role, TurnUsage, WrittenCall};
use crate::run::refusal::Refusal;
use crate::run::result::{RunError, RunOutput};
use crate::run::spec::FinishReason;
use crate::run::status::{Status, StopReason};
use crate::run::structured::repair;
use crate::run::time::Timestamp;

/// Failed requests in a row after which a run is given up.
const MAX_MODEL_FAILURES: u32 = 5;

pub(super) fn streamed(
    envelope: &mut Envelope,
    parts: Vec<Part>,
    usage: TurnUsage,
    now: Timestamp,
) -> Result<Commit, Refusal> {
    require_asking(envelope)?;
    let turn = envelope.head.state.turns.saturating_add(1);
    let mut draft = Draft::new(envelope, now);
    draft.envelope.head.state.asked = Some(usage);
    for part in parts {
        draft.part(turn, part);
    }
    Ok(draft.commit())
}

pub(super) fn failed(
    envelope: &mut Envelope,
    error: RunError,
    (retry, refused, usage): (bool, Option<String>, TurnUsage),
    now: Timestamp,
) -> Result<Commit, Refusal> {
    require_asking(envelope)?;
    let turn = envelope.head.state.turns.saturating_add(1);
    let mut draft = Draft::new(envelope, now);
    draft.count(usage);
    draft.part(turn, Part::Error { error: error.clone() });
    if refused.is_some_and(|tool| draft.set_aside(&tool)) {
        return Ok(draft.commit());
    }
    let state = &mut draft.envelope.head.state;
    state.model_failures = state.model_failures.saturating_add(1);
    let again = retry && state.model_failures < MAX_MODEL_FAILURES;
    if !again {
        draft.fail(error);
    } else if let Some(limit) = limits::before_turn(draft.envelope, now) {
        limits::reach(&mut draft, limit, Vec::new());
    }
    Ok(draft.commit())
}

/// The turn is paid for and can never be kept, and neither could its repeat: the run ends, and the turn counts.
pub(super) fn unstorable(envelope: &mut Envelope, usage: TurnUsage, now: Timestamp) -> Result<Commit, Refusal> {
    require_asking(envelope)?;
    let turn = envelope.head.state.turns.saturating_add(1);
    let mut draft = Draft::new(envelope, now);
    draft.progress();
    draft.count(usage);
    let message = "The model's answer cannot be stored. It was not asked again.";
    let error = RunError::new("unstorable", message);
    draft.part(turn, Part::Error { error: error.clone() });
    draft.fail(error);
    Ok(draft.commit())
}

pub(super) fn ended(
    envelope: &mut Envelope,
    turn: ModelTurn,
    parts: Vec<Part>,
    (rulings, structured): (Vec<Ruling>, Option<Result<Value, String>>),
    now: Timestamp,
) -> Result<Commit, Refusal> {
    require_asking(envelope)?;
    if rulings.len() != turn.calls.len() {
        return Err(Refusal::Impossible("a turn ends with one ruling a call"));
    }
    let number = envelope.head.state.turns.saturating_add(1);
    let mut draft = Draft::new(envelope, now);
    draft.progress();
    draft.envelope.head.state.turns = number;
    draft.envelope.head.state.model_failures = 0;
    draft.envelope.turn_told = false;
    draft.count(turn.usage);
    draft.envelope.head.state.pace.turned(turn.usage);
    for part in parts {
        draft.part(number, part);
    }
    let cut = cut_reason(&turn, &rulings);
    let (calls, asks) = if cut.is_some() { Default::default() } else { calls_of(number, &turn.calls, rulings, now) };
    say(&mut draft, number, &turn, &calls);
    draft.part(number, Part::TurnFinish { finish_reason: turn.finish_reason, usage: turn.usage });
    let silent = calls.is_empty();
    make(&mut draft, calls);
    if let Some(reason) = cut {
        draft.envelope.head.state.output = proceed::last_text(draft.envelope);
        draft.finish(Status::Stopped(reason));
    } else if silent {
        answer(&mut draft, number, turn.text, structured);
    } else {
        boundary(&mut draft, asks);
    }
    Ok(draft.commit())
}

/// The final answer. One that is not what was asked for is asked for once more.
fn answer(draft: &mut Draft<'_>, number: u32, text: String, structured: Option<Result<Value, String>>) {
    let structured = match structured.transpose() {
        Ok(structured) => structured,
        Err(fault) if draft.envelope.head.state.repaired => {
            let message =
                format!("The model's answer is not what `output_schema` asks for, also when asked again: {fault}.");
            draft.fail(RunError::new("invalid-output", message));
            return;
        }
        Err(fault) => {
            draft.envelope.head.state.repaired = true;
            let message = format!("The answer is not what was asked for, and the model is asked once more: {fault}.");
            let (kind, code) = (WarningKind::Other, Some("invalid-output".to_owned()));
            draft.warn(Warning { kind, setting: "output_schema".to_owned(), message, code });
            draft.message(number, Role::User, vec![Content::Text { text: repair(&fault) }]);
            proceed::ask_again(draft);
            return;
        }
    };
    draft.envelope.head.state.output = Some(RunOutput { text, structured });
    draft.finish(Status::Completed);
}

/// A turn that was cut off executes none of its calls unless each is whole and valid.
fn cut_reason(turn: &ModelTurn, rulings: &[Ruling]) -> Option<StopReason> {
    let whole =
        !rulings.is_empty() && rulings.iter().all(|ruling| matches!(ruling, Ruling::Admit { .. } | Ruling::Ask { .. }));
    match turn.finish_reason {
        FinishReason::Stop | FinishReason::ToolCalls => None,
        FinishReason::Length => (!whole).then_some(StopReason::Length),
        FinishReason::ContentFilter => (!whole).then_some(StopReason::ContentFilter),
    }
}

/// What people are asked about the calls of a turn.
type Asks = Vec<(CallKey, Requirement)>;

fn calls_of(turn: u32, written: &[WrittenCall], rulings: Vec<Ruling>, now: Timestamp) -> (Vec<Call>, Asks) {
    let mut taken = HashSet::new();
    let mut asks = Asks::new();
    let numbered = (0_u32..).zip(written).zip(rulings);
    let calls = numbered
        .map(|((position, written), ruling)| {
            let key = CallKey { turn, position };
            let call_id = unique_label(written.id.as_deref(), turn, position, &mut taken);
            let (target, input, judged, stage) = match ruling {
                Ruling::Admit { target, input, judged } => (Some(target), input, judged, Stage::Pending),
                Ruling::Ask { target, input, judged, requirement } => {
                    asks.push((key, *requirement));
                    (Some(target), input, judged, Stage::Proposed)
                }
                Ruling::Reject { rule, reason, input, judged } => {
                    (None, input, judged, Stage::Rejected { rule, reason })
                }
            };
            Call {
                key,
                call_id,
                tool: written.tool.clone(),
                input,
                target,
                attempt: 0,
                turned_away: 0,
                asked: None,
                task: None,
                handing: Handing::default(),
                stage,
                judged: *judged,
                decided_by: None,
                created_at: now,
            }
        })
        .collect();
    (calls, asks)
}

/// Provider ids may be missing or repeated: a label is made, or made unique, inside the turn.
fn unique_label(id: Option<&str>, turn: u32, position: u32, taken: &mut HashSet<String>) -> CallId {
    let base = match id.filter(|id| !id.is_empty()) {
        Some(id) => id.to_owned(),
        None => format!("call_{turn}_{}", position.saturating_add(1)),
    };
    let mut label = base.clone();
    let mut nth = 2_u32;
    while !taken.insert(label.clone()) {
        label = format!("{base}~{nth}");
        nth = nth.saturating_add(1);
    }
    CallId::new(label)
}

/// The assistant's message and its calls as parts.
fn say(draft: &mut Draft<'_>, number: u32, turn: &ModelTurn, calls: &[Call]) {
    let mut content: Vec<Content> = turn
        .reasoning
        .iter()
        .map(|(text, native)| Content::Reasoning { text: text.clone(), native: native.clone() })
        .collect();
    if !turn.text.is_empty() {
        content.push(Content::Text { text: turn.text.clone() });
    }
    for call in calls {
        let (call_id, tool, input): (CallId, String, Value) =
            (call.call_id.clone(), call.tool.clone(), call.input.clone());
        content.push(Content::ToolCall { call_id: call_id.clone(), tool: tool.clone(), input: input.clone() });
        draft.part(number, Part::ToolCall { call_id, tool, input });
    }
    draft.message(number, Role::Assistant, content);
}

fn make(draft: &mut Draft<'_>, calls: Vec<Call>) {
    let made = u32::try_from(calls.len()).unwrap_or(u32::MAX);
    draft.envelope.head.state.tool_calls = draft.envelope.head.state.tool_calls.saturating_add(made);
    draft.make_calls(calls);
    let rejected: Vec<_> = draft.envelope.calls.iter().filter(|call| call.stage.is_settled()).cloned().collect();
    for call in &rejected {
        draft.event(settle::ended(call, None));
    }
}

impl Draft<'_> {
    /// Counts a request to the run's own model whose outcome is known.
    fn count(&mut self, usage: TurnUsage) {
        let price = self.envelope.price().copied();
        let state = &mut self.envelope.head.state;
        state.asked = None;
        state.usage.count(usage, price.as_ref());
    }

    /// Counts what was heard of a request whose end nobody will hear any more, as the most that it may have used.
    pub(super) fn count_unended(&mut self) {
        let price = self.envelope.price().copied();
        let state = &mut self.envelope.head.state;
        if let Some(usage) = state.asked.take() {
            state.usage.count_lost(usage, price.as_ref());
        }
    }
}

/// Sends what may be sent, unless the calls of this turn exceed a limit of the run: then none of them is.
fn boundary(draft: &mut Draft<'_>, asks: Asks) {
    if let Some(limit) = limits::before_calls(draft.envelope, draft.now) {
        limits::reach(draft, limit, asks);
        return;
    }
    for (key, requirement) in asks {
        approvals::ask(draft, key, Subject::Call, requirement);
    }
    proceed::proceed(draft);
}
