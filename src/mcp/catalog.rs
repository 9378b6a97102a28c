//! The tools of one connection: all pages, read once and kept while they are fresh.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rmcp::model::{ErrorCode, PaginatedRequestParams, Tool, ToolAnnotations};
use rmcp::service::ServiceError;
use serde_json::Value;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::McpFault;
use super::connection::Connection;
use super::pool::Lease;
use crate::failpoint;
use crate::run::binding::{Hints, ServedCatalog, ServedTool};

/// A server with more pages or tools than this is refused, not cut: a model must not be offered half a catalog.
const PAGES_MAX: usize = 100;
const TOOLS_MAX: usize = 2_000;

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
    /// How many announcements had come when it began.
    announced: u64,
    pub(super) catalog: Arc<ServedCatalog>,
}

/// A reading, and whether it still holds. While it is kept, its connection is in use.
#[derive(Clone)]
pub struct Subscription {
    lease: Arc<Lease>,
    announced: u64,
}

/// What became of a reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum News {
    /// Nothing was heard.
    None,
    /// The connection is gone: something may have been missed.
    Lost,
    /// The server announced another list of tools.
    Announced,
}

impl Subscription {
    pub(super) fn new(lease: Lease, reading: &Reading) -> Self {
        Self { lease: Arc::new(lease), announced: reading.announced }
    }

    /// What became of the reading since.
    pub fn news(&self) -> News {
        let connection = self.lease.connection();
        if connection.catalog.announcements.count() != self.announced {
            News::Announced
        } else if connection.is_alive() {
            News::None
        } else {
            News::Lost
        }
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Subscription").field(&self.news()).finish()
    }
}

impl Connection {
    /// The tools, at most `max_age` old; whoever waits while another reads gets the same reading.
    ///
    /// # Errors
    /// What went wrong, in words without secrets.
    pub(super) async fn tools(&self, max_age: Duration, patience: Duration) -> Result<Reading, McpFault> {
        let asked = Instant::now();
        // Held while reading, so that many askers make one reading.
        let mut read = self.catalog.read.lock().await;
        if let Some(kept) = read.as_ref() {
            let is_fresh = kept.at.elapsed() < max_age || kept.at >= asked;
            if is_fresh && kept.announced == self.catalog.announcements.count() && self.is_alive() {
                return Ok(kept.clone());
            }
        }
        // Looked at first: an announcement during the reading counts.
        let announced = self.catalog.announcements.count();
        let at = Instant::now();
        failpoint::pass("catalog.read.before");
        let pages = tokio::time::timeout(patience, self.read_pages()).await;
        failpoint::pass("catalog.read.after");
        let catalog = match pages {
            Ok(catalog) => Arc::new(catalog?),
            Err(_elapsed) => return Err(unreadable(&format!("no answer within {} ms", patience.as_millis()))),
        };
        let reading = Reading { at, announced, catalog };
        *read = Some(reading.clone());
        Ok(reading)
    }

    async fn read_pages(&self) -> Result<ServedCatalog, McpFault> {
        let mut catalog = ServedCatalog::default();
        let (mut names, mut cursors) = (HashSet::new(), HashSet::new());
        let mut cursor: Option<String> = None;
        for _page in 0..PAGES_MAX {
            let mut params = PaginatedRequestParams::default();
            params.cursor.clone_from(&cursor);
            let page = match self.peer().list_tools(Some(params)).await {
                Ok(page) => page,
                Err(error) if is_no_tools(&error) && cursor.is_none() => return Ok(catalog),
                Err(error) => return Err(unreadable(&self.fault_of(&error))),
            };
            for tool in page.tools {
                let tool = served(tool);
                if !names.insert(tool.name.clone()) {
                    return Err(unreadable(&format!("it lists the tool '{}' twice", tool.name)));
                }
                catalog.tools.push(tool);
            }
            if catalog.tools.len() > TOOLS_MAX {
                return Err(unreadable(&format!("it lists more than {TOOLS_MAX} tools")));
            }
            let Some(next) = page.next_cursor else { return Ok(catalog) };
            if !cursors.insert(next.clone()) {
                return Err(unreadable("its pages run in a circle"));
            }
            cursor = Some(next);
        }
        Err(unreadable(&format!("it lists more than {PAGES_MAX} pages of tools")))
    }

    fn fault_of(&self, error: &ServiceError) -> String {
        match error {
            ServiceError::McpError(error) => {
                let text: String = error.message.chars().take(500).collect();
                format!("it answered \"{text}\"")
            }
            ServiceError::UnexpectedResponse => "its answer is no list of tools".to_owned(),
            _ => self.last_fault().unwrap_or_else(|| "the connection ended".to_owned()),
        }
    }
}

/// A server without tools may not know the method at all.
fn is_no_tools(error: &ServiceError) -> bool {
    matches!(error, ServiceError::McpError(error) if error.code == ErrorCode::METHOD_NOT_FOUND)
}

fn served(tool: Tool) -> ServedTool {
    ServedTool {
        name: tool.name.into_owned(),
        description: tool.description.map(std::borrow::Cow::into_owned),
        input_schema: Value::Object(Arc::unwrap_or_clone(tool.input_schema)),
        output_schema: tool.output_schema.map(|schema| Value::Object(Arc::unwrap_or_clone(schema))),
        hints: tool.annotations.as_ref().map_or_else(Hints::default, hints),
    }
}

fn hints(annotations: &ToolAnnotations) -> Hints {
    Hints {
        read_only: annotations.read_only_hint,
        destructive: annotations.destructive_hint,
        idempotent: annotations.idempotent_hint,
    }
}

fn unreadable(why: &str) -> McpFault {
    McpFault::new(format!("The MCP server's tools could not be read: {why}."))
}
