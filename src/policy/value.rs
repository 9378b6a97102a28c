//! JSON as the expression language sees it. Converted by hand: through serde every number would become a map, and
//! comparing it silently false, so that a rule that denies would let everything pass.

use std::collections::HashMap;
use std::sync::Arc;

use cel::Value as CelValue;
use serde_json::{Number, Value};

/// Most text that one expression may look at, in bytes.
const TEXT_MAX: usize = 256 * 1024;

/// Most values that one expression may look at.
const VALUES_MAX: usize = 10_000;

/// What an expression may still look at.
pub(super) struct Budget {
    text: usize,
    values: usize,
}

impl Default for Budget {
    fn default() -> Self {
        Self { text: TEXT_MAX, values: VALUES_MAX }
    }
}

impl Budget {
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
            CelValue::from(text.as_str())
        }
        Value::Number(number) => {
            budget.take(0, root)?;
            to_number(number)?
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

/// What is written as an integer is an int, everything else a double; what fits neither cannot be judged.
fn to_number(number: &Number) -> Result<CelValue, String> {
    let text = number.to_string();
    let shown: String = text.chars().take(40).collect();
    if text.contains(['.', 'e', 'E']) {
        let double = text.parse::<f64>().ok().filter(|double| double.is_finite());
        return double.map(CelValue::Float).ok_or_else(|| format!("the number {shown} is out of range"));
    }
    text.parse::<i64>().map(CelValue::Int).map_err(|_out_of_range| format!("the number {shown} is out of range"))
}
