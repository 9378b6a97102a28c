//! Names of things. Every id is its own type, so that two of them cannot be swapped in a call.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

/// Longest name of a tenant, an actor or a run, in bytes.
const NAME_MAX: usize = 255;

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(String);

        impl $name {
            /// Takes any text that a column can hold: 1 to 255 bytes, no control characters.
            pub fn parse(text: impl Into<String>) -> Option<Self> {
                let text = text.into();
                let fits = !text.is_empty() && text.len() <= NAME_MAX && !text.chars().any(char::is_control);
                fits.then_some(Self(text))
            }

            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

text_id!(
    /// A tenant: the wall that no query crosses.
    TenantId
);
text_id!(
    /// Who did something: the `sub` of a token, or `system:…`.
    Actor
);

/// The caller's name of a run, unique in its tenant: `[A-Za-z0-9][A-Za-z0-9._:-]{0,127}`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(transparent)]
#[schema(value_type = String)]
pub struct RunId(String);

impl RunId {
    /// Longest run id, in characters.
    pub const MAX: usize = 128;

    /// The id, when it fits the alphabet.
    pub fn parse(text: impl Into<String>) -> Option<Self> {
        let text = text.into();
        let first = text.chars().next().is_some_and(|c| c.is_ascii_alphanumeric());
        let rest = text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | ':' | '-'));
        (first && rest && text.len() <= Self::MAX).then_some(Self(text))
    }

    /// The id of a UUID: its text always fits the alphabet.
    pub fn of_uuid(uuid: Uuid) -> Self {
        Self(uuid.hyphenated().to_string())
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The internal identity of a run: random, so a re-created run of the same id is another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RunUid(pub Uuid);

/// One running server process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeId(pub Uuid);

/// Tells the current owner of a run from every earlier one; only ever rises.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Fence(pub i64);

/// Our own identity of a call inside its run: the model turn (from 1) and the place in that turn (from 0).
/// Provider ids are labels beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CallKey {
    /// The model turn that made the call, from 1.
    pub turn: u32,
    /// The place of the call in its turn, from 0.
    pub position: u32,
}

/// The label of a call: the provider's id, made unique inside its turn (`~2`, `~3`).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(transparent)]
#[schema(value_type = String)]
pub struct CallId(String);

impl CallId {
    /// Wraps a label; any text is a label.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The label as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for CallId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_id_takes_its_alphabet_and_nothing_else() {
        for good in ["a", "7", "charge-demo", "A.b_c:d-9", &"x".repeat(128)] {
            assert!(RunId::parse(good).is_some(), "{good}");
        }
        for bad in ["", "-a", ".a", "a b", "a/b", "ä", "a\0", &"x".repeat(129)] {
            assert!(RunId::parse(bad).is_none(), "{bad:?}");
        }
    }

    #[test]
    fn names_refuse_what_a_text_column_cannot_hold() {
        assert!(TenantId::parse("acme").is_some());
        for bad in ["", "a\0b", "a\nb", &"x".repeat(256)] {
            assert!(TenantId::parse(bad).is_none(), "{bad:?}");
        }
    }
}
