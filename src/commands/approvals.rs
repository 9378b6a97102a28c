//! Votes on what waits for an approval: applied at once when nobody drives the run, else left for the owner to read.
//! Answered when they are applied, so that what was acknowledged is never lost. Of voters at the same moment the first
//! commit wins; the others learn how the approval stands.

use std::sync::Arc;

use serde_json::{Map, Value};
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use super::faults::Faults;
use super::reconcile::LOOK_EVERY;
use super::request::DecideApproval;
use super::{Asker, CommandError, Commands};
use crate::dispatch::INVALID_ARGUMENTS;
use crate::run::apply;
use crate::run::approval::{Approval, ApprovalStatus, Subject, Verdict, Voter};
use crate::run::envelope::Envelope;
use crate::run::fact::{CastVote, Fact, LeftVote, Ruling};
use crate::run::ids::{CallId, RunId, RunUid};
use crate::run::refusal::Refusal;
use crate::run::status::Status;
use crate::store::{AuditRow, KeptApproval, Left, Loaded, PlaceInTime};

/// Longest comment, in bytes.
const COMMENT_MAX: usize = 4000;

/// Longest arguments that a vote may bring, in bytes: they are kept with the run until it is decided.
const ARGUMENTS_MAX: usize = 64 * 1024;

/// Longest token that is looked at, in bytes.
const TOKEN_MAX: usize = 8192;

const NO_APPROVAL: &str = "there is no such approval";

impl Commands {
    /// Votes on an approval, and answers it as it then stands.
    ///
    /// # Errors
    /// `Invalid`, `Missing`, `Store`; `ApprovalDecided` when somebody was faster; `TokenRefused`; `Refused` when the actor
    /// may not vote on it, or has; `Contended` when the owner did not read the vote in time, though it may still.
    pub async fn approval_decide(
        self: &Arc<Self>,
        asker: &Asker,
        id: Uuid,
        request: DecideApproval,
    ) -> Result<Approval, CommandError> {
        let mut faults = Faults::default();
        check(&request, "", self.allow.approvals_require_token, &mut faults);
        faults.finish()?;
        let (commands, asker) = (Arc::clone(self), asker.clone());
        // Comes to its end although its caller has gone: what was left with an owner that lets go is applied here.
        let applying = self.tasks.spawn(async move { commands.until_voted(&asker, id, &request).await });
        applying.await.unwrap_or_else(|_panicked| Err(CommandError::Interrupted))
    }

    async fn until_voted(&self, asker: &Asker, id: Uuid, request: &DecideApproval) -> Result<Approval, CommandError> {
        let deadline = Instant::now() + self.allow.owner_time;
        let mut left = None;
        while Instant::now() < deadline {
            let KeptApproval { uid, approval, is_due } = self.approval(asker, id).await?;
            if is_due {
                self.expire(asker, uid, &approval).await?;
                continue;
            }
            let counted = approval.votes.iter().any(|vote| vote.actor == asker.actor.as_str());
            if left.is_some() && counted {
                return Ok(approval);
            }
            if approval.status != ApprovalStatus::Pending {
                return Err(CommandError::ApprovalDecided(Box::new(approval)));
            }
            self.check_token(asker, request.token.as_deref(), &approval)?;
            let mut changes = self.hub.subscribe(&asker.tenant, uid);
            let loaded = self.load(asker, uid).await?;
            match loaded.envelope.head.state.approvals.find(id) {
                // It was decided, or this vote counted, between the two looks.
                None => continue,
                Some(open) if left.is_some() && open.has_voted(&asker.actor) => continue,
                // Other arguments came before it, or after it was counted: it is about these no more. A denial is.
                Some(open) if left.is_some_and(|round| round != open.round) => {
                    if request.decision == Verdict::Approve {
                        return Err(Refusal::ApprovalChanged.into());
                    }
                    left = None;
                }
                Some(_) => {}
            }
            let (cast, ruling) = self.cast(asker, &loaded.envelope, &approval, request, "").await?;
            if !loaded.owned {
                // Its row of the audit stands since it was left.
                let with_audit = left.is_none();
                if self.apply_vote(asker, loaded, &approval, (cast, ruling), with_audit).await? {
                    return Ok(self.approval(asker, id).await?.approval);
                }
            } else if left.is_some() {
                tokio::select! {
                    _ = changes.next() => {}
                    () = sleep(LOOK_EVERY) => {}
                }
            } else {
                left = self.leave_vote(asker, loaded.envelope, &approval, cast, ruling).await?;
            }
        }
        Err(CommandError::Contended)
    }

    /// Applies a vote on a run that nobody owns. `false`: the run changed meanwhile.
    async fn apply_vote(
        &self,
        asker: &Asker,
        loaded: Loaded,
        approval: &Approval,
        (cast, ruling): (CastVote, Option<Ruling>),
        with_audit: bool,
    ) -> Result<bool, CommandError> {
        let Loaded { mut envelope, fence, .. } = loaded;
        let audit = with_audit.then(|| self.vote_row(asker, approval, &cast));
        let fact = Fact::Voted { cast: Box::new(cast), ruling: ruling.map(Box::new) };
        let commit = match apply(&mut envelope, fact, self.clock.now()) {
            // It was decided between the two looks.
            Err(Refusal::AlreadyDecided(_) | Refusal::RunTerminal) => return Ok(false),
            voted => voted?,
        };
        let decided = self.decide(asker, envelope.uid, fence, &commit, audit.as_slice()).await?;
        if decided && envelope.head.status == Status::Queued {
            self.executor.wake();
        }
        Ok(decided)
    }

    /// Leaves a vote with the node that owns the run, and answers for which round of arguments; `None`: look again.
    async fn leave_vote(
        &self,
        asker: &Asker,
        mut envelope: Envelope,
        approval: &Approval,
        cast: CastVote,
        ruling: Option<Ruling>,
    ) -> Result<Option<u32>, CommandError> {
        let (uid, round, audit) = (envelope.uid, cast.round, self.vote_row(asker, approval, &cast));
        // Tried on what is stored: what the owner would refuse is refused here, where somebody hears it.
        let fact = Fact::Voted { cast: Box::new(cast.clone()), ruling: ruling.map(Box::new) };
        match apply(&mut envelope, fact, self.clock.now()) {
            Err(Refusal::AlreadyDecided(_) | Refusal::RunTerminal) => return Ok(None),
            voted => voted?,
        };
        match self.store.vote_leave(&asker.tenant, uid, &LeftVote::Cast(Box::new(cast)), &audit).await? {
            Left::Kept => {
                self.executor.attend(&asker.tenant, uid);
                Ok(Some(round))
            }
            Left::NotOwned => Ok(None),
            Left::Decided => Err(Refusal::AlreadyVoted.into()),
        }
    }

    /// The vote that a request makes, with what the gate says of arguments that it changes. `at`: where the request
    /// stands in the body.
    pub(super) async fn cast(
        &self,
        asker: &Asker,
        envelope: &Envelope,
        approval: &Approval,
        request: &DecideApproval,
        at: &str,
    ) -> Result<(CastVote, Option<Ruling>), CommandError> {
        let given = request.arguments.clone().map(Value::Object);
        let open = envelope.head.state.approvals.find(approval.id);
        let limit = match open.map(|open| &open.subject) {
            Some(Subject::Limit(reached)) => Some(reached.limit),
            Some(Subject::Call | Subject::Repeat | Subject::Sample { .. }) | None => None,
        };
        let ruling = match (given.clone(), limit) {
            (None, _) => None,
            (Some(to), Some(limit)) => {
                let mut faults = Faults::default();
                if let Err(detail) = limit.raised(envelope, &to, self.clock.now()) {
                    faults.add(format!("{at}/arguments"), detail);
                }
                faults.finish()?;
                None
            }
            (Some(given), None) => {
                let mut gate = self.dispatch.gate(&asker.tenant);
                let ruling = gate.rule_on_change(&envelope.binding, &approval.tool, given).await;
                Some(self.expressions.rule(envelope, approval.turn, &approval.tool, ruling).await)
            }
        };
        if let Some(Ruling::Reject { rule, reason, .. }) = &ruling
            && rule == INVALID_ARGUMENTS
        {
            let mut faults = Faults::default();
            faults.add(format!("{at}/arguments"), reason.clone());
            return Err(faults.into());
        }
        let cast = CastVote {
            voter: Voter { actor: asker.actor.clone(), scopes: asker.scopes.clone() },
            approval: approval.id,
            decision: request.decision,
            comment: request.comment.clone(),
            // The token was checked against the approval as it stands.
            read: request.token.is_some().then(|| approval.input_digest.clone()),
            arguments: given,
            round: open.map_or(0, |open| open.round),
        };
        Ok((cast, ruling))
    }

    /// The pending approval of a call; of a label that several turns have, the pending one, and of several the first.
    ///
    /// # Errors
    /// `NotFound`, `Missing`, `Store`; `ApprovalDecided` when the call's approval is decided.
    pub async fn approval_of_call(&self, asker: &Asker, run: &RunId, call: &CallId) -> Result<Uuid, CommandError> {
        let view = self.view(asker, run).await?;
        let open = &view.head.state.approvals.open;
        let of_call = || open.iter().filter(|open| open.approval.call_id == *call);
        // A call and a sample for it are never asked about at once.
        let first = of_call().find(|open| open.subject == Subject::Call).or_else(|| of_call().next());
        match first {
            Some(open) => Ok(open.approval.id),
            None => Err(self.not_pending(asker, view.uid, call).await?),
        }
    }

    /// Why a call has no pending approval: its newest one is decided, or it never had one.
    pub(super) async fn not_pending(
        &self,
        asker: &Asker,
        uid: RunUid,
        call: &CallId,
    ) -> Result<CommandError, CommandError> {
        let mut after = None;
        loop {
            let page = self.store.approval_list(&asker.tenant, (None, Some(uid)), after, 200).await?;
            let last = page.last().map(|approval| PlaceInTime { at: approval.created_at, id: approval.id });
            let more = page.more;
            if let Some(decided) = page.into_iter().find(|approval| approval.call_id == *call) {
                return Ok(CommandError::ApprovalDecided(Box::new(decided)));
            }
            if !more {
                return Ok(CommandError::Missing(NO_APPROVAL));
            }
            after = last;
        }
    }

    pub(super) async fn approval(&self, asker: &Asker, id: Uuid) -> Result<KeptApproval, CommandError> {
        self.store.approval_fetch(&asker.tenant, id).await?.ok_or(CommandError::Missing(NO_APPROVAL))
    }

    /// The row of the audit for a vote.
    pub(super) fn vote_row(&self, asker: &Asker, approval: &Approval, cast: &CastVote) -> AuditRow {
        let mut detail = Map::new();
        detail.insert("turn".to_owned(), approval.turn.into());
        detail.insert("call_id".to_owned(), approval.call_id.as_str().into());
        detail.insert("arguments_changed".to_owned(), cast.arguments.is_some().into());
        if let Some(comment) = &cast.comment {
            detail.insert("comment".to_owned(), comment.as_str().into());
        }
        let action = format!("approval.{}", cast.decision.code());
        self.audit_row(asker, &action, approval.id.to_string(), &approval.run_id, Value::Object(detail))
    }
}

/// What can be wrong with a vote whatever it is about. `at`: where it stands in the body.
pub(super) fn check(request: &DecideApproval, at: &str, needs_token: bool, faults: &mut Faults) {
    let short = request.comment.as_ref().is_none_or(|comment| comment.len() <= COMMENT_MAX);
    faults.require(short, &format!("{at}/comment"), "at most 4000 bytes");
    let approves = request.decision == Verdict::Approve;
    let fits = request.arguments.is_none() || approves;
    faults.require(fits, &format!("{at}/arguments"), "belong to the decision \"approve\" only");
    let small = request
        .arguments
        .as_ref()
        .is_none_or(|given| serde_json::to_string(given).is_ok_and(|text| text.len() <= ARGUMENTS_MAX));
    faults.require(small, &format!("{at}/arguments"), "at most 65536 bytes");
    let short = request.token.as_ref().is_none_or(|token| token.len() <= TOKEN_MAX);
    faults.require(short, &format!("{at}/token"), "is no approval token");
    let missing = needs_token && approves && request.token.is_none();
    faults.require(!missing, &format!("{at}/token"), "is needed here: it stands in the approval");
}
