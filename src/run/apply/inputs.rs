//! Servers ask people. A question of the era of sessions ends with its call; one that the server answered the call with
//! is kept in the receipt, and its call goes on when the last one has its reply.

use std::collections::BTreeMap;

use super::draft::Draft;
use super::{reconcile, settle};
use crate::run::ask::{
    Ask, Asked, ClosedInput, Input, InputAction, InputAnswered, InputMode, MAX_OPEN, MAX_ROUNDS, OpenInput, Question,
    Questions, Reply,
};
use crate::run::asking::Elicitation;
use crate::run::call::{Call, Stage};
use crate::run::commit::Commit;
use crate::run::envelope::{Envelope, Leg};
use crate::run::event::EventBody;
use crate::run::fact::InputAnswer;
use crate::run::ids::{Actor, CallKey};
use crate::run::outcome::ToolError;
use crate::run::refusal::Refusal;
use crate::run::time::Timestamp;

/// A call that waited for input when its run ended.
pub(super) fn abandoned() -> ToolError {
    ToolError::new("cancelled", "The run ended while the server waited for input. The call was not finished.")
}

/// A server asks while its call is out.
pub(super) fn asked(
    envelope: &mut Envelope,
    key: CallKey,
    ask: Ask,
    expires_at: Timestamp,
    now: Timestamp,
) -> Result<Commit, Refusal> {
    if !may_ask(envelope, key) {
        return Err(Refusal::Impossible("no call is out that lets its server ask"));
    }
    let mut draft = Draft::new(envelope, now);
    open(&mut draft, key, None, ask, Some(expires_at));
    Ok(draft.commit())
}

/// Whether the server of this call may ask a person now.
pub fn may_ask(envelope: &Envelope, key: CallKey) -> bool {
    let out = |call: &&Call| call.key == key && matches!(call.stage, Stage::Executing { .. });
    let entry = envelope.calls.iter().find(out).and_then(|call| envelope.entry_of(call));
    let working = match envelope.leg {
        Leg::Working => true,
        Leg::Outside | Leg::CheckingCatalog | Leg::Cancelling => false,
    };
    working
        && envelope.head.state.asks.open.len() < MAX_OPEN
        && entry.is_some_and(|entry| entry.elicitation == Elicitation::Ask)
}

/// A person answers.
pub(super) fn answered(envelope: &mut Envelope, answer: InputAnswer, now: Timestamp) -> Result<Commit, Refusal> {
    let Some(open) = envelope.head.state.asks.open.iter().find(|open| open.input.input_id == answer.input_id).cloned()
    else {
        return Err(Refusal::AlreadyAnswered);
    };
    let mut draft = Draft::new(envelope, now);
    let InputAnswer { actor, input_id: _, action, content } = answer;
    draft.end_input(&open, action, Some(actor), None);
    if let Some(question) = &open.question {
        draft.reply(open.call, question, Reply::Input { action, content });
    }
    reconcile::go_on(&mut draft);
    Ok(draft.commit())
}

/// A question ends without an answer while its call is out.
pub(super) fn closed(
    envelope: &mut Envelope,
    input_id: &str,
    reason: &'static str,
    now: Timestamp,
) -> Result<Commit, Refusal> {
    let Some(open) = envelope.head.state.asks.open.iter().find(|open| open.input.input_id == input_id).cloned() else {
        return Err(Refusal::AlreadyAnswered);
    };
    if open.question.is_some() {
        return Err(Refusal::Impossible("a question that is kept waits for its answer"));
    }
    let mut draft = Draft::new(envelope, now);
    draft.end_input(&open, InputAction::Cancel, None, Some(reason));
    Ok(draft.commit())
}

/// The server answered a call with questions. What rules alone can reply to is replied to; a person is asked the rest.
pub(super) fn required(draft: &mut Draft<'_>, key: CallKey, questions: Questions) {
    let fault = match draft.envelope.calls.iter().find(|call| call.key == key) {
        Some(call) => refused(draft.envelope, call, &questions),
        None => return,
    };
    if let Some(error) = fault {
        settle::fail(draft, key, error, None);
        return;
    }
    let asks_people = draft
        .envelope
        .calls
        .iter()
        .find(|call| call.key == key)
        .and_then(|call| draft.envelope.entry_of(call))
        .is_some_and(|entry| entry.elicitation == Elicitation::Ask);
    let Questions { asks, state, place } = questions;
    let mut to_ask = Vec::new();
    let mut kept = BTreeMap::new();
    for (name, ask) in asks {
        let reply = match &ask {
            Ask::Form { .. } | Ask::Url { .. } if asks_people => {
                to_ask.push((name.clone(), ask.clone()));
                None
            }
            Ask::Form { .. } | Ask::Url { .. } => Some(Reply::decline()),
            Ask::Roots => Some(Reply::Roots),
            Ask::Sample(_) => None,
        };
        kept.insert(name, Question { ask, approved: false, reply });
    }
    // The call is answered: what its server asked while it was out ends with that.
    draft.end_asks(key);
    draft.keep_asked(key, kept, (state, place));
    let since = draft.now;
    draft.move_call(key, Stage::Waiting { since });
    for (name, ask) in to_ask {
        open(draft, key, Some(name), ask, None);
    }
}

/// Why a call that came back with questions cannot go on.
fn refused(envelope: &Envelope, call: &Call, questions: &Questions) -> Option<ToolError> {
    let round = call.asked.as_ref().map_or(0, |asked| asked.round);
    let samples = questions.asks.values().any(|ask| matches!(ask, Ask::Sample(_)));
    let offers_samples = envelope.entry_of(call).is_some_and(|entry| entry.sampling.is_some());
    let open = envelope.head.state.asks.open.len().saturating_add(questions.asks.len());
    let why = if envelope.leg == Leg::Cancelling {
        return Some(abandoned());
    } else if round >= MAX_ROUNDS {
        format!("The MCP server asked for input more than {MAX_ROUNDS} times.")
    } else if open > MAX_OPEN {
        format!("The MCP server's questions would be more than {MAX_OPEN} at once.")
    } else if questions.asks.is_empty() && questions.state.is_none() {
        "The MCP server asked for input without saying which.".to_owned()
    } else if samples && !offers_samples {
        "The MCP server asked for a sample of a model, which this run does not offer.".to_owned()
    } else {
        return None;
    };
    Some(ToolError::new("input-required", why))
}

fn open(draft: &mut Draft<'_>, key: CallKey, question: Option<String>, ask: Ask, expires_at: Option<Timestamp>) {
    let Some(call) = draft.envelope.calls.iter().find(|call| call.key == key) else { return };
    let (mode, message, requested_schema, url) = match ask {
        Ask::Form { message, schema } => (InputMode::Form, message, Some(schema), None),
        Ask::Url { message, url } => (InputMode::Url, message, None, Some(url)),
        Ask::Sample(_) | Ask::Roots => return,
    };
    let server = call.target.as_ref().map(|target| target.server.clone()).unwrap_or_default();
    let call_id = call.call_id.clone();
    let asked_at = draft.now;
    let input_id = draft.envelope.head.state.asks.name_next();
    let input =
        Input { input_id, server, turn: key.turn, call_id, mode, message, requested_schema, url, expires_at, asked_at };
    draft.envelope.head.state.asks.open.push(OpenInput { input: input.clone(), call: key, question });
    draft.event(EventBody::InputRequested { input });
}

impl Draft<'_> {
    /// Nobody waits any more for what the server of this call asked.
    pub(super) fn end_asks(&mut self, key: CallKey) {
        let open: Vec<OpenInput> =
            self.envelope.head.state.asks.open.iter().filter(|open| open.call == key).cloned().collect();
        for open in open {
            self.end_input(&open, InputAction::Cancel, None, Some("call-ended"));
        }
        self.cancel_approvals_of(|call| call.key == key);
        self.drop_reservations_of(|reserved| reserved.call == key);
    }

    fn end_input(&mut self, open: &OpenInput, action: InputAction, actor: Option<Actor>, reason: Option<&str>) {
        let input_id = open.input.input_id.clone();
        let asks = &mut self.envelope.head.state.asks;
        asks.open.retain(|other| other.input.input_id != input_id);
        asks.remember(ClosedInput { input_id: input_id.clone(), action, actor: actor.clone() });
        let input = InputAnswered {
            input_id,
            server: open.input.server.clone(),
            action,
            actor: actor.map(|actor| actor.to_string()),
            reason: reason.map(str::to_owned),
        };
        self.event(EventBody::InputAnswered { input });
    }

    /// Keeps a reply in the receipt of its call.
    pub(super) fn reply(&mut self, key: CallKey, question: &str, reply: Reply) {
        let Some(call) = self.envelope.calls.iter_mut().find(|call| call.key == key) else { return };
        if let Some(asked) = call.asked.as_mut().and_then(|asked| asked.questions.get_mut(question)) {
            asked.reply = Some(reply);
            self.touch(key);
        }
    }

    fn keep_asked(
        &mut self,
        key: CallKey,
        questions: BTreeMap<String, Question>,
        (state, place): (Option<String>, Option<String>),
    ) {
        let Some(call) = self.envelope.calls.iter_mut().find(|call| call.key == key) else { return };
        let round = call.asked.as_ref().map_or(0, |asked| asked.round).saturating_add(1);
        call.asked = Some(Box::new(Asked { round, questions, state, place }));
    }
}
