//! The identity of a connection: everything that decides whom it speaks to and as whom. Namespaces, classes, tool lists
//! and time limits are no part of it.

use aws_lc_rs::digest;
use secrecy::ExposeSecret as _;

use crate::mcp::{Endpoint, McpTarget};
use crate::run::ids::TenantId;

/// A digest, so that no secret stays in the table of connections.
pub(super) type Key = [u8; 32];

/// The identity of a connection. The secret goes in by value, so that a rotated one gets a connection of its own.
pub(super) fn key_of(tenant: &TenantId, target: &McpTarget) -> Key {
    let mut context = digest::Context::new(&digest::SHA256);
    let mut add = |part: &[u8]| {
        // The length in front keeps two neighbours from running into each other.
        context.update(&part.len().to_be_bytes());
        context.update(part);
    };
    add(tenant.as_str().as_bytes());
    add(target.endpoint.transport().as_bytes());
    match &target.endpoint {
        Endpoint::Http(url) => add(url.as_str().as_bytes()),
        Endpoint::Stdio(server) => server.identity(&mut add),
    }
    let mut headers: Vec<(String, &str)> =
        target.headers.iter().map(|(name, value)| (name.to_ascii_lowercase(), value.as_str())).collect();
    headers.sort_unstable();
    add(&headers.len().to_be_bytes());
    for (name, value) in headers {
        add(name.as_bytes());
        add(value.as_bytes());
    }
    match &target.secret_header {
        Some((name, secret)) => {
            add(name.to_ascii_lowercase().as_bytes());
            add(secret.expose_secret().as_bytes());
        }
        None => add(b""),
    }
    // A token is renewed under a connection; what it depends on is not.
    add(target.bearer.as_ref().map(|bearer| bearer.identity()).unwrap_or_default().as_slice());
    add(&[u8::from(target.offers.elicitation), u8::from(target.offers.sampling)]);
    if let Some((uid, fence)) = target.private_to {
        add(uid.0.as_bytes());
        add(&fence.0.to_be_bytes());
    }
    let mut key = [0; 32];
    key.copy_from_slice(context.finish().as_ref());
    key
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use secrecy::SecretString;
    use uuid::Uuid;

    use super::*;
    use crate::mcp::StdioServer;
    use crate::run::ids::{Fence, RunUid};

    fn acme() -> TenantId {
        TenantId::parse("acme").unwrap()
    }

    #[track_caller]
    fn differs(base: impl Fn() -> McpTarget, changes: &[fn(&mut McpTarget)]) {
        let key = key_of(&acme(), &base());
        for (at, change) in changes.iter().enumerate() {
            let mut target = base();
            change(&mut target);
            assert_ne!(key_of(&acme(), &target), key, "{at}");
        }
        assert_ne!(key_of(&TenantId::parse("acmf").unwrap(), &base()), key);
    }

    fn over_http() -> McpTarget {
        McpTarget {
            place: String::new(),
            endpoint: Endpoint::Http("https://a.example/mcp".parse().unwrap()),
            headers: vec![("X-A".to_owned(), "1".to_owned()), ("x-b".to_owned(), "2".to_owned())],
            secret_header: Some(("authorization".to_owned(), SecretString::from("s"))),
            bearer: None,
            timeouts: crate::run::spec::Timeouts::default(),
            private_to: None,
            origin: None,
            offers: crate::mcp::Offers::default(),
            told: crate::mcp::Told::default(),
        }
    }

    #[test]
    fn every_part_of_the_configuration_is_part_of_the_identity() {
        differs(
            over_http,
            &[
                |target| target.endpoint = Endpoint::Http("https://b.example/mcp".parse().unwrap()),
                |target| target.headers[0].1 = "3".to_owned(),
                |target| target.headers.truncate(1),
                |target| target.secret_header = None,
                |target| target.secret_header = Some(("authorization".to_owned(), SecretString::from("t"))),
                |target| target.offers.sampling = true,
                |target| target.offers.elicitation = true,
                |target| target.private_to = Some((RunUid(Uuid::nil()), Fence(1))),
            ],
        );
        let mut reordered = over_http();
        reordered.headers.reverse();
        reordered.headers[1].0 = "x-a".to_owned();
        reordered.timeouts.call_ms += 1;
        reordered.timeouts.connect_ms += 1;
        reordered.origin = Some("server/a".to_owned());
        let key = key_of(&acme(), &over_http());
        assert_eq!(
            key_of(&acme(), &reordered),
            key,
            "order, case, time limits and what it was looked up by are no part of it"
        );
    }

    #[test]
    fn every_part_of_a_process_is_part_of_its_identity() {
        type Change = fn(&mut StdioServer);
        let server = || StdioServer {
            name: "files".to_owned(),
            command: "serve-files".to_owned(),
            args: vec!["a".to_owned(), "b".to_owned()],
            env: vec![("TOKEN".to_owned(), SecretString::from("s"))],
            cwd: None,
        };
        let key = |server: StdioServer| {
            let endpoint = Endpoint::Stdio(Arc::new(server));
            key_of(&acme(), &McpTarget { endpoint, headers: vec![], secret_header: None, ..over_http() })
        };
        let changes: [Change; 6] = [
            |server| server.name = "other".to_owned(),
            |server| server.command = "other".to_owned(),
            |server| server.args = vec!["ab".to_owned()],
            |server| server.env[0].0 = "KEY".to_owned(),
            |server| server.env[0].1 = SecretString::from("t"),
            |server| server.cwd = Some("/srv".into()),
        ];
        for (at, change) in changes.into_iter().enumerate() {
            let mut changed = server();
            change(&mut changed);
            assert_ne!(key(changed), key(server()), "{at}");
        }
        assert_eq!(key(server()), key(server()));
    }
}
