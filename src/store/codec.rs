//! What a row holds: the stored forms of the core's values, each with its version. Knows JSON and the core's types, no
//! SQL.
//!
//! A document is `{"v": 1, "body": …}`. A version that this program does not know is corrupt to it, never guessed at.
//! Arguments and results of calls stand beside their document, as the JSON text that they are: a call that moves never
//! writes its arguments again.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use uuid::Uuid;

use super::blobs::{self, Bodies, Cuttings, Kept, Places, Wanted};
use super::{AuditRow, FoundCall, RunView, StoreError, StoredEvent, Wishes};
use crate::run::call::{Call, CallTarget, Stage};
use crate::run::envelope::{Head, HeadState};
use crate::run::event::Event;
use crate::run::ids::{Actor, CallId, CallKey, RunId, RunUid};
use crate::run::message::Message;
use crate::run::outcome::{Cause, ToolError};
use crate::run::status::Status;
use crate::run::time::Timestamp;

/// The version of every document that this program writes.
const VERSION: u32 = 1;
/// How deeply nested a value the JSON reader takes.
const DEPTH: usize = 127;

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
fn readable(what: &'static str, text: String, most: usize) -> Result<String, StoreError> {
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

fn json_value(what: &'static str, text: &str) -> Result<Value, StoreError> {
    serde_json::from_str(text).map_err(|fault| faulty(what, &fault))
}

/// A number that the core counts without a sign.
pub(super) fn count(what: &'static str, stored: i64) -> Result<u32, StoreError> {
    u32::try_from(stored).map_err(|fault| corrupt(what, fault))
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

/// A call without its arguments and its result.
#[derive(Serialize, Deserialize)]
struct CallDocument {
    key: CallKey,
    call_id: CallId,
    tool: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    target: Option<CallTarget>,
    attempt: u32,
    stage: StageDocument,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    decided_by: Option<Actor>,
    created_at: Timestamp,
}

/// A stage without the backend's result.
#[derive(Serialize, Deserialize)]
#[serde(tag = "stage", rename_all = "kebab-case")]
enum StageDocument {
    Rejected { rule: String, reason: String },
    Pending,
    Executing { since: Timestamp },
    Completed { settled_at: Timestamp },
    Failed { settled_at: Timestamp, error: ToolError },
    Indeterminate { cause: Cause, since: Timestamp, authorized: bool },
}

/// A row of `calls`.
#[derive(Clone, Debug)]
pub(super) struct CallRow {
    pub(super) turn: i64,
    pub(super) pos: i64,
    pub(super) stage: &'static str,
    /// Since when nobody knows its outcome.
    pub(super) undecided_since: Option<i64>,
    pub(super) created_at: i64,
    pub(super) input: String,
    pub(super) body: String,
    pub(super) output: Option<String>,
    pub(super) blobs: Option<String>,
}

/// Where arguments and result stand in the column `blobs` of a call.
const INPUT: &str = "/input";
const OUTPUT: &str = "/output";

impl CallRow {
    pub(super) fn encode(call: &Call, cuttings: &mut Cuttings) -> Result<Self, StoreError> {
        let (stage, output) = split_stage(&call.stage);
        let undecided_since = match &call.stage {
            Stage::Indeterminate { since, .. } => Some(since.as_millis()),
            Stage::Rejected { .. }
            | Stage::Pending
            | Stage::Executing { .. }
            | Stage::Completed { .. }
            | Stage::Failed { .. } => None,
        };
        let document = CallDocument {
            key: call.key,
            call_id: call.call_id.clone(),
            tool: call.tool.clone(),
            target: call.target.clone(),
            attempt: call.attempt,
            stage,
            decided_by: call.decided_by.clone(),
            created_at: call.created_at,
        };
        let mut places = Places::new();
        let mut value = |what: &'static str, root: &str, value: &Value| {
            let text = readable(what, json_text(what, value)?, DEPTH)?;
            Ok::<String, StoreError>(cuttings.cut(root, &text, &mut places).unwrap_or(text))
        };
        let input = value("call input", INPUT, &call.input)?;
        let output = output.map(|output| value("call output", OUTPUT, output)).transpose()?;
        Ok(Self {
            turn: call.key.turn.into(),
            pos: call.key.position.into(),
            stage: call.stage.code(),
            undecided_since,
            created_at: call.created_at.as_millis(),
            input,
            body: encode("call", &document)?,
            output,
            blobs: blobs::column(&places)?,
        })
    }

    pub(super) fn bytes(&self) -> usize {
        self.input.len() + self.body.len() + self.output.as_ref().map_or(0, String::len)
    }
}

fn split_stage(stage: &Stage) -> (StageDocument, Option<&Value>) {
    match stage {
        Stage::Rejected { rule, reason } => {
            (StageDocument::Rejected { rule: rule.clone(), reason: reason.clone() }, None)
        }
        Stage::Pending => (StageDocument::Pending, None),
        Stage::Executing { since } => (StageDocument::Executing { since: *since }, None),
        Stage::Completed { settled_at, output } => (StageDocument::Completed { settled_at: *settled_at }, Some(output)),
        Stage::Failed { settled_at, error, output } => {
            (StageDocument::Failed { settled_at: *settled_at, error: error.clone() }, output.as_ref())
        }
        Stage::Indeterminate { cause, since, authorized } => {
            let (cause, since, authorized) = (*cause, *since, *authorized);
            (StageDocument::Indeterminate { cause, since, authorized }, None)
        }
    }
}

/// A row of `calls` as it was read.
#[derive(Clone, Debug)]
pub(super) struct CallText {
    body: String,
    input: Kept,
    output: Option<Kept>,
}

impl CallText {
    pub(super) fn read(
        body: String,
        input: String,
        output: Option<String>,
        blobs: Option<&str>,
    ) -> Result<Self, StoreError> {
        let places = blobs::places(blobs)?;
        let output = output.map(|text| Kept::at(OUTPUT, text, &places));
        Ok(Self { body, input: Kept::at(INPUT, input, &places), output })
    }

    /// Whether the call has this label.
    pub(super) fn is_named(&self, call_id: &CallId) -> Result<bool, StoreError> {
        Ok(decode::<CallDocument>("call", &self.body)?.call_id == *call_id)
    }

    pub(super) fn bytes(&self) -> usize {
        self.body.len() + self.input.bytes() + self.output.as_ref().map_or(0, Kept::bytes)
    }

    pub(super) fn want(&self, run: RunUid, wanted: &mut Wanted) {
        wanted.add(run, &self.input);
        if let Some(output) = &self.output {
            wanted.add(run, output);
        }
    }

    pub(super) fn decode(self, run: RunUid, bodies: &Bodies) -> Result<Call, StoreError> {
        let output = self.output.map(|output| output.whole(run, bodies)).transpose()?;
        call(&self.body, &self.input.whole(run, bodies)?, output.as_deref())
    }
}

/// A call with its run's name, as it was read.
pub(super) struct FoundText {
    pub(super) run_id: RunId,
    pub(super) uid: RunUid,
    pub(super) call: CallText,
}

impl FoundText {
    pub(super) fn decode(self, bodies: &Bodies) -> Result<FoundCall, StoreError> {
        Ok(FoundCall { run_id: self.run_id, uid: self.uid, call: self.call.decode(self.uid, bodies)? })
    }
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
        for call in self.calls {
            let call = call.decode(self.view.uid, bodies)?;
            if call.is_undecided() {
                self.view.undecided.extend(crate::run::envelope::undecided_call(&call));
            }
        }
        Ok(self.view)
    }
}

/// A call from its row.
fn call(body: &str, input: &str, output: Option<&str>) -> Result<Call, StoreError> {
    let document: CallDocument = decode("call", body)?;
    let output = output.map(|text| json_value("call output", text)).transpose()?;
    let stage = match document.stage {
        StageDocument::Rejected { rule, reason } => Stage::Rejected { rule, reason },
        StageDocument::Pending => Stage::Pending,
        StageDocument::Executing { since } => Stage::Executing { since },
        StageDocument::Completed { settled_at } => {
            let output = output.ok_or_else(|| corrupt("call output", "missing in a completed call"))?;
            Stage::Completed { settled_at, output }
        }
        StageDocument::Failed { settled_at, error } => Stage::Failed { settled_at, error, output },
        StageDocument::Indeterminate { cause, since, authorized } => Stage::Indeterminate { cause, since, authorized },
    };
    Ok(Call {
        key: document.key,
        call_id: document.call_id,
        tool: document.tool,
        input: json_value("call input", input)?,
        target: document.target,
        attempt: document.attempt,
        decided_by: document.decided_by,
        stage,
        created_at: document.created_at,
    })
}

/// What others wish of a run, from its columns.
pub(super) fn wishes(cancel: Option<String>, decisions: &[String]) -> Result<Wishes, StoreError> {
    Ok(Wishes {
        cancel_requested_by: cancel.map(|by| named("actor", Actor::parse(by))).transpose()?,
        decisions: decisions.iter().map(|body| decode("decision", body)).collect::<Result<_, _>>()?,
    })
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

/// The calls of the last turn, and any earlier one that still waits for a person.
pub(super) fn last_calls(
    turn: u32,
    run: RunUid,
    rows: Vec<CallText>,
    bodies: &Bodies,
) -> Result<Vec<Call>, StoreError> {
    let mut calls = Vec::new();
    for row in rows {
        let call = row.decode(run, bodies)?;
        if call.key.turn == turn || call.is_undecided() {
            calls.push(call);
        }
    }
    Ok(calls)
}

/// A small document without a version, e.g. a JSON array of texts as a database groups them.
pub(super) fn texts<T: DeserializeOwned>(what: &'static str, text: &str) -> Result<T, StoreError> {
    serde_json::from_str(text).map_err(|fault| faulty(what, &fault))
}
