//! What a server's process started and that left its group (`setsid`): the group's signal does not reach it. It is found
//! while its parents are still there, and held by a handle that never means another process. What was orphaned before
//! is nobody's child any more and is not found; nor is anything where there is no `/proc`.

use std::fs;
use std::os::fd::OwnedFd;

use rustix::process::{Pid, PidfdFlags, Signal, getpgid, pidfd_open, pidfd_send_signal, test_kill_process};

/// Processes that are looked at, at most: a server may start as many as it likes.
const LOOKS_MAX: usize = 1_000;

/// Those that left a group.
#[derive(Debug, Default)]
pub(super) struct Strays(Vec<(Pid, OwnedFd)>);

impl Strays {
    /// Descendants of the leader of a group that are in another.
    pub(super) fn of(leader: Pid) -> Self {
        let (mut found, mut parents, mut looks) = (Vec::new(), vec![leader], 0_usize);
        while let Some(parent) = parents.pop() {
            for child in children_of(parent) {
                looks += 1;
                if looks > LOOKS_MAX {
                    tracing::warn!("a process of an MCP server has more children than are looked at");
                    return Self(found);
                }
                let Ok(handle) = pidfd_open(child, PidfdFlags::empty()) else { continue };
                // Asked once it is held: until then its number might have become another's.
                if parent_of(child) != Some(parent) {
                    continue;
                }
                if getpgid(Some(child)).is_ok_and(|group| group != leader) {
                    found.push((child, handle));
                }
                parents.push(child);
            }
        }
        Self(found)
    }

    /// Sends a signal to those that are left.
    pub(super) fn signal(&self, signal: Signal) {
        for (_, handle) in &self.0 {
            if let Err(error) = pidfd_send_signal(handle, signal)
                && error != rustix::io::Errno::SRCH
            {
                tracing::debug!(%error, "a process of an MCP server took no signal");
            }
        }
    }

    /// Whether some seem to be left. A number that became another's only makes the wait longer.
    pub(super) fn are_left(&self) -> bool {
        self.0.iter().any(|(pid, _)| test_kill_process(*pid).is_ok())
    }
}

fn children_of(parent: Pid) -> Vec<Pid> {
    let Ok(threads) = fs::read_dir(format!("/proc/{}/task", parent.as_raw_nonzero())) else { return Vec::new() };
    let lists = threads.flatten().filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    lists.flat_map(|list| list.split_whitespace().filter_map(pid).collect::<Vec<_>>()).collect()
}

fn parent_of(child: Pid) -> Option<Pid> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", child.as_raw_nonzero())).ok()?;
    // The name stands in parentheses and may hold some; state and parent follow.
    stat.rsplit_once(')')?.1.split_whitespace().nth(1).and_then(pid)
}

fn pid(text: &str) -> Option<Pid> {
    text.parse().ok().and_then(Pid::from_raw)
}
