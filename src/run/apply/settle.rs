//! An attempt of a call ended: the receipt learns how.

use super::draft::Draft;
use super::{inputs, proceed, trouble};
use crate::run::binding::{Warning, WarningKind};
use crate::run::call::{Call, MAX_TURNED_AWAY, Stage};
use crate::run::commit::Commit;
use crate::run::envelope::{Envelope, Leg};
use crate::run::event::{EventBody, Progress};
use crate::run::ids::CallKey;
use crate::run::outcome::{Answer, Cause, Outcome, ToolError};
use crate::run::pace::Pace;
use crate::run::refusal::Refusal;
use crate::run::time::Timestamp;

pub(super) fn call_ended(
    envelope: &mut Envelope,
    key: CallKey,
    outcome: Outcome,
    now: Timestamp,
) -> Result<Commit, Refusal> {
    match envelope.leg {
        // What a server goes on with by itself is asked for before catalogs are compared.
        Leg::Working | Leg::Cancelling | Leg::CheckingCatalog => {}
        Leg::Outside => return Err(Refusal::Impossible("no leg is working")),
    }
    // What others came and fetched ends by their word, or with the run.
    let is_out = |call: &Call| call.is_held() || (envelope.leg == Leg::Cancelling && call.is_with_worker());
    if !envelope.calls.iter().any(|call| call.key == key && is_out(call)) {
        return Err(Refusal::Impossible("the call is not out"));
    }
    let mut draft = Draft::new(envelope, now);
    draft.progress();
    match outcome {
        Outcome::Answered(Answer::Done { output }) => complete(&mut draft, key, output),
        Outcome::Answered(Answer::Failed { error, output }) => fail(&mut draft, key, error, output),
        Outcome::TurnedAway(error) if may_come_again(&draft, key) => turn_away(&mut draft, key, &error),
        // That a repeat did not arrive says nothing of the attempt before it.
        Outcome::NotSent(_) | Outcome::TurnedAway(_) if is_repeat(&draft, key) => {
            trouble::lose(&mut draft, key, Cause::LostResponse);
        }
        Outcome::NotSent(error) | Outcome::TurnedAway(error) => fail(&mut draft, key, error, None),
        Outcome::Unknown(cause) => trouble::lose(&mut draft, key, cause),
        Outcome::InputRequired(questions) => inputs::required(&mut draft, key, *questions),
        Outcome::Deferred(task) => draft.defer(key, task),
    }
    go_on(&mut draft);
    Ok(draft.commit())
}

/// Tells readers how far calls have come. It changes nothing of the run: a server that only says that it works on is no
/// reason to believe that a run which kills its nodes goes well.
pub(super) fn calls_progressed(
    envelope: &mut Envelope,
    calls: Vec<(CallKey, Progress)>,
    now: Timestamp,
) -> Result<Commit, Refusal> {
    let is_out = |key: CallKey| {
        envelope.calls.iter().any(|call| call.key == key && matches!(call.stage, Stage::Executing { .. }))
    };
    if calls.is_empty() || envelope.leg == Leg::Outside || !calls.iter().all(|(key, _)| is_out(*key)) {
        return Err(Refusal::Impossible("only a call that is out has progress"));
    }
    let mut draft = Draft::new(envelope, now);
    for (key, progress) in calls {
        if let Some(call_id) = draft.envelope.calls.iter().find(|call| call.key == key).map(|call| call.call_id.clone())
        {
            draft.event(EventBody::ToolProgress { turn: key.turn, call_id, progress });
        }
    }
    Ok(draft.commit())
}

pub(super) fn go_on(draft: &mut Draft<'_>) {
    let envelope = &mut *draft.envelope;
    // A run that must wait for a person, or fails, sends nothing, whatever its servers list by now.
    let sends_nothing = envelope.undecided().next().is_some() || envelope.fails();
    if envelope.leg == Leg::CheckingCatalog && !envelope.has_held() && sends_nothing {
        envelope.leg = Leg::Working;
    }
    if envelope.leg == Leg::Working {
        proceed::proceed(draft);
    }
}

fn is_repeat(draft: &Draft<'_>, key: CallKey) -> bool {
    draft.envelope.calls.iter().any(|call| call.key == key && call.taken() > 1)
}

fn may_come_again(draft: &Draft<'_>, key: CallKey) -> bool {
    let has_turn = |call: &Call| call.key == key && call.turned_away < MAX_TURNED_AWAY;
    draft.envelope.leg == Leg::Working && draft.envelope.calls.iter().any(has_turn)
}

/// The server turned the attempt away, and the next one may fare better. It is said before it leaves, like every attempt:
/// a server may have done more than it says.
fn turn_away(draft: &mut Draft<'_>, key: CallKey, error: &ToolError) {
    let stage = if is_repeat(draft, key) {
        Stage::Indeterminate { cause: Cause::LostResponse, since: draft.now, authorized: true }
    } else {
        Stage::Pending
    };
    draft.move_call(key, stage);
    let Some(call) = draft.envelope.calls.iter_mut().find(|call| call.key == key) else { return };
    call.turned_away = call.turned_away.saturating_add(1);
    let server = call.target.as_ref().map(|target| target.server.clone()).unwrap_or_default();
    let text = format!("A call to MCP server '{server}' is sent again with the same key: {}", error.message);
    draft.warn_of_new(vec![Warning::mcp(WarningKind::Other, text, Some("mcp-call-sent-again"))]);
}

pub(super) fn complete(draft: &mut Draft<'_>, key: CallKey, output: serde_json::Value) {
    let began = began(draft, key);
    draft.move_call(key, Stage::Completed { settled_at: draft.now, output });
    count(draft, key, Pace::succeeded);
    tell(draft, key, began);
}

pub(super) fn fail(draft: &mut Draft<'_>, key: CallKey, error: ToolError, output: Option<serde_json::Value>) {
    let began = began(draft, key);
    draft.move_call(key, Stage::Failed { settled_at: draft.now, error, output });
    count(draft, key, Pace::erred);
    tell(draft, key, began);
}

/// In the order in which calls are settled.
fn count(draft: &mut Draft<'_>, key: CallKey, how: fn(&mut Pace, &str)) {
    let Envelope { calls, head, .. } = &mut *draft.envelope;
    if let Some(call) = calls.iter().find(|call| call.key == key) {
        how(&mut head.state.pace, &call.tool);
    }
}

fn began(draft: &Draft<'_>, key: CallKey) -> Option<Timestamp> {
    draft.envelope.calls.iter().find(|call| call.key == key).and_then(|call| match &call.stage {
        Stage::Executing { since } => Some(*since),
        Stage::Rejected { .. }
        | Stage::Proposed
        | Stage::Pending
        | Stage::Waiting { .. }
        | Stage::Completed { .. }
        | Stage::Failed { .. }
        | Stage::Indeterminate { .. } => None,
    })
}

/// One `tool-output` for each settlement.
fn tell(draft: &mut Draft<'_>, key: CallKey, began: Option<Timestamp>) {
    let now = draft.now;
    let Some(call) = draft.envelope.calls.iter().find(|call| call.key == key) else { return };
    let event = ended(call, began.map(|began| now.millis_since(began)));
    draft.event(event);
}

/// The event of a call that has its result, or whose outcome is unknown.
pub(super) fn ended(call: &Call, duration_ms: Option<i64>) -> EventBody {
    let (mut output, mut error, mut cause, mut rule, mut reason, mut policy) = (None, None, None, None, None, None);
    match &call.stage {
        Stage::Completed { output: returned, .. } => output = Some(returned.clone()),
        Stage::Failed { error: why, output: returned, .. } => {
            error = Some(why.clone());
            output.clone_from(returned);
        }
        Stage::Rejected { rule: which, reason: why } => {
            rule = Some(which.clone());
            reason = Some(why.clone());
            policy.clone_from(&call.judged.decision);
        }
        Stage::Indeterminate { cause: why, .. } => {
            cause = Some(why.code().to_owned());
            error = Some(ToolError::new("outcome-unknown", why.message()));
        }
        Stage::Proposed | Stage::Pending | Stage::Executing { .. } | Stage::Waiting { .. } => {}
    }
    EventBody::ToolOutput {
        turn: call.key.turn,
        call_id: call.call_id.clone(),
        tool: call.tool.clone(),
        stage: call.stage.code().to_owned(),
        attempt: call.attempt,
        output,
        error,
        cause,
        rule,
        reason,
        policy,
        duration_ms,
    }
}
