//! One upstream, ready to be called: its URL checked, its timeouts parsed, its own connection pool. Holds no key.

use std::collections::HashSet;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use agentrun_crds::model_provider::{Dialect, OutputLimit, PlainHttp, SecretKeyRef};
use agentrun_crds::{ModelProviderSpec, quantity};
use bytes::Bytes;
use http::Uri;
use http::uri::Scheme;
use http_body_util::Full;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder, MaybeHttpsStream};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tower::Service;

use super::breaker::Breaker;
use super::operation::Operation;
use crate::tls;

/// The HTTP client of one provider.
pub type UpstreamClient = Client<TimedConnector, Full<Bytes>>;

/// Why a ModelProvider cannot be used; for the log and its owner, never for the sandbox.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{field}: {message}")]
pub struct ProviderError {
    pub field: &'static str,
    pub message: String,
}

/// How long each part of a call may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    pub connect: Duration,
    pub first_byte: Duration,
    pub idle: Duration,
    pub total: Duration,
}

/// See the module.
pub struct Provider {
    /// For our log only.
    pub name: String,
    pub dialect: Dialect,
    pub breaker: Breaker,
    uri: Uri,
    /// Anthropic's, for counting tokens.
    count_uri: Uri,
    pub client: UpstreamClient,
    pub timeouts: Timeouts,
    pub request_bytes: usize,
    pub response_bytes: usize,
    pub secret: SecretKeyRef,
    /// Models for which the output of a chat is bounded by `max_completion_tokens`.
    bounds_completion: HashSet<String>,
}

impl Provider {
    /// Check a spec and build the pool.
    pub fn new(name: &str, spec: &ModelProviderSpec) -> Result<Self, ProviderError> {
        let uri = checked_uri(&spec.url, spec.plain_http)?;
        let seconds = |field, text: &Option<String>, default| match text {
            None => Ok(Duration::from_secs(default)),
            Some(text) => match quantity::seconds(text) {
                Ok(seconds @ 1..) => Ok(Duration::from_secs(seconds.unsigned_abs())),
                Ok(_) => Err(ProviderError { field, message: "it must be at least 1s".into() }),
                Err(error) => Err(ProviderError { field, message: error.to_string() }),
            },
        };
        let timeouts = Timeouts {
            connect: seconds("timeouts.connect", &spec.timeouts.connect, 5)?,
            first_byte: seconds("timeouts.firstByte", &spec.timeouts.first_byte, 60)?,
            idle: seconds("timeouts.idle", &spec.timeouts.idle, 30)?,
            total: seconds("timeouts.total", &spec.timeouts.total, 600)?,
        };
        let bytes = |field, value: Option<i64>, default| match value {
            None => Ok(default),
            Some(value) => usize::try_from(value)
                .ok()
                .filter(|bytes| *bytes > 0)
                .ok_or_else(|| ProviderError { field, message: "it must be a positive number of bytes".into() }),
        };
        let client = Client::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(Duration::from_secs(30))
            .pool_max_idle_per_host(32)
            .http2_keep_alive_interval(Duration::from_secs(10))
            .http2_keep_alive_timeout(Duration::from_secs(5))
            .build(TimedConnector { inner: connector(spec, timeouts.connect)?, timeout: timeouts.connect });
        let count_uri = below(&uri, "/count_tokens")?;
        Ok(Provider {
            name: name.to_owned(),
            dialect: spec.dialect,
            breaker: Breaker::default(),
            uri,
            count_uri,
            client,
            timeouts,
            request_bytes: bytes("caps.requestBytes", spec.caps.request_bytes, 1 << 20)?,
            response_bytes: bytes("caps.responseBytes", spec.caps.response_bytes, 16 << 20)?,
            secret: spec.secret_ref.clone(),
            bounds_completion: spec
                .models
                .iter()
                .filter(|model| model.output_limit == Some(OutputLimit::MaxCompletionTokens))
                .map(|model| model.name.clone())
                .collect(),
        })
    }
}

impl Provider {
    /// The member that bounds the output of a chat with this model.
    pub fn output_limit(&self, model: &str) -> OutputLimit {
        if self.bounds_completion.contains(model) { OutputLimit::MaxCompletionTokens } else { OutputLimit::MaxTokens }
    }

    /// Where an operation is served; Gemini has the model in its path.
    pub fn uri(&self, operation: Operation, model: &str) -> Result<Uri, ProviderError> {
        let call = match operation {
            Operation::Chat | Operation::Responses | Operation::Embeddings | Operation::Messages => return Ok(self.uri.clone()),
            Operation::CountTokens => return Ok(self.count_uri.clone()),
            Operation::Generate => "generateContent",
            Operation::GenerateEvents | Operation::GenerateArray => "streamGenerateContent?alt=sse",
            Operation::CountContents => "countTokens",
        };
        below(&self.uri, &format!("/{}:{call}", escaped(model)))
    }
}

/// A model's name within a path.
fn escaped(model: &str) -> String {
    use std::fmt::Write;
    let mut path = String::with_capacity(model.len());
    for byte in model.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~') {
            path.push(char::from(byte));
        } else {
            let _ = write!(path, "%{byte:02X}");
        }
    }
    path
}

/// The same URL with more behind its path.
fn below(uri: &Uri, more: &str) -> Result<Uri, ProviderError> {
    let mut parts = uri.clone().into_parts();
    let path = format!("{}{more}", uri.path().trim_end_matches('/'));
    let bad = |_| ProviderError { field: "url", message: "its path cannot be extended".into() };
    parts.path_and_query = Some(path.parse().map_err(bad)?);
    Uri::from_parts(parts).map_err(|_| ProviderError { field: "url", message: "its path cannot be extended".into() })
}

fn checked_uri(url: &str, plain: PlainHttp) -> Result<Uri, ProviderError> {
    let bad = |message: &str| ProviderError { field: "url", message: message.into() };
    if url.contains('#') {
        return Err(bad("it must have no fragment"));
    }
    let uri: Uri = url.parse().map_err(|_| bad("it is not a URL"))?;
    let authority = uri.authority().ok_or_else(|| bad("it must be a full URL with a host"))?;
    if authority.as_str().contains('@') {
        return Err(bad("it must hold no credentials; the key goes into a Secret"));
    }
    if uri.query().is_some() {
        return Err(bad("it must have no query"));
    }
    match uri.scheme() {
        Some(scheme) if *scheme == Scheme::HTTPS => Ok(uri),
        Some(scheme) if *scheme == Scheme::HTTP && plain == PlainHttp::Allowed => Ok(uri),
        _ => Err(bad("it must be https, or http with plainHTTP: Allowed")),
    }
}

fn connector(spec: &ModelProviderSpec, connect: Duration) -> Result<HttpsConnector<HttpConnector>, ProviderError> {
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_nodelay(true);
    http.set_connect_timeout(Some(connect));
    http.set_keepalive(Some(Duration::from_secs(30)));
    let builder = match &spec.ca_bundle {
        Some(bundle) => {
            let bad = |why| ProviderError { field: "caBundle", message: format!("it {why}") };
            HttpsConnectorBuilder::new().with_tls_config(tls::authorities(bundle.as_bytes()).map(tls::trusting).map_err(bad)?)
        }
        None if spec.plain_http == PlainHttp::Allowed && spec.url.starts_with("http://") => {
            // No TLS will happen; a machine without public certificates must not matter.
            HttpsConnectorBuilder::new().with_tls_config(tls::trusting(rustls::RootCertStore::empty()))
        }
        None => HttpsConnectorBuilder::new()
            .with_native_roots()
            .map_err(|error| ProviderError { field: "url", message: format!("the public certificates cannot be loaded: {error}") })?,
    };
    let builder = if spec.plain_http == PlainHttp::Allowed { builder.https_or_http() } else { builder.https_only() };
    Ok(builder.enable_http1().enable_http2().wrap_connector(http))
}

/// Bounds name resolution, TCP and TLS together: one stalled handshake must not hold a call.
#[derive(Clone)]
pub struct TimedConnector {
    inner: HttpsConnector<HttpConnector>,
    timeout: Duration,
}

impl Service<Uri> for TimedConnector {
    type Response = MaybeHttpsStream<TokioIo<TcpStream>>;
    type Error = Box<dyn std::error::Error + Send + Sync>;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connecting = self.inner.call(uri);
        let timeout = self.timeout;
        Box::pin(async move {
            match tokio::time::timeout(timeout, connecting).await {
                Ok(connected) => connected,
                Err(_) => Err("connecting took too long".into()),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_models_name_cannot_leave_its_place_in_the_path() {
        for (model, expected) in [
            ("gemini-2.5-pro", "https://h/v1beta/models/gemini-2.5-pro:generateContent"),
            ("a/../b?key=x#y", "https://h/v1beta/models/a%2F..%2Fb%3Fkey%3Dx%23y:generateContent"),
        ] {
            let path = format!("/{}:generateContent", escaped(model));
            assert_eq!(below(&Uri::from_static("https://h/v1beta/models/"), &path).unwrap().to_string(), expected);
        }
    }

    #[test]
    fn urls_that_leak_or_downgrade_are_refused() {
        for (url, plain, good) in [
            ("https://api.example.com/v1/chat/completions", PlainHttp::Refused, true),
            ("http://model.ns.svc/v1", PlainHttp::Allowed, true),
            ("http://model.ns.svc/v1", PlainHttp::Refused, false),
            ("https://user:key@example.com/v1", PlainHttp::Refused, false),
            ("https://example.com/v1?key=x", PlainHttp::Refused, false),
            ("https://example.com/v1#x", PlainHttp::Refused, false),
            ("/v1/chat/completions", PlainHttp::Refused, false),
            ("ftp://example.com/", PlainHttp::Allowed, false),
            ("not a url", PlainHttp::Allowed, false),
        ] {
            assert_eq!(checked_uri(url, plain).is_ok(), good, "{url}");
        }
    }
}
