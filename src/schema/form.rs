//! The forms with which servers ask people. The protocol allows an object of plain fields and nothing else (revision
//! 2025-11-25, elicitation: texts, numbers, truth values, choices of one or of several), so that any client can show
//! them; this reads exactly that. A form that needs more (nesting, rules on the whole) is refused, and one that refers to
//! definitions of its own is made flat first (`inline`). What is
//! checked later is made of the words that were understood, and never the server's own text.

use serde_json::{Map, Value, json};

use super::compiled::{Flaw, Schema};
use super::{AtDesk, Budget, cost, inline};

/// Most steps of one form: it is read where its question arrives.
const FORM_STEPS: u64 = 20_000;
/// Most steps of the forms that one answer asks with.
const FORMS_STEPS: u64 = 100_000;
/// Most fields of a form.
const FIELDS_MAX: usize = 100;
/// Largest default of a field, in bytes of JSON.
const DEFAULT_MAX: usize = 4 * 1024;

/// Words that lead to other schemas, or hold some.
const NESTING: [&str; 24] = [
    "$ref",
    "$dynamicRef",
    "$recursiveRef",
    "additionalItems",
    "allOf",
    "anyOf",
    "contains",
    "dependencies",
    "dependentSchemas",
    "else",
    "extends",
    "if",
    "items",
    "not",
    "oneOf",
    "patternProperties",
    "prefixItems",
    "properties",
    "additionalProperties",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
    "$defs",
];

impl Budget {
    /// That of the forms that one answer asks with.
    pub const fn of_forms() -> Self {
        Self(FORMS_STEPS)
    }
}

/// A form that was understood.
#[derive(Debug)]
pub struct Form {
    schema: Value,
    defaults: Map<String, Value>,
}

/// The same form as the protocol allows it: without references.
///
/// # Errors
/// Why it cannot be, in words that follow "the form".
pub fn flat(form: &Value) -> Result<Value, String> {
    inline::inlined(form)
}

impl Form {
    /// Reads a form that is flat.
    ///
    /// # Errors
    /// Why people cannot be asked with it, in words that follow "the form".
    pub fn read(schema: &Value, budget: &mut Budget) -> Result<Self, String> {
        let form = read(schema)?;
        let cost = cost::of(&form.schema)?;
        if cost.steps > FORM_STEPS || budget.spend(cost.steps).is_err() {
            return Err("takes too long to check: its fields and patterns are too many or too large".to_owned());
        }
        // All else was looked at word by word.
        if cost.largest_pattern > 0 {
            Schema::compile(&form.schema)?;
        }
        Ok(form)
    }

    /// What was filled in, with the defaults of what was left out, and what is wrong with it.
    pub fn fill(&self, _at: &AtDesk, given: Map<String, Value>, max: usize) -> (Value, Vec<Flaw>) {
        let mut filled = given;
        for (name, default) in &self.defaults {
            filled.entry(name.clone()).or_insert_with(|| default.clone());
        }
        let filled = Value::Object(filled);
        match Schema::compile(&self.schema) {
            Ok(schema) => {
                let flaws = schema.flaws(&filled, max);
                (filled, flaws)
            }
            Err(fault) => (filled, vec![Flaw { pointer: String::new(), detail: format!("the form {fault}") }]),
        }
    }
}

fn read(schema: &Value) -> Result<Form, String> {
    let whole = schema.as_object().ok_or("is no JSON Schema of an object")?;
    if whole.get("type").is_some_and(|kind| kind != "object") {
        return Err("is no JSON Schema of an object".to_owned());
    }
    refuse_nesting(whole, &["properties", "additionalProperties", "$defs"], "it")?;
    let mut kept = Map::new();
    kept.insert("type".to_owned(), "object".into());
    if let Some(extra) = whole.get("additionalProperties") {
        kept.insert("additionalProperties".to_owned(), extra.as_bool().ok_or(NOT_FLAT)?.into());
    }
    if let Some(required) = whole.get("required") {
        let names = required.as_array().filter(|names| names.iter().all(Value::is_string));
        kept.insert("required".to_owned(), names.ok_or("has a list of required fields that is none")?.clone().into());
    }
    let none = Map::new();
    let listed = match whole.get("properties") {
        None => &none,
        Some(fields) => fields.as_object().ok_or("has fields that are no object")?,
    };
    if listed.len() > FIELDS_MAX {
        return Err(format!("has more than {FIELDS_MAX} fields"));
    }
    let (mut fields, mut defaults) = (Map::new(), Map::new());
    for (name, listed) in listed {
        let at = |why: String| format!("has a field {name:?} that {why}");
        fields.insert(name.clone(), field(listed, Within::Form).map_err(at)?);
        if let Some(default) = listed.get("default") {
            check_default(default).map_err(at)?;
            defaults.insert(name.clone(), default.clone());
        }
    }
    kept.insert("properties".to_owned(), fields.into());
    Ok(Form { schema: kept.into(), defaults })
}

const NOT_FLAT: &str = "is not flat: only plain fields can be asked for";

fn refuse_nesting(part: &Map<String, Value>, allowed: &[&str], what: &str) -> Result<(), String> {
    let nesting = part.keys().find(|word| NESTING.contains(&word.as_str()) && !allowed.contains(&word.as_str()));
    nesting.map_or(Ok(()), |word| Err(format!("{NOT_FLAT} ({what} has '{word}')")))
}

/// Where a field stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Within {
    Form,
    /// What a list of choices is made of.
    List,
    /// One of several choices.
    Choice,
}

/// The words of a field that mean something here.
fn field(listed: &Value, within: Within) -> Result<Value, String> {
    let part = listed.as_object().ok_or("is no object")?;
    let choices: &[&str] = match within {
        Within::Form => &["items", "anyOf", "oneOf"],
        Within::List => &["anyOf", "oneOf"],
        Within::Choice => &[],
    };
    refuse_nesting(part, choices, "it")?;
    let mut kept = Map::new();
    for (word, value) in part {
        let is_right = match word.as_str() {
            "type" => is_plain_type(value, within),
            "minLength" | "maxLength" | "minItems" | "maxItems" => value.is_u64(),
            "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" => value.is_number(),
            "multipleOf" => value.as_f64().is_some_and(|number| number > 0.0),
            "pattern" => value.is_string(),
            "uniqueItems" => value.is_boolean(),
            "const" => is_plain(value),
            "enum" => value.as_array().is_some_and(|values| values.iter().all(is_plain)),
            "items" => {
                kept.insert(word.clone(), field(value, Within::List)?);
                continue;
            }
            "anyOf" | "oneOf" => {
                let choices = value.as_array().filter(|choices| !choices.is_empty());
                let choices = choices.ok_or_else(|| format!("has a wrong '{word}'"))?;
                let choices = choices.iter().map(|choice| field(choice, Within::Choice));
                kept.insert(word.clone(), choices.collect::<Result<Vec<_>, _>>()?.into());
                continue;
            }
            // Titles, formats, and whatever else decides nothing.
            _ => continue,
        };
        if !is_right {
            return Err(format!("has a wrong '{word}'"));
        }
        kept.insert(word.clone(), value.clone());
    }
    let is_list = kept.get("type").is_some_and(|kind| kind == "array");
    if is_list != kept.contains_key("items") {
        return Err("is a list, but not of choices".to_owned());
    }
    Ok(Value::Object(kept))
}

fn is_plain_type(kind: &Value, within: Within) -> bool {
    let plain = |kind: &Value| matches!(kind.as_str(), Some("string" | "number" | "integer" | "boolean" | "null"));
    match kind {
        Value::Array(kinds) => !kinds.is_empty() && kinds.iter().all(plain),
        kind => plain(kind) || (within == Within::Form && kind == "array"),
    }
}

const fn is_plain(value: &Value) -> bool {
    !matches!(value, Value::Array(_) | Value::Object(_))
}

fn check_default(default: &Value) -> Result<(), String> {
    let is_flat = match default {
        Value::Array(items) => items.iter().all(is_plain),
        default => is_plain(default),
    };
    if !is_flat || default.to_string().len() > DEFAULT_MAX {
        return Err(format!("has a default that is no plain value of at most {DEFAULT_MAX} bytes"));
    }
    Ok(())
}

/// The form that asks for nothing.
pub fn empty() -> Value {
    json!({ "type": "object" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::ids::TenantId;
    use crate::schema::Schemas;

    #[track_caller]
    fn check_refused(schema: &Value, why: &str) {
        let said = Form::read(schema, &mut Budget::of_forms()).unwrap_err();
        assert!(said.contains(why), "{said}");
    }

    fn with(field: Value) -> Value {
        json!({ "type": "object", "properties": { "a": field } })
    }

    #[test]
    fn forms_of_plain_fields_are_read() {
        for field in [
            json!({ "type": "string", "title": "t", "format": "email", "minLength": 1, "pattern": "^[a-z]+$" }),
            json!({ "type": "integer", "minimum": 0, "maximum": 150, "default": 7 }),
            json!({ "type": "boolean", "default": false }),
            json!({ "type": "string", "enum": ["a", "b"], "enumNames": ["A", "B"], "default": "a" }),
            json!({ "type": "string", "oneOf": [{ "const": "a", "title": "A" }] }),
            json!({ "type": "array", "items": { "type": "string", "enum": ["a"] }, "maxItems": 2, "default": ["a"] }),
            json!({ "type": "array", "items": { "enum": ["a"] }, "minItems": 1, "uniqueItems": true }),
            json!({ "type": "array", "items": { "anyOf": [{ "const": "a", "title": "A" }] }, "default": ["a"] }),
            json!({ "anyOf": [{ "type": "string" }, { "type": "null" }], "default": null }),
            json!({ "type": ["string", "null"] }),
            json!({}),
        ] {
            Form::read(&with(field.clone()), &mut Budget::of_forms()).unwrap_or_else(|why| panic!("{field}: {why}"));
        }
        let whole = json!({ "$schema": "https://json-schema.org/draft/2020-12/schema", "title": "t", "type": "object",
            "required": ["a"], "additionalProperties": false, "properties": { "a": { "type": "string" } } });
        assert!(Form::read(&whole, &mut Budget::of_forms()).is_ok());
        assert!(Form::read(&empty(), &mut Budget::of_forms()).is_ok());
    }

    #[test]
    fn a_form_that_a_library_made_of_enumerations_is_read_once_it_is_flat() {
        let form = json!({ "$defs": { "Color": { "enum": ["red", "green"], "title": "Color", "type": "string" } },
            "properties": { "color": { "$ref": "#/$defs/Color" },
                "second": { "$ref": "#/$defs/Color", "default": "green" },
                "third": { "anyOf": [{ "$ref": "#/$defs/Color" }, { "type": "null" }], "default": null },
                "others": { "default": [], "items": { "$ref": "#/$defs/Color" }, "title": "Others", "type": "array" } },
            "required": ["color"], "title": "Choice", "type": "object" });
        check_refused(&form, "'$ref'");
        let read = Form::read(&flat(&form).unwrap(), &mut Budget::of_forms()).unwrap();
        assert_eq!(Value::Object(read.defaults), json!({ "second": "green", "third": null, "others": [] }));
    }

    #[test]
    fn forms_that_are_not_flat_or_too_large_are_refused() {
        let choices = json!({ "anyOf": [{ "properties": { "x": { "$ref": "#/$defs/n" } } }] });
        for (schema, why) in [
            (json!([]), "no JSON Schema of an object"),
            (json!({ "type": 7 }), "no JSON Schema of an object"),
            (json!({ "type": "string" }), "no JSON Schema of an object"),
            (json!({ "$ref": "#/$defs/n", "$defs": { "n": {} } }), "'$ref'"),
            (json!({ "allOf": [{}] }), "'allOf'"),
            (json!({ "patternProperties": { "a": {} } }), "'patternProperties'"),
            (json!({ "additionalProperties": {} }), "not flat"),
            (json!({ "required": "a" }), "required"),
            (with(json!({ "$ref": "#/$defs/n" })), "'$ref'"),
            (with(json!({ "type": "object" })), "wrong 'type'"),
            (with(json!({ "properties": {} })), "'properties'"),
            (with(json!({ "type": "array" })), "not of choices"),
            (with(json!({ "type": "array", "items": { "type": "array" } })), "wrong 'type'"),
            (with(json!({ "items": { "type": "string" } })), "not of choices"),
            (with(json!({ "anyOf": [choices] })), "'anyOf'"),
            (with(json!({ "not": {} })), "'not'"),
            (with(json!({ "default": { "x": 1 } })), "default"),
            (with(json!({ "default": [[1]] })), "default"),
            (with(json!({ "default": "x".repeat(5_000) })), "default"),
            (with(json!({ "minLength": -1 })), "wrong 'minLength'"),
            (with(json!({ "pattern": "(" })), "no JSON Schema"),
            (with(json!({ "pattern": "(a{900}){900}" })), "too long"),
            (with(json!({ "enum": "a" })), "wrong 'enum'"),
        ] {
            check_refused(&schema, why);
        }
        let many: Map<String, Value> = (0..200).map(|n| (n.to_string(), json!({}))).collect();
        check_refused(&json!({ "properties": many }), "more than 100");
        let patterns: Map<String, Value> = (0..60).map(|n| (n.to_string(), json!({ "pattern": "a{300}" }))).collect();
        check_refused(&json!({ "properties": patterns }), "too long");
    }

    #[test]
    fn the_forms_of_one_answer_are_bounded_together() {
        let form = with(json!({ "pattern": "^[a-z]{1,500}$" }));
        let mut budget = Budget::of_forms();
        let read = (0..100).take_while(|_| Form::read(&form, &mut budget).is_ok()).count();
        assert!((5..20).contains(&read), "{read}");
    }

    #[tokio::test]
    async fn a_form_gets_the_defaults_of_what_was_left_out_whatever_their_kind() {
        let schema = json!({ "type": "object", "required": ["note"], "properties": {
            "name": { "type": "string", "default": "Ann" },
            "age": { "type": "integer", "default": 7 },
            "share": { "type": "number", "default": 0.10 },
            "agrees": { "type": "boolean", "default": false },
            "size": { "type": "string", "enum": ["s", "m"], "default": "m" },
            "tags": { "type": "array", "items": { "enum": ["a", "b"] }, "default": ["a"] },
            "note": { "type": "string", "pattern": "^n" },
        } });
        let form = Form::read(&schema, &mut Budget::of_forms()).unwrap();
        let schemas = Schemas::default();
        let place = schemas.place(&TenantId::parse("acme").unwrap()).await.unwrap();
        let given = |given: Value| given.as_object().unwrap().clone();
        let fill = move |at: &AtDesk| {
            let good = form.fill(at, given(json!({ "age": 8, "note": "n" })), 5);
            (good, form.fill(at, given(json!({ "size": "l", "note": 1 })), 5).1, form.fill(at, Map::new(), 5).1)
        };
        let ((filled, none), wrong, missing) = place.run(fill).await.unwrap();
        let want = json!({ "name": "Ann", "age": 8, "share": 0.10, "agrees": false, "size": "m", "tags": ["a"],
            "note": "n" });
        assert_eq!((filled, none), (want, vec![]));
        let mut at: Vec<&str> = wrong.iter().map(|flaw| flaw.pointer.as_str()).collect();
        at.sort_unstable();
        assert_eq!(at, ["/note", "/size"]);
        assert_eq!(missing.len(), 1);
    }
}
