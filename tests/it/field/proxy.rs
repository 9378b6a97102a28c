//! A proxy between the product and a server that closes connections as real servers do.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

/// The running proxy; it ends when it is dropped.
pub(super) struct Proxy {
    addr: SocketAddr,
    state: Arc<State>,
    _stop: DropGuard,
}

struct State {
    /// A connection on which nothing passes for so long is closed.
    idle: Duration,
    /// The next answer is not passed on: the connection is closed, properly, in its place.
    swallow: AtomicBool,
    taken: AtomicUsize,
    closed: AtomicUsize,
}

impl Proxy {
    pub(super) async fn start(to: SocketAddr, idle: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let count = AtomicUsize::default;
        let state = Arc::new(State { idle, swallow: AtomicBool::new(false), taken: count(), closed: count() });
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let (spawner, shared, ends) = (tasks.clone(), Arc::clone(&state), stop.clone());
        tasks.spawn(stop.clone().run_until_cancelled_owned(async move {
            while let Ok((client, _)) = listener.accept().await {
                shared.taken.fetch_add(1, Ordering::SeqCst);
                spawner.spawn(ends.clone().run_until_cancelled_owned(pass(client, to, Arc::clone(&shared))));
            }
        }));
        Self { addr, state, _stop: stop.drop_guard() }
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}/mcp", self.addr)
    }

    /// From now on the answer to each call is lost: its connection is closed properly after the request was passed on.
    pub(super) fn swallow_answers(&self) {
        self.state.swallow.store(true, Ordering::SeqCst);
    }

    /// How many connections were taken, and how many were closed because nothing passed.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.state.taken.load(Ordering::SeqCst), self.state.closed.load(Ordering::SeqCst))
    }
}

async fn pass(mut client: TcpStream, to: SocketAddr, state: Arc<State>) {
    let Ok(mut server) = TcpStream::connect(to).await else { return };
    let (mut up, mut down) = (vec![0; 64 * 1024], vec![0; 64 * 1024]);
    let mut lost = false;
    loop {
        let passed = timeout(state.idle, async {
            tokio::select! {
                read = client.read(&mut up) => {
                    let read = read.unwrap_or(0);
                    lost |= state.swallow.load(Ordering::SeqCst) && find(&up[..read], b"tools/call");
                    read > 0 && server.write_all(&up[..read]).await.is_ok()
                }
                read = server.read(&mut down) => {
                    let read = read.unwrap_or(0);
                    read > 0 && !lost && client.write_all(&down[..read]).await.is_ok()
                }
            }
        });
        match passed.await {
            Ok(true) => {}
            Ok(false) => return,
            Err(_elapsed) => {
                drop((client, server));
                state.closed.fetch_add(1, Ordering::SeqCst);
                return;
            }
        }
    }
}

fn find(text: &[u8], what: &[u8]) -> bool {
    text.windows(what.len()).any(|window| window == what)
}
