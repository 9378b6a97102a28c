//! Where a secret may be sent: exact hosts, with or without a port. There are no wildcards: whoever can make a name
//! below a domain would get the secret.

use url::{Host, Url};

/// Longest host with its port.
const HOST_MAX: usize = 260;

/// A host as it is kept: `host` (any port) or `host:port`, lower-case, without a final dot.
///
/// # Errors
/// Why it is none, for people.
pub fn parse(text: &str) -> Result<String, &'static str> {
    const FORM: &str = "must be a host or host:port, like orders.example.com";
    if text.contains('*') {
        return Err("must be an exact host: wildcards are not taken");
    }
    if text.len() > HOST_MAX || text.contains(['/', '@', '?', '#', ' ', '%', '\\']) {
        return Err(FORM);
    }
    let (host, port) = split(text);
    let port = match port.map(str::parse::<u16>) {
        None => None,
        Some(Ok(port)) if port > 0 => Some(port),
        Some(Ok(_) | Err(_)) => return Err(FORM),
    };
    let host = Host::parse(host.trim_end_matches('.')).map_err(|_unparsable| FORM)?;
    Ok(port.map_or_else(|| host.to_string(), |port| format!("{host}:{port}")))
}

/// Whether one of the hosts is this address's.
pub fn include(hosts: &[String], address: &Url) -> bool {
    let Some(host) = address.host() else { return false };
    let name = host.to_string();
    let (name, port) = (name.trim_end_matches('.'), address.port_or_known_default());
    hosts.iter().map(|text| split(text)).any(|(host, wanted)| {
        host == name && wanted.is_none_or(|wanted| port.is_some_and(|port| wanted == port.to_string()))
    })
}

/// The host, and what stands behind its last colon; colons inside brackets are an address's own.
fn split(text: &str) -> (&str, Option<&str>) {
    match text.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        Some(_) | None => (text, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_taken_in_one_form() {
        for (text, kept) in [
            ("orders.example.com", "orders.example.com"),
            ("Orders.Example.COM.", "orders.example.com"),
            ("orders.example.com:443", "orders.example.com:443"),
            ("127.0.0.1:8080", "127.0.0.1:8080"),
            ("[::1]", "[::1]"),
            ("[::1]:8080", "[::1]:8080"),
            ("münchen.example", "xn--mnchen-3ya.example"),
        ] {
            assert_eq!(parse(text).as_deref(), Ok(kept), "{text}");
        }
        for text in [
            "",
            "*",
            "*.example.com",
            "https://a.example",
            "a.example/x",
            "u@a.example",
            "a.example:0",
            "a.example:x",
            "a.example:65536",
            "a b",
            "::1",
            ":80",
            "a.example:",
            "a?b",
            "a#b",
            "a%2eb",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn only_the_very_host_and_port_get_it() {
        let may = |hosts: &[&str], address: &str| {
            let hosts: Vec<String> = hosts.iter().map(|host| parse(host).unwrap()).collect();
            include(&hosts, &address.parse().unwrap())
        };
        assert!(may(&["a.example"], "https://a.example/mcp") && may(&["a.example"], "https://a.example:8443/mcp"));
        assert!(may(&["a.example:443"], "https://A.example./mcp"));
        assert!(may(&["b.example", "a.example:8443"], "https://a.example:8443/"));
        assert!(may(&["127.0.0.1"], "http://127.1:80/") && may(&["[::1]:80"], "http://[::1]/"));
        for (hosts, address) in [
            (&[][..], "https://a.example/"),
            (&["a.example"], "https://b.a.example/"),
            (&["a.example"], "https://a.example.evil.example/"),
            (&["a.example"], "https://evil.example/?a.example"),
            (&["a.example"], "https://evil.example/a.example"),
            (&["a.example:443"], "https://a.example:8443/"),
            (&["a.example:443"], "http://a.example/"),
            (&["10.0.0.1"], "https://10.0.0.10/"),
        ] {
            assert!(!may(hosts, address), "{hosts:?} {address}");
        }
    }
}
