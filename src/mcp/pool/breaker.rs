//! Leaves a server alone that is down, for each tenant by itself: after some failures to connect in a row nobody tries
//! for a while, then one does, and what that one finds holds for all. Connects nothing itself.
//!
//! Only what means that the server is down counts. A server that refuses a credential or answers with an error is up.

use dashmap::DashMap;
use tokio::time::{Duration, Instant};
use uuid::Uuid;

use crate::mcp::{BreakerSettings, FaultKind, McpFault};
use crate::run::ids::TenantId;

/// A breaker that nobody asked for so long after its pause is forgotten.
const FORGET_AFTER: Duration = Duration::from_mins(10);

/// One server as one tenant finds it.
#[derive(Clone, Debug)]
struct Breaker {
    state: State,
    pause: Duration,
    last: McpFault,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    /// So many failures in a row, the last at that moment.
    Counting(u32, Instant),
    /// Nobody tries until then.
    Paused(Instant),
    /// One tries, since then.
    Trying(Instant),
}

/// The breakers of all tenants. A server without one is up, as far as is known.
pub(super) struct Breakers {
    settings: BreakerSettings,
    of: DashMap<(TenantId, String), Breaker>,
}

/// The right to connect once. Whatever came of it is told; a trial that is dropped untold lets the next one try.
pub(super) struct Pass<'a> {
    breakers: &'a Breakers,
    server: Option<(TenantId, String)>,
    is_trial: bool,
}

impl Breakers {
    pub(super) fn new(settings: BreakerSettings) -> Self {
        Self { settings, of: DashMap::new() }
    }

    /// Whether a connection may be tried now.
    ///
    /// # Errors
    /// The server is left alone, in words.
    pub(super) fn admit(&self, tenant: &TenantId, server: &str) -> Result<Pass<'_>, McpFault> {
        let key = (tenant.clone(), server.to_owned());
        let mut is_trial = false;
        if let Some(mut breaker) = self.of.get_mut(&key) {
            let now = Instant::now();
            match breaker.state {
                State::Counting(..) => {}
                State::Paused(until) if until <= now => {
                    breaker.state = State::Trying(now);
                    is_trial = true;
                }
                State::Paused(until) => return Err(breaker.paused(until.saturating_duration_since(now))),
                State::Trying(_) => return Err(breaker.paused(Duration::ZERO)),
            }
        }
        Ok(Pass { breakers: self, server: Some(key), is_trial })
    }

    /// Forgets servers that nobody asked for any more.
    pub(super) fn tidy(&self) {
        self.of.retain(|_, breaker| match breaker.state {
            State::Counting(_, at) | State::Paused(at) => at.elapsed() < FORGET_AFTER,
            State::Trying(_) => true,
        });
    }

    fn failed(&self, key: (TenantId, String), fault: &McpFault) {
        let now = Instant::now();
        let settings = self.settings;
        let mut breaker = self.of.entry(key).or_insert_with(|| Breaker {
            state: State::Counting(0, now),
            pause: settings.pause,
            last: fault.clone(),
        });
        breaker.last = fault.clone();
        let failures = match breaker.state {
            State::Counting(failures, _) => failures + 1,
            // What was under way when the pause began tells nothing new.
            State::Paused(_) => return,
            State::Trying(_) => {
                breaker.pause = (breaker.pause * 2).min(settings.pause_max);
                settings.failures
            }
        };
        if failures < settings.failures {
            breaker.state = State::Counting(failures, now);
            return;
        }
        metrics::counter!("countersign_mcp_breaker_openings_total").increment(1);
        breaker.state = State::Paused(now + spread(breaker.pause, chance()));
    }
}

impl Breaker {
    fn paused(&self, left: Duration) -> McpFault {
        let when = match left.as_secs() {
            _ if left.is_zero() => "one trial that is under way has ended".to_owned(),
            seconds => format!("it is tried again in {} s", seconds + 1),
        };
        McpFault::of(
            FaultKind::Paused,
            format!("The MCP server is down, and calls to it are paused until {when}. {}", self.last.message),
        )
    }
}

impl Pass<'_> {
    /// Tells what came of it.
    pub(super) fn ended<T>(mut self, result: &Result<T, McpFault>) {
        let fault = result.as_ref().err();
        let is_up = fault.map_or(Some(true), |fault| fault.kind.is_up());
        // What tells nothing leaves everything as it was: dropping does that.
        let (Some(is_up), Some(key)) = (is_up, self.server.take_if(|_| is_up.is_some())) else { return };
        match fault {
            Some(fault) if !is_up => self.breakers.failed(key, fault),
            _ => drop(self.breakers.of.remove(&key)),
        }
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        let Some(key) = self.server.take().filter(|_| self.is_trial) else { return };
        if let Some(mut breaker) = self.breakers.of.get_mut(&key)
            && matches!(breaker.state, State::Trying(_))
        {
            breaker.state = State::Paused(Instant::now());
        }
    }
}

/// A pause made longer by up to a half, so that those who were turned away together do not come back together.
fn spread(pause: Duration, chance: u8) -> Duration {
    pause + pause / 2 * u32::from(chance) / u32::from(u8::MAX)
}

fn chance() -> u8 {
    Uuid::new_v4().as_bytes()[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: BreakerSettings =
        BreakerSettings { failures: 3, pause: Duration::from_secs(10), pause_max: Duration::from_secs(30) };

    fn tenant(name: &str) -> TenantId {
        TenantId::parse(name).unwrap()
    }

    fn tell(breakers: &Breakers, kind: Option<FaultKind>) {
        let result = kind.map_or(Ok(()), |kind| Err(McpFault::of(kind, "No connection.")));
        breakers.admit(&tenant("acme"), "s").unwrap().ended(&result);
    }

    #[track_caller]
    fn is_paused(breakers: &Breakers) {
        let fault = breakers.admit(&tenant("acme"), "s").map(drop).unwrap_err();
        assert_eq!(fault.kind, FaultKind::Paused);
        assert!(fault.message.contains("paused until") && fault.message.contains("No connection."), "{fault}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_is_down_is_left_alone_for_a_growing_while() {
        let breakers = Breakers::new(SETTINGS);
        for _ in 0..3 {
            tell(&breakers, Some(FaultKind::Unreachable));
        }
        for least in [10, 20, 30, 30] {
            tokio::time::advance(Duration::from_millis(least * 1_000 - 1)).await;
            is_paused(&breakers);
            tokio::time::advance(Duration::from_secs(least / 2 + 1)).await;
            tell(&breakers, Some(FaultKind::TimeOut));
        }
        tokio::time::advance(Duration::from_secs(46)).await;
        tell(&breakers, None);
        assert!(breakers.of.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn one_trial_at_a_time_and_one_that_is_given_up_makes_room_for_the_next() {
        let breakers = Breakers::new(BreakerSettings { failures: 1, ..SETTINGS });
        tell(&breakers, Some(FaultKind::Process));
        tokio::time::advance(Duration::from_secs(16)).await;
        let trial = breakers.admit(&tenant("acme"), "s").unwrap();
        is_paused(&breakers);
        drop(trial);
        let trial = breakers.admit(&tenant("acme"), "s").unwrap();
        trial.ended::<()>(&Err(McpFault::of(FaultKind::Full, "Full.")));
        tell(&breakers, Some(FaultKind::Refused));
        assert!(breakers.of.is_empty(), "whoever refuses is up");
    }

    #[tokio::test(start_paused = true)]
    async fn only_failures_in_a_row_of_a_server_that_is_down_count_and_only_for_their_tenant() {
        let breakers = Breakers::new(SETTINGS);
        let down = Some(FaultKind::ServerError);
        for kind in [down, down, None, down, down, Some(FaultKind::Refused), down, down] {
            tell(&breakers, kind);
        }
        tell(&breakers, Some(FaultKind::Forbidden));
        tell(&breakers, down);
        is_paused(&breakers);
        assert!(breakers.admit(&tenant("globex"), "s").is_ok());
        assert!(breakers.admit(&tenant("acme"), "t").is_ok());
        tokio::time::advance(FORGET_AFTER * 2).await;
        breakers.tidy();
        assert!(breakers.of.is_empty());
    }
}
