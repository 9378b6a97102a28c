//! What the store says, kept for a moment on this node. A change is told by a hint; without one it is seen when the
//! moment is over. Whoever asks while another reads gets the same reading, so a value costs one statement in that time,
//! however many calls need it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dashmap::DashMap;
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::run::ids::TenantId;
use crate::store::StoreError;

/// How long a reading counts when nobody says that something changed.
const TTL: Duration = Duration::from_secs(5);

/// How long a reading is used while the database does not answer.
const STALE_MAX: Duration = Duration::from_mins(1);

/// Readings that are kept; beyond that what is old is dropped.
const KEPT_MAX: usize = 10_000;

/// Who: a tenant and a name of its own.
type Key = (TenantId, String);

/// Readings of one kind.
pub(super) struct Fresh<V> {
    slots: DashMap<Key, Arc<Mutex<Slot<V>>>>,
    /// Rises with each change of anything: what was read before counts no longer.
    era: AtomicU64,
}

struct Slot<V> {
    read: Option<Reading<V>>,
    /// When the last reading failed, and why.
    failed: Option<(Instant, LookupFault)>,
}

struct Reading<V> {
    value: V,
    at: Instant,
    era: u64,
}

/// Why something could not be looked up.
#[derive(Clone, Debug)]
pub(super) struct LookupFault {
    pub(super) message: String,
    /// The store does not answer now: asking later may succeed.
    pub(super) is_passing: bool,
}

impl From<LookupFault> for String {
    fn from(fault: LookupFault) -> Self {
        fault.message
    }
}

/// A value, and the one that it took the place of when it was read for this.
pub(super) struct Got<V> {
    pub(super) value: V,
    pub(super) replaced: Option<V>,
}

impl<V: Clone> Fresh<V> {
    pub(super) fn new() -> Self {
        Self { slots: DashMap::new(), era: AtomicU64::new(0) }
    }

    /// Something was changed: everything is read again when it is needed next.
    pub(super) fn expire(&self) {
        self.era.fetch_add(1, Ordering::AcqRel);
    }

    /// A reading that is at most `max_age` old, and never older than the moment in which a reading counts.
    ///
    /// # Errors
    /// The store does not answer, in words, and there is no reading that would do meanwhile.
    pub(super) async fn get(
        &self,
        tenant: &TenantId,
        name: &str,
        max_age: Duration,
        load: impl Future<Output = Result<V, StoreError>>,
    ) -> Result<Got<V>, LookupFault> {
        let asked = Instant::now();
        let slot = self.slot(tenant, name);
        // Held while reading: that is what makes many askers one statement.
        let mut slot = slot.lock().await;
        let (at, era) = (Instant::now(), self.era.load(Ordering::Acquire));
        if let Some(read) = &slot.read {
            let is_young = read.at.elapsed() < max_age.min(TTL) || read.at >= asked;
            if is_young && read.era == era {
                return Ok(Got { value: read.value.clone(), replaced: None });
            }
        }
        let known = slot.failed.as_ref().filter(|(failed, _)| *failed >= asked).map(|(_, fault)| fault.clone());
        let fault = match known {
            Some(fault) => fault,
            None => match load.await {
                Ok(value) => {
                    slot.failed = None;
                    let before = slot.read.replace(Reading { value: value.clone(), at, era });
                    return Ok(Got { value, replaced: before.map(|before| before.value) });
                }
                Err(fault) => {
                    let is_passing = matches!(fault, StoreError::Unavailable(_));
                    let fault = LookupFault { message: fault.to_string(), is_passing };
                    tracing::warn!(fault = fault.message, "a server or a secret could not be looked up");
                    slot.failed = Some((Instant::now(), fault.clone()));
                    fault
                }
            },
        };
        match &slot.read {
            Some(read) if !max_age.is_zero() && read.at.elapsed() < STALE_MAX => {
                Ok(Got { value: read.value.clone(), replaced: None })
            }
            Some(_) | None => Err(fault),
        }
    }

    fn slot(&self, tenant: &TenantId, name: &str) -> Arc<Mutex<Slot<V>>> {
        let key = (tenant.clone(), name.to_owned());
        if let Some(slot) = self.slots.get(&key) {
            return Arc::clone(&slot);
        }
        if self.slots.len() >= KEPT_MAX {
            // A slot that is locked is in use.
            let is_old = |slot: &Slot<V>| slot.read.as_ref().is_none_or(|read| read.at.elapsed() > TTL);
            self.slots.retain(|_, slot| slot.try_lock().is_ok_and(|slot| !is_old(&slot)));
        }
        let slot = self.slots.entry(key).or_insert_with(|| Arc::new(Mutex::new(Slot { read: None, failed: None })));
        Arc::clone(&slot)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn acme() -> TenantId {
        TenantId::parse("acme").unwrap()
    }

    struct Table {
        fresh: Fresh<u32>,
        value: Cell<u32>,
        reads: Cell<u32>,
        answers: Cell<bool>,
    }

    impl Table {
        fn new() -> Self {
            Self { fresh: Fresh::new(), value: Cell::new(1), reads: Cell::new(0), answers: Cell::new(true) }
        }

        async fn get(&self, max_age: Duration) -> Result<(u32, Option<u32>), String> {
            let load = async {
                self.reads.set(self.reads.get() + 1);
                tokio::task::yield_now().await;
                if self.answers.get() { Ok(self.value.get()) } else { Err(StoreError::Misconfigured("away".into())) }
            };
            let got = self.fresh.get(&acme(), "orders", max_age, load).await?;
            Ok((got.value, got.replaced))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_reading_counts_for_a_moment_and_many_askers_make_one() {
        let table = Table::new();
        let all = futures::future::join_all((0..20).map(|_| table.get(TTL))).await;
        assert!(all.iter().all(|got| got.as_ref().unwrap().0 == 1));
        assert_eq!(table.reads.get(), 1);
        table.value.set(2);
        assert_eq!(table.get(TTL).await, Ok((1, None)), "nobody said that it changed");
        tokio::time::advance(TTL).await;
        assert_eq!(table.get(TTL).await, Ok((2, Some(1))));
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(table.get(Duration::ZERO).await, Ok((2, Some(2))), "asked for what holds now");
        assert_eq!(table.reads.get(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_said_to_have_changed_is_read_again() {
        let table = Table::new();
        assert_eq!(table.get(TTL).await, Ok((1, None)));
        table.value.set(2);
        table.fresh.expire();
        assert_eq!(table.get(TTL).await, Ok((2, Some(1))));
        assert_eq!((table.get(TTL).await, table.reads.get()), (Ok((2, None)), 2));
    }

    #[tokio::test(start_paused = true)]
    async fn an_outage_is_bridged_for_a_while_and_no_longer() {
        let table = Table::new();
        table.answers.set(false);
        assert!(table.get(TTL).await.is_err());
        table.answers.set(true);
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(table.get(TTL).await, Ok((1, None)));
        table.answers.set(false);
        tokio::time::advance(TTL * 2).await;
        assert_eq!(table.get(TTL).await, Ok((1, None)));
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(table.get(Duration::ZERO).await.is_err(), "what holds now is not known");
        tokio::time::advance(STALE_MAX).await;
        assert!(table.get(TTL).await.is_err());
    }
}
