//! Which tool a provider means when it refuses a whole request for one of them. Providers name it, or count it.

use super::{ModelError, ModelErrorKind};

/// The same error, and when it names a tool on offer, in words that say which and what to do.
pub(super) fn blame(error: ModelError, tools: &[String]) -> ModelError {
    let is_bad_request = ["the provider answered 400", "the provider answered 422"].iter();
    if error.kind != ModelErrorKind::Refused || !is_bad_request.clone().any(|start| error.message.starts_with(start)) {
        return error;
    }
    let Some(tool) = quoted(&error.message, tools).or_else(|| counted(&error.message, tools)) else { return error };
    let message = format!(
        "The provider refuses the tool '{tool}' as it is offered, and with it the whole request. Leave it out with the \
         `tools` of its server's entry, or have its server change its schema: {}",
        error.message
    );
    ModelError { kind: ModelErrorKind::ToolRefused { tool: tool.clone() }, message, may_cost: error.may_cost }
}

/// A tool whose name stands in quotes.
fn quoted<'a>(text: &str, tools: &'a [String]) -> Option<&'a String> {
    let stands = |name: &&String| {
        [('\'', '\''), ('"', '"'), ('`', '`')]
            .iter()
            .any(|(open, close)| text.contains(&format!("{open}{name}{close}")))
    };
    tools.iter().find(stands)
}

/// The tool of a place such as `tools[12].function` or `tools.12.custom`.
fn counted<'a>(text: &str, tools: &'a [String]) -> Option<&'a String> {
    let places = text.match_indices("tools").filter_map(|(at, word)| text.get(at.saturating_add(word.len())..));
    let number = |rest: &str| -> Option<usize> {
        let digits = rest.strip_prefix(['[', '.', '/'])?;
        let end = digits.find(|sign: char| !sign.is_ascii_digit()).unwrap_or(digits.len());
        digits.get(..end)?.parse().ok()
    };
    places.filter_map(number).find_map(|place| tools.get(place))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(message: &str, tool: Option<&str>) {
        let tools: Vec<String> = (0..13).map(|nth| format!("tool_{nth}")).collect();
        let error = ModelError { kind: ModelErrorKind::Refused, message: message.to_owned(), may_cost: false };
        let told = blame(error.clone(), &tools);
        match tool {
            None => assert_eq!(told, error),
            Some(tool) => {
                assert_eq!(told.kind, ModelErrorKind::ToolRefused { tool: tool.to_owned() }, "{message}");
                assert!(
                    told.message.contains(&format!("the tool '{tool}'")) && told.message.ends_with(message),
                    "{told}"
                );
            }
        }
    }

    #[test]
    fn field_a033_the_tool_that_a_provider_names_or_counts_is_found() {
        check("the provider answered 400 Bad Request: Invalid schema for function 'tool_12': x", Some("tool_12"));
        check(
            "the provider answered 400 Bad Request: tools.11.custom.input_schema: JSON schema is invalid.",
            Some("tool_11"),
        );
        check("the provider answered 422: body.tools[0].function.parameters is bad", Some("tool_0"));
        check("the provider answered 400 Bad Request: tools/3/name", Some("tool_3"));
    }

    #[test]
    fn what_names_no_tool_on_offer_stays_as_it_is() {
        check("the provider answered 400 Bad Request: tools.99.name", None);
        check("the provider answered 400 Bad Request: too many tools", None);
        check("the provider answered 400 Bad Request: messages.0.content 'tool' is bad", None);
        check("the provider answered 401 Unauthorized: key 'tool_1' is unknown", None);
    }
}
