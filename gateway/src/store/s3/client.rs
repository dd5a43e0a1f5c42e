//! The requests. They are signed in their URLs, for a short time; no URL is ever logged.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, BodyStream, Empty, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rusty_s3::{Credentials, S3Action};
use tokio::time::{sleep, timeout};
use tokio_util::io::ReaderStream;

use super::failure::Failure;
use super::options::{Checked, ObjectOptions};
use crate::store::waiting::Waiting;
use crate::store::{BlobStream, StoreError};

const SIGNED_FOR: Duration = Duration::from_secs(900);
const CONNECT_TIME: Duration = Duration::from_secs(5);
/// For an answer's header, and between two pieces of a body.
const IDLE_TIME: Duration = Duration::from_secs(20);
/// A content that is sent more slowly is given up.
const SLOWEST_BYTES_PER_SECOND: u64 = 256 * 1024;
const TRIES: u32 = 4;
const FIRST_WAIT: Duration = Duration::from_millis(100);
const PIECE: usize = 64 * 1024;

type Body = UnsyncBoxBody<Bytes, std::io::Error>;

/// One bucket, or the part of it below a prefix. Cheap to clone.
#[derive(Clone)]
pub struct Bucket(Arc<Shared>);

struct Shared {
    http: Client<HttpsConnector<HttpConnector>, Body>,
    bucket: rusty_s3::Bucket,
    credentials: Credentials,
    prefix: String,
}

impl Bucket {
    /// Check the options, and that the bucket can be used. While the store does not answer this waits and says so.
    pub async fn open(options: &ObjectOptions, credentials: Credentials) -> Result<Self, StoreError> {
        let Checked { bucket, prefix, tls } = options.check()?;
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_nodelay(true);
        http.set_connect_timeout(Some(CONNECT_TIME));
        http.set_keepalive(Some(Duration::from_secs(30)));
        let https = HttpsConnectorBuilder::new().with_tls_config(tls);
        let https = if options.s3_allow_http { https.https_or_http() } else { https.https_only() };
        let http = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(Duration::from_secs(30))
            .build(https.enable_http1().wrap_connector(http));
        let bucket = Bucket(Arc::new(Shared { http, bucket, credentials, prefix }));
        bucket.wait().await?;
        Ok(bucket)
    }

    async fn wait(&self) -> Result<(), StoreError> {
        let mut waiting = Waiting::for_the("object store");
        loop {
            let sign = |shared: &Shared| shared.bucket.head_bucket(Some(&shared.credentials)).sign(SIGNED_FOR);
            let failure = match self.once(Method::HEAD, &sign, None).await {
                Ok(response) if response.status().is_success() => return Ok(()),
                Ok(response) => Failure::answered(response).await,
                Err(failure) => failure,
            };
            if !failure.is_passing() {
                return Err(failure.into_store_error(self.name()));
            }
            waiting.again(&failure.text(self.name())).await;
        }
    }

    fn name(&self) -> &str {
        self.0.bucket.name()
    }

    /// Store this file's bytes under a new name.
    pub async fn put(&self, object: &str, file: &Path, bytes: i64) -> Result<(), StoreError> {
        let bytes = u64::try_from(bytes).unwrap_or_default();
        let name = self.full(object);
        let sign = |shared: &Shared| shared.bucket.put_object(Some(&shared.credentials), &name).sign(SIGNED_FOR);
        let response = self.send(Method::PUT, &sign, Some((file, bytes))).await?;
        self.expect(response, &[StatusCode::OK, StatusCode::CREATED, StatusCode::NO_CONTENT]).await.map(drop)
    }

    /// An object's content; `None` if there is no such object.
    pub async fn get(&self, object: &str) -> Result<Option<BlobStream>, StoreError> {
        let name = self.full(object);
        let sign = |shared: &Shared| shared.bucket.get_object(Some(&shared.credentials), &name).sign(SIGNED_FOR);
        let response = self.send(Method::GET, &sign, None).await?;
        let response = self.expect(response, &[StatusCode::OK, StatusCode::NOT_FOUND]).await?;
        Ok((response.status() == StatusCode::OK).then(|| content(response.into_body())))
    }

    /// Whether there is such an object.
    pub async fn has(&self, object: &str) -> Result<bool, StoreError> {
        let name = self.full(object);
        let sign = |shared: &Shared| shared.bucket.head_object(Some(&shared.credentials), &name).sign(SIGNED_FOR);
        let response = self.send(Method::HEAD, &sign, None).await?;
        Ok(self.expect(response, &[StatusCode::OK, StatusCode::NOT_FOUND]).await?.status() == StatusCode::OK)
    }

    /// Delete an object. Repeating is harmless.
    pub async fn delete(&self, object: &str) -> Result<(), StoreError> {
        let name = self.full(object);
        let sign = |shared: &Shared| shared.bucket.delete_object(Some(&shared.credentials), &name).sign(SIGNED_FOR);
        let response = self.send(Method::DELETE, &sign, None).await?;
        self.expect(response, &[StatusCode::OK, StatusCode::NO_CONTENT, StatusCode::NOT_FOUND]).await.map(drop)
    }

    fn full(&self, object: &str) -> String {
        format!("{}{object}", self.0.prefix)
    }

    async fn expect(&self, response: Response<Incoming>, expected: &[StatusCode]) -> Result<Response<Incoming>, StoreError> {
        if expected.contains(&response.status()) {
            return Ok(response);
        }
        Err(Failure::answered(response).await.into_store_error(self.name()))
    }

    /// Ask, and again a few times while the store fails.
    async fn send<U: std::fmt::Display>(
        &self,
        method: Method,
        sign: &(impl Fn(&Shared) -> U + Sync),
        file: Option<(&Path, u64)>,
    ) -> Result<Response<Incoming>, StoreError> {
        let mut wait = FIRST_WAIT;
        for _ in 1..TRIES {
            let failure = match self.once(method.clone(), sign, file).await {
                Ok(response) if !response.status().is_server_error() && response.status() != StatusCode::TOO_MANY_REQUESTS => {
                    return Ok(response);
                }
                Ok(response) => Failure::answered(response).await,
                Err(failure) if failure.is_passing() => failure,
                Err(failure) => return Err(failure.into_store_error(self.name())),
            };
            tracing::debug!(error = failure.text(self.name()), "the object store failed; it is tried again");
            sleep(wait).await;
            wait *= 2;
        }
        self.once(method, sign, file).await.map_err(|failure| failure.into_store_error(self.name()))
    }

    async fn once<U: std::fmt::Display>(
        &self,
        method: Method,
        sign: &(impl Fn(&Shared) -> U + Sync),
        file: Option<(&Path, u64)>,
    ) -> Result<Response<Incoming>, Failure> {
        let url = sign(&self.0).to_string();
        let mut request = Request::new(Empty::new().map_err(|never| match never {}).boxed_unsync());
        *request.method_mut() = method;
        *request.uri_mut() = url.parse().map_err(|_| Failure::Unreachable("its URL cannot be used".into()))?;
        let mut time = IDLE_TIME;
        if let Some((path, bytes)) = file {
            let file = tokio::fs::File::open(path).await.map_err(Failure::File)?;
            *request.body_mut() = StreamBody::new(ReaderStream::with_capacity(file, PIECE).map_ok(Frame::data)).boxed_unsync();
            request.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(bytes));
            time += Duration::from_secs(bytes / SLOWEST_BYTES_PER_SECOND);
        }
        match timeout(time, self.0.http.request(request)).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(error)) => Err(Failure::unanswered(&error)),
            Err(_) => Err(Failure::Unreachable(format!("no answer within {} s", time.as_secs()))),
        }
    }
}

fn content(body: Incoming) -> BlobStream {
    let pieces = futures::stream::unfold(Some(BodyStream::new(body)), |body| async move {
        let mut body = body?;
        let broken = |why: String| StoreError::Failed(format!("the object store broke off an object: {why}"));
        match timeout(IDLE_TIME, body.next()).await {
            Ok(None) => None,
            Ok(Some(Ok(frame))) => Some((Ok(frame.into_data().unwrap_or_default()), Some(body))),
            Ok(Some(Err(error))) => Some((Err(broken(error.to_string())), None)),
            Err(_) => Some((Err(broken(format!("nothing came for {} s", IDLE_TIME.as_secs()))), None)),
        }
    });
    pieces.boxed()
}
