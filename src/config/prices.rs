//! What models cost, as the operator states it in the configuration file. All faults are found at once.

use toml::{Table, Value};

use crate::run::money::{Price, Prices, Usd};

/// Reads `[prices."provider/name"]`.
pub(super) fn prices(declared: Table, faults: &mut Vec<String>) -> Prices {
    declared.into_iter().filter_map(|(name, value)| Some((name.clone(), price(&name, value, faults)?))).collect()
}

fn price(name: &str, value: Value, faults: &mut Vec<String>) -> Option<Price> {
    let before = faults.len();
    let Value::Table(mut table) = value else {
        faults.push(format!("prices.{name:?} is no table"));
        return None;
    };
    if !name.split_once('/').is_some_and(|(provider, model)| !provider.is_empty() && !model.is_empty()) {
        faults.push(format!("prices.{name:?}: its name must be provider/model"));
    }
    let mut take = |field: &str, faults: &mut Vec<String>| {
        let given = table.remove(field)?;
        let amount = usd(&given);
        if amount.is_none() {
            faults.push(format!("prices.{name:?}: {field} must be dollars, with at most 12 digits behind the point"));
        }
        amount
    };
    let input = take("input_usd_per_million", faults);
    let cached = take("cached_input_usd_per_million", faults);
    let output = take("output_usd_per_million", faults);
    faults.extend(table.keys().map(|field| format!("prices.{name:?}: {field} is not a setting of a price")));
    if (input.is_none() || output.is_none()) && faults.len() == before {
        faults.push(format!("prices.{name:?}: input_usd_per_million and output_usd_per_million are required"));
    }
    let (input, output) = (input?, output?);
    (faults.len() == before).then_some(Price { input, cached_input: cached.unwrap_or(input), output })
}

/// A text says exactly what it says; a number is taken by its shortest form.
fn usd(value: &Value) -> Option<Usd> {
    match value {
        Value::String(text) => Usd::parse(text),
        Value::Integer(number) => Usd::parse(&number.to_string()),
        Value::Float(number) => Usd::parse(&number.to_string()),
        Value::Boolean(_) | Value::Datetime(_) | Value::Array(_) | Value::Table(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::message::TurnUsage;
    use crate::run::spec::ModelSpec;

    fn read(text: &str) -> (Prices, Vec<String>) {
        let mut faults = Vec::new();
        (prices(text.parse().unwrap(), &mut faults), faults)
    }

    #[test]
    fn a_price_is_read_as_it_is_written() {
        let (prices, faults) = read(
            r#"
            ["openai/gpt-5-mini"]
            input_usd_per_million = 0.25
            cached_input_usd_per_million = "0.025"
            output_usd_per_million = 2
            ["openai/org/model"]
            input_usd_per_million = 1
            output_usd_per_million = 1
            "#,
        );
        assert!(faults.is_empty(), "{faults:?}");
        let cost = |name: &str| {
            let model = serde_json::json!({ "provider": "openai", "name": name });
            let usage = TurnUsage {
                input_tokens: 1_000_000,
                output_tokens: 1_000_000,
                cached_input_tokens: 500_000,
                estimated_tokens: 0,
            };
            prices.of(&serde_json::from_value::<ModelSpec>(model).unwrap()).map(|price| price.of(usage).to_string())
        };
        assert_eq!(cost("gpt-5-mini").as_deref(), Some("2.1375"));
        assert_eq!(cost("org/model").as_deref(), Some("2"), "what is cached costs as much, unless it is said");
        assert_eq!(cost("other"), None);
    }

    #[test]
    fn every_fault_of_a_price_is_named_at_once() {
        let (_, faults) = read(
            r#"
            mini = 1
            ["openai/a"]
            input_usd_per_million = -1
            output_usd_per_million = true
            per_request = 1
            ["openai/b"]
            input_usd_per_million = 1
            [model]
            input_usd_per_million = 1
            output_usd_per_million = "1.0000000000001"
            "#,
        );
        let text = faults.join("\n");
        for part in [
            r#""mini" is no table"#,
            r#""openai/a": input_usd_per_million must"#,
            r#""openai/a": output_usd_per_million must"#,
            r#""openai/a": per_request is not"#,
            r#""openai/b": input_usd_per_million and output_usd_per_million are required"#,
            r#""model": its name must"#,
            r#""model": output_usd_per_million must"#,
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
