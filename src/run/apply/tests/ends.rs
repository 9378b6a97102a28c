//! How a run ends: nothing that was started is left without its end.

use super::world::*;
use crate::run::apply;
use crate::run::commit::Commit;
use crate::run::envelope::Leg;
use crate::run::fact::Fact;
use crate::run::status::Status;

/// Every call that was started has told its end, once, when the run tells its own.
#[track_caller]
fn assert_each_start_has_its_end(told: &[&Commit], what: &str) {
    let (mut open, mut ended) = (std::collections::BTreeMap::new(), false);
    for event in told.iter().flat_map(|commit| &commit.events) {
        assert!(!ended, "{what}: nothing comes after the result");
        let told = serde_json::to_value(&event.body).unwrap();
        let call = || told["call_id"].as_str().unwrap().to_owned();
        match event.body.kind() {
            "tool-started" => *open.entry(call()).or_insert(0) = 1,
            "tool-output" => *open.entry(call()).or_insert(1) -= 1,
            "result" => ended = true,
            _ => {}
        }
    }
    assert!(ended && open.values().all(|left| *left == 0), "{what}: {open:?}");
}

#[test]
fn field_a080_each_started_call_has_its_end_before_the_run_ends_however_it_ends() {
    let start = |calls: &[(&str, &str)]| {
        let mut run = begun();
        let fact = ended(&run, turn("", calls));
        let started = apply(&mut run, fact, NOW).unwrap();
        (run, started)
    };
    // One of three has ended.
    let (mut run, started) = start(&[("a", "charge"), ("b", "look"), ("c", "charge")]);
    let one = apply(&mut run, done(key(1, 0)), NOW).unwrap();
    let cancelled = apply(&mut run, Fact::Cancelled, NOW).unwrap();
    assert_each_start_has_its_end(&[&started, &one, &cancelled], "cancelled while two are out");
    // One waits for a person, and so does one that would be sent again by itself.
    let (mut run, started) = start(&[("a", "charge"), ("b", "look"), ("c", "charge")]);
    let told = [
        apply(&mut run, unknown(key(1, 0)), NOW).unwrap(),
        apply(&mut run, unknown(key(1, 1)), NOW).unwrap(),
        apply(&mut run, done(key(1, 2)), NOW).unwrap(),
    ];
    assert!(matches!(run.head.status, Status::Suspended(_)));
    let mut run = reloaded(&run);
    let cancelled = apply(&mut run, Fact::Cancelled, NOW).unwrap();
    let all: Vec<&Commit> = std::iter::once(&started).chain(&told).chain([&cancelled]).collect();
    assert_each_start_has_its_end(&all, "cancelled while one waits to be sent again");
    // Lost while the run was being cancelled, the harmless one too.
    let (mut run, started) = start(&[("a", "charge"), ("b", "look")]);
    run.leg = Leg::Cancelling;
    let told = [
        apply(&mut run, unknown(key(1, 0)), NOW).unwrap(),
        apply(&mut run, unknown(key(1, 1)), NOW).unwrap(),
        apply(&mut run, Fact::Cancelled, NOW).unwrap(),
    ];
    let all: Vec<&Commit> = std::iter::once(&started).chain(&told).collect();
    assert_each_start_has_its_end(&all, "lost while it was cancelled");
    // The nodes died too often: harmless or not, nobody sends it again.
    let (run, started) = start(&[("a", "charge"), ("b", "look"), ("c", "put")]);
    let mut run = reloaded(&run);
    run.head.crashes = 5;
    let given_up = apply(&mut run, Fact::LegBegan, NOW).unwrap();
    assert_eq!(run.head.status, Status::Failed);
    assert_each_start_has_its_end(&[&started, &given_up], "given up");
    // What was never sent is not left as if it might be.
    let (mut run, _) = new_run(serde_json::json!({"max_parallel_tool_calls": 1}), true);
    let fact = ended(&run, turn("", &[("a", "charge"), ("b", "charge")]));
    apply(&mut run, fact, NOW).unwrap();
    let mut run = reloaded(&run);
    run.head.crashes = 5;
    apply(&mut run, Fact::LegBegan, NOW).unwrap();
    assert_eq!(stages(&run), ["indeterminate", "failed"]);
}

#[test]
fn b102_an_output_schema_is_kept_with_the_tool_and_the_run_does_not_check_the_result_again() {
    let mut run = begun();
    let schema = serde_json::json!({ "type": "object", "required": ["receipt"] });
    run.binding.tools[0].output_schema = Some(schema.clone());
    let fact = ended(&run, turn("", &[("a", "charge")]));
    apply(&mut run, fact, NOW).unwrap();
    // The connection took this for a result that fits. Nobody judges it twice.
    apply(&mut run, done(key(1, 0)), NOW).unwrap();
    assert_eq!((stages(&run), run.binding.tools[0].output_schema.as_ref()), (vec!["completed"], Some(&schema)));
}
