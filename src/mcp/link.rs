//! What a connection must know of the transport under it, whichever that is: how it failed, whether it is lost, and
//! how a call on it is cancelled.

use std::time::Duration;

use serde_json::Value;

use super::attempt::Attempt;
use super::stdio::StdioLink;
use super::transport::TrackedClient;
use super::{AskDoor, FaultKind};

/// The transport of one connection.
#[derive(Clone)]
pub(super) enum Link {
    /// Streamable HTTP.
    Http(TrackedClient),
    /// The pipes of a process.
    Stdio(StdioLink),
}

impl Link {
    pub(super) fn is_stdio(&self) -> bool {
        matches!(self, Self::Stdio(_))
    }

    /// What the last failed exchange of the connection itself (handshake, listing) failed of.
    pub(super) fn last_fault(&self) -> Option<(FaultKind, String)> {
        match self {
            Self::Http(client) => client.last_fault(),
            Self::Stdio(pipes) => pipes.last_fault(),
        }
    }

    /// Whether the server answered anything at all.
    pub(super) fn was_answered(&self) -> bool {
        match self {
            Self::Http(client) => client.was_answered(),
            // A process that was started is asked anew in the other era anyway.
            Self::Stdio(_) => false,
        }
    }

    /// Whether the server does not know us any more, or we do not listen to it.
    pub(super) fn session_lost(&self) -> bool {
        match self {
            Self::Http(client) => client.session_lost() || client.is_flooded(),
            Self::Stdio(pipes) => pipes.is_gone(),
        }
    }

    /// The call that a server's question is about. A process does not say which: it is the oldest that is out.
    pub(super) fn door_of(&self, request: Option<&Value>) -> Option<AskDoor> {
        match self {
            Self::Http(client) => client.door_of(request),
            Self::Stdio(pipes) => pipes.door_of(request),
        }
    }

    /// How many calls are out.
    pub(super) fn calls_out(&self) -> usize {
        match self {
            Self::Http(client) => client.calls_out(),
            Self::Stdio(pipes) => pipes.calls_out(),
        }
    }

    /// Takes a call off the table of those that are out.
    pub(super) fn forget(&self, attempt: &Attempt) {
        match self {
            Self::Http(client) => client.forget(attempt),
            Self::Stdio(pipes) => pipes.forget(attempt),
        }
    }

    /// Tells the server that a call is not wanted any more, without ending our own wait for its answer.
    pub(super) async fn cancel_call(&self, attempt: &Attempt, patience: Duration) {
        match self {
            Self::Http(client) => client.cancel_call(attempt, patience).await,
            Self::Stdio(pipes) => pipes.cancel_call(attempt, patience).await,
        }
    }
}
