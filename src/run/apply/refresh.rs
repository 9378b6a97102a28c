//! A server announced other tools while the run is driven: its catalogs were read again, or could not be.
//!
//! Nothing is out then, and the model was not asked yet: what it is offered next is decided here, and stored first.

use super::draft::Draft;
use super::proceed;
use crate::run::binding::{Binding, Warning, WarningKind};
use crate::run::commit::Commit;
use crate::run::envelope::Envelope;
use crate::run::refusal::Refusal;
use crate::run::spec::CatalogPolicy;
use crate::run::status::{Status, StopReason};
use crate::run::step::{Step, next};
use crate::run::time::Timestamp;

/// Failed readings in a row after which a run that may not accept a change is stopped.
const MAX_FAILURES: u32 = 3;

pub(super) fn reread(
    envelope: &mut Envelope,
    served: Binding,
    warnings: Vec<Warning>,
    now: Timestamp,
) -> Result<Commit, Refusal> {
    require_announced(envelope)?;
    let drift = envelope.binding.drift(&served);
    let mut draft = Draft::new(envelope, now);
    draft.envelope.announced = false;
    draft.envelope.head.state.catalog_failures = 0;
    match (drift, draft.envelope.spec.on_catalog_change) {
        (None, CatalogPolicy::Stop | CatalogPolicy::Accept) => {
            draft.warn_of_new(warnings);
            proceed::tell_turn(&mut draft);
        }
        (Some(drift), CatalogPolicy::Stop) => {
            let message = format!("MCP tool catalog changed mid-run ({drift}); the run stopped.");
            draft.warn(Warning::mcp(WarningKind::Other, message, Some("mcp-catalog-changed")));
            stop(&mut draft, StopReason::McpCatalogChanged);
        }
        (Some(drift), CatalogPolicy::Accept) => {
            let message = format!(
                "MCP tool catalog changed mid-run ({drift}); the run's resume binding now records the new catalog."
            );
            draft.rebind(served, drift, warnings);
            draft.warn(Warning::mcp(WarningKind::Other, message, Some("mcp-catalog-changed")));
            proceed::tell_turn(&mut draft);
        }
    }
    Ok(draft.commit())
}

pub(super) fn not_reread(envelope: &mut Envelope, message: &str, now: Timestamp) -> Result<Commit, Refusal> {
    require_announced(envelope)?;
    let mut draft = Draft::new(envelope, now);
    draft.envelope.announced = false;
    let state = &mut draft.envelope.head.state;
    state.catalog_failures = state.catalog_failures.saturating_add(1);
    let gives_up = match draft.envelope.spec.on_catalog_change {
        CatalogPolicy::Stop => draft.envelope.head.state.catalog_failures >= MAX_FAILURES,
        CatalogPolicy::Accept => false,
    };
    let follows = if gives_up { "the run stopped" } else { "the run keeps the last one" };
    let message = format!("MCP tool catalog could not be read again ({message}); {follows}.");
    draft.warn(Warning::mcp(WarningKind::Other, message, Some("mcp-catalog-unreadable")));
    if gives_up {
        stop(&mut draft, StopReason::McpCatalogUnreadable);
    } else {
        proceed::tell_turn(&mut draft);
    }
    Ok(draft.commit())
}

/// No step is counted for it, and the binding stays what it is.
fn stop(draft: &mut Draft<'_>, reason: StopReason) {
    draft.envelope.head.state.output = proceed::last_text(draft.envelope);
    draft.finish(Status::Stopped(reason));
}

fn require_announced(envelope: &Envelope) -> Result<(), Refusal> {
    match next(envelope) {
        Step::RefreshCatalog => Ok(()),
        Step::BeginLeg
        | Step::CheckCatalog
        | Step::JudgeLimit
        | Step::AskModel
        | Step::AwaitCalls
        | Step::AwaitRoom
        | Step::Cancel
        | Step::Rest => Err(Refusal::Impossible("no catalog was to be read again")),
    }
}
