//! Records, drift, collisions, and what annotations may relax.

use std::sync::Arc;

use serde_json::json;

use super::*;
use crate::run::json::parse_strict;

fn record(tools: &[(&str, Option<&str>, Value)]) -> CatalogRecord {
    CatalogRecord::of(tools.iter().map(|(name, description, schema)| (*name, *description, schema)))
}

fn charge() -> (&'static str, Option<&'static str>, Value) {
    let schema = json!({"type":"object","properties":{"amount":{"type":"number"}},"required":["amount"]});
    ("charge", Some("Charge the card on file."), schema)
}

#[track_caller]
fn check(tools: &[(&str, Option<&str>, Value)], hashes: &[&str], fingerprint: &str) {
    for ((name, description, schema), hash) in tools.iter().zip(hashes) {
        assert_eq!(tool_hash(name, *description, schema), *hash, "{name}");
    }
    assert_eq!(record(tools).fingerprint, fingerprint);
}

#[test]
fn fingerprints_are_those_of_the_published_vectors() {
    let number = parse_strict(
        r#"{"type":"object","properties":{"x":{"type":"number","minimum":1.0,"maximum":1e21,"multipleOf":0.1}}}"#,
    );
    let unicode = json!({"type":"object","properties":{"\u{ff5e}":{"type":"string"},"\u{1f600}":{"type":"string"}}});
    check(&[], &[], "4f53cda18c2baa0c0354bb5f9a3ecbe5ed12ab4d8e11ba873c2f11161202b945");
    check(
        &[("t", None, Value::Null)],
        &["0df53ebc499c64aa4c03e4ac9da5741dd5de82e10f86a9b2fde930a7af3e230d"],
        "28f817b771196eb00c49156859320aa65f8264e281c5f259dc468d56376e347f",
    );
    check(
        &[charge()],
        &["27aef82b0ef14fb7c2b7e312b1c9e9bae1137068854eba4c7c4a526fc46b46ac"],
        "ba74302c8532dd68fd1a512cb61cad48c46efc478794ee7783884e26c537eab5",
    );
    check(
        &[("orders_refund", None, Value::Null), ("orders_lookup_order", Some("Find an order"), Value::Null)],
        &[
            "60a98b7a17640b803b4e6b4f1780019483d8b5ca8547a7618b0cc8ddf7bb4c29",
            "14f5526c1b62bd9f35b1d2c83c64a39c985dcbad1c16900653cef229049a5abf",
        ],
        "fa6be0e62729e39acb2c00127ee7968c96472f6242d42bdcf495b6829f76c0dc",
    );
    check(
        &[("n", None, number.unwrap())],
        &["9f4180873888b652b09e56b4eac2a16a7a82dbd7e1a4b0d3826ef5b56dcc93f2"],
        "49c90c63c1be958ee7221235f57ff5321f417603300592839e6a4942c839bd78",
    );
    check(
        &[("u", None, unicode)],
        &["7c79487b6fc0d2de5c765d5a4fdb49eef6973ff5dff92a9e14a2e186dbf596e4"],
        "5ee42f74c2f66e3f85173c91ee441e1a2af578d940c198c9e70cb8f60d45b987",
    );
}

#[test]
fn b033_order_of_tools_and_keys_is_no_change() {
    let shuffled = parse_strict(r#"{"required":["amount"],"properties":{"amount":{"type":"number"}},"type":"object"}"#);
    let a = record(&[charge(), ("refund", None, Value::Null)]);
    let b = record(&[("refund", None, Value::Null), ("charge", Some("Charge the card on file."), shuffled.unwrap())]);
    assert_eq!(a.drift(&b), None);
}

#[test]
fn b034_to_b037_drift_is_said_in_exact_words() {
    let recorded = record(&[charge()]);
    let added = record(&[charge(), ("refund", None, Value::Null)]);
    let changed = record(&[("charge", Some("Charge twice."), charge().2), ("refund", None, Value::Null)]);
    let said = |a: &CatalogRecord, b: &CatalogRecord| a.drift(b).unwrap().across_resume();
    assert_eq!(said(&recorded, &added), "MCP tool catalog changed across resume (added: refund).");
    assert_eq!(said(&added, &recorded), "MCP tool catalog changed across resume (removed: refund).");
    assert_eq!(said(&recorded, &changed), "MCP tool catalog changed across resume (added: refund; changed: charge).");
    assert_eq!(said(&added, &changed), "MCP tool catalog changed across resume (changed: charge).");
}

#[test]
fn an_optional_server_that_is_down_is_left_out_of_the_comparison_and_keeps_its_tools() {
    let entry = |namespace: &str| -> McpEntry {
        serde_json::from_value(json!({ "url": "https://a", "namespace": namespace, "required": false })).unwrap()
    };
    let served = |names: &[&str]| {
        let tool = |name: &&str| ServedTool {
            name: (*name).to_owned(),
            description: None,
            input_schema: Value::Null,
            output_schema: None,
            hints: Hints::default(),
            ..ServedTool::default()
        };
        Some(Arc::new(ServedCatalog { tools: names.iter().map(tool).collect(), ..ServedCatalog::default() }))
    };
    let (before, _) = merge(vec![entry("a"), entry("b")], &[served(&["x"]), served(&["y"])]);
    // The entries in another order, and `b` is down.
    let (now, _) = merge(vec![entry("b"), entry("a")], &[None, served(&["x"])]);
    assert_eq!(before.drift(&now), None);
    let kept = now.keeping_unread_of(&before);
    assert_eq!(kept.mcp, before.mcp);
    assert_eq!((kept.tool("a_x").unwrap().entry(), kept.tool("b_y").unwrap().entry()), (Some(1), Some(0)));
    let (changed, _) = merge(vec![entry("b"), entry("a")], &[None, served(&["z"])]);
    assert_eq!(before.drift(&changed).unwrap().to_string(), "added: a_z; removed: a_x");
}

#[test]
fn b089_of_two_servers_with_one_name_the_later_is_used_and_a_warning_says_so() {
    let entry = |url: &str| -> McpEntry { serde_json::from_value(json!({ "url": url, "namespace": "n" })).unwrap() };
    let served = ServedTool {
        name: "t".into(),
        description: None,
        input_schema: Value::Null,
        output_schema: None,
        hints: Hints::default(),
        ..ServedTool::default()
    };
    let catalog = || Some(Arc::new(ServedCatalog { tools: vec![served.clone()], ..ServedCatalog::default() }));
    let (binding, warnings) = merge(vec![entry("https://a"), entry("https://b")], &[catalog(), catalog()]);
    assert_eq!(binding.tools.len(), 1);
    assert_eq!(binding.tool("n_t").unwrap().entry(), Some(1));
    assert_eq!(warnings[0].message, "MCP tool 'n_t' is served by more than one server; the later one is used.");
}

#[test]
fn b052_output_schemas_and_annotations_are_no_part_of_the_record() {
    let entry = || vec![serde_json::from_value::<McpEntry>(json!({ "url": "https://a" })).unwrap()];
    let plain = ServedTool {
        name: "t".into(),
        description: None,
        input_schema: Value::Null,
        output_schema: None,
        hints: Hints::default(),
        ..ServedTool::default()
    };
    let other = ServedTool {
        output_schema: Some(json!({ "type": "object" })),
        hints: Hints { read_only: Some(true), destructive: None, idempotent: Some(true) },
        ..plain.clone()
    };
    let bound = |tool: &ServedTool| {
        merge(entry(), &[Some(Arc::new(ServedCatalog { tools: vec![tool.clone()], ..ServedCatalog::default() }))]).0
    };
    assert_eq!(bound(&plain).drift(&bound(&other)), None);
}

#[track_caller]
fn check_class(entry: Value, hints: [Option<bool>; 3], class: SideEffectClass) {
    let mut declared = json!({ "url": "https://a" });
    declared.as_object_mut().unwrap().extend(entry.as_object().unwrap().clone());
    let [read_only, destructive, idempotent] = hints;
    let served = ServedTool {
        name: "t".into(),
        description: None,
        input_schema: Value::Null,
        output_schema: None,
        hints: Hints { read_only, destructive, idempotent },
        ..ServedTool::default()
    };
    let catalog = Some(Arc::new(ServedCatalog { tools: vec![served], ..ServedCatalog::default() }));
    let bound = merge(vec![serde_json::from_value(declared).unwrap()], &[catalog]).0;
    assert_eq!(bound.tools[0].class, class, "{entry} {hints:?}");
}

#[test]
fn annotations_count_only_where_the_caller_believes_them_and_declared_nothing() {
    use SideEffectClass::{IdempotentWrite, IrreversibleAction, NonIdempotentWrite, ReadOnly};
    let (no, yes) = (Some(false), Some(true));
    let trusted = || json!({ "trust_annotations": true });
    check_class(json!({}), [yes, None, yes], NonIdempotentWrite);
    check_class(json!({ "trust_annotations": false }), [yes, None, yes], NonIdempotentWrite);
    check_class(trusted(), [None, None, None], NonIdempotentWrite);
    check_class(trusted(), [yes, None, None], ReadOnly);
    check_class(trusted(), [yes, no, no], ReadOnly);
    check_class(trusted(), [no, yes, yes], IdempotentWrite);
    check_class(trusted(), [None, None, yes], IdempotentWrite);
    // It changes nothing and may destroy something: one of the two is wrong.
    check_class(trusted(), [yes, yes, None], NonIdempotentWrite);
    for declared in [IrreversibleAction, NonIdempotentWrite, IdempotentWrite, ReadOnly] {
        let entry = json!({ "trust_annotations": true, "side_effect_class": { "t": declared } });
        check_class(entry, [yes, None, yes], declared);
    }
    let other = json!({ "trust_annotations": true, "side_effect_class": { "u": "irreversible_action" } });
    check_class(other, [yes, None, None], ReadOnly);
}
