//! A provider that says exactly the bytes it is told to, and breaks off as it is told to.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// How a connection ends after the last byte.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Then {
    /// In good order.
    Close,
    /// With a reset.
    Reset,
    /// Never: silence.
    Hang,
}

/// A fake provider that answers every request alike. Dropping it ends it.
pub(crate) struct Fake {
    url: String,
    seen: Arc<Mutex<Vec<Request>>>,
    _tasks: JoinSet<()>,
}

/// A request as it arrived.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// The request line and the headers, in lower case.
    pub(crate) head: String,
    pub(crate) body: Value,
}

impl Fake {
    /// Answers with `pieces`, each written on its own, and then ends as told.
    pub(crate) async fn start(pieces: Vec<Vec<u8>>, then: Then) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let seen = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&seen);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            while let Ok((mut socket, _)) = listener.accept().await {
                let request = read_request(&mut socket).await;
                kept.lock().push(request);
                for piece in &pieces {
                    socket.write_all(piece).await.ok();
                    socket.flush().await.ok();
                }
                match then {
                    Then::Close => socket.shutdown().await.unwrap_or_default(),
                    Then::Reset => socket.set_zero_linger().expect("a socket option"),
                    Then::Hang => tokio::time::sleep(Duration::from_mins(10)).await,
                }
            }
        });
        Self { url, seen, _tasks: tasks }
    }

    /// A whole answer that is no stream.
    pub(crate) async fn answering(status: &str, headers: &str, body: &str) -> Self {
        let length = body.len();
        let head = format!("HTTP/1.1 {status}\r\n{headers}content-length: {length}\r\nconnection: close\r\n\r\n");
        Self::start(vec![format!("{head}{body}").into_bytes()], Then::Close).await
    }

    /// A whole stream, properly ended.
    pub(crate) async fn streaming(events: &str) -> Self {
        Self::start(vec![head(), chunk(events.as_bytes()), last_chunk()], Then::Close).await
    }

    /// The same with every byte in a chunk of its own.
    pub(crate) async fn dripping(events: &str) -> Self {
        let bytes = events.as_bytes().iter().map(|byte| chunk(&[*byte]));
        Self::start(std::iter::once(head()).chain(bytes).chain([last_chunk()]).collect(), Then::Close).await
    }

    /// A stream that ends as told after `events`; in good order means with the protocol's own end of a body.
    pub(crate) async fn breaking(events: &str, then: Then) -> Self {
        let mut pieces = vec![head()];
        if !events.is_empty() {
            pieces.push(chunk(events.as_bytes()));
        }
        if matches!(then, Then::Close) {
            pieces.push(last_chunk());
        }
        Self::start(pieces, then).await
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// The last request.
    pub(crate) fn seen(&self) -> Request {
        self.seen.lock().last().cloned().expect("no request arrived")
    }
}

fn head() -> Vec<u8> {
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n".to_vec()
}

fn chunk(bytes: &[u8]) -> Vec<u8> {
    let mut chunk = format!("{:x}\r\n", bytes.len()).into_bytes();
    chunk.extend_from_slice(bytes);
    chunk.extend_from_slice(b"\r\n");
    chunk
}

fn last_chunk() -> Vec<u8> {
    b"0\r\n\r\n".to_vec()
}

async fn read_request(socket: &mut TcpStream) -> Request {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break end + 4;
        }
        if socket.read_buf(&mut bytes).await.expect("a request") == 0 {
            return Request { head: String::new(), body: Value::Null };
        }
    };
    let head = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let length: usize = length.and_then(|text| text.parse().ok()).unwrap_or(0);
    while bytes.len() < end + length {
        assert_ne!(socket.read_buf(&mut bytes).await.expect("a body"), 0, "the body broke off");
    }
    let body = serde_json::from_slice(&bytes[end..end + length]).unwrap_or(Value::Null);
    Request { head, body }
}
