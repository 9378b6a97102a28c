//! Patterns of `matches`: compiled once, with their expression, and counted when they are used. What a match costs is
//! linear in the length of its text and in the size of the pattern, and the length is known when it is called only.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use regex::{Regex, RegexBuilder};

/// Largest size of the compiled patterns of one expression together, in bytes.
pub(super) const PATTERN_BYTES: usize = 256 * 1024;

/// The powers of two between which the size of a pattern is looked for.
const SMALLEST: u32 = 9;
const LARGEST: u32 = PATTERN_BYTES.ilog2();

/// What a state of a compiled pattern takes at least, in bytes.
const STATE_BYTES: usize = 32;

/// Most bytes of text, each times the states of its pattern, that one expression compares on one input.
pub(super) const COMPARED_MAX: u64 = 100_000_000;

struct Pattern {
    regex: Regex,
    states: u64,
}

/// The patterns of one expression.
#[derive(Default)]
pub(super) struct Patterns {
    compiled: BTreeMap<String, Pattern>,
    /// What they take, rounded up.
    bytes: usize,
}

impl Patterns {
    /// Compiles one, or says what is wrong with it.
    pub(super) fn add(&mut self, text: &str) -> Result<(), String> {
        if self.compiled.contains_key(text) {
            return Ok(());
        }
        let regex = build(text, LARGEST).map_err(|fault| {
            let words = fault.to_string();
            let last = words.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
            format!("the pattern cannot be used: {last}")
        })?;
        let limit = 1_usize << size(text);
        self.bytes = self.bytes.saturating_add(limit);
        if self.bytes > PATTERN_BYTES {
            return Err(format!(
                "the pattern cannot be used: all of an expression take {} KiB at most",
                PATTERN_BYTES / 1024
            ));
        }
        let states = u64::try_from(limit / STATE_BYTES).unwrap_or(u64::MAX);
        self.compiled.insert(text.to_owned(), Pattern { regex, states });
        Ok(())
    }

    /// What they take, in bytes.
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }
}

/// What the matches of one evaluation may still cost.
pub(super) struct Matches {
    left: AtomicU64,
    until: Instant,
}

impl Matches {
    pub(super) const fn until(until: Instant) -> Self {
        Self { left: AtomicU64::new(COMPARED_MAX), until }
    }

    /// Whether the text fits; `None`: it is not compared, because there is no such pattern or it costs too much. Then
    /// nothing is compared any more.
    pub(super) fn is_match(&self, patterns: &Patterns, pattern: &str, text: &str) -> Option<bool> {
        let pattern = patterns.compiled.get(pattern)?;
        let bytes = u64::try_from(text.len()).unwrap_or(u64::MAX).saturating_add(STATE_BYTES as u64);
        let cost = bytes.saturating_mul(pattern.states);
        let left = self.left.load(Ordering::Relaxed).checked_sub(cost).filter(|_| Instant::now() <= self.until);
        self.left.store(left.unwrap_or(0), Ordering::Relaxed);
        left.map(|_| pattern.regex.is_match(text))
    }

    /// Whether something was not compared.
    pub(super) fn are_too_dear(&self) -> bool {
        self.left.load(Ordering::Relaxed) == 0
    }
}

fn build(text: &str, power: u32) -> Result<Regex, regex::Error> {
    RegexBuilder::new(text).size_limit(1 << power).dfa_size_limit(PATTERN_BYTES).build()
}

/// The size of a pattern that can be built, as a power of two. The library does not tell it, so it is looked for with
/// smaller limits: in four attempts, as each may take as long as the first.
fn size(text: &str) -> u32 {
    let (mut least, mut most) = (SMALLEST, LARGEST);
    while least < most {
        let middle = u32::midpoint(least, most);
        match build(text, middle) {
            Ok(_) => most = middle,
            Err(_) => least = middle + 1,
        }
    }
    most
}
