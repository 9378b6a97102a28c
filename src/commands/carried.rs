//! The conversation of a run that has ended, for one that goes on with it.

use std::time::Duration;

use tokio::time::timeout;

use super::faults::Faults;
use super::{Asker, CommandError, Commands};
use crate::bulk::{Hold, SMALL};
use crate::run::history;
use crate::run::ids::RunId;
use crate::run::media;
use crate::run::message::{Content, Role};
use crate::run::refusal::Refusal;
use crate::run::spec::ModelSpec;

/// Where the request names the run.
const AT: &str = "/continue_from";

/// Most bytes of a run that is continued: its messages, and the calls of its last turn, which come along. A request of a
/// few bytes must not bring any number of them into memory.
const CARRIED_MAX: u64 = 16 * 1024 * 1024;

const NO_RUN: &str = "there is no such run";

/// Longest wait until there is room for it.
const ROOM_TIME: Duration = Duration::from_secs(10);

/// What a run takes over.
#[derive(Default)]
pub(super) struct Carried {
    /// In order.
    pub(super) messages: Vec<(Role, Vec<Content>)>,
    /// The bytes that a large one takes of the node's; to be kept until the run is stored.
    pub(super) held: Option<Hold>,
}

impl Commands {
    /// The messages of the run that a new one continues; none when it continues none.
    ///
    /// # Errors
    /// `Refused` with `RunNotEnded`, `NotEvaluated` where there is no room for it, and `Store`. What does not exist for this tenant is a fault of the body.
    pub(super) async fn carried(
        &self,
        asker: &Asker,
        from: Option<&str>,
        model: &ModelSpec,
        faults: &mut Faults,
    ) -> Result<Carried, CommandError> {
        let Some(from) = from else { return Ok(Carried::default()) };
        let view = match RunId::parse(from.to_owned()) {
            Some(id) => self.store.run_fetch(&asker.tenant, &id).await?,
            None => None,
        };
        let Some(view) = view else {
            faults.add(AT, NO_RUN);
            return Ok(Carried::default());
        };
        if !view.head.status.is_terminal() {
            return Err(Refusal::RunNotEnded.into());
        }
        let bytes = self.store.run_bytes(&asker.tenant, view.uid).await?;
        if bytes > CARRIED_MAX {
            faults.add(
                AT,
                format!("the messages of that run have {bytes} bytes; at most {CARRIED_MAX} are carried over"),
            );
            return Ok(Carried::default());
        }
        let held = self.room(asker, usize::try_from(bytes).unwrap_or(usize::MAX)).await?;
        let Some(loaded) = self.store.run_load(&asker.tenant, view.uid).await? else {
            faults.add(AT, NO_RUN);
            return Ok(Carried::default());
        };
        let run = loaded.envelope;
        let kept = u32::try_from(run.messages.len()).unwrap_or(u32::MAX);
        if kept != run.head.state.messages {
            faults.add(AT, "the messages of that run are not kept any more");
            return Ok(Carried::default());
        }
        let messages = history::carried(&run, model);
        let refused = messages
            .iter()
            .flat_map(|(role, said)| said.iter().filter_map(|piece| media::refusal(model.provider, *role, piece)));
        if let Some(why) = refused.into_iter().next() {
            faults.add(AT, format!("the messages of that run do not suit this model: {why}"));
        }
        Ok(Carried { messages, held })
    }

    /// The bytes of a large conversation, of those that the tenant may have in memory at once.
    async fn room(&self, asker: &Asker, bytes: usize) -> Result<Option<Hold>, CommandError> {
        if bytes <= SMALL {
            return Ok(None);
        }
        let hold = timeout(ROOM_TIME, self.dispatch.bulk().of(&asker.tenant).hold(bytes)).await;
        let late = |_late| {
            CommandError::NotEvaluated("there is no room for the messages that are to be carried over".to_owned())
        };
        hold.map(Some).map_err(late)
    }
}
