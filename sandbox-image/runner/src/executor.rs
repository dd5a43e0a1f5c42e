//! The executor's methods with types and time limits. What comes back is a hostile party's word: digests are of bytes that
//! were received here.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use agentrun_protocol::executor::{
    Error, ExecExit, ExecOutput, ExecStart, FsEdit, FsEditDone, FsList, FsListDone, FsManifest, FsManifestDone, FsRead, FsReadDone,
    FsSearch, FsSearchDone, FsWrite, FsWriteDone, MAX_CHUNK_BYTES, ManifestEntry, ManifestPart, RefusedEntry, exec_output::Stream, method,
};
use prost::Message;
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::connection::{Call, Connection, Frame};

/// A file operation that takes longer is an executor that hangs.
const FILE_PATIENCE: Duration = Duration::from_secs(60);
const MANIFEST_PATIENCE: Duration = Duration::from_secs(300);
/// What a command's end may take beyond its own time limit.
const SWEEP_PATIENCE: Duration = Duration::from_secs(45);
const TICK: Duration = Duration::from_millis(100);

/// Why a request gave nothing.
#[derive(thiserror::Error, Debug, Clone, PartialEq)]
pub enum ExecutorError {
    /// Nothing more will come from this executor.
    #[error("the executor is lost: {0}")]
    Lost(String),
    /// It said no; the code is one of the protocol's.
    #[error("{}", .0.message)]
    Refused(Error),
}

impl ExecutorError {
    pub fn is(&self, code: &str) -> bool {
        matches!(self, ExecutorError::Refused(error) if error.code == code)
    }
}

/// Takes a command's output as it comes.
pub trait Output: Send {
    fn data(&mut self, stream: Stream, data: &[u8]);
    /// Called about ten times a second while the command runs.
    fn tick(&mut self) {}
}

/// What a command gives while it runs.
#[derive(Debug)]
pub enum Heard {
    Output(Stream, Vec<u8>),
    Ended(ExecExit),
}

/// A command that runs until it ends, however long that takes. Dropped before, it is ended.
pub struct Process(Call);

impl Process {
    pub async fn next(&mut self) -> Result<Heard, ExecutorError> {
        match self.0.next().await {
            Some(Frame::Chunk(chunk)) => {
                ExecOutput::decode(chunk.as_slice()).map(|part| Heard::Output(part.stream(), part.data)).map_err(|_| broken())
            }
            Some(Frame::Done(payload)) => ExecExit::decode(payload.as_slice()).map(Heard::Ended).map_err(|_| broken()),
            Some(Frame::Failed(error)) => Err(ExecutorError::Refused(error)),
            None => Err(gone()),
        }
    }
}

/// All files of a workspace, and what cannot be in a patch.
#[derive(Debug, Default)]
pub struct Manifest {
    pub entries: BTreeMap<String, ManifestEntry>,
    pub refused: Vec<RefusedEntry>,
    pub truncated: bool,
}

/// The methods.
#[derive(Clone)]
pub struct Executor(Arc<Connection>);

impl Executor {
    pub fn new(connection: Arc<Connection>) -> Self {
        Executor(connection)
    }

    pub fn close(&self) {
        self.0.close();
    }

    /// Resolves when the connection is lost.
    pub async fn lost(&self) -> ExecutorError {
        self.0.closed().await;
        ExecutorError::Lost("its connection ended".into())
    }

    /// Wait until nothing that was asked for, and perhaps given up, is still going on.
    pub async fn quiet(&self) -> Result<(), ExecutorError> {
        if self.0.quiet(SWEEP_PATIENCE).await { Ok(()) } else { Err(ExecutorError::Lost("a cancelled command does not end".into())) }
    }

    /// At most `max_bytes` of a file.
    pub async fn read(&self, path: &str, max_bytes: u64) -> Result<(Vec<u8>, FsReadDone), ExecutorError> {
        let mut content = Vec::new();
        let done = self
            .request(method::FS_READ, &FsRead { path: path.to_owned(), max_bytes }, FILE_PATIENCE, |chunk| {
                content.extend_from_slice(&chunk);
                content.len() as u64 <= max_bytes
            })
            .await?;
        Ok((content, done))
    }

    /// Write a whole file; `mode` 644, 755 or 0 to keep it.
    pub async fn write(&self, path: &str, content: &[u8], mode: u32) -> Result<(), ExecutorError> {
        self.put(FsWrite { path: path.to_owned(), size: content.len() as u64, mode, create_only: false, home: false }, content).await
    }

    /// Write a whole file beneath the home directory.
    pub async fn write_home(&self, path: &str, content: &[u8]) -> Result<(), ExecutorError> {
        self.put(FsWrite { path: path.to_owned(), size: content.len() as u64, mode: 0, create_only: false, home: true }, content).await
    }

    async fn put(&self, request: FsWrite, content: &[u8]) -> Result<(), ExecutorError> {
        let mut call = self.0.call(method::FS_WRITE, request.encode_to_vec());
        let work = async {
            for chunk in content.chunks(MAX_CHUNK_BYTES) {
                if !call.chunk(chunk).await {
                    break;
                }
            }
            answer::<FsWriteDone>(&mut call, |_| true).await
        };
        within(FILE_PATIENCE, work).await.map(|_| ())
    }

    pub async fn edit(&self, path: &str, old_text: &str, new_text: &str) -> Result<(), ExecutorError> {
        let request = FsEdit { path: path.to_owned(), old_text: old_text.to_owned(), new_text: new_text.to_owned() };
        self.request::<FsEditDone>(method::FS_EDIT, &request, FILE_PATIENCE, |_| true).await.map(|_| ())
    }

    pub async fn list(&self, path: &str, max_entries: u32) -> Result<FsListDone, ExecutorError> {
        self.request(method::FS_LIST, &FsList { path: path.to_owned(), max_entries }, FILE_PATIENCE, |_| true).await
    }

    pub async fn search(&self, path: &str, text: &str, max_matches: u32) -> Result<FsSearchDone, ExecutorError> {
        let request = FsSearch { path: path.to_owned(), text: text.to_owned(), max_matches };
        self.request(method::FS_SEARCH, &request, FILE_PATIENCE, |_| true).await
    }

    /// All files, at most `max_entries` of them with `max_bytes` in all.
    pub async fn manifest(&self, max_entries: u32, max_bytes: u64, exclude: Vec<String>) -> Result<Manifest, ExecutorError> {
        let mut manifest = Manifest::default();
        let mut refused = 0;
        let request = FsManifest { max_entries, max_bytes, exclude };
        let done: FsManifestDone = self
            .request(method::FS_MANIFEST, &request, MANIFEST_PATIENCE, |chunk| {
                let Ok(part) = ManifestPart::decode(chunk.as_slice()) else { return false };
                refused += part.refused.len();
                // A few are enough to say what is wrong.
                let room = 100usize.saturating_sub(manifest.refused.len());
                manifest.refused.extend(part.refused.into_iter().take(room));
                manifest.entries.extend(part.entries.into_iter().map(|entry| (entry.path.clone(), entry)));
                manifest.entries.len() + refused <= max_entries as usize
            })
            .await?;
        manifest.truncated = done.truncated;
        Ok(manifest)
    }

    /// Start a command that is heard piece by piece.
    pub fn start(&self, start: ExecStart) -> Process {
        Process(self.0.call(method::EXEC_START, start.encode_to_vec()))
    }

    /// Run a command to its end; `start.timeout_ms` must be set.
    pub async fn exec(&self, start: ExecStart, output: &mut dyn Output) -> Result<ExecExit, ExecutorError> {
        let patience = Duration::from_millis(start.timeout_ms) + SWEEP_PATIENCE;
        let limit = start.max_output_bytes + MAX_CHUNK_BYTES as u64;
        let mut received = 0u64;
        let mut call = self.0.call(method::EXEC_START, start.encode_to_vec());
        let work = async {
            let mut ticks = interval(TICK);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                let frame = tokio::select! {
                    _ = ticks.tick() => {
                        output.tick();
                        continue;
                    }
                    frame = call.next() => frame,
                };
                match frame {
                    Some(Frame::Chunk(chunk)) => {
                        received += chunk.len() as u64;
                        match ExecOutput::decode(chunk.as_slice()) {
                            Ok(part) if received <= 2 * limit => output.data(part.stream(), &part.data),
                            _ => return Err(broken()),
                        }
                    }
                    Some(Frame::Done(payload)) => return ExecExit::decode(payload.as_slice()).map_err(|_| broken()),
                    Some(Frame::Failed(error)) => return Err(ExecutorError::Refused(error)),
                    None => return Err(gone()),
                }
            }
        };
        within(patience, work).await
    }

    async fn request<A: Message + Default>(
        &self,
        method: &str,
        request: &impl Message,
        patience: Duration,
        take: impl FnMut(Vec<u8>) -> bool,
    ) -> Result<A, ExecutorError> {
        let mut call = self.0.call(method, request.encode_to_vec());
        within(patience, answer(&mut call, take)).await
    }
}

/// The answer; `take` gets the chunks before it and says false when they are not what was asked for.
async fn answer<A: Message + Default>(call: &mut Call, mut take: impl FnMut(Vec<u8>) -> bool) -> Result<A, ExecutorError> {
    loop {
        match call.next().await {
            Some(Frame::Chunk(chunk)) => {
                if !take(chunk) {
                    return Err(broken());
                }
            }
            Some(Frame::Done(payload)) => return A::decode(payload.as_slice()).map_err(|_| broken()),
            Some(Frame::Failed(error)) => return Err(ExecutorError::Refused(error)),
            None => return Err(gone()),
        }
    }
}

async fn within<A>(patience: Duration, work: impl Future<Output = Result<A, ExecutorError>>) -> Result<A, ExecutorError> {
    timeout(patience, work).await.unwrap_or_else(|_| Err(ExecutorError::Lost(format!("no answer for {} s", patience.as_secs()))))
}

fn broken() -> ExecutorError {
    ExecutorError::Lost("it does not follow the protocol".into())
}

fn gone() -> ExecutorError {
    ExecutorError::Lost("its connection ended".into())
}
