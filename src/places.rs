//! Who is next, where work is done at a few places that all tenants share. Everybody waits in the order of coming, and a
//! tenant waits for, or holds, no more than its share: however much work one has, another's is next but one. Does no
//! work itself, and does not know what is done.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::run::ids::TenantId;

/// From so many tenants on, those that wait for nothing are forgotten.
const TENANTS_KEPT: usize = 256;

/// The places.
#[derive(Debug)]
pub struct Places {
    all: Arc<Semaphore>,
    of_one: usize,
    /// `of_one` permits each.
    tenants: Mutex<HashMap<TenantId, Weak<Semaphore>>>,
}

/// A place, until it is dropped.
#[derive(Debug)]
pub struct Held {
    _permits: [OwnedSemaphorePermit; 2],
}

impl Places {
    /// So many places, and so many of them for one tenant.
    #[must_use]
    pub fn new(all: usize, of_one: usize) -> Self {
        Self { all: Arc::new(Semaphore::new(all)), of_one, tenants: Mutex::default() }
    }

    /// Waits for a place. How long is the caller's affair.
    pub async fn take(&self, tenant: &TenantId) -> Option<Held> {
        // In this order: who waits for the tenant's own permit keeps nobody from a place.
        let own = self.own(tenant).acquire_owned().await.ok()?;
        let place = Arc::clone(&self.all).acquire_owned().await.ok()?;
        Some(Held { _permits: [own, place] })
    }

    fn own(&self, tenant: &TenantId) -> Arc<Semaphore> {
        let mut tenants = self.tenants.lock();
        if let Some(own) = tenants.get(tenant).and_then(Weak::upgrade) {
            return own;
        }
        if tenants.len() >= TENANTS_KEPT {
            tenants.retain(|_, own| own.strong_count() > 0);
        }
        let own = Arc::new(Semaphore::new(self.of_one));
        tenants.insert(tenant.clone(), Arc::downgrade(&own));
        own
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn a_tenant_has_its_share_and_the_rest_is_for_others() {
        let places = Places::new(2, 1);
        let [greedy, other, third] = ["greedy", "other", "third"].map(|name| TenantId::parse(name).unwrap());
        let first = places.take(&greedy).await.unwrap();
        assert!(places.take(&greedy).now_or_never().is_none(), "a second place");
        let second = places.take(&other).now_or_never().flatten().unwrap();
        assert!(places.take(&third).now_or_never().is_none(), "there are two");
        drop(first);
        let _third = places.take(&third).now_or_never().flatten().unwrap();
        drop(second);
        assert!(places.take(&greedy).now_or_never().flatten().is_some());
    }
}
