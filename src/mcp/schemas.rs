//! Compiles the JSON Schemas of tools, once each, and checks values against them within a limit of work.
//!
//! A schema comes from a server, and so may the value: together they can ask for more work than there is time (rules
//! that branch at every level of a nested value, patterns that are matched in exponentially many ways). So each step of
//! a check is counted, and a check that takes too many is a fault like any other. Nothing is ever fetched: a reference
//! leads into the schema itself, or the schema is no schema. `format` is an annotation and decides nothing.
//! Knows nothing of tools, servers and runs.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;

use aws_lc_rs::digest;
use jsonschema::paths::Location;
use jsonschema::{Draft, Keyword, PatternOptions, ValidationError, Validator};
use parking_lot::Mutex;
use serde_json::Value;

use crate::run::schema::{REFERENCES, leads_to_a_part, walk};

/// Steps that one check may take; each looks at one value by the rules of one schema.
const STEPS_MAX: u64 = 1_000_000;
/// Steps that a pattern costs where it can be matched in many ways (look-around, back-references).
const SLOW_PATTERN: u64 = 200;
/// How many ways of matching such a pattern are tried on one text.
const BACKTRACKS_MAX: usize = 10_000;
/// Largest compiled pattern, in bytes.
const PATTERN_BYTES: usize = 128 * 1024;
/// Bytes of schema text whose compiled forms are kept; beyond that all are forgotten, which costs compiling them again.
const KEPT_BYTES: usize = 16 * 1024 * 1024;
/// Longest text of a fault that is handed on, in characters.
const FAULT_MAX: usize = 600;

/// Counts the steps of a check: stands in every part of a compiled schema, and fails when too many were taken.
const STEP: &str = "x-countersign-step";

thread_local! {
    /// What is left of the steps of the check that this thread makes.
    static LEFT: Cell<u64> = const { Cell::new(0) };
}

/// Compiled schemas by the digest of their text. A compiled schema holds nothing but its schema, so all share them.
#[derive(Default)]
pub struct Schemas {
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    compiled: HashMap<[u8; 32], Result<Arc<Schema>, Arc<str>>>,
    bytes: usize,
}

/// A compiled schema.
pub struct Schema {
    validator: Validator,
}

impl Schemas {
    /// The compiled form of a schema.
    ///
    /// # Errors
    /// Why it is none, in words.
    pub fn of(&self, schema: &Value) -> Result<Arc<Schema>, Arc<str>> {
        let text = schema.to_string();
        let mut key = [0; 32];
        key.copy_from_slice(digest::digest(&digest::SHA256, text.as_bytes()).as_ref());
        if let Some(known) = self.kept.lock().compiled.get(&key) {
            return known.clone();
        }
        // Outside of the lock: twice at once is cheaper than waiting for each other.
        let compiled = Schema::compile(schema).map(Arc::new).map_err(Arc::from);
        let mut kept = self.kept.lock();
        if kept.bytes.saturating_add(text.len()) > KEPT_BYTES {
            *kept = Kept::default();
        }
        if kept.compiled.insert(key, compiled.clone()).is_none() {
            kept.bytes = kept.bytes.saturating_add(text.len());
        }
        compiled
    }
}

impl Schema {
    /// Compiles a schema of any draft. One that names no draft is of 2020-12; where it is none, it may be of an older
    /// one: many servers write draft 7 without saying so.
    ///
    /// # Errors
    /// Why it is none, in words.
    pub fn compile(schema: &Value) -> Result<Self, String> {
        let named = schema.get("$schema").is_some();
        let first = match compile(schema, None) {
            Ok(validator) => return Ok(Self { validator }),
            Err(fault) => fault,
        };
        let older = [Draft::Draft7, Draft::Draft4];
        let compiled = older.into_iter().filter(|_| !named).find_map(|draft| compile(schema, Some(draft)).ok());
        compiled.map(|validator| Self { validator }).ok_or(first)
    }

    /// What is wrong with a value, at most `max` faults, each with its place.
    pub fn faults(&self, value: &Value, max: usize) -> Vec<String> {
        if self.holds(value) == Some(true) {
            return Vec::new();
        }
        LEFT.set(STEPS_MAX);
        let mut faults: Vec<String> = self
            .validator
            .iter_errors(value)
            .filter(|fault| !is_step(fault))
            .take(max)
            .map(|fault| shortened(&format!("{} at {:?}", fault, fault.instance_path().to_string())))
            .collect();
        if LEFT.get() == 0 {
            faults.truncate(0);
        }
        if faults.is_empty() {
            faults.push(format!("checking it takes more than {STEPS_MAX} steps"));
        }
        faults
    }

    /// Whether a value fits; `None` where that takes too much work.
    fn holds(&self, value: &Value) -> Option<bool> {
        LEFT.set(STEPS_MAX);
        let holds = self.validator.is_valid(value);
        (LEFT.get() > 0).then_some(holds)
    }
}

fn compile(schema: &Value, draft: Option<Draft>) -> Result<Validator, String> {
    let mut fault = String::new();
    // A pattern that can be matched in one pass costs what its text is long; only the others need a limit of tries.
    for is_slow in [false, true] {
        let counted = counting(schema, is_slow)?;
        let mut options = jsonschema::options()
            .should_validate_formats(false)
            .with_keyword(STEP, |_, weight, _: Location| Ok(Box::new(Step(weight.as_u64().unwrap_or(1)))));
        if let Some(draft) = draft {
            options = options.with_draft(draft);
        }
        let options = if is_slow {
            let patterns = PatternOptions::fancy_regex().backtrack_limit(BACKTRACKS_MAX);
            options.with_pattern_options(patterns.size_limit(PATTERN_BYTES).dfa_size_limit(PATTERN_BYTES))
        } else {
            let patterns = PatternOptions::regex().size_limit(PATTERN_BYTES).dfa_size_limit(PATTERN_BYTES);
            options.with_pattern_options(patterns)
        };
        match options.build(&counted) {
            Ok(validator) => return Ok(validator),
            Err(why) => fault = shortened(&why.to_string()),
        }
    }
    Err(fault)
}

/// The schema with a counter in every part of it. A reference to what is no part would lead around the counters.
fn counting(schema: &Value, is_slow: bool) -> Result<Value, String> {
    let (mut counted, mut astray) = (schema.clone(), None);
    walk(&mut counted, &mut |part| {
        let has_pattern = part.contains_key("pattern") || part.contains_key("patternProperties");
        part.insert(STEP.to_owned(), Value::from(if has_pattern && is_slow { SLOW_PATTERN } else { 1 }));
        let references = REFERENCES.iter().filter_map(|name| part.get(*name)?.as_str());
        for reference in references.filter(|reference| !leads_to_a_part(reference)) {
            astray = Some(format!("the reference {:?} leads to nothing that is a schema", shortened(reference)));
        }
    });
    astray.map_or(Ok(counted), Err)
}

/// One step, and its weight.
struct Step(u64);

impl Step {
    /// Takes the steps that this value costs; `false` when none are left.
    fn take(&self, value: &Value) -> bool {
        let size = match value {
            Value::Null | Value::Bool(_) => 1,
            Value::Number(number) => number.as_str().len() / 16,
            Value::String(text) => text.len() / 16,
            Value::Array(items) => items.len() / 4,
            Value::Object(members) => members.len(),
        };
        let cost = u64::try_from(size).unwrap_or(u64::MAX).saturating_add(1).saturating_mul(self.0);
        LEFT.set(LEFT.get().saturating_sub(cost));
        LEFT.get() > 0
    }
}

impl<'i> Keyword<'i> for Step {
    fn validate(&self, instance: &'i Value) -> Result<(), ValidationError<'i>> {
        if self.take(instance) { Ok(()) } else { Err(ValidationError::custom(STEP)) }
    }

    fn is_valid(&self, instance: &'i Value) -> bool {
        self.take(instance)
    }
}

fn is_step(fault: &ValidationError<'_>) -> bool {
    fault.to_string() == STEP
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(FAULT_MAX) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(schema: &Value, value: &Value, fault: Option<&str>) {
        let began = Instant::now();
        let faults = Schema::compile(schema).unwrap().faults(value, 5);
        match fault {
            None => assert_eq!(faults, Vec::<String>::new()),
            Some(part) => assert!(faults.join("; ").contains(part), "{faults:?}"),
        }
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    }

    #[test]
    fn values_are_checked_and_faults_have_a_place() {
        let schema = json!({ "type": "object", "properties": { "a": { "type": "number", "maximum": 5 } } });
        check(&schema, &json!({ "a": 5 }), None);
        check(&schema, &json!({ "a": 6 }), Some("6 is greater than the maximum of 5 at \"/a\""));
    }

    #[test]
    fn patterns_of_every_kind_are_matched_within_limits() {
        let long = Value::from("a".repeat(40) + "!");
        check(&json!({ "pattern": "^(a+)+$" }), &long, Some("does not match"));
        check(&json!({ "pattern": "^(?=a)(a|aa)+\\1?$" }), &long, Some(""));
        let many: Vec<Value> = (0..50_000).map(|_| long.clone()).collect();
        let slow = json!({ "items": { "pattern": "^(?=a)(a|aa)+\\1?!?$" } });
        check(&slow, &Value::from(many), Some("steps"));
        check(&json!({ "pattern": "^(?=.*b)a" }), &json!("ab"), None);
    }

    #[test]
    fn nothing_is_fetched_and_what_is_no_schema_is_told() {
        for (schema, why) in [
            (json!({ "type": 7 }), "7"),
            (json!({ "type": "text" }), "text"),
            (json!({ "properties": { "a": { "$ref": "#/$defs/gone" } } }), "gone"),
            (json!({ "$ref": "https://example.com/schema.json" }), "example.com"),
            (json!({ "$ref": "file:///etc/passwd" }), "passwd"),
            (json!({ "properties": { "a": { "$ref": "#/x/n" } }, "x": { "n": {} } }), "#/x/n"),
            (json!({ "pattern": "(" }), "("),
            (json!({ "pattern": "(((a{99}){99}){99}){99}" }), "a{99}"),
        ] {
            let fault = Schema::compile(&schema).err().unwrap();
            assert!(fault.contains(why), "{schema}: {fault}");
        }
    }

    #[test]
    fn drafts_are_read_as_they_are_meant_and_formats_decide_nothing() {
        let tuple = json!({ "items": [{ "type": "string" }], "additionalItems": false });
        check(&tuple, &json!(["a"]), None);
        check(&tuple, &json!(["a", 1]), Some("Additional items"));
        let old = json!({ "properties": { "n": { "minimum": 1, "exclusiveMinimum": true } } });
        check(&old, &json!({ "n": 1 }), Some("1"));
        check(&json!({ "format": "email" }), &json!("no mail"), None);
        let named = json!({ "$schema": "http://json-schema.org/draft-07/schema#", "format": "email" });
        check(&named, &json!("no mail"), None);
    }

    #[test]
    fn a_schema_is_compiled_once() {
        let (schemas, schema) = (Schemas::default(), json!({ "type": "string" }));
        let first = schemas.of(&schema).unwrap();
        assert!(Arc::ptr_eq(&first, &schemas.of(&schema).unwrap()));
        assert!(schemas.of(&json!({ "type": 7 })).is_err());
        assert_eq!(schemas.kept.lock().compiled.len(), 2);
    }
}
