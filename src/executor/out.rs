//! The calls of a drive that are out: those that were sent, those that their servers go on with by themselves, and how
//! far both say that they have come.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::drive::Drive;
use super::room::Place;
use super::stopped::Stopped;
use crate::dispatch::{Out, ProgressSink, Wait};
use crate::failpoint;
use crate::run::call::{Call, Stage};
use crate::run::event::Progress;
use crate::run::fact::Fact;
use crate::run::ids::CallKey;
use crate::run::outcome::{Answer, Outcome};
use crate::run::refusal::Refusal;

/// The least pause between two commits that only say how far calls have come.
const PROGRESS_PAUSE: Duration = Duration::from_millis(300);
/// How many such commits a wait of any length is worth, about: the pause grows with the wait.
const PROGRESS_SHARE: u32 = 50;

/// What servers said of calls that are out; of each call the last word.
#[derive(Default)]
pub(super) struct Said {
    latest: Arc<Mutex<BTreeMap<CallKey, Progress>>>,
    came: Arc<Notify>,
    /// Since when this drive is told such things, and when readers were told last.
    began: Option<Instant>,
    told: Option<Instant>,
}

impl Said {
    /// Where one call's progress goes. A word that comes after a later one is dropped.
    pub(super) fn sink(&self, key: CallKey) -> ProgressSink {
        let (latest, came) = (Arc::clone(&self.latest), Arc::clone(&self.came));
        ProgressSink::new(move |progress| {
            let mut latest = latest.lock();
            let is_late = latest.get(&key).is_some_and(|known| known.progress.as_f64() > progress.progress.as_f64());
            if !is_late {
                latest.insert(key, progress);
                came.notify_one();
            }
        })
    }

    /// Waits until there is something to tell, and until it is time. May be dropped while it waits.
    pub(super) async fn due(&mut self) {
        while self.latest.lock().is_empty() {
            self.came.notified().await;
        }
        let began = *self.began.get_or_insert_with(Instant::now);
        let pause = PROGRESS_PAUSE.max(began.elapsed() / PROGRESS_SHARE);
        if let Some(told) = self.told {
            tokio::time::sleep_until(told + pause).await;
        }
    }

    fn take(&mut self) -> BTreeMap<CallKey, Progress> {
        self.told = Some(Instant::now());
        std::mem::take(&mut *self.latest.lock())
    }
}

impl Drive<'_> {
    /// Lets a call leave whose receipt is stored.
    pub(super) fn launch(&mut self, key: CallKey, place: Place) -> Result<(), Stopped> {
        let Some(call) = self.envelope.calls.iter().find(|call| call.key == key).cloned() else {
            return Err(Refusal::Impossible("a call that is sent must exist").into());
        };
        let shared = Arc::clone(self.shared);
        let (caller, binding, secrets) =
            (Arc::clone(&self.caller), Arc::clone(&self.binding), Arc::clone(&self.secrets));
        let out = Out { cancel: self.stop_calls.clone(), progress: self.said.sink(key) };
        self.out.insert(key);
        self.calls.push(
            async move {
                let outcome = shared.parts.dispatch.send(&caller, &binding, &call, &secrets, out).await;
                failpoint::pass("mcp.call.answered");
                // From here on another call of the tenant may be out.
                drop(place);
                (key, outcome)
            }
            .boxed(),
        );
        Ok(())
    }

    /// Tells readers how far calls have come.
    pub(super) async fn tell_progress(&mut self) -> Result<(), Stopped> {
        let told = self.said.take();
        let is_out = |key: &CallKey| {
            self.envelope.calls.iter().any(|call| call.key == *key && matches!(call.stage, Stage::Executing { .. }))
        };
        let calls: Vec<(CallKey, Progress)> = told.into_iter().filter(|(key, _)| is_out(key)).collect();
        if calls.is_empty() { Ok(()) } else { self.decide(Fact::CallsProgressed { calls }).await }
    }

    /// Asks for every call that its server goes on with and nobody here asks for yet: named just now, or left by an
    /// earlier owner. They need no place of the tenant's: the server works, and a question now and then is little.
    pub(super) fn ask_for_deferred(&mut self) {
        let known: HashSet<CallKey> = self.out.iter().copied().collect();
        let deferred = self.envelope.calls.iter().filter(|call| call.is_deferred() && !known.contains(&call.key));
        for call in deferred.cloned().collect::<Vec<Call>>() {
            let is_new = !self.left.contains(&call.key);
            let waited = match call.stage {
                Stage::Executing { since } => self.shared.parts.clock.now().millis_since(since),
                Stage::Rejected { .. }
                | Stage::Proposed
                | Stage::Pending
                | Stage::Waiting { .. }
                | Stage::Completed { .. }
                | Stage::Failed { .. }
                | Stage::Indeterminate { .. } => 0,
            };
            let waited = Duration::from_millis(u64::try_from(waited).unwrap_or(0));
            let wait = Wait { cancel: self.stop_calls.clone(), waited, is_new };
            let shared = Arc::clone(self.shared);
            let (caller, binding, secrets) =
                (Arc::clone(&self.caller), Arc::clone(&self.binding), Arc::clone(&self.secrets));
            self.out.insert(call.key);
            self.calls.push(
                async move {
                    let outcome =
                        Box::pin(shared.parts.dispatch.follow(&caller, &binding, &call, &secrets, wait)).await;
                    (call.key, outcome)
                }
                .boxed(),
            );
        }
    }

    /// Whether everything that is out goes on without us: then nothing keeps a node that drains from letting go.
    pub(super) fn only_deferred(&self) -> bool {
        let mut out = self.envelope.calls.iter().filter(|call| call.is_held());
        out.all(|call| call.task.is_some())
    }
}

/// The stage that an outcome leads to, for the counters.
pub(super) const fn stage_of(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Answered(Answer::Done { .. }) => "completed",
        Outcome::Answered(Answer::Failed { .. }) | Outcome::NotSent(_) | Outcome::TurnedAway(_) => "failed",
        Outcome::Unknown(_) => "indeterminate",
        Outcome::Deferred(_) => "deferred",
        Outcome::InputRequired(_) => "waiting",
    }
}
