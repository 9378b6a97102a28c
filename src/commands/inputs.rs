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
        let (action, content) = check(request, &open.input)?;
        let answer = InputAnswer { actor: asker.actor.clone(), input_id: input_id.to_owned(), action, content };
        let (commands, asker, run) = (Arc::clone(self), asker.clone(), run.clone());
        // Comes to its end although its caller has gone: what was left with an owner that lets go is applied here.
        let applying = self.tasks.spawn(async move { commands.until_answered(&asker, &run, answer).await });
        applying.await.unwrap_or_else(|_panicked| Err(CommandError::Interrupted))
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

fn check(request: AnswerInput, input: &Input) -> Result<(InputAction, Option<Value>), CommandError> {
    let AnswerInput { action, content } = request;
    let mut faults = Faults::default();
    let fills = action == InputAction::Accept && input.mode == InputMode::Form;
    faults.require(content.is_none() || fills, "/content", "belongs to an accepted form only");
    if !fills {
        faults.finish()?;
        return Ok((action, None));
    }
    let schema = input.requested_schema.as_ref().unwrap_or(&Value::Null);
    let content = Value::Object(with_defaults(content.unwrap_or_default(), schema));
    match jsonschema::validator_for(schema) {
        Ok(validator) => {
            for fault in validator.iter_errors(&content).take(FAULTS_MAX) {
                faults.add(format!("/content{}", fault.instance_path()), fault.to_string());
            }
        }
        Err(fault) => faults.add("/content", format!("cannot be checked: {fault}")),
    }
    faults.finish()?;
    Ok((action, Some(content)))
}

/// The fields with those that were left out and have a default.
fn with_defaults(mut content: Map<String, Value>, schema: &Value) -> Map<String, Value> {
    for (name, field) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
        if let Some(default) = field.get("default") {
            content.entry(name.clone()).or_insert_with(|| default.clone());
        }
    }
    content
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_form_gets_the_defaults_of_what_was_left_out_whatever_their_kind() {
        let schema = json!({ "type": "object", "properties": {
            "name": { "type": "string", "default": "Ann" },
            "age": { "type": "integer", "default": 7 },
            "share": { "type": "number", "default": 0.10 },
            "agrees": { "type": "boolean", "default": false },
            "size": { "type": "string", "enum": ["s", "m"], "default": "m" },
            "note": { "type": "string" },
        } });
        let given = json!({ "age": 8 }).as_object().unwrap().clone();
        let filled = with_defaults(given, &schema);
        let want = json!({ "name": "Ann", "age": 8, "share": 0.10, "agrees": false, "size": "m" });
        assert_eq!(Value::Object(filled), want);
    }
}
