//! What the soak decides at random: each decision depends on the seed and on its own place alone, never on time.

use std::time::Duration;

use countersign::clock::{Clock as _, SystemClock};
use serde_json::{Value, json};

use crate::support::fake_mcp::{Reply, Seen, Step};

/// A source of numbers (`SplitMix64`).
#[derive(Clone, Debug)]
pub(super) struct Dice(u64);

impl Dice {
    /// Dice for one purpose, with a number of its own.
    pub(super) fn new(seed: u64, purpose: &str, nth: u64) -> Self {
        // FNV-1a: the same everywhere and for ever, unlike a map's own hasher.
        let mut hash = 0xcbf2_9ce4_8422_2325_u64 ^ seed;
        for byte in purpose.bytes().chain(nth.to_le_bytes()) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        Self(hash)
    }

    /// Dice that nobody can foretell, for choosing a seed.
    pub(super) fn of_now() -> Self {
        Self(SystemClock.now().as_millis().unsigned_abs())
    }

    /// A number below `sides`.
    pub(super) fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % sides
    }

    fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from + self.roll(to - from))
    }
}

/// One thing that goes wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// A node is killed, and started again after a while.
    Kill { node: usize, down: Duration },
    /// Both are.
    KillBoth { down: Duration },
    /// A node stands still longer than its lease.
    Pause { node: usize, past_lease: Duration },
    /// The database crashes and starts again.
    RestartDatabase,
    /// Every connection to the database ends.
    CutConnections,
}

/// What goes wrong, one after the other, each after a wait.
pub(super) fn plan(seed: u64) -> impl Iterator<Item = (Duration, Fault)> {
    let mut dice = Dice::new(seed, "plan", 0);
    // One of each kind comes first, so that a short soak has them all.
    const FIRST: [u64; 4] = [0, 7, 5, 9];
    (0..).map(move |nth: usize| {
        let wait = dice.millis(300, 1_800);
        let node = usize::from(dice.roll(2) == 1);
        let side = dice.roll(10);
        let fault = match FIRST.get(nth).copied().unwrap_or(side) {
            0..=3 => Fault::Kill { node, down: dice.millis(0, 1_500) },
            4 => Fault::KillBoth { down: dice.millis(0, 1_000) },
            5..=6 => Fault::Pause { node, past_lease: dice.millis(500, 2_500) },
            7 => Fault::RestartDatabase,
            _ => Fault::CutConnections,
        };
        (wait, fault)
    })
}

/// The pause of a client before its run of that number.
pub(super) fn pause_before(seed: u64, nth: u64) -> Duration {
    Dice::new(seed, "pause", nth).millis(50, 400)
}

/// Whether somebody cancels the run of that number.
pub(super) fn is_cancelled(seed: u64, nth: u64) -> bool {
    Dice::new(seed, "cancel", nth).roll(12) == 0
}

/// The run of that number: some turns of some calls, then text.
pub(super) fn body_of(seed: u64, nth: u64, server: &str) -> Value {
    let mut dice = Dice::new(seed, "run", nth);
    let mut script = Vec::new();
    for _ in 0..=dice.roll(4) {
        let calls: Vec<Value> = (0..=dice.roll(3))
            .map(|_| {
                let name = if dice.roll(3) == 0 { "look" } else { "charge" };
                json!({"name": name, "arguments": {"amount": dice.roll(1000)}})
            })
            .collect();
        script.push(json!({"tool_calls": calls, "delay_ms": dice.roll(200)}));
    }
    script.push(json!({"text": "Done, and well."}));
    json!({
        "model": {"provider": "scripted", "name": "demo", "script": script},
        "input": "Go.",
        "limits": {"max_parallel_tool_calls": 1 + dice.roll(3)},
        "mcp": [{
            "url": server,
            "side_effect_class": {"look": "read_only"},
            "timeouts": {"call_ms": 2_000, "connect_ms": 5_000},
        }],
    })
}

/// How a server answers a call when it sees its key for the n-th time.
pub(super) fn reply_of(seed: u64, seen: &Seen, nth: u64) -> Reply {
    let mut dice = Dice::new(seed, &seen.body["params"]["arguments"].to_string(), nth);
    let done = || json!({ "content": [{ "type": "text", "text": "done" }] });
    match dice.roll(100) {
        0..=69 => Reply::text("done"),
        70..=84 => Reply::Sse(vec![Step::Pause(dice.millis(10, 1_500)), Step::Result(done())]),
        85..=88 => Reply::Reset,
        89..=90 => Reply::HalfBody,
        91..=92 => Reply::Silence,
        93..=94 => Reply::Sse(vec![Step::Pause(dice.millis(10, 500)), Step::Cut]),
        95..=96 => Reply::status(503, json!({})),
        _ => Reply::Result(json!({ "isError": true, "content": [{ "type": "text", "text": "declined" }] })),
    }
}

/// Tests of the dice.
mod tests {
    use super::*;

    #[test]
    fn a_seed_decides_everything_and_another_seed_decides_otherwise() {
        let decided = |seed| {
            let plan: Vec<_> = plan(seed).take(50).collect();
            let runs: Vec<_> = (0..50).map(|nth| (body_of(seed, nth, "s"), pause_before(seed, nth))).collect();
            format!("{plan:?} {runs:?}")
        };
        assert_eq!(decided(7), decided(7));
        assert_ne!(decided(7), decided(8));
    }
}
