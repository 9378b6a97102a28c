//! Names of agents and of their versions.

use std::fmt;

use serde::{Deserialize, Serialize};

/// An agent of a tenant: `NAMESPACE/NAME`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AgentName {
    /// Whose, within the tenant.
    pub namespace: String,
    /// What it is called there.
    pub name: String,
}

impl AgentName {
    /// `None` unless both parts match `[A-Za-z0-9][A-Za-z0-9._-]{0,63}`.
    pub fn parse(namespace: &str, name: &str) -> Option<Self> {
        let fits = |part: &str| {
            part.starts_with(|first: char| first.is_ascii_alphanumeric())
                && part.len() <= 64
                && part.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'))
        };
        let made = || Self { namespace: namespace.to_owned(), name: name.to_owned() };
        (fits(namespace) && fits(name)).then(made)
    }
}

impl fmt::Display for AgentName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// How a run names an agent: `NAMESPACE/NAME`, or `NAMESPACE/NAME@SEMVER`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentRef {
    /// The agent.
    pub agent: AgentName,
    /// Its version; `None`: the active one.
    pub version: Option<String>,
}

impl AgentRef {
    /// `None` when the text is neither.
    pub fn parse(text: &str) -> Option<Self> {
        let (agent, version) = match text.split_once('@') {
            Some((agent, version)) => (agent, Some(version)),
            None => (text, None),
        };
        if version.is_some_and(|version| !is_semver(version)) {
            return None;
        }
        let (namespace, name) = agent.split_once('/')?;
        Some(Self { agent: AgentName::parse(namespace, name)?, version: version.map(str::to_owned) })
    }
}

/// The version of an agent that a run is made of, as text `NAMESPACE/NAME@SEMVER`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RunAgent {
    /// The agent.
    pub agent: AgentName,
    /// Its version.
    pub version: String,
}

impl fmt::Display for RunAgent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.agent, self.version)
    }
}

impl From<RunAgent> for String {
    fn from(agent: RunAgent) -> Self {
        agent.to_string()
    }
}

impl TryFrom<String> for RunAgent {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        const NEITHER: &str = "is not NAMESPACE/NAME@SEMVER";
        let AgentRef { agent, version } = AgentRef::parse(&text).ok_or(NEITHER)?;
        Ok(Self { agent, version: version.ok_or(NEITHER)? })
    }
}

/// Whether this is a version by semver.org 2.0.0, of at most 128 bytes.
pub fn is_semver(text: &str) -> bool {
    let (rest, build) = match text.split_once('+') {
        Some((rest, build)) => (rest, Some(build)),
        None => (text, None),
    };
    let (core, pre) = match rest.split_once('-') {
        Some((core, pre)) => (core, Some(pre)),
        None => (rest, None),
    };
    let is_digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let is_number = |part: &str| is_digits(part) && (part == "0" || !part.starts_with('0'));
    let is_word =
        |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    let numbers: Vec<&str> = core.split('.').collect();
    text.len() <= 128
        && numbers.len() == 3
        && numbers.into_iter().all(is_number)
        && pre.is_none_or(|pre| pre.split('.').all(|part| is_word(part) && (!is_digits(part) || is_number(part))))
        && build.is_none_or(|build| build.split('.').all(is_word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_those_of_semver_org() {
        for good in ["0.0.0", "1.2.0", "10.20.30", "1.0.0-rc.1", "1.0.0--", "1.0.0-0a.b", "1.0.0+01.a", "1.0.0-a+b"] {
            assert!(is_semver(good), "{good}");
        }
        for bad in [
            "",
            "1",
            "1.2",
            "v1.2.0",
            "1.2.0.0",
            "01.2.0",
            "1.2.x",
            "1.0.0-",
            "1.0.0-01",
            "1.0.0+",
            "1.0.0-a..b",
            "1.0.0 ",
        ] {
            assert!(!is_semver(bad), "{bad}");
        }
        assert!(!is_semver(&format!("1.0.0-{}", "a".repeat(123))));
    }

    #[test]
    fn an_agent_is_named_with_or_without_its_version() {
        let named = |text: &str| AgentRef::parse(text).map(|named| (named.agent.to_string(), named.version));
        assert_eq!(named("billing/charger"), Some(("billing/charger".to_owned(), None)));
        assert_eq!(named("b/c@1.2.0"), Some(("b/c".to_owned(), Some("1.2.0".to_owned()))));
        for bad in ["", "charger", "b/", "/c", "b/c@", "b/c@1", "b/c/d", "b/c d", "b/\u{e9}", "-b/c"] {
            assert_eq!(named(bad), None, "{bad}");
        }
        let agent: RunAgent = serde_json::from_str("\"b/c@1.2.0-rc.1\"").unwrap();
        assert_eq!(serde_json::to_string(&agent).unwrap(), "\"b/c@1.2.0-rc.1\"");
        assert!(serde_json::from_str::<RunAgent>("\"b/c\"").is_err());
    }
}
