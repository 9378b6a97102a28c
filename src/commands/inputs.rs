//! Answers a server's question: at once when nobody drives its run, else by a wish that the owner reads. Answered when
//! it is applied, so that what was acknowledged is never lost.

use std::sync::Arc;

use serde_json::{Map, Value};
use tokio::time::{Instant, sleep};

use super::faults::Faults;
use super::reconcile::LOOK_EVERY;
use super::request::AnswerInput;
use super::{Asker, CommandError, Commands};
use crate::run::apply;
use crate::run::ask::{Asks, ClosedInput, Input, InputAction, InputMode};
use crate::run::fact::{Fact, InputAnswer};
use crate::run::ids::{RunId, RunUid};
use crate::run::refusal::Refusal;
use crate::run::status::Status;
use crate::schema::form::{self, Form};
use crate::schema::{AtDesk, Budget};
use crate::store::{Left, Loaded};

/// Most faults of one form that are told.
const FAULTS_MAX: usize = 20;

impl Commands {
    /// Answers one question of a server.
    ///
    /// # Errors
    /// `Invalid`, `NotFound`, `InputNotFound`, `Store`; `Refused` when the question does not wait for an answer any more;
    /// `Contended` when the owner did not read the answer in time, though it may still.
    pub async fn answer_input(
        self: &Arc<Self>,
        asker: &Asker,
        run: &RunId,
        input_id: &str,
        request: AnswerInput,
    ) -> Result<(), CommandError> {
        let view = self.view(asker, run).await?;
        let asks = &view.head.state.asks;
        let Some(open) = asks.open.iter().find(|open| open.input.input_id == input_id) else {
            return Err(gone(asks, input_id));
        };
        let (action, given) = check(request, &open.input)?;
        let content = match given {
            Some(given) => Some(self.fill(asker, &open.input, given).await?),
            None => None,
        };
        let answer = InputAnswer { actor: asker.actor.clone(), input_id: input_id.to_owned(), action, content };
        let (commands, asker, run) = (Arc::clone(self), asker.clone(), run.clone());
        // Comes to its end although its caller has gone: what was left with an owner that lets go is applied here.
        let applying = self.tasks.spawn(async move { commands.until_answered(&asker, &run, answer).await });
        applying.await.unwrap_or_else(|_panicked| Err(CommandError::Interrupted))
    }

    /// What a person filled in, with the form's defaults. A question that was stored by a version that read forms less
    /// strictly may not be answered with it.
    async fn fill(&self, asker: &Asker, input: &Input, given: Map<String, Value>) -> Result<Value, CommandError> {
        let schema = input.requested_schema.clone().unwrap_or_else(form::empty);
        let place = self.dispatch.schemas();
        let filling = async {
            let place = place.place(&asker.tenant).await?;
            let fill = move |at: &AtDesk| {
                let form = Form::read(&schema, &mut Budget::of_forms());
                form.map(|form| form.fill(at, given, FAULTS_MAX))
            };
            place.run(fill).await
        };
        let filled = filling.await.map_err(|busy| CommandError::NotEvaluated(format!("the form {busy}")))?;
        let mut faults = Faults::default();
        match filled {
            Ok((content, flaws)) if flaws.is_empty() => return Ok(content),
            Ok((_, flaws)) => {
                for flaw in flaws {
                    faults.add(format!("/content{}", flaw.pointer), flaw.detail);
                }
            }
            Err(why) => faults.add("/content", format!("cannot be checked: the form {why}")),
        }
        Err(faults.into())
    }

    async fn until_answered(&self, asker: &Asker, run: &RunId, answer: InputAnswer) -> Result<(), CommandError> {
        let deadline = Instant::now() + self.allow.owner_time;
        let mut left = false;
        while Instant::now() < deadline {
            let view = self.view(asker, run).await?;
            let mut changes = self.hub.subscribe(&asker.tenant, view.uid);
            let asks = &view.head.state.asks;
            if !asks.open.iter().any(|open| open.input.input_id == answer.input_id) {
                let ours = |closed: &&ClosedInput| closed.input_id == answer.input_id && is_ours(closed, &answer);
                // Closed by this very answer, when it was left with the owner, or by somebody else.
                return if left && asks.closed.iter().any(|closed| ours(&closed)) {
                    Ok(())
                } else {
                    Err(gone(asks, &answer.input_id))
                };
            }
            if !view.owned {
                if self.apply_answer(asker, view.uid, &answer).await? {
                    return Ok(());
                }
            } else if left {
                tokio::select! {
                    _ = changes.next() => {}
                    () = sleep(LOOK_EVERY) => {}
                }
            } else {
                match self.store.answer_leave(&asker.tenant, view.uid, &answer).await? {
                    Left::Kept => {
                        left = true;
                        self.executor.attend(&asker.tenant, view.uid);
                    }
                    Left::NotOwned => {}
                    Left::Decided => return Err(Refusal::AlreadyAnswered.into()),
                }
            }
        }
        Err(CommandError::Contended)
    }

    /// Answers a question of a run that nobody owns. `false`: the run changed meanwhile.
    async fn apply_answer(&self, asker: &Asker, uid: RunUid, answer: &InputAnswer) -> Result<bool, CommandError> {
        let Loaded { mut envelope, fence, owned, .. } = self.load(asker, uid).await?;
        if owned {
            return Ok(false);
        }
        let commit = match apply(&mut envelope, Fact::InputAnswered(Box::new(answer.clone())), self.clock.now()) {
            Err(Refusal::AlreadyAnswered | Refusal::RunTerminal) => return Ok(false),
            decided => decided?,
        };
        if !self.decide(asker, uid, fence, &commit, &[]).await? {
            return Ok(false);
        }
        if envelope.head.status == Status::Queued {
            self.executor.wake();
        }
        Ok(true)
    }
}

fn is_ours(closed: &ClosedInput, answer: &InputAnswer) -> bool {
    closed.actor.as_ref() == Some(&answer.actor) && closed.action == answer.action
}

fn gone(asks: &Asks, input_id: &str) -> CommandError {
    if asks.had(input_id) { Refusal::AlreadyAnswered.into() } else { CommandError::InputNotFound }
}

fn check(request: AnswerInput, input: &Input) -> Result<(InputAction, Option<Map<String, Value>>), CommandError> {
    let AnswerInput { action, content } = request;
    let mut faults = Faults::default();
    let fills = action == InputAction::Accept && input.mode == InputMode::Form;
    faults.require(content.is_none() || fills, "/content", "belongs to an accepted form only");
    faults.finish()?;
    Ok((action, fills.then(|| content.unwrap_or_default())))
}
