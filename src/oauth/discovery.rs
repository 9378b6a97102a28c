//! Finds the token endpoint: named by the entry, or by the metadata of the issuer that the entry names, or of the one
//! that the MCP server names (RFC 9728, RFC 8414, `OpenID` Connect Discovery). Every document must say whose it is.

use http::{Method, header};
use serde_json::{Map, Value, json};
use tokio::time::Instant;
use url::Url;

use super::OauthFault;
use super::exchange::{Exchange, place};
use super::grant::{Grant, SecretOwner};
use crate::net::Challenge;

const SERVER: &str = "the MCP server";
const RESOURCE: &str = "the protected resource metadata";
const ISSUER: &str = "the authorization server metadata";

/// Where a token is asked for, and what for.
#[derive(Clone, Debug)]
pub(super) struct Endpoint {
    pub(super) token_url: Url,
    /// The issuer as it names itself; not known where the entry names the token endpoint alone.
    pub(super) issuer: Option<String>,
    /// What the token is for, as the MCP server names itself.
    pub(super) resource: Option<String>,
    /// The ways to authenticate that the issuer offers; `None`: it does not say.
    pub(super) methods: Option<Vec<String>>,
    pub(super) found: Instant,
}

/// Finds the token endpoint of a grant. `metadata` is where the MCP server said that it describes itself.
pub(super) async fn find(
    exchange: &Exchange,
    grant: &Grant,
    owner: &SecretOwner,
    metadata: Option<&str>,
) -> Result<Endpoint, OauthFault> {
    let endpoint = if let Some(token_url) = &grant.token_url {
        let issuer = grant.issuer.clone();
        Endpoint { token_url: token_url.clone(), issuer, resource: None, methods: None, found: Instant::now() }
    } else if let Some(issuer) = &grant.issuer {
        issuer_endpoint(exchange, issuer).await?
    } else {
        let (resource, issuers) = resource_metadata(exchange, grant, metadata).await?;
        let issuer = choose(grant, owner, &issuers)?;
        Endpoint { resource: Some(resource), ..issuer_endpoint(exchange, &issuer).await? }
    };
    grant.permit(owner, endpoint.issuer.as_deref(), &endpoint.token_url)?;
    Ok(endpoint)
}

/// The first issuer that may have the secret, judged before anything is asked of it.
fn choose(grant: &Grant, owner: &SecretOwner, issuers: &[String]) -> Result<String, OauthFault> {
    let mut refused = None;
    for issuer in issuers {
        let Ok(url) = Url::parse(issuer) else { continue };
        match grant.permit(owner, Some(issuer), &url) {
            Ok(()) => return Ok(issuer.clone()),
            Err(fault) => refused = refused.or(Some(fault)),
        }
    }
    Err(refused.unwrap_or_else(|| OauthFault::Unusable {
        place: place(RESOURCE, &grant.server),
        why: "names no authorization server".to_owned(),
    }))
}

/// What the MCP server calls itself, and the issuers that it names.
async fn resource_metadata(
    exchange: &Exchange,
    grant: &Grant,
    metadata: Option<&str>,
) -> Result<(String, Vec<String>), OauthFault> {
    let named = match metadata {
        Some(metadata) => Some(metadata.to_owned()),
        None => probe(exchange, &grant.server).await?,
    };
    let unusable = |url: &Url, why: &str| OauthFault::Unusable { place: place(RESOURCE, url), why: why.to_owned() };
    let places = match named {
        Some(named) => {
            let url = Url::parse(&named)
                .map_err(|_fault| unusable(&grant.server, "are named by something else than a URL"))?;
            if url.host() != grant.server.host() {
                return Err(unusable(&url, "are on another host than the MCP server"));
            }
            vec![url]
        }
        None => well_known(&grant.server, "oauth-protected-resource"),
    };
    for url in places {
        let Some(document) = exchange.document(RESOURCE, &url).await? else { continue };
        let resource = text(&document, "resource").unwrap_or_default();
        if !is_ours(&resource, &grant.server) {
            return Err(unusable(&url, "are those of another resource than the MCP server"));
        }
        let issuers = document.get("authorization_servers").and_then(Value::as_array);
        let issuers = issuers.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect();
        return Ok((resource, issuers));
    }
    let why = "are nowhere to be found; name the entry's `issuer` or `token_url`";
    Err(unusable(&grant.server, why))
}

/// Asks the MCP server for something without a token: its refusal says where it describes itself.
async fn probe(exchange: &Exchange, server: &Url) -> Result<Option<String>, OauthFault> {
    let ping = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"}).to_string();
    let request = exchange
        .request(SERVER, Method::POST, server)?
        .header(header::ACCEPT, "application/json, text/event-stream")
        .header(header::CONTENT_TYPE, "application/json")
        .body(ping);
    let reply = exchange.head_of(SERVER, server, request).await?;
    Ok(Challenge::of(&reply).and_then(|challenge| challenge.resource_metadata))
}

/// The token endpoint of an issuer, by its own metadata.
async fn issuer_endpoint(exchange: &Exchange, issuer: &str) -> Result<Endpoint, OauthFault> {
    let url = Url::parse(issuer).map_err(|_fault| OauthFault::Unusable {
        place: format!("the authorization server '{issuer}'"),
        why: "is not named by a URL".to_owned(),
    })?;
    let unusable = |why: &str| OauthFault::Unusable { place: place(ISSUER, &url), why: why.to_owned() };
    for place in issuer_places(&url) {
        let Some(document) = exchange.document(ISSUER, &place).await? else { continue };
        let named = text(&document, "issuer").unwrap_or_default();
        if !is_same_issuer(&named, issuer) {
            return Err(unusable("are those of another issuer"));
        }
        let token_url = text(&document, "token_endpoint").and_then(|text| Url::parse(&text).ok());
        let token_url = token_url.ok_or_else(|| unusable("name no token endpoint"))?;
        let methods = document.get("token_endpoint_auth_methods_supported").and_then(Value::as_array);
        let methods = methods.map(|methods| methods.iter().filter_map(Value::as_str).map(str::to_owned).collect());
        return Ok(Endpoint { token_url, issuer: Some(named), resource: None, methods, found: Instant::now() });
    }
    Err(unusable("are nowhere to be found"))
}

fn text(document: &Map<String, Value>, name: &str) -> Option<String> {
    document.get(name).and_then(Value::as_str).map(str::to_owned)
}

/// The places of a well-known document: with the address's path behind it, then without.
fn well_known(url: &Url, name: &str) -> Vec<Url> {
    let path = url.path().trim_end_matches('/');
    let mut paths = vec![format!("/.well-known/{name}{path}")];
    if !path.is_empty() {
        paths.push(format!("/.well-known/{name}"));
    }
    paths.into_iter().map(|path| at(url, &path)).collect()
}

/// RFC 8414 puts the issuer's path behind the well-known part, `OpenID` Connect in front of it; both are in use.
fn issuer_places(issuer: &Url) -> Vec<Url> {
    let path = issuer.path().trim_end_matches('/');
    let mut paths = vec![
        format!("/.well-known/oauth-authorization-server{path}"),
        format!("/.well-known/openid-configuration{path}"),
    ];
    if !path.is_empty() {
        paths.push(format!("{path}/.well-known/openid-configuration"));
    }
    paths.into_iter().map(|path| at(issuer, &path)).collect()
}

fn at(url: &Url, path: &str) -> Url {
    let mut url = url.clone();
    url.set_path(path);
    url.set_query(None);
    url.set_fragment(None);
    url
}

/// Whether a resource's name of itself covers the MCP server's address: the same origin, and its path or one above.
fn is_ours(resource: &str, server: &Url) -> bool {
    let Ok(resource) = Url::parse(resource) else { return false };
    let path = resource.path().trim_end_matches('/');
    let rest = server.path().strip_prefix(path);
    resource.origin() == server.origin()
        && resource.fragment().is_none()
        && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Issuers are compared as text. One difference is let pass: whether a bare origin ends with a slash, which common
/// libraries add when they print the address of another server's issuer.
fn is_same_issuer(named: &str, wanted: &str) -> bool {
    let bare = |text: &str| Url::parse(text).is_ok_and(|url| url.path() == "/" && url.query().is_none());
    let trimmed = |text: &str| text.strip_suffix('/').unwrap_or(text).to_owned();
    named == wanted || (bare(named) && bare(wanted) && trimmed(named) == trimmed(wanted))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn urls(places: Vec<Url>) -> Vec<String> {
        places.into_iter().map(String::from).collect()
    }

    #[test]
    fn documents_are_looked_for_in_the_places_of_the_standards() {
        let server = Url::parse("https://a.example/v1/mcp?key=1").unwrap();
        let wanted = [
            "https://a.example/.well-known/oauth-protected-resource/v1/mcp",
            "https://a.example/.well-known/oauth-protected-resource",
        ];
        assert_eq!(urls(well_known(&server, "oauth-protected-resource")), wanted);
        let issuer = Url::parse("https://i.example/tenant").unwrap();
        let wanted = [
            "https://i.example/.well-known/oauth-authorization-server/tenant",
            "https://i.example/.well-known/openid-configuration/tenant",
            "https://i.example/tenant/.well-known/openid-configuration",
        ];
        assert_eq!(urls(issuer_places(&issuer)), wanted);
        let bare = Url::parse("https://i.example").unwrap();
        let wanted = [
            "https://i.example/.well-known/oauth-authorization-server",
            "https://i.example/.well-known/openid-configuration",
        ];
        assert_eq!(urls(issuer_places(&bare)), wanted);
    }

    #[test]
    fn a_resource_is_ours_by_origin_and_path() {
        let server = Url::parse("https://a.example/v1/mcp").unwrap();
        for (resource, ours) in [
            ("https://a.example/v1/mcp", true),
            ("https://a.example:443/v1/mcp/", true),
            ("https://a.example/v1", true),
            ("https://a.example", true),
            ("https://a.example/v1/mc", false),
            ("https://a.example/v2/mcp", false),
            ("https://a.example/v1/mcp/more", false),
            ("http://a.example/v1/mcp", false),
            ("https://a.example:8443/v1/mcp", false),
            ("https://a.example.evil.example/v1/mcp", false),
            ("https://a.example/v1/mcp#x", false),
            ("mcp", false),
            ("", false),
        ] {
            assert_eq!(is_ours(resource, &server), ours, "{resource}");
        }
    }

    #[test]
    fn issuers_are_compared_as_text() {
        assert!(is_same_issuer("https://i.example/a", "https://i.example/a"));
        assert!(is_same_issuer("https://i.example", "https://i.example/"));
        assert!(is_same_issuer("https://i.example/", "https://i.example"));
        for (named, wanted) in [
            ("https://i.example/a/", "https://i.example/a"),
            ("https://I.example", "https://i.example"),
            ("https://i.example:443", "https://i.example"),
            ("https://i.example/b", "https://i.example/a"),
            ("", "https://i.example"),
        ] {
            assert!(!is_same_issuer(named, wanted), "{named} {wanted}");
        }
    }
}
