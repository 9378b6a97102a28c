//! Drives one owned run: `next`, do, `apply`, journal, and again, until the run rests or the node lets go of it.

use std::collections::HashSet;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::asks::Asks;
use super::catalog::Catalogs;
use super::keep::smaller;
use super::out::{Said, stage_of};
use super::queue::SampleQueue;
use super::room::{Place, Room};
use super::stopped::Stopped;
use super::{Shared, Signals};
use crate::dispatch::{Caller, Gate, MayLeave, Watched};
use crate::failpoint;
use crate::run::binding::Binding;
use crate::run::commit::{Commit, Next};
use crate::run::envelope::{Envelope, Leg};
use crate::run::fact::Fact;
use crate::run::ids::CallKey;
use crate::run::outcome::{Cause, Outcome};
use crate::run::refusal::Refusal;
use crate::run::spec::McpEntry;
use crate::run::{Step, apply, next};
use crate::secrets::RunSecrets;
use crate::store::Claim;
use crate::store::journal::JournalError;

/// Waits before a commit is tried again while the database does not answer.
pub(super) const COMMIT_WAIT: Duration = Duration::from_millis(200);

/// The longest pause between two tries to give a run back.
const RELEASE_WAIT_MAX: Duration = Duration::from_secs(5);

/// A run that was admitted just now, and its servers as they were read for it.
pub(super) type Begun = (Envelope, Watched);

/// Drives a run until it rests; whatever happens, the run is then nobody's or somebody else's.
pub(super) async fn drive(shared: &Arc<Shared>, claim: &Claim, signals: Signals, begun: Option<Begun>) {
    let run = AssertUnwindSafe(drive_to_rest(shared, claim, signals, begun)).catch_unwind().await;
    match run {
        Ok(Ok(())) => {}
        Ok(Err(Stopped::Draining)) => release(shared, claim, false).await,
        Ok(Err(Stopped::LeaseLost)) => {
            tracing::warn!(run = %claim.uid.0, "the lease of a run was lost");
            release(shared, claim, false).await;
        }
        Ok(Err(stopped)) if !stopped.is_the_runs() => {
            tracing::warn!(run = %claim.uid.0, %stopped, "a run is given back as it was");
            sleep(stopped.wait()).await;
            release(shared, claim, false).await;
        }
        Ok(Err(stopped)) => {
            tracing::error!(run = %claim.uid.0, %stopped, "a run could not be driven on");
            release(shared, claim, true).await;
        }
        Err(_panic) => {
            tracing::error!(run = %claim.uid.0, "driving a run panicked");
            release(shared, claim, true).await;
        }
    }
    // Last: a server that is slow to say good-bye must not keep the run from its next owner.
    shared.parts.dispatch.release(claim).await;
}

/// Gives a run back, if it is still this claim's. `crashed` counts against the run.
///
/// A run that its node neither drives nor gives back would wait for ever, since the node is alive: so this is tried
/// until the database answers, or until the node drains, which frees all of its runs.
pub(super) async fn release(shared: &Shared, claim: &Claim, crashed: bool) {
    let mut wait = COMMIT_WAIT;
    loop {
        failpoint::pass("run.release.before");
        let released = shared.parts.store.run_release(claim, crashed).await;
        failpoint::pass("run.release.after");
        match released {
            Ok(_) => {
                shared.due.notify_one();
                return;
            }
            Err(fault) => tracing::warn!(run = %claim.uid.0, %fault, "a run could not be given back yet"),
        }
        if shared.draining.is_cancelled() {
            return;
        }
        sleep(wait).await;
        wait = wait.saturating_mul(2).min(RELEASE_WAIT_MAX);
    }
}

async fn drive_to_rest(
    shared: &Arc<Shared>,
    claim: &Claim,
    signals: Signals,
    begun: Option<Begun>,
) -> Result<(), Stopped> {
    let mut drive = Drive::start(shared, claim, signals, begun).await?;
    loop {
        if drive.let_go {
            return Ok(());
        }
        drive.heed_news();
        let step = drive.heed_wish();
        drive.may_go_on(step)?;
        match step {
            Step::BeginLeg => drive.decide(Fact::LegBegan).await?,
            Step::CheckCatalog => drive.check_catalog().await?,
            Step::RefreshCatalog => drive.refresh_catalog().await?,
            Step::JudgeLimit => drive.judge_limit().await?,
            Step::AskModel => {
                drive.until_certain().await?;
                drive.ask_model().await?;
            }
            Step::AwaitCalls => drive.await_call().await?,
            Step::AwaitRoom => drive.await_room().await?,
            Step::Cancel => drive.decide(Fact::Cancelled).await?,
            Step::Rest => return Err(Stopped::NothingToDo),
        }
    }
}

/// One owned run while it is driven.
pub(super) struct Drive<'a> {
    pub(super) shared: &'a Arc<Shared>,
    pub(super) claim: &'a Claim,
    pub(super) signals: Signals,
    pub(super) envelope: Envelope,
    pub(super) secrets: Arc<RunSecrets>,
    pub(super) gate: Gate,
    pub(super) binding: Arc<Binding>,
    pub(super) caller: Arc<Caller>,
    pub(super) room: Room,
    pub(super) asks: Asks,
    pub(super) queue: SampleQueue,
    pub(super) calls: FuturesUnordered<BoxFuture<'static, (CallKey, Outcome)>>,
    /// Whose calls these are.
    pub(super) out: HashSet<CallKey>,
    /// Calls that an earlier owner left and whose servers go on with them.
    pub(super) left: HashSet<CallKey>,
    pub(super) said: Said,
    pub(super) stop_calls: CancellationToken,
    /// The servers' tools as they were read last.
    pub(super) catalogs: Catalogs,
    /// Until when workers may still answer a run that is being cancelled.
    workers_until: Option<Instant>,
    /// Whether a commit has let go of the run.
    pub(super) let_go: bool,
}

impl<'a> Drive<'a> {
    async fn start(
        shared: &'a Arc<Shared>,
        claim: &'a Claim,
        signals: Signals,
        begun: Option<Begun>,
    ) -> Result<Self, Stopped> {
        let (envelope, watched) = match begun {
            Some(begun) => begun,
            None => (Self::load(shared, claim, &signals).await?, Watched::default()),
        };
        let secrets = if needs_secrets(&envelope) {
            shared.parts.dispatch.secrets(&claim.tenant, claim.uid).await?
        } else {
            RunSecrets::new()
        };
        let (asks, door) = Asks::new();
        let caller = Caller {
            tenant: claim.tenant.clone(),
            uid: claim.uid,
            fence: claim.fence,
            run: envelope.id.clone(),
            may_leave: may_leave(shared, &signals),
            asks: door,
        };
        let turns = envelope.head.state.turns;
        let left = envelope.calls.iter().filter(|call| call.is_deferred()).map(|call| call.key).collect();
        Ok(Self {
            shared,
            claim,
            signals,
            binding: Arc::new(envelope.binding.clone()),
            envelope,
            secrets: Arc::new(secrets),
            gate: shared.parts.dispatch.gate(&claim.tenant),
            caller: Arc::new(caller),
            room: shared.rooms.of(&claim.tenant),
            asks,
            queue: SampleQueue::default(),
            calls: FuturesUnordered::new(),
            out: HashSet::new(),
            left,
            said: Said::default(),
            stop_calls: CancellationToken::new(),
            catalogs: Catalogs::new(watched, turns),
            workers_until: None,
            let_go: false,
        })
    }

    async fn load(shared: &Shared, claim: &Claim, signals: &Signals) -> Result<Envelope, Stopped> {
        let loaded = shared.parts.store.run_load(&claim.tenant, claim.uid).await?.ok_or(Stopped::Gone)?;
        if loaded.fence != claim.fence {
            return Err(Stopped::LeaseLost);
        }
        if loaded.cancel_requested_by.is_some() {
            signals.cancel.cancel();
        }
        Ok(loaded.envelope)
    }

    /// The next step. A wish to cancel ends what is out, and then the run, whatever it waits for.
    fn heed_wish(&mut self) -> Step {
        if self.signals.cancel.is_cancelled() && !self.envelope.head.status.is_terminal() {
            match self.envelope.leg {
                // What its servers go on with is cancelled there first.
                Leg::Outside if !self.envelope.has_deferred() && !self.envelope.has_with_worker() => {
                    return Step::Cancel;
                }
                // Workers hear of it by themselves; what an earlier driver had out is looked at first.
                Leg::Outside if !self.envelope.has_held() => self.envelope.leg = Leg::Cancelling,
                Leg::CheckingCatalog | Leg::Working => {
                    self.envelope.leg = Leg::Cancelling;
                    self.stop_calls.cancel();
                    self.room.leave_queue();
                }
                Leg::Outside | Leg::Cancelling => {}
            }
        }
        next(&self.envelope)
    }

    /// A node that drains, or lost the run, begins nothing new.
    fn may_go_on(&self, step: Step) -> Result<(), Stopped> {
        if self.signals.lost.is_cancelled() {
            return Err(Stopped::LeaseLost);
        }
        match step {
            Step::BeginLeg | Step::CheckCatalog | Step::RefreshCatalog | Step::AskModel | Step::AwaitRoom
                if self.shared.draining.is_cancelled() =>
            {
                Err(Stopped::Draining)
            }
            Step::BeginLeg
            | Step::CheckCatalog
            | Step::RefreshCatalog
            | Step::JudgeLimit
            | Step::AskModel
            | Step::AwaitCalls
            | Step::AwaitRoom
            | Step::Cancel
            | Step::Rest => Ok(()),
        }
    }

    /// Decide, keep, tell — then send what the commit allows and there is room for.
    pub(super) async fn decide(&mut self, mut fact: Fact) -> Result<(), Stopped> {
        loop {
            let (stands, smaller) = ((self.envelope.leg, self.envelope.announced), smaller(&fact));
            let mut places = self.places(&fact);
            self.envelope.room = places.len();
            self.envelope.view = self.shared.settings.view;
            let commit = apply(&mut self.envelope, fact, self.shared.parts.clock.now())?;
            places.truncate(commit.sends.len());
            if !self.envelope.waits_for_room() {
                self.room.leave_queue();
            }
            match (self.keep(&commit).await, smaller) {
                (Err(Stopped::NotKept(fault @ JournalError::Rejected(_))), Some(smaller)) => {
                    tracing::error!(run = %self.claim.uid.0, %fault, "what came cannot be stored; the run is told so");
                    self.look_again(&commit, stands).await?;
                    fact = smaller;
                }
                (kept, _) => {
                    kept?;
                    return self.go_on(&commit, places).await;
                }
            }
        }
    }

    /// What follows from a commit that is stored.
    async fn go_on(&mut self, commit: &Commit, places: Vec<Place>) -> Result<(), Stopped> {
        self.let_go = commit.next != Next::Owner;
        self.asks.keep_up(&self.envelope);
        self.heed_approvals();
        if commit.binding.is_some() {
            // No call is out: a revision opens only between two steps.
            self.binding = Arc::new(self.envelope.binding.clone());
        }
        if self.envelope.head.status.is_terminal() {
            let status = self.envelope.head.status.code();
            metrics::counter!("countersign_runs_finished_total", "status" => status).increment(1);
        }
        if !commit.sends.is_empty() {
            self.until_certain().await?;
        }
        for (key, place) in commit.sends.iter().zip(places) {
            self.launch(*key, place)?;
        }
        Ok(())
    }

    /// Waits until the node is certain of its lease again: a pause or an outage of the database may have come between,
    /// and what leaves or is paid for meanwhile may be another owner's already. Ends, since the next beat says which.
    async fn until_certain(&mut self) -> Result<(), Stopped> {
        while !self.shared.lease.holds() {
            tokio::select! {
                () = self.signals.lost.cancelled() => return Err(Stopped::LeaseLost),
                () = sleep(COMMIT_WAIT) => {}
            }
        }
        Ok(())
    }

    async fn await_call(&mut self) -> Result<(), Stopped> {
        let cancelling = self.envelope.leg == Leg::Cancelling;
        let draining = self.shared.draining.is_cancelled();
        let may_send = self.envelope.waits_for_room() && !draining;
        self.ask_for_deferred();
        let may_leave = !cancelling && self.only_deferred();
        if self.calls.is_empty() && self.envelope.has_held() {
            return Err(Refusal::Impossible("a call is executing and none is out").into());
        }
        if self.calls.is_empty() && draining {
            return Err(Stopped::Draining);
        }
        if self.begin_queued().await? || self.begin_sample().await? {
            return Ok(());
        }
        let grace = if cancelling {
            *self.workers_until.get_or_insert_with(|| Instant::now() + self.shared.settings.worker_grace)
        } else {
            Instant::now()
        };
        tokio::select! {
            Some((key, outcome)) = self.calls.next(), if !self.calls.is_empty() => {
                self.out.remove(&key);
                self.heed_news();
                metrics::counter!("countersign_calls_settled_total", "stage" => stage_of(&outcome)).increment(1);
                self.decide(Fact::CallEnded { key, outcome }).await
            }
            heard = self.asks.next() => self.heed(heard).await,
            () = self.room.came(), if may_send => self.decide(Fact::RoomCame).await,
            () = self.said.due() => self.tell_progress().await,
            () = self.signals.cancel.cancelled(), if !cancelling => Ok(()),
            () = self.signals.decided.notified() => self.heed_decisions().await,
            () = self.shared.draining.cancelled(), if may_leave => Err(Stopped::Draining),
            () = sleep_until(grace), if cancelling && self.envelope.has_with_worker() => self.give_workers_up().await,
            () = self.signals.lost.cancelled() => Err(Stopped::LeaseLost),
        }
    }

    /// The workers have had their time to hear that the run is cancelled, and to answer.
    async fn give_workers_up(&mut self) -> Result<(), Stopped> {
        while let Some(key) = self.envelope.calls.iter().find(|call| call.is_with_worker()).map(|call| call.key) {
            self.decide(Fact::CallEnded { key, outcome: Outcome::Unknown(Cause::Cancelled) }).await?;
        }
        Ok(())
    }

    /// Waits; `true` when a wish to cancel came first.
    ///
    /// # Errors
    /// When the node drains or loses the run meanwhile.
    pub(super) async fn pause(&mut self, wait: Duration) -> Result<bool, Stopped> {
        tokio::select! {
            () = sleep(wait) => Ok(false),
            () = self.signals.cancel.cancelled() => Ok(true),
            () = self.signals.lost.cancelled() => Err(Stopped::LeaseLost),
            () = self.shared.draining.cancelled() => Err(Stopped::Draining),
        }
    }
}

/// The last look at the lease: a call may wait for a connection, and the node may be paused meanwhile.
fn may_leave(shared: &Arc<Shared>, signals: &Signals) -> MayLeave {
    let (shared, lost) = (Arc::clone(shared), signals.lost.clone());
    MayLeave::new(move || shared.lease.holds() && !lost.is_cancelled())
}

fn needs_secrets(envelope: &Envelope) -> bool {
    let samples = |entry: &McpEntry| entry.sampling.as_ref().is_some_and(|sampling| sampling.model.secret.is_some());
    envelope.spec.model.secret.is_some()
        || envelope.binding.entries.iter().any(|entry| entry.auth.is_some() || samples(entry))
}
