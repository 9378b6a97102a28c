//! The lease and receipt protocol, checked over every order of events: two nodes, one run, two calls in one turn.
//!
//! **What is real.** Whatever decides is the product's own: each node asks `next` and feeds facts to `apply`; the
//! commits that come of it are written row by row as the store writes them, under the conditions of its statements
//! (fence, revision, last event, owner; `crashes + 1` at a takeover; a release that counts only under its fence). The
//! steps between are those of the executor: ask for a claim, hear of it, load, decide, store, hear of that, look at the
//! lease, write the request. A pause, a crash or another node may come between any two of them. Only what nobody else
//! can see is one transition: hearing of a claim with the load and the first decision (a change in between refuses the
//! first commit just the same), and the two looks at the lease, of which the first may wait and the second may not.
//!
//! **What is free.** Nodes pause, lose certainty, are taken for dead, die and come back under another name; answers of
//! the database and of the tool server get lost; an administrator allows one more attempt, or says what became of a
//! call. Each kind has a budget, and within the budgets every order is tried.
//!
//! **Time.** The core sees one constant instant. What clocks do to the protocol is kept as two facts of a node: what
//! its own monotonic clock lets it believe (`holds`), and whether the database would let others take over (`lapsed`).
//! With `late: 0` time is fair: the second never comes true while the first does, nor while a request stands between
//! the look at the lease and the end of its way. Each unit of `late` lifts that once: a pause in the window between the
//! look and the write, a request that is held up on the wire, a database clock that runs ahead. The design admits that
//! window; what remains then is that all requests of a call carry one idempotency key. (A database clock that runs ahead
//! also lets an owner that believes in its lease ask the model for a turn that another has stored meanwhile.)
//!
//! **What is left out.** Streaming deltas, cancellation, drains, changed catalogs and failed model requests (rules of
//! the core with tests of their own); decisions that wait for an owner (its store tests); several runs on a node;
//! attempts inside the pool (`tests/it/mcp`). The administrator's load and commit are one step: `run_decide` carries
//! fence and revision like any other write. A claim may be granted to a node that is marked dead in the same moment, as
//! concurrent snapshots allow.
//!
//! States are told apart by what conditions can read: see `World::print`. `every run can end` is asked of every state:
//! from there on nothing bad happens, everything that is pending happens, the person allows what is asked, and the run
//! must end. So a state from which there is no way out is found wherever it is, cycle or not.

use std::collections::HashSet;

use countersign::run::apply;
use countersign::run::status::Status;
use parking_lot::Mutex;
use stateright::{Model, Property};

use super::run::{CALLS, NOW, Word, answered, queued, reconciled, rights_of};
use super::store::{Held, Kept, Owner};
use super::world::{Asked, Budget, Drive, Fault, Flight, NODES, Node, Record, World};

/// Steps after which a run must have ended once nothing bad happens any more.
const FAIR_STEPS: usize = 400;

/// The protocol, or one that is broken on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Variant {
    Faithful,
    /// Writes carry neither fence nor revision.
    NoFence,
    /// A request leaves before its receipt is stored.
    ReceiptAfterSend,
    /// A new owner takes what was out for something that was never sent.
    RecoveryResends,
    /// A node that goes on under a new name drives what was claimed under the old one.
    OldNameDrives,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Beat(usize),
    Restart(usize),
    LetGo(usize),
    Store(usize),
    Check(usize, usize),
    Send(usize, usize),
    Effect(usize),
    Answer(usize),
    LearnClaim(usize),
    GrantClaim(usize),
    AskModel(usize),
    Reap(usize),
    GiveBackStray(usize),
    AskClaim(usize),
    /// A person says what became of a call.
    Decide(usize, Word),
    // From here on: trouble.
    Pause(usize),
    Lapse(usize),
    ReapWithoutRuns(usize),
    Crash(usize),
    StoreUnheard(usize),
    ClaimUnheard(usize),
    GiveBackEarly(usize),
    DropRequest(usize),
    DropAnswer(usize),
    StopWaiting(usize),
}

impl Action {
    fn is_trouble(self) -> bool {
        matches!(
            self,
            Self::Pause(_)
                | Self::Lapse(_)
                | Self::ReapWithoutRuns(_)
                | Self::Crash(_)
                | Self::StoreUnheard(_)
                | Self::ClaimUnheard(_)
                | Self::GiveBackEarly(_)
                | Self::DropRequest(_)
                | Self::DropAnswer(_)
                | Self::StopWaiting(_)
        )
    }
}

pub(super) struct Protocol {
    pub(super) variant: Variant,
    pub(super) tools: [&'static str; CALLS],
    pub(super) parallel: usize,
    pub(super) budget: Budget,
    /// Prints of states from which the run was seen to end.
    pub(super) ends: Mutex<HashSet<u64>>,
}

impl Protocol {
    fn act(&self, world: &mut World, action: Action) {
        match action {
            Action::Beat(node) => beat(world, node),
            Action::Restart(node) => world.nodes[node] = fresh(),
            Action::LetGo(node) => world.let_go(node),
            Action::Store(node) => self.store(world, node, true),
            Action::Check(node, call) => self.check(world, node, call),
            Action::Send(node, call) => Self::send(world, node, call),
            Action::Effect(at) => effect(world, at),
            Action::Answer(at) => {
                let request = world.net.remove(at);
                self.decide(world, request.from, answered(request.call));
            }
            Action::LearnClaim(node) => self.learn_claim(world, node),
            Action::GrantClaim(node) => grant_claim(world, node),
            Action::AskModel(node) => self.ask_model(world, node),
            Action::Reap(node) => reap(world, node),
            Action::GiveBackStray(_) => world.kept.release(world.kept.fence),
            Action::AskClaim(node) => world.nodes[node].claim = Some(Asked { granted: None, is_current: true }),
            Action::Decide(call, word) => reconcile(world, call, word),
            _ => self.trouble(world, action),
        }
    }

    fn trouble(&self, world: &mut World, action: Action) {
        match action {
            Action::Pause(node) => {
                world.budget.pauses -= 1;
                world.nodes[node].holds = false;
            }
            Action::Lapse(node) => {
                world.budget.late -= u8::from(is_foul(world, node));
                world.nodes[node].lapsed = true;
            }
            Action::ReapWithoutRuns(node) => world.nodes[node].dead = true,
            Action::Crash(node) => crash(world, node),
            Action::StoreUnheard(node) => {
                world.budget.losses -= 1;
                self.store(world, node, false);
            }
            Action::ClaimUnheard(node) => {
                world.budget.losses -= 1;
                world.nodes[node].claim = None;
            }
            Action::GiveBackEarly(_) => {
                world.budget.losses -= 1;
                world.kept.release(world.kept.fence);
            }
            Action::DropRequest(at) | Action::DropAnswer(at) => {
                let request = world.net.remove(at);
                world.budget.losses -= u8::from(request.awaited);
                if request.awaited {
                    self.miss(world, request);
                }
            }
            Action::StopWaiting(at) => {
                world.budget.late -= 1;
                world.net[at].awaited = false;
                let request = world.net[at];
                world.net.sort_unstable();
                self.miss(world, request);
            }
            _ => {}
        }
    }

    fn learn_claim(&self, world: &mut World, node: usize) {
        let Some(asked) = world.nodes[node].claim.take() else { return };
        let Some(fence) = asked.granted else { return };
        // A name that was given up meanwhile drives nothing.
        if asked.is_current || self.variant == Variant::OldNameDrives {
            self.load(world, node, fence);
        } else {
            world.kept.release(fence);
        }
    }

    /// From here on nothing bad happens and a person allows what is asked: the run must end.
    fn can_end(&self, world: &World) -> bool {
        if self.ends.lock().contains(&world.course()) {
            return true;
        }
        let mut passed = Vec::new();
        let mut world = world.clone();
        for _ in 0..FAIR_STEPS {
            let here = world.course();
            let known = self.ends.lock().contains(&here);
            if known || world.kept.run.head.status.is_terminal() {
                self.ends.lock().extend(passed);
                return true;
            }
            passed.push(here);
            let Some(action) = possible(&world, true).first().copied() else { return false };
            world.budget.decisions = world.budget.decisions.max(1);
            self.act(&mut world, action);
        }
        false
    }
}

/// Everything that may happen next, the helpful things first. With `fair`, only those.
fn possible(world: &World, fair: bool) -> Vec<Action> {
    let mut actions = Vec::new();
    if world.kept.run.head.status.is_terminal() && world.nodes.iter().all(|node| node.drive.is_none()) {
        // Requests may still be on their way.
        actions.extend((0..world.net.len()).map(Action::Effect));
        return actions;
    }
    for node in 0..NODES {
        node_actions(world, node, &mut actions);
    }
    request_actions(world, &mut actions);
    for node in 0..NODES {
        claim_actions(world, node, &mut actions);
    }
    decisions(world, fair, &mut actions);
    if fair {
        actions.retain(|action| !action.is_trouble());
    }
    actions
}

fn decisions(world: &World, fair: bool, actions: &mut Vec<Action>) {
    let Kept { run, owner, .. } = &world.kept;
    if !matches!(run.head.status, Status::Suspended(_)) || owner.is_some() {
        return;
    }
    let open = run.undecided().map(|call| usize::try_from(call.key.position).unwrap());
    if fair {
        actions.extend(open.map(|call| Action::Decide(call, Word::Retry)));
    } else if world.budget.decisions > 0 {
        let words = [Word::Retry, Word::Complete, Word::Fail];
        actions.extend(open.flat_map(|call| words.map(|word| Action::Decide(call, word))));
    }
}

fn fresh() -> Node {
    Node { up: true, holds: true, ..Node::default() }
}

/// What a node may do, or suffer, with the run that it drives.
fn node_actions(world: &World, node: usize, actions: &mut Vec<Action>) {
    let Node { up, holds, lapsed, dead, claim, drive } = &world.nodes[node];
    let budget = world.budget;
    if !up {
        actions.push(Action::Restart(node));
        return;
    }
    if !holds || *lapsed || *dead {
        actions.push(Action::Beat(node));
    }
    if let Some(drive) = drive {
        drive_actions(drive, *holds, node, budget, actions);
    }
    // What happens to a node that has nothing to do with the run changes nothing.
    if drive.is_none() && claim.is_none() && world.owned_by(node).is_none() {
        return;
    }
    if *holds && budget.pauses > 0 {
        actions.push(Action::Pause(node));
    }
    if !lapsed && (budget.late > 0 || !is_foul(world, node)) {
        actions.push(Action::Lapse(node));
    }
    if budget.crashes > 0 {
        actions.push(Action::Crash(node));
    }
}

fn drive_actions(drive: &Drive, holds: bool, node: usize, budget: Budget, actions: &mut Vec<Action>) {
    if drive.lost {
        actions.push(Action::LetGo(node));
    }
    if drive.commit.is_some() {
        actions.push(Action::Store(node));
        if budget.losses > 0 {
            actions.push(Action::StoreUnheard(node));
        }
    }
    let may_leave = holds && !drive.lost;
    for (call, flight) in &drive.flights {
        match flight {
            Flight::Launched if may_leave || drive.awaits_calls() => actions.push(Action::Check(node, *call)),
            Flight::Launched => {}
            Flight::Checked => actions.push(Action::Send(node, *call)),
        }
    }
    if drive.waits_for() == Some(countersign::run::Step::AskModel) && may_leave {
        actions.push(Action::AskModel(node));
    }
}

fn request_actions(world: &World, actions: &mut Vec<Action>) {
    for (at, request) in world.net.iter().enumerate() {
        let hears = world.nodes[request.from].drive.as_ref().is_some_and(Drive::awaits_calls);
        if !request.done {
            actions.push(Action::Effect(at));
        } else if hears {
            actions.push(Action::Answer(at));
        }
        let may_lose = hears && world.budget.losses > 0;
        if !request.done && (!request.awaited || may_lose) {
            actions.push(Action::DropRequest(at));
        }
        if request.done && may_lose {
            actions.push(Action::DropAnswer(at));
        }
        if !request.done && request.awaited && hears && world.budget.late > 0 {
            actions.push(Action::StopWaiting(at));
        }
    }
}

/// How runs come to nodes, and are taken from those that count as dead.
fn claim_actions(world: &World, node: usize, actions: &mut Vec<Action>) {
    let Node { up, holds, lapsed, dead, claim, drive } = &world.nodes[node];
    let is_free = world.kept.owner.is_none() && world.kept.due;
    match claim {
        Some(asked) if asked.granted.is_none() && asked.is_current && is_free => actions.push(Action::GrantClaim(node)),
        _ => {}
    }
    if let Some(asked) = claim
        && (asked.granted.is_some() || !is_free || !asked.is_current)
    {
        actions.push(Action::LearnClaim(node));
        if asked.granted.is_some() && world.budget.losses > 0 {
            actions.push(Action::ClaimUnheard(node));
        }
    }
    let someone_looks = world.nodes.iter().any(|other| other.up && other.holds);
    let owned = world.owned_by(node);
    let freed = owned.is_some_and(|owner| !owner.is_current || *dead);
    let is_fair = world.budget.late > 0 || !world.is_sending(node);
    if someone_looks && ((*lapsed && !dead) || (freed && is_fair)) {
        actions.push(Action::Reap(node));
    }
    if someone_looks && *lapsed && !dead && owned.is_some() {
        actions.push(Action::ReapWithoutRuns(node));
    }
    let strays = owned.is_some_and(|owner| owner.is_current) && *up && *holds && !dead;
    if strays && drive.as_ref().is_none_or(|drive| drive.fence != world.kept.fence) {
        match claim {
            None => actions.push(Action::GiveBackStray(node)),
            Some(_) if world.budget.losses > 0 => actions.push(Action::GiveBackEarly(node)),
            Some(_) => {}
        }
    }
    if *up && *holds && !dead && drive.is_none() && claim.is_none() && is_free {
        actions.push(Action::AskClaim(node));
    }
}

/// Whether a lapse of this node's beat would be foul play of time.
fn is_foul(world: &World, node: usize) -> bool {
    world.nodes[node].holds || world.is_sending(node)
}

/// A beat finds the node alive, or taken for dead: then it goes on under a new name.
fn beat(world: &mut World, node: usize) {
    let Node { holds, lapsed, dead, claim, drive, .. } = &mut world.nodes[node];
    if *dead {
        if let Some(drive) = drive {
            drive.lost = true;
        }
        if let Some(claim) = claim {
            claim.is_current = false;
        }
        forget_name(&mut world.kept.owner, node);
    }
    (*holds, *lapsed, *dead) = (true, false, false);
}

fn forget_name(owner: &mut Option<Owner>, node: usize) {
    if let Some(owner) = owner.as_mut().filter(|owner| owner.node == node) {
        owner.is_current = false;
    }
}

fn crash(world: &mut World, node: usize) {
    world.budget.crashes -= 1;
    world.end_drive(node);
    world.nodes[node] = Node::default();
    forget_name(&mut world.kept.owner, node);
}

fn reap(world: &mut World, node: usize) {
    let foul = world.is_sending(node) && !world.nodes[node].lapsed;
    world.budget.late -= u8::from(foul);
    let Some(owner) = world.owned_by(node) else {
        world.nodes[node].dead = true;
        return;
    };
    if owner.is_current {
        world.nodes[node].dead = true;
    }
    world.kept.free();
}

fn grant_claim(world: &mut World, node: usize) {
    world.kept.claim(node);
    if let Some(asked) = &mut world.nodes[node].claim {
        asked.granted = Some(world.kept.fence);
    }
}

fn effect(world: &mut World, at: usize) {
    let request = &mut world.net[at];
    world.records[request.call].effects += 1;
    request.done = true;
    if !request.awaited {
        world.net.remove(at);
    }
    world.net.sort_unstable();
}

fn reconcile(world: &mut World, call: usize, word: Word) {
    let mut after = (**world.kept.run).clone();
    let Ok(commit) = apply(&mut after, reconciled(call, word), NOW) else {
        world.note(Fault::Refused);
        return;
    };
    world.kept.decide(&commit);
    if **world.kept.run != after {
        world.note(Fault::Diverged);
    }
    world.budget.decisions = world.budget.decisions.saturating_sub(1);
    let record = &mut world.records[call];
    let more = u8::from(word == Word::Retry);
    record.rights += more;
    record.expected = Some(record.effects + more);
    record.settled = match word {
        Word::Retry => None,
        Word::Complete => Some("completed"),
        Word::Fail => Some("failed"),
    };
}

impl Model for Protocol {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        let kept = Kept { run: Held::of(queued(self.parallel)), fence: 0, owner: None, due: true };
        let records = self.tools.map(|tool| Record { rights: rights_of(tool), ..Record::default() });
        let nodes = [fresh(), fresh()];
        vec![World { kept, nodes, net: vec![], records, turns: 0, faults: 0, budget: self.budget }]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        *actions = possible(world, false);
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let mut world = world.clone();
        self.act(&mut world, action);
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::<Self>::always(NO_REPEAT, |_, world| {
                world.records.iter().all(|record| record.effects <= record.rights)
            }),
            Property::<Self>::always(ONE_KEY, |_, world| !world.has(Fault::OtherKey)),
            Property::<Self>::always(NOTHING_LOST, |_, world| nothing_is_lost(world)),
            Property::<Self>::always(ROWS_ARE_TRUE, |_, world| !world.has(Fault::Diverged)),
            Property::<Self>::always(NO_REFUSAL, |_, world| !world.has(Fault::Refused)),
            Property::<Self>::always(CAN_END, Protocol::can_end),
            Property::<Self>::sometimes("a run ends", |_, world| world.kept.run.head.status.is_terminal()),
            Property::<Self>::sometimes("a call has its effect twice, and that was allowed", |_, world| {
                world.records.iter().any(|record| record.effects > 1)
            }),
        ];
        if self.budget.late == 0 {
            properties.push(Property::always(ONLY_THE_OWNER, |_, world: &World| !world.has(Fault::SentUnowned)));
            properties.push(Property::always(NOT_PAID_TWICE, |_, world: &World| !world.has(Fault::AskedAgain)));
            properties.push(Property::always(AS_SEEN, |_, world: &World| world.records.iter().all(is_as_expected)));
        } else {
            properties.push(Property::sometimes(WINDOW, |_, world: &World| world.has(Fault::SentUnowned)));
            properties.push(Property::sometimes(DOUBLE, |_, world: &World| !world.records.iter().all(is_as_expected)));
        }
        properties
    }
}

pub(super) const NO_REPEAT: &str = "no effect is repeated without a right";
pub(super) const ONE_KEY: &str = "all requests of a call carry one key";
pub(super) const NOTHING_LOST: &str = "nothing that was acknowledged is lost";
pub(super) const NOT_PAID_TWICE: &str = "a stored turn is never asked for again";
pub(super) const ROWS_ARE_TRUE: &str = "the rows are what their owner holds";
pub(super) const NO_REFUSAL: &str = "the core takes whatever its driver asks";
pub(super) const CAN_END: &str = "every run can end";
pub(super) const ONLY_THE_OWNER: &str = "a request leaves only while its sender owns the run";
pub(super) const AS_SEEN: &str =
    "after a person's word a call has the effects that the person saw, and one more by a retry";
pub(super) const WINDOW: &str = "a request leaves through the window";
pub(super) const DOUBLE: &str = "through the window a call has an effect more than the person could expect";

fn is_as_expected(record: &Record) -> bool {
    record.expected.is_none_or(|most| record.effects <= most)
}

/// Turns, results, and receipts that some node was told are stored.
fn nothing_is_lost(world: &World) -> bool {
    if world.kept.run.head.state.turns < world.turns {
        return false;
    }
    // The rows of an earlier turn are not read any more.
    world.kept.run.head.state.turns > 1
        || (0..CALLS).all(|at| {
            let Record { settled, attempt, .. } = world.records[at];
            let stored = world.call(at).map(|call| (call.attempt, call.stage.code()));
            attempt == 0 || stored.is_some_and(|(a, code)| a >= attempt && settled.is_none_or(|kept| kept == code))
        })
}
