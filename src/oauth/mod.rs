//! Gets access tokens by OAuth's client credentials grant, and keeps them until shortly before they expire.
//!
//! A token depends on a grant and a secret. Whoever needs one shares it with all who need the same: on a node they wait
//! for one flight; among nodes one asks, under a lease in the store, and the others read what it got. A token that a
//! run's own secret bought is shared within the run and never stored. The flight is a task of its own: it comes to its
//! end when whoever asked has gone. Knows nothing of MCP: it is told that a token was refused.

mod assertion;
mod discovery;
mod exchange;
mod fault;
mod flight;
mod grant;
mod request;

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use dashmap::DashMap;
use parking_lot::RwLock;
use secrecy::SecretString;
use tokio::sync::{Mutex, Semaphore};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

pub use fault::OauthFault;
pub use grant::{ClientSecret, Grant, SecretOwner};

use crate::clock::Clock;
use crate::net::EgressClient;
use crate::run::ids::TenantId;
use crate::secrets::KeyRing;
use crate::store::tokens::{TokenKey, TokenStore};
use exchange::Exchange;
use flight::Flight;

/// Requests for tokens that one node has out at once.
const FLIGHTS: usize = 16;
/// A failure is answered for so long without asking again: a server that was just asked would only say it once more.
const FAILURE_KEPT: Duration = Duration::from_secs(1);
/// A token that is refused sooner than that after it replaced a refused one is not replaced again.
const RENEWED_LATELY: Duration = Duration::from_secs(10);

/// Tokens of one kind that are remembered as told.
const SPOKEN: usize = 4;

/// An access token, and which of its kind it is.
#[derive(Clone, Debug)]
pub struct AccessToken {
    /// Rises with each token.
    pub version: i64,
    /// Its value.
    pub value: SecretString,
}

/// All tokens of this node.
pub struct Tokens {
    exchange: Exchange,
    keys: Arc<KeyRing>,
    store: Arc<dyn TokenStore>,
    clock: Arc<dyn Clock>,
    tasks: TaskTracker,
    /// This node's name as a holder of leases.
    holder: Uuid,
    places: Semaphore,
    /// Whoever uses a token keeps it: it goes with its last user.
    entries: DashMap<TokenKey, Weak<Entry>>,
}

/// What a node needs to get tokens.
pub struct TokenParts {
    /// With limits of its own for connecting and for silence.
    pub client: EgressClient,
    /// Seals what is stored.
    pub keys: Arc<KeyRing>,
    /// Where nodes share tokens.
    pub store: Arc<dyn TokenStore>,
    /// Dates assertions.
    pub clock: Arc<dyn Clock>,
    /// Flights run on it.
    pub tasks: TaskTracker,
}

/// One token, which changes with time.
#[derive(Default)]
struct Entry {
    held: RwLock<Option<Held>>,
    /// The last few tokens: a server that was told one may still repeat it.
    spoken: RwLock<Vec<SecretString>>,
    /// Held while a new token is got.
    flight: Arc<Mutex<Flight>>,
}

#[derive(Clone)]
struct Held {
    token: AccessToken,
    renew_at: Instant,
    expires_at: Instant,
    /// When it replaced one that was refused.
    replaced_refused: Option<Instant>,
}

impl Entry {
    fn hold(&self, held: Held) {
        let mut spoken = self.spoken.write();
        spoken.insert(0, held.token.value.clone());
        spoken.truncate(SPOKEN);
        drop(spoken);
        *self.held.write() = Some(held);
    }

    /// The token that is newer than a refused one, and good until a time that is read off it.
    fn token(&self, refused: Option<i64>, good_until: impl Fn(&Held) -> Instant) -> Option<AccessToken> {
        let held = self.held.read();
        let held = held.as_ref().filter(|held| good_until(held) > Instant::now())?;
        refused.is_none_or(|refused| held.token.version > refused).then(|| held.token.clone())
    }
}

impl Tokens {
    /// None yet.
    pub fn new(parts: TokenParts) -> Arc<Self> {
        Arc::new(Self {
            exchange: Exchange { client: parts.client },
            keys: parts.keys,
            store: parts.store,
            holder: parts.clock.node_id().0,
            clock: parts.clock,
            tasks: parts.tasks,
            places: Semaphore::new(FLIGHTS),
            entries: DashMap::new(),
        })
    }

    /// The source of the tokens of a grant. Asks nobody.
    pub fn source(self: &Arc<Self>, tenant: &TenantId, grant: Grant, secret: ClientSecret) -> TokenSource {
        let key =
            TokenKey { tenant: tenant.clone(), secret: secret.name.clone(), identity: grant.identity(tenant, &secret) };
        if self.entries.len() >= 64 && self.entries.len().is_power_of_two() {
            self.entries.retain(|_, entry| entry.strong_count() > 0);
        }
        let mut kept = self.entries.entry(key.clone()).or_default();
        let entry = kept.upgrade().unwrap_or_else(|| {
            let entry = Arc::new(Entry::default());
            *kept = Arc::downgrade(&entry);
            entry
        });
        drop(kept);
        TokenSource { tokens: Arc::clone(self), key, grant: Arc::new(grant), secret, entry }
    }
}

/// Where the tokens of one grant come from.
#[derive(Clone)]
pub struct TokenSource {
    tokens: Arc<Tokens>,
    key: TokenKey,
    grant: Arc<Grant>,
    secret: ClientSecret,
    entry: Arc<Entry>,
}

impl fmt::Debug for TokenSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenSource").field("grant", &self.grant).field("secret", &self.secret).finish_non_exhaustive()
    }
}

impl TokenSource {
    /// The digest of everything that the tokens depend on, but for the secret's value: what has the same is the same.
    pub fn identity(&self) -> [u8; 32] {
        self.key.identity
    }

    /// The last few tokens: what a server that repeats its credential would say.
    pub fn spoken(&self) -> Vec<SecretString> {
        self.entry.spoken.read().clone()
    }

    /// A token that is good now: the one at hand, or a new one.
    ///
    /// # Errors
    /// Why there is none.
    pub async fn token(&self) -> Result<AccessToken, OauthFault> {
        match self.entry.token(None, |held| held.renew_at) {
            Some(token) => Ok(token),
            None => self.obtain(None, None).await,
        }
    }

    /// A token in the place of one that the MCP server refused; the one at hand, when it is newer. `metadata` is where
    /// the server said, as it refused, that it describes itself.
    ///
    /// # Errors
    /// Why there is none.
    pub async fn renew(&self, refused: &AccessToken, metadata: Option<&str>) -> Result<AccessToken, OauthFault> {
        self.obtain(Some(refused.version), metadata.map(str::to_owned)).await
    }

    async fn obtain(&self, refused: Option<i64>, metadata: Option<String>) -> Result<AccessToken, OauthFault> {
        let asked = Instant::now();
        let flight = Arc::clone(&self.entry.flight).lock_owned().await;
        if let Some(token) = self.entry.token(refused, |held| held.renew_at) {
            return Ok(token);
        }
        // Whoever waited while another failed shares its failure, instead of failing once more in turn.
        if let Some((at, fault)) = flight.failed()
            && (at >= asked || at.elapsed() < FAILURE_KEPT)
        {
            return self.entry.token(refused, |held| held.expires_at).ok_or(fault);
        }
        let just_renewed = self.entry.held.read().as_ref().is_some_and(|held| {
            refused == Some(held.token.version) && held.replaced_refused.is_some_and(|at| at.elapsed() < RENEWED_LATELY)
        });
        if just_renewed {
            return Err(OauthFault::StillRefused);
        }
        let source = self.clone();
        let flying = self.tokens.tasks.spawn(async move { source.fly(flight, refused, metadata).await });
        flying.await.unwrap_or(Err(OauthFault::Interrupted))
    }
}
