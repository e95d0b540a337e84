//! Listens, accepts connections, and stops in good order.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use tokio::net::{TcpListener, TcpStream, lookup_host};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};
use tokio_io_timeout::TimeoutStream;
use tower::ServiceExt;

use crate::config::{Limits, ServerConfig};
use crate::desk::Desk;
use crate::error::ServerError;
use crate::http::{App, Peer, check_origins, router};
use crate::upstream::Upstream;

/// Time for last words to leave, once all answers are over.
const FAREWELL: Duration = Duration::from_secs(2);
/// Pause when the system has no room for another connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A server that listens.
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    desk: Desk,
    limits: Limits,
    grace: Duration,
    upstream: Option<Arc<Upstream>>,
    router: Router,
}

impl Server {
    /// Checks what can be checked before there is a desk, so that nobody waits for a model that can't be served: the address can be
    /// had, and doesn't let others ask without a key; the upstream can be asked.
    ///
    /// # Errors
    /// As [`Self::bind`].
    pub async fn check(config: &ServerConfig) -> Result<(), ServerError> {
        check_origins(&config.cors)?;
        config.upstream.clone().map(Upstream::new).transpose()?;
        listen(config).await.map(drop)
    }

    /// Listens where `config` says. Call it within a tokio runtime.
    ///
    /// # Errors
    /// [`ServerError`]: an address that can't be had, or that others can reach without a key; an origin that is none; an
    /// upstream that can't be asked.
    pub async fn bind(desk: Desk, config: ServerConfig) -> Result<Self, ServerError> {
        check_origins(&config.cors)?;
        let (listener, address) = listen(&config).await?;
        let (limits, grace) = (config.limits, config.grace);
        let upstream = config.upstream.clone().map(Upstream::new).transpose()?.map(Arc::new);
        let app = App::new(desk.clone(), config, is_loopback(address), upstream.clone());
        Ok(Self { listener, address, desk, limits, grace, upstream, router: router(app) })
    }

    /// Where it listens; of port 0, the port that was free.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `stop` is ready. Then nobody is accepted any more, answers may end within the grace, and the desk is shut
    /// down.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        let Self { listener, desk, limits, grace, upstream, router, .. } = self;
        let connections = GracefulShutdown::new();
        let room = Arc::new(Semaphore::new(limits.connections_max));
        let mut stop = std::pin::pin!(stop);
        loop {
            let accepted = tokio::select! {
                () = &mut stop => break,
                accepted = accept(&listener, &room) => accepted,
            };
            if let Some((stream, peer, permit)) = accepted {
                let serving = serve(stream, peer, router.clone(), limits, connections.watcher());
                tokio::spawn(async move {
                    serving.await;
                    drop(permit);
                });
            }
        }
        drop(listener);
        tracing::info!("stopping: no more requests are taken");
        let ended = tokio::spawn(connections.shutdown());
        match upstream {
            Some(upstream) => {
                tokio::join!(desk.shut_down(grace), upstream.shut_down(grace));
            }
            None => desk.shut_down(grace).await,
        }
        let _ = timeout(FAREWELL, ended).await;
    }
}

async fn listen(config: &ServerConfig) -> Result<(TcpListener, SocketAddr), ServerError> {
    let wish = resolve(&config.host, config.port).await?;
    if !is_loopback(wish) && config.keys.is_empty() && !config.is_insecure {
        return Err(ServerError::Open { address: wish });
    }
    let listener = TcpListener::bind(wish).await.map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => ServerError::AddressInUse { address: wish },
        _ => ServerError::Bind { address: wish, source },
    })?;
    let address = listener.local_addr().map_err(|source| ServerError::Bind { address: wish, source })?;
    Ok((listener, address))
}

fn is_loopback(address: SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

/// The next connection, when there is room for one; `None` when the system had none.
async fn accept(
    listener: &TcpListener,
    room: &Arc<Semaphore>,
) -> Option<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
    let permit = Arc::clone(room).acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, peer)) => Some((stream, peer, permit)),
        Err(error) => {
            tracing::warn!("can't accept a connection: {error}");
            sleep(ACCEPT_PAUSE).await;
            None
        }
    }
}

async fn serve(stream: TcpStream, peer: SocketAddr, router: Router, limits: Limits, watcher: Watcher) {
    // Tokens are small and should leave at once.
    let _ = stream.set_nodelay(true);
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(limits.write_timeout));
    let service = hyper::service::service_fn(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(Peer(peer.ip()));
        let response = router.clone().oneshot(request.map(Body::new));
        async move {
            let response: Result<_, Infallible> = response.await;
            response
        }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(limits.head_timeout);
    builder.max_buf_size(Limits::BUFFER_BYTES_MAX);
    let connection = builder.serve_connection(TokioIo::new(Box::pin(stream)), service);
    if let Err(error) = watcher.watch(connection).await {
        tracing::debug!("a connection ended: {error}");
    }
}

async fn resolve(host: &str, port: u16) -> Result<SocketAddr, ServerError> {
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let wrong = |source| ServerError::Host { host: host.to_owned(), source };
    let found = lookup_host((bare, port)).await.map_err(|source| wrong(Some(source)))?;
    let found: Vec<_> = found.collect();
    // A client that is told a name tries IPv4 at least.
    let first = found.iter().find(|address| address.is_ipv4()).or(found.first());
    first.copied().ok_or_else(|| wrong(None))
}
