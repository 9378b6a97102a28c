//! What a provider takes of a tool: its name, its description, the schema of its arguments. A provider refuses a whole
//! request because of one tool, so each tool is told in a form that the provider takes, or not at all. The model may be
//! told less than the schema says, never more: arguments are always checked against the schema as it was served.
//!
//! Sources: the error texts of the providers (`tools[0].function.parameters`: no `oneOf`, `anyOf`, `allOf`, `enum` or
//! `not` at the top, `items` for every array, 1024 characters of description, 128 tools; `tools.0.custom.input_schema`:
//! no `oneOf`, `allOf` or `anyOf` at the top, keys of properties in an alphabet, JSON Schema 2020-12).

use serde_json::{Map, Value, json};

use super::json::sha256_hex;
use super::schema::walk;
use super::spec::Provider;

/// Longest name of a tool, in bytes; the alphabet is letters, digits, `_` and `-`.
const NAME_MAX: usize = 64;
/// Hex digits that tell mapped names apart.
const DIGEST: usize = 8;
/// Longest description that any model is told, in characters.
const DESCRIPTION_MAX: usize = 16_384;
/// Longest rest of a schema that is told in words, in characters.
const REST_MAX: usize = 2_000;
/// How often references at the top of a schema are followed.
const HOPS_MAX: usize = 16;

/// What one provider's protocol does not take.
struct Dialect {
    /// Keywords at the top of a schema.
    refused_at_top: &'static [&'static str],
    /// Longest description, in characters.
    description_max: usize,
    /// Whether the keys of the arguments are bound to an alphabet.
    has_key_alphabet: bool,
}

const fn dialect(provider: Provider) -> Option<Dialect> {
    match provider {
        Provider::Openai => Some(Dialect {
            refused_at_top: &["allOf", "anyOf", "oneOf", "enum", "not"],
            description_max: 1_024,
            has_key_alphabet: false,
        }),
        Provider::Anthropic => Some(Dialect {
            refused_at_top: &["allOf", "anyOf", "oneOf"],
            description_max: DESCRIPTION_MAX,
            has_key_alphabet: true,
        }),
        // Nobody reads it.
        Provider::Scripted => None,
    }
}

/// The most tools of one request.
pub const fn tools_max(provider: Provider) -> usize {
    match provider {
        Provider::Openai => 128,
        Provider::Anthropic | Provider::Scripted => usize::MAX,
    }
}

/// A tool as a provider is told of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Told {
    /// What it does.
    pub description: Option<String>,
    /// JSON Schema of its arguments.
    pub input_schema: Value,
    /// What the model is told otherwise than the server says it, for people.
    pub notes: Vec<String>,
}

/// The schema of a tool that serves none: any object.
pub fn any_object() -> Value {
    json!({ "type": "object", "properties": {} })
}

/// A tool in the provider's terms.
///
/// # Errors
/// Why the provider cannot be told of it.
pub fn told(provider: Provider, description: Option<&str>, input_schema: &Value) -> Result<Told, String> {
    let Value::Object(served) = input_schema else {
        let description = description.map(str::to_owned);
        return Ok(Told { description, input_schema: any_object(), notes: Vec::new() });
    };
    let mut told = Told { description: None, input_schema: Value::Null, notes: Vec::new() };
    let Some(dialect) = dialect(provider) else {
        let description = description.map(str::to_owned);
        return Ok(Told { description, input_schema: input_schema.clone(), ..told });
    };
    let mut schema = Value::Object(served.clone());
    modernise(&mut schema, &mut told.notes);
    let Value::Object(mut top) = schema else { return Err("its input schema is no object".to_owned()) };
    let mut said = description.map(str::to_owned);
    flatten(&mut top, &dialect, &mut said, &mut told.notes)?;
    top.insert("type".to_owned(), Value::from("object"));
    top.entry("properties").or_insert_with(|| json!({}));
    if dialect.has_key_alphabet {
        drop_keys(&mut top, &mut told.notes)?;
    }
    told.description = said.map(|said| describe(said, &mut top, &dialect, &mut told.notes));
    told.input_schema = Value::Object(top);
    Ok(told)
}

/// Says in the words of JSON Schema 2020-12 what older drafts say otherwise. Nothing is lost, but for references that
/// lead out of the schema: nobody but its author can follow them.
fn modernise(schema: &mut Value, notes: &mut Vec<String>) {
    let mut leads_out = false;
    walk(schema, &mut |part| {
        if part.get("items").is_some_and(Value::is_array) {
            let rest = part.remove("additionalItems");
            if let Some(first) = part.remove("items") {
                part.insert("prefixItems".to_owned(), first);
            }
            part.insert("items".to_owned(), rest.unwrap_or_else(|| json!({})));
        }
        for (limit, exclusive) in [("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")] {
            if let Some(Value::Bool(is_exclusive)) = part.get(exclusive) {
                let is_exclusive = *is_exclusive;
                part.remove(exclusive);
                if let (true, Some(bound)) = (is_exclusive, part.get(limit).cloned()) {
                    part.remove(limit);
                    part.insert(exclusive.to_owned(), bound);
                }
            }
        }
        let kinds = part.get("type");
        let is_array = kinds.is_some_and(|kind| kind == "array")
            || kinds.and_then(Value::as_array).is_some_and(|kinds| kinds.iter().any(|kind| kind == "array"));
        if is_array && !part.contains_key("items") {
            part.insert("items".to_owned(), json!({}));
        }
        if part.get("$ref").and_then(Value::as_str).is_some_and(|to| !to.starts_with('#')) {
            part.remove("$ref");
            leads_out = true;
        }
    });
    if leads_out {
        notes.push("references that lead out of its input schema are left open".to_owned());
    } else if let Value::Object(top) = schema {
        // Without references to them they are notes of the author.
        top.remove("$schema");
        top.remove("$id");
    }
}

/// Brings what stands under keywords that are refused at the top into `properties` and `required`, as far as it says
/// which arguments there are; all of it is told in words.
fn flatten(
    top: &mut Map<String, Value>,
    dialect: &Dialect,
    said: &mut Option<String>,
    notes: &mut Vec<String>,
) -> Result<(), String> {
    let whole = Value::Object(top.clone());
    for hop in 0..=HOPS_MAX {
        let Some(reference) = top.get("$ref").and_then(Value::as_str) else { break };
        let part = resolve(&whole, reference).and_then(Value::as_object).filter(|_| hop < HOPS_MAX);
        let part = part.cloned().ok_or("its input schema only refers to itself")?;
        top.remove("$ref");
        for (name, member) in part {
            match name.as_str() {
                "allOf" => extend(top, "allOf", member.as_array().cloned().unwrap_or_default()),
                "properties" | "required" => extend(top, "allOf", vec![json!({ name: member })]),
                _ => drop(top.entry(name).or_insert(member)),
            }
        }
    }
    let inlined: Vec<Value> = top.get("allOf").and_then(Value::as_array).cloned().unwrap_or_default();
    let is_only_inlined = whole.get("allOf").is_none() && !inlined.is_empty();
    let refused: Vec<&str> = dialect.refused_at_top.iter().copied().filter(|name| top.contains_key(*name)).collect();
    if refused.is_empty() {
        return Ok(());
    }
    let mut shape = Shape::of(top, &whole, HOPS_MAX);
    let mut rest = Map::new();
    for name in refused {
        let Some(member) = top.remove(name) else { continue };
        if name != "allOf" || !is_only_inlined {
            rest.insert(name.to_owned(), member);
        }
    }
    shape.required.retain(|name| shape.properties.contains_key(name));
    top.insert("properties".to_owned(), Value::Object(shape.properties));
    if shape.required.is_empty() {
        top.remove("required");
    } else {
        top.insert("required".to_owned(), shape.required.into_iter().map(Value::String).collect());
    }
    if rest.is_empty() {
        return Ok(());
    }
    let names: Vec<&str> = rest.keys().map(String::as_str).collect();
    notes.push(format!(
        "its input schema is offered without the {} at its top; arguments are checked against all of it",
        names.join(", ")
    ));
    let rest = Value::Object(rest).to_string();
    if rest.chars().count() <= REST_MAX {
        let before = said.take().filter(|said| !said.is_empty()).map(|said| said + "\n\n").unwrap_or_default();
        *said = Some(format!("{before}The arguments must also fit this JSON Schema: {rest}"));
    }
    Ok(())
}

/// Adds to a list under a keyword.
fn extend(top: &mut Map<String, Value>, name: &str, more: Vec<Value>) {
    let mut list = top.remove(name).and_then(|list| list.as_array().cloned()).unwrap_or_default();
    list.extend(more);
    top.insert(name.to_owned(), Value::Array(list));
}

/// Which arguments a schema names, and which of them it wants in every case.
#[derive(Default)]
struct Shape {
    properties: Map<String, Value>,
    required: Vec<String>,
}

impl Shape {
    fn of(part: &Map<String, Value>, whole: &Value, hops: usize) -> Self {
        let mut shape = Self::default();
        let Some(hops) = hops.checked_sub(1) else { return shape };
        let branch = |schema: &Value| schema.as_object().map(|part| Self::of(part, whole, hops)).unwrap_or_default();
        if let Some(Value::Object(properties)) = part.get("properties") {
            shape.properties.clone_from(properties);
        }
        let required = part.get("required").and_then(Value::as_array).into_iter().flatten();
        shape.required = required.filter_map(|name| name.as_str().map(str::to_owned)).collect();
        if let Some(target) = part.get("$ref").and_then(Value::as_str).and_then(|to| resolve(whole, to)) {
            shape.and(branch(target));
        }
        for each in part.get("allOf").and_then(Value::as_array).into_iter().flatten() {
            shape.and(branch(each));
        }
        for choice in ["anyOf", "oneOf"] {
            let mut branches = part.get(choice).and_then(Value::as_array).into_iter().flatten().map(branch);
            if let Some(first) = branches.next() {
                shape.and(branches.fold(first, Self::or));
            }
        }
        shape
    }

    fn and(&mut self, other: Self) {
        merge(&mut self.properties, other.properties, "allOf");
        for name in other.required {
            if !self.required.contains(&name) {
                self.required.push(name);
            }
        }
    }

    fn or(mut self, other: Self) -> Self {
        merge(&mut self.properties, other.properties, "anyOf");
        self.required.retain(|name| other.required.contains(name));
        self
    }
}

/// Two schemas of one argument become one that names both.
fn merge(properties: &mut Map<String, Value>, more: Map<String, Value>, join: &str) {
    for (name, schema) in more {
        match properties.get_mut(&name) {
            None => drop(properties.insert(name, schema)),
            Some(known) if *known == schema => {}
            Some(known) => match known.get_mut(join).and_then(Value::as_array_mut) {
                Some(joined) if !joined.contains(&schema) => joined.push(schema),
                Some(_) => {}
                None => *known = json!({ join: [known.take(), schema] }),
            },
        }
    }
}

/// The part that a reference inside of a schema leads to.
fn resolve<'a>(whole: &'a Value, reference: &str) -> Option<&'a Value> {
    let pointer = reference.strip_prefix('#')?;
    whole.pointer(pointer).filter(|_| !pointer.is_empty())
}

/// Leaves out arguments whose keys the provider does not take.
fn drop_keys(top: &mut Map<String, Value>, notes: &mut Vec<String>) -> Result<(), String> {
    let fits = |key: &str| {
        (1..=64).contains(&key.len())
            && key.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-'))
    };
    let required: Vec<&str> =
        top.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
    if let Some(key) = required.iter().find(|key| !fits(key)) {
        return Err(format!("the name of its argument {key:?} is not taken by the model's provider"));
    }
    let Some(Value::Object(properties)) = top.get_mut("properties") else { return Ok(()) };
    let dropped: Vec<String> = properties.keys().filter(|key| !fits(key)).cloned().collect();
    properties.retain(|key, _| fits(key));
    if !dropped.is_empty() {
        let names: Vec<String> = dropped.iter().take(10).map(|key| format!("{key:?}")).collect();
        notes.push(format!("its optional arguments {} are not offered", names.join(", ")));
    }
    Ok(())
}

/// A description that fits. What does not fit stands in the schema, as far as there is room.
fn describe(said: String, top: &mut Map<String, Value>, dialect: &Dialect, notes: &mut Vec<String>) -> String {
    if said.chars().count() <= dialect.description_max {
        return said;
    }
    let cut = cut(&said, dialect.description_max);
    if dialect.description_max < DESCRIPTION_MAX && !top.contains_key("description") {
        top.insert("description".to_owned(), Value::from(self::cut(&said, DESCRIPTION_MAX)));
        let max = dialect.description_max;
        notes.push(format!("its description is longer than {max} characters; all of it stands in its input schema"));
    } else {
        notes.push(format!("its description was cut to {} characters", dialect.description_max));
    }
    cut
}

/// The beginning of a text, of so many characters at most.
fn cut(text: &str, max: usize) -> String {
    match text.char_indices().nth(max) {
        None => text.to_owned(),
        Some(_) => text.chars().take(max.saturating_sub(1)).chain(['…']).collect(),
    }
}

/// Whether every provider takes this name of a tool.
pub fn is_name(name: &str) -> bool {
    (1..=NAME_MAX).contains(&name.len()) && name.bytes().all(is_letter)
}

const fn is_letter(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-')
}

/// A name in the providers' alphabet that looks like this one; others may look the same.
pub fn plain_name(name: &str) -> String {
    name.chars().map(|c| if u8::try_from(c).is_ok_and(is_letter) { c } else { '_' }).collect()
}

/// A name that every provider takes and that no other name becomes: the same for the same name, and told apart by its
/// digest. `salt` tells apart what even that does not.
pub fn distinct_name(name: &str, salt: usize) -> String {
    let digest = sha256_hex(&if salt == 0 { name.to_owned() } else { format!("{name}\n{salt}") });
    let digest: String = digest.chars().take(DIGEST).collect();
    let head: String = plain_name(name).chars().take(NAME_MAX.saturating_sub(DIGEST).saturating_sub(1)).collect();
    format!("{head}_{digest}")
}

#[cfg(test)]
#[path = "dialect_tests.rs"]
mod tests;
