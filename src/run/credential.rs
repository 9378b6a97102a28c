//! How an MCP server is told who asks: what a caller declares, never a secret's value.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How an MCP server is told who asks; the value is a run-scoped secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "scheme", rename_all = "kebab-case", deny_unknown_fields)]
pub enum McpAuth {
    /// `Authorization: Bearer SECRET`.
    Bearer {
        /// Name of the secret: a run-scoped one, or a stored one whose hosts include the server's.
        secret: String,
    },
    /// A header of the caller's choice.
    Header {
        /// The header's name.
        header: String,
        /// Name of the secret: a run-scoped one, or a stored one whose hosts include the server's.
        secret: String,
    },
    /// `Authorization: Bearer TOKEN`, with an access token that this server gets by OAuth's client credentials grant
    /// and renews before it expires, or when the MCP server refuses it.
    OauthClientCredentials {
        /// The client's name at the authorization server.
        #[schema(min_length = 1, max_length = 500)]
        client_id: String,
        /// Name of the secret: the client secret, or a private key (PEM, PKCS#8). A stored one's hosts must include
        /// the server's, the issuer's and the token endpoint's.
        secret: String,
        /// The authorization server that is trusted with the secret, as it names itself; its metadata give the token
        /// endpoint. Left out, with `token_url` too: the one that the MCP server names, which must be on its own host.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(max_length = 2000)]
        issuer: Option<String>,
        /// The token endpoint; then nothing is discovered.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(max_length = 2000)]
        token_url: Option<String>,
        /// How the client shows who it is. Default: `private-key-jwt` with a private key, else what the authorization
        /// server offers, `client-secret-basic` first.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        method: Option<ClientAuthMethod>,
        /// How a private key signs. Default: `RS256`, `ES256` or `EdDSA`, as the key is.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        algorithm: Option<SigningAlgorithm>,
        /// Names the private key to the authorization server (`kid`).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(min_length = 1, max_length = 500)]
        key_id: Option<String>,
        /// What the token may do; left out: what the authorization server gives by itself.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        scopes: Vec<String>,
        /// What the token is for (RFC 8707). Default: the MCP server's own name of itself, else its address.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(max_length = 2000)]
        resource: Option<String>,
        /// Sent as `audience`, in the place of a default `resource`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(min_length = 1, max_length = 2000)]
        audience: Option<String>,
    },
}

/// How an OAuth client shows who it is (RFC 7591 calls it `token_endpoint_auth_method`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ClientAuthMethod {
    /// HTTP basic authentication.
    #[serde(alias = "client_secret_basic")]
    ClientSecretBasic,
    /// In the form.
    #[serde(alias = "client_secret_post")]
    ClientSecretPost,
    /// An assertion that a private key signed (RFC 7523).
    #[serde(alias = "private_key_jwt")]
    PrivateKeyJwt,
}

/// How a private key signs an assertion (RFC 7518).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
pub enum SigningAlgorithm {
    /// RSA PKCS#1 with SHA-256.
    RS256,
    /// RSA PKCS#1 with SHA-384.
    RS384,
    /// RSA PKCS#1 with SHA-512.
    RS512,
    /// RSA PSS with SHA-256.
    PS256,
    /// RSA PSS with SHA-384.
    PS384,
    /// RSA PSS with SHA-512.
    PS512,
    /// ECDSA on P-256.
    ES256,
    /// ECDSA on P-384.
    ES384,
    /// Ed25519.
    EdDSA,
}

impl McpAuth {
    /// The addresses that it names besides the MCP server's own, by field.
    pub fn addresses(&self) -> Vec<(&'static str, &str)> {
        match self {
            Self::Bearer { .. } | Self::Header { .. } => Vec::new(),
            Self::OauthClientCredentials { issuer, token_url, .. } => [("issuer", issuer), ("token_url", token_url)]
                .into_iter()
                .filter_map(|(name, address)| Some((name, address.as_deref()?)))
                .collect(),
        }
    }

    /// The name of the secret that is needed.
    pub fn secret(&self) -> &str {
        match self {
            Self::Bearer { secret } | Self::Header { secret, .. } | Self::OauthClientCredentials { secret, .. } => {
                secret
            }
        }
    }
}
