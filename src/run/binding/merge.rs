//! Merges what the servers serve into what the model is offered.

use std::sync::Arc;

use super::{Binding, BoundTool, ServedCatalog, ServedTool, ToolSource, Warning, WarningKind, record_of};
use crate::run::approval::RequireApproval;
use crate::run::offer::{Offer, UNUSABLE};
use crate::run::spec::{McpEntry, PerTool};

/// The most warnings about tools of one server that cannot be named.
const UNNAMED_MAX: usize = 10;
/// How many names of tools that are not there are told of one server.
const UNSERVED_MAX: usize = 20;
/// The code of their warnings.
const UNSERVED: &str = "mcp-tool-not-served";

/// Merges what the servers serve into what the model is offered.
///
/// `catalogs` stands in the order of `entries`; `None` for an entry that was not contacted (unused, or not required
/// and unreachable). Of two entries that serve one name, the later one is used, and a warning says so.
pub fn merge(entries: Vec<McpEntry>, catalogs: &[Option<Arc<ServedCatalog>>]) -> (Binding, Vec<Warning>) {
    let mut tools: Vec<BoundTool> = Vec::new();
    let mut warnings = Vec::new();
    let mut unread = Vec::new();
    for (index, (entry, catalog)) in entries.iter().zip(catalogs).enumerate() {
        let Some(catalog) = catalog else {
            // Of one that the caller takes nothing of it is known what it serves: nothing.
            if !entry.is_unused() {
                unread.push(index);
            }
            continue;
        };
        warnings.extend(missing_tools(entry, catalog));
        warnings.extend(unnamed_tools(entry, catalog));
        warnings.extend(unserved_names(entry, catalog));
        for served in catalog.tools.iter().filter(|tool| is_wanted(entry, &tool.name)) {
            let tool = bind(entry, index, served);
            match tools.iter_mut().find(|known| known.name == tool.name) {
                Some(known) => {
                    let message =
                        format!("MCP tool '{}' is served by more than one server; the later one is used.", tool.name);
                    warnings.push(Warning::mcp(WarningKind::UnsupportedTool, message, None));
                    *known = tool;
                }
                None => tools.push(tool),
            }
        }
    }
    let mcp = (!entries.is_empty()).then(|| record_of(&tools));
    (Binding { revision: 1, at: None, entries, unread, tools, hidden: Vec::new(), mcp }, warnings)
}

fn is_wanted(entry: &McpEntry, server_tool: &str) -> bool {
    entry.tools.as_ref().is_none_or(|wanted| wanted.iter().any(|name| name == server_tool))
}

fn missing_tools(entry: &McpEntry, catalog: &ServedCatalog) -> Vec<Warning> {
    let wanted = entry.tools.iter().flatten();
    wanted
        .filter(|name| !catalog.tools.iter().any(|tool| tool.name == **name))
        .map(|name| {
            let message = format!("MCP server '{}' does not serve the listed tool '{name}'.", entry.label());
            Warning::mcp(WarningKind::UnsupportedTool, message, None)
        })
        .collect()
}

/// Tools that a setting of the entry names and the server does not serve: most likely misspelt, and then the setting does not
/// hold for the tool that was meant.
fn unserved_names(entry: &McpEntry, catalog: &ServedCatalog) -> Vec<Warning> {
    let approved = match &entry.require_approval {
        Some(RequireApproval::Tools(tools)) => tools.as_slice(),
        Some(RequireApproval::All(_)) | None => &[],
    };
    let declared = keys(entry.side_effect_class.as_ref()).chain(keys(entry.own_class.as_ref()));
    let mut named: Vec<(&str, &String)> = keys(entry.replay.as_ref()).map(|name| ("replay", name)).collect();
    named.extend(declared.map(|name| ("side_effect_class", name)));
    named.extend(entry.input_schemas.keys().map(|name| ("input_schemas", name)));
    named.extend(approved.iter().map(|name| ("require_approval", name)));
    named.retain(|(_, name)| !catalog.tools.iter().any(|tool| tool.name == **name));
    named.dedup();
    let more = named.len().saturating_sub(UNSERVED_MAX);
    let rest = (more > 0).then(|| {
        format!("Further settings of MCP server '{}' name {more} tools that it does not serve.", entry.label())
    });
    let told = named.iter().take(UNSERVED_MAX).map(|(setting, name)| {
        let meant = catalog.tools.iter().find(|tool| entry.offered_name(&tool.name) == **name);
        let hint = meant.map(|tool| format!(" Its own name of it is '{}'.", tool.name)).unwrap_or_default();
        format!(
            "MCP server '{}' does not serve the tool '{name}' that `{setting}` names; it holds for no tool.{hint}",
            entry.label()
        )
    });
    told.chain(rest).map(|message| Warning::mcp(WarningKind::UnsupportedTool, message, Some(UNSERVED))).collect()
}

fn keys<T>(of: Option<&PerTool<T>>) -> impl Iterator<Item = &String> {
    let each = of.and_then(|of| match of {
        PerTool::Each(each) => Some(each.keys()),
        PerTool::All(_) => None,
    });
    each.into_iter().flatten()
}

/// What is listed and cannot be named cannot be wanted by name either.
fn unnamed_tools(entry: &McpEntry, catalog: &ServedCatalog) -> Vec<Warning> {
    let unnamed = if entry.tools.is_none() { catalog.unnamed.as_slice() } else { &[] };
    let more = unnamed.len().saturating_sub(UNNAMED_MAX);
    let rest = (more > 0).then(|| format!("{more} more tools that cannot be named"));
    let told = unnamed.iter().take(UNNAMED_MAX).cloned().chain(rest);
    told.map(|what| {
        let message = format!("MCP server '{}' lists {what}; not offered.", entry.label());
        Warning::mcp(WarningKind::UnsupportedTool, message, Some(UNUSABLE))
    })
    .collect()
}

fn bind(entry: &McpEntry, index: usize, served: &ServedTool) -> BoundTool {
    BoundTool {
        name: entry.offered_name(&served.name),
        source: ToolSource::Mcp { entry: index, server_tool: served.name.clone() },
        description: served.description.clone(),
        input_schema: served.input_schema.clone(),
        output_schema: served.output_schema.clone(),
        own_schema: entry.input_schemas.get(&served.name).cloned(),
        class: entry.class_of(&served.name, &served.hints),
        replay: entry.may_repeat(&served.name),
        needs_approval: entry.require_approval.as_ref().is_some_and(|required| required.covers(&served.name)),
        offer: Offer { unusable: served.unusable.clone(), notes: served.notes.clone(), ..Offer::default() },
    }
}
