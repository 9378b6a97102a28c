//! The one place that decides what a call's end means. The whole effect rule hangs on it.
//!
//! Every attempt ends in one of three ways, and each mistake between them has a price:
//!
//! - *Answered*: the server spoke about this call. Calling it unknown would stop a run for nothing; it is never sent
//!   again by us.
//! - *Not sent*: the call was certainly not executed. It may be sent again freely. Saying so wrongly repeats a payment.
//! - *Unknown*: it left and nobody answered for it. Only a declared right (class, `replay`) or a person may repeat it.
//!
//! In doubt it is unknown. The doubts are settled in this order:
//!
//! 1. **How far did it come?** The transport writes down when it hands a request to the HTTP client. Before that
//!    moment nothing can have left, whatever the error says; a call given up in the queue is barred from leaving later.
//!    A connection that never came about (refused, DNS, TLS, a forbidden address) carried nothing either.
//! 2. **The HTTP status, before any body.** A gateway that answers 502 may have passed the request on, and a JSON-RPC
//!    error in its body does not change that: every 5xx, and 408, is unknown. Every 3xx (redirects are not followed)
//!    and every other 4xx says that the request was turned away before anything was done: not sent. Among these a lost
//!    session, a token that has a successor and a rate limit can be helped by another attempt. That attempt is the run's
//!    to make, and to say: nothing that has reached a server is sent again from here.
//! 3. **The body of a 2xx.** A JSON-RPC result or error with this request's id is an answer, `isError` and schema
//!    faults included: the call ran, it only did not do what was hoped. 202, a foreign id, HTML, half a body, a stream
//!    that ends early: unknown. An answer that is merely too large *is* an answer: the server did the work and reports
//!    on it, and asking a person or repeating the call would only produce the same flood. It settles as failed and
//!    says that the call was executed. What is too large and not the answer (`outline.rs` reads how it begins) says
//!    nothing of the call.
//! 4. **Who stopped waiting.** Our limits and a cancelled run end the wait, not the work: unknown, with the cause.
//!
//! A JSON-RPC error in a 2xx is *answered* even for the codes that mean "not executed" (unknown method, invalid
//! parameters): either way nothing is repeated, and the model is told the text.
//!
//! A result that names a *task* is no end at all: the call is deferred, and `task.rs` asks for its end.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::attempt::{HttpRefusal, Stage};
use super::questions;
use super::shape::{Excess, MAX_BLOCKS};
use crate::run::call::Task;
use crate::run::json::is_too_deep;
use crate::run::outcome::{Answer, Cause, Outcome, ToolError};
use crate::run::tool_result;
use crate::schema::{AtDesk, FAULT_MAX, Schema, Unusable};
use crate::secrets::Redactor;

/// The longest `Retry-After` that is waited for inside a call.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(10);
/// Longest text of a server's error that is handed on, in characters.
const MESSAGE_MAX: usize = 4_000;

/// Longest name of a task that is kept, in bytes.
const TASK_ID_MAX: usize = 4_096;

/// Why the wait for an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// The protocol library had a response or gave up; the stage tells which.
    Settled,
    /// Our limits.
    TimedOut,
    /// The run was cancelled and the grace time passed.
    Cancelled,
}

/// What may be tried once more, because the call was certainly not executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Remedy {
    /// Nothing.
    None,
    /// A new session, at once.
    NewSession,
    /// A new connection, after a moment: the server may just be restarting.
    Redial,
    /// The same connection, after a pause that the server asked for.
    After(Duration),
    /// The same connection, with the token's successor.
    NewToken,
}

/// What a tool's output schema promises of its results.
pub(super) enum Promised<'a> {
    /// What the compiled schema says.
    By(&'a AtDesk, Arc<Schema>),
    /// Nobody knows: it cannot be used.
    Unusable(Unusable),
}

/// Decides what one attempt means. What the server was told is taken out of its words before they are cut.
pub(super) fn classify(
    stage: Stage,
    ended: Ended,
    promised: Option<Promised<'_>>,
    told: &Redactor,
) -> (Outcome, Remedy) {
    match stage {
        // The connection ended under it: another one can carry it.
        Stage::Queued if ended == Ended::Settled => (not_sent_in_time(ended), Remedy::Redial),
        Stage::Queued | Stage::Withdrawn => (not_sent_in_time(ended), Remedy::None),
        Stage::NotConnected(why) => {
            let text = format!("The MCP server could not be reached ({why}). The call was not executed.");
            (Outcome::NotSent(ToolError::new("mcp-unreachable", text)), Remedy::Redial)
        }
        Stage::Status(refusal) => by_status(&refusal, told),
        Stage::Sent => {
            let cause = match ended {
                Ended::Settled => Cause::LostResponse,
                Ended::TimedOut => Cause::TimeOut,
                Ended::Cancelled => Cause::Cancelled,
            };
            (Outcome::Unknown(cause), Remedy::None)
        }
        Stage::Unreadable(why) => {
            tracing::debug!(why, "a call was sent and not answered");
            (Outcome::Unknown(Cause::LostResponse), Remedy::None)
        }
        Stage::TooLarge(excess) => (too_large(excess), Remedy::None),
        Stage::Answered(message) => (by_answer(message, promised, told), Remedy::None),
    }
}

fn not_sent_in_time(ended: Ended) -> Outcome {
    let error = match ended {
        Ended::Settled => ToolError::new("mcp-unreachable", "The call was given up before it was sent."),
        Ended::TimedOut => ToolError::new("mcp-timeout", "The call was not sent within its time limit."),
        Ended::Cancelled => ToolError::new("cancelled", "The run was cancelled before the call was sent."),
    };
    Outcome::NotSent(error)
}

fn by_status(refusal: &HttpRefusal, told: &Redactor) -> (Outcome, Remedy) {
    let status = refusal.status;
    // Interim statuses never end an exchange; one that does is as unknown as a gateway's.
    if status == 408 || !(300..500).contains(&status) {
        return (Outcome::Unknown(Cause::LostResponse), Remedy::None);
    }
    let code = match status {
        401 | 403 => "mcp-unauthorized",
        429 => "mcp-rate-limited",
        _ => "mcp-refused",
    };
    let said = refusal.message.as_deref().map(|text| format!(": {}", told.cut(text, MESSAGE_MAX))).unwrap_or_default();
    let text = format!("The MCP server refused the call with HTTP {status}{said}. It was not executed.");
    let remedy = match refusal.retry_after {
        _ if refusal.session_lost => Remedy::NewSession,
        _ if refusal.renewed => Remedy::NewToken,
        Some(pause) if status == 429 && pause <= RETRY_AFTER_MAX => Remedy::After(pause),
        _ => Remedy::None,
    };
    (Outcome::NotSent(ToolError::new(code, text)), remedy)
}

fn by_answer(mut message: Value, promised: Option<Promised<'_>>, told: &Redactor) -> Outcome {
    if let Some(error) = message.get("error").filter(|error| !error.is_null()) {
        let text = error.get("message").and_then(Value::as_str).unwrap_or("The MCP server answered with an error.");
        return failed("mcp-error", told.cut(text, MESSAGE_MAX), None);
    }
    let output = message.get_mut("result").map(Value::take).unwrap_or_default();
    if is_too_deep(&output) {
        return too_large(Excess::Depth);
    }
    if output.get("content").and_then(Value::as_array).is_some_and(|blocks| blocks.len() > MAX_BLOCKS) {
        return too_large(Excess::Blocks);
    }
    if !output.is_object() {
        let text = "The call was executed, but its result is not what the protocol prescribes: an object.";
        return failed("invalid-result", text.to_owned(), Some(output));
    }
    match output.get("resultType").and_then(Value::as_str) {
        // The server goes on by itself. Without a name nobody can ask it for the end.
        Some("task") => return task_of(&output).map_or(Outcome::Unknown(Cause::LostResponse), Outcome::Deferred),
        // The server did what it could without the replies, and wants the same call again with them.
        Some("input_required") => {
            return match questions::of(&output) {
                Ok(questions) => Outcome::InputRequired(Box::new(questions)),
                Err(why) => {
                    let why = told.cut(&told.torn(&why), MESSAGE_MAX);
                    failed("input-required", format!("The MCP server asked for input: {why}."), Some(output))
                }
            };
        }
        _ => {}
    }
    if output.get("isError").and_then(Value::as_bool) == Some(true) {
        let text = tool_result::text_of(&output);
        let text = if text.is_empty() { described(&output, told) } else { told.cut(&text, MESSAGE_MAX) };
        return failed("tool-error", text, Some(output));
    }
    if let Some(why) = promised.and_then(|promised| breaks_promise(&output, promised, told)) {
        return failed("invalid-output", why, Some(output));
    }
    Outcome::Answered(Answer::Done { output })
}

/// What a failed tool says without a text.
fn described(output: &Value, told: &Redactor) -> String {
    let said = tool_result::told(output).output;
    let is_empty = said.as_str() == Some("") || said == *output;
    if is_empty { "The tool failed without saying why.".to_owned() } else { told.cut(&said.to_string(), MESSAGE_MAX) }
}

/// The work that a server named instead of a result.
fn task_of(output: &Value) -> Option<Task> {
    let id = output.get("taskId").and_then(Value::as_str).filter(|id| (1..=TASK_ID_MAX).contains(&id.len()))?;
    Some(Task { id: id.to_owned(), poll_ms: poll_ms(output) })
}

/// How long a server wants to be left alone between two questions about a task.
pub(super) fn poll_ms(output: &Value) -> Option<u64> {
    output.get("pollIntervalMs").and_then(Value::as_u64)
}

fn too_large(excess: Excess) -> Outcome {
    let text = format!("The call was executed, but its result {excess} and was discarded.");
    let code = if excess == Excess::ReservedKey { "result-reserved-key" } else { "result-too-large" };
    failed(code, text, None)
}

/// Why a result does not keep what the tool's output schema promises.
fn breaks_promise(output: &Value, promised: Promised<'_>, told: &Redactor) -> Option<String> {
    let Some(structured) = output.get("structuredContent").filter(|structured| !structured.is_null()) else {
        return Some("The tool promises structured content, and its result has none.".to_owned());
    };
    match promised {
        Promised::By(at, schema) => {
            let flaw = schema.flaws_here(at, structured, 1).into_iter().next();
            flaw.map(|flaw| {
                let flaw = told.cut(&flaw.to_string(), FAULT_MAX);
                format!("The tool's structured content breaks its output schema: {flaw}")
            })
        }
        Promised::Unusable(why) => {
            Some(format!("The tool's output schema cannot be used: it {}", told.cut(&why.to_string(), FAULT_MAX)))
        }
    }
}

pub(super) fn failed(code: &str, message: String, output: Option<Value>) -> Outcome {
    Outcome::Answered(Answer::Failed { error: ToolError::new(code, message), output })
}

#[cfg(test)]
#[path = "outcome_tests.rs"]
mod tests;
