//! What a row holds: the stored forms of the core's values, each with its version. Knows JSON and the core's types, no
//! SQL.
//!
//! A document is `{"v": 1, "body": …}`. A version that this program does not know is never guessed at: a later one is
//! left to the nodes that wrote it, any other is corrupt.
//! Arguments and results of calls stand beside their document, as the JSON text that they are: a call that moves never
//! writes its arguments again.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use uuid::Uuid;

use super::blobs::{Bodies, Kept, Wanted};
use super::calls::CallText;
use super::{AuditRow, LeftFact, RunView, StoreError, StoredEvent, Wishes};
use crate::run::envelope::{Head, HeadState};
use crate::run::event::Event;
use crate::run::fact::{InputAnswer, LeftVote, Reconciliation};
use crate::run::ids::{Actor, CallKey, RunId, RunUid};
use crate::run::message::Message;
use crate::run::status::Status;
use crate::run::time::Timestamp;

/// The version of every document that this program writes.
const VERSION: u32 = 1;
/// How deeply nested a value the JSON reader takes.
pub(super) const DEPTH: usize = 127;

#[derive(Serialize)]
struct Written<'a, T> {
    v: u32,
    body: &'a T,
}

#[derive(Deserialize)]
struct Read<'a> {
    v: u32,
    #[serde(borrow)]
    body: &'a RawValue,
}

pub(super) fn corrupt(what: &'static str, detail: impl ToString) -> StoreError {
    StoreError::Corrupt { what, detail: detail.to_string() }
}

/// A value as a versioned document.
pub(super) fn encode<T: Serialize>(what: &'static str, body: &T) -> Result<String, StoreError> {
    let text = json_text(what, &Written { v: VERSION, body })?;
    // The reader takes the wrapper off before it counts.
    readable(what, text, DEPTH + 1)
}

/// A versioned document as the value that it holds.
pub(super) fn decode<T: DeserializeOwned>(what: &'static str, text: &str) -> Result<T, StoreError> {
    let read: Read<'_> = serde_json::from_str(text).map_err(|fault| faulty(what, &fault))?;
    if read.v > VERSION {
        return Err(StoreError::Newer { what, version: read.v });
    }
    if read.v != VERSION {
        return Err(corrupt(what, format_args!("version {} is not known", read.v)));
    }
    serde_json::from_str(read.body.get()).map_err(|fault| faulty(what, &fault))
}

/// Where the reader stopped and why, by kind: its own words may quote the payload.
fn faulty(what: &'static str, fault: &serde_json::Error) -> StoreError {
    corrupt(what, format_args!("{:?} error in column {}", fault.classify(), fault.column()))
}

pub(super) fn json_text<T: Serialize>(what: &'static str, value: &T) -> Result<String, StoreError> {
    serde_json::to_string(value).map_err(|fault| StoreError::Rejected(format!("{what} does not print: {fault}")))
}

/// Refuses what the reader would refuse: a run that is stored must load.
pub(super) fn readable(what: &'static str, text: String, most: usize) -> Result<String, StoreError> {
    let (mut depth, mut deepest, mut quoted, mut escaped) = (0_usize, 0_usize, false, false);
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b'[' | b'{' if !quoted => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b']' | b'}' if !quoted => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    if deepest > most {
        return Err(StoreError::Rejected(format!("{what} is nested {deepest} levels deep")));
    }
    Ok(text)
}

pub(super) fn json_value(what: &'static str, text: &str) -> Result<Value, StoreError> {
    serde_json::from_str(text).map_err(|fault| faulty(what, &fault))
}

/// A number that the core counts without a sign.
pub(super) fn count(what: &'static str, stored: i64) -> Result<u32, StoreError> {
    u32::try_from(stored).map_err(|fault| corrupt(what, fault))
}

/// The place of a call.
pub(super) fn call_key(turn: i64, position: i64) -> Result<CallKey, StoreError> {
    Ok(CallKey { turn: count("turn", turn)?, position: count("position", position)? })
}

/// A name that the core checks.
pub(super) fn named<T>(what: &'static str, parsed: Option<T>) -> Result<T, StoreError> {
    parsed.ok_or_else(|| corrupt(what, "not a name of this kind"))
}

/// Label text as the filter column holds it: reversible, and without the NUL that no Postgres text can hold.
fn label_text(text: &str) -> String {
    text.replace('\\', "\\\\").replace('\0', "\\0")
}

/// The labels of a run, for the filter column.
pub(super) fn labels<'a>(metadata: impl IntoIterator<Item = (&'a String, &'a String)>) -> Result<String, StoreError> {
    let labels: std::collections::BTreeMap<String, String> =
        metadata.into_iter().map(|(key, value)| (label_text(key), label_text(value))).collect();
    json_text("metadata", &labels)
}

/// The wanted labels of a list, as an array of pairs.
pub(super) fn wanted_labels(wanted: &[(String, String)]) -> Result<String, StoreError> {
    let wanted: Vec<[String; 2]> = wanted.iter().map(|(key, value)| [label_text(key), label_text(value)]).collect();
    json_text("metadata", &wanted)
}

/// A message as it was read.
pub(super) fn message(run: RunUid, kept: Kept, bodies: &Bodies) -> Result<Message, StoreError> {
    decode("message", &kept.whole(run, bodies)?)
}

/// A view as it was read: its calls that wait for a person are still texts.
pub(super) struct ViewText {
    pub(super) view: RunView,
    pub(super) calls: Vec<CallText>,
    /// Of its documents; the calls not counted.
    pub(super) bytes: usize,
}

impl ViewText {
    pub(super) fn bytes(&self) -> usize {
        self.calls.iter().fold(self.bytes, |sum, call| sum.saturating_add(call.bytes()))
    }

    pub(super) fn want(&self, wanted: &mut Wanted) {
        for call in &self.calls {
            call.want(self.view.uid, wanted);
        }
    }

    pub(super) fn decode(mut self, bodies: &Bodies) -> Result<RunView, StoreError> {
        let ended = self.view.head.status.is_terminal();
        for call in self.calls {
            let call = call.decode(self.view.uid, bodies)?;
            if call.is_undecided_in(ended) {
                self.view.undecided.extend(crate::run::envelope::undecided_call(&call));
            }
            self.view.client_calls.extend(crate::run::envelope::client_call(&call));
        }
        Ok(self.view)
    }
}

/// What others wish of a run, from its columns.
pub(super) fn wishes(
    cancel: Option<String>,
    decisions: Vec<(Timestamp, Reconciliation)>,
    answers: Vec<InputAnswer>,
    fetched: Vec<LeftFact>,
    votes: Vec<LeftVote>,
) -> Result<Wishes, StoreError> {
    let cancel_requested_by = cancel.map(|by| named("actor", Actor::parse(by))).transpose()?;
    Ok(Wishes { cancel_requested_by, decisions, answers, fetched, votes })
}

/// A row of the audit as it is read: at, id, actor, action, subject, run, detail.
pub(super) type AuditColumns = (i64, Uuid, String, String, String, Option<String>, String);

/// The row that they say.
pub(super) fn audit_row(columns: AuditColumns) -> Result<AuditRow, StoreError> {
    let (at, id, actor, action, subject, run_id, detail) = columns;
    Ok(AuditRow {
        id,
        at: Timestamp::from_millis(at),
        actor: named("actor", Actor::parse(actor))?,
        action,
        subject,
        run_id: run_id.map(|id| named("run id", RunId::parse(id))).transpose()?,
        detail: decode("audit", &detail)?,
    })
}

/// The columns of a head, as they are read.
#[derive(Clone, Debug)]
pub(super) struct HeadColumns {
    pub(super) status: String,
    pub(super) reason: Option<String>,
    pub(super) revision: i64,
    pub(super) last_seq: i64,
    pub(super) attempt: i64,
    pub(super) crashes: i64,
    pub(super) state: String,
    pub(super) created_at: i64,
    pub(super) updated_at: i64,
    pub(super) finished_at: Option<i64>,
}

impl HeadColumns {
    /// The head that they say.
    pub(super) fn decode(self) -> Result<Head, StoreError> {
        let status = Status::from_codes(&self.status, self.reason.as_deref());
        let state: HeadState = decode("head", &self.state)?;
        Ok(Head {
            status: status.ok_or_else(|| corrupt("status", "not a status with its reason"))?,
            revision: self.revision,
            last_seq: self.last_seq,
            attempt: count("attempt", self.attempt)?,
            crashes: count("crashes", self.crashes)?,
            state,
            created_at: Timestamp::from_millis(self.created_at),
            updated_at: Timestamp::from_millis(self.updated_at),
            finished_at: self.finished_at.map(Timestamp::from_millis),
        })
    }
}

/// An event as readers get it.
pub(super) fn stored_event(event: &Event) -> Result<StoredEvent, StoreError> {
    let body = json_text("event", event)?;
    Ok(StoredEvent { seq: event.seq, kind: event.body.kind().to_owned(), body })
}

/// A small document without a version, e.g. a JSON array of texts as a database groups them.
pub(super) fn texts<T: DeserializeOwned>(what: &'static str, text: &str) -> Result<T, StoreError> {
    serde_json::from_str(text).map_err(|fault| faulty(what, &fault))
}
