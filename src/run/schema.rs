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
}
