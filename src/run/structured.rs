//! Final answers for which a structure was asked: how the model is told of it, and what becomes of an answer.

use serde_json::Value;

use super::json::{is_too_deep, parse_strict};

/// What the model is told besides its instructions.
pub fn demand(schema: &Value) -> String {
    format!(
        "Your final answer must be one JSON value that fits the JSON Schema below, and nothing else: no other text, no code \
         fence.\n\n{schema}"
    )
}

/// What the model is told once when its answer does not fit.
pub fn repair(fault: &str) -> String {
    format!(
        "Your answer is not what was asked for: {fault}. Give the final answer again: one JSON value that fits the JSON \
         Schema, and nothing else."
    )
}

/// The value that an answer is. Some models put it into a code fence whatever they are told.
///
/// # Errors
/// Why it is none.
pub fn value_of(text: &str) -> Result<Value, String> {
    let text = without_fence(text.trim());
    if text.is_empty() {
        return Err("it is empty".to_owned());
    }
    let value = parse_strict(text).map_err(|fault| format!("it is not JSON ({fault})"))?;
    if is_too_deep(&value) { Err("it is nested too deeply".to_owned()) } else { Ok(value) }
}

fn without_fence(text: &str) -> &str {
    let inside = text.strip_prefix("```").and_then(|rest| rest.strip_suffix("```"));
    // The word behind the fence names the language.
    inside.and_then(|inside| inside.split_once('\n')).map_or(text, |(_, body)| body.trim())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_answer_is_one_json_value_with_or_without_a_fence() {
        for text in ["{\"a\":1}", " {\"a\":1}\n", "```json\n{\"a\":1}\n```", "```\n{\"a\":1}\n```"] {
            assert_eq!(value_of(text), Ok(json!({ "a": 1 })), "{text}");
        }
        assert_eq!(value_of("18446744073709551617").unwrap().to_string(), "18446744073709551617");
        for text in ["", "Here: {\"a\":1}", "{\"a\":1,\"a\":2}", "{\"a\":1} {}", "```json", "```"] {
            assert!(value_of(text).is_err(), "{text}");
        }
    }
}
