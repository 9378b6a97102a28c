//! The lease and receipt protocol under every order of events, and protocols broken on purpose that must be caught.

mod model;
mod node;
mod run;
mod store;
mod world;

use std::collections::{BTreeSet, HashSet};

use parking_lot::Mutex;
use stateright::{Checker as _, HasDiscoveries, Model as _, Path};

use model::{AS_SEEN, NO_REPEAT, NOTHING_LOST, ONLY_THE_OWNER, Protocol, Variant};
use run::{CHARGE, PUT};
use world::Budget;

/// One trouble of each kind, and time that plays fair.
const FAIR: Budget = Budget { crashes: 1, pauses: 1, losses: 1, decisions: 1, late: 0 };

fn protocol(variant: Variant, tools: [&'static str; 2], parallel: usize, budget: Budget) -> Protocol {
    Protocol { variant, tools, parallel, budget, ends: Mutex::new(HashSet::new()) }
}

/// Visits every state and asserts every property.
#[track_caller]
fn check(tools: [&'static str; 2], parallel: usize, budget: Budget) {
    let checker = protocol(Variant::Faithful, tools, parallel, budget).checker().threads(2).spawn_bfs().join();
    let (states, steps, depth) = (checker.unique_state_count(), checker.state_count(), checker.max_depth());
    eprintln!("{states} states, {steps} steps, depth {depth}: {tools:?}, {parallel} at once, {budget:?}");
    assert!(checker.is_done(), "every state was visited");
    let properties = checker.model().properties();
    for broken in properties.iter().filter(|property| property.expectation.discovery_is_failure()) {
        let path = checker.discovery(broken.name).map(Path::into_actions);
        assert!(path.is_none(), "{tools:?} {budget:?}: {}: {path:?}", broken.name);
    }
    checker.assert_properties();
}

/// The checker must find a way to break this promise.
#[track_caller]
fn check_caught(variant: Variant, budget: Budget, promise: &'static str) {
    let enough = HasDiscoveries::AnyOf(BTreeSet::from([promise]));
    let model = protocol(variant, [CHARGE, CHARGE], 1, budget);
    let checker = model.checker().threads(2).finish_when(enough).spawn_bfs().join();
    let Some(path) = checker.discovery(promise) else { panic!("{variant:?} keeps the promise: {promise}") };
    let (states, actions) = (checker.unique_state_count(), path.into_actions());
    eprintln!("{variant:?} is caught after {states} states: {promise}: {actions:?}");
}

#[test]
fn b020_b218_b221_two_calls_one_after_the_other_under_every_trouble_once() {
    check([CHARGE, CHARGE], 1, FAIR);
}

#[test]
fn b020_b218_b221_two_calls_at_once_under_every_two_troubles() {
    for budget in budgets() {
        check([CHARGE, CHARGE], 2, budget);
    }
}

#[test]
fn b021_b218_b221_a_charge_beside_a_call_that_was_declared_repeatable() {
    for budget in budgets() {
        check([CHARGE, PUT], 2, budget);
    }
}

fn budgets() -> [Budget; 5] {
    let none = Budget { crashes: 0, pauses: 0, losses: 0, ..FAIR };
    [
        Budget { crashes: 1, pauses: 1, ..none },
        Budget { crashes: 1, losses: 1, ..none },
        Budget { crashes: 2, decisions: 2, ..none },
        Budget { pauses: 2, ..none },
        Budget { losses: 2, decisions: 2, ..none },
    ]
}

#[test]
fn b213_b221_through_the_window_that_the_design_admits_all_requests_carry_one_key() {
    check([CHARGE, CHARGE], 1, Budget { crashes: 0, losses: 0, late: 1, ..FAIR });
    check([CHARGE, PUT], 1, Budget { crashes: 1, pauses: 0, losses: 0, late: 1, ..FAIR });
}

#[test]
fn protocols_that_are_broken_on_purpose_are_caught() {
    let paused = Budget { crashes: 0, losses: 0, ..FAIR };
    let crashed = Budget { pauses: 0, losses: 0, ..FAIR };
    // Where time plays fair and no answer is lost, the lease alone keeps a stale owner from sending, not from writing.
    check_caught(Variant::NoFence, paused, NOTHING_LOST);
    check_caught(Variant::NoFence, Budget { losses: 1, ..paused }, NO_REPEAT);
    check_caught(Variant::ReceiptAfterSend, crashed, NO_REPEAT);
    check_caught(Variant::RecoveryResends, crashed, NO_REPEAT);
    check_caught(Variant::OldNameDrives, paused, ONLY_THE_OWNER);
    check_caught(Variant::OldNameDrives, paused, AS_SEEN);
}
