//! Starts the process of a server in a group of its own, and ends the whole group: politely, then not. Knows nothing
//! of the protocol.
//!
//! A process gets nothing of our environment. The group is ended with its leader, since launchers leave the real server
//! behind as their child, and with it whatever it started that left the group. All endings run on one tracker, so that a closing pool can wait for them.

use std::io;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use secrecy::ExposeSecret as _;
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::StdioServer;
use super::guard::Guard;
use super::strays::Strays;

/// Where programs are looked for unless the server declares a `PATH`.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Where a server runs, and what it takes for its home, unless it declares another place.
pub(super) const HOME: &str = "/";
/// How long a process may take to end by itself once its input is closed.
const INPUT_GRACE: Duration = Duration::from_millis(500);
/// How long its group may take to end after SIGTERM.
const TERM_GRACE: Duration = Duration::from_secs(2);
/// How often it is looked whether a group is gone.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How long a closing pool waits for the last process: longer than both graces.
const CLOSE_PATIENCE: Duration = Duration::from_secs(5);

/// All processes of one pool.
#[derive(Clone, Default)]
pub(in crate::mcp) struct Children {
    endings: TaskTracker,
    count: Arc<AtomicUsize>,
    guard: Guard,
}

impl Children {
    /// Processes that a guard ends when this process is killed.
    pub(in crate::mcp) fn guarded(program: PathBuf) -> Self {
        Self { guard: Guard::new(program), ..Self::default() }
    }

    /// How many there are, those among them that are about to end.
    pub(in crate::mcp) fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// Waits until those that were told to end have ended.
    pub(in crate::mcp) async fn ended(&self) {
        self.endings.close();
        if tokio::time::timeout(CLOSE_PATIENCE, self.endings.wait()).await.is_err() {
            tracing::warn!("some processes of MCP servers did not end in time");
        }
        self.guard.end().await;
    }
}

/// The pipes of a process.
pub(super) struct Pipes {
    pub(super) input: ChildStdin,
    pub(super) output: ChildStdout,
    pub(super) errors: ChildStderr,
}

/// A process of a server. Dropping it ends it in the background.
pub(super) struct Process {
    leader: Option<Leader>,
    children: Children,
}

/// The leader of a group that has not ended yet.
struct Leader {
    child: Child,
    group: Option<Pid>,
    /// What left the group, as it was before the end began.
    strays: Strays,
    count: Arc<AtomicUsize>,
}

impl Process {
    /// Starts a server.
    pub(super) async fn start(server: &StdioServer, children: &Children) -> io::Result<(Self, Pipes)> {
        let home = server.cwd.as_deref().unwrap_or(HOME.as_ref());
        let mut command = Command::new(&server.command);
        command
            .args(&server.args)
            .env_clear()
            .env("PATH", PATH)
            .env("HOME", home)
            .envs(server.env.iter().map(|(name, value)| (name, value.expose_secret())))
            .current_dir(home)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true);
        let mut child = command.spawn()?;
        children.count.fetch_add(1, Ordering::AcqRel);
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let group = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        let leader = Leader { child, group, strays: Strays::default(), count: Arc::clone(&children.count) };
        let process = Self { leader: Some(leader), children: children.clone() };
        if let Some(group) = group {
            children.guard.add(group).await;
        }
        let (Some(input), Some(output), Some(errors)) = pipes else {
            return Err(io::Error::other("it has no pipes"));
        };
        Ok((process, Pipes { input, output, errors }))
    }

    /// Waits until the leader has ended by itself.
    pub(super) async fn exited(&mut self) -> io::Result<ExitStatus> {
        match &mut self.leader {
            Some(leader) => leader.child.wait().await,
            None => Err(io::Error::other("it has ended")),
        }
    }

    /// Looks for what left its group. The last moment is before its input is closed: who is orphaned is not found.
    pub(super) fn look_for_strays(&mut self) {
        if let Some(leader) = &mut self.leader
            && let Some(group) = leader.group
        {
            leader.strays = Strays::of(group);
        }
    }

    /// Ends it and waits for its end. The caller has closed its input.
    pub(super) async fn end(mut self) {
        if let Some(leader) = self.leader.take() {
            let ending = self.children.endings.spawn(end(leader, self.children.guard.clone()));
            if let Err(error) = ending.await {
                tracing::debug!(%error, "the end of a process was not waited for");
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.look_for_strays();
        // Outside of a runtime nobody could wait: the leader's own drop kills the group at once.
        if let Some(leader) = self.leader.take()
            && tokio::runtime::Handle::try_current().is_ok()
        {
            self.children.endings.spawn(end(leader, self.children.guard.clone()));
        }
    }
}

impl Leader {
    /// Sends a signal to the whole group and to what left it. Its number is not given to anybody else while a member is left, and we ask
    /// right after the leader was waited for.
    fn signal(&self, signal: Signal) {
        self.strays.signal(signal);
        if let Some(group) = self.group
            && let Err(error) = kill_process_group(group, signal)
            && error != rustix::io::Errno::SRCH
        {
            tracing::debug!(%error, "a group of processes took no signal");
        }
    }

    fn is_any_left(&self) -> bool {
        self.strays.are_left() || self.group.is_some_and(|group| test_kill_process_group(group).is_ok())
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        if self.group.is_some() {
            self.signal(Signal::KILL);
        }
        self.count.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Ends a group: its input is closed, so it may end by itself; then SIGTERM; then SIGKILL. Leaves no zombie.
async fn end(mut leader: Leader, guard: Guard) {
    let waited = tokio::time::timeout(INPUT_GRACE, leader.child.wait()).await;
    let mut has_exited = waited.is_ok();
    if leader.is_any_left() {
        leader.signal(Signal::TERM);
        let until = Instant::now() + TERM_GRACE;
        while Instant::now() < until && leader.is_any_left() {
            // A leader that was not waited for would count as left for ever.
            has_exited = has_exited || tokio::time::timeout(LOOK_EVERY, leader.child.wait()).await.is_ok();
            if has_exited {
                tokio::time::sleep(LOOK_EVERY).await;
            }
        }
        leader.signal(Signal::KILL);
    }
    if let Err(error) = leader.child.wait().await {
        tracing::debug!(%error, "a process could not be waited for");
    }
    if let Some(group) = leader.group.take() {
        guard.remove(group).await;
    }
}
