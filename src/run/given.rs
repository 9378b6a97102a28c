//! What the model is given of the calls that it made: one result a call, in call order, whatever became of it.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

use super::call::{Backend, Call, Stage};
use super::ids::RunId;
use super::message::Content;
use super::outcome::Cause;
use super::tool_result::{Told, told};
use super::view::{ViewLimits, within};

/// What stands in an address as it is: the unreserved characters of RFC 3986.
const LABEL: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// The results of a turn's calls. A call that is still open when they are given has no other result any more: the text
/// says whether it was sent, and that it may have happened. One that is shortened says at which address all of it is.
pub fn results(run: &RunId, calls: &[Call], view: ViewLimits) -> Vec<Content> {
    let results: Vec<(&Call, Told, bool)> = calls.iter().map(result).collect();
    let outputs: Vec<&Value> = results.iter().map(|(_, told, _)| &told.output).collect();
    let share = view.share(&outputs);
    let given = results.into_iter().map(|(call, told, is_error)| {
        let (label, turn) = (&call.call_id, call.key.turn);
        let at = receipt_path(run, call);
        let whole = format!("The whole result is kept in the receipt of this call ({label}, turn {turn}): GET {at}.");
        Content::ToolResult {
            call_id: call.call_id.clone(),
            tool: call.tool.clone(),
            output: within(told.output, share, &whole),
            is_error,
            pictures: told.pictures,
        }
    });
    given.collect()
}

/// Where people read all of a call's result.
fn receipt_path(run: &RunId, call: &Call) -> String {
    let (turn, label) = (call.key.turn, utf8_percent_encode(call.call_id.as_str(), LABEL));
    format!("/v1/runs/{run}/receipts/{turn}/{label}")
}

/// What the model is told of a call, and whether it failed.
fn result(call: &Call) -> (&Call, Told, bool) {
    let text = |text: &str| Told { output: text.into(), ..Told::default() };
    match &call.stage {
        // What workers and clients give is no result of a server's: it is told as it is.
        Stage::Completed { output, .. } if matches!(call.backend(), Some(Backend::Worker | Backend::Client)) => {
            (call, Told { output: output.clone(), ..Told::default() }, false)
        }
        Stage::Completed { output, .. } => (call, told(output), false),
        Stage::Rejected { reason, .. } => (call, text(reason), true),
        Stage::Failed { error, .. } => (call, text(&error.message), true),
        Stage::Proposed | Stage::Pending => (call, text("The run ended before this call was sent."), true),
        Stage::Executing { .. } | Stage::Waiting { .. } => (call, text(Cause::LostResponse.message()), true),
        Stage::Indeterminate { cause, .. } => (call, text(cause.message()), true),
    }
}
