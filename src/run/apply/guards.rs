//! What a run's entries say about approvals and rules holds for as long as the run does: who resumes it may bring entries that
//! say more, never less, also under another name or address.

use crate::run::approval::RequireApproval;
use crate::run::asking::SamplingApproval;
use crate::run::binding::{Binding, BoundTool, ToolSource};
use crate::run::policy::Policy;
use crate::run::spec::McpEntry;

/// The guarded entries of the record, by their labels, that others would stand in for which guard less. Rules of the run itself
/// guard all of them: they find tools and servers by names that other entries could give anew.
pub(super) fn loosened(policies: &[Policy], bound: &Binding, served: &Binding) -> Vec<String> {
    let is_ruled = !policies.is_empty();
    let is_loosened = |entry: &&McpEntry| {
        let stays = || served.entries.iter().any(|other| keeps(entry, other));
        (is_ruled || is_guarded(entry)) && !(stays() && has_no_way_round(entry, is_ruled, bound, served))
    };
    bound.entries.iter().filter(is_loosened).map(|entry| entry.label().to_owned()).collect()
}

fn is_guarded(entry: &McpEntry) -> bool {
    let gated = entry.require_approval.as_ref().is_some_and(|required| *required != RequireApproval::All(false));
    gated || !entry.policies.is_empty() || !entry.input_schemas.is_empty() || asks_for_samples(entry)
}

fn asks_for_samples(entry: &McpEntry) -> bool {
    entry.sampling.as_ref().is_some_and(|sampling| sampling.approval == SamplingApproval::Always)
}

/// Whether this is the entry again, as strict or stricter.
fn keeps(entry: &McpEntry, other: &McpEntry) -> bool {
    let same =
        |entry: &McpEntry| (entry.server.clone(), entry.url.clone(), entry.namespace.clone(), entry.tools.clone());
    let required = |entry: &McpEntry| entry.require_approval.clone().unwrap_or(RequireApproval::All(false));
    let (before, after) = (required(entry), required(other));
    let gates = after.includes(&before);
    let samples = !asks_for_samples(entry) || other.sampling.is_none() || asks_for_samples(other);
    same(entry) == same(other) && gates && samples && rules(entry, other) && schemas(entry, other)
}

/// Whether the arguments of each tool have to fit what they had to.
fn schemas(entry: &McpEntry, other: &McpEntry) -> bool {
    entry.input_schemas.iter().all(|(tool, schema)| other.input_schemas.get(tool) == Some(schema))
}

fn rules(entry: &McpEntry, other: &McpEntry) -> bool {
    entry.policies.iter().all(|rule| other.policies.contains(rule))
}

/// Whether no entry that the run did not have offers a tool of this one, by the server's name of it, less guarded.
fn has_no_way_round(entry: &McpEntry, is_ruled: bool, bound: &Binding, served: &Binding) -> bool {
    let known = |name: &str| {
        bound.tools.iter().any(|tool| bound.entry_of(tool) == Some(entry) && server_tool(tool) == Some(name))
    };
    served.tools.iter().all(|tool| {
        let (Some(name), Some(other)) = (server_tool(tool), served.entry_of(tool)) else { return true };
        if bound.entries.contains(other) || keeps(entry, other) || !known(name) {
            return true;
        }
        let gated = entry.require_approval.as_ref().is_some_and(|required| required.covers(name));
        let schema = entry.input_schemas.get(name);
        let checked = schema.is_none_or(|schema| other.input_schemas.get(name) == Some(schema));
        !is_ruled && (tool.needs_approval || !gated) && rules(entry, other) && checked
    })
}

fn server_tool(tool: &BoundTool) -> Option<&str> {
    match &tool.source {
        ToolSource::Mcp { server_tool, .. } => Some(server_tool),
        ToolSource::Local { .. } => None,
    }
}
