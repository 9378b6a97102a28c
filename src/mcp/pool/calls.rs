//! Calls over pooled connections. What never left is tried once more where that can help; what reached the server is not.

use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::McpPool;
use super::slot::Lease;
use crate::mcp::attempt::Stage;
use crate::mcp::connection::CallLimits;
use crate::mcp::outcome::{Promised, Remedy, classify};
use crate::mcp::{FaultKind, McpFault, McpTarget, ToolRequest};
use crate::run::call::MAX_TURNED_AWAY;
use crate::run::ids::TenantId;
use crate::run::outcome::{Answer, Cause, Outcome, ToolError};

/// Pause before a server that refused a connection is dialled again; it may just be restarting.
const REDIAL_PAUSE: Duration = Duration::from_millis(250);
/// The least range over which retries are spread.
const SPREAD_MIN: Duration = Duration::from_millis(100);
/// A handshake that failed sooner than this is tried again.
const QUICK_FAULT: Duration = Duration::from_secs(1);

impl McpPool {
    /// Calls a tool and says what is known of it afterwards. What never left is tried once more on a fresh connection.
    /// What the server turned away is told as such once another attempt can be made: with a new session, with another
    /// token, after a short `Retry-After`. Neither what is known nor the
    /// progress on the way holds what the server was told.
    pub async fn call(
        &self,
        tenant: &TenantId,
        target: &McpTarget,
        request: ToolRequest,
        cancel: CancellationToken,
    ) -> Outcome {
        let started = Instant::now();
        let request = ToolRequest { progress: request.progress.cleaned(&target.told), ..request };
        // Its state is large, and a drive holds one for each of its calls.
        let outcome = Box::pin(self.call_until_done(tenant, target, &request, &cancel)).await;
        let (told, bytes) = (target.told.now(), request.held.bytes());
        let outcome = self.bulk.work(bytes, || told.outcome(outcome)).await;
        metrics::counter!("countersign_mcp_calls_total", "outcome" => word(&outcome)).increment(1);
        metrics::histogram!("countersign_mcp_call_seconds").record(started.elapsed().as_secs_f64());
        outcome
    }

    async fn call_until_done(
        &self,
        tenant: &TenantId,
        target: &McpTarget,
        request: &ToolRequest,
        cancel: &CancellationToken,
    ) -> Outcome {
        let started = Instant::now();
        let total = Duration::from_millis(target.timeouts.call_total_ms);
        let mut may_redial = true;
        loop {
            let dialled = Instant::now();
            let (outcome, remedy) = tokio::select! {
                biased;
                () = cancel.cancelled() => return cancelled_before(),
                lease = self.lease(tenant, target) => match lease {
                    Ok(lease) => {
                        let left = total.saturating_sub(started.elapsed());
                        self.attempt(&lease, target, request, left, cancel).await
                    }
                    // A handshake that failed slowly is not repeated: the caller waited long enough.
                    Err(fault) if dialled.elapsed() > QUICK_FAULT || is_final(&fault) => return unreachable(&fault),
                    Err(fault) => (unreachable(&fault), Remedy::Redial),
                },
            };
            let (pause, is_turned_away) = match remedy {
                Remedy::Redial if may_redial => (spread(REDIAL_PAUSE, request), false),
                Remedy::None | Remedy::Redial => return outcome,
                _ if request.turned_away >= MAX_TURNED_AWAY => return outcome,
                Remedy::NewSession | Remedy::NewToken => (Duration::ZERO, true),
                Remedy::After(pause) => (spread(pause, request), true),
            };
            if started.elapsed() + pause >= total {
                return outcome;
            }
            tokio::select! {
                () = cancel.cancelled() => return outcome,
                () = tokio::time::sleep(pause) => {}
            }
            if is_turned_away {
                return turned_away(outcome);
            }
            may_redial = false;
        }
    }

    /// One attempt on a leased connection. A connection that proved useless is taken out of the pool.
    async fn attempt(
        &self,
        lease: &Lease,
        target: &McpTarget,
        request: &ToolRequest,
        total: Duration,
        cancel: &CancellationToken,
    ) -> (Outcome, Remedy) {
        let idle = Duration::from_millis(target.timeouts.call_ms);
        let limits = CallLimits { idle, total, cancel_grace: self.settings.cancel_grace };
        let (stage, ended) = lease.connection().attempt(request, limits, cancel).await;
        // Some servers say so of a session that they forgot. Calls that are out go on.
        let is_in_doubt =
            matches!(&stage, Stage::Status(refusal) if refusal.status == 503) && lease.connection().has_sessions;
        let lost = (Outcome::Unknown(Cause::LostResponse), Remedy::None);
        let told = target.told.now();
        let judge = move |stage, promised: Option<Promised<'_>>| classify(stage, ended, promised, &told);
        let judging = self.judged(&lease.slot.tenant, request.output_schema.as_ref(), stage, lost, judge);
        let (outcome, remedy) = judging.await;
        // Whoever has the lock uses the slot at this moment: an answer must not wait for another's handshake.
        if let Ok(mut held) = lease.slot.held.try_lock() {
            held.last_used = Some(Instant::now());
        }
        if is_in_doubt || matches!(remedy, Remedy::NewSession | Remedy::Redial) {
            lease.drop_connection().await;
        }
        (outcome, remedy)
    }
}

/// Faults that a second try at once would only meet again.
const fn is_final(fault: &McpFault) -> bool {
    matches!(fault.kind, FaultKind::Paused | FaultKind::Full | FaultKind::Closing | FaultKind::Forbidden)
}

const fn word(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Answered(Answer::Done { .. }) => "done",
        Outcome::Answered(Answer::Failed { .. }) => "failed",
        Outcome::InputRequired(_) => "input-required",
        Outcome::Deferred(_) => "deferred",
        Outcome::NotSent(_) => "not-sent",
        Outcome::TurnedAway(_) => "turned-away",
        Outcome::Unknown(_) => "unknown",
    }
}

/// A pause made longer by up to a quarter: calls that were turned away together do not come back together.
fn spread(pause: Duration, request: &ToolRequest) -> Duration {
    let share = request.idempotency_key.bytes().fold(0_u8, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte));
    pause + (pause / 4).max(SPREAD_MIN) * u32::from(share) / u32::from(u8::MAX)
}

fn turned_away(outcome: Outcome) -> Outcome {
    match outcome {
        Outcome::NotSent(error) => Outcome::TurnedAway(error),
        other => other,
    }
}

fn cancelled_before() -> Outcome {
    Outcome::NotSent(ToolError::new("cancelled", "The run was cancelled before the call was sent."))
}

fn unreachable(fault: &McpFault) -> Outcome {
    Outcome::NotSent(ToolError::new("mcp-unreachable", format!("{} The call was not executed.", fault.message)))
}
