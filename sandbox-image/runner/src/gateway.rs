//! HTTP to the gateway: one TLS client that trusts only the gateway's CA and asks nobody for names, bounded answers, and
//! which failures are worth another try.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use agentrun_protocol::{error::ErrorBody, token::Audience};
use bytes::{Bytes, BytesMut};
use http::{Method, StatusCode, header};
use serde::{Serialize, de::DeserializeOwned};
use tokio::time::{Instant, sleep};

use crate::{
    credentials::{Secret, addresses},
    tokens::Tokens,
};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const CALL_TIMEOUT: Duration = Duration::from_secs(30);
const FETCH_TIMEOUT: Duration = Duration::from_secs(60);
/// Largest answer, but for a source archive.
const MAX_ANSWER_BYTES: usize = 8 * 1024 * 1024;
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// A way to the gateway, without credentials.
#[derive(Clone)]
pub struct Transport {
    client: reqwest::Client,
    base: String,
    address: SocketAddr,
}

/// An answer, whatever its status.
pub struct Answer {
    pub status: StatusCode,
    pub headers: http::HeaderMap,
    pub body: Bytes,
}

/// Why a call gave nothing.
#[derive(thiserror::Error, Debug, Clone, PartialEq, Eq)]
pub enum CallError {
    /// There was nobody to send it to: nothing has been sent.
    #[error("the gateway cannot be reached: {0}")]
    Unreached(String),
    /// No answer: connection, TLS, timeout or size.
    #[error("the gateway did not answer: {0}")]
    NoAnswer(String),
    /// It said no.
    #[error("the gateway answered {status}: {message}")]
    Refused { status: u16, code: String, message: String },
}

impl CallError {
    /// Whether the same call may succeed a little later.
    pub fn is_transient(&self) -> bool {
        match self {
            CallError::Unreached(_) | CallError::NoAnswer(_) => true,
            CallError::Refused { status, .. } => matches!(status, 408 | 425 | 429 | 500..=599),
        }
    }
}

/// What is sent.
#[derive(Clone)]
pub struct Call<'c> {
    pub method: Method,
    pub path: String,
    pub token: Option<&'c Secret>,
    pub body: Bytes,
    pub content_type: &'static str,
    pub timeout: Duration,
}

impl Transport {
    /// `gateway` is `https://host[:port]`, `ca` PEM, `hosts` the text of a hosts file.
    pub fn new(gateway: &str, ca: &[u8], hosts: &str) -> Result<Self, String> {
        let uri: http::Uri = gateway.parse().map_err(|error| format!("--gateway {gateway}: {error}"))?;
        let host = uri.host().unwrap_or_default();
        if uri.scheme_str() != Some("https") || host.is_empty() || !matches!(uri.path(), "" | "/") {
            return Err(format!("--gateway {gateway}: must be https://host:port, without a path"));
        }
        let port = uri.port_u16().unwrap_or(443);
        let found: Vec<SocketAddr> = addresses(hosts, host).into_iter().map(|ip| SocketAddr::new(ip, port)).collect();
        let Some(address) = found.first().copied() else {
            return Err(format!("--gateway {gateway}: {host} is not in the hosts file, and there is no DNS in a sandbox"));
        };
        let certificates = reqwest::Certificate::from_pem_bundle(ca).map_err(|_| "ca.crt: is not PEM".to_owned())?;
        if certificates.is_empty() {
            return Err("ca.crt: holds no certificate".into());
        }
        // Its default is to send again what the gateway says it has not looked at, as one that is ending does, and nothing else.
        let client = reqwest::Client::builder()
            .tls_certs_only(certificates)
            .https_only(true)
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            .resolve_to_addrs(host, &found)
            .build()
            .map_err(|error| format!("the TLS client could not be made: {}", causes(&error)))?;
        Ok(Transport { client, base: gateway.trim_end_matches('/').to_owned(), address })
    }

    /// Where it connects to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// One call, one answer.
    pub async fn call(&self, call: &Call<'_>) -> Result<Answer, CallError> {
        self.call_for(call, MAX_ANSWER_BYTES).await
    }

    /// One call, an answer of at most so many bytes.
    async fn call_for(&self, call: &Call<'_>, most: usize) -> Result<Answer, CallError> {
        let mut request = self
            .client
            .request(call.method.clone(), format!("{}{}", self.base, call.path))
            .timeout(call.timeout)
            .header(header::CONTENT_TYPE, call.content_type)
            .body(call.body.clone());
        if let Some(token) = call.token {
            let value = token.bearer().map_err(|_| CallError::NoAnswer("the token is not fit for a header".into()))?;
            request = request.header(header::AUTHORIZATION, value);
        }
        let unanswered = |error: reqwest::Error| {
            let why = causes(&error);
            if error.is_connect() { CallError::Unreached(why) } else { CallError::NoAnswer(why) }
        };
        let mut response = request.send().await.map_err(unanswered)?;
        // In one piece where the size is known, since growing would take twice the memory.
        let announced = response.content_length().and_then(|length| usize::try_from(length).ok()).unwrap_or_default();
        let mut body = BytesMut::with_capacity(announced.min(most));
        while let Some(chunk) = response.chunk().await.map_err(|error| CallError::NoAnswer(causes(&error)))? {
            if body.len() + chunk.len() > most {
                return Err(CallError::NoAnswer(format!("the answer is over {} bytes", most)));
            }
            body.extend_from_slice(&chunk);
        }
        Ok(Answer { status: response.status(), headers: std::mem::take(response.headers_mut()), body: body.freeze() })
    }

    /// One call whose bodies stream both ways. The error says why there is no answer at all.
    pub async fn stream(
        &self,
        method: Method,
        path: &str,
        headers: http::HeaderMap,
        token: &Secret,
        body: reqwest::Body,
        timeout: Duration,
    ) -> Result<http::Response<reqwest::Body>, String> {
        let token = token.bearer().map_err(|_| "the token is not fit for a header".to_owned())?;
        let request = self.client.request(method, format!("{}{path}", self.base)).timeout(timeout).headers(headers);
        let answer = request.header(header::AUTHORIZATION, token).body(body).send().await.map_err(|error| causes(&error))?;
        Ok(answer.into())
    }
}

impl Answer {
    /// The body of a success, or the refusal.
    pub fn success(self) -> Result<Bytes, CallError> {
        if self.status.is_success() { Ok(self.body) } else { Err(self.refusal()) }
    }

    /// The error in the body, as far as there is one.
    pub fn refusal(&self) -> CallError {
        let (code, message) = match serde_json::from_slice::<ErrorBody>(&self.body) {
            Ok(body) => {
                let field = body.error.field.map(|field| format!("{field}: ")).unwrap_or_default();
                (body.error.code, format!("{field}{}", body.error.message))
            }
            Err(_) => (String::new(), self.status.canonical_reason().unwrap_or("no reason given").to_owned()),
        };
        let message = crate::clip::first_chars(&crate::clip::printable(&message), 500);
        CallError::Refused { status: self.status.as_u16(), code, message }
    }
}

/// The gateway, with the run's tokens.
#[derive(Clone)]
pub struct Gateway {
    pub transport: Transport,
    pub tokens: Arc<Tokens>,
}

impl Gateway {
    /// A call with the events token and a JSON answer, repeated while the failure is transient and `until` is not reached.
    pub async fn json<A: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
        until: Instant,
    ) -> Result<A, CallError> {
        self.json_as(Audience::Events, method, path, body, until).await
    }

    /// The same with the token for another audience.
    pub async fn json_as<A: DeserializeOwned>(
        &self,
        audience: Audience,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
        until: Instant,
    ) -> Result<A, CallError> {
        let body = body.map(serde_json::to_vec).transpose().map_err(|error| CallError::NoAnswer(error.to_string()))?;
        let answer = self.send_as(audience, method, path, body.unwrap_or_default().into(), "application/json", until).await?;
        let answer: &[u8] = if answer.is_empty() { b"null" } else { &answer };
        serde_json::from_slice(answer).map_err(|error| CallError::Refused {
            status: 200,
            code: "unreadable".into(),
            message: format!("its answer to {path} cannot be read: {error}"),
        })
    }

    /// The same with any bytes, for the body of a success.
    pub async fn send(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        content_type: &'static str,
        until: Instant,
    ) -> Result<Bytes, CallError> {
        self.send_as(Audience::Events, method, path, body, content_type, until).await
    }

    /// GET an answer of at most so many bytes with the events token, repeated as the others.
    pub async fn fetch(&self, path: &str, most: usize, until: Instant) -> Result<Bytes, CallError> {
        let mut again = Again::until(until);
        loop {
            let token = self.tokens.of(Audience::Events);
            let call = Call {
                method: Method::GET,
                path: path.to_owned(),
                token: Some(&token),
                body: Bytes::new(),
                content_type: "application/json",
                timeout: FETCH_TIMEOUT,
            };
            match self.transport.call_for(&call, most).await.and_then(Answer::success) {
                Err(error) if again.after(&error).await => {}
                other => return other,
            }
        }
    }

    async fn send_as(
        &self,
        audience: Audience,
        method: Method,
        path: &str,
        body: Bytes,
        content_type: &'static str,
        until: Instant,
    ) -> Result<Bytes, CallError> {
        let mut again = Again::until(until);
        loop {
            let token = self.tokens.of(audience);
            let call = Call {
                method: method.clone(),
                path: path.to_owned(),
                token: Some(&token),
                body: body.clone(),
                content_type,
                timeout: CALL_TIMEOUT,
            };
            match self.transport.call(&call).await.and_then(Answer::success) {
                Err(error) if again.after(&error).await => {}
                other => return other,
            }
        }
    }
}

/// When a transient failure is followed by another try: with growing pauses, until the time is up.
pub struct Again {
    until: Instant,
    pause: Duration,
}

impl Again {
    pub fn until(until: Instant) -> Self {
        Again { until, pause: FIRST_PAUSE }
    }

    /// Pause, and true; or false at once if there is to be no other try.
    pub async fn after(&mut self, error: &CallError) -> bool {
        if !error.is_transient() || Instant::now() + self.pause >= self.until {
            return false;
        }
        sleep(self.pause).await;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        true
    }
}

/// An error with what caused it; addresses and status, no headers.
fn causes(error: &reqwest::Error) -> String {
    let mut text = if error.is_timeout() { "timed out".to_owned() } else { "failed".to_owned() };
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    crate::clip::first_chars(&text, 300)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(status: u16) -> CallError {
        CallError::Refused { status, code: String::new(), message: String::new() }
    }

    #[tokio::test(start_paused = true)]
    async fn transient_failures_are_repeated_until_the_time_is_up() {
        let no_answer = CallError::NoAnswer("x".into());
        for (failures, expected_tries, ok) in [
            (vec![], 1, true),
            (vec![no_answer.clone(), refused(503), refused(429)], 4, true),
            (vec![refused(401)], 1, false),
            (vec![refused(500), refused(403)], 2, false),
            (vec![no_answer; 1000], 17, false),
        ] {
            let mut tries = 0;
            let mut failures = failures.into_iter();
            let mut again = Again::until(Instant::now() + Duration::from_secs(60));
            let outcome = loop {
                tries += 1;
                match failures.next().map_or(Ok(()), Err) {
                    Err(error) if again.after(&error).await => {}
                    other => break other,
                }
            };
            assert_eq!((tries, outcome.is_ok()), (expected_tries, ok));
        }
    }

    #[test]
    fn bad_gateways_are_refused_by_name() {
        for (gateway, part) in [
            ("http://gw:1", "must be https"),
            ("https://gw/path", "must be https"),
            ("gw:8443", "must be https"),
            ("https://other:1", "other is not in the hosts file"),
            ("https://gw:1", "ca.crt"),
        ] {
            let error = Transport::new(gateway, b"", "10.0.0.1 gw").err().unwrap();
            assert!(error.contains(part), "{error}");
        }
    }
}
