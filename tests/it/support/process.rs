//! Servers that nobody here wrote, run as child processes: started on a free port, ready when the port answers, and
//! gone with the test.

use std::fs::File;
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::Instant;

/// How long a server may take until its port answers; generous, because many tests start servers at once.
const READY_WITHIN: Duration = Duration::from_mins(1);

/// How often a server is started anew when it ended before it answered: another process may have taken its port.
const STARTS: usize = 3;

/// A running child process that listens on a port of the loopback address. Dropping it kills its process group.
pub(crate) struct Process {
    child: Child,
    address: SocketAddr,
    log: PathBuf,
    _folder: tempfile::TempDir,
}

impl Process {
    /// Starts what `command` builds for a free port and waits until that port answers.
    ///
    /// # Panics
    /// With the program's output, when it ends or does not answer in time.
    pub(crate) async fn start(command: impl Fn(u16) -> Command) -> Self {
        Self::start_at(LOCALHOST, |address| command(address.port())).await
    }

    /// The same on this address of the loopback network.
    pub(crate) async fn start_at(host: IpAddr, command: impl Fn(SocketAddr) -> Command) -> Self {
        let mut last = String::new();
        for _ in 0..STARTS {
            let mut process = Self::spawn(free_address(host), &command);
            match process.ready().await {
                Ok(()) => return process,
                Err(fault) => last = format!("{fault}\n{}", process.output()),
            }
        }
        panic!("the server did not start: {last}");
    }

    /// Starts what `command` builds on a certain port, e.g. the one that a server before it had.
    ///
    /// # Panics
    /// With the program's output, when it ends or does not answer in time.
    pub(crate) async fn start_on(port: u16, command: impl Fn(u16) -> Command) -> Self {
        let mut process = Self::spawn(SocketAddr::new(LOCALHOST, port), &|address| command(address.port()));
        if let Err(fault) = process.ready().await {
            panic!("the server did not start: {fault}\n{}", process.output());
        }
        process
    }

    /// Starts what `command` builds for a free port of that address; what it said, when it ended before its port
    /// answered.
    pub(crate) async fn try_start_at(host: IpAddr, command: impl Fn(SocketAddr) -> Command) -> Result<Self, String> {
        let mut process = Self::spawn(free_address(host), &command);
        match process.ready().await {
            Ok(()) => Ok(process),
            Err(fault) => Err(format!("{fault}\n{}", process.output())),
        }
    }

    fn spawn(address: SocketAddr, command: &impl Fn(SocketAddr) -> Command) -> Self {
        let folder = tempfile::tempdir().expect("a folder for the log");
        let log = folder.path().join("output.log");
        let out = File::create(&log).expect("the log file");
        let err = out.try_clone().expect("a second handle");
        let mut command = command(address);
        // A group of its own: what the program starts ends with it.
        command.stdin(Stdio::null()).stdout(out).stderr(err).process_group(0);
        let child = command.spawn().unwrap_or_else(|fault| panic!("{command:?}: {fault}"));
        Self { child, address, log, _folder: folder }
    }

    async fn ready(&mut self) -> Result<(), String> {
        let deadline = Instant::now() + READY_WITHIN;
        loop {
            if TcpStream::connect(self.address).await.is_ok() {
                return Ok(());
            }
            if let Some(status) = self.child.try_wait().expect("the state of the child") {
                return Err(format!("it ended with {status}"));
            }
            if Instant::now() > deadline {
                return Err(format!("{} does not answer", self.address));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Its address with a path, e.g. `/v1`.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// The most memory that it ever took, in MiB.
    pub(crate) fn peak_memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.split_whitespace().next().unwrap().parse::<u64>().unwrap() / 1024
    }

    /// How much memory it has now, in mebibytes.
    pub(crate) fn memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
    }

    /// Sends it a signal by name, e.g. `TERM`.
    pub(crate) fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([&format!("-{name}"), &self.child.id().to_string()]).status();
        assert!(sent.is_ok_and(|status| status.success()), "the signal {name} was not sent");
    }

    /// Waits until it ended by itself.
    ///
    /// # Panics
    /// With its output, when it does not end in time.
    pub(crate) async fn ended(&mut self) -> std::process::ExitStatus {
        let deadline = Instant::now() + READY_WITHIN;
        loop {
            if let Some(status) = self.child.try_wait().expect("the state of the child") {
                return status;
            }
            assert!(Instant::now() < deadline, "it does not end: {}", self.output());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Whether it has ended.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("the state of the child").is_some()
    }

    /// What it printed so far.
    pub(crate) fn output(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let group = format!("-{}", self.child.id());
        let killed = Command::new("kill").args(["-KILL", "--", &group]).stderr(Stdio::null()).status();
        if !killed.is_ok_and(|status| status.success()) {
            self.child.kill().ok();
        }
        self.child.wait().ok();
    }
}

const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// A port that nothing listens on right now.
pub(crate) fn free_port() -> u16 {
    free_address(LOCALHOST).port()
}

fn free_address(host: IpAddr) -> SocketAddr {
    let listener = TcpListener::bind((host, 0)).expect("a free port");
    listener.local_addr().expect("the address")
}

/// An address of the loopback network that no other server of any test has. A server that died leaves its port free,
/// and the next one of another test may get it: a client of the dead one must find nobody there, not a stranger.
pub(crate) fn own_host() -> IpAddr {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let count = COUNT.fetch_add(1, Ordering::Relaxed) % 253 + 1;
    let host = IpAddr::V4(Ipv4Addr::new(127, u8::try_from(count).expect("below 254"), high, low));
    // Where the loopback network is one address only, everybody shares it.
    if TcpListener::bind((host, 0)).is_ok() { host } else { LOCALHOST }
}

/// A program of the test world (`scripts/testworld` installs it), e.g. `npm/node_modules/.bin/llmock`. `None`, with a
/// visible note, where it is not installed.
pub(crate) fn testworld(program: &str) -> Option<PathBuf> {
    let root = std::env::var_os("COUNTERSIGN_TESTWORLD")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("target/testworld"), PathBuf::from);
    let path = root.join(program);
    if path.exists() {
        return Some(path);
    }
    skipped(&format!("skipped: {program} is not installed: scripts/testworld says why"));
    None
}

/// Says that something was not tried. Of a test that passes nobody sees the output: whoever runs all of them tells it.
pub(crate) fn skipped(note: &str) {
    eprintln!("{note}");
    if let Some(list) = std::env::var_os("COUNTERSIGN_TEST_SKIPPED") {
        let mut list =
            std::fs::File::options().append(true).create(true).open(list).expect("the list of skipped tests");
        writeln!(list, "{note}").expect("a line in the list of skipped tests");
    }
}
