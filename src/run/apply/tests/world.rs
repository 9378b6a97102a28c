//! Runs to try the rules on.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};
use uuid::Uuid;

use crate::run::apply::{NewRun, admit};
use crate::run::approval::{Requirement, Verdict, Voter};
use crate::run::ask::{Ask, InputAction, Questions, Sample, SampleMessage, SampleRequest};
use crate::run::binding::{Binding, BoundTool, ServedCatalog, ServedTool, ToolSource, merge};
use crate::run::call::{Backend, Call, Lease, Task};
use crate::run::commit::Commit;
use crate::run::envelope::{Envelope, Leg};
use crate::run::event::Progress;
use crate::run::fact::{CallRef, CastVote, Fact, InputAnswer, Reconciliation, Resolution, Resume, Ruling, SampleEnd};
use crate::run::fetched::{ClientResults, Fetched, FetchedWhat};
use crate::run::ids::{Actor, CallId, CallKey, RunId, RunUid, TenantId};
use crate::run::message::{Content, ModelTurn, Role, TurnUsage, WrittenCall};
use crate::run::offer::Offer;
use crate::run::outcome::{Answer, Outcome, ToolError};
use crate::run::spec::{CatalogPolicy, FinishReason, McpEntry, RunSpec, SideEffectClass};
use crate::run::time::Timestamp;
use crate::run::untaken::Untaken;

pub(super) const NOW: Timestamp = Timestamp::from_millis(1_796_000_000_000);

/// The tools of the world: `charge` may not be repeated, `look` may, `put` was declared repeatable.
pub(super) fn binding(tools: &[&str]) -> Binding {
    let entry: McpEntry = serde_json::from_value(json!({
        "url": "https://billing.example.com/mcp",
        "side_effect_class": {"look": "read_only"},
        "replay": {"put": "idempotent"},
    }))
    .unwrap();
    let served = |name: &&str| ServedTool {
        name: (*name).to_owned(),
        description: None,
        input_schema: json!({"type": "object"}),
        output_schema: None,
        ..ServedTool::default()
    };
    let catalog = ServedCatalog { tools: tools.iter().map(served).collect(), ..ServedCatalog::default() };
    merge(vec![entry], &[Some(Arc::new(catalog))]).0
}

pub(super) fn new_run(limits: Value, begin: bool) -> (Envelope, Commit) {
    let spec: RunSpec = serde_json::from_value(json!({
        "model": {"provider": "scripted", "name": "demo"},
        "limits": limits,
    }))
    .unwrap();
    let new = NewRun {
        tenant: TenantId::parse("acme").unwrap(),
        uid: RunUid(Uuid::from_u128(7)),
        id: RunId::parse("r").unwrap(),
        actor: Actor::parse("alice").unwrap(),
        spec,
        input: vec![(Role::User, vec![Content::Text { text: "Charge 5.".to_owned() }])],
        binding: binding(&["charge", "look", "put"]),
        warnings: vec![],
        begin,
    };
    admit(new, NOW)
}

pub(super) fn begun() -> Envelope {
    new_run(json!({}), true).0
}

/// What a node that loads the run finds.
pub(super) fn reloaded(stored: &Envelope) -> Envelope {
    Envelope { leg: Leg::Outside, ..stored.clone() }
}

pub(super) fn turn(text: &str, calls: &[(&str, &str)]) -> ModelTurn {
    let written = |(id, tool): &(&str, &str)| WrittenCall {
        id: (!id.is_empty()).then(|| (*id).to_owned()),
        tool: (*tool).to_owned(),
        arguments: r#"{"amount":5}"#.to_owned(),
    };
    ModelTurn {
        reasoning: vec![],
        text: text.to_owned(),
        calls: calls.iter().map(written).collect(),
        finish_reason: if calls.is_empty() { FinishReason::Stop } else { FinishReason::ToolCalls },
        usage: TurnUsage { input_tokens: 10, output_tokens: 5, cached_input_tokens: 0, estimated_tokens: 0 },
    }
}

/// The gate of this world: known tools are admitted.
pub(super) fn ended(envelope: &Envelope, turn: ModelTurn) -> Fact {
    let rule = |call: &WrittenCall| match envelope.binding.tool(&call.tool) {
        Some(tool) if tool.needs_approval => Ruling::Ask {
            target: envelope.binding.target(tool),
            input: json!({"amount": 5}),
            judged: Box::default(),
            requirement: Box::new(Requirement::of_declaration(&tool.name)),
        },
        Some(tool) => {
            Ruling::Admit { target: envelope.binding.target(tool), input: json!({"amount": 5}), judged: Box::default() }
        }
        None => Ruling::Reject {
            rule: "unknown-tool".to_owned(),
            reason: "no such tool".to_owned(),
            input: json!({}),
            judged: Box::default(),
        },
    };
    let rulings = turn.calls.iter().map(rule).collect();
    Fact::TurnEnded { turn: Box::new(turn), parts: vec![], rulings, structured: None }
}

pub(super) fn done(key: CallKey) -> Fact {
    let output = json!({"content": [{"type": "text", "text": "charged 5"}]});
    Fact::CallEnded { key, outcome: Outcome::Answered(Answer::Done { output }) }
}

pub(super) fn unknown(key: CallKey) -> Fact {
    Fact::CallEnded { key, outcome: Outcome::Unknown(crate::run::outcome::Cause::LostResponse) }
}

/// The server goes on with the call by itself.
pub(super) fn deferred(key: CallKey) -> Fact {
    let task = Task { id: format!("task-{}-{}", key.turn, key.position), poll_ms: Some(500) };
    Fact::CallEnded { key, outcome: Outcome::Deferred(task) }
}

pub(super) fn progressed(key: CallKey) -> Fact {
    Fact::CallsProgressed { calls: vec![(key, Progress { progress: 1.into(), total: Some(4.into()), message: None })] }
}

pub(super) fn resume(envelope: &Envelope, retry: &[&str]) -> Fact {
    resume_with(envelope.binding.clone(), retry, CatalogPolicy::Stop)
}

pub(super) fn resume_with(served: Binding, retry: &[&str], policy: CatalogPolicy) -> Fact {
    let named = |id: &&str| CallRef { turn: None, call_id: CallId::new(*id) };
    Fact::Resumed(Box::new(Resume {
        actor: Actor::parse("alice").unwrap(),
        retry: retry.iter().map(named).collect(),
        votes: vec![],
        served,
        warnings: vec![],
        on_catalog_change: policy,
        limits: None,
        results: vec![],
    }))
}

/// A person's word about a call.
pub(super) fn reconciled(key: CallKey, resolution: Resolution) -> Fact {
    Fact::Reconciled(Box::new(Reconciliation { actor: Actor::parse("root").unwrap(), key, resolution }))
}

pub(super) fn completed() -> Resolution {
    Resolution::Complete { output: json!({"charged": 5}) }
}

pub(super) fn failed() -> Resolution {
    Resolution::Fail { error: ToolError::new("reconciled-failed", "no charge was found") }
}

pub(super) fn same_catalog(envelope: &Envelope) -> Fact {
    Fact::CatalogRead { served: Box::new(envelope.binding.clone()) }
}

pub(super) fn reread(served: Binding) -> Fact {
    Fact::CatalogReread { served: Box::new(served), warnings: vec![] }
}

pub(super) fn not_reread() -> Fact {
    Fact::CatalogNotReread { message: "billing: no answer".to_owned() }
}

pub(super) fn key(turn: u32, position: u32) -> CallKey {
    CallKey { turn, position }
}

pub(super) fn stages(envelope: &Envelope) -> Vec<&'static str> {
    envelope.calls.iter().map(|call: &Call| call.stage.code()).collect()
}

pub(super) fn kinds(commit: &Commit) -> Vec<&'static str> {
    commit.events.iter().map(|event| event.body.kind()).collect()
}

/// Declares that calls of these tools need an approval.
pub(super) fn need_approval(run: &mut Envelope, tools: &[&str]) {
    for tool in run.binding.tools.iter_mut().filter(|tool| tools.contains(&tool.name.as_str())) {
        tool.needs_approval = true;
    }
}

/// A vote on the n-th approval that is open.
pub(super) fn vote_on(run: &Envelope, at: usize, actor: &str, verdict: Verdict, ruling: Option<Ruling>) -> Fact {
    let open = &run.head.state.approvals.open[at];
    let voted = vote_of(open.approval.id, actor, verdict, ruling);
    let Fact::Voted { mut cast, ruling } = voted else { return voted };
    // Whoever votes here has read what they vote on.
    cast.read = Some(open.approval.input_digest.clone());
    cast.round = open.round;
    Fact::Voted { cast, ruling }
}

pub(super) fn vote_of(approval: Uuid, actor: &str, decision: Verdict, ruling: Option<Ruling>) -> Fact {
    let arguments = ruling.as_ref().map(|ruling| match ruling {
        Ruling::Admit { input, .. } | Ruling::Ask { input, .. } | Ruling::Reject { input, .. } => input.clone(),
    });
    let voter = Voter { actor: Actor::parse(actor).unwrap(), scopes: vec![] };
    let cast = CastVote { voter, approval, decision, comment: None, read: None, arguments, round: 0 };
    Fact::Voted { cast: Box::new(cast), ruling: ruling.map(Box::new) }
}

/// Lets the servers of a run ask people, and have this model asked.
pub(super) fn let_ask(run: &mut Envelope, sampling: Value) {
    let mut entry = json!(run.binding.entries[0]);
    entry["elicitation"] = json!("ask");
    entry["sampling"] = sampling;
    run.binding.entries[0] = serde_json::from_value(entry).unwrap();
}

pub(super) fn small() -> Value {
    json!({ "model": { "provider": "scripted", "name": "small" } })
}

pub(super) fn form() -> Ask {
    Ask::Form { message: "Who?".to_owned(), schema: json!({ "type": "object" }) }
}

pub(super) fn sample(max_tokens: u64) -> SampleRequest {
    let messages = vec![SampleMessage { role: Role::User, text: "Sum up.".to_owned() }];
    SampleRequest { system: None, messages, max_tokens, temperature: None, stop: vec![] }
}

pub(super) fn required(position: u32, asks: Vec<(&str, Ask)>) -> Fact {
    let asks: BTreeMap<String, Ask> = asks.into_iter().map(|(name, ask)| (name.to_owned(), ask)).collect();
    let questions = Questions { asks, state: Some("s".to_owned()), place: None };
    Fact::CallEnded { key: key(1, position), outcome: Outcome::InputRequired(Box::new(questions)) }
}

pub(super) fn answer(input_id: &str) -> Fact {
    let (actor, input_id) = (Actor::parse("bob").unwrap(), input_id.to_owned());
    let content = Some(json!({}));
    Fact::InputAnswered(Box::new(InputAnswer { actor, input_id, action: InputAction::Accept, content }))
}

pub(super) fn sample_asked(position: u32, max_tokens: u64) -> Fact {
    Fact::SampleAsked { key: key(1, position), question: None, request: Box::new(sample(max_tokens)) }
}

pub(super) fn made(number: u32) -> Fact {
    let sample = Sample { model: "small".to_owned(), text: "Short.".to_owned(), finish_reason: FinishReason::Stop };
    let usage = TurnUsage { input_tokens: 5, output_tokens: 5, cached_input_tokens: 0, estimated_tokens: 0 };
    Fact::SampleEnded { sample: number, end: SampleEnd::Made { sample, usage } }
}

pub(super) fn fetched(key: CallKey, what: FetchedWhat) -> Fact {
    Fact::Fetched(Box::new(Fetched { key, what }))
}

/// A worker takes a call.
pub(super) fn claimed(position: u32, lease: &str) -> Fact {
    fetched(key(1, position), FetchedWhat::Claimed { lease: Lease { id: lease.to_owned(), worker: "w1".to_owned() } })
}

pub(super) fn worked(position: u32, lease: &str) -> Fact {
    let answer = Answer::Done { output: json!({"charged": 5}) };
    fetched(key(1, position), FetchedWhat::Answered { lease: lease.to_owned(), answer })
}

pub(super) fn lapsed(position: u32, lease: &str) -> Fact {
    fetched(key(1, position), FetchedWhat::Lapsed { lease: lease.to_owned() })
}

pub(super) fn put_back(position: u32, lease: &str) -> Fact {
    fetched(key(1, position), FetchedWhat::PutBack { lease: lease.to_owned() })
}

pub(super) fn not_taken(position: u32) -> Fact {
    fetched(key(1, position), FetchedWhat::NotTaken { trouble: Untaken::NoHandler })
}

/// The run's client carried out a call.
pub(super) fn given(position: u32) -> Fact {
    given_to(key(1, position))
}

pub(super) fn given_to(key: CallKey) -> Fact {
    let results = vec![(key, Answer::Done { output: json!("ok") })];
    Fact::ClientAnswered(Box::new(ClientResults { actor: Actor::parse("bob").unwrap(), results }))
}

/// A run of tools that are declared with it: `work` may not be repeated, `read` only reads, `pick` is the client's.
pub(super) fn local_run(entries: bool) -> Envelope {
    let (mut run, _) = new_run(json!({}), true);
    if !entries {
        run.binding = merge(vec![], &[]).0;
    }
    run.binding = run.binding.with_local(local_tools()).0;
    run
}

pub(super) fn local_tools() -> Vec<BoundTool> {
    let tool = |name: &str, backend: Backend, class: SideEffectClass| BoundTool {
        needs_approval: false,
        name: name.to_owned(),
        source: ToolSource::Local { backend, tool: name.to_owned(), version: Some("1.0.0".to_owned()) },
        description: None,
        input_schema: json!({"type": "object"}),
        output_schema: None,
        own_schema: None,
        class,
        replay: false,
        offer: Offer::default(),
    };
    let write = SideEffectClass::NonIdempotentWrite;
    vec![
        tool("work", Backend::Worker, write),
        tool("read", Backend::Worker, SideEffectClass::ReadOnly),
        tool("pick", Backend::Client, write),
    ]
}
