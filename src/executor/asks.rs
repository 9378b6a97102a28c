//! What servers ask while a run is driven: people are asked by the run's events, models under the run's budget. Each
//! question is a fact before anybody hears of it, and a reply leaves after its fact is stored.

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt as _, StreamExt as _};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};
use uuid::Uuid;

use super::clean::clean;
use super::drive::Drive;
use super::stopped::Stopped;
use crate::dispatch::{AskRefusal, ServerAsk};
use crate::model::{ModelPart, ModelProvider as _, ModelRequest, ModelStream, bounded};
use crate::run::apply::may_ask;
use crate::run::ask::{Ask, Reply, Sample, SampleRequest};
use crate::run::call::{Call, Stage};
use crate::run::envelope::{Envelope, Leg};
use crate::run::fact::{Fact, SampleEnd};
use crate::run::ids::CallKey;
use crate::run::refusal::Refusal;
use crate::run::sampling::Reservation;
use crate::run::sampling::{Denial, has_room, rule};
use crate::run::time::Timestamp;

/// Questions that may queue before a server has to wait with its next.
const QUEUE: usize = 64;
/// The longest that one sample may take, however lively its stream is.
const SAMPLE_MAX: Duration = Duration::from_mins(10);
/// How long before its call a question ends at the most, so that the server can still answer the call.
const MARGIN_MAX_MS: u64 = 5_000;

pub(super) type ReplyTo = oneshot::Sender<Result<Reply, AskRefusal>>;

/// The questions of one drive.
pub(super) struct Asks {
    inbox: mpsc::Receiver<ServerAsk>,
    /// Servers that wait for a person.
    people: Vec<Waiting>,
    samples: FuturesUnordered<BoxFuture<'static, Option<(u32, SampleEnd)>>>,
    /// Servers that wait for people to approve a sample.
    unapproved: Vec<Unapproved>,
    /// By the sample's number: ends it when dropped, and the server that waits for it.
    making: HashMap<u32, (DropGuard, Option<ReplyTo>)>,
}

struct Waiting {
    input_id: String,
    reply: ReplyTo,
    expires: Instant,
}

/// A sample that people are asked about while its call is out.
struct Unapproved {
    approval: Uuid,
    request: SampleRequest,
    reply: ReplyTo,
}

/// What is heard while calls are out.
pub(super) enum Heard {
    /// A server asks.
    Asked(ServerAsk),
    /// A sample is made, or could not be.
    Sampled(u32, SampleEnd),
    /// Nobody answered in time, or the server took the question back.
    Ended(String, &'static str),
}

impl Asks {
    /// The questions of one drive, and where servers put them.
    pub(super) fn new() -> (Self, mpsc::Sender<ServerAsk>) {
        let (sender, inbox) = mpsc::channel(QUEUE);
        (
            Self {
                inbox,
                people: Vec::new(),
                samples: FuturesUnordered::new(),
                unapproved: Vec::new(),
                making: HashMap::new(),
            },
            sender,
        )
    }

    /// Waits for what is heard next. May be dropped while it waits.
    pub(super) async fn next(&mut self) -> Heard {
        let Self { inbox, people, samples, unapproved: _, making: _ } = self;
        loop {
            let first = people.iter().map(|waiting| waiting.expires).min();
            let expired = async {
                match first {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                Some(ask) = inbox.recv() => return Heard::Asked(ask),
                // One whose call ended comes to nothing.
                Some(sampled) = samples.next(), if !samples.is_empty() => {
                    if let Some((sample, end)) = sampled {
                        return Heard::Sampled(sample, end);
                    }
                }
                input_id = withdrawn(people) => return Heard::Ended(input_id, "withdrawn"),
                () = expired => {
                    let now = Instant::now();
                    if let Some(late) = people.iter().find(|waiting| waiting.expires <= now) {
                        return Heard::Ended(late.input_id.clone(), "expired");
                    }
                }
            }
        }
    }

    /// Lets go of what the run does not wait for any more: its servers are told so.
    pub(super) fn keep_up(&mut self, envelope: &Envelope) {
        let asks = &envelope.head.state.asks;
        self.people.retain(|waiting| asks.open.iter().any(|open| open.input.input_id == waiting.input_id));
        self.making.retain(|sample, _| asks.reserved.iter().any(|reserved| reserved.sample == *sample));
    }

    /// Those whose approval is decided, one way or the other.
    fn decided(&mut self, envelope: &Envelope) -> Vec<Unapproved> {
        let approvals = &envelope.head.state.approvals;
        self.unapproved.extract_if(.., |waiting| approvals.find(waiting.approval).is_none()).collect()
    }

    fn take(&mut self, input_id: &str) -> Option<ReplyTo> {
        let at = self.people.iter().position(|waiting| waiting.input_id == input_id)?;
        Some(self.people.swap_remove(at).reply)
    }
}

/// A question whose server does not wait for the answer any more.
async fn withdrawn(people: &mut [Waiting]) -> String {
    poll_fn(|context| {
        let gone = people
            .iter_mut()
            .find_map(|waiting| waiting.reply.poll_closed(context).is_ready().then(|| waiting.input_id.clone()));
        gone.map_or(Poll::Pending, Poll::Ready)
    })
    .await
}

impl Drive<'_> {
    /// Begins one sample that a stored question waits for, if there is one; `true`: look at the run again.
    pub(super) async fn begin_sample(&mut self) -> Result<bool, Stopped> {
        let reserved = &self.envelope.head.state.asks.reserved;
        let is_new = |key: CallKey, name: &str| {
            !reserved.iter().any(|reserved| reserved.call == key && reserved.question.as_deref() == Some(name))
        };
        let wanted = self
            .envelope
            .wanted_samples()
            .find(|(key, name, _)| is_new(*key, name) && has_room(&self.envelope, *key))
            .map(|(key, name, request)| (key, name.clone(), request.clone()));
        let Some((key, name, request)) = wanted else { return Ok(false) };
        if self.envelope.leg != Leg::Working {
            return Ok(false);
        }
        self.reserve(key, Some(name), request, None).await?;
        Ok(true)
    }

    /// What a server asked, or what came of that.
    pub(super) async fn heed(&mut self, heard: Heard) -> Result<(), Stopped> {
        match heard {
            Heard::Asked(ServerAsk { call, ask, reply }) => match ask {
                Ask::Form { .. } | Ask::Url { .. } => self.ask_person(call, ask, reply).await,
                Ask::Sample(request) => self.sample(call, *request, reply).await,
                Ask::Roots => {
                    tell(reply, Ok(Reply::Roots));
                    Ok(())
                }
            },
            Heard::Sampled(sample, end) => self.sampled(sample, end).await,
            Heard::Ended(input_id, reason) => {
                let reply = self.asks.take(&input_id);
                self.decide(Fact::InputClosed { input_id, reason }).await?;
                if let Some(reply) = reply {
                    tell(reply, Ok(Reply::cancel()));
                }
                Ok(())
            }
        }
    }

    async fn ask_person(&mut self, key: CallKey, ask: Ask, reply: ReplyTo) -> Result<(), Stopped> {
        let (true, Some(expires_at)) = (may_ask(&self.envelope, key), self.question_ends(key)) else {
            tell(reply, Ok(Reply::decline()));
            return Ok(());
        };
        let left = expires_at.millis_since(self.shared.parts.clock.now());
        let expires = Instant::now() + Duration::from_millis(u64::try_from(left).unwrap_or(0));
        self.decide(Fact::InputAsked { key, ask, expires_at }).await?;
        if let Some(open) = self.envelope.head.state.asks.open.last() {
            let input_id = open.input.input_id.clone();
            self.asks.people.push(Waiting { input_id, reply, expires });
        }
        Ok(())
    }

    /// When a question about a call that is out ends: in time for the server to answer the call.
    fn question_ends(&self, key: CallKey) -> Option<Timestamp> {
        let call = self.envelope.calls.iter().find(|call| call.key == key)?;
        let Stage::Executing { since } = call.stage else { return None };
        let total = self.envelope.entry_of(call)?.timeouts.call_total_ms;
        let lasts = total.saturating_sub((total / 10).min(MARGIN_MAX_MS));
        Some(since.plus_millis(i64::try_from(lasts).unwrap_or(i64::MAX)))
    }

    /// Answers of people, each told to its server once it is stored.
    pub(super) async fn heed_answers(&mut self) -> Result<(), Stopped> {
        let answers = std::mem::take(&mut *self.signals.answers.lock());
        for answer in answers {
            let is_open =
                |input_id: &str| self.envelope.head.state.asks.open.iter().any(|open| open.input.input_id == input_id);
            if !is_open(&answer.input_id) {
                continue;
            }
            let waiting = self.asks.take(&answer.input_id);
            let reply = Reply::Input { action: answer.action, content: answer.content.clone() };
            match self.decide(Fact::InputAnswered(Box::new(answer))).await {
                Err(Stopped::Refused(Refusal::AlreadyAnswered | Refusal::RunTerminal)) => continue,
                applied => applied?,
            }
            if let Some(waiting) = waiting {
                tell(waiting, Ok(reply));
            }
        }
        Ok(())
    }

    /// A server waits for a sample while its call is out, and there is room for it.
    pub(super) async fn sample_now(
        &mut self,
        key: CallKey,
        request: SampleRequest,
        reply: ReplyTo,
    ) -> Result<(), Stopped> {
        let out = |call: &&Call| call.key == key && matches!(call.stage, Stage::Executing { .. });
        let is_out = self.envelope.calls.iter().any(|call| out(&call));
        if !is_out || self.envelope.leg != Leg::Working {
            tell(reply, Err(AskRefusal("the call has ended".to_owned())));
            return Ok(());
        }
        self.reserve(key, None, request, Some(reply)).await
    }

    /// Reserves what a sample may use and asks the model, or says why not.
    async fn reserve(
        &mut self,
        key: CallKey,
        question: Option<String>,
        request: SampleRequest,
        reply: Option<ReplyTo>,
    ) -> Result<(), Stopped> {
        let (before, asked_before) = (self.envelope.head.state.asks.samples, self.envelope.head.state.approvals.asked);
        let denied = self.denial(key, &request);
        let fact = Fact::SampleAsked { key, question, request: Box::new(request.clone()) };
        self.decide(fact).await?;
        let approvals = &self.envelope.head.state.approvals;
        if approvals.asked > asked_before {
            // Whoever waits for a question that is kept is told by the replies of its call.
            if let (Some(open), Some(reply)) = (approvals.open.last(), reply) {
                self.asks.unapproved.push(Unapproved { approval: open.approval.id, request, reply });
            }
            return Ok(());
        }
        let asks = &self.envelope.head.state.asks;
        let reserved = asks.reserved.iter().find(|reserved| reserved.sample == asks.samples && asks.samples > before);
        match (reserved.cloned(), reply) {
            (Some(reserved), reply) => self.make(&reserved, &request, reply),
            (None, Some(reply)) => {
                // The rule may have looked at the clock a moment earlier than the fact did.
                let denial = denied.unwrap_or(Denial::Deadline);
                tell(reply, Err(AskRefusal(format!("the request for a sample was refused: {denial}"))));
            }
            (None, None) => {}
        }
        Ok(())
    }

    /// Makes the samples that people have approved, and tells the servers of the others.
    pub(super) fn heed_approvals(&mut self) {
        for Unapproved { approval, request, reply } in self.asks.decided(&self.envelope) {
            let reserved = &self.envelope.head.state.asks.reserved;
            match reserved.iter().find(|reserved| reserved.approval == Some(approval)).cloned() {
                Some(reserved) => self.make(&reserved, &request, Some(reply)),
                None => tell(reply, Err(AskRefusal("the request for a sample was refused".to_owned()))),
            }
        }
    }

    fn denial(&self, key: CallKey, request: &SampleRequest) -> Option<Denial> {
        let call = self.envelope.calls.iter().find(|call| call.key == key)?;
        let entry = self.envelope.entry_of(call)?;
        rule(&self.envelope, entry, request, false, self.shared.parts.clock.now()).err()
    }

    fn make(&mut self, reserved: &Reservation, request: &SampleRequest, reply: Option<ReplyTo>) {
        let stop = CancellationToken::new();
        let sample = reserved.sample;
        let making = self.asked_model(reserved, request);
        let stopped = stop.clone();
        self.asks
            .samples
            .push(async move { stopped.run_until_cancelled(making).await.map(|end| (sample, end)) }.boxed());
        self.asks.making.insert(sample, (stop.drop_guard(), reply));
    }

    /// The model's answer for a server.
    fn asked_model(&self, reserved: &Reservation, request: &SampleRequest) -> BoxFuture<'static, SampleEnd> {
        let failed = |message: &str| {
            let end = SampleEnd::Failed { message: message.to_owned(), may_cost: false };
            std::future::ready(end).boxed()
        };
        let call = self.envelope.calls.iter().find(|call| call.key == reserved.call);
        let entry = call.and_then(|call| self.envelope.entry_of(call));
        let Some(sampling) = entry.and_then(|entry| entry.sampling.as_ref()) else {
            return failed("sampling is not offered any more");
        };
        let model = bounded(&sampling.model, request);
        let (name, provider) = (model.name.clone(), model.provider.code());
        let requests_before = self.envelope.head.state.asks.usage.model_requests;
        let prompt = request.prompt();
        let (shared, secrets, tenant) = (Arc::clone(self.shared), Arc::clone(&self.secrets), self.claim.tenant.clone());
        let (claim, binding) = (self.claim.clone(), Arc::clone(&self.binding));
        async move {
            let secret = match shared.parts.dispatch.model_secret(&tenant, &model, &secrets).await {
                Ok(secret) => secret,
                Err(fault) => return SampleEnd::Failed { message: fault.to_string(), may_cost: false },
            };
            let told = shared.parts.dispatch.told_to(&claim, &binding, &model, &secrets).await;
            let stream =
                shared.parts.models.ask(ModelRequest { model, prompt, secret, requests_before, calls_before: 0 });
            let stream = clean(stream, told);
            let end = timeout(SAMPLE_MAX, answer(stream, name)).await.unwrap_or_else(|_elapsed| SampleEnd::Failed {
                message: "the model's answer takes too long".to_owned(),
                may_cost: true,
            });
            let outcome = if matches!(end, SampleEnd::Made { .. }) { "ok" } else { "failed" };
            metrics::counter!("countersign_model_requests_total", "provider" => provider, "outcome" => outcome)
                .increment(1);
            end
        }
        .boxed()
    }

    async fn sampled(&mut self, sample: u32, end: SampleEnd) -> Result<(), Stopped> {
        // Without a reservation its call has ended.
        let Some((_done, reply)) = self.asks.making.remove(&sample) else { return Ok(()) };
        let told = match &end {
            SampleEnd::Made { sample, .. } => Ok(Reply::Sample(sample.clone())),
            SampleEnd::Failed { message, .. } => Err(AskRefusal(format!("the model gave no answer: {message}"))),
        };
        self.decide(Fact::SampleEnded { sample, end }).await?;
        if let Some(reply) = reply {
            tell(reply, told);
        }
        Ok(())
    }
}

/// Reads a stream to its end.
async fn answer(mut stream: ModelStream, model: String) -> SampleEnd {
    while let Some(part) = stream.next().await {
        match part {
            Ok(ModelPart::Text(_) | ModelPart::Reasoning(_)) => {}
            Ok(ModelPart::Ended(turn)) => {
                let sample = Sample { model, text: turn.text, finish_reason: turn.finish_reason };
                return SampleEnd::Made { sample, usage: turn.usage };
            }
            Err(error) => return SampleEnd::Failed { message: error.message, may_cost: error.may_cost },
        }
    }
    SampleEnd::Failed { message: "the model's answer was cut off before its end".to_owned(), may_cost: true }
}

/// A server that has gone meanwhile misses nothing.
pub(super) fn tell(reply: ReplyTo, told: Result<Reply, AskRefusal>) {
    if reply.send(told).is_err() {
        tracing::debug!("a server did not wait for the reply to its question");
    }
}
