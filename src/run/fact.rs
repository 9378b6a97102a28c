//! What can become true of a run.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use super::approval::{Requirement, TIMEOUT_ACTOR, Verdict, Voter};
use super::ask::{Ask, InputAction, Sample, SampleRequest};
use super::binding::{Binding, Warning};
use super::call::CallTarget;
use super::event::{Part, Progress};
use super::fetched::{ClientResults, Fetched};
use super::ids::{Actor, CallId, CallKey};
use super::message::{ModelTurn, TurnUsage};
use super::outcome::{Answer, Outcome, ToolError};
use super::policy::{Judged, Trouble};
use super::result::RunError;
use super::spec::{CatalogPolicy, Limits};
use super::time::Timestamp;

/// Something that happened.
#[derive(Clone, Debug, PartialEq)]
pub enum Fact {
    /// A node took the run.
    LegBegan,
    /// The servers were read at the start of a leg that has no caller.
    CatalogRead {
        /// What they serve now.
        served: Box<Binding>,
    },
    /// A required server could not be read.
    CatalogUnreadable {
        /// For people; names the server.
        message: String,
    },
    /// The servers were read again after an announcement, while nothing was out.
    CatalogReread {
        /// What they serve now.
        served: Box<Binding>,
        /// What reading them brought up.
        warnings: Vec<Warning>,
    },
    /// A server that had announced other tools could not be read.
    CatalogNotReread {
        /// For people; names the server.
        message: String,
    },
    /// Parts of an unfinished turn arrived.
    TurnStreamed {
        /// Text and reasoning deltas.
        parts: Vec<Part>,
        /// What the request has used at most, should nothing more come.
        usage: TurnUsage,
    },
    /// The model's turn ended properly.
    TurnEnded {
        /// The whole turn.
        turn: Box<ModelTurn>,
        /// Text and reasoning deltas that were not streamed yet.
        parts: Vec<Part>,
        /// One ruling a call, in call order.
        rulings: Vec<Ruling>,
        /// Where a structure was asked for and the turn makes no call: the value that it is, or why it is none.
        structured: Option<Result<Value, String>>,
    },
    /// A model request brought no turn.
    ModelFailed {
        /// Why.
        error: RunError,
        /// Whether it is asked again.
        retry: bool,
        /// The tool on offer for which the provider refused the whole request.
        refused: Option<String>,
        /// What it may have cost.
        usage: TurnUsage,
    },
    /// One attempt of a call ended.
    CallEnded {
        /// Which call.
        key: CallKey,
        /// How.
        outcome: Outcome,
    },
    /// Backends said how far calls have come that are out.
    CallsProgressed {
        /// Which, and how far.
        calls: Vec<(CallKey, Progress)>,
    },
    /// There is room for calls that wait for it.
    RoomCame,
    /// The model answered, and what it said cannot be stored, now or later.
    TurnUnstorable {
        /// What the turn cost, as far as it is known.
        usage: TurnUsage,
    },
    /// A caller resumes a run that nobody drives.
    Resumed(Box<Resume>),
    /// A person said what became of a call whose outcome nobody knew, or allowed one more attempt.
    Reconciled(Box<Reconciliation>),
    /// A person voted on what waits for an approval.
    Voted {
        /// The vote.
        cast: Box<CastVote>,
        /// What the gate says of changed arguments, where the vote brings some.
        ruling: Option<Box<Ruling>>,
    },
    /// The rules for limits were asked about one that is reached.
    LimitJudged {
        /// What they say; `None`: none of them holds.
        said: Option<Trouble>,
    },
    /// Nobody decided an approval in time.
    ApprovalExpired {
        /// Which.
        approval: Uuid,
    },
    /// The server of a call that is out asks a person.
    InputAsked {
        /// Which call.
        key: CallKey,
        /// What it asks.
        ask: Ask,
        /// When the server is told that nobody answered.
        expires_at: Timestamp,
    },
    /// A person answered a server's question.
    InputAnswered(Box<InputAnswer>),
    /// A question of a server ended without an answer.
    InputClosed {
        /// Which.
        input_id: String,
        /// `expired` or `withdrawn`.
        reason: &'static str,
    },
    /// A server asks for a sample of a model.
    SampleAsked {
        /// The call that it is about.
        key: CallKey,
        /// The server's name of the question, where it is kept in the receipt.
        question: Option<String>,
        /// What the model is to be asked.
        request: Box<SampleRequest>,
    },
    /// A sample was made, or could not be.
    SampleEnded {
        /// Its number.
        sample: u32,
        /// What came of it.
        end: SampleEnd,
    },
    /// Something became of a call that workers fetch.
    Fetched(Box<Fetched>),
    /// The run's client gave results.
    ClientAnswered(Box<ClientResults>),
    /// A caller's wish to end the run, once nothing is out any more.
    Cancelled,
}

/// A person's vote on an approval.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CastVote {
    /// Who votes.
    pub voter: Voter,
    /// On which.
    pub approval: Uuid,
    /// What they say.
    pub decision: Verdict,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
    /// The digest of the arguments that the voter has certainly read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read: Option<String>,
    /// Other arguments than those that were voted on so far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments: Option<Value>,
    /// How often the arguments had been changed when it was cast.
    #[serde(default)]
    pub round: u32,
}

/// What was left about an approval with the owner of its run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LeftVote {
    /// A person's vote.
    Cast(Box<CastVote>),
    /// Nobody decided it in time.
    Expired(Uuid),
}

impl LeftVote {
    /// Which approval it is about.
    pub const fn approval(&self) -> Uuid {
        match self {
            Self::Cast(cast) => cast.approval,
            Self::Expired(approval) => *approval,
        }
    }

    /// Whose it is.
    pub fn actor(&self) -> &str {
        match self {
            Self::Cast(cast) => cast.voter.actor.as_str(),
            Self::Expired(_) => TIMEOUT_ACTOR,
        }
    }

    /// The round of its approval that it belongs to; a deadline is for all of them.
    pub fn round(&self) -> u32 {
        match self {
            Self::Cast(cast) => cast.round,
            Self::Expired(_) => 0,
        }
    }
}

/// A person's answer to a server's question.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InputAnswer {
    /// Who answers.
    pub actor: Actor,
    /// Which question.
    pub input_id: String,
    /// What they did.
    pub action: InputAction,
    /// The fields of an accepted form, checked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<Value>,
}

/// What came of a sample.
#[derive(Clone, Debug, PartialEq)]
pub enum SampleEnd {
    /// The model answered.
    Made {
        /// What it said.
        sample: Sample,
        /// What it used.
        usage: TurnUsage,
    },
    /// The model was asked in vain.
    Failed {
        /// Why; for people.
        message: String,
        /// Whether the provider may want to be paid for it.
        may_cost: bool,
    },
}

/// What the gate says of a call: a value, made in one place and applied in another.
#[derive(Clone, Debug, PartialEq)]
pub enum Ruling {
    /// It may cross the boundary.
    Admit {
        /// Where it goes.
        target: CallTarget,
        /// The arguments, an object.
        input: Value,
        /// What the rules say of it.
        judged: Box<Judged>,
    },
    /// It may, once people have approved it.
    Ask {
        /// Where it goes.
        target: CallTarget,
        /// The arguments, an object.
        input: Value,
        /// What the rules say of it.
        judged: Box<Judged>,
        /// What that takes.
        requirement: Box<Requirement>,
    },
    /// It may not: unknown tool, invalid arguments, a rule that denies.
    Reject {
        /// Which rule refused it.
        rule: String,
        /// What the model is told.
        reason: String,
        /// The arguments; text where they are no JSON object.
        input: Value,
        /// What the rules say of it.
        judged: Box<Judged>,
    },
}

impl Ruling {
    /// The same for a call that goes to this place and no other.
    #[must_use]
    pub fn at(mut self, there: Option<String>) -> Self {
        match &mut self {
            Self::Admit { target, .. } | Self::Ask { target, .. } => target.place = there,
            Self::Reject { .. } => {}
        }
        self
    }
}

/// A caller's resume, after the servers were read.
#[derive(Clone, Debug, PartialEq)]
pub struct Resume {
    /// Who asks.
    pub actor: Actor,
    /// Calls that may be sent once more.
    pub retry: Vec<CallRef>,
    /// Votes on what waits for an approval, with what the gate says of changed arguments.
    pub votes: Vec<(CastVote, Option<Ruling>)>,
    /// What the servers serve now, with the entries that the caller gave or the run's own.
    pub served: Binding,
    /// What reading them brought up.
    pub warnings: Vec<Warning>,
    /// What to do about a catalog that changed while the run was down.
    pub on_catalog_change: CatalogPolicy,
    /// Tighter limits for the rest of the run's life.
    pub limits: Option<Limits>,
    /// Results of calls that the run's client carried out.
    pub results: Vec<(CallKey, Answer)>,
}

/// What a person decided about one undecided call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reconciliation {
    /// Who decided.
    pub actor: Actor,
    /// Which call.
    pub key: CallKey,
    /// What became of it.
    pub resolution: Resolution,
}

/// How an undecided call goes on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "resolution", rename_all = "kebab-case")]
pub enum Resolution {
    /// It may be sent exactly once more.
    Retry,
    /// It had its effect, and this is its result.
    Complete {
        /// What the backend returned, or would have.
        output: Value,
    },
    /// It had no effect, or failed.
    Fail {
        /// What the model is told.
        error: ToolError,
    },
}

impl Resolution {
    /// The code on the wire and in the audit.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::Complete { .. } => "complete",
            Self::Fail { .. } => "fail",
        }
    }
}

/// How a caller names a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallRef {
    /// The turn, when it is needed to tell two calls apart.
    pub turn: Option<u32>,
    /// The label.
    pub call_id: CallId,
}
