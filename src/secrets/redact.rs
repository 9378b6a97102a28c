//! Takes secrets out of what counterparts say. A server that is told a secret may repeat it, in an error as in a
//! result; it is replaced before anybody stores or reads it. Finds the value as it is and as JSON text has it, nothing
//! that was encoded otherwise.

use std::borrow::Cow;

use secrecy::{ExposeSecret, SecretString};
use serde_json::{Map, Value};

use crate::run::ask::Ask;
use crate::run::binding::ServedCatalog;
use crate::run::outcome::{Answer, Outcome, ToolError};

/// What stands in the place of a secret.
pub(super) const REDACTED: &str = "[redacted]";

/// A shorter value occurs by chance, and replacing it would bend what is true.
const SHORTEST: usize = 8;

/// The secrets that one counterpart is told.
#[derive(Clone, Debug, Default)]
pub struct Redactor(Vec<SecretString>);

impl Redactor {
    /// Of these values.
    pub fn of<'a>(values: impl IntoIterator<Item = &'a SecretString>) -> Self {
        let mut found: Vec<SecretString> = Vec::new();
        for value in values.into_iter().filter(|value| value.expose_secret().len() >= SHORTEST) {
            found.push(value.clone());
            let quoted = Value::from(value.expose_secret()).to_string();
            let inside = quoted.get(1..quoted.len().saturating_sub(1)).unwrap_or_default();
            if inside != value.expose_secret() {
                found.push(SecretString::from(inside));
            }
        }
        // Of two that overlap the longer goes first, so that nothing of it is left.
        found.sort_by_key(|value| std::cmp::Reverse(value.expose_secret().len()));
        Self(found)
    }

    /// The same, and these values besides.
    #[must_use]
    pub fn and(self, values: &[SecretString]) -> Self {
        if values.is_empty() { self } else { Self::of(self.0.iter().chain(values)) }
    }

    /// Whether there is nothing to take out.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// They, the longest first.
    pub(super) fn values(&self) -> impl Iterator<Item = &SecretString> {
        self.0.iter()
    }

    /// These and those of another.
    #[must_use]
    pub fn joined(self, other: &Self) -> Self {
        self.and(&other.0)
    }

    /// The text without them.
    pub fn text<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let mut text = Cow::Borrowed(text);
        for value in self.0.iter().map(SecretString::expose_secret) {
            if text.contains(value) {
                text = Cow::Owned(text.replace(value, REDACTED));
            }
        }
        text
    }

    fn string(&self, text: &mut String) {
        if let Cow::Owned(clean) = self.text(text) {
            *text = clean;
        }
    }

    /// The value without them, in names and texts at any depth. Numbers stay as they are.
    pub fn value(&self, value: &mut Value) {
        match value {
            Value::String(text) => self.string(text),
            Value::Array(items) => items.iter_mut().for_each(|item| self.value(item)),
            Value::Object(members) => {
                members.values_mut().for_each(|member| self.value(member));
                if members.keys().any(|name| self.finds(name)) {
                    let old = std::mem::replace(members, Map::new());
                    members.extend(old.into_iter().map(|(name, member)| (self.text(&name).into_owned(), member)));
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    /// How a call ended, without them.
    pub fn outcome(&self, mut outcome: Outcome) -> Outcome {
        if self.0.is_empty() {
            return outcome;
        }
        match &mut outcome {
            Outcome::Answered(Answer::Done { output }) => self.value(output),
            Outcome::Answered(Answer::Failed { error, output }) => {
                self.error(error);
                if let Some(output) = output {
                    self.value(output);
                }
            }
            Outcome::NotSent(error) | Outcome::TurnedAway(error) => self.error(error),
            Outcome::InputRequired(questions) => {
                for ask in questions.asks.values_mut() {
                    let Some(clean) = self.ask(ask) else {
                        let text = "The MCP server's question repeats a secret and cannot be shown.";
                        return Outcome::Answered(Answer::Failed {
                            error: ToolError::new("tool-error", text),
                            output: None,
                        });
                    };
                    *ask = clean;
                }
            }
            // A name of the server's own making, which must go back as it is.
            Outcome::Deferred(_) | Outcome::Unknown(_) => {}
        }
        outcome
    }

    /// A server's question without them; `None` when it makes no sense without.
    pub fn ask(&self, ask: &Ask) -> Option<Ask> {
        let mut text = serde_json::to_value(ask).ok()?;
        self.value(&mut text);
        serde_json::from_value(text).ok()
    }

    fn error(&self, error: &mut ToolError) {
        self.string(&mut error.message);
    }

    /// A server's tools without them; `None` when there is nothing to take out.
    pub fn catalog(&self, catalog: &ServedCatalog) -> Option<ServedCatalog> {
        if self.0.is_empty() || !serde_json::to_string(catalog).is_ok_and(|text| self.finds(&text)) {
            return None;
        }
        let mut clean = catalog.clone();
        for tool in &mut clean.tools {
            self.string(&mut tool.name);
            tool.description.iter_mut().for_each(|text| self.string(text));
            self.value(&mut tool.input_schema);
            tool.output_schema.iter_mut().for_each(|schema| self.value(schema));
            tool.unusable.iter_mut().chain(&mut tool.notes).for_each(|text| self.string(text));
        }
        clean.unnamed.iter_mut().for_each(|text| self.string(text));
        Some(clean)
    }

    fn finds(&self, text: &str) -> bool {
        self.0.iter().any(|value| text.contains(value.expose_secret()))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::run::json::parse_strict;

    fn redactor(values: &[&str]) -> Redactor {
        let values: Vec<SecretString> = values.iter().map(|value| SecretString::from(*value)).collect();
        Redactor::of(&values)
    }

    #[test]
    fn a_secret_is_taken_out_wherever_it_stands_and_nothing_else_changes() {
        let redactor = redactor(&["canary-1", "canary-12", "can\"ary\\2"]);
        assert_eq!(redactor.text("Bearer canary-12, canary-1!"), "Bearer [redacted], [redacted]!");
        assert_eq!(redactor.text(r#"{"k":"can\"ary\\2"} can"ary\2"#), r#"{"k":"[redacted]"} [redacted]"#);
        assert!(matches!(redactor.text("nothing here"), Cow::Borrowed(_)));
        let mut value = json!({ "a": ["canary-1", { "xcanary-1": "y" }], "n": 1, "ok": "canary" });
        redactor.value(&mut value);
        assert_eq!(value, json!({ "a": ["[redacted]", { "x[redacted]": "y" }], "n": 1, "ok": "canary" }));
    }

    #[test]
    fn digits_and_the_order_of_members_stay() {
        let text = r#"{"z":117.63331139400017,"a":18446744073709551617,"t":"canary-1"}"#;
        let mut value = parse_strict(text).unwrap();
        redactor(&["canary-1"]).value(&mut value);
        for kept in ["117.63331139400017", "18446744073709551617", "[redacted]"] {
            assert!(value.to_string().contains(kept), "{value}");
        }
    }

    #[test]
    fn a_value_that_occurs_by_chance_is_left_alone() {
        assert_eq!(redactor(&["5", "charge"]).text("charge 5"), "charge 5");
    }

    #[test]
    fn outcomes_and_catalogs_are_cleaned_whole() {
        let redactor = redactor(&["canary-1"]);
        let failed = Answer::Failed {
            error: ToolError::new("tool-error", "bad canary-1"),
            output: Some(json!({ "content": [{ "type": "text", "text": "bad canary-1" }] })),
        };
        for outcome in [Outcome::Answered(failed), Outcome::NotSent(ToolError::new("mcp-refused", "canary-1"))] {
            let clean = format!("{:?}", redactor.outcome(outcome));
            assert!(clean.contains("[redacted]") && !clean.contains("canary"), "{clean}");
        }
        let served = |description: &str| -> ServedCatalog {
            let schema = json!({ "default": description });
            serde_json::from_value(json!({ "tools": [
                { "name": "t", "description": description, "input_schema": schema, "output_schema": schema },
            ]}))
            .unwrap()
        };
        assert_eq!(redactor.catalog(&served("plain")), None);
        assert_eq!(redactor.catalog(&served("canary-1")), Some(served("[redacted]")));
    }
}
