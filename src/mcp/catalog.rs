//! The tools of one connection: all pages, read once and kept while they are fresh.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rmcp::model::{ErrorCode, PaginatedRequestParams, Tool};
use rmcp::service::ServiceError;
use serde_json::Value;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::McpFault;
use super::connection::Connection;
use crate::failpoint;
use crate::run::binding::{ServedCatalog, ServedTool};

/// A server with more pages or tools than this is refused, not cut: a model must not be offered half a catalog.
const PAGES_MAX: usize = 100;
const TOOLS_MAX: usize = 2_000;

/// Where whoever hears a server says that its tools changed, or may have.
#[derive(Clone, Default)]
pub(super) struct Announcements(Arc<AtomicBool>);

impl Announcements {
    pub(super) fn announce(&self) {
        self.0.store(true, Ordering::Release);
    }
}

/// The tools of a connection, as last read.
pub(super) struct CatalogCache {
    announced: Announcements,
    read: Mutex<Option<Reading>>,
}

/// One reading of all pages.
struct Reading {
    at: Instant,
    /// How long the server says that it holds.
    ttl: Option<Duration>,
    catalog: Arc<ServedCatalog>,
}

impl Reading {
    fn is_fresh(&self, max_age: Duration) -> bool {
        self.at.elapsed() < self.ttl.map_or(max_age, |ttl| ttl.min(max_age))
    }
}

impl CatalogCache {
    pub(super) fn new(announced: Announcements) -> Self {
        Self { announced, read: Mutex::new(None) }
    }
}

impl Connection {
    /// The tools, at most `max_age` old; whoever waits while another reads gets the same reading.
    ///
    /// # Errors
    /// What went wrong, in words without secrets.
    pub(super) async fn tools(&self, max_age: Duration, patience: Duration) -> Result<Arc<ServedCatalog>, McpFault> {
        let asked = Instant::now();
        // Held while reading, so that many askers make one reading.
        let mut read = self.catalog.read.lock().await;
        if let Some(reading) = read.as_ref() {
            let is_fresh = reading.is_fresh(max_age) || reading.at >= asked;
            if is_fresh && !self.catalog.announced.0.load(Ordering::Acquire) && self.is_alive() {
                return Ok(Arc::clone(&reading.catalog));
            }
        }
        // Cleared first: an announcement during the reading counts.
        self.catalog.announced.0.store(false, Ordering::Release);
        let at = Instant::now();
        failpoint::pass("catalog.read.before");
        let pages = tokio::time::timeout(patience, self.read_pages()).await;
        failpoint::pass("catalog.read.after");
        let (catalog, ttl) = match pages {
            Ok(pages) => pages?,
            Err(_elapsed) => return Err(unreadable(&format!("no answer within {} ms", patience.as_millis()))),
        };
        let catalog = Arc::new(catalog);
        *read = Some(Reading { at, ttl, catalog: Arc::clone(&catalog) });
        Ok(catalog)
    }

    /// All pages, and how long the server says that they hold: as long as the page that expires first.
    async fn read_pages(&self) -> Result<(ServedCatalog, Option<Duration>), McpFault> {
        let (mut catalog, mut ttl) = (ServedCatalog::default(), None);
        let (mut names, mut cursors) = (HashSet::new(), HashSet::new());
        let mut cursor: Option<String> = None;
        for _page in 0..PAGES_MAX {
            let mut params = PaginatedRequestParams::default();
            params.cursor.clone_from(&cursor);
            let page = match self.peer().list_tools(Some(params)).await {
                Ok(page) => page,
                Err(error) if is_no_tools(&error) && cursor.is_none() => return Ok((catalog, ttl)),
                Err(error) => return Err(unreadable(&self.fault_of(&error))),
            };
            ttl = page.ttl_ms.map(Duration::from_millis).into_iter().chain(ttl).min();
            catalog.set_aside.extend(self.take_set_aside());
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
            let Some(next) = page.next_cursor else { return Ok((catalog, ttl)) };
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
    }
}

fn unreadable(why: &str) -> McpFault {
    McpFault::new(format!("The MCP server's tools could not be read: {why}."))
}
