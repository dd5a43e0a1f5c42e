//! The loopback port that an agent's model calls and questions come to. Everything in the executor can reach it, so whoever
//! connects is hostile: paths, headers, bodies and connections are bounded, and nothing of what it sends is believed.

use std::{convert::Infallible, io, net::Ipv4Addr, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::json;
use tokio::{net::TcpListener, sync::Semaphore, task::JoinSet, time::sleep};

use super::{forward::Forward, hook::Hook, model_routes, recipe::HOOK_PATH};

/// Connections at once; further ones wait.
const MAX_CONNECTIONS: usize = 32;
const HEADER_PATIENCE: Duration = Duration::from_secs(30);
const MAX_HEADERS: usize = 64;
/// Buffer of one connection; a header must fit.
const BUFFER_BYTES: usize = 64 * 1024;
/// When no connection can be accepted, such as for want of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// What is sent back.
pub type Body = UnsyncBoxBody<Bytes, Box<dyn std::error::Error + Send + Sync>>;

/// A port that is bound, and not served yet.
#[derive(Clone)]
pub struct Port {
    listener: Arc<TcpListener>,
    url: String,
}

impl Port {
    /// Bind a port that nobody else has. To be done before anything of the source is in the sandbox.
    pub async fn bind() -> io::Result<Port> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let url = format!("http://{}", listener.local_addr()?);
        Ok(Port { listener: Arc::new(listener), url })
    }

    /// `http://127.0.0.1:port`
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Serve until dropped; with this every connection ends.
    pub async fn serve(self, doors: Arc<Doors>) {
        let connections = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let mut open = JoinSet::new();
        loop {
            while open.try_join_next().is_some() {}
            let Ok(permit) = connections.clone().acquire_owned().await else { return };
            let Ok((stream, _)) = self.listener.accept().await else {
                sleep(PAUSE).await;
                continue;
            };
            let _ = stream.set_nodelay(true);
            let doors = doors.clone();
            open.spawn(async move {
                let service = service_fn(|request| doors.answer(request));
                let _ = http1::Builder::new()
                    .timer(TokioTimer::new())
                    .header_read_timeout(HEADER_PATIENCE)
                    .max_headers(MAX_HEADERS)
                    .max_buf_size(BUFFER_BYTES)
                    .serve_connection(TokioIo::new(stream), service)
                    .await;
                drop(permit);
            });
        }
    }
}

/// What is behind the port.
pub struct Doors {
    pub model: Forward,
    pub hook: Option<Hook>,
}

impl Doors {
    async fn answer(&self, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
        if request.method() == http::Method::POST
            && request.uri().path() == HOOK_PATH
            && let Some(hook) = &self.hook
        {
            return Ok(json_answer(StatusCode::OK, hook.answer(request.into_body()).await));
        }
        Ok(match model_routes::target(self.model.dialect, request.method(), request.uri()) {
            Some(target) => self.model.forward(target, request).await,
            None => refusal(StatusCode::NOT_FOUND, "not_found", "only the model routes of this agent's dialect are served here"),
        })
    }
}

/// An error of ours in the form that clients of model APIs read, not to be tried again.
pub fn refusal(status: StatusCode, code: &str, message: &str) -> Response<Body> {
    let error = json!({"type": "error", "error": {"type": "invalid_request_error", "code": code, "message": message}});
    let mut response = json_answer(status, error.to_string());
    response.headers_mut().insert("x-should-retry", http::HeaderValue::from_static("false"));
    response
}

fn json_answer(status: StatusCode, text: String) -> Response<Body> {
    let mut response = Response::new(whole(text.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
    response
}

/// A body that is there already.
pub fn whole(bytes: Bytes) -> Body {
    Full::new(bytes).map_err(|never: Infallible| match never {}).boxed_unsync()
}
