//! Where a model is spoken to, and which secret a server is told: what decides where secrets may go.

use super::spec::{McpAuth, ModelSpec, Provider};

impl Provider {
    /// Where the protocol is spoken when a run names no address; `None` for turns that leave nowhere.
    pub const fn address(self) -> Option<&'static str> {
        match self {
            Self::Openai => Some("https://api.openai.com/v1"),
            Self::Anthropic => Some("https://api.anthropic.com"),
            Self::Scripted => None,
        }
    }
}

impl ModelSpec {
    /// The address that requests go to, before the protocol's own path.
    pub fn address(&self) -> Option<&str> {
        let own = self.base_url.as_deref().filter(|_| self.provider != Provider::Scripted);
        own.or(self.provider.address())
    }
}

impl McpAuth {
    /// The name of the secret that is needed.
    pub fn secret(&self) -> &str {
        match self {
            Self::Bearer { secret } | Self::Header { secret, .. } => secret,
        }
    }
}
