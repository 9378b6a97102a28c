//! Why the state of a run does not admit a fact.

use uuid::Uuid;

use super::binding::Drift;
use super::ids::CallId;

/// A fact that the state does not admit; the run is what it was.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A node drives the run now.
    #[error("the run is active")]
    RunActive,
    /// The run has ended.
    #[error("the run is terminal")]
    RunTerminal,
    /// The caller's own revision is another one than the run's.
    #[error("the run was created with another binding_id")]
    BindingChanged,
    /// The servers' tools differ from the record.
    #[error("{}", .0.across_resume())]
    CatalogChanged(Drift),
    /// The servers' tools differ, and calls that the model made against the record are not settled.
    #[error("{} Calls made against the recorded catalog are in flight.", .drift.across_resume())]
    CatalogChangedInFlight {
        /// How they differ.
        drift: Drift,
        /// The calls.
        calls: Vec<CallId>,
    },
    /// Calls that are not settled would go to another server, or under other credentials, than they were made for.
    #[error("Calls that are not settled were made for another server, or other credentials, than these entries name.")]
    ServerMoved {
        /// The calls.
        calls: Vec<CallId>,
    },
    /// Entries in place of these would ask for fewer approvals, or have fewer rules.
    #[error(
        "These entries would guard calls less than the ones that the run has: approvals and rules can only be added."
    )]
    RulesLoosened {
        /// The entries that the run has, by their labels.
        servers: Vec<String>,
    },
    /// A call id that stands for several undecided calls.
    #[error("{0} may name several calls: say of which turn")]
    AmbiguousCall(CallId),
    /// The call has its result, was never sent, or may go on by itself.
    #[error("the call is not undecided")]
    NotReconcilable,
    /// The server's question was answered, or nobody waits for its answer any more.
    #[error("the question does not wait for an answer any more")]
    AlreadyAnswered,
    /// The approval was decided, or belongs to a call of another turn.
    #[error("the approval is decided")]
    AlreadyDecided(Uuid),
    /// A vote names a call that nobody is asked about.
    #[error("the run has no approval of the call {}", .0.as_str())]
    NoApproval(CallId),
    /// This actor's vote counts already.
    #[error("this actor has voted on it")]
    AlreadyVoted,
    /// An earlier vote changed the arguments, and nothing shows that this voter has read them.
    #[error("the arguments were changed: approve with the token of the approval as it stands, or with these arguments")]
    ApprovalChanged,
    /// The rule asks for other people's votes.
    #[error("the rule does not let this actor vote on it")]
    NotAnApprover,
    /// The rule does not let a vote change arguments.
    #[error("the rule does not let a vote change the arguments")]
    ArgumentsFixed,
    /// The run is driven, or waits for somebody.
    #[error("the run has not ended")]
    RunNotEnded,
    /// The call is not the worker's that says so, or not any more.
    #[error("the call is not this worker's any more")]
    LeaseLost,
    /// No worker may take the call now.
    #[error("the call is not on offer")]
    NotOffered,
    /// The call does not wait for a result of the run's client; one that had another result before.
    #[error("{0} does not wait for a result")]
    NotAwaited(CallId),
    /// The run has calls whose outcome nobody knows.
    #[error("the run has calls whose outcome nobody knows: decide them first")]
    CallsUndecided,
    /// The run goes on waiting exactly as before.
    #[error("the request decides nothing")]
    NothingDecided,
    /// A driver applied a fact that cannot be true; a defect, never the caller's fault.
    #[error("the fact does not fit the run: {0}")]
    Impossible(&'static str),
}

impl Refusal {
    /// The problem code.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::RunActive => "run-active",
            Self::RunTerminal => "run-terminal",
            Self::BindingChanged => "binding-changed",
            Self::CatalogChanged(_) => "mcp-catalog-changed",
            Self::CatalogChangedInFlight { .. } => "mcp-catalog-changed-in-flight",
            Self::ServerMoved { .. } => "mcp-server-moved",
            Self::RulesLoosened { .. } => "mcp-rules-loosened",
            Self::AmbiguousCall(_) => "ambiguous-call",
            Self::NotReconcilable => "not-reconcilable",
            Self::AlreadyAnswered => "already-answered",
            Self::AlreadyDecided(_) => "already-decided",
            Self::NoApproval(_) => "no-such-approval",
            Self::AlreadyVoted => "already-voted",
            Self::ApprovalChanged => "approval-changed",
            Self::NotAnApprover => "not-an-approver",
            Self::ArgumentsFixed => "arguments-fixed",
            Self::RunNotEnded => "run-not-ended",
            Self::LeaseLost => "lease-lost",
            Self::NotOffered => "not-offered",
            Self::NotAwaited(_) => "result-not-awaited",
            Self::CallsUndecided => "calls-undecided",
            Self::NothingDecided => "nothing-decided",
            Self::Impossible(_) => "internal",
        }
    }
}
