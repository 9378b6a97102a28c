//! Compiles the JSON Schemas of tools, once each, and checks values against them within a limit of work.
//!
//! A schema comes from a server, and so may the value: together they can ask for more work than there is time (rules
//! that branch at every level of a nested value, patterns that are matched in exponentially many ways). So each look at
//! a value is counted (`counted.rs`), and a check that takes too many is a fault like any other. Nothing is ever
//! fetched: a reference leads into the schema itself, or the schema is no schema. `format` is an annotation and decides
//! nothing. Knows nothing of tools, servers and runs.

use std::collections::HashMap;
use std::sync::Arc;

use aws_lc_rs::digest;
use jsonschema::{Draft, PatternOptions, Validator};
use parking_lot::Mutex;
use serde_json::Value;

use super::counted::{Counted, CountedJson, within};

/// Looks at values that one check may take.
const LOOKS_MAX: u64 = 2_000_000;
/// What a byte of a text costs, in sixteenths of a look, where a pattern can be matched in one pass.
const QUICK_TEXT: u64 = 1;
/// The same where it can be matched in many ways (look-around, back-references).
const SLOW_TEXT: u64 = 2_000;
/// How many ways of matching such a pattern are tried on one text.
const BACKTRACKS_MAX: usize = 10_000;
/// Largest compiled pattern, in bytes.
const PATTERN_BYTES: usize = 128 * 1024;
/// Bytes of schema text whose compiled forms are kept; beyond that all are forgotten, which costs compiling them again.
const KEPT_BYTES: usize = 16 * 1024 * 1024;
/// Longest text of a fault that is handed on, in characters, by whoever makes sure first that no secret stands in it.
pub const FAULT_MAX: usize = 600;

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
    validator: Validator<CountedJson>,
    text_cost: u64,
}

impl Schemas {
    /// The compiled form of a schema.
    ///
    /// # Errors
    /// Why it is none, in words of any length that may quote the schema.
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
    /// Why it is none, in words of any length that may quote the schema.
    pub fn compile(schema: &Value) -> Result<Self, String> {
        let named = schema.get("$schema").is_some();
        let first = match compile(schema, None) {
            Ok(schema) => return Ok(schema),
            Err(fault) => fault,
        };
        let older = [Draft::Draft7, Draft::Draft4];
        let compiled = older.into_iter().filter(|_| !named).find_map(|draft| compile(schema, Some(draft)).ok());
        compiled.ok_or(first)
    }

    /// What is wrong with a value, at most `max` faults, each with its place; they quote the value, whole.
    pub fn faults(&self, value: &Value, max: usize) -> Vec<String> {
        self.faults_within(LOOKS_MAX, value, max)
    }

    fn faults_within(&self, looks: u64, value: &Value, max: usize) -> Vec<String> {
        match within(looks, self.text_cost, || self.validator.is_valid(Counted(value))) {
            Some(true) => return Vec::new(),
            Some(false) => {}
            None => return vec![format!("checking it takes more than {looks} steps")],
        }
        let told = within(looks, self.text_cost, || {
            let faults = self.validator.iter_errors(Counted(value)).take(max);
            faults.map(|fault| format!("{fault} at {:?}", fault.instance_path().to_string())).collect()
        });
        told.unwrap_or_else(|| vec!["it does not fit, and saying where takes too many steps".to_owned()])
    }
}

fn compile(schema: &Value, draft: Option<Draft>) -> Result<Schema, String> {
    let mut fault = String::new();
    // A pattern that can be matched in one pass costs what its text is long; only the others need a limit of tries.
    for text_cost in [QUICK_TEXT, SLOW_TEXT] {
        let mut options = jsonschema::options_for::<CountedJson>().should_validate_formats(false);
        if let Some(draft) = draft {
            options = options.with_draft(draft);
        }
        let options = if text_cost == SLOW_TEXT {
            let patterns = PatternOptions::fancy_regex().backtrack_limit(BACKTRACKS_MAX);
            options.with_pattern_options(patterns.size_limit(PATTERN_BYTES).dfa_size_limit(PATTERN_BYTES))
        } else {
            let patterns = PatternOptions::regex().size_limit(PATTERN_BYTES).dfa_size_limit(PATTERN_BYTES);
            options.with_pattern_options(patterns)
        };
        match options.build(schema) {
            Ok(validator) => return Ok(Schema { validator, text_cost }),
            Err(why) => fault = why.to_string(),
        }
    }
    Err(fault)
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

    fn nested(levels: usize) -> Value {
        (0..levels).fold(json!({}), |inner, _| json!({ "x": inner, "y": 1 }))
    }

    #[test]
    fn a_check_that_would_never_end_ends_as_a_fault() {
        let next = || json!({ "x": { "$ref": "#/$defs/n" } });
        for late in [
            json!({ "properties": next(), "required": ["no"] }),
            json!({ "properties": next(), "additionalProperties": false }),
            json!({ "properties": { "x": { "$ref": "#/$defs/n" }, "y": { "type": "string" } } }),
            json!({ "properties": next(), "not": true }),
        ] {
            let mut other = late.clone();
            other["title"] = json!("another");
            let schema = json!({ "$ref": "#/$defs/n", "$defs": { "n": { "anyOf": [late, other] } } });
            let faults = Schema::compile(&schema).unwrap().faults_within(50_000, &nested(60), 5);
            assert!(faults.len() == 1 && faults[0].contains("steps"), "{schema}: {faults:?}");
        }
        let loops = json!({ "anyOf": [{ "$ref": "#" }, { "required": ["no"] }] });
        // A schema that only leads to itself says nothing, and ends.
        assert!(Schema::compile(&loops).unwrap().faults(&nested(3), 5).is_empty());
        // References into what is no schema are no way around the count.
        let aside = json!({ "$ref": "#/x/n", "x": { "n": { "anyOf": [
            { "properties": { "x": { "$ref": "#/x/n" } }, "required": ["a"] },
            { "properties": { "x": { "$ref": "#/x/n" } }, "required": ["b"] },
        ] } } });
        assert_eq!(Schema::compile(&aside).unwrap().faults_within(50_000, &nested(60), 5).len(), 1);
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
