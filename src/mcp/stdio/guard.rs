//! Ends the processes of servers when this process is killed and can end nothing any more: a process beside it that
//! holds the other end of a pipe, and knows the groups to end when that pipe breaks.
//!
//! Started with the first server. Most servers end by themselves when their input closes; this is for those that do
//! not, and for their children.

use std::collections::HashSet;
use std::io::{self, BufRead};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use tokio::io::AsyncWriteExt as _;
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::Mutex;

/// How long groups may take to end after SIGTERM: so many looks of so long each.
const LOOKS: u32 = 40;
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// A guard that takes no word for so long is given up.
const PATIENCE: Duration = Duration::from_secs(1);

/// The sub-command of the program that stands guard.
pub(super) const SUBCOMMAND: &str = "stdio-guard";

/// The guard of one pool; the default one guards nothing.
#[derive(Clone, Default)]
pub(super) struct Guard(Option<Arc<Post>>);

struct Post {
    program: PathBuf,
    standing: Mutex<Standing>,
}

enum Standing {
    NotYet,
    Here(Box<Child>, ChildStdin),
    Gone,
}

impl Guard {
    /// A guard that is that program.
    pub(super) fn new(program: PathBuf) -> Self {
        Self(Some(Arc::new(Post { program, standing: Mutex::new(Standing::NotYet) })))
    }

    /// Ends that group when this process is gone.
    pub(super) async fn add(&self, group: Pid) {
        self.say(&format!("+{}\n", group.as_raw_nonzero())).await;
    }

    /// That group has ended.
    pub(super) async fn remove(&self, group: Pid) {
        self.say(&format!("-{}\n", group.as_raw_nonzero())).await;
    }

    /// Lets the guard go.
    pub(super) async fn end(&self) {
        let Some(post) = &self.0 else { return };
        let standing = std::mem::replace(&mut *post.standing.lock().await, Standing::Gone);
        if let Standing::Here(mut child, input) = standing {
            drop(input);
            if tokio::time::timeout(PATIENCE, child.wait()).await.is_err() {
                tracing::debug!("the guard of MCP servers did not leave in time");
            }
        }
    }

    async fn say(&self, word: &str) {
        let Some(post) = &self.0 else { return };
        let mut standing = post.standing.lock().await;
        if matches!(*standing, Standing::NotYet) {
            *standing = post.start();
        }
        let Standing::Here(_, input) = &mut *standing else { return };
        let said = tokio::time::timeout(PATIENCE, input.write_all(word.as_bytes())).await;
        if !matches!(said, Ok(Ok(()))) {
            tracing::warn!("the guard of MCP servers is gone: their processes may outlive a killed server");
            *standing = Standing::Gone;
        }
    }
}

impl Post {
    fn start(&self) -> Standing {
        let mut command = Command::new(&self.program);
        // A group of its own: Ctrl-C is not meant for it.
        command.arg(SUBCOMMAND).env_clear().process_group(0).kill_on_drop(false);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        match command.spawn().map(|mut child| (child.stdin.take(), child)) {
            Ok((Some(input), child)) => Standing::Here(Box::new(child), input),
            Ok((None, _)) => Standing::Gone,
            Err(error) => {
                tracing::warn!(%error, "no guard for MCP servers: their processes may outlive a killed server");
                Standing::Gone
            }
        }
    }
}

/// Stands guard: reads groups from the input, and ends those that are left when it closes.
///
/// # Errors
/// When the input does not read.
pub fn stand_guard(input: impl BufRead) -> io::Result<()> {
    let mut groups = HashSet::new();
    for line in input.lines() {
        let line = line?;
        let number = |text: &str| text.parse().ok().and_then(Pid::from_raw).filter(|group| !group.is_init());
        if let Some(group) = line.strip_prefix('+').and_then(number) {
            groups.insert(group);
        } else if let Some(group) = line.strip_prefix('-').and_then(number) {
            groups.remove(&group);
        }
    }
    signal_all(&groups, Signal::TERM);
    for _ in 0..LOOKS {
        if !groups.iter().any(|group| test_kill_process_group(*group).is_ok()) {
            return Ok(());
        }
        thread::sleep(LOOK_EVERY);
    }
    signal_all(&groups, Signal::KILL);
    Ok(())
}

fn signal_all(groups: &HashSet<Pid>, signal: Signal) {
    for group in groups {
        if let Err(error) = kill_process_group(*group, signal) {
            tracing::trace!(%error, "a group took no signal: it is gone");
        }
    }
}
