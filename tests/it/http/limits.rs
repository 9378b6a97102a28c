//! What a connection may cost.

use std::time::Duration;

use countersign::http::{ConnectionLimits, serve};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::harness::{SOON, Server};

#[tokio::test]
async fn a_connection_that_never_finishes_its_request_is_closed_and_others_are_served() {
    let server = Server::start().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let limits = ConnectionLimits { head: Duration::from_millis(200), ..ConnectionLimits::default() };
    let (tasks, closing) = (TaskTracker::new(), CancellationToken::new());
    let serving = tasks.spawn(serve(listener, server.router.clone(), limits, tasks.clone(), closing.clone()));
    let mut slow = TcpStream::connect(address).await.unwrap();
    slow.write_all(b"GET /healthz HTTP/1.1\r\nhost: a\r\n").await.unwrap();
    let mut whole = TcpStream::connect(address).await.unwrap();
    whole.write_all(b"GET /healthz HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    timeout(SOON, whole.read_to_string(&mut answer)).await.unwrap().unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let mut nothing = Vec::new();
    timeout(SOON, slow.read_to_end(&mut nothing)).await.expect("it is closed").unwrap();
    assert!(!nothing.starts_with(b"HTTP/1.1 200"));
    closing.cancel();
    timeout(SOON, serving).await.expect("it ends").unwrap();
}

#[tokio::test]
async fn a_body_that_is_declared_too_large_is_refused_before_it_comes() {
    let server = Server::start().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (tasks, closing) = (TaskTracker::new(), CancellationToken::new());
    tasks.spawn(serve(listener, server.router.clone(), ConnectionLimits::default(), tasks.clone(), closing.clone()));
    let mut client = TcpStream::connect(address).await.unwrap();
    let head = format!(
        "POST /v1/runs HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\n\
         content-length: 99000000000\r\n\r\n{{",
        server.alice()
    );
    client.write_all(head.as_bytes()).await.unwrap();
    let mut answer = vec![0; 12];
    timeout(SOON, client.read_exact(&mut answer)).await.expect("an answer at once").unwrap();
    assert_eq!(answer, b"HTTP/1.1 413");
    closing.cancel();
}

/// A connection that stays open, once its first request is answered.
async fn open(address: std::net::SocketAddr) -> TcpStream {
    let mut client = TcpStream::connect(address).await.unwrap();
    client.write_all(b"GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    answered(&mut client).await;
    client
}

async fn answered(client: &mut TcpStream) {
    let mut answer = vec![0; 12];
    timeout(SOON, client.read_exact(&mut answer)).await.expect("an answer").unwrap();
    assert_eq!(answer, b"HTTP/1.1 200");
}

#[tokio::test]
async fn a_connection_beyond_the_limit_waits_until_one_has_ended() {
    let server = Server::start().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let limits = ConnectionLimits { most: 2, ..ConnectionLimits::default() };
    let (tasks, closing) = (TaskTracker::new(), CancellationToken::new());
    let serving = tasks.spawn(serve(listener, server.router.clone(), limits, tasks.clone(), closing.clone()));
    let (first, second) = (open(address).await, open(address).await);
    let mut third = TcpStream::connect(address).await.unwrap();
    third.write_all(b"GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    let mut nothing = [0; 1];
    assert!(timeout(Duration::from_millis(300), third.read(&mut nothing)).await.is_err(), "it waits");
    drop(first);
    answered(&mut third).await;
    drop((second, third));
    // A server that is full can be stopped.
    let _full = (open(address).await, open(address).await);
    closing.cancel();
    timeout(SOON, serving).await.expect("it ends").unwrap();
}
