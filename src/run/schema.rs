//! The parts of a JSON Schema: where a schema stands inside another one, in any draft. Checks no value by it.

use serde_json::{Map, Value};

/// Members that are a schema each.
const ONE: [&str; 12] = [
    "additionalItems",
    "additionalProperties",
    "contains",
    "contentSchema",
    "else",
    "if",
    "items",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
];

/// Members that are a list of schemas each.
const LIST: [&str; 5] = ["allOf", "anyOf", "items", "oneOf", "prefixItems"];

/// Members that hold schemas by names of the author's.
const MAP: [&str; 6] = ["$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"];

/// Members that refer to another schema.
pub const REFERENCES: [&str; 3] = ["$ref", "$dynamicRef", "$recursiveRef"];

/// Visits every part of a schema that is a schema itself, inner ones first, and no value that only looks like one
/// (`const`, `enum`, `default`, `examples`). The depth is bounded by the reader of the text.
pub fn walk(schema: &mut Value, visit: &mut impl FnMut(&mut Map<String, Value>)) {
    let Value::Object(part) = schema else { return };
    for (name, member) in part.iter_mut() {
        let name = name.as_str();
        match member {
            Value::Array(list) if LIST.contains(&name) => list.iter_mut().for_each(|inner| walk(inner, visit)),
            Value::Object(map) if MAP.contains(&name) => map.values_mut().for_each(|inner| walk(inner, visit)),
            Value::Object(_) if ONE.contains(&name) => walk(member, visit),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) | Value::Object(_) => {
            }
        }
    }
    visit(part);
}

/// Whether a reference leads to a place where a schema stands, as far as its fragment says: one that leads into a
/// value would make a schema of it that nobody visits.
pub fn leads_to_a_part(reference: &str) -> bool {
    let Some((_, fragment)) = reference.split_once('#') else { return true };
    let mut steps = match fragment.strip_prefix('/') {
        Some(pointer) => pointer.split('/'),
        // The whole, or an anchor, which stands in a part.
        None => return true,
    };
    while let Some(step) = steps.next() {
        let goes_on = if MAP.contains(&step) {
            steps.next().is_some()
        } else {
            let is_one = ONE.contains(&step);
            let mut rest = steps.clone();
            let has_index =
                rest.next().is_some_and(|at| !at.is_empty() && at.bytes().all(|byte| byte.is_ascii_digit()));
            if LIST.contains(&step) && has_index {
                steps = rest;
                true
            } else {
                is_one
            }
        };
        if !goes_on {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_part_is_visited_once_and_no_value() {
        let mut schema = json!({
            "properties": { "properties": { "const": { "items": {} } }, "enum": { "enum": [{ "type": "x" }] } },
            "$defs": { "default": { "default": { "not": {} } } },
            "items": [{}, true],
            "oneOf": [{ "if": {}, "then": { "prefixItems": [{}] } }],
            "unknown": { "not": {} },
        });
        let mut visited = 0;
        walk(&mut schema, &mut |_| visited += 1);
        assert_eq!(visited, 9);
    }

    #[test]
    fn a_reference_leads_to_a_part_or_is_none() {
        for good in [
            "#",
            "",
            "#anchor",
            "other.json",
            "#/$defs/a",
            "#/properties/a/items",
            "#/anyOf/0/not",
            "#/items/2",
            "https://x/#/definitions/a~1b",
        ] {
            assert!(leads_to_a_part(good), "{good}");
        }
        for bad in ["#/x/n", "#/const", "#/enum/0", "#/$defs", "#/$defs/a/default", "#/anyOf", "#/anyOf/-", "#/"] {
            assert!(!leads_to_a_part(bad), "{bad}");
        }
    }
}
