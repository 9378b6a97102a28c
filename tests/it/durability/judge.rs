//! Judges what is left of a run after crashes: by its events, its receipts, and what the server saw.

use std::collections::HashMap;

use serde_json::Value;

use crate::support::fake_mcp::FakeMcp;

/// How often a server saw each idempotency key.
pub(super) type SeenKeys = HashMap<String, u64>;

/// The calls that a server saw.
pub(super) fn seen_keys(fake: &FakeMcp) -> SeenKeys {
    let mut seen = SeenKeys::new();
    for call in fake.seen_rpc("tools/call") {
        *seen.entry(call.headers["idempotency-key"].clone()).or_default() += 1;
    }
    seen
}

/// What the product says of one run, in the form of its API.
pub(super) struct Evidence {
    pub(super) run: Value,
    pub(super) events: Vec<Value>,
    pub(super) receipts: Vec<Value>,
}

/// What the events tell of one call.
#[derive(Default)]
struct Told {
    /// Attempts begun.
    started: u64,
    /// Attempts whose end was told.
    ended: u64,
    /// Attempts that a person allowed.
    allowed: u64,
    /// The stage told last.
    stage: String,
}

impl Evidence {
    pub(super) fn is_terminal(&self) -> bool {
        matches!(self.run["status"].as_str(), Some("completed" | "cancelled" | "stopped" | "failed"))
    }

    /// Whether one tool answered with three errors in a row, in the order in which its calls were settled: that ends a run.
    pub(super) fn runs_away(&self) -> bool {
        let mut in_a_row: HashMap<&str, u32> = HashMap::new();
        self.events.iter().filter(|event| event["type"] == "tool-output").any(|event| {
            let errors = in_a_row.entry(event["tool"].as_str().unwrap_or_default()).or_default();
            match event["stage"].as_str() {
                Some("failed") => *errors += 1,
                Some("completed") => *errors = 0,
                _ => {}
            }
            *errors == 3
        })
    }

    /// Everything that breaks a promise; `seen` may hold the keys of other runs too. `repeats` says which tools may be
    /// sent again by themselves.
    pub(super) fn faults(&self, seen: &SeenKeys, repeats: impl Fn(&str) -> bool) -> Vec<String> {
        let mut faults = Vec::new();
        self.judge_numbers(&mut faults);
        self.judge_calls(&repeats, &mut faults);
        self.judge_receipts(seen, &repeats, &mut faults);
        // Each committed turn was paid once.
        let (turns, paid) = (&self.run["turns"], &self.run["usage"]["model_requests"]);
        if turns != paid {
            faults.push(format!("{turns} turns are committed and {paid} are paid"));
        }
        faults
    }

    fn judge_numbers(&self, faults: &mut Vec<String>) {
        let numbers: Vec<u64> = self.events.iter().filter_map(|event| event["seq"].as_u64()).collect();
        let whole: Vec<u64> = (1..=self.events.len() as u64).collect();
        if numbers != whole {
            faults.push(format!("the events are numbered {numbers:?}"));
        }
        let results: Vec<usize> = (0..self.events.len()).filter(|at| self.events[*at]["type"] == "result").collect();
        let expected = if self.is_terminal() { vec![self.events.len().saturating_sub(1)] } else { vec![] };
        if results != expected {
            faults.push(format!("`result` stands at {results:?} of {} events", self.events.len()));
        }
    }

    /// Attempts rise by one, each ends once, and none of a call that may not be repeated begins without a word.
    fn judge_calls(&self, repeats: &impl Fn(&str) -> bool, faults: &mut Vec<String>) {
        let mut calls: HashMap<(u64, String), Told> = HashMap::new();
        for event in &self.events {
            if let Some((turn, id)) = allowed_by_people(event) {
                calls.entry((turn, id)).or_default().allowed += 1;
            }
            let Some(id) = event["call_id"].as_str() else { continue };
            let told = calls.entry((event["turn"].as_u64().unwrap_or(0), id.to_owned())).or_default();
            let (tool, attempt) = (event["tool"].as_str().unwrap_or_default(), event["attempt"].as_u64());
            match event["type"].as_str() {
                Some("tool-started") => {
                    told.started += 1;
                    if attempt != Some(told.started) {
                        faults.push(format!("attempt {} of {id} is told as {attempt:?}", told.started));
                    }
                    if !repeats(tool) && told.started > 1 + told.allowed {
                        faults.push(format!(
                            "{id} ({tool}) was begun {} times and allowed {}",
                            told.started, told.allowed
                        ));
                    }
                }
                // Nothing began of what was refused, or was withdrawn before it was sent.
                Some("tool-output") if attempt == Some(0) && told.started == 0 && told.stage.is_empty() => {
                    event["stage"].as_str().unwrap_or_default().clone_into(&mut told.stage);
                }
                Some("tool-output") => {
                    let in_turn =
                        if repeats(tool) { told.ended < told.started } else { told.ended + 1 == told.started };
                    if attempt != Some(told.started) || !in_turn {
                        faults.push(format!(
                            "the end of attempt {attempt:?} of {id} is told after {} begun",
                            told.started
                        ));
                    }
                    told.ended = told.started;
                    event["stage"].as_str().unwrap_or_default().clone_into(&mut told.stage);
                }
                Some("reconciliation-decided") => told.allowed += 1,
                _ => {}
            }
        }
        for ((turn, id), told) in calls {
            if self.is_terminal() && told.ended != told.started {
                faults.push(format!("the end of {id} of turn {turn} is not told"));
            }
            if self.run["status"] == "completed" && told.stage == "indeterminate" {
                faults.push(format!("{id} of turn {turn} is undecided in a run that is completed"));
            }
        }
    }

    fn judge_receipts(&self, seen: &SeenKeys, repeats: &impl Fn(&str) -> bool, faults: &mut Vec<String>) {
        for receipt in &self.receipts {
            let key = receipt["idempotency_key"].as_str().unwrap_or_default();
            let (tool, stage) = (receipt["tool"].as_str().unwrap_or_default(), receipt["stage"].as_str());
            let (attempt, seen) = (receipt["attempt"].as_u64().unwrap_or(0), seen.get(key).copied().unwrap_or(0));
            let allowed = 1 + self.allowed(receipt);
            if seen > attempt {
                faults.push(format!("{tool} was sent {seen} times, its receipt says {attempt}"));
            }
            if !repeats(tool) && seen > allowed {
                faults.push(format!("{tool} was repeated in silence: sent {seen} times, allowed {allowed}"));
            }
            if stage == Some("completed") && seen == 0 {
                faults.push(format!("{tool} is completed and the server never saw it"));
            }
            if self.is_terminal() && !matches!(stage, Some("completed" | "failed" | "indeterminate")) {
                faults.push(format!("{tool} is {stage:?} in a run that has ended"));
            }
        }
    }

    /// How often a person allowed the call of that receipt to be sent once more.
    fn allowed(&self, receipt: &Value) -> u64 {
        let names = |event: &&Value| {
            event["type"] == "reconciliation-decided"
                && event["resolution"] == "retry"
                && (&event["turn"], &event["call_id"]) == (&receipt["turn"], &receipt["call_id"])
        };
        let by_people = |event: &&Value| {
            let call = allowed_by_people(event);
            call.is_some_and(|(turn, id)| {
                (receipt["turn"].as_u64(), receipt["call_id"].as_str()) == (Some(turn), Some(&id))
            })
        };
        let (one, others) = (self.events.iter().filter(names), self.events.iter().filter(by_people));
        (one.count() + others.count()) as u64
    }
}

/// The call of which people approved one more attempt by this event.
fn allowed_by_people(event: &Value) -> Option<(u64, String)> {
    let approval = &event["approval"];
    let approved = event["type"] == "approval-decided" && approval["status"] == "approved";
    let call = || Some((approval["turn"].as_u64()?, approval["call_id"].as_str()?.to_owned()));
    if approved && approval["kind"] == "repeat" { call() } else { None }
}

/// Tests of the judge itself: a check that cannot fail proves nothing.
mod tests {
    use serde_json::json;

    use super::*;

    fn good() -> Evidence {
        let call = |kind: &str, attempt: u64, stage: &str| json!({"type": kind, "turn": 1, "call_id": "c", "tool": "charge", "attempt": attempt, "stage": stage});
        let mut events = vec![
            call("tool-started", 1, ""),
            call("tool-output", 1, "indeterminate"),
            json!({"type": "reconciliation-decided", "turn": 1, "call_id": "c", "resolution": "retry"}),
            call("tool-started", 2, ""),
            call("tool-output", 2, "completed"),
            json!({"type": "result"}),
        ];
        for (at, event) in events.iter_mut().enumerate() {
            event["seq"] = json!(at + 1);
        }
        let receipt = json!({"idempotency_key": "k", "tool": "charge", "turn": 1, "call_id": "c", "attempt": 2,
            "stage": "completed"});
        let run = json!({"status": "completed", "turns": 2, "usage": {"model_requests": 2}});
        Evidence { run, events, receipts: vec![receipt] }
    }

    #[test]
    fn three_errors_of_one_tool_in_a_row_are_seen() {
        let runs_away = |ends: &[(&str, &str)]| {
            let told = |(tool, stage): &(&str, &str)| json!({"type": "tool-output", "tool": tool, "stage": stage});
            Evidence { events: ends.iter().map(told).collect(), ..good() }.runs_away()
        };
        let (no, yes) = (("charge", "failed"), ("charge", "completed"));
        assert!(runs_away(&[no, no, ("look", "completed"), ("charge", "indeterminate"), no]));
        assert!(!runs_away(&[no, no, yes, no, no]));
        assert!(!runs_away(&[no, no, ("look", "failed")]));
    }

    #[test]
    fn every_broken_promise_is_found() {
        let judged = |bend: fn(&mut Evidence), seen: u64| {
            let mut evidence = good();
            bend(&mut evidence);
            evidence.faults(&SeenKeys::from([("k".to_owned(), seen)]), |tool| tool == "look")
        };
        assert_eq!(judged(|_| {}, 2), Vec::<String>::new());
        assert_eq!(judged(|_| {}, 1), Vec::<String>::new());
        type Bend = fn(&mut Evidence);
        let bends: [(&str, Bend, u64); 9] = [
            ("a silent repeat", |_| {}, 3),
            ("an effect that was never sent", |_| {}, 0),
            ("a gap", |evidence| drop(evidence.events.remove(1)), 2),
            ("an attempt that nobody allowed", |evidence| evidence.events[2]["type"] = json!("part"), 1),
            ("an end told twice", |evidence| evidence.events[3] = evidence.events[1].clone(), 2),
            ("no result", |evidence| drop(evidence.events.pop()), 2),
            ("an end that is not told", |evidence| evidence.events[4]["type"] = json!("part"), 2),
            ("a turn paid twice", |evidence| evidence.run["usage"]["model_requests"] = json!(3), 2),
            ("a receipt left open", |evidence| evidence.receipts[0]["stage"] = json!("executing"), 2),
        ];
        for (what, bend, seen) in bends {
            assert!(!judged(bend, seen).is_empty(), "{what} is not found");
        }
    }
}
