//! What the operator lets through besides the public internet: hosts, addresses and networks, as text.

use std::net::IpAddr;

use ipnet::IpNet;
use url::{Host, Url};

use super::address::embedded_v4;

/// Hosts and networks that may be dialled although they are not public, and over plain `http` too.
#[derive(Clone, Debug, Default)]
pub struct EgressAllow {
    hosts: Vec<String>,
    suffixes: Vec<String>,
    nets: Vec<IpNet>,
}

/// An entry of the allow list that says nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is neither a host, an address nor a network like 127.0.0.0/8")]
pub struct AllowFault(pub String);

impl EgressAllow {
    /// Reads entries like `models.internal`, `*.svc.internal`, `localhost`, `127.0.0.1`, `10.0.0.0/8`, `fd00::/8`.
    ///
    /// # Errors
    /// The first entry that is none of these.
    pub fn parse<'a>(entries: impl IntoIterator<Item = &'a str>) -> Result<Self, AllowFault> {
        let mut allow = Self::default();
        for entry in entries {
            allow.add(entry.trim())?;
        }
        Ok(allow)
    }

    fn add(&mut self, entry: &str) -> Result<(), AllowFault> {
        let bare = entry.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(entry);
        if let Ok(address) = bare.parse::<IpAddr>() {
            self.nets.push(IpNet::from(address));
        } else if let Ok(net) = entry.parse::<IpNet>() {
            self.nets.push(net.trunc());
        } else if let Some(suffix) = entry.strip_prefix("*.").and_then(host_name) {
            self.suffixes.push(format!(".{suffix}"));
        } else if let Some(host) = host_name(entry) {
            self.hosts.push(host);
        } else {
            return Err(AllowFault(entry.to_owned()));
        }
        Ok(())
    }

    /// Adds the host of an address.
    pub(super) fn add_host_of(&mut self, address: &Url) {
        match address.host() {
            Some(Host::Domain(name)) => self.hosts.push(name.trim_end_matches('.').to_owned()),
            Some(Host::Ipv4(address)) => self.nets.push(IpNet::from(IpAddr::V4(address))),
            Some(Host::Ipv6(address)) => self.nets.push(IpNet::from(IpAddr::V6(address))),
            None => {}
        }
    }

    /// Whether the operator named this host.
    pub(super) fn has_host(&self, name: &str) -> bool {
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        self.hosts.contains(&name) || self.suffixes.iter().any(|suffix| name.ends_with(suffix.as_str()))
    }

    /// Whether the operator named this address or a network around it, also in its IPv4-in-IPv6 forms.
    pub(super) fn has_address(&self, address: IpAddr) -> bool {
        let inner = match address {
            IpAddr::V4(_) => None,
            IpAddr::V6(address) => embedded_v4(address).map(IpAddr::V4),
        };
        self.nets.iter().any(|net| net.contains(&address) || inner.is_some_and(|inner| net.contains(&inner)))
    }
}

/// A host name as URLs print it: lower case, without the root's dot. What URLs read as a number is no name.
fn host_name(text: &str) -> Option<String> {
    match url::Host::parse(text).ok()? {
        url::Host::Domain(name) if !name.contains('*') => Some(name.trim_end_matches('.').to_owned()),
        url::Host::Domain(_) | url::Host::Ipv4(_) | url::Host::Ipv6(_) => None,
    }
    .filter(|name| !name.is_empty())
}
