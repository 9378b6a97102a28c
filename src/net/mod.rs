//! The only place that builds HTTP clients for addresses that tenants choose.
//!
//! Two gates, both closed by default. `Egress::check` judges a URL: scheme, user info, and hosts that are written as
//! addresses (the HTTP library never asks a resolver for those); a client judges so before each of its requests, not
//! only when an address is registered. The resolver of every client judges the addresses that names lead to, at the
//! moment they are dialled, so a name cannot be re-pointed between a check and its use. Redirects and proxies are off:
//! both would dial something unjudged. Knows nothing of MCP, models or runs.

mod address;
mod allow;
mod challenge;
mod client;
mod describe;
mod resolver;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use url::{Host, Url};

pub use allow::{AllowFault, EgressAllow};
pub use challenge::Challenge;
pub use client::EgressClient;
pub use describe::describe;
pub use resolver::{Found, Names};
use resolver::{GuardedResolver, SystemNames};

/// How long a kept-alive connection may idle before it is dropped.
///
/// Common servers close idle connections after 5 s. A request written into a connection that the server is just
/// closing ends as "sent, not answered", which asks a person about a call that never arrived. Closing first avoids it.
const KEEP_ALIVE: Duration = Duration::from_secs(3);

/// What may be dialled.
#[derive(Clone, Debug)]
pub struct Egress {
    allow: Arc<EgressAllow>,
    names: Arc<dyn Names>,
}

/// Why a URL or an address may not be dialled. Names hosts, never user info.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EgressRefusal {
    /// Neither `https` nor `http`.
    #[error("the scheme '{0}' is not allowed")]
    Scheme(String),
    /// Plain `http` to a host that the operator did not allow.
    #[error("plain http to '{0}' is not allowed; use https")]
    PlainHttp(String),
    /// `user:password@` in front of the host.
    #[error("user info in a URL is not allowed")]
    UserInfo,
    /// A URL without a host.
    #[error("the URL has no host")]
    NoHost,
    /// A loopback, private, link-local, metadata or otherwise special address.
    #[error("'{host}' leads to the {kind} address {address}, which is not allowed")]
    Address {
        /// The host as the URL has it.
        host: String,
        /// What kind of address it is, e.g. `loopback`.
        kind: &'static str,
        /// The address.
        address: IpAddr,
    },
    /// A name that resolves to nothing.
    #[error("'{0}' has no address")]
    NoAddress(String),
}

impl Egress {
    /// Lets through what is public, and what `allow` names.
    pub fn new(allow: EgressAllow) -> Self {
        Self { allow: Arc::new(allow), names: Arc::new(SystemNames) }
    }

    /// The same, where names are looked up by `names` instead of the system. What it answers is judged all the same.
    #[must_use]
    pub fn with_names(self, names: Arc<dyn Names>) -> Self {
        Self { names, ..self }
    }

    /// The same, and what the operator named by this address: it may be private, and plain `http`.
    #[must_use]
    pub fn and_named(&self, address: &Url) -> Self {
        let mut allow = EgressAllow::clone(&self.allow);
        allow.add_host_of(address);
        Self { allow: Arc::new(allow), names: Arc::clone(&self.names) }
    }

    /// Judges a URL before anything is dialled. Names are judged again, by their addresses, when they are dialled.
    ///
    /// # Errors
    /// The reason of the refusal.
    pub fn check(&self, url: &Url) -> Result<(), EgressRefusal> {
        if !matches!(url.scheme(), "https" | "http") {
            return Err(EgressRefusal::Scheme(url.scheme().to_owned()));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(EgressRefusal::UserInfo);
        }
        let allowed = match url.host().ok_or(EgressRefusal::NoHost)? {
            Host::Domain(name) => self.judge_name(name)?,
            Host::Ipv4(address) => self.judge_address(&address.to_string(), address.into())?,
            Host::Ipv6(address) => self.judge_address(&address.to_string(), address.into())?,
        };
        if url.scheme() == "http" && !allowed {
            return Err(EgressRefusal::PlainHttp(url.host_str().unwrap_or_default().to_owned()));
        }
        Ok(())
    }

    /// Whether the operator named this host; names of the own machine are refused unless they did.
    fn judge_name(&self, name: &str) -> Result<bool, EgressRefusal> {
        if self.allow.has_host(name) {
            return Ok(true);
        }
        let name = name.trim_end_matches('.');
        if name.is_empty() {
            return Err(EgressRefusal::NoHost);
        }
        if name == "localhost" || name.ends_with(".localhost") {
            return self.judge_address(name, IpAddr::from([127, 0, 0, 1]));
        }
        Ok(false)
    }

    fn judge_address(&self, host: &str, address: IpAddr) -> Result<bool, EgressRefusal> {
        judge(&self.allow, host, address)
    }

    /// Builds a client that dials only what is let through. Share one per purpose: each holds its own
    /// connections and trust roots.
    ///
    /// `connect` bounds name resolution, connecting and the TLS handshake; `read` the silence between two pieces of
    /// an answer (`None`: the caller has limits of its own).
    ///
    /// # Errors
    /// The trust roots could not be loaded.
    pub fn client(&self, connect: Duration, read: Option<Duration>) -> Result<EgressClient, reqwest::Error> {
        let mut builder = reqwest::Client::builder()
            .dns_resolver(Arc::new(GuardedResolver::new(self.clone())))
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never())
            .no_proxy()
            .connect_timeout(connect)
            .pool_idle_timeout(KEEP_ALIVE)
            .referer(false)
            // A small body that unpacks to gigabytes costs its reader more than its sender.
            .no_gzip()
            .user_agent(concat!("countersign/", env!("CARGO_PKG_VERSION")));
        if let Some(read) = read {
            builder = builder.read_timeout(read);
        }
        Ok(EgressClient::new(builder.build()?, self.clone()))
    }
}

/// `Ok(true)`: the operator allowed this address; `Ok(false)`: it is public.
fn judge(allow: &EgressAllow, host: &str, address: IpAddr) -> Result<bool, EgressRefusal> {
    if allow.has_address(address) {
        return Ok(true);
    }
    match address::special_kind(address) {
        None => Ok(false),
        Some(kind) => Err(EgressRefusal::Address { host: host.to_owned(), kind, address }),
    }
}

#[cfg(test)]
mod tests;
