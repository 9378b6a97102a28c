//! What a run may say beside a registered server: only what makes it stricter. Whoever registered the server decides
//! what its tools may do; whoever starts a run can take away, never give.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::approval::RequireApproval;
use super::asking::Elicitation;
use super::binding::Hints;
use super::spec::{McpEntry, PerTool, Replay, SideEffectClass, Timeouts};

/// What a run says beside `server`. What is left out stays as registered.
#[derive(Clone, Debug, Default)]
pub struct Beside {
    /// The prefix of its tools: not a matter of strictness.
    pub namespace: Option<String>,
    /// Of the registered tools only these.
    pub tools: Option<Vec<String>>,
    /// Schemas besides the registered ones.
    pub input_schemas: BTreeMap<String, Value>,
    /// Never stricter.
    pub replay: Option<PerTool<Replay>>,
    /// Stricter classes.
    pub side_effect_class: Option<PerTool<SideEffectClass>>,
    /// `false` where the registration says `true`.
    pub trust_annotations: Option<bool>,
    /// `true` where the registration says `false`.
    pub required: Option<bool>,
    /// `deny` where the registration says `ask`.
    pub elicitation: Option<Elicitation>,
    /// Tools that wait for an approval besides the registered ones.
    pub require_approval: Option<RequireApproval>,
    /// Shorter limits, in milliseconds.
    pub connect_ms: Option<u64>,
    /// Shorter limits, in milliseconds.
    pub call_ms: Option<u64>,
    /// Shorter limits, in milliseconds.
    pub call_total_ms: Option<u64>,
}

/// A field that would make a registered server looser.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Looser {
    /// JSON Pointer below the entry, e.g. `/tools/1`.
    pub pointer: String,
    /// What is wrong there.
    pub detail: String,
}

impl McpEntry {
    /// What one of its tools may do to the world: of what was registered and what the run says the stricter. What a
    /// server claims (`hints`) counts only where nothing was declared and whoever registered it believes it.
    pub fn class_of(&self, server_tool: &str, hints: &Hints) -> SideEffectClass {
        let claimed = if self.trust_annotations { hints.class() } else { SideEffectClass::default() };
        let said = self.side_effect_class.as_ref().and_then(|class| class.of(server_tool)).unwrap_or(claimed);
        let own = self.own_class.as_ref().and_then(|class| class.of(server_tool));
        own.map_or(said, |own| own.max(said))
    }

    /// Whether a repeat of one of its tools was declared harmless. A run that calls it irreversible takes that back.
    pub fn may_repeat(&self, server_tool: &str) -> bool {
        let declared = self.replay.as_ref().and_then(|replay| replay.of(server_tool)).is_some();
        declared && self.class_of(server_tool, &Hints::default()) != SideEffectClass::IrreversibleAction
    }
}

/// The entry of a run on a registered server. Its address, headers and credential are left out: they are looked up
/// whenever it is reached.
///
/// # Errors
/// Every field that would make it looser.
pub fn tighten(server: &str, registered: &McpEntry, beside: Beside) -> Result<McpEntry, Vec<Looser>> {
    let mut faults = Vec::new();
    looser_tools(registered, beside.tools.as_deref(), &mut faults);
    looser_class(registered, beside.side_effect_class.as_ref(), &mut faults);
    let relaxes = |replay: &PerTool<Replay>| match replay {
        PerTool::All(_) => !matches!(registered.replay, Some(PerTool::All(_))),
        PerTool::Each(map) => {
            map.keys().any(|tool| registered.replay.as_ref().and_then(|replay| replay.of(tool)).is_none())
        }
    };
    if beside.replay.as_ref().is_some_and(relaxes) {
        faults.push(looser("/replay", "the server is not registered as repeatable: a run cannot declare it"));
    }
    if beside.required == Some(false) && registered.required {
        faults.push(looser("/required", "the server is registered as required"));
    }
    if beside.trust_annotations == Some(true) && !registered.trust_annotations {
        faults.push(looser("/trust_annotations", "the server is registered as one whose hints are not believed"));
    }
    if beside.elicitation == Some(Elicitation::Ask) && registered.elicitation == Elicitation::Deny {
        faults.push(looser("/elicitation", "the server is registered as one that may not ask"));
    }
    let timeouts = shorter(registered.timeouts, &beside, &mut faults);
    if !faults.is_empty() {
        return Err(faults);
    }
    Ok(McpEntry {
        server: Some(server.to_owned()),
        url: None,
        namespace: beside.namespace.or_else(|| registered.namespace.clone()),
        auth: None,
        headers: BTreeMap::new(),
        tools: beside.tools.or_else(|| registered.tools.clone()),
        input_schemas: both(registered.input_schemas.clone(), beside.input_schemas),
        elicitation: beside.elicitation.unwrap_or(registered.elicitation),
        trust_annotations: beside.trust_annotations.unwrap_or(registered.trust_annotations),
        require_approval: match (registered.require_approval.clone(), beside.require_approval) {
            (Some(registered), Some(own)) => Some(registered.and(own)),
            (registered, own) => registered.or(own),
        },
        own_class: beside.side_effect_class,
        required: beside.required.unwrap_or(registered.required),
        timeouts,
        ..registered.clone()
    })
}

fn looser(pointer: impl Into<String>, detail: impl Into<String>) -> Looser {
    Looser { pointer: pointer.into(), detail: detail.into() }
}

fn looser_tools(registered: &McpEntry, own: Option<&[String]>, faults: &mut Vec<Looser>) {
    let Some(allowed) = &registered.tools else { return };
    for (index, tool) in own.unwrap_or_default().iter().enumerate().filter(|(_, tool)| !allowed.contains(tool)) {
        faults.push(looser(format!("/tools/{index}"), format!("the server is registered without the tool {tool:?}")));
    }
}

fn looser_class(registered: &McpEntry, own: Option<&PerTool<SideEffectClass>>, faults: &mut Vec<Looser>) {
    const DETAIL: &str = "is less strict than the class that the server is registered with";
    match own {
        None => {}
        Some(PerTool::Each(map)) => {
            let looser_ones = map.iter().filter(|(tool, class)| **class < registered.class_of(tool, &Hints::default()));
            faults.extend(looser_ones.map(|(tool, _)| looser(format!("/side_effect_class/{}", escaped(tool)), DETAIL)));
        }
        Some(PerTool::All(class)) => {
            let strictest = match &registered.side_effect_class {
                None => SideEffectClass::default(),
                Some(PerTool::All(all)) => *all,
                // The tools that the map does not name have the default.
                Some(PerTool::Each(map)) => map.values().copied().fold(SideEffectClass::default(), Ord::max),
            };
            if *class < strictest {
                faults.push(looser("/side_effect_class", DETAIL));
            }
        }
    }
}

/// A name as one step of a JSON Pointer.
fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

fn shorter(registered: Timeouts, beside: &Beside, faults: &mut Vec<Looser>) -> Timeouts {
    let mut limit = |name: &str, own: Option<u64>, registered: u64| {
        if own.is_some_and(|own| own > registered) {
            faults.push(looser(format!("/timeouts/{name}"), format!("the server is registered with {registered}")));
        }
        own.unwrap_or(registered)
    };
    Timeouts {
        connect_ms: limit("connect_ms", beside.connect_ms, registered.connect_ms),
        call_ms: limit("call_ms", beside.call_ms, registered.call_ms),
        call_total_ms: limit("call_total_ms", beside.call_total_ms, registered.call_total_ms),
    }
}

/// Arguments must fit both schemas of a tool.
fn both(mut registered: BTreeMap<String, Value>, own: BTreeMap<String, Value>) -> BTreeMap<String, Value> {
    for (tool, schema) in own {
        let schema = match registered.remove(&tool) {
            Some(first) => json!({ "allOf": [first, schema] }),
            None => schema,
        };
        registered.insert(tool, schema);
    }
    registered
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registered(fields: Value) -> McpEntry {
        let mut entry = json!({ "url": "https://orders.example.com/mcp" });
        for (name, value) in fields.as_object().unwrap() {
            entry[name] = value.clone();
        }
        serde_json::from_value(entry).unwrap()
    }

    fn classes(value: Value) -> Beside {
        Beside { side_effect_class: serde_json::from_value(value).unwrap(), ..Beside::default() }
    }

    #[track_caller]
    fn check(fields: Value, beside: Beside, looser_at: &[&str]) {
        let said = tighten("orders", &registered(fields), beside).err().unwrap_or_default();
        let at: Vec<&str> = said.iter().map(|looser| looser.pointer.as_str()).collect();
        assert_eq!(at, looser_at, "{said:?}");
    }

    #[test]
    fn only_a_subset_of_the_registered_tools_can_be_taken() {
        let tools = |names: &[&str]| Beside {
            tools: Some(names.iter().map(|name| (*name).to_owned()).collect()),
            ..Beside::default()
        };
        check(json!({}), tools(&["a", "b"]), &[]);
        check(json!({ "tools": ["a", "b"] }), tools(&["b"]), &[]);
        check(json!({ "tools": ["a", "b"] }), tools(&[]), &[]);
        check(json!({ "tools": ["a"] }), tools(&["a", "b", "c"]), &["/tools/1", "/tools/2"]);
        check(json!({ "tools": [] }), tools(&["a"]), &["/tools/0"]);
    }

    #[test]
    fn a_class_can_only_become_stricter() {
        check(json!({}), classes(json!("irreversible_action")), &[]);
        check(json!({}), classes(json!("read_only")), &["/side_effect_class"]);
        check(json!({ "side_effect_class": "read_only" }), classes(json!("idempotent_write")), &[]);
        check(json!({ "side_effect_class": "read_only" }), classes(json!({ "a": "read_only" })), &[]);
        // What the map does not name has the default, which is stricter than this.
        check(
            json!({ "side_effect_class": { "a": "read_only" } }),
            classes(json!("idempotent_write")),
            &["/side_effect_class"],
        );
        check(
            json!({ "side_effect_class": { "a": "irreversible_action", "b/c": "idempotent_write" } }),
            classes(json!({ "a": "non_idempotent_write", "b/c": "read_only", "d": "irreversible_action" })),
            &["/side_effect_class/a", "/side_effect_class/b~1c"],
        );
    }

    #[test]
    fn of_two_classes_the_stricter_holds_and_an_irreversible_action_is_not_repeatable() {
        let fields = json!({ "side_effect_class": "idempotent_write", "replay": "idempotent" });
        let own = classes(json!({ "refund": "irreversible_action", "ship": "non_idempotent_write" }));
        let entry = tighten("orders", &registered(fields), own).unwrap();
        let of = |tool: &str| (entry.class_of(tool, &Hints::default()), entry.may_repeat(tool));
        assert_eq!(of("refund"), (SideEffectClass::IrreversibleAction, false));
        assert_eq!(of("ship"), (SideEffectClass::NonIdempotentWrite, true));
        assert_eq!(of("other"), (SideEffectClass::IdempotentWrite, true));
    }

    #[test]
    fn time_limits_become_shorter_and_what_was_strict_stays() {
        let fields = json!({ "timeouts": { "connect_ms": 500, "call_ms": 1000 } });
        let own = Beside { call_ms: Some(900), connect_ms: Some(501), ..Beside::default() };
        check(fields.clone(), own, &["/timeouts/connect_ms"]);
        let own = Beside { call_ms: Some(900), ..Beside::default() };
        let entry = tighten("orders", &registered(fields), own).unwrap();
        assert_eq!(entry.timeouts, Timeouts { connect_ms: 500, call_ms: 900, call_total_ms: 600_000 });
        let replay = |value: Value| Beside { replay: serde_json::from_value(value).unwrap(), ..Beside::default() };
        check(json!({}), replay(json!("idempotent")), &["/replay"]);
        check(json!({ "replay": { "a": "idempotent" } }), replay(json!({ "a": "idempotent" })), &[]);
        check(json!({ "replay": { "a": "idempotent" } }), replay(json!("idempotent")), &["/replay"]);
        let required = |required| Beside { required: Some(required), ..Beside::default() };
        check(json!({}), required(false), &["/required"]);
        check(json!({ "required": false }), required(true), &[]);
        let trust = |trust| Beside { trust_annotations: Some(trust), ..Beside::default() };
        check(json!({}), trust(true), &["/trust_annotations"]);
        check(json!({ "trust_annotations": true }), trust(false), &[]);
        let elicitation = |mode| Beside { elicitation: Some(mode), ..Beside::default() };
        check(json!({}), elicitation(Elicitation::Ask), &["/elicitation"]);
        check(json!({ "elicitation": "ask" }), elicitation(Elicitation::Deny), &[]);
    }

    #[test]
    fn address_headers_and_credential_are_left_out_and_schemas_hold_together() {
        let fields = json!({
            "headers": { "X-Team": "a" }, "auth": { "scheme": "bearer", "secret": "orders_token" },
            "input_schemas": { "refund": { "maxProperties": 3 }, "ship": true },
        });
        let beside = Beside {
            input_schemas: BTreeMap::from([("refund".to_owned(), json!({ "minProperties": 1 }))]),
            ..Beside::default()
        };
        let entry = tighten("orders", &registered(fields), beside).unwrap();
        assert_eq!((entry.url, entry.auth, entry.headers.len()), (None, None, 0));
        assert_eq!(entry.server.as_deref(), Some("orders"));
        assert_eq!(entry.input_schemas["refund"], json!({ "allOf": [{ "maxProperties": 3 }, { "minProperties": 1 }] }));
        assert_eq!(entry.input_schemas["ship"], json!(true));
    }
}
