//! How long things are kept after their run has ended: three ages in days, each at least as long as the one before.

use super::reader::Reader;
use super::{Setting, plain};

pub(super) const KEEP_EVENTS_D: Setting =
    plain("COUNTERSIGN_KEEP_EVENTS_D", Some("30"), "days that events and messages are kept after the run has ended");
pub(super) const KEEP_RUNS_D: Setting =
    plain("COUNTERSIGN_KEEP_RUNS_D", Some("90"), "days that a run is kept after it has ended");
pub(super) const KEEP_RECEIPTS_D: Setting =
    plain("COUNTERSIGN_KEEP_RECEIPTS_D", Some("400"), "days that receipts are kept after their run has ended");

/// Longest age: a hundred years.
const DAYS_MAX: u32 = 36_500;

/// Days after the end of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepDays {
    /// Events and messages.
    pub events: u32,
    /// The run.
    pub runs: u32,
    /// Its receipts.
    pub receipts: u32,
}

/// Read together: what would let go of a run before its events makes no sense, and would keep neither.
pub(super) fn keep_days(reader: &mut Reader<'_>) -> Option<KeepDays> {
    let events = reader.number(&KEEP_EVENTS_D, 1, DAYS_MAX);
    let runs = reader.number(&KEEP_RUNS_D, 1, DAYS_MAX);
    let receipts = reader.number(&KEEP_RECEIPTS_D, 1, DAYS_MAX);
    let keep = KeepDays { events: events?, runs: runs?, receipts: receipts? };
    if keep.runs < keep.events {
        reader.fault(&KEEP_RUNS_D, format!("is shorter than {}", KEEP_EVENTS_D.name));
    }
    if keep.receipts < keep.runs {
        reader.fault(&KEEP_RECEIPTS_D, format!("is shorter than {}", KEEP_RUNS_D.name));
    }
    Some(keep)
}
