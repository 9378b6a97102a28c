//! Refuses a list or map of rules in a YAML manifest that is written and says nothing: `policies:` with nothing after the
//! colon is `null`, and somebody who wrote it meant a rule. In JSON programs write `null` for what they leave out.

use serde_json::Value;

use super::problem::Flaw;

/// What stands in what runs are made of.
const OF_MANIFEST: &[&str] = &["policies", "limits", "mcp", "tools"];
/// What stands in an entry for a server.
const OF_ENTRY: &[&str] = &["policies", "tools", "input_schemas", "side_effect_class", "require_approval", "timeouts"];
/// What stands in a tool of a run's own.
const OF_TOOL: &[&str] = &["input_schema", "side_effect_class", "require_approval"];
/// What stands in a rule, in how it is decided, and in who decides.
const OF_POLICY: &[&str] = &["when", "approval"];
const OF_APPROVAL: &[&str] = &["approvers"];
const OF_APPROVERS: &[&str] = &["scopes", "subjects"];

/// Every rule of a manifest that is explicitly nothing.
pub(super) fn flaws(manifest: &Value) -> Vec<Flaw> {
    let mut flaws = Vec::new();
    find(manifest, "", OF_MANIFEST, &mut flaws);
    each(manifest, "mcp", &mut |entry, at| find(entry, at, OF_ENTRY, &mut flaws));
    each(manifest, "tools", &mut |tool, at| find(tool, at, OF_TOOL, &mut flaws));
    each(manifest, "policies", &mut |policy, at| {
        find(policy, at, OF_POLICY, &mut flaws);
        let (approval, at) = (&policy["approval"], format!("{at}/approval"));
        find(approval, &at, OF_APPROVAL, &mut flaws);
        find(&approval["approvers"], &format!("{at}/approvers"), OF_APPROVERS, &mut flaws);
    });
    flaws
}

fn each(body: &Value, list: &str, look: &mut impl FnMut(&Value, &str)) {
    for (index, item) in body[list].as_array().into_iter().flatten().enumerate() {
        look(item, &format!("/{list}/{index}"));
    }
}

fn find(value: &Value, at: &str, names: &[&str], flaws: &mut Vec<Flaw>) {
    let Some(object) = value.as_object() else { return };
    let empty = names.iter().filter(|name| object.get(**name).is_some_and(Value::is_null));
    flaws.extend(
        empty.map(|name| Flaw::at(format!("{at}/{name}"), "says nothing (null): give it a value, or leave it out")),
    );
}
