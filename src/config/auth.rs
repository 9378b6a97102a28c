//! How tokens are judged: a shared secret, or the issuer's keys.

use std::path::PathBuf;

use secrecy::SecretString;
use url::Url;

use super::reader::Reader;
use super::{JWKS_FILE, JWKS_URL, JWT_AUDIENCE, JWT_HS256_SECRET, JWT_ISSUER, JWT_TENANT_CLAIM, SECRET_MIN};
use crate::auth::{AuthSettings, JwksSource};

pub(super) fn auth(reader: &mut Reader<'_>) -> Option<AuthSettings> {
    let before = reader.faults.len();
    let hs256 = reader.text(&JWT_HS256_SECRET);
    if let Some(secret) = &hs256
        && secret.len() < SECRET_MIN
    {
        reader.fault(&JWT_HS256_SECRET, format!("is weak: {SECRET_MIN} bytes or more are needed"));
    }
    let jwks = match (reader.text(&JWKS_URL), reader.text(&JWKS_FILE)) {
        (Some(_), Some(_)) => {
            reader.fault(&JWKS_FILE, format!("cannot stand beside {}", JWKS_URL.name));
            None
        }
        (Some(url), None) => jwks_url(reader, &url).map(JwksSource::Url),
        (None, Some(path)) => Some(JwksSource::File(PathBuf::from(path))),
        (None, None) => None,
    };
    if hs256.is_none() && jwks.is_none() && reader.faults.len() == before {
        let detail = format!("is not set, and neither is {} or {}", JWKS_URL.name, JWKS_FILE.name);
        reader.fault(&JWT_HS256_SECRET, detail);
    }
    let issuer = reader.required(&JWT_ISSUER);
    let audience = reader.required(&JWT_AUDIENCE);
    let tenant_claim = reader.required(&JWT_TENANT_CLAIM);
    if reader.faults.len() > before {
        return None;
    }
    Some(AuthSettings { hs256: hs256.map(SecretString::from), jwks, issuer, audience, tenant_claim: tenant_claim? })
}

fn jwks_url(reader: &mut Reader<'_>, text: &str) -> Option<Url> {
    let url = Url::parse(text).ok().filter(|url| matches!(url.scheme(), "https" | "http") && url.has_host());
    if url.is_none() {
        reader.fault(&JWKS_URL, "is not an https address");
    }
    url
}
