//! Calls as workers hear of them, and their names there.

use serde_json::Value;
use uuid::Uuid;

use crate::run::call::idempotency_key;
use crate::run::envelope::Envelope;
use crate::run::ids::{CallId, CallKey, RunId, RunUid};
use crate::run::time::Timestamp;

/// What a worker gets.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Claimed {
    /// The calls that it has from now on.
    pub calls: Vec<HandedCall>,
    /// Those of its calls that it should stop: their run is cancelled, or they are not its own any more.
    pub cancelled: Vec<String>,
}

/// A call that a worker has.
#[derive(Clone, Debug, PartialEq)]
pub struct HandedCall {
    /// Its name between server and worker.
    pub id: String,
    /// What the worker proves with that it has it.
    pub lease: String,
    /// The run.
    pub run_id: RunId,
    /// The turn and the call's label in it.
    pub turn: u32,
    /// The call's label.
    pub call_id: CallId,
    /// The tool, as workers call it.
    pub tool: String,
    /// Its version.
    pub version: String,
    /// The arguments.
    pub input: Value,
    /// How often the call was handed out, this time included.
    pub attempt: u32,
    /// The key that every attempt carries.
    pub idempotency_key: String,
    /// When it is lost without a sign of life.
    pub lease_expires_at: Timestamp,
    /// When its run has used up its time, where that is limited.
    pub deadline_at: Option<Timestamp>,
}

/// The name of a call between server and worker.
pub(super) fn id_of(uid: RunUid, key: CallKey) -> String {
    format!("{}-{}-{}", uid.0.simple(), key.turn, key.position)
}

/// The call of that name.
pub(super) fn parse_id(id: &str) -> Option<(RunUid, CallKey)> {
    let mut parts = id.splitn(3, '-');
    let uid = Uuid::try_parse(parts.next()?).ok()?;
    let (turn, position) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    let call = (RunUid(uid), CallKey { turn, position });
    (id_of(call.0, call.1) == id).then_some(call)
}

/// A call as its worker hears of it.
pub(super) fn handed_call(
    envelope: &Envelope,
    key: CallKey,
    lease: &str,
    lease_expires_at: Timestamp,
    now: Timestamp,
) -> Option<HandedCall> {
    let call = envelope.calls.iter().find(|call| call.key == key)?;
    let target = call.target.as_ref()?;
    let left_ms = envelope.limits().max_duration_s.map(|most| {
        i64::try_from(most.saturating_mul(1000)).unwrap_or(i64::MAX).saturating_sub(envelope.worked_ms(now))
    });
    Some(HandedCall {
        id: id_of(envelope.uid, key),
        lease: lease.to_owned(),
        run_id: envelope.id.clone(),
        turn: key.turn,
        call_id: call.call_id.clone(),
        tool: target.server_tool.clone(),
        version: target.version.clone().unwrap_or_default(),
        input: call.input.clone(),
        attempt: call.attempt,
        idempotency_key: idempotency_key(envelope.uid, key),
        lease_expires_at,
        deadline_at: left_ms.map(|left| now.plus_millis(left)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_call_reads_back_and_nothing_else_does() {
        let call = (RunUid(Uuid::from_u128(7)), CallKey { turn: 3, position: 14 });
        assert_eq!(parse_id(&id_of(call.0, call.1)), Some(call));
        for other in ["", "7", "00000000000000000000000000000007-3", "00000000000000000000000000000007-03-14", "x-3-14"]
        {
            assert_eq!(parse_id(other), None, "{other}");
        }
    }
}
