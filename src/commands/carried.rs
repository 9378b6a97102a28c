//! The conversation of a run that has ended, for one that goes on with it.

use super::faults::Faults;
use super::{Asker, CommandError, Commands};
use crate::run::history;
use crate::run::ids::RunId;
use crate::run::media;
use crate::run::message::{Content, Role};
use crate::run::refusal::Refusal;
use crate::run::spec::ModelSpec;

/// Where the request names the run.
const AT: &str = "/continue_from";

impl Commands {
    /// The messages of the run that a new one continues; none when it continues none.
    ///
    /// # Errors
    /// `Refused` with `RunNotEnded`, and `Store`. What does not exist for this tenant is a fault of the body.
    pub(super) async fn carried(
        &self,
        asker: &Asker,
        from: Option<&str>,
        model: &ModelSpec,
        faults: &mut Faults,
    ) -> Result<Vec<(Role, Vec<Content>)>, CommandError> {
        let Some(from) = from else { return Ok(Vec::new()) };
        let view = match RunId::parse(from.to_owned()) {
            Some(id) => self.store.run_fetch(&asker.tenant, &id).await?,
            None => None,
        };
        let loaded = match view {
            Some(view) => self.store.run_load(&asker.tenant, view.uid).await?,
            None => None,
        };
        let Some(loaded) = loaded else {
            faults.add(AT, "there is no such run");
            return Ok(Vec::new());
        };
        let run = loaded.envelope;
        if !run.head.status.is_terminal() {
            return Err(Refusal::RunNotEnded.into());
        }
        let kept = u32::try_from(run.messages.len()).unwrap_or(u32::MAX);
        if kept != run.head.state.messages {
            faults.add(AT, "the messages of that run are not kept any more");
            return Ok(Vec::new());
        }
        let carried = history::carried(&run, model);
        let refused = carried
            .iter()
            .flat_map(|(role, said)| said.iter().filter_map(|piece| media::refusal(model.provider, *role, piece)));
        if let Some(why) = refused.into_iter().next() {
            faults.add(AT, format!("the messages of that run do not suit this model: {why}"));
        }
        Ok(carried)
    }
}
