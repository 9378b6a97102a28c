//! What the model is told of a backend's result.

use serde_json::Value;

/// The structured content where there is one, else the text of the text blocks, else the blocks as they are.
pub fn model_text(output: &Value) -> Value {
    if let Some(structured) = output.get("structuredContent").filter(|value| !value.is_null()) {
        return structured.clone();
    }
    let Some(blocks) = output.get("content").and_then(Value::as_array) else { return output.clone() };
    let texts: Option<Vec<&str>> = blocks.iter().map(block_text).collect();
    match texts {
        Some(texts) => Value::String(texts.join("\n")),
        None => Value::Array(blocks.clone()),
    }
}

fn block_text(block: &Value) -> Option<&str> {
    let is_text = block.get("type").and_then(Value::as_str) == Some("text");
    is_text.then(|| block.get("text").and_then(Value::as_str)).flatten()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_model_reads_structure_before_text_and_blocks_where_there_is_no_text() {
        let text = json!({"content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]});
        assert_eq!(model_text(&text), json!("a\nb"));
        let both = json!({"content":[{"type":"text","text":"{}"}],"structuredContent":{"n":1}});
        assert_eq!(model_text(&both), json!({"n":1}));
        let image =
            json!({"content":[{"type":"text","text":"a"},{"type":"image","data":"AA==","mimeType":"image/png"}]});
        assert_eq!(model_text(&image), image["content"]);
        assert_eq!(model_text(&json!({"content":[]})), json!(""));
        assert_eq!(model_text(&json!("plain")), json!("plain"));
    }
}
