//! One MCP entry of a request, checked.

use std::collections::BTreeMap;

use super::faults::Faults;
use super::request::EntryRequest;
use crate::run::spec::{ClientAuthMethod, McpAuth, McpEntry, repeats_what_cannot_be_undone};
use crate::run::tighten::Beside;

/// Header fields that belong to the transport, to the credential, or to hop-by-hop handling.
const RESERVED_HEADERS: [&str; 16] = [
    "accept",
    "authorization",
    "connection",
    "content-length",
    "content-type",
    "cookie",
    "host",
    "idempotency-key",
    "keep-alive",
    "last-event-id",
    "proxy-authorization",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "proxy-connection",
];

/// An entry that says where its server is.
pub(super) fn check(request: EntryRequest, at: &str, faults: &mut Faults) -> Option<McpEntry> {
    check_common(&request, at, faults);
    check_headers(request.headers.as_ref(), at, faults);
    if let Some(auth) = &request.auth {
        check_auth(auth, &format!("{at}/auth"), faults);
    }
    let contradicts = repeats_what_cannot_be_undone(request.replay.as_ref(), request.side_effect_class.as_ref());
    faults.require(!contradicts, &format!("{at}/replay"), "an irreversible action cannot be declared repeatable");
    if request.url.is_none() {
        faults.add(format!("{at}/url"), "is required, or `server`");
        return None;
    }
    Some(McpEntry {
        server: request.server,
        url: request.url,
        namespace: request.namespace,
        auth: request.auth,
        headers: request.headers.unwrap_or_default(),
        tools: request.tools,
        input_schemas: request.input_schemas.unwrap_or_default(),
        replay: request.replay,
        side_effect_class: request.side_effect_class,
        trust_annotations: request.trust_annotations.unwrap_or(false),
        require_approval: request.require_approval,
        own_class: None,
        policies: Vec::new(),
        required: request.required.unwrap_or(true),
        timeouts: request.timeouts.unwrap_or_default().or_default(),
        elicitation: request.elicitation.unwrap_or_default(),
        sampling: request.sampling.map(Box::new),
    })
}

/// What stands beside the name of a registered server.
pub(super) fn beside(request: EntryRequest, at: &str, faults: &mut Faults) -> Beside {
    const FIXED: &str = "cannot stand beside `server`: it is as registered";
    check_common(&request, at, faults);
    faults.require(request.url.is_none(), &format!("{at}/url"), FIXED);
    faults.require(request.auth.is_none(), &format!("{at}/auth"), FIXED);
    faults.require(request.headers.is_none(), &format!("{at}/headers"), FIXED);
    faults.require(request.sampling.is_none(), &format!("{at}/sampling"), FIXED);
    let timeouts = request.timeouts.unwrap_or_default();
    Beside {
        namespace: request.namespace,
        tools: request.tools,
        input_schemas: request.input_schemas.unwrap_or_default(),
        replay: request.replay,
        side_effect_class: request.side_effect_class,
        trust_annotations: request.trust_annotations,
        required: request.required,
        elicitation: request.elicitation,
        require_approval: request.require_approval,
        connect_ms: timeouts.connect_ms,
        call_ms: timeouts.call_ms,
        call_total_ms: timeouts.call_total_ms,
    }
}

/// What holds of every entry.
fn check_common(request: &EntryRequest, at: &str, faults: &mut Faults) {
    if let Some(namespace) = &request.namespace {
        let fits =
            (1..=32).contains(&namespace.len()) && namespace.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
        faults.require(fits, &format!("{at}/namespace"), "must match [A-Za-z0-9-]{1,32}");
    }
}

fn check_auth(auth: &McpAuth, at: &str, faults: &mut Faults) {
    match auth {
        McpAuth::Bearer { .. } => {}
        McpAuth::Header { header, .. } => {
            let known = header.eq_ignore_ascii_case("authorization") || is_free_header(header);
            faults.require(known, &format!("{at}/header"), "is not a header that an entry may set");
        }
        McpAuth::OauthClientCredentials {
            client_id,
            issuer,
            method,
            algorithm,
            key_id,
            scopes,
            resource,
            audience,
            ..
        } => {
            let is_text =
                |text: &str, max: usize| !text.is_empty() && text.len() <= max && !text.chars().any(char::is_control);
            faults.require(is_text(client_id, 500), &format!("{at}/client_id"), "must have 1 to 500 characters");
            let key_fits = key_id.as_deref().is_none_or(|id| is_text(id, 500));
            faults.require(key_fits, &format!("{at}/key_id"), "must have 1 to 500 characters");
            let audience_fits = audience.as_deref().is_none_or(|name| is_text(name, 2000));
            faults.require(audience_fits, &format!("{at}/audience"), "must have 1 to 2000 characters");
            let resource_fits = resource.as_deref().is_none_or(is_plain_uri);
            faults.require(resource_fits, &format!("{at}/resource"), "must be an absolute URI without a fragment");
            let issuer_fits = issuer.as_deref().is_none_or(|issuer| !issuer.contains(['?', '#']));
            faults.require(issuer_fits, &format!("{at}/issuer"), "must have neither query nor fragment");
            for (index, scope) in scopes.iter().enumerate() {
                // RFC 6749, 3.3: printable ASCII but for blank, quote and backslash.
                let fits =
                    !scope.is_empty() && scope.bytes().all(|b| b.is_ascii_graphic() && !matches!(b, b'"' | b'\\'));
                faults.require(fits, &format!("{at}/scopes/{index}"), "is not an OAuth scope");
            }
            let signs =
                !matches!(method, Some(ClientAuthMethod::ClientSecretBasic | ClientAuthMethod::ClientSecretPost));
            let detail = "has a meaning with \"private-key-jwt\" only";
            faults.require(signs || algorithm.is_none(), &format!("{at}/algorithm"), detail);
            faults.require(signs || key_id.is_none(), &format!("{at}/key_id"), detail);
        }
    }
}

fn is_plain_uri(text: &str) -> bool {
    text.len() <= 2000 && url::Url::parse(text).is_ok_and(|url| url.fragment().is_none())
}

/// Header fields of any entry.
fn check_headers(headers: Option<&BTreeMap<String, String>>, at: &str, faults: &mut Faults) {
    for (name, value) in headers.into_iter().flatten() {
        let pointer = format!("{at}/headers/{name}");
        faults.require(is_free_header(name), &pointer, "is not a header that an entry may set");
        let fits = http::HeaderValue::from_str(value).is_ok();
        faults.require(fits, &pointer, "is not a header value");
    }
}

fn is_free_header(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    http::HeaderName::from_bytes(lower.as_bytes()).is_ok()
        && !RESERVED_HEADERS.contains(&lower.as_str())
        && !lower.starts_with("mcp-")
}

/// `[a-z][a-z0-9-]{0,31}`.
pub(super) fn is_server_name(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_lowercase())
        && name.len() <= 32
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
}
