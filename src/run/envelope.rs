//! Everything that is true of a run, in one value.

use serde::{Deserialize, Serialize};

use super::approval::{Approvals, Subject};
use super::ask::{Asks, SampleRequest};
use super::binding::{Binding, Warning};
use super::call::{Backend, Call, Stage};
use super::event::{ClientCall, UndecidedCall};
use super::ids::{Actor, CallKey, RunId, RunUid, TenantId};
use super::message::{Message, TurnUsage};
use super::money::{Price, Usd};
use super::pace::Pace;
use super::reached::Reached;
use super::result::{RunError, RunOutput, Usage};
use super::spec::{Limits, McpEntry, RunSpec};
use super::status::{Status, SuspendReason};
use super::time::Timestamp;
use super::view::ViewLimits;

/// Everything that is true of a run. Calls of earlier turns are settled and stay in the store.
#[derive(Clone, Debug, PartialEq)]
pub struct Envelope {
    /// Whose run it is.
    pub tenant: TenantId,
    /// The internal identity.
    pub uid: RunUid,
    /// The caller's name of it.
    pub id: RunId,
    /// What was asked for.
    pub spec: RunSpec,
    /// What it is bound to.
    pub binding: Binding,
    /// The small part that every commit rewrites.
    pub head: Head,
    /// The conversation so far.
    pub messages: Vec<Message>,
    /// The calls of the last turn, in call order.
    pub calls: Vec<Call>,
    /// How far the current leg has come; never stored: whoever loads a run begins a leg.
    pub leg: Leg,
    /// How many calls may leave with the next fact, as its driver says before each; never stored. Whoever loads a run
    /// knows of no limit.
    pub room: usize,
    /// Whether a server announced another list of tools since the catalogs were read, as the driver says before each
    /// step, or they could not be read when they should have been; never stored. A leg begins by reading them.
    pub announced: bool,
    /// Whether readers were told that the next turn begins; never stored.
    pub turn_told: bool,
    /// How much of its calls' results the model is told, as the driver says; never stored. What it was told is.
    pub view: ViewLimits,
}

/// How far a leg has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leg {
    /// Nobody drives the run.
    Outside,
    /// The servers' catalogs must be compared with the record before anything is sent.
    CheckingCatalog,
    /// Calls and model requests go out.
    Working,
    /// Somebody wants the run cancelled: what is out is awaited, nothing more goes out.
    Cancelling,
}

/// The head of a run: small, whatever the run's length.
#[derive(Clone, Debug, PartialEq)]
pub struct Head {
    /// What the run is doing.
    pub status: Status,
    /// Moves with the content of the run, once per commit.
    pub revision: i64,
    /// Number of the last event.
    pub last_seq: i64,
    /// Legs begun without progress in between.
    pub attempt: u32,
    /// Nodes that died with the run since it last made progress.
    pub crashes: u32,
    /// The rest, stored as one document.
    pub state: HeadState,
    /// When the run was admitted.
    pub created_at: Timestamp,
    /// When the last commit was decided.
    pub updated_at: Timestamp,
    /// When the run ended.
    pub finished_at: Option<Timestamp>,
}

/// The part of the head that no query filters by.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HeadState {
    /// Who created the run.
    pub created_by: Actor,
    /// Committed model turns.
    pub turns: u32,
    /// Messages so far; the next position.
    pub messages: u32,
    /// Calls that the model made.
    pub tool_calls: u32,
    /// What was used.
    pub usage: Usage,
    /// Whether anything was decided since the last leg began.
    pub progressed: bool,
    /// What servers ask of the run, and what their samples used.
    #[serde(default, skip_serializing_if = "Asks::is_empty")]
    pub asks: Asks,
    /// What waits for votes.
    #[serde(default, skip_serializing_if = "Approvals::is_empty")]
    pub approvals: Approvals,
    /// A limit that is reached, until the rules for limits were asked about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reached: Option<Reached>,
    /// Whether the model was asked to mend its final answer: that is done once.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub repaired: bool,
    /// What a request has used at most whose answer began to come and has not ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<TurnUsage>,
    /// Why the run fails once what servers and workers have of it has its end: a person denied what a rule makes the run
    /// depend on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failing: Option<RunError>,
    /// Failed model requests since the last turn ended.
    #[serde(default)]
    pub model_failures: u32,
    /// How often in a row the catalogs could not be read again.
    #[serde(default)]
    pub catalog_failures: u32,
    /// What a resume tightened the run's limits to, or an approval raised them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
    /// Milliseconds of work in earlier legs.
    pub worked_ms: i64,
    /// When the current leg began; later by as long as it only waited for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leg_began_at: Option<Timestamp>,
    /// Since when the current leg only waits for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_since: Option<Timestamp>,
    /// What limits look at besides.
    #[serde(default, skip_serializing_if = "Pace::is_empty")]
    pub pace: Pace,
    /// What a person should know.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<Warning>,
    /// The final answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<RunOutput>,
    /// Why the run failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<RunError>,
}

impl HeadState {
    /// Committed requests to the run's own model, those for servers not counted.
    pub const fn own_requests(&self) -> u32 {
        self.usage.model_requests.saturating_sub(self.asks.usage.model_requests)
    }
}

impl Head {
    /// The limits that hold now: those that the run was created with, or what a resume or an approval made of them.
    pub fn limits<'a>(&'a self, spec: &'a RunSpec) -> &'a Limits {
        self.state.limits.as_ref().unwrap_or(&spec.limits)
    }
}

impl Envelope {
    /// The calls that only a person can decide.
    pub fn undecided(&self) -> impl Iterator<Item = &Call> {
        let ended = self.head.status.is_terminal();
        self.calls.iter().filter(move |call| call.is_undecided_in(ended))
    }

    /// Whether the outcome of this call is unknown since that very time.
    pub fn is_unknown_since(&self, key: CallKey, time: Timestamp) -> bool {
        let unknown = |call: &Call| matches!(call.stage, Stage::Indeterminate { since, .. } if since == time);
        self.calls.iter().any(|call| call.key == key && unknown(call))
    }

    /// Whether a call is out on behalf of the run's driver, or was when that died.
    pub fn has_held(&self) -> bool {
        self.calls.iter().any(Call::is_held)
    }

    /// Whether workers have calls of the run.
    pub fn has_with_worker(&self) -> bool {
        self.calls.iter().any(Call::is_with_worker)
    }

    /// Whether workers have calls of the run, or may take some.
    pub fn has_fetched(&self) -> bool {
        self.calls.iter().any(|call| call.is_with_worker() || call.is_offered())
    }

    /// The calls that the run's client is to carry out.
    pub fn client_calls(&self) -> impl Iterator<Item = &Call> {
        self.calls.iter().filter(|call| call.is_with_client())
    }

    /// Whether a server goes on by itself with a call of the run.
    pub fn has_deferred(&self) -> bool {
        self.calls.iter().any(Call::is_deferred)
    }

    /// The limits that hold now.
    pub fn limits(&self) -> &Limits {
        self.head.limits(&self.spec)
    }

    /// How many calls are out, or were when the leg's process died. Those that workers may take count: one may take them at
    /// any moment. Those of the client do not: nobody here does anything for them.
    pub fn executing(&self) -> usize {
        self.calls.iter().filter(|call| call.is_held() || call.is_with_worker() || call.is_offered()).count()
    }

    /// How many calls of the run may be out at once.
    pub fn max_parallel(&self) -> usize {
        usize::try_from(self.limits().max_parallel_tool_calls).unwrap_or(usize::MAX).max(1)
    }

    /// Whether a call would leave now if there were room for it. Workers need none: they come when they have some.
    pub fn waits_for_room(&self) -> bool {
        self.leg == Leg::Working
            && self.head.state.reached.is_none()
            && !self.sends_no_more()
            && self.executing() < self.max_parallel()
            && self.calls.iter().any(|call| call.is_sendable() && call.backend() == Some(Backend::Mcp))
    }

    /// Why the run waits for somebody once nothing of it is out: the first reason that holds.
    pub fn waits_because(&self) -> Option<SuspendReason> {
        match self.awaits() {
            None | Some(SuspendReason::InputRequired) if self.client_calls().next().is_some() => {
                Some(SuspendReason::ClientToolResultsRequired)
            }
            reason => reason,
        }
    }

    /// The same for a run that nobody drives: calls that may go on need not wait for the client's.
    pub fn rests_because(&self) -> Option<SuspendReason> {
        let goes_on = !self.waits_for_person() && self.calls.iter().any(Call::is_sendable);
        if goes_on { None } else { self.waits_because() }
    }

    /// Whether nothing more of the turn is sent: a person is asked, or the run fails once what is out has its end.
    pub fn sends_no_more(&self) -> bool {
        self.waits_for_person() || self.fails()
    }

    /// Whether the run fails once what is out has its end: by a rule for what went wrong with a call, or by a denial.
    pub fn fails(&self) -> bool {
        self.head.state.failing.is_some() || self.calls.iter().any(|call| call.fails_run().is_some())
    }

    /// Whether a call waits for a person: then no further call of the turn is sent.
    pub fn waits_for_person(&self) -> bool {
        self.awaits().is_some()
    }

    /// Whether people vote on another attempt of a call whose outcome nobody knows.
    pub fn is_voted_on(&self, call: &Call) -> bool {
        self.head.state.approvals.open.iter().any(|open| open.call == call.key && open.subject == Subject::Repeat)
    }

    /// The first of the reasons why people must decide before anything more of the turn is sent.
    pub fn awaits(&self) -> Option<SuspendReason> {
        let asks = || self.head.state.asks.open.iter().any(|open| open.question.is_some());
        let proposed = || self.calls.iter().any(|call| matches!(call.stage, Stage::Proposed));
        if self.undecided().any(|call| !self.is_voted_on(call)) {
            Some(SuspendReason::ToolReconciliationRequired)
        } else if self.head.state.approvals.is_about_limit() {
            Some(SuspendReason::LimitEscalated)
        } else if proposed() || self.head.state.approvals.hold_run() {
            Some(SuspendReason::ApprovalRequired)
        } else {
            asks().then_some(SuspendReason::InputRequired)
        }
    }

    /// Whether a call waits for a sample that no person must approve any more: nothing of it is out, and its server gets
    /// the sample with the next attempt.
    pub fn waits_for_sample(&self) -> bool {
        self.wanted_samples().next().is_some()
    }

    /// The samples that calls wait for and that no person must approve any more, by the server's names of the questions.
    pub fn wanted_samples(&self) -> impl Iterator<Item = (CallKey, &String, &SampleRequest)> {
        let waiting = self.calls.iter().filter(|call| matches!(call.stage, Stage::Waiting { .. }));
        let asked = waiting.filter_map(|call| Some((call.key, call.asked.as_ref()?)));
        asked
            .flat_map(|(key, asked)| asked.samples().map(move |(name, request)| (key, name, request)))
            .filter(|(key, name, _)| !self.head.state.approvals.is_about_sample(*key, Some(name)))
    }

    /// The entry of the server that carries out a call. By the offered name: a resume may have given the entries in
    /// another order.
    pub fn entry_of(&self, call: &Call) -> Option<&McpEntry> {
        self.binding.entries.get(self.binding.tool(&call.tool)?.entry()?)
    }

    /// Tokens of the budget that are neither used nor reserved; `None`: there is no budget.
    pub fn tokens_left(&self) -> Option<u64> {
        let most = self.limits().max_tokens?;
        let state = &self.head.state;
        Some(most.saturating_sub(state.usage.total_tokens).saturating_sub(state.asks.reserved_tokens()))
    }

    /// Dollars of the budget that are neither used nor reserved; `None`: there is no budget. What costs nobody knows
    /// how much leaves nothing.
    pub fn cost_left(&self) -> Option<Usd> {
        let most = self.limits().max_cost_usd?;
        let state = &self.head.state;
        let used = state.usage.cost();
        Some(used.map_or(Usd::ZERO, |used| most.minus(used).minus(state.asks.reserved_cost())))
    }

    /// The most tokens that the next answer may have by what is left of the budgets, of which it reads as much as the last
    /// turn at least; `None`: there is no budget.
    pub fn answer_room(&self) -> Option<u64> {
        let reads = self.head.state.pace.last_input_tokens;
        let by_tokens = self.tokens_left().map(|left| left.saturating_sub(reads));
        let by_cost = self.cost_left().zip(self.price());
        let by_cost = by_cost.and_then(|(left, price)| price.written_for(left.minus(price.least(reads))));
        by_tokens.into_iter().chain(by_cost).min().map(|room| room.max(1))
    }

    /// What the run's own model costs.
    pub fn price(&self) -> Option<&Price> {
        self.spec.prices.of(&self.spec.model)
    }

    /// Whether the run has worked as long as it may.
    pub fn is_late(&self, now: Timestamp) -> bool {
        let worked_s = u64::try_from(self.worked_ms(now).saturating_div(1000)).unwrap_or(0);
        self.limits().max_duration_s.is_some_and(|most| worked_s >= most)
    }

    /// Milliseconds of work so far; waiting for people does not count.
    pub fn worked_ms(&self, now: Timestamp) -> i64 {
        let until = self.head.state.idle_since.unwrap_or(now);
        let this_leg = self.head.state.leg_began_at.map_or(0, |began| until.millis_since(began));
        self.head.state.worked_ms.saturating_add(this_leg)
    }

    /// Whether everything that is out waits for people: each call for an answer or a vote, and no sample is being made.
    pub fn only_waits_for_people(&self) -> bool {
        let state = &self.head.state;
        let asks = |key: CallKey| {
            state.asks.open.iter().any(|open| open.call == key)
                || state.approvals.open.iter().any(|open| open.call == key)
        };
        let mut out = self.calls.iter().filter(|call| matches!(call.stage, Stage::Executing { .. })).peekable();
        state.asks.reserved.is_empty() && out.peek().is_some() && out.all(|call| asks(call.key))
    }

    /// The undecided calls as readers see them.
    pub fn undecided_calls(&self) -> Vec<UndecidedCall> {
        self.undecided().filter_map(undecided_call).collect()
    }
}

/// The reader's view of a call that the run's client is to carry out.
pub fn client_call(call: &Call) -> Option<ClientCall> {
    let Stage::Executing { since } = call.stage else { return None };
    let (turn, call_id, tool, input) = (call.key.turn, call.call_id.clone(), call.tool.clone(), call.input.clone());
    call.is_with_client().then_some(ClientCall { turn, call_id, tool, input, since })
}

/// The reader's view of a call with an unknown outcome.
pub fn undecided_call(call: &Call) -> Option<UndecidedCall> {
    let Stage::Indeterminate { cause, since, .. } = &call.stage else { return None };
    Some(UndecidedCall {
        turn: call.key.turn,
        call_id: call.call_id.clone(),
        tool: call.tool.clone(),
        input: call.input.clone(),
        cause: cause.code().to_owned(),
        message: cause.message().to_owned(),
        since: *since,
    })
}
