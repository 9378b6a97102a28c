//! Counts the open streams, and how many each actor has: a client that forgets to close its streams is told so before it
//! takes the server's memory and file descriptors.

use std::sync::Arc;

use dashmap::DashMap;

use super::problem::ApiError;
use crate::auth::Caller;
use crate::run::ids::{Actor, TenantId};

type Counts = Arc<DashMap<(TenantId, Actor), usize>>;

/// The open streams of this process.
pub(super) struct Readers {
    most: usize,
    open: Counts,
}

/// The place of one open stream; given back when dropped.
pub(super) struct Reading {
    who: (TenantId, Actor),
    open: Counts,
}

impl Readers {
    /// Nobody reads yet; each actor may have so many streams open.
    pub(super) fn new(most: usize) -> Self {
        Self { most, open: Counts::default() }
    }

    /// A place for one more stream.
    ///
    /// # Errors
    /// `TooManyStreams`.
    pub(super) fn enter(&self, caller: &Caller) -> Result<Reading, ApiError> {
        let who = (caller.tenant.clone(), caller.actor.clone());
        let mut open = self.open.entry(who.clone()).or_default();
        if *open >= self.most {
            return Err(ApiError::TooManyStreams(self.most));
        }
        *open = open.saturating_add(1);
        drop(open);
        metrics::gauge!("countersign_event_readers").increment(1.0);
        Ok(Reading { who, open: Arc::clone(&self.open) })
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        metrics::gauge!("countersign_event_readers").decrement(1.0);
        if let Some(mut open) = self.open.get_mut(&self.who) {
            *open = open.saturating_sub(1);
        }
        self.open.remove_if(&self.who, |_, open| *open == 0);
    }
}
