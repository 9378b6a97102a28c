//! How calls are handed to workers, and which workers may have which tools.

use std::collections::BTreeMap;

use toml::Value;

use super::reader::Reader;
use super::{Setting, plain};

pub(super) const WORKER_LEASE_S: Setting =
    plain("COUNTERSIGN_WORKER_LEASE_S", Some("30"), "seconds without a sign of life until a worker has lost a call");
pub(super) const WORKER_QUEUE_WAIT_S: Setting =
    plain("COUNTERSIGN_WORKER_QUEUE_WAIT_S", Some("60"), "seconds that a call waits for a worker");
pub(super) const WORKER_QUEUE_MAX: Setting =
    plain("COUNTERSIGN_WORKER_QUEUE_MAX", Some("10000"), "calls of one tool of a tenant that wait for workers");

/// How calls are handed to workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerLimits {
    /// Seconds without a sign of life until a call is lost.
    pub lease_s: u32,
    /// Seconds that a call waits for a worker.
    pub queue_wait_s: u32,
    /// Calls of one tool of a tenant that wait.
    pub queue_max: u32,
}

/// One `[worker_tools."NAME"]` of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolPermit {
    /// Workload identities that may have it; empty: any.
    pub workload_identities: Vec<String>,
    /// Image digests that may have it; empty: any.
    pub image_digests: Vec<String>,
}

pub(super) fn worker_limits(reader: &mut Reader<'_>) -> Option<WorkerLimits> {
    let lease_s = reader.number(&WORKER_LEASE_S, 1, 3600);
    let queue_wait_s = reader.number(&WORKER_QUEUE_WAIT_S, 1, 86_400);
    let queue_max = reader.number(&WORKER_QUEUE_MAX, 1, 10_000_000);
    Some(WorkerLimits { lease_s: lease_s?, queue_wait_s: queue_wait_s?, queue_max: queue_max? })
}

/// Reads who may have which tools. A tool without a list that means something would permit everybody by a typo.
pub(super) fn permits(value: Value, faults: &mut Vec<String>) -> BTreeMap<String, ToolPermit> {
    let Value::Table(tools) = value else {
        faults.push("worker_tools is no table".to_owned());
        return BTreeMap::new();
    };
    let mut permits = BTreeMap::new();
    for (tool, value) in tools {
        let Value::Table(lists) = value else {
            faults.push(format!("worker_tools.{tool} is no table"));
            continue;
        };
        let mut permit = ToolPermit::default();
        for (key, list) in lists {
            let place = format!("worker_tools.{tool}.{key}");
            let into = match key.as_str() {
                "workload_identities" => &mut permit.workload_identities,
                "image_digests" => &mut permit.image_digests,
                _ => {
                    faults.push(format!("{place} is not a setting of this version"));
                    continue;
                }
            };
            match texts(list) {
                Some(texts) => *into = texts,
                None => faults.push(format!("{place} is no list of texts that are not empty")),
            }
        }
        if permit == ToolPermit::default() {
            faults.push(format!("worker_tools.{tool} names nobody"));
        }
        permits.insert(tool, permit);
    }
    permits
}

fn texts(value: Value) -> Option<Vec<String>> {
    let Value::Array(list) = value else { return None };
    let text = |value: Value| match value {
        Value::String(text) if !text.is_empty() => Some(text),
        _ => None,
    };
    let texts: Vec<String> = list.into_iter().map(text).collect::<Option<_>>()?;
    (!texts.is_empty()).then_some(texts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (BTreeMap<String, ToolPermit>, Vec<String>) {
        let mut faults = Vec::new();
        let table: toml::Table = text.parse().unwrap();
        let permits = permits(Value::Table(table), &mut faults);
        (permits, faults)
    }

    #[test]
    fn who_may_have_a_tool_is_read_and_every_fault_is_named() {
        let (permits, faults) =
            read("[\"payments.process\"]\nworkload_identities = [\"pay\"]\nimage_digests = [\"sha256:a\"]");
        assert_eq!(faults, Vec::<String>::new());
        let want = ToolPermit { workload_identities: vec!["pay".into()], image_digests: vec!["sha256:a".into()] };
        assert_eq!(permits.get("payments.process"), Some(&want));
        let (_, faults) = read("[a]\nidentities = [\"pay\"]\n[b]\nimage_digests = []");
        assert_eq!(
            faults,
            [
                "worker_tools.a.identities is not a setting of this version",
                "worker_tools.a names nobody",
                "worker_tools.b.image_digests is no list of texts that are not empty",
                "worker_tools.b names nobody",
            ]
        );
    }
}
