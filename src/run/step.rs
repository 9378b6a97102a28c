//! What must happen next. Total: every run that can be stored has a next step, and that is the whole recovery story.

use super::envelope::{Envelope, Leg};
use super::status::Status;

/// What must happen next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A node has taken the run: say so, and look at what the last owner left.
    BeginLeg,
    /// Read the servers' catalogs and compare them with the record.
    CheckCatalog,
    /// A server announced another list of tools: read the catalogs again before the model is asked.
    RefreshCatalog,
    /// A limit is reached: ask the rules what follows.
    JudgeLimit,
    /// Ask the model for the next turn.
    AskModel,
    /// Calls are out, or samples are made for them, or workers are waited for before the run is cancelled: wait for one to end, and for room where more of them could leave.
    AwaitCalls,
    /// Calls are to leave, none is out, and there was no room: wait for it.
    AwaitRoom,
    /// Somebody wished the run cancelled and nothing is out any more: end it.
    Cancel,
    /// Nothing, until somebody decides; or never again.
    Rest,
}

/// The next step of a run whose owner calls this.
pub fn next(envelope: &Envelope) -> Step {
    match (envelope.head.status, envelope.leg) {
        (Status::Completed | Status::Stopped(_) | Status::Failed | Status::Cancelled, _)
        | (Status::Suspended(_), Leg::Outside | Leg::CheckingCatalog | Leg::Working) => Step::Rest,
        // Also of a run that waits for people. A worker hears of the wish with its next sign of life, and may still answer.
        (Status::Queued | Status::Running | Status::Suspended(_), Leg::Cancelling) => {
            if envelope.has_held() || envelope.has_with_worker() { Step::AwaitCalls } else { Step::Cancel }
        }
        (Status::Queued | Status::Running, Leg::Outside) => Step::BeginLeg,
        (Status::Queued | Status::Running, Leg::CheckingCatalog | Leg::Working) if envelope.has_held() => {
            Step::AwaitCalls
        }
        (Status::Queued | Status::Running, Leg::CheckingCatalog) => Step::CheckCatalog,
        (Status::Queued | Status::Running, Leg::Working) => working(envelope),
    }
}

/// The next step of a run that works and has nothing out on behalf of its driver.
fn working(envelope: &Envelope) -> Step {
    if envelope.head.state.reached.is_some() {
        Step::JudgeLimit
    } else if envelope.waits_for_sample() {
        Step::AwaitCalls
    } else if envelope.waits_for_room() {
        Step::AwaitRoom
    } else if envelope.announced {
        Step::RefreshCatalog
    } else {
        Step::AskModel
    }
}
