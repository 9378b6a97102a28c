//! A run comes into being: its first commit, before which nothing of it is stored.

use super::draft::Draft;
use super::{leg, proceed};
use crate::run::approval::Approvals;
use crate::run::ask::Asks;
use crate::run::binding::{Binding, Warning};
use crate::run::commit::Commit;
use crate::run::envelope::{Envelope, Head, HeadState, Leg};
use crate::run::ids::{Actor, RunId, RunUid, TenantId};
use crate::run::message::{Content, Role};
use crate::run::pace::Pace;
use crate::run::result::Usage;
use crate::run::spec::RunSpec;
use crate::run::status::Status;
use crate::run::time::Timestamp;
use crate::run::view::ViewLimits;

/// A run that somebody asks for, checked.
#[derive(Clone, Debug)]
pub struct NewRun {
    /// Whose run it is.
    pub tenant: TenantId,
    /// Its internal identity.
    pub uid: RunUid,
    /// The caller's name of it.
    pub id: RunId,
    /// Who asks.
    pub actor: Actor,
    /// What is asked for.
    pub spec: RunSpec,
    /// The conversation so far.
    pub input: Vec<(Role, Vec<Content>)>,
    /// The tools, just read.
    pub binding: Binding,
    /// What reading them brought up.
    pub warnings: Vec<Warning>,
    /// Whether the creating node drives the run at once; else it is queued for any node.
    pub begin: bool,
}

/// Makes the run and its first commit.
pub fn admit(new: NewRun, now: Timestamp) -> (Envelope, Commit) {
    let state = fresh_state(new.actor);
    let head = Head {
        status: Status::Queued,
        revision: 0,
        last_seq: 0,
        attempt: 0,
        crashes: 0,
        state,
        created_at: now,
        updated_at: now,
        finished_at: None,
    };
    let mut envelope = Envelope {
        tenant: new.tenant,
        uid: new.uid,
        id: new.id,
        spec: new.spec,
        binding: new.binding.clone(),
        head,
        messages: Vec::new(),
        calls: Vec::new(),
        leg: Leg::Outside,
        room: usize::MAX,
        announced: false,
        turn_told: false,
        view: ViewLimits::default(),
    };
    let mut draft = Draft::new(&mut envelope, now);
    draft.bind(new.binding);
    for (role, content) in new.input {
        draft.message(0, role, content);
    }
    draft.status(Status::Queued);
    for warning in new.warnings {
        draft.warn(warning);
    }
    if new.begin {
        leg::enter(&mut draft);
        // The catalog was read for this very admission.
        draft.envelope.leg = Leg::Working;
        proceed::proceed(&mut draft);
    }
    let commit = draft.commit();
    (envelope, commit)
}

/// The state of a run that has done nothing.
fn fresh_state(created_by: Actor) -> HeadState {
    HeadState {
        created_by,
        turns: 0,
        messages: 0,
        tool_calls: 0,
        usage: Usage::default(),
        progressed: false,
        asks: Asks::default(),
        reached: None,
        repaired: false,
        failing: None,
        asked: None,
        model_failures: 0,
        catalog_failures: 0,
        approvals: Approvals::default(),
        limits: None,
        worked_ms: 0,
        leg_began_at: None,
        idle_since: None,
        pace: Pace::default(),
        warnings: Vec::new(),
        output: None,
        error: None,
    }
}
