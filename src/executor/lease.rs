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
}

impl Lease {
    pub(super) const fn new(length: Duration) -> Self {
        Self { length, beaten_at: parking_lot::const_mutex(None) }
    }

    /// A beat that was *started* at that instant succeeded.
    pub(super) fn beaten(&self, started: Instant) {
        *self.beaten_at.lock() = Some(started);
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
}
