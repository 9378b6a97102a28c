//! Rules that name tools which are not there: they stay armed, and a warning says so.

use super::{Policy, Scope};
use crate::run::binding::{Binding, BoundTool, Warning, WarningKind};
use crate::run::spec::McpEntry;

/// Rules of a run that name a tool which its model is not offered.
pub fn unserved(policies: &[Policy], binding: &Binding) -> Vec<Warning> {
    let is_offered = |name: &str| binding.tool(name).is_some();
    let own = naming(policies, is_offered, "is not offered to the model");
    let of_servers = binding.entries.iter().enumerate().filter(|(at, _)| !binding.unread.contains(at));
    let of_servers = of_servers.flat_map(|(_, entry)| {
        let is_served = |name: &str| is_offered(&entry.offered_name(name));
        naming(&entry.policies, is_served, &format!("is not served by '{}'", entry.label()))
    });
    own.into_iter().chain(of_servers).collect()
}

/// Rules of a manifest that name a tool which it neither declares nor any of its servers can serve, by what the manifest itself says.
pub fn unserved_by_declaration(policies: &[Policy], entries: &[McpEntry], tools: &[BoundTool]) -> Vec<Warning> {
    let may_serve = |entry: &McpEntry, name: &str| match &entry.tools {
        Some(tools) => tools.iter().any(|tool| entry.offered_name(tool) == name),
        None => name.starts_with(&entry.offered_name("")),
    };
    let may_be_served =
        |name: &str| tools.iter().any(|tool| tool.name == name) || entries.iter().any(|entry| may_serve(entry, name));
    naming(policies, may_be_served, "is served by none of the servers that are declared here")
}

fn naming(policies: &[Policy], is_there: impl Fn(&str) -> bool, says: &str) -> Vec<Warning> {
    let named = policies.iter().filter_map(|policy| match &policy.scope {
        Scope::Tool(name) if !is_there(name) => Some((policy, name)),
        Scope::Tool(_) | Scope::Agent | Scope::Server(_) => None,
    });
    let warning = |(policy, name): (&Policy, &String)| Warning {
        kind: WarningKind::Other,
        setting: "policies".to_owned(),
        message: format!("The policy '{}' names the tool '{name}', which {says}.", policy.name),
        code: Some("policy-without-tool".to_owned()),
    };
    named.map(warning).collect()
}
