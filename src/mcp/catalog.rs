//! The tools of one connection: all pages, read once and kept while they are fresh.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rmcp::model::{ClientRequest, Extensions, ListToolsRequest, ListToolsRequestMethod, PaginatedRequestParams};
use rmcp::service::{PeerRequestOptions, ServiceError};
use serde_json::Value;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::attempt::{Attempt, Stage};
use super::connection::Connection;
use super::listing::{Page, Reader, Unread};
use super::pool::Lease;
use super::{McpFault, Told};
use crate::failpoint;
use crate::run::binding::ServedCatalog;
use crate::run::ids::TenantId;
use crate::schema::{Budget, Busy, Schemas};

/// A server with more pages or tools than this is refused, not cut: a model must not be offered half a catalog.
const PAGES_MAX: usize = 100;
const TOOLS_MAX: usize = 2_000;
/// Most bytes of JSON in all pages of one server.
const BYTES_MAX: usize = 16 * 1024 * 1024;
/// The error of a method that a server does not know (JSON-RPC 2.0).
const METHOD_NOT_FOUND: i64 = -32601;
/// How much longer than its time limit a reading may take to be given up properly.
const GRACE: Duration = Duration::from_millis(500);

/// What a server said of its list of tools: only ever that there is another one.
#[derive(Debug, Default)]
pub(super) struct Announcements(AtomicU64);

impl Announcements {
    /// The server's list of tools may be another one from now on.
    pub(super) fn announce(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    fn count(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

/// The tools of a connection, as last read.
pub(super) struct CatalogCache {
    announcements: Arc<Announcements>,
    read: Mutex<Option<Reading>>,
}

impl CatalogCache {
    pub(super) fn new(announcements: Arc<Announcements>) -> Self {
        Self { announcements, read: Mutex::new(None) }
    }
}

/// One reading of all tools.
#[derive(Clone)]
pub(super) struct Reading {
    at: Instant,
    /// How long the server says that it holds.
    ttl: Option<Duration>,
    /// How many announcements had come when it began.
    announced: u64,
    pub(super) catalog: Arc<ServedCatalog>,
}

impl Reading {
    fn is_fresh(&self, max_age: Duration) -> bool {
        self.at.elapsed() < self.ttl.map_or(max_age, |ttl| ttl.min(max_age))
    }
}

/// A reading, and whether it still holds. While it is kept, its connection is in use.
#[derive(Clone)]
pub struct Subscription {
    lease: Arc<Lease>,
    announced: u64,
    /// Until when the server said that it holds.
    until: Option<Instant>,
}

/// What became of a reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum News {
    /// Nothing was heard.
    None,
    /// It holds no longer than the server said that it does.
    Expired,
    /// The connection is gone: something may have been missed.
    Lost,
    /// The server announced another list of tools.
    Announced,
}

impl Subscription {
    pub(super) fn new(lease: Lease, reading: &Reading) -> Self {
        let until = reading.ttl.and_then(|ttl| reading.at.checked_add(ttl));
        Self { lease: Arc::new(lease), announced: reading.announced, until }
    }

    /// What became of the reading since.
    pub fn news(&self) -> News {
        let connection = self.lease.connection();
        if connection.catalog.announcements.count() != self.announced {
            News::Announced
        } else if !connection.is_alive() {
            News::Lost
        } else if self.until.is_some_and(|until| until <= Instant::now()) {
            News::Expired
        } else {
            News::None
        }
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Subscription").field(&self.news()).finish()
    }
}

impl Connection {
    /// The tools, at most `max_age` old; whoever waits while another reads gets the same reading. `desk`: where they are
    /// looked at, and for whom.
    ///
    /// # Errors
    /// What went wrong, as the server says it.
    pub(super) async fn tools(
        &self,
        desk: (&Arc<Schemas>, &TenantId),
        told: &Told,
        max_age: Duration,
        patience: Duration,
    ) -> Result<Reading, McpFault> {
        let asked = Instant::now();
        // Held while reading, so that many askers make one reading.
        let mut read = self.catalog.read.lock().await;
        if let Some(kept) = read.as_ref() {
            let is_fresh = kept.is_fresh(max_age) || kept.at >= asked;
            if is_fresh && kept.announced == self.catalog.announcements.count() && self.is_alive() {
                return Ok(kept.clone());
            }
        }
        // What is announced before anybody listens is lost.
        self.ears.settled().await;
        // Looked at first: an announcement during the reading counts.
        let announced = self.catalog.announcements.count();
        let at = Instant::now();
        failpoint::pass("catalog.read.before");
        // Each page is given up at that time, which also tells the server; the grace is for the telling.
        let pages = tokio::time::timeout(patience + GRACE, self.read_pages(desk, told, at + patience)).await;
        failpoint::pass("catalog.read.after");
        let (catalog, ttl) = match pages {
            Ok(Ok(pages)) => pages,
            Ok(Err(fault)) if at.elapsed() < patience => return Err(fault),
            Ok(Err(_)) | Err(_) => {
                return Err(unreadable(&format!("no answer within {} ms", patience.as_millis())));
            }
        };
        let reading = Reading { at, ttl, announced, catalog: Arc::new(catalog) };
        *read = Some(reading.clone());
        Ok(reading)
    }

    /// All pages, and how long the server says that they hold: as long as the page that expires first.
    async fn read_pages(
        &self,
        (schemas, tenant): (&Arc<Schemas>, &TenantId),
        told: &Told,
        until: Instant,
    ) -> Result<(ServedCatalog, Option<Duration>), McpFault> {
        let budget = Budget::of_set();
        let (schemas, told) = (Arc::clone(schemas), told.now());
        let mut reader = Reader { schemas, has_header_params: !self.has_sessions, told, budget };
        let (mut catalog, mut ttl) = (ServedCatalog::default(), None);
        let (mut names, mut cursors) = (HashSet::new(), HashSet::new());
        let (mut cursor, mut bytes): (Option<String>, usize) = (None, 0);
        for _page in 0..PAGES_MAX {
            let result = match self.read_page(cursor.clone(), until).await? {
                Listed::Result(result) => result,
                Listed::NoTools if cursor.is_none() => return Ok((catalog, ttl)),
                Listed::NoTools => return Err(unreadable("its pages end with an error")),
            };
            ttl = result.get("ttlMs").and_then(Value::as_u64).map(Duration::from_millis).into_iter().chain(ttl).min();
            let (page, size);
            (reader, page, size) = at_the_desk((schemas, tenant), reader, result).await?;
            bytes = bytes.saturating_add(size);
            if bytes > BYTES_MAX {
                return Err(unreadable(&format!("its list of tools is larger than {BYTES_MAX} bytes")));
            }
            for tool in page.read.tools {
                if !names.insert(tool.name.clone()) {
                    return Err(unreadable(&format!("it lists the tool '{}' twice", tool.name)));
                }
                catalog.tools.push(tool);
            }
            catalog.unnamed.extend(page.read.unnamed);
            if catalog.tools.len().saturating_add(catalog.unnamed.len()) > TOOLS_MAX {
                return Err(unreadable(&format!("it lists more than {TOOLS_MAX} tools")));
            }
            let Some(next) = page.next else { return Ok((catalog, ttl)) };
            if !cursors.insert(next.clone()) {
                return Err(unreadable("its pages run in a circle"));
            }
            cursor = Some(next);
        }
        Err(unreadable(&format!("it lists more than {PAGES_MAX} pages of tools")))
    }

    /// One page as the server wrote it: the protocol library reads a page as a whole or not at all.
    async fn read_page(&self, cursor: Option<String>, until: Instant) -> Result<Listed, McpFault> {
        let attempt = Attempt::of_listing();
        let _entry = self.enter(&attempt);
        let mut params = PaginatedRequestParams::default();
        params.cursor = cursor;
        let (method, extensions) = (ListToolsRequestMethod, Extensions::default());
        let mut request = ListToolsRequest { method, params: Some(params), extensions };
        request.extensions.insert(Arc::clone(&attempt));
        let options = PeerRequestOptions::with_timeout(until.saturating_duration_since(Instant::now()));
        let sent = self.peer().send_request_with_option(ClientRequest::ListToolsRequest(request), options).await;
        let answered = match sent {
            Ok(handle) => handle.await_response().await.map(drop),
            Err(error) => Err(error),
        };
        match (attempt.close(), answered) {
            (Stage::Answered(mut message), _) => {
                let error = message.get("error").filter(|error| !error.is_null());
                match error {
                    // A server without tools may not know the method at all.
                    Some(error) if error.get("code").and_then(Value::as_i64) == Some(METHOD_NOT_FOUND) => {
                        Ok(Listed::NoTools)
                    }
                    Some(error) => {
                        let text = error.get("message").and_then(Value::as_str).unwrap_or("an error");
                        Err(unreadable(&format!("it answered \"{text}\"")))
                    }
                    None => Ok(Listed::Result(message.get_mut("result").map(Value::take).unwrap_or_default())),
                }
            }
            (_, Err(ServiceError::Timeout { .. })) => Err(unreadable("no answer in time")),
            (Stage::TooLarge(excess), _) => Err(unreadable(&format!("its answer {excess}"))),
            _ => Err(unreadable(&self.last_fault().unwrap_or_else(|| "the connection ended".to_owned()))),
        }
    }
}

/// Reads a page at the desk, in turns with others, and says how many bytes of JSON it is.
async fn at_the_desk(
    (schemas, tenant): (&Schemas, &TenantId),
    mut reader: Reader,
    result: Value,
) -> Result<(Reader, Page, usize), McpFault> {
    let busy = |busy: Busy| unreadable(&format!("they {busy}"));
    let place = schemas.place(tenant).await.map_err(busy)?;
    let begun = place.run(move |at| {
        let mut unread = Unread::of(result)?;
        reader.read_on(at, &mut unread);
        Ok((reader, unread))
    });
    let (mut reader, mut unread) = begun.await.map_err(busy)?.map_err(unreadable)?;
    while !unread.is_read() {
        let place = schemas.place(tenant).await.map_err(busy)?;
        let going_on = place.run(move |at| {
            reader.read_on(at, &mut unread);
            (reader, unread)
        });
        (reader, unread) = going_on.await.map_err(busy)?;
    }
    Ok((reader, unread.page, unread.bytes))
}

/// What came of asking for a page.
enum Listed {
    Result(Value),
    NoTools,
}

fn unreadable(why: &str) -> McpFault {
    McpFault::new(format!("The MCP server's tools could not be read: {why}."))
}
