//! Definitions inside of a form, put where they are referred to. The protocol allows neither; libraries that make a form
//! of a type write a definition for each enumeration. What is left is as flat as the protocol says, or it is refused:
//! a reference leads to a definition of the form itself and never to where it came from, and what all of them bring is
//! bounded before it is copied.

use serde_json::{Map, Value};

/// Where definitions stand.
const PLACES: [&str; 2] = ["$defs", "definitions"];
/// What all references of one form may bring, in bytes of JSON.
const BYTES_MAX: usize = 64 * 1024;
/// Deepest nesting, references included.
const DEPTH_MAX: usize = 16;
/// Words that decide nothing: beside a reference they replace those of the definition.
const NOTES: [&str; 7] = ["title", "description", "default", "examples", "deprecated", "readOnly", "$comment"];

/// The form without references. One that has none stays as it is.
///
/// # Errors
/// Why it cannot be, in words that follow "the form".
pub(super) fn inlined(form: &Value) -> Result<Value, String> {
    let mut inlining = Inlining { form, left: BYTES_MAX, open: Vec::new(), has_any: false };
    let Value::Object(flat) = inlining.part(form, DEPTH_MAX)? else { return Ok(form.clone()) };
    if !inlining.has_any {
        return Ok(form.clone());
    }
    Ok(flat.into_iter().filter(|(word, _)| !PLACES.contains(&word.as_str())).collect())
}

struct Inlining<'a> {
    form: &'a Value,
    left: usize,
    /// The references that are followed just now.
    open: Vec<&'a str>,
    has_any: bool,
}

impl<'a> Inlining<'a> {
    /// A part of the form where a schema stands.
    fn part(&mut self, part: &'a Value, depth: usize) -> Result<Value, String> {
        let Some(depth) = depth.checked_sub(1) else { return Err("is nested too deep".to_owned()) };
        let Some(members) = part.as_object() else { return Ok(part.clone()) };
        let (mut own, mut brought) = (Map::new(), Vec::new());
        for (word, value) in members {
            match (word.as_str(), value) {
                ("$ref", Value::String(target)) => brought.push(self.target(target, depth)?),
                // Older versions of such libraries write a reference with words beside it so.
                ("allOf", Value::Array(parts)) if parts.len() == 1 => {
                    self.has_any = true;
                    brought.extend(parts.iter().map(|part| self.part(part, depth)).collect::<Result<Vec<_>, _>>()?);
                }
                ("items", part) => drop(own.insert(word.clone(), self.part(part, depth)?)),
                ("anyOf" | "oneOf", Value::Array(parts)) => {
                    let parts = parts.iter().map(|part| self.part(part, depth)).collect::<Result<_, _>>()?;
                    own.insert(word.clone(), Value::Array(parts));
                }
                ("properties", Value::Object(fields)) => {
                    let field = |(name, field): (&String, &'a Value)| Ok((name.clone(), self.part(field, depth)?));
                    let fields = fields.iter().map(field).collect::<Result<Map<_, _>, String>>()?;
                    own.insert(word.clone(), fields.into());
                }
                (_, value) => drop(own.insert(word.clone(), value.clone())),
            }
        }
        brought.into_iter().try_for_each(|definition| merge(&mut own, definition))?;
        Ok(Value::Object(own))
    }

    fn target(&mut self, target: &'a str, depth: usize) -> Result<Value, String> {
        self.has_any = true;
        let form = self.form;
        let name = |place: &str| target.strip_prefix("#/")?.strip_prefix(place)?.strip_prefix('/');
        let found = PLACES.iter().find_map(|place| Some((*place, name(place)?)));
        let Some((place, name)) = found.filter(|(_, name)| !name.contains(['/', '%'])) else {
            return Err("refers to something that is no definition of its own".to_owned());
        };
        let name = name.replace("~1", "/").replace("~0", "~");
        let Some(definition) = form.get(place).and_then(|definitions| definitions.get(&name)) else {
            return Err("refers to a definition that it does not have".to_owned());
        };
        if self.open.contains(&target) {
            return Err("refers to itself".to_owned());
        }
        let left = self.left.checked_sub(definition.to_string().len());
        self.left = left.ok_or_else(|| format!("brings more than {BYTES_MAX} bytes by its references"))?;
        self.open.push(target);
        let part = self.part(definition, depth);
        self.open.pop();
        part
    }
}

/// Adds the words of a definition. Both hold, and one place holds one of each.
fn merge(own: &mut Map<String, Value>, definition: Value) -> Result<(), String> {
    let Value::Object(definition) = definition else { return Err("has a definition that is no object".to_owned()) };
    for (word, value) in definition {
        match own.get(&word) {
            None => drop(own.insert(word, value)),
            Some(same) if *same == value || NOTES.contains(&word.as_str()) => {}
            Some(_) => return Err(format!("says '{word}' beside a reference that says it otherwise")),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn with(fields: Value) -> Value {
        json!({ "type": "object", "properties": fields, "$defs": {
            "Color": { "enum": ["red", "green"], "title": "Color", "type": "string" },
            "Own": { "$ref": "#/$defs/Round" }, "Round": { "anyOf": [{ "$ref": "#/$defs/Own" }] },
            "a/b~": { "type": "boolean" }, "large": { "description": "x".repeat(30_000) }, "odd": 7,
        } })
    }

    #[track_caller]
    fn check(fields: Value, expected: Value) {
        let flat = inlined(&with(fields)).unwrap();
        assert_eq!(flat, json!({ "type": "object", "properties": expected }));
    }

    #[test]
    fn definitions_stand_where_they_are_referred_to() {
        let color = json!({ "enum": ["red", "green"], "title": "Color", "type": "string" });
        check(json!({ "c": { "$ref": "#/$defs/Color" } }), json!({ "c": color }));
        let default = json!({ "enum": ["red", "green"], "title": "Hue", "type": "string", "default": "red" });
        let beside = json!({ "$ref": "#/$defs/Color", "title": "Hue", "default": "red" });
        check(json!({ "c": beside }), json!({ "c": default }));
        let older = json!({ "allOf": [{ "$ref": "#/$defs/Color" }], "title": "Hue", "default": "red" });
        check(json!({ "c": older }), json!({ "c": default }));
        let maybe = json!({ "anyOf": [{ "$ref": "#/$defs/Color" }, { "type": "null" }], "default": null });
        check(json!({ "c": maybe }), json!({ "c": { "anyOf": [color, { "type": "null" }], "default": null } }));
        let several = json!({ "type": "array", "items": { "$ref": "#/$defs/Color" } });
        check(json!({ "c": several }), json!({ "c": { "type": "array", "items": color } }));
        check(json!({ "c": { "$ref": "#/$defs/a~1b~0" } }), json!({ "c": { "type": "boolean" } }));
        // The name of a field is no word.
        check(json!({ "$ref": { "$ref": "#/$defs/Color" } }), json!({ "$ref": color }));

        let whole = json!({ "$ref": "#/definitions/Form", "definitions": { "Form": { "type": "object" } } });
        assert_eq!(inlined(&whole).unwrap(), json!({ "type": "object" }));
        let untouched = with(json!({ "c": { "type": "string" } }));
        assert_eq!(inlined(&untouched).unwrap(), untouched);
        assert_eq!(inlined(&json!(7)).unwrap(), json!(7));
    }

    #[test]
    fn references_that_lead_out_round_or_into_too_much_are_refused() {
        let nested = (0..20).fold(json!({}), |inner, _| json!({ "anyOf": [inner] }));
        for (field, why) in [
            (json!({ "$ref": "https://a.example/x#/$defs/Color" }), "no definition of its own"),
            (json!({ "$ref": "file:///etc/passwd" }), "no definition of its own"),
            (json!({ "$ref": "#" }), "no definition of its own"),
            (json!({ "$ref": "#/properties/c" }), "no definition of its own"),
            (json!({ "$ref": "#/$defs/Color/enum" }), "no definition of its own"),
            (json!({ "$ref": "#/$defs/%43olor" }), "no definition of its own"),
            (json!({ "$ref": "#/$defs/Missing" }), "does not have"),
            (json!({ "$ref": "#/$defs/Own" }), "to itself"),
            (json!({ "$ref": "#/$defs/odd" }), "no object"),
            (json!({ "$ref": "#/$defs/Color", "enum": ["red"] }), "'enum' beside"),
            (json!({ "anyOf": vec![json!({ "$ref": "#/$defs/large" }); 3] }), "more than 65536 bytes"),
            (nested, "too deep"),
        ] {
            let said = inlined(&with(json!({ "c": field }))).unwrap_err();
            assert!(said.contains(why), "{field}: {said}");
        }
    }
}
