//! Where a model is spoken to: what decides whether a secret may go there.

use super::spec::{ModelSpec, Provider};

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
