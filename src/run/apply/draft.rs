//! A commit while it is written: every change of the envelope leaves its row or its event here.

use crate::run::approval::Approval;
use crate::run::binding::{Binding, Drift, Warning};
use crate::run::call::{Call, Stage, Task};
use crate::run::commit::{Commit, Next};
use crate::run::envelope::{Envelope, Leg};
use crate::run::event::{Event, EventBody, Part};
use crate::run::ids::CallKey;
use crate::run::message::{Content, Message, Role};
use crate::run::result::RunError;
use crate::run::status::{Status, SuspendReason};
use crate::run::time::Timestamp;

pub(super) struct Draft<'a> {
    pub(super) envelope: &'a mut Envelope,
    pub(super) now: Timestamp,
    expected: i64,
    messages: Vec<Message>,
    made: Vec<CallKey>,
    moved: Vec<CallKey>,
    approvals: Vec<Approval>,
    events: Vec<Event>,
    binding: Option<Binding>,
    sends: Vec<CallKey>,
    parked: bool,
}

impl<'a> Draft<'a> {
    pub(super) fn new(envelope: &'a mut Envelope, now: Timestamp) -> Self {
        let expected = envelope.head.revision;
        Self {
            envelope,
            now,
            expected,
            messages: Vec::new(),
            made: Vec::new(),
            moved: Vec::new(),
            approvals: Vec::new(),
            events: Vec::new(),
            binding: None,
            sends: Vec::new(),
            parked: false,
        }
    }

    pub(super) fn event(&mut self, body: EventBody) {
        let seq = self.envelope.head.last_seq.saturating_add(1);
        self.envelope.head.last_seq = seq;
        self.events.push(Event { body, run_id: self.envelope.id.clone(), seq, at: self.now });
    }

    /// Writes the row of an approval as it stands now.
    pub(super) fn keep_approval(&mut self, approval: &Approval) {
        self.approvals.retain(|kept| kept.id != approval.id);
        self.approvals.push(approval.clone());
    }

    pub(super) fn part(&mut self, turn: u32, part: Part) {
        self.event(EventBody::Part { turn, part });
    }

    /// A warning stands once in the run and once in the stream.
    pub(super) fn warn(&mut self, warning: Warning) {
        let turn = self.envelope.head.state.turns;
        self.envelope.head.state.warnings.push(warning.clone());
        self.part(turn, Part::Warning { warning });
    }

    /// Tells what was not told before: a catalog that is read again brings up the same things again.
    pub(super) fn warn_of_new(&mut self, warnings: Vec<Warning>) {
        for warning in warnings {
            if !self.envelope.head.state.warnings.contains(&warning) {
                self.warn(warning);
            }
        }
    }

    pub(super) fn message(&mut self, turn: u32, role: Role, content: Vec<Content>) {
        let position = self.envelope.head.state.messages;
        self.envelope.head.state.messages = position.saturating_add(1);
        let message = Message { position, turn, role, content };
        self.envelope.messages.push(message.clone());
        self.messages.push(message);
    }

    /// The calls of a new turn take the place of the last turn's, which are settled.
    pub(super) fn make_calls(&mut self, calls: Vec<Call>) {
        self.made = calls.iter().map(|call| call.key).collect();
        self.envelope.calls = calls;
    }

    pub(super) fn move_call(&mut self, key: CallKey, stage: Stage) {
        if let Some(call) = self.envelope.calls.iter_mut().find(|call| call.key == key) {
            call.stage = stage;
            let lets_ask = matches!(call.stage, Stage::Executing { .. } | Stage::Waiting { .. });
            if !self.made.contains(&key) && !self.moved.contains(&key) {
                self.moved.push(key);
            }
            if !lets_ask {
                self.end_asks(key);
            }
        }
    }

    /// The call never reaches the boundary.
    pub(super) fn reject_call(&mut self, key: CallKey, rule: &str, reason: &str) {
        self.move_call(key, Stage::Rejected { rule: rule.to_owned(), reason: reason.to_owned() });
    }

    /// Commits the receipt as `executing`: from then on the request may leave.
    pub(super) fn send(&mut self, key: CallKey) {
        self.start(key);
        self.sends.push(key);
    }

    /// The call goes out: an attempt more, unless it only goes on.
    pub(super) fn start(&mut self, key: CallKey) {
        let since = self.now;
        let waited = |call: &Call| call.key == key && matches!(call.stage, Stage::Waiting { .. });
        let goes_on = self.envelope.calls.iter().any(waited);
        self.move_call(key, Stage::Executing { since });
        if let Some(call) = self.envelope.calls.iter_mut().find(|call| call.key == key) {
            // The server answered and wants the replies: that is the same attempt, going on.
            if !goes_on {
                call.attempt = call.attempt.saturating_add(1);
            }
            call.task = None;
            let (turn, call_id, tool, attempt) = (key.turn, call.call_id.clone(), call.tool.clone(), call.attempt);
            self.event(EventBody::ToolStarted { turn, call_id, tool, attempt });
        }
    }

    /// Whether this leaves a call to a person that was not left to one before.
    pub(super) fn leaves_to_person(&self) -> bool {
        let left = |call: &Call| self.moved.contains(&call.key) && !self.envelope.is_voted_on(call);
        self.envelope.undecided().any(left)
    }

    /// The call's document changed, its stage did not.
    pub(super) fn touch(&mut self, key: CallKey) {
        if !self.made.contains(&key) && !self.moved.contains(&key) {
            self.moved.push(key);
        }
    }

    /// Keeps the name of the work that the server goes on with; the call stays `executing`.
    pub(super) fn defer(&mut self, key: CallKey, task: Task) {
        let Some(call) = self.envelope.calls.iter_mut().find(|call| call.key == key) else { return };
        call.task = Some(task);
        let stage = call.stage.clone();
        self.move_call(key, stage);
    }

    pub(super) fn bind(&mut self, binding: Binding) {
        let binding = Binding { at: Some(self.now), ..binding };
        self.envelope.binding = binding.clone();
        self.binding = Some(binding);
    }

    /// Opens the revision that follows, of what the servers serve now, and tells how it differs.
    pub(super) fn rebind(&mut self, served: Binding, drift: Drift, warnings: Vec<Warning>) {
        let (next, hidden) = served.following(&self.envelope.binding);
        let (next, set_aside) = next.offered_to(self.envelope.spec.model.provider);
        let revision = next.revision;
        self.bind(next);
        self.envelope.head.state.catalog_failures = 0;
        let Drift { added, removed, changed } = drift;
        self.event(EventBody::BindingRevised { revision, added, removed, changed });
        self.warn_of_new(warnings);
        self.warn_of_new(hidden);
        self.warn_of_new(set_aside);
    }

    /// Opens a revision that does not offer this tool, since the provider takes no request with it. `false`: the run
    /// cannot go on without it, or without so many.
    pub(super) fn set_aside(&mut self, tool: &str) -> bool {
        let Some((next, warning)) = self.envelope.binding.without(tool) else { return false };
        let revision = next.revision;
        self.bind(next);
        let Drift { added, removed, changed } = Drift::default();
        self.event(EventBody::BindingRevised { revision, added, removed, changed });
        self.warn_of_new(vec![warning]);
        true
    }

    pub(super) fn progress(&mut self) {
        self.envelope.head.state.progressed = true;
        self.envelope.head.crashes = 0;
    }

    /// Moves the run to a status that is not terminal, and says so.
    pub(super) fn status(&mut self, status: Status) {
        self.envelope.head.status = status;
        let attempt = self.envelope.head.attempt;
        let reason = status.reason().map(str::to_owned);
        self.event(EventBody::RunStatus { status: status.code().to_owned(), reason, attempt });
    }

    /// A run that waits for somebody hands nothing out: what is on offer is offered anew when it goes on.
    pub(super) fn suspend(&mut self, reason: SuspendReason) {
        self.withdraw_offers();
        self.status(Status::Suspended(reason));
        self.leave();
    }

    /// What is out goes on without a driver, and whoever settles it brings the run further. Its time counts as work.
    pub(super) fn park(&mut self) {
        if self.envelope.head.status != Status::Running {
            self.status(Status::Running);
        }
        self.envelope.head.state.leg_began_at.get_or_insert(self.now);
        self.envelope.leg = Leg::Outside;
        self.parked = true;
    }

    /// Ends the run; `result` is its last event.
    pub(super) fn finish(&mut self, status: Status) {
        self.cancel_approvals();
        (self.envelope.head.state.reached, self.envelope.head.state.failing) = (None, None);
        self.envelope.head.status = status;
        self.envelope.head.finished_at = Some(self.now);
        self.leave();
        let state = &self.envelope.head.state;
        let result = EventBody::Result {
            status: status.code().to_owned(),
            reason: status.reason().map(str::to_owned),
            output: state.output.clone(),
            error: state.error.clone(),
            usage: state.usage,
        };
        self.event(result);
    }

    pub(super) fn fail(&mut self, error: RunError) {
        self.envelope.head.state.error = Some(error);
        self.finish(Status::Failed);
    }

    /// Ends the leg: its time counts as work, waiting does not.
    fn leave(&mut self) {
        self.drop_reservations();
        self.count_unended();
        let worked = self.envelope.worked_ms(self.now);
        self.envelope.head.state.worked_ms = worked;
        (self.envelope.head.state.leg_began_at, self.envelope.head.state.idle_since) = (None, None);
        self.envelope.leg = Leg::Outside;
    }

    /// Stops the clock of a leg while it only waits for people, and lets it go on.
    fn keep_time(&mut self) {
        let idles = self.envelope.only_waits_for_people();
        let state = &mut self.envelope.head.state;
        let Some(began) = state.leg_began_at else { return };
        match (state.idle_since, idles) {
            (None, true) => state.idle_since = Some(self.now),
            (Some(since), false) => {
                state.leg_began_at = Some(began.plus_millis(self.now.millis_since(since).max(0)));
                state.idle_since = None;
            }
            (Some(_), true) | (None, false) => {}
        }
    }

    pub(super) fn commit(mut self) -> Commit {
        self.keep_time();
        let envelope = self.envelope;
        envelope.head.revision = self.expected.saturating_add(1);
        envelope.head.updated_at = self.now;
        let next = match envelope.head.status {
            Status::Running if self.parked => Next::Rest,
            Status::Running => Next::Owner,
            Status::Queued => Next::Due(self.now),
            // Whoever ends a run that waits for people keeps it until its workers have had their time.
            Status::Suspended(_) if envelope.leg == Leg::Cancelling => Next::Owner,
            Status::Suspended(_) | Status::Completed | Status::Stopped(_) | Status::Failed | Status::Cancelled => {
                Next::Rest
            }
        };
        let pick = |keys: &[CallKey]| -> Vec<Call> {
            envelope.calls.iter().filter(|call| keys.contains(&call.key)).cloned().collect()
        };
        Commit {
            expected: self.expected,
            head: envelope.head.clone(),
            messages: self.messages,
            calls_made: pick(&self.made),
            calls_moved: pick(&self.moved),
            approvals: self.approvals,
            events: self.events,
            binding: self.binding,
            sends: self.sends,
            next,
        }
    }
}
