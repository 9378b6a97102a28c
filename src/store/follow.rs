//! Tells this process's readers of what other nodes stored. Looks when a hint comes, and each second without one: one
//! statement for all runs that somebody follows, and one for all tenants that somebody watches, however many readers
//! there are. Knows the store and the hub, nothing of who reads.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;

use super::hub::{Hub, TenantSubscription};
use super::wake::Hint;
use super::{Store, StoreError};
use crate::run::ids::TenantId;
use crate::run::time::Timestamp;

/// How often it looks without a hint: all that readers rely on when hints are off.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Least pause between two looks for runs, which makes one look of hints that come close together.
const RUNS_PAUSE: Duration = Duration::from_millis(10);

/// The same for tenants, whose look reads events that were told already.
const FEED_PAUSE: Duration = Duration::from_millis(100);

/// A look that took long is paused after in proportion, so that looking never takes most of anything.
const PAUSE_FACTOR: u32 = 4;
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// How far a look without a hint looks back, in milliseconds: how far nodes' clocks may be apart.
const LOOK_BACK_MS: i64 = 15_000;

/// How far a look for a hint looks back: what clocks that are kept by the network's time differ by.
const GLANCE_BACK_MS: i64 = 1_000;

/// Events of one tenant that one look reads, the newest first.
const FEED_ROWS: u32 = 10_000;

/// Follows what other nodes store, for the readers of one hub.
pub struct Follower {
    store: Arc<dyn Store>,
    hub: Arc<Hub>,
    now: Box<dyn Fn() -> Timestamp + Send + Sync>,
}

impl Follower {
    /// A follower for this hub; `now` is the wall clock. Nothing is looked at until it runs.
    pub fn new(store: Arc<dyn Store>, hub: Arc<Hub>, now: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self { store, hub, now: Box::new(now) }
    }

    /// Follows the status and result events of a tenant's runs, from now on, whichever node drives them.
    ///
    /// # Errors
    /// The store's: what was there before could not be read, so it would be taken for new.
    pub async fn watch(&self, tenant: &TenantId) -> Result<TenantSubscription, StoreError> {
        let subscription = self.hub.subscribe_tenant(tenant);
        if !self.hub.is_watched(tenant) {
            let since = (self.now)().plus_millis(-LOOK_BACK_MS);
            let known = self.store.feed_list(std::slice::from_ref(tenant), since, FEED_ROWS).await?;
            self.hub.watch(tenant, since, &known);
        }
        Ok(subscription)
    }

    /// Looks until the token is cancelled.
    pub async fn run(&self, stop: CancellationToken) {
        tokio::select! {
            () = stop.cancelled() => {}
            () = self.follow_runs() => {}
            () = self.follow_tenants() => {}
        }
    }

    async fn follow_runs(&self) {
        let mut trouble = Trouble::default();
        loop {
            tokio::select! {
                () = self.store.hints().heard(Hint::Events) => {}
                () = sleep(LOOK_EVERY) => {}
            }
            let began = Instant::now();
            let looked = self.look_at_runs().await;
            trouble.is_over(looked);
            sleep(pause(RUNS_PAUSE, began.elapsed())).await;
        }
    }

    async fn look_at_runs(&self) -> Result<(), StoreError> {
        let runs = self.hub.followed_runs();
        if !runs.is_empty() {
            for (uid, last_seq) in self.store.seq_list(&runs).await? {
                self.hub.tell_behind(uid, last_seq);
            }
        }
        Ok(())
    }

    async fn follow_tenants(&self) {
        let mut trouble = Trouble::default();
        let mut ticks = interval(LOOK_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let back_ms = tokio::select! {
                biased;
                _ = ticks.tick() => LOOK_BACK_MS,
                () = self.store.hints().heard(Hint::Feed) => GLANCE_BACK_MS,
            };
            let began = Instant::now();
            let looked = self.look_at_tenants(back_ms).await;
            trouble.is_over(looked);
            sleep(pause(FEED_PAUSE, began.elapsed())).await;
        }
    }

    async fn look_at_tenants(&self, back_ms: i64) -> Result<(), StoreError> {
        let tenants = self.hub.watched_tenants();
        if tenants.is_empty() {
            return Ok(());
        }
        let now = (self.now)();
        let found = self.store.feed_list(&tenants, now.plus_millis(-back_ms), FEED_ROWS).await?;
        self.hub.feed(found);
        if back_ms == LOOK_BACK_MS {
            self.hub.forget_before(now.plus_millis(-LOOK_BACK_MS));
        }
        Ok(())
    }
}

/// The pause after a look.
fn pause(least: Duration, took: Duration) -> Duration {
    least.max(took.saturating_mul(PAUSE_FACTOR).min(PAUSE_MAX))
}

/// Says once that looking fails, and not again until it has worked.
#[derive(Default)]
struct Trouble {
    is_known: bool,
}

impl Trouble {
    fn is_over(&mut self, looked: Result<(), StoreError>) {
        match looked {
            Ok(()) => self.is_known = false,
            Err(fault) if !self.is_known => {
                self.is_known = true;
                tracing::warn!(%fault, "readers hear late of what other nodes store");
            }
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_that_took_long_is_paused_after_in_proportion() {
        let cases = [(0, 10), (2, 10), (5, 20), (50, 200), (1_000, 500), (60_000, 500)];
        for (took, paused) in cases {
            assert_eq!(pause(RUNS_PAUSE, Duration::from_millis(took)), Duration::from_millis(paused), "{took}");
        }
        assert_eq!(pause(FEED_PAUSE, Duration::from_millis(1)), FEED_PAUSE);
    }
}
