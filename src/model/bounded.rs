//! A model as the server of a run's tools may have it asked: with that server's limits, in the provider's own words.

use serde_json::Value;

use crate::run::ask::SampleRequest;
use crate::run::spec::{ModelSpec, Provider};

/// The model with the limits of one request. What the run's creator set stays, but for an answer that may be longer.
pub fn bounded(model: &ModelSpec, request: &SampleRequest) -> ModelSpec {
    let mut model = model.clone();
    let mut parameters = model.parameters.take().unwrap_or_default();
    let own = |name: &&&str| parameters.contains_key(**name);
    let (most, stop) = match model.provider {
        Provider::Openai => {
            // Newer models of the provider refuse the older name; servers beside it may not know the newer one.
            let usual = if model.base_url.is_some() { "max_tokens" } else { "max_completion_tokens" };
            (*["max_completion_tokens", "max_tokens"].iter().find(own).unwrap_or(&usual), "stop")
        }
        Provider::Anthropic => ("max_tokens", "stop_sequences"),
        // Its turns stand in the run.
        Provider::Scripted => return model,
    };
    let set = parameters.get(most).and_then(Value::as_u64).unwrap_or(u64::MAX);
    parameters.insert(most.to_owned(), request.max_tokens.min(set).into());
    if let Some(temperature) = &request.temperature {
        parameters.entry("temperature").or_insert_with(|| Value::Number(temperature.clone()));
    }
    if !request.stop.is_empty() {
        parameters.entry(stop).or_insert_with(|| request.stop.clone().into());
    }
    model.parameters = Some(parameters);
    model
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(model: Value, parameters: &Value) {
        let model: ModelSpec = serde_json::from_value(model).unwrap();
        let request: SampleRequest = serde_json::from_value(json!({
            "messages": [], "max_tokens": 100, "temperature": 0.25, "stop": ["END"],
        }))
        .unwrap();
        assert_eq!(json!(bounded(&model, &request).parameters), *parameters);
    }

    #[test]
    fn each_provider_is_told_the_limit_in_its_own_words_and_never_a_longer_one() {
        check(
            json!({"provider": "openai", "name": "m"}),
            &json!({"max_completion_tokens": 100, "temperature": 0.25, "stop": ["END"]}),
        );
        check(
            json!({"provider": "openai", "name": "m", "base_url": "https://a.example/v1"}),
            &json!({"max_tokens": 100, "temperature": 0.25, "stop": ["END"]}),
        );
        check(
            json!({"provider": "openai", "name": "m", "parameters": {"max_tokens": 50, "temperature": 0}}),
            &json!({"max_tokens": 50, "temperature": 0, "stop": ["END"]}),
        );
        check(
            json!({"provider": "anthropic", "name": "m", "parameters": {"max_tokens": 5000}}),
            &json!({"max_tokens": 100, "temperature": 0.25, "stop_sequences": ["END"]}),
        );
    }
}
