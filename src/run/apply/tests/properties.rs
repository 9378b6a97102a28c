//! Random runs that crash at every commit: the promises hold, and every run can end.

use std::collections::{HashMap, HashSet};

use proptest::prelude::*;
use serde_json::{Value, json};

use super::world::*;
use crate::run::apply;
use crate::run::approval::{ApprovalRule, ApprovalStatus, Requirement, Subject, Verdict};
use crate::run::ask::Ask;
use crate::run::call::{Backend, Call, Lease, Stage};
use crate::run::commit::{Commit, Next};
use crate::run::envelope::{Envelope, Leg};
use crate::run::event::EventBody;
use crate::run::fact::{Fact, Resolution, Ruling, SampleEnd};
use crate::run::fetched::FetchedWhat;
use crate::run::ids::{CallId, CallKey};
use crate::run::message::{Content, Role};
use crate::run::outcome::{Answer, Cause, Outcome};
use crate::run::policy::{Policy, Trouble};
use crate::run::spec::{CatalogPolicy, SideEffectClass};
use crate::run::status::Status;
use crate::run::untaken::Untaken;
use crate::run::{Step, next};

/// What the world does at one step: a number picks among what is possible there.
#[derive(Clone, Debug)]
struct Chance {
    pick: u8,
    /// The process dies before the commit is stored, or right after it.
    dies: u8,
    /// How many calls may leave.
    room: usize,
    /// Whether a server announced other tools.
    announced: bool,
}

fn chances() -> impl Strategy<Value = Vec<Chance>> {
    let chance = (any::<u8>(), any::<u8>(), 0..4_usize, any::<bool>());
    let chance = chance.prop_map(|(pick, dies, room, announced)| Chance { pick, dies, room, announced });
    prop::collection::vec(chance, 1..120)
}

/// The store and the counterparts: what is durable, and what really happened.
struct World {
    stored: Envelope,
    memory: Envelope,
    effects: HashMap<CallKey, u32>,
    allowed: HashMap<CallKey, u32>,
    turns_paid: u32,
    events: i64,
    results: u32,
    /// Who goes on, as it was stored last.
    next: Next,
    /// Calls that people were asked about, and those that they approved.
    gated: HashSet<(u32, CallId)>,
    approved: HashSet<(u32, CallId)>,
    /// What was told of each call since its last attempt began.
    told: HashMap<(u64, String), Vec<String>>,
    /// Somebody wants the run to end.
    is_unwanted: bool,
}

impl World {
    fn new(is_ruled: bool) -> Self {
        let limits = json!({"max_turns": 3, "max_tool_calls": 7, "max_parallel_tool_calls": 2, "on_limit": "escalate"});
        let (mut run, commit) = new_run(limits, true);
        let_ask(&mut run, small());
        run.binding = run.binding.with_local(local_tools()).0;
        run.spec.policies = if is_ruled { vec![limit_rule()] } else { vec![] };
        need_approval(&mut run, &["put", "pick"]);
        run.spec.on_catalog_change = CatalogPolicy::Accept;
        let mut world = Self {
            stored: run.clone(),
            memory: run,
            effects: HashMap::new(),
            allowed: HashMap::new(),
            turns_paid: 0,
            events: 0,
            results: 0,
            next: commit.next,
            gated: HashSet::new(),
            approved: HashSet::new(),
            told: HashMap::new(),
            is_unwanted: false,
        };
        world.check_commit(&commit);
        world
    }

    fn check_commit(&mut self, commit: &Commit) {
        for event in &commit.events {
            self.events += 1;
            assert_eq!(event.seq, self.events, "events are numbered without a gap");
            assert_eq!(self.results, 0, "nothing follows the result");
            self.results += u32::from(event.body.kind() == "result");
            self.hear(&event.body);
        }
        assert!(self.results == 0 || self.told.values().all(|ends| !ends.is_empty()), "no end: {:?}", self.told);
        assert_eq!(commit.head.last_seq, self.events);
        assert_eq!(commit.head.status.is_terminal(), self.results == 1);
        assert_eq!(commit.head.revision, commit.expected + 1);
    }

    /// Nothing is told twice of one attempt, and when the run tells its end every call's last attempt has had its own.
    fn hear(&mut self, body: &EventBody) {
        let told = json!(body);
        let named = |told: &Value| (told["turn"].as_u64().unwrap(), told["call_id"].as_str().unwrap().to_owned());
        let call = || named(&told);
        // One more attempt is allowed. When nobody makes it, the call is undecided once more.
        let allowed = || vec!["allowed".to_owned()];
        match body.kind() {
            "tool-started" => drop(self.told.insert(call(), Vec::new())),
            "reconciliation-decided" if told["resolution"] == "retry" => drop(self.told.insert(call(), allowed())),
            "approval-decided" if told["approval"]["kind"] == "repeat" => {
                self.told.insert(named(&told["approval"]), allowed());
            }
            "tool-output" => {
                let (ends, stage) = (self.told.entry(call()).or_default(), told["stage"].as_str().unwrap());
                assert!(!ends.iter().any(|end| end == stage), "told twice: {told}");
                ends.push(stage.to_owned());
            }
            _ => {}
        }
    }

    /// Decide, keep, send; the process may die before the commit is stored, after it, or after the send.
    fn step(&mut self, fact: Fact, dies: u8) {
        self.is_admitted(fact, dies);
    }

    /// The same; `false`: the run does not admit the fact.
    fn is_admitted(&mut self, fact: Fact, dies: u8) -> bool {
        let mut decided = self.memory.clone();
        let asked = matches!(fact, Fact::TurnEnded { .. });
        let Ok(commit) = apply(&mut decided, fact, NOW) else {
            assert_eq!(decided, self.memory, "a refused fact changed the run");
            return false;
        };
        if dies < 12 {
            self.memory = reloaded(&self.stored);
            return true;
        }
        self.check_commit(&commit);
        for approval in &commit.approvals {
            let call = (approval.turn, approval.call_id.clone());
            match approval.status {
                ApprovalStatus::Pending => self.gated.insert(call),
                ApprovalStatus::Approved => self.approved.insert(call),
                ApprovalStatus::Denied | ApprovalStatus::Escalated | ApprovalStatus::Cancelled => false,
            };
        }
        self.turns_paid += u32::from(asked);
        assert_eq!(decided.head.state.turns, self.turns_paid, "a committed turn is never paid for again");
        self.stored = decided.clone();
        self.memory = decided;
        self.next = commit.next;
        if dies < 24 {
            self.memory = reloaded(&self.stored);
            return true;
        }
        assert!(commit.sends.len() <= self.memory.room, "no call leaves without room");
        assert!(self.memory.executing() <= 2, "the run's own limit holds");
        self.check_asks();
        for key in &commit.sends {
            self.happens(*key);
        }
        if dies < 36 {
            self.memory = reloaded(&self.stored);
        }
        true
    }

    fn happens(&mut self, key: CallKey) {
        let call = self.memory.calls.iter().find(|call| call.key == key).unwrap();
        let named = (key.turn, call.call_id.clone());
        assert!(!self.gated.contains(&named) || self.approved.contains(&named), "sent without an approval");
        let times = self.effects.entry(key).or_insert(0);
        *times += 1;
        let allowed = if is_harmless(call) { 3 } else { 1 } + self.allowed.get(&key).copied().unwrap_or(0);
        assert!(*times <= allowed, "{} happened {times} times, allowed {allowed}", call.tool);
    }

    fn check_history(&self) {
        let mut open: Vec<&str> = Vec::new();
        for message in &self.memory.messages {
            for content in &message.content {
                match content {
                    Content::ToolCall { call_id, .. } => open.push(call_id.as_str()),
                    Content::ToolResult { call_id, .. } => {
                        assert_eq!(open.first().copied(), Some(call_id.as_str()), "results stand in call order");
                        open.remove(0);
                    }
                    Content::Text { .. } | Content::Image { .. } | Content::File { .. } | Content::Reasoning { .. } => {
                    }
                }
            }
            if message.role == Role::Tool {
                assert!(open.is_empty(), "every call has exactly one result");
            }
        }
        assert!(open.is_empty(), "the model is never asked with an open call");
    }

    /// What a node does next; it ends what is out before it ends a run that nobody wants.
    fn heed_wish(&mut self) -> Step {
        let memory = &mut self.memory;
        if self.is_unwanted && !memory.head.status.is_terminal() {
            match memory.leg {
                Leg::Outside if !memory.has_deferred() && !memory.has_with_worker() => return Step::Cancel,
                Leg::Outside if memory.has_held() => {}
                Leg::Outside | Leg::CheckingCatalog | Leg::Working | Leg::Cancelling => memory.leg = Leg::Cancelling,
            }
        }
        next(memory)
    }

    fn turn(&mut self, chance: &Chance) {
        let (pick, dies) = (usize::from(chance.pick), chance.dies);
        self.memory.room = chance.room;
        self.memory.announced |= chance.announced;
        if pick % 5 == 2 && self.with_others(pick / 5, dies) {
            return;
        }
        match self.heed_wish() {
            // Nobody takes a run that waits for others only.
            Step::BeginLeg if self.next == Next::Rest => assert!(self.with_others(pick, dies), "nothing is awaited"),
            Step::BeginLeg => self.step(Fact::LegBegan, dies),
            Step::CheckCatalog if pick % 7 == 0 => {
                self.step(Fact::CatalogUnreadable { message: "refused".to_owned() }, dies);
            }
            Step::CheckCatalog => self.step(same_catalog(&self.memory), dies),
            Step::RefreshCatalog => self.refresh(pick, dies),
            Step::JudgeLimit => self.judge(pick, dies),
            Step::AskModel => {
                self.check_history();
                let fact = self.model_fact(pick);
                self.step(fact, dies);
            }
            Step::AwaitCalls if pick % 3 == 0 && self.memory.undecided().next().is_some() => self.reconcile(pick, dies),
            Step::AwaitCalls if pick % 3 == 0 && self.memory.waits_for_room() => self.step(Fact::RoomCame, dies),
            Step::AwaitCalls if self.executing().is_empty() && self.waits_for_sample() => self.sample(pick, dies),
            Step::AwaitCalls if self.executing().is_empty() => self.await_others(pick, dies),
            Step::AwaitCalls if pick % 11 == 3 => self.ask(pick, dies),
            Step::AwaitCalls if pick % 13 == 4 => self.answer(pick, dies),
            Step::AwaitRoom => {
                assert!(self.executing().is_empty(), "calls that are out are waited for");
                self.step(Fact::RoomCame, dies);
            }
            Step::AwaitCalls => {
                let out: Vec<CallKey> = self.executing();
                let key = out[pick % out.len()];
                let fact = match pick % 5 {
                    0 => unknown(key),
                    2 => deferred(key),
                    _ => done(key),
                };
                self.step(fact, dies);
            }
            Step::Cancel => self.step(Fact::Cancelled, dies),
            Step::Rest if self.memory.head.status.is_terminal() => {}
            Step::Rest if pick % 4 == 1 && self.memory.undecided().next().is_some() => self.reconcile(pick, dies),
            Step::Rest if pick % 3 != 2 && !self.memory.head.state.approvals.open.is_empty() => self.vote(pick, dies),
            Step::Rest if self.memory.undecided().next().is_some() => self.decide(pick, dies),
            Step::Rest if self.memory.waits_for_person() => self.answer(pick, dies),
            Step::Rest if self.with_others(pick, dies) => {}
            Step::Rest => self.decide(pick, dies),
        }
    }

    /// The servers are read again: the same, others, or not at all.
    fn refresh(&mut self, pick: usize, dies: u8) {
        assert!(self.executing().is_empty(), "a call that is out goes on with the tools that the model was offered");
        let accepts = self.memory.spec.on_catalog_change == CatalogPolicy::Accept;
        let bound = self.memory.binding.clone();
        let fact = match pick % 5 {
            0 if accepts => reread(binding(&["charge", "look", "put", "refund"])),
            1 => Fact::CatalogNotReread { message: "refused".to_owned() },
            _ => reread(bound),
        };
        self.step(fact, dies);
    }

    /// The rules for limits say that people are asked, that the run fails, or nothing.
    fn judge(&mut self, pick: usize, dies: u8) {
        assert!(self.executing().is_empty(), "nothing is out when a limit is reached");
        let said = match pick % 9 {
            0 => Some(Trouble::Fail { rule: "limit".to_owned(), reason: None }),
            1..5 => None,
            _ => {
                let requirement = Box::new(Requirement::new(ApprovalRule::default(), "limit", "It is much."));
                Some(Trouble::RequireApproval { requirement })
            }
        };
        self.step(Fact::LimitJudged { said }, dies);
    }

    fn model_fact(&self, pick: usize) -> Fact {
        match pick % 6 {
            0 => ended(&self.memory, turn("done", &[])),
            1 => ended(&self.memory, turn("", &[("x", "charge")])),
            2 => ended(&self.memory, turn("", &[("x", "charge"), ("x", "look"), ("", "put"), ("y", "nope")])),
            3 => ended(&self.memory, turn("hm", &[("x", "put"), ("y", "charge"), ("z", "charge")])),
            4 if pick.is_multiple_of(4) => {
                ended(&self.memory, turn("", &[("w", "work"), ("x", "charge"), ("r", "read"), ("p", "pick")]))
            }
            4 if pick % 4 == 2 => ended(&self.memory, turn("", &[("w", "work"), ("v", "work")])),
            4 => Fact::ModelFailed {
                error: crate::run::result::RunError::new("model-error", "busy"),
                retry: true,
                refused: None,
                usage: crate::run::message::TurnUsage::default(),
            },
            _ => ended(&self.memory, turn("", &[("x", "look")])),
        }
    }

    /// Something becomes of a call that others carry out. `false`: of none, as things are.
    fn with_others(&mut self, pick: usize, dies: u8) -> bool {
        let open: Vec<Call> = self.memory.calls.iter().filter(|call| is_with_others(call)).cloned().collect();
        let Some(call) = open.get(pick % open.len().max(1)) else { return false };
        let (key, before) = (call.key, self.stored.head.revision);
        if call.is_with_client() {
            return self.is_admitted(given_to(key), dies);
        }
        let Some(Lease { id: lease, .. }) = call.handing.lease.clone() else {
            if pick % 9 == 8 {
                return self.is_admitted(fetched(key, FetchedWhat::NotTaken { trouble: Untaken::NoHandler }), dies);
            }
            let lease = Lease { id: before.to_string(), worker: "w1".to_owned() };
            let admitted = self.is_admitted(fetched(key, FetchedWhat::Claimed { lease }), dies);
            // A node that died did not answer: the worker never heard of the call.
            if self.stored.head.revision > before && dies >= 24 {
                self.happens(key);
            }
            return admitted;
        };
        let what = match pick % 7 {
            1 => FetchedWhat::Lapsed { lease },
            // Only a worker that certainly did nothing gives a call back, as one does that never heard of it.
            2 if !self.effects.contains_key(&key) => FetchedWhat::PutBack { lease },
            _ => FetchedWhat::Answered { lease, answer: Answer::Done { output: json!("ok") } },
        };
        self.is_admitted(fetched(key, what), dies)
    }

    /// They do something, or have had their time when nobody wants the run.
    fn await_others(&mut self, pick: usize, dies: u8) {
        if self.with_others(pick, dies) {
            return;
        }
        assert!(self.is_unwanted, "nothing is awaited");
        let key = self.memory.calls.iter().find(|call| call.is_with_worker()).expect("a worker has a call").key;
        self.step(Fact::CallEnded { key, outcome: Outcome::Unknown(Cause::Cancelled) }, dies);
    }

    fn waits_for_sample(&self) -> bool {
        let asks = &self.memory.head.state.asks;
        !asks.reserved.is_empty()
            || self.memory.calls.iter().any(|call| {
                matches!(call.stage, Stage::Waiting { .. })
                    && call.asked.as_ref().is_some_and(|asked| asked.samples().next().is_some())
            })
    }

    /// A server asks: while its call is out, or in place of an answer.
    fn ask(&mut self, pick: usize, dies: u8) {
        let out = self.executing();
        let key = out[pick % out.len()];
        let call = self.memory.calls.iter().find(|call| call.key == key).unwrap();
        match pick % 4 {
            0 => self.step(Fact::InputAsked { key, ask: form(), expires_at: NOW }, dies),
            1 => self.step(Fact::SampleAsked { key, question: None, request: Box::new(sample(9)) }, dies),
            _ if call.asked.as_ref().is_some_and(|asked| asked.round >= 2) => self.step(done(key), dies),
            _ => {
                let asks = vec![("a", form()), ("b", form()), ("m", Ask::Sample(Box::new(sample(9))))];
                let before = self.stored.head.revision;
                // The server wants the call once more.
                *self.allowed.entry(key).or_insert(0) += 1;
                self.step(required(key.position, asks.into_iter().skip(pick % 3).collect()), dies);
                if self.stored.head.revision == before {
                    *self.allowed.entry(key).or_insert(0) -= 1;
                }
            }
        }
    }

    /// A person answers, whoever is asked.
    fn answer(&mut self, pick: usize, dies: u8) {
        let open: Vec<String> =
            self.memory.head.state.asks.open.iter().map(|open| open.input.input_id.clone()).collect();
        if !open.is_empty() {
            self.step(answer(&open[pick % open.len()]), dies);
        }
    }

    /// Somebody votes, or the time is over.
    fn vote(&mut self, pick: usize, dies: u8) {
        let at = pick % self.memory.head.state.approvals.open.len();
        let open = &self.memory.head.state.approvals.open[at];
        let fact = match pick % 7 {
            0 => Fact::ApprovalExpired { approval: open.approval.id },
            1 => vote_on(&self.memory, at, "bob", Verdict::Deny, None),
            2 if matches!(open.subject, Subject::Limit(_)) => return,
            2 => {
                let target = self.memory.calls.iter().find(|call| call.key == open.call).unwrap().target.clone();
                let changed =
                    Ruling::Admit { target: target.unwrap(), input: json!({"amount": 3}), judged: Box::default() };
                vote_on(&self.memory, at, "bob", Verdict::Approve, Some(changed))
            }
            _ => vote_on(&self.memory, at, "bob", Verdict::Approve, None),
        };
        self.step(fact, dies);
    }

    /// A sample that a stored question waits for.
    fn sample(&mut self, pick: usize, dies: u8) {
        if let Some(reserved) = self.memory.head.state.asks.reserved.first() {
            let failed = SampleEnd::Failed { message: "busy".to_owned(), may_cost: false };
            let sample = reserved.sample;
            let fact = if pick.is_multiple_of(5) { Fact::SampleEnded { sample, end: failed } } else { made(sample) };
            return self.step(fact, dies);
        }
        let waiting = self.memory.calls.iter().filter(|call| matches!(call.stage, Stage::Waiting { .. }));
        let wanted = waiting.flat_map(|call| call.asked.iter().map(|asked| (call.key, asked)));
        let (key, name) =
            wanted.flat_map(|(key, asked)| asked.samples().map(move |(name, _)| (key, name.clone()))).next().unwrap();
        self.step(Fact::SampleAsked { key, question: Some(name), request: Box::new(sample(9)) }, dies);
    }

    /// What lives as long as its call or its leg.
    fn check_asks(&self) {
        let asks = &self.memory.head.state.asks;
        for open in &asks.open {
            let call = self.memory.calls.iter().find(|call| call.key == open.call).unwrap();
            let lives = match open.question {
                Some(_) => matches!(call.stage, Stage::Waiting { .. }),
                None => matches!(call.stage, Stage::Executing { .. }),
            };
            assert!(lives, "a question outlived its call: {open:?}");
        }
        let limits = self.memory.limits();
        assert!(self.memory.head.state.turns <= limits.max_turns, "no turn begins beyond its limit");
        let rests = self.memory.head.state.tool_calls <= limits.max_tool_calls || self.executing().is_empty();
        assert!(rests, "no call leaves beyond the limit");
        for call in &self.memory.calls {
            let mut open = self.memory.head.state.approvals.open.iter();
            let asked = open.any(|open| match &open.subject {
                Subject::Call => open.call == call.key,
                Subject::Limit(reached) => reached.asks.iter().any(|(key, _)| *key == call.key),
                Subject::Repeat | Subject::Sample { .. } => false,
            });
            let reached = self.memory.head.state.reached.as_ref();
            let asked = asked || reached.is_some_and(|reached| reached.asks.iter().any(|(key, _)| *key == call.key));
            assert_eq!(asked, matches!(call.stage, Stage::Proposed), "what waits has its question: {call:?}");
        }
        let rests = next(&self.memory) == Step::Rest;
        assert!(!rests || asks.reserved.is_empty(), "a run that rests has nothing reserved");
    }

    /// An administrator decides one of the held calls.
    fn reconcile(&mut self, pick: usize, dies: u8) {
        let held: Vec<CallKey> = self.memory.undecided().map(|call| call.key).collect();
        let key = held[pick % held.len()];
        let (resolution, allows) = match pick % 3 {
            0 => (Resolution::Retry, 1),
            1 => (completed(), 0),
            _ => (failed(), 0),
        };
        let before = self.stored.head.revision;
        // What is allowed may be sent by the very commit that allows it.
        *self.allowed.entry(key).or_insert(0) += allows;
        self.step(reconciled(key, resolution), dies);
        if self.stored.head.revision == before {
            *self.allowed.entry(key).or_insert(0) -= allows;
        }
    }

    /// A person authorizes one of the held calls, or nothing.
    fn decide(&mut self, pick: usize, dies: u8) {
        let held: Vec<Call> = self.memory.undecided().cloned().collect();
        let named: Vec<&str> = held.iter().skip(pick % 2).map(|call| call.call_id.as_str()).collect();
        let before = self.stored.head.revision;
        self.step(resume(&self.memory, &named), dies);
        // Counted only when it is stored: a decision that was never acknowledged allows nothing.
        if self.stored.head.revision > before {
            for call in held.iter().skip(pick % 2) {
                *self.allowed.entry(call.key).or_insert(0) += 1;
            }
        }
    }

    fn executing(&self) -> Vec<CallKey> {
        let out = |call: &&Call| matches!(call.stage, Stage::Executing { .. }) && call.backend() == Some(Backend::Mcp);
        self.memory.calls.iter().filter(out).map(|call| call.key).collect()
    }
}

fn is_with_others(call: &Call) -> bool {
    call.is_offered() || call.is_with_worker() || call.is_with_client()
}

/// Whatever it says, `judge` says it in its place.
fn limit_rule() -> Policy {
    let rule = json!({"name": "limit", "trigger": "limit:reached", "action": "require_approval"});
    serde_json::from_value(rule).unwrap()
}

fn is_harmless(call: &Call) -> bool {
    call.target.as_ref().is_some_and(|target| target.replay || target.class == SideEffectClass::ReadOnly)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn b020_b220_b244_no_effect_and_no_paid_turn_is_ever_repeated_in_silence(chances in chances(), is_ruled in any::<bool>()) {
        let mut world = World::new(is_ruled);
        for chance in &chances {
            world.turn(chance);
        }
        // Whatever happened, the run can end: from here on everything answers and everything is authorized.
        for _ in 0..60 {
            world.turn(&Chance { pick: 6, dies: 255, room: 2, announced: false });
        }
        let status = world.memory.head.status;
        prop_assert!(status.is_terminal(), "{status:?} {:?}", next(&world.memory));
        prop_assert!(status != Status::Cancelled);
    }

    #[test]
    fn b216_a_run_that_is_cancelled_at_any_point_tells_the_end_of_every_attempt_once(chances in chances(), at in 0..60_usize) {
        let mut world = World::new(false);
        for (nth, chance) in chances.iter().enumerate() {
            world.is_unwanted = nth >= at;
            world.turn(chance);
        }
        world.is_unwanted = true;
        for pick in 0..60 {
            world.turn(&Chance { pick, dies: 255, room: 2, announced: false });
        }
        prop_assert!(world.memory.head.status.is_terminal(), "{:?} {:?}", world.memory.head.status, next(&world.memory));
    }
}
