//! What really happened to one attempt to send a call. The transport writes it down as it happens; the classification
//! (`outcome.rs`) reads it. It travels inside the request object, so it needs no table and cannot be mixed up.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::Notify;

use super::shape::Excess;
use super::wire::IDEMPOTENCY_KEY;
use super::{AskDoor, MayLeave};
use crate::bulk::{Held, Hold};

/// How far an attempt came. Later stages replace earlier ones; an answer is final.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Stage {
    /// Handed to the protocol library, which has not asked the transport to send it yet.
    Queued,
    /// Given up, or not allowed any more, while queued: the transport will refuse to send it.
    Withdrawn,
    /// Given to the HTTP client. From here on the server may have it.
    Sent,
    /// Nothing was written: no connection came about, or the address is not allowed.
    NotConnected(String),
    /// The server answered with a status other than 2xx.
    Status(HttpRefusal),
    /// Something came back, or the connection broke, and no answer to this call can be read from it.
    Unreadable(&'static str),
    /// A 2xx answer of the right kind is over a limit.
    TooLarge(Excess),
    /// The JSON-RPC answer as the server wrote it: an object with `result` or `error`.
    Answered(Value),
}

/// A status other than 2xx.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct HttpRefusal {
    /// The status.
    pub(super) status: u16,
    /// The server's `Retry-After`.
    pub(super) retry_after: Option<Duration>,
    /// The server does not know our session any more.
    pub(super) session_lost: bool,
    /// The token that it refused has a successor.
    pub(super) renewed: bool,
    /// The message of a JSON-RPC error in the body.
    pub(super) message: Option<String>,
    /// Its code.
    pub(super) code: Option<i64>,
}

/// The session that a sent call belongs to: what its cancellation must carry.
#[derive(Clone, Debug)]
pub(super) struct Route {
    /// The id of the request on the wire.
    pub(super) id: Value,
    /// The headers that the request went out with, its session among them.
    pub(super) headers: HeaderMap,
}

/// One attempt to send a call, or to ask about one, or to read a list.
#[derive(Debug)]
pub(super) struct Attempt {
    headers: HeaderMap,
    may_leave: MayLeave,
    asks: Option<AskDoor>,
    /// Whether it reads a list of tools, which the protocol library must not read as it is.
    is_list: bool,
    /// The bytes of its answer.
    held: Held,
    state: Mutex<(Stage, Option<Route>)>,
    settled: Notify,
}

impl Attempt {
    /// An attempt whose request carries these headers: of a call `Idempotency-Key`, and what its tool wants to see.
    pub(super) fn new(headers: HeaderMap, may_leave: MayLeave, asks: Option<AskDoor>, held: Held) -> Arc<Self> {
        Arc::new(Self {
            headers,
            may_leave,
            asks,
            is_list: false,
            held,
            state: Mutex::new((Stage::Queued, None)),
            settled: Notify::new(),
        })
    }

    /// A question: it may be asked at any time, and as often as one likes.
    pub(super) fn of_question(held: Held) -> Arc<Self> {
        Self::new(HeaderMap::new(), MayLeave::new(|| true), None, held)
    }

    /// A question for a list of tools.
    pub(super) fn of_listing() -> Arc<Self> {
        let (headers, may_leave) = (HeaderMap::new(), MayLeave::new(|| true));
        let (state, settled) = (Mutex::new((Stage::Queued, None)), Notify::new());
        Arc::new(Self { headers, may_leave, asks: None, is_list: true, held: Held::default(), state, settled })
    }

    /// Whether it reads a list of tools.
    pub(super) fn is_list(&self) -> bool {
        self.is_list
    }

    /// Keeps the bytes of its answer for whoever waits for it.
    pub(super) fn hold(&self, hold: Option<Hold>) {
        self.held.put(hold);
    }

    /// The headers of this request alone.
    pub(super) fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    /// Whether it is a call, which may have an effect.
    pub(super) fn is_call(&self) -> bool {
        self.headers.contains_key(IDEMPOTENCY_KEY)
    }

    /// Where the server's questions about it go.
    pub(super) fn asks(&self) -> Option<&AskDoor> {
        self.asks.as_ref()
    }

    /// Marks the attempt as sent. `false`: it was given up or may not leave any more, nothing may be written.
    pub(super) fn start(&self, route: Route) -> bool {
        let mut state = self.state.lock();
        if state.0 != Stage::Queued {
            return false;
        }
        // The answer to an earlier attempt is not waited with for bytes for the next.
        drop(self.held.take());
        if !self.may_leave.holds() {
            state.0 = Stage::Withdrawn;
            self.settled.notify_waiters();
            return false;
        }
        *state = (Stage::Sent, Some(route));
        true
    }

    /// Writes down what became of a sent attempt; the first thing that is known stays.
    pub(super) fn settle(&self, stage: Stage) {
        let mut state = self.state.lock();
        if state.0 == Stage::Sent {
            state.0 = stage;
            self.settled.notify_waiters();
        }
    }

    /// Puts a sent attempt back into the queue: the server turned it away unread, and it may leave once more.
    pub(super) fn recall(&self) {
        let mut state = self.state.lock();
        if state.0 == Stage::Sent {
            *state = (Stage::Queued, None);
        }
    }

    /// Ends a queued attempt: nothing was written, and it will not leave.
    pub(super) fn turn_away(&self, stage: Stage) {
        let mut state = self.state.lock();
        if state.0 == Stage::Queued {
            state.0 = stage;
            self.settled.notify_waiters();
        }
    }

    /// Gives up: what was not sent by now never will be. Whether that is so.
    pub(super) fn withdraw(&self) -> bool {
        let mut state = self.state.lock();
        let is_queued = state.0 == Stage::Queued;
        if is_queued {
            state.0 = Stage::Withdrawn;
        }
        is_queued
    }

    /// Gives up, and hands over how far it had come. An answer is large, and handed over once.
    pub(super) fn close(&self) -> Stage {
        let mut state = self.state.lock();
        match &state.0 {
            Stage::Queued | Stage::Answered(_) => std::mem::replace(&mut state.0, Stage::Withdrawn),
            Stage::Withdrawn
            | Stage::Sent
            | Stage::NotConnected(_)
            | Stage::Status(_)
            | Stage::Unreadable(_)
            | Stage::TooLarge(_) => state.0.clone(),
        }
    }

    /// Where the request went, once it was sent.
    pub(super) fn route(&self) -> Option<Route> {
        self.state.lock().1.clone()
    }

    /// Ends once it is known what became of the attempt.
    pub(super) async fn settled(&self) {
        loop {
            let notified = self.settled.notified();
            if !matches!(self.state.lock().0, Stage::Queued | Stage::Sent) {
                return;
            }
            notified.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt() -> Arc<Attempt> {
        Attempt::of_question(Held::default())
    }

    fn route() -> Route {
        Route { id: Value::from(1), headers: HeaderMap::new() }
    }

    #[test]
    fn an_attempt_given_up_in_the_queue_is_never_sent() {
        let attempt = attempt();
        assert_eq!(attempt.close(), Stage::Queued);
        assert!(!attempt.start(route()));
        assert_eq!(attempt.close(), Stage::Withdrawn);
    }

    #[test]
    fn an_answer_outlives_whatever_comes_after_it() {
        let attempt = attempt();
        assert!(attempt.start(route()));
        attempt.settle(Stage::Answered(Value::Null));
        attempt.settle(Stage::Unreadable("cut"));
        assert_eq!(attempt.close(), Stage::Answered(Value::Null));
    }

    #[test]
    fn a_recalled_attempt_is_as_good_as_never_sent() {
        let attempt = attempt();
        assert!(attempt.start(route()));
        attempt.recall();
        attempt.settle(Stage::Unreadable("of the first request"));
        assert!(attempt.start(route()), "it may leave once more");
        attempt.recall();
        assert_eq!(attempt.close(), Stage::Queued);
        assert!(!attempt.start(route()), "unless it was given up meanwhile");
    }

    #[tokio::test]
    async fn waiting_ends_when_the_answer_is_known() {
        let attempt = attempt();
        assert!(attempt.start(route()));
        let waiting = attempt.settled();
        attempt.settle(Stage::Answered(Value::Null));
        waiting.await;
    }
}
