//! Takes connections and gives each its limits: nobody holds one open for nothing.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// How long a connection may keep the server waiting.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    /// Time for the head of a request.
    pub head: Duration,
    /// Time for what was sent to be acknowledged: a reader that stalls for longer, or whose network is gone, is let go.
    pub acknowledge: Duration,
    /// Connections that are open at once; the next waits, with the system, until one has ended.
    pub most: usize,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self { head: Duration::from_secs(15), acknowledge: Duration::from_mins(1), most: 10_000 }
    }
}

/// Pause after a connection could not be taken, e.g. because no file descriptor is free.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until `closing`, then takes no connection any more and waits for the answers under way.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    limits: ConnectionLimits,
    tasks: TaskTracker,
    closing: CancellationToken,
) {
    let graceful = GracefulShutdown::new();
    let places = Arc::new(Semaphore::new(limits.most));
    loop {
        let accepted = tokio::select! {
            () = closing.cancelled() => break,
            accepted = accept(&listener, &places) => accepted,
        };
        match accepted {
            Ok((stream, place)) => connect((stream, place), router.clone(), limits, &graceful, &tasks),
            Err(fault) => {
                tracing::warn!(%fault, "a connection could not be taken");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    graceful.shutdown().await;
}

/// The next connection, once there is a place for it.
async fn accept(listener: &TcpListener, places: &Arc<Semaphore>) -> io::Result<(TcpStream, Place)> {
    if places.available_permits() == 0 {
        metrics::counter!("countersign_http_full_total").increment(1);
        tracing::warn!("every connection that callers may have is open: the next waits until one has ended");
    }
    let permit = Arc::clone(places).acquire_owned().await.map_err(io::Error::other)?;
    let (stream, _) = listener.accept().await?;
    Ok((stream, Place::new(permit)))
}

/// The place of one open connection.
struct Place(#[expect(dead_code, reason = "kept until it is dropped")] OwnedSemaphorePermit);

impl Place {
    fn new(permit: OwnedSemaphorePermit) -> Self {
        metrics::gauge!("countersign_http_connections").increment(1.0);
        Self(permit)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        metrics::gauge!("countersign_http_connections").decrement(1.0);
    }
}

fn connect(
    (stream, place): (TcpStream, Place),
    router: Router,
    limits: ConnectionLimits,
    graceful: &GracefulShutdown,
    tasks: &TaskTracker,
) {
    let socket = SockRef::from(&stream);
    // Events are small and must not wait for more of them.
    if let Err(fault) =
        socket.set_tcp_nodelay(true).and_then(|()| socket.set_tcp_user_timeout(Some(limits.acknowledge)))
    {
        tracing::debug!(%fault, "a connection goes without its limits");
    }
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(limits.head);
    builder.http2().timer(TokioTimer::new()).keep_alive_interval(limits.head);
    let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), TowerToHyperService::new(router));
    let watched = graceful.watch(connection.into_owned());
    tasks.spawn(async move {
        let _until_ended = place;
        if let Err(fault) = watched.await {
            // A client that goes away, or sends what is no HTTP: its own business.
            tracing::debug!(%fault, "a connection ended early");
        }
    });
}
