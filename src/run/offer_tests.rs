//! Offers of many and of odd tools.

use std::sync::Arc;

use serde_json::json;

use super::*;
use crate::run::binding::{ServedCatalog, ServedTool, merge};
use crate::run::dialect::is_name;
use crate::run::spec::McpEntry;

/// Tools of one server of these names.
fn binding(names: &[String]) -> Binding {
    let entry: McpEntry = serde_json::from_value(json!({ "url": "https://a.example/mcp" })).unwrap();
    let served = |name: &String| ServedTool {
        name: name.clone(),
        input_schema: json!({ "type": "object" }),
        ..ServedTool::default()
    };
    let catalog = ServedCatalog { tools: names.iter().map(served).collect(), ..ServedCatalog::default() };
    merge(vec![entry], &[Some(Arc::new(catalog))]).0
}

fn offered(names: &[String], provider: Provider) -> (Vec<String>, Vec<String>, Vec<Warning>) {
    let (binding, warnings) = binding(names).offered_to(provider);
    let name = |tool: &BoundTool| tool.name.clone();
    (binding.tools.iter().map(name).collect(), binding.hidden.iter().map(name).collect(), warnings)
}

fn numbered(count: usize) -> Vec<String> {
    (0..count).map(|nth| format!("tool_{nth}")).collect()
}

#[test]
fn tools_beyond_the_providers_limit_are_set_aside_from_the_end_and_said() {
    let (shown, aside, warnings) = offered(&numbered(128), Provider::Openai);
    assert_eq!((shown.len(), aside.len(), warnings.len()), (128, 0, 0));
    let (shown, aside, warnings) = offered(&numbered(153), Provider::Openai);
    assert_eq!((shown.as_slice(), aside.as_slice()), (&numbered(153)[..128], &numbered(153)[128..]));
    assert_eq!((warnings.len(), warnings[0].code.as_deref()), (1, Some(UNUSABLE)));
    assert!(
        warnings[0].message.starts_with("25 MCP tools are not offered, since the model takes 128 at most: tool_128, ")
    );
    assert!(warnings[0].message.ends_with("tool_147 and 5 more. Choose with `tools`."), "{}", warnings[0].message);
    let (shown, _, warnings) = offered(&numbered(153), Provider::Anthropic);
    assert_eq!((shown.len(), warnings.len()), (153, 0));
}

#[test]
fn names_that_become_one_when_they_are_mapped_stay_apart_whatever_their_order() {
    let names = ["a.b", "a/b", "a_b", "c.d"].map(str::to_owned);
    let (shown, _, warnings) = offered(&names, Provider::Openai);
    assert_eq!((shown[2].as_str(), shown[3].as_str()), ("a_b", "c_d"));
    let distinct: HashSet<&String> = shown.iter().collect();
    assert_eq!(distinct.len(), 4, "{shown:?}");
    assert!(shown.iter().all(|name| is_name(name)) && shown[0].starts_with("a_b") && shown[1].starts_with("a_b"));
    assert!(warnings.iter().all(|warning| warning.code.as_deref() == Some(ADAPTED)));
    assert_eq!(warnings.len(), 3);
    let mut turned = names.to_vec();
    turned.reverse();
    let (mut again, _, _) = offered(&turned, Provider::Openai);
    again.reverse();
    assert_eq!(again, shown, "a name does not hang on its place");
}

#[test]
fn a_name_of_64_signs_stays_and_longer_ones_that_begin_alike_stay_apart() {
    let (fits, long) = ("x".repeat(64), "x".repeat(65));
    let names = [fits.clone(), long.clone(), format!("{long}y"), format!("{long}z")];
    let (shown, _, warnings) = offered(&names, Provider::Anthropic);
    assert_eq!(shown[0], fits);
    assert!(shown.iter().all(|name| name.len() <= 64 && is_name(name)), "{shown:?}");
    assert_eq!(shown.iter().collect::<HashSet<_>>().len(), 4);
    assert_eq!(warnings.len(), 3);
    let (binding, _) = binding(&names).offered_to(Provider::Anthropic);
    assert!(
        binding.tools.iter().zip(&names).all(|(tool, name)| tool.recorded_name() == name),
        "the record has its own"
    );
}

#[test]
fn many_odd_tools_are_counted_and_not_all_told() {
    let names: Vec<String> = (0..60).map(|nth| format!("odd.{nth}")).collect();
    let (shown, _, warnings) = offered(&names, Provider::Openai);
    assert_eq!((shown.len(), warnings.len()), (60, WARNINGS_MAX + 1));
    assert!(warnings[WARNINGS_MAX].message.starts_with(&format!("{} more MCP tools", 60 - WARNINGS_MAX)));
}

#[test]
fn what_was_offered_once_is_offered_anew_from_what_is_served() {
    let names = ["a.b".to_owned(), "plain".to_owned()];
    let (once, _) = binding(&names).offered_to(Provider::Openai);
    let (twice, warnings) = once.clone().offered_to(Provider::Openai);
    assert_eq!((once, warnings.len()), (twice, 1));
}

#[test]
fn field_a033_a_refused_tool_stays_aside_until_it_is_served_otherwise_and_only_so_many_are() {
    let first = binding(&numbered(20)).offered_to(Provider::Openai).0;
    let (next, warning) = first.without("tool_3").unwrap();
    assert_eq!((next.revision, next.tools.len(), next.mcp == first.mcp), (2, 19, true));
    assert_eq!(warning.message, format!("MCP tool 'tool_3' is not offered: {REFUSED}."));
    assert_eq!(next.drift(&binding(&numbered(20))), None, "the record is what it was");
    let is_aside = |binding: &Binding| binding.hidden.iter().any(|tool| tool.name == "tool_3");
    let read_again = |served: Binding| served.following(&next).0.offered_to(Provider::Openai);
    let (same, warnings) = read_again(binding(&numbered(21)));
    assert_eq!((is_aside(&same), same.tools.len(), warnings), (true, 20, vec![warning]));
    let mut mended = binding(&numbered(20));
    mended.tools[3].description = Some("Mended.".to_owned());
    assert!(!is_aside(&read_again(mended).0), "it is another tool now");

    assert!(next.without("tool_3").is_none() && next.without("nobody").is_none());
    let most = (4..11).try_fold(next, |binding, nth| Some(binding.without(&format!("tool_{nth}"))?.0)).unwrap();
    assert!(most.without("tool_11").is_none(), "each costs a request");
}
