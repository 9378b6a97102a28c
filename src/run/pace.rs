//! What limits look at beside what was used: how much the next turn will read at least, and how often in a row each
//! tool failed.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::message::TurnUsage;

/// Errors of one tool in a row that end a run.
const ERRORS_MAX: u32 = 3;

/// How a run goes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pace {
    /// Tokens that the last turn read. A conversation only grows, so the next turn reads no fewer.
    #[serde(default)]
    pub last_input_tokens: u64,
    /// How often in a row each tool, by its offered name, answered with an error. What was not, is not here.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub errors: BTreeMap<String, u32>,
}

impl Pace {
    /// Whether there is nothing to look at.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// A turn ended.
    pub fn turned(&mut self, usage: TurnUsage) {
        self.last_input_tokens = usage.input_tokens;
    }

    /// A tool answered with an error.
    pub fn erred(&mut self, tool: &str) {
        let errors = self.errors.entry(tool.to_owned()).or_insert(0);
        *errors = errors.saturating_add(1).min(ERRORS_MAX);
    }

    /// A tool did what it was asked to. That a third error stood before it in the same turn is not taken back.
    pub fn succeeded(&mut self, tool: &str) {
        if self.errors.get(tool).is_some_and(|errors| *errors < ERRORS_MAX) {
            self.errors.remove(tool);
        }
    }

    /// Whether a tool failed too often in a row.
    pub fn runs_away(&self) -> bool {
        self.errors.values().any(|errors| *errors >= ERRORS_MAX)
    }
}
