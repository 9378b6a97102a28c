//! Runs, messages and receipts as callers read them. Native provider blocks, sealed secrets and node names stay inside.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::Api;
use super::bindings::BindingRevision;
use super::links::{self, Link};
use super::receipts::Receipt;
use crate::run::approval::Approval;
use crate::run::ask::{Asks, Input};
use crate::run::binding::{CatalogRecord, Warning};
use crate::run::event::{ClientCall, UndecidedCall};
use crate::run::ids::{CallId, RunId, TenantId};
use crate::run::message::{Content, Message, Picture, Role, Source};
use crate::run::money::Usd;
use crate::run::result::{RunError, Usage};
use crate::run::spec::{Limits, ModelSpec};
use crate::run::time::Timestamp;
use crate::store::RunView;

/// A run.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct Run {
    /// The caller's name of it.
    id: RunId,
    /// `queued`, `running`, `suspended`, `completed`, `stopped`, `failed` or `cancelled`.
    status: &'static str,
    /// Why it waits or was stopped.
    reason: Option<&'static str>,
    /// The agent version that it was made of.
    agent: Option<String>,
    /// The model that is asked.
    model: ModelSpec,
    /// The caller's own labels.
    metadata: BTreeMap<String, String>,
    /// The caller's own revision of what cannot be fingerprinted.
    binding_id: Option<String>,
    /// What the run is bound to.
    binding: BindingView,
    /// What it may use over its whole life, as it holds now.
    limits: Limits,
    /// The final answer, once it is completed.
    output: Option<Output>,
    /// Why it failed.
    error: Option<RunError>,
    /// Committed model turns.
    turns: u32,
    /// What it used.
    usage: UsageView,
    /// What it waits for.
    pending: Pending,
    /// What a person should know.
    warnings: Vec<Warning>,
    /// Who created it.
    created_by: String,
    /// Legs begun without progress in between.
    attempt: u32,
    /// Moves with the content of the run.
    revision: i64,
    /// When it was admitted.
    created_at: Timestamp,
    /// When it last changed.
    updated_at: Timestamp,
    /// When it ended.
    finished_at: Option<Timestamp>,
    /// Requests that resolve what it waits for.
    links: Vec<Link>,
    /// In the answer of a resume that decided nothing, or less than it says.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    notice: Option<Notice>,
}

/// What the request came to, where the run itself does not show it.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct Notice {
    /// For programs: `nothing-decided`, `calls-passed-over`.
    code: &'static str,
    /// For people.
    message: String,
}

/// What a run is bound to.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct BindingView {
    /// Counts from 1.
    revision: u32,
    /// The record of the servers' tools; null when the run has none.
    mcp: Option<CatalogRecord>,
}

/// The final answer.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct Output {
    /// What the model said last.
    text: String,
    /// The same, as the asked-for structure.
    structured: Option<Value>,
}

/// What a run used over its whole life.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub(super) struct UsageView {
    #[serde(flatten)]
    counted: Usage,
    /// The part of it that samples for servers used.
    sampling: Usage,
    /// What all of it cost, in US dollars; null where the price of a model is not known.
    #[schema(value_type = Option<f64>)]
    cost_usd: Option<Usd>,
}

/// An approval, with the token of one that waits for votes.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct ApprovalView {
    #[serde(flatten)]
    approval: Approval,
    /// Proof for a vote that the approval was read as it stands: `v1.BODY.MAC`.
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<String>,
}

impl ApprovalView {
    /// An approval of the tenant, as whoever may read it does.
    pub(super) fn of(api: &Api, tenant: &TenantId, approval: Approval) -> Self {
        let token = api.commands.approval_token(tenant, &approval);
        Self { approval, token }
    }
}

/// What a run waits for.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct Pending {
    /// Calls that wait for a verdict.
    approvals: Vec<ApprovalView>,
    /// Calls whose outcome nobody knows.
    reconciliations: Vec<UndecidedCall>,
    /// Calls that a client carries out.
    client_tools: Vec<ClientCall>,
    /// Questions of servers.
    inputs: Vec<Input>,
}

impl Run {
    /// A run of the tenant, as its callers read it.
    pub(super) fn of(api: &Api, tenant: &TenantId, view: RunView) -> Self {
        let RunView { id, spec, head, binding_revision, mcp, undecided, client_calls, .. } = view;
        let limits = *head.limits(&spec);
        let Asks { open, usage: sampling, .. } = head.state.asks;
        let inputs = open.into_iter().map(|open| open.input).collect();
        let output = head.state.output.map(|output| Output { text: output.text, structured: output.structured });
        let links = links::of_run(&id, head.status, &undecided, &head.state.approvals.open);
        let approvals = head.state.approvals.open.into_iter();
        let approvals = approvals.map(|open| ApprovalView::of(api, tenant, open.approval)).collect();
        Self {
            links,
            id,
            status: head.status.code(),
            reason: head.status.reason(),
            agent: spec.agent.map(String::from),
            model: spec.model,
            metadata: spec.metadata,
            binding_id: spec.binding_id,
            binding: BindingView { revision: binding_revision, mcp },
            limits,
            output,
            error: head.state.error,
            turns: head.state.turns,
            usage: UsageView {
                counted: Usage { cost_usd: None, ..head.state.usage },
                sampling,
                cost_usd: head.state.usage.cost_usd,
            },
            pending: Pending { approvals, reconciliations: undecided, client_tools: client_calls, inputs },
            warnings: head.state.warnings,
            created_by: head.state.created_by.as_str().to_owned(),
            attempt: head.attempt,
            revision: head.revision,
            created_at: head.created_at,
            updated_at: head.updated_at,
            finished_at: head.finished_at,
            notice: None,
        }
    }

    /// The same, with what the request came to.
    pub(super) fn noticed(self, notice: Option<Notice>) -> Self {
        Self { notice, ..self }
    }
}

impl Notice {
    /// Of a resume that left the run as it was, or named calls for another attempt that it could not allow.
    pub(super) fn of_resume(is_unchanged: bool, passed_over: &[String]) -> Option<Self> {
        let (code, says) = match (is_unchanged, passed_over) {
            (false, []) => return None,
            (true, _) => (
                "nothing-decided",
                "The request decides nothing, and nothing of it is kept. `pending` says what the run waits for, `links` how to decide it.",
            ),
            (false, _) => ("calls-passed-over", "Some names of the request allow nothing."),
        };
        let message = std::iter::once(says).chain(passed_over.iter().map(String::as_str)).collect::<Vec<_>>().join(" ");
        Some(Self { code, message })
    }
}

/// A page of runs, newest first.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct RunPage {
    /// The runs.
    pub(super) data: Vec<Run>,
    /// Where the list goes on; null at its end.
    pub(super) next_cursor: Option<String>,
}

/// A message.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct MessageView {
    /// Place in the run, from 0.
    position: u32,
    /// The model turn that it belongs to; 0 for the input.
    turn: u32,
    /// Who speaks.
    role: Role,
    /// What is said, in order.
    content: Vec<ContentView>,
}

/// One piece of a message.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub(super) enum ContentView {
    /// Text.
    Text {
        /// The text.
        text: String,
    },
    /// A picture of the user's.
    Image {
        /// Where it is.
        #[serde(flatten)]
        source: SourceView,
    },
    /// A file of the user's.
    File {
        /// What it is called.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schema(nullable = false)]
        name: Option<String>,
        /// Where it is.
        #[serde(flatten)]
        source: SourceView,
    },
    /// What the model thought aloud.
    Reasoning {
        /// The text; empty where the provider hides it.
        text: String,
    },
    /// A call that the model made.
    ToolCall {
        /// The call's label.
        call_id: CallId,
        /// The tool's offered name.
        tool: String,
        /// The arguments.
        input: Value,
    },
    /// What came of a call, as the model is told.
    ToolResult {
        /// The call's label.
        call_id: CallId,
        /// The tool's offered name.
        tool: String,
        /// Text, or a JSON value.
        output: Value,
        /// Whether the model is told that the call failed.
        is_error: bool,
        /// Pictures that the model is shown besides; the receipt has them whole.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        #[schema(required = false)]
        pictures: Vec<PictureView>,
    },
}

/// Where a picture or a file is: as it was given.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub(super) struct SourceView {
    /// An address that the provider reads.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    url: Option<String>,
    /// Base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    data: Option<String>,
    /// The type of the data.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    media_type: Option<String>,
    /// The provider's name of a file that it keeps.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    file_id: Option<String>,
}

impl From<Source> for SourceView {
    fn from(source: Source) -> Self {
        match source {
            Source::Url { url } => Self { url: Some(url), ..Self::default() },
            Source::Data { media_type, data } => {
                Self { data: Some(data), media_type: Some(media_type), ..Self::default() }
            }
            Source::Id { file_id } => Self { file_id: Some(file_id), ..Self::default() },
        }
    }
}

/// A picture of a tool's result.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct PictureView {
    /// `image/png`, `image/jpeg`, `image/gif` or `image/webp`.
    media_type: String,
    /// Bytes of its base64 text.
    bytes: usize,
}

impl From<Picture> for PictureView {
    fn from(picture: Picture) -> Self {
        Self { media_type: picture.media_type, bytes: picture.data.len() }
    }
}

impl From<Message> for MessageView {
    fn from(message: Message) -> Self {
        let content = message.content.into_iter().map(|piece| match piece {
            Content::Text { text } => ContentView::Text { text },
            Content::Image { source } => ContentView::Image { source: source.into() },
            Content::File { name, source } => ContentView::File { name, source: source.into() },
            Content::Reasoning { text, native: _ } => ContentView::Reasoning { text },
            Content::ToolCall { call_id, tool, input } => ContentView::ToolCall { call_id, tool, input },
            Content::ToolResult { call_id, tool, output, is_error, pictures } => {
                let pictures = pictures.into_iter().map(PictureView::from).collect();
                ContentView::ToolResult { call_id, tool, output, is_error, pictures }
            }
        });
        let content = content.collect();
        Self { position: message.position, turn: message.turn, role: message.role, content }
    }
}

/// A page of messages, in order.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct MessagePage {
    /// The messages.
    pub(super) data: Vec<MessageView>,
    /// Where the list goes on; null at its end.
    pub(super) next_cursor: Option<String>,
}

/// Everything of a run in one document.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct EnvelopeView {
    /// The run.
    pub(super) run: Run,
    /// What it was bound to, oldest first; the last is the current one.
    pub(super) bindings: Vec<BindingRevision>,
    /// The whole conversation.
    pub(super) messages: Vec<MessageView>,
    /// Every receipt.
    pub(super) receipts: Vec<Receipt>,
}
