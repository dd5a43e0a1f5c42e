//! The reference for the gateway: TLS in, plain HTTP out, bodies streamed through, and nothing else. Of the same hyper and
//! rustls as the gateway, from the same lock file.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use bytes::Bytes;
use http::{Request, Response, StatusCode, Uri};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

type Upstream = Client<HttpConnector, Incoming>;

/// Serve until killed.
pub async fn serve(listen: SocketAddr, upstream: SocketAddr, certificates: &Path) -> Result<()> {
    let chain = CertificateDer::pem_file_iter(certificates.join("tls.crt"))?.collect::<Result<Vec<_>, _>>()?;
    let key = PrivateKeyDer::from_pem_file(certificates.join("tls.key"))?;
    let mut tls = rustls::ServerConfig::builder().with_no_client_auth().with_single_cert(chain, key)?;
    tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(tls));
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    let client: Upstream = Client::builder(TokioExecutor::new()).build(connector);
    let listener = tokio::net::TcpListener::bind(listen).await.with_context(|| format!("listening on {listen}"))?;
    loop {
        let (socket, _) = listener.accept().await?;
        socket.set_nodelay(true)?;
        let (acceptor, client) = (acceptor.clone(), client.clone());
        tokio::spawn(async move {
            let Ok(socket) = acceptor.accept(socket).await else { return };
            let service = service_fn(move |request| forward(client.clone(), upstream, request));
            // A client that goes away is no failure of the benchmark.
            let _ = auto::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(socket), service).await;
        });
    }
}

async fn forward(
    client: Upstream,
    upstream: SocketAddr,
    mut request: Request<Incoming>,
) -> Result<Response<BoxBody<Bytes, hyper::Error>>, http::Error> {
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
    *request.uri_mut() = Uri::builder().scheme("http").authority(upstream.to_string()).path_and_query(path).build()?;
    *request.version_mut() = http::Version::HTTP_11;
    match client.request(request).await {
        Ok(response) => Ok(response.map(BodyExt::boxed)),
        Err(_) => Response::builder().status(StatusCode::BAD_GATEWAY).body(Empty::new().map_err(|never| match never {}).boxed()),
    }
}
