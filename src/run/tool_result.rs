//! What a tool's result object says to the model: texts and structure as they are, pictures beside them, and of
//! everything else a short text that says what it was. Never base64 as text.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

use super::message::Picture;

/// Most pictures of one result that a model is shown.
const PICTURES_MAX: usize = 10;

/// Longest base64 text of one picture, in bytes: the least that providers take.
const PICTURE_MAX: usize = 5 * 1024 * 1024;

/// A longer text without a space in a block of an unknown kind is taken for data.
const DATA_MIN: usize = 256;

/// A result as the model is told it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Told {
    /// Text, or a JSON value.
    pub output: Value,
    /// The pictures that the text names, in order.
    pub pictures: Vec<Picture>,
}

/// The structured content when there is one, and the text of the blocks, a line feed between two. Text that only says
/// the structure again is left out; what is no result object is told as it is.
pub fn told(result: &Value) -> Told {
    let structured = result.get("structuredContent").filter(|value| !value.is_null());
    let Some(blocks) = result.get("content").and_then(Value::as_array) else {
        return Told { output: structured.unwrap_or(result).clone(), ..Told::default() };
    };
    let texts: Vec<&str> = blocks.iter().filter_map(text_block).collect();
    let says_items = structured.is_some_and(|value| are_items(&texts, value));
    let mut said = Said::default();
    for block in blocks {
        match (text_block(block), structured) {
            (Some(text), Some(value)) if says_items || is_copy(text, value) => {}
            (Some(text), _) => said.lines.push(text.to_owned()),
            (None, _) => said.block(block),
        }
    }
    let text = said.lines.join("\n");
    let output = match structured {
        None => Value::String(text),
        Some(value) if said.lines.is_empty() => value.clone(),
        Some(value) => Value::Object(Map::from_iter([
            ("text".to_owned(), Value::String(text)),
            ("structuredContent".to_owned(), value.clone()),
        ])),
    };
    Told { output, pictures: said.pictures }
}

/// The text of the text blocks, a line feed between two.
pub fn text_of(output: &Value) -> String {
    let blocks = output.get("content").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let texts: Vec<&str> = blocks.iter().filter_map(text_block).collect();
    texts.join("\n")
}

fn text_block(block: &Value) -> Option<&str> {
    if block.get("type").and_then(Value::as_str) == Some("text") { text_at(block, "text") } else { None }
}

fn text_at<'a>(value: &'a Value, member: &str) -> Option<&'a str> {
    value.get(member).and_then(Value::as_str)
}

/// Whether a text is this value: as JSON, or as the text that it is. Servers that wrap what is no object into
/// `{"result": …}` say that in their text without the wrapper.
fn is_copy(text: &str, value: &Value) -> bool {
    says(text, value) || wrapped(value).is_some_and(|inner| says(text, inner))
}

fn wrapped(value: &Value) -> Option<&Value> {
    value.as_object().filter(|members| members.len() == 1).and_then(|members| members.get("result"))
}

fn says(text: &str, value: &Value) -> bool {
    value.as_str() == Some(text) || serde_json::from_str::<Value>(text).is_ok_and(|read| read == *value)
}

/// Whether the texts are the items of a list, one text an item.
fn are_items(texts: &[&str], value: &Value) -> bool {
    let items = value.as_array().or_else(|| wrapped(value).and_then(Value::as_array));
    items
        .is_some_and(|items| items.len() == texts.len() && items.iter().zip(texts).all(|(item, text)| says(text, item)))
}

#[derive(Default)]
struct Said {
    lines: Vec<String>,
    pictures: Vec<Picture>,
}

impl Said {
    /// A block that is no text.
    fn block(&mut self, block: &Value) {
        let kind = text_at(block, "type").unwrap_or_default();
        let data = text_at(block, "data");
        let line = match (kind, data, block.get("resource")) {
            ("image", Some(data), _) => self.picture("image", data, text_at(block, "mimeType")),
            ("audio", Some(data), _) => described("audio", text_at(block, "mimeType"), data),
            ("resource_link", _, _) => link(block),
            ("resource", _, Some(resource)) => self.resource(resource),
            _ => without_data(block).to_string(),
        };
        self.lines.push(line);
    }

    /// Keeps a picture that models take; the line says what it is, or was.
    fn picture(&mut self, what: &str, data: &str, declared: Option<&str>) -> String {
        let line = described(what, declared, data);
        match readable_picture(data).filter(|_| self.pictures.len() < PICTURES_MAX) {
            Some(picture) => {
                self.pictures.push(picture);
                format!("{line} (picture {} of this result)", self.pictures.len())
            }
            None => format!("{line} (not shown)"),
        }
    }

    fn resource(&mut self, resource: &Value) -> String {
        let name = text_at(resource, "uri").unwrap_or("without an address");
        let kind = text_at(resource, "mimeType");
        match (text_at(resource, "text"), text_at(resource, "blob")) {
            (Some(text), _) => format!("[resource {name}]\n{text}"),
            (None, Some(blob)) if kind.is_some_and(|kind| kind.starts_with("image/")) => {
                self.picture(&format!("resource {name}"), blob, kind)
            }
            (None, Some(blob)) => described(&format!("resource {name}"), kind, blob),
            (None, None) => format!("[resource {name}]"),
        }
    }
}

/// A place where more can be read.
fn link(block: &Value) -> String {
    let mut line = format!("[resource link {}", text_at(block, "uri").unwrap_or("without an address"));
    for member in ["title", "name", "mimeType"] {
        if let Some(text) = text_at(block, member) {
            line.push_str(", ");
            line.push_str(text);
        }
    }
    let size = block.get("size").and_then(Value::as_u64);
    line.extend(size.map(|bytes| format!(", {bytes} bytes")));
    line.push(']');
    if let Some(text) = text_at(block, "description") {
        line.push(' ');
        line.push_str(text);
    }
    line
}

/// What data is, for those who do not get it.
fn described(what: &str, kind: Option<&str>, data: &str) -> String {
    format!("[{what}: {}, {} bytes]", kind.unwrap_or("of an unknown type"), decoded_len(data))
}

/// How many bytes a base64 text stands for.
fn decoded_len(data: &str) -> usize {
    let signs = data.bytes().filter(|sign| !sign.is_ascii_whitespace() && *sign != b'=').count();
    signs.saturating_mul(3).checked_div(4).unwrap_or_default()
}

/// A picture as providers take it. Its bytes say its type: servers name wrong ones, and providers refuse the whole
/// request then.
pub fn readable_picture(data: &str) -> Option<Picture> {
    let data: String = data.split_ascii_whitespace().collect();
    let bytes = STANDARD.decode(&data).ok().filter(|_| data.len() <= PICTURE_MAX)?;
    let media_type = match bytes.as_slice() {
        [0x89, b'P', b'N', b'G', ..] => "image/png",
        [0xff, 0xd8, 0xff, ..] => "image/jpeg",
        [b'G', b'I', b'F', b'8', ..] => "image/gif",
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => "image/webp",
        _ => return None,
    };
    Some(Picture { media_type: media_type.to_owned(), data })
}

/// A block of a kind that this program does not know, with its data described.
fn without_data(value: &Value) -> Value {
    match value {
        Value::String(text) if text.len() >= DATA_MIN && text.bytes().all(is_base64) => {
            Value::String(format!("[{} bytes of data]", decoded_len(text)))
        }
        Value::Array(items) => items.iter().map(without_data).collect(),
        Value::Object(members) => {
            let members = members.iter().map(|(name, member)| (name.clone(), without_data(member)));
            Value::Object(members.collect())
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
    }
}

const fn is_base64(sign: u8) -> bool {
    sign.is_ascii_alphanumeric() || matches!(sign, b'+' | b'/' | b'=' | b'-' | b'_')
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A picture of one pixel.
    const PNG: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII=";

    fn text(text: &str) -> Value {
        json!({ "type": "text", "text": text })
    }

    #[track_caller]
    fn check(result: Value, output: Value, pictures: usize) {
        let told = told(&result);
        assert_eq!(told.output, output, "{result}");
        assert_eq!(told.pictures.len(), pictures, "{result}");
    }

    #[test]
    fn texts_are_joined_and_what_is_no_result_object_is_told_as_it_is() {
        check(json!({ "content": [text("charged 5")] }), json!("charged 5"), 0);
        check(json!({ "content": [text("a"), text("b")] }), json!("a\nb"), 0);
        check(json!({ "content": [] }), json!(""), 0);
        check(json!({ "odd": true }), json!({ "odd": true }), 0);
        check(json!({ "structuredContent": { "a": 1 } }), json!({ "a": 1 }), 0);
    }

    #[test]
    fn field_a037_text_beside_structure_is_neither_doubled_nor_lost() {
        let both = |texts: &[&str], value: Value| {
            let content: Vec<Value> = texts.iter().map(|said| text(said)).collect();
            json!({ "content": content, "structuredContent": value })
        };
        let order = || json!({ "id": 7, "total": 1.50 });
        check(both(&["{\"total\": 1.5, \"id\": 7}"], order()), order(), 0);
        check(
            both(&["Order 7 is late."], order()),
            json!({ "text": "Order 7 is late.", "structuredContent": order() }),
            0,
        );
        let note = both(&["{\"id\":7,\"total\":1.5}", "Ask before you pay."], order());
        check(note, json!({ "text": "Ask before you pay.", "structuredContent": order() }), 0);
        // What is no object is wrapped, and its text is not.
        check(both(&["5"], json!({ "result": 5 })), json!({ "result": 5 }), 0);
        check(both(&["five"], json!({ "result": "five" })), json!({ "result": "five" }), 0);
        check(both(&["1", "b"], json!({ "result": [1, "b"] })), json!({ "result": [1, "b"] }), 0);
        check(
            both(&["{}", "{}"], json!({ "items": 2 })),
            json!({ "text": "{}\n{}", "structuredContent": { "items": 2 } }),
            0,
        );
    }

    #[test]
    fn field_a039_blocks_of_every_kind_are_described_and_pictures_are_kept() {
        let image = json!({ "type": "image", "data": PNG, "mimeType": "image/jpeg" });
        let told = told(&json!({ "content": [text("look"), image] }));
        assert_eq!(told.output, "look\n[image: image/jpeg, 68 bytes] (picture 1 of this result)");
        assert_eq!(told.pictures, [Picture { media_type: "image/png".to_owned(), data: PNG.to_owned() }]);
        let resource = |resource: Value| json!({ "content": [{ "type": "resource", "resource": resource }] });
        check(resource(json!({ "uri": "a://b", "text": "hello" })), json!("[resource a://b]\nhello"), 0);
        check(
            resource(json!({ "uri": "a://b", "blob": PNG, "mimeType": "image/png" })),
            json!("[resource a://b: image/png, 68 bytes] (picture 1 of this result)"),
            1,
        );
        check(
            resource(json!({ "uri": "a://b", "blob": "AAAA", "mimeType": "application/pdf" })),
            json!("[resource a://b: application/pdf, 3 bytes]"),
            0,
        );
        check(
            json!({ "content": [{ "type": "audio", "data": "AAAAAA==", "mimeType": "audio/wav" }] }),
            json!("[audio: audio/wav, 4 bytes]"),
            0,
        );
        check(
            json!({ "content": [{ "type": "resource_link", "uri": "a://b", "name": "b.csv", "size": 12,
                                  "mimeType": "text/csv", "description": "The table." }] }),
            json!("[resource link a://b, b.csv, text/csv, 12 bytes] The table."),
            0,
        );
    }

    #[test]
    fn no_data_is_ever_told_as_text() {
        let long = "QUJD".repeat(400);
        for block in [
            json!({ "type": "image", "data": long, "mimeType": "image/tiff" }),
            json!({ "type": "audio", "data": long }),
            json!({ "type": "resource", "resource": { "uri": "a://b", "blob": long } }),
            json!({ "type": "video", "stream": { "frames": [long] } }),
        ] {
            let told = told(&json!({ "content": [block] }));
            let said = told.output.as_str().unwrap();
            assert!(said.contains("1200 bytes") && !said.contains("QUJDQUJD"), "{said}");
            assert_eq!(told.pictures, []);
        }
        let many = vec![json!({ "type": "image", "data": PNG, "mimeType": "image/png" }); PICTURES_MAX + 1];
        let told = told(&json!({ "content": many }));
        assert_eq!(told.pictures.len(), PICTURES_MAX);
        assert!(told.output.as_str().unwrap().ends_with("(not shown)"));
    }
}
