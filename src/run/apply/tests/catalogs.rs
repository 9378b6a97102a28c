//! Catalogs that change while a run is driven, and while it waits.

use std::sync::Arc;

use serde_json::{Value, json};

use super::world::*;
use crate::run::binding::{Binding, BoundTool, ToolSource, Warning};
use crate::run::call::Backend;
use crate::run::commit::Commit;
use crate::run::envelope::Envelope;
use crate::run::fact::{Fact, Resolution};
use crate::run::history::prompt;
use crate::run::ids::CallKey;
use crate::run::spec::{CatalogPolicy, SideEffectClass};
use crate::run::status::{Status, StopReason, SuspendReason};
use crate::run::{Step, apply, next};

const HELD: Status = Status::Suspended(SuspendReason::ToolReconciliationRequired);
const TOOLS: [&str; 3] = ["charge", "look", "put"];

fn more() -> Binding {
    binding(&["charge", "look", "put", "refund"])
}

fn did(run: &mut Envelope, fact: Fact) -> Commit {
    apply(run, fact, NOW).unwrap()
}

/// A run whose first call is done; a server announced other tools meanwhile.
fn announced(policy: CatalogPolicy) -> Envelope {
    let mut run = begun();
    run.spec.on_catalog_change = policy;
    let fact = ended(&run, turn("First.", &[("a", "charge")]));
    did(&mut run, fact);
    run.announced = true;
    assert_eq!(next(&run), Step::AwaitCalls, "calls that are out go on");
    let commit = did(&mut run, done(key(1, 0)));
    assert_eq!(kinds(&commit), ["tool-output"], "the next turn begins once it is known what is offered");
    assert_eq!(next(&run), Step::RefreshCatalog);
    run
}

/// What a turn in which all these calls were lost leaves, each at this backend.
fn held_at(backends: &[Backend]) -> Envelope {
    let mut run = begun();
    let calls: Vec<(String, &str)> = (0..backends.len()).map(|nth| (format!("c{nth}"), "charge")).collect();
    let calls: Vec<(&str, &str)> = calls.iter().map(|(id, tool)| (id.as_str(), *tool)).collect();
    let fact = ended(&run, turn("", &calls));
    did(&mut run, fact);
    for (call, backend) in run.calls.iter_mut().zip(backends) {
        call.target.as_mut().unwrap().backend = *backend;
    }
    let mut run = reloaded(&run);
    did(&mut run, Fact::LegBegan);
    assert_eq!(run.head.status, HELD);
    run
}

fn local(name: &str) -> BoundTool {
    BoundTool {
        name: name.to_owned(),
        source: ToolSource::Local { backend: Backend::Worker, tool: "charge".into(), version: None },
        description: None,
        input_schema: json!({"type": "object"}),
        output_schema: None,
        own_schema: None,
        class: SideEffectClass::ReadOnly,
        replay: false,
        needs_approval: false,
        offer: crate::run::offer::Offer::default(),
    }
}

fn offered(run: &Envelope) -> Vec<String> {
    prompt(run).tools.into_iter().map(|tool| tool.name).collect()
}

#[track_caller]
fn check_refused(run: &Envelope, fact: Fact, code: &str) -> String {
    let mut tried = run.clone();
    let refused = apply(&mut tried, fact, NOW).unwrap_err();
    assert_eq!(refused.code(), code);
    assert_eq!(&tried, run, "a refused fact changed the run");
    refused.to_string()
}

#[test]
fn b054_to_b058_b062_a_changed_catalog_stops_the_run_before_the_model_is_offered_it() {
    let mut run = announced(CatalogPolicy::Stop);
    let (bound, turns) = (run.binding.clone(), run.head.state.turns);
    let commit = did(&mut run, reread(more()));
    assert_eq!(run.head.status, Status::Stopped(StopReason::McpCatalogChanged));
    assert_eq!((kinds(&commit), commit.binding), (vec!["part", "result"], None));
    assert_eq!((run.binding, run.head.state.turns), (bound, turns));
    let said: Vec<&str> = run.head.state.warnings.iter().map(|warning| warning.message.as_str()).collect();
    assert_eq!(said, ["MCP tool catalog changed mid-run (added: refund); the run stopped."]);
    assert_eq!(run.head.state.output.unwrap().text, "First.");
}

#[test]
fn b059_b060_b062_b063_an_accepted_change_is_recorded_before_the_model_is_asked() {
    let mut run = announced(CatalogPolicy::Accept);
    let commit = did(&mut run, reread(more()));
    assert_eq!(kinds(&commit), ["binding-revised", "part", "turn-started"]);
    assert_eq!((commit.binding.unwrap().revision, next(&run)), (2, Step::AskModel));
    assert_eq!(offered(&run), ["charge", "look", "put", "refund"]);
    let said: Vec<&str> = run.head.state.warnings.iter().map(|warning| warning.message.as_str()).collect();
    let text =
        "MCP tool catalog changed mid-run (added: refund); the run's resume binding now records the new catalog.";
    assert_eq!(said, [text]);
    // From now on the old catalog would be the change.
    assert_eq!(run.binding.drift(&more()), None);
    assert_eq!(run.binding.drift(&binding(&TOOLS)).unwrap().to_string(), "removed: refund");
}

#[test]
fn b061_a_tool_that_came_by_a_refresh_leaves_a_receipt() {
    let mut run = announced(CatalogPolicy::Accept);
    did(&mut run, reread(more()));
    let fact = ended(&run, turn("", &[("b", "refund")]));
    let commit = did(&mut run, fact);
    assert_eq!((commit.sends, commit.calls_made.len()), (vec![key(2, 0)], 1));
    assert_eq!(run.calls[0].target.as_ref().unwrap().server_tool, "refund");
}

#[test]
fn b064_an_announcement_of_the_same_catalog_changes_nothing() {
    for policy in [CatalogPolicy::Stop, CatalogPolicy::Accept] {
        let mut run = announced(policy);
        let bound = run.binding.clone();
        let commit = did(&mut run, reread(binding(&["put", "charge", "look"])));
        assert_eq!((kinds(&commit), commit.binding), (vec!["turn-started"], None));
        assert_eq!((next(&run), &run.binding), (Step::AskModel, &bound));
        assert!(run.head.state.warnings.is_empty());
    }
}

#[test]
fn b065_a_rewritten_description_is_a_change() {
    let rewritten = |run: &Envelope| {
        let tools = run.binding.tools.iter().map(|tool| crate::run::binding::ServedTool {
            name: tool.name.clone(),
            description: (tool.name == "charge").then(|| "Charges twice.".to_owned()),
            input_schema: tool.input_schema.clone(),
            output_schema: None,
            hints: crate::run::binding::Hints::default(),
            ..crate::run::binding::ServedTool::default()
        });
        let catalog = crate::run::binding::ServedCatalog { tools: tools.collect(), ..Default::default() };
        crate::run::binding::merge(run.binding.entries.clone(), &[Some(Arc::new(catalog))]).0
    };
    let mut run = announced(CatalogPolicy::Stop);
    let fact = reread(rewritten(&run));
    did(&mut run, fact);
    assert_eq!(
        run.head.state.warnings[0].message,
        "MCP tool catalog changed mid-run (changed: charge); the run stopped."
    );
}

#[test]
fn b068_an_announcement_during_the_last_step_needs_nothing() {
    let mut run = begun();
    let fact = ended(&run, turn("Done.", &[]));
    did(&mut run, fact);
    run.announced = true;
    assert_eq!((run.head.status, next(&run)), (Status::Completed, Step::Rest));
}

#[test]
fn b069_an_announcement_while_calls_run_waits_for_the_next_step() {
    let mut run = begun();
    run.spec.on_catalog_change = CatalogPolicy::Accept;
    let fact = ended(&run, turn("", &[("a", "charge"), ("b", "look")]));
    did(&mut run, fact);
    run.announced = true;
    for position in 0..2 {
        assert_eq!(next(&run), Step::AwaitCalls);
        check_refused(&run, reread(more()), "internal");
        did(&mut run, done(key(1, position)));
    }
    assert_eq!(next(&run), Step::RefreshCatalog);
}

/// One more turn with one call, which is done.
fn one_more_step(run: &mut Envelope) {
    assert_eq!(next(run), Step::AskModel);
    let fact = ended(run, turn("", &[("", "look")]));
    did(run, fact);
    did(run, done(CallKey { turn: run.head.state.turns, position: 0 }));
    assert_eq!(next(run), Step::RefreshCatalog, "it is tried again before the following step");
}

#[test]
fn b070_a_catalog_that_cannot_be_read_again_is_tried_before_each_step_and_stops_the_run_after_three() {
    let mut run = announced(CatalogPolicy::Stop);
    let bound = run.binding.clone();
    for _ in 0..2 {
        let commit = did(&mut run, not_reread());
        assert_eq!(kinds(&commit), ["part", "turn-started"]);
        one_more_step(&mut run);
    }
    let commit = did(&mut run, not_reread());
    assert_eq!(run.head.status, Status::Stopped(StopReason::McpCatalogUnreadable));
    assert_eq!((kinds(&commit), &run.binding), (vec!["part", "result"], &bound));
    let said: Vec<&Warning> = run.head.state.warnings.iter().collect();
    assert_eq!((said.len(), said[0].setting.as_str()), (3, "mcp"));
    assert_eq!(
        said[0].message,
        "MCP tool catalog could not be read again (billing: no answer); the run keeps the last one."
    );
    assert_eq!(said[2].message, "MCP tool catalog could not be read again (billing: no answer); the run stopped.");
}

#[test]
fn b070_only_failures_in_a_row_count_and_one_that_accepts_changes_goes_on() {
    let mut run = announced(CatalogPolicy::Stop);
    for _ in 0..2 {
        did(&mut run, not_reread());
        one_more_step(&mut run);
    }
    did(&mut run, reread(binding(&TOOLS)));
    assert_eq!((next(&run), run.head.state.catalog_failures), (Step::AskModel, 0));
    let mut run = announced(CatalogPolicy::Accept);
    for _ in 0..5 {
        did(&mut run, not_reread());
        one_more_step(&mut run);
    }
    // A node that takes the run over compares catalogs anyway.
    let mut run = reloaded(&run);
    did(&mut run, Fact::LegBegan);
    assert_eq!(next(&run), Step::CheckCatalog);
    let fact = same_catalog(&run);
    did(&mut run, fact);
    assert_eq!((next(&run), run.head.state.catalog_failures), (Step::AskModel, 0));
}

#[test]
fn b077_b079_b080_a_change_is_not_accepted_while_a_servers_call_is_open_sent_or_not() {
    let accept = |retry: &[&str]| resume_with(more(), retry, CatalogPolicy::Accept);
    // Sent, of any class, authorized or not.
    let mut run = begun();
    let fact = ended(&run, turn("", &[("a", "charge"), ("b", "put")]));
    did(&mut run, fact);
    let mut run = reloaded(&run);
    did(&mut run, Fact::LegBegan);
    for retry in [&[][..], &["a"]] {
        check_refused(&run, accept(retry), "mcp-catalog-changed-in-flight");
    }
    // Never sent: its sibling, a local call, waits for a person.
    let mut run = Envelope { room: 1, ..begun() };
    let fact = ended(&run, turn("", &[("a", "charge"), ("b", "charge")]));
    did(&mut run, fact);
    run.calls[0].target.as_mut().unwrap().backend = Backend::Worker;
    let mut run = Envelope { room: 1, ..reloaded(&run) };
    did(&mut run, Fact::LegBegan);
    assert_eq!((stages(&run), run.head.status), (vec!["indeterminate", "pending"], HELD));
    let said = check_refused(&run, accept(&["a"]), "mcp-catalog-changed-in-flight");
    assert!(said.starts_with("MCP tool catalog changed across resume (added: refund)."), "{said}");
    // The recorded catalog is served again: both are settled as usual.
    let fact = resume(&run, &["a"]);
    did(&mut run, fact);
    let mut run = Envelope { room: 2, ..reloaded(&run) };
    did(&mut run, Fact::LegBegan);
    let fact = same_catalog(&run);
    let commit = did(&mut run, fact);
    assert_eq!((commit.sends.len(), commit.offers()), (1, true), "the server's leaves, the local one is on offer");
}

#[test]
fn b083_b084_a_local_call_that_waits_blocks_no_change_and_records_none() {
    let mut run = held_at(&[Backend::Worker, Backend::Worker]);
    let accept = |retry: &[&str]| resume_with(more(), retry, CatalogPolicy::Accept);
    check_refused(&run, accept(&[]), "nothing-decided");
    check_refused(&run, resume_with(more(), &["c0", "c1"], CatalogPolicy::Stop), "mcp-catalog-changed");
    // A part of what must be decided is kept; the catalog is not recorded before the run goes on.
    let commit = did(&mut run, accept(&["c0"]));
    assert_eq!((kinds(&commit), commit.binding), (vec!["reconciliation-decided"], None));
    assert!(run.head.state.warnings.is_empty());
    let commit = did(&mut run, accept(&["c1"]));
    assert_eq!(kinds(&commit), ["reconciliation-decided", "binding-revised", "part", "run-status"]);
    assert_eq!((run.binding.revision, run.head.state.warnings.len()), (2, 1));
}

#[test]
fn b085_an_unchanged_catalog_that_is_accepted_opens_no_revision() {
    let mut run = held_at(&[Backend::Mcp]);
    let fact = resume_with(binding(&TOOLS), &["c0"], CatalogPolicy::Accept);
    let commit = did(&mut run, fact);
    assert_eq!((kinds(&commit), commit.binding), (vec!["reconciliation-decided", "run-status"], None));
}

#[test]
fn b086_an_open_call_is_settled_once_the_recorded_catalog_is_served_again() {
    let mut run = held_at(&[Backend::Mcp]);
    check_refused(&run, resume_with(more(), &["c0"], CatalogPolicy::Accept), "mcp-catalog-changed-in-flight");
    let fact = resume(&run, &["c0"]);
    did(&mut run, fact);
    let mut run = reloaded(&run);
    did(&mut run, Fact::LegBegan);
    let fact = same_catalog(&run);
    assert_eq!(did(&mut run, fact).sends, [key(1, 0)]);
}

#[test]
fn b087_stored_results_of_the_last_turn_are_used_with_an_accepted_change() {
    let mut run = held_at(&[Backend::Mcp]);
    // Decided by a person: the run is queued, and its next leg finds another catalog.
    did(&mut run, reconciled(key(1, 0), Resolution::Complete { output: json!({"charged": 5}) }));
    let mut run = reloaded(&run);
    did(&mut run, Fact::LegBegan);
    did(&mut run, Fact::CatalogRead { served: Box::new(more()) });
    assert_eq!(run.head.status, Status::Suspended(SuspendReason::McpCatalogChanged));
    did(&mut run, resume_with(more(), &[], CatalogPolicy::Accept));
    let mut run = reloaded(&run);
    did(&mut run, Fact::LegBegan);
    let fact = same_catalog(&run);
    let commit = did(&mut run, fact);
    assert_eq!((commit.sends.len(), next(&run), stages(&run)), (0, Step::AskModel, vec!["completed"]));
}

#[test]
fn b049_b050_b051_a_run_without_a_record_takes_the_catalog_that_it_is_resumed_with() {
    let mut run = held_at(&[Backend::Worker]);
    run.binding = crate::run::binding::merge(vec![], &[]).0;
    assert_eq!(run.binding.mcp, None);
    let fact = resume_with(binding(&TOOLS), &["c0"], CatalogPolicy::Stop);
    let commit = did(&mut run, fact);
    assert_eq!(kinds(&commit), ["reconciliation-decided", "binding-revised", "run-status"]);
    assert_eq!(commit.binding.unwrap().mcp, binding(&TOOLS).mcp);
    // From then on it is compared like any other.
    let mut run = reloaded(&run);
    did(&mut run, Fact::LegBegan);
    did(&mut run, Fact::CatalogRead { served: Box::new(more()) });
    let said = check_refused(&run, resume_with(more(), &[], CatalogPolicy::Stop), "mcp-catalog-changed");
    assert_eq!(said, "MCP tool catalog changed across resume (added: refund).");
}

#[test]
fn b088_b090_a_local_tool_wins_over_a_served_one_of_its_name_and_the_record_knows_both() {
    let served = binding(&TOOLS);
    let record = served.mcp.clone();
    let (bound, warnings) = served.with_local(vec![local("charge"), local("mine")]);
    let text = "MCP tool 'charge' is hidden by a local tool of the same name.";
    assert_eq!(warnings.iter().map(|warning| warning.message.as_str()).collect::<Vec<_>>(), [text]);
    assert_eq!(serde_json::to_value(&warnings[0]).unwrap()["type"], "unsupported-tool");
    let names: Vec<&str> = bound.tools.iter().map(|tool| tool.name.as_str()).collect();
    assert_eq!(names, ["charge", "mine", "look", "put"]);
    assert_eq!(bound.target(bound.tool("charge").unwrap()).backend, Backend::Worker, "the server gets nothing");
    // Taken before anything is shadowed: nothing changed for a resume.
    assert_eq!(bound.mcp, record);
    assert_eq!(bound.drift(&binding(&TOOLS)), None);
    assert_eq!(bound.drift(&binding(&["look", "put"])).unwrap().to_string(), "removed: charge");
    let stored: Value = serde_json::to_value(&bound).unwrap();
    assert_eq!(serde_json::from_value::<Binding>(stored).unwrap(), bound);
}

#[test]
fn b090_a_refresh_keeps_local_tools_and_tells_each_collision_once() {
    let mut run = begun();
    run.spec.on_catalog_change = CatalogPolicy::Accept;
    let (bound, _) = run.binding.clone().with_local(vec![local("refund")]);
    run.binding = bound;
    for served in [more(), binding(&["refund"])] {
        run.announced = true;
        did(&mut run, reread(served));
    }
    assert_eq!(run.binding.tool("refund").unwrap().entry(), None);
    assert_eq!((run.binding.revision, run.binding.tools.len(), run.binding.hidden.len()), (3, 1, 1));
    let told = |code: Option<&str>| run.head.state.warnings.iter().filter(|told| told.code.as_deref() == code).count();
    assert_eq!((told(None), told(Some("mcp-catalog-changed"))), (1, 2), "{:?}", run.head.state.warnings);
}
