//! Decides a call whose outcome nobody knows: at once when nobody drives its run, else by a wish that the owner reads.
//! Answered when it is applied, so that what was acknowledged is never lost.

use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value};
use tokio::time::{Instant, sleep};
use utoipa::ToSchema;

use super::faults::Faults;
use super::{Asker, CommandError, Commands};
use crate::failpoint;
use crate::run::apply;
use crate::run::call::{Call, Stage};
use crate::run::event::UndecidedCall;
use crate::run::fact::{Fact, Reconciliation, Resolution};
use crate::run::ids::{CallId, CallKey, RunId};
use crate::run::outcome::ToolError;
use crate::run::refusal::Refusal;
use crate::run::status::Status;
use crate::run::time::Timestamp;
use crate::store::{AuditRow, Left, Loaded, RunView};

/// How often the run is looked at meanwhile, when nothing is heard of it.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Longest note, in bytes.
const NOTE_MAX: usize = 4000;

/// One decision on its way.
struct Deciding {
    asker: Asker,
    run: RunId,
    turn: u32,
    call_id: CallId,
    resolution: Resolution,
    note: Option<String>,
}

/// What became of a call whose outcome nobody knew.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReconcileCall {
    /// What is decided.
    pub resolution: ResolutionKind,
    /// With `complete`: what the tool returned, or would have; for MCP a whole result object, or any JSON value.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<Value>, nullable = false)]
    pub output: Option<Value>,
    /// With `fail`: what the model is told.
    pub error: Option<ReconcileError>,
    /// How it was found out; kept in the audit.
    #[schema(max_length = 4000)]
    pub note: Option<String>,
}

/// A result that is `null` is a result; one that is left out is none.
pub(super) fn given<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

/// What is decided about an undecided call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ResolutionKind {
    /// It may be sent exactly once more.
    Retry,
    /// It had its effect.
    Complete,
    /// It had no effect, or failed.
    Fail,
}

/// What the model is told of a call that failed.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReconcileError {
    /// The text.
    #[schema(min_length = 1)]
    pub message: String,
}

impl Commands {
    /// Decides one undecided call of a run.
    ///
    /// # Errors
    /// `Invalid`, `NotFound`, `CallNotFound`, `Store`; `Refused` when the call is not undecided, or a retry is asked of
    /// a run that has ended; `Contended` when the owner did not read it in time, though it may still.
    pub async fn reconcile(
        self: &Arc<Self>,
        asker: &Asker,
        run: &RunId,
        (turn, call_id): (u32, &CallId),
        request: ReconcileCall,
    ) -> Result<(), CommandError> {
        let (resolution, note) = check(request)?;
        let (asker, run, call_id) = (asker.clone(), run.clone(), call_id.clone());
        let deciding = Deciding { asker, run, turn, call_id, resolution, note };
        // Comes to its end although its caller has gone: what was left with an owner that lets go is applied here.
        let commands = Arc::clone(self);
        let applying = self.tasks.spawn(async move { commands.until_applied(&deciding).await });
        applying.await.unwrap_or_else(|_panicked| Err(CommandError::Interrupted))
    }

    async fn until_applied(&self, deciding: &Deciding) -> Result<(), CommandError> {
        let asker = &deciding.asker;
        let deadline = Instant::now() + self.allow.owner_time;
        let mut left = None;
        while Instant::now() < deadline {
            let view = self.view(asker, &deciding.run).await?;
            let mut changes = self.hub.subscribe(&asker.tenant, view.uid);
            let open = view.undecided.iter().find(|call| deciding.is_about(call));
            let Some(open) = open.filter(|open| left.is_none_or(|since| since == open.since)) else {
                return self.decided(deciding, &view, left.is_some()).await;
            };
            if !view.owned && self.apply_left(asker, &view).await? {
                continue;
            }
            if !view.owned {
                if self.decide_call(deciding, &view, left.is_none()).await? {
                    return Ok(());
                }
            } else if left.is_none() {
                left = self.leave(deciding, &view, open.since).await?;
            } else {
                tokio::select! {
                    _ = changes.next() => {}
                    () = sleep(LOOK_EVERY) => {}
                }
            }
        }
        Err(CommandError::Contended)
    }

    /// Applies what was left with an owner that let go without reading it. It was there first, and its row of the audit
    /// too: whoever decides now comes after it. `true`: look at the run again.
    pub(super) async fn apply_left(&self, asker: &Asker, view: &RunView) -> Result<bool, CommandError> {
        if view.undecided.is_empty() {
            return Ok(false);
        }
        for (since, left) in self.store.left_list(&asker.tenant, view.uid).await? {
            let Loaded { mut envelope, fence, .. } = self.load(asker, view.uid).await?;
            if !envelope.is_unknown_since(left.key, since) {
                continue;
            }
            let commit = match apply(&mut envelope, Fact::Reconciled(Box::new(left)), self.clock.now()) {
                // It was applied, or can no longer be: an attempt more of a run that has ended.
                Err(Refusal::NotReconcilable | Refusal::RunTerminal) => continue,
                decided => decided?,
            };
            if self.decide(asker, view.uid, fence, &commit, &[]).await? && envelope.head.status == Status::Queued {
                self.executor.wake();
            }
            return Ok(true);
        }
        Ok(false)
    }

    /// The call is not undecided: by this very decision, when it was left with the owner, or by somebody else.
    async fn decided(&self, deciding: &Deciding, view: &RunView, left: bool) -> Result<(), CommandError> {
        let call = self.receipt(deciding, view).await?;
        let ours = left && call.decided_by.as_ref() == Some(&deciding.asker.actor) && deciding.agrees(&call.stage);
        if ours { Ok(()) } else { Err(Refusal::NotReconcilable.into()) }
    }

    async fn receipt(&self, deciding: &Deciding, view: &RunView) -> Result<Call, CommandError> {
        let tenant = &deciding.asker.tenant;
        let call = self.store.receipt_fetch(tenant, view.uid, deciding.turn, &deciding.call_id).await?;
        call.ok_or(CommandError::CallNotFound)
    }

    /// Leaves the decision with the node that owns the run. `None`: nobody owns it any more.
    async fn leave(
        &self,
        deciding: &Deciding,
        view: &RunView,
        since: Timestamp,
    ) -> Result<Option<Timestamp>, CommandError> {
        let key = self.receipt(deciding, view).await?.key;
        let tenant = &deciding.asker.tenant;
        let (decided, audit) = (deciding.about(key), self.audit_of(deciding, &view.id));
        failpoint::pass("decision.leave.before");
        let left = self.store.decision_leave(tenant, view.uid, &decided, since, &audit).await?;
        failpoint::pass("decision.leave.after");
        match left {
            Left::Kept => {
                self.executor.attend(tenant, view.uid);
                Ok(Some(since))
            }
            Left::NotOwned => Ok(None),
            Left::Decided => Err(Refusal::NotReconcilable.into()),
        }
    }

    /// Decides a call of a run that nobody owns. `false`: the run changed meanwhile.
    async fn decide_call(&self, deciding: &Deciding, view: &RunView, with_audit: bool) -> Result<bool, CommandError> {
        let Loaded { mut envelope, fence, .. } = self.load(&deciding.asker, view.uid).await?;
        let named = |call: &&Call| call.key.turn == deciding.turn && call.call_id == deciding.call_id;
        let Some(key) = envelope.undecided().find(named).map(|call| call.key) else { return Ok(false) };
        let commit = apply(&mut envelope, Fact::Reconciled(Box::new(deciding.about(key))), self.clock.now())?;
        let audit = if with_audit { vec![self.audit_of(deciding, &view.id)] } else { Vec::new() };
        if !self.decide(&deciding.asker, view.uid, fence, &commit, &audit).await? {
            return Ok(false);
        }
        if envelope.head.status == Status::Queued {
            self.executor.wake();
        }
        Ok(true)
    }

    fn audit_of(&self, deciding: &Deciding, run: &RunId) -> AuditRow {
        let note = deciding.note.as_deref();
        self.reconciliation_row(
            &deciding.asker,
            run,
            (deciding.turn, &deciding.call_id),
            deciding.resolution.code(),
            note,
        )
    }

    /// The row of the audit for one decision.
    pub(super) fn reconciliation_row(
        &self,
        asker: &Asker,
        run: &RunId,
        (turn, call_id): (u32, &CallId),
        resolution: &str,
        note: Option<&str>,
    ) -> AuditRow {
        let mut detail = Map::new();
        detail.insert("turn".to_owned(), turn.into());
        detail.insert("call_id".to_owned(), call_id.as_str().into());
        if let Some(note) = note {
            detail.insert("note".to_owned(), note.into());
        }
        let (action, subject) = (format!("reconciliation.{resolution}"), format!("{run}/{turn}/{call_id}"));
        self.audit_row(asker, &action, subject, run, Value::Object(detail))
    }
}

impl Deciding {
    fn is_about(&self, call: &UndecidedCall) -> bool {
        call.turn == self.turn && call.call_id == self.call_id
    }

    fn about(&self, key: CallKey) -> Reconciliation {
        Reconciliation { actor: self.asker.actor.clone(), key, resolution: self.resolution.clone() }
    }

    /// Whether a call can stand like that by this decision. One that was sent again may have come to anything.
    fn agrees(&self, stage: &Stage) -> bool {
        match self.resolution {
            Resolution::Retry => true,
            Resolution::Complete { .. } => matches!(stage, Stage::Completed { .. }),
            Resolution::Fail { .. } => matches!(stage, Stage::Failed { .. }),
        }
    }
}

fn check(request: ReconcileCall) -> Result<(Resolution, Option<String>), CommandError> {
    let ReconcileCall { resolution, output, error, note } = request;
    let mut faults = Faults::default();
    let short = note.as_ref().is_none_or(|note| note.len() <= NOTE_MAX);
    faults.require(short, "/note", "at most 4000 bytes");
    let (completes, fails) = (resolution == ResolutionKind::Complete, resolution == ResolutionKind::Fail);
    faults.require(output.is_none() || completes, "/output", "belongs to the resolution \"complete\" only");
    faults.require(error.is_none() || fails, "/error", "belongs to the resolution \"fail\" only");
    let message = error.map(|error| error.message);
    faults.require(message.as_deref() != Some(""), "/error/message", "must not be empty");
    let decided = match (resolution, output) {
        (ResolutionKind::Retry, _) => Some(Resolution::Retry),
        (ResolutionKind::Complete, output) => output.map(|output| Resolution::Complete { output }),
        (ResolutionKind::Fail, _) => {
            let message = message.unwrap_or_else(|| "An administrator found that the call failed.".to_owned());
            Some(Resolution::Fail { error: ToolError::new("reconciled-failed", message) })
        }
    };
    let Some(decided) = decided else {
        faults.add("/output", "is needed: what the tool returned, or would have");
        return Err(faults.into());
    };
    faults.finish()?;
    Ok((decided, note))
}
