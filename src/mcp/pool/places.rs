//! How many connections a tenant may have open, in all and to one server. Opens and closes none itself.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use dashmap::DashMap;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::mcp::PoolSettings;
use crate::run::ids::TenantId;

/// The places of all tenants.
pub(super) struct Places {
    tenants: DashMap<TenantId, Arc<TenantPlaces>>,
    open: Arc<AtomicUsize>,
    tenant_max: usize,
    server_max: usize,
}

/// The places of one tenant.
pub(super) struct TenantPlaces {
    taken: Mutex<Taken>,
    /// Told whenever a place, or a connection that holds one, is not used any more.
    pub(super) freed: Notify,
    open: Arc<AtomicUsize>,
    tenant_max: usize,
    server_max: usize,
}

#[derive(Default)]
struct Taken {
    all: usize,
    by_server: HashMap<String, usize>,
}

/// What there are too many of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shortage {
    /// The tenant's connections.
    Tenant,
    /// Its connections to that server.
    Server,
}

/// The right to one open connection; dropping it gives it back.
pub(super) struct Place {
    tenant: Arc<TenantPlaces>,
    server: String,
}

impl Places {
    pub(super) fn new(settings: PoolSettings) -> Self {
        Self {
            tenants: DashMap::new(),
            open: Arc::default(),
            tenant_max: settings.tenant_connections,
            server_max: settings.server_connections,
        }
    }

    pub(super) fn of(&self, tenant: &TenantId) -> Arc<TenantPlaces> {
        let entry = self.tenants.entry(tenant.clone()).or_insert_with(|| {
            Arc::new(TenantPlaces {
                taken: Mutex::default(),
                freed: Notify::new(),
                open: Arc::clone(&self.open),
                tenant_max: self.tenant_max,
                server_max: self.server_max,
            })
        });
        Arc::clone(entry.value())
    }

    /// Places that are taken.
    pub(super) fn open(&self) -> usize {
        self.open.load(Ordering::Acquire)
    }

    /// Forgets tenants without a place.
    pub(super) fn tidy(&self) {
        // Under the map's lock nobody can take them from the map, and whoever has them counts.
        self.tenants.retain(|_, tenant| Arc::strong_count(tenant) > 1);
    }
}

impl TenantPlaces {
    /// Takes a place for a connection to that server.
    pub(super) fn take(self: &Arc<Self>, server: &str) -> Result<Place, Shortage> {
        let mut taken = self.taken.lock();
        if taken.by_server.get(server).is_some_and(|count| *count >= self.server_max) {
            return Err(Shortage::Server);
        }
        if taken.all >= self.tenant_max {
            return Err(Shortage::Tenant);
        }
        taken.all += 1;
        *taken.by_server.entry(server.to_owned()).or_insert(0) += 1;
        self.open.fetch_add(1, Ordering::AcqRel);
        Ok(Place { tenant: Arc::clone(self), server: server.to_owned() })
    }
}

impl Place {
    pub(super) fn tenant(&self) -> &TenantPlaces {
        &self.tenant
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.tenant.taken.lock();
        taken.all = taken.all.saturating_sub(1);
        let left = taken.by_server.get_mut(&self.server).map(|count| {
            *count = count.saturating_sub(1);
            *count
        });
        if left == Some(0) {
            taken.by_server.remove(&self.server);
        }
        drop(taken);
        self.tenant.open.fetch_sub(1, Ordering::AcqRel);
        self.tenant.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::mcp::BreakerSettings;

    #[test]
    fn a_tenant_has_so_many_places_and_no_more() {
        let second = Duration::from_secs(1);
        let places = Places::new(PoolSettings {
            idle_close: second,
            max_age: second,
            max_result_bytes: 1,
            bulk_bytes: 1,
            cancel_grace: second,
            tenant_connections: 3,
            server_connections: 2,
            place_wait: second,
            breaker: BreakerSettings { failures: 1, pause: second, pause_max: second },
        });
        let (acme, globex) = (TenantId::parse("acme").unwrap(), TenantId::parse("globex").unwrap());
        let (first, second) = (places.of(&acme).take("a").unwrap(), places.of(&acme).take("a").unwrap());
        assert_eq!(places.of(&acme).take("a").err(), Some(Shortage::Server));
        let third = places.of(&acme).take("b").unwrap();
        assert_eq!(places.of(&acme).take("c").err(), Some(Shortage::Tenant));
        assert!(places.of(&globex).take("a").is_ok());
        assert_eq!(places.open(), 3);
        drop(first);
        let fourth = places.of(&acme).take("a").unwrap();
        drop((second, third, fourth));
        places.tidy();
        assert_eq!((places.open(), places.tenants.len()), (0, 0));
    }
}
