//! Money, exact: amounts are whole numbers of 10⁻¹² dollars, so a sum of a million turns is a sum, and not nearly one.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr as _;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Number;

use super::message::TurnUsage;
use super::spec::ModelSpec;

/// Digits behind the point.
const DECIMALS: u32 = 12;
/// What one dollar is.
const DOLLAR: u64 = 1_000_000_000_000;
/// Prices are for so many tokens.
const TOKENS: u128 = 1_000_000;

/// US dollars, up to 18 million. What is more counts as that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Usd(u64);

impl Usd {
    /// Nothing.
    pub const ZERO: Self = Self(0);

    /// The least amount that is not nothing.
    pub const LEAST: Self = Self(1);

    /// Reads a decimal number that is not negative and has at most 12 digits behind the point.
    pub fn parse(text: &str) -> Option<Self> {
        let (mantissa, exponent) = match text.split_once(['e', 'E']) {
            Some((mantissa, exponent)) => (mantissa, exponent.parse::<i32>().ok()?),
            None => (text, 0),
        };
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let is_number = |digits: &str| digits.bytes().all(|byte| byte.is_ascii_digit());
        if whole.is_empty() || !is_number(whole) || !is_number(fraction) {
            return None;
        }
        let fraction = fraction.trim_end_matches('0');
        let digits: u128 = format!("{whole}{fraction}").parse().ok()?;
        let behind = i32::try_from(fraction.len()).ok()?;
        let shift = i32::try_from(DECIMALS).ok()?.checked_add(exponent)?.checked_sub(behind)?;
        if digits == 0 {
            return Some(Self::ZERO);
        }
        let power = 10_u128.checked_pow(shift.unsigned_abs())?;
        let amount = if shift >= 0 {
            digits.checked_mul(power)?
        } else if digits.checked_rem(power)? == 0 {
            digits.checked_div(power)?
        } else {
            return None;
        };
        u64::try_from(amount).ok().map(Self)
    }

    /// Both together.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// What is left of it; never less than nothing.
    #[must_use]
    pub const fn minus(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl fmt::Display for Usd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, rest) = (self.0.checked_div(DOLLAR).unwrap_or(0), self.0.checked_rem(DOLLAR).unwrap_or(0));
        if rest == 0 {
            return write!(f, "{whole}");
        }
        let rest = format!("{rest:012}");
        write!(f, "{whole}.{}", rest.trim_end_matches('0'))
    }
}

impl Serialize for Usd {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let number = Number::from_str(&self.to_string()).map_err(serde::ser::Error::custom)?;
        number.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Usd {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = Number::deserialize(deserializer)?;
        let why = "an amount of dollars is not negative and has at most 12 digits behind the point";
        Self::parse(&number.to_string()).ok_or_else(|| serde::de::Error::custom(why))
    }
}

/// What a model costs, for a million tokens each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Price {
    /// Tokens read.
    pub input: Usd,
    /// Tokens read from the provider's cache.
    pub cached_input: Usd,
    /// Tokens written.
    pub output: Usd,
}

impl Price {
    /// What a request with this usage costs, rounded up to 10⁻¹² dollars.
    pub fn of(&self, usage: TurnUsage) -> Usd {
        let cached = usage.cached_input_tokens.min(usage.input_tokens);
        let fresh = usage.input_tokens.saturating_sub(cached);
        let part = |tokens: u64, price: Usd| u128::from(tokens).saturating_mul(u128::from(price.0));
        let sum = part(fresh, self.input)
            .saturating_add(part(cached, self.cached_input))
            .saturating_add(part(usage.output_tokens, self.output));
        Usd(u64::try_from(sum.div_ceil(TOKENS)).unwrap_or(u64::MAX))
    }

    /// The least that a request costs which reads so many tokens.
    pub fn least(&self, input_tokens: u64) -> Usd {
        let is_cheaper = self.cached_input < self.input;
        let cached_input_tokens = if is_cheaper { input_tokens } else { 0 };
        self.of(TurnUsage { input_tokens, output_tokens: 0, cached_input_tokens, estimated_tokens: 0 })
    }

    /// How many tokens can be written for so much; `None`: they cost nothing.
    pub fn written_for(&self, amount: Usd) -> Option<u64> {
        let tokens = u128::from(amount.0).saturating_mul(TOKENS).checked_div(u128::from(self.output.0))?;
        Some(u64::try_from(tokens).unwrap_or(u64::MAX))
    }

    /// Whether nothing costs anything.
    pub fn is_free(&self) -> bool {
        [self.input, self.cached_input, self.output] == [Usd::ZERO; 3]
    }
}

/// What models cost, by `provider/name`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Prices(BTreeMap<String, Price>);

impl Prices {
    /// What this model costs; `None`: nobody said.
    pub fn of(&self, model: &ModelSpec) -> Option<&Price> {
        self.0.get(&name_of(model))
    }

    /// Those of these models alone.
    #[must_use]
    pub fn for_models<'a>(&self, models: impl IntoIterator<Item = &'a ModelSpec>) -> Self {
        let known = models.into_iter().filter_map(|model| Some((name_of(model), *self.of(model)?)));
        Self(known.collect())
    }

    /// Whether nothing is known.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromIterator<(String, Price)> for Prices {
    fn from_iter<I: IntoIterator<Item = (String, Price)>>(prices: I) -> Self {
        Self(prices.into_iter().collect())
    }
}

/// What a model's price stands under.
pub fn name_of(model: &ModelSpec) -> String {
    format!("{}/{}", model.provider.code(), model.name)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn usd(text: &str) -> Usd {
        Usd::parse(text).unwrap()
    }

    #[test]
    fn amounts_are_read_and_written_to_the_last_digit() {
        for (text, written) in [
            ("0", "0"),
            ("0.0", "0"),
            ("5", "5"),
            ("0.10", "0.1"),
            ("0.000000000001", "0.000000000001"),
            ("1e-6", "0.000001"),
            ("2.5E+3", "2500"),
            ("12.50e-1", "1.25"),
            ("18000000", "18000000"),
        ] {
            assert_eq!(usd(text).to_string(), written, "{text}");
        }
        for text in ["", "-1", "+1", ".5", "1.x", "0.0000000000001", "1e-13", "19000000", "1e999", "nan", "1e", "0x1"] {
            assert_eq!(Usd::parse(text), None, "{text}");
        }
        let read: Usd = serde_json::from_str("0.3").unwrap();
        assert_eq!(serde_json::to_string(&[read.plus(usd("0.6"))]).unwrap(), "[0.9]");
        assert!(serde_json::from_value::<Usd>(json!(-1)).is_err());
    }

    #[test]
    fn a_turn_costs_what_its_tokens_cost() {
        let price = Price { input: usd("0.25"), cached_input: usd("0.025"), output: usd("2") };
        let usage = |input_tokens, cached_input_tokens, output_tokens| TurnUsage {
            input_tokens,
            output_tokens,
            cached_input_tokens,
            estimated_tokens: 0,
        };
        assert_eq!(price.of(usage(10, 0, 5)).to_string(), "0.0000125");
        assert_eq!(price.of(usage(1_000_000, 0, 0)), usd("0.25"));
        assert_eq!(price.of(usage(1_000_000, 400_000, 0)), usd("0.16"));
        assert_eq!(price.of(usage(1, 9, 0)), price.of(usage(1, 1, 0)), "no more than all of it is cached");
        assert_eq!(price.of(usage(u64::MAX, 0, u64::MAX)), Usd(u64::MAX));
        assert_eq!(price.least(10), price.of(usage(10, 10, 0)));
    }

    proptest! {
        #[test]
        fn an_amount_reads_back_from_its_text(amount: u64) {
            prop_assert_eq!(Usd::parse(&Usd(amount).to_string()), Some(Usd(amount)));
            let text = serde_json::to_string(&Usd(amount)).unwrap();
            prop_assert_eq!(serde_json::from_str::<Usd>(&text).unwrap(), Usd(amount));
        }
    }
}
