//! What a fact changes: one fact, one commit.
//!
//! `apply` checks first and changes then: a refused fact leaves the envelope as it was. Every accepted fact ends in
//! `proceed`, which brings the run as far as it goes by rules alone, so that what must follow a fact is in the same
//! commit as the fact.

mod admit;
mod approvals;
mod draft;
mod fetched;
mod guards;
mod inputs;
mod leg;
mod limits;
mod proceed;
mod reconcile;
mod refresh;
mod resume;
mod sampling;
mod settle;
mod trouble;
mod turn;

pub use admit::{NewRun, admit};
pub use inputs::may_ask;

use super::commit::Commit;
use super::envelope::Envelope;
use super::fact::Fact;
use super::refusal::Refusal;
use super::step::{Step, next};
use super::time::Timestamp;

/// Changes the envelope by a fact and says what to store.
///
/// # Errors
/// A refusal when the state does not admit the fact; the envelope is then unchanged.
pub fn apply(envelope: &mut Envelope, fact: Fact, now: Timestamp) -> Result<Commit, Refusal> {
    if envelope.head.status.is_terminal() && !matches!(fact, Fact::Reconciled(_)) {
        return Err(Refusal::RunTerminal);
    }
    match fact {
        Fact::LegBegan => leg::begin(envelope, now),
        Fact::CatalogRead { served } => leg::catalog_read(envelope, &served, now),
        Fact::CatalogUnreadable { message } => leg::catalog_unreadable(envelope, message, now),
        Fact::CatalogReread { served, warnings } => refresh::reread(envelope, *served, warnings, now),
        Fact::CatalogNotReread { message } => refresh::not_reread(envelope, &message, now),
        Fact::TurnStreamed { parts, usage } => turn::streamed(envelope, parts, usage, now),
        Fact::TurnEnded { turn, parts, rulings, structured } => {
            turn::ended(envelope, *turn, parts, (rulings, structured), now)
        }
        Fact::ModelFailed { error, retry, refused, usage } => {
            turn::failed(envelope, error, (retry, refused, usage), now)
        }
        Fact::CallEnded { key, outcome } => settle::call_ended(envelope, key, outcome, now),
        Fact::CallsProgressed { calls } => settle::calls_progressed(envelope, calls, now),
        Fact::RoomCame => proceed::room_came(envelope, now),
        Fact::TurnUnstorable { usage } => turn::unstorable(envelope, usage, now),
        Fact::Resumed(resume) => resume::resumed(envelope, *resume, now),
        Fact::Reconciled(decided) => reconcile::reconciled(envelope, *decided, now),
        Fact::Voted { cast, ruling } => approvals::voted(envelope, *cast, ruling.map(|ruling| *ruling), now),
        Fact::LimitJudged { said } => limits::judged(envelope, said, now),
        Fact::ApprovalExpired { approval } => approvals::expired(envelope, approval, now),
        Fact::InputAsked { key, ask, expires_at } => inputs::asked(envelope, key, ask, expires_at, now),
        Fact::InputAnswered(answer) => inputs::answered(envelope, *answer, now),
        Fact::InputClosed { input_id, reason } => inputs::closed(envelope, &input_id, reason, now),
        Fact::SampleAsked { key, question, request } => sampling::asked(envelope, key, question, &request, now),
        Fact::SampleEnded { sample, end } => sampling::ended(envelope, sample, end, now),
        Fact::Fetched(what) => fetched::fetched(envelope, *what, now),
        Fact::ClientAnswered(results) => fetched::client_answered(envelope, *results, now),
        Fact::Cancelled => Ok(leg::cancelled(envelope, now)),
    }
}

/// Refuses a fact that only a leg which asks its model can know.
fn require_asking(envelope: &Envelope) -> Result<(), Refusal> {
    match next(envelope) {
        Step::AskModel => Ok(()),
        Step::BeginLeg
        | Step::CheckCatalog
        | Step::RefreshCatalog
        | Step::JudgeLimit
        | Step::AwaitCalls
        | Step::AwaitRoom
        | Step::Cancel
        | Step::Rest => Err(Refusal::Impossible("the model was not asked")),
    }
}

#[cfg(test)]
mod tests;
