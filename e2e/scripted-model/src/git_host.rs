//! A git server for tests: git's own `http-backend` behind an HTTP router. What lies beneath `/private/` wants a credential.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use http_body_util::BodyExt;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use tokio::sync::watch;

const MAX_REQUEST_BYTES: usize = 1 << 20;

/// Cheap to clone.
#[derive(Clone)]
pub struct GitHost(Arc<Host>);

struct Host {
    root: PathBuf,
    /// `Authorization` that `/private/` wants.
    authorization: String,
    seen: Mutex<Vec<String>>,
    held: watch::Sender<bool>,
}

impl GitHost {
    /// Repositories are folders beneath `root`.
    pub fn new(root: &Path, authorization: impl Into<String>) -> Self {
        let (root, authorization) = (root.to_owned(), authorization.into());
        GitHost(Arc::new(Host { root, authorization, seen: Mutex::default(), held: watch::Sender::default() }))
    }

    pub fn router(&self) -> Router {
        Router::new().fallback(answer).with_state(self.clone())
    }

    /// Let requests wait for their answers, or answer those that wait.
    pub fn hold(&self, held: bool) {
        self.0.held.send_replace(held);
    }

    /// `METHOD path?query` of each request.
    pub fn seen(&self) -> Vec<String> {
        self.0.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Run git in a folder, with nobody's configuration. Panics where git fails: tests need it.
#[expect(clippy::panic, reason = "for tests")]
pub fn git(folder: &Path, arguments: &[&str]) -> String {
    let output = std::process::Command::new("git")
        .current_dir(folder)
        .args(["-c", "user.name=tester", "-c", "user.email=tester@localhost", "-c", "init.defaultBranch=main", "-c", "core.autocrlf=false"])
        .args(arguments)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .output();
    match output {
        Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout).trim().to_owned(),
        Ok(output) => panic!("git {arguments:?} in {}: {}", folder.display(), String::from_utf8_lossy(&output.stderr)),
        Err(error) => panic!("git {arguments:?}: {error}"),
    }
}

async fn answer(State(host): State<GitHost>, request: Request) -> Response {
    match host.serve(request).await {
        Ok(response) => response,
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

impl GitHost {
    async fn serve(&self, request: Request) -> anyhow::Result<Response> {
        let (parts, body) = request.into_parts();
        let (path, query) = (parts.uri.path().to_owned(), parts.uri.query().unwrap_or_default().to_owned());
        self.0.seen.lock().unwrap_or_else(PoisonError::into_inner).push(format!("{} {path}?{query}", parts.method));
        self.0.held.subscribe().wait_for(|held| !held).await?;
        let text = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
        if path.starts_with("/private/") && text("authorization") != self.0.authorization {
            let mut refused = Response::new(Body::from(format!("wrong credential: {}", text("authorization"))));
            *refused.status_mut() = StatusCode::UNAUTHORIZED;
            refused.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Basic realm=\"git\""));
            return Ok(refused);
        }
        let body =
            http_body_util::Limited::new(body, MAX_REQUEST_BYTES).collect().await.map_err(|error| anyhow::anyhow!(error))?.to_bytes();
        let mut backend = Command::new("git")
            .arg("http-backend")
            .env_clear()
            .env("PATH", std::env::var("PATH").unwrap_or_default())
            .env("GIT_PROJECT_ROOT", &self.0.root)
            .env("GIT_HTTP_EXPORT_ALL", "1")
            .env("GIT_CONFIG_COUNT", "1")
            .env("GIT_CONFIG_KEY_0", "safe.directory")
            .env("GIT_CONFIG_VALUE_0", "*")
            .env("REQUEST_METHOD", parts.method.as_str())
            .env("PATH_INFO", &path)
            .env("QUERY_STRING", &query)
            .env("CONTENT_TYPE", text("content-type"))
            .env("CONTENT_LENGTH", body.len().to_string())
            .env("GIT_PROTOCOL", text("git-protocol"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        if let Some(mut stdin) = backend.stdin.take() {
            // It may have read enough before the end.
            let _ = stdin.write_all(&body).await;
        }
        let output = backend.wait_with_output().await?.stdout;
        let end = output.windows(4).position(|four| four == b"\r\n\r\n").unwrap_or(output.len());
        let head = String::from_utf8_lossy(&output[..end]).into_owned();
        let mut response = Response::new(Body::from(output.get(end + 4..).unwrap_or_default().to_vec()));
        for line in head.lines() {
            let Some((name, value)) = line.split_once(": ") else { continue };
            match name {
                "Status" => *response.status_mut() = StatusCode::from_bytes(value.as_bytes().get(..3).unwrap_or_default())?,
                "Content-Type" => drop(response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_str(value)?)),
                _ => {}
            }
        }
        Ok(response)
    }
}
