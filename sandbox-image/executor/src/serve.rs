//! `serve`: one connection to the runner, one stream of envelopes, until it ends. Then everything that runs is killed.

use std::{
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use agentrun_protocol::executor::{self, Envelope, Hello, Kind, MAX_FRAME_BYTES, worker_client::WorkerClient};
use anyhow::{Context, bail};
use hyper_util::rt::TokioIo;
use prost::Message;
use rustix::process::{DumpableBehavior, Resource, Rlimit};
use tokio::{
    net::UnixStream,
    signal::unix::{SignalKind, signal},
    sync::mpsc,
    time::{Instant, sleep, timeout},
};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::task::TaskTracker;
use tonic::transport::Endpoint;

use crate::{
    environment,
    failure::{Failure, IO, TOO_LARGE},
    methods::{self, Executor},
    request::{Table, lock},
    workspace::Workspace,
};

const SOCKET_PATIENCE: Duration = Duration::from_secs(120);
const SOCKET_POLL: Duration = Duration::from_millis(10);
/// Orphans that ended are taken away so often.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
/// How long the end waits for requests to clean up after themselves.
const END_PATIENCE: Duration = Duration::from_secs(15);
/// How long process 1 of a container waits to be ended after the connection has.
const LAST_PATIENCE: Duration = Duration::from_secs(60);
const OPEN_FILES: u64 = 65_536;
/// Frames that wait for the connection.
const QUEUED_FRAMES: usize = 32;

/// Serve until the connection ends, which is an error, or SIGTERM, which is not.
pub fn run(socket: &Path, root: &Path, home: Option<&Path>) -> anyhow::Result<()> {
    confine()?;
    let root = root.canonicalize().with_context(|| format!("--root {}", root.display()))?;
    let workspace = Workspace::open(&root).with_context(|| format!("--root {}", root.display()))?;
    let environment = environment::base(&root, home, |name| std::env::var_os(name));
    let home = match home {
        Some(home) => Some(Workspace::open(home).with_context(|| format!("--home {}", home.display()))?),
        None => None,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let outcome = runtime.block_on(serve(socket, Executor::new(workspace, home, environment)));
    runtime.shutdown_background();
    outcome
}

/// Adopt orphans, be no debugger's target, dump no core, and allow as many open files as the container may have.
fn confine() -> anyhow::Result<()> {
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).context("cannot adopt orphans")?;
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable).context("cannot switch off dumps")?;
    let files = rustix::process::getrlimit(Resource::Nofile);
    let current = files.maximum.map_or(OPEN_FILES, |maximum| maximum.min(OPEN_FILES));
    let _ = rustix::process::setrlimit(Resource::Nofile, Rlimit { current: Some(current), ..files });
    Ok(())
}

async fn serve(socket: &Path, executor: Executor) -> anyhow::Result<()> {
    let mut terminated = signal(SignalKind::terminate())?;
    tokio::select! {
        _ = terminated.recv() => Ok(()),
        connected = connect(socket) => {
            let executor = Arc::new(executor);
            let table = Arc::new(Table::default());
            let handlers = TaskTracker::new();
            let outcome = tokio::select! {
                _ = terminated.recv() => Ok(()),
                outcome = converse(connected?, &executor, &table, &handlers) => outcome,
                () = sweep_at_intervals(&executor) => Ok(()),
            };
            table.cancel_all();
            handlers.close();
            let _ = timeout(END_PATIENCE, handlers.wait()).await;
            executor.strays.sweep().await;
            if outcome.is_err() && std::process::id() == 1 {
                // The runner is done and the kubelet about to end us. A container that ends by itself would be started again,
                // and the Pod be held up for that.
                let _ = timeout(LAST_PATIENCE, terminated.recv()).await;
            }
            outcome
        }
    }
}

async fn sweep_at_intervals(executor: &Executor) {
    loop {
        sleep(SWEEP_INTERVAL).await;
        executor.strays.sweep().await;
    }
}

/// The runner binds its socket early, but the two containers start side by side.
async fn connect(socket: &Path) -> anyhow::Result<UnixStream> {
    let until = Instant::now() + SOCKET_PATIENCE;
    loop {
        match UnixStream::connect(socket).await {
            Ok(stream) => return Ok(stream),
            Err(error) if Instant::now() >= until => {
                return Err(error).with_context(|| format!("no runner at --socket {}", socket.display()));
            }
            Err(_) => sleep(SOCKET_POLL).await,
        }
    }
}

/// Open the stream and answer what comes down it. Only returns when it has ended.
async fn converse(stream: UnixStream, executor: &Arc<Executor>, table: &Arc<Table>, handlers: &TaskTracker) -> anyhow::Result<()> {
    // The connection is handed out once: a lost one is never quietly replaced.
    let stream = Mutex::new(Some(stream));
    let connector = tower::service_fn(move |_| {
        let stream = lock(&stream).take().map(TokioIo::new);
        async move { stream.ok_or_else(|| std::io::Error::other("the one connection has been used")) }
    });
    let channel = Endpoint::from_static("http://runner.invalid")
        .initial_stream_window_size(1024 * 1024)
        .initial_connection_window_size(4 * 1024 * 1024)
        .connect_with_connector(connector)
        .await
        .context("cannot speak to the runner")?;
    let mut client = WorkerClient::new(channel).max_decoding_message_size(MAX_FRAME_BYTES).max_encoding_message_size(MAX_FRAME_BYTES);

    let (out, frames) = mpsc::channel(QUEUED_FRAMES);
    let hello = Hello { version: 1, methods: methods::ALL.iter().map(|name| (*name).to_owned()).collect() };
    out.send(Envelope { payload: hello.encode_to_vec(), kind: Kind::Hello.into(), ..Envelope::default() }).await?;
    let mut incoming = client.serve(ReceiverStream::new(frames)).await.context("the runner refused the stream")?.into_inner();
    loop {
        let envelope = match incoming.message().await {
            Ok(Some(envelope)) => envelope,
            Ok(None) => bail!("the runner ended the stream"),
            Err(status) => bail!("the stream broke: {}", status.message()),
        };
        match envelope.kind() {
            Kind::Request => begin(executor, table, handlers, &out, envelope),
            Kind::Chunk => table.chunk(envelope.id, envelope.payload),
            Kind::Cancel => table.cancel(envelope.id),
            Kind::Credit => {
                if let Ok(credit) = executor::Credit::decode(envelope.payload.as_slice()) {
                    table.credit(envelope.id, credit.bytes);
                }
            }
            Kind::Response | Kind::Error | Kind::Hello => {}
        }
    }
}

/// Answer a request on a task of its own.
fn begin(executor: &Arc<Executor>, table: &Arc<Table>, handlers: &TaskTracker, out: &mpsc::Sender<Envelope>, envelope: Envelope) {
    let id = envelope.id;
    let request = table.open(id, out.clone()).map(Arc::new);
    let (executor, table, out, tracker) = (executor.clone(), table.clone(), out.clone(), handlers.clone());
    handlers.spawn(async move {
        let entered = request.is_ok();
        let answer = match request {
            // A task inside the task: a handler that panics is an answer too.
            Ok(request) => match tracker.spawn(async move { executor.answer(request, &envelope).await }).await {
                Ok(answer) => answer,
                Err(_) => Err(Failure::new(IO, "the request failed inside the executor")),
            },
            Err(failure) => Err(failure),
        };
        if entered {
            table.close(id);
        }
        let answer = match answer {
            Ok(payload) if payload.len() > MAX_FRAME_BYTES - 1024 => Err(Failure::new(TOO_LARGE, "the answer does not fit a frame")),
            other => other,
        };
        let answer = match answer {
            Ok(payload) => Envelope { id, payload, kind: Kind::Response.into(), ..Envelope::default() },
            Err(failure) => Envelope { id, kind: Kind::Error.into(), error: Some(failure.into_error()), ..Envelope::default() },
        };
        let _ = out.send(answer).await;
    });
}
