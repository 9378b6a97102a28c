//! A caller resumes a run that nobody drives. What it decides is kept even if the run must go on waiting.

use super::draft::Draft;
use super::reconcile;
use crate::run::binding::{Binding, Drift, Warning, WarningKind};
use crate::run::call::Call;
use crate::run::commit::Commit;
use crate::run::envelope::Envelope;
use crate::run::event::EventBody;
use crate::run::fact::{CallRef, Resume};
use crate::run::ids::{CallId, CallKey};
use crate::run::refusal::Refusal;
use crate::run::spec::CatalogPolicy;
use crate::run::status::Status;
use crate::run::time::Timestamp;

pub(super) fn resumed(envelope: &mut Envelope, resume: Resume, now: Timestamp) -> Result<Commit, Refusal> {
    match envelope.head.status {
        Status::Suspended(_) => {}
        Status::Queued | Status::Running => return Err(Refusal::RunActive),
        Status::Completed | Status::Stopped(_) | Status::Failed | Status::Cancelled => {
            return Err(Refusal::RunTerminal);
        }
    }
    if let Some(call) = ambiguous(envelope, &resume.retry) {
        return Err(Refusal::AmbiguousCall(call));
    }
    let drift = envelope.binding.drift(&resume.served);
    if let Some(drift) = &drift {
        refuse_drift(envelope, drift, &resume)?;
    }
    let authorized = authorized(envelope, &resume.retry);
    let waits = envelope.undecided().any(|call| !authorized.contains(&call.key));
    let tightens = resume.limits.is_some_and(|limits| limits != *envelope.limits());
    if waits && authorized.is_empty() && !tightens {
        return Err(Refusal::NothingDecided);
    }
    let mut draft = Draft::new(envelope, now);
    for key in authorized {
        reconcile::authorize(&mut draft, key, &resume.actor);
    }
    if let Some(limits) = resume.limits {
        draft.envelope.head.state.limits = Some(limits);
    }
    match drift {
        // Accepted with no call open, so the run goes on.
        Some(drift) => rebind(&mut draft, resume.served, drift),
        None if resume.served.entries != draft.envelope.binding.entries => record(&mut draft, resume.served),
        None => {}
    }
    draft.progress();
    if !waits {
        draft.status(Status::Queued);
    }
    Ok(draft.commit())
}

/// A changed catalog is refused unless the caller accepts it and no call made against the record is open: settling
/// such a call would run the server's new tool in place of the one that the model chose.
fn refuse_drift(envelope: &Envelope, drift: &Drift, resume: &Resume) -> Result<(), Refusal> {
    let dropped = resume.served.entries.is_empty();
    match resume.on_catalog_change {
        CatalogPolicy::Stop => Err(Refusal::CatalogChanged(drift.clone())),
        CatalogPolicy::Accept if dropped => Err(Refusal::CatalogChanged(drift.clone())),
        CatalogPolicy::Accept => {
            let calls: Vec<CallId> =
                envelope.calls.iter().filter(|call| in_flight(call)).map(|c| c.call_id.clone()).collect();
            if calls.is_empty() { Ok(()) } else { Err(Refusal::CatalogChangedInFlight { drift: drift.clone(), calls }) }
        }
    }
}

fn in_flight(call: &Call) -> bool {
    !call.stage.is_settled()
}

/// A bare id that stands for several undecided calls allows none of them.
fn ambiguous(envelope: &Envelope, retry: &[CallRef]) -> Option<CallId> {
    let fits = |named: &CallRef| envelope.undecided().filter(|call| fits(named, call)).count();
    retry.iter().find(|named| fits(named) > 1).map(|named| named.call_id.clone())
}

fn authorized(envelope: &Envelope, retry: &[CallRef]) -> Vec<CallKey> {
    let named = |call: &&Call| retry.iter().any(|named| fits(named, call));
    envelope.undecided().filter(named).map(|call| call.key).collect()
}

fn fits(named: &CallRef, call: &Call) -> bool {
    named.call_id == call.call_id && named.turn.is_none_or(|turn| turn == call.key.turn)
}

fn rebind(draft: &mut Draft<'_>, served: Binding, drift: Drift) {
    let revision = draft.envelope.binding.revision.saturating_add(1);
    let message = format!(
        "MCP tool catalog changed across resume ({drift}); the run's resume binding now records the new catalog."
    );
    let served = served.keeping_unread_of(&draft.envelope.binding);
    let (served, set_aside) = served.offered_to(draft.envelope.spec.model.provider);
    draft.bind(Binding { revision, ..served });
    let Drift { added, removed, changed } = drift;
    draft.event(EventBody::BindingRevised { revision, added, removed, changed });
    draft.warn(Warning::mcp(WarningKind::Other, message, Some("mcp-catalog-changed")));
    warn_once(draft, set_aside);
}

/// What was not told before.
fn warn_once(draft: &mut Draft<'_>, warnings: Vec<Warning>) {
    for warning in warnings {
        if !draft.envelope.head.state.warnings.contains(&warning) {
            draft.warn(warning);
        }
    }
}

/// Entries that the caller gave are stored, though their tools are those of the record; a run without a record takes
/// the catalog that it is resumed with.
fn record(draft: &mut Draft<'_>, served: Binding) {
    let revision = draft.envelope.binding.revision.saturating_add(1);
    let added = match &draft.envelope.binding.mcp {
        Some(_) => Vec::new(),
        None => served.tools.iter().map(|tool| tool.name.clone()).collect(),
    };
    let served = served.keeping_unread_of(&draft.envelope.binding);
    let (served, set_aside) = served.offered_to(draft.envelope.spec.model.provider);
    draft.bind(Binding { revision, ..served });
    warn_once(draft, set_aside);
    draft.event(EventBody::BindingRevised { revision, added, removed: Vec::new(), changed: Vec::new() });
}
