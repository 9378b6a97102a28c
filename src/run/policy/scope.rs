//! Which calls a rule is about.

use serde::{Deserialize, Serialize};

/// Which calls a rule is about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Scope {
    /// Every call of the run; in the registration of a server every call to it.
    #[default]
    Agent,
    /// Calls of this tool: the name offered to the model, or the one that was mapped to it; in the registration of a server the server's own.
    Tool(String),
    /// Calls to this server.
    Server(String),
}

impl From<Scope> for String {
    fn from(scope: Scope) -> Self {
        match scope {
            Scope::Agent => "agent".to_owned(),
            Scope::Tool(name) => format!("tool:{name}"),
            Scope::Server(name) => format!("server:{name}"),
        }
    }
}

impl TryFrom<String> for Scope {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        match text.split_once(':') {
            None if text == "agent" => Ok(Self::Agent),
            Some(("tool", name)) if !name.is_empty() => Ok(Self::Tool(name.to_owned())),
            Some(("server", name)) if !name.is_empty() => Ok(Self::Server(name.to_owned())),
            Some(_) | None => Err("must be agent, tool:NAME or server:NAME"),
        }
    }
}

/// The tool of a call, by all of its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place<'a> {
    /// What the model calls it.
    pub offered: &'a str,
    /// Its name before it was mapped for the model's provider; the same where it was not.
    pub recorded: &'a str,
    /// What its server calls it; the same for a tool that no server serves.
    pub server_tool: &'a str,
    /// The registered server's name and the entry's label; empty for a tool that no server serves.
    pub servers: [&'a str; 2],
}

impl Scope {
    /// Whether a rule of the run is about this tool.
    pub fn covers(&self, place: Place<'_>) -> bool {
        match self {
            Self::Agent => true,
            Self::Tool(name) => name == place.offered || name == place.recorded,
            Self::Server(name) => place.servers.contains(&name.as_str()),
        }
    }

    /// Whether a rule of its server's registration is about this tool.
    pub fn covers_own(&self, server_tool: &str) -> bool {
        match self {
            Self::Agent | Self::Server(_) => true,
            Self::Tool(name) => name == server_tool,
        }
    }
}
