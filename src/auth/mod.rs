//! Says who asks, from a signed token. Algorithms come from the configuration, never from the token alone.
//! Knows nothing of routes and status codes.

mod jwks;
mod mint;
mod subject;
mod ticket;
mod verify;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::path::PathBuf;

use secrecy::SecretString;
use url::Url;

pub use jwks::JwksFault;
pub use mint::{Grant, MintError, mint, parse_ttl};
pub use subject::subject;
pub use ticket::{Ticket, TicketRefusal, Tickets};
pub use verify::Verifier;

use crate::run::ids::{Actor, TenantId};
use crate::run::time::Timestamp;

/// How far the clocks of issuer and server may differ, in seconds.
pub const LEEWAY_S: i64 = 60;

/// Where tokens come from.
#[derive(Clone, Debug)]
pub struct AuthSettings {
    /// The shared secret of HS256 tokens.
    pub hs256: Option<SecretString>,
    /// The public keys of RS256, ES256 and `EdDSA` tokens.
    pub jwks: Option<JwksSource>,
    /// The only `iss` that is taken.
    pub issuer: Option<String>,
    /// The `aud` that must be among the token's.
    pub audience: Option<String>,
    /// The claim that names the tenant.
    pub tenant_claim: String,
}

/// Where public keys come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JwksSource {
    /// Fetched, and fetched again.
    Url(Url),
    /// Read at start.
    File(PathBuf),
}

macro_rules! scopes {
    ($($(#[$doc:meta])* $variant:ident => $code:literal),+ $(,)?) => {
        /// What a token allows.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Scope { $($(#[$doc])* $variant),+ }

        impl Scope {
            /// Every scope.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The name in tokens.
            pub const fn code(self) -> &'static str {
                match self { $(Self::$variant => $code),+ }
            }

            /// The reverse of `code`.
            pub fn from_code(code: &str) -> Option<Self> {
                match code { $($code => Some(Self::$variant),)+ _ => None }
            }
        }
    };
}

scopes! {
    /// Read runs, events, receipts, messages.
    RunsRead => "runs:read",
    /// Create, resume and cancel runs.
    RunsWrite => "runs:write",
    /// Approve or deny calls.
    ApprovalsDecide => "approvals:decide",
    /// Publish agents.
    AgentsWrite => "agents:write",
    /// Register MCP servers.
    McpWrite => "mcp:write",
    /// Store secrets.
    SecretsWrite => "secrets:write",
    /// Claim and settle worker calls.
    Workers => "workers",
    /// Everything of the own tenant.
    Admin => "admin",
}

/// Who asks, as a verified token says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Whose things they may touch.
    pub tenant: TenantId,
    /// Who they are.
    pub actor: Actor,
    /// What they may do.
    pub scopes: BTreeSet<Scope>,
    /// What of a worker the issuer vouches for.
    pub workload_identity: Option<String>,
    /// The digest of the image that it runs, as the issuer vouches for.
    pub image_digest: Option<String>,
    /// The names of all scopes, also of those that mean nothing here: approvers may be named by them.
    pub scope_names: BTreeSet<String>,
    /// When the token ends; streams opened with it end then.
    pub expires_at: Timestamp,
}

impl Caller {
    /// Whether the token allows it; `admin` allows everything.
    pub fn may(&self, scope: Scope) -> bool {
        self.scopes.contains(&scope) || self.scopes.contains(&Scope::Admin)
    }
}

/// Why a token is not taken. Holds nothing of the token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    /// Not a signed JSON Web Token.
    #[error("the token is not a JSON Web Token of a kind that is known here")]
    Malformed,
    /// An algorithm that is not configured.
    #[error("the token's algorithm is not accepted here")]
    Algorithm,
    /// No configured key fits its algorithm and `kid`.
    #[error("the token is signed with a key that is not known here")]
    UnknownKey,
    /// The signature is not the key's.
    #[error("the token's signature does not verify")]
    Signature,
    /// `exp` is past.
    #[error("the token has expired")]
    Expired,
    /// `nbf` is in the future.
    #[error("the token is not valid yet")]
    NotYetValid,
    /// Another issuer.
    #[error("the token comes from another issuer")]
    Issuer,
    /// Another audience.
    #[error("the token is meant for another audience")]
    Audience,
    /// A required claim is missing.
    #[error("the token lacks the claim '{0}'")]
    MissingClaim(String),
    /// A `sub` that looks like another.
    #[error("the token's claim 'sub' has a blank at an end or a character that does not show")]
    Unseen,
    /// A claim that cannot be what it should be.
    #[error("the token's claim '{0}' does not read")]
    BadClaim(String),
    /// The issuer's keys were never read; asking later may succeed.
    #[error("the issuer's keys cannot be read at the moment")]
    KeysUnavailable,
}
