//! Asks the model for one turn: streams its parts, rules on its calls, and commits the whole turn at once.

use std::time::Duration;

use futures::StreamExt;
use tokio::time::{Instant, sleep_until};

use super::clean::clean;
use super::drive::Drive;
use super::stopped::Stopped;
use crate::failpoint;
use crate::model::{ModelError, ModelErrorKind, ModelPart, ModelProvider, ModelRequest, ModelStream, within};
use crate::run::estimate::Estimate;
use crate::run::event::Part;
use crate::run::fact::{Fact, Ruling};
use crate::run::history::prompt;
use crate::run::ids::RunUid;
use crate::run::message::{ModelTurn, TurnUsage};
use crate::run::result::RunError;

/// Text is coalesced for so long before readers get it.
const FLUSH_EVERY: Duration = Duration::from_millis(30);

/// The first wait before a failed request is made again; doubles each time.
const RETRY_BASE: Duration = Duration::from_millis(500);

/// The longest wait that this server chooses by itself.
const RETRY_MAX: Duration = Duration::from_secs(30);

/// The longest `Retry-After` that is waited for: meanwhile the run holds a slot of its node and of its tenant.
const RETRY_TOLD_MAX: Duration = Duration::from_mins(10);

/// Text of an unfinished turn that readers have not got yet.
#[derive(Default)]
struct Unsent {
    parts: Vec<Part>,
    text_at: u64,
    reasoning_at: u64,
    /// Bytes that came, sent or not.
    came: u64,
}

impl Unsent {
    fn text(&mut self, more: &str) {
        if more.is_empty() {
            return;
        }
        if let Some(Part::TextDelta { text, .. }) = self.parts.last_mut() {
            text.push_str(more);
        } else {
            self.parts.push(Part::TextDelta { text: more.to_owned(), offset: self.text_at });
        }
        self.count(more);
        self.text_at = self.text_at.saturating_add(characters(more));
    }

    fn reasoning(&mut self, more: &str) {
        if more.is_empty() {
            return;
        }
        if let Some(Part::ReasoningDelta { text, .. }) = self.parts.last_mut() {
            text.push_str(more);
        } else {
            self.parts.push(Part::ReasoningDelta { text: more.to_owned(), offset: self.reasoning_at });
        }
        self.count(more);
        self.reasoning_at = self.reasoning_at.saturating_add(characters(more));
    }

    fn count(&mut self, more: &str) {
        self.came = self.came.saturating_add(u64::try_from(more.len()).unwrap_or(u64::MAX));
    }
}

fn characters(text: &str) -> u64 {
    u64::try_from(text.chars().count()).unwrap_or(u64::MAX)
}

/// The longest that one turn may take, however lively its stream is.
const TURN_MAX: Duration = Duration::from_mins(30);

/// What a request came to.
enum Answer {
    Turn(Box<ModelTurn>, Vec<Part>),
    /// What went wrong, and what that may have cost.
    Failed(ModelError, TurnUsage),
    /// Somebody wished the run cancelled, after this may have been used.
    Cancelled(TurnUsage),
}

impl Drive<'_> {
    pub(super) async fn ask_model(&mut self) -> Result<(), Stopped> {
        let spec = &self.envelope.spec.model;
        let dispatch = &self.shared.parts.dispatch;
        let answer = match dispatch.model_secret(&self.claim.tenant, spec, &self.secrets).await {
            Err(fault) => {
                let passing = ModelErrorKind::Retryable { after: None };
                let kind = if fault.is_passing { passing } else { ModelErrorKind::Refused };
                Answer::Failed(ModelError { kind, message: fault.to_string(), may_cost: false }, TurnUsage::default())
            }
            Ok(secret) => {
                let request = ModelRequest {
                    prompt: prompt(&self.envelope),
                    secret,
                    requests_before: self.envelope.head.state.own_requests(),
                    calls_before: self.envelope.head.state.tool_calls,
                    model: self.envelope.answer_room().map_or_else(|| spec.clone(), |room| within(spec, room)),
                };
                failpoint::pass("model.request.before");
                let told = dispatch.told_to(self.claim, &self.envelope.binding, spec, &self.secrets).await;
                let stream = clean(self.shared.parts.models.ask(request), told);
                let answer = self.follow(stream).await?;
                failpoint::pass("model.answer.after");
                answer
            }
        };
        let outcome = match &answer {
            Answer::Turn(..) => "ok",
            Answer::Failed(..) => "failed",
            Answer::Cancelled(_) => "cancelled",
        };
        let provider = self.envelope.spec.model.provider.code();
        metrics::counter!("countersign_model_requests_total", "provider" => provider, "outcome" => outcome)
            .increment(1);
        match answer {
            Answer::Turn(turn, parts) => {
                let rulings = self.rule(&turn).await?;
                let schema = self.envelope.spec.output_schema.as_ref().filter(|_| turn.calls.is_empty());
                let structured = match schema {
                    Some(schema) => Some(self.gate.answer(schema, &turn.text).await),
                    None => None,
                };
                self.decide(Fact::TurnEnded { turn, parts, rulings, structured }).await
            }
            Answer::Failed(error, usage) => self.give_up_or_wait(error, usage).await,
            // Its end is not waited for; what it may have cost is kept.
            Answer::Cancelled(usage) => self.decide(Fact::TurnStreamed { parts: Vec::new(), usage }).await,
        }
    }

    /// Reads the stream to its end; flushes text to the readers on the way.
    async fn follow(&mut self, mut stream: ModelStream) -> Result<Answer, Stopped> {
        let (mut unsent, mut estimate) = (Unsent::default(), None);
        let mut flush_at = Instant::now() + FLUSH_EVERY;
        let give_up_at = Instant::now() + TURN_MAX;
        loop {
            let waiting = !unsent.parts.is_empty();
            let part = tokio::select! {
                biased;
                () = self.signals.cancel.cancelled() => {
                    return Ok(Answer::Cancelled(self.used(&mut estimate, unsent.came)));
                }
                () = self.signals.lost.cancelled() => return Err(Stopped::LeaseLost),
                () = sleep_until(give_up_at) => {
                    let usage = self.used(&mut estimate, unsent.came);
                    return Ok(Answer::Failed(retryable("the model's answer takes too long"), usage));
                }
                () = sleep_until(flush_at), if waiting => {
                    let (parts, usage) = (std::mem::take(&mut unsent.parts), self.used(&mut estimate, unsent.came));
                    self.decide(Fact::TurnStreamed { parts, usage }).await?;
                    flush_at = Instant::now() + FLUSH_EVERY;
                    continue;
                }
                part = stream.next() => part,
            };
            if !waiting {
                flush_at = Instant::now() + FLUSH_EVERY;
            }
            match part {
                Some(Ok(ModelPart::Text(text))) => unsent.text(&text),
                Some(Ok(ModelPart::Reasoning(text))) => unsent.reasoning(&text),
                Some(Ok(ModelPart::Ended(turn))) => return Ok(Answer::Turn(turn, unsent.parts)),
                Some(Err(error)) => {
                    let may_cost = error.may_cost;
                    let usage = if may_cost { self.used(&mut estimate, unsent.came) } else { TurnUsage::default() };
                    return Ok(Answer::Failed(error, usage));
                }
                None => {
                    let usage = self.used(&mut estimate, unsent.came);
                    return Ok(Answer::Failed(retryable("the model's answer was cut off before its end"), usage));
                }
            }
        }
    }

    /// What a request has used at most that did not come to its end. It is asked of few: the whole conversation is looked at.
    fn used(&self, estimate: &mut Option<Estimate>, came: u64) -> TurnUsage {
        let of = || Estimate::of(&self.envelope.spec.model, &prompt(&self.envelope));
        estimate.get_or_insert_with(of).unended(came)
    }

    /// What the gate and the rules say of each call of a turn, in call order.
    async fn rule(&mut self, turn: &ModelTurn) -> Result<Vec<Ruling>, Stopped> {
        let number = self.envelope.head.state.turns.saturating_add(1);
        let mut rulings = Vec::with_capacity(turn.calls.len());
        for call in &turn.calls {
            let ruling = self.gate.rule(&self.envelope.binding, call).await;
            let ruling = self.shared.parts.expressions.rule(&self.envelope, number, &call.tool, ruling).await;
            let place = self.place(&call.tool).await?;
            rulings.push(ruling.at(place));
        }
        Ok(rulings)
    }

    /// Where calls of a tool go now. While the database does not answer it is asked again, as a commit would be: the turn is
    /// paid for, and that nobody could look is no fact about its calls.
    async fn place(&mut self, tool: &str) -> Result<Option<String>, Stopped> {
        loop {
            let dispatch = &self.shared.parts.dispatch;
            match dispatch.place(&self.envelope.tenant, &self.envelope.binding, tool).await {
                Ok(place) => return Ok(place),
                Err(why) => {
                    tracing::warn!(run = %self.claim.uid.0, %why, "the server of a call is looked up again");
                    self.before_the_next_try().await?;
                }
            }
        }
    }

    /// What the rules for limits say of one that is reached.
    pub(super) async fn judge_limit(&mut self) -> Result<(), Stopped> {
        let said = self.shared.parts.expressions.limit_reached(&self.envelope).await;
        self.decide(Fact::LimitJudged { said }).await
    }

    async fn give_up_or_wait(&mut self, failed: ModelError, usage: TurnUsage) -> Result<(), Stopped> {
        let (code, after, refused) = match failed.kind {
            ModelErrorKind::Retryable { after } => ("model-error", Some(after), None),
            ModelErrorKind::ContextOverflow => ("context-overflow", None, None),
            ModelErrorKind::Refused => ("model-error", None, None),
            ModelErrorKind::ToolRefused { tool } => ("model-tool-refused", None, Some(tool)),
        };
        let error = RunError::new(code, failed.message);
        self.decide(Fact::ModelFailed { error, retry: after.is_some(), refused, usage }).await?;
        let (false, Some(told)) = (self.envelope.head.status.is_terminal(), after) else { return Ok(()) };
        let failures = self.envelope.head.state.model_failures;
        self.pause(wait_before_retry(told, failures, self.claim.uid)).await.map(drop)
    }
}

/// The wait before the request is made again, after so many failures in a row.
fn wait_before_retry(told: Option<Duration>, failures: u32, uid: RunUid) -> Duration {
    let own = RETRY_BASE.saturating_mul(2_u32.saturating_pow(failures.saturating_sub(1))).min(RETRY_MAX);
    // Spread by the run's own identity, which is random: runs that failed together do not come back together.
    let spread = own.mul_f64(f64::from(uid.0.as_bytes()[0]) / 255.0 / 2.0);
    told.unwrap_or(own).min(RETRY_TOLD_MAX).saturating_add(spread)
}

fn retryable(message: &str) -> ModelError {
    ModelError { kind: ModelErrorKind::Retryable { after: None }, message: message.to_owned(), may_cost: true }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn a_wait_grows_is_spread_over_the_runs_and_has_an_end() {
        let first = RunUid(Uuid::from_u128(0));
        let last = RunUid(Uuid::from_u128(u128::MAX));
        let wait = |told, failures| wait_before_retry(told, failures, first);
        assert_eq!(wait(None, 1), Duration::from_millis(500));
        assert_eq!(wait(None, 3), Duration::from_secs(2));
        assert_eq!(wait(None, u32::MAX), RETRY_MAX);
        assert_eq!(wait_before_retry(None, 3, last), Duration::from_secs(3));
        assert_eq!(wait(Some(Duration::from_secs(45)), 1), Duration::from_secs(45));
        assert_eq!(wait(Some(Duration::MAX), 1), RETRY_TOLD_MAX);
    }
}
