//! The resolver of every client: hands out only addresses that may be dialled.

use std::net::SocketAddr;
use std::sync::Arc;

use futures::future::BoxFuture;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use super::{Egress, EgressAllow, EgressRefusal, judge};

/// What a look-up found; ports in it are ignored.
pub type Found = std::io::Result<Vec<SocketAddr>>;

/// Looks names up.
pub trait Names: std::fmt::Debug + Send + Sync {
    /// Every address of a name.
    fn look_up<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Found>;
}

/// Names as the system knows them.
#[derive(Debug)]
pub(super) struct SystemNames;

impl Names for SystemNames {
    fn look_up<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Found> {
        Box::pin(async move { Ok(tokio::net::lookup_host((name, 0)).await?.collect()) })
    }
}

pub(super) struct GuardedResolver {
    egress: Egress,
}

impl GuardedResolver {
    pub(super) fn new(egress: Egress) -> Self {
        Self { egress }
    }
}

impl Resolve for GuardedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let (allow, names) = (Arc::clone(&self.egress.allow), Arc::clone(&self.egress.names));
        Box::pin(async move {
            let found = names.look_up(name.as_str()).await?;
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
