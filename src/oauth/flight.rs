//! Gets one new token: alone for a run's own secret, else as the one node whose turn it is.

use std::time::Duration;

use tokio::sync::OwnedMutexGuard;
use tokio::time::{Instant, sleep, timeout};

use super::discovery::{self, Endpoint};
use super::exchange::unreachable;
use super::grant::SecretOwner;
use super::request::{self, Granted};
use super::{AccessToken, Held, OauthFault, TokenSource};
use crate::secrets::Redactor;
use crate::store::tokens::{SealedToken, TokenTurn};

/// How long finding the token endpoint and asking it may take.
const PATIENCE: Duration = Duration::from_secs(8);
/// For how long it is a node's turn; a node that asks is done by then.
const TURN_MS: i64 = 9_000;
/// How long the turns of other nodes are waited for: one that died, and one that asks.
const TURN_PATIENCE: Duration = Duration::from_secs(18);
/// Pauses between two looks at another node's turn.
const LOOK_EVERY: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(100));
/// A stored token that is good for less is not worth taking, in milliseconds.
const LEFT_MIN_MS: i64 = 2_000;
/// The longest time before its end that a token is renewed.
const MARGIN_MAX: Duration = Duration::from_mins(1);
/// For how long a token endpoint that was found is not looked for again.
const ENDPOINT_KEPT: Duration = Duration::from_mins(10);

/// What the flights of one token leave to the next.
#[derive(Default)]
pub(super) struct Flight {
    failed: Option<(Instant, OauthFault)>,
    endpoint: Option<Endpoint>,
}

impl Flight {
    /// When the last flight failed, and of what; `None` when it did not.
    pub(super) fn failed(&self) -> Option<(Instant, OauthFault)> {
        self.failed.clone()
    }
}

impl TokenSource {
    /// Gets a token and holds it for all who need it. A token that is still good outlives a flight that failed.
    pub(super) async fn fly(
        self,
        mut flight: OwnedMutexGuard<Flight>,
        refused: Option<i64>,
        metadata: Option<String>,
    ) -> Result<AccessToken, OauthFault> {
        if refused.is_some() {
            // The MCP server may have moved to another authorization server.
            flight.endpoint = None;
        }
        let got = match self.secret.owner {
            SecretOwner::Run(_) => self.get_alone(&mut flight, metadata.as_deref()).await,
            SecretOwner::Tenant { .. } => self.get_in_turn(&mut flight, refused, metadata.as_deref()).await,
        };
        match got {
            Ok(mut held) => {
                held.replaced_refused = refused.is_some().then(Instant::now);
                let token = held.token.clone();
                self.entry.hold(held);
                flight.failed = None;
                Ok(token)
            }
            Err(fault) => {
                // It may name hosts and issuers as the MCP server does.
                let told = Redactor::of([&self.secret.value]).and(&self.spoken());
                let said = fault.to_string();
                let said = told.text(&said);
                tracing::warn!(tenant = %self.key.tenant, secret = %self.secret.name, fault = %said, "no access token");
                flight.failed = Some((Instant::now(), fault.clone()));
                self.entry.token(refused, |held| held.expires_at).ok_or(fault)
            }
        }
    }

    async fn get_alone(&self, flight: &mut Flight, metadata: Option<&str>) -> Result<Held, OauthFault> {
        let _place = self.place().await?;
        let granted = self.ask(flight, metadata).await?;
        let version = self.entry.held.read().as_ref().map_or(0, |held| held.token.version);
        Ok(self.held(AccessToken { version: version.saturating_add(1), value: granted.value }, granted.lives))
    }

    async fn get_in_turn(
        &self,
        flight: &mut Flight,
        refused: Option<i64>,
        metadata: Option<&str>,
    ) -> Result<Held, OauthFault> {
        let deadline = Instant::now() + TURN_PATIENCE;
        let at_hand = self.entry.token(None, |held| held.expires_at).map_or(0, |token| token.version);
        let mut seen = at_hand.max(refused.unwrap_or_default());
        while Instant::now() < deadline {
            let place = self.place().await?;
            match self.turn(seen).await? {
                TokenTurn::Newer(stored) => match self.opened(&stored) {
                    Some(held) => return Ok(held),
                    None => seen = stored.version,
                },
                TokenTurn::Taken(version) => {
                    if let Some(held) = self.ask_and_keep(flight, version, metadata).await? {
                        return Ok(held);
                    }
                }
                TokenTurn::Busy(left_ms) => {
                    drop(place);
                    let left = Duration::from_millis(u64::try_from(left_ms).unwrap_or_default());
                    sleep(left.clamp(LOOK_EVERY.0, LOOK_EVERY.1)).await;
                }
            }
        }
        Err(OauthFault::NoTurn)
    }

    async fn place(&self) -> Result<tokio::sync::SemaphorePermit<'_>, OauthFault> {
        self.tokens.places.acquire().await.map_err(|_closed| OauthFault::Interrupted)
    }

    async fn turn(&self, seen: i64) -> Result<TokenTurn, OauthFault> {
        let tokens = &self.tokens;
        let turn = tokens.store.token_turn(&self.key, seen, tokens.holder, TURN_MS).await;
        turn.map_err(|fault| {
            tracing::warn!(%fault, "the turn to get an access token is not known");
            OauthFault::Store
        })
    }

    /// Asks in this node's turn, and leaves what it got to the others. `None`: the turn was over before.
    async fn ask_and_keep(
        &self,
        flight: &mut Flight,
        version: i64,
        metadata: Option<&str>,
    ) -> Result<Option<Held>, OauthFault> {
        let tokens = &self.tokens;
        let granted = match self.ask(flight, metadata).await {
            Ok(granted) => granted,
            Err(fault) => {
                if let Err(fault) = tokens.store.token_waive(&self.key, tokens.holder).await {
                    tracing::warn!(%fault, "the turn to get an access token was not given back; it lapses");
                }
                return Err(fault);
            }
        };
        let token = AccessToken { version: version.saturating_add(1), value: granted.value };
        let lives_ms = i64::try_from(granted.lives.as_millis()).unwrap_or(i64::MAX);
        let held = self.held(token, granted.lives);
        let Some(sealed) = tokens.keys.seal_token(&self.key, held.token.version, &held.token.value, lives_ms) else {
            return Err(OauthFault::Store);
        };
        match tokens.store.token_keep(&self.key, tokens.holder, &sealed).await {
            Ok(true) => Ok(Some(held)),
            Ok(false) => Ok(None),
            Err(fault) => {
                // It is good all the same; the others get their own when the turn has lapsed.
                tracing::warn!(%fault, "an access token was not stored");
                Ok(Some(held))
            }
        }
    }

    /// A stored token that is worth taking; one that does not open was sealed under a key that is gone.
    fn opened(&self, stored: &SealedToken) -> Option<Held> {
        let value = self.tokens.keys.open_token(&self.key, stored)?;
        let lives = Duration::from_millis(u64::try_from(stored.expires_in_ms).ok()?);
        let is_worth_it = stored.expires_in_ms >= LEFT_MIN_MS;
        is_worth_it.then(|| self.held(AccessToken { version: stored.version, value }, lives))
    }

    /// Renewed after four fifths of its life or a minute before its end, a little earlier for some tokens than for others:
    /// what was got together is not renewed together.
    fn held(&self, token: AccessToken, lives: Duration) -> Held {
        let now = Instant::now();
        let margin = (lives / 5).min(MARGIN_MAX);
        let margin = margin + margin / 2 * u32::from(self.key.identity[0]) / u32::from(u8::MAX);
        Held { token, renew_at: now + lives.saturating_sub(margin), expires_at: now + lives, replaced_refused: None }
    }

    /// Finds the token endpoint, unless it is known, and asks it.
    async fn ask(&self, flight: &mut Flight, metadata: Option<&str>) -> Result<Granted, OauthFault> {
        let (exchange, grant) = (&self.tokens.exchange, &*self.grant);
        let known = flight.endpoint.take().filter(|endpoint| endpoint.found.elapsed() < ENDPOINT_KEPT);
        let asking = async {
            let endpoint = match known {
                Some(endpoint) => endpoint,
                None => discovery::find(exchange, grant, &self.secret.owner, metadata).await?,
            };
            let stamp = (self.tokens.clock.now(), self.tokens.clock.run_uid().0);
            let granted = request::ask(exchange, grant, &self.secret, &endpoint, stamp).await;
            granted.map(|granted| (granted, endpoint))
        };
        match timeout(PATIENCE, asking).await {
            Ok(Ok((granted, endpoint))) => {
                flight.endpoint = Some(endpoint);
                Ok(granted)
            }
            Ok(Err(fault)) => Err(fault),
            Err(_elapsed) => {
                let url = grant.token_url.as_ref().unwrap_or(&grant.server);
                let what = if grant.token_url.is_some() {
                    "the token endpoint"
                } else {
                    "the authorization server of the MCP server"
                };
                Err(unreachable(what, url, format!("no answer within {} s", PATIENCE.as_secs())))
            }
        }
    }
}
