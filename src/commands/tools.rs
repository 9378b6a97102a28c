//! Tools that are declared with a run: carried out by workers, who fetch the calls, or by the run's client.

use std::collections::BTreeSet;

use serde_json::Value;

use super::faults::Faults;
use super::tool_request::{ClaimCalls, Executor, ToolRequest};
use super::{Asker, CommandError, Commands};
use crate::run::binding::{BoundTool, ToolSource};
use crate::run::call::{Backend, queue_name};
use crate::run::dialect::{is_name, told, tools_max};
use crate::run::json::{MAX_DEPTH, is_too_deep};
use crate::run::offer::{Offer, ToldAs};
use crate::run::spec::{Provider, SideEffectClass};
use crate::schema::Budget;
use crate::store::Asked;

/// The most declared tools of one run.
const TOOLS_MAX: usize = 256;
/// Longest description, in bytes.
const DESCRIPTION_MAX: usize = 16 * 1024;
/// Longest schema, in bytes.
const SCHEMA_MAX: usize = 256 * 1024;
/// How many calls of a tool a worker has at once when it does not say.
const CONCURRENCY_DEFAULT: u32 = 100;

impl Commands {
    /// The declared tools as the run is bound to them. Their schemas are compiled when they are stored, so that nobody
    /// learns at a call that they cannot be.
    pub(super) async fn check_tools(
        &self,
        asker: &Asker,
        tools: Vec<ToolRequest>,
        provider: Provider,
        faults: &mut Faults,
    ) -> Result<Vec<BoundTool>, CommandError> {
        let most = TOOLS_MAX.min(tools_max(provider));
        faults.require(tools.len() <= most, "/tools", &format!("at most {most} tools"));
        let (mut names, mut bound, mut budget) = (BTreeSet::new(), Vec::new(), Budget::of_set());
        for (index, tool) in tools.into_iter().enumerate() {
            let at = format!("/tools/{index}");
            if !names.insert(tool.name.clone()) {
                faults.add(format!("{at}/name"), format!("{:?} is declared twice", tool.name));
            }
            for (schema, field) in [(&tool.input_schema, "input_schema"), (&tool.output_schema, "output_schema")] {
                let (Some(schema), at) = (schema, format!("{at}/{field}")) else { continue };
                if is_usable(schema, &at, faults) {
                    self.check_schema(asker, schema, at, &mut budget, faults).await?;
                }
            }
            bound.push(check_tool(tool, &at, provider, faults));
        }
        Ok(bound)
    }
}

fn check_tool(tool: ToolRequest, at: &str, provider: Provider, faults: &mut Faults) -> BoundTool {
    let ToolRequest { name, description, input_schema, output_schema, executor, side_effect_class, replay, .. } = &tool;
    faults.require(is_name(name), &format!("{at}/name"), "must match [A-Za-z0-9_-]{1,64}");
    let short = description.as_ref().is_none_or(|text| text.len() <= DESCRIPTION_MAX);
    faults.require(short, &format!("{at}/description"), "at most 16384 bytes");
    if let Some(schema) = input_schema {
        let is_object = schema.get("type").is_none_or(|kind| kind == "object");
        faults.require(is_object, &format!("{at}/input_schema/type"), "must be \"object\"");
    }
    let class = side_effect_class.unwrap_or_default();
    let repeats_the_irreversible = replay.is_some() && class == SideEffectClass::IrreversibleAction;
    faults.require(
        !repeats_the_irreversible,
        &format!("{at}/replay"),
        "an irreversible action is never harmless to repeat",
    );
    let input_schema = input_schema.clone().unwrap_or_else(crate::run::dialect::any_object);
    let offer = match told(provider, description.as_deref(), &input_schema) {
        Ok(said) if said.description == *description && said.input_schema == input_schema => Offer::default(),
        Ok(said) => {
            let told = ToldAs { description: said.description, input_schema: said.input_schema };
            Offer { told: Some(told), ..Offer::default() }
        }
        Err(why) => {
            faults.add(format!("{at}/input_schema"), format!("the model's provider does not take it: {why}"));
            Offer::default()
        }
    };
    let source = source_of(executor, name, at, faults);
    BoundTool {
        name: name.clone(),
        source,
        description: description.clone(),
        input_schema,
        output_schema: output_schema.clone(),
        own_schema: None,
        class,
        replay: replay.is_some(),
        needs_approval: tool.require_approval.unwrap_or_default(),
        offer,
    }
}

fn source_of(executor: &Executor, name: &str, at: &str, faults: &mut Faults) -> ToolSource {
    match executor {
        Executor::Client {} => ToolSource::Local { backend: Backend::Client, tool: name.to_owned(), version: None },
        Executor::Worker { tool, version } => {
            faults.require(is_worker_tool(tool), &format!("{at}/executor/tool"), WORKER_TOOL);
            faults.require(is_version(version), &format!("{at}/executor/version"), VERSION);
            let (tool, version) = (tool.clone(), Some(version.clone()));
            ToolSource::Local { backend: Backend::Worker, tool, version }
        }
    }
}

/// What the name of a worker's tool is like.
const WORKER_TOOL: &str = "must match [A-Za-z0-9][A-Za-z0-9._:/-]{0,127}";
/// What its version is like.
const VERSION: &str = "must match [A-Za-z0-9][A-Za-z0-9._+-]{0,63}";

/// Whether it can be the name of a worker's tool.
fn is_worker_tool(text: &str) -> bool {
    is_label(text, 128, "._:/-")
}

/// Whether it can be the version of a worker's tool.
fn is_version(text: &str) -> bool {
    is_label(text, 64, "._+-")
}

fn is_label(text: &str, max: usize, marks: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || marks.contains(c);
    text.len() <= max && text.starts_with(|c: char| c.is_ascii_alphanumeric()) && text.chars().all(fits)
}

/// Whether it is an object of a size that is worth compiling.
fn is_usable(schema: &Value, at: &str, faults: &mut Faults) -> bool {
    let fault = if !schema.is_object() {
        "must be a JSON Schema, an object".to_owned()
    } else if schema.to_string().len() > SCHEMA_MAX {
        "at most 262144 bytes".to_owned()
    } else if is_too_deep(schema) {
        format!("nested deeper than {MAX_DEPTH} levels")
    } else {
        return true;
    };
    faults.add(at, fault);
    false
}

/// What a worker asks for.
pub(super) fn check_claim(request: &ClaimCalls) -> Result<Vec<Asked>, CommandError> {
    let mut faults = Faults::default();
    let mut asked: Vec<Asked> = Vec::new();
    for (index, served) in request.tools.iter().enumerate() {
        let at = format!("/tools/{index}");
        faults.require(is_worker_tool(&served.tool), &format!("{at}/tool"), WORKER_TOOL);
        faults.require(is_version(&served.version), &format!("{at}/version"), VERSION);
        let tool = queue_name(&served.tool, &served.version);
        faults.require(asked.iter().all(|known| known.tool != tool), &at, "is named twice");
        asked.push(Asked { tool, most: served.max_concurrency.unwrap_or(CONCURRENCY_DEFAULT) });
    }
    faults.finish()?;
    Ok(asked)
}
