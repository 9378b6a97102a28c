//! What of a binding the model is offered, and under which names: tools that nobody can use, or that the model's
//! provider does not take, are set aside with a warning; the others are told in the provider's terms. One bad tool never
//! breaks the rest. The record is not touched: a bad tool that becomes good is a change like any other.

use std::collections::{HashMap, HashSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::binding::{Binding, BoundTool, Warning, WarningKind};
use super::dialect::{distinct_name, is_name, plain_name, told, tools_max};
use super::spec::Provider;

/// The most warnings about single tools; the others are counted.
const WARNINGS_MAX: usize = 50;
/// The most names in one warning.
const NAMES_MAX: usize = 20;

/// So many tools are set aside because the provider refuses them: each costs a request.
const REFUSED_MAX: usize = 8;
/// Why they are.
const REFUSED: &str = "the model's provider refuses every request that offers it";

/// The code of a warning about a tool that is not offered.
pub const UNUSABLE: &str = "mcp-tool-unusable";
/// The code of a warning about a tool that is offered otherwise than it is served.
pub const ADAPTED: &str = "mcp-tool-adapted";

/// How a tool is offered, where that differs from how it is served.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Offer {
    /// Its name in the record, where a mapped name is offered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recorded: Option<String>,
    /// Why it cannot be offered to any model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unusable: Option<String>,
    /// Whether that is the word of this run's provider, and not of what is served.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_refused: bool,
    /// What was left out of it when it was read, for people.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// What the model is told of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub told: Option<ToldAs>,
}

/// What the model is told of a tool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToldAs {
    /// What it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// JSON Schema of its arguments.
    pub input_schema: Value,
}

impl Offer {
    fn refuse(&mut self) {
        (self.unusable, self.is_refused) = (Some(REFUSED.to_owned()), true);
    }

    /// Whether it is offered as it is served.
    pub fn is_plain(&self) -> bool {
        *self == Self::default()
    }
}

impl BoundTool {
    /// Its name in the record.
    pub fn recorded_name(&self) -> &str {
        self.offer.recorded.as_deref().unwrap_or(&self.name)
    }

    /// The same as it was before it was offered to anybody.
    pub(super) fn into_served(mut self) -> Self {
        self.offer.told = None;
        if let Some(recorded) = self.offer.recorded.take() {
            self.name = recorded;
        }
        self
    }
}

/// Warnings of one kind, counted beyond a limit.
#[derive(Default)]
struct Warnings {
    told: Vec<Warning>,
    untold: usize,
}

impl Warnings {
    fn add(&mut self, kind: WarningKind, message: String, code: &str) {
        if self.told.len() < WARNINGS_MAX {
            self.told.push(Warning::mcp(kind, message, Some(code)));
        } else {
            self.untold = self.untold.saturating_add(1);
        }
    }

    fn unusable(&mut self, name: &str, why: &str) {
        self.add(WarningKind::UnsupportedTool, not_offered(name, why), UNUSABLE);
    }

    fn finish(mut self) -> Vec<Warning> {
        if self.untold > 0 {
            let message = format!("{} more MCP tools are set aside or offered in another form.", self.untold);
            self.told.push(Warning::mcp(WarningKind::UnsupportedTool, message, Some(UNUSABLE)));
        }
        self.told
    }
}

fn not_offered(name: &str, why: &str) -> String {
    format!("MCP tool '{name}' is not offered: {why}.")
}

impl Binding {
    /// The revision that follows without a served tool that the provider refuses, and what is said of it. The record
    /// stays what it is. `None`: there is no such tool, or too many were refused before.
    pub fn without(&self, name: &str) -> Option<(Self, Warning)> {
        let refused = self.hidden.iter().filter(|tool| tool.offer.is_refused).count();
        let at = self.tools.iter().position(|tool| tool.is_served() && tool.name == name)?;
        if refused >= REFUSED_MAX {
            return None;
        }
        let mut next = Self { revision: self.revision.saturating_add(1), ..self.clone() };
        let mut tool = next.tools.remove(at).into_served();
        tool.offer.refuse();
        let message = not_offered(&tool.name, REFUSED);
        next.hidden.push(tool);
        Some((next, Warning::mcp(WarningKind::UnsupportedTool, message, Some(UNUSABLE))))
    }

    /// Tools that are served as they were when the provider refused them are not offered to it again.
    pub(super) fn keep_refusals_of(&mut self, before: &Self) {
        let refused: HashSet<(&str, String)> = before
            .hidden
            .iter()
            .filter(|tool| tool.offer.is_refused)
            .map(|tool| (tool.recorded_name(), tool.digest()))
            .collect();
        for tool in self.tools.iter_mut().filter(|tool| tool.is_served()) {
            if refused.contains(&(tool.recorded_name(), tool.digest())) {
                tool.offer.refuse();
            }
        }
    }

    /// This binding as a model of that provider is offered it.
    pub fn offered_to(mut self, provider: Provider) -> (Self, Vec<Warning>) {
        let mut warnings = Warnings::default();
        let (mut offered, mut aside) = (Vec::new(), Vec::new());
        for tool in std::mem::take(&mut self.tools) {
            if !tool.is_served() {
                offered.push(tool);
                continue;
            }
            let mut tool = tool.into_served();
            match tell(&mut tool, provider) {
                Ok(notes) if notes.is_empty() => offered.push(tool),
                Ok(notes) => {
                    let message = format!("MCP tool '{}' is adapted: {}.", tool.name, notes.join("; "));
                    warnings.add(WarningKind::Other, message, ADAPTED);
                    offered.push(tool);
                }
                Err(why) => {
                    warnings.unusable(&tool.name, &why);
                    aside.push(tool);
                }
            }
        }
        map_names(&mut offered, &mut warnings);
        aside.extend(above_limit(&mut offered, provider, &mut warnings));
        self.tools = offered;
        self.hidden.extend(aside);
        (self, warnings.finish())
    }
}

/// Notes down what the model is told, and says what of it is not as it was served.
fn tell(tool: &mut BoundTool, provider: Provider) -> Result<Vec<String>, String> {
    if let Some(why) = &tool.offer.unusable {
        return Err(why.clone());
    }
    let told = told(provider, tool.description.as_deref(), &tool.input_schema)?;
    if told.description != tool.description || told.input_schema != tool.input_schema {
        tool.offer.told = Some(ToldAs { description: told.description, input_schema: told.input_schema });
    }
    Ok(tool.offer.notes.iter().cloned().chain(told.notes).collect())
}

/// Gives every tool a name that providers take. A name that fits stays; of the others, those that would become one are
/// told apart by a digest, whichever stands first.
fn map_names(tools: &mut [BoundTool], warnings: &mut Warnings) {
    let mut taken: HashSet<String> = tools.iter().filter(|tool| is_name(&tool.name)).map(|t| t.name.clone()).collect();
    let mut claims: HashMap<String, usize> = HashMap::new();
    for tool in tools.iter().filter(|tool| !is_name(&tool.name)) {
        let claimed = claims.entry(plain_name(&tool.name)).or_default();
        *claimed = claimed.saturating_add(1);
    }
    for tool in tools.iter_mut().filter(|tool| !is_name(&tool.name)) {
        let plain = plain_name(&tool.name);
        let is_free = is_name(&plain) && !taken.contains(&plain) && claims.get(&plain) == Some(&1);
        let mut distinct = (0..).map(|salt| distinct_name(&tool.name, salt));
        let name = if is_free { Some(plain) } else { distinct.find(|name| !taken.contains(name)) };
        let Some(name) = name else { continue };
        let message = format!("MCP tool '{}' is offered as '{name}': models take no other names.", tool.name);
        warnings.add(WarningKind::Other, message, ADAPTED);
        taken.insert(name.clone());
        tool.offer.recorded = Some(std::mem::replace(&mut tool.name, name));
    }
}

/// Takes away what is more than the provider takes in one request, from the end.
fn above_limit(tools: &mut Vec<BoundTool>, provider: Provider, warnings: &mut Warnings) -> Vec<BoundTool> {
    let max = tools_max(provider);
    let mut room = max.saturating_sub(tools.iter().filter(|tool| !tool.is_served()).count());
    let (kept, aside): (Vec<BoundTool>, Vec<BoundTool>) = std::mem::take(tools).into_iter().partition(|tool| {
        let fits = !tool.is_served() || room > 0;
        room = room.saturating_sub(usize::from(tool.is_served()));
        fits
    });
    *tools = kept;
    if !aside.is_empty() {
        let names: Vec<&str> = aside.iter().map(BoundTool::recorded_name).take(NAMES_MAX).collect();
        let more = aside.len().saturating_sub(names.len());
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let message = format!(
            "{} MCP tools are not offered, since the model takes {max} at most: {}{more}. Choose with `tools`.",
            aside.len(),
            names.join(", ")
        );
        warnings.told.push(Warning::mcp(WarningKind::UnsupportedTool, message, Some(UNUSABLE)));
    }
    aside
}

#[cfg(test)]
#[path = "offer_tests.rs"]
mod tests;
