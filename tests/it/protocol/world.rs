//! A state of the model: the store, two nodes, the network, the tool server, and what an observer remembers.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use countersign::run::call::Call;
use countersign::run::commit::Commit;
use countersign::run::envelope::Envelope;

use super::run::{CALLS, key_of};
use super::store::{Held, Kept, Owner};

pub(super) const NODES: usize = 2;

/// What must never happen. Written down by the step in which it happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Fault {
    /// A request left although its sender did not own the run any more.
    SentUnowned = 1,
    /// The model was asked for a turn that was stored already.
    AskedAgain = 2,
    /// Two requests of one call carried two keys.
    OtherKey = 4,
    /// The core refused what its driver asked of it.
    Refused = 8,
    /// The rows of a commit say something else than the envelope of its owner.
    Diverged = 16,
}

/// How often each kind of trouble may still happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Budget {
    /// Nodes that die.
    pub(super) crashes: u8,
    /// Pauses, or outages, past what a node is certain of.
    pub(super) pauses: u8,
    /// Answers that are lost, of the database or of the tool server.
    pub(super) losses: u8,
    /// Decisions of an administrator.
    pub(super) decisions: u8,
    /// Times that time plays foul: see `model.rs`.
    pub(super) late: u8,
}

/// A call on its way out of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Flight {
    /// Its receipt is stored; the node makes sure of its lease, and the dispatcher gets it.
    Launched,
    /// The last look at the lease is done; the next thing is to write the request.
    Checked,
}

/// A commit on its way to the store.
#[derive(Clone, Debug)]
pub(super) struct Way {
    pub(super) commit: Arc<Commit>,
    /// The envelope that its owner holds once it is stored.
    pub(super) after: Arc<Held>,
    pub(super) answer_lost: bool,
}

/// One owned run while a node drives it.
#[derive(Clone, Debug)]
pub(super) struct Drive {
    pub(super) fence: i64,
    /// The node was told that it lost the run.
    pub(super) lost: bool,
    /// The run as this owner knows it.
    pub(super) run: Arc<Held>,
    pub(super) commit: Option<Way>,
    pub(super) flights: Vec<(usize, Flight)>,
}

/// A claim that a node asked for and has not heard of yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Asked {
    /// The fence, once the store granted it.
    pub(super) granted: Option<i64>,
    /// Whether the node still goes by the name that it asked under.
    pub(super) is_current: bool,
}

#[derive(Clone, Debug, Default)]
#[allow(clippy::struct_excessive_bools, reason = "four facts that hold in every combination")]
pub(super) struct Node {
    pub(super) up: bool,
    /// By its own monotonic clock nobody can have taken over yet.
    pub(super) holds: bool,
    /// By the database's clock its beat is too old.
    pub(super) lapsed: bool,
    /// Somebody marked it dead; it learns so by its next beat.
    pub(super) dead: bool,
    pub(super) claim: Option<Asked>,
    pub(super) drive: Option<Drive>,
}

/// A request between a node and the tool server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Request {
    pub(super) call: usize,
    pub(super) from: usize,
    /// Whether its sender still waits for the answer.
    pub(super) awaited: bool,
    /// Whether the server did it; the answer is then on its way back.
    pub(super) done: bool,
}

/// What an observer of everything remembers of one call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Record {
    /// Effects at the tool server.
    pub(super) effects: u8,
    /// How often it may have its effect: by its class, and once more for each decision.
    pub(super) rights: u8,
    /// The most effects that may come of a person's last word: what the person could see, and one more after a retry.
    pub(super) expected: Option<u8>,
    /// The digest of the key of the first request.
    pub(super) key: Option<u64>,
    /// The result that was acknowledged, and the attempts.
    pub(super) settled: Option<&'static str>,
    pub(super) attempt: u32,
}

#[derive(Clone, Debug)]
pub(super) struct World {
    pub(super) kept: Kept,
    pub(super) nodes: [Node; NODES],
    pub(super) net: Vec<Request>,
    pub(super) records: [Record; CALLS],
    /// Model turns that were acknowledged as stored.
    pub(super) turns: u32,
    pub(super) faults: u8,
    pub(super) budget: Budget,
}

impl World {
    pub(super) fn note(&mut self, fault: Fault) {
        self.faults |= fault as u8;
    }

    pub(super) fn has(&self, fault: Fault) -> bool {
        self.faults & fault as u8 != 0
    }

    pub(super) fn owned_by(&self, node: usize) -> Option<Owner> {
        self.kept.owner.filter(|owner| owner.node == node)
    }

    /// Whether something of this node's may still reach the server although the node counts as gone.
    pub(super) fn is_sending(&self, node: usize) -> bool {
        let checked = |drive: &Drive| drive.flights.iter().any(|(_, flight)| *flight == Flight::Checked);
        self.nodes[node].drive.as_ref().is_some_and(checked)
            || self.net.iter().any(|request| request.from == node && !request.done)
    }

    /// The stored call.
    pub(super) fn call(&self, call: usize) -> Option<&Call> {
        self.kept.run.calls.iter().find(|kept| kept.key == key_of(call))
    }

    /// Two worlds with one print behave alike from here on. Left out is what no condition reads: texts, event numbers,
    /// usage. Fences and revisions count relative to the stored ones, and the two nodes may change places.
    fn print(&self) -> u64 {
        digest(|hasher| (self.course(), self.records, self.turns, self.faults, self.budget).hash(hasher))
    }

    /// What decides how the run goes on while nothing bad happens.
    pub(super) fn course(&self) -> u64 {
        let mut nodes = [0, 1].map(|node| self.print_node(node));
        nodes.sort_unstable();
        digest(|hasher| {
            (self.kept.run.look, self.kept.owner.is_some(), self.kept.due, nodes, self.budget.late > 0).hash(hasher);
        })
    }

    fn print_node(&self, node: usize) -> u64 {
        let Node { up, holds, lapsed, dead, claim, drive } = &self.nodes[node];
        let mut requests: Vec<_> =
            self.net.iter().filter(|sent| sent.from == node).map(|sent| (sent.call, sent.awaited, sent.done)).collect();
        requests.sort_unstable();
        digest(|hasher| {
            (up, holds, lapsed, dead, requests, self.owned_by(node).map(|owner| owner.is_current)).hash(hasher);
            claim.map(|asked| (asked.is_current, asked.granted.map(|fence| self.kept.fence - fence))).hash(hasher);
            drive.is_some().hash(hasher);
            let Some(drive) = drive else { return };
            (self.kept.fence - drive.fence, drive.lost, &drive.flights, self.distance(&drive.run)).hash(hasher);
            drive.run.look.hash(hasher);
            drive.commit.is_some().hash(hasher);
            if let Some(way) = &drive.commit {
                way.answer_lost.hash(hasher);
                way.after.look.hash(hasher);
            }
        })
    }

    fn distance(&self, run: &Envelope) -> (i64, i64) {
        let kept = &self.kept.run.head;
        (kept.revision - run.head.revision, kept.last_seq - run.head.last_seq)
    }
}

pub(super) fn digest(fill: impl FnOnce(&mut DefaultHasher)) -> u64 {
    let mut hasher = DefaultHasher::new();
    fill(&mut hasher);
    hasher.finish()
}

impl Hash for World {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.print().hash(state);
    }
}

impl PartialEq for World {
    fn eq(&self, other: &Self) -> bool {
        self.print() == other.print()
    }
}
