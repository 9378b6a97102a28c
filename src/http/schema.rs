//! Checks bodies against the schemas of the published document, so that every fault is told at once with its place.
//! No message repeats a value: bodies hold secrets.

use std::collections::HashMap;

use jsonschema::error::{TypeKind, ValidationErrorKind};
use jsonschema::{Keyword, ValidationError, Validator};
use serde_json::{Map, Value, json};

use super::problem::Flaw;

/// Most faults that are told of one body.
const FLAWS_MAX: usize = 100;

/// The compiled schemas of request bodies, by name.
pub(super) struct Schemas(HashMap<&'static str, Validator>);

impl Schemas {
    /// Compiles the named component schemas of the published document.
    ///
    /// # Errors
    /// Which one does not compile.
    pub(super) fn compile(document: &Value, names: &[&'static str]) -> Result<Self, String> {
        let compile = |name: &&'static str| {
            let schema = json!({
                "$schema": "https://json-schema.org/draft/2020-12/schema",
                "$ref": format!("#/components/schemas/{name}"),
                "components": document.get("components"),
            });
            jsonschema::options()
                .with_keyword("enum", enum_keyword)
                .build(&schema)
                .map(|validator| (*name, validator))
                .map_err(|fault| format!("schema {name}: {fault}"))
        };
        names.iter().map(compile).collect::<Result<_, _>>().map(Self)
    }

    /// Every fault of a body; empty when it fits. An unknown name never fits.
    pub(super) fn flaws(&self, name: &str, body: &Value) -> Vec<Flaw> {
        let Some(validator) = self.0.get(name) else {
            return vec![Flaw::at("", "has no schema")];
        };
        let mut flaws = Vec::new();
        for error in validator.iter_errors(body) {
            describe(&error, &mut flaws);
        }
        flaws.truncate(FLAWS_MAX);
        flaws
    }
}

fn describe(error: &ValidationError<'_>, flaws: &mut Vec<Flaw>) {
    let place = error.instance_path().to_string();
    match error.kind() {
        ValidationErrorKind::AdditionalProperties { unexpected } => {
            flaws.extend(unexpected.iter().map(|name| Flaw::at(below(&place, name), "is not a known field")));
        }
        ValidationErrorKind::Required { property } => {
            let name = property.as_str().unwrap_or_default();
            flaws.push(Flaw::at(below(&place, name), "is required"));
        }
        ValidationErrorKind::OneOfNotValid { context } | ValidationErrorKind::AnyOf { context } => {
            match meant(context, &place) {
                Some(errors) => errors.iter().for_each(|error| describe(error, flaws)),
                None => flaws.push(none_of(context, place)),
            }
        }
        ValidationErrorKind::Custom { message, .. } => flaws.push(Flaw::at(place, message)),
        ValidationErrorKind::Pattern { pattern } => flaws.push(Flaw::at(place, format!("does not match {pattern}"))),
        _ => {
            let words = error.masked().to_string();
            flaws.push(Flaw::at(place, words.strip_prefix("value ").unwrap_or(&words)));
        }
    }
}

/// The alternative that the caller meant: the only one of the value's type, or the only one with its tag.
fn meant<'a>(context: &'a [Vec<ValidationError<'static>>], place: &str) -> Option<&'a Vec<ValidationError<'static>>> {
    let of_type = |errors: &&Vec<ValidationError<'static>>| {
        let other = |error: &ValidationError<'static>| {
            matches!(error.kind(), ValidationErrorKind::Type { .. }) && error.instance_path().as_str() == place
        };
        !errors.iter().any(other)
    };
    let candidates: Vec<_> = context.iter().filter(of_type).collect();
    if let [only] = candidates.as_slice() {
        return Some(only);
    }
    let of_tag = |errors: &&&Vec<ValidationError<'static>>| {
        !errors.iter().any(|error| matches!(error.kind(), ValidationErrorKind::Custom { .. }))
    };
    let tagged: Vec<_> = candidates.iter().filter(of_tag).collect();
    match tagged.as_slice() {
        [only] => Some(only),
        _ => None,
    }
}

/// What would have been taken, where nothing says which alternative was meant: the tags, else the types.
fn none_of(context: &[Vec<ValidationError<'static>>], place: String) -> Flaw {
    let mut types: Vec<String> = context.iter().filter_map(|errors| other_type(errors, &place)).collect();
    types.dedup();
    let alike: Vec<_> = context.iter().filter(|errors| other_type(errors, &place).is_none()).collect();
    let tags: Option<Vec<(String, String)>> = alike.iter().map(|errors| errors.iter().find_map(tag)).collect();
    if let Some([(at, first), others @ ..]) = tags.as_deref()
        && others.iter().all(|(other, _)| other == at)
    {
        let others = others.iter().map(|(_, says)| says.trim_start_matches("must be "));
        let all: Vec<&str> = std::iter::once(first.as_str()).chain(others).collect();
        return Flaw::at(at.clone(), all.join(" or "));
    }
    let lacks = |errors: &&Vec<ValidationError<'static>>| errors.iter().find_map(required);
    let mut lacking = alike.iter().map(lacks);
    if let Some(Some(first)) = lacking.next()
        && lacking.all(|other| other.as_ref() == Some(&first))
    {
        return Flaw::at(below(&place, &first), "is required: it says which form is meant");
    }
    if !types.is_empty() && alike.is_empty() {
        return Flaw::at(place, format!("must be of type {}", types.join(" or ")));
    }
    Flaw::at(place, "has none of the allowed forms")
}

/// The type that the value should have had.
fn other_type(errors: &[ValidationError<'static>], place: &str) -> Option<String> {
    errors.iter().filter(|error| error.instance_path().as_str() == place).find_map(|error| match error.kind() {
        ValidationErrorKind::Type { kind: TypeKind::Single(kind) } => Some(kind.to_string()),
        _ => None,
    })
}

/// The place of a tag, and which value it must have.
fn tag(error: &ValidationError<'static>) -> Option<(String, String)> {
    match error.kind() {
        ValidationErrorKind::Custom { message, .. } => Some((error.instance_path().to_string(), message.clone())),
        _ => None,
    }
}

fn required(error: &ValidationError<'static>) -> Option<String> {
    match error.kind() {
        ValidationErrorKind::Required { property } => property.as_str().map(str::to_owned),
        _ => None,
    }
}

fn below(place: &str, name: &str) -> String {
    format!("{place}/{}", name.replace('~', "~0").replace('/', "~1"))
}

/// `enum` that takes its values with `-` or `_`, as the contract says.
struct EitherDash(Vec<Value>);

impl EitherDash {
    fn fits(&self, value: &Value) -> bool {
        let text = value.as_str().map(either);
        self.0.iter().any(|option| match (&text, option.as_str()) {
            (Some(text), Some(option)) => *text == either(option),
            _ => value == option,
        })
    }
}

fn either(text: &str) -> String {
    text.replace('_', "-")
}

impl<'i> Keyword<'i> for EitherDash {
    fn validate(&self, value: &'i Value) -> Result<(), ValidationError<'i>> {
        if self.fits(value) {
            return Ok(());
        }
        let options: Vec<String> = self.0.iter().map(Value::to_string).collect();
        Err(ValidationError::custom(format!("must be {}", options.join(" or "))))
    }

    fn is_valid(&self, value: &'i Value) -> bool {
        self.fits(value)
    }
}

#[expect(clippy::unnecessary_wraps, reason = "the library's signature")]
fn enum_keyword<'a>(
    _parent: &'a Map<String, Value>,
    options: &'a Value,
    _place: jsonschema::paths::Location,
) -> Result<Box<dyn for<'i> Keyword<'i>>, ValidationError<'a>> {
    Ok(Box::new(EitherDash(options.as_array().cloned().unwrap_or_default())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(body: &Value) -> Vec<(String, String)> {
        let document = json!({ "components": { "schemas": {
            "Body": {
                "type": "object",
                "required": ["model"],
                "additionalProperties": false,
                "properties": {
                    "model": { "type": "string", "maxLength": 4 },
                    "class": { "oneOf": [
                        { "type": "null" },
                        { "type": "string", "enum": ["read_only", "idempotent_write"] },
                    ]},
                    "limits": { "oneOf": [{ "type": "null" }, { "$ref": "#/components/schemas/Limits" }] },
                    "auth": { "oneOf": [
                        { "type": "object", "required": ["scheme", "secret"], "additionalProperties": false,
                          "properties": { "scheme": { "type": "string", "enum": ["bearer"] }, "secret": { "type": "string" } } },
                        { "type": "object", "required": ["scheme", "header"], "additionalProperties": false,
                          "properties": { "scheme": { "type": "string", "enum": ["header"] }, "header": { "type": "string" } } },
                    ]},
                },
            },
            "Limits": {
                "type": "object", "additionalProperties": false,
                "properties": { "max_turns": { "type": "integer", "minimum": 1 } },
            },
        }}});
        let schemas = Schemas::compile(&document, &["Body"]).unwrap();
        schemas.flaws("Body", body).into_iter().map(|flaw| (flaw.pointer.unwrap(), flaw.detail)).collect()
    }

    #[test]
    fn every_fault_is_told_at_once_with_its_place_and_without_its_value() {
        let body = json!({
            "model": "s3cret-value", "modle": 1, "a/b~c": 2, "class": "sometimes",
            "limits": { "max_turns": 0, "max_turn": 7 }, "auth": { "scheme": "header", "secret": "s3cret-value" },
        });
        let said = check(&body);
        let at: Vec<&str> = said.iter().map(|(pointer, _)| pointer.as_str()).collect();
        for pointer in [
            "/model",
            "/modle",
            "/a~1b~0c",
            "/class",
            "/limits/max_turns",
            "/limits/max_turn",
            "/auth/secret",
            "/auth/header",
        ] {
            assert!(at.contains(&pointer), "{pointer} is missing in {said:?}");
        }
        assert_eq!(at.len(), 8, "{said:?}");
        assert!(!format!("{said:?}").contains("s3cret"), "{said:?}");
        assert_eq!(check(&json!({})), [("/model".to_owned(), "is required".to_owned())]);
        assert_eq!(check(&json!([])).len(), 1);
    }

    #[test]
    fn where_no_form_was_meant_the_forms_are_named() {
        let told = |auth: Value| check(&json!({ "model": "m", "auth": auth })).remove(0);
        let scheme = |detail: &str| ("/auth/scheme".to_owned(), detail.to_owned());
        assert_eq!(told(json!({ "scheme": "basic", "secret": "s" })), scheme("must be \"bearer\" or \"header\""));
        assert_eq!(told(json!({ "secret": "s" })).0, "/auth/scheme");
        assert_eq!(told(json!(7)), ("/auth".to_owned(), "must be of type object".to_owned()));
    }

    #[test]
    fn enum_values_are_taken_with_either_dash() {
        for class in ["read_only", "read-only", "idempotent-write"] {
            assert_eq!(check(&json!({ "model": "m", "class": class })), []);
        }
        let said = check(&json!({ "model": "m", "class": "write" }));
        assert_eq!(said[0].1, "must be \"read_only\" or \"idempotent_write\"");
    }
}
