//! Listeners: bounded before anybody is known (connections, per source, handshake, header), drained on request.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use http::{HeaderValue, Request, Response, header};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustls::ServerConfig;
use rustls_pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;

const HANDSHAKE_TIME: Duration = Duration::from_secs(10);
/// For a request's header; also how long an idle connection is kept.
const HEADER_TIME: Duration = Duration::from_secs(60);
/// More than this in HTTP/2; of HTTP/1, what has come when so much was read and there is no end is refused, at twice that at the latest.
const MAX_HEADER_BYTES: usize = 64 * 1024;
const MAX_STREAMS: u32 = 128;
/// Its name in ALPN.
pub const HTTP2: &[u8] = b"h2";

/// One listener.
pub struct Listener {
    pub name: &'static str,
    pub tcp: TcpListener,
    /// Plain HTTP without.
    pub tls: Option<Arc<ServerConfig>>,
    pub router: Router,
    pub max_connections: usize,
}

/// The certificates that a client showed in its handshake, its own first. Whether they are worth anything is for the listener's
/// router to say.
#[derive(Clone)]
pub struct PeerCertificates(pub Arc<[CertificateDer<'static>]>);

/// How a listener is told to end, in this order.
#[derive(Clone, Default)]
pub struct Stop {
    /// Take connections still, from those who have not heard that this process is ending, and have clients leave those that they
    /// have: what they ask next goes over another connection, and so to another process.
    pub leaving: CancellationToken,
    /// Take no more connections, finish what is under way.
    pub gently: CancellationToken,
    /// Break off what is left.
    pub now: CancellationToken,
}

/// Bind a listener's address.
pub async fn bind(name: &'static str, address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| format!("the {name} listener cannot bind {address}"))
}

impl Listener {
    /// Serve until told to stop and every connection has ended.
    pub async fn serve(self, stop: Stop) {
        let connections = TaskTracker::new();
        let slots = Arc::new(Semaphore::new(self.max_connections));
        let sources = Sources::new(self.max_connections.div_ceil(4).max(8));
        let tls = self.tls.map(TlsAcceptor::from);
        loop {
            let accepted = tokio::select! {
                biased;
                () = stop.gently.cancelled() => break,
                () = stop.now.cancelled() => break,
                accepted = self.tcp.accept() => accepted,
            };
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, listener = self.name, "a connection could not be accepted");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            };
            // Over the caps: closed at once, so that what is under way is not slowed down.
            let (Ok(slot), Some(source)) = (slots.clone().try_acquire_owned(), sources.enter(peer.ip())) else {
                tracing::warn!(listener = self.name, "a connection was refused: too many are open");
                continue;
            };
            let (tls, router, stop) = (tls.clone(), self.router.clone(), stop.clone());
            connections.spawn(async move {
                let now = stop.now.clone();
                tokio::select! {
                    () = connection(stream, tls, router, stop) => {}
                    () = now.cancelled() => {}
                }
                drop((slot, source));
            });
        }
        drop(self.tcp);
        connections.close();
        connections.wait().await;
    }
}

async fn connection(stream: TcpStream, tls: Option<TlsAcceptor>, router: Router, stop: Stop) {
    let _ = stream.set_nodelay(true); // small frames of a stream would wait 40 ms otherwise
    match tls {
        None => http(stream, router, None, stop, false).await,
        Some(tls) => match timeout(HANDSHAKE_TIME, tls.accept(stream)).await {
            Ok(Ok(stream)) => {
                let shown = stream.get_ref().1.peer_certificates();
                let peer = shown.map(|chain| PeerCertificates(chain.iter().map(|one| one.clone().into_owned()).collect()));
                let multiplexed = stream.get_ref().1.alpn_protocol() == Some(HTTP2);
                http(stream, router, peer, stop, multiplexed).await
            }
            Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
            Err(_) => tracing::debug!("a TLS handshake took too long"),
        },
    }
}

async fn http<I: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: I,
    router: Router,
    peer: Option<PeerCertificates>,
    Stop { leaving, gently, .. }: Stop,
    multiplexed: bool,
) {
    // HTTP/2 says at once that nothing new is taken, and loses nothing thereby; but not before a first request, since a client that
    // is told so on a new connection gives up. HTTP/1 has only its next answer to say so: a connection that is closed while it is
    // idle may have a request on its way.
    let asked = Arc::new(Notify::new());
    let goodbye = {
        let (leaving, asked) = (leaving.clone(), asked.clone());
        async move {
            let served = async {
                leaving.cancelled().await;
                asked.notified().await;
            };
            tokio::select! {
                () = served, if multiplexed => {}
                () = gently.cancelled() => {}
            }
        }
    };
    let service = router
        .map_request(move |mut request: Request<Incoming>| {
            asked.notify_one();
            if let Some(peer) = &peer {
                request.extensions_mut().insert(peer.clone());
            }
            request
        })
        .map_response(move |mut response: Response<axum::body::Body>| {
            if leaving.is_cancelled() && !multiplexed {
                response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            response
        });
    let (io, service) = (TokioIo::new(stream), TowerToHyperService::new(service));
    // The protocol is what the handshake agreed on, not what the first bytes look like: who waits for those knows no better, when
    // it is told to end, than to close a connection on which a first request may be on its way.
    let ended = if multiplexed {
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .max_concurrent_streams(MAX_STREAMS)
            .max_header_list_size(MAX_HEADER_BYTES as u32)
            .keep_alive_interval(Duration::from_secs(20))
            .keep_alive_timeout(Duration::from_secs(10));
        let mut serving = pin!(builder.serve_connection(io, service));
        tokio::select! {
            ended = serving.as_mut() => ended,
            () = goodbye => {
                serving.as_mut().graceful_shutdown();
                serving.await
            }
        }
    } else {
        let mut builder = http1::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(HEADER_TIME).max_buf_size(MAX_HEADER_BYTES);
        let mut serving = pin!(builder.serve_connection(io, service));
        tokio::select! {
            ended = serving.as_mut() => ended,
            () = goodbye => {
                serving.as_mut().graceful_shutdown();
                serving.await
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended with an error");
    }
}

/// Open connections by address.
#[derive(Clone)]
struct Sources {
    open: Arc<Mutex<HashMap<IpAddr, usize>>>,
    most: usize,
}

struct Source {
    sources: Sources,
    address: IpAddr,
}

impl Sources {
    fn new(most: usize) -> Self {
        Sources { open: Arc::default(), most }
    }

    fn enter(&self, address: IpAddr) -> Option<Source> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let count = open.entry(address).or_default();
        if *count >= self.most {
            return None;
        }
        *count += 1;
        Some(Source { sources: self.clone(), address })
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        let mut open = self.sources.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = open.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    async fn start(router: Router, max_connections: usize) -> (SocketAddr, Stop, tokio::task::JoinHandle<()>) {
        // An address of our own: no other test can get the port as soon as it is free.
        let tcp = bind("test", ([127, 0, 0, 77], 0).into()).await.unwrap();
        let address = tcp.local_addr().unwrap();
        let stop = Stop::default();
        let serving = tokio::spawn(Listener { name: "test", tcp, tls: None, router, max_connections }.serve(stop.clone()));
        (address, stop, serving)
    }

    async fn read_all(stream: &mut TcpStream) -> String {
        let mut text = Vec::new();
        let _ = stream.read_to_end(&mut text).await;
        String::from_utf8_lossy(&text).into_owned()
    }

    #[tokio::test]
    async fn a_drain_finishes_what_is_under_way_and_takes_no_more() {
        let (entered, release) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let router = Router::new().route(
            "/",
            get({
                let (entered, release) = (entered.clone(), release.clone());
                async move || {
                    entered.notify_one();
                    release.notified().await;
                    "finished"
                }
            }),
        );
        let (address, stop, serving) = start(router, 8).await;
        let mut client = TcpStream::connect(address).await.unwrap();
        client.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        entered.notified().await;
        stop.gently.cancel();
        release.notify_one();
        assert!(read_all(&mut client).await.ends_with("finished"));
        serving.await.unwrap();
        // A child that another test has just forked may hold the socket until it executes its program.
        let refused = async { while TcpStream::connect(address).await.is_ok() {} };
        tokio::time::timeout(Duration::from_secs(20), refused).await.expect("it takes no more");
    }

    #[tokio::test]
    async fn what_does_not_end_is_broken_off() {
        let entered = Arc::new(Notify::new());
        let router = Router::new().route(
            "/",
            get({
                let entered = entered.clone();
                async move || {
                    entered.notify_one();
                    std::future::pending::<&str>().await
                }
            }),
        );
        let (address, stop, serving) = start(router, 8).await;
        let mut client = TcpStream::connect(address).await.unwrap();
        client.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        entered.notified().await;
        stop.gently.cancel();
        stop.now.cancel();
        assert_eq!(read_all(&mut client).await, "");
        serving.await.unwrap();
    }

    #[tokio::test]
    async fn one_source_cannot_take_every_connection() {
        let (address, stop, serving) = start(Router::new().route("/", get(async || "hello")), 64).await;
        let request = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";
        let mut held = Vec::new();
        for _ in 0..16 {
            let mut client = TcpStream::connect(address).await.unwrap();
            client.write_all(request).await.unwrap();
            let mut first = [0; 12];
            client.read_exact(&mut first).await.unwrap();
            assert_eq!(&first, b"HTTP/1.1 200");
            held.push(client);
        }
        let mut refused = TcpStream::connect(address).await.unwrap();
        let _ = refused.write_all(request).await;
        assert_eq!(read_all(&mut refused).await, "");
        drop(held);
        stop.now.cancel();
        serving.await.unwrap();
    }

    #[tokio::test]
    async fn a_connection_that_has_not_asked_yet_is_answered_when_the_process_is_to_end() {
        let (client, server) = tokio::io::duplex(64 * 1024);
        let (router, stop) = (Router::new().route("/", get(async || "hello")), Stop::default());
        let serving = tokio::spawn(http(server, router, None, stop.clone(), true));
        tokio::task::yield_now().await; // it waits for the first bytes now
        stop.leaving.cancel();
        tokio::task::yield_now().await;
        let (mut sender, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(client)).await.unwrap();
        tokio::spawn(connection);
        let request = Request::get("http://gateway/").body(axum::body::Body::empty()).unwrap();
        assert_eq!(sender.send_request(request).await.unwrap().status(), 200);
        serving.await.unwrap();
    }
}
