//! One commit as rows, the same for both dialects. Knows what a commit says, no SQL.

use std::sync::Arc;

use uuid::Uuid;

use super::blobs::{self, Cuttings, Places};
use super::calls::CallRow;
use super::codec::{encode, stored_event};
use super::{Admission, StoreError, StoredEvent};
use crate::run::approval::Approval;
use crate::run::commit::{Commit, Next};
use crate::run::event::Event;
use crate::run::ids::CallKey;
use crate::run::message::Message;
use crate::run::time::Timestamp;

/// A row of `events`: the event as readers get it, and as it is kept where that differs.
#[derive(Clone, Debug)]
pub(super) struct EventRow {
    pub(super) at: i64,
    pub(super) event: Arc<StoredEvent>,
    cut: Option<String>,
    pub(super) blobs: Option<String>,
}

impl EventRow {
    fn encode(event: &Event, cuttings: &mut Cuttings) -> Result<Self, StoreError> {
        let (stored, mut places) = (stored_event(event)?, Places::new());
        let cut = cuttings.cut("", &stored.body, &mut places);
        Ok(Self { at: event.at.as_millis(), event: Arc::new(stored), cut, blobs: blobs::column(&places)? })
    }

    /// Of an event that is only told.
    pub(super) fn told(event: &Event) -> Result<Self, StoreError> {
        Ok(Self { at: event.at.as_millis(), event: Arc::new(stored_event(event)?), cut: None, blobs: None })
    }

    /// The text that is kept.
    pub(super) fn body(&self) -> &str {
        self.cut.as_deref().unwrap_or(&self.event.body)
    }
}

/// A row of `messages`.
#[derive(Clone, Debug)]
pub(super) struct MessageRow {
    pub(super) pos: i64,
    pub(super) body: String,
    pub(super) blobs: Option<String>,
}

impl MessageRow {
    fn encode(message: &Message, cuttings: &mut Cuttings) -> Result<Self, StoreError> {
        let (body, mut places) = (encode("message", message)?, Places::new());
        let body = cuttings.cut("", &body, &mut places).unwrap_or(body);
        Ok(Self { pos: message.position.into(), body, blobs: blobs::column(&places)? })
    }
}

/// A row of `approvals`.
#[derive(Clone, Debug)]
pub(super) struct ApprovalRow {
    pub(super) id: Uuid,
    pub(super) status: &'static str,
    pub(super) created_at: i64,
    pub(super) expires_at: Option<i64>,
    pub(super) body: String,
}

impl ApprovalRow {
    fn encode(approval: &Approval) -> Result<Self, StoreError> {
        Ok(Self {
            id: approval.id,
            status: approval.status.code(),
            created_at: approval.created_at.as_millis(),
            expires_at: approval.expires_at.map(Timestamp::as_millis),
            body: encode("approval", approval)?,
        })
    }

    /// All of them as one text; the documents stay as they are written, so no number loses digits.
    fn array(approvals: &[Approval]) -> Result<Option<String>, StoreError> {
        let element = |approval: &Approval| {
            let Self { id, status, created_at, expires_at, body } = Self::encode(approval)?;
            let expires_at = expires_at.map_or_else(|| "null".to_owned(), |at| at.to_string());
            Ok(format!(
                r#"{{"id":"{id}","status":"{status}","created_at":{created_at},"expires_at":{expires_at},"body":{body}}}"#
            ))
        };
        let elements = approvals.iter().map(element).collect::<Result<Vec<String>, StoreError>>()?;
        Ok((!elements.is_empty()).then(|| format!("[{}]", elements.join(","))))
    }
}

/// One commit as rows. Made by the writer's own task, so that the one task that talks to the database only copies.
#[derive(Clone, Debug)]
pub struct CommitRows {
    pub(super) expected: i64,
    /// Number of the last event before this commit.
    pub(super) base_seq: i64,
    pub(super) status: &'static str,
    pub(super) reason: Option<&'static str>,
    pub(super) terminal: bool,
    /// Whether workers may take a call that they could not take before.
    pub(super) offers: bool,
    pub(super) last_seq: i64,
    pub(super) attempt: i64,
    pub(super) crashes: i64,
    pub(super) state: String,
    pub(super) created_at: i64,
    pub(super) updated_at: i64,
    pub(super) finished_at: Option<i64>,
    /// Whether the owner lets go of the run.
    pub(super) lets_go: bool,
    /// Milliseconds until the run is due, counted by the database's clock; `None`: it rests.
    pub(super) due_in: Option<i64>,
    pub(super) messages: Vec<MessageRow>,
    pub(super) calls: Vec<CallRow>,
    pub(super) events: Vec<EventRow>,
    pub(super) binding: Option<(i64, String)>,
    pub(super) approvals: Vec<ApprovalRow>,
    /// The same as one JSON array; `None`: there are none.
    pub(super) asked: Option<String>,
    /// The big values of all rows.
    pub(super) blobs: Cuttings,
}

impl CommitRows {
    /// # Errors
    /// `Rejected` when the commit contradicts itself: its revision or its event numbers do not follow.
    pub fn encode(commit: &Commit) -> Result<Self, StoreError> {
        let head = &commit.head;
        let (lets_go, due_in) = next_columns(commit);
        let mut cuttings = Cuttings::default();
        Ok(Self {
            expected: commit.expected,
            base_seq: base_seq(commit)?,
            status: head.status.code(),
            reason: head.status.reason(),
            terminal: head.status.is_terminal(),
            offers: commit.offers(),
            last_seq: head.last_seq,
            attempt: head.attempt.into(),
            crashes: head.crashes.into(),
            state: encode("head", &head.state)?,
            created_at: head.created_at.as_millis(),
            updated_at: head.updated_at.as_millis(),
            finished_at: head.finished_at.map(Timestamp::as_millis),
            lets_go,
            due_in,
            messages: commit
                .messages
                .iter()
                .map(|message| MessageRow::encode(message, &mut cuttings))
                .collect::<Result<_, _>>()?,
            calls: call_rows(commit, &mut cuttings)?,
            events: commit
                .events
                .iter()
                .map(|event| EventRow::encode(event, &mut cuttings))
                .collect::<Result<_, _>>()?,
            binding: match &commit.binding {
                Some(binding) => Some((i64::from(binding.revision), encode("binding", binding)?)),
                None => None,
            },
            asked: ApprovalRow::array(&commit.approvals)?,
            approvals: commit.approvals.iter().map(ApprovalRow::encode).collect::<Result<_, _>>()?,
            blobs: cuttings,
        })
    }

    /// The first rows of a run.
    pub(super) fn of_admission(admission: &Admission) -> Result<Self, StoreError> {
        let rows = Self::encode(&admission.commit)?;
        if rows.expected != 0 || rows.base_seq != 0 || rows.binding.is_none() {
            return Err(StoreError::Rejected("a run begins with revision 1, event 1 and a binding".to_owned()));
        }
        Ok(rows)
    }

    /// The same rows for a run that nobody owns: whoever is to go on with it is due now.
    pub(super) fn of_nobody(mut self) -> Self {
        if !self.lets_go {
            self.lets_go = true;
            self.due_in = Some(0);
        }
        self
    }

    /// How many rows it writes.
    pub(super) fn rows(&self) -> usize {
        let rows = self.messages.len() + self.calls.len() + self.events.len() + self.blobs.len();
        1 + rows + self.approvals.len() + usize::from(self.binding.is_some())
    }

    /// About how many bytes it writes.
    pub(super) fn bytes(&self) -> usize {
        let messages: usize = self.messages.iter().map(|row| row.body.len()).sum();
        let calls: usize = self.calls.iter().map(CallRow::bytes).sum();
        let events: usize = self.events.iter().map(|row| row.body().len()).sum();
        let binding = self.binding.as_ref().map_or(0, |(_, body)| body.len());
        self.state.len() + messages + calls + events + binding + self.blobs.bytes()
    }
}

/// A due time is kept as the delay that the core decided, so that only one clock, the database's, says when it is over.
fn next_columns(commit: &Commit) -> (bool, Option<i64>) {
    if commit.head.status.is_terminal() {
        return (true, None);
    }
    match commit.next {
        Next::Owner => (false, None),
        Next::Due(at) => (true, Some(at.millis_since(commit.head.updated_at))),
        Next::Rest => (true, None),
    }
}

/// Checks that revision and event numbers follow, and says the last number before.
fn base_seq(commit: &Commit) -> Result<i64, StoreError> {
    let mut seq = commit.head.last_seq.saturating_sub(i64::try_from(commit.events.len()).unwrap_or(i64::MAX));
    let base = seq;
    for event in &commit.events {
        seq = seq.saturating_add(1);
        if event.seq != seq {
            return Err(StoreError::Rejected(format!("event {} stands where {seq} should", event.seq)));
        }
    }
    if base < 0 || commit.head.revision != commit.expected.saturating_add(1) {
        return Err(StoreError::Rejected("the commit's numbers do not follow".to_owned()));
    }
    Ok(base)
}

/// A call that was made and moved by one commit is one row: its last stage.
fn call_rows(commit: &Commit, cuttings: &mut Cuttings) -> Result<Vec<CallRow>, StoreError> {
    let moved = |key: CallKey| commit.calls_moved.iter().any(|call| call.key == key);
    let made = commit.calls_made.iter().filter(|call| !moved(call.key));
    made.chain(&commit.calls_moved).map(|call| CallRow::encode(call, commit.head.updated_at, cuttings)).collect()
}
