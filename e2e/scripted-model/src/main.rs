//! The scripted model as a process.

use std::path::PathBuf;

use agentrun_scripted_model::{Options, Script, serve};
use anyhow::Context;
use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};

/// An OpenAI-compatible model that replays scripts.
#[derive(Parser)]
struct Arguments {
    /// Address to listen on.
    #[arg(long, default_value = "127.0.0.1:8080")]
    listen: String,
    /// Directory of further scripts, one JSON file each.
    #[arg(long)]
    scripts: Option<PathBuf>,
    /// Bearer key that clients must send; without it any key will do.
    #[arg(long, env = "SCRIPTED_MODEL_KEY", hide_env_values = true)]
    key: Option<String>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let arguments = Arguments::parse();
    let mut scripts = Vec::new();
    for entry in arguments.scripts.iter().map(std::fs::read_dir).collect::<Result<Vec<_>, _>>().context("--scripts")?.into_iter().flatten()
    {
        let path = entry.context("--scripts")?.path();
        if path.extension().is_some_and(|extension| extension == "json") {
            let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
            scripts.push(Script::parse(&text).map_err(anyhow::Error::msg).with_context(|| format!("{}", path.display()))?);
        }
    }
    let listener = tokio::net::TcpListener::bind(&arguments.listen).await.with_context(|| format!("--listen {}", arguments.listen))?;
    tracing::info!(address = %arguments.listen, "serving");
    // As process 1 of a container nothing ends it unless it does so itself.
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        served = serve(listener, Options { scripts, key: arguments.key }) => served.context("serving"),
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
    }
}
