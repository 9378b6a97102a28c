//! Samples that servers wait for and that the run has no room for yet: so many are made at once, the rest in the order
//! in which they were asked for. Decides nothing about them; that is done when their turn comes.

use std::collections::VecDeque;

use super::asks::ReplyTo;
use super::drive::Drive;
use super::stopped::Stopped;
use crate::dispatch::AskRefusal;
use crate::run::ask::SampleRequest;
use crate::run::ids::CallKey;
use crate::run::sampling::{Denial, has_room, is_spent};

/// Requests of calls that are out, the oldest first.
#[derive(Default)]
pub(super) struct SampleQueue(VecDeque<Queued>);

struct Queued {
    call: CallKey,
    request: SampleRequest,
    reply: ReplyTo,
}

impl SampleQueue {
    /// The first whose turn has come. Whoever does not wait any more is let go.
    fn take(&mut self, may_go: impl Fn(CallKey) -> bool) -> Option<Queued> {
        self.0.retain(|queued| !queued.reply.is_closed());
        let first = self.0.iter().position(|queued| may_go(queued.call))?;
        self.0.remove(first)
    }
}

impl Drive<'_> {
    /// A server asks for a sample while its call is out. What is one too many is turned away without a trace: whoever
    /// asks without an end must not write without an end.
    pub(super) async fn sample(
        &mut self,
        call: CallKey,
        request: SampleRequest,
        reply: ReplyTo,
    ) -> Result<(), Stopped> {
        if is_spent(&self.envelope, call) {
            let refusal = AskRefusal(format!("the request for a sample was refused: {}", Denial::TooMany));
            super::asks::tell(reply, Err(refusal));
            return Ok(());
        }
        if has_room(&self.envelope, call) {
            return self.sample_now(call, request, reply).await;
        }
        self.queue.0.push_back(Queued { call, request, reply });
        Ok(())
    }

    /// Goes on with one sample that waited for room, if there is one; `true`: look at the run again.
    pub(super) async fn begin_queued(&mut self) -> Result<bool, Stopped> {
        let envelope = &self.envelope;
        // What has no call any more, or had too many samples meanwhile, is told so at once.
        let may_go = |call| has_room(envelope, call) || is_spent(envelope, call);
        let Some(Queued { call, request, reply }) = self.queue.take(may_go) else { return Ok(false) };
        self.sample(call, request, reply).await?;
        Ok(true)
    }
}
