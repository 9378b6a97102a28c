//! What a tool's result object says to the model.

use serde_json::{Map, Value};

/// The result as the model is told it: the structured content when there is one, else the joined text, else the
/// blocks themselves as JSON. Beside text, blocks that are not text are kept.
pub fn model_text(output: &Value) -> Value {
    if let Some(structured) = output.get("structuredContent").filter(|value| !value.is_null()) {
        return structured.clone();
    }
    let Some(blocks) = output.get("content").and_then(Value::as_array) else {
        return output.clone();
    };
    let others: Vec<Value> = blocks.iter().filter(|block| text_block(block).is_none()).cloned().collect();
    let text = text_of(output);
    match (text.is_empty(), others.is_empty()) {
        (_, true) => Value::String(text),
        (true, false) => Value::Array(others),
        (false, false) => {
            let mut both = Map::new();
            both.insert("text".to_owned(), Value::String(text));
            both.insert("content".to_owned(), Value::Array(others));
            Value::Object(both)
        }
    }
}

/// The text of the text blocks, a line feed between two.
pub fn text_of(output: &Value) -> String {
    let blocks = output.get("content").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let texts: Vec<&str> = blocks.iter().filter_map(text_block).collect();
    texts.join("\n")
}

fn text_block(block: &Value) -> Option<&str> {
    (block.get("type").and_then(Value::as_str) == Some("text"))
        .then(|| block.get("text").and_then(Value::as_str))
        .flatten()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_model_is_told_structure_before_text_before_other_blocks() {
        let text = |text: &str| json!({ "type": "text", "text": text });
        let image = || json!({ "type": "image", "data": "AA==", "mimeType": "image/png" });
        for (output, want) in [
            (json!({ "content": [text("{}")], "structuredContent": { "a": 1 } }), json!({ "a": 1 })),
            (json!({ "content": [text("charged 5")] }), json!("charged 5")),
            (json!({ "content": [text("a"), text("b")] }), json!("a\nb")),
            (json!({ "content": [] }), json!("")),
            (json!({ "content": [image()] }), json!([image()])),
            (json!({ "content": [text("a"), image()] }), json!({ "text": "a", "content": [image()] })),
            (json!({ "odd": true }), json!({ "odd": true })),
        ] {
            assert_eq!(model_text(&output), want, "{output}");
        }
    }
}
