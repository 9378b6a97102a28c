//! How much of a tool's result the model is told. The receipt keeps everything; a model has a window. What is left out
//! is said, with where the whole is. What is left is valid: JSON stays JSON, and no character is cut.

use serde_json::{Map, Value};

use super::json::parse_strict;

/// How many bytes of results the model is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ViewLimits {
    /// Of one result.
    pub result: usize,
    /// Of all results of one turn together.
    pub turn: usize,
}

/// The default of one result, in bytes: some 12,000 tokens.
pub const RESULT_BYTES: usize = 50_000;
/// The default of a turn, in bytes.
pub const TURN_BYTES: usize = 200_000;

/// No result gets less of a turn, however many there are, in bytes.
const LEAST: usize = 500;

/// Room for the words that say what is left out, in bytes.
const WORDS: usize = 64;

impl Default for ViewLimits {
    fn default() -> Self {
        Self { result: RESULT_BYTES, turn: TURN_BYTES }
    }
}

impl ViewLimits {
    /// How much each result of a turn may have: small ones leave what they do not need to the large ones.
    pub fn share(self, outputs: &[&Value]) -> usize {
        let mut sizes: Vec<usize> = outputs.iter().map(|output| size(output)).collect();
        sizes.sort_unstable();
        let (mut room, mut others) = (self.turn, sizes.len());
        for size in sizes {
            let fair = room.checked_div(others).unwrap_or(room);
            if size > fair {
                return fair.min(self.result).max(LEAST);
            }
            room = room.saturating_sub(size);
            others = others.saturating_sub(1);
        }
        self.result
    }
}

/// How many bytes of a prompt a value takes: text as it is, everything else as JSON.
fn size(value: &Value) -> usize {
    value.as_str().map_or_else(|| value.to_string().len(), str::len)
}

/// The value within about `max` bytes; `whole` says where all of it is.
pub fn within(value: Value, max: usize, whole: &str) -> Value {
    let size = size(&value);
    if size <= max {
        return value;
    }
    let structure = match &value {
        // Many servers give JSON as text: half of it would be none.
        Value::String(text) => parse_strict(text).ok().filter(|read| read.is_object() || read.is_array()),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => Some(value.clone()),
    };
    match (structure, value) {
        (Some(structure), _) => {
            let notice =
                format!("{size} bytes are too many to be shown: parts are left out, each where it says so. {whole}");
            Value::Object(Map::from_iter([
                ("shortened".to_owned(), Value::String(notice)),
                ("value".to_owned(), pruned(&structure, max)),
            ]))
        }
        (None, Value::String(text)) => {
            let end = max.checked_div(4).unwrap_or_default();
            let (head, tail) = (start_of(&text, max.saturating_sub(end)), end_of(&text, end));
            let gone = size.saturating_sub(head.len()).saturating_sub(tail.len());
            Value::String(format!("{head}\n[… {gone} of {size} bytes are left out here. {whole}]\n{tail}"))
        }
        (None, value) => value,
    }
}

/// The beginning of a text, at most so many bytes, up to a whole character.
fn start_of(text: &str, most: usize) -> &str {
    text.get(..text.floor_char_boundary(most)).unwrap_or_default()
}

fn end_of(text: &str, most: usize) -> &str {
    text.get(text.ceil_char_boundary(text.len().saturating_sub(most))..).unwrap_or_default()
}

/// The value within about so many bytes of JSON, its first parts first.
fn pruned(value: &Value, budget: usize) -> Value {
    if measured(value, budget).is_some() {
        return value.clone();
    }
    match value {
        Value::String(text) => {
            let head = start_of(text, budget.saturating_sub(WORDS));
            Value::String(format!("{head}… [{} bytes left out]", text.len().saturating_sub(head.len())))
        }
        Value::Array(items) => {
            let mut room = Room(budget.saturating_sub(WORDS));
            let mut kept: Vec<Value> = items.iter().map_while(|item| room.take(item, 1)).collect();
            let gone = items.len().saturating_sub(kept.len());
            if gone > 0 {
                kept.push(Value::String(format!("… [{gone} more items left out]")));
            }
            Value::Array(kept)
        }
        Value::Object(members) => {
            let mut room = Room(budget.saturating_sub(WORDS));
            let take = |(name, member): (&String, &Value)| {
                room.take(member, name.len().saturating_add(4)).map(|member| (name.clone(), member))
            };
            let mut kept: Map<String, Value> = members.iter().map_while(take).collect();
            let gone = members.len().saturating_sub(kept.len());
            if gone > 0 {
                kept.insert("…".to_owned(), Value::String(format!("[{gone} more members left out]")));
            }
            Value::Object(kept)
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
    }
}

/// What is left of a budget while parts are taken.
struct Room(usize);

impl Room {
    /// A part, whole when it fits, else within half of what is left; `None` when there is no room for it.
    fn take(&mut self, part: &Value, extra: usize) -> Option<Value> {
        self.0 = self.0.checked_sub(extra)?;
        if let Some(size) = measured(part, self.0) {
            self.0 = self.0.saturating_sub(size);
            return Some(part.clone());
        }
        let half = self.0.checked_div(2).filter(|half| *half > WORDS)?;
        if !(part.is_string() || part.is_array() || part.is_object()) {
            return None;
        }
        let part = pruned(part, half);
        self.0 = self.0.saturating_sub(measured(&part, self.0).unwrap_or(self.0));
        Some(part)
    }
}

/// Whether a value takes more than so many bytes of JSON. Looks at no more of it than that.
pub fn is_over(value: &Value, bytes: usize) -> bool {
    measured(value, bytes).is_none()
}

/// How many bytes of JSON a value takes, if no more than `most`. Looks at no more of it than that.
fn measured(value: &Value, most: usize) -> Option<usize> {
    let mut left = most;
    measure(value, &mut left)?;
    most.checked_sub(left)
}

fn measure(value: &Value, left: &mut usize) -> Option<()> {
    match value {
        Value::String(text) if text.len() > *left => None,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => spend(left, value.to_string().len()),
        Value::Array(items) => {
            spend(left, items.len().saturating_add(1))?;
            items.iter().try_for_each(|item| measure(item, left))
        }
        Value::Object(members) => {
            spend(left, members.len().saturating_add(1))?;
            members.iter().try_for_each(|(name, member)| {
                spend(left, name.len().saturating_add(3))?;
                measure(member, left)
            })
        }
    }
}

fn spend(left: &mut usize, bytes: usize) -> Option<()> {
    *left = left.checked_sub(bytes)?;
    Some(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const WHOLE: &str = "All of it is kept.";

    #[test]
    fn what_fits_is_not_touched() {
        for value in [json!("x".repeat(100)), json!({ "a": [1, 2] }), Value::Null] {
            assert_eq!(within(value.clone(), 100, WHOLE), value);
        }
    }

    #[test]
    fn field_a012_a_long_text_keeps_both_ends_and_says_how_much_is_left_out() {
        let text = format!("begin {} end", "\u{1f600}".repeat(5_000));
        for max in 400..420 {
            let told = within(Value::from(text.as_str()), max, WHOLE);
            let told = told.as_str().unwrap();
            assert!(told.starts_with("begin ") && told.ends_with(" end"), "{told}");
            assert!(told.contains("of 20010 bytes are left out here. All of it is kept.]"), "{told}");
            assert!(!told.contains('\u{fffd}') && told.len() < max + 100, "{}", told.len());
        }
    }

    #[track_caller]
    fn check_json(value: Value, max: usize) -> Value {
        let told = within(value, max, WHOLE);
        assert!(told["shortened"].as_str().unwrap().ends_with(WHOLE), "{told}");
        assert!(told.to_string().len() < max + 300, "{} of {max}", told.to_string().len());
        told["value"].clone()
    }

    #[test]
    fn field_a012_json_stays_json_and_each_gap_says_what_is_missing() {
        let rows: Vec<Value> = (0..10_000).map(|id| json!({ "id": id, "name": "n".repeat(20) })).collect();
        let told = check_json(json!({ "total": 10_000, "rows": rows, "last": true }), 2_000);
        assert_eq!(told["total"], 10_000);
        let shown = told["rows"].as_array().unwrap();
        assert_eq!(shown[0], json!({ "id": 0, "name": "n".repeat(20) }));
        assert_eq!(shown.last().unwrap(), &json!(format!("… [{} more items left out]", 10_000 - (shown.len() - 1))));
        let told = check_json(json!({ "document": "d".repeat(300_000), "id": 2_512_292_042_121_000_001_u64 }), 2_000);
        assert!(told["document"].as_str().unwrap().ends_with(" bytes left out]"), "{told}");
        assert_eq!(told["id"].to_string(), "2512292042121000001");
        let many: Map<String, Value> = (0..10_000).map(|n| (format!("k{n}"), json!(n))).collect();
        let told = check_json(Value::Object(many), 1_000);
        assert!(told["…"].as_str().unwrap().contains("more members left out"), "{told}");
    }

    #[test]
    fn json_that_a_server_gave_as_text_stays_json_too() {
        let rows: Vec<Value> = (0..2_000).map(|id| json!({ "id": id })).collect();
        let told = check_json(Value::String(Value::from(rows).to_string()), 1_000);
        assert_eq!(told[0], json!({ "id": 0 }));
        let nested = (0..90).fold(json!("x".repeat(10_000)), |inner, _| json!([inner, inner.is_array()]));
        check_json(nested, 1_000);
    }

    #[test]
    fn field_a012_results_of_one_turn_share_and_small_ones_leave_their_rest() {
        let limits = ViewLimits { result: 1_000, turn: 2_000 };
        let (small, large) = (json!("x".repeat(10)), json!("x".repeat(5_000)));
        assert_eq!(limits.share(&[&small, &small]), 1_000);
        assert_eq!(limits.share(&[&large]), 1_000);
        assert_eq!(limits.share(&[&large, &large, &large]), 666);
        assert_eq!(limits.share(&[&small, &large, &large, &large]), 663);
        assert_eq!(limits.share(&[&large; 100]), LEAST);
        assert_eq!(limits.share(&[]), 1_000);
    }
}
