//! What a token is asked for, with which secret, and where that secret may go.

use std::fmt;

use aws_lc_rs::digest;
use secrecy::SecretString;
use url::Url;

use super::OauthFault;
use crate::run::credential::{ClientAuthMethod, McpAuth, SigningAlgorithm};
use crate::run::ids::{RunUid, TenantId};
use crate::secrets::hosts;

/// A client credentials grant for one MCP server.
#[derive(Clone, Debug)]
pub struct Grant {
    /// The MCP server.
    pub(super) server: Url,
    pub(super) client_id: String,
    /// The issuer that the entry names.
    pub(super) issuer: Option<String>,
    /// The token endpoint that the entry names.
    pub(super) token_url: Option<Url>,
    pub(super) method: Option<ClientAuthMethod>,
    pub(super) algorithm: Option<SigningAlgorithm>,
    pub(super) key_id: Option<String>,
    pub(super) scopes: Vec<String>,
    pub(super) resource: Option<String>,
    pub(super) audience: Option<String>,
}

impl Grant {
    /// The grant that an entry's auth describes; `None` for one that needs no token.
    ///
    /// # Errors
    /// `Unusable` when an address does not read.
    pub fn of(server: &Url, auth: &McpAuth) -> Result<Option<Self>, OauthFault> {
        let McpAuth::OauthClientCredentials {
            client_id,
            secret: _,
            issuer,
            token_url,
            method,
            algorithm,
            key_id,
            scopes,
            resource,
            audience,
        } = auth
        else {
            return Ok(None);
        };
        let token_url = token_url.as_deref().map(Url::parse).transpose().map_err(|fault| OauthFault::Unusable {
            place: "the token endpoint".to_owned(),
            why: format!("is not a URL: {fault}"),
        })?;
        Ok(Some(Self {
            server: server.clone(),
            client_id: client_id.clone(),
            issuer: issuer.clone(),
            token_url,
            method: *method,
            algorithm: *algorithm,
            key_id: key_id.clone(),
            scopes: scopes.clone(),
            resource: resource.clone(),
            audience: audience.clone(),
        }))
    }

    /// Whether the secret may be sent to that token endpoint of that issuer.
    ///
    /// # Errors
    /// `NotAllowed` with the reason.
    pub(super) fn permit(&self, owner: &SecretOwner, issuer: Option<&str>, token_url: &Url) -> Result<(), OauthFault> {
        if self.server.scheme() == "https" && token_url.scheme() != "https" {
            return refuse(format!("the token endpoint {} is not https", token_url.origin().ascii_serialization()));
        }
        let issuer_url = issuer.and_then(|issuer| Url::parse(issuer).ok());
        match owner {
            SecretOwner::Run(_) => {
                let is_named = self.token_url.is_some() || self.issuer.is_some();
                let is_own = |url: &Url| url.host().is_some() && url.host() == self.server.host();
                if is_named || (is_own(token_url) && issuer_url.as_ref().is_some_and(is_own)) {
                    return Ok(());
                }
                let issuer = issuer.unwrap_or_default();
                refuse(format!(
                    "the MCP server names the authorization server '{issuer}' on another host; to trust it, name it \
                     as the entry's `issuer`"
                ))
            }
            SecretOwner::Tenant { hosts, .. } => {
                let all = [Some(&self.server), Some(token_url), issuer_url.as_ref()].into_iter().flatten();
                let missing = all.filter(|url| !hosts::include(hosts, url)).find_map(Url::host_str);
                match missing {
                    None => Ok(()),
                    Some(host) => refuse(format!("its hosts do not include '{host}'")),
                }
            }
        }
    }

    /// The digest of everything that a token of this grant depends on, but for the secret's value.
    pub(super) fn identity(&self, tenant: &TenantId, secret: &ClientSecret) -> [u8; 32] {
        let mut context = digest::Context::new(&digest::SHA256);
        let mut add = |part: &str| {
            // The length in front keeps two neighbours from running into each other.
            context.update(&part.len().to_be_bytes());
            context.update(part.as_bytes());
        };
        add(tenant.as_str());
        match &secret.owner {
            SecretOwner::Run(uid) => add(&format!("run {}", uid.0)),
            SecretOwner::Tenant { version, .. } => add(&format!("version {version}")),
        }
        add(&secret.name);
        add(self.server.as_str());
        add(&self.client_id);
        add(self.token_url.as_ref().map_or("", Url::as_str));
        add(&format!("{:?} {:?}", self.method, self.algorithm));
        for part in [&self.issuer, &self.key_id, &self.resource, &self.audience] {
            add(if part.is_some() { "+" } else { "-" });
            add(part.as_deref().unwrap_or_default());
        }
        self.scopes.iter().for_each(|scope| add(scope));
        let mut identity = [0; 32];
        identity.copy_from_slice(context.finish().as_ref());
        identity
    }
}

fn refuse(why: String) -> Result<(), OauthFault> {
    Err(OauthFault::NotAllowed(why))
}

/// The secret of a client, opened.
#[derive(Clone)]
pub struct ClientSecret {
    /// The caller's name of it.
    pub name: String,
    /// Its value: a client secret, or a private key in PEM.
    pub value: SecretString,
    /// Whose it is.
    pub owner: SecretOwner,
}

impl fmt::Debug for ClientSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientSecret").field("name", &self.name).field("owner", &self.owner).finish_non_exhaustive()
    }
}

/// Whose secret it is: that decides where it may go, and who may share the token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretOwner {
    /// A run's own: its token is nobody else's, and is never stored.
    Run(RunUid),
    /// A tenant's stored one.
    Tenant {
        /// When this version of it was put, in milliseconds: another put is another secret.
        version: i64,
        /// The only hosts that it, and what it buys, may be sent to: `host` or `host:port`.
        hosts: Vec<String>,
    },
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use uuid::Uuid;

    use super::*;

    fn grant(server: &str, more: &Value) -> Grant {
        let mut auth = json!({"scheme": "oauth-client-credentials", "client_id": "svc", "secret": "s"});
        auth.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        Grant::of(&server.parse().unwrap(), &serde_json::from_value(auth).unwrap()).unwrap().unwrap()
    }

    #[test]
    fn a_runs_secret_goes_to_whom_the_entry_names_or_stays_on_the_servers_host() {
        let run = SecretOwner::Run(RunUid(Uuid::nil()));
        let permits = |server: &str, more: Value, issuer: &str, token_url: &str| {
            grant(server, &more).permit(&run, Some(issuer), &token_url.parse().unwrap()).is_ok()
        };
        let (mcp, own, other) = ("https://a.example/mcp", "https://a.example/auth", "https://b.example/auth");
        let (at_own, at_other) = ("https://a.example:8443/token", "https://b.example/token");
        assert!(permits(mcp, json!({}), own, at_own));
        assert!(!permits(mcp, json!({}), other, at_other));
        assert!(!permits(mcp, json!({}), own, at_other), "also not by way of its own issuer");
        assert!(!permits(mcp, json!({}), other, at_own), "nor as somebody else's client");
        assert!(permits(mcp, json!({"issuer": other}), other, at_other));
        assert!(permits(mcp, json!({"token_url": at_other}), other, at_other));
        assert!(!permits(mcp, json!({"issuer": other}), other, "http://b.example/token"), "never without TLS");
    }

    #[test]
    fn a_stored_secret_and_what_it_buys_stay_on_its_hosts() {
        let permits = |hosts: &[&str], issuer: Option<&str>| {
            let hosts = hosts.iter().map(|host| (*host).to_owned()).collect();
            let owner = SecretOwner::Tenant { version: 1, hosts };
            let token_url = "https://login.example/token".parse().unwrap();
            grant("https://a.example/mcp", &json!({})).permit(&owner, issuer, &token_url).is_ok()
        };
        assert!(permits(&["a.example", "login.example:443"], None));
        assert!(!permits(&["login.example"], None), "the token would go to a host that the secret may not see");
        assert!(!permits(&["a.example"], None));
        assert!(!permits(&["a.example", "login.example"], Some("https://c.example")));
    }

    #[test]
    fn every_part_of_the_grant_and_its_secret_is_part_of_the_identity() {
        let secret = |name: &str, owner| ClientSecret { name: name.to_owned(), value: "v".into(), owner };
        let stored = |version| SecretOwner::Tenant { version, hosts: vec![] };
        let acme = TenantId::parse("acme").unwrap();
        let base = grant("https://a.example/mcp", &json!({}));
        let identity = base.identity(&acme, &secret("s", stored(1)));
        let mut all = vec![
            identity,
            base.identity(&TenantId::parse("acmf").unwrap(), &secret("s", stored(1))),
            base.identity(&acme, &secret("t", stored(1))),
            base.identity(&acme, &secret("s", stored(2))),
            base.identity(&acme, &secret("s", SecretOwner::Run(RunUid(Uuid::from_u128(1))))),
            base.identity(&acme, &secret("s", SecretOwner::Run(RunUid(Uuid::from_u128(2))))),
            grant("https://b.example/mcp", &json!({})).identity(&acme, &secret("s", stored(1))),
        ];
        for more in [
            json!({"client_id": "svd"}),
            json!({"issuer": "https://i.example"}),
            json!({"token_url": "https://i.example"}),
            json!({"method": "client-secret-post"}),
            json!({"algorithm": "ES256"}),
            json!({"key_id": "k"}),
            json!({"scopes": ["a b"]}),
            json!({"scopes": ["a", "b"]}),
            json!({"resource": "urn:k"}),
            json!({"audience": "urn:k"}),
        ] {
            all.push(grant("https://a.example/mcp", &more).identity(&acme, &secret("s", stored(1))));
        }
        let distinct: std::collections::HashSet<_> = all.iter().collect();
        assert_eq!(distinct.len(), all.len());
        assert_eq!(base.identity(&acme, &secret("s", stored(1))), identity);
    }
}
