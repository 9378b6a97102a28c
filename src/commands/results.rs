//! Results of calls that others carried out: what they say, and how they come to their run, whoever drives it.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::faults::Faults;
use super::reconcile::LOOK_EVERY;
use super::tool_request::{CallError, ClientResult, GiveResults};
use super::{Asker, CommandError, Commands};
use crate::run::apply;
use crate::run::binding::Binding;
use crate::run::call::{Backend, Call, Stage};
use crate::run::envelope::Envelope;
use crate::run::fetched::{ClientResults, Fetched, FetchedWhat};
use crate::run::ids::{CallId, CallKey, RunId, RunUid};
use crate::run::outcome::{Answer, ToolError};
use crate::run::refusal::Refusal;
use crate::run::status::Status;
use crate::store::{Left, LeftFact, Loaded};

/// The code of a result that does not fit what its tool was declared to return.
const INVALID_OUTPUT: &str = "invalid-output";
/// What was left and not taken for so long is left again: whoever took it may be gone.
const LEAVE_AGAIN: Duration = Duration::from_secs(1);

/// What became of a fact.
pub(super) enum Brought {
    /// It is true of the run now, and stored.
    Applied(Box<Envelope>),
    /// The run does not admit it.
    Refused(Refusal),
}

impl Commands {
    /// Gives results of a run's client. They are stored when this answers; the last one sets the run going.
    ///
    /// # Errors
    /// `Invalid`, `NotFound`, `CallNotFound`, `Store`; `Refused` at its place when a call does not wait for a result, or had another one;
    /// `Contended` when the owner did not read them in time, though it may still.
    pub async fn give_results(
        self: &Arc<Self>,
        asker: &Asker,
        run: &RunId,
        request: GiveResults,
    ) -> Result<(), CommandError> {
        let mut faults = Faults::default();
        check_results(&request.results, "/results", &mut faults);
        faults.finish()?;
        let uid = self.view(asker, run).await?.uid;
        let (commands, asker) = (Arc::clone(self), asker.clone());
        // Comes to its end although its caller has gone: what was left with an owner that lets go is applied here.
        let giving = self.tasks.spawn(async move { commands.until_given(&asker, uid, &request.results).await });
        giving.await.unwrap_or_else(|_panicked| Err(CommandError::Interrupted))
    }

    async fn until_given(&self, asker: &Asker, uid: RunUid, given: &[ClientResult]) -> Result<(), CommandError> {
        let deadline = Instant::now() + self.allow.owner_time;
        while Instant::now() < deadline {
            let Loaded { mut envelope, fence, owned, .. } = self.load(asker, uid).await?;
            let results = self.results_of(asker, &envelope, given, "/results").await?;
            if results.is_empty() {
                return Ok(());
            }
            if owned {
                self.give_to_owner(asker, uid, results, deadline).await?;
                continue;
            }
            let facts = LeftFact::Client(ClientResults { actor: asker.actor.clone(), results });
            let commit = apply(&mut envelope, facts.into_fact(), self.clock.now())?;
            if self.decide(asker, uid, fence, &commit, &[]).await? {
                self.wake_for(&envelope);
                return Ok(());
            }
        }
        Err(CommandError::Contended)
    }

    /// One by one: of several that are given at once for one call the first stays.
    async fn give_to_owner(
        &self,
        asker: &Asker,
        uid: RunUid,
        results: Vec<(CallKey, Answer)>,
        deadline: Instant,
    ) -> Result<(), CommandError> {
        for result in results {
            let fact = LeftFact::Client(ClientResults { actor: asker.actor.clone(), results: vec![result] });
            // Refused: another result was first, which the next look finds out.
            self.bring(asker, uid, &fact, deadline, None).await?;
        }
        Ok(())
    }

    /// The results that calls of the run wait for. One that was given before is left out.
    pub(super) async fn results_of(
        &self,
        asker: &Asker,
        envelope: &Envelope,
        given: &[ClientResult],
        at: &str,
    ) -> Result<Vec<(CallKey, Answer)>, CommandError> {
        let mut results = Vec::new();
        for (index, result) in given.iter().enumerate() {
            let answer = answer_at(&format!("{at}/{index}"), result.output.as_ref(), result.error.as_ref())?;
            let call_id = CallId::new(&result.call_id);
            let named = |call: &&Call| call.call_id == call_id && result.turn.is_none_or(|turn| turn == call.key.turn);
            let earlier = || self.earlier(asker, envelope, &call_id, result.turn);
            let call = match envelope.calls.iter().find(named) {
                // It may as well be the result of an earlier call with that label, which comes again.
                Some(call) if call.is_with_client() && result.turn.is_none() => {
                    if earlier().await?.is_some_and(|earlier| is_result(&earlier.stage, &answer)) {
                        let ambiguous = CommandError::from(Refusal::AmbiguousCall(call_id));
                        return Err(ambiguous.at(format!("{at}/{index}/call_id")));
                    }
                    Some(call.clone())
                }
                Some(call) => Some(call.clone()),
                None => earlier().await?,
            };
            let Some(call) = call.filter(|call| call.backend() == Some(Backend::Client)) else {
                return Err(CommandError::CallNotFound.at(format!("{at}/{index}/call_id")));
            };
            let answer = self.fitting(asker, &envelope.binding, &call, answer).await?;
            if call.is_with_client() {
                results.push((call.key, answer));
            } else if !is_result(&call.stage, &answer) {
                let settled = CommandError::from(Refusal::NotAwaited(call_id));
                return Err(settled.at(format!("{at}/{index}/call_id")));
            }
        }
        Ok(results)
    }

    /// A call of an earlier turn: of that one, or of the last that has the label.
    async fn earlier(
        &self,
        asker: &Asker,
        envelope: &Envelope,
        call_id: &CallId,
        of_turn: Option<u32>,
    ) -> Result<Option<Call>, CommandError> {
        let (tenant, uid) = (&asker.tenant, envelope.uid);
        if let Some(turn) = of_turn {
            return Ok(self.store.receipt_fetch(tenant, uid, turn, call_id).await?);
        }
        match self.store.client_call_find(tenant, uid, call_id, envelope.head.state.turns).await? {
            Some(key) => Ok(self.store.call_fetch(tenant, (uid, key)).await?),
            None => Ok(None),
        }
    }

    /// The answer, or what it comes to where it does not fit what the tool was declared to return.
    ///
    /// # Errors
    /// `NotEvaluated`: nothing is decided then, and the same may be given again.
    pub(super) async fn fitting(
        &self,
        asker: &Asker,
        binding: &Binding,
        call: &Call,
        answer: Answer,
    ) -> Result<Answer, CommandError> {
        let schema = binding.tool(&call.tool).and_then(|tool| tool.output_schema.as_ref());
        let (Answer::Done { output }, Some(schema)) = (&answer, schema) else { return Ok(answer) };
        let misfit = self.dispatch.misfit(&asker.tenant, schema, output).await;
        let misfit = misfit.map_err(|busy| CommandError::NotEvaluated(format!("the result {busy}")))?;
        let Some(faults) = misfit else { return Ok(answer) };
        let message = format!("The result of {} does not fit its output schema: {faults}.", call.tool);
        Ok(Answer::Failed { error: ToolError::new(INVALID_OUTPUT, message), output: Some(output.clone()) })
    }

    /// Makes a fact true of its run: at once where nobody drives it, else by leaving it with the owner and waiting. Whoever has
    /// read the run already brings it along.
    ///
    /// # Errors
    /// `NotFound`, `Store`; `Contended` when the owner did not read it in time: then it will not.
    pub(super) async fn bring(
        &self,
        asker: &Asker,
        uid: RunUid,
        fact: &LeftFact,
        deadline: Instant,
        first: Option<Loaded>,
    ) -> Result<Brought, CommandError> {
        let mut left = None;
        // On the heap it does not swell every future around.
        let brought = Box::pin(self.bring_or_leave(asker, uid, fact, (deadline, &mut left), first)).await;
        // It is said, or nobody waits for it any more: whoever owns the run next must not hear it again.
        if left.is_some() {
            self.store.fact_withdraw(&asker.tenant, uid, fact).await?;
        }
        brought
    }

    async fn bring_or_leave(
        &self,
        asker: &Asker,
        uid: RunUid,
        fact: &LeftFact,
        (deadline, left): (Instant, &mut Option<Instant>),
        mut first: Option<Loaded>,
    ) -> Result<Brought, CommandError> {
        loop {
            let mut changes = self.hub.subscribe(&asker.tenant, uid);
            let (loaded, is_fresh) = match first.take() {
                Some(loaded) => (loaded, false),
                None => (self.load(asker, uid).await?, true),
            };
            let Loaded { mut envelope, fence, owned, .. } = loaded;
            let commit = match apply(&mut envelope, fact.clone().into_fact(), self.clock.now()) {
                // It may have changed since.
                Err(_) if !is_fresh => continue,
                // What refuses leaves it as it was.
                Err(refusal) => return self.refused(asker, fact, envelope, refusal).await,
                Ok(commit) => commit,
            };
            if Instant::now() >= deadline {
                return Err(CommandError::Contended);
            }
            if !owned {
                if self.decide(asker, uid, fence, &commit, &[]).await? {
                    self.wake_for(&envelope);
                    return Ok(Brought::Applied(Box::new(envelope)));
                }
                continue;
            }
            if left.is_none_or(|since| since.elapsed() >= LEAVE_AGAIN) {
                match self.store.fact_leave(&asker.tenant, uid, fact).await? {
                    Left::Kept => {
                        *left = Some(Instant::now());
                        self.executor.attend(&asker.tenant, uid);
                    }
                    Left::NotOwned | Left::Decided => continue,
                }
            }
            tokio::select! {
                _ = changes.next() => {}
                () = sleep(LOOK_EVERY) => {}
            }
        }
    }

    /// The run does not take a fact: it has it already, also when its turn is over by now, or it has another.
    async fn refused(
        &self,
        asker: &Asker,
        fact: &LeftFact,
        envelope: Envelope,
        refusal: Refusal,
    ) -> Result<Brought, CommandError> {
        let Some(key) = fact.key() else { return Ok(Brought::Refused(refusal)) };
        let call = match envelope.calls.iter().find(|call| call.key == key) {
            Some(call) => Some(call.clone()),
            None => self.store.call_fetch(&asker.tenant, (envelope.uid, key)).await?,
        };
        Ok(match call {
            Some(call) if is_true(fact, &call) => Brought::Applied(Box::new(envelope)),
            Some(call) if is_late(fact, &call) => Brought::Refused(Refusal::NotAwaited(call.call_id)),
            Some(_) | None => Brought::Refused(refusal),
        })
    }

    fn wake_for(&self, envelope: &Envelope) {
        if envelope.head.status == Status::Queued {
            self.executor.wake();
        }
    }
}

/// Whether the lease that this result was given under has brought another.
fn is_late(fact: &LeftFact, call: &Call) -> bool {
    match fact {
        LeftFact::Fetched(Fetched { what: FetchedWhat::Answered { lease, .. }, .. }) => {
            call.stage.is_settled() && lease_of(call) == Some(lease)
        }
        LeftFact::Fetched(_) | LeftFact::Client(_) => false,
    }
}

fn lease_of(call: &Call) -> Option<&str> {
    call.handing.lease.as_ref().map(|lease| lease.id.as_str())
}

/// Whether the call stands as this very fact leaves it.
fn is_true(fact: &LeftFact, call: &Call) -> bool {
    let held = lease_of(call);
    match fact {
        LeftFact::Fetched(Fetched { what: FetchedWhat::Claimed { lease }, .. }) => {
            call.is_with_worker() && held == Some(lease.id.as_str())
        }
        LeftFact::Fetched(Fetched { what: FetchedWhat::Answered { lease, answer }, .. }) => {
            held == Some(lease.as_str()) && is_result(&call.stage, answer)
        }
        LeftFact::Fetched(Fetched { what: FetchedWhat::PutBack { lease }, .. }) => {
            call.is_offered() && held != Some(lease.as_str())
        }
        LeftFact::Fetched(Fetched { what: FetchedWhat::Lapsed { .. } | FetchedWhat::NotTaken { .. }, .. }) => false,
        LeftFact::Client(given) => given.results.iter().all(|(_, answer)| is_result(&call.stage, answer)),
    }
}

/// Whether a call was settled by this answer.
pub(super) fn is_result(stage: &Stage, answer: &Answer) -> bool {
    match (stage, answer) {
        (Stage::Completed { output, .. }, Answer::Done { output: given }) => output == given,
        (Stage::Failed { error, output, .. }, Answer::Failed { error: why, output: given }) => {
            error == why && output == given
        }
        _ => false,
    }
}

/// Whether this is what was given for a call, also where it did not fit what its tool was declared to return.
pub(super) fn is_given(stage: &Stage, answer: &Answer) -> bool {
    let misfit = match (stage, answer) {
        (Stage::Failed { error, output: Some(output), .. }, Answer::Done { output: given }) => {
            error.code == INVALID_OUTPUT && output == given
        }
        _ => false,
    };
    misfit || is_result(stage, answer)
}

/// What is said of a result that is both or neither.
const ONE_OF: &str = "needs exactly one of \"output\" and \"error\"";

/// What a result says.
///
/// # Errors
/// `Invalid` at its place: it is both or neither.
pub(super) fn answer_at(at: &str, output: Option<&Value>, error: Option<&CallError>) -> Result<Answer, CommandError> {
    match (output, error) {
        (Some(output), None) => Ok(Answer::Done { output: output.clone() }),
        (None, Some(CallError { code, message })) => {
            let error = ToolError::new(code.as_deref().unwrap_or("tool-error"), message.clone());
            Ok(Answer::Failed { error, output: None })
        }
        (Some(_), Some(_)) | (None, None) => {
            let mut faults = Faults::default();
            faults.add(at, ONE_OF);
            Err(faults.into())
        }
    }
}

pub(super) fn check_results(results: &[ClientResult], at: &str, faults: &mut Faults) {
    let mut named = HashSet::new();
    for (index, result) in results.iter().enumerate() {
        let place = format!("{at}/{index}");
        faults.require(result.output.is_some() != result.error.is_some(), &place, ONE_OF);
        faults.require(named.insert(&result.call_id), &format!("{place}/call_id"), "is given twice");
    }
}
