//! What stands around every route: the request's id, one log line, counters, problems written out, panics caught.

use std::any::Any;
use std::sync::Arc;

use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use tokio::time::Instant;
use tower_http::cors::{AllowOrigin, CorsLayer};

use super::Api;
use super::problem::{ApiError, Problem};

/// Header of the request's id.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Longest request id that is taken.
const REQUEST_ID_MAX: usize = 128;

/// How long browsers may keep a preflight answer.
const PREFLIGHT_AGE: std::time::Duration = std::time::Duration::from_mins(10);

/// Gives the request its id, and the answer its last form.
pub(super) async fn finish(State(api): State<Arc<Api>>, request: Request, next: Next) -> Response {
    let began = Instant::now();
    let id = request_id(request.headers()).unwrap_or_else(|| api.clock.request_id());
    let trace_id = trace_id(request.headers()).unwrap_or_default();
    let method = request.method().clone();
    // The route as it is declared: names of runs and tickets never get into logs and counters.
    let route = request.extensions().get::<MatchedPath>().map_or("-", MatchedPath::as_str).to_owned();
    let response = next.run(request).await;
    let (mut response, code) = written(response, &id);
    if let Ok(value) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    let status = response.status().as_u16();
    let took = began.elapsed();
    // Of 64 bits, since a wider number is logged as text.
    let ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
    tracing::info!(request_id = id, trace_id, %method, route, status, code, ms, "request");
    count(&method, &route, status, took);
    response
}

/// Writes a problem out, now that the request's id is known.
fn written(mut response: Response, id: &str) -> (Response, &'static str) {
    match response.extensions_mut().remove::<Problem>() {
        Some(problem) => {
            let code = problem.code();
            (problem.render(id, std::mem::take(response.headers_mut())), code)
        }
        None => (response, ""),
    }
}

fn count(method: &Method, route: &str, status: u16, took: std::time::Duration) {
    // Methods that nobody knows are one: a caller must not make series at will.
    let method = match method.as_str() {
        known @ ("GET" | "HEAD" | "POST" | "PUT" | "DELETE" | "OPTIONS") => known.to_owned(),
        _ => "other".to_owned(),
    };
    let labels = [("method", method), ("route", route.to_owned()), ("status", status.to_string())];
    metrics::counter!("countersign_http_requests_total", &labels).increment(1);
    metrics::histogram!("countersign_http_request_seconds", "route" => route.to_owned()).record(took.as_secs_f64());
}

/// The caller's id for the request, if it is one that can stand in a log line.
fn request_id(headers: &HeaderMap) -> Option<String> {
    let id = headers.get(REQUEST_ID)?.to_str().ok()?;
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':' | '/' | '+' | '=');
    ((1..=REQUEST_ID_MAX).contains(&id.len()) && id.chars().all(fits)).then(|| id.to_owned())
}

/// The trace that the request belongs to, by W3C `traceparent`.
fn trace_id(headers: &HeaderMap) -> Option<String> {
    let text = headers.get("traceparent")?.to_str().ok()?;
    let mut parts = text.split('-');
    let (version, trace, parent, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let is_hex = |text: &str, len: usize| {
        text.len() == len && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
    };
    let is_zero = |text: &str| text.bytes().all(|byte| byte == b'0');
    let fits = is_hex(version, 2) && version != "ff" && is_hex(trace, 32) && is_hex(parent, 16) && is_hex(flags, 2);
    (fits && !is_zero(trace) && !is_zero(parent)).then(|| trace.to_owned())
}

/// The answer to a request whose handler panicked; the panic itself is logged by its hook.
pub(super) fn panicked(_cause: Box<dyn Any + Send + 'static>) -> Response {
    ApiError::Internal("a handler panicked").into_response()
}

/// No such route.
pub(super) async fn no_route() -> ApiError {
    ApiError::NotFound("there is nothing at this address")
}

/// No such method; the router says in `Allow` which there are.
pub(super) async fn no_method() -> ApiError {
    ApiError::MethodNotAllowed
}

/// Lets pages of these origins call the API. Tokens stand in a header, so no cookies are allowed.
pub(super) fn cors(origins: &[String]) -> CorsLayer {
    let origins: Vec<HeaderValue> = origins.iter().filter_map(|origin| HeaderValue::from_str(origin).ok()).collect();
    let taken = ["idempotency-key", "last-event-id", "prefer", "traceparent", "x-request-id"];
    let mut allowed = vec![header::AUTHORIZATION, header::CONTENT_TYPE, header::ACCEPT];
    allowed.extend(taken.into_iter().map(HeaderName::from_static));
    let told = ["idempotent-replayed", "preference-applied", "x-request-id"];
    let mut exposed = vec![header::LOCATION, header::RETRY_AFTER, header::WWW_AUTHENTICATE];
    exposed.extend(told.into_iter().map(HeaderName::from_static));
    CorsLayer::new()
        .allow_origin(AllowOrigin::list(origins))
        .allow_methods([Method::GET, Method::HEAD, Method::POST, Method::PUT, Method::DELETE])
        .allow_headers(allowed)
        .expose_headers(exposed)
        .max_age(PREFLIGHT_AGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(name: &'static str, value: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(name, value.parse().unwrap());
        headers
    }

    #[test]
    fn a_request_id_is_taken_when_it_can_stand_in_a_log_line() {
        for good in ["a", "0190-ab_c.d:e/f+g=", &"x".repeat(128)] {
            assert_eq!(request_id(&with("x-request-id", good)).as_deref(), Some(good));
        }
        for bad in ["", "a b", "a\"b", "{}", &"x".repeat(129)] {
            assert_eq!(request_id(&with("x-request-id", bad)), None, "{bad}");
        }
    }

    #[test]
    fn a_trace_id_is_taken_from_a_whole_traceparent() {
        let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
        let read = |text: &str| trace_id(&with("traceparent", text));
        assert_eq!(read(&format!("00-{trace}-00f067aa0ba902b7-01")).as_deref(), Some(trace));
        for bad in [
            "00".to_owned(),
            format!("ff-{trace}-00f067aa0ba902b7-01"),
            format!("00-{}-00f067aa0ba902b7-01", "0".repeat(32)),
            format!("00-{}-00f067aa0ba902b7-01", trace.to_uppercase()),
        ] {
            assert_eq!(read(&bad), None, "{bad}");
        }
    }
}
