//! Keeps this node alive and its slots filled: beats, takeovers, claims, hints of other nodes, drain.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::{Executor, Shared};
use crate::failpoint;
use crate::store::wake::Hint;
use crate::store::{Claim, StoreError};

/// Wake-ups are hints; beneath them due runs are looked for this often.
const SLOW_POLL: Duration = Duration::from_secs(1);

/// How often dead nodes are looked for: what a takeover may come later than the lapse of a lease.
const LOOK_FOR_DEAD: Duration = Duration::from_secs(1);

/// A beat that failed is tried again after so long, or at the next beat when that comes first.
const BEAT_AGAIN: Duration = Duration::from_secs(1);

/// Least time between two looks that hints of other nodes lead to.
const HEED_PAUSE: Duration = Duration::from_millis(10);

/// Runs taken by one claim.
const CLAIM_BATCH: u32 = 64;

impl Executor {
    /// Makes the node known. The node may execute from then on.
    ///
    /// # Errors
    /// The store's.
    pub async fn register(&self) -> Result<(), StoreError> {
        self.shared.register().await
    }

    /// Beats, and takes over what dead nodes left, until the token is cancelled.
    pub async fn beat(&self, stop: CancellationToken) {
        // Side by side: looking for the dead may wait for a connection, and a beat must not wait for that.
        tokio::select! {
            () = stop.cancelled() => {}
            () = self.shared.keep_beating() => {}
            () = self.shared.keep_taking_over() => {}
        }
    }

    /// Claims and reads wishes as soon as another node says that there are some, and reads those that beats find, until
    /// the token is cancelled.
    pub async fn heed(&self, stop: CancellationToken) {
        let shared = &self.shared;
        let hints = shared.parts.store.hints();
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = shared.wished.notified() => shared.read_left().await,
                () = hints.heard(Hint::Wish) => shared.read_wishes().await,
                () = hints.heard(Hint::Due) => shared.due.notify_one(),
            }
            sleep(HEED_PAUSE).await;
        }
    }

    /// Claims due runs into free slots until the node drains.
    pub async fn claim(&self) {
        let shared = &self.shared;
        loop {
            let claimed = if shared.lease.holds() { shared.claim_once().await } else { 0 };
            // More may be due while slots are free; else wait for a hint, or look again after a while.
            if claimed >= CLAIM_BATCH {
                continue;
            }
            let pause = if claimed == 0 { shared.until_due().await } else { SLOW_POLL };
            tokio::select! {
                () = shared.draining.cancelled() => return,
                () = shared.due.notified() => {}
                () = sleep(pause) => {}
            }
        }
    }

    /// Takes no more runs and waits until those that are driven have let go, at most so long.
    pub async fn drain(&self, limit: Duration) {
        let shared = &self.shared;
        shared.draining.cancel();
        tracing::info!(runs = shared.owned.len(), "draining: runs let go at their next safe point");
        let emptied = async {
            while !shared.owned.is_empty() {
                tokio::select! {
                    () = shared.due.notified() => {}
                    () = sleep(Duration::from_millis(50)) => {}
                }
            }
        };
        if timeout(limit, emptied).await.is_err() {
            tracing::warn!(runs = shared.owned.len(), "the drain time is over; the rest is left to takeover");
        }
        // From here on others have the runs: what is not out yet must not leave.
        shared.lose_all();
        let node = *shared.node.read();
        failpoint::pass("node.retire.before");
        match shared.parts.store.node_retire(node).await {
            Ok(()) => tracing::info!("draining: the leases are given back"),
            Err(fault) => tracing::warn!(%fault, "the node could not say good-bye; its lease will lapse"),
        }
        failpoint::pass("node.retire.after");
    }
}

impl Shared {
    async fn register(&self) -> Result<(), StoreError> {
        let started = Instant::now();
        let node = *self.node.read();
        self.parts.store.node_register(node).await?;
        self.lease.beaten(started);
        Ok(())
    }

    async fn keep_beating(&self) {
        let mut beats = interval(self.lease.interval());
        beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut is_known = false;
        loop {
            beats.tick().await;
            let beaten = self.beat_once().await;
            if let Err(fault) = &beaten {
                // Said once: it is tried again and again.
                if !is_known {
                    tracing::warn!(%fault, "the node could not beat");
                }
                beats.reset_after(BEAT_AGAIN.min(self.lease.interval()));
            }
            is_known = beaten.is_err();
        }
    }

    async fn keep_taking_over(&self) {
        let mut looks = interval(LOOK_FOR_DEAD);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            self.take_over().await;
        }
    }

    async fn beat_once(&self) -> Result<(), StoreError> {
        let started = Instant::now();
        let node = *self.node.read();
        failpoint::pass("node.beat.before");
        let beat = self.parts.store.node_beat(node).await;
        failpoint::pass("node.beat.after");
        match beat? {
            beat if beat.alive => {
                self.lease.beaten(started);
                self.leave_wishes(beat.attention);
                // What takes longer than to the next beat is left to that one.
                timeout(self.lease.interval(), self.free_strays(beat.owned)).await.unwrap_or_default();
            }
            _ if self.draining.is_cancelled() => self.lose_all(),
            _ => self.start_over().await,
        }
        Ok(())
    }

    /// Leaves wishes that a beat found to whoever heeds them: reading one may take longer than a beat may be late.
    fn leave_wishes(&self, found: Vec<Claim>) {
        let mut unread = self.unread.lock();
        unread.extend(found);
        if !unread.is_empty() {
            self.wished.notify_one();
        }
    }

    /// Reads the wishes that were left.
    async fn read_left(&self) {
        let unread = std::mem::take(&mut *self.unread.lock());
        for claim in &unread {
            self.attend(claim).await;
        }
    }

    /// Reads what was wished without waiting for the next beat.
    async fn read_wishes(&self) {
        let node = *self.node.read();
        match self.parts.store.wish_list(node).await {
            Ok(wishes) => {
                for claim in &wishes {
                    self.attend(claim).await;
                }
            }
            Err(fault) => tracing::warn!(%fault, "wishes are read at the next beat"),
        }
    }

    /// Reads what others wish of a run and hands it to the task that drives it.
    pub(super) async fn attend(&self, claim: &Claim) {
        // Of this very drive: what is taken for one that has just ended would be lost. It stays until the next beat.
        let driven = self.owned.get(&claim.uid).filter(|owned| owned.0 == claim.fence).map(|owned| owned.1.clone());
        let Some(signals) = driven else { return };
        match self.parts.store.wishes_take(claim).await {
            Ok(wishes) => {
                if wishes.cancel_requested_by.is_some() {
                    signals.cancel.cancel();
                }
                let crate::store::Wishes { decisions, answers, fetched, votes, .. } = &wishes;
                if !(decisions.is_empty() && answers.is_empty() && fetched.is_empty() && votes.is_empty()) {
                    signals.decisions.lock().extend(wishes.decisions);
                    signals.fetched.lock().extend(wishes.fetched);
                    signals.answers.lock().extend(wishes.answers);
                    signals.votes.lock().extend(wishes.votes);
                    signals.decided.notify_one();
                }
            }
            // The answer may be lost and not the question, so the next beat may find no trace of it: it is kept here.
            Err(fault) => {
                tracing::warn!(run = %claim.uid.0, %fault, "a wish could not be read yet");
                self.unread.lock().push(claim.clone());
            }
        }
    }

    /// Frees the runs of nodes that stopped beating. A node that is not sure of its own lease leaves that to others:
    /// it would only find itself.
    async fn take_over(&self) {
        if !self.lease.may_judge() {
            return;
        }
        let lease_ms = i64::try_from(self.settings.lease.as_millis()).unwrap_or(i64::MAX);
        match self.parts.store.node_reap(lease_ms).await {
            Ok(0) => {}
            Ok(freed) => {
                failpoint::pass("node.reap.after");
                tracing::warn!(freed, "took over the runs of a node that stopped beating");
                self.due.notify_one();
            }
            Err(fault) => tracing::warn!(%fault, "dead nodes could not be looked for"),
        }
    }

    /// Until the next run falls due, at most the slow poll. What is due already was left for a reason, e.g. its
    /// tenant's limit: it is looked at by the slow poll.
    async fn until_due(&self) -> Duration {
        match self.parts.store.run_due_in().await {
            Ok(Some(due_in)) if due_in > 0 => {
                Duration::from_millis(u64::try_from(due_in).unwrap_or(u64::MAX)).min(SLOW_POLL)
            }
            Ok(_) => SLOW_POLL,
            Err(fault) => {
                tracing::debug!(%fault, "when the next run falls due is not known");
                SLOW_POLL
            }
        }
    }

    /// Gives back what the database counts as this node's and nobody here drives: the answer to an admission, a claim
    /// or a release was lost, so no drive began or its end was not stored. A run that is being admitted at this moment
    /// looks the same, so a run must be astray at two beats in a row. Were it given back too early even so, its drive
    /// finds the fence closed.
    async fn free_strays(&self, owned: Vec<Claim>) {
        let is_driven = |claim: &Claim| self.owned.get(&claim.uid).is_some_and(|owned| owned.0 == claim.fence);
        let astray: Vec<Claim> = owned.into_iter().filter(|claim| !is_driven(claim)).collect();
        let before = std::mem::replace(&mut *self.astray.lock(), astray.clone());
        for claim in astray.iter().filter(|claim| before.contains(claim)) {
            match self.parts.store.run_release(claim, false).await {
                Ok(true) => {
                    tracing::warn!(run = %claim.uid.0, "a run that nobody drove was given back");
                    self.due.notify_one();
                }
                Ok(false) => {}
                // It stays astray; the next beat tries again.
                Err(fault) => tracing::warn!(run = %claim.uid.0, %fault, "a run that nobody drives stays so"),
            }
        }
    }

    /// This node was taken for dead: it owns nothing any more and goes on under a new name.
    async fn start_over(&self) {
        tracing::warn!("this node was taken for dead; it goes on as a new one");
        self.lease.lapse();
        *self.node.write() = self.parts.clock.node_id();
        self.lose_all();
        if let Err(fault) = self.register().await {
            tracing::warn!(%fault, "the node could not register again");
        }
    }

    /// Nothing may be sent or written any more under the name that the node had.
    fn lose_all(&self) {
        self.lease.lapse();
        for owned in &self.owned {
            owned.1.lost.cancel();
        }
    }

    /// Beside the claiming, which must not stand still while the database does not answer.
    fn give_back(self: &Arc<Self>, claim: Claim) {
        let shared = Arc::clone(self);
        self.parts.tracker.spawn(async move { super::drive::release(&shared, &claim, false).await });
    }

    async fn claim_once(self: &Arc<Self>) -> u32 {
        let free = u32::try_from(self.slots.available_permits()).unwrap_or(u32::MAX).min(CLAIM_BATCH);
        self.backlog.store(free == 0, Ordering::Relaxed);
        if free == 0 || self.draining.is_cancelled() {
            return 0;
        }
        let per_tenant = u32::try_from(self.settings.tenant_max_running).unwrap_or(u32::MAX);
        let node = *self.node.read();
        let began = Instant::now();
        let claimed = self.parts.store.run_claim(node, free, per_tenant).await;
        metrics::histogram!("countersign_claim_seconds").record(began.elapsed().as_secs_f64());
        let claims = match claimed {
            Ok(claims) => claims,
            Err(fault) => {
                tracing::warn!(%fault, "due runs could not be claimed");
                return 0;
            }
        };
        let claimed = u32::try_from(claims.len()).unwrap_or(u32::MAX);
        self.backlog.store(claimed >= free, Ordering::Relaxed);
        if claimed > 0 {
            failpoint::pass("run.claim.after");
        }
        for claim in claims {
            let permit = Arc::clone(&self.slots).try_acquire_owned().ok();
            match permit.and_then(|permit| self.take_place(node, &claim.tenant, permit)) {
                Some(slot) => self.spawn(slot, claim, None),
                // A run of this node's own was admitted meanwhile: give back what there is no slot for.
                None => self.give_back(claim),
            }
        }
        claimed
    }
}
