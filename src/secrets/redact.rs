//! Takes secrets out of what counterparts say. A server that is told a secret may repeat it, in an error as in a
//! result; it is replaced before anybody stores, cuts or reads it. `pattern` and `decimal` say what counts as the secret.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use secrecy::{ExposeSecret, SecretString};
use serde_json::{Map, Number, Value};

use super::decimal::Decimal;
use super::pattern::{Found, Pattern};
use crate::run::ask::{Ask, Questions};
use crate::run::binding::ServedCatalog;
use crate::run::outcome::{Answer, Cause, Outcome, ToolError};

/// What stands in the place of a secret.
pub(super) const REDACTED: &str = "[redacted]";

/// A shorter value occurs by chance, and replacing it would bend what is true.
const SHORTEST: usize = 8;

/// So much of a secret at the end of a torn text is taken for its beginning, in characters.
const BEGINNING: usize = 4;

/// A character that is none as it is begins with one of these, wherever it is written in other signs.
const ESCAPES: [u8; 3] = [b'\\', b'%', b'&'];

/// The secrets that one counterpart is told. Cheap to clone.
#[derive(Clone, Default)]
pub struct Redactor(Arc<Known>);

#[derive(Default)]
struct Known {
    secrets: Vec<Arc<Secret>>,
    /// Made when it is needed first.
    table: OnceLock<Table>,
}

/// One value, and the ways of writing it.
struct Secret {
    value: SecretString,
    patterns: Vec<Pattern>,
    decimal: Option<Decimal>,
}

/// The ways of writing all of them, by the byte that they begin with: the place of the secret, and of the way.
struct Table(Vec<Vec<(usize, usize)>>);

impl fmt::Debug for Redactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Redactor").field(&self.0.secrets.len()).finish()
    }
}

impl Secret {
    fn of(value: &SecretString, shortest: usize) -> Arc<Self> {
        let text = value.expose_secret();
        Arc::new(Self { value: value.clone(), patterns: Pattern::all_of(text, shortest), decimal: Decimal::read(text) })
    }
}

impl Redactor {
    /// Of these values.
    pub fn of<'a>(values: impl IntoIterator<Item = &'a SecretString>) -> Self {
        Self::of_at_least(SHORTEST, values)
    }

    /// Of these values, as far as they have so many bytes.
    pub fn of_at_least<'a>(shortest: usize, values: impl IntoIterator<Item = &'a SecretString>) -> Self {
        let long = values.into_iter().filter(|value| value.expose_secret().len() >= shortest);
        Self::default().with(long.map(|value| Secret::of(value, shortest)))
    }

    fn with(self, more: impl Iterator<Item = Arc<Secret>>) -> Self {
        let mut secrets: Vec<Arc<Secret>> = Vec::new();
        for secret in more {
            let is_it = |known: &Arc<Secret>| known.value.expose_secret() == secret.value.expose_secret();
            if !self.0.secrets.iter().chain(&secrets).any(is_it) {
                secrets.push(secret);
            }
        }
        if secrets.is_empty() {
            return self;
        }
        secrets.extend(self.0.secrets.iter().map(Arc::clone));
        // Of two in one place the longer comes first.
        secrets.sort_by_key(|secret| std::cmp::Reverse(secret.value.expose_secret().len()));
        Self(Arc::new(Known { secrets, table: OnceLock::new() }))
    }

    /// The same, and these values besides.
    #[must_use]
    pub fn and(self, values: &[SecretString]) -> Self {
        if values.is_empty() { self } else { self.joined(&Self::of(values)) }
    }

    /// These and those of another.
    #[must_use]
    pub fn joined(self, other: &Self) -> Self {
        let others = other.0.secrets.iter().map(Arc::clone);
        self.with(others)
    }

    /// Whether there is nothing to take out.
    pub fn is_empty(&self) -> bool {
        self.0.secrets.is_empty()
    }

    /// The text without them.
    pub fn text<'a>(&self, text: &'a str) -> Cow<'a, str> {
        without(text, &self.spans(text, false))
    }

    /// The text without them, and no longer than that, in characters. Nothing else may shorten what a counterpart says:
    /// of a secret that is cut first, the rest is found by nobody.
    pub fn cut(&self, text: &str, max: usize) -> String {
        let text = self.text(text);
        match text.char_indices().nth(max) {
            None => text.into_owned(),
            Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        }
    }

    /// The same of a text whose end was torn off before it came here, with or without dots in its place: what may be the
    /// beginning of a secret goes too.
    pub fn torn<'a>(&self, text: &'a str) -> Cow<'a, str> {
        match text.strip_suffix('…') {
            Some(begun) => Cow::Owned(format!("{}…", without(begun, &self.spans(begun, true)))),
            None => without(text, &self.spans(text, true)),
        }
    }

    /// Whether a number tells one of them.
    pub fn tells(&self, number: &Number) -> bool {
        if self.is_empty() {
            return false;
        }
        let text = number.to_string();
        let read = Decimal::read(&text);
        let is_told = |secret: &Arc<Secret>| match (&secret.decimal, &read) {
            (Some(secret), Some(read)) => secret.is_told_by(read),
            _ => false,
        };
        self.0.secrets.iter().any(is_told) || self.finds(&text)
    }

    /// How long the longest of them is that stands at the beginning of a text, and whether more of the text could make a
    /// longer one of it.
    pub(super) fn at_start_of(&self, text: &str) -> (Option<usize>, bool) {
        let table = self.0.table.get_or_init(|| Table::of(&self.0.secrets));
        let first = text.bytes().next().map_or(0, usize::from);
        let (mut longest, mut may_go_on) = (None, false);
        for (secret, pattern) in table.0.get(first).map(Vec::as_slice).unwrap_or_default() {
            let pattern = self.0.secrets.get(*secret).and_then(|secret| secret.patterns.get(*pattern));
            match pattern.map_or(Found::Nothing, |pattern| pattern.at_start_of(text)) {
                Found::Whole(length) => longest = longest.max(Some(length)),
                Found::Beginning(_) => may_go_on = true,
                Found::Nothing => {}
            }
        }
        (longest, may_go_on)
    }

    /// Where they stand; what overlaps is one.
    fn spans(&self, text: &str, is_torn: bool) -> Vec<Range<usize>> {
        let mut spans: Vec<Range<usize>> = Vec::new();
        if self.is_empty() {
            return spans;
        }
        let table = self.0.table.get_or_init(|| Table::of(&self.0.secrets));
        for (at, byte) in text.bytes().enumerate() {
            let begin = table.0.get(usize::from(byte)).map(Vec::as_slice).unwrap_or_default();
            let Some(rest) = text.get(at..).filter(|_| !begin.is_empty()) else { continue };
            let ends = begin.iter().filter_map(|(secret, pattern)| {
                match self.0.secrets.get(*secret)?.patterns.get(*pattern)?.at_start_of(rest) {
                    Found::Whole(length) => Some(at + length),
                    Found::Beginning(length) if is_torn && length >= BEGINNING => Some(text.len()),
                    Found::Beginning(_) | Found::Nothing => None,
                }
            });
            let Some(end) = ends.max() else { continue };
            match spans.last_mut().filter(|last| at < last.end) {
                Some(last) => last.end = last.end.max(end),
                None => spans.push(at..end),
            }
        }
        spans
    }

    fn string(&self, text: &mut String) {
        if let Cow::Owned(clean) = self.text(text) {
            *text = clean;
        }
    }

    /// The value without them, in names, texts and numbers at any depth.
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
            Value::Number(number) if self.tells(number) => *value = Value::from(REDACTED),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    /// How a call ended, without them.
    pub fn outcome(&self, mut outcome: Outcome) -> Outcome {
        if self.is_empty() {
            return outcome;
        }
        match &mut outcome {
            Outcome::Answered(Answer::Done { output }) => self.value(output),
            Outcome::Answered(Answer::Failed { error, output }) => {
                self.string(&mut error.message);
                if let Some(output) = output {
                    self.value(output);
                }
            }
            Outcome::NotSent(error) | Outcome::TurnedAway(error) => self.string(&mut error.message),
            Outcome::InputRequired(questions) => {
                if !self.clean_questions(questions) {
                    let text = "The MCP server's question repeats a secret and cannot be shown.";
                    let error = ToolError::new("tool-error", text);
                    return Outcome::Answered(Answer::Failed { error, output: None });
                }
            }
            // The name must go back as it is, so this one can be kept by nobody: it is as good as none.
            Outcome::Deferred(task) if self.finds(&task.id) => return Outcome::Unknown(Cause::LostResponse),
            Outcome::Deferred(_) | Outcome::Unknown(_) => {}
        }
        outcome
    }

    /// `false` when they cannot be asked without: names and state must go back as they are.
    fn clean_questions(&self, questions: &mut Questions) -> bool {
        if questions.asks.keys().chain(&questions.state).any(|text| self.finds(text)) {
            return false;
        }
        questions.asks.values_mut().all(|ask| {
            let clean = self.ask(ask);
            clean.map(|clean| *ask = clean).is_some()
        })
    }

    /// A server's question without them; `None` when it makes no sense without.
    pub fn ask(&self, ask: &Ask) -> Option<Ask> {
        let mut text = serde_json::to_value(ask).ok()?;
        self.value(&mut text);
        serde_json::from_value(text).ok()
    }

    /// A server's tools without them; `None` when there is nothing to take out.
    pub fn catalog(&self, catalog: &ServedCatalog) -> Option<ServedCatalog> {
        if self.is_empty() {
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
        (clean != *catalog).then_some(clean)
    }

    fn finds(&self, text: &str) -> bool {
        !self.spans(text, false).is_empty()
    }
}

impl Table {
    fn of(secrets: &[Arc<Secret>]) -> Self {
        let mut begin = vec![Vec::new(); 256];
        for (at, secret) in secrets.iter().enumerate() {
            for (way, pattern) in secret.patterns.iter().enumerate() {
                let mut bytes = vec![pattern.first_byte()];
                bytes.extend(ESCAPES);
                bytes.dedup();
                for byte in bytes {
                    if let Some(places) = begin.get_mut(usize::from(byte)) {
                        places.push((at, way));
                    }
                }
            }
        }
        Self(begin)
    }
}

fn without<'a>(text: &'a str, spans: &[Range<usize>]) -> Cow<'a, str> {
    if spans.is_empty() {
        return Cow::Borrowed(text);
    }
    let (mut clean, mut from) = (String::with_capacity(text.len()), 0);
    for span in spans {
        clean.push_str(text.get(from..span.start).unwrap_or_default());
        clean.push_str(REDACTED);
        from = span.end;
    }
    clean.push_str(text.get(from..).unwrap_or_default());
    Cow::Owned(clean)
}

#[cfg(test)]
#[path = "redact_tests.rs"]
mod tests;
