//! A run reaches one of its limits. Rules for limits are asked first, where the run has some: that it was reached is stored
//! before, so nothing goes on in between, whoever drives the run. Then it stops, fails, or waits for people who may raise
//! the limit; the commit that raises it sets the run going.

use serde_json::Value;

use super::approvals::About;
use super::draft::Draft;
use super::{approvals, proceed};
use crate::run::approval::{
    Approval, ApprovalKind, ApprovalRule, OnReject, Requirement, Subject, TIMEOUT_ACTOR, Verdict,
};
use crate::run::commit::Commit;
use crate::run::envelope::{Envelope, Leg};
use crate::run::ids::{CallId, CallKey};
use crate::run::limits::{Limits, OnLimit};
use crate::run::money::Usd;
use crate::run::policy::{Trigger, Trouble};
use crate::run::reached::{Limit, Reached};
use crate::run::refusal::Refusal;
use crate::run::result::RunError;
use crate::run::status::Status;
use crate::run::time::Timestamp;

/// The limit that stands before the next turn. Its part of a budget is what is left. It is taken only if the turn does
/// not need more than that for what it reads alone, which is known from the turn before it.
pub(super) fn before_turn(envelope: &Envelope, now: Timestamp) -> Option<Limit> {
    let (limits, state) = (envelope.limits(), &envelope.head.state);
    let least = state.pace.last_input_tokens;
    let spent_tokens = envelope.tokens_left().is_some_and(|left| left == 0 || left < least);
    let spent_cost = envelope.cost_left().is_some_and(|left| {
        let price = envelope.price();
        price.is_none_or(|price| left < price.least(least) || (left == Usd::ZERO && !price.is_free()))
    });
    if state.turns >= limits.max_turns {
        Some(Limit::MaxTurns)
    } else if spent_tokens {
        Some(Limit::MaxTokens)
    } else if spent_cost {
        Some(Limit::MaxCostUsd)
    } else {
        envelope.is_late(now).then_some(Limit::MaxDurationS)
    }
}

/// The limit that the calls of a turn exceed: then none of them is sent.
pub(super) fn before_calls(envelope: &Envelope, now: Timestamp) -> Option<Limit> {
    if envelope.head.state.tool_calls > envelope.limits().max_tool_calls {
        Some(Limit::MaxToolCalls)
    } else {
        envelope.is_late(now).then_some(Limit::MaxDurationS)
    }
}

/// The run has reached a limit, before a turn or before the calls of one, about which these people are to be asked.
pub(super) fn reach(draft: &mut Draft<'_>, limit: Limit, asks: Vec<(CallKey, Requirement)>) {
    let reached = Reached { limit, asks };
    let is_ruled = draft.envelope.spec.policies.iter().any(|policy| policy.trigger == Trigger::LimitReached);
    if is_ruled {
        draft.envelope.head.state.reached = Some(reached);
    } else {
        follow(draft, reached, None);
    }
}

/// The rules for limits were asked.
pub(super) fn judged(envelope: &mut Envelope, said: Option<Trouble>, now: Timestamp) -> Result<Commit, Refusal> {
    let works = envelope.head.status == Status::Running && envelope.leg == Leg::Working;
    let Some(reached) = envelope.head.state.reached.clone().filter(|_| works) else {
        return Err(Refusal::Impossible("no limit is reached"));
    };
    let mut draft = Draft::new(envelope, now);
    draft.envelope.head.state.reached = None;
    draft.progress();
    follow(&mut draft, reached, said);
    Ok(draft.commit())
}

fn follow(draft: &mut Draft<'_>, reached: Reached, said: Option<Trouble>) {
    let sentence = reached.limit.sentence(draft.envelope.limits());
    match said {
        Some(Trouble::Fail { rule, reason }) => {
            let why =
                reason.map_or_else(|| format!("Policy '{rule}' applies."), |why| format!("Policy '{rule}': {why}"));
            refuse_calls(draft, reached.limit);
            draft.fail(RunError::new("limit-reached", format!("{sentence} {why}")));
        }
        Some(Trouble::RequireApproval { requirement }) => {
            let reason = format!("{sentence} {}", requirement.reason);
            ask(draft, reached, Requirement { reason, ..*requirement });
        }
        Some(Trouble::Retry | Trouble::ToolError { .. } | Trouble::Reconcile) | None => {
            match draft.envelope.limits().on_limit {
                OnLimit::Stop => stop(draft, reached.limit),
                OnLimit::Escalate => {
                    ask(draft, reached, Requirement::new(ApprovalRule::default(), Limits::ON_LIMIT, sentence));
                }
            }
        }
    }
}

fn stop(draft: &mut Draft<'_>, limit: Limit) {
    refuse_calls(draft, limit);
    draft.envelope.head.state.output = proceed::last_text(draft.envelope);
    draft.finish(Status::Stopped(limit.reason()));
}

/// What the model wanted beyond the limit is not sent.
fn refuse_calls(draft: &mut Draft<'_>, limit: Limit) {
    let (rule, reason) = (limit.reason().code(), limit.sentence(draft.envelope.limits()));
    let open: Vec<CallKey> =
        draft.envelope.calls.iter().filter(|call| !call.stage.is_settled()).map(|call| call.key).collect();
    for key in open {
        draft.reject_call(key, rule, &reason);
        approvals::tell_rejected(draft, key);
    }
}

/// Asks people to raise the limit. One that no value could raise stops the run.
fn ask(draft: &mut Draft<'_>, reached: Reached, requirement: Requirement) {
    let limit = reached.limit;
    let Some(input) = limit.proposal(draft.envelope, draft.now) else { return stop(draft, limit) };
    let about = About {
        // A place that no call of the turn has.
        key: CallKey { turn: draft.envelope.head.state.turns, position: u32::MAX },
        call_id: CallId::new(format!("limit:{}", limit.member())),
        kind: ApprovalKind::Limit,
        tool: "limits".to_owned(),
        input,
        tool_digest: None,
    };
    approvals::request(draft, about, Subject::Limit(Box::new(reached)), requirement);
    if let Some(reason) = draft.envelope.awaits() {
        draft.suspend(reason);
    }
}

/// People decided. Raised, the run goes on where it stood, and they are asked about the calls of its turn.
pub(super) fn decided(
    draft: &mut Draft<'_>,
    reached: Reached,
    (approval, requirement): (&Approval, &Requirement),
    verdict: Verdict,
) {
    match verdict {
        Verdict::Approve => {
            // It was checked when it was proposed or voted for. Were it no use any more, the limit would be reached again.
            if let Ok(limits) = reached.limit.raised(draft.envelope, &approval.input, draft.now) {
                draft.envelope.head.state.limits = Some(limits);
            }
            // The calls of a turn may stand before another limit as well.
            let unsent = draft.envelope.calls.iter().any(|call| !call.stage.is_settled());
            if let Some(limit) = before_calls(draft.envelope, draft.now).filter(|_| unsent) {
                return reach(draft, limit, reached.asks);
            }
            for (key, requirement) in reached.asks {
                approvals::ask(draft, key, Subject::Call, requirement);
            }
        }
        Verdict::Deny => match requirement.rule.on_reject {
            OnReject::ReturnToModel => stop(draft, reached.limit),
            OnReject::Fail => {
                let sentence = reached.limit.sentence(draft.envelope.limits());
                refuse_calls(draft, reached.limit);
                draft.fail(RunError::new("limit-reached", format!("{sentence} {}", why_denied(approval))));
            }
        },
    }
}

fn why_denied(approval: &Approval) -> String {
    let Some(vote) = approval.votes.last() else { return "It was not raised.".to_owned() };
    if vote.actor == TIMEOUT_ACTOR {
        return "Nobody raised it in time.".to_owned();
    }
    let comment = vote.comment.as_deref().map(|comment| format!(": {comment}")).unwrap_or_default();
    format!("{} did not let it be raised{comment}.", vote.actor)
}

/// Whether a vote may want this in the place of what is proposed.
pub(super) fn may_raise(envelope: &Envelope, limit: Limit, to: &Value, now: Timestamp) -> Result<(), Refusal> {
    limit.raised(envelope, to, now).map(drop).map_err(|_why| Refusal::Impossible("a raised limit was checked"))
}
