//! One request to a provider and the bounded reading of its answer. Headers are built from nothing; only here is the key used.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Request, Response, Uri, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use tokio::time::{Instant, timeout, timeout_at};

use super::provider::Provider;
use super::providers::{KeyError, Providers};
use crate::budget::Dispatched;
use crate::places::{Place, Places};

/// Why there is no answer.
#[derive(Debug)]
pub enum Failure {
    NoKey(KeyError),
    /// No connection: nothing was sent.
    NotSent,
    /// It was sent, and the provider says that it has not looked at it.
    Unprocessed,
    /// It may have been sent, and may be billed.
    Lost,
    /// The same, and no header came in time.
    Slow,
}

/// What is sent, but for the key.
pub struct Outgoing {
    pub uri: Uri,
    pub headers: HeaderMap,
    pub body: Bytes,
    pub stream: bool,
}

/// Send and wait for the header.
pub async fn send(
    providers: &Providers,
    provider: &Provider,
    dispatched: &Dispatched,
    outgoing: Outgoing,
) -> Result<Response<Incoming>, Failure> {
    let Outgoing { uri, headers, body, stream } = outgoing;
    let (name, key) = providers.key(provider, dispatched).await.map_err(Failure::NoKey)?;
    let accept = if stream { "text/event-stream" } else { "application/json" };
    let mut request = Request::new(Full::new(body));
    *request.method_mut() = http::Method::POST;
    *request.uri_mut() = uri;
    *request.headers_mut() = headers;
    let headers = request.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::ACCEPT, HeaderValue::from_static(accept));
    headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    headers.insert(header::USER_AGENT, HeaderValue::from_static("agentrun-gateway"));
    headers.insert(name, key);
    let wait = provider.timeouts.connect + provider.timeouts.first_byte;
    match timeout(wait, provider.client.request(request)).await {
        Ok(Ok(response)) => Ok(response),
        Ok(Err(error)) if error.is_connect() => {
            tracing::warn!(provider = provider.name, error = cause(&error), "a provider could not be reached");
            Err(Failure::NotSent)
        }
        Ok(Err(error)) => {
            tracing::warn!(provider = provider.name, error = cause(&error), "the connection to a provider was lost");
            Err(if is_unprocessed(&error) { Failure::Unprocessed } else { Failure::Lost })
        }
        Err(_) => Err(Failure::Slow),
    }
}

/// Whether the provider closed an HTTP/2 connection in order with this request beyond the last that it took, or refused its stream.
/// (An HTTP/1 connection that was closed while idle is found out before anything is sent, and the pool takes another.)
fn is_unprocessed(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut sources = std::iter::successors(Some(error), |error| error.source());
    let Some(error) = sources.find_map(|error| error.downcast_ref::<h2::Error>()).filter(|error| error.is_remote()) else { return false };
    (error.is_go_away() && error.reason() == Some(h2::Reason::NO_ERROR))
        || (error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM))
}

/// The innermost error's text; the outer ones may carry the URL.
fn cause(error: &dyn std::error::Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

/// Whether the answer is plain bytes of the expected media type.
pub fn is_media_type(headers: &HeaderMap, expected: &str) -> bool {
    let plain = headers.get(header::CONTENT_ENCODING).is_none_or(|encoding| encoding == "identity");
    let media = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let media = media.split(';').next().unwrap_or_default().trim();
    plain && media.eq_ignore_ascii_case(expected)
}

/// Why a body was not read to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadError {
    TooLarge,
    TimedOut,
    Broken,
}

/// The next chunk; `None` at a clean end.
pub async fn next_chunk(body: &mut Incoming, idle: Duration, deadline: Instant) -> Result<Option<Bytes>, ReadError> {
    loop {
        let frame = match timeout_at(deadline.min(Instant::now() + idle), body.frame()).await {
            Err(_) => return Err(ReadError::TimedOut),
            Ok(None) => return Ok(None),
            Ok(Some(Err(_))) => return Err(ReadError::Broken),
            Ok(Some(Ok(frame))) => frame,
        };
        if let Ok(chunk) = frame.into_data() {
            return Ok(Some(chunk)); // else trailers, which nobody needs
        }
    }
}

/// Up to so many bytes a body needs no place of the large ones.
const SMALL: usize = 256 * 1024;

/// Where large bodies wait, and for whom.
pub struct Large<'a> {
    pub places: &'a Places,
    pub key: &'a str,
}

/// A large body with its place, which is free again when the last of its bytes has gone.
struct Held {
    bytes: BytesMut,
    _place: Place,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// A whole body within the cap and the times. A large one is read on when there is a place for it: until then it waits at the
/// provider.
pub async fn collect(mut body: Incoming, cap: usize, idle: Duration, deadline: Instant, large: Large<'_>) -> Result<Bytes, ReadError> {
    let mut collected = BytesMut::new();
    let mut place = None;
    while let Some(chunk) = next_chunk(&mut body, idle, deadline).await? {
        if collected.is_empty() && chunk.len() <= cap && hyper::body::Body::is_end_stream(&body) {
            return Ok(chunk); // the common case: no copy
        }
        if collected.len() + chunk.len() > cap {
            return Err(ReadError::TooLarge);
        }
        if place.is_none() && collected.len() + chunk.len() > SMALL {
            place = Some(timeout_at(deadline, large.places.enter(large.key)).await.map_err(|_| ReadError::TimedOut)?);
            // All at once, so that it is not copied as it grows; the kernel gives what is used.
            collected.reserve(cap - collected.len());
        }
        collected.extend_from_slice(&chunk);
    }
    Ok(match place {
        None => collected.freeze(),
        Some(place) => Bytes::from_owner(Held { bytes: collected, _place: place }),
    })
}

/// The provider's own word for an error, if it is one that the client may see.
pub fn known_error_code(body: &[u8]) -> Option<&'static str> {
    #[derive(serde::Deserialize)]
    struct Outer {
        error: Inner,
    }
    #[derive(serde::Deserialize)]
    struct Inner {
        code: Option<String>,
    }
    let code = serde_json::from_slice::<Outer>(body).ok()?.error.code?;
    (code == "context_length_exceeded").then_some("context_length_exceeded")
}
