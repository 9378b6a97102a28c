//! Votes on calls that wait for an approval. A run that waits for votes is owned by nobody, so a vote is applied by the
//! request itself: by compare-and-set on fence and revision, so of two voters the first commit wins.

use serde_json::{Map, Value};
use uuid::Uuid;

use super::faults::Faults;
use super::request::DecideApproval;
use super::resume::DECIDE_TRIES;
use super::{Asker, CommandError, Commands};
use crate::dispatch::Schema;
use crate::run::apply;
use crate::run::approval::{Approval, ApprovalStatus, Verdict};
use crate::run::binding::Binding;
use crate::run::fact::{CastVote, Fact};
use crate::run::ids::{CallId, RunId};
use crate::run::refusal::Refusal;
use crate::run::status::Status;
use crate::store::{AuditRow, Loaded};

/// Longest comment, in bytes.
const COMMENT_MAX: usize = 4000;
/// Most faults of changed arguments that are told.
const FAULTS_MAX: usize = 20;

impl Commands {
    /// Votes on an approval, and answers it as it then stands.
    ///
    /// # Errors
    /// `Invalid`, `Missing`, `Store`, `Contended`; `Refused` when it is decided, or the actor may not vote on it.
    pub async fn approval_decide(
        &self,
        asker: &Asker,
        id: Uuid,
        request: DecideApproval,
    ) -> Result<Approval, CommandError> {
        check(&request)?;
        for _ in 0..DECIDE_TRIES {
            let approval = self.approval(asker, id).await?;
            if approval.status != ApprovalStatus::Pending {
                return Err(CommandError::ApprovalDecided(Box::new(approval)));
            }
            let view = self.view(asker, &approval.run_id).await?;
            let Loaded { mut envelope, fence, owned, .. } = self.load(asker, view.uid).await?;
            if owned {
                continue;
            }
            if let Some(arguments) = &request.arguments {
                check_arguments(&envelope.binding, &approval.tool, arguments)?;
            }
            let cast = CastVote {
                actor: asker.actor.clone(),
                approval: id,
                decision: request.decision,
                comment: request.comment.clone(),
                arguments: request.arguments.clone().map(Value::Object),
            };
            let commit = match apply(&mut envelope, Fact::Voted(Box::new(cast)), self.clock.now()) {
                // It was decided between the two looks.
                Err(Refusal::AlreadyDecided(_) | Refusal::RunTerminal) => continue,
                voted => voted?,
            };
            let audit = self.vote_row(asker, &approval, &request);
            if self.decide(asker, view.uid, fence, &commit, &[audit]).await? {
                if envelope.head.status == Status::Queued {
                    self.executor.wake();
                }
                return self.approval(asker, id).await;
            }
        }
        Err(CommandError::Contended)
    }

    /// The pending approval of a call; of a label that several turns have, the newest.
    ///
    /// # Errors
    /// `NotFound`, `Missing`, `Store`; `Refused` when the call's approval is decided.
    pub async fn approval_of_call(&self, asker: &Asker, run: &RunId, call: &CallId) -> Result<Uuid, CommandError> {
        let view = self.view(asker, run).await?;
        let pending = view.head.state.approvals.iter().find(|open| open.approval.call_id == *call);
        if let Some(open) = pending {
            return Ok(open.approval.id);
        }
        let mut after = None;
        loop {
            let page = self.store.approval_list(&asker.tenant, (None, Some(view.uid)), after, 200).await?;
            let (last, more) = (page.last().map(place), page.more);
            if let Some(decided) = page.into_iter().find(|approval| approval.call_id == *call) {
                return Err(CommandError::ApprovalDecided(Box::new(decided)));
            }
            if !more {
                return Err(CommandError::Missing(NO_APPROVAL));
            }
            after = last;
        }
    }

    async fn approval(&self, asker: &Asker, id: Uuid) -> Result<Approval, CommandError> {
        self.store.approval_fetch(&asker.tenant, id).await?.ok_or(CommandError::Missing(NO_APPROVAL))
    }

    fn vote_row(&self, asker: &Asker, approval: &Approval, request: &DecideApproval) -> AuditRow {
        let mut detail = Map::new();
        detail.insert("turn".to_owned(), approval.turn.into());
        detail.insert("call_id".to_owned(), approval.call_id.as_str().into());
        detail.insert("arguments_changed".to_owned(), request.arguments.is_some().into());
        if let Some(comment) = &request.comment {
            detail.insert("comment".to_owned(), comment.as_str().into());
        }
        let action = format!("approval.{}", request.decision.code());
        self.audit_row(asker, &action, approval.id.to_string(), &approval.run_id, Value::Object(detail))
    }
}

const NO_APPROVAL: &str = "there is no such approval";

fn place(approval: &Approval) -> crate::store::PlaceInTime {
    crate::store::PlaceInTime { at: approval.created_at, id: approval.id }
}

fn check(request: &DecideApproval) -> Result<(), CommandError> {
    let mut faults = Faults::default();
    let short = request.comment.as_ref().is_none_or(|comment| comment.len() <= COMMENT_MAX);
    faults.require(short, "/comment", "at most 4000 bytes");
    let approves = request.decision == Verdict::Approve;
    faults.require(request.arguments.is_none() || approves, "/arguments", "belong to the decision \"approve\" only");
    faults.finish()
}

/// Changed arguments fit what the model's must fit.
fn check_arguments(binding: &Binding, tool: &str, arguments: &Map<String, Value>) -> Result<(), CommandError> {
    let mut faults = Faults::default();
    let given = Value::Object(arguments.clone());
    match binding.tool(tool) {
        None => faults.add("/arguments", "the run does not offer the tool any more"),
        Some(bound) => {
            let schemas = std::iter::once(&bound.input_schema).chain(&bound.own_schema).filter(|one| !one.is_null());
            for schema in schemas {
                match Schema::compile(schema) {
                    Ok(schema) => {
                        schema.faults(&given, FAULTS_MAX).into_iter().for_each(|fault| faults.add("/arguments", fault));
                    }
                    Err(fault) => faults.add("/arguments", format!("cannot be checked: {fault}")),
                }
            }
        }
    }
    faults.finish()
}
