use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use serde_json::json;

use super::*;
use crate::run::call::Task;
use crate::run::json::parse_strict;

fn redactor(values: &[&str]) -> Redactor {
    let values: Vec<SecretString> = values.iter().map(|value| SecretString::from(*value)).collect();
    Redactor::of(&values)
}

#[test]
fn a_secret_is_taken_out_wherever_it_stands_and_nothing_else_changes() {
    let redactor = redactor(&["canary-1", "canary-12", "can\"ary\\2"]);
    assert_eq!(redactor.text("Bearer canary-12, canary-1!"), "Bearer [redacted], [redacted]!");
    assert_eq!(redactor.text(r#"{"k":"can\"ary\\2"} can"ary\2"#), r#"{"k":"[redacted]"} [redacted]"#);
    assert_eq!(redactor.text(r"C:\canary-1 \\canary-1"), r"C:\[redacted] \\[redacted]");
    assert!(matches!(redactor.text("nothing here \\u0063anary- %63 &#99; ä\u{1f600}"), Cow::Borrowed(_)));
    let mut value = json!({ "a": ["canary-1", { "xcanary-1": "y" }], "n": 1, "ok": "canary" });
    redactor.value(&mut value);
    assert_eq!(value, json!({ "a": ["[redacted]", { "x[redacted]": "y" }], "n": 1, "ok": "canary" }));
}

#[test]
fn a_long_row_of_backslashes_costs_no_more_than_its_length() {
    let redactor = redactor(&["canary-1"]);
    for row in ["\\".repeat(200_000), "&#92;".repeat(40_000), "%5c".repeat(60_000)] {
        let began = std::time::Instant::now();
        assert!(redactor.text(&format!("{row}canary-1")).ends_with("[redacted]"));
        // Looked through again from each place it took minutes.
        assert!(began.elapsed() < std::time::Duration::from_secs(20), "{:?}", began.elapsed());
    }
}

#[test]
fn of_two_that_overlap_nothing_is_left() {
    let redactor = redactor(&["abcdefgh", "efghijkl"]);
    assert_eq!(redactor.text("abcdefghijkl abcdefghefghijkl"), "[redacted] [redacted][redacted]");
}

#[test]
fn a_secret_is_found_in_whichever_way_it_is_written() {
    let secret = "p/a \"s+s\\ä\u{1f600}%&=1";
    let redactor = redactor(&[secret]);
    let percent = |lower: bool, all: bool| -> String {
        let sign = |byte: u8| match (all || !byte.is_ascii_alphanumeric(), lower) {
            (false, _) => char::from(byte).to_string(),
            (true, true) => format!("%{byte:02x}"),
            (true, false) => format!("%{byte:02X}"),
        };
        secret.bytes().map(sign).collect()
    };
    let json = json!(secret).to_string();
    let escapes = secret.encode_utf16().map(|unit| format!("\\u{unit:04X}")).collect::<Vec<_>>().concat();
    let entities = secret.chars().map(|c| format!("&#{};", u32::from(c))).collect::<Vec<_>>().concat();
    let form: String = url::form_urlencoded::byte_serialize(secret.as_bytes()).collect();
    for written in [
        percent(true, true),
        percent(false, true),
        percent(true, false),
        percent(false, false).replace('%', "%25"),
        json!(json).to_string(),
        json!(json!(json).to_string()).to_string(),
        json.replace('/', "\\/"),
        json,
        escapes.replace('\\', "\\\\"),
        escapes,
        entities,
        form,
        secret.replace('&', "&amp;").replace('"', "&quot;"),
        hex::encode(secret),
        hex::encode_upper(secret),
    ] {
        let clean = redactor.text(&written);
        assert!(clean.contains(REDACTED) && !clean.contains("s+s") && clean.len() < 30, "{written}: {clean}");
    }
    for before in ["", "x", "Bearer ", "client:", "client-1:"] {
        for after in ["", "y", "yz", " and more"] {
            let whole = format!("{before}{secret}{after}");
            for written in [STANDARD.encode(&whole), URL_SAFE_NO_PAD.encode(&whole)] {
                let clean = redactor.text(&written);
                assert!(clean.contains(REDACTED), "{whole}: {clean}");
            }
        }
    }
}

#[test]
fn what_is_cut_is_clean_before() {
    let redactor = redactor(&["canary-12345"]);
    for before in 0..20 {
        let cut = redactor.cut(&format!("{}canary-12345", "x".repeat(before)), 10);
        assert!(!cut.contains("can") && cut.chars().count() <= 11, "{cut}");
    }
    assert_eq!(redactor.cut("ä".repeat(10).as_str(), 10), "ä".repeat(10));
    assert_eq!(redactor.cut("ä".repeat(11).as_str(), 10), "ä".repeat(10) + "…");
    for (torn, clean) in [
        ("bad key canary-1234", "bad key [redacted]"),
        ("bad key cana", "bad key [redacted]"),
        ("bad key can", "bad key can"),
        ("bad key %63%61%6e%61%", "bad key [redacted]"),
        ("canary-12345 is bad", "[redacted] is bad"),
        ("bad key canary-…", "bad key [redacted]…"),
    ] {
        assert_eq!(redactor.torn(torn), clean);
    }
}

#[test]
fn digits_and_the_order_of_members_stay_unless_they_are_a_secret() {
    let text = r#"{"z":117.63331139400017,"a":18446744073709551617,"t":"canary-1","s":4111111111111111,"e":4.111111111111111e15}"#;
    let mut value = parse_strict(text).unwrap();
    redactor(&["canary-1", "4111111111111111"]).value(&mut value);
    let clean = value.to_string();
    for kept in ["117.63331139400017", "18446744073709551617", "[redacted]"] {
        assert!(clean.contains(kept), "{clean}");
    }
    assert!(!clean.contains("4111") && !clean.contains("4.111"), "{clean}");
}

#[test]
fn a_value_that_occurs_by_chance_is_left_alone() {
    assert_eq!(redactor(&["5", "charge"]).text("charge 5"), "charge 5");
}

#[test]
fn outcomes_and_catalogs_are_cleaned_whole() {
    let redactor = redactor(&["canary-1"]);
    let failed = Answer::Failed {
        error: ToolError::new("tool-error", "bad canary-1"),
        output: Some(json!({ "content": [{ "type": "text", "text": "bad canary-1" }] })),
    };
    for outcome in [Outcome::Answered(failed), Outcome::NotSent(ToolError::new("mcp-refused", "canary-1"))] {
        let clean = format!("{:?}", redactor.outcome(outcome));
        assert!(clean.contains("[redacted]") && !clean.contains("canary"), "{clean}");
    }
    let served = |description: &str| -> ServedCatalog {
        let schema = json!({ "default": description });
        serde_json::from_value(json!({ "tools": [
            { "name": "t", "description": description, "input_schema": schema, "output_schema": schema },
        ]}))
        .unwrap()
    };
    assert_eq!(redactor.catalog(&served("plain")), None);
    assert_eq!(redactor.catalog(&served("canary-1")), Some(served("[redacted]")));
}

#[test]
fn what_must_go_back_as_it_is_is_not_kept_with_a_secret_in_it() {
    let redactor = redactor(&["canary-1"]);
    let task = |id: &str| redactor.outcome(Outcome::Deferred(Task { id: id.to_owned(), poll_ms: None }));
    assert!(matches!(task("task-1"), Outcome::Deferred(_)));
    assert_eq!(task("task-canary-1"), Outcome::Unknown(Cause::LostResponse));
    let asked = |name: &str, state: &str, message: &str| {
        let ask = Ask::Form { message: message.to_owned(), schema: json!({ "type": "object" }) };
        let asks = [(name.to_owned(), ask)].into_iter().collect();
        redactor.outcome(Outcome::InputRequired(Box::new(Questions {
            asks,
            state: Some(state.to_owned()),
            place: None,
        })))
    };
    assert!(matches!(asked("a", "s", "canary-1?"), Outcome::InputRequired(asked)
        if matches!(&asked.asks["a"], Ask::Form { message, .. } if message == "[redacted]?")));
    for refused in [asked("canary-1", "s", "m"), asked("a", "canary-1", "m")] {
        assert!(matches!(&refused, Outcome::Answered(Answer::Failed { output: None, .. })), "{refused:?}");
    }
}
