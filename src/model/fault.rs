//! Says what a failed request means: ask again (and when), too long, or refused. Every failure of every provider is
//! classified here, once. Texts that leave this file hold no key and no query string.

use std::error::Error as _;
use std::time::Duration;

use chrono::DateTime;
use http::{HeaderMap, StatusCode, header};
use rig_core::error::ProviderError;
use rig_core::http_client;
use secrecy::SecretString;
use serde_json::Value;

use super::transport::TooLong;
use super::{ModelError, ModelErrorKind};
use crate::net::EgressRefusal;
use crate::secrets::Redactor;

/// The most characters of a provider's own words that are kept.
const MAX_TEXT: usize = 600;

/// How providers say that a prompt is too long, in lower case, where no code says it.
const OVERFLOW_TEXTS: [&str; 8] = [
    "prompt is too long",
    "maximum context length",
    "context window",
    "context limit",
    "context size",
    "context length",
    "maximum number of tokens",
    "input is too long",
];

/// The status that an error type or code stands for, where the error came without one: inside a stream, or with 200.
const NAMED: [(&str, u16); 22] = [
    ("invalid_request_error", 400),
    ("invalid_request", 400),
    ("authentication_error", 401),
    ("invalid_api_key", 401),
    ("billing_error", 402),
    ("insufficient_quota", 402),
    ("permission_error", 403),
    ("not_found_error", 404),
    ("model_not_found", 404),
    ("request_too_large", 413),
    ("context_length_exceeded", 413),
    ("exceed_context_size_error", 413),
    ("rate_limit_error", 429),
    ("rate_limit_exceeded", 429),
    ("api_error", 500),
    ("server_error", 500),
    ("internal_error", 500),
    ("internal_server_error", 500),
    ("service_unavailable", 503),
    ("timeout_error", 504),
    ("overloaded_error", 529),
    ("overloaded", 529),
];

/// What a status means when nothing more is known. `408`, `409` (a lock of the provider's), `425`, `429` and every
/// server error pass; `413` says that the prompt is too long.
pub(super) fn kind_of_status(status: u16, after: Option<Duration>) -> ModelErrorKind {
    match status {
        408 | 409 | 425 | 429 | 500..=599 => ModelErrorKind::Retryable { after },
        413 => ModelErrorKind::ContextOverflow,
        _ => ModelErrorKind::Refused,
    }
}

/// A status with its usual words.
pub(super) fn status_text(status: u16) -> String {
    let reason = StatusCode::from_u16(status).ok().and_then(|status| status.canonical_reason());
    reason.map_or_else(|| status.to_string(), |reason| format!("{status} {reason}"))
}

/// A stream that ended before the provider ended its turn.
pub(super) fn cut_off(how: &str) -> ModelError {
    let message = format!("the answer was cut off: {how}");
    ModelError { kind: ModelErrorKind::Retryable { after: None }, message, may_cost: true }
}

/// A request that cannot be made at all.
pub(super) fn refused(message: impl Into<String>) -> ModelError {
    ModelError { kind: ModelErrorKind::Refused, message: message.into(), may_cost: false }
}

/// Turns what the library reports into our error.
pub(super) fn classify(error: &ProviderError, secret: Option<&SecretString>) -> ModelError {
    let mut fault = if let Some(response) = error.provider_response() {
        answered(response.status.map(|status| status.as_u16()), response.headers.as_ref(), &response.body)
    } else {
        unanswered(error)
    };
    fault.message = clean(&fault.message, secret);
    fault
}

/// Failures without an error answer of the provider.
fn unanswered(error: &ProviderError) -> ModelError {
    match error {
        ProviderError::Http(error) => transport(error),
        ProviderError::Truncated => cut_off("the stream ended before the turn did"),
        ProviderError::Json(fault) => cut_off(&format!("the stream held a piece that is not JSON: {fault}")),
        ProviderError::Response(fault) | ProviderError::Provider(fault) => cut_off(fault),
        other => refused(other.to_string()),
    }
}

fn transport(error: &http_client::Error) -> ModelError {
    let retryable = ModelErrorKind::Retryable { after: None };
    let http_client::Error::Instance(source) = error else {
        return match error {
            http_client::Error::StreamEnded => cut_off("the stream ended before the turn did"),
            other => refused(other.to_string()),
        };
    };
    if let Some(long) = source.downcast_ref::<TooLong>() {
        return ModelError { may_cost: true, ..refused(long.to_string()) };
    }
    if let Some(refusal) = source.downcast_ref::<EgressRefusal>() {
        return refused(format!("the model's base_url may not be dialled: {refusal}"));
    }
    let Some(fault) = source.downcast_ref::<reqwest::Error>() else {
        return ModelError { kind: retryable, message: source.to_string(), may_cost: true };
    };
    let (kind, what) = if fault.is_builder() || fault.is_redirect() {
        (ModelErrorKind::Refused, "the request could not be made")
    } else if fault.is_connect() {
        (retryable, "the provider could not be reached")
    } else if fault.is_timeout() {
        (retryable, "the provider did not answer in time")
    } else if fault.is_body() || fault.is_decode() {
        (retryable, "the answer was cut off: the connection broke")
    } else {
        (retryable, "the connection to the provider broke")
    };
    let may_cost = !(fault.is_builder() || fault.is_redirect() || fault.is_connect());
    ModelError { kind, message: format!("{what}: {}", deepest(fault)), may_cost }
}

/// The innermost cause, which says what really happened.
fn deepest(error: &reqwest::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text = cause.to_string();
        next = cause.source();
    }
    text
}

/// What a provider says in an error answer.
#[derive(Debug, Default)]
struct Said {
    message: Option<String>,
    names: Vec<String>,
    number: Option<u16>,
}

impl Said {
    /// Reads `{"error": {…}}`, `{"error": "…"}`, `{"message": …}` and `{"detail": …}`; every provider has its own.
    fn read(body: &str) -> Self {
        let Ok(Value::Object(outer)) = serde_json::from_str::<Value>(body) else {
            return Self::default();
        };
        let inner = match outer.get("error") {
            Some(Value::Object(inner)) => inner,
            Some(Value::String(text)) => return Self { message: Some(text.clone()), ..Self::default() },
            _ => &outer,
        };
        let text = |key: &str| inner.get(key).and_then(Value::as_str).map(str::to_owned);
        let number = ["code", "status", "status_code"].iter().find_map(|key| inner.get(*key)?.as_u64());
        Self {
            message: text("message").or_else(|| text("detail")),
            names: ["code", "type", "status"].into_iter().filter_map(text).collect(),
            number: number.and_then(|number| u16::try_from(number).ok()).filter(|code| (400..600).contains(code)),
        }
    }

    /// The status that the body itself names.
    fn status(&self) -> Option<u16> {
        let named = |name: &String| NAMED.iter().find(|(known, _)| known == name).map(|(_, status)| *status);
        self.number.or_else(|| self.names.iter().find_map(named))
    }

    fn says_too_long(&self) -> bool {
        let named = |name: &String| matches!(name.as_str(), "context_length_exceeded" | "exceed_context_size_error");
        let text = self.message.as_deref().unwrap_or_default().to_ascii_lowercase();
        self.names.iter().any(named) || OVERFLOW_TEXTS.iter().any(|known| text.contains(known))
    }
}

/// An error answer: a failed status, an error inside the stream (no status), or an error with 200.
fn answered(status: Option<u16>, headers: Option<&HeaderMap>, body: &str) -> ModelError {
    let said = Said::read(body);
    let failed = status.filter(|status| !(200..300).contains(status));
    let after = headers.and_then(retry_after);
    let kind = match failed.or_else(|| said.status()) {
        Some(400 | 404 | 413 | 422) | None if said.says_too_long() => ModelErrorKind::ContextOverflow,
        Some(status) => kind_of_status(status, after),
        // A stream that breaks off with an error of no known kind, or a 200 that says "error": the provider's trouble.
        None if status.is_none() || is_error(body) => ModelErrorKind::Retryable { after },
        None => ModelErrorKind::Refused,
    };
    let what = match status {
        None => "the provider broke the answer off with an error".to_owned(),
        Some(code) if failed.is_some() => format!("the provider answered {}", status_text(code)),
        Some(code) if is_error(body) => format!("the provider answered {} with an error", status_text(code)),
        Some(code) => format!("the provider answered {} with something that is no event stream", status_text(code)),
    };
    let words = said.message.unwrap_or_else(|| plain(body));
    let message = if words.is_empty() { what } else { format!("{what}: {words}") };
    // An error answers the request instead of a turn, unless it broke one off, or a gateway gave up waiting for one.
    let may_cost = match failed {
        Some(status) => matches!(status, 408 | 504 | 524),
        None => status.is_none() || !is_error(body),
    };
    ModelError { kind, message, may_cost }
}

fn is_error(body: &str) -> bool {
    serde_json::from_str::<Value>(body).is_ok_and(|value| value.get("error").is_some_and(|error| !error.is_null()))
}

/// A body without structure; a web page says nothing that helps.
fn plain(body: &str) -> String {
    let body = body.trim();
    if body.starts_with('<') { String::new() } else { body.to_owned() }
}

/// `Retry-After` in seconds or as a date (RFC 9110, 10.2.3), or the more exact `retry-after-ms` of some providers. A
/// date is measured against the answer's own `Date`, so that no clock of ours has to agree with the provider's.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    let number = |name: &str| text(name).and_then(|text| text.parse::<f64>().ok());
    if let Some(millis) = number("retry-after-ms") {
        return Duration::try_from_secs_f64(millis / 1000.0).ok();
    }
    if let Some(seconds) = number(header::RETRY_AFTER.as_str()) {
        return Duration::try_from_secs_f64(seconds).ok();
    }
    let at = DateTime::parse_from_rfc2822(text(header::RETRY_AFTER.as_str())?).ok()?;
    let now = DateTime::parse_from_rfc2822(text(header::DATE.as_str())?).ok()?;
    Some((at - now).to_std().unwrap_or(Duration::ZERO))
}

/// Takes the key and the query strings of addresses out of a text, and bounds it.
fn clean(text: &str, secret: Option<&SecretString>) -> String {
    let told = Redactor::of_at_least(1, secret);
    // An error's body is read up to a limit, which may stand in the middle of the key.
    let text = told.torn(text);
    let words: Vec<&str> = text.split_whitespace().map(without_query).collect();
    told.cut(&words.join(" "), MAX_TEXT)
}

/// An address without what follows its `?`; other words as they are.
fn without_query(word: &str) -> &str {
    match word.split_once('?') {
        Some((address, _)) if address.contains("://") => address,
        _ => word,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RETRYABLE: ModelErrorKind = ModelErrorKind::Retryable { after: None };

    #[track_caller]
    fn check(status: Option<u16>, body: &str, kind: ModelErrorKind, words: &str) {
        let fault = answered(status, None, body);
        assert_eq!(fault.kind, kind, "{status:?} {body}");
        assert!(fault.message.contains(words), "{}", fault.message);
    }

    #[test]
    fn every_status_has_its_remedy() {
        for status in [408, 409, 425, 429, 500, 502, 503, 504, 529] {
            check(Some(status), "", RETRYABLE, &status.to_string());
        }
        for status in [301, 400, 401, 402, 403, 404, 422] {
            check(Some(status), r#"{"error":{"message":"no"}}"#, ModelErrorKind::Refused, "no");
        }
    }

    #[test]
    fn a_prompt_that_is_too_long_is_known_in_every_dialect() {
        for body in [
            r#"{"error":{"message":"x","type":"invalid_request_error","code":"context_length_exceeded"}}"#,
            r#"{"error":{"message":"This model's maximum context length is 8192 tokens."}}"#,
            r#"{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 9 tokens > 8"}}"#,
            r#"{"error":{"code":400,"message":"the request exceeds the available context size","type":"exceed_context_size_error"}}"#,
        ] {
            check(Some(400), body, ModelErrorKind::ContextOverflow, "400");
        }
        check(Some(413), "", ModelErrorKind::ContextOverflow, "413");
        let limited = r#"{"error":{"message":"rate limit of tokens in the context window reached"}}"#;
        check(Some(429), limited, RETRYABLE, "429");
    }

    #[test]
    fn an_error_without_a_status_is_judged_by_its_own_words() {
        let overloaded = r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#;
        check(None, overloaded, RETRYABLE, "Overloaded");
        check(None, r#"{"error":{"code":401,"message":"who are you"}}"#, ModelErrorKind::Refused, "who are you");
        check(None, r#"{"error":"upstream died"}"#, RETRYABLE, "upstream died");
        check(
            Some(200),
            r#"{"error":{"type":"invalid_request_error","message":"no"}}"#,
            ModelErrorKind::Refused,
            "200",
        );
        check(Some(200), r#"{"error":{"message":"try later"}}"#, RETRYABLE, "try later");
        check(Some(200), r#"{"choices":[]}"#, ModelErrorKind::Refused, "no event stream");
    }

    #[test]
    fn the_wait_that_a_provider_asks_for_is_read_in_every_form() {
        let read = |pairs: &[(&'static str, &'static str)]| {
            let pairs = pairs.iter().map(|(name, value)| (http::HeaderName::from_static(name), value.parse().unwrap()));
            retry_after(&pairs.collect())
        };
        assert_eq!(read(&[("retry-after", "7")]), Some(Duration::from_secs(7)));
        assert_eq!(read(&[("retry-after", "1.5")]), Some(Duration::from_millis(1500)));
        assert_eq!(read(&[("retry-after", "7"), ("retry-after-ms", "250")]), Some(Duration::from_millis(250)));
        let now = ("date", "Sun, 06 Nov 1994 08:49:37 GMT");
        let at = |text| [("retry-after", text), now];
        assert_eq!(read(&at("Sun, 06 Nov 1994 08:50:07 GMT")), Some(Duration::from_secs(30)));
        assert_eq!(read(&at("Sun, 06 Nov 1994 08:00:00 GMT")), Some(Duration::ZERO));
        for nonsense in ["-1", "soon", "NaN", ""] {
            assert_eq!(read(&at(nonsense)), None, "{nonsense}");
        }
    }

    #[test]
    fn no_key_and_no_query_string_is_repeated() {
        let secret = SecretString::from("sk-canary");
        let body = r#"{"error":{"message":"key sk-canary is bad, see https://x.test/a?key=sk-canary&b=1 why?"}}"#;
        let fault = classify(&ProviderError::from_http_response(StatusCode::UNAUTHORIZED, body), Some(&secret));
        assert_eq!(
            fault.message,
            "the provider answered 401 Unauthorized: key [redacted] is bad, see https://x.test/a why?"
        );
    }

    #[test]
    fn long_words_are_bounded() {
        let fault = classify(&ProviderError::from_provider_body("ä".repeat(5000)), None);
        assert_eq!(fault.message.chars().count(), MAX_TEXT + 1);
    }
}
