//! Access tokens that all nodes share. One node at a time gets a new one, under a short lease by the database clock; a
//! holder that dies is in nobody's way for longer than that. Knows nothing of how a token is got.

use async_trait::async_trait;
use uuid::Uuid;

use super::StoreError;
use crate::run::ids::TenantId;

/// Which token: whose it is, and the digest of everything that it depends on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TokenKey {
    /// Whose it is.
    pub tenant: TenantId,
    /// The name of the secret that buys it: it is forgotten when that is replaced or deleted.
    pub secret: String,
    /// The digest.
    pub identity: [u8; 32],
}

/// A token as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealedToken {
    /// Rises by one with each token.
    pub version: i64,
    /// Which master key sealed it.
    pub key_id: String,
    /// Nonce and ciphertext.
    pub sealed: Vec<u8>,
    /// For how long it is good, in milliseconds from now by the database clock.
    pub expires_in_ms: i64,
}

/// What became of a wish to get a new token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenTurn {
    /// There is a newer one, which has not expired.
    Newer(SealedToken),
    /// It is the asker's turn: the next version is this one + 1.
    Taken(i64),
    /// Another node's turn, for so many milliseconds more at most.
    Busy(i64),
}

/// Keeps access tokens.
#[async_trait]
pub trait TokenStore: Send + Sync {
    /// A token newer than version `seen`, or the turn to get one: the lease of `holder`, for `lease_ms`.
    async fn token_turn(&self, key: &TokenKey, seen: i64, holder: Uuid, lease_ms: i64)
    -> Result<TokenTurn, StoreError>;
    /// Keeps the token that `holder` got, and ends its lease. `false`: somebody else has the turn, or had it since;
    /// nothing changed. One whose secret was replaced meanwhile counts as kept and is not. Lets go of the tenant's tokens
    /// that expired a day ago.
    async fn token_keep(&self, key: &TokenKey, holder: Uuid, token: &SealedToken) -> Result<bool, StoreError>;
    /// Gives the turn back without a token, if it is still `holder`'s.
    async fn token_waive(&self, key: &TokenKey, holder: Uuid) -> Result<(), StoreError>;
    /// Forgets the tokens of all tenants that another master key than this one sealed, and says how many there were.
    async fn token_forget(&self, key_id: &str) -> Result<u64, StoreError>;
}

/// How long an expired token is kept, in milliseconds: its version tells nodes that were away what they missed.
pub(super) const FORGET_TOKEN_MS: i64 = 24 * 60 * 60 * 1000;
