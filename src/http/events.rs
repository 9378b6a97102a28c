//! Events: as a stream of server-sent events, or as pages.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::Api;
use super::extract::{self, Reader, RunPath, fetch};
use super::feed::{self, Feed};
use super::headers::{self, Form};
use super::problem::ApiError;
use super::query::{EventCursor, Query, encode};
use super::readers::Reading;
use crate::auth::{Caller, Scope};
use crate::run::event::Event;
use crate::run::ids::RunId;
use crate::store::{RunView, retention};

/// What can be given where both forms can.
pub(super) const FORMS: &str = "application/json or text/event-stream can be given";

/// A page of events, in order.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct EventPage {
    /// The events.
    #[schema(value_type = Vec<Event>)]
    data: Vec<Box<RawValue>>,
    /// Where the list goes on; null at the last event so far.
    next_cursor: Option<String>,
}

/// One server-sent event.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct SentEvent {
    /// The event's number; left out where a stream cannot be continued.
    #[schema(required = false)]
    id: String,
    /// The event as JSON.
    #[schema(content_media_type = "application/json")]
    data: String,
}

/// Read a run's events.
///
/// `Accept: text/event-stream`: every event so far, then each as it is committed; the stream ends after `result`, and
/// a reconnect at or past that answers 204. `Last-Event-ID` (which wins) or `?after=` continues after that number.
/// `Accept: application/json`: a page of the same events. Where events that were asked for are kept no longer, `gap`
/// comes first.
#[utoipa::path(
    get, path = "/v1/runs/{run_id}/events", operation_id = "event_list", tag = "events",
    security(("bearer" = ["runs:read"]), ("ticket" = [])),
    params(
        ("run_id" = String, Path, description = "The run's name"),
        ("after" = Option<i64>, Query, minimum = 0, description = "Continue after this number"),
        ("Last-Event-ID" = Option<i64>, Header, minimum = 0, description = "Continue after this number; wins over `after`"),
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 200, description = "Rows of a page (50)"),
        ("cursor" = Option<String>, Query, description = "The `next_cursor` of the page before"),
        ("ticket" = Option<String>, Query, description = "A stream ticket, in place of a token"),
    ),
    responses(
        (status = 200, description = "The events", content(
            (EventPage = "application/json"), (SentEvent = "text/event-stream"),
        )),
        (status = 204, description = "The run has ended and the caller has its last event"),
    )
)]
pub(super) async fn event_list(
    State(api): State<Arc<Api>>,
    RunPath(id): RunPath,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let mut query = Query::parse(query.as_deref());
    let last_event_id = headers::last_event_id(&headers);
    let is_reconnect = matches!(last_event_id, Ok(Some(_)));
    let (caller, view) = reader(&api, &headers, query.take("ticket"), is_reconnect, &id).await?;
    let after = query.take("after").map(|text| headers::event_number("after", &text)).transpose()?;
    let after = last_event_id?.or(after);
    match headers::form(&headers).ok_or(ApiError::NotAcceptable(FORMS))? {
        Form::Json => page(&api, &caller, &view, query, after).await,
        Form::Stream => {
            query.finish()?;
            let after = after.unwrap_or_default();
            if view.head.status.is_terminal() && after >= view.head.last_seq {
                return Ok(StatusCode::NO_CONTENT.into_response());
            }
            check_reached(&view, after)?;
            stream(&api, &caller, &view, after)
        }
    }
}

/// Who reads the events of this run: by token, or by a ticket of the run itself.
async fn reader(
    api: &Api,
    headers: &HeaderMap,
    ticket: Option<String>,
    is_reconnect: bool,
    id: &RunId,
) -> Result<(Caller, RunView), ApiError> {
    let Some(ticket) = ticket.filter(|_| !headers.contains_key(header::AUTHORIZATION)) else {
        let caller = extract::caller(headers, api, Scope::RunsRead).await?;
        let view = fetch(api, &caller, id).await?;
        return Ok((caller, view));
    };
    let ticket = api.tickets.read(&ticket, is_reconnect, api.clock.now()).map_err(ApiError::Ticket)?;
    if ticket.run != *id {
        return Err(ApiError::TicketOfAnotherRun);
    }
    let (uid, expires_at) = (ticket.uid, ticket.expires_at);
    let scopes = [Scope::RunsRead].into();
    let caller = Caller {
        tenant: ticket.tenant,
        actor: ticket.actor,
        scopes,
        scope_names: std::collections::BTreeSet::new(),
        expires_at,
        workload_identity: None,
        image_digest: None,
    };
    let view = fetch(api, &caller, id).await?;
    if view.uid == uid { Ok((caller, view)) } else { Err(ApiError::TicketOfAnotherRun) }
}

/// A number that the run has not reached was never told by this run.
fn check_reached(view: &RunView, after: i64) -> Result<(), ApiError> {
    if after <= view.head.last_seq {
        return Ok(());
    }
    Err(ApiError::InvalidCursor("the run has no event of this number yet".to_owned()))
}

async fn page(
    api: &Api,
    caller: &Caller,
    view: &RunView,
    mut query: Query,
    after: Option<i64>,
) -> Result<Response, ApiError> {
    let (limit, cursor) = (query.take_limit()?, query.take_cursor::<EventCursor>()?);
    query.finish()?;
    let after = cursor.map(|EventCursor(seq)| seq).or(after).unwrap_or_default();
    check_reached(view, after)?;
    let page = api.store.event_list(&caller.tenant, view.uid, after, limit).await?;
    let gap = retention::gap(&view.id, after, &page, api.clock.now())?;
    let next_cursor = page.last().filter(|_| page.more).map(|event| encode(&EventCursor(event.seq)));
    let raw = gap.into_iter().chain(page).map(|event| RawValue::from_string(event.body));
    let data = raw.collect::<Result<_, _>>().map_err(|_payload| ApiError::Internal("a stored event is not JSON"))?;
    Ok(Json(EventPage { data, next_cursor }).into_response())
}

/// The run's events after that number, as a stream.
///
/// # Errors
/// `TooManyStreams`.
pub(super) fn stream(api: &Arc<Api>, caller: &Caller, view: &RunView, after: i64) -> Result<Response, ApiError> {
    let reading = api.readers.enter(caller)?;
    Ok(stream_of(api, caller, view, after, reading))
}

/// The same for a reader who has a place already.
pub(super) fn stream_of(api: &Arc<Api>, caller: &Caller, view: &RunView, after: i64, reading: Reading) -> Response {
    let (api, caller, id, uid) = (Arc::clone(api), caller.clone(), view.id.clone(), view.uid);
    let feed = Feed { api, caller, id, uid, after, reading };
    streamed(Body::from_stream(feed::run_events(feed)))
}

/// Watch the tenant's runs.
///
/// Status and result events of all runs of the tenant, live only and without numbers: reload lists after a reconnect.
#[utoipa::path(
    get, path = "/v1/events", operation_id = "event_watch", tag = "events", security(("bearer" = ["runs:read"])),
    responses((status = 200, description = "The events", content((SentEvent = "text/event-stream"))))
)]
pub(super) async fn event_watch(
    State(api): State<Arc<Api>>,
    Reader(caller): Reader,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    if !headers::takes_stream(&headers) {
        return Err(ApiError::NotAcceptable("only text/event-stream can be given"));
    }
    let reading = api.readers.enter(&caller)?;
    // Followed from here on, not from the first look at the stream: the answer's head says that it is live.
    let subscription = api.follower.watch(&caller.tenant).await?;
    Ok(streamed(Body::from_stream(feed::tenant_events(api, caller, subscription, reading))))
}

fn streamed(body: Body) -> Response {
    let mut response = body.into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    // A proxy that compresses would hold events back until its block is full; one that buffers, until its buffer is.
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, no-transform"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}
