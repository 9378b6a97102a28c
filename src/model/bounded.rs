//! A model as it may be asked: with the limits of a server that asks for a sample, or of what is left of a budget, in the
//! provider's own words.

use serde_json::{Map, Value};

use crate::run::ask::SampleRequest;
use crate::run::spec::{ModelSpec, Provider};

/// The longest answer that every model in use takes as a limit. One that is longer than a model's own longest is refused by it.
const EVERY_MODEL: u64 = 4096;
/// The same where a limit is sent with each request anyway, which is no shorter.
const EVERY_ANTHROPIC_MODEL: u64 = 8192;

/// The model with the limits of one request. What the run's creator set stays, but for an answer that may be longer.
pub fn bounded(model: &ModelSpec, request: &SampleRequest) -> ModelSpec {
    let mut model = model.clone();
    let mut parameters = model.parameters.take().unwrap_or_default();
    let (most, stop) = match model.provider {
        Provider::Openai => (length_limit(&model, &parameters), "stop"),
        Provider::Anthropic => (length_limit(&model, &parameters), "stop_sequences"),
        // Its turns stand in the run.
        Provider::Scripted => return model,
    };
    shorten(&mut parameters, most, request.max_tokens);
    if let Some(temperature) = &request.temperature {
        parameters.entry("temperature").or_insert_with(|| Value::Number(temperature.clone()));
    }
    if !request.stop.is_empty() {
        parameters.entry(stop).or_insert_with(|| request.stop.clone().into());
    }
    model.parameters = Some(parameters);
    model
}

/// The model, asked for no longer an answer than this. Where the run's creator set no limit, one that a model may not take is
/// left out: it would refuse the request.
pub fn within(model: &ModelSpec, most: u64) -> ModelSpec {
    let mut model = model.clone();
    let mut parameters = model.parameters.take().unwrap_or_default();
    let name = length_limit(&model, &parameters);
    let is_taken = match model.provider {
        Provider::Openai => most <= EVERY_MODEL || parameters.contains_key(name),
        Provider::Anthropic => most <= EVERY_ANTHROPIC_MODEL || parameters.contains_key(name),
        Provider::Scripted => false,
    };
    if is_taken {
        shorten(&mut parameters, name, most);
    }
    model.parameters = Some(parameters).filter(|parameters| !parameters.is_empty());
    model
}

/// The parameter that limits an answer. Newer models of one provider refuse the older name; servers beside it may not know the
/// newer one.
fn length_limit(model: &ModelSpec, parameters: &Map<String, Value>) -> &'static str {
    match model.provider {
        Provider::Openai => {
            let usual = if model.base_url.is_some() { "max_tokens" } else { "max_completion_tokens" };
            let own = |name: &&&str| parameters.contains_key(**name);
            ["max_completion_tokens", "max_tokens"].iter().find(own).copied().unwrap_or(usual)
        }
        Provider::Anthropic | Provider::Scripted => "max_tokens",
    }
}

fn shorten(parameters: &mut Map<String, Value>, name: &str, most: u64) {
    let set = parameters.get(name).and_then(Value::as_u64).unwrap_or(u64::MAX);
    parameters.insert(name.to_owned(), most.min(set).into());
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

    #[test]
    fn an_answer_is_no_longer_than_a_budget_has_room_for_and_no_model_is_asked_for_what_it_may_refuse() {
        let check = |model: Value, most: u64, parameters: Value| {
            let model: ModelSpec = serde_json::from_value(model).unwrap();
            assert_eq!(json!(within(&model, most).parameters), parameters, "{most}");
        };
        let openai = json!({"provider": "openai", "name": "m"});
        check(openai.clone(), 12, json!({"max_completion_tokens": 12}));
        check(openai, 5000, Value::Null);
        let set = json!({"provider": "openai", "name": "m", "parameters": {"max_completion_tokens": 9000, "seed": 1}});
        check(set.clone(), 5000, json!({"max_completion_tokens": 5000, "seed": 1}));
        check(set, 10_000, json!({"max_completion_tokens": 9000, "seed": 1}));
        let anthropic = json!({"provider": "anthropic", "name": "m"});
        check(anthropic.clone(), 5000, json!({"max_tokens": 5000}));
        check(anthropic, 9000, Value::Null);
        check(json!({"provider": "scripted", "name": "m", "script": [{"text": "x"}]}), 1, Value::Null);
    }
}
