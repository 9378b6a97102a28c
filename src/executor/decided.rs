//! What people decided about a run while it is driven: read with its wishes, applied as facts.

use super::drive::Drive;
use super::stopped::Stopped;
use crate::run::fact::{Fact, LeftVote};
use crate::run::refusal::Refusal;

impl Drive<'_> {
    /// What people decided while other calls of the turn were out.
    pub(super) async fn heed_decisions(&mut self) -> Result<(), Stopped> {
        let decisions = std::mem::take(&mut *self.signals.decisions.lock());
        for (since, decided) in decisions {
            // Read twice, it may come after the attempt that it allowed was lost again: that is another question.
            if !self.envelope.is_unknown_since(decided.key, since) {
                continue;
            }
            match self.decide(Fact::Reconciled(Box::new(decided))).await {
                // It was applied before: a decision comes again until its call is not undecided any more.
                Err(Stopped::Refused(Refusal::NotReconcilable | Refusal::RunTerminal)) => {}
                applied => applied?,
            }
        }
        self.heed_fetched().await?;
        self.heed_answers().await?;
        self.heed_votes().await
    }

    async fn heed_votes(&mut self) -> Result<(), Stopped> {
        let votes = std::mem::take(&mut *self.signals.votes.lock());
        for vote in votes {
            // A vote comes again until the run is gone.
            let Some(open) = self.envelope.head.state.approvals.find(vote.approval()) else { continue };
            let fact = match vote {
                LeftVote::Expired(approval) => Fact::ApprovalExpired { approval },
                LeftVote::Cast(cast) => {
                    let (tool, turn) = (open.approval.tool.clone(), open.approval.turn);
                    let ruling = match cast.arguments.clone() {
                        None => None,
                        Some(given) => {
                            let ruling = self.gate.rule_on_change(&self.envelope.binding, &tool, given).await;
                            let expressions = &self.shared.parts.expressions;
                            Some(Box::new(expressions.rule(&self.envelope, turn, &tool, ruling).await))
                        }
                    };
                    Fact::Voted { cast, ruling }
                }
            };
            match self.decide(fact).await {
                // It was counted before, or what it wants is not allowed any more: its voter is told how things stand.
                Err(Stopped::Refused(
                    Refusal::AlreadyDecided(_)
                    | Refusal::AlreadyVoted
                    | Refusal::ApprovalChanged
                    | Refusal::NotAnApprover
                    | Refusal::ArgumentsFixed
                    | Refusal::RunTerminal,
                )) => {}
                applied => applied?,
            }
        }
        Ok(())
    }

    /// What workers and the client did with their calls. Whoever left it waits for it, so what comes too late is theirs to
    /// find out.
    async fn heed_fetched(&mut self) -> Result<(), Stopped> {
        let left = std::mem::take(&mut *self.signals.fetched.lock());
        for fact in left {
            match self.decide(fact.into_fact()).await {
                Err(Stopped::Refused(
                    Refusal::LeaseLost | Refusal::NotOffered | Refusal::NotAwaited(_) | Refusal::RunTerminal,
                )) => {}
                // A result of a call that is gone by now.
                Err(Stopped::Refused(Refusal::Impossible(why))) => tracing::debug!(why, "a fact came too late"),
                applied => applied?,
            }
            if self.let_go {
                break;
            }
        }
        Ok(())
    }
}
