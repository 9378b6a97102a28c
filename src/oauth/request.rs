//! The request to the token endpoint (RFC 6749, 4.4), and what its answer means.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderValue, Method, StatusCode, header};
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::{Map, Value};
use url::Url;
use url::form_urlencoded::{Serializer, byte_serialize};
use uuid::Uuid;

use super::OauthFault;
use super::assertion::{is_private_key, sign};
use super::discovery::Endpoint;
use super::exchange::{Exchange, Reply, place, unreachable};
use super::grant::{ClientSecret, Grant};
use crate::run::credential::ClientAuthMethod;
use crate::run::time::Timestamp;

const TOKEN: &str = "the token endpoint";
const ASSERTION_TYPE: &str = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer";
/// A token whose server does not say how long it is good is asked for anew after that time.
const DEFAULT_TTL: Duration = Duration::from_hours(1);
/// No token is kept for longer.
const TTL_MAX: Duration = Duration::from_hours(24);
/// Longest access token, in bytes; it goes into a header.
const TOKEN_MAX: usize = 32 * 1024;

/// A token as the authorization server gave it.
pub(super) struct Granted {
    pub(super) value: SecretString,
    pub(super) lives: Duration,
}

/// Asks for a token. The stamp's time and id go into an assertion.
pub(super) async fn ask(
    exchange: &Exchange,
    grant: &Grant,
    secret: &ClientSecret,
    endpoint: &Endpoint,
    stamp: (Timestamp, Uuid),
) -> Result<Granted, OauthFault> {
    let url = &endpoint.token_url;
    let request = written(exchange.request(TOKEN, Method::POST, url)?, grant, secret, endpoint, stamp)?;
    read(url, &exchange.send(TOKEN, url, request).await?)
}

/// The request with its form, and whatever shows who the client is.
fn written(
    mut request: reqwest::RequestBuilder,
    grant: &Grant,
    secret: &ClientSecret,
    endpoint: &Endpoint,
    (now, id): (Timestamp, Uuid),
) -> Result<reqwest::RequestBuilder, OauthFault> {
    let mut form = Serializer::new(String::new());
    form.append_pair("grant_type", "client_credentials");
    if !grant.scopes.is_empty() {
        form.append_pair("scope", &grant.scopes.join(" "));
    }
    if let Some(resource) = resource(grant, endpoint) {
        form.append_pair("resource", &resource);
    }
    if let Some(audience) = &grant.audience {
        form.append_pair("audience", audience);
    }
    match method(grant, secret, endpoint)? {
        ClientAuthMethod::ClientSecretBasic => {
            request = request.header(header::AUTHORIZATION, basic(grant, secret));
        }
        ClientAuthMethod::ClientSecretPost => {
            form.append_pair("client_id", &grant.client_id);
            form.append_pair("client_secret", secret.value.expose_secret());
        }
        ClientAuthMethod::PrivateKeyJwt => {
            let audience = endpoint.issuer.as_deref().unwrap_or(endpoint.token_url.as_str());
            let assertion = sign(grant, &secret.value, audience, now, id)?;
            form.append_pair("client_id", &grant.client_id);
            form.append_pair("client_assertion_type", ASSERTION_TYPE);
            form.append_pair("client_assertion", assertion.expose_secret());
        }
    }
    Ok(request.header(header::CONTENT_TYPE, "application/x-www-form-urlencoded").body(form.finish()))
}

/// What the token is for: as the entry says, else as the MCP server names itself, else its address.
fn resource(grant: &Grant, endpoint: &Endpoint) -> Option<String> {
    let own = || {
        let mut url = grant.server.clone();
        url.set_query(None);
        url.set_fragment(None);
        let text = String::from(url);
        // The canonical form of a bare origin has no slash.
        if grant.server.path() == "/" { text.trim_end_matches('/').to_owned() } else { text }
    };
    match (&grant.resource, &grant.audience) {
        (Some(resource), _) => Some(resource.clone()),
        (None, Some(_)) => None,
        (None, None) => Some(endpoint.resource.clone().unwrap_or_else(own)),
    }
}

/// A private key is never sent, whatever the entry says.
fn method(grant: &Grant, secret: &ClientSecret, endpoint: &Endpoint) -> Result<ClientAuthMethod, OauthFault> {
    let offers = |name: &str| endpoint.methods.as_ref().is_none_or(|methods| methods.iter().any(|each| each == name));
    match (grant.method, is_private_key(&secret.value)) {
        (None | Some(ClientAuthMethod::PrivateKeyJwt), true) => Ok(ClientAuthMethod::PrivateKeyJwt),
        (Some(ClientAuthMethod::ClientSecretBasic | ClientAuthMethod::ClientSecretPost), true) => {
            Err(OauthFault::NotAllowed("it is a private key, which only signs".to_owned()))
        }
        (Some(ClientAuthMethod::PrivateKeyJwt), false) => {
            Err(OauthFault::Key("it is no private key in PEM form (PKCS#8)"))
        }
        (Some(method), false) => Ok(method),
        (None, false) if !offers("client_secret_basic") && offers("client_secret_post") => {
            Ok(ClientAuthMethod::ClientSecretPost)
        }
        (None, false) => Ok(ClientAuthMethod::ClientSecretBasic),
    }
}

/// RFC 6749, 2.3.1: both parts are form-encoded first.
fn basic(grant: &Grant, secret: &ClientSecret) -> HeaderValue {
    let encoded = |text: &str| byte_serialize(text.as_bytes()).collect::<String>();
    let pair = format!("{}:{}", encoded(&grant.client_id), encoded(secret.value.expose_secret()));
    let mut value = HeaderValue::try_from(format!("Basic {}", STANDARD.encode(pair)))
        .unwrap_or_else(|_base64_is_ascii| HeaderValue::from_static("Basic"));
    value.set_sensitive(true);
    value
}

fn read(url: &Url, reply: &Reply) -> Result<Granted, OauthFault> {
    let unusable = |why: &str| OauthFault::Unusable { place: place(TOKEN, url), why: why.to_owned() };
    let answer = reply.object();
    if reply.status != StatusCode::OK {
        return Err(match answer.as_ref().and_then(error_code) {
            Some(code) => OauthFault::Refused { place: place(TOKEN, url), code },
            None => unreachable(TOKEN, url, format!("HTTP {}", reply.status.as_u16())),
        });
    }
    let answer = answer.ok_or_else(|| unusable("answered with something else than a JSON object"))?;
    if let Some(code) = error_code(&answer) {
        return Err(OauthFault::Refused { place: place(TOKEN, url), code });
    }
    let kind = answer.get("token_type").and_then(Value::as_str).unwrap_or_default();
    if !kind.eq_ignore_ascii_case("bearer") {
        return Err(unusable("gave a token that is no bearer token"));
    }
    let token = answer.get("access_token").and_then(Value::as_str).unwrap_or_default();
    let fits = (1..=TOKEN_MAX).contains(&token.len()) && token.bytes().all(|byte| byte.is_ascii_graphic());
    if !fits {
        return Err(unusable("gave no access token that a header can carry"));
    }
    Ok(Granted { value: SecretString::from(token), lives: lives(&answer) })
}

/// Some servers write the number as text, some leave it out.
fn lives(answer: &Map<String, Value>) -> Duration {
    let seconds = match answer.get("expires_in") {
        Some(Value::Number(seconds)) => seconds.as_u64().or_else(|| seconds.as_f64().map(|_| 1)),
        Some(Value::String(seconds)) => seconds.trim().parse().ok(),
        _ => None,
    };
    seconds.map_or(DEFAULT_TTL, Duration::from_secs).clamp(Duration::from_secs(1), TTL_MAX)
}

/// The error's code, where it reads like one. Its description is not told: it may quote what was sent.
fn error_code(answer: &Map<String, Value>) -> Option<String> {
    let code = answer.get("error")?.as_str()?;
    let fits = (1..=64).contains(&code.len()) && code.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
    Some(if fits { code.to_owned() } else { "an error without a code".to_owned() })
}
