//! Why there is no access token, by remedy. No text quotes a secret, an assertion, a token, or what an authorization
//! server wrote besides its error code.

/// Why there is no access token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OauthFault {
    /// The authorization server, or what describes it, did not answer.
    #[error("{place} could not be reached ({why})")]
    Unreachable {
        /// What was asked, with its host.
        place: String,
        /// The cause.
        why: String,
    },
    /// The authorization server answered with an error of its own.
    #[error("{place} refused to give an access token: {code}")]
    Refused {
        /// What was asked, with its host.
        place: String,
        /// The error's code, e.g. `invalid_client`.
        code: String,
    },
    /// What came back cannot be used.
    #[error("{place} {why}")]
    Unusable {
        /// What was asked, with its host.
        place: String,
        /// What is wrong with it.
        why: String,
    },
    /// The secret may not go where it would have to go.
    #[error("the client's secret may not be sent: {0}")]
    NotAllowed(String),
    /// The secret is no key that can sign.
    #[error("the client's key cannot sign: {0}")]
    Key(&'static str),
    /// The MCP server refuses a token that was got because it refused the one before.
    #[error("the MCP server refuses an access token that was just renewed")]
    StillRefused,
    /// Another node has been getting the token for too long.
    #[error("no node got an access token in time")]
    NoTurn,
    /// The database did not answer.
    #[error("the access token could not be looked up")]
    Store,
    /// The server stops.
    #[error("the server is shutting down")]
    Interrupted,
}
