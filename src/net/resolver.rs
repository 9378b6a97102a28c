//! The resolver of every client: hands out only addresses that may be dialled.

use std::net::SocketAddr;
use std::sync::Arc;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use super::{EgressAllow, EgressRefusal, judge};

pub(super) struct GuardedResolver {
    allow: Arc<EgressAllow>,
}

impl GuardedResolver {
    pub(super) fn new(allow: Arc<EgressAllow>) -> Self {
        Self { allow }
    }
}

impl Resolve for GuardedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let allow = Arc::clone(&self.allow);
        Box::pin(async move {
            let found: Vec<SocketAddr> = tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            let admitted = admit(&allow, name.as_str(), found)?;
            Ok(Box::new(admitted.into_iter()) as Addrs)
        })
    }
}

/// The addresses that may be dialled; a refusal when none is left.
pub(super) fn admit(allow: &EgressAllow, name: &str, found: Vec<SocketAddr>) -> Result<Vec<SocketAddr>, EgressRefusal> {
    if allow.has_host(name) && !found.is_empty() {
        return Ok(found);
    }
    let mut refusal = EgressRefusal::NoAddress(name.to_owned());
    let mut admitted = Vec::new();
    for address in found {
        match judge(allow, name, address.ip()) {
            Ok(_) => admitted.push(address),
            Err(reason) => refusal = reason,
        }
    }
    if admitted.is_empty() { Err(refusal) } else { Ok(admitted) }
}
