//! A model server that speaks four dialects and replays scripts, with faults on demand: for the demo, the stories and the tests
//! of gateway and runner. The answer follows from the request alone, so a restart or a parallel run changes nothing;
//! only "fail the first k tries" and the bill are remembered.
//!
//! `POST /v1/chat/completions`, `/v1/responses`, `/v1/embeddings` (bearer key), `/v1/messages` and its `count_tokens` (`x-api-key`),
//! `/v1beta/models/{model}:generateContent`, `:streamGenerateContent?alt=sse` and `:countTokens` (`x-goog-api-key`); `GET /__bill` (tokens reported, by model), `GET /__seen[?model=…]` (last requests),
//! `GET /__wait?model=…&requests=N` (answers once so many have come), `POST /__script` (a script in JSON).

pub mod git_host;
mod ledger;
mod request;
mod script;
mod server;
mod wire;

pub use ledger::{Line, Seen};
pub use script::{Fault, FaultKind, Script, ToolCall, Turn, Usage};
pub use server::{ScriptedModel, parse_bill, request_body};

use axum::serve::ListenerExt;
use tokio::net::TcpListener;

/// How to serve.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Scripts besides the built-in ones, which they replace by name.
    pub scripts: Vec<Script>,
    /// The key to want; without one any key will do.
    pub key: Option<String>,
}

impl Options {
    fn model(self) -> ScriptedModel {
        ScriptedModel::new(Script::built_in().into_iter().chain(self.scripts), self.key)
    }
}

/// Serve until dropped.
pub async fn serve(listener: TcpListener, options: Options) -> std::io::Result<()> {
    serve_model(listener, &options.model()).await
}

async fn serve_model(listener: TcpListener, model: &ScriptedModel) -> std::io::Result<()> {
    let listener = listener.tap_io(|connection| {
        let _ = connection.set_nodelay(true); // a stream of small chunks
    });
    axum::serve(listener, model.router()).await
}

/// A server on a loopback port of its own that ends when this is dropped. For tests within a process.
pub struct Running {
    /// `http://127.0.0.1:<port>`
    pub url: String,
    pub model: ScriptedModel,
    task: tokio::task::JoinHandle<std::io::Result<()>>,
}

impl Running {
    /// Start.
    pub async fn start(options: Options) -> std::io::Result<Running> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let url = format!("http://{}", listener.local_addr()?);
        let model = options.model();
        let served = model.clone();
        let task = tokio::spawn(async move { serve_model(listener, &served).await });
        Ok(Running { url, model, task })
    }

    /// The URL for a ModelProvider of OpenAI chat/completions. The other dialects' are at their usual places below `url`.
    pub fn completions(&self) -> String {
        format!("{}/v1/chat/completions", self.url)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}
