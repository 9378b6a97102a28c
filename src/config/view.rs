//! How much of the results of a run's calls its model is told.

use super::reader::Reader;
use super::{Setting, plain};

pub(super) const RESULT_VIEW_BYTES: Setting =
    plain("COUNTERSIGN_RESULT_VIEW_BYTES", Some("50000"), "bytes of one tool result that the model is told");
pub(super) const TURN_VIEW_BYTES: Setting = plain(
    "COUNTERSIGN_TURN_VIEW_BYTES",
    Some("200000"),
    "bytes of all tool results of one turn that the model is told",
);

/// Fewer would say little more than that something is left out.
const LEAST: u32 = 1_000;
/// Most bytes that can be told.
const MOST: u32 = 16 * 1024 * 1024;

/// Bytes of tool results that the model is told; receipts keep everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ViewBytes {
    /// Of one result.
    pub result: u32,
    /// Of all results of one turn.
    pub turn: u32,
}

pub(super) fn view_bytes(reader: &mut Reader<'_>) -> Option<ViewBytes> {
    let result = reader.number(&RESULT_VIEW_BYTES, LEAST, MOST);
    let turn = reader.number(&TURN_VIEW_BYTES, LEAST, MOST);
    Some(ViewBytes { result: result?, turn: turn? })
}
