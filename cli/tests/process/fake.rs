//! A local fake of the wire: API server and aggregated API on one plain HTTP port, scripted by a function, with a record of
//! what was asked; and the program as a process against it.

use std::process::{Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Method, Request, Response, StatusCode};
use futures::stream::{self, StreamExt};
use serde_json::{Value, json};
use tokio::process::Command;

/// No command of a test takes longer.
const LONGEST: Duration = Duration::from_secs(60);

/// One request as it came.
#[derive(Clone, Debug)]
pub struct Asked {
    pub method: Method,
    /// With the query.
    pub path: String,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Asked {
    pub fn is(&self, method: &str, part: &str) -> bool {
        self.method == method && self.path.contains(part)
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).expect("a JSON body")
    }
}

/// What is answered.
pub struct Answer {
    pub status: u16,
    pub pieces: Vec<Piece>,
}

/// Of a body.
pub enum Piece {
    Bytes(Bytes),
    /// The connection breaks.
    Cut,
    /// Nothing follows, and it stays open.
    Silence,
    Pause(Duration),
}

impl Answer {
    pub fn json(status: u16, value: &Value) -> Self {
        Answer { status, pieces: vec![Piece::Bytes(value.to_string().into())] }
    }

    pub fn text(status: u16, text: impl Into<Bytes>) -> Self {
        Answer { status, pieces: vec![Piece::Bytes(text.into())] }
    }

    pub fn pieces(pieces: Vec<Piece>) -> Self {
        Answer { status: 200, pieces }
    }

    /// As the gateway refuses.
    pub fn refusal(status: u16, code: &str, message: &str) -> Self {
        Answer::json(status, &json!({ "error": { "code": code, "message": message } }))
    }

    /// As the API server refuses.
    pub fn status(status: u16, reason: &str, message: &str) -> Self {
        Answer::json(
            status,
            &json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "message": message, "code": status }),
        )
    }
}

/// The script: the request and how many like it (same method and path before the query) came before.
type Script = dyn Fn(&Asked, usize) -> Answer + Send + Sync;

struct Shared {
    script: Box<Script>,
    asked: Mutex<Vec<Asked>>,
}

pub struct Fake {
    shared: Arc<Shared>,
    folder: tempfile::TempDir,
    pub port: u16,
}

impl Fake {
    pub async fn new(script: impl Fn(&Asked, usize) -> Answer + Send + Sync + 'static) -> Self {
        let shared = Arc::new(Shared { script: Box::new(script), asked: Mutex::default() });
        let router = Router::new().fallback(answer).with_state(shared.clone());
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        tokio::spawn(async move { axum::serve(listener, router).await });
        let fake = Fake { shared, folder: tempfile::tempdir().expect("a folder"), port };
        fake.user(&json!({ "token": "secret" }));
        fake
    }

    /// The user of the kubeconfig.
    pub fn user(&self, user: &Value) {
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{ "name": "c", "cluster": { "server": format!("http://127.0.0.1:{}", self.port) } }],
            "users": [{ "name": "u", "user": user }],
            "contexts": [
                { "name": "c", "context": { "cluster": "c", "user": "u", "namespace": "team-a" } },
                { "name": "other", "context": { "cluster": "c", "user": "u" } },
            ],
        });
        std::fs::write(self.path("kubeconfig"), config.to_string()).expect("written");
    }

    pub fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    pub fn asked(&self) -> Vec<Asked> {
        self.shared.asked.lock().expect("no panic").clone()
    }

    /// The program; a test never asks the developer's own cluster.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kubectl-agentrun"));
        self.prepare(&mut command);
        command.args(arguments);
        command
    }

    pub fn prepare(&self, command: &mut Command) {
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.folder.path())
            .env("KUBECONFIG", self.path("kubeconfig"))
            .current_dir(self.folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
    }

    pub async fn run(&self, arguments: &[&str]) -> Ended {
        let output = tokio::time::timeout(LONGEST, self.command(arguments).output()).await;
        Ended::of(output.expect("it ends in time").expect("it starts"))
    }
}

/// How the program ended.
#[derive(Debug)]
pub struct Ended {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Ended {
    fn of(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
        Ended { code: output.status.code().expect("it exits by itself"), stdout: text(output.stdout), stderr: text(output.stderr) }
    }

    /// Ended so, or the test fails with what it said.
    pub fn with(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{self:#?}");
        self
    }

    pub fn says(self, part: &str) -> Self {
        assert!(self.stderr.contains(part), "{part:?} is not in {self:#?}");
        self
    }
}

async fn answer(State(shared): State<Arc<Shared>>, request: Request<Body>) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, 64 * 1024 * 1024).await.unwrap_or_default();
    let path = parts.uri.path_and_query().map(|path| path.to_string()).unwrap_or_default();
    let asked = Asked { method: parts.method, path, headers: parts.headers, body };
    let before = {
        let mut all = shared.asked.lock().expect("no panic");
        let same = |other: &&Asked| other.method == asked.method && place(&other.path) == place(&asked.path);
        let before = all.iter().filter(same).count();
        all.push(asked.clone());
        before
    };
    let answer = (shared.script)(&asked, before);
    let pieces = stream::iter(answer.pieces).then(|piece| async {
        match piece {
            Piece::Bytes(bytes) => Ok(bytes),
            Piece::Cut => {
                // What came before must be on its way, or the client sees nothing of it.
                tokio::time::sleep(Duration::from_millis(20)).await;
                Err(std::io::Error::other("cut"))
            }
            Piece::Silence => std::future::pending().await,
            Piece::Pause(time) => {
                tokio::time::sleep(time).await;
                Ok(Bytes::new())
            }
        }
    });
    let mut response = Response::new(Body::from_stream(pieces));
    *response.status_mut() = StatusCode::from_u16(answer.status).expect("a status");
    response
}

fn place(path: &str) -> &str {
    path.split('?').next().unwrap_or(path)
}

/// An AgentRun.
pub fn run(name: &str, status: Value) -> Value {
    json!({
        "apiVersion": "agentrun.dev/v1alpha1", "kind": "AgentRun",
        "metadata": { "name": name, "namespace": "team-a", "uid": format!("uid-{name}"), "resourceVersion": "7", "creationTimestamp": "2026-01-01T00:00:00Z" },
        "spec": { "instruction": "x", "source": { "inline": { "files": [{ "path": "a", "content": "x" }] } }, "model": "small" },
        "status": status,
    })
}

/// The status of a run that has ended.
pub fn ended(phase: &str, reason: &str) -> Value {
    json!({
        "phase": phase, "finishedAt": "2026-01-01T00:01:00Z",
        "conditions": [{ "type": "Complete", "status": "True", "reason": reason, "message": format!("it ended with {reason}"), "lastTransitionTime": "2026-01-01T00:01:00Z" }],
    })
}

/// One NDJSON line.
pub fn event(seq: i64, kind: &str, data: &Value) -> String {
    format!("{}\n", json!({ "seq": seq, "time": "2026-01-01T00:00:00.000Z", "type": kind, "data": data }))
}
