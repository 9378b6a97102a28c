//! Arguments that a tool wants to see in headers too, so that who stands between can route a call without reading it
//! (`x-mcp-header` in the tool's schema, revision 2026-07-28). Knows JSON Schema as far as `properties`, sends nothing.

use std::collections::HashSet;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::{Map, Value};

/// The schema's word for the header.
const MARK: &str = "x-mcp-header";
/// What the name of each such header begins with.
pub(super) const PREFIX: &str = "mcp-param-";

/// The headers that say these arguments. What is absent, null or no plain value has none.
pub(super) fn headers_of(schema: &Value, arguments: &Map<String, Value>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    collect(schema, Some(arguments), &mut headers);
    headers
}

fn collect(schema: &Value, arguments: Option<&Map<String, Value>>, headers: &mut HeaderMap) {
    for (name, property) in properties(schema) {
        let value = arguments.and_then(|arguments| arguments.get(name));
        if let (Some(mark), Some(text)) = (property.get(MARK).and_then(Value::as_str), value.and_then(text_of))
            && let Ok(name) = HeaderName::try_from(format!("{PREFIX}{mark}"))
            && let Ok(value) = HeaderValue::try_from(encoded(&text))
        {
            headers.insert(name, value);
        }
        collect(property, value.and_then(Value::as_object), headers);
    }
}

fn properties(schema: &Value) -> impl Iterator<Item = (&String, &Value)> {
    schema.get("properties").and_then(Value::as_object).into_iter().flatten()
}

fn text_of(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Bool(flag) => Some(flag.to_string()),
        Value::Number(number) => Some(number.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

/// A value as a header can carry it: in Base64 where it would be bent on the way, or be taken for Base64.
fn encoded(text: &str) -> String {
    let is_plain = text.bytes().all(|byte| (b' '..=b'~').contains(&byte))
        && text.trim_matches(' ') == text
        && !(text.starts_with("=?base64?") && text.ends_with("?="));
    if is_plain { text.to_owned() } else { format!("=?base64?{}?=", BASE64_STANDARD.encode(text)) }
}

/// Why the marks of a tool's schema cannot be followed: such a tool must not be offered.
pub(super) fn fault_of(schema: &Value) -> Option<String> {
    if schema.get(MARK).is_some() {
        return Some(format!("{MARK} stands at the root of its input schema"));
    }
    let mut seen = HashSet::new();
    faulty_property(schema, &mut seen).or_else(|| {
        is_marked_elsewhere(schema, true).then(|| format!("{MARK} stands where no argument of a fixed name is"))
    })
}

fn faulty_property(schema: &Value, seen: &mut HashSet<String>) -> Option<String> {
    for (name, property) in properties(schema) {
        if let Some(mark) = property.get(MARK) {
            let Some(header) = mark.as_str().filter(|header| is_token(header)) else {
                return Some(format!("{MARK} of '{name}' is no header name"));
            };
            if !matches!(property.get("type").and_then(Value::as_str), Some("string" | "integer" | "boolean")) {
                return Some(format!("{MARK} of '{name}' marks what is no string, integer or boolean"));
            }
            if !seen.insert(header.to_ascii_lowercase()) {
                return Some(format!("{MARK} of '{name}' is used twice"));
            }
        }
        if let Some(fault) = faulty_property(property, seen) {
            return Some(fault);
        }
    }
    None
}

fn is_token(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
}

/// Whether a mark stands off the chain of `properties` that leads from the root to an argument.
fn is_marked_elsewhere(schema: &Value, on_chain: bool) -> bool {
    match schema {
        Value::Object(members) => members.iter().any(|(key, value)| match key.as_str() {
            MARK => !on_chain,
            // Names of arguments and of schemas, not words of the schema language.
            "properties" => each(value, |schema| is_marked_elsewhere(schema, on_chain)),
            "$defs" | "definitions" | "dependentSchemas" | "patternProperties" => {
                each(value, |schema| is_marked_elsewhere(schema, false))
            }
            // Values, not schemas.
            "default" | "const" | "enum" | "examples" | "required" | "dependentRequired" => false,
            _ => is_marked_elsewhere(value, false),
        }),
        Value::Array(items) => items.iter().any(|item| is_marked_elsewhere(item, false)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

fn each(map: &Value, is_so: impl Fn(&Value) -> bool) -> bool {
    map.as_object().is_some_and(|map| map.values().any(is_so))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(schema: &Value, arguments: &Value, expected: &[(&str, &str)]) {
        let headers = headers_of(schema, arguments.as_object().unwrap());
        let mut found: Vec<(&str, &str)> =
            headers.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
        found.sort_unstable();
        assert_eq!(found, expected, "{arguments}");
    }

    #[test]
    fn marked_arguments_stand_in_headers_as_the_server_will_compare_them() {
        let schema = json!({"type": "object", "properties": {
            "region": {"type": "string", "x-mcp-header": "Region"},
            "count": {"type": "integer", "x-mcp-header": "Count"},
            "dry": {"type": "boolean", "x-mcp-header": "Dry"},
            "deep": {"type": "object", "properties": {"zone": {"type": "string", "x-mcp-header": "Zone"}}},
            "free": {"type": "string"},
        }});
        let all = json!({"region": "eu", "count": 18_446_744_073_709_551_615_u64, "dry": false, "deep": {"zone": "a"}, "free": "x"});
        let expected = [
            ("mcp-param-count", "18446744073709551615"),
            ("mcp-param-dry", "false"),
            ("mcp-param-region", "eu"),
            ("mcp-param-zone", "a"),
        ];
        check(&schema, &all, &expected);
        check(&schema, &json!({"region": null, "deep": 1}), &[]);
        check(&schema, &json!({"region": "Zürich"}), &[("mcp-param-region", "=?base64?WsO8cmljaA==?=")]);
        check(&schema, &json!({"region": " eu"}), &[("mcp-param-region", "=?base64?IGV1?=")]);
        check(
            &schema,
            &json!({"region": "=?base64?eA==?="}),
            &[("mcp-param-region", "=?base64?PT9iYXNlNjQ/ZUE9PT89?=")],
        );
        check(&schema, &json!({"region": ""}), &[("mcp-param-region", "")]);
    }

    #[test]
    fn marks_that_cannot_be_followed_are_named() {
        let of = |property: Value| fault_of(&json!({"type": "object", "properties": {"a": property}}));
        assert_eq!(of(json!({"type": "string", "x-mcp-header": "A"})), None);
        assert_eq!(of(json!({"type": "string", "default": {"x-mcp-header": "A"}})), None);
        for (property, says) in [
            (json!({"type": "string", "x-mcp-header": ""}), "no header name"),
            (json!({"type": "string", "x-mcp-header": "a b"}), "no header name"),
            (json!({"type": "string", "x-mcp-header": 5}), "no header name"),
            (json!({"type": "number", "x-mcp-header": "A"}), "no string"),
            (json!({"type": "array", "items": {"type": "string", "x-mcp-header": "A"}}), "no argument"),
            (json!({"anyOf": [{"type": "string", "x-mcp-header": "A"}]}), "no argument"),
        ] {
            let fault = of(property.clone());
            assert!(fault.as_ref().is_some_and(|fault| fault.contains(says)), "{property}: {fault:?}");
        }
        let twice = json!({"properties": {
            "a": {"type": "string", "x-mcp-header": "A"}, "b": {"type": "string", "x-mcp-header": "a"},
        }});
        assert!(fault_of(&twice).unwrap().contains("twice"));
        assert!(fault_of(&json!({"x-mcp-header": "A"})).unwrap().contains("root"));
    }
}
