//! Receipts as readers get them.

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::run::call::{Backend, Stage, idempotency_key};
use crate::run::ids::{CallId, RunId};
use crate::run::outcome::ToolError;
use crate::run::policy::Decision;
use crate::run::spec::{Replay, SideEffectClass};
use crate::run::time::Timestamp;
use crate::store::{FoundCall, ReceiptPlace};

/// Work that a server goes on with by itself.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct TaskView {
    /// The server's name of it.
    id: String,
}

/// The durable record of one call.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct Receipt {
    /// The run's name.
    run_id: RunId,
    /// The model turn that made the call, from 1.
    turn: u32,
    /// The call's place in its turn, from 0.
    position: u32,
    /// The call's label, unique in its turn.
    call_id: CallId,
    /// The tool's offered name.
    tool: String,
    /// The server's own name of the tool.
    server_tool: Option<String>,
    /// What the server is called: its namespace, else its address.
    server: Option<String>,
    /// Which version of the tool a worker must serve.
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<String>,
    /// Which kind of counterpart.
    backend: Option<Backend>,
    /// `pending`, `executing`, `waiting` (for input that its server asked for), `completed`, `failed` or `indeterminate`.
    stage: &'static str,
    /// What the call may do to the world; frozen when it was made.
    side_effect_class: Option<SideEffectClass>,
    /// Whether a repeat was declared harmless.
    replay: Option<Replay>,
    /// How often it was sent.
    attempt: u32,
    /// The key that every attempt carries.
    idempotency_key: String,
    /// The work that the server began for the last attempt and can be asked for, when it named one.
    #[serde(skip_serializing_if = "Option::is_none")]
    task: Option<TaskView>,
    /// The arguments.
    input: Value,
    /// What the backend returned.
    output: Option<Value>,
    /// Why it failed.
    error: Option<ToolError>,
    /// Why nobody knows its outcome.
    cause: Option<&'static str>,
    /// Since when it is in this stage.
    since: Option<Timestamp>,
    /// Who decided last how it goes on, when somebody did.
    decided_by: Option<String>,
    /// What the policies decided about the call before it was sent, where any are about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    policy: Option<Decision>,
    /// When the model made the call.
    created_at: Timestamp,
    /// When it was settled.
    settled_at: Option<Timestamp>,
}

impl Receipt {
    /// The receipt of a call.
    pub(super) fn new(found: FoundCall) -> Self {
        let FoundCall { run_id, uid, ended: _, call } = found;
        let mut receipt = Self {
            run_id,
            turn: call.key.turn,
            position: call.key.position,
            call_id: call.call_id,
            tool: call.tool,
            server_tool: None,
            server: None,
            version: None,
            backend: None,
            stage: call.stage.code(),
            side_effect_class: None,
            replay: None,
            attempt: call.attempt,
            idempotency_key: idempotency_key(uid, call.key),
            task: call.task.map(|task| TaskView { id: task.id }),
            input: call.input,
            output: None,
            error: None,
            cause: None,
            since: None,
            decided_by: call.decided_by.map(|actor| actor.as_str().to_owned()),
            policy: call.judged.decision,
            created_at: call.created_at,
            settled_at: None,
        };
        if let Some(target) = call.target {
            receipt.server_tool = Some(target.server_tool);
            receipt.server = (target.backend == Backend::Mcp).then_some(target.server);
            receipt.version = target.version;
            receipt.backend = Some(target.backend);
            receipt.side_effect_class = Some(target.class);
            receipt.replay = target.replay.then_some(Replay::Idempotent);
        }
        receipt.stand(call.stage);
        receipt
    }

    fn stand(&mut self, stage: Stage) {
        match stage {
            Stage::Rejected { .. } | Stage::Proposed | Stage::Pending => {}
            Stage::Executing { since } | Stage::Waiting { since } => self.since = Some(since),
            Stage::Completed { settled_at, output } => {
                (self.settled_at, self.output) = (Some(settled_at), Some(output));
            }
            Stage::Failed { settled_at, error, output } => {
                (self.settled_at, self.error, self.output) = (Some(settled_at), Some(error), output);
            }
            Stage::Indeterminate { cause, since, .. } => {
                (self.cause, self.since) = (Some(cause.code()), Some(since));
            }
        }
    }
}

/// Where a call stands in a list that is ordered by that time.
pub(super) const fn place(found: &FoundCall, at: Timestamp) -> ReceiptPlace {
    ReceiptPlace { at, uid: found.uid, key: found.call.key }
}

/// A page of receipts: of one run in order of turn and position, across runs newest first.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct ReceiptPage {
    /// The receipts.
    pub(super) data: Vec<Receipt>,
    /// Where the list goes on; null at its end.
    pub(super) next_cursor: Option<String>,
}
