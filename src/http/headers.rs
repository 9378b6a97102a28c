//! Request headers that change an answer: what the caller takes, how long they wait, where they go on reading.

use std::time::Duration;

use http::{HeaderMap, header};

use super::problem::ApiError;

/// Longest wait that is granted.
const WAIT_MAX_S: u64 = 60;

/// The form of an answer that can be a document or a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// `application/json`.
    Json,
    /// `text/event-stream`.
    Stream,
}

/// The form that the caller takes best; a document where both are taken alike. `None`: neither.
pub(super) fn form(headers: &HeaderMap) -> Option<Form> {
    let wanted = Wanted::read(headers);
    match (wanted.json, wanted.stream) {
        (0, 0) => None,
        (json, stream) if stream > json => Some(Form::Stream),
        _ => Some(Form::Json),
    }
}

/// Whether the caller takes a stream at all.
pub(super) fn takes_stream(headers: &HeaderMap) -> bool {
    Wanted::read(headers).stream > 0
}

/// How much each form is wanted, in thousandths.
struct Wanted {
    json: u32,
    stream: u32,
}

impl Wanted {
    fn read(headers: &HeaderMap) -> Self {
        let mut said = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok()).peekable();
        if said.peek().is_none() {
            return Self { json: 1000, stream: 1000 };
        }
        let (mut json, mut stream): (Option<Taste>, Option<Taste>) = (None, None);
        for (kind, quality) in said.flat_map(|value| value.split(',')).map(read_range) {
            let specific = match kind.as_str() {
                "*/*" => 0,
                "application/*" | "text/*" => 1,
                _ => 2,
            };
            let taste = Some(Taste { specific, quality });
            if matches!(kind.as_str(), "*/*" | "application/*" | "application/json") {
                json = json.max(taste);
            }
            if matches!(kind.as_str(), "*/*" | "text/*" | "text/event-stream") {
                stream = stream.max(taste);
            }
        }
        let quality = |taste: Option<Taste>| taste.map_or(0, |taste| taste.quality);
        Self { json: quality(json), stream: quality(stream) }
    }
}

/// How much a kind is wanted: what is said of it most precisely counts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Taste {
    specific: u8,
    quality: u32,
}

/// A media range and its quality, in thousandths.
fn read_range(range: &str) -> (String, u32) {
    let mut parts = range.split(';').map(str::trim);
    let kind = parts.next().unwrap_or_default().to_ascii_lowercase();
    let quality = parts.find_map(|part| part.strip_prefix("q=")).map_or(1000, |text| {
        let thousandths = text.parse::<f64>().unwrap_or(1.0).clamp(0.0, 1.0) * 1000.0;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 1000")]
        {
            thousandths as u32
        }
    });
    (kind, quality)
}

/// `Prefer: wait=N`, at most 60 seconds. What does not read is no preference (RFC 7240).
pub(super) fn wait(headers: &HeaderMap) -> Option<Duration> {
    let said = headers.get_all("prefer").iter().filter_map(|value| value.to_str().ok());
    let mut preferences = said.flat_map(|value| value.split(',')).filter_map(|one| one.trim().split_once('='));
    let (_, seconds) = preferences.find(|(name, _)| name.trim().eq_ignore_ascii_case("wait"))?;
    let seconds: u64 = seconds.trim().trim_matches('"').parse().ok()?;
    Some(Duration::from_secs(seconds.min(WAIT_MAX_S)))
}

/// The number of the last event that the caller has, by `Last-Event-ID`.
pub(super) fn last_event_id(headers: &HeaderMap) -> Result<Option<i64>, ApiError> {
    let Some(value) = headers.get("last-event-id") else { return Ok(None) };
    match value.to_str() {
        Ok("") => Ok(None),
        Ok(text) => event_number("Last-Event-ID", text).map(Some),
        Err(_) => Err(ApiError::InvalidCursor("Last-Event-ID is not a number".to_owned())),
    }
}

/// An event number: 0 or more.
pub(super) fn event_number(name: &str, text: &str) -> Result<i64, ApiError> {
    let is_digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = if is_digits { text.parse().ok() } else { None };
    number.ok_or_else(|| ApiError::InvalidCursor(format!("{name} is not the number of an event")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accept(value: &str) -> Option<Form> {
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT, value.parse().unwrap());
        form(&headers)
    }

    #[test]
    fn the_form_is_the_one_that_is_wanted_most() {
        assert_eq!(form(&HeaderMap::new()), Some(Form::Json));
        for (value, form) in [
            ("*/*", Some(Form::Json)),
            ("application/json", Some(Form::Json)),
            ("text/event-stream", Some(Form::Stream)),
            ("TEXT/Event-Stream", Some(Form::Stream)),
            ("text/event-stream, */*;q=0.5", Some(Form::Stream)),
            ("application/json, text/event-stream", Some(Form::Json)),
            ("application/json;q=0.5, text/event-stream", Some(Form::Stream)),
            ("text/html, application/xhtml+xml, */*;q=0.8", Some(Form::Json)),
            ("text/event-stream;q=0, */*", Some(Form::Json)),
            ("text/html", None),
            ("application/json;q=0", None),
            ("", None),
        ] {
            assert_eq!(accept(value), form, "{value}");
        }
    }

    #[test]
    fn a_wait_is_granted_up_to_a_minute() {
        for (value, seconds) in [
            ("wait=5", Some(5)),
            ("respond-async, wait=10", Some(10)),
            ("Wait = \"7\"", Some(7)),
            ("wait=3600", Some(60)),
            ("wait=0", Some(0)),
            ("wait=-1", None),
            ("wait=soon", None),
            ("wait", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert("prefer", value.parse().unwrap());
            assert_eq!(wait(&headers), seconds.map(Duration::from_secs), "{value}");
        }
    }

    #[test]
    fn an_event_number_is_digits_that_a_number_holds() {
        for (text, number) in [("0", Some(0)), ("17", Some(17)), ("+1", None), ("-1", None), ("1.0", None), ("", None)]
        {
            assert_eq!(event_number("x", text).ok(), number, "{text}");
        }
        assert!(event_number("x", "9223372036854775808").is_err());
    }
}
