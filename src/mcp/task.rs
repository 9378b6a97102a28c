//! Work that a server goes on with by itself after it answered a call with a task (extension `io.modelcontextprotocol/tasks`
//! of 2026-07-28): asks for its end until there is one, over whatever connection there is.
//!
//! Asking changes nothing, so it is repeated freely: a lost connection, a restarted server or a busy gateway only cost
//! time. What the server says of the task is an answer to the call. A server that does not know the task any more says
//! nothing of what it did: unknown. So is work that the run stopped waiting for, unless its end still comes in time.

use std::sync::Arc;
use std::time::Duration;

use rmcp::model::{CancelTaskParams, CancelTaskRequest, ClientRequest, GetTaskParams, GetTaskRequest};
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::attempt::{Attempt, Stage};
use super::outcome::{Ended, Promised, classify, failed, poll_ms};
use super::pool::McpPool;
use super::{McpFault, McpTarget};
use crate::bulk::Held;
use crate::failpoint;
use crate::run::ids::TenantId;
use crate::run::outcome::{Cause, Outcome};
use crate::secrets::Redactor;

/// Bounds of the pause between two questions, whatever the server wishes.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// The pause where the server wishes nothing.
const PAUSE: Duration = Duration::from_secs(1);
/// The longest wait for an answer to one question.
const PATIENCE: Duration = Duration::from_secs(20);
/// A server that answers so many questions in a row with an error does not know what became of the task.
const ERRORS_MAX: u32 = 5;
/// Errors that say so at once: it has no such method, or no such task.
const NOT_KNOWN: [i64; 2] = [-32_601, -32_602];

/// A task that somebody waits for.
#[derive(Clone, Debug)]
pub struct TaskRequest {
    /// The server's name of it.
    pub id: String,
    /// How long the server is left alone at first.
    pub first_after: Duration,
    /// How long its end is waited for; it is asked for at least once.
    pub total: Duration,
    /// The server's schema of `structuredContent`.
    pub output_schema: Option<Value>,
    /// Keeps the bytes of a large answer until whoever has it lets them go.
    pub held: Held,
}

/// What one question brought.
enum Said {
    /// The end.
    End(Outcome),
    /// Not yet; ask again after this.
    Working(Option<u64>),
    /// It needs input that nobody gives.
    NeedsInput(Value),
    /// Nothing that says anything of the task.
    Nothing,
    /// An error in place of a state.
    Error,
}

impl McpPool {
    /// Waits for the end of a task, and says what is known of its call then, without what the server was told.
    pub async fn follow(
        &self,
        tenant: &TenantId,
        target: &McpTarget,
        task: &TaskRequest,
        cancel: CancellationToken,
    ) -> Outcome {
        let outcome = self.follow_until_done(tenant, target, task, cancel).await;
        let told = target.told.now();
        self.bulk().work(task.held.bytes(), || told.outcome(outcome)).await
    }

    async fn follow_until_done(
        &self,
        tenant: &TenantId,
        target: &McpTarget,
        task: &TaskRequest,
        cancel: CancellationToken,
    ) -> Outcome {
        let until = Instant::now() + task.total;
        let (mut pause, mut faults, mut errors) = (task.first_after.min(task.total), 0_u32, 0_u32);
        loop {
            tokio::select! {
                biased;
                () = cancel.cancelled() => return self.end(tenant, target, task, Cause::Cancelled).await,
                () = tokio::time::sleep(pause) => {}
            }
            let said = tokio::select! {
                biased;
                () = cancel.cancelled() => continue,
                said = self.state_of(tenant, target, task) => said,
            };
            (faults, errors) = match said {
                Said::End(outcome) => return outcome,
                Said::NeedsInput(state) => return self.without_input(tenant, target, task, state).await,
                Said::Working(wish) => {
                    pause = wish.map_or(PAUSE, Duration::from_millis).clamp(PAUSE_MIN, PAUSE_MAX);
                    (0, 0)
                }
                Said::Error if errors + 1 >= ERRORS_MAX => return Outcome::Unknown(Cause::LostResponse),
                Said::Error | Said::Nothing => {
                    pause = PAUSE.saturating_mul(1 << faults.min(5)).min(PAUSE_MAX);
                    (faults.saturating_add(1), errors + u32::from(matches!(said, Said::Error)))
                }
            };
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return self.end(tenant, target, task, Cause::TimeOut).await;
            }
            pause = spread(pause, &task.id, faults).min(left);
        }
    }

    /// Asks how a task stands.
    async fn state_of(&self, tenant: &TenantId, target: &McpTarget, task: &TaskRequest) -> Said {
        let question = |attempt: &Arc<Attempt>| {
            let mut get = GetTaskRequest::new(GetTaskParams::new(task.id.clone()));
            get.extensions.insert(Arc::clone(attempt));
            ClientRequest::GetTaskRequest(get)
        };
        failpoint::pass("mcp.task.before");
        let asked = self.ask(tenant, target, question, &task.held).await;
        failpoint::pass("mcp.task.after");
        match asked {
            Ok(Stage::Answered(message)) => {
                let told = target.told.now();
                let judge = move |stage, promised: Option<Promised<'_>>| match stage {
                    Stage::Answered(message) => read(message, promised, &told),
                    _ => Said::Nothing,
                };
                let stage = Stage::Answered(message);
                self.judged(tenant, task.output_schema.as_ref(), stage, Said::Nothing, judge).await
            }
            // A lost session is no word about the task.
            Ok(Stage::Status(refusal)) if !refusal.session_lost && is_not_known(refusal.code) => not_known(),
            Ok(Stage::TooLarge(excess)) => {
                Said::End(classify(Stage::TooLarge(excess), Ended::Settled, None, &Redactor::default()).0)
            }
            Ok(_) => Said::Nothing,
            Err(fault) => {
                tracing::debug!(%fault, "a server could not be asked for a task");
                Said::Nothing
            }
        }
    }

    /// Tells the server that the task is not wanted any more, and gives an end that is under way the time to come.
    async fn end(&self, tenant: &TenantId, target: &McpTarget, task: &TaskRequest, cause: Cause) -> Outcome {
        let grace = self.settings.cancel_grace;
        let ending = async {
            self.tell_unwanted(tenant, target, &task.id).await;
            loop {
                match self.state_of(tenant, target, task).await {
                    // That it stopped does not say that it had done nothing.
                    Said::End(Outcome::Unknown(_)) => return Outcome::Unknown(cause),
                    Said::End(outcome) if is_cancelled(&outcome) => return Outcome::Unknown(cause),
                    Said::End(outcome) => return outcome,
                    Said::Working(_) | Said::NeedsInput(_) | Said::Nothing | Said::Error => {
                        tokio::time::sleep(PAUSE_MIN).await;
                    }
                }
            }
        };
        tokio::time::timeout(grace, ending).await.unwrap_or(Outcome::Unknown(cause))
    }

    /// Tells the server once that a task is not wanted any more, in the grace time of a cancelled call. `false`: it did
    /// not say that it heard so.
    pub async fn abandon(&self, tenant: &TenantId, target: &McpTarget, task: &str) -> bool {
        let telling = self.tell_unwanted(tenant, target, task);
        tokio::time::timeout(self.settings.cancel_grace, telling).await.unwrap_or(false)
    }

    async fn tell_unwanted(&self, tenant: &TenantId, target: &McpTarget, task: &str) -> bool {
        let question = |attempt: &Arc<Attempt>| {
            let mut cancel = CancelTaskRequest::new(CancelTaskParams::new(task.to_owned()));
            cancel.extensions.insert(Arc::clone(attempt));
            ClientRequest::CancelTaskRequest(cancel)
        };
        match self.ask(tenant, target, question, &Held::default()).await {
            Ok(stage) => matches!(stage, Stage::Answered(_)),
            Err(fault) => {
                tracing::debug!(%fault, "a task could not be cancelled");
                false
            }
        }
    }

    /// Nobody answers for this run: the server need not wait.
    async fn without_input(&self, tenant: &TenantId, target: &McpTarget, task: &TaskRequest, state: Value) -> Outcome {
        match self.end(tenant, target, task, Cause::LostResponse).await {
            Outcome::Unknown(_) => {
                let text = "The MCP server asked for input, which this run does not offer.";
                failed("input-required", text.to_owned(), Some(state))
            }
            ended => ended,
        }
    }

    /// One question over the connection that there is. One that proved useless is taken out of the pool.
    async fn ask(
        &self,
        tenant: &TenantId,
        target: &McpTarget,
        question: impl FnOnce(&Arc<Attempt>) -> ClientRequest,
        held: &Held,
    ) -> Result<Stage, McpFault> {
        let lease = self.lease(tenant, target).await?;
        let (stage, ended) = lease.connection().ask(question, PATIENCE, held).await;
        let is_useless = match &stage {
            Stage::Answered(_) | Stage::TooLarge(_) => false,
            Stage::Status(refusal) => refusal.session_lost,
            Stage::Queued | Stage::Withdrawn | Stage::NotConnected(_) => true,
            Stage::Sent | Stage::Unreadable(_) => ended != Ended::Settled,
        };
        if is_useless {
            lease.drop_connection().await;
        }
        Ok(stage)
    }
}

/// What the server says of a task.
fn read(mut message: Value, promised: Option<Promised<'_>>, told: &Redactor) -> Said {
    if let Some(error) = message.get("error").filter(|error| !error.is_null()) {
        let code = error.get("code").and_then(Value::as_i64);
        return if is_not_known(code) { not_known() } else { Said::Error };
    }
    let mut state = message.get_mut("result").map(Value::take).unwrap_or_default();
    let status = state.get("status").and_then(Value::as_str).unwrap_or_default().to_owned();
    let ended = |member: &str| {
        let value = state.get_mut(member).map(Value::take).filter(Value::is_object);
        value.map_or(Said::Error, |value| {
            let answer = Stage::Answered(json!({ member: value }));
            Said::End(classify(answer, Ended::Settled, promised, told).0)
        })
    };
    match status.as_str() {
        "working" => Said::Working(poll_ms(&state)),
        "completed" => ended("result"),
        "failed" => ended("error"),
        "cancelled" => Said::End(failed(CANCELLED, CANCELLED_TEXT.to_owned(), None)),
        "input_required" => Said::NeedsInput(state),
        _ => Said::Error,
    }
}

/// The code of a call whose task its server cancelled.
const CANCELLED: &str = "task-cancelled";
const CANCELLED_TEXT: &str = "The MCP server cancelled the work before it was done. Parts of it may have happened.";

fn is_cancelled(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Answered(crate::run::outcome::Answer::Failed { error, .. }) if error.code == CANCELLED)
}

fn is_not_known(code: Option<i64>) -> bool {
    code.is_some_and(|code| NOT_KNOWN.contains(&code))
}

fn not_known() -> Said {
    Said::End(Outcome::Unknown(Cause::LostResponse))
}

/// A pause made longer by up to a quarter: tasks that were begun together are not asked for together.
fn spread(pause: Duration, id: &str, faults: u32) -> Duration {
    let share = id.bytes().fold(faults, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into())) % 256;
    pause + pause / 4 * share / 256
}
