use serde_json::json;

use super::*;

const BOTH: [Provider; 2] = [Provider::Openai, Provider::Anthropic];

fn schema(provider: Provider, served: &Value) -> Value {
    told(provider, None, served).unwrap().input_schema
}

#[track_caller]
fn check_same(served: Value) {
    for provider in [Provider::Openai, Provider::Anthropic, Provider::Scripted] {
        let told = told(provider, Some("Does it."), &served).unwrap();
        assert_eq!(
            told,
            Told { description: Some("Does it.".to_owned()), input_schema: served.clone(), notes: vec![] }
        );
    }
}

#[test]
fn what_providers_take_is_told_as_it_was_served() {
    check_same(json!({ "type": "object", "properties": {} }));
    check_same(json!({
        "type": "object",
        "properties": {
            "a": { "anyOf": [{ "type": "string" }, { "$ref": "#/$defs/Node" }] }, "b": true,
            "c": { "type": "array", "prefixItems": [{ "const": 1 }], "items": false },
        },
        "required": ["a"],
        "additionalProperties": false,
        "unevaluatedProperties": false,
        "dependentRequired": { "a": ["b"] },
        "if": { "required": ["b"] }, "then": { "required": ["c"] },
        "$defs": { "Node": { "$anchor": "n", "properties": { "next": { "$ref": "#/$defs/Node" } } } },
    }));
}

#[test]
fn what_only_is_said_otherwise_is_said_in_the_providers_words() {
    let object = |properties: Value| json!({ "type": "object", "properties": properties });
    for provider in BOTH {
        for (served, want) in [
            (json!(null), object(json!({}))),
            (json!({}), object(json!({}))),
            (json!({ "type": ["object", "null"], "properties": {} }), object(json!({}))),
            (json!({ "$schema": "http://json-schema.org/draft-07/schema#", "$id": "x" }), object(json!({}))),
            (
                object(json!({ "a": { "type": "array" }, "b": { "type": ["array", "null"] } })),
                object(
                    json!({ "a": { "type": "array", "items": {} }, "b": { "type": ["array", "null"], "items": {} } }),
                ),
            ),
            (
                object(json!({ "a": { "items": [{ "type": "string" }], "additionalItems": false } })),
                object(json!({ "a": { "prefixItems": [{ "type": "string" }], "items": false } })),
            ),
            (
                object(
                    json!({ "a": { "minimum": 1, "exclusiveMinimum": true, "maximum": 2, "exclusiveMaximum": false } }),
                ),
                object(json!({ "a": { "exclusiveMinimum": 1, "maximum": 2 } })),
            ),
            (
                object(json!({ "a": { "const": { "items": [1] } } })),
                object(json!({ "a": { "const": { "items": [1] } } })),
            ),
        ] {
            let told = told(provider, None, &served).unwrap();
            assert_eq!((told.input_schema, told.notes.len()), (want, 0), "{served}");
        }
    }
}

#[test]
fn field_a032_a035_alternatives_at_the_top_become_arguments_and_the_rest_is_told_in_words() {
    let text = json!({ "type": "string" });
    let served = json!({
        "type": "object",
        "properties": { "name": text },
        "required": ["name"],
        "anyOf": [
            { "properties": { "url": text, "size": { "type": "integer" } }, "required": ["url", "size"] },
            { "properties": { "id": text, "size": text }, "required": ["id", "size"] },
        ],
        "allOf": [{ "$ref": "#/$defs/Mode" }],
        "$defs": { "Mode": { "properties": { "mode": text }, "required": ["mode"] } },
    });
    for provider in BOTH {
        let told = told(provider, Some("Attaches."), &served).unwrap();
        let schema = &told.input_schema;
        assert!(["anyOf", "allOf"].iter().all(|name| schema.get(*name).is_none()), "{schema}");
        let size = json!({ "anyOf": [{ "type": "integer" }, text] });
        assert_eq!(schema["properties"], json!({ "name": text, "mode": text, "url": text, "size": size, "id": text }));
        assert_eq!(schema["required"], json!(["name", "mode", "size"]));
        let said = told.description.unwrap();
        assert!(
            said.starts_with("Attaches.\n\nThe arguments must also fit this JSON Schema: {") && said.contains("anyOf")
        );
        assert!(told.notes[0].contains("allOf") && told.notes[0].contains("anyOf"), "{:?}", told.notes);
    }
    // Refused by one of them only.
    let negated = json!({ "type": "object", "properties": {}, "not": { "required": ["a"] } });
    assert_eq!(schema(Provider::Openai, &negated).get("not"), None);
    assert_eq!(schema(Provider::Anthropic, &negated), negated);
}

#[test]
fn a_reference_at_the_top_is_followed_and_one_that_leads_nowhere_is_a_reason() {
    let args = json!({ "type": "object", "properties": { "n": { "$ref": "#/$defs/N" } }, "required": ["n"] });
    let defs = json!({ "Args": args, "Again": { "$ref": "#/$defs/Args" }, "N": { "type": "integer" } });
    for provider in BOTH {
        let told = told(provider, None, &json!({ "$ref": "#/$defs/Again", "$defs": defs })).unwrap();
        assert_eq!(told.input_schema["properties"], args["properties"]);
        assert_eq!(told.input_schema["required"], json!(["n"]));
        assert_eq!((told.input_schema.get("$ref"), told.input_schema["$defs"].clone()), (None, defs.clone()));
        assert_eq!((told.notes.len(), told.description), (0, None));
        for astray in ["#", "#/$defs/Gone", "#/$defs/Self"] {
            let served = json!({ "$ref": astray, "$defs": { "Self": { "$ref": "#/$defs/Self" } } });
            assert!(super::told(provider, None, &served).is_err(), "{astray}");
        }
        let out = json!({ "type": "object", "properties": { "s": { "$ref": "https://json-schema.org/draft/2020-12/schema" } } });
        let told = super::told(provider, None, &out).unwrap();
        assert_eq!((told.input_schema["properties"]["s"].clone(), told.notes.len()), (json!({}), 1));
    }
}

#[test]
fn keys_that_a_provider_does_not_take_are_left_out_or_the_tool_is() {
    let served = |required: &[&str]| {
        json!({ "type": "object", "properties": { "$top": {}, "a b": {}, "x".repeat(65): {}, "ok.1-a_": {} },
                "required": required })
    };
    assert_eq!(schema(Provider::Openai, &served(&["$top"])), served(&["$top"]));
    let told = told(Provider::Anthropic, None, &served(&["ok.1-a_"])).unwrap();
    assert_eq!(told.input_schema["properties"], json!({ "ok.1-a_": {} }));
    assert!(told.notes[0].contains("\"$top\""), "{:?}", told.notes);
    assert!(super::told(Provider::Anthropic, None, &served(&["$top"])).unwrap_err().contains("$top"));
}

#[test]
fn long_descriptions_fit_and_are_not_lost() {
    let served = json!({ "type": "object", "properties": {} });
    let long = "ä".repeat(3_000);
    let short = told(Provider::Openai, Some(&long), &served).unwrap();
    assert_eq!(short.description.unwrap().chars().count(), 1_024);
    assert_eq!(short.input_schema["description"], json!(long));
    assert_eq!(told(Provider::Anthropic, Some(&long), &served).unwrap().notes, Vec::<String>::new());
    let huge = told(Provider::Anthropic, Some(&"x".repeat(100_000)), &served).unwrap();
    assert_eq!((huge.description.unwrap().chars().count(), huge.notes.len()), (16_384, 1));
}

#[test]
fn names_are_mapped_into_the_alphabet() {
    for name in ["a", "A-b_9", &"x".repeat(64)] {
        assert!(is_name(name), "{name}");
    }
    for name in ["", "a.b", "a/b", "a b", "ä", "a\u{0}", &"x".repeat(65)] {
        assert!(!is_name(name), "{name}");
        assert!(is_name(&distinct_name(name, 0)) && is_name(&distinct_name(name, 1)), "{name}");
        assert_ne!(distinct_name(name, 0), distinct_name(name, 1));
    }
    assert_eq!(plain_name("calendar.update/ä"), "calendar_update__");
    assert_ne!(distinct_name("a.b", 0), distinct_name("a/b", 0));
    assert_eq!(distinct_name("a.b", 0), distinct_name("a.b", 0));
}
