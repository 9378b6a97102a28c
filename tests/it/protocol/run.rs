//! The run of the model, and the facts that its world makes: one turn with two calls, then a closing text.

use std::sync::Arc;

use countersign::run::apply::{NewRun, admit};
use countersign::run::binding::{ServedCatalog, ServedTool, merge};
use countersign::run::call::MAX_ATTEMPTS;
use countersign::run::envelope::Envelope;
use countersign::run::fact::{Fact, Reconciliation, Resolution, Ruling};
use countersign::run::ids::{Actor, CallKey, RunId, RunUid, TenantId};
use countersign::run::message::{Content, ModelTurn, Role, TurnUsage, WrittenCall};
use countersign::run::outcome::{Answer, Cause, Outcome, ToolError};
use countersign::run::spec::FinishReason;
use countersign::run::time::Timestamp;
use serde_json::json;
use uuid::Uuid;

/// The one instant of the model: with a clock that moves there would be no end of states.
pub(super) const NOW: Timestamp = Timestamp::from_millis(1_796_000_000_000);
pub(super) const CALLS: usize = 2;
/// The tool that may not be repeated, and the one that was declared repeatable.
pub(super) const CHARGE: &str = "charge";
pub(super) const PUT: &str = "put";

/// How often a call of this tool may have its effect without a person's word.
pub(super) fn rights_of(tool: &str) -> u8 {
    if tool == PUT { u8::try_from(MAX_ATTEMPTS).unwrap() } else { 1 }
}

pub(super) fn key_of(call: usize) -> CallKey {
    CallKey { turn: 1, position: u32::try_from(call).unwrap() }
}

pub(super) fn queued(parallel: usize) -> Envelope {
    let served = |name: &str| ServedTool {
        name: name.to_owned(),
        description: None,
        input_schema: json!({"type": "object"}),
        output_schema: None,
        ..ServedTool::default()
    };
    let catalog = ServedCatalog { tools: vec![served(CHARGE), served(PUT)], ..ServedCatalog::default() };
    let entry = json!({"url": "https://billing.example.com/mcp", "replay": {PUT: "idempotent"}});
    let binding = merge(vec![serde_json::from_value(entry).unwrap()], &[Some(Arc::new(catalog))]).0;
    let spec = json!({
        "model": {"provider": "scripted", "name": "demo"},
        "limits": {"max_parallel_tool_calls": parallel},
    });
    let new = NewRun {
        tenant: TenantId::parse("acme").unwrap(),
        uid: RunUid(Uuid::from_u128(7)),
        id: RunId::parse("r").unwrap(),
        actor: Actor::parse("alice").unwrap(),
        spec: serde_json::from_value(spec).unwrap(),
        input: vec![(Role::User, vec![Content::Text { text: "Charge 5, twice.".to_owned() }])],
        binding,
        warnings: vec![],
        begin: false,
    };
    admit(new, NOW).0
}

/// The model's answer: the two calls at first, then the text that ends the run.
pub(super) fn turn_ended(run: &Envelope, tools: [&str; CALLS]) -> Fact {
    let tools: &[&str] = if run.head.state.turns == 0 { &tools } else { &[] };
    let written = |tool: &&str| WrittenCall { id: None, tool: (*tool).to_owned(), arguments: "{}".to_owned() };
    let ruling = |tool: &&str| {
        let bound = run.binding.tool(tool).unwrap();
        Ruling::Admit { target: run.binding.target(bound), input: json!({}), judged: Box::default() }
    };
    let turn = ModelTurn {
        reasoning: vec![],
        text: if tools.is_empty() { "done".to_owned() } else { String::new() },
        calls: tools.iter().map(written).collect(),
        finish_reason: if tools.is_empty() { FinishReason::Stop } else { FinishReason::ToolCalls },
        usage: TurnUsage { input_tokens: 1, output_tokens: 1, cached_input_tokens: 0, estimated_tokens: 0 },
    };
    let rulings = tools.iter().map(ruling).collect();
    Fact::TurnEnded { turn: Box::new(turn), parts: vec![], rulings, structured: None }
}

pub(super) fn catalog_read(run: &Envelope) -> Fact {
    Fact::CatalogRead { served: Box::new(run.binding.clone()) }
}

pub(super) fn answered(call: usize) -> Fact {
    let output = json!({"content": []});
    Fact::CallEnded { key: key_of(call), outcome: Outcome::Answered(Answer::Done { output }) }
}

pub(super) fn lost(call: usize) -> Fact {
    Fact::CallEnded { key: key_of(call), outcome: Outcome::Unknown(Cause::LostResponse) }
}

pub(super) fn withdrawn(call: usize) -> Fact {
    let error = ToolError::new("mcp-unreachable", "given up before it was sent");
    Fact::CallEnded { key: key_of(call), outcome: Outcome::NotSent(error) }
}

/// What a person may say of a call whose outcome nobody knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    Retry,
    Complete,
    Fail,
}

pub(super) fn reconciled(call: usize, word: Word) -> Fact {
    let resolution = match word {
        Word::Retry => Resolution::Retry,
        Word::Complete => Resolution::Complete { output: json!({"content": []}) },
        Word::Fail => Resolution::Fail { error: ToolError::new("not-executed", "nothing is booked") },
    };
    let actor = Actor::parse("root").unwrap();
    Fact::Reconciled(Box::new(Reconciliation { actor, key: key_of(call), resolution }))
}
