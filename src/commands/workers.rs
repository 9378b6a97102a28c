//! Hands calls to workers and takes their results. A worker hears of a call only when its receipt is stored as `executing`,
//! and is thanked for a result only when the receipt has it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::iter;
use tokio::sync::oneshot;
use tokio::time::{Instant, interval, sleep};
use tokio_util::sync::CancellationToken;

use super::handed::{Claimed, HandedCall, handed_call, parse_id};
use super::permits::{Permits, Workload};
use super::results::{Brought, answer_at, is_given};
use super::tool_request::{CallResult, ClaimCalls, InFlight};
use super::tools::check_claim;
use super::{Asker, CommandError, Commands};
use crate::failpoint;
use crate::run::call::{Call, Lease};
use crate::run::envelope::Envelope;
use crate::run::fetched::{Fetched, FetchedWhat};
use crate::run::ids::{Actor, CallKey, RunUid, TenantId};
use crate::run::refusal::Refusal;
use crate::run::untaken::Untaken;
use crate::store::{Asked, Behind, Extended, LeftFact, Loaded, PAGE_BYTES, Reserved};

/// There is no such call of a worker in the tenant.
const NO_CALL: CommandError = CommandError::Missing("there is no such call");
/// Hints wake who waits for calls; beneath them the queue is looked at this often.
const SLOW_POLL: Duration = Duration::from_secs(2);
/// How often calls are looked for that are behind time.
const LOOK_FOR_LATE: Duration = Duration::from_millis(500);
/// How many late calls are taken up at a time, and how many of them at once.
const LATE_BATCH: u32 = 32;
const LATE_AT_ONCE: usize = 8;
/// Of how many runs the calls of one claim are handed out at once.
const HAND_AT_ONCE: usize = 8;
/// What a worker asks for when it does not say.
const CALLS_DEFAULT: u32 = 10;
const WAIT_DEFAULT_MS: u64 = 20_000;

/// How calls are handed to workers.
#[derive(Clone, Debug)]
pub struct WorkerSettings {
    /// Time without a sign of life after which a call is lost.
    pub lease: Duration,
    /// How long a call waits for a worker.
    pub queue_wait: Duration,
    /// How many calls of one tool of a tenant may wait.
    pub queue_max: u32,
    /// Who may have which tools.
    pub permits: Permits,
}

/// Who asks for calls, and which.
struct Claiming {
    asker: Asker,
    worker: String,
    workload: Workload,
    asked: Vec<Asked>,
    most: u32,
}

/// What one answer hands out.
struct Handing {
    lease: String,
    deadline: Instant,
    /// Arguments so far.
    bytes: AtomicUsize,
}

impl Handing {
    /// Whether a call with so many bytes of arguments goes with the others. One goes, however large it is.
    fn has_room(&self, bytes: usize) -> bool {
        let more = |taken: usize| (taken == 0 || taken + bytes <= PAGE_BYTES).then_some(taken + bytes);
        self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }
}

impl Commands {
    /// Hands calls to a worker; waits for some as long as it likes, or until the server stops.
    ///
    /// # Errors
    /// `Invalid`, `Store`.
    pub async fn calls_claim(
        self: &Arc<Self>,
        asker: &Asker,
        (worker, workload): (&str, Workload),
        request: ClaimCalls,
        stop: &CancellationToken,
    ) -> Result<Claimed, CommandError> {
        let asked = check_claim(&request)?;
        let most = request.max.unwrap_or(CALLS_DEFAULT);
        let deadline = Instant::now() + Duration::from_millis(request.wait_ms.unwrap_or(WAIT_DEFAULT_MS));
        let cancelled = self.still_held(asker, request.in_flight.unwrap_or_default()).await?;
        let claiming = Arc::new(Claiming { asker: asker.clone(), worker: worker.to_owned(), workload, asked, most });
        let mut work = self.store.hints().work();
        loop {
            work.mark_unchanged();
            self.store.tools_seen(&asker.tenant, &claiming.asked, millis(self.workers.queue_wait)).await?;
            let calls = self.claim_once(&claiming).await?;
            let now = Instant::now();
            if !calls.is_empty() || !cancelled.is_empty() || now >= deadline {
                return Ok(Claimed { calls, cancelled });
            }
            tokio::select! {
                _ = work.changed() => {}
                () = sleep(SLOW_POLL.min(deadline - now)) => {}
                () = stop.cancelled() => return Ok(Claimed { calls, cancelled }),
            }
        }
    }

    /// Extends the leases of what a worker has; answers what it has no longer, or should stop.
    async fn still_held(&self, asker: &Asker, in_flight: Vec<InFlight>) -> Result<Vec<String>, CommandError> {
        let mut stopped = Vec::new();
        for InFlight { id, lease } in in_flight {
            let held = match parse_id(&id) {
                Some(call) => self.extend(asker, call, &lease).await?,
                None => None,
            };
            if held.is_none_or(|held| held.cancelled) {
                stopped.push(id);
            }
        }
        Ok(stopped)
    }

    async fn extend(
        &self,
        asker: &Asker,
        call: (RunUid, CallKey),
        lease: &str,
    ) -> Result<Option<Extended>, CommandError> {
        Ok(self.store.lease_extend(&asker.tenant, call, lease, millis(self.workers.lease)).await?)
    }

    /// A task of its own: what was handed out and did not come to its worker is put back.
    async fn claim_once(self: &Arc<Self>, claiming: &Arc<Claiming>) -> Result<Vec<HandedCall>, CommandError> {
        let (tell, told) = oneshot::channel::<(Result<Vec<HandedCall>, CommandError>, oneshot::Sender<()>)>();
        let (commands, claiming) = (Arc::clone(self), Arc::clone(claiming));
        self.tasks.spawn(async move {
            let handed = commands.reserve_and_hand(&claiming).await;
            let calls = handed.as_ref().cloned().unwrap_or_default();
            let (heard, is_heard) = oneshot::channel();
            if tell.send((handed, heard)).is_err() || is_heard.await.is_err() {
                commands.put_all_back(&claiming.asker, calls).await;
            }
        });
        match told.await {
            Ok((handed, heard)) => {
                // Whoever waits for it is still there.
                heard.send(()).map_err(|()| CommandError::Interrupted)?;
                handed
            }
            Err(_panicked) => Err(CommandError::Interrupted),
        }
    }

    async fn reserve_and_hand(&self, claiming: &Claiming) -> Result<Vec<HandedCall>, CommandError> {
        let lease = self.clock.run_uid().0.simple().to_string();
        let (tenant, by) = (&claiming.asker.tenant, (claiming.worker.as_str(), lease.as_str()));
        let lease_ms = millis(self.workers.lease);
        failpoint::pass("worker.reserve.before");
        let reserved = self.store.call_reserve(tenant, by, &claiming.asked, claiming.most, lease_ms).await?;
        // Nothing is handed out under a lease that is half over.
        let handing = Handing { lease, deadline: Instant::now() + self.workers.lease / 2, bytes: AtomicUsize::new(0) };
        let runs = by_run(reserved, |reserved| reserved.uid).into_iter().map(async |calls| {
            let mut handed = Vec::with_capacity(calls.len());
            for reserved in calls {
                handed.extend(self.hand(claiming, &handing, reserved).await);
            }
            handed
        });
        Ok(iter(runs).buffered(HAND_AT_ONCE).concat().await)
    }

    /// Commits one receipt as `executing`. `None`: the call is not this worker's after all.
    async fn hand(&self, claiming: &Claiming, handing: &Handing, reserved: Reserved) -> Option<HandedCall> {
        let (Reserved { uid, key, until }, lease) = (reserved, &handing.lease);
        let handed = self.hand_out(claiming, handing, (uid, key)).await;
        match handed {
            Ok(Some(envelope)) => {
                failpoint::pass("worker.claim.after");
                return handed_call(&envelope, key, lease, until, self.clock.now());
            }
            Ok(None) => {}
            Err(fault) => tracing::warn!(run = %uid.0, %fault, "a call could not be handed out"),
        }
        if let Err(fault) = self.store.reservation_drop(&claiming.asker.tenant, (uid, key), lease).await {
            tracing::warn!(run = %uid.0, %fault, "a call stays set aside until its lease ends");
        }
        None
    }

    async fn hand_out(
        &self,
        claiming: &Claiming,
        handing: &Handing,
        (uid, key): (RunUid, CallKey),
    ) -> Result<Option<Box<Envelope>>, CommandError> {
        let loaded = self.store.run_load(&claiming.asker.tenant, uid).await?.ok_or(NO_CALL)?;
        let call = loaded.envelope.calls.iter().find(|call| call.key == key).ok_or(NO_CALL)?;
        if !handing.has_room(call.input.to_string().len()) {
            return Ok(None);
        }
        let tool = call.target.as_ref().map(|target| target.server_tool.as_str()).unwrap_or_default();
        let what = match self.workers.permits.violation(tool, &claiming.workload) {
            Some(kind) => FetchedWhat::NotTaken { trouble: Untaken::NotAllowed { kind } },
            None => {
                FetchedWhat::Claimed { lease: Lease { id: handing.lease.clone(), worker: claiming.worker.clone() } }
            }
        };
        let is_claim = matches!(what, FetchedWhat::Claimed { .. });
        let fact = LeftFact::Fetched(Fetched { key, what });
        match self.bring(&claiming.asker, uid, &fact, handing.deadline, Some(loaded)).await? {
            Brought::Applied(envelope) => Ok(is_claim.then_some(envelope)),
            Brought::Refused(_) => Ok(None),
        }
    }

    async fn put_all_back(self: &Arc<Self>, asker: &Asker, calls: Vec<HandedCall>) {
        for call in calls {
            if let Err(fault) = self.call_reject(asker, &call.id, &call.lease).await {
                tracing::warn!(call = %call.id, %fault, "a call that its worker never heard of is not put back");
            }
        }
    }

    /// A sign of life of a worker that has a call.
    ///
    /// # Errors
    /// `Missing`, `Store`; `Refused` when the call is not its own any more.
    pub async fn lease_beat(&self, asker: &Asker, id: &str, lease: &str) -> Result<Extended, CommandError> {
        let call = parse_id(id).ok_or(NO_CALL)?;
        match self.extend(asker, call, lease).await? {
            Some(held) => Ok(held),
            None => Err(self.lost(asker, call).await?),
        }
    }

    /// Why a lease does not hold: there is no such call, or it is somebody else's.
    async fn lost(&self, asker: &Asker, call: (RunUid, CallKey)) -> Result<CommandError, CommandError> {
        let known = self.store.call_fetch(&asker.tenant, call).await?;
        Ok(if known.is_some() { Refusal::LeaseLost.into() } else { NO_CALL })
    }

    /// Takes what came of a call. The same again is taken again.
    ///
    /// # Errors
    /// `Invalid`, `Missing`, `Store`, `Contended`; `Refused` when the call is not the worker's any more.
    pub async fn call_settle(
        self: &Arc<Self>,
        asker: &Asker,
        id: &str,
        request: CallResult,
    ) -> Result<(), CommandError> {
        let answer = answer_at("", request.output.as_ref(), request.error.as_ref())?;
        let call = parse_id(id).ok_or(NO_CALL)?;
        let loaded = self.store.run_load(&asker.tenant, call.0).await?.ok_or(NO_CALL)?;
        let known = match loaded.envelope.calls.iter().find(|known| known.key == call.1) {
            Some(known) => known.clone(),
            None => self.store.call_fetch(&asker.tenant, call).await?.ok_or(NO_CALL)?,
        };
        let lease = request.lease;
        if known.handing.lease.as_ref().is_none_or(|held| held.id != lease) {
            return Err(Refusal::LeaseLost.into());
        }
        // As it was given before, whatever it came to then.
        if is_given(&known.stage, &answer) {
            return Ok(());
        }
        let answer = self.fitting(asker, &loaded.envelope.binding, &known, answer).await?;
        if known.stage.is_settled() {
            return Err(Refusal::NotAwaited(known.call_id).into());
        }
        failpoint::pass("worker.result.before");
        self.bring_whole(asker, call, FetchedWhat::Answered { lease, answer }, Some(loaded)).await
    }

    /// Puts a call back that its worker has certainly not executed.
    ///
    /// # Errors
    /// `Missing`, `Store`, `Contended`; `Refused` when the call is not the worker's any more.
    pub async fn call_reject(self: &Arc<Self>, asker: &Asker, id: &str, lease: &str) -> Result<(), CommandError> {
        let call = parse_id(id).ok_or(NO_CALL)?;
        let known = self.store.call_fetch(&asker.tenant, call).await?.ok_or(NO_CALL)?;
        if !is_held(&known, lease) {
            return Err(Refusal::LeaseLost.into());
        }
        self.bring_whole(asker, call, FetchedWhat::PutBack { lease: lease.to_owned() }, None).await
    }

    /// Comes to its end although its caller has gone.
    async fn bring_whole(
        self: &Arc<Self>,
        asker: &Asker,
        (uid, key): (RunUid, CallKey),
        what: FetchedWhat,
        first: Option<Loaded>,
    ) -> Result<(), CommandError> {
        let (commands, asker) = (Arc::clone(self), asker.clone());
        let deadline = Instant::now() + self.allow.owner_time;
        let bringing = self.tasks.spawn(async move {
            let fact = LeftFact::Fetched(Fetched { key, what });
            match commands.bring(&asker, uid, &fact, deadline, first).await? {
                Brought::Applied(_) => Ok(()),
                Brought::Refused(Refusal::RunTerminal) => Err(Refusal::LeaseLost.into()),
                Brought::Refused(refusal) => Err(refusal.into()),
            }
        });
        bringing.await.unwrap_or_else(|_panicked| Err(CommandError::Interrupted))
    }

    /// Takes up calls whose worker is gone and calls that nobody takes, until the token is cancelled. Every node does it: of
    /// two that find the same call one is refused.
    pub async fn keep_calls_moving(self: Arc<Self>, stop: CancellationToken) {
        let behind = Behind {
            queue_wait_ms: millis(self.workers.queue_wait),
            queue_max: self.workers.queue_max,
            limit: LATE_BATCH,
        };
        let mut looks = interval(LOOK_FOR_LATE);
        let mut is_full = false;
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = std::future::ready(()), if is_full => {}
                _ = looks.tick() => {}
            }
            match self.store.behind_list(behind).await {
                Ok(late) => {
                    let more = late.len() >= LATE_BATCH as usize;
                    // Where nothing came of it, the next look waits.
                    is_full = self.take_all_up(late).await && more;
                }
                Err(fault) => {
                    is_full = false;
                    tracing::warn!(%fault, "late calls of workers could not be looked for");
                }
            }
        }
    }

    /// Whether any was taken up.
    async fn take_all_up(&self, late: Vec<(TenantId, RunUid, Fetched)>) -> bool {
        let taking = by_run(late, |(_, uid, _)| *uid).into_iter().map(async |calls| {
            let mut any = false;
            for (tenant, uid, fetched) in calls {
                any |= self.take_up(tenant, uid, fetched).await;
            }
            any
        });
        iter(taking).buffer_unordered(LATE_AT_ONCE).fold(false, async |any, more| any || more).await
    }

    async fn take_up(&self, tenant: TenantId, uid: RunUid, fetched: Fetched) -> bool {
        let Some(actor) = Actor::parse("system:workers") else { return false };
        let asker = Asker { tenant, actor, scopes: Vec::new() };
        let deadline = Instant::now() + self.allow.owner_time;
        match self.bring(&asker, uid, &LeftFact::Fetched(fetched), deadline, None).await {
            Ok(Brought::Applied(_)) => true,
            Ok(Brought::Refused(_)) => false,
            Err(fault) => {
                tracing::warn!(run = %uid.0, %fault, "a late call is taken up later");
                false
            }
        }
    }
}

/// What belongs to one run together, in its order: at once its commits would only be refused for each other.
fn by_run<T>(all: Vec<T>, run: impl Fn(&T) -> RunUid) -> Vec<Vec<T>> {
    let mut runs: Vec<(RunUid, Vec<T>)> = Vec::new();
    for one in all {
        let uid = run(&one);
        match runs.iter_mut().find(|(of, _)| *of == uid) {
            Some((_, calls)) => calls.push(one),
            None => runs.push((uid, vec![one])),
        }
    }
    runs.into_iter().map(|(_, calls)| calls).collect()
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

fn is_held(call: &Call, lease: &str) -> bool {
    call.is_with_worker() && call.handing.lease.as_ref().is_some_and(|held| held.id == lease)
}
