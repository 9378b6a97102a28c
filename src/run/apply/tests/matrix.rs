//! Every state by every fact: what the core says, as one table.

use std::fmt::Write as _;

use serde_json::json;
use uuid::Uuid;

use super::world::*;
use crate::run::apply;
use crate::run::approval::Verdict;
use crate::run::ask::Ask;
use crate::run::envelope::Envelope;
use crate::run::event::Part;
use crate::run::fact::{Fact, Resolution};
use crate::run::message::TurnUsage;
use crate::run::next;
use crate::run::result::RunError;
use crate::run::spec::CatalogPolicy;

fn after(mut run: Envelope, facts: Vec<Fact>) -> Envelope {
    for fact in facts {
        apply(&mut run, fact, NOW).unwrap();
    }
    run
}

/// Runs of tools that others carry out.
fn fetched_states() -> Vec<(&'static str, Envelope)> {
    let local = local_run(false);
    let offered = after(local.clone(), vec![ended(&local, turn("", &[("call_1", "work"), ("call_2", "work")]))]);
    let with_worker = after(offered.clone(), vec![claimed(0, "l")]);
    let with_client = after(local.clone(), vec![ended(&local, turn("", &[("call_1", "pick")]))]);
    let mixed = local_run(true);
    let mixed = after(mixed.clone(), vec![ended(&mixed, turn("", &[("call_1", "work"), ("call_2", "charge")]))]);
    let mixed = after(mixed, vec![claimed(0, "l")]);
    vec![
        ("on offer", offered),
        ("with a worker", with_worker),
        ("with the client", with_client),
        ("with a worker and a server", mixed.clone()),
        ("crashed while with a worker and a server", reloaded(&mixed)),
    ]
}

fn states() -> Vec<(&'static str, Envelope)> {
    let asked = begun();
    let calling = after(asked.clone(), vec![ended(&asked, turn("", &[("call_1", "charge")]))]);
    let crashed = reloaded(&calling);
    let left = after(calling.clone(), vec![deferred(key(1, 0))]);
    let full = Envelope { room: 0, ..asked.clone() };
    let roomless = after(full.clone(), vec![ended(&full, turn("", &[("call_1", "charge")]))]);
    let held = after(crashed.clone(), vec![Fact::LegBegan]);
    let authorized = after(held.clone(), vec![resume(&held, &["call_1"])]);
    let checking = after(reloaded(&asked), vec![Fact::LegBegan]);
    let parked = after(checking.clone(), vec![Fact::CatalogUnreadable { message: "refused".to_owned() }]);
    let mut lets_ask = asked.clone();
    let_ask(&mut lets_ask, small());
    let out = after(lets_ask.clone(), vec![ended(&lets_ask, turn("", &[("call_1", "charge")]))]);
    let input = Fact::InputAsked { key: key(1, 0), ask: form(), expires_at: NOW };
    let asking = after(out.clone(), vec![input, sample_asked(0, 10)]);
    let waiting = after(out, vec![required(0, vec![("a", form())])]);
    let answered = after(waiting.clone(), vec![answer("input_1")]);
    let mut gated = asked.clone();
    need_approval(&mut gated, &["charge"]);
    let gated = after(gated.clone(), vec![ended(&gated, turn("", &[("call_1", "charge")]))]);
    let approved = after(gated.clone(), vec![vote_on(&gated, 0, "bob", Verdict::Approve, None)]);
    let (mut limited, _) = new_run(json!({"max_tool_calls": 0, "on_limit": "escalate"}), true);
    let escalated = after(limited.clone(), vec![ended(&limited, turn("", &[("call_1", "charge")]))]);
    let raised = after(escalated.clone(), vec![vote_on(&escalated, 0, "bob", Verdict::Approve, None)]);
    let rule = json!({"name": "limit", "trigger": "limit:reached", "action": "require_approval"});
    limited.spec.policies = vec![serde_json::from_value(rule).unwrap()];
    let reached = after(limited.clone(), vec![ended(&limited, turn("", &[("call_1", "charge")]))]);
    let states = vec![
        ("queued", new_run(json!({}), false).0),
        ("asking", asked.clone()),
        ("announced", Envelope { announced: true, ..asked.clone() }),
        ("calling", calling.clone()),
        ("announced while calling", Envelope { announced: true, ..calling.clone() }),
        ("crashed while calling", crashed),
        ("deferred", left.clone()),
        ("crashed while deferred", reloaded(&left)),
        ("asking for what was left", after(reloaded(&left), vec![Fact::LegBegan])),
        ("no room", roomless.clone()),
        ("room", Envelope { room: 1, ..roomless.clone() }),
        ("crashed without room", reloaded(&roomless)),
        ("held", held),
        ("authorized", reloaded(&authorized)),
        ("checking catalog", checking),
        ("parked", parked),
        ("server asks", asking),
        ("waiting for input", waiting),
        ("input given", reloaded(&answered)),
        ("approval asked", gated),
        ("approved", reloaded(&approved)),
        ("limit reached", reached),
        ("limit escalated", escalated),
        ("limit raised", reloaded(&raised)),
        ("completed", after(asked.clone(), vec![ended(&asked, turn("done", &[]))])),
        ("cancelled", after(calling, vec![Fact::Cancelled])),
    ];
    fetched_states().into_iter().chain(states).collect()
}

fn facts(run: &Envelope) -> Vec<(&'static str, Fact)> {
    let changed = binding(&["charge"]);
    let text = Part::TextDelta { text: "a".to_owned(), offset: 0 };
    let open = run.head.state.approvals.open.first().map_or(Uuid::nil(), |open| open.approval.id);
    let vote = |verdict| vote_of(open, "bob", verdict, None);
    let model_failed = |retry| {
        let (error, usage) = (RunError::new("model-error", "no"), TurnUsage::default());
        Fact::ModelFailed { error, retry, refused: None, usage }
    };
    vec![
        ("leg began", Fact::LegBegan),
        ("catalog same", same_catalog(run)),
        ("catalog changed", Fact::CatalogRead { served: Box::new(changed.clone()) }),
        ("catalog unreadable", Fact::CatalogUnreadable { message: "refused".to_owned() }),
        ("catalog reread, same", reread(run.binding.clone())),
        ("catalog reread, changed", reread(changed.clone())),
        ("catalog not reread", not_reread()),
        ("turn streamed", Fact::TurnStreamed { parts: vec![text], usage: TurnUsage::estimated(7, 3) }),
        ("turn ended, text", ended(run, turn("done", &[]))),
        ("turn ended, call", ended(run, turn("", &[("call_1", "charge")]))),
        ("model failed, retry", model_failed(true)),
        ("model failed", model_failed(false)),
        ("call done", done(key(1, 0))),
        ("call lost", unknown(key(1, 0))),
        ("call deferred", deferred(key(1, 0))),
        ("call progressed", progressed(key(1, 0))),
        ("room came", Fact::RoomCame),
        ("turn unstorable", Fact::TurnUnstorable { usage: turn("", &[]).usage }),
        ("resumed", resume(run, &[])),
        ("resumed, retry", resume(run, &["call_1"])),
        ("resumed, changed", resume_with(changed.clone(), &[], CatalogPolicy::Stop)),
        ("resumed, accept", resume_with(changed, &[], CatalogPolicy::Accept)),
        ("reconciled, retry", reconciled(key(1, 0), Resolution::Retry)),
        ("reconciled, complete", reconciled(key(1, 0), completed())),
        ("reconciled, fail", reconciled(key(1, 0), failed())),
        ("call asks", required(0, vec![("a", form()), ("m", Ask::Sample(Box::new(sample(10))))])),
        ("input asked", Fact::InputAsked { key: key(1, 0), ask: form(), expires_at: NOW }),
        ("input answered", answer("input_1")),
        ("input closed", Fact::InputClosed { input_id: "input_1".to_owned(), reason: "expired" }),
        ("sample asked", sample_asked(0, 10)),
        ("sample made", made(1)),
        ("claimed", claimed(0, "l")),
        ("worked", worked(0, "l")),
        ("put back", put_back(0, "l")),
        ("lapsed", lapsed(0, "l")),
        ("not taken", not_taken(0)),
        ("given", given(0)),
        ("voted, approve", vote(Verdict::Approve)),
        ("voted, deny", vote(Verdict::Deny)),
        ("approval expired", Fact::ApprovalExpired { approval: open }),
        ("limit judged", Fact::LimitJudged { said: None }),
        ("cancelled", Fact::Cancelled),
    ]
}

#[test]
fn every_state_by_every_fact_is_as_recorded() {
    let mut table = String::new();
    for (state, run) in states() {
        writeln!(table, "{state} (next: {:?})", next(&run)).unwrap();
        for (name, fact) in facts(&run) {
            let mut tried = run.clone();
            let said = match apply(&mut tried, fact, NOW) {
                Err(refusal) => {
                    assert_eq!(tried, run, "a refused fact changed the run");
                    format!("refused: {}", refusal.code())
                }
                Ok(commit) => {
                    assert_eq!(tried.head.revision, run.head.revision + 1);
                    let reason = tried.head.status.reason().map(|reason| format!(" {reason}")).unwrap_or_default();
                    let sends = if commit.sends.is_empty() { "" } else { ", sends" };
                    format!(
                        "{}{reason}{sends} [{}] then {:?}",
                        tried.head.status.code(),
                        kinds(&commit).join(" "),
                        next(&tried)
                    )
                }
            };
            writeln!(table, "  {name}: {said}").unwrap();
        }
    }
    insta::assert_snapshot!(table);
}
