//! What a run is doing: one field, one truth, the same in the run, in lists and in the stream.

use serde::{Deserialize, Serialize};

/// Why a run waits for somebody. The order is the order in which one of several is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SuspendReason {
    /// A call may or may not have had its effect.
    ToolReconciliationRequired,
    /// A limit is reached, and people may raise it.
    LimitEscalated,
    /// A call waits for votes.
    ApprovalRequired,
    /// The run's client has calls to carry out.
    ClientToolResultsRequired,
    /// A server asked for input that only a person can give.
    InputRequired,
    /// The servers' tools differ from the record, and no caller was there to decide.
    McpCatalogChanged,
    /// A required server cannot be reached, and no caller was there to decide.
    McpUnreachable,
}

/// Why a run was stopped before its model was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StopReason {
    /// The servers' tools changed, and the run was told to stop then.
    McpCatalogChanged,
    /// The servers announced other tools, and these could not be read again and again.
    McpCatalogUnreadable,
    /// `limits.max_turns` model turns were made.
    MaxTurns,
    /// `limits.max_tool_calls` calls were made.
    MaxToolCalls,
    /// `limits.max_tokens` tokens were used.
    #[serde(rename = "budget.tokens")]
    BudgetTokens,
    /// `limits.max_cost_usd` dollars were used.
    #[serde(rename = "budget.usd")]
    BudgetUsd,
    /// `limits.max_duration_s` seconds of work passed.
    Deadline,
    /// One tool answered with an error three times in a row.
    RunawayToolErrors,
    /// The provider withheld the answer.
    ContentFilter,
    /// The provider cut the answer at its length limit.
    Length,
}

/// The status of a run, with its reason where it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// Waits for a node.
    Queued,
    /// A node drives it.
    Running,
    /// Waits for a person or a client.
    Suspended(SuspendReason),
    /// The model finished.
    Completed,
    /// Ended by a rule.
    Stopped(StopReason),
    /// Ended by an error; see the run's `error`.
    Failed,
    /// Ended by a caller's wish.
    Cancelled,
}

macro_rules! codes {
    ($name:ident { $($variant:ident => $code:literal),+ $(,)? }) => {
        impl $name {
            /// The code on the wire and in the store.
            pub const fn code(self) -> &'static str {
                match self { $(Self::$variant => $code),+ }
            }

            /// The reverse of `code`.
            pub fn from_code(code: &str) -> Option<Self> {
                match code { $($code => Some(Self::$variant),)+ _ => None }
            }

            /// Every value, in order.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];
        }
    };
}

codes!(SuspendReason {
    ToolReconciliationRequired => "tool-reconciliation-required",
    LimitEscalated => "limit-escalated",
    ApprovalRequired => "approval-required",
    ClientToolResultsRequired => "client-tool-results-required",
    InputRequired => "input-required",
    McpCatalogChanged => "mcp-catalog-changed",
    McpUnreachable => "mcp-unreachable",
});
codes!(StopReason {
    McpCatalogChanged => "mcp-catalog-changed",
    McpCatalogUnreadable => "mcp-catalog-unreadable",
    MaxTurns => "max-turns",
    MaxToolCalls => "max-tool-calls",
    BudgetTokens => "budget.tokens",
    BudgetUsd => "budget.usd",
    Deadline => "deadline",
    RunawayToolErrors => "runaway-tool-errors",
    ContentFilter => "content-filter",
    Length => "length",
});

impl Status {
    /// The status without its reason.
    pub const fn code(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Suspended(_) => "suspended",
            Self::Completed => "completed",
            Self::Stopped(_) => "stopped",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// The reason, where the status has one.
    pub const fn reason(self) -> Option<&'static str> {
        match self {
            Self::Suspended(reason) => Some(reason.code()),
            Self::Stopped(reason) => Some(reason.code()),
            Self::Queued | Self::Running | Self::Completed | Self::Failed | Self::Cancelled => None,
        }
    }

    /// The reverse of `code` and `reason`.
    pub fn from_codes(code: &str, reason: Option<&str>) -> Option<Self> {
        match (code, reason) {
            ("queued", None) => Some(Self::Queued),
            ("running", None) => Some(Self::Running),
            ("suspended", Some(reason)) => SuspendReason::from_code(reason).map(Self::Suspended),
            ("completed", None) => Some(Self::Completed),
            ("stopped", Some(reason)) => StopReason::from_code(reason).map(Self::Stopped),
            ("failed", None) => Some(Self::Failed),
            ("cancelled", None) => Some(Self::Cancelled),
            _ => None,
        }
    }

    /// Whether nothing will ever happen to the run again.
    pub const fn is_terminal(self) -> bool {
        match self {
            Self::Queued | Self::Running | Self::Suspended(_) => false,
            Self::Completed | Self::Stopped(_) | Self::Failed | Self::Cancelled => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_reads_back_from_its_codes() {
        let mut all = vec![Status::Queued, Status::Running, Status::Completed, Status::Failed, Status::Cancelled];
        all.extend(SuspendReason::ALL.iter().map(|reason| Status::Suspended(*reason)));
        all.extend(StopReason::ALL.iter().map(|reason| Status::Stopped(*reason)));
        for status in all {
            assert_eq!(Status::from_codes(status.code(), status.reason()), Some(status));
        }
        assert_eq!(Status::from_codes("suspended", None), None);
        assert_eq!(Status::from_codes("completed", Some("max-turns")), None);
    }
}
