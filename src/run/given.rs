//! What the model is given of the calls that it made: one result a call, in call order, whatever became of it.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};

use super::call::{Backend, Call, Stage};
use super::ids::RunId;
use super::message::Content;
use super::outcome::Cause;
use super::tool_result::{Told, told};
use super::view::{ViewLimits, is_over, within};

/// A larger result does not stay as it is once it is stored, in bytes.
const LARGE: usize = 1024 * 1024;
/// Room for the words that say what is left out, in bytes.
const NOTICE: usize = 512;

/// What stands in an address as it is: the unreserved characters of RFC 3986.
const LABEL: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// The results of a turn's calls. A call that is still open when they are given has no other result any more: the text
/// says whether it was sent, and that it may have happened. One that is shortened says at which address all of it is.
pub fn results(run: &RunId, calls: &[Call], view: ViewLimits) -> Vec<Content> {
    let results: Vec<(&Call, Told, bool)> = calls.iter().map(result).collect();
    let outputs: Vec<&Value> = results.iter().map(|(_, told, _)| &told.output).collect();
    let share = view.share(&outputs);
    let given = results.into_iter().map(|(call, told, is_error)| {
        let whole = whole(run, call);
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

/// Lets go of what large results hold beyond what the model can come to be told of them, once they are stored: a turn has as many
/// as its model makes calls. What is left is never shortened again, so what the model is told says how much there was. Results
/// with pictures stay, which the model is told whole.
pub fn forget_results(run: &RunId, calls: &mut [Call], view: ViewLimits) {
    let share = view.turn.checked_div(calls.len()).unwrap_or(view.turn).min(view.result);
    let most = share.saturating_sub(NOTICE);
    for call in calls {
        let (whole, is_own) = (whole(run, call), matches!(call.backend(), Some(Backend::Worker | Backend::Client)));
        match &mut call.stage {
            Stage::Completed { output, .. } if is_own && is_over(output, LARGE) => {
                *output = within(output.take(), most, &whole);
            }
            Stage::Completed { output, .. } if is_over(output, LARGE) => {
                let told = told(output);
                if told.pictures.is_empty() {
                    *output = json!({ "structuredContent": within(told.output, most, &whole) });
                }
            }
            // The model is told the error.
            Stage::Failed { output, .. } if output.as_ref().is_some_and(|output| is_over(output, LARGE)) => {
                *output = None;
            }
            Stage::Completed { .. }
            | Stage::Failed { .. }
            | Stage::Rejected { .. }
            | Stage::Proposed
            | Stage::Pending
            | Stage::Executing { .. }
            | Stage::Waiting { .. }
            | Stage::Indeterminate { .. } => {}
        }
    }
}

/// Where people find the whole result of a call.
fn whole(run: &RunId, call: &Call) -> String {
    let (label, turn, at) = (&call.call_id, call.key.turn, receipt_path(run, call));
    format!("The whole result is kept in the receipt of this call ({label}, turn {turn}): GET {at}.")
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::call::{CallTarget, Handing};
    use crate::run::ids::{CallId, CallKey};
    use crate::run::outcome::ToolError;
    use crate::run::policy::Judged;
    use crate::run::spec::SideEffectClass;
    use crate::run::time::Timestamp;

    fn call(position: u32, stage: Stage) -> Call {
        Call {
            key: CallKey { turn: 1, position },
            call_id: CallId::new(format!("call_{position}")),
            tool: "t".to_owned(),
            input: json!({}),
            target: None,
            attempt: 1,
            turned_away: 0,
            asked: None,
            task: None,
            decided_by: None,
            judged: Judged::default(),
            handing: Handing::default(),
            stage,
            created_at: Timestamp::from_millis(0),
        }
    }

    fn done(position: u32, output: Value) -> Call {
        call(position, Stage::Completed { settled_at: Timestamp::from_millis(0), output })
    }

    fn of_worker(call: Call) -> Call {
        let (class, name) = (SideEffectClass::ReadOnly, String::new());
        let (server, server_tool) = (name.clone(), name);
        let target = CallTarget {
            backend: Backend::Worker,
            entry: 0,
            server,
            server_tool,
            version: None,
            place: None,
            class,
            replay: false,
        };
        Call { target: Some(target), ..call }
    }

    fn text(text: &str) -> Value {
        json!({ "content": [{ "type": "text", "text": text }] })
    }

    #[test]
    fn what_is_let_go_of_is_not_told_and_what_is_told_says_how_much_there_was() {
        let view = ViewLimits::default();
        let large = json!({ "content": [], "structuredContent": { "content": vec!["x".repeat(100); 20_000] } });
        let failed = ToolError::new("tool-error", "no");
        let failed =
            Stage::Failed { settled_at: Timestamp::from_millis(0), error: failed, output: Some(large.clone()) };
        let mut calls = vec![
            done(0, text(&"y".repeat(3_000_000))),
            done(1, large),
            call(2, failed),
            done(3, text("small")),
            call(4, Stage::Pending),
            of_worker(done(5, json!({ "rows": "z".repeat(2_000_000) }))),
        ];
        let run = RunId::parse("r").unwrap();
        let before = results(&run, &calls, view);
        forget_results(&run, &mut calls, view);
        for call in &calls {
            let (Stage::Completed { output, .. } | Stage::Failed { output: Some(output), .. }) = &call.stage else {
                continue;
            };
            assert!(!is_over(output, 100_000), "{}", call.key.position);
        }
        let after = results(&run, &calls, view);
        let told = |content: &Content| match content {
            Content::ToolResult { output, is_error, .. } => (output.to_string(), *is_error),
            _ => panic!("no result"),
        };
        let (before, after): (Vec<_>, Vec<_>) = (before.iter().map(told).collect(), after.iter().map(told).collect());
        assert_eq!((&before[2..5], &before[0].1), (&after[2..5], &after[0].1));
        let whole = [
            (0, "of 3000000 bytes are left out here"),
            (1, "bytes are too many to be shown"),
            (5, "bytes are too many to be shown"),
        ];
        assert!(after[5].0.contains(r#""value":{"rows":"z"#), "a worker's result is told as it is");
        for (at, says) in whole {
            assert!(after[at].0.contains(says), "{}", after[at].0.len());
            assert_eq!(after[at].0.matches("The whole result is kept in the receipt").count(), 1);
            let (least, most) = (before[at].0.len() - 20_000, before[at].0.len() + 1_000);
            assert!((least..most).contains(&after[at].0.len()), "{} of {}", after[at].0.len(), before[at].0.len());
        }
    }
}
