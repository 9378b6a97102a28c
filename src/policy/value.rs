//! JSON as the expression language sees it. Converted by hand: through serde every number would become a map, and
//! comparing it silently false, so that a rule that denies would let everything pass.

use std::collections::HashMap;
use std::sync::Arc;

use cel::Value as CelValue;
use serde_json::{Number, Value};

use super::exact::{self, Numbers};

/// Most text that one expression may look at, in bytes.
const TEXT_MAX: usize = 256 * 1024;

/// Most values that one expression may look at.
const VALUES_MAX: usize = 10_000;

/// What an expression may still look at.
pub(super) struct Budget {
    text: usize,
    values: usize,
    /// The numbers of the expression itself, and of what it looked at so far.
    numbers: Numbers,
}

impl Budget {
    /// All that an expression with these numbers in it may look at.
    pub(super) fn with(numbers: Numbers) -> Self {
        Self { text: TEXT_MAX, values: VALUES_MAX, numbers }
    }

    /// # Errors
    /// What it looks at could be rounded in a comparison.
    pub(super) fn check(&self) -> Result<(), String> {
        self.numbers.check()
    }

    fn take(&mut self, text: usize, root: &str) -> Result<(), String> {
        let left = (self.text.checked_sub(text), self.values.checked_sub(1));
        let (Some(text), Some(values)) = left else {
            return Err(format!(
                "what it looks at in {root:?} is more than {} KiB or {VALUES_MAX} values",
                TEXT_MAX / 1024
            ));
        };
        (self.text, self.values) = (text, values);
        Ok(())
    }

    pub(super) fn object<'a>(
        &mut self,
        members: impl Iterator<Item = (&'a String, &'a Value)>,
        root: &str,
    ) -> Result<CelValue, String> {
        self.take(0, root)?;
        let mut map: HashMap<String, CelValue> = HashMap::new();
        for (name, value) in members {
            self.take(name.len(), root)?;
            map.insert(name.clone(), to_cel(value, root, self)?);
        }
        Ok(CelValue::from(map))
    }
}

/// A JSON value; `root` is where it stands, for messages.
pub(super) fn to_cel(value: &Value, root: &str, budget: &mut Budget) -> Result<CelValue, String> {
    Ok(match value {
        Value::Object(members) => return budget.object(members.iter(), root),
        Value::Array(items) => {
            budget.take(0, root)?;
            let items: Result<Vec<CelValue>, String> = items.iter().map(|item| to_cel(item, root, budget)).collect();
            CelValue::List(Arc::new(items?))
        }
        Value::String(text) => {
            budget.take(text.len(), root)?;
            budget.numbers.rounded |= budget.numbers.converts && exact::is_rounded(text);
            CelValue::from(text.as_str())
        }
        Value::Number(number) => {
            budget.take(0, root)?;
            to_number(number, &mut budget.numbers)?
        }
        Value::Bool(says) => {
            budget.take(0, root)?;
            CelValue::Bool(*says)
        }
        Value::Null => {
            budget.take(0, root)?;
            CelValue::Null
        }
    })
}

/// What is written as an integer is an int, everything else a double; what fits neither as it stands cannot be judged.
fn to_number(number: &Number, numbers: &mut Numbers) -> Result<CelValue, String> {
    let text = number.to_string();
    let shown = || text.chars().take(40).collect::<String>();
    if text.contains(['.', 'e', 'E']) {
        numbers.doubles = true;
        let double = exact::double(&text).map(CelValue::Float);
        return double
            .ok_or_else(|| format!("the number {} is out of range, or has more digits than are compared", shown()));
    }
    let int = text.parse::<i64>().map_err(|_out_of_range| format!("the number {} is out of range", shown()))?;
    numbers.int(int.unsigned_abs(), shown);
    Ok(CelValue::Int(int))
}
