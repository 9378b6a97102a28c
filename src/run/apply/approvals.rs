//! People vote on calls before they are sent. Asking is in the commit of the turn, deciding is in the commit that sets
//! the run going: neither a parked run without its question nor a decision without its effect can be stored.

use super::draft::Draft;
use super::{leg, reconcile, settle};
use crate::run::approval::{
    Approval, ApprovalRule, ApprovalStatus, OnModify, OnReject, OpenApproval, Verdict, Vote, approval_id, input_digest,
};
use crate::run::call::{Call, Stage};
use crate::run::commit::Commit;
use crate::run::envelope::Envelope;
use crate::run::event::EventBody;
use crate::run::fact::CastVote;
use crate::run::ids::Actor;
use crate::run::outcome::Cause;
use crate::run::refusal::Refusal;
use crate::run::result::RunError;
use crate::run::time::Timestamp;

/// Asks for what the calls of a new turn need.
pub(super) fn ask(draft: &mut Draft<'_>) {
    let unsent = |call: &&Call| matches!(call.stage, Stage::Pending);
    let asked: Vec<OpenApproval> = draft
        .envelope
        .calls
        .iter()
        .filter(unsent)
        .filter_map(|call| Some(question(draft, call, draft.envelope.approval_rule(call)?)))
        .collect();
    for open in asked {
        draft.envelope.head.state.approvals.push(open.clone());
        draft.keep_approval(&open.approval);
        draft.event(EventBody::ApprovalRequested { approval: Box::new(open.approval) });
    }
}

fn question(draft: &Draft<'_>, call: &Call, rule: ApprovalRule) -> OpenApproval {
    let envelope = &*draft.envelope;
    let recorded = envelope.binding.tool(&call.tool).map(crate::run::binding::BoundTool::recorded_name);
    let record = envelope.binding.mcp.as_ref();
    let tool_digest = record.zip(recorded).and_then(|(record, name)| record.tools.get(name)).cloned();
    let approval = Approval {
        id: approval_id(envelope.uid, call.key),
        run_id: envelope.id.clone(),
        turn: call.key.turn,
        call_id: call.call_id.clone(),
        tool: call.tool.clone(),
        input: call.input.clone(),
        input_digest: input_digest(&call.input),
        tool_digest,
        rules: rule.rules.clone(),
        reason: rule.reason.clone(),
        status: ApprovalStatus::Pending,
        required: rule.required.max(1),
        votes: Vec::new(),
        on_modify: rule.on_modify,
        created_at: draft.now,
        decided_at: None,
    };
    OpenApproval { call: call.key, rule, approval }
}

pub(super) fn voted(envelope: &mut Envelope, cast: CastVote, now: Timestamp) -> Result<Commit, Refusal> {
    check(envelope, &cast)?;
    let mut draft = Draft::new(envelope, now);
    take(&mut draft, cast);
    if !draft.envelope.head.status.is_terminal() {
        reconcile::go_on(&mut draft);
    }
    Ok(draft.commit())
}

/// Whether the vote counts.
pub(super) fn check(envelope: &Envelope, cast: &CastVote) -> Result<(), Refusal> {
    let Some(open) = find(envelope, cast) else { return Err(Refusal::AlreadyDecided(cast.approval)) };
    if !open.rule.admits(&cast.actor, &envelope.head.state.created_by) {
        return Err(Refusal::NotAnApprover);
    }
    if open.approval.votes.iter().any(|vote| vote.actor == cast.actor.as_str()) {
        return Err(Refusal::AlreadyVoted);
    }
    let changes = cast.arguments.as_ref().is_some_and(|given| input_digest(given) != open.approval.input_digest);
    if changes && open.rule.on_modify == OnModify::Forbid {
        return Err(Refusal::ArgumentsFixed);
    }
    Ok(())
}

fn find<'a>(envelope: &'a Envelope, cast: &CastVote) -> Option<&'a OpenApproval> {
    envelope.head.state.approvals.iter().find(|open| open.approval.id == cast.approval)
}

/// Counts a vote that was checked, and decides the approval when it is the last one needed.
pub(super) fn take(draft: &mut Draft<'_>, cast: CastVote) {
    let Some(mut open) = find(draft.envelope, &cast).cloned() else { return };
    if let Some(given) = cast.arguments {
        change(draft, &mut open, given);
    }
    let actor = cast.actor;
    let vote = Vote { actor: actor.as_str().to_owned(), decision: cast.decision, comment: cast.comment, at: draft.now };
    open.approval.votes.push(vote);
    draft.progress();
    let outcome = open.outcome();
    let kept = &mut draft.envelope.head.state.approvals;
    match outcome {
        None => {
            if let Some(known) = kept.iter_mut().find(|known| known.approval.id == open.approval.id) {
                *known = open.clone();
            }
            draft.keep_approval(&open.approval);
        }
        Some(verdict) => {
            kept.retain(|known| known.approval.id != open.approval.id);
            decide(draft, open, verdict, actor);
        }
    }
}

/// Other arguments are another question: whoever voted before voted on something else.
fn change(draft: &mut Draft<'_>, open: &mut OpenApproval, given: serde_json::Value) {
    let digest = input_digest(&given);
    if digest == open.approval.input_digest {
        return;
    }
    open.approval.votes.clear();
    open.approval.input = given.clone();
    open.approval.input_digest = digest;
    if let Some(call) = draft.envelope.calls.iter_mut().find(|call| call.key == open.call) {
        call.input = given;
        draft.touch(open.call);
    }
}

fn decide(draft: &mut Draft<'_>, mut open: OpenApproval, verdict: Verdict, actor: Actor) {
    open.approval.decided_at = Some(draft.now);
    open.approval.status = match verdict {
        Verdict::Approve => ApprovalStatus::Approved,
        Verdict::Deny => ApprovalStatus::Denied,
    };
    if let Some(call) = draft.envelope.calls.iter_mut().find(|call| call.key == open.call) {
        call.decided_by = Some(actor.clone());
        draft.touch(open.call);
    }
    draft.keep_approval(&open.approval);
    draft.event(EventBody::ApprovalDecided { approval: Box::new(open.approval.clone()) });
    if verdict == Verdict::Deny {
        deny(draft, &open, &actor);
    }
}

/// The denied call has its result, which says who denied it and why.
fn deny(draft: &mut Draft<'_>, open: &OpenApproval, actor: &Actor) {
    let comment = open.approval.votes.last().and_then(|vote| vote.comment.as_deref());
    let why = comment.map(|comment| format!(": {comment}")).unwrap_or_default();
    let reason = format!("The call was denied by {actor}{why}. It was not carried out.");
    let rule = open.approval.rules.join(", ");
    draft.move_call(open.call, Stage::Rejected { rule, reason: reason.clone() });
    if let Some(call) = draft.envelope.calls.iter_mut().find(|call| call.key == open.call) {
        call.target = None;
        let event = settle::ended(call, None);
        draft.event(event);
    }
    match open.rule.on_reject {
        OnReject::ReturnToModel => {}
        OnReject::Fail => {
            leg::close(draft, Cause::Cancelled, "The run ended before the call was sent.");
            draft.fail(RunError::new("policy-reject", reason));
        }
    }
}

impl Draft<'_> {
    /// Nobody will send what the pending approvals are about.
    pub(super) fn cancel_approvals(&mut self) {
        for mut open in std::mem::take(&mut self.envelope.head.state.approvals) {
            open.approval.status = ApprovalStatus::Cancelled;
            open.approval.decided_at = Some(self.now);
            self.keep_approval(&open.approval);
            self.event(EventBody::ApprovalDecided { approval: Box::new(open.approval) });
        }
    }
}
