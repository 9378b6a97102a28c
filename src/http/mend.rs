//! Takes what has not its form out of a body, so that the rest can be checked for what it means and a caller is told all of
//! it at once. What is taken out is named: nothing is made up of its absence.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::problem::Flaw;

/// What stands in for a member that must be there.
pub(super) struct StandIn {
    /// The member.
    place: &'static str,
    value: fn() -> Value,
    /// What else nothing is said of then.
    also: &'static [&'static str],
}

/// A user's message.
pub(super) const INPUT: StandIn = StandIn { place: "/input", value: || json!("-"), also: &[] };
/// A model; what one of its prices says is not known.
pub(super) const MODEL: StandIn = StandIn {
    place: "/model",
    value: || json!({ "provider": "scripted", "name": "-", "script": [{ "text": "-" }] }),
    also: &["/limits/max_cost_usd"],
};

/// Members that others are judged by: without one of them much would be said that is not so.
const KEPT: [&str; 3] = ["/mcp", "/tools", "/secrets"];
/// The same inside of such members.
const KEPT_NAMES: [&str; 2] = ["namespace", "server"];

/// Mends each place that has a flaw, once, and notes of which places nothing is to be said. `false`: nothing is left to be
/// mended, or the rest cannot be judged.
pub(super) fn mend_all(body: &mut Value, flaws: &[Flaw], stand_ins: &[StandIn], places: &mut Vec<String>) -> bool {
    let pointers: BTreeSet<&str> = flaws.iter().map(|flaw| flaw.pointer.as_deref().unwrap_or_default()).collect();
    !pointers.is_empty()
        && pointers.into_iter().all(|pointer| match mend(body, pointer, stand_ins) {
            Some(mended) => {
                places.extend(mended);
                true
            }
            // Another flaw of the same place, or one inside of what was taken out.
            None => places.iter().any(|place| is_inside(pointer, place)),
        })
}

fn is_inside(pointer: &str, place: &str) -> bool {
    pointer.strip_prefix(place).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Takes out what stands at a place, or puts something that has its form in the place of what is not there. `None`: the rest
/// cannot be judged without it. Else the places of which nothing is to be said.
fn mend(body: &mut Value, pointer: &str, stand_ins: &[StandIn]) -> Option<Vec<String>> {
    let (parent, name) = pointer.rsplit_once('/')?;
    let name = name.replace("~1", "/").replace("~0", "~");
    let is_kept = KEPT.contains(&pointer) || pointer.starts_with("/secrets/") || KEPT_NAMES.contains(&name.as_str());
    let removed = body.pointer_mut(parent)?.as_object_mut()?.remove(&name).is_some();
    if removed {
        return (!is_kept).then(|| vec![pointer.to_owned()]);
    }
    let StandIn { place, value, also } = stand_ins.iter().find(|stand_in| is_inside(pointer, stand_in.place))?;
    body.as_object_mut()?.insert(place.trim_start_matches('/').to_owned(), value());
    Some(std::iter::once(place).chain(also.iter()).map(|place| (*place).to_owned()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_are_judged_by_is_never_taken_out_and_what_must_be_there_is_stood_in_for() {
        let body = || {
            json!({
                "bogus": 1, "a/b~c": 2, "limits": { "max_turns": 0 }, "secrets": { "k": 1 }, "tools": 7,
                "model": { "name": "m" }, "mcp": [{ "namespace": "a b", "side_effect_class": "x" }, 7],
            })
        };
        let stand_ins = [INPUT, MODEL];
        for pointer in ["/bogus", "/a~1b~0c", "/limits/max_turns", "/mcp/0/side_effect_class"] {
            let mut mended = body();
            assert_eq!(mend(&mut mended, pointer, &stand_ins), Some(vec![pointer.to_owned()]));
            assert_eq!(mended.pointer(pointer), None);
        }
        for pointer in ["", "/tools", "/secrets/k", "/mcp/0/namespace", "/mcp/1", "/mcp/0/url", "/limits/none/such"] {
            assert_eq!(mend(&mut body(), pointer, &stand_ins), None, "{pointer}");
        }
        let mut mended = body();
        assert_eq!(mend(&mut mended, "/input", &stand_ins), Some(vec!["/input".to_owned()]));
        let places = mend(&mut mended, "/model/provider", &stand_ins);
        assert_eq!(places, Some(vec!["/model".to_owned(), "/limits/max_cost_usd".to_owned()]));
        assert_eq!((&mended["input"], &mended["model"]["provider"]), (&json!("-"), &json!("scripted")));
    }
}
