//! What a node does with the run that it owns: the steps of `executor/drive.rs`, each as one transition.

use std::hash::Hash as _;
use std::sync::Arc;

use countersign::run::call::{Stage, idempotency_key};
use countersign::run::commit::Next;
use countersign::run::envelope::{Envelope, Leg};
use countersign::run::fact::Fact;
use countersign::run::{Step, apply, next};

use super::model::{Protocol, Variant};
use super::run::{CALLS, NOW, catalog_read, key_of, lost, turn_ended, withdrawn};
use super::store::Held;
use super::world::{Drive, Fault, Flight, Request, Way, World, digest};

impl Drive {
    /// What the owner waits for, when it waits for nothing of its own.
    pub(super) fn waits_for(&self) -> Option<Step> {
        self.commit.is_none().then(|| next(&self.run))
    }

    pub(super) fn awaits_calls(&self) -> bool {
        self.waits_for() == Some(Step::AwaitCalls)
    }
}

/// The steps of node `node` in a world.
impl Protocol {
    /// A claim was granted: the run is loaded, if the claim still counts, and a leg begins.
    pub(super) fn load(&self, world: &mut World, node: usize, fence: i64) {
        if fence != world.kept.fence {
            return;
        }
        let mut run = Envelope { leg: Leg::Outside, ..(**world.kept.run).clone() };
        if self.variant == Variant::RecoveryResends {
            for call in &mut run.calls {
                if matches!(call.stage, Stage::Executing { .. }) {
                    call.stage = Stage::Pending;
                }
            }
        }
        world.nodes[node].drive =
            Some(Drive { fence, lost: false, run: Held::of(run), commit: None, flights: Vec::new() });
        self.go_on(world, node);
    }

    /// Takes the steps that need nobody else; what they decide goes to the store.
    fn go_on(&self, world: &mut World, node: usize) {
        let Some(run) = world.nodes[node].drive.as_ref().map(|drive| Arc::clone(&drive.run)) else { return };
        match next(&run) {
            Step::BeginLeg => self.decide(world, node, Fact::LegBegan),
            Step::CheckCatalog => self.decide(world, node, catalog_read(&run)),
            Step::AskModel | Step::AwaitCalls => {}
            // There is always room in this world: the limit is another matter.
            Step::AwaitRoom => self.decide(world, node, Fact::RoomCame),
            // An owner lets go of a run with the commit that brings it to rest: it never finds one at rest. No server of
            // this world announces anything, and no limit is reached.
            Step::Rest | Step::Cancel | Step::RefreshCatalog | Step::JudgeLimit => {
                world.note(Fault::Refused);
                world.let_go(node);
            }
        }
    }

    pub(super) fn ask_model(&self, world: &mut World, node: usize) {
        let Some(run) = world.nodes[node].drive.as_ref().map(|drive| Arc::clone(&drive.run)) else { return };
        if world.kept.run.head.state.turns > run.head.state.turns {
            world.note(Fault::AskedAgain);
        }
        self.decide(world, node, turn_ended(&run, self.tools));
    }

    /// Decides by the core; the commit is then on its way.
    pub(super) fn decide(&self, world: &mut World, node: usize, fact: Fact) {
        let Some(drive) = &mut world.nodes[node].drive else { return };
        let mut after = (**drive.run).clone();
        let Ok(commit) = apply(&mut after, fact, NOW) else {
            world.note(Fault::Refused);
            world.let_go(node);
            return;
        };
        if self.variant == Variant::ReceiptAfterSend {
            drive.flights.extend(calls_of(&commit.sends).map(|call| (call, Flight::Launched)));
        }
        drive.commit = Some(Way { commit: Arc::new(commit), after: Held::of(after), answer_lost: false });
    }

    /// The store takes the commit, or refuses it; `answered`: the owner hears of it.
    pub(super) fn store(&self, world: &mut World, node: usize, answered: bool) {
        let Some(drive) = &mut world.nodes[node].drive else { return };
        let Some(way) = &mut drive.commit else { return };
        let fence = drive.fence;
        if self.variant == Variant::NoFence || world.kept.takes(fence, &way.commit) {
            world.kept.write(&way.commit);
            let after = Envelope { leg: Leg::Outside, turn_told: false, ..(**way.after).clone() };
            if **world.kept.run != after {
                world.note(Fault::Diverged);
            }
            if answered {
                self.acknowledged(world, node);
            } else if let Some(way) = world.nodes[node].drive.as_mut().and_then(|drive| drive.commit.as_mut()) {
                way.answer_lost = true;
            }
        } else if way.answer_lost && world.kept.holds(fence, &way.commit) {
            self.acknowledged(world, node);
        } else {
            world.let_go(node);
        }
    }

    fn acknowledged(&self, world: &mut World, node: usize) {
        let Some(drive) = &mut world.nodes[node].drive else { return };
        let Some(way) = drive.commit.take() else { return };
        world.turns = world.turns.max(way.commit.head.state.turns);
        for call in way.commit.calls_made.iter().chain(&way.commit.calls_moved) {
            let record = &mut world.records[usize::try_from(call.key.position).unwrap()];
            record.attempt = record.attempt.max(call.attempt);
            record.settled = call.stage.is_settled().then(|| call.stage.code()).or(record.settled);
        }
        drive.run = way.after;
        if self.variant != Variant::ReceiptAfterSend {
            drive.flights.extend(calls_of(&way.commit.sends).map(|call| (call, Flight::Launched)));
            drive.flights.sort_unstable();
        }
        if way.commit.next == Next::Owner {
            self.go_on(world, node);
        } else {
            world.end_drive(node);
        }
    }

    /// The last look at the lease: the call may leave, or has failed unsent.
    pub(super) fn check(&self, world: &mut World, node: usize, call: usize) {
        let holds = world.nodes[node].holds;
        let Some(drive) = &mut world.nodes[node].drive else { return };
        if holds && !drive.lost {
            drive.flights.retain(|flight| flight.0 != call);
            drive.flights.push((call, Flight::Checked));
            drive.flights.sort_unstable();
        } else {
            drive.flights.retain(|flight| flight.0 != call);
            self.decide(world, node, withdrawn(call));
        }
    }

    /// The request is written. Its key is made of what this owner knows.
    pub(super) fn send(world: &mut World, node: usize, call: usize) {
        let owner = world.owned_by(node);
        let Some(drive) = &mut world.nodes[node].drive else { return };
        drive.flights.retain(|flight| flight.0 != call);
        let key = digest(|hasher| idempotency_key(drive.run.uid, key_of(call)).hash(hasher));
        if !owner.is_some_and(|owner| owner.is_current) || drive.fence != world.kept.fence {
            world.note(Fault::SentUnowned);
        }
        if *world.records[call].key.get_or_insert(key) != key {
            world.note(Fault::OtherKey);
        }
        world.net.push(Request { call, from: node, awaited: true, done: false });
        world.net.sort_unstable();
    }

    /// The wait for an answer ended without one.
    pub(super) fn miss(&self, world: &mut World, request: Request) {
        self.decide(world, request.from, lost(request.call));
    }
}

impl World {
    /// The node learns that the run is not its own, and gives it back in case it still is.
    pub(super) fn let_go(&mut self, node: usize) {
        if let Some(drive) = &self.nodes[node].drive {
            let fence = drive.fence;
            self.kept.release(fence);
        }
        self.end_drive(node);
    }

    /// Nobody waits any more for what the drive has sent; what it has not sent never leaves.
    pub(super) fn end_drive(&mut self, node: usize) {
        self.nodes[node].drive = None;
        for request in self.net.iter_mut().filter(|request| request.from == node) {
            request.awaited = false;
        }
        self.net.retain(|request| request.awaited || !request.done);
        self.net.sort_unstable();
    }
}

fn calls_of(keys: &[countersign::run::ids::CallKey]) -> impl Iterator<Item = usize> {
    (0..CALLS).filter(|call| keys.contains(&key_of(*call)))
}
