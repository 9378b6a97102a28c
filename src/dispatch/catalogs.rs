//! What the servers of a run serve, as it was read last.

use std::sync::Arc;

use super::News;
use crate::mcp::Subscription;
use crate::run::binding::{ServedCatalog, Warning, WarningKind};

/// A required server gave no catalog.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("MCP server '{server}' cannot be read: {message}")]
pub struct Unreachable {
    /// What the entry is called: its namespace, else its address.
    pub server: String,
    /// For people.
    pub message: String,
}

/// What the servers of a run serve.
#[derive(Clone, Debug, Default)]
pub struct Catalogs {
    /// In the order of the entries; `None` for one that was not read.
    pub catalogs: Vec<Option<Arc<ServedCatalog>>>,
    /// Entries that are not required and could not be read.
    pub warnings: Vec<Warning>,
    /// What it takes to hear whether the readings still hold.
    pub watched: Watched,
    /// Whether an earlier reading of a server is kept because it could not be read again.
    pub has_kept: bool,
}

/// The servers of a run as they were read last, in the order of its entries. Their connections are in use meanwhile.
#[derive(Clone, Debug, Default)]
pub struct Watched(pub(super) Vec<Option<Subscription>>);

impl Watched {
    /// What became of the readings since.
    pub fn news(&self) -> News {
        self.0.iter().flatten().map(Subscription::news).max().unwrap_or(News::None)
    }
}

/// One server's tools, and what it takes to hear whether they still hold; neither of one that was not read.
pub(super) type ReadOne = (Option<Arc<ServedCatalog>>, Option<Subscription>);

impl Catalogs {
    pub(super) fn push(&mut self, (catalog, subscription): ReadOne) {
        self.catalogs.push(catalog);
        self.watched.0.push(subscription);
    }

    pub(super) fn keep(&mut self, before: Option<Subscription>) {
        self.has_kept |= before.is_some();
        self.push((None, before));
    }
}

/// An optional server that is away: told once, since it is told in the same words each time.
pub(super) fn unreadable(unreachable: &Unreachable) -> Warning {
    Warning::mcp(WarningKind::Other, unreachable.to_string(), Some("mcp-unreachable"))
}
