//! Reads what servers ask in either era: a form or a page for a person, a sample of a model, roots. Whoever it is put to
//! and whether they may answer is decided elsewhere.

use std::collections::BTreeMap;

use serde_json::Value;
use url::Url;

use crate::run::ask::{Ask, Questions, SampleMessage, SampleRequest};
use crate::run::message::Role;
use crate::schema::Budget;
use crate::schema::form::{self, Form};

/// Longest question to a person, in bytes of JSON.
const QUESTION_MAX: usize = 16 * 1024;
/// Longest set of questions with what the server wants back, in bytes of JSON.
const QUESTIONS_MAX: usize = 256 * 1024;

pub(super) const SAMPLE: &str = "sampling/createMessage";
pub(super) const ELICIT: &str = "elicitation/create";
const ROOTS: &str = "roots/list";

/// The questions of a result that is `input_required`.
///
/// # Errors
/// What is wrong with them, for people.
pub(super) fn of(result: &Value) -> Result<Questions, String> {
    let state = match result.get("requestState") {
        None | Some(Value::Null) => None,
        Some(Value::String(state)) => Some(state.clone()),
        Some(_) => return Err("its state is not a text".to_owned()),
    };
    let requests = result.get("inputRequests").filter(|requests| !requests.is_null());
    let size = requests.map_or(0, |requests| requests.to_string().len()) + state.as_ref().map_or(0, String::len);
    if size > QUESTIONS_MAX {
        return Err(format!("the questions are larger than {QUESTIONS_MAX} bytes"));
    }
    let (mut asks, mut budget) = (BTreeMap::new(), Budget::of_forms());
    if let Some(requests) = requests {
        let requests = requests.as_object().ok_or("the questions are not an object")?;
        for (name, request) in requests {
            let method = request.get("method").and_then(Value::as_str).unwrap_or_default();
            let params = request.get("params").unwrap_or(&Value::Null);
            asks.insert(name.clone(), read(method, params, &mut budget)?);
        }
    }
    Ok(Questions { asks, state, place: None })
}

/// One question, by its method.
///
/// # Errors
/// What is wrong with it, for people.
pub(super) fn read(method: &str, params: &Value, budget: &mut Budget) -> Result<Ask, String> {
    match method {
        SAMPLE => read_sample(params).map(|request| Ask::Sample(Box::new(request))),
        ELICIT => read_question(params, budget),
        ROOTS => Ok(Ask::Roots),
        _ => Err("one of the questions is of an unknown kind".to_owned()),
    }
}

fn read_question(params: &Value, budget: &mut Budget) -> Result<Ask, String> {
    if params.to_string().len() > QUESTION_MAX {
        return Err(format!("a question is larger than {QUESTION_MAX} bytes"));
    }
    let message = params.get("message").and_then(Value::as_str).unwrap_or_default().to_owned();
    match params.get("mode").and_then(Value::as_str) {
        None | Some("form") => {
            let schema = params.get("requestedSchema").map_or_else(|| Ok(form::empty()), form::flat);
            let schema = schema.map_err(|why| format!("the form {why}"))?;
            Form::read(&schema, budget).map_err(|why| format!("the form {why}"))?;
            Ok(Ask::Form { message, schema })
        }
        Some("url") => {
            let url = params.get("url").and_then(Value::as_str).unwrap_or_default();
            let parsed = Url::parse(url).map_err(|fault| format!("the page to visit has no address: {fault}"))?;
            if !matches!(parsed.scheme(), "https" | "http") {
                return Err("the page to visit is not on the web".to_owned());
            }
            Ok(Ask::Url { message, url: url.to_owned() })
        }
        Some(_) => Err("people are asked by a form or a page only".to_owned()),
    }
}

fn read_sample(params: &Value) -> Result<SampleRequest, String> {
    let given = |name: &str| params.get(name).filter(|value| !value.is_null());
    if given("tools").is_some_and(|tools| tools.as_array().is_none_or(|tools| !tools.is_empty()))
        || given("toolChoice").is_some()
    {
        return Err("sampling with tools is not supported".to_owned());
    }
    let messages = given("messages").and_then(Value::as_array).ok_or("a sample needs messages")?;
    let messages = messages.iter().map(read_message).collect::<Result<Vec<_>, _>>()?;
    if messages.is_empty() {
        return Err("a sample needs messages".to_owned());
    }
    let max_tokens = given("maxTokens").and_then(Value::as_u64).filter(|most| *most > 0);
    let stop = given("stopSequences").and_then(Value::as_array).into_iter().flatten();
    Ok(SampleRequest {
        system: given("systemPrompt").and_then(Value::as_str).map(str::to_owned),
        messages,
        max_tokens: max_tokens.ok_or("a sample needs maxTokens of at least 1")?,
        temperature: given("temperature").and_then(Value::as_number).cloned(),
        stop: stop.filter_map(Value::as_str).map(str::to_owned).collect(),
    })
}

fn read_message(message: &Value) -> Result<SampleMessage, String> {
    let role = match message.get("role").and_then(Value::as_str) {
        Some("user") => Role::User,
        Some("assistant") => Role::Assistant,
        _ => return Err("the messages of a sample are of the user or the assistant".to_owned()),
    };
    let blocks = match message.get("content") {
        Some(Value::Array(blocks)) => blocks.iter().collect(),
        Some(block) => vec![block],
        None => Vec::new(),
    };
    let text = |block: &Value| match block.get("type").and_then(Value::as_str) {
        Some("text") => Ok(block.get("text").and_then(Value::as_str).unwrap_or_default().to_owned()),
        _ => Err("only text can be sampled from".to_owned()),
    };
    let texts = blocks.into_iter().map(text).collect::<Result<Vec<_>, _>>()?;
    Ok(SampleMessage { role, text: texts.join("\n") })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn questions_are_read_whole_and_their_state_is_kept_as_it_is() {
        let asked = of(&json!({
            "resultType": "input_required",
            "requestState": "\u{0}ä\n==",
            "inputRequests": {
                "a": { "method": ELICIT, "params": { "message": "m", "requestedSchema": { "type": "object" } } },
                "b": { "method": ELICIT, "params": { "mode": "url", "message": "v", "url": "https://a.example/x" } },
                "c": { "method": ROOTS },
                "d": { "method": SAMPLE, "params": {
                    "messages": [{ "role": "user", "content": { "type": "text", "text": "hi" } }], "maxTokens": 7 } },
            },
        }))
        .unwrap();
        assert_eq!(asked.state.as_deref(), Some("\u{0}ä\n=="));
        assert_eq!(asked.asks["a"], Ask::Form { message: "m".into(), schema: json!({ "type": "object" }) });
        assert_eq!(asked.asks["b"], Ask::Url { message: "v".into(), url: "https://a.example/x".into() });
        assert_eq!(asked.asks["c"], Ask::Roots);
        assert!(matches!(&asked.asks["d"], Ask::Sample(request) if request.max_tokens == 7));
        assert_eq!(of(&json!({})).unwrap(), Questions::default());
    }

    #[test]
    fn a_question_that_cannot_be_put_says_why() {
        let one = |method: &str, params: Value| {
            let requests = json!({ "a": { "method": method, "params": params } });
            of(&json!({ "inputRequests": requests })).unwrap_err()
        };
        let sample = |more: Value| {
            let mut params = json!({ "messages": [{ "role": "user", "content": [{ "type": "text", "text": "hi" }] }],
                "maxTokens": 7 });
            params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            one(SAMPLE, params)
        };
        assert!(one("tools/list", json!({})).contains("unknown kind"));
        assert!(one(ELICIT, json!({ "requestedSchema": { "type": 7 } })).contains("JSON Schema"));
        assert!(one(ELICIT, json!({ "mode": "url", "url": "javascript:alert(1)" })).contains("on the web"));
        assert!(one(ELICIT, json!({ "message": "x".repeat(QUESTION_MAX) })).contains("larger than"));
        assert!(sample(json!({ "tools": [{ "name": "t" }] })).contains("tools"));
        assert!(sample(json!({ "maxTokens": 0 })).contains("maxTokens"));
        assert!(sample(json!({ "messages": [{ "role": "user", "content": { "type": "image" } }] })).contains("text"));
        assert!(of(&json!({ "requestState": 7 })).unwrap_err().contains("state"));
        assert!(of(&json!({ "requestState": "x".repeat(QUESTIONS_MAX + 1) })).unwrap_err().contains("larger"));
    }
}
