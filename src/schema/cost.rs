//! What a schema costs to compile, in steps, before anybody compiles it: a count over its text, which takes no longer
//! than reading it. A step is about a microsecond of an unoptimised build and a tenth of that of an optimised one; the
//! weights were measured. Patterns are counted by `pattern`. Compiles nothing.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::pattern::pattern_steps;

/// Largest schema, in bytes of its names and values.
pub(super) const BYTES_MAX: usize = 256 * 1024;
/// Deepest nesting of a schema.
pub(super) const DEPTH_MAX: usize = 64;
/// Most steps of one schema.
pub(super) const STEPS_MAX: u64 = 400_000;

/// What any schema costs, however small.
const SCHEMA: u64 = 500;
const VALUE: u64 = 20;
const REFERENCE: u64 = 100;
/// One way in which a part is reached from a rule on what no other rule looked at.
const WAY: u64 = 400;
/// Longest of these ways.
const WAY_MAX: usize = 200;

/// What a schema costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Cost {
    /// To compile it.
    pub(super) steps: u64,
    /// The steps of its largest pattern, which say how long it takes to match.
    pub(super) largest_pattern: u64,
    /// Most patterns that the name of one member is matched against.
    pub(super) name_patterns: u64,
}

/// What a schema costs.
///
/// # Errors
/// Which limit it exceeds, in words that follow "it".
pub(super) fn of(schema: &Value) -> Result<Cost, String> {
    let mut count = Count { bytes: 0, cost: Cost { steps: SCHEMA, ..Cost::default() }, unevaluated: Vec::new() };
    count.value(schema, DEPTH_MAX)?;
    let parts = std::mem::take(&mut count.unevaluated);
    let mut ways = Ways { root: schema, known: HashMap::new(), open: HashSet::new(), depth: 0 };
    for part in parts {
        count.add(ways.of(part)?.saturating_mul(WAY))?;
    }
    Ok(count.cost)
}

struct Count<'a> {
    bytes: usize,
    cost: Cost,
    /// The parts with a rule on what no other rule looked at.
    unevaluated: Vec<&'a Map<String, Value>>,
}

impl<'a> Count<'a> {
    fn add(&mut self, steps: u64) -> Result<(), String> {
        self.cost.steps = self.cost.steps.saturating_add(steps);
        if self.cost.steps > STEPS_MAX {
            return Err("takes too long to compile: its parts and patterns are too many or too large".to_owned());
        }
        Ok(())
    }

    fn text(&mut self, text: &str) -> Result<(), String> {
        self.bytes = self.bytes.saturating_add(text.len());
        if self.bytes > BYTES_MAX { Err(format!("is larger than {BYTES_MAX} bytes")) } else { Ok(()) }
    }

    fn value(&mut self, value: &'a Value, left: usize) -> Result<(), String> {
        self.add(VALUE)?;
        let inside = || left.checked_sub(1).ok_or_else(|| format!("is nested deeper than {DEPTH_MAX} levels"));
        match value {
            Value::Null | Value::Bool(_) => Ok(()),
            Value::Number(number) => self.text(number.as_str()),
            Value::String(text) => self.text(text),
            Value::Array(items) => {
                let left = inside()?;
                items.iter().try_for_each(|item| self.value(item, left))
            }
            Value::Object(members) => self.members(members, inside()?),
        }
    }

    /// Any object may be a schema: a reference can lead there.
    fn members(&mut self, members: &'a Map<String, Value>, left: usize) -> Result<(), String> {
        for (name, member) in members {
            self.text(name)?;
            match (name.as_str(), member) {
                ("pattern", Value::String(pattern)) => self.pattern(pattern)?,
                ("patternProperties", Value::Object(parts)) => {
                    parts.keys().try_for_each(|pattern| self.pattern(pattern))?;
                    let count = u64::try_from(parts.len()).unwrap_or(u64::MAX);
                    self.cost.name_patterns = self.cost.name_patterns.max(count);
                }
                ("$ref" | "$dynamicRef" | "$recursiveRef", Value::String(_)) => self.add(REFERENCE)?,
                ("unevaluatedProperties" | "unevaluatedItems", _) => self.unevaluated.push(members),
                _ => {}
            }
            self.value(member, left)?;
        }
        Ok(())
    }

    fn pattern(&mut self, pattern: &str) -> Result<(), String> {
        let steps = pattern_steps(pattern);
        self.cost.largest_pattern = self.cost.largest_pattern.max(steps);
        self.add(steps)
    }
}

/// In how many ways parts are reached in place: by rules on the same value, and through references. A rule on what no
/// other rule looked at is compiled along each of them, and references that branch double them at every level.
struct Ways<'a> {
    root: &'a Value,
    known: HashMap<&'a str, u64>,
    open: HashSet<&'a str>,
    depth: usize,
}

impl<'a> Ways<'a> {
    fn of(&mut self, part: &'a Map<String, Value>) -> Result<u64, String> {
        self.depth += 1;
        if self.depth > WAY_MAX {
            return Err(format!("has a rule on unevaluated parts that leads on over more than {WAY_MAX} others"));
        }
        let mut ways = 1_u64;
        for (name, member) in part {
            let inner: Vec<&Value> = match (name.as_str(), member) {
                ("allOf" | "anyOf" | "oneOf", Value::Array(parts)) => parts.iter().collect(),
                ("not" | "if" | "then" | "else" | "contains", part) => vec![part],
                ("dependentSchemas" | "dependencies", Value::Object(parts)) => parts.values().collect(),
                ("$ref", Value::String(target)) => {
                    ways = ways.saturating_add(self.of_target(target)?);
                    continue;
                }
                ("$dynamicRef" | "$recursiveRef", _) => return Err(NOT_FOLLOWED.to_owned()),
                _ => continue,
            };
            for part in inner.into_iter().filter_map(Value::as_object) {
                ways = ways.saturating_add(self.of(part)?);
            }
        }
        self.depth -= 1;
        Ok(ways)
    }

    fn of_target(&mut self, target: &'a str) -> Result<u64, String> {
        if let Some(known) = self.known.get(target) {
            return Ok(*known);
        }
        let pointer = target.strip_prefix('#').filter(|pointer| pointer.is_empty() || pointer.starts_with('/'));
        let Some(pointer) = pointer.filter(|pointer| !pointer.contains('%')) else {
            return Err(NOT_FOLLOWED.to_owned());
        };
        if !self.open.insert(target) {
            return Err("has a rule on unevaluated parts that leads to itself".to_owned());
        }
        let ways = match self.root.pointer(pointer) {
            Some(Value::Object(part)) => self.of(part)?,
            _ => 1,
        };
        self.open.remove(target);
        self.known.insert(target, ways);
        Ok(ways)
    }
}

const NOT_FOLLOWED: &str = "has a rule on unevaluated parts and references other than '#/…'";

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check_refused(schema: &Value, why: &str) {
        let said = of(schema).unwrap_err();
        assert!(said.contains(why), "{said}");
    }

    #[test]
    fn a_schema_has_limits_of_size_depth_and_cost() {
        let properties = |count: usize, part: fn(usize) -> Value| {
            let parts: Map<String, Value> = (0..count).map(|n| (format!("p{n}"), part(n))).collect();
            json!({ "properties": parts })
        };
        assert!(of(&properties(1_000, |_| json!({ "type": "string", "minLength": 1 }))).is_ok());
        assert!(of(&properties(50, |n| json!({ "pattern": format!("^{n}[a-z]{{1,64}}$") }))).is_ok());
        check_refused(&properties(25_000, |_| json!(true)), "too long to compile");
        check_refused(&properties(400, |n| json!({ "pattern": format!("{n}a{{900}}") })), "too long to compile");
        check_refused(&json!({ "patternProperties": { "(a{99}){99}{99}": {} } }), "too long to compile");
        check_refused(&json!({ "anywhere": [{ "pattern": "(a{99}){99}{99}" }] }), "too long to compile");
        check_refused(&json!({ "description": "x".repeat(BYTES_MAX + 1) }), "larger than");
        check_refused(&(0..70).fold(json!({}), |inner, _| json!({ "not": inner })), "nested deeper than 64");
    }

    #[test]
    fn rules_on_unevaluated_parts_are_bounded_by_the_ways_that_lead_on() {
        let branching = |levels: usize| {
            let level = |n: usize| match n + 1 {
                next if next < levels => {
                    json!({ "allOf": [{ "$ref": format!("#/$defs/{next}") }, { "$ref": format!("#/$defs/{next}") }] })
                }
                _ => json!({}),
            };
            let levels: Map<String, Value> = (0..levels).map(|n| (n.to_string(), level(n))).collect();
            json!({ "$ref": "#/$defs/0", "unevaluatedProperties": false, "$defs": levels })
        };
        assert!(of(&branching(6)).is_ok());
        check_refused(&branching(14), "too long to compile");
        check_refused(&branching(900), "more than 200");
        check_refused(&json!({ "unevaluatedItems": false, "allOf": [{ "$ref": "#" }] }), "leads to itself");
        check_refused(&json!({ "unevaluatedItems": false, "$dynamicRef": "#x" }), "references other than");
        check_refused(&json!({ "unevaluatedItems": false, "$ref": "#x" }), "references other than");
        // Without such a rule references may branch and lead back: the compiler takes each target once.
        assert!(of(&json!({ "$ref": "#", "allOf": [{ "$ref": "#x" }] })).is_ok());
    }
}
