//! YAML documents as JSON: the core schema of YAML 1.2, with numbers as they were written, and nothing that grows.
//! Anchors are refused, and so every alias: what is read is never larger, nor deeper, than what stands there.
//!
//! Knows nothing of what a document is about: it is checked like any JSON body.

use saphyr_parser::{Event, Parser, ScalarStyle, Span, Tag};
use serde_json::{Map, Number, Value};

use crate::run::json::{MAX_DEPTH, is_reserved};

/// Most values of a document.
const VALUES_MAX: usize = 100_000;

/// Why a document is not read. Says what, and in which line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum YamlFault {
    /// It is not YAML.
    #[error("{0}")]
    Malformed(String),
    /// It is YAML that is not taken here.
    #[error("{0}")]
    NotTaken(String),
}

use YamlFault::{Malformed, NotTaken};

/// Reads one document.
///
/// # Errors
/// The first thing that is wrong, and where.
pub(super) fn read(text: &str) -> Result<Value, YamlFault> {
    let mut reader = Reader { events: Parser::new_from_str(text), left: VALUES_MAX };
    let mut document = None;
    loop {
        let (event, span) = reader.next()?;
        match event {
            Event::DocumentStart(_) if document.is_some() => {
                return Err(NotTaken(at(&span, "there is more than one document")));
            }
            Event::DocumentStart(_) => {
                let (event, span) = reader.next()?;
                document = Some(reader.value(event, &span, 0)?);
            }
            Event::StreamEnd => return document.ok_or_else(|| Malformed("there is no document".to_owned())),
            _ => {}
        }
    }
}

struct Reader<'a> {
    events: Parser<'a, saphyr_parser::StrInput<'a>>,
    left: usize,
}

impl<'a> Reader<'a> {
    fn next(&mut self) -> Result<(Event<'a>, Span), YamlFault> {
        match self.events.next_event() {
            Some(Ok(event)) => Ok(event),
            Some(Err(fault)) => Err(Malformed(place(fault.marker(), fault.info()))),
            None => Err(Malformed("the document ends too early".to_owned())),
        }
    }

    fn value(&mut self, event: Event<'a>, span: &Span, depth: usize) -> Result<Value, YamlFault> {
        if depth > MAX_DEPTH {
            return Err(NotTaken(at(span, &format!("values nest deeper than {MAX_DEPTH} levels"))));
        }
        refuse_anchor(&event, span)?;
        self.left = self.left.checked_sub(1).ok_or_else(|| NotTaken(at(span, "the document has too many values")))?;
        match event {
            Event::Scalar(text, style, _, tag) => {
                scalar(&text, style, tag.as_deref()).map_err(|fault| NotTaken(at(span, &fault)))
            }
            Event::SequenceStart(_, tag) => {
                refuse_tag(tag.as_deref(), "seq", span)?;
                self.sequence(depth)
            }
            Event::MappingStart(_, tag) => {
                refuse_tag(tag.as_deref(), "map", span)?;
                self.mapping(depth)
            }
            _ => Err(Malformed(at(span, "a value is missing"))),
        }
    }

    fn sequence(&mut self, depth: usize) -> Result<Value, YamlFault> {
        let mut items = Vec::new();
        loop {
            let (event, span) = self.next()?;
            if event == Event::SequenceEnd {
                return Ok(Value::Array(items));
            }
            items.push(self.value(event, &span, depth + 1)?);
        }
    }

    fn mapping(&mut self, depth: usize) -> Result<Value, YamlFault> {
        let mut members = Map::new();
        loop {
            let (event, span) = self.next()?;
            refuse_anchor(&event, &span)?;
            let name = match event {
                Event::MappingEnd => return Ok(Value::Object(members)),
                Event::Scalar(name, _, _, _) => name.into_owned(),
                _ => return Err(NotTaken(at(&span, "a key must be text"))),
            };
            if name == "<<" {
                return Err(NotTaken(at(&span, "merge keys are not part of YAML 1.2")));
            }
            if is_reserved(&name) {
                return Err(Malformed(at(&span, "reserved key")));
            }
            let (event, value_span) = self.next()?;
            let value = self.value(event, &value_span, depth + 1)?;
            if members.insert(name.clone(), value).is_some() {
                return Err(Malformed(at(&span, &format!("the key {name:?} stands twice"))));
            }
        }
    }
}

/// What aliases repeat would multiply: a few kilobytes can stand for any size and depth.
fn refuse_anchor(event: &Event<'_>, span: &Span) -> Result<(), YamlFault> {
    let is_refused = match event {
        Event::Alias(_) => true,
        Event::Scalar(_, _, anchor, _) | Event::SequenceStart(anchor, _) | Event::MappingStart(anchor, _) => {
            *anchor > 0
        }
        _ => false,
    };
    let says = "anchors and aliases (&name, *name) are not taken; write the value wherever it belongs";
    if is_refused { Err(NotTaken(at(span, says))) } else { Ok(()) }
}

fn at(span: &Span, says: &str) -> String {
    place(&span.start, says)
}

fn place(marker: &saphyr_parser::Marker, says: &str) -> String {
    format!("line {}, column {}: {says}", marker.line(), marker.col() + 1)
}

fn refuse_tag(tag: Option<&Tag>, own: &str, span: &Span) -> Result<(), YamlFault> {
    match tag {
        Some(tag) if !(tag.is_yaml_core_schema() && tag.suffix == own) => {
            Err(NotTaken(at(span, &format!("the tag {tag} is not taken"))))
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
        check("a: '*x'\nb: a&b\nc: 5 * 5", r#"{"a":"*x","b":"a&b","c":"5 * 5"}"#);
        check("a: !!str 5", r#"{"a":"5"}"#);
        check("{\"a\": [1, 2]}", r#"{"a":[1,2]}"#);
    }

    #[track_caller]
    fn refused(yaml: &str, says: &str) -> YamlFault {
        let fault = read(yaml).expect_err(yaml);
        assert!(fault.to_string().contains(says), "{yaml}: {fault}");
        fault
    }

    #[track_caller]
    fn malformed(yaml: &str, says: &str) {
        assert!(matches!(refused(yaml, says), Malformed(_)), "{yaml}");
    }

    #[track_caller]
    fn not_taken(yaml: &str, says: &str) {
        assert!(matches!(refused(yaml, says), NotTaken(_)), "{yaml}");
    }

    #[test]
    fn what_json_has_not_is_refused_with_its_place() {
        malformed("a: 1\na: 2", "line 2, column 1: the key \"a\" stands twice");
        malformed("a: [1, 2", "line");
        malformed("", "no document");
        malformed("a: {$serde_json::private::Number: '5'}", "line 1, column 5: reserved key");
        not_taken("a: .inf", "not a number that JSON has");
        not_taken("a: !thing 5", "tag");
        not_taken("? [a]\n: b", "a key must be text");
        not_taken("a: 1\n---\nb: 2", "more than one document");
        not_taken("a: 1\n<<: {b: 2}", "line 2, column 1: merge keys");
    }

    #[test]
    fn anchors_and_aliases_are_refused_with_their_line_before_anything_is_repeated() {
        let says = "anchors and aliases";
        not_taken("a: 1\nb: &x {n: 1}\nc: *x", &format!("line 2, column 4: {says}"));
        for one in ["&x 5", "a: &x\nb: 1", "- &x [1]", "a:\n  &k b: 1", "? &x [a]\n: b", "&x a: *x", "a: &x [*x]"] {
            not_taken(one, says);
        }
        malformed("a: *nowhere", "line 1");
        // A long text many times over, and nesting that no text shows.
        not_taken(&format!("a: &a {}\nb: [{}]", "x".repeat(1024), vec!["*a"; 20].join(",")), says);
        let link = |n: u32| format!("k{n}: &k{n} {}*k{} {}", "[".repeat(95), n - 1, "]".repeat(95));
        let links: Vec<String> = (1..40).map(link).collect();
        not_taken(&format!("k0: &k0 1\n{}", links.join("\n")), &format!("line 1, column 5: {says}"));
    }

    #[test]
    fn what_is_deep_or_has_many_values_is_refused() {
        let deep = |levels: usize| format!("{}1{}", "[".repeat(levels), "]".repeat(levels));
        assert!(read(&deep(MAX_DEPTH)).is_ok());
        not_taken(&deep(MAX_DEPTH + 1), "nest deeper than");
        not_taken(&"- ".repeat(MAX_DEPTH + 2), "nest deeper than");
        let many = |count: usize| format!("[{}]", vec!["1"; count].join(","));
        assert!(read(&many(VALUES_MAX - 1)).is_ok());
        not_taken(&many(VALUES_MAX), "too many values");
    }
}
