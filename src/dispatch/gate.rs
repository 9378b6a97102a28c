//! The one gate that every call of every backend goes through before it has a receipt: whole → known → valid → rules.
//! It only says what it thinks of a call; what follows from that the core decides.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use serde_json::{Map, Value};

use crate::run::approval::Requirement;
use crate::run::binding::{Binding, BoundTool};
use crate::run::fact::Ruling;
use crate::run::ids::TenantId;
use crate::run::json::{MAX_DEPTH, is_too_deep, parse_strict};
use crate::run::message::WrittenCall;
use crate::run::structured::value_of;
use crate::schema::{Budget, Busy, FAULT_MAX, Schema, Schemas, Unusable};
use crate::secrets::Redactor;

/// The rule of a call to a tool that the model was not offered.
const UNKNOWN_TOOL: &str = "unknown-tool";

/// The rule of arguments that do not fit the tool.
pub const INVALID_ARGUMENTS: &str = "invalid-arguments";

/// Names of available tools that a model is told when it calls an unknown one.
const MAX_NAMES: usize = 50;

/// Faults of one call's arguments that a model is told.
const MAX_FAULTS: usize = 5;

/// Rules on the calls of one leg. The schemas of a binding are looked up once while they are kept; it keeps none itself,
/// so that many runs hold no more of them than one.
pub struct Gate {
    schemas: Arc<Schemas>,
    tenant: TenantId,
    /// The binding whose tools are in `compiled`.
    revision: u32,
    compiled: HashMap<String, Vec<Weak<Schema>>>,
}

impl Gate {
    /// A gate that shares compiled schemas with others.
    pub fn new(schemas: Arc<Schemas>, tenant: TenantId) -> Self {
        Self { schemas, tenant, revision: 0, compiled: HashMap::new() }
    }

    /// Says whether a call that the model wrote may cross the boundary.
    pub async fn rule(&mut self, binding: &Binding, call: &WrittenCall) -> Ruling {
        self.keep_up(binding);
        let raw = || Value::String(call.arguments.clone());
        let Some(tool) = binding.tool(&call.tool) else {
            let input = arguments(&call.arguments).unwrap_or_else(|_| raw());
            return reject(UNKNOWN_TOOL, unknown_tool(binding, &call.tool), input);
        };
        let input = match arguments(&call.arguments) {
            Ok(input) => input,
            Err(fault) => {
                let reason = format!("The arguments of {} are not valid: {fault}.", call.tool);
                return reject(INVALID_ARGUMENTS, reason, raw());
            }
        };
        self.rule_on_valid(binding, tool, input).await
    }

    /// The same for other arguments of a known tool, which people want sent in place of the model's.
    pub async fn rule_on_change(&mut self, binding: &Binding, tool: &str, input: Value) -> Ruling {
        self.keep_up(binding);
        match binding.tool(tool) {
            Some(tool) => self.rule_on_valid(binding, tool, input).await,
            None => reject(UNKNOWN_TOOL, unknown_tool(binding, tool), input),
        }
    }

    fn keep_up(&mut self, binding: &Binding) {
        if self.revision != binding.revision {
            self.compiled.clear();
            self.revision = binding.revision;
        }
    }

    async fn rule_on_valid(&mut self, binding: &Binding, tool: &BoundTool, input: Value) -> Ruling {
        if let Some(faults) = self.faults(tool, &input).await {
            let reason = format!("The arguments of {} do not fit its input schema: {faults}.", tool.name);
            return reject(INVALID_ARGUMENTS, reason, input);
        }
        match verdict(tool) {
            Verdict::Send => Ruling::Admit { target: binding.target(tool), input, judged: Box::default() },
            Verdict::Ask(requirement) => {
                Ruling::Ask { target: binding.target(tool), input, requirement, judged: Box::default() }
            }
        }
    }

    /// What a final answer is, where a structure was asked for.
    ///
    /// # Errors
    /// Why it is not what was asked for.
    pub async fn answer(&self, schema: &Value, text: &str) -> Result<Value, String> {
        let value = value_of(text)?;
        let misfit = misfit(&self.schemas, &self.tenant, schema, &value).await;
        let misfit = misfit.map_err(|busy| format!("it {busy}"))?;
        misfit.map_or(Ok(value), Err)
    }

    async fn faults(&mut self, tool: &BoundTool, input: &Value) -> Option<String> {
        let validators = match self.compiled(tool).await {
            Ok(compiled) => compiled,
            Err(Unusable::Fault(why)) => {
                return Some(format!("its input schema {}", Redactor::default().cut(&why, FAULT_MAX)));
            }
            Err(Unusable::Busy(busy)) => return Some(format!("it {busy}")),
        };
        let mut faults = Vec::new();
        for validator in validators {
            match self.schemas.flaws(&self.tenant, &validator, input, MAX_FAULTS).await {
                Ok(flaws) => faults.extend(flaws.iter().map(ToString::to_string)),
                Err(busy) => faults.push(format!("they {busy}")),
            }
        }
        faults.truncate(MAX_FAULTS);
        (!faults.is_empty()).then(|| faults.join("; "))
    }

    async fn compiled(&mut self, tool: &BoundTool) -> Result<Vec<Arc<Schema>>, Unusable> {
        if let Some(known) = self.compiled.get(&tool.name)
            && let Some(compiled) = known.iter().map(Weak::upgrade).collect()
        {
            return Ok(compiled);
        }
        let mut compiled = Vec::new();
        for schema in std::iter::once(&tool.input_schema).chain(&tool.own_schema).filter(|schema| !schema.is_null()) {
            compiled.push(self.schemas.of(&self.tenant, schema, &mut Budget::of_one()).await?);
        }
        self.compiled.insert(tool.name.clone(), compiled.iter().map(Arc::downgrade).collect());
        Ok(compiled)
    }
}

/// What of a value is not as a schema wants it, told in one line to whoever gave it.
///
/// # Errors
/// The node is busy. A schema that can never be used is a fault of every value.
pub(super) async fn misfit(
    schemas: &Arc<Schemas>,
    tenant: &TenantId,
    schema: &Value,
    value: &Value,
) -> Result<Option<String>, Busy> {
    let cut = |text: &str| Redactor::default().cut(text, FAULT_MAX);
    let schema = match schemas.of(tenant, schema, &mut Budget::of_one()).await {
        Ok(schema) => schema,
        Err(Unusable::Fault(why)) => return Ok(Some(format!("the schema cannot be used: it {}", cut(&why)))),
        Err(Unusable::Busy(busy)) => return Err(busy),
    };
    let flaws = schemas.flaws(tenant, &schema, value, MAX_FAULTS).await?;
    let told: Vec<_> = flaws.iter().map(|flaw| cut(&flaw.to_string())).collect();
    Ok((!told.is_empty()).then(|| told.join("; ")))
}

/// What the rules say of a valid call, whoever carries it out.
enum Verdict {
    /// It may be sent.
    Send,
    /// It may, once people have approved it.
    Ask(Box<Requirement>),
}

/// What was declared of the tool; a policy of the simplest kind.
fn verdict(tool: &BoundTool) -> Verdict {
    if tool.needs_approval { Verdict::Ask(Box::new(Requirement::of_declaration(&tool.name))) } else { Verdict::Send }
}

fn reject(rule: &str, reason: String, input: Value) -> Ruling {
    Ruling::Reject { rule: rule.to_owned(), reason, input, judged: Box::default() }
}

/// Providers write no text at all for a tool without parameters: that is an empty object.
fn arguments(text: &str) -> Result<Value, String> {
    if text.trim().is_empty() {
        return Ok(Value::Object(Map::new()));
    }
    let value = parse_strict(text)?;
    if !value.is_object() {
        return Err("they are not a JSON object".to_owned());
    }
    if is_too_deep(&value) {
        return Err(format!("they are nested deeper than {MAX_DEPTH} levels"));
    }
    Ok(value)
}

fn unknown_tool(binding: &Binding, name: &str) -> String {
    let names: Vec<&str> = binding.tools.iter().map(|tool| tool.name.as_str()).take(MAX_NAMES).collect();
    let more = binding.tools.len().saturating_sub(names.len());
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("There is no tool named {name:?}. Available: {}{more}.", names.join(", "))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::run::binding::ToolSource;
    use crate::run::offer::Offer;
    use crate::run::spec::SideEffectClass;

    fn binding() -> Binding {
        let schema = json!({"type":"object","properties":{"amount":{"type":"number"}},"required":["amount"]});
        let tool = BoundTool {
            name: "charge".into(),
            source: ToolSource::Mcp { entry: 0, server_tool: "charge".into() },
            description: None,
            input_schema: schema,
            output_schema: None,
            own_schema: Some(json!({"properties":{"amount":{"maximum":1000}}})),
            class: SideEffectClass::NonIdempotentWrite,
            replay: false,
            needs_approval: false,
            offer: Offer::default(),
        };
        let entry = serde_json::from_value(json!({"url":"https://billing.example.com/mcp"})).unwrap();
        Binding {
            revision: 1,
            at: None,
            entries: vec![entry],
            unread: vec![],
            tools: vec![tool],
            hidden: vec![],
            mcp: None,
        }
    }

    async fn check(tool: &str, arguments: &str, rule: Option<&str>, says: &str) {
        let call = WrittenCall { id: None, tool: tool.into(), arguments: arguments.into() };
        let mut gate = Gate::new(Arc::default(), TenantId::parse("acme").unwrap());
        match (gate.rule(&binding(), &call).await, rule) {
            (Ruling::Admit { input, .. }, None) => assert_eq!(input.to_string(), says),
            (Ruling::Reject { rule: refused, reason, .. }, Some(rule)) => {
                assert_eq!(refused, rule);
                assert!(reason.contains(says), "{reason}");
            }
            (ruling, expected) => panic!("{ruling:?} where {expected:?} was expected"),
        }
    }

    #[tokio::test]
    async fn field_a025_a026_no_arguments_are_an_empty_object() {
        let mut without = binding();
        without.tools[0].input_schema = json!({ "type": "object", "properties": { "note": { "type": "string" } } });
        for arguments in ["", " \n\t"] {
            let call = WrittenCall { id: None, tool: "charge".into(), arguments: arguments.into() };
            let mut gate = Gate::new(Arc::default(), TenantId::parse("acme").unwrap());
            let ruling = gate.rule(&without, &call).await;
            assert!(matches!(&ruling, Ruling::Admit { input, .. } if *input == json!({})), "{ruling:?}");
        }
        check("charge", "", Some("invalid-arguments"), "amount").await;
    }

    #[tokio::test]
    async fn b206_invalid_arguments_and_unknown_names_never_reach_the_boundary() {
        check("charge", r#"{"amount":5}"#, None, r#"{"amount":5}"#).await;
        check("charge", r#"{"amount":117.63331139400017}"#, None, r#"{"amount":117.63331139400017}"#).await;
        check("charge", r#"{"amount":"5"}"#, Some("invalid-arguments"), "/amount").await;
        check("charge", r#"{"amount":1001}"#, Some("invalid-arguments"), "1000").await;
        check("charge", "", Some("invalid-arguments"), "amount").await;
        check("charge", r#"{"amount":5,"amount":6}"#, Some("invalid-arguments"), "twice").await;
        check("charge", r#"{"amount": 5"#, Some("invalid-arguments"), "not valid").await;
        check("charge", "[5]", Some("invalid-arguments"), "not a JSON object").await;
        check("refund", "{}", Some("unknown-tool"), "Available: charge.").await;
        let deep = format!(r#"{{"amount":5,"x":{}{}}}"#, "[".repeat(100), "]".repeat(100));
        check("charge", &deep, Some("invalid-arguments"), "deeper than 100").await;
    }
}
