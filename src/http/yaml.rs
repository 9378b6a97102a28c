//! YAML documents as JSON: the core schema of YAML 1.2, with numbers as they were written, and nothing that grows.
//!
//! Knows nothing of what a document is about: it is checked like any JSON body.

use std::collections::HashMap;

use saphyr_parser::{Event, Parser, ScalarStyle, Span, Tag};
use serde_json::{Map, Number, Value};

use crate::run::json::MAX_DEPTH;

/// Most values of a document, those that aliases repeat counted each time.
const VALUES_MAX: usize = 100_000;

/// Reads one document.
///
/// # Errors
/// What is wrong, and where.
pub(super) fn read(text: &str) -> Result<Value, String> {
    let mut reader = Reader { events: Parser::new_from_str(text), anchors: HashMap::new(), left: VALUES_MAX };
    let mut document = None;
    loop {
        let (event, span) = reader.next()?;
        match event {
            Event::DocumentStart(_) if document.is_some() => return Err(at(&span, "there is more than one document")),
            Event::DocumentStart(_) => {
                let (event, span) = reader.next()?;
                document = Some(reader.value(event, &span, 0)?.0);
            }
            Event::StreamEnd => return document.ok_or_else(|| "there is no document".to_owned()),
            _ => {}
        }
    }
}

struct Reader<'a> {
    events: Parser<'a, saphyr_parser::StrInput<'a>>,
    anchors: HashMap<usize, (Value, usize)>,
    left: usize,
}

impl<'a> Reader<'a> {
    fn next(&mut self) -> Result<(Event<'a>, Span), String> {
        match self.events.next_event() {
            Some(Ok(event)) => Ok(event),
            Some(Err(fault)) => Err(place(fault.marker(), fault.info())),
            None => Err("the document ends too early".to_owned()),
        }
    }

    /// A value, and how many it holds with those inside of it.
    fn value(&mut self, event: Event<'a>, span: &Span, depth: usize) -> Result<(Value, usize), String> {
        if depth > MAX_DEPTH {
            return Err(at(span, &format!("values nest deeper than {MAX_DEPTH} levels")));
        }
        let (anchor, (value, count)) = match event {
            Event::Alias(anchor) => {
                let Some((value, count)) = self.anchors.get(&anchor).cloned() else {
                    return Err(at(span, "an alias stands for nothing"));
                };
                self.take(count, span)?;
                return Ok((value, count));
            }
            Event::Scalar(text, style, anchor, tag) => {
                self.take(1, span)?;
                (anchor, (scalar(&text, style, tag.as_deref()).map_err(|fault| at(span, &fault))?, 1))
            }
            Event::SequenceStart(anchor, tag) => {
                refuse_tag(tag.as_deref(), "seq", span)?;
                (anchor, self.sequence(span, depth)?)
            }
            Event::MappingStart(anchor, tag) => {
                refuse_tag(tag.as_deref(), "map", span)?;
                (anchor, self.mapping(span, depth)?)
            }
            _ => return Err(at(span, "a value is missing")),
        };
        if anchor > 0 {
            self.anchors.insert(anchor, (value.clone(), count));
        }
        Ok((value, count))
    }

    fn sequence(&mut self, span: &Span, depth: usize) -> Result<(Value, usize), String> {
        self.take(1, span)?;
        let (mut items, mut count) = (Vec::new(), 1);
        loop {
            let (event, span) = self.next()?;
            if event == Event::SequenceEnd {
                return Ok((Value::Array(items), count));
            }
            let (item, inside) = self.value(event, &span, depth + 1)?;
            items.push(item);
            count += inside;
        }
    }

    fn mapping(&mut self, span: &Span, depth: usize) -> Result<(Value, usize), String> {
        self.take(1, span)?;
        let (mut members, mut count) = (Map::new(), 1);
        loop {
            let (event, span) = self.next()?;
            let name = match event {
                Event::MappingEnd => return Ok((Value::Object(members), count)),
                Event::Scalar(name, _, _, _) => name.into_owned(),
                _ => return Err(at(&span, "a key must be text")),
            };
            if name == "<<" {
                return Err(at(&span, "merge keys are not part of YAML 1.2"));
            }
            let (event, value_span) = self.next()?;
            let (value, inside) = self.value(event, &value_span, depth + 1)?;
            if members.insert(name.clone(), value).is_some() {
                return Err(at(&span, &format!("the key {name:?} stands twice")));
            }
            count += inside;
        }
    }

    fn take(&mut self, count: usize, span: &Span) -> Result<(), String> {
        self.left = self.left.checked_sub(count).ok_or_else(|| at(span, "the document has too many values"))?;
        Ok(())
    }
}

fn at(span: &Span, says: &str) -> String {
    place(&span.start, says)
}

fn place(marker: &saphyr_parser::Marker, says: &str) -> String {
    format!("line {}, column {}: {says}", marker.line(), marker.col() + 1)
}

fn refuse_tag(tag: Option<&Tag>, own: &str, span: &Span) -> Result<(), String> {
    match tag {
        Some(tag) if !(tag.is_yaml_core_schema() && tag.suffix == own) => {
            Err(at(span, &format!("the tag {tag} is not taken")))
        }
        _ => Ok(()),
    }
}

fn scalar(text: &str, style: ScalarStyle, tag: Option<&Tag>) -> Result<Value, String> {
    let plain = style == ScalarStyle::Plain;
    match tag {
        None if plain => resolved(text),
        None => Ok(Value::String(text.to_owned())),
        Some(tag) if tag.is_yaml_core_schema() && tag.suffix == "str" => Ok(Value::String(text.to_owned())),
        Some(tag) => Err(format!("the tag {tag} is not taken")),
    }
}

/// What plain text means by the core schema.
fn resolved(text: &str) -> Result<Value, String> {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Ok(Value::Null),
        "true" | "True" | "TRUE" => return Ok(Value::Bool(true)),
        "false" | "False" | "FALSE" => return Ok(Value::Bool(false)),
        _ => {}
    }
    let bare = text.strip_prefix(['-', '+']).unwrap_or(text);
    if matches!(bare, ".inf" | ".Inf" | ".INF") || matches!(text, ".nan" | ".NaN" | ".NAN") {
        return Err(format!("{text} is not a number that JSON has; quote it to mean text"));
    }
    if let Some(number) = other_base(text, "0o", 8).or_else(|| other_base(text, "0x", 16)) {
        return number.map(|number| Value::Number(Number::from(number)));
    }
    Ok(decimal(text).unwrap_or_else(|| Value::String(text.to_owned())))
}

fn other_base(text: &str, prefix: &str, base: u32) -> Option<Result<u64, String>> {
    let digits = text.strip_prefix(prefix).filter(|digits| !digits.is_empty())?;
    let fits = digits.chars().all(|c| c.is_digit(base));
    fits.then(|| u64::from_str_radix(digits, base).map_err(|_large| format!("the number {text} is out of range")))
}

/// `[-+]? ( \. [0-9]+ | [0-9]+ ( \. [0-9]* )? ) ( [eE] [-+]? [0-9]+ )?`, with its digits as they are.
fn decimal(text: &str) -> Option<Value> {
    let is_digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let (sign, bare) = match text.strip_prefix('-') {
        Some(bare) => ("-", bare),
        None => ("", text.strip_prefix('+').unwrap_or(text)),
    };
    let (mantissa, exponent) = match bare.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (bare, None),
    };
    let (whole, fraction) = match mantissa.split_once('.') {
        Some((whole, fraction)) => (whole, Some(fraction)),
        None => (mantissa, None),
    };
    let mantissa_fits = match fraction {
        None => is_digits(whole),
        Some(fraction) => {
            (is_digits(whole) && (fraction.is_empty() || is_digits(fraction)))
                || (whole.is_empty() && is_digits(fraction))
        }
    };
    let unsigned = |exponent: &str| exponent.strip_prefix(['-', '+']).unwrap_or(exponent).to_owned();
    if !mantissa_fits || exponent.is_some_and(|exponent| !is_digits(&unsigned(exponent))) {
        return None;
    }
    // JSON has no leading zeros, and digits on both sides of a point.
    let whole = match whole.trim_start_matches('0') {
        "" => "0",
        digits => digits,
    };
    let fraction = fraction.filter(|fraction| !fraction.is_empty()).map(|fraction| format!(".{fraction}"));
    let exponent = exponent.map(|exponent| format!("e{exponent}"));
    let written = format!("{sign}{whole}{}{}", fraction.unwrap_or_default(), exponent.unwrap_or_default());
    serde_json::from_str::<Number>(&written).ok().map(Value::Number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::json::parse_strict;

    #[track_caller]
    fn check(yaml: &str, json: &str) {
        let read = read(yaml).unwrap_or_else(|fault| panic!("{yaml}: {fault}"));
        assert_eq!(read, parse_strict(json).unwrap(), "{yaml}");
    }

    #[test]
    fn documents_mean_what_the_core_schema_says() {
        check("a: 1\nb: [true, ~, x]\nc:\n  d: 'no'\n", r#"{"a":1,"b":[true,null,"x"],"c":{"d":"no"}}"#);
        check("no: no\nyes: yes\non: off", r#"{"no":"no","yes":"yes","on":"off"}"#);
        check("v: 1.2.0\nd: 2026-11-30\nt: 12:30", r#"{"v":"1.2.0","d":"2026-11-30","t":"12:30"}"#);
        check(
            "- 18446744073709551617\n- 117.63331139400017\n- -0.5\n- 1e21",
            "[18446744073709551617,117.63331139400017,-0.5,1e21]",
        );
        check("- 0o17\n- 0x1F\n- 007\n- +5\n- .5\n- 5.\n- 1e+3", "[15,31,7,5,0.5,5,1e+3]");
        check("t: |\n  one\n  two\nf: >-\n  one\n  two", r#"{"t":"one\ntwo\n","f":"one two"}"#);
        check("a: &x {n: 1}\nb: *x", r#"{"a":{"n":1},"b":{"n":1}}"#);
        check("a: !!str 5", r#"{"a":"5"}"#);
        check("{\"a\": [1, 2]}", r#"{"a":[1,2]}"#);
    }

    #[track_caller]
    fn refused(yaml: &str, says: &str) {
        let fault = read(yaml).expect_err(yaml);
        assert!(fault.contains(says), "{yaml}: {fault}");
    }

    #[test]
    fn what_json_has_not_and_what_grows_is_refused_with_its_place() {
        refused("a: 1\na: 2", "line 2, column 1: the key \"a\" stands twice");
        refused("a: .inf", "not a number that JSON has");
        refused("a: !thing 5", "tag");
        refused("? [a]\n: b", "a key must be text");
        refused("a: 1\n---\nb: 2", "more than one document");
        refused("base: &b {x: 1}\nc:\n  <<: *b", "merge keys");
        refused("a: [1, 2", "line");
        refused("a: *nowhere", "");
        refused("", "no document");
        refused(&format!("{}1{}", "[".repeat(200), "]".repeat(200)), "nest deeper than");
        let line = |n: u32| format!("a{n}: &a{n} [{}]", vec![format!("*a{}", n - 1); 10].join(","));
        let bomb: Vec<String> = (1..9).map(line).collect();
        refused(&format!("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n{}", bomb.join("\n")), "too many values");
    }
}
