//! A compiled schema, and what is wrong with a value by it.
//!
//! A schema comes from a server, and so may the value: together they can ask for more work than there is time (rules
//! that branch at every level of a nested value, patterns that are matched in exponentially many ways). So each look at
//! a value is counted (`counted.rs`), and a check that takes too many is a fault like any other. Nothing is ever
//! fetched: a reference leads into the schema itself, or the schema is no schema. `format` is an annotation and decides
//! nothing. Knows nothing of tools, servers and runs.

use std::fmt;

use jsonschema::{Draft, PatternOptions, Validator};
use serde_json::Value;

use super::cost::{self, Cost};
use super::counted::{Counted, CountedJson, Limits, within};

/// Looks at values that one check may take.
const LOOKS_MAX: u64 = 2_000_000;
/// Looks that may be taken to say what is wrong, since each fault takes memory.
const LOOKS_TOLD: u64 = 100_000;
/// Looks that a check may take anywhere: some tens of microseconds.
const LOOKS_INLINE: u64 = 2_000;
/// Dearest schema, in steps, by which a value is checked anywhere.
const STEPS_INLINE: u64 = 20_000;
/// What a byte of a text costs, in sixteenths of a look, where a pattern can be matched in one pass.
const QUICK_TEXT: u64 = 1;
/// The same where it can be matched in many ways (look-around, back-references).
const SLOW_TEXT: u64 = 2_000;
/// Steps of a pattern for each further sixteenth of a look at a byte: a large pattern is in many states at once.
const STEPS_A_SIXTEENTH: u64 = 64;
/// How many ways of matching such a pattern are tried on one text.
const BACKTRACKS_MAX: usize = 10_000;
/// Largest compiled pattern, in bytes.
const PATTERN_BYTES: usize = 128 * 1024;
/// Most memory that matching one pattern quickly may take and keep, in bytes.
const MATCHING_BYTES: usize = 32 * 1024;
/// Stack that a check may use at the desk, and anywhere, in bytes.
const STACK_DESK: usize = 40 * 1024 * 1024;
const STACK_INLINE: usize = 256 * 1024;
/// Longest text of a fault that is handed on, in characters, by whoever makes sure first that no secret stands in it.
pub const FAULT_MAX: usize = 600;

/// A compiled schema. It holds nothing but its schema, so all share it.
pub struct Schema {
    validator: Validator<CountedJson>,
    cost: Cost,
    text_cost: u64,
}

/// What is wrong with a value at one place of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flaw {
    /// JSON Pointer into the value.
    pub pointer: String,
    /// What is wrong there.
    pub detail: String,
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {:?}", self.detail, self.pointer)
    }
}

impl Flaw {
    fn of_all(detail: impl Into<String>) -> Vec<Self> {
        vec![Self { pointer: String::new(), detail: detail.into() }]
    }
}

impl Schema {
    /// Compiles a schema of any draft. One that names no draft is of 2020-12; where it is none, it may be of an older
    /// one: many servers write draft 7 without saying so.
    ///
    /// # Errors
    /// Why it is none, in words of any length that follow "it" and may quote the schema.
    pub(super) fn compile(schema: &Value) -> Result<Self, String> {
        let cost = cost::of(schema)?;
        let is_none = |fault: String| format!("is no JSON Schema: {fault}");
        let named = schema.get("$schema").is_some();
        let first = match compile(schema, None, cost) {
            Ok(schema) => return Ok(schema),
            Err(fault) => fault,
        };
        let older = [Draft::Draft7, Draft::Draft4];
        let compiled = older.into_iter().filter(|_| !named).find_map(|draft| compile(schema, Some(draft), cost).ok());
        compiled.ok_or_else(|| is_none(first))
    }

    /// What it took to compile it.
    pub(super) const fn steps(&self) -> u64 {
        self.cost.steps
    }

    /// What is wrong with a value, at most `max` flaws; `None`: that takes more than a moment, and belongs to the desk.
    pub(super) fn flaws_at_once(&self, value: &Value, max: usize) -> Option<Vec<Flaw>> {
        if self.cost.steps > STEPS_INLINE {
            return None;
        }
        let limits = self.limits(LOOKS_INLINE, STACK_INLINE);
        if within(limits, || self.validator.is_valid(Counted(value)))? {
            return Some(Vec::new());
        }
        within(limits, || self.tell(value, max))
    }

    /// What is wrong with a value, at most `max` flaws.
    pub(super) fn flaws(&self, value: &Value, max: usize) -> Vec<Flaw> {
        self.flaws_within(LOOKS_MAX, value, max)
    }

    fn flaws_within(&self, looks: u64, value: &Value, max: usize) -> Vec<Flaw> {
        match within(self.limits(looks, STACK_DESK), || self.validator.is_valid(Counted(value))) {
            Some(true) => return Vec::new(),
            Some(false) => {}
            None => return Flaw::of_all(format!("checking it takes more than {looks} steps")),
        }
        let told = within(self.limits(LOOKS_TOLD.min(looks), STACK_DESK), || self.tell(value, max));
        told.unwrap_or_else(|| Flaw::of_all("it does not fit, and saying where takes too many steps"))
    }

    fn tell(&self, value: &Value, max: usize) -> Vec<Flaw> {
        let faults = self.validator.iter_errors(Counted(value)).take(max);
        let told = faults.map(|fault| Flaw { pointer: fault.instance_path().to_string(), detail: fault.to_string() });
        told.collect()
    }

    const fn limits(&self, looks: u64, stack: usize) -> Limits {
        let name_cost = self.text_cost.saturating_mul(self.cost.name_patterns.saturating_add(1));
        Limits { looks, stack, text_cost: self.text_cost, name_cost }
    }
}

fn compile(schema: &Value, draft: Option<Draft>, cost: Cost) -> Result<Schema, String> {
    let mut fault = String::new();
    // A pattern that can be matched in one pass costs what its text is long; only the others need a limit of tries.
    for per_byte in [QUICK_TEXT, SLOW_TEXT] {
        let mut options = jsonschema::options_for::<CountedJson>().should_validate_formats(false);
        if let Some(draft) = draft {
            options = options.with_draft(draft);
        }
        let options = if per_byte == SLOW_TEXT {
            let patterns = PatternOptions::fancy_regex().backtrack_limit(BACKTRACKS_MAX);
            options.with_pattern_options(patterns.size_limit(PATTERN_BYTES).dfa_size_limit(MATCHING_BYTES))
        } else {
            let patterns = PatternOptions::regex().size_limit(PATTERN_BYTES).dfa_size_limit(MATCHING_BYTES);
            options.with_pattern_options(patterns)
        };
        match options.build(schema) {
            Ok(validator) => {
                let text_cost = per_byte.saturating_add(cost.largest_pattern / STEPS_A_SIXTEENTH);
                return Ok(Schema { validator, cost, text_cost });
            }
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

    fn told(flaws: &[Flaw]) -> Vec<String> {
        flaws.iter().map(Flaw::to_string).collect()
    }

    #[track_caller]
    fn check(schema: &Value, value: &Value, fault: Option<&str>) {
        let began = Instant::now();
        let faults = told(&Schema::compile(schema).unwrap().flaws(value, 5));
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
            let faults = Schema::compile(&schema).unwrap().flaws_within(50_000, &nested(60), 5);
            assert!(faults.len() == 1 && faults[0].detail.contains("steps"), "{schema}: {faults:?}");
        }
        let loops = json!({ "anyOf": [{ "$ref": "#" }, { "required": ["no"] }] });
        // A schema that only leads to itself says nothing, and ends.
        assert!(Schema::compile(&loops).unwrap().flaws(&nested(3), 5).is_empty());
        // References into what is no schema are no way around the count.
        let aside = json!({ "$ref": "#/x/n", "x": { "n": { "anyOf": [
            { "properties": { "x": { "$ref": "#/x/n" } }, "required": ["a"] },
            { "properties": { "x": { "$ref": "#/x/n" } }, "required": ["b"] },
        ] } } });
        assert_eq!(Schema::compile(&aside).unwrap().flaws_within(50_000, &nested(60), 5).len(), 1);
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
            (json!({ "pattern": "(((a{99}){99}){99}){99}" }), "too long to compile"),
            (json!({ "pattern": "\\p{L}{60}" }), "p{L}"),
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
    fn the_largest_schema_compiles_in_a_second_and_a_deep_check_ends_before_the_stack_does() {
        let chain = |part: &dyn Fn(usize) -> Value| {
            let parts: serde_json::Map<String, Value> = (0..1_500).map(|n| (n.to_string(), part(n))).collect();
            json!({ "$ref": "#/$defs/0", "$defs": parts })
        };
        let to = |n: usize| json!({ "$ref": format!("#/$defs/{}", (n + 1) % 1_500) });
        let deep = move |n: usize| {
            if n == 1_499 { json!({ "properties": { "x": to(n) } }) } else { json!({ "allOf": [to(n)] }) }
        };
        let at_the_desk = move || {
            let began = Instant::now();
            let schema = Schema::compile(&chain(&deep)).unwrap();
            assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
            assert!(schema.flaws_at_once(&nested(3), 5).is_none());
            let flaws = schema.flaws(&nested(90), 5);
            assert!(flaws.is_empty() || flaws[0].detail.contains("steps"), "{flaws:?}");
        };
        std::thread::Builder::new().stack_size(64 * 1024 * 1024).spawn(at_the_desk).unwrap().join().unwrap();
    }

    #[test]
    fn names_are_matched_within_limits_too() {
        let patterns: serde_json::Map<String, Value> =
            (0..100).map(|n| (format!("^{n}(a|b|ab)*c"), json!(true))).collect();
        let names: serde_json::Map<String, Value> =
            (0..20_000).map(|n| (format!("{n}{}", "ab".repeat(200)), json!(1))).collect();
        check(&json!({ "patternProperties": patterns }), &Value::Object(names), Some("steps"));
    }
}
