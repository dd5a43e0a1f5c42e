//! One request to a git server: resolve, judge the address, connect to just that one, ask, and read what comes within bounds.
//! Redirects are answers, not instructions.

use std::net::SocketAddr;
use std::time::Duration;

use agentrun_crds::agent_policy::Addresses;
use agentrun_crds::git::GitUrl;
use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;
use tokio_util::task::AbortOnDropHandle;

use super::address;
use super::credential::Credential;
use super::failure::Failure;

const CONNECT_TIME: Duration = Duration::from_secs(10);
/// Between two pieces of an answer, and for its header.
const IDLE_TIME: Duration = Duration::from_secs(30);
const MAX_HEADER_BYTES: usize = 64 * 1024;

type Sender = http1::SendRequest<Full<Bytes>>;

/// Where the repository is, and how it may be reached.
pub(super) struct Remote {
    pub url: GitUrl,
    pub addresses: Addresses,
    pub credential: Credential,
    /// Of the whole fetch.
    pub deadline: Instant,
}

/// An answer under way. Dropping it closes the connection.
pub(super) struct Answer {
    body: Incoming,
    left: u64,
    over: &'static str,
    deadline: Instant,
    _connection: AbortOnDropHandle<()>,
}

impl Remote {
    /// `body`: POST it; without, GET. The answer must be of this media type; at most so many bytes of it are read, else the
    /// failure says `over`.
    pub async fn ask(&self, path: &str, body: Option<Vec<u8>>, media_type: &str, most: u64, over: &'static str) -> Result<Answer, Failure> {
        let (mut sender, connection) = self.connect().await?;
        let path = format!("{}{path}", self.url.path);
        let posts = body.is_some();
        let mut request = Request::new(Full::new(Bytes::from(body.unwrap_or_default())));
        *request.uri_mut() = path.parse().map_err(Failure::internal)?;
        let headers = request.headers_mut();
        headers.insert(header::HOST, HeaderValue::from_str(&self.url.authority()).map_err(Failure::internal)?);
        headers.insert(header::USER_AGENT, HeaderValue::from_static("git/2.0 (agentrun-gateway)"));
        headers.insert(header::ACCEPT, HeaderValue::from_str(media_type).map_err(Failure::internal)?);
        headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        headers.insert("git-protocol", HeaderValue::from_static("version=2"));
        if let Some(credential) = &self.credential.header {
            headers.insert(header::AUTHORIZATION, credential.clone());
        }
        if posts {
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/x-git-upload-pack-request"));
            *request.method_mut() = Method::POST;
        }
        let deadline = self.deadline.min(Instant::now() + IDLE_TIME);
        let response = match timeout_at(deadline, sender.send_request(request)).await {
            Ok(Ok(response)) => response,
            Ok(Err(_)) => return Err(Failure::passing("the git server broke off the connection, or does not speak HTTP/1.1")),
            Err(_) => return Err(self.slow()),
        };
        self.judge(&response, media_type)?;
        Ok(Answer { body: response.into_body(), left: most, over, deadline: self.deadline, _connection: connection })
    }

    fn judge(&self, response: &Response<Incoming>, media_type: &str) -> Result<(), Failure> {
        let status = response.status();
        let secret = self.credential.secret.as_deref();
        match status {
            StatusCode::OK => {}
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                return Err(Failure::lasting(match secret {
                    Some(secret) => format!("the git server refused the credential of Secret {secret} ({})", status.as_u16()),
                    None => format!("the git server wants a credential ({}), and the policy's entry names no Secret", status.as_u16()),
                }));
            }
            StatusCode::NOT_FOUND | StatusCode::GONE => {
                let who = if secret.is_some() {
                    ", or the credential may not see it"
                } else {
                    ", or it is private and the policy's entry names no Secret"
                };
                return Err(Failure::lasting(format!("the git server has no such repository{who} ({})", status.as_u16())));
            }
            status if status.is_redirection() => {
                return Err(Failure::lasting(format!(
                    "the git server answers with a redirect ({}), which is not followed; use the URL that it leads to, as the policy has to allow it too",
                    status.as_u16()
                )));
            }
            StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS => {
                return Err(Failure::passing(format!("the git server asks for patience ({})", status.as_u16())));
            }
            status if status.is_server_error() => {
                return Err(Failure::passing(format!("the git server failed ({})", status.as_u16())));
            }
            status => return Err(Failure::lasting(format!("the git server refused the request ({})", status.as_u16()))),
        }
        let found = response.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let plain = response.headers().get(header::CONTENT_ENCODING).is_none_or(|encoding| encoding == "identity");
        if !plain || !found.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case(media_type) {
            return Err(Failure::lasting(
                "what answers there is no git server with smart HTTP (its media type is another one); check the URL and the policy",
            ));
        }
        Ok(())
    }

    async fn connect(&self) -> Result<(Sender, AbortOnDropHandle<()>), Failure> {
        let deadline = self.deadline.min(Instant::now() + CONNECT_TIME);
        let host = self.url.host.as_str();
        let unreachable = || Failure::passing(format!("the git server {host} cannot be reached"));
        let found = timeout_at(deadline, tokio::net::lookup_host((host, self.url.port()))).await;
        let found: Vec<SocketAddr> = match found {
            Ok(Ok(found)) => found.collect(),
            _ => return Err(Failure::passing(format!("the name {host} of the git server cannot be resolved"))),
        };
        let fit: Vec<SocketAddr> = found.into_iter().filter(|found| address::allowed(found.ip(), self.addresses)).take(4).collect();
        if fit.is_empty() {
            return Err(Failure::lasting(match self.addresses {
                Addresses::Public => {
                    format!("{host} has no public address; the policy's entry may say `addresses: Private` for a server of your own")
                }
                Addresses::Private => format!("{host} has only addresses that are never connected to (link-local, metadata, multicast)"),
            }));
        }
        let tcp = match timeout_at(deadline, TcpStream::connect(&fit[..])).await {
            Ok(Ok(tcp)) => tcp,
            _ => return Err(unreachable()),
        };
        let _ = tcp.set_nodelay(true);
        if !self.url.tls {
            return handshake(tcp).await.ok_or_else(unreachable);
        }
        let name = ServerName::try_from(host.to_owned()).map_err(Failure::internal)?;
        match timeout_at(deadline, TlsConnector::from(self.credential.tls.clone()).connect(name, tcp)).await {
            Ok(Ok(tls)) => handshake(tls).await.ok_or_else(unreachable),
            Ok(Err(error)) => {
                let untrusted = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
                Err(match untrusted {
                    Some(rustls::Error::InvalidCertificate(_)) => Failure::lasting(format!(
                        "the certificate of {host} is not trusted; a private authority goes into ca.crt of the Secret that the policy's entry names"
                    )),
                    _ => Failure::passing(format!("the TLS handshake with {host} failed")),
                })
            }
            Err(_) => Err(unreachable()),
        }
    }

    fn slow(&self) -> Failure {
        slow(self.deadline)
    }
}

fn slow(deadline: Instant) -> Failure {
    if Instant::now() >= deadline {
        return Failure::lasting("the fetch took longer than the policy's git.timeout; name a smaller repository, or ask for more time");
    }
    Failure::passing(format!("the git server sent nothing for {} s", IDLE_TIME.as_secs()))
}

async fn handshake<S: AsyncRead + AsyncWrite + Send + Unpin + 'static>(stream: S) -> Option<(Sender, AbortOnDropHandle<()>)> {
    let (sender, connection) = http1::Builder::new().max_buf_size(MAX_HEADER_BYTES).handshake(TokioIo::new(stream)).await.ok()?;
    let task = tokio::spawn(async move {
        let _ = connection.await;
    });
    Some((sender, AbortOnDropHandle::new(task)))
}

impl Answer {
    /// The next piece; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Failure> {
        loop {
            let frame = match timeout_at(self.deadline.min(Instant::now() + IDLE_TIME), self.body.frame()).await {
                Err(_) => return Err(slow(self.deadline)),
                Ok(None) => return Ok(None),
                Ok(Some(Err(_))) => return Err(Failure::passing("the git server broke off its answer")),
                Ok(Some(Ok(frame))) => frame,
            };
            let Ok(piece) = frame.into_data() else { continue };
            let length = piece.len() as u64;
            if length > self.left {
                return Err(Failure::lasting(self.over));
            }
            self.left -= length;
            return Ok(Some(piece));
        }
    }
}
