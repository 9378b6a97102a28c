//! A server asks for a sample. Where people must approve it they are asked first, and nothing is reserved meanwhile. What the sample may use is reserved in the same commit that admits it, so that the run
//! and all of its samples together are never admitted past the budget; a reservation ends with its sample, with its
//! call, or with its leg.

use uuid::Uuid;

use super::draft::Draft;
use super::{approvals, proceed, settle};
use crate::run::approval::{Subject, Verdict};
use crate::run::ask::{Reply, SampleRequest};
use crate::run::call::{Call, Stage};
use crate::run::commit::Commit;
use crate::run::envelope::{Envelope, Leg};
use crate::run::event::EventBody;
use crate::run::fact::SampleEnd;
use crate::run::ids::{CallId, CallKey};
use crate::run::message::TurnUsage;
use crate::run::money::Price;
use crate::run::outcome::ToolError;
use crate::run::refusal::Refusal;
use crate::run::sampling::{Admission, Denial, Reservation, SampleCost, has_room, is_spent, rule};
use crate::run::time::Timestamp;

/// Reserves what the sample may use, or says why it is not made.
pub(super) fn asked(
    envelope: &mut Envelope,
    key: CallKey,
    question: Option<String>,
    request: &SampleRequest,
    now: Timestamp,
) -> Result<Commit, Refusal> {
    let Some(call) = envelope.calls.iter().find(|call| call.key == key && lets_ask(call, question.as_deref())) else {
        return Err(Refusal::Impossible("no call is there that lets its server ask"));
    };
    let call_id = call.call_id.clone();
    let approved = question.as_deref().is_some_and(|name| is_approved(call, name));
    if envelope.entry_of(call).is_none() {
        return Err(Refusal::Impossible("a call has its entry"));
    }
    if question.is_some() && envelope.head.state.approvals.is_about_sample(key, question.as_deref()) {
        return Err(Refusal::Impossible("people are asked about the sample"));
    }
    // One that people have approved was counted when they were asked.
    let spent = !approved && is_spent(envelope, key);
    if (question.is_none() && spent) || !has_room(envelope, key) {
        return Err(Refusal::Impossible("the call has had its samples, or so many are being made"));
    }
    let mut draft = Draft::new(envelope, now);
    if !approved {
        draft.count_sample(key);
    }
    let ruled = if spent { Err(Denial::TooMany) } else { rule_on(&draft, key, request, approved) };
    match ruled {
        Ok(Admission::Reserve(cost)) => reserve(&mut draft, (key, &call_id), question, cost, None),
        Ok(Admission::Ask(requirement)) => {
            let kept = question.is_some();
            let subject = Subject::Sample { question, request: Box::new(request.clone()) };
            approvals::ask(&mut draft, key, subject, requirement);
            if kept {
                go_on(&mut draft);
            }
        }
        Err(denial) => {
            tell_refused(&mut draft, (key, &call_id), &denial);
            if question.is_some() {
                fail_refused(&mut draft, key, &denial);
                go_on(&mut draft);
            }
        }
    }
    Ok(draft.commit())
}

/// People approved a sample, or did not. One that is kept in the receipt is made by whoever drives the run next; one
/// whose call is out is reserved at once, since its server waits.
pub(super) fn voted(
    draft: &mut Draft<'_>,
    key: CallKey,
    question: Option<String>,
    request: &SampleRequest,
    (approval, verdict): (Uuid, Verdict),
) {
    let Some(call_id) = draft.envelope.calls.iter().find(|call| call.key == key).map(|call| call.call_id.clone())
    else {
        return;
    };
    match (verdict, question) {
        (Verdict::Approve, Some(name)) => draft.approve_sample(key, &name),
        (Verdict::Approve, None) => match rule_on(draft, key, request, true) {
            Ok(Admission::Reserve(cost)) => reserve(draft, (key, &call_id), None, cost, Some(approval)),
            Ok(Admission::Ask(_)) => tell_refused(draft, (key, &call_id), &Denial::Approval),
            Err(denial) => tell_refused(draft, (key, &call_id), &denial),
        },
        (Verdict::Deny, question) => {
            tell_refused(draft, (key, &call_id), &Denial::Approval);
            if question.is_some() {
                fail_refused(draft, key, &Denial::Approval);
            }
        }
    }
}

fn rule_on(draft: &Draft<'_>, key: CallKey, request: &SampleRequest, approved: bool) -> Result<Admission, Denial> {
    let call = draft.envelope.calls.iter().find(|call| call.key == key);
    let entry = call.and_then(|call| draft.envelope.entry_of(call)).ok_or(Denial::NotOffered)?;
    rule(draft.envelope, entry, request, approved, draft.now)
}

/// A sample of this call that nothing is reserved for yet.
fn unreserved(draft: &Draft<'_>, key: CallKey) -> Reservation {
    let call = draft.envelope.calls.iter().find(|call| call.key == key);
    let server = call.and_then(|call| call.target.as_ref()).map(|target| target.server.clone()).unwrap_or_default();
    let sampling = call.and_then(|call| draft.envelope.entry_of(call)).and_then(|entry| entry.sampling.as_ref());
    let model = sampling.map(|sampling| sampling.model.name.clone()).unwrap_or_default();
    Reservation {
        sample: 0,
        call: key,
        question: None,
        approval: None,
        server,
        model,
        tokens: 0,
        input_tokens: 0,
        cost_usd: None,
    }
}

fn reserve(
    draft: &mut Draft<'_>,
    (key, call_id): (CallKey, &CallId),
    question: Option<String>,
    cost: SampleCost,
    approval: Option<Uuid>,
) {
    let empty = unreserved(draft, key);
    let asks = &mut draft.envelope.head.state.asks;
    asks.samples = asks.samples.saturating_add(1);
    let SampleCost { most, cost_usd } = cost;
    let (input_tokens, tokens) = (most.input_tokens, most.input_tokens.saturating_add(most.output_tokens));
    let reserved = Reservation { sample: asks.samples, question, approval, tokens, input_tokens, cost_usd, ..empty };
    asks.reserved.push(reserved.clone());
    let told = Told { reserved_tokens: Some(tokens), ..Told::default() };
    draft.tell_sampling(&reserved, call_id, "reserved", told);
}

fn tell_refused(draft: &mut Draft<'_>, (key, call_id): (CallKey, &CallId), denial: &Denial) {
    let refused = unreserved(draft, key);
    draft.tell_sampling(&refused, call_id, "refused", Told::why(denial.code(), denial.to_string()));
}

fn is_approved(call: &Call, question: &str) -> bool {
    let asked = call.asked.as_ref().and_then(|asked| asked.questions.get(question));
    asked.is_some_and(|question| question.approved)
}

/// Whether the server of a call may ask for a sample: while the call is out, or by a question that is kept.
fn lets_ask(call: &Call, question: Option<&str>) -> bool {
    match (&call.stage, question) {
        (Stage::Executing { .. }, None) => true,
        (Stage::Waiting { .. }, Some(question)) => {
            call.asked.as_ref().is_some_and(|asked| asked.samples().any(|(name, _)| name == question))
        }
        (
            Stage::Rejected { .. }
            | Stage::Proposed
            | Stage::Pending
            | Stage::Executing { .. }
            | Stage::Waiting { .. }
            | Stage::Completed { .. }
            | Stage::Failed { .. }
            | Stage::Indeterminate { .. },
            _,
        ) => false,
    }
}

/// The replies that a call goes on with have no place for a refusal: the call has failed, and says why.
fn fail_refused(draft: &mut Draft<'_>, key: CallKey, denial: &Denial) {
    let message = format!("The MCP server asked for a sample of a model, and was refused: {denial}.");
    settle::fail(draft, key, ToolError::new("sampling-refused", message), None);
}

/// What the model costs that the server of a call may have asked.
fn price_of(envelope: &Envelope, key: CallKey) -> Option<Price> {
    let call = envelope.calls.iter().find(|call| call.key == key)?;
    let sampling = envelope.entry_of(call)?.sampling.as_ref()?;
    envelope.spec.prices.of(&sampling.model).copied()
}

/// Settles a sample: what was reserved is free again, and what was used counts. Where nobody said how much that is, it is
/// what was reserved.
pub(super) fn ended(envelope: &mut Envelope, sample: u32, end: SampleEnd, now: Timestamp) -> Result<Commit, Refusal> {
    let Some(reserved) = envelope.head.state.asks.reserved.iter().find(|reserved| reserved.sample == sample).cloned()
    else {
        return Err(Refusal::Impossible("nothing is reserved for the sample"));
    };
    let key = reserved.call;
    let call_id = envelope.calls.iter().find(|call| call.key == key).map(|call| call.call_id.clone());
    let Some(call_id) = call_id else { return Err(Refusal::Impossible("a sample belongs to a call")) };
    let price = price_of(envelope, key);
    let mut draft = Draft::new(envelope, now);
    draft.progress();
    let state = &mut draft.envelope.head.state;
    state.asks.reserved.retain(|reserved| reserved.sample != sample);
    let usage = match &end {
        SampleEnd::Made { usage, .. } => *usage,
        SampleEnd::Failed { may_cost: true, .. } => reserved.usage(),
        SampleEnd::Failed { may_cost: false, .. } => TurnUsage::default(),
    };
    state.usage.count(usage, price.as_ref());
    state.asks.usage.count(usage, price.as_ref());
    match end {
        SampleEnd::Made { sample, usage } => {
            let told = Told { usage: Some(usage), ..Told::default() };
            draft.tell_sampling(&reserved, &call_id, "made", told);
            if let Some(question) = &reserved.question {
                draft.reply(key, question, Reply::Sample(sample));
            }
        }
        SampleEnd::Failed { message, may_cost } => {
            let told = Told { usage: may_cost.then_some(usage), ..Told::why("model-error", message.clone()) };
            draft.tell_sampling(&reserved, &call_id, "failed", told);
            if reserved.question.is_some() {
                let message = format!("The MCP server asked for a sample of a model, which failed: {message}.");
                settle::fail(&mut draft, key, ToolError::new("sampling-failed", message), None);
            }
        }
    }
    if reserved.question.is_some() {
        go_on(&mut draft);
    }
    Ok(draft.commit())
}

fn go_on(draft: &mut Draft<'_>) {
    match draft.envelope.leg {
        Leg::Working => proceed::proceed(draft),
        Leg::Outside | Leg::CheckingCatalog | Leg::Cancelling => {}
    }
}

/// What readers are told beside the decision.
#[derive(Default)]
struct Told {
    reason: Option<&'static str>,
    message: Option<String>,
    reserved_tokens: Option<u64>,
    usage: Option<TurnUsage>,
}

impl Told {
    fn why(reason: &'static str, message: String) -> Self {
        Self { reason: Some(reason), message: Some(message), ..Self::default() }
    }
}

impl Draft<'_> {
    /// Keeps in the receipt that people let the sample be made.
    fn approve_sample(&mut self, key: CallKey, question: &str) {
        let Some(call) = self.envelope.calls.iter_mut().find(|call| call.key == key) else { return };
        if let Some(asked) = call.asked.as_mut().and_then(|asked| asked.questions.get_mut(question)) {
            asked.approved = true;
            self.touch(key);
        }
    }

    fn count_sample(&mut self, key: CallKey) {
        let calls = &self.envelope.calls;
        let is_open = |key| calls.iter().any(|call| call.key == key && !call.stage.is_settled());
        self.envelope.head.state.asks.count_sample(key, is_open);
    }

    /// Nobody makes the samples any more that something is reserved for. They may have been asked for: what was reserved
    /// counts as used.
    pub(super) fn drop_reservations(&mut self) {
        self.drop_reservations_of(|_| true);
    }

    pub(super) fn drop_reservations_of(&mut self, dropped: impl Fn(&Reservation) -> bool) {
        let asks = &mut self.envelope.head.state.asks;
        let gone: Vec<Reservation> = asks.reserved.iter().filter(|reserved| dropped(reserved)).cloned().collect();
        asks.reserved.retain(|reserved| !dropped(reserved));
        for reserved in gone {
            let (usage, price) = (reserved.usage(), price_of(self.envelope, reserved.call));
            let state = &mut self.envelope.head.state;
            state.usage.count_lost(usage, price.as_ref());
            state.asks.usage.count_lost(usage, price.as_ref());
            let call = self.envelope.calls.iter().find(|call| call.key == reserved.call);
            if let Some(call_id) = call.map(|call| call.call_id.clone()) {
                let why = "the call or its leg ended before the model answered".to_owned();
                let told = Told { usage: Some(usage), ..Told::why("call-ended", why) };
                self.tell_sampling(&reserved, &call_id, "failed", told);
            }
        }
    }

    fn tell_sampling(&mut self, sample: &Reservation, call_id: &CallId, decision: &str, told: Told) {
        self.event(EventBody::Sampling {
            turn: sample.call.turn,
            call_id: call_id.clone(),
            server: sample.server.clone(),
            model: sample.model.clone(),
            decision: decision.to_owned(),
            reason: told.reason.map(str::to_owned),
            message: told.message,
            reserved_tokens: told.reserved_tokens,
            usage: told.usage,
        });
    }
}
