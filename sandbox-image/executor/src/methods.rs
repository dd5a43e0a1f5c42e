//! Which method does what: decodes a request's payload, runs its handler within the bounds of its kind, encodes the answer.

use std::{collections::BTreeMap, ffi::OsString, path::PathBuf, sync::Arc};

use agentrun_protocol::executor::{Envelope, FsEdit, FsList, FsManifest, FsRead, FsSearch, FsWrite, Ping, Pong, method};
use prost::Message;
use tokio::sync::Semaphore;

use crate::{
    exec,
    failure::{Failure, INVALID, IO, UNKNOWN_METHOD},
    fs_edit, fs_list, fs_manifest, fs_read, fs_search, fs_write,
    request::Request,
    strays::Strays,
    workspace::Workspace,
};

/// What `Hello` advertises.
pub const ALL: &[&str] = &[
    method::PING,
    method::EXEC_START,
    method::FS_READ,
    method::FS_WRITE,
    method::FS_EDIT,
    method::FS_LIST,
    method::FS_SEARCH,
    method::FS_MANIFEST,
];

/// Commands at once; further ones wait.
const MAX_COMMANDS: usize = 8;
/// File operations at once; further ones wait.
const MAX_FILE_OPERATIONS: usize = 8;

/// What all requests share.
pub struct Executor {
    pub workspace: Arc<Workspace>,
    /// Where commands are at home, if it may be written to by request.
    home: Option<Arc<Workspace>>,
    /// This program, for the subreaper of a command.
    pub program: PathBuf,
    pub environment: BTreeMap<OsString, OsString>,
    pub strays: Strays,
    commands: Semaphore,
    file_operations: Semaphore,
}

impl Executor {
    pub fn new(workspace: Workspace, home: Option<Workspace>, environment: BTreeMap<OsString, OsString>) -> Self {
        Executor {
            workspace: Arc::new(workspace),
            home: home.map(Arc::new),
            program: "/proc/self/exe".into(),
            environment,
            strays: Strays::default(),
            commands: Semaphore::new(MAX_COMMANDS),
            file_operations: Semaphore::new(MAX_FILE_OPERATIONS),
        }
    }

    /// The payload of the answer.
    pub async fn answer(&self, request: Arc<Request>, envelope: &Envelope) -> Result<Vec<u8>, Failure> {
        let payload = envelope.payload.as_slice();
        match envelope.method.as_str() {
            method::PING => decode::<Ping>(payload).map(|_| Pong {}.encode_to_vec()),
            method::EXEC_START => {
                let start = decode(payload)?;
                let _permit = tokio::select! {
                    () = request.cancel.cancelled() => return Err(Failure::cancelled()),
                    permit = self.commands.acquire() => permit,
                };
                exec::start(self, request.clone(), start).await.map(|exit| exit.encode_to_vec())
            }
            method::FS_READ => self.blocking(request, payload, |w, r, m: FsRead| fs_read::read(w, r, &m)).await,
            method::FS_WRITE => {
                let home = self.home.clone();
                let write = move |workspace: &Workspace, request: &Request, write: FsWrite| match (write.home, &home) {
                    (false, _) => fs_write::write(workspace, request, &write),
                    (true, Some(home)) => fs_write::write(home, request, &write),
                    (true, None) => Err(Failure::new(INVALID, "home: this executor was given no home directory")),
                };
                self.blocking(request, payload, write).await
            }
            method::FS_EDIT => self.blocking(request, payload, |w, _, m: FsEdit| fs_edit::edit(w, &m)).await,
            method::FS_LIST => self.blocking(request, payload, |w, r, m: FsList| fs_list::list(w, r, &m)).await,
            method::FS_SEARCH => self.blocking(request, payload, |w, r, m: FsSearch| fs_search::search(w, r, &m)).await,
            method::FS_MANIFEST => self.blocking(request, payload, |w, r, m: FsManifest| fs_manifest::manifest(w, r, &m)).await,
            other => Err(Failure::new(UNKNOWN_METHOD, format!("method: {other:?} is not one of {}", ALL.join(", ")))),
        }
    }

    /// Run a file operation on a thread of its own.
    async fn blocking<M, A>(
        &self,
        request: Arc<Request>,
        payload: &[u8],
        operation: impl FnOnce(&Workspace, &Request, M) -> Result<A, Failure> + Send + 'static,
    ) -> Result<Vec<u8>, Failure>
    where
        M: Message + Default + 'static,
        A: Message + 'static,
    {
        let message: M = decode(payload)?;
        let _permit = tokio::select! {
            () = request.cancel.cancelled() => return Err(Failure::cancelled()),
            permit = self.file_operations.acquire() => permit,
        };
        let workspace = self.workspace.clone();
        let done = tokio::task::spawn_blocking(move || operation(&workspace, &request, message)).await;
        done.unwrap_or_else(|_| Err(Failure::new(IO, "the operation failed inside the executor"))).map(|answer| answer.encode_to_vec())
    }
}

fn decode<M: Message + Default>(payload: &[u8]) -> Result<M, Failure> {
    M::decode(payload).map_err(|error| Failure::new(INVALID, format!("payload: {error}")))
}
