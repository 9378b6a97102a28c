//! What can become of calls that others carry out: workers, who fetch them, and the run's own client.

use serde::{Deserialize, Serialize};

use super::call::Lease;
use super::ids::{Actor, CallKey};
use super::outcome::Answer;
use super::untaken::Untaken;

/// What became of a call that workers fetch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fetched {
    /// Which call.
    pub key: CallKey,
    /// What.
    #[serde(flatten)]
    pub what: FetchedWhat,
}

/// What can become of a call that workers fetch. Whoever has it names the lease.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "fetched", rename_all = "kebab-case")]
pub enum FetchedWhat {
    /// A worker takes it.
    Claimed {
        /// The hand-out.
        lease: Lease,
    },
    /// Its worker answered.
    Answered {
        /// The hand-out's name.
        lease: String,
        /// What it answered.
        answer: Answer,
    },
    /// Its worker has certainly not executed it and gives it back.
    PutBack {
        /// The hand-out's name.
        lease: String,
    },
    /// Its worker gave no sign of life in time.
    Lapsed {
        /// The hand-out's name.
        lease: String,
    },
    /// No worker has it, and none is to get it as things are.
    NotTaken {
        /// Why.
        trouble: Untaken,
    },
}

impl FetchedWhat {
    /// What a call that is behind time comes to: its lease has ended, or it is on offer and nobody takes it.
    pub fn behind(lease: Option<String>, is_served: bool) -> Self {
        match lease {
            Some(lease) => Self::Lapsed { lease },
            None if is_served => Self::NotTaken { trouble: Untaken::CapacityExhausted },
            None => Self::NotTaken { trouble: Untaken::NoHandler },
        }
    }

    /// The code in the store.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Claimed { .. } => "claimed",
            Self::Answered { .. } => "answered",
            Self::PutBack { .. } => "put-back",
            Self::Lapsed { .. } => "lapsed",
            Self::NotTaken { .. } => "not-taken",
        }
    }
}

/// Results that the run's client gave.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClientResults {
    /// Who gave them.
    pub actor: Actor,
    /// Of which calls.
    pub results: Vec<(CallKey, Answer)>,
}
