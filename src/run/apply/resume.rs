//! A caller resumes a run that nobody drives. What it decides is kept even if the run must go on waiting.

use super::draft::Draft;
use super::{approvals, fetched, guards, reconcile};
use crate::run::binding::{Binding, Drift, Warning, WarningKind};
use crate::run::call::{Backend, Call};
use crate::run::commit::Commit;
use crate::run::envelope::Envelope;
use crate::run::fact::{CallRef, Resume};
use crate::run::ids::{CallId, CallKey};
use crate::run::refusal::Refusal;
use crate::run::spec::CatalogPolicy;
use crate::run::status::Status;
use crate::run::time::Timestamp;

pub(super) fn resumed(envelope: &mut Envelope, resume: Resume, now: Timestamp) -> Result<Commit, Refusal> {
    let drift = admissible(envelope, &resume, now)?;
    let authorized = authorized(envelope, &resume.retry);
    let tightens = resume.limits.is_some_and(|limits| limits != *envelope.limits());
    let decides = !(authorized.is_empty() && resume.votes.is_empty() && resume.results.is_empty());
    if envelope.rests_because().is_some() && !decides && !tightens {
        return Err(Refusal::NothingDecided);
    }
    let mut draft = Draft::new(envelope, now);
    for key in authorized {
        reconcile::authorize(&mut draft, key, &resume.actor);
    }
    for (key, answer) in resume.results {
        fetched::settle_client(&mut draft, key, &resume.actor, answer);
    }
    if let Some(limits) = resume.limits {
        draft.envelope.head.state.limits = Some(limits);
    }
    for (vote, ruling) in resume.votes {
        approvals::take(&mut draft, vote, ruling);
    }
    if draft.envelope.head.status.is_terminal() {
        return Ok(draft.commit());
    }
    let waits = draft.envelope.rests_because().is_some();
    match drift {
        // A resume that must go on waiting records nothing: the one that goes on does.
        Some(_) if waits => {}
        Some(drift) => rebind(&mut draft, resume.served, drift, resume.warnings),
        None if resume.served.entries != draft.envelope.binding.entries => {
            record(&mut draft, resume.served, resume.warnings);
        }
        None => {}
    }
    draft.progress();
    match draft.envelope.rests_because() {
        None => draft.status(Status::Queued),
        Some(reason) if draft.envelope.head.status != Status::Suspended(reason) => {
            draft.status(Status::Suspended(reason));
        }
        Some(_) => {}
    }
    Ok(draft.commit())
}

/// How the servers differ from the record, of a resume that the run admits.
fn admissible(envelope: &Envelope, resume: &Resume, now: Timestamp) -> Result<Option<Drift>, Refusal> {
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
        refuse_drift(envelope, drift, resume)?;
    }
    refuse_moved(envelope, &resume.served)?;
    let servers = guards::loosened(&envelope.spec.policies, &envelope.binding, &resume.served);
    if !servers.is_empty() {
        return Err(Refusal::RulesLoosened { servers });
    }
    fetched::refuse_results(envelope, &resume.results)?;
    for (index, (vote, ruling)) in resume.votes.iter().enumerate() {
        approvals::check(envelope, vote, ruling.as_ref(), now)?;
        if resume.votes.iter().take(index).any(|(earlier, _)| earlier.approval == vote.approval) {
            return Err(Refusal::AlreadyVoted);
        }
    }
    Ok(drift)
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

/// A call that is not settled was judged, and perhaps approved, for one server under one name and credentials. Entries
/// that would take it elsewhere wait until it has its end, though what is served there looks the same.
fn refuse_moved(envelope: &Envelope, served: &Binding) -> Result<(), Refusal> {
    let leads = |binding: &Binding, call: &Call| {
        let entry = binding.tool(&call.tool).and_then(|tool| binding.entry_of(tool));
        entry.map(|entry| (entry.server.clone(), entry.url.clone(), entry.auth.clone(), entry.headers.clone()))
    };
    let moved = |call: &&Call| {
        let was = leads(&envelope.binding, call);
        in_flight(call) && was.is_some() && was != leads(served, call)
    };
    let calls: Vec<CallId> = envelope.calls.iter().filter(moved).map(|call| call.call_id.clone()).collect();
    if calls.is_empty() { Ok(()) } else { Err(Refusal::ServerMoved { calls }) }
}

/// A call of a server's tool that was made against the record and has no result yet, sent or not. What its receipt
/// allows does not matter: not even one that may be repeated may be repeated with another tool.
fn in_flight(call: &Call) -> bool {
    let is_served = call.target.as_ref().is_some_and(|target| match target.backend {
        Backend::Mcp => true,
        Backend::Worker | Backend::Client => false,
    });
    is_served && !call.stage.is_settled()
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

/// The catalog that the caller accepted is the run's from now on, and it is said so.
fn rebind(draft: &mut Draft<'_>, served: Binding, drift: Drift, warnings: Vec<Warning>) {
    let message = format!(
        "MCP tool catalog changed across resume ({drift}); the run's resume binding now records the new catalog."
    );
    draft.rebind(served, drift, warnings);
    draft.warn(Warning::mcp(WarningKind::Other, message, Some("mcp-catalog-changed")));
}

/// Entries that the caller gave are stored, though their tools are those of the record; a run without a record takes
/// the catalog that it is resumed with.
fn record(draft: &mut Draft<'_>, served: Binding, warnings: Vec<Warning>) {
    let drift = match &draft.envelope.binding.mcp {
        Some(_) => Drift::default(),
        None => Drift { added: served.tools.iter().map(|tool| tool.name.clone()).collect(), ..Drift::default() },
    };
    draft.rebind(served, drift, warnings);
}
