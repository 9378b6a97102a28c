//! JSON as it was written: strict parsing that refuses a key twice, and RFC 8785 canonical text for digests.
//! Numbers keep their digits (`serde_json` with `arbitrary_precision`).

use std::fmt::{self, Write as _};

use aws_lc_rs::digest;
use serde::de::{DeserializeSeed, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// How `serde_json` hands an exact number to a visitor: a map with this one key.
const NUMBER_TOKEN: &str = "$serde_json::private::Number";

/// Keys that the JSON library keeps for itself: an object with one turns into a number or into the text that it holds.
const RESERVED: &str = "$serde_json::private::";

/// Whether the JSON library keeps this key for itself: an object that has it is not read as what it says.
pub fn is_reserved(key: &str) -> bool {
    key.starts_with(RESERVED)
}

/// Whether an object of this JSON text has a reserved key, however it is written. Such text is never honest: what would
/// be read is not what stands there.
pub fn has_reserved_key(text: &[u8]) -> bool {
    let suspicious = |pattern: &[u8]| text.windows(pattern.len()).any(|window| window == pattern);
    if !suspicious(b"\\u") && !suspicious(RESERVED.as_bytes()) {
        return false;
    }
    let (mut begun, mut escaped, mut last) = (None, false, None);
    for (at, &byte) in text.iter().enumerate() {
        match begun {
            Some(_) if escaped => escaped = false,
            Some(_) if byte == b'\\' => escaped = true,
            Some(start) if byte == b'"' => (begun, last) = (None, Some((start, at))),
            Some(_) => {}
            None if byte == b'"' => begun = Some(at),
            None if byte == b':' => {
                let key = last.take().and_then(|(start, end)| text.get(start..=end));
                if key.and_then(|key| serde_json::from_slice::<String>(key).ok()).is_some_and(|key| is_reserved(&key)) {
                    return true;
                }
            }
            None if byte.is_ascii_whitespace() => {}
            None => last = None,
        }
    }
    false
}

/// Parses JSON text, refusing a key that stands twice in one object, at any depth: what is sent is what was checked.
///
/// # Errors
/// The parser's own words, with line and column.
pub fn parse_strict(text: &str) -> Result<Value, String> {
    if has_reserved_key(text.as_bytes()) {
        return Err("reserved key".to_owned());
    }
    let mut parser = serde_json::Deserializer::from_str(text);
    let value = Strict.deserialize(&mut parser).map_err(|fault| fault.to_string())?;
    parser.end().map_err(|fault| fault.to_string())?;
    Ok(value)
}

struct Strict;

impl<'de> DeserializeSeed<'de> for Strict {
    type Value = Value;

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element_seed(Strict)? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            if key == NUMBER_TOKEN {
                let digits: String = map.next_value()?;
                let number: Number = digits.parse().map_err(A::Error::custom)?;
                return Ok(Value::Number(number));
            }
            let value = map.next_value_seed(Strict)?;
            if object.contains_key(&key) {
                return Err(A::Error::custom(format_args!("the key {key:?} stands twice in one object")));
            }
            object.insert(key, value);
        }
        Ok(Value::Object(object))
    }
}

/// Deepest nesting of arguments and results. The parser reads 127 levels, and a stored value sits inside others.
pub const MAX_DEPTH: usize = 100;

/// Whether a value is nested deeper than `MAX_DEPTH`: it could be written and never read again.
pub fn is_too_deep(value: &Value) -> bool {
    is_deeper(value, MAX_DEPTH)
}

fn is_deeper(value: &Value, levels: usize) -> bool {
    let Some(left) = levels.checked_sub(1) else { return value.is_array() || value.is_object() };
    match value {
        Value::Array(items) => items.iter().any(|item| is_deeper(item, left)),
        Value::Object(object) => object.values().any(|member| is_deeper(member, left)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

/// RFC 8785 canonical text: keys sorted by UTF-16 code units, numbers printed as ECMAScript prints them.
pub fn canonical(value: &Value) -> String {
    let mut out = String::new();
    write_canonical(value, &mut out);
    out
}

fn write_canonical(value: &Value, out: &mut String) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(true) => out.push_str("true"),
        Value::Bool(false) => out.push_str("false"),
        Value::Number(number) => write_number(number, out),
        Value::String(text) => write_string(text, out),
        Value::Array(items) => {
            out.push('[');
            for (at, item) in items.iter().enumerate() {
                if at > 0 {
                    out.push(',');
                }
                write_canonical(item, out);
            }
            out.push(']');
        }
        Value::Object(object) => {
            let mut members: Vec<_> = object.iter().collect();
            members.sort_by(|a, b| a.0.encode_utf16().cmp(b.0.encode_utf16()));
            out.push('{');
            for (at, (key, member)) in members.into_iter().enumerate() {
                if at > 0 {
                    out.push(',');
                }
                write_string(key, out);
                out.push(':');
                write_canonical(member, out);
            }
            out.push('}');
        }
    }
}

fn write_number(number: &Number, out: &mut String) {
    match number.as_f64() {
        Some(double) if double.is_finite() => out.push_str(ryu_js::Buffer::new().format_finite(double)),
        // Outside the range of a double ECMAScript has no spelling: the digits themselves stay distinct.
        Some(_) | None => out.push_str(&number.to_string()),
    }
}

fn write_string(text: &str, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{8}' => out.push_str("\\b"),
            '\u{9}' => out.push_str("\\t"),
            '\u{a}' => out.push_str("\\n"),
            '\u{c}' => out.push_str("\\f"),
            '\u{d}' => out.push_str("\\r"),
            control if control < ' ' => {
                // Writing to a String cannot fail.
                write!(out, "\\u{:04x}", u32::from(control)).unwrap_or_default();
            }
            other => out.push(other),
        }
    }
    out.push('"');
}

/// Whether a text has characters that show nothing, or change how what stands around them is shown: controls, and marks
/// of direction.
pub fn has_control(text: &str) -> bool {
    let is_mark =
        |c: char| matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}');
    text.chars().any(|c| c.is_control() || is_mark(c))
}

/// SHA-256 of text, in lower-case hex.
pub fn sha256_hex(text: &str) -> String {
    hex::encode(digest::digest(&digest::SHA256, text.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_the_library_keeps_for_itself_is_refused_however_it_is_written() {
        for key in [
            "$serde_json::private::Number",
            "\\u0024serde_json::private::RawValue",
            "\\u0024serde\\u005fjson::private::x",
        ] {
            let text = format!("{{\"a\":[{{\"b\":1,\"{key}\" \n: \"7\"}}]}}");
            assert_eq!(parse_strict(&text), Err("reserved key".to_owned()), "{text}");
            assert!(has_reserved_key(text.as_bytes()));
        }
        // As a value, or cut short, it is text like any other.
        for text in [
            r#"{"a":"$serde_json::private::Number"}"#,
            r#"["\u0024serde_json::private::RawValue"]"#,
            r#"{"$serde_json":1}"#,
        ] {
            assert!(parse_strict(text).is_ok(), "{text}");
        }
    }

    #[test]
    fn digits_survive_strict_parsing() {
        for digits in ["18446744073709551617", "117.63331139400017", "2512292042121000001", "1e21", "-0.10"] {
            let value = parse_strict(&format!("{{\"a\":[{digits}]}}")).unwrap();
            assert_eq!(value.to_string(), format!("{{\"a\":[{}]}}", digits.replace("1e21", "1e+21")));
        }
    }

    #[test]
    fn a_key_twice_is_refused_at_any_depth() {
        for twice in [r#"{"a":1,"a":1}"#, r#"{"x":[{"y":{"a":1,"b":2,"a":3}}]}"#, r#"{"a":1,"\u0061":2}"#] {
            assert!(parse_strict(twice).unwrap_err().contains("twice"), "{twice}");
        }
        assert!(parse_strict(r#"{"a":{"a":1},"b":[{"a":2},{"a":3}]}"#).is_ok());
    }

    #[test]
    fn text_that_is_not_one_json_value_is_refused() {
        for bad in ["", "{", "1 2", "{\"a\":}", "nope", &"[".repeat(500), r#"{"$serde_json::private::Number":"1"}"#] {
            assert!(parse_strict(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_is_nested_too_deep_is_told_apart_at_the_very_level() {
        let nested = |levels: usize| parse_strict(&format!("{}{}", "[".repeat(levels), "]".repeat(levels))).unwrap();
        assert!(!is_too_deep(&nested(MAX_DEPTH)));
        assert!(is_too_deep(&nested(MAX_DEPTH + 1)));
        assert!(!is_too_deep(&Value::Null));
    }

    #[test]
    fn canonical_text_sorts_by_utf16_and_prints_numbers_as_ecmascript() {
        let value =
            parse_strict("{\"\u{ff5e}\":1.0,\"\u{1f600}\":1e21,\"a\":0.1,\"n\":\"\\u0000\\u001f\\n\"}").unwrap();
        assert_eq!(canonical(&value), "{\"a\":0.1,\"n\":\"\\u0000\\u001f\\n\",\"\u{1f600}\":1e+21,\"\u{ff5e}\":1}");
    }
}
