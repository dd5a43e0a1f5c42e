//! The executor's connection: a Unix socket that takes one connection ever, on which the executor opens one stream. Requests
//! are told apart by id; what the other end may send unasked is bounded, since it is hostile.

use std::{
    collections::HashMap,
    io,
    os::unix::fs::PermissionsExt,
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use agentrun_protocol::executor::{
    self, Envelope, Hello, INITIAL_CREDIT_BYTES, Kind, MAX_FRAME_BYTES,
    worker_server::{Worker, WorkerServer},
};
use prost::Message;
use tokio::{
    net::UnixListener,
    sync::{Notify, Semaphore, mpsc, oneshot},
    time::timeout,
};
use tokio_stream::{StreamExt, wrappers::UnboundedReceiverStream};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

const HELLO_PATIENCE: Duration = Duration::from_secs(30);
/// What an executor may send for one request above the credit it was given: frames without data, headers.
const SLACK_BYTES: u64 = 64 * 1024;
/// Counted for every frame besides its data, so that empty ones are bounded too.
const FRAME_COST: u64 = 64;

/// A socket that waits for the executor.
pub struct Listening(UnixListener);

/// Bind the socket. It must not exist: nobody else may have made it.
pub fn listen(path: &Path) -> io::Result<Listening> {
    let listener = UnixListener::bind(path)?;
    // Another user connects. That only the executor sees the directory is the wall, not the mode.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666))?;
    Ok(Listening(listener))
}

impl Listening {
    /// Take the one connection and wait until the executor says what it can do. The socket is closed for good.
    pub async fn accept(self, patience: Duration) -> Result<(Arc<Connection>, Hello), String> {
        let (stream, _) = timeout(patience, self.0.accept())
            .await
            .map_err(|_| format!("the executor did not connect within {} s", patience.as_secs()))?
            .map_err(|error| format!("the executor's connection could not be taken: {error}"))?;
        drop(self.0);
        let (out, frames) = mpsc::unbounded_channel();
        let connection = Arc::new(Connection {
            next: AtomicU64::new(1),
            calls: Mutex::default(),
            out: Mutex::new(Some(out)),
            lost: CancellationToken::new(),
            quiet: Notify::new(),
        });
        let (hello_sender, hello) = oneshot::channel();
        let service = Service(Mutex::new(Some(Opening { connection: connection.clone(), frames, hello: hello_sender })));
        let server = WorkerServer::new(service).max_decoding_message_size(MAX_FRAME_BYTES).max_encoding_message_size(MAX_FRAME_BYTES);
        let incoming = tokio_stream::once(io::Result::Ok(stream)).chain(tokio_stream::pending());
        let lost = connection.lost.clone();
        tokio::spawn(
            tonic::transport::Server::builder()
                .initial_stream_window_size(1024 * 1024)
                .initial_connection_window_size(4 * 1024 * 1024)
                .add_service(server)
                .serve_with_incoming_shutdown(incoming, async move { lost.cancelled().await }),
        );
        let hello = timeout(HELLO_PATIENCE, hello).await.map_err(|_| "the executor said nothing".to_owned())?;
        let hello = hello.map_err(|_| "the executor's first frame was not its hello".to_owned())?;
        Ok((connection, hello))
    }
}

/// Where requests go.
pub struct Connection {
    next: AtomicU64,
    calls: Mutex<HashMap<u64, Open>>,
    /// Taken away when the connection is lost, which ends the stream.
    out: Mutex<Option<mpsc::UnboundedSender<Result<Envelope, Status>>>>,
    lost: CancellationToken,
    /// Told when the last request that was in progress has been answered.
    quiet: Notify,
}

struct Open {
    /// `None`: given up and cancelled; only its last frame is awaited.
    frames: Option<mpsc::UnboundedSender<Frame>>,
    /// Bytes received that the caller has not taken yet.
    owed: Arc<AtomicU64>,
    /// Bytes that the executor will still take.
    credit: Arc<Semaphore>,
}

/// What came for a request.
#[derive(Debug)]
pub enum Frame {
    Chunk(Vec<u8>),
    Done(Vec<u8>),
    Failed(executor::Error),
}

impl Connection {
    /// Begin a request. It is cancelled when the call is dropped unanswered.
    pub fn call(self: &Arc<Self>, method: &str, payload: Vec<u8>) -> Call {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, frames) = mpsc::unbounded_channel();
        let owed = Arc::new(AtomicU64::new(0));
        let credit = Arc::new(Semaphore::new(INITIAL_CREDIT_BYTES as usize));
        lock(&self.calls).insert(id, Open { frames: Some(sender), owed: owed.clone(), credit: credit.clone() });
        if self.lost.is_cancelled() {
            lock(&self.calls).remove(&id);
            credit.close();
        }
        let call = Call { connection: self.clone(), id, frames, owed, credit };
        call.send(Kind::Request, method, payload);
        call
    }

    /// End the connection. Whoever waits for an answer gets none.
    pub fn close(&self) {
        self.lost.cancel();
        lock(&self.out).take();
        let mut calls = lock(&self.calls);
        calls.drain().for_each(|(_, open)| open.credit.close());
        self.settled(&calls);
    }

    /// Resolves when the connection is lost.
    pub async fn closed(&self) {
        self.lost.cancelled().await;
    }

    /// Wait until every request has been answered, also those that were cancelled. False: not in time.
    pub async fn quiet(&self, patience: Duration) -> bool {
        let quiet = async {
            loop {
                let notified = self.quiet.notified();
                if lock(&self.calls).is_empty() {
                    return;
                }
                notified.await;
            }
        };
        timeout(patience, quiet).await.is_ok()
    }

    fn send(&self, envelope: Envelope) {
        if let Some(out) = lock(&self.out).as_ref() {
            let _ = out.send(Ok(envelope));
        }
    }

    fn settled(&self, calls: &HashMap<u64, Open>) {
        if calls.is_empty() {
            self.quiet.notify_waiters();
        }
    }

    /// False: the executor broke the rules.
    fn receive(&self, envelope: Envelope) -> bool {
        let mut calls = lock(&self.calls);
        // Nobody asked for it, but late frames are no offence.
        let Some(open) = calls.get(&envelope.id) else { return envelope.kind() != Kind::Hello };
        let frame = match envelope.kind() {
            Kind::Chunk => Frame::Chunk(envelope.payload),
            Kind::Response => Frame::Done(envelope.payload),
            Kind::Error => Frame::Failed(envelope.error.unwrap_or_default()),
            Kind::Credit => {
                let granted = executor::Credit::decode(envelope.payload.as_slice()).map_or(0, |credit| credit.bytes);
                let room = (1usize << 30).saturating_sub(open.credit.available_permits());
                open.credit.add_permits(usize::try_from(granted).unwrap_or(usize::MAX).min(room));
                return true;
            }
            Kind::Request | Kind::Cancel | Kind::Hello => return false,
        };
        let bytes = cost(&frame);
        let owed = open.owed.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let last = !matches!(frame, Frame::Chunk(_));
        if let Some(frames) = &open.frames {
            let _ = frames.send(frame);
        }
        if last {
            open.credit.close();
            calls.remove(&envelope.id);
            self.settled(&calls);
        }
        owed <= INITIAL_CREDIT_BYTES + MAX_FRAME_BYTES as u64 + SLACK_BYTES
    }
}

fn cost(frame: &Frame) -> u64 {
    let data = match frame {
        Frame::Chunk(data) | Frame::Done(data) => data.len(),
        Frame::Failed(error) => error.message.len() + error.code.len(),
    };
    data as u64 + FRAME_COST
}

/// One request in progress.
pub struct Call {
    connection: Arc<Connection>,
    id: u64,
    frames: mpsc::UnboundedReceiver<Frame>,
    owed: Arc<AtomicU64>,
    credit: Arc<Semaphore>,
}

impl Call {
    /// The next frame; `None` when the connection is lost. What was taken is granted again.
    pub async fn next(&mut self) -> Option<Frame> {
        let frame = self.frames.recv().await?;
        self.owed.fetch_sub(cost(&frame), Ordering::Relaxed);
        if let Frame::Chunk(data) = &frame {
            let credit = executor::Credit { bytes: data.len() as u64 };
            self.send(Kind::Credit, "", credit.encode_to_vec());
        }
        Some(frame)
    }

    /// Send bytes that belong to the request, when the executor has room for them. False: the request has ended.
    pub async fn chunk(&self, bytes: &[u8]) -> bool {
        let count = u32::try_from(bytes.len()).expect("a chunk is far smaller than 4 GiB");
        match self.credit.acquire_many(count).await {
            Ok(permit) => permit.forget(),
            // Closed: either the answer is there already, or the connection is lost.
            Err(_) => return false,
        }
        self.send(Kind::Chunk, "", bytes.to_vec());
        true
    }

    fn send(&self, kind: Kind, method: &str, payload: Vec<u8>) {
        self.connection.send(Envelope { id: self.id, method: method.to_owned(), payload, kind: kind.into(), error: None });
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if let Some(open) = lock(&self.connection.calls).get_mut(&self.id) {
            open.frames = None;
        } else {
            return;
        }
        self.send(Kind::Cancel, "", Vec::new());
    }
}

struct Opening {
    connection: Arc<Connection>,
    frames: mpsc::UnboundedReceiver<Result<Envelope, Status>>,
    hello: oneshot::Sender<Hello>,
}

struct Service(Mutex<Option<Opening>>);

#[tonic::async_trait]
impl Worker for Service {
    type ServeStream = UnboundedReceiverStream<Result<Envelope, Status>>;

    async fn serve(&self, request: Request<Streaming<Envelope>>) -> Result<Response<Self::ServeStream>, Status> {
        let Some(Opening { connection, frames, hello }) = lock(&self.0).take() else {
            return Err(Status::already_exists("the one stream has been opened"));
        };
        let mut incoming = request.into_inner();
        tokio::spawn(async move {
            if let Ok(Some(first)) = incoming.message().await
                && first.kind() == Kind::Hello
                && let Ok(message) = Hello::decode(first.payload.as_slice())
                && hello.send(message).is_ok()
            {
                let lost = connection.lost.clone();
                let receive = async {
                    while let Ok(Some(envelope)) = incoming.message().await {
                        if !connection.receive(envelope) {
                            return;
                        }
                    }
                };
                tokio::select! {
                    () = receive => {}
                    () = lost.cancelled() => {}
                }
            }
            connection.close();
        });
        Ok(Response::new(UnboundedReceiverStream::new(frames)))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
