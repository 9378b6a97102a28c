//! Follows events: subscribes first, reads the store from the caller's place, then passes on what is heard. So each
//! event is sent once and in order, whoever drives the run and however slow the reader is.
//!
//! Frames are `id: SEQ`, `data: JSON` and an empty line, with LF only; comments keep the connection alive.

use std::convert::Infallible;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::Stream;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep_until};

use super::Api;
use crate::auth::Caller;
use crate::run::ids::{RunId, RunUid};
use crate::store::hub::{Heard, TenantSubscription};
use crate::store::{StoreError, StoredEvent, retention};

/// Rows that are read at first, before their size is known, and at most.
const PAGE_FIRST: u32 = 4;
const PAGE_MAX: u32 = 500;

/// Bytes that a page should have. What a reader who does not read keeps in memory is one page, and events can be
/// large, so rows are asked for by the size of the ones before.
const PAGE_BYTES: u64 = 128 * 1024;

/// How often a comment is sent, so that nobody takes the connection for dead.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// The first frame: how long a browser waits before it reconnects, in milliseconds.
const RETRY: &str = "retry: 1000\n\n";

/// A comment.
const PING: &str = ": ping\n\n";

/// One reader of one run.
pub(super) struct Feed {
    /// What handlers can reach.
    pub(super) api: Arc<Api>,
    /// Who reads; the stream ends with their token.
    pub(super) caller: Caller,
    /// Which run.
    pub(super) id: RunId,
    /// The same, inside.
    pub(super) uid: RunUid,
    /// The number of the last event that the reader has.
    pub(super) after: i64,
}

/// What a reader waits for.
enum Sign {
    Event(Arc<StoredEvent>),
    Look,
    Beat,
    End,
}

/// Every event of a run after the reader's place, until `result`, the end of the token, or of the server.
pub(super) fn run_events(feed: Feed) -> impl Stream<Item = Result<Bytes, Infallible>> + Send {
    let Feed { api, caller, id, uid, mut after } = feed;
    let mut subscription = api.hub.subscribe(&caller.tenant, uid);
    async_stream::stream! {
        let _reading = Reading::begin();
        let ends = ends(&api, &caller);
        let mut heartbeat = interval_at(Instant::now() + HEARTBEAT, HEARTBEAT);
        heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        yield Ok(Bytes::from_static(RETRY.as_bytes()));
        let mut rows = PAGE_FIRST;
        'read: loop {
            loop {
                let Some(page) = Page::read(&api, &caller, (&id, uid), after, rows).await else { return };
                let Some(last) = page.last else { break };
                after = last;
                subscription.reached(after);
                rows = rows_after(rows, page.text.len());
                let (ended, whole) = (page.ended, page.whole);
                yield Ok(page.text);
                if ended {
                    return;
                }
                if whole {
                    break;
                }
            }
            loop {
                let sign = tokio::select! {
                    biased;
                    () = sleep_until(ends) => Sign::End,
                    () = api.stopping.cancelled() => Sign::End,
                    heard = subscription.next() => match heard {
                        Heard::Event(event) => Sign::Event(event),
                        Heard::Lagged => Sign::Look,
                    },
                    _ = heartbeat.tick() => Sign::Beat,
                };
                match sign {
                    Sign::End => return,
                    Sign::Look => continue 'read,
                    Sign::Beat => yield Ok(Bytes::from_static(PING.as_bytes())),
                    Sign::Event(event) if event.seq <= after => {}
                    Sign::Event(event) if event.seq == after + 1 => {
                        after = event.seq;
                        subscription.reached(after);
                        yield Ok(frames(std::slice::from_ref(event.as_ref())));
                        if is_last(&event) {
                            return;
                        }
                    }
                    // Something lies between: the store has it.
                    Sign::Event(_) => continue 'read,
                }
            }
        }
    }
}

/// Status and result events of a tenant's runs, from now on.
pub(super) fn tenant_events(
    api: Arc<Api>,
    caller: Caller,
    mut subscription: TenantSubscription,
) -> impl Stream<Item = Result<Bytes, Infallible>> + Send {
    async_stream::stream! {
        let _reading = Reading::begin();
        let ends = ends(&api, &caller);
        yield Ok(Bytes::from_static(RETRY.as_bytes()));
        loop {
            let beat = Instant::now() + HEARTBEAT;
            tokio::select! {
                biased;
                () = sleep_until(ends) => return,
                () = api.stopping.cancelled() => return,
                heard = subscription.next() => match heard {
                    Heard::Event(event) => yield Ok(Bytes::from(format!("data: {}\n\n", event.body))),
                    // Live only: a reader that missed something reloads its lists when it reconnects.
                    Heard::Lagged => return,
                },
                () = sleep_until(beat) => yield Ok(Bytes::from_static(PING.as_bytes())),
            }
        }
    }
}

/// When the reader's token ends.
fn ends(api: &Api, caller: &Caller) -> Instant {
    let left = caller.expires_at.millis_since(api.clock.now());
    // A day is longer than any stream lives; far times would not fit the timer.
    Instant::now() + Duration::from_millis(u64::try_from(left).unwrap_or_default()).min(Duration::from_hours(24))
}

/// A page of events as frames. The events themselves are not kept while the reader takes its time.
struct Page {
    text: Bytes,
    /// The number of its last event; `None` when there is none yet.
    last: Option<i64>,
    /// Whether the run's last event is in it.
    ended: bool,
    /// Whether there was nothing more.
    whole: bool,
}

impl Page {
    /// `None` when the store does not answer: the reader reconnects with its place, and nothing is lost.
    async fn read(api: &Api, caller: &Caller, run: (&RunId, RunUid), after: i64, rows: u32) -> Option<Self> {
        let read = async {
            let events = api.store.event_list(&caller.tenant, run.1, after, rows).await?;
            let gap = retention::gap(run.0, after, &events, api.clock.now())?;
            let whole = !events.more;
            let (last, ended) = (events.last().map(|event| event.seq), events.iter().any(is_last));
            let told: Vec<StoredEvent> = gap.into_iter().chain(events).collect();
            Ok::<Self, StoreError>(Self { text: frames(&told), last, ended, whole })
        };
        match read.await {
            Ok(page) => Some(page),
            Err(fault) => {
                tracing::warn!(run = %run.1.0, %fault, "an event stream ends early");
                None
            }
        }
    }
}

/// How many rows to read after a page of so many rows and bytes.
fn rows_after(rows: u32, bytes: usize) -> u32 {
    let wanted = u64::from(rows) * PAGE_BYTES / u64::try_from(bytes).unwrap_or(u64::MAX).max(1);
    // A few small events say little of the next: grow step by step.
    let most = rows.saturating_mul(4).min(PAGE_MAX);
    u32::try_from(wanted).unwrap_or(u32::MAX).clamp(1, most)
}

fn is_last(event: &StoredEvent) -> bool {
    event.kind == "result"
}

/// Events as frames. Their text is one line of JSON: line ends in strings are escaped.
fn frames(events: &[StoredEvent]) -> Bytes {
    let mut text = String::with_capacity(events.iter().map(|event| event.body.len() + 32).sum());
    for event in events {
        // Writing to a String cannot fail.
        write!(text, "id: {}\ndata: {}\n\n", event.seq, event.body).unwrap_or_default();
    }
    Bytes::from(text)
}

/// Counts the open streams.
struct Reading;

impl Reading {
    fn begin() -> Self {
        metrics::gauge!("countersign_event_readers").increment(1.0);
        Self
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        metrics::gauge!("countersign_event_readers").decrement(1.0);
    }
}
