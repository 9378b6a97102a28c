//! Arguments that the newer protocol sends as headers too, so that gateways can route by them: a tool marks them in its
//! input schema with `x-mcp-header`. A tool whose marks break the rules must not be used.

use std::collections::HashSet;

use serde_json::{Map, Value};

const MARK: &str = "x-mcp-header";

/// Whether the marks of an input schema keep the rules: the name of a header each, no name twice, and each on a text,
/// an integer or a boolean that is reached through `properties` alone.
///
/// # Errors
/// Which rule is broken.
pub(super) fn check(schema: &Map<String, Value>) -> Result<(), String> {
    let mut names = HashSet::new();
    let marks = on_the_way(schema, &mut names)?;
    if marks == count(&Value::Object(schema.clone())) {
        Ok(())
    } else {
        Err(format!("has an {MARK} that is not on a property of the root"))
    }
}

/// Checks the marks on properties, and counts them.
fn on_the_way(schema: &Map<String, Value>, names: &mut HashSet<String>) -> Result<usize, String> {
    let mut marks = 0_usize;
    let Some(Value::Object(properties)) = schema.get("properties") else { return Ok(marks) };
    for property in properties.values().filter_map(Value::as_object) {
        if let Some(mark) = property.get(MARK) {
            let name = mark.as_str().filter(|name| http::HeaderName::try_from(*name).is_ok());
            let name = name.ok_or_else(|| format!("has an {MARK} that is no name of a header"))?;
            if !names.insert(name.to_ascii_lowercase()) {
                return Err(format!("has the {MARK} {name:?} twice"));
            }
            if !matches!(property.get("type").and_then(Value::as_str), Some("string" | "integer" | "boolean")) {
                return Err(format!("has the {MARK} {name:?} on a value that no header can carry"));
            }
            marks = marks.saturating_add(1);
        }
        marks = marks.saturating_add(on_the_way(property, names)?);
    }
    Ok(marks)
}

/// The marks anywhere in a schema. A property of that name is none.
fn count(schema: &Value) -> usize {
    let mut marks = 0_usize;
    crate::run::schema::walk(&mut schema.clone(), &mut |part| {
        marks = marks.saturating_add(usize::from(part.contains_key(MARK)));
    });
    marks
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn marks_keep_the_rules_or_the_tool_is_not_used() {
        let text = |mark: &str| json!({ "type": "string", MARK: mark });
        let deep = json!({ "type": "object", "properties": { "b": text("B") } });
        for good in [json!({}), json!({ "properties": { "a": text("A"), "deep": deep, MARK: { "type": "string" } } })] {
            assert_eq!(check(good.as_object().unwrap()), Ok(()), "{good}");
        }
        for bad in [
            json!({ MARK: "A" }),
            json!({ "properties": { "a": text("") } }),
            json!({ "properties": { "a": text("a b") } }),
            json!({ "properties": { "a": { "type": "string", MARK: 7 } } }),
            json!({ "properties": { "a": text("A"), "b": text("a") } }),
            json!({ "properties": { "a": { "type": "number", MARK: "A" } } }),
            json!({ "properties": { "a": { "type": "array", "items": text("A") } } }),
            json!({ "anyOf": [{ "properties": { "a": text("A") } }] }),
        ] {
            assert!(check(bad.as_object().unwrap()).is_err(), "{bad}");
        }
    }
}
