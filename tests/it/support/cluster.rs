//! A Postgres of the test's own, which it may restart: a new cluster in a temporary folder.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::process::free_port;

/// How long a server may take until it takes connections.
const READY_WITHIN: Duration = Duration::from_mins(1);

/// A running cluster; gone when it is dropped.
pub(crate) struct Cluster {
    binaries: PathBuf,
    folder: tempfile::TempDir,
    port: u16,
    server: Child,
}

impl Cluster {
    /// A new cluster; `None`, with a visible note, where Postgres is not installed.
    pub(crate) async fn start() -> Option<Self> {
        let Some(binaries) = binaries() else {
            eprintln!("skipped: Postgres is not installed here");
            return None;
        };
        let folder = tempfile::tempdir().expect("a folder for the cluster");
        if let Some(user) = server_user() {
            std::os::unix::fs::chown(folder.path(), Some(user.0), Some(user.1)).expect("a folder of the server's user");
        }
        let mut initdb = as_server(&binaries.join("initdb"));
        initdb.arg("-D").arg(folder.path().join("data"));
        initdb.args(["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]);
        let made = initdb.output().expect("initdb runs");
        assert!(made.status.success(), "initdb: {}", String::from_utf8_lossy(&made.stderr));
        let port = free_port();
        let server = serve(&binaries, folder.path(), port);
        let mut cluster = Self { binaries, folder, port, server };
        cluster.ready().await;
        Some(cluster)
    }

    /// What `store::open` takes.
    pub(crate) fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    /// Stops it as `pg_ctl stop -m immediate` does, which is a crash of the server, and starts it again.
    pub(crate) async fn restart_immediately(&mut self) {
        stop(&mut self.server);
        self.server = serve(&self.binaries, self.folder.path(), self.port);
        self.ready().await;
    }

    /// The server writes `ready` into its own folder once it takes connections.
    async fn ready(&mut self) {
        let deadline = Instant::now() + READY_WITHIN;
        loop {
            let pid = std::fs::read_to_string(self.folder.path().join("data/postmaster.pid")).unwrap_or_default();
            if pid.lines().any(|line| line.starts_with("ready")) && pid.starts_with(&self.server.id().to_string()) {
                return;
            }
            let ended = self.server.try_wait().expect("the state of the server");
            assert!(ended.is_none() && Instant::now() < deadline, "Postgres does not start: {}", self.log());
            sleep(Duration::from_millis(20)).await;
        }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        stop(&mut self.server);
    }
}

fn serve(binaries: &Path, folder: &Path, port: u16) -> Child {
    let log = File::options().create(true).append(true).open(folder.join("log")).expect("the log file");
    let mut command = as_server(&binaries.join("postgres"));
    command.arg("-D").arg(folder.join("data")).args(["-p", &port.to_string()]);
    for setting in ["listen_addresses=127.0.0.1", "unix_socket_directories=", "fsync=off", "max_connections=100"] {
        command.args(["-c", setting]);
    }
    let err = log.try_clone().expect("a second handle");
    command.stdin(Stdio::null()).stdout(log).stderr(err).spawn().expect("Postgres starts")
}

fn stop(server: &mut Child) {
    let sent = Command::new("kill").args(["-QUIT", &server.id().to_string()]).status();
    if !sent.is_ok_and(|status| status.success()) {
        server.kill().ok();
    }
    server.wait().ok();
}

/// Postgres refuses to run as root, and must not outlive the test.
fn as_server(program: &Path) -> Command {
    let Some((user, group)) = server_user() else { return Command::new(program) };
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "QUIT", "--reuid", &user.to_string(), "--regid", &group.to_string()]);
    command.arg("--clear-groups").arg(program);
    command
}

/// The user and group of the server, when this is root.
fn server_user() -> Option<(u32, u32)> {
    if !rustix::process::getuid().is_root() {
        return None;
    }
    let id = |kind: &str, user: &str| -> Option<u32> {
        let answer = Command::new("id").args([kind, user]).output().ok().filter(|answer| answer.status.success())?;
        String::from_utf8_lossy(&answer.stdout).trim().parse().ok()
    };
    let of = |user: &str| Some((id("-u", user)?, id("-g", user)?));
    Some(of("postgres").or_else(|| of("nobody")).expect("a user that is not root"))
}

/// The folder of Postgres's binaries. Debian keeps them out of `PATH`, one folder a version.
fn binaries() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let in_path = std::env::split_paths(&path)
        .filter_map(|folder| std::fs::canonicalize(folder.join("postgres")).ok())
        .filter_map(|program| program.parent().map(Path::to_owned));
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut versions: Vec<PathBuf> = versions.map(|version| version.path().join("bin")).collect();
    versions.sort();
    in_path.chain(versions.into_iter().rev()).find(|folder| folder.join("initdb").exists())
}
