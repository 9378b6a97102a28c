//! A row of `calls`: a call's document, and beside it arguments and result as the JSON text that they are. Knows the
//! core's call, no SQL.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::blobs::{self, Bodies, Cuttings, Kept, Places, Wanted};
use super::codec::{DEPTH, corrupt, decode, encode, json_text, json_value, readable};
use super::{FoundCall, StoreError};
use crate::run::ask::Asked;
use crate::run::call::{Backend, Call, CallTarget, Handing, Stage, Task, queue_name};
use crate::run::ids::{Actor, CallId, CallKey, RunId, RunUid};
use crate::run::outcome::{Cause, ToolError};
use crate::run::policy::Judged;
use crate::run::time::Timestamp;
use crate::run::untaken::Untaken;

/// A call without its arguments and its result.
#[derive(Serialize, Deserialize)]
struct CallDocument {
    key: CallKey,
    call_id: CallId,
    tool: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    target: Option<CallTarget>,
    attempt: u32,
    #[serde(default, skip_serializing_if = "is_zero")]
    turned_away: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    asked: Option<Box<Asked>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    task: Option<Task>,
    #[serde(default, skip_serializing_if = "Handing::is_empty")]
    handing: Handing,
    stage: StageDocument,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    decided_by: Option<Actor>,
    #[serde(default, skip_serializing_if = "Judged::is_empty")]
    judged: Judged,
    created_at: Timestamp,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the shape that the attribute asks for")]
fn is_zero(count: &u32) -> bool {
    *count == 0
}

/// A stage without the backend's result.
#[derive(Serialize, Deserialize)]
#[serde(tag = "stage", rename_all = "kebab-case")]
enum StageDocument {
    Rejected { rule: String, reason: String },
    Proposed,
    Pending,
    Executing { since: Timestamp },
    Waiting { since: Timestamp },
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
    /// How it stands with those who fetch it.
    pub(super) place: FetchPlace,
}

/// What of a call those who fetch it are found by. Empty for all others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FetchPlace {
    /// The name under which workers wait for it while it is on offer or with one of them; empty for a call that is with the
    /// run's client.
    pub(super) tool: Option<String>,
    /// While it is on offer: for how many milliseconds it is.
    pub(super) offered_for: Option<i64>,
    /// While it is on offer: what rules let it wait through, as the column says it.
    pub(super) outwaits: Option<i64>,
    /// While a worker has it: the hand-out.
    pub(super) lease: Option<String>,
    /// The label of a call of the run's client, whatever became of it.
    pub(super) client_label: Option<String>,
}

/// A label as the column has it: JSON text, which any database takes.
pub(super) fn label_column(call_id: &CallId) -> String {
    Value::from(call_id.as_str()).to_string()
}

impl FetchPlace {
    fn of(call: &Call, now: Timestamp) -> Self {
        if call.backend() == Some(Backend::Client) {
            let tool = call.is_with_client().then(String::new);
            return Self { tool, client_label: Some(label_column(&call.call_id)), ..Self::default() };
        }
        let Some(target) = call.target.as_ref().filter(|_| call.is_offered() || call.is_with_worker()) else {
            return Self::default();
        };
        let tool = queue_name(&target.server_tool, target.version.as_deref().unwrap_or_default());
        let offered_at = call.handing.offered_at.filter(|_| call.is_offered());
        let lease = call.handing.lease.as_ref().filter(|_| call.is_with_worker());
        Self {
            tool: Some(tool),
            offered_for: offered_at.map(|since| now.millis_since(since)),
            outwaits: offered_at.map(|_| {
                i64::from(call.outwaits(&Untaken::NoHandler))
                    + 2 * i64::from(call.outwaits(&Untaken::CapacityExhausted))
            }),
            lease: lease.map(|lease| lease.id.clone()),
            client_label: None,
        }
    }
}

/// Where arguments and result stand in the column `blobs` of a call.
const INPUT: &str = "/input";
const OUTPUT: &str = "/output";

impl CallRow {
    pub(super) fn encode(call: &Call, now: Timestamp, cuttings: &mut Cuttings) -> Result<Self, StoreError> {
        let (stage, output) = split_stage(&call.stage);
        let undecided_since = match &call.stage {
            Stage::Indeterminate { since, .. } => Some(since.as_millis()),
            Stage::Rejected { .. }
            | Stage::Proposed
            | Stage::Pending
            | Stage::Executing { .. }
            | Stage::Waiting { .. }
            | Stage::Completed { .. }
            | Stage::Failed { .. } => None,
        };
        let document = CallDocument {
            key: call.key,
            call_id: call.call_id.clone(),
            tool: call.tool.clone(),
            target: call.target.clone(),
            attempt: call.attempt,
            turned_away: call.turned_away,
            asked: call.asked.clone(),
            task: call.task.clone(),
            handing: call.handing.clone(),
            stage,
            decided_by: call.decided_by.clone(),
            judged: call.judged.clone(),
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
            place: FetchPlace::of(call, now),
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
        Stage::Proposed => (StageDocument::Proposed, None),
        Stage::Pending => (StageDocument::Pending, None),
        Stage::Executing { since } => (StageDocument::Executing { since: *since }, None),
        Stage::Waiting { since } => (StageDocument::Waiting { since: *since }, None),
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
    pub(super) ended: bool,
    pub(super) call: CallText,
}

impl FoundText {
    pub(super) fn decode(self, bodies: &Bodies) -> Result<FoundCall, StoreError> {
        let Self { run_id, uid, ended, call } = self;
        Ok(FoundCall { run_id, uid, ended, call: call.decode(uid, bodies)? })
    }
}

/// A call from its row.
fn call(body: &str, input: &str, output: Option<&str>) -> Result<Call, StoreError> {
    let document: CallDocument = decode("call", body)?;
    let output = output.map(|text| json_value("call output", text)).transpose()?;
    let stage = match document.stage {
        StageDocument::Rejected { rule, reason } => Stage::Rejected { rule, reason },
        StageDocument::Proposed => Stage::Proposed,
        StageDocument::Pending => Stage::Pending,
        StageDocument::Executing { since } => Stage::Executing { since },
        StageDocument::Waiting { since } => Stage::Waiting { since },
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
        turned_away: document.turned_away,
        asked: document.asked,
        task: document.task,
        handing: document.handing,
        decided_by: document.decided_by,
        judged: document.judged,
        stage,
        created_at: document.created_at,
    })
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
