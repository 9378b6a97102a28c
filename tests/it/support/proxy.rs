//! A TCP proxy before the database that can fall silent, as a network does that loses everything: nothing is passed on,
//! and no side is told.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use url::Url;

/// A running proxy; its connections end with it.
pub(crate) struct Proxy {
    url: Url,
    network: Arc<Mutex<Network>>,
    _tasks: JoinSet<()>,
}

/// What the connections made from now on belong to. What was silenced once stays silent.
#[derive(Clone, Default)]
struct Network {
    asks_are_lost: CancellationToken,
    answers_are_lost: CancellationToken,
}

impl Proxy {
    /// Before the database of this address.
    pub(crate) async fn start(database: &str) -> Self {
        let mut url = Url::parse(database).unwrap();
        let behind = (url.host_str().unwrap().to_owned(), url.port().unwrap_or(5432));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        url.set_host(Some("127.0.0.1")).unwrap();
        url.set_port(Some(listener.local_addr().unwrap().port())).unwrap();
        let network = Arc::new(Mutex::new(Network::default()));
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(listener, behind, Arc::clone(&network)));
        Self { url, network, _tasks: tasks }
    }

    /// The database's address through the proxy.
    pub(crate) fn url(&self) -> &str {
        self.url.as_str()
    }

    /// Everything on every connection is lost, also on those that are made before it thaws.
    pub(crate) fn freeze(&self) {
        let network = self.network.lock();
        network.asks_are_lost.cancel();
        network.answers_are_lost.cancel();
    }

    /// New connections live. Those from before stay silent.
    pub(crate) fn thaw(&self) {
        *self.network.lock() = Network::default();
    }

    /// What is asked on the connections that there are still arrives; no answer does. New connections live.
    pub(crate) fn lose_answers(&self) {
        let network = std::mem::take(&mut *self.network.lock());
        network.answers_are_lost.cancel();
    }
}

async fn accept(listener: TcpListener, behind: (String, u16), network: Arc<Mutex<Network>>) {
    let mut tasks = JoinSet::new();
    loop {
        let (client, _) = listener.accept().await.unwrap();
        let network = network.lock().clone();
        let server = TcpStream::connect((behind.0.as_str(), behind.1)).await.unwrap();
        for stream in [&client, &server] {
            stream.set_nodelay(true).unwrap();
        }
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        tasks.spawn(pass(from_client, to_server, network.asks_are_lost));
        tasks.spawn(pass(from_server, to_client, network.answers_are_lost));
    }
}

async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, lost: CancellationToken) {
    let mut piece = vec![0; 16 * 1024];
    loop {
        let read = from.read(&mut piece).await.unwrap_or_default();
        if lost.is_cancelled() {
            if read > 0 {
                continue;
            }
            // Not even that the other side has gone arrives.
            return std::future::pending().await;
        }
        if read == 0 || to.write_all(&piece[..read]).await.is_err() {
            return;
        }
    }
}
