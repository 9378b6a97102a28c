//! Why no worker has a call that is on offer, as the model is told it. What is done about it, with rules and without,
//! stands with the other troubles of calls in `apply/trouble`.

use serde::{Deserialize, Serialize};

use super::call::Call;
use super::outcome::ToolError;
use super::policy::Trigger;

/// Why no worker has a call that is on offer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "trouble", rename_all = "kebab-case")]
pub enum Untaken {
    /// Nobody serves that version of the tool, for as long as a call waits.
    NoHandler,
    /// Whoever serves it is busy, or the queue is full.
    CapacityExhausted,
    /// A worker that the operator does not let have it asked for it.
    NotAllowed {
        /// What of it the operator does not permit.
        kind: Violation,
    },
}

/// What of a worker the operator does not permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Violation {
    /// Its workload identity.
    WorkloadIdentity,
    /// The digest of its image.
    ImageDigest,
}

/// The code of a call that nobody serves.
const NO_HANDLER: &str = "dispatch-no-handler";
/// The code of a call for which nobody has room.
const CAPACITY_EXHAUSTED: &str = "dispatch-capacity-exhausted";

impl Untaken {
    /// When rules are asked about it; `None`: no rule overrides what the operator says.
    pub const fn trigger(&self) -> Option<Trigger> {
        match self {
            Self::NoHandler => Some(Trigger::NoHandler),
            Self::CapacityExhausted => Some(Trigger::CapacityExhausted),
            Self::NotAllowed { .. } => None,
        }
    }

    /// The failure of a call that was never handed out.
    pub fn error(&self, tool: &str) -> ToolError {
        match self {
            Self::NoHandler => {
                let message = format!("No worker serves the tool '{tool}' now. The call was not executed.");
                ToolError::new(NO_HANDLER, message)
            }
            Self::CapacityExhausted => {
                let message = format!("All workers of the tool '{tool}' are busy. The call was not executed.");
                ToolError::new(CAPACITY_EXHAUSTED, message)
            }
            Self::NotAllowed { kind: Violation::WorkloadIdentity } => {
                let message = format!(
                    "The worker that asked for the tool '{tool}' runs under an identity that is not permitted. The call \
                     was not executed."
                );
                ToolError::new("worker-identity-not-permitted", message)
            }
            Self::NotAllowed { kind: Violation::ImageDigest } => {
                let message = format!(
                    "The worker that asked for the tool '{tool}' runs an image that is not permitted. The call was not \
                     executed."
                );
                ToolError::new("worker-image-not-permitted", message)
            }
        }
    }
}

/// When rules were asked about a call that failed since nobody took it; `None`: that is not why it failed.
pub fn trigger_of(call: &Call, error: &ToolError) -> Option<Trigger> {
    match error.code.as_str() {
        // A call that was never handed out has no error of a worker's.
        _ if call.attempt > 0 => None,
        NO_HANDLER => Some(Trigger::NoHandler),
        CAPACITY_EXHAUSTED => Some(Trigger::CapacityExhausted),
        _ => None,
    }
}
