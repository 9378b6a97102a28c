//! The ways in which a server repeats what it is told, generated: every way of writing it, in every place of an answer,
//! and cut by every limit on the length of a text. Each has a tool of its own.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use serde_json::{Value, json};
use std::time::Duration;

use crate::support::fake_mcp::{Reply, Seen, Step, tool};

/// Ways of writing a value.
const FORMS: [&str; 8] = ["plain", "percent", "base64", "base64url", "hex", "json", "html", "number"];
/// Where it stands.
const PLACES: [&str; 7] = ["text", "key", "error", "rpc", "http", "progress", "log"];
/// Texts that are cut, and at how many characters.
const CUTS: [(&str, usize); 6] =
    [("error", 4_000), ("rpc", 4_000), ("http", 4_000), ("progress", 500), ("broken", 600), ("scope", 200)];
/// How much of the value stands before the cut.
const BEFORE_CUT: [usize; 3] = [10, 12, 14];

/// Every tool, each called `place-form` or `cut-place-characters`.
pub(super) fn names() -> Vec<String> {
    let forms = PLACES.iter().flat_map(|place| FORMS.iter().map(move |form| format!("{place}-{form}")));
    let cuts = CUTS.iter().flat_map(|(place, _)| BEFORE_CUT.map(|before| format!("cut-{place}-{before}")));
    forms.chain(cuts).chain(["earlier", "asks", "state"].map(str::to_owned)).collect()
}

/// The same as the server lists them.
pub(super) fn tools() -> Vec<Value> {
    let listed = |name: &String| {
        let mut listed = tool(name);
        if name.contains("broken") {
            listed["outputSchema"] = json!({ "type": "object", "properties": { "a": { "maxLength": 1 } } });
        }
        listed
    };
    names().iter().map(listed).collect()
}

/// The credential of a request.
pub(super) fn credential(seen: &Seen) -> String {
    let bearer = seen.headers.get("authorization").map(|value| value.trim_start_matches("Bearer ").to_owned());
    bearer.or_else(|| seen.headers.get("x-api-key").cloned()).unwrap_or_default()
}

/// The answer to a call of one of them. `earlier` is what was told before.
pub(super) fn answer(seen: &Seen, earlier: &str) -> Reply {
    let name = seen.body["params"]["name"].as_str().unwrap();
    let told = credential(seen);
    let parts: Vec<&str> = name.split('-').collect();
    match parts.as_slice() {
        ["cut", place, before] => {
            let (_, limit) = CUTS.iter().find(|(known, _)| known == place).unwrap();
            // The fault of a broken promise quotes the value behind a quotation mark.
            let quote = usize::from(*place == "broken");
            let padding = "x".repeat(limit - before.parse::<usize>().unwrap() - quote);
            placed(place, seen, json!(padding + &told))
        }
        ["earlier"] => Reply::text(earlier),
        ["asks"] => asked(&format!("q-{told}"), "state"),
        ["state"] => asked("q", &format!("state-{told}")),
        [place, form] => placed(place, seen, written(form, &told)),
        _ => panic!("{name} is no tool"),
    }
}

fn written(form: &str, told: &str) -> Value {
    match form {
        "plain" => json!(told),
        "percent" => json!(signs(told.bytes().map(|byte| format!("%{byte:02x}")))),
        "base64" => json!(STANDARD.encode(format!("Bearer {told}; and more"))),
        "base64url" => json!(URL_SAFE_NO_PAD.encode(format!("id:{told}"))),
        "hex" => json!(hex::encode(told)),
        "json" => json!(signs(told.encode_utf16().map(|unit| format!("\\u{unit:04x}")))),
        "html" => json!(signs(told.chars().map(|sign| format!("&#{};", u32::from(sign))))),
        _ => told.parse::<u64>().map_or(json!(told), |number| json!(number)),
    }
}

fn signs(each: impl Iterator<Item = String>) -> String {
    each.collect::<Vec<_>>().concat()
}

fn placed(place: &str, seen: &Seen, said: Value) -> Reply {
    let text = said.as_str().map_or_else(|| said.to_string(), str::to_owned);
    let content = json!([{ "type": "text", "text": text }]);
    let done = json!({ "content": content, "structuredContent": { "a": said } });
    match place {
        "text" => Reply::Result(done),
        "key" => Reply::Result(json!({ "content": [], "structuredContent": { text: { "b": [said] } } })),
        "broken" => Reply::Result(json!({ "content": [], "structuredContent": { "a": said } })),
        "error" => Reply::Result(json!({ "content": content, "isError": true })),
        "rpc" => Reply::Error(json!({ "code": -32000, "message": text, "data": said })),
        "http" => Reply::status(400, json!({ "error": { "message": text } })),
        "scope" => {
            let wanted = format!("Bearer error=\"insufficient_scope\", scope=\"{text}\"");
            Reply::Http(403, vec![("www-authenticate", wanted)], String::new())
        }
        "progress" => {
            let token = &seen.body["params"]["_meta"]["progressToken"];
            let number = said.as_u64().unwrap_or(1);
            let params = json!({ "progressToken": token, "progress": number, "total": number, "message": text });
            notified("notifications/progress", &params, done)
        }
        _ => {
            let method = format!("notifications/{text}");
            notified(&method, &json!({ "level": "error", "logger": text, "data": said }), done)
        }
    }
}

/// The call stays out for long enough that readers are told.
fn notified(method: &str, params: &Value, result: Value) -> Reply {
    let notice = json!({ "jsonrpc": "2.0", "method": method, "params": params });
    let pause = Duration::from_millis(if method.ends_with("/progress") { 600 } else { 0 });
    Reply::Sse(vec![Step::Raw(format!("data: {notice}\n\n")), Step::Pause(pause), Step::Result(result)])
}

fn asked(name: &str, state: &str) -> Reply {
    let schema = json!({ "type": "object", "properties": { "a": { "type": "string" } } });
    let question = json!({ "method": "elicitation/create", "params": { "message": "?", "requestedSchema": schema } });
    let asked = json!({ "resultType": "input_required", "requestState": state, "inputRequests": { name: question } });
    Reply::Result(asked)
}

/// Tools that cannot be used, and whose reasons quote a value, each cut at another place.
pub(super) fn unusable(told: &str) -> Vec<Value> {
    let bad = |padding: usize| {
        let pattern = format!("({}{told}", "q".repeat(padding));
        json!({ "name": format!("bad-{padding}"), "inputSchema": { "type": "object", "properties": { "a": { "pattern": pattern } } } })
    };
    (500..600).step_by(4).map(bad).collect()
}

/// Whether a text holds a value as it is, as JSON text has it, in hexadecimal, in base64 wherever it stands there, with
/// percent signs, or as numbers of its signs.
pub(super) fn holds(text: &str, value: &str) -> bool {
    let quoted = json!(value).to_string();
    let mut forms = vec![value.to_owned(), quoted.trim_matches('"').to_owned(), hex::encode(value)];
    for before in ["", "x", "xy"] {
        let encoded = STANDARD.encode(format!("{before}{value}"));
        // What depends on what stands around it is left out.
        let certain = encoded.trim_end_matches('=').get(4..encoded.len() - 4).unwrap_or_default().to_owned();
        forms.push(certain.replace('+', "-").replace('/', "_"));
        forms.push(certain);
    }
    forms.push(signs(value.bytes().map(|byte| format!("%{byte:02x}"))));
    forms.push(signs(value.chars().map(|sign| format!("\\u{:04x}", u32::from(sign)))));
    forms.push(signs(value.chars().map(|sign| format!("&#{};", u32::from(sign)))));
    forms.iter().any(|form| text.contains(form.as_str()))
}

/// Whether a text holds so much of the beginning of a value that the rest was cut off.
pub(super) fn holds_beginning(text: &str, value: &str) -> bool {
    let quoted = json!(value).to_string();
    [value, quoted.trim_matches('"')].iter().any(|form| text.contains(&form.chars().take(10).collect::<String>()))
}
