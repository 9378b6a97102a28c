//! The run as the store keeps it: the conditions are those of its statements, the rows those of a commit.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

use countersign::run::call::{Call, Stage};
use countersign::run::commit::{Commit, Next};
use countersign::run::envelope::{Envelope, Leg};

/// Who owns the run. A node that was taken for dead, or died, goes on under a new name; `is_current` says whether the
/// owner's name is still the one that its node goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Owner {
    pub(super) node: usize,
    pub(super) is_current: bool,
}

/// An envelope with the digest of what conditions can read of it. Left out are texts and usage; revision and event
/// numbers are compared beside it.
#[derive(Debug)]
pub(super) struct Held {
    run: Envelope,
    pub(super) look: u64,
}

impl Held {
    pub(super) fn of(run: Envelope) -> Arc<Self> {
        let look = look(&run);
        Arc::new(Self { run, look })
    }
}

impl Deref for Held {
    type Target = Envelope;

    fn deref(&self) -> &Envelope {
        &self.run
    }
}

fn look(run: &Envelope) -> u64 {
    let mut hasher = DefaultHasher::new();
    let state = &run.head.state;
    (run.head.status, run.leg as u8, run.head.crashes, state.progressed, state.turns).hash(&mut hasher);
    (state.tool_calls, state.leg_began_at.is_some(), run.messages.len(), run.calls.len()).hash(&mut hasher);
    for call in &run.calls {
        let doubt = match call.stage {
            Stage::Indeterminate { cause, authorized, .. } => Some((cause, authorized)),
            _ => None,
        };
        (call.key, call.attempt, call.stage.code(), doubt, call.task.is_some()).hash(&mut hasher);
    }
    hasher.finish()
}

#[derive(Clone, Debug)]
pub(super) struct Kept {
    pub(super) run: Arc<Held>,
    pub(super) fence: i64,
    pub(super) owner: Option<Owner>,
    pub(super) due: bool,
}

impl Kept {
    /// `commit_apply`: an owner's commit.
    pub(super) fn takes(&self, fence: i64, commit: &Commit) -> bool {
        let head = &self.run.head;
        let events = i64::try_from(commit.events.len()).unwrap();
        self.owner.is_some()
            && self.fence == fence
            && head.revision == commit.expected
            && head.last_seq == commit.head.last_seq - events
    }

    /// `is_stored`: whether a commit whose answer was lost is there.
    pub(super) fn holds(&self, fence: i64, commit: &Commit) -> bool {
        self.fence == fence && self.run.head.revision == commit.head.revision
    }

    /// Writes the rows of a commit. The caller has checked the conditions, or leaves them out.
    pub(super) fn write(&mut self, commit: &Commit) {
        let mut run = (**self.run).clone();
        run.head = commit.head.clone();
        run.leg = Leg::Outside;
        for message in &commit.messages {
            if run.messages.iter().all(|kept| kept.position != message.position) {
                run.messages.push(message.clone());
            }
        }
        for call in commit.calls_made.iter().chain(&commit.calls_moved) {
            upsert(&mut run.calls, call);
        }
        // What an owner loads: the calls of the last turn.
        run.calls.retain(|call| call.key.turn == commit.head.state.turns || call.is_undecided());
        if let Some(binding) = &commit.binding {
            run.binding = binding.clone();
        }
        self.run = Held::of(run);
        if commit.next != Next::Owner || commit.head.status.is_terminal() {
            self.owner = None;
            self.due = matches!(commit.next, Next::Due(_)) && !commit.head.status.is_terminal();
        }
    }

    /// `run_decide`: a commit on a run that nobody owns.
    pub(super) fn decide(&mut self, commit: &Commit) {
        self.write(commit);
        self.fence += 1;
        self.due = commit.next != Next::Rest;
    }

    /// `run_claim`.
    pub(super) fn claim(&mut self, node: usize) {
        self.owner = Some(Owner { node, is_current: true });
        self.fence += 1;
        self.due = false;
    }

    /// `run_release`, without a crash to count.
    pub(super) fn release(&mut self, fence: i64) {
        if self.fence == fence && self.owner.is_some() {
            self.owner = None;
            self.due = true;
        }
    }

    /// `node_reap`, for the run of a dead node.
    pub(super) fn free(&mut self) {
        let mut run = (**self.run).clone();
        run.head.crashes += 1;
        self.run = Held::of(run);
        self.owner = None;
        self.due = true;
    }
}

fn upsert(calls: &mut Vec<Call>, call: &Call) {
    match calls.iter_mut().find(|kept| kept.key == call.key) {
        Some(kept) => kept.clone_from(call),
        None => calls.push(call.clone()),
    }
}
