//! Resumes a run: the checks in the order of the contract, each before anything is written.

use super::faults::Faults;
use super::limits::{check_limits, check_price};
use super::request::{DecideCall, LimitsRequest, ResumeRun, RetryCall};
use super::results::check_results;
use super::{Asker, CommandError, Commands, approvals, tell};
use crate::failpoint;
use crate::run::apply;
use crate::run::approval::Approval;
use crate::run::binding::{Binding, Warning, merge};
use crate::run::call::{Call, Stage};
use crate::run::commit::Commit;
use crate::run::envelope::Envelope;
use crate::run::fact::{CallRef, CastVote, Fact, Resume, Ruling};
use crate::run::ids::{CallId, Fence, RunId, RunUid};
use crate::run::refusal::Refusal;
use crate::run::spec::{Limits, McpEntry};
use crate::run::status::Status;
use crate::store::{AuditRow, Claim, Loaded, RunView};

/// How often a decision is tried against a run that others change at the same time.
pub(super) const DECIDE_TRIES: u32 = 8;

/// How many calls a fault names.
const NAMED_MAX: usize = 20;

/// What became of a resume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resumed {
    /// The run has ended; its stored result stands, no server was contacted.
    Terminal,
    /// The run goes on waiting; what the request decided is kept.
    Suspended,
    /// The run goes on waiting exactly as before: the request decided nothing, and nothing of it is kept.
    Unchanged,
    /// The run is queued.
    Queued,
}

impl Commands {
    /// Resumes a run that waits. Beside what became of it: names of `retry_tool_call_ids` that decided nothing, and why.
    ///
    /// # Errors
    /// `Invalid`, `NotFound`, `Refused`, `Unreachable`, `Store`, `Contended`; the run is then untouched.
    pub async fn resume(
        &self,
        asker: &Asker,
        id: &RunId,
        request: ResumeRun,
    ) -> Result<(Resumed, Vec<String>), CommandError> {
        let (entries, retry) = self.check_resume(asker, &request).await?;
        let ended = || (Resumed::Terminal, not_taken(&request));
        for _ in 0..DECIDE_TRIES {
            let view = self.view(asker, id).await?;
            if view.head.status.is_terminal() {
                return Ok(ended());
            }
            if let Status::Queued | Status::Running = view.head.status {
                return Err(Refusal::RunActive.into());
            }
            if self.apply_left(asker, &view).await? {
                continue;
            }
            if let (Some(agent), Some(_)) = (&view.spec.agent, &request.mcp) {
                let mut faults = Faults::default();
                faults.add("/mcp", format!("the run is made of the agent {agent}, which says its servers"));
                return Err(faults.into());
            }
            if request.binding_id.is_some() && request.binding_id != view.spec.binding_id {
                return Err(Refusal::BindingChanged.into());
            }
            let limits = request.limits.clone().map(|limits| tighter(limits, &view)).transpose()?;
            let Loaded { mut envelope, fence, .. } = self.load(asker, view.uid).await?;
            let passed_over = passed_over(&envelope, &retry)?;
            let given = request.tool_results.as_deref().unwrap_or_default();
            let results = self.results_of(asker, &envelope, given, "/tool_results").await?;
            let votes = self.votes(asker, &envelope, request.approvals.as_deref().unwrap_or_default()).await?;
            let (served, warnings) = self.read_again(asker, &envelope, entries.clone()).await?;
            let resume = Resume {
                actor: asker.actor.clone(),
                retry: retry.clone(),
                votes: votes.iter().map(|(_, cast, ruling)| (cast.clone(), ruling.clone())).collect(),
                served,
                warnings,
                on_catalog_change: request.on_catalog_change.unwrap_or_default(),
                limits,
                results,
            };
            let commit = match apply(&mut envelope, Fact::Resumed(Box::new(resume)), self.clock.now()) {
                Ok(commit) => commit,
                Err(Refusal::NothingDecided) => return Ok((Resumed::Unchanged, passed_over)),
                // It ended between the two looks.
                Err(Refusal::RunTerminal) => return Ok(ended()),
                Err(refusal) => return Err(self.placed(refusal, &envelope, &votes)),
            };
            let mut audit = self.retries(asker, id, &commit);
            audit.extend(votes.iter().map(|(approval, cast, _)| self.vote_row(asker, approval, cast)));
            if self.decide(asker, envelope.uid, fence, &commit, &audit).await? {
                if envelope.head.status == Status::Queued {
                    self.executor.wake();
                    return Ok((Resumed::Queued, passed_over));
                }
                return Ok((Resumed::Suspended, passed_over));
            }
        }
        Err(CommandError::Contended)
    }

    /// The votes of a resume: each on the pending approval of its call, as it stands.
    async fn votes(
        &self,
        asker: &Asker,
        envelope: &Envelope,
        given: &[DecideCall],
    ) -> Result<Vec<(Approval, CastVote, Option<Ruling>)>, CommandError> {
        let mut votes = Vec::new();
        for (index, vote) in given.iter().enumerate() {
            let call = CallId::new(&vote.call_id);
            let mut open = envelope.head.state.approvals.open.iter();
            let Some(open) = open.find(|open| open.approval.call_id == call) else {
                let why = match self.not_pending(asker, envelope.uid, &call).await? {
                    CommandError::Missing(_) => Refusal::NoApproval(call).into(),
                    decided => decided,
                };
                return Err(why.at(format!("/approvals/{index}/call_id")));
            };
            let (approval, request) = (&open.approval, vote.vote());
            let mut earlier = votes.iter();
            if earlier.any(|(earlier, ..): &(Approval, CastVote, Option<Ruling>)| earlier.id == approval.id) {
                return Err(CommandError::from(Refusal::AlreadyVoted).at(format!("/approvals/{index}/call_id")));
            }
            if self.approval(asker, approval.id).await?.is_due {
                self.expire(asker, envelope.uid, approval).await?;
                let decided = self.not_pending(asker, envelope.uid, &call).await?;
                return Err(decided.at(format!("/approvals/{index}/call_id")));
            }
            let fits = self.check_token(asker, request.token.as_deref(), approval);
            fits.map_err(|error| error.at(format!("/approvals/{index}/token")))?;
            let (cast, ruling) = self.cast(asker, envelope, approval, &request, &format!("/approvals/{index}")).await?;
            votes.push((approval.clone(), cast, ruling));
        }
        Ok(votes)
    }

    /// A refusal, with its place in the body where it is about one of the votes.
    fn placed(
        &self,
        refusal: Refusal,
        envelope: &Envelope,
        votes: &[(Approval, CastVote, Option<Ruling>)],
    ) -> CommandError {
        let refused = |(_, cast, ruling): &(Approval, CastVote, Option<Ruling>)| {
            let fact = Fact::Voted { cast: Box::new(cast.clone()), ruling: ruling.clone().map(Box::new) };
            apply(&mut envelope.clone(), fact, self.clock.now()).err().as_ref() == Some(&refusal)
        };
        let place = votes.iter().position(refused);
        let error = CommandError::from(refusal);
        match place {
            Some(index) => error.at(format!("/approvals/{index}")),
            None => error,
        }
    }

    /// A row of the audit for each call that this resume allows once more.
    fn retries(&self, asker: &Asker, id: &RunId, commit: &Commit) -> Vec<AuditRow> {
        let allowed = |call: &&Call| matches!(call.stage, Stage::Indeterminate { authorized: true, .. });
        let allowed = commit.calls_moved.iter().filter(allowed);
        allowed.map(|call| self.reconciliation_row(asker, id, (call.key.turn, &call.call_id), "retry", None)).collect()
    }

    /// The run without its conversation, or `NotFound`: what a command that decides nothing must not read more than.
    pub(super) async fn view(&self, asker: &Asker, id: &RunId) -> Result<RunView, CommandError> {
        self.store.run_fetch(&asker.tenant, id).await?.ok_or(CommandError::NotFound)
    }

    /// Stores a decision on a run that nobody owns, and tells it; `false`: somebody was faster.
    pub(super) async fn decide(
        &self,
        asker: &Asker,
        uid: RunUid,
        seen: Fence,
        commit: &Commit,
        audit: &[AuditRow],
    ) -> Result<bool, CommandError> {
        // From the moment it is stored any node may drive the run on.
        let announced = self.hub.announce(&asker.tenant, uid);
        failpoint::pass("run.decide.before");
        let decided = self.store.run_decide(&asker.tenant, uid, seen, commit, audit).await?;
        failpoint::pass("run.decide.after");
        if decided {
            tell(announced, commit);
        }
        Ok(decided)
    }

    /// The run whole, or `NotFound`.
    pub(super) async fn load(&self, asker: &Asker, uid: RunUid) -> Result<Loaded, CommandError> {
        self.store.run_load(&asker.tenant, uid).await?.ok_or(CommandError::NotFound)
    }

    async fn check_resume(
        &self,
        asker: &Asker,
        request: &ResumeRun,
    ) -> Result<(Option<Vec<McpEntry>>, Vec<CallRef>), CommandError> {
        let mut faults = Faults::default();
        for (index, vote) in request.approvals.iter().flatten().enumerate() {
            let at = format!("/approvals/{index}");
            approvals::check(&vote.vote(), &at, self.allow.approvals_require_token, &mut faults);
        }
        check_results(request.tool_results.as_deref().unwrap_or_default(), "/tool_results", &mut faults);
        if let Some(limits) = &request.limits {
            check_limits(limits.clone(), &Limits::default(), &mut faults);
        }
        let entries = match request.mcp.clone() {
            Some(given) => Some(self.check_entries(asker, given, None, &mut faults).await?),
            None => None,
        };
        faults.finish()?;
        let retry = request.retry_tool_call_ids.iter().flatten().map(|named| match named {
            RetryCall::Id(id) => CallRef { turn: None, call_id: CallId::new(id) },
            RetryCall::Exact { turn, call_id } => CallRef { turn: Some(*turn), call_id: CallId::new(call_id) },
        });
        Ok((entries, retry.collect()))
    }

    /// What the servers serve now: the run's own entries, or the ones that the caller gave.
    async fn read_again(
        &self,
        asker: &Asker,
        envelope: &Envelope,
        given: Option<Vec<McpEntry>>,
    ) -> Result<(Binding, Vec<Warning>), CommandError> {
        let secrets = self.dispatch.secrets(&asker.tenant, envelope.uid).await?;
        if let Some(given) = &given {
            self.check_secrets_of(asker, (given, &envelope.binding.entries), &secrets).await?;
        }
        let entries = given.unwrap_or_else(|| envelope.binding.entries.clone());
        // Connections that carry the run's own credential belong to this request alone: were they the run's, it would
        // close the ones of requests beside it, and of the leg that follows.
        let reader = Claim { tenant: asker.tenant.clone(), uid: self.clock.run_uid(), fence: Fence(0) };
        let read = self.dispatch.read(&reader, &entries, &secrets, self.catalog_max_age()).await;
        self.dispatch.release(&reader).await;
        let read = read?;
        let (served, mut warnings) = merge(entries, &read.catalogs);
        warnings.extend(read.warnings);
        Ok((served, warnings))
    }
}

/// The limits that hold from now on: as they are, but for those that the caller tightens.
fn tighter(request: LimitsRequest, view: &RunView) -> Result<Limits, CommandError> {
    let mut faults = Faults::default();
    let now = view.head.limits(&view.spec);
    let limits = check_limits(request, now, &mut faults);
    if limits.max_cost_usd.is_some() {
        check_price(&view.spec.prices, &view.spec.model, &mut faults);
    }
    for name in limits.looser_than(now) {
        faults.add(format!("/limits/{name}"), "can only be tightened");
    }
    faults.finish()?;
    Ok(limits)
}

/// What is said when the run has ended and the request would have decided something: the answer is that of its end.
fn not_taken(request: &ResumeRun) -> Vec<String> {
    let gives = |count: Option<usize>| count.is_some_and(|count| count > 0);
    let decides = gives(request.approvals.as_ref().map(Vec::len))
        || gives(request.tool_results.as_ref().map(Vec::len))
        || gives(request.retry_tool_call_ids.as_ref().map(Vec::len));
    if decides {
        vec!["The run has ended: none of its votes, results and retries was taken.".to_owned()]
    } else {
        Vec::new()
    }
}

/// What is said of names that fit no call whose outcome nobody knows: most likely they are misspelt. They decide nothing,
/// and are no fault. One that was allowed before, by this very request perhaps, is passed over without a word.
///
/// # Errors
/// `Invalid` for names that fit several.
fn passed_over(envelope: &Envelope, retry: &[CallRef]) -> Result<Vec<String>, CommandError> {
    let fits = |named: &CallRef, call: &Call| {
        named.call_id == call.call_id && named.turn.is_none_or(|turn| turn == call.key.turn)
    };
    let (mut faults, mut said) = (Faults::default(), Vec::new());
    for (index, named) in retry.iter().enumerate() {
        let label = named.call_id.as_str();
        match envelope.undecided().filter(|call| fits(named, call)).count() {
            1 => {}
            0 => match envelope.calls.iter().find(|call| fits(named, call)) {
                Some(call) if matches!(call.stage, Stage::Indeterminate { .. }) => {}
                Some(call) => said.push(format!("{label:?} is {}", call.stage.code())),
                None => said.push(format!(
                    "{label:?} names no call of this turn whose outcome nobody knows; {}",
                    undecided(envelope)
                )),
            },
            _ => {
                let detail = format!("{label:?} names several undecided calls: give {{\"turn\", \"call_id\"}}");
                faults.add(format!("/retry_tool_call_ids/{index}"), detail);
            }
        }
    }
    said.truncate(NAMED_MAX);
    faults.finish().map(|()| said)
}

/// Which calls could be named.
fn undecided(envelope: &Envelope) -> String {
    let labels: Vec<String> = envelope
        .undecided()
        .take(NAMED_MAX)
        .map(|call| format!("{} of turn {}", call.call_id, call.key.turn))
        .collect();
    if labels.is_empty() { "the run has none".to_owned() } else { format!("there are: {}", labels.join(", ")) }
}
