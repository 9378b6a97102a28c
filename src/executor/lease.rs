//! This node's own lease, measured by the monotonic clock.
//!
//! Before each send the owner checks that its last successful beat is younger than the lease less a margin. That
//! narrows the window of a pause between check and write and cannot close it: the fence on every write, and the
//! idempotency key on every request, are the second line.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

pub(super) struct Lease {
    length: Duration,
    beaten_at: Mutex<Option<Instant>>,
    /// When a beat succeeded again after the lease had lapsed: the others may have been as silent, for the same reason.
    back_since: Mutex<Option<Instant>>,
}

impl Lease {
    pub(super) const fn new(length: Duration) -> Self {
        Self { length, beaten_at: parking_lot::const_mutex(None), back_since: parking_lot::const_mutex(None) }
    }

    /// A beat that was *started* at that instant succeeded.
    pub(super) fn beaten(&self, started: Instant) {
        if self.beaten_at.lock().replace(started).is_some_and(|before| before.elapsed() >= self.length) {
            *self.back_since.lock() = Some(Instant::now());
        }
    }

    /// Other nodes may have taken over, or soon will.
    pub(super) fn lapse(&self) {
        *self.beaten_at.lock() = None;
    }

    /// Whether nobody can have taken over yet, with a fifth of the lease to spare.
    pub(super) fn holds(&self) -> bool {
        let spare = self.length / 5;
        self.beaten_at.lock().is_some_and(|at| at.elapsed() + spare < self.length)
    }

    /// Whether this node may say that others are dead. After an outage of the database every beat is old: whoever is
    /// back first waits as long as the others may need, or it would take their runs from them.
    pub(super) fn may_judge(&self) -> bool {
        self.holds() && self.back_since.lock().is_none_or(|since| since.elapsed() >= self.length)
    }

    /// How often to beat.
    pub(super) fn interval(&self) -> Duration {
        self.length / 3
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_lease_holds_for_four_fifths_of_its_length_after_a_beat() {
        let lease = Lease::new(Duration::from_secs(10));
        assert!(!lease.holds());
        lease.beaten(Instant::now());
        tokio::time::advance(Duration::from_millis(7_900)).await;
        assert!(lease.holds());
        tokio::time::advance(Duration::from_millis(200)).await;
        assert!(!lease.holds());
        lease.beaten(Instant::now());
        lease.lapse();
        assert!(!lease.holds());
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_back_after_an_outage_calls_nobody_dead_for_the_length_of_a_lease() {
        let lease = Lease::new(Duration::from_secs(10));
        lease.beaten(Instant::now());
        assert!(lease.may_judge(), "a node that has just started looks for the dead at once");
        tokio::time::advance(Duration::from_secs(9)).await;
        assert!(!lease.may_judge(), "its own lease is not certain");
        tokio::time::advance(Duration::from_secs(2)).await;
        lease.beaten(Instant::now());
        assert!(lease.holds() && !lease.may_judge());
        tokio::time::advance(Duration::from_secs(5)).await;
        lease.beaten(Instant::now());
        assert!(!lease.may_judge());
        tokio::time::advance(Duration::from_secs(5)).await;
        assert!(lease.may_judge());
    }
}
