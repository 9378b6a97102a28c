//! People vote on calls before they are sent. Asking is in the commit that makes the run wait, deciding is in the commit
//! that sets it going: neither a parked run without its question nor a decision without its effect can be stored.

use serde_json::Value;
use uuid::Uuid;

use super::draft::Draft;
use super::{limits, reconcile, sampling, settle, trouble};
use crate::run::approval::{
    Approval, ApprovalKind, ApprovalStatus, OnModify, OnReject, OnTimeout, OpenApproval, Requirement, Subject,
    TIMEOUT_ACTOR, Verdict, Vote, input_digest,
};
use crate::run::binding::BoundTool;
use crate::run::call::{Call, Stage};
use crate::run::commit::Commit;
use crate::run::envelope::Envelope;
use crate::run::event::EventBody;
use crate::run::fact::{CastVote, Ruling};
use crate::run::ids::{Actor, CallId, CallKey};
use crate::run::policy::Judged;
use crate::run::refusal::Refusal;
use crate::run::result::RunError;
use crate::run::time::Timestamp;

/// Asks people about a call, or about what its server wants.
pub(super) fn ask(draft: &mut Draft<'_>, key: CallKey, subject: Subject, requirement: Requirement) {
    let Some(call) = draft.envelope.calls.iter().find(|call| call.key == key).cloned() else { return };
    let (kind, input) = match &subject {
        Subject::Call => (ApprovalKind::Call, call.input.clone()),
        Subject::Repeat => (ApprovalKind::Repeat, call.input.clone()),
        Subject::Sample { request, .. } => {
            (ApprovalKind::Sampling, serde_json::to_value(&**request).unwrap_or(Value::Null))
        }
        // Is asked about as what it is: it has no call.
        Subject::Limit(_) => return,
    };
    let tool_digest = draft.envelope.binding.tool(&call.tool).map(BoundTool::digest);
    let about = About { key, call_id: call.call_id, kind, tool: call.tool, input, tool_digest };
    request(draft, about, subject, requirement);
}

/// What people are asked about, as they see it.
pub(super) struct About {
    pub(super) key: CallKey,
    pub(super) call_id: CallId,
    pub(super) kind: ApprovalKind,
    pub(super) tool: String,
    pub(super) input: Value,
    pub(super) tool_digest: Option<String>,
}

/// Asks them.
pub(super) fn request(draft: &mut Draft<'_>, about: About, subject: Subject, requirement: Requirement) {
    let rule = &requirement.rule;
    let approval = Approval {
        id: Uuid::nil(),
        run_id: draft.envelope.id.clone(),
        turn: about.key.turn,
        call_id: about.call_id,
        kind: about.kind,
        tool: about.tool,
        input_digest: input_digest(&about.input),
        input: about.input,
        tool_digest: about.tool_digest,
        rules: requirement.rules.clone(),
        reason: requirement.reason.clone(),
        status: ApprovalStatus::Pending,
        required: rule.required.max(1),
        votes: Vec::new(),
        on_modify: rule.on_modify,
        expires_at: expiry(rule.timeout_s, draft.now),
        created_at: draft.now,
        decided_at: None,
    };
    open(draft, OpenApproval { call: about.key, subject, requirement, approval, is_changed: false, round: 0 });
}

fn expiry(timeout_s: Option<u64>, now: Timestamp) -> Option<Timestamp> {
    timeout_s.map(|lasts| now.plus_millis(i64::try_from(lasts.saturating_mul(1000)).unwrap_or(i64::MAX)))
}

fn open(draft: &mut Draft<'_>, mut open: OpenApproval) {
    let uid = draft.envelope.uid;
    open.approval.id = draft.envelope.head.state.approvals.name_next(uid);
    draft.keep_approval(&open.approval);
    draft.event(EventBody::ApprovalRequested { approval: Box::new(open.approval.clone()) });
    draft.envelope.head.state.approvals.open.push(open);
}

pub(super) fn voted(
    envelope: &mut Envelope,
    cast: CastVote,
    ruling: Option<Ruling>,
    now: Timestamp,
) -> Result<Commit, Refusal> {
    check(envelope, &cast, ruling.as_ref(), now)?;
    let mut draft = Draft::new(envelope, now);
    take(&mut draft, cast, ruling);
    go_on(&mut draft);
    Ok(draft.commit())
}

/// Nobody decided in time: the rule says what that means.
pub(super) fn expired(envelope: &mut Envelope, approval: Uuid, now: Timestamp) -> Result<Commit, Refusal> {
    let Some(open) = envelope.head.state.approvals.find(approval).cloned() else {
        return Err(Refusal::AlreadyDecided(approval));
    };
    let mut draft = Draft::new(envelope, now);
    draft.progress();
    draft.envelope.head.state.approvals.open.retain(|known| known.approval.id != approval);
    match (open.requirement.rule.on_timeout, open.requirement.escalated()) {
        (OnTimeout::Escalate, Some(next)) => escalate(&mut draft, open, next),
        (OnTimeout::Approve, _) => by_timeout(&mut draft, open, Verdict::Approve),
        (OnTimeout::Deny | OnTimeout::Escalate, _) => by_timeout(&mut draft, open, Verdict::Deny),
    }
    go_on(&mut draft);
    Ok(draft.commit())
}

fn go_on(draft: &mut Draft<'_>) {
    if !draft.envelope.head.status.is_terminal() {
        reconcile::go_on(draft);
    }
}

fn by_timeout(draft: &mut Draft<'_>, mut open: OpenApproval, verdict: Verdict) {
    let Some(actor) = Actor::parse(TIMEOUT_ACTOR) else { return };
    let actor_name = actor.as_str().to_owned();
    open.approval.votes.push(Vote { actor: actor_name, decision: verdict, comment: None, at: draft.now });
    decide(draft, open, verdict, &actor, None);
}

fn escalate(draft: &mut Draft<'_>, mut late: OpenApproval, next: Requirement) {
    let (call, subject, is_changed, round) = (late.call, late.subject.clone(), late.is_changed, late.round);
    let mut approval = Approval {
        status: ApprovalStatus::Pending,
        votes: Vec::new(),
        expires_at: expiry(next.rule.timeout_s, draft.now),
        created_at: draft.now,
        decided_at: None,
        ..late.approval.clone()
    };
    approval.required = next.rule.required.max(1);
    close(draft, &mut late.approval, ApprovalStatus::Escalated);
    open(draft, OpenApproval { call, subject, requirement: next, approval, is_changed, round });
}

fn close(draft: &mut Draft<'_>, approval: &mut Approval, status: ApprovalStatus) {
    approval.status = status;
    approval.decided_at = Some(draft.now);
    draft.keep_approval(approval);
    draft.event(EventBody::ApprovalDecided { approval: Box::new(approval.clone()) });
}

/// Whether the vote counts.
pub(super) fn check(
    envelope: &Envelope,
    cast: &CastVote,
    ruling: Option<&Ruling>,
    now: Timestamp,
) -> Result<(), Refusal> {
    let Some(open) = envelope.head.state.approvals.find(cast.approval) else {
        return Err(Refusal::AlreadyDecided(cast.approval));
    };
    let starter = &envelope.head.state.created_by;
    let admits = |requirement: &Requirement| requirement.admits(&cast.voter, starter);
    if !admits(&open.requirement) {
        return Err(Refusal::NotAnApprover);
    }
    if open.has_voted(&cast.voter.actor) {
        return Err(Refusal::AlreadyVoted);
    }
    // What was cast for earlier arguments wants nothing of these, and was counted then if it came in time. A denial counts
    // whatever is denied: it decides, so it is counted once.
    if cast.decision == Verdict::Approve && cast.round != open.round {
        return Err(Refusal::ApprovalChanged);
    }
    if !changes(open, cast) {
        let digest = Some(&open.approval.input_digest);
        let has_read = cast.arguments.is_some() || cast.read.as_ref() == digest;
        let must_have = open.is_changed || cast.read.is_some();
        let blind = cast.decision == Verdict::Approve && must_have && !has_read;
        return if blind { Err(Refusal::ApprovalChanged) } else { Ok(()) };
    }
    let fixed = open.requirement.rule.on_modify == OnModify::Forbid;
    if let (Subject::Limit(reached), Some(to), false) = (&open.subject, &cast.arguments, fixed) {
        return limits::may_raise(envelope, reached.limit, to, now);
    }
    let fixed = fixed || open.subject != Subject::Call;
    match ruling {
        _ if fixed => Err(Refusal::ArgumentsFixed),
        None => Err(Refusal::Impossible("changed arguments were ruled on")),
        // The arguments ask for other approvers.
        Some(Ruling::Ask { requirement, .. }) if revalidates(open) && !admits(requirement) => {
            Err(Refusal::NotAnApprover)
        }
        Some(Ruling::Ask { .. } | Ruling::Admit { .. } | Ruling::Reject { .. }) => Ok(()),
    }
}

fn changes(open: &OpenApproval, cast: &CastVote) -> bool {
    cast.arguments.as_ref().is_some_and(|given| input_digest(given) != open.approval.input_digest)
}

fn revalidates(open: &OpenApproval) -> bool {
    open.requirement.rule.on_modify == OnModify::Revalidate
}

/// Counts a vote that was checked, and decides the approval when it is the last one needed.
pub(super) fn take(draft: &mut Draft<'_>, cast: CastVote, ruling: Option<Ruling>) {
    let Some(mut open) = draft.envelope.head.state.approvals.find(cast.approval).cloned() else { return };
    let changed = changes(&open, &cast);
    let CastVote { voter, decision, comment, arguments, .. } = cast;
    let actor = voter.actor;
    let mut refused = None;
    if let (Subject::Limit(_), Some(to), true) = (&open.subject, arguments, changed) {
        change(draft, &mut open, to);
    }
    match ruling.filter(|_| changed) {
        Some(Ruling::Reject { rule, reason, judged, .. }) => {
            judge(draft, open.call, *judged);
            refused = Some((rule, reason));
        }
        Some(Ruling::Admit { input, judged, .. }) => {
            judge(draft, open.call, *judged);
            change(draft, &mut open, input);
        }
        Some(Ruling::Ask { input, requirement, judged, .. }) => {
            if revalidates(&open) {
                require(&mut open, *requirement);
            }
            judge(draft, open.call, *judged);
            change(draft, &mut open, input);
        }
        None => {}
    }
    open.approval.votes.push(Vote { actor: actor.as_str().to_owned(), decision, comment, at: draft.now });
    draft.progress();
    // A rule that denies what this vote wants decides it as a denial would.
    let outcome = if refused.is_some() { Some(Verdict::Deny) } else { open.outcome() };
    let kept = &mut draft.envelope.head.state.approvals.open;
    match outcome {
        None => {
            if let Some(known) = kept.iter_mut().find(|known| known.approval.id == open.approval.id) {
                *known = open.clone();
            }
            draft.keep_approval(&open.approval);
        }
        Some(verdict) => {
            kept.retain(|known| known.approval.id != open.approval.id);
            decide(draft, open, verdict, &actor, refused);
        }
    }
}

/// What the rules want of the changed arguments adds to what the approval required: a change makes nothing easier.
fn require(open: &mut OpenApproval, more: Requirement) {
    open.requirement = open.requirement.clone().and(more);
    open.approval.required = open.requirement.rule.required.max(1);
    open.approval.rules.clone_from(&open.requirement.rules);
    open.approval.reason.clone_from(&open.requirement.reason);
    open.approval.on_modify = open.requirement.rule.on_modify;
    let latest = expiry(open.requirement.rule.timeout_s, open.approval.created_at);
    open.approval.expires_at = match (open.approval.expires_at, latest) {
        (Some(first), Some(second)) => Some(first.min(second)),
        (first, second) => first.or(second),
    };
}

/// The rules have looked at other arguments: what they say of these is what counts from now on.
fn judge(draft: &mut Draft<'_>, key: CallKey, judged: Judged) {
    if let Some(call) = draft.envelope.calls.iter_mut().find(|call| call.key == key) {
        call.judged = judged;
        draft.touch(key);
    }
}

/// Other arguments are another question: whoever voted before voted on something else.
fn change(draft: &mut Draft<'_>, open: &mut OpenApproval, given: Value) {
    open.approval.votes.clear();
    open.is_changed = true;
    open.round = open.round.saturating_add(1);
    open.approval.input_digest = input_digest(&given);
    open.approval.input = given.clone();
    if let Some(call) = draft.envelope.calls.iter_mut().find(|call| call.key == open.call) {
        call.input = given;
        draft.touch(open.call);
    }
}

/// The rule and the reason by which changed arguments were refused.
type Refused = Option<(String, String)>;

fn decide(draft: &mut Draft<'_>, mut open: OpenApproval, verdict: Verdict, actor: &Actor, refused: Refused) {
    if let (Subject::Call | Subject::Repeat, Some(call)) =
        (&open.subject, draft.envelope.calls.iter_mut().find(|call| call.key == open.call))
    {
        call.decided_by = Some(actor.clone());
        draft.touch(open.call);
    }
    let status = match verdict {
        Verdict::Approve => ApprovalStatus::Approved,
        Verdict::Deny => ApprovalStatus::Denied,
    };
    close(draft, &mut open.approval, status);
    let OpenApproval { call, subject, requirement, approval, .. } = open;
    match (subject, verdict) {
        (Subject::Call, Verdict::Approve) => draft.move_call(call, Stage::Pending),
        (Subject::Call, Verdict::Deny) => deny_call(draft, call, &requirement, &approval, refused),
        (Subject::Repeat, Verdict::Approve) => trouble::allow_repeat(draft, call, actor.as_str() == TIMEOUT_ACTOR),
        (Subject::Repeat, Verdict::Deny) => deny_repeat(draft, call, &requirement, &approval, actor),
        (Subject::Sample { question, request }, verdict) => {
            sampling::voted(draft, call, question, &request, (approval.id, verdict));
        }
        (Subject::Limit(reached), verdict) => limits::decided(draft, *reached, (&approval, &requirement), verdict),
    }
}

/// The denied call has its result, which says who denied it and why.
fn deny_call(draft: &mut Draft<'_>, key: CallKey, requirement: &Requirement, approval: &Approval, refused: Refused) {
    let (rule, reason) = refused.unwrap_or_else(|| (approval.rules.join(", "), why_denied(approval)));
    draft.move_call(key, Stage::Rejected { rule, reason: reason.clone() });
    tell_rejected(draft, key);
    match requirement.rule.on_reject {
        OnReject::ReturnToModel => {}
        OnReject::Fail => trouble::fail_after_all(draft, RunError::new("policy-reject", reason)),
    }
}

/// A call of which nobody knows whether it had its effect is not sent again.
fn deny_repeat(draft: &mut Draft<'_>, key: CallKey, requirement: &Requirement, approval: &Approval, actor: &Actor) {
    let comment = approval.votes.last().and_then(|vote| vote.comment.as_deref());
    let why = trouble::refused_by(actor, comment);
    trouble::deny_repeat(draft, key, &why);
    match requirement.rule.on_reject {
        OnReject::ReturnToModel => {}
        OnReject::Fail => trouble::fail_after_all(draft, RunError::new("policy-reject", why)),
    }
}

fn why_denied(approval: &Approval) -> String {
    let Some(vote) = approval.votes.last() else { return "The call was denied. It was not carried out.".to_owned() };
    if vote.actor == TIMEOUT_ACTOR {
        return "Nobody approved the call in time. It was not carried out.".to_owned();
    }
    let comment = vote.comment.as_deref().map(|comment| format!(": {comment}")).unwrap_or_default();
    format!("The call was denied by {}{comment}. It was not carried out.", vote.actor)
}

/// A call that never reaches the boundary goes nowhere and has no receipt.
pub(super) fn tell_rejected(draft: &mut Draft<'_>, key: CallKey) {
    let Some(call) = draft.envelope.calls.iter_mut().find(|call| call.key == key) else { return };
    call.target = None;
    let event = settle::ended(call, None);
    draft.event(event);
}

impl Draft<'_> {
    /// Nobody decides any more what is about a call that has ended.
    pub(super) fn cancel_approvals_of(&mut self, is_over: impl Fn(&Call) -> bool) {
        let open = std::mem::take(&mut self.envelope.head.state.approvals.open);
        let over = |open: &OpenApproval| {
            let call = self.envelope.calls.iter().find(|call| call.key == open.call);
            !matches!(open.subject, Subject::Limit(_)) && call.is_none_or(&is_over)
        };
        let (gone, kept): (Vec<_>, Vec<_>) = open.into_iter().partition(over);
        self.envelope.head.state.approvals.open = kept;
        self.cancel(gone);
    }

    /// Nobody decides any more what the run has ended for.
    pub(super) fn cancel_approvals(&mut self) {
        let gone = std::mem::take(&mut self.envelope.head.state.approvals.open);
        self.cancel(gone);
    }

    fn cancel(&mut self, gone: Vec<OpenApproval>) {
        for mut open in gone {
            close(self, &mut open.approval, ApprovalStatus::Cancelled);
        }
    }
}
